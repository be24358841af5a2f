"""Explanations as images: a card of one image by several methods, all heads of all blocks, a film of the blocks."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from PIL import Image

from vitrail.checkpoint import Checkpoint
from vitrail.checks import check_int
from vitrail.errors import InputError
from vitrail.images import Source
from vitrail.insight.activations import pixels_of, traced
from vitrail.insight.attention_figures import attention_sheet, framed, looks, reader
from vitrail.insight.explanation import Explanation
from vitrail.reporting.heat_legend import legend_strip
from vitrail.reporting.image_sheets import PAPER, fitted, heat_over, sheet

TILE = 300  # the longer side of a tile of a card
LOW, HIGH = "speaks least", "speaks most for {}"  # what the ends of the colour scale mean
FRAME = 480  # of a film
SECONDS = 0.7


def card(explanations: Sequence[Explanation]) -> Image.Image:
    """An image beside its maps by several methods, with what the maps are worth."""
    if not explanations or explanations[0].image is None:
        raise InputError("a card needs explanations of one image, made by vitrail.explain")
    first = explanations[0]
    tiles = [fitted(each, TILE) for each in (explanations[0].image, *(each.overlay() for each in explanations))]
    notes = []
    for each in explanations:
        notes.append(words_of(each))
        notes += [f"    {line}" for line in numbers_of(each)]
        for why in each.warnings:
            notes += textwrap.wrap(f"not to be relied on: {why}", 150, initial_indent="    ", subsequent_indent="    ")
    drawn = sheet(
        [tiles],
        "; ".join(filter(None, (f"{first.target}: {value_of(first)}", first.remark))),
        columns=["the image", *(each.method for each in explanations)],
        notes=notes,
    )
    crosses = any(each.outliers is not None and each.outliers.any() for each in explanations)
    legend = legend_strip(drawn.width, LOW, HIGH.format(first.target), crosses)
    page = Image.new("RGB", (drawn.width, drawn.height + legend.height), PAPER)
    page.paste(drawn, (0, 0))
    page.paste(legend, (0, drawn.height))
    return page


def value_of(explanation: Explanation) -> str:
    """What the network gives the target, in words."""
    return f"{100 * explanation.value:.1f} %" if explanation.probability else f"{explanation.value:.3f}"


def words_of(explanation: Explanation) -> str:
    """What a map is worth, in one line: "relevance: faithfulness: weak, +0.06; about as good as random"."""
    judged = explanation.verdicts
    return f"{explanation.method}: {judged[0].line if judged else 'not checked'}"


def numbers_of(explanation: Explanation) -> list[str]:
    """The numbers behind it, a line each with its verdict."""
    return [each.line for each in explanation.verdicts[1:]]


def heads_sheet(checkpoint: Checkpoint, image: Source, query: int | None = None) -> Image.Image:
    """Where every head of every block looks: from the pool, or from a patch by its number."""
    record, seen = traced(checkpoint.model, pixels_of(checkpoint, [image])), checkpoint.preprocess.visible_image(image)
    config, grid = checkpoint.model.config, checkpoint.model.config.grid_for(checkpoint.preprocess.size)
    if query is not None:
        check_int("query", query, 0, grid[0] * grid[1] - 1, error=InputError)
        seen = framed(seen, grid, query)
    return attention_sheet(record, config, grid, seen, query)


def film(checkpoint: Checkpoint, image: Source) -> list[Image.Image]:
    """A frame a block: where it looks, the mean of its heads, over the image."""
    record = traced(checkpoint.model, pixels_of(checkpoint, [image]))
    config = checkpoint.model.config
    grid = config.grid_for(checkpoint.preprocess.size)
    full = fitted(checkpoint.preprocess.full_image(image), FRAME)
    box = checkpoint.preprocess.box(full.height, full.width)
    frames = []
    for block in range(config.depth):
        heat = looks(record, block, grid).mean(dim=0).numpy()
        frames.append(sheet([[heat_over(full, heat, box)]], f"Where {reader(config)}, block {block}"))
    return frames


def save_film(frames: Sequence[Image.Image], path: str) -> None:
    """An animated GIF that begins anew when it ends."""
    first, *rest = [each.quantize(256, dither=Image.Dither.NONE) for each in frames]
    first.save(path, save_all=True, append_images=rest, duration=round(1000 * SECONDS), loop=0)
