"""portrait: a checkpoint, and images where they are needed -> the figures of a model, and a page with all of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitrail.checkpoint import Checkpoint
from vitrail.data.glass import window
from vitrail.images import Source
from vitrail.insight.activations import frozen, pixels_of
from vitrail.insight.attention_figures import ALIKE, HOW_IT_WORKS, filter_tiles, position_tiles, sincos_tiles
from vitrail.insight.head_importance import Batches, importance
from vitrail.insight.measures import attention_distances, principal_colours, token_norms
from vitrail.insight.sanity import OUTLYING
from vitrail.reporting.axes import Axis
from vitrail.reporting.charts import Line, Point, Series, curves, histogram
from vitrail.reporting.figure_page import Figure, write_figure_page
from vitrail.reporting.html_page import counted, percent
from vitrail.reporting.image_sheets import TileSheet
from vitrail.reporting.matrix_charts import heat_map
from vitrail.reporting.svg import Chart, Key
from vitrail.types import Array

IMAGES = 16  # looked at, at most
COLOURED = 6  # of them drawn as colours
BATCH = 4


class Portrait(NamedTuple):
    """Where the page and its figures are, and what could not be drawn."""

    page: Path
    files: list[Path]
    left_out: list[str]


def portrait(
    checkpoint: Checkpoint, out: Path, images: Sequence[Source] = (), labelled: Batches = (), name: str = "a network"
) -> Portrait:
    """Draw every figure that the network has, and write them to a folder with a page.

    Without images, windows that Vitrail draws itself are looked at; importance of heads needs labelled ones.
    """
    left_out: list[str] = []
    config = checkpoint.model.config
    own = not images
    sources: Sequence[Source] = list(images[:IMAGES]) or [window(seed, 224).image for seed in range(8)]
    whose = f"{len(sources)} drawn test images of stained glass" if own else counted(len(sources), "image")
    figures = figures_of_weights(checkpoint)
    if config.stem is not None:
        left_out.append("patch filters: the patches of this network are of what its stem gives, not of pixels")
    if own and (config.channels not in (1, 3) or checkpoint.preprocess.range != 255):
        left_out.append("attention distance, token norms and colours: name images of these bands with --images")
    elif config.merge_per_block:
        left_out.append(
            "attention distance, token norms and colours: this network merges tokens; load it with merge_per_block 0"
        )
    else:
        figures += figures_of_images(checkpoint, sources, whose)
    if labelled:
        scores = importance(checkpoint.model, labelled)
        caption = (
            f"How much the loss of {scores.images} images would change without each head, to first order. "
            "The darkest can go: `vitrail prune`."
        )
        figures.append(Figure("importance", caption, heat_map(scores.heads, "Importance of heads", "block", "head")))
    else:
        left_out.append("importance of heads: name labelled images with --data")
    subtitle = f"Measured on {whose}.{' Give your own with --images.' * own}"
    files = write_figure_page(out, f"Inside {name}", subtitle, figures, note=HOW_IT_WORKS)
    return Portrait(out / "index.html", files, left_out)


def figures_of_weights(checkpoint: Checkpoint) -> list[Figure]:
    """What the weights alone show: positions and patch filters."""
    model, config = checkpoint.model, checkpoint.model.config
    grid = config.grid_for(checkpoint.preprocess.size)
    figures = []
    if len(model.tokens.tables) and config.positions.kind != "relative":
        table = model.tokens.tables[0](grid)[config.slots :].detach()
        caption = (
            f"Positions ({config.positions.kind}), one tile per patch. Bright: positions that the network takes for "
            "similar. After good training, each tile is bright at its own patch and around it."
        )
        tiles = position_tiles(table, grid, min(40, max(1, 980 // grid[1] ** 2)))
        figures.append(Figure("positions", caption, tiles, scale=ALIKE))
    if config.positions.kind.startswith("sincos-2d"):
        caption = "The fixed table itself: a row for each patch, a column for each of its values."
        tiles = sincos_tiles(grid, config.width, moco=config.positions.kind.endswith("moco"))
        figures.append(Figure("sincos", caption, tiles, scale=("-1", "1")))
    if config.stem is None:
        caption = (
            "What a patch is measured by: the principal components of the first layer's filters, the strongest first. "
            "Smooth waves and colours: trained long enough. Noise: not."
        )
        figures.append(Figure("filters", caption, filter_tiles(model, 28, order=checkpoint.preprocess.order)))
    return figures


def figures_of_images(checkpoint: Checkpoint, sources: Sequence[Source], whose: str) -> list[Figure]:
    """What the network does with images: how far it looks, how large its tokens are, what they mean."""
    model = checkpoint.model
    pixels = pixels_of(checkpoint, sources)
    parts = pixels.split(BATCH)
    shares = np.array([len(each) for each in parts]) / len(pixels)
    distances = sum(share * attention_distances(model, part) for share, part in zip(shares, parts, strict=True))
    norms = [token_norms(model, part) for part in parts]
    prefix, patches = (np.concatenate([each[place] for each in norms]) for place in (0, 1))
    middle = float(np.median(patches))
    beyond = float((patches > OUTLYING * middle).mean())
    outlying = percent(beyond) if beyond else "none"
    doubt = " Do not trust attention maps of this network: such patches serve it as memory." if beyond else ""
    extra = " Prefix tokens are extra ones that stand for no patch, such as the cls token." if len(prefix) else ""
    lines = [Line(middle, "median"), Line(OUTLYING * middle, f"{OUTLYING:g} x median")]
    if len(prefix):
        lines.append(Line(float(np.median(prefix)), "prefix tokens"))
    return [
        Figure(
            "distance",
            f"How far each head looks on average, in pixels, over {whose}: one ring per head; the line is their mean. "
            "Heads of the first blocks look near and far; later ones look far.",
            distance_chart(np.asarray(distances)),
        ),
        Figure(
            "norms",
            f"Sizes of the patch tokens after the last block: {outlying} are larger than {OUTLYING:g} times the "
            f"median.{doubt}{extra}",
            norm_chart(patches, lines),
        ),
        Figure(
            "colours",
            "The patches' tokens as colours, by their three strongest directions over all these images: patches of "
            "one colour mean the same to the network.",
            colour_sheet(checkpoint, sources[:COLOURED], pixels[:COLOURED]),
        ),
    ]


def distance_chart(distances: Array) -> Chart:
    """A ring for every head of every block (L, A), and a line through the means; heads cut away are NaN."""
    rings = [
        Point(float(block), float(value), filled=False)
        for block, row in enumerate(distances)
        for value in row[np.isfinite(row)]
    ]
    means = [(float(block), float(np.nanmean(row))) for block, row in enumerate(distances)]
    return curves(
        [Series("mean of the heads", means, "ruby")],
        Axis("block"),
        Axis("pixels", from_zero=True),
        "Mean attention distance",
        rings,
        legend=[Key("a head", "blue", "dot", filled=False), Key("their mean", "ruby", "line")],
        size=(560.0, 300.0),
    )


def norm_chart(norms: Array, lines: Sequence[Line]) -> Chart:
    """How large the tokens of patches are, with named lines among them."""
    high = max(float(norms.max()), *(each.x for each in lines), 1e-9) * 1.02
    axis = Axis("norm", low=0.0, high=high)
    title = "Norms of patch tokens"
    return histogram(
        [("patches", norms)], axis, title, 60, of="patches", log_counts=True, lines=lines, size=(560.0, 300.0)
    )


def colour_sheet(checkpoint: Checkpoint, sources: Sequence[Source], pixels: Tensor, side: int = 168) -> TileSheet:
    """Images above, their patch features as colours below (DINOv2's image)."""
    with frozen(checkpoint.model), torch.no_grad():
        features = checkpoint.model.features(pixels)
    colours = principal_colours(features.patches).reshape(-1, *features.grid, 3)
    size = (side, round(side * pixels.shape[2] / pixels.shape[3]))
    above = [checkpoint.preprocess.visible_image(each).convert("RGB").resize(size) for each in sources]
    below = [
        Image.fromarray((each * 255).round().astype(np.uint8)).resize(size, Image.Resampling.NEAREST)
        for each in colours
    ]
    return TileSheet([above, below], "What the patches mean, as colours", ("image", "patches"))
