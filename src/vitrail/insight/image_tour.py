"""tour: a checkpoint and an image -> a folder of figures and a page, from the pixels to the answer."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from PIL import Image

from vitrail.checkpoint import Checkpoint
from vitrail.errors import InputError
from vitrail.images import Source
from vitrail.inference import Prediction, predict
from vitrail.insight import attention_figures
from vitrail.insight.activations import pixels_of, traced
from vitrail.insight.attention_figures import ALIKE, HOW_IT_WORKS, LOOKS, framed, looks
from vitrail.insight.cost import Step, shape_walk
from vitrail.insight.tracing import LaidOutTrace
from vitrail.reporting.charts import Bar, bars
from vitrail.reporting.figure_page import Figure, write_figure_page
from vitrail.reporting.html_page import Cell, Section, table
from vitrail.reporting.image_sheets import TileSheet, overlay, pane_tiles, panes
from vitrail.reporting.svg import Chart, chart_row, image_chart


class Tour(NamedTuple):
    """What the tour found, and where it wrote it."""

    prediction: Prediction
    walk: list[Step]
    files: list[Path]
    page: Path


def tour(checkpoint: Checkpoint, image: Source, out: Path) -> Tour:
    """Walk one image through the network and write what is to be seen on the way."""
    model = checkpoint.model
    if model.config.merge_per_block:
        raise InputError(
            "the tour shows every patch, and this network merges them: use vitrail.network.with_merging(model, 0)"
        )
    full = checkpoint.preprocess.full_image(image)
    seen = checkpoint.preprocess.visible_image(image)
    record = traced(model, pixels_of(checkpoint, [image]))
    prediction = predict(checkpoint, [image], top=5)[0]
    walk = shape_walk(model.config, checkpoint.preprocess.size)
    figures = draw_figures(checkpoint, record, full, seen, prediction)
    out.mkdir(parents=True, exist_ok=True)
    files = [out / "image.png"]
    full.save(files[0], optimize=True)
    answer = f"The answer: {prediction.labels[0]} ({100 * prediction.probabilities[0]:.1f} %)."
    if prediction.remark:
        answer = f"{answer[:-1]}, {prediction.remark}."
    title = "An image through a vision transformer"
    files += write_figure_page(out, title, answer, figures, [_walk(walk)], HOW_IT_WORKS)
    return Tour(prediction, walk, files, out / "index.html")


def draw_figures(
    checkpoint: Checkpoint, record: LaidOutTrace, image: Image.Image, seen: Image.Image, prediction: Prediction
) -> list[Figure]:
    """Every figure of the tour, in the order an image travels."""
    model, config = checkpoint.model, checkpoint.model.config
    grid = config.grid_for(checkpoint.preprocess.size)
    times = max(1, round(448 / seen.width))  # a whole number, so that patches stay whole
    large = seen.resize((seen.width * times, seen.height * times), Image.Resampling.LANCZOS)
    if image.width == image.height and seen.width == seen.height and checkpoint.preprocess.crop == 1:
        large = image.resize(large.size, Image.Resampling.LANCZOS)
    last = looks(record, -1, grid).mean(dim=0).numpy()
    busiest = int(last.argmax())
    of_patch = [looks(record, block, grid, busiest).mean(dim=0).numpy() for block in range(config.depth)]
    tiles = [framed(large, grid, busiest), *(overlay(large, each) for each in of_patch)]
    small = (190, round(190 * large.height / large.width))
    who = attention_figures.reader(config)
    cls = " The cls token is an extra one that stands for no patch." if config.pool == "cls" else ""
    figures = [
        Figure(
            "1-patches",
            f"The image, cut into the network's patches; it receives {seen.width}x{seen.height} pixels of it.",
            pane_tiles(large, grid),
            panes(large, grid),
        ),
        Figure(
            "2-answer",
            f"Where {who} in the last block, averaged over heads.{cls} What is gathered there gives the answer.",
            answer_chart(large, overlay(large, last), prediction),
            scale=LOOKS,
        ),
        Figure(
            "3-attention",
            f"Where {who}, for every block and head: exact weights, not an approximation.",
            attention_figures.attention_tiles(record, config, grid, large),
            scale=LOOKS,
        ),
        Figure(
            "4-one-patch",
            "Where the marked patch looks, block by block.",
            TileSheet(
                [[each.resize(small, Image.Resampling.LANCZOS) for each in tiles]],
                "Where one patch looks",
                columns=["the patch", *(f"block {number}" for number in range(config.depth))],
            ),
            scale=LOOKS,
        ),
    ]
    if config.positions.kind == "learned" and config.positions.at == "stem":
        positions = model.tokens.tables[0](grid)[config.slots :]
        figures.append(
            Figure(
                "5-positions",
                "The learned positions, one tile per patch. Bright: positions that the network takes for similar.",
                attention_figures.position_tiles(positions, grid),
                scale=ALIKE,
            )
        )
    filters = attention_figures.filter_tiles(model)
    figures.append(Figure("6-filters", "What each patch is measured by.", filters))
    if config.width % 4 == 0:
        figures.append(
            Figure(
                "7-sincos",
                "The fixed alternative to learned positions: sines and cosines, columns left, rows right.",
                attention_figures.sincos_tiles(grid, config.width),
                scale=("-1", "1"),
            )
        )
    return figures


def answer_chart(image: Image.Image, heat: Image.Image, prediction: Prediction) -> Chart:
    """An image, where the last block looks, and the answer as bars."""
    shares = list(map(Bar, prediction.labels, prediction.probabilities))
    images = [image_chart(image, "The image", 300), image_chart(heat, "Where the last block looks", 300)]
    return chart_row([*images, bars(shares, "probability", "Most probable classes")])


def _walk(walk: list[Step]) -> Section:
    """The sizes on the way as a table of the page."""
    rows: list[list[Cell]] = [[step.name, " x ".join(map(str, step.shape)), step.parameters] for step in walk]
    note = (
        "The size of the data after each step: images x channels x height x width, then images x tokens x numbers of "
        "each token."
    )
    return Section("Sizes, step by step", table(["step", "size", "parameters"], rows), note)
