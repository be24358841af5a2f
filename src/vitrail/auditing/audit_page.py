"""Audit -> a page that shows what was found, and a folder with the page, the table to edit and the plain numbers."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from PIL import Image

from vitrail.auditing import findings_table
from vitrail.auditing.audit_results import HELD_OUT, WEAK, Audit, Group, Member
from vitrail.auditing.fingerprints import ORDINARY, visible
from vitrail.auditing.next_step import next_command
from vitrail.auditing.sizes import SQUARE, Sizes
from vitrail.checks import join_limited
from vitrail.data.samples import Dataset
from vitrail.errors import ImageError
from vitrail.images import Preprocess
from vitrail.images.preprocess import Resize
from vitrail.reporting import html_page as html
from vitrail.reporting.axes import Axis
from vitrail.reporting.charts import histogram
from vitrail.reporting.html_page import Cell, Html, Section, Shown, Tile, counted, percent, plural
from vitrail.types import Array

Sources = Mapping[str, Path | Array]  # images by name

# What a page shows of each kind: enough to judge, few enough for a small file; the table has them all.
GROUPS: Final = 12
MEMBERS: Final = 6
SUSPECTS: Final = 36
OTHERS: Final = 12
EXAMPLES: Final = 6
CLASSES: Final = 30
SIDE: Final = 320  # pixels of an image on the page


def write_audit(audit: Audit, folder: str | os.PathLike[str], images: Dataset) -> list[Path]:
    """audit.html to look at, audit.csv to edit and train with, audit.json for machines; written whole or not at all."""
    files = {
        "audit.html": build_page(audit, images, Path(folder) / "audit.csv"),
        "audit.csv": findings_table.table(audit),
        "audit.json": json.dumps(audit.to_dict(), indent=1) + "\n",
    }
    return html.write_files(Path(folder), files)


class _Images(Mapping[str, Any]):
    """The images of a data set by name, each read when it is asked for."""

    def __init__(self, images: Dataset) -> None:
        self.images = images.images
        self.rows = {each.name: row for row, each in enumerate(images.samples)}

    def __getitem__(self, name: str) -> Any:
        return self.images[self.rows[name]]

    def __iter__(self) -> Iterator[str]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)


def build_page(audit: Audit, images: Dataset, table: str | os.PathLike[str] = "audit.csv") -> str:
    """The page; images are looked up by name. `table` is where the findings stand for `train --exclude`."""
    sources = _Images(images)
    sections = [
        _short(audit),
        _leaks(audit, sources),
        _alike(
            "One image, two labels",
            findings_table.label_conflicts(audit),
            sources,
            "The same image under different labels: only a person can say which is right.",
        ),
        _suspects(audit, sources),
        _placeholders(audit, sources),
        _duplicates(audit, sources),
        _alike(
            "Look-alikes",
            audit.lookalikes,
            sources,
            "Not the same image, but the network sees hardly any difference: frames of one video, series of one "
            f"object, crops. Where they stand in different splits, scores may be too good.{_doubt(audit)}",
            "alike to the network",
        ),
        _classes(audit),
        _sizes(audit, sources),
        _unreadable(audit),
        _next(audit, table),
    ]
    subtitle = f"{counted(audit.images, 'image')} of {_kinds(audit)} in {audit.source}"
    return html.page("Data audit", subtitle, [each for each in sections if each is not None])


def _look(sources: Sources, name: str) -> Image.Image:
    """The image of this name, small; a grey pane where it has gone since."""
    try:
        image = visible(sources[name])
    except (KeyError, ImageError):
        return Image.new("RGB", (64, 64), (128, 128, 128))
    if max(image.size) > SIDE:
        image = image.copy()
        image.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    return image


def _kinds(audit: Audit) -> str:
    count = len(audit.balance.counts)
    return "1 class" if count == 1 else f"{count:,} classes"


def _short(audit: Audit) -> Section:
    """The numbers that matter, and what they mean, the gravest first."""
    counts = audit.counts()
    known = audit.agreement is not None
    split = len(audit.balance.splits) > 1
    numbers = [
        Tile(f"{counts['images']:,}", "images", f"of {_kinds(audit)}"),
        Tile(
            f"{counts['leaks']:,}" if split else "–",
            f"{plural(counts['leaks'], 'leak')} across splits",
            "images in one split whose twins are in another" if split else "the images are not split",
        ),
        Tile(
            f"{len(audit.duplicates):,}",
            f"{plural(len(audit.duplicates), 'group')} of duplicates",
            f"{counts['exact_groups']:,} of the same pixels, {counts['near_groups']:,} of nearly the same",
        ),
        Tile(
            f"{counts['suspects']:,}" if known else "–",
            f"possible label {plural(counts['suspects'], 'error')}",
            "by probes that never saw the image" if known else "not looked for: that needs a checkpoint",
        ),
        Tile(
            f"{counts['unreadable']:,}",
            f"unreadable {plural(counts['unreadable'], 'file')}",
            "which a training would skip",
        ),
    ]
    body = [html.callout(each.words, "bad" if each.grave else "warn") for each in findings_table.verdicts(audit)]
    body = body or [html.callout("Nothing was found that would spoil a training or its score.", "good")]
    return Section("In short", "".join([html.tiles(numbers), *body, *map(html.paragraph, audit.notes)]))


def _leaks(audit: Audit, sources: Sources) -> Section | None:
    if not audit.leaks and not audit.crossing:
        return None
    body = [_groups(audit.leaks, sources)]
    if audit.crossing:
        rows = [
            [each.name, ", ".join(f"{split}: {n:,}" for split, n in each.counts.items())] for each in audit.crossing
        ]
        body += [html.heading("Groups in more than one split"), html.table(["group", "images"], rows, most=CLASSES)]
        body.append(html.paragraph("Images of one group belong in one split: `train` refuses them otherwise."))
    note = (
        "A network that learned from an image, or from its twin, is not tested by it. "
        "Training images that audit.csv excludes are underlined in red."
    )
    return Section("Leaks across splits", "".join(body), note)


def _doubt(audit: Audit) -> str:
    """A warning where probes show that the network knows little of these images."""
    if audit.agreement is None or audit.agreement >= WEAK:
        return ""
    return f" This network finds only {percent(audit.agreement)} of the labels: what it takes for alike may not be."


def _suspects(audit: Audit, sources: Sources) -> Section | None:
    if audit.agreement is None:
        return None
    trust = f"The probes agree with {percent(audit.agreement)} of all labels"
    trust += ", which is little: take this list as hints." if audit.agreement < WEAK else "."
    note = (
        "Each image was judged by a probe on the network's features that never saw it. Here its label gets next to "
        f"nothing of the probability that images of its class usually get, and another gets much. {trust}"
    )
    if not audit.suspects:
        return Section("Possible label errors", html.callout("No label seems wrong.", "good"), note)
    items = [
        Shown(
            _look(sources, each.name),
            f"{_label(each.given)} → {_label(each.suggested)}?\n{each.name}\n"
            f"{percent(each.confidence)} for the label given{f' · {each.split}' * bool(each.split)}",
            "warn",
        )
        for each in audit.suspects[:SUSPECTS]
    ]
    more = _more(len(audit.suspects) - SUSPECTS, "label")
    return Section("Possible label errors", Html(html.gallery(items) + more), note)


def _placeholders(audit: Audit, sources: Sources) -> Section | None:
    if not audit.placeholders:
        return None
    items = [
        Shown(
            _look(sources, each.name),
            f"{_label(each.sample.labels)}\n{each.name}\n{each.why}",
            "bad" if each.sure else "",
        )
        for each in audit.placeholders[:OTHERS]
    ]
    note = (
        "Images that seem to stand where an image should be, such as “image not found”: the same under several labels "
        "or many times, or a ground of one colour with hardly anything on it. Those that are both are underlined in "
        "red, and audit.csv excludes them; the others may be right."
    )
    return Section("Placeholder images", html.gallery(items) + _more(len(audit.placeholders) - OTHERS, "image"), note)


def _duplicates(audit: Audit, sources: Sources) -> Section | None:
    plain = [each for each in audit.duplicates if not each.leaks and not each.conflicts]
    exact, near = [each for each in plain if each.exact], [each for each in plain if not each.exact]
    if not plain:
        return None
    body = [html.heading(f"The same, pixel for pixel ({len(exact):,})"), _groups(exact, sources)] if exact else []
    if near:
        body += [html.heading(f"Nearly the same ({len(near):,})"), _groups(near, sources)]
    note = (
        "Within one split, copies weigh double and hide how few different images there are. "
        "Of the same images in training, audit.csv keeps the first."
    )
    return Section("Duplicates", "".join(body), note)


def _alike(title: str, groups: Sequence[Group], sources: Sources, note: str, how: str = "") -> Section | None:
    return Section(title, _groups(groups, sources, how), note) if groups else None


def _groups(groups: Sequence[Group], sources: Sources, how: str = "") -> Html:
    """Groups beside each other, the first members of each; `how` says what makes them one."""
    parts = []
    for group in groups[:GROUPS]:
        out = findings_table.excluded(group)
        kept = sorted(group.members, key=lambda each: each.name not in out and each.split not in HELD_OUT)
        items = [_shown(each, sources, each.name in out, group.conflicts) for each in kept[:MEMBERS]]
        same = how or ("the same" if group.exact else "nearly the same")
        what = f"{len(kept):,} images" if group.conflicts else f"{_label(group.members[0].labels)}: {len(kept):,}"
        more = f" ({MEMBERS} shown)" if len(kept) > MEMBERS else ""
        parts.append(html.paragraph(f"{what} {same}{more}") + html.gallery(items, "small"))
    return Html(html.beside(*parts) + _more(len(groups) - GROUPS, "group"))


def _shown(member: Member, sources: Sources, out: bool, labelled: bool) -> Shown:
    """A member with its name, and what tells it from the others of its group."""
    told = " · ".join(filter(None, (_label(member.labels) if labelled else "", member.split)))
    caption = f"{told}\n{member.name}" if told else member.name
    return Shown(_look(sources, member.name), caption, "bad" if out else "")


def _classes(audit: Audit) -> Section | None:
    balance = audit.balance
    if not balance.counts:
        return None
    most = max(max(sum(row) for row in balance.counts.values()), 1)
    several = len(balance.splits) > 1
    headers = ["class", "", "images", *(split or "not split" for split in balance.splits if several)]
    rows: list[list[Cell]] = [
        [name, html.meter(sum(row) / most), sum(row), *(map(int, row) if several else ())]
        for name, row in sorted(balance.counts.items(), key=lambda pair: -sum(pair[1]))
    ]
    return Section("Classes", html.table(headers, rows, most=CLASSES), balance.advice)


def _sizes(audit: Audit, sources: Sources) -> Section:
    sizes, hint = audit.sizes, audit.sizes.suggestion
    body = [
        html.callout(
            f"Suggested: {_frame(hint.size)} by {hint.resize}. {hint.reason[0].upper()}{hint.reason[1:]}.", "good"
        ),
        html.facts(
            [
                ("median size", f"{np.median(sizes.widths):.0f}x{np.median(sizes.heights):.0f}"),
                ("short side", _span(int(sizes.shorts.min()), int(sizes.shorts.max()))),
                ("different sizes", f"{sizes.distinct:,}"),
                (
                    "most common",
                    ", ".join(f"{c.width}x{c.height} ({counted(c.images, 'image')})" for c in sizes.common[:3]),
                ),
                ("kinds", ", ".join(f"{kind} ({counted(count, 'image')})" for kind, count in audit.kinds.items())),
                *([("without colour", counted(audit.grey, "image"))] if audit.grey else ()),
            ]
        ),
    ]
    if sizes.distinct > len(sizes.common):
        body.append(html.beside(_spread(sizes.shorts, "short side in pixels"), _aspects(sizes)))
    elif sizes.distinct > 1:
        rows: list[list[Cell]] = [[f"{each.width}x{each.height}", each.images] for each in sizes.common]
        body.append(html.table(["size", "images"], rows))
    body.append(_views(audit, sources))
    if sizes.odd:
        items = [
            Shown(_look(sources, odd.name), f"{odd.width}x{odd.height}\n{odd.name}\n{odd.why}")
            for odd in sizes.odd[:OTHERS]
        ]
        body += [html.heading("Odd sizes"), html.gallery(items), _more(len(sizes.odd) - OTHERS, "image")]
    return Section("Sizes", "".join(body), "How large the images are, and how they should reach the network.")


def _span(low: int, high: int) -> str:
    return f"{low:,} pixels" if low == high else f"{low:,} to {high:,} pixels"


def _spread(values: Array, label: str) -> Html:
    """A histogram up to the last but a few; those stand in the last bar."""
    sides = np.asarray(values, np.float64)
    high = float(np.quantile(sides, 0.98)) * 1.05
    low = float(sides.min())
    low = 0.0 if low < high / 4 else low * 0.95
    title = "Sizes" if sides.max() <= high else "Sizes (the largest in the last bar)"
    axis = Axis(label, low=low, high=max(high, low + 1))
    return histogram([("images", np.minimum(sides, high))], axis, title).html


def _aspects(sizes: Sizes) -> Html:
    """Shapes from 1:3 to 3:1, longer ones at the ends."""
    axis = Axis("shape: -1 twice as high as wide, 0 square, 1 twice as wide", low=-1.6, high=1.6)
    return histogram([("images", np.clip(np.log2(sizes.aspects), -1.6, 1.6))], axis, "Shapes", bins=32).html


def _views(audit: Audit, sources: Sources) -> Html:
    """What the network would see of a few images of different shape, as suggested and in the other ways."""
    if set(audit.kinds) != {ORDINARY}:
        return Html()
    hint = audit.sizes.suggestion
    order = np.argsort(audit.sizes.aspects, kind="stable")
    places = np.unique(np.linspace(0, len(order) - 1, EXAMPLES).round().astype(int))
    names = [audit.sizes.names[order[place]] for place in places]
    ways: list[Resize] = [hint.resize]
    if max(np.exp(np.abs(np.log(audit.sizes.aspects)))) > SQUARE:
        others: tuple[Resize, ...] = ("pad", "squash", "crop")
        ways += [each for each in others if each != hint.resize]
    views = []
    for way in ways:
        seen = Preprocess(size=hint.size, resize=way, crop=1.0)
        items = []
        for name in names:
            try:
                items.append(Shown(seen.visible_image(sources[name]), name))
            except (KeyError, ImageError):
                continue
        views.append((way if way != hint.resize else f"{way} (suggested)", html.gallery(items)))
    shown_ways = html.tabs("views", views) if len(views) > 1 else views[0][1]
    return Html(html.heading(f"What the network sees, at {_frame(hint.size)}") + shown_ways)


def _unreadable(audit: Audit) -> Section | None:
    if not audit.unreadable and not audit.left_out:
        return None
    body = [html.table(["file", "why"], [list(each) for each in audit.unreadable], most=CLASSES)]
    if audit.left_out:
        rows: list[list[Cell]] = [
            [why, n, join_limited(audit.left_out_names.get(why, ()), ", ")] for why, n in audit.left_out.items()
        ]
        body += [html.heading("Left out"), html.table(["why", "files", "the first of them"], rows)]
    title = "Unreadable files" if audit.unreadable else "Files left out"
    return Section(title, "".join(body), "These files are not counted elsewhere on this page.")


def _next(audit: Audit, table: str | os.PathLike[str]) -> Section:
    body = html.paragraph(
        "audit.csv, beside this page, has a row for every finding. Where its last column is 1, training leaves the "
        "file out: unreadable files, copies, placeholders. Where it is 0, you decide. Edit it, then:"
    )
    return Section("What to do next", Html(body + html.code(next_command(audit, table))))


def _more(count: int, thing: str) -> Html:
    return html.paragraph(f"… and {counted(count, thing)} more in audit.csv.") if count > 0 else Html()


def _label(labels: tuple[str, ...]) -> str:
    return ", ".join(labels) or "no label"


def _frame(size: tuple[int, int]) -> str:
    """Width by height, as people say it."""
    return f"{size[1]}x{size[0]}"
