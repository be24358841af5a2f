"""The same results as PNG files, for slides and papers; needs matplotlib, the extra `figures`."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
from PIL import Image

from vitrail.errors import InputError, MissingExtraError
from vitrail.evaluation.results import Evaluation
from vitrail.evaluation.scoring import worded
from vitrail.evaluation.sections import Images, f1_interval, image_of, named
from vitrail.evaluation.training_sections import points, score_keys, steps_per_epoch, value
from vitrail.images import decode
from vitrail.reporting.axes import cut

Array = np.ndarray[Any, Any]
Row = Mapping[str, Any]

BLUE, RUBY, GREEN, AMBER = "#1f4fa3", "#a8243c", "#1b6e4c", "#8f5a00"
INK, SOFT, LINE, PAPER = "#23202c", "#5d5969", "#dfdbd3", "#fbfaf7"
_COLOURS: Final = (RUBY, GREEN, AMBER, "#6a3d98", "#0f6c78")
_NOISY: Final = {"linewidth": 0.8, "alpha": 0.55}
_MARKED: Final = {"linewidth": 1.8, "marker": "o", "markersize": 3.5}
_BARS: Final = 60  # classes of which a bar can still be read
_NUMBERS: Final = 30  # classes of which a cell can still hold its number


def write_figures(
    folder: Path,
    history: Sequence[Row] = (),
    evaluation: Evaluation | None = None,
    seen: Sequence[tuple[Image.Image, str]] = (),
    images: Images | None = None,
) -> list[Path]:
    """Everything there is something to draw of, each as a PNG file in the folder; the files written."""
    _matplotlib()
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    drawn: list[Path | None] = [
        curves_figure(folder / "curves.png", history),
        rate_figure(folder / "lr.png", history),
    ]
    if evaluation is not None and len(evaluation):
        if evaluation.confusion is not None:
            drawn.append(confusion_figure(folder / "confusion.png", evaluation))
            drawn.append(confusion_figure(folder / "confusion-normalised.png", evaluation, normalised=True))
        drawn.append(reliability_figure(folder / "reliability.png", evaluation))
        drawn.append(classes_figure(folder / "per-class.png", evaluation))
        if images is not None:
            drawn.append(worst_figure(folder / "worst.png", evaluation, images))
            drawn.append(_one_answer(folder / "prediction.png", evaluation, images))
    if seen:
        drawn.append(batch_figure(folder / "batch.png", seen))
    return [path for path in drawn if path is not None]


def curves_figure(path: Path, history: Sequence[Row]) -> Path | None:
    """Loss and scores over the run; nothing without a number."""
    epochs = [row for row in history if row.get("event") == "epoch"]
    steps = [row for row in history if row.get("event") == "step"]
    losses = [
        ("training, step by step", steps, "loss", SOFT),
        ("training", epochs, "loss", BLUE),
        ("validation", epochs, "val_loss", RUBY),
    ]
    scores = [
        (name, epochs, key, BLUE if key == "top1" else _COLOURS[place % len(_COLOURS)])
        for place, (key, name) in enumerate(score_keys(epochs).items())
    ]
    scale = steps_per_epoch(epochs)
    panels = [
        [line for line in lines if any(math.isfinite(value(row, line[2])) for row in line[1])]
        for lines in (losses, scores)
    ]
    titles = [title for title, lines in zip(("Loss", "Scores"), panels, strict=True) if lines]
    kept = [lines for lines in panels if lines]
    if not kept:
        return None
    with _canvas(path, 4.9 * len(kept), 3.6) as figure:
        for place, (title, lines) in enumerate(zip(titles, kept, strict=True), 1):
            axes = _axes(figure, (1, len(kept), place), title, "epoch" if scale else "step")
            for name, rows, key, colour in lines:
                style = _NOISY if rows is steps else _MARKED
                axes.plot(*zip(*points(rows, key, scale), strict=True), color=colour, label=name, **style)
            if title == "Scores":
                axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.3g} %")
            axes.legend(frameon=False, fontsize=8, labelcolor=SOFT)
    return path


def rate_figure(path: Path, history: Sequence[Row]) -> Path | None:
    """The learning rate over the steps."""
    line = points([row for row in history if row.get("event") == "step"], "lr", 0.0)
    if not any(math.isfinite(rate) for _, rate in line):
        return None
    with _canvas(path, 4.9, 3.2) as figure:
        axes = _axes(figure, (1, 1, 1), "Learning rate", "step")
        axes.plot(*zip(*line, strict=True), color=AMBER, linewidth=1.8)
        axes.set_ylim(bottom=0)
    return path


def confusion_figure(path: Path, evaluation: Evaluation, normalised: bool = False) -> Path:
    """Rows are the truth, columns what was said: the darkest cell holds most."""
    if evaluation.confusion is None:
        raise InputError("a confusion matrix needs one label an image, and this evaluation has several")
    counts = evaluation.confusion.astype(np.float64)
    totals = counts.sum(axis=1, keepdims=True)
    shown = np.divide(counts, totals, out=np.zeros_like(counts), where=totals > 0) if normalised else counts
    count = len(evaluation.classes)
    side = min(max(3.6, 0.42 * count), 11.0)
    with _canvas(path, side + 1.6, side + 1.2) as figure:
        axes = figure.add_subplot(1, 1, 1)
        top = max(float(shown.max(initial=0.0)), 1e-9)
        axes.imshow(shown, cmap="Blues", vmin=0.0, vmax=top)
        step = math.ceil(count / 60)
        names = [_plain(cut(name, 18)) for name in evaluation.classes]
        axes.set_xticks(range(0, count, step), names[::step], rotation=60, ha="right", rotation_mode="anchor")
        axes.set_yticks(range(0, count, step), names[::step])
        axes.tick_params(labelsize=8 if count <= _NUMBERS else 6, length=0, colors=INK)
        axes.set_xlabel("the model said", color=SOFT)
        axes.set_ylabel("truth", color=SOFT)
        title = "Confusion, per cent of each true class" if normalised else "Confusion, numbers of images"
        axes.set_title(title, color=INK, fontsize=11, loc="left")
        if count <= _NUMBERS:
            for row, column in np.argwhere(counts > 0):
                number = f"{100 * shown[row, column]:.0f}" if normalised else f"{int(counts[row, column])}"
                colour = "white" if shown[row, column] > 0.55 * top else INK
                size = 8 if count <= 12 else 6
                axes.text(column, row, number, ha="center", va="center", color=colour, fontsize=size)
    return path


def reliability_figure(path: Path, evaluation: Evaluation) -> Path | None:
    """Stated confidence against the share that is right."""
    bins = [each for each in evaluation.bins if each.count]
    if not bins:
        return None
    with _canvas(path, 4.4, 4.2) as figure:
        axes = _axes(figure, (1, 1, 1), "Stated confidence against truth", "stated confidence")
        middles = [(each.low + each.high) / 2 for each in bins]
        widths = [0.92 * (each.high - each.low) for each in bins]
        solid = [each.count >= 10 for each in bins]
        colours = [BLUE if sure else "#a9bddf" for sure in solid]
        axes.bar(middles, [each.accuracy for each in bins], widths, color=colours, label="right")
        axes.plot(
            [each.confidence for each in bins], [each.accuracy for each in bins], "o", color=RUBY, markersize=4,
            label="at its mean confidence",
        )  # fmt: skip
        axes.plot([0, 1], [0, 1], linestyle="--", color=INK, linewidth=1)
        axes.set_xlim(0, 1)
        axes.set_ylim(0, 1.02)
        axes.set_ylabel("share that is right", color=SOFT)
        axes.legend(frameon=False, fontsize=8, labelcolor=SOFT, loc="upper left")
    return path


def classes_figure(path: Path, evaluation: Evaluation) -> Path | None:
    """F1 of each class with its interval, the weakest first."""
    known = sorted((each for each in evaluation.per_class if each.count), key=lambda each: each.f1)[:_BARS]
    if not known:
        return None
    with _canvas(path, 5.6, 1.1 + 0.26 * len(known)) as figure:
        axes = _axes(figure, (1, 1, 1), "F1 of each class", "F1, with its 95 % interval")
        ends = np.array([f1_interval(each) for each in known])
        values = np.array([each.f1 for each in known])
        reach = np.clip(np.stack([values - ends[:, 0], ends[:, 1] - values]), 0, None)
        places = np.arange(len(known))
        axes.barh(places, values, 0.7, color=BLUE, alpha=0.6)
        axes.errorbar(values, places, xerr=reach, fmt="none", ecolor=INK, elinewidth=1.1, capsize=2.5)
        axes.set_yticks(places, [_plain(cut(each.name, 24)) for each in known])
        axes.set_ylim(len(known) - 0.4, -0.6)
        axes.set_xlim(0, 1)
    return path


def worst_figure(path: Path, evaluation: Evaluation, images: Images, most: int = 12) -> Path | None:
    """The worst errors with what they are and what was said."""
    tiles: list[tuple[Image.Image, str]] = []
    for each in evaluation.worst:
        image = image_of(images, each.row) if len(tiles) < most else None
        if image is not None:
            sure = "" if math.isnan(each.probability) else f", {100 * each.probability:.0f} %"
            tiles.append((image, f"{cut(named(each.truth), 20)}\nsaid {cut(named(each.said), 16)}{sure}"))
    return _mosaic(path, tiles, 4, "Worst errors") if tiles else None


def batch_figure(path: Path, seen: Sequence[tuple[Image.Image, str]]) -> Path | None:
    """Nine images as the network sees them, with their labels."""
    tiles = [(image, cut(label, 24)) for image, label in seen[:9]]
    return _mosaic(path, tiles, 3, "What the model sees") if tiles else None


def prediction_figure(
    path: Path, image: Image.Image, labels: Sequence[str], probabilities: Sequence[float], truth: Sequence[str] = ()
) -> Path:
    """One image and its likeliest classes as bars; the truth, if given, in green."""
    with _canvas(path, 6.6, 3.0) as figure:
        left = figure.add_subplot(1, 2, 1)
        _show(left, image)
        left.set_title(_plain(f"truth: {cut(named(truth), 24)}" if truth else "the image"), color=INK, fontsize=10)
        axes = _axes(figure, (1, 2, 2), "What it says", "probability")
        places = np.arange(len(labels))
        colours = [GREEN if label in truth else BLUE for label in labels]
        axes.barh(places, probabilities, 0.65, color=colours)
        axes.set_yticks(places, [_plain(cut(label, 20)) for label in labels])
        axes.set_ylim(max(len(labels), 1) - 0.4, -0.6)
        axes.set_xlim(0, 1.18)
        axes.set_xticks([0, 0.5, 1])
        for place, share in zip(places, probabilities, strict=True):
            axes.text(share + 0.02, place, f"{100 * share:.1f} %", va="center", fontsize=8, color=SOFT)
    return path


def _one_answer(path: Path, evaluation: Evaluation, images: Images) -> Path | None:
    """The answer for the first image that can be shown: not a chosen one."""
    for row in range(len(evaluation)):
        image = image_of(images, row)
        if image is not None:
            shares = evaluation.probabilities[row]
            best = np.argsort(-shares, kind="stable")[:5]
            truth = worded(evaluation.targets[row], evaluation.classes)
            labels = [evaluation.classes[each] for each in best]
            return prediction_figure(path, image, labels, shares[best].tolist(), truth)
    return None


def _mosaic(path: Path, tiles: Sequence[tuple[Image.Image, str]], columns: int, title: str) -> Path:
    """Images in rows, each under its words."""
    rows = math.ceil(len(tiles) / columns)
    lines = max(words.count("\n") + 1 for _, words in tiles)
    with _canvas(path, 1.75 * columns, (1.6 + 0.2 * lines) * rows + 0.4) as figure:
        figure.suptitle(title, color=INK, fontsize=12, x=0.02, ha="left")
        for place, (image, words) in enumerate(tiles, 1):
            axes = figure.add_subplot(rows, columns, place)
            _show(axes, image)
            axes.set_title(_plain(words), color=INK, fontsize=8)
    return path


def _show(axes: Any, image: Image.Image) -> None:
    decoded = decode(image)
    axes.imshow(np.asarray(decoded), interpolation="nearest" if max(decoded.size) <= 96 else "antialiased")
    axes.set_axis_off()


def _axes(figure: Any, place: tuple[int, int, int], title: str, x_label: str) -> Any:
    axes = figure.add_subplot(*place)
    axes.set_title(title, color=INK, fontsize=11, loc="left")
    axes.set_xlabel(x_label, color=SOFT)
    axes.set_facecolor(PAPER)
    axes.grid(color=LINE, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=SOFT, labelsize=8)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(SOFT)
    return axes


def _plain(words: str) -> str:
    """Names are never formulas: a dollar is a dollar."""
    return words.replace("$", r"\$")


@contextmanager
def _canvas(path: Path, width: float, height: float) -> Iterator[Any]:
    """A figure of its own, written when done; pyplot and its global state are never touched."""
    figure_of, canvas_of = _matplotlib()
    figure = figure_of(figsize=(width, height), dpi=150, facecolor=PAPER, layout="constrained")
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.1)  # inches
    canvas_of(figure)
    yield figure
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # a box stands for a sign the font lacks
        figure.savefig(path, format="png", metadata={"Software": None})


def _matplotlib() -> tuple[Callable[..., Any], Callable[..., Any]]:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("figures need matplotlib: pip install 'vitrail[figures]'") from None
    return Figure, FigureCanvasAgg
