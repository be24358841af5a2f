"""Audit -> a table with a row for every finding about an image, which a person edits and `train --exclude` obeys."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from vitrail.auditing.audit_results import HELD_OUT, Audit, Group, Member
from vitrail.data.left_out import unreadable_lines
from vitrail.reporting.html_page import counted


class AuditFinding(NamedTuple):
    """Something about one image; the fields are the columns of the table."""

    path: str  # the name of the image
    finding: str
    detail: str
    given: str = ""  # label; of several, with | between them
    suggested: str = ""
    score: str = ""  # from 0 to 1 where there is one
    exclude: int = 0  # 1: not to be trained on; the person who reads this decides


def findings(audit: Audit) -> list[AuditFinding]:
    """Every finding, the gravest kind first.

    Marked for exclusion are images that cannot be read, training images of which a copy is held out, all but the
    first of the same images in training, and flat images that come back again and again; not those with different
    labels, nor anything that is only likely.
    """
    rows = [AuditFinding(name, "unreadable", reason, exclude=1) for name, reason in audit.unreadable]
    for group in audit.duplicates:
        rows += _of_group(group)
    for crossing in audit.crossing:
        where = " and ".join(f"{split} ({count})" for split, count in crossing.counts.items())
        detail = f"{crossing.name} is in {where}"
        rows += [AuditFinding(name, "group in two splits", detail) for name in crossing.names]
    for group in audit.lookalikes:
        first, *others = group.members
        detail = f"to the network, like {_place(first)}"
        rows += [AuditFinding(each.name, "look-alike", detail, joined(each.labels)) for each in others]
    for suspect in audit.suspects:
        detail = f"probability of the label given: {suspect.confidence:.3f}"
        labels = joined(suspect.given), joined(suspect.suggested)
        rows.append(AuditFinding(suspect.name, "label", detail, *labels, f"{suspect.score:.4f}"))
    for image in audit.placeholders:
        given = joined(image.sample.labels)
        rows.append(AuditFinding(image.name, "placeholder", image.why, given, exclude=int(image.sure)))
    for odd in audit.sizes.odd:
        rows.append(AuditFinding(odd.name, "odd size", f"{odd.width}x{odd.height}: {odd.why}"))
    return rows


class AuditVerdict(NamedTuple):
    """A sentence about the whole data set; grave where scores would be wrong, or labels are."""

    words: str
    grave: bool
    names: tuple[str, ...] = ()  # the images that it is about
    details: tuple[str, ...] = ()  # a line a kind, where there are several; they name images too


def verdicts(audit: Audit) -> list[AuditVerdict]:
    """What to do something about, the gravest first; none if all is well."""
    counts, balance = audit.counts(), audit.balance
    leaked = counts["leaked_images"]
    conflicts = label_conflicts(audit)
    near = [each for each in audit.duplicates if not (each.exact or each.leaks or each.conflicts)]
    doubts = counted(counts["suspects"], "possible label error")
    verdicts_of_images = [
        AuditVerdict(
            "Scores would look better than they are. Training images that are held out too, the same or nearly: "
            f"{leaked:,}. audit.csv leaves them out of the training.",
            True,
            tuple(one.name for each in audit.duplicates for one in each.members if one.leaked),
        ),
        AuditVerdict(
            f"The same or nearly the same in val and in test: {counted(counts['leaks'], 'group')}.",
            True,
            () if leaked else _members(audit.leaks),
        ),
        AuditVerdict(
            f"Given as a group, but in more than one split: {counted(counts['crossing_groups'], 'group')}.",
            True,
            tuple(name for each in audit.crossing for name in each.names),
        ),
        AuditVerdict(
            f"One image under different labels: {counted(len(conflicts), 'group')}. One label must be wrong.",
            True,
            _members(conflicts),
        ),
        AuditVerdict(f"{doubts}. Look at the surest first.", False, tuple(each.name for each in audit.suspects)),
        AuditVerdict(
            f"Unreadable: {counted(counts['unreadable'], 'file')}.",
            False,
            tuple(name for name, _ in audit.unreadable),
            tuple(unreadable_lines(audit.unreadable)),
        ),
        AuditVerdict(
            f"Placeholder images, such as “image not found” or a single colour: {counts['placeholders']:,}.",
            False,
            tuple(each.name for each in audit.placeholders),
        ),
        AuditVerdict(f"Copies of others, pixel for pixel: {counted(audit.copies, 'image')}.", False, _copies(audit)),
        AuditVerdict(f"Nearly the same, within one split: {counted(len(near), 'group')}.", False, _members(near)),
        AuditVerdict(
            f"Look-alikes, which the network hardly tells apart: {counted(counts['lookalike_groups'], 'group')}.",
            False,
            _members(audit.lookalikes),
        ),
        AuditVerdict(
            f"Of odd size or shape: {counted(counts['odd_sizes'], 'image')}.",
            False,
            tuple(each.name for each in audit.sizes.odd),
        ),
    ]
    about_classes = balance.balance != "none" or balance.small or balance.missing
    advice = [AuditVerdict(balance.advice, False)] if about_classes else []
    return [*(each for each in verdicts_of_images if each.names), *advice]


def _members(groups: Iterable[Group]) -> tuple[str, ...]:
    return tuple(each.name for group in groups for each in group.members)


def _copies(audit: Audit) -> tuple[str, ...]:
    """Images that are the same, pixel for pixel, as one before them."""
    names = []
    for group in audit.duplicates:
        seen: set[int] = set()
        for each in group.members:
            if each.image in seen:
                names.append(each.name)
            seen.add(each.image)
    return tuple(names)


def label_conflicts(audit: Audit) -> tuple[Group, ...]:
    """Groups with different labels, one of which may be right: of placeholders, none is."""
    sure = {each.name for each in audit.placeholders if each.sure}
    return tuple(each for each in audit.conflicts if not sure.issuperset(one.name for one in each.members))


def table(audit: Audit) -> str:
    """The findings as CSV."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(AuditFinding._fields)
    writer.writerows(findings(audit))
    return text.getvalue()


def joined(labels: tuple[str, ...]) -> str:
    """Labels in one cell."""
    return "|".join(labels)


def excluded(group: Group) -> set[str]:
    """Names of a group's members that should not be trained on."""
    leaked = {each.name for each in group.members if each.leaked}
    names = set(leaked)
    for image in {each.image for each in group.members}:
        same = [each for each in group.members if each.image == image and each.split not in HELD_OUT]
        if len({frozenset(each.labels) for each in same}) == 1:  # which of different labels is right, a person says
            names |= {each.name for each in [each for each in same if each.name not in leaked][1:]}
    return names


def _of_group(group: Group) -> Iterator[AuditFinding]:
    """A row for every member, and another where labels differ."""
    out = excluded(group)
    for member in group.members:
        other = _nearest(group, member)
        same = member.image == other.image
        kind = "leak" if member.split != other.split else "exact duplicate" if same else "near duplicate"
        like = f"{'the same as' if same else 'nearly the same as'} {_place(other)}"
        yield AuditFinding(member.name, kind, like, joined(member.labels), exclude=int(member.name in out))
        if set(member.labels) != set(other.labels):
            detail = f"{like}, which is labelled {joined(other.labels)}"
            labels = joined(member.labels), joined(other.labels)
            yield AuditFinding(member.name, "conflicting labels", detail, *labels)


def _nearest(group: Group, member: Member) -> Member:
    """The other member that says most about this one: of another split, with another label, the same pixels."""
    others = [each for each in group.members if each.name != member.name]
    if member.split not in HELD_OUT and not member.leaked:  # like a held-out one only by way of a third
        others = [each for each in others if each.split not in HELD_OUT] or others

    def order(other: Member) -> tuple[bool, bool, bool]:
        alike = other.image == member.image
        return other.split == member.split, set(other.labels) == set(member.labels), not alike

    return min(others, key=order)


def _place(member: Member) -> str:
    return f"{member.name} ({member.split})" if member.split else member.name
