"""Explanations of images -> one page: each image with its maps, what they are worth, and what their colours mean."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from PIL import Image

from vitrail.insight.cards import HIGH, LOW, value_of
from vitrail.insight.explanation import Explanation
from vitrail.reporting import html_page as html
from vitrail.reporting.heat_legend import legend_html
from vitrail.reporting.html_page import Cell, Html, Section, Shown, Tile, Tone, counted
from vitrail.reporting.image_sheets import fitted

MOST: Final = 100  # images on a page: more would make it slow to open
SIDE: Final = 480  # pixels of an image on the page
WORTH: Final[dict[str, tuple[str, Tone]]] = {  # the colours are those below the maps
    "strong": ("far better than random", "good"),
    "fair": ("better than random", "good"),
    "weak": ("about as good as random", "warn"),
    "none": ("no better than random", "bad"),
}

MEANING: Final = (
    "A map marks the patches that speak for the answer. To test it, the marked patches are covered first: a faithful "
    "map makes the answer fall sooner than covering at random."
)


class ExplainedImage(NamedTuple):
    """What the page shows of an image: made at once, so that no large image is kept."""

    section: Html
    words: tuple[str, ...]  # the verdict on each map
    crosses: bool
    frames: bool = False  # whether the network sees a part of it alone


def explained_image(name: str, explanations: Sequence[Explanation]) -> ExplainedImage:
    """An image beside its maps, each with its verdict, and the numbers behind it."""
    first = explanations[0]
    items = [Shown(_small(first.image), "the image")] if first.image is not None else []
    rows: list[list[Cell]] = []
    doubts: list[Html] = []
    for each in explanations:
        judged = each.verdicts
        worth = f"{judged[0].name}: {judged[0].word}, {judged[0].value_words}\n{judged[0].meaning}" if judged else ""
        tone = judged[0].tone if judged else ""
        items.append(Shown(_small(each.overlay()), f"{each.method}\n{worth or 'not checked'}", tone))
        rows += [[each.method, one.name, one.word, one.value_words, one.meaning] for one in judged]
        doubts += [html.callout(f"{each.method} is not to be relied on: {why}", "warn") for why in each.warnings]
    numbers = html.table(["method", "number", "verdict", "value", "what it means"], rows)
    parts = [
        html.heading(name),
        html.paragraph(f"Why “{first.target}”? The network gives it {value_of(first)}."),
        html.callout(f"This answer is marked: {first.remark}.", "warn") if first.remark else "",
        html.gallery(items, "large"),
        *doubts,
        html.folded("The numbers, and what they mean", numbers) if rows else "",
    ]
    crosses = any(each.outliers is not None and bool(each.outliers.any()) for each in explanations)
    words = tuple(each.verdicts[0].word for each in explanations if each.verdicts)
    return ExplainedImage(Html("".join(parts)), words, crosses, _cut_off(first))


def gallery_page(name: str, images: Sequence[ExplainedImage], command: str = "") -> str:
    """The page of all images, the first hundred of them shown."""
    shown = images[:MOST]
    crosses, frames = any(each.crosses for each in shown), any(each.frames for each in shown)
    legend = legend_html(LOW, HIGH.format("the answer"), crosses, frames)
    sections = [
        Section("In short", Html(_worth(images) + html.paragraph(MEANING) + legend)),
        Section("Image by image", "".join(each.section for each in shown), _more(len(images))),
    ]
    if command:
        sections.append(Section("Reproduce this page", html.code(command)))
    return html.page("Where the answers come from", f"{counted(len(images), 'image')}, explained for {name}", sections)


def write_explanation_page(folder: Path, content: str) -> Path:
    """index.html in the folder."""
    return html.write_files(folder, {"index.html": content})[0]


def _cut_off(explanation: Explanation) -> bool:
    """Whether a map is of a part of the image, and framed: a pixel more or less is none."""
    if explanation.image is None or explanation.box is None:
        return False
    left, top, right, bottom = map(round, explanation.box)
    return left > 0 or top > 0 or right < explanation.image.width or bottom < explanation.image.height


def _worth(images: Sequence[ExplainedImage]) -> Html:
    words = [word for each in images for word in each.words]
    if not words:
        return html.callout("The maps were not checked, so nothing is known of what they are worth.", "warn")
    tiles = [
        Tile(f"{words.count(word):,}", f"faithfulness: {word}", f"of {counted(len(words), 'map')}: {note}", tone)
        for word, (note, tone) in WORTH.items()
    ]
    return html.tiles(tiles)


def _more(count: int) -> str:
    return f"The first {MOST} of {count:,} images; the files beside this page have them all." if count > MOST else ""


def _small(image: Image.Image) -> Image.Image:
    return image if max(image.size) <= SIDE and min(image.size) > html.TINY else fitted(image, SIDE)
