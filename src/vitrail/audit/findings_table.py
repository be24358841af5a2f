"""Audit -> a table with a row for every finding about an image, which a person edits and `train --exclude` obeys."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import NamedTuple

from vitrail.audit.audit_results import HELD_OUT, Audit, Crossing, Group, Member
from vitrail.reporting.html_page import counted


class AuditFinding(NamedTuple):
    """Something about one image; the fields are the columns of the table."""

    path: str  # the name of the image
    finding: str
    detail: str
    given: str  # label; of several, with | between them
    suggested: str
    score: str  # from 0 to 1 where there is one
    exclude: int  # 1: not to be trained on; the person who reads this decides


def findings(audit: Audit) -> list[AuditFinding]:
    """Every finding, the gravest kind first.

    Marked for exclusion are images that cannot be read, training images of which a copy is held out, and all but
    the first of the same images in training; not those with different labels, nor anything that is only likely.
    """
    return [
        *(AuditFinding(name, "unreadable", reason, "", "", "", 1) for name, reason in audit.unreadable),
        *(each for group in audit.duplicates for each in _of_group(group)),
        *(
            AuditFinding(name, "group in two splits", f"{each.name} is in {_where(each)}", "", "", "", 0)
            for each in audit.crossing
            for name in each.names
        ),
        *(each for group in audit.lookalikes for each in _of_lookalikes(group)),
        *(
            AuditFinding(each.name, "label", f"probability of the label given: {each.confidence:.3f}", *words, 0)
            for each in audit.suspects
            for words in ((joined(each.given), joined(each.suggested), f"{each.score:.4f}"),)
        ),
        *(
            AuditFinding(each.name, "blank", "shows a single colour", joined(each.labels), "", "", 0)
            for each in audit.blank
        ),
        *(
            AuditFinding(each.name, "odd size", f"{each.width}x{each.height}: {each.why}", "", "", "", 0)
            for each in audit.sizes.odd
        ),
    ]


class Verdict(NamedTuple):
    """A sentence about the whole data set; grave where scores would be wrong, or labels are."""

    words: str
    grave: bool


def verdicts(audit: Audit) -> list[Verdict]:
    """What to do something about, the gravest first; none if all is well."""
    counts = audit.counts()
    leaked, between = counts["leaked_images"], counts["leaks"]
    checks = [
        (
            leaked,
            True,
            "Scores would look better than they are. Training images that are held out too, the same or nearly: "
            f"{leaked:,}. audit.csv leaves them out of the training.",
        ),
        (
            0 if leaked else between,
            True,
            f"The same or nearly the same in val and in test: {counted(between, 'group')}.",
        ),
        (
            counts["crossing_groups"],
            True,
            f"Given as a group, but in more than one split: {counted(counts['crossing_groups'], 'group')}.",
        ),
        (
            counts["conflicts"],
            True,
            f"One image under different labels: {counted(counts['conflicts'], 'group')}. One label must be wrong.",
        ),
        (counts["suspects"], False, f"Labels in doubt: {counts['suspects']:,}. Look at them, the surest first."),
        (counts["unreadable"], False, f"Unreadable: {counted(counts['unreadable'], 'file')}."),
        (
            counts["exact_copies"],
            False,
            f"Copies of others, pixel for pixel: {counted(counts['exact_copies'], 'image')}.",
        ),
        (audit.balance.balance != "none" or audit.balance.small or audit.balance.missing, False, audit.balance.advice),
        (counts["blank"], False, f"Of a single colour: {counted(counts['blank'], 'image')}."),
        (counts["odd_sizes"], False, f"Of odd size or shape: {counted(counts['odd_sizes'], 'image')}."),
    ]
    return [Verdict(words, grave) for holds, grave, words in checks if holds]


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
        yield AuditFinding(member.name, kind, like, joined(member.labels), "", "", int(member.name in out))
        if set(member.labels) != set(other.labels):
            detail = f"{like}, which is labelled {joined(other.labels)}"
            yield AuditFinding(
                member.name, "conflicting labels", detail, joined(member.labels), joined(other.labels), "", 0
            )


def _nearest(group: Group, member: Member) -> Member:
    """The other member that says most about this one: of another split, with another label, the same pixels."""
    others = [each for each in group.members if each.name != member.name]
    if member.split not in HELD_OUT and not member.leaked:  # like a held-out one only by way of a third
        others = [each for each in others if each.split not in HELD_OUT] or others

    def order(other: Member) -> tuple[bool, bool, bool]:
        alike = other.image == member.image
        return other.split == member.split, set(other.labels) == set(member.labels), not alike

    return min(others, key=order)


def _of_lookalikes(group: Group) -> Iterator[AuditFinding]:
    first = group.members[0]
    for each in group.members[1:]:
        yield AuditFinding(
            each.name, "look-alike", f"to the network, like {_place(first)}", joined(each.labels), "", "", 0
        )


def _where(crossing: Crossing) -> str:
    return " and ".join(f"{split} ({count})" for split, count in crossing.counts.items())


def _place(member: Member) -> str:
    return f"{member.name} ({member.split})" if member.split else member.name
