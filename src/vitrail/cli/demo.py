"""The verb demo: an image through a network, then a training from nothing to a report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitrail.cli.application import app
from vitrail.cli.inspect import show_walk
from vitrail.cli.options import AsJson
from vitrail.cli.terminal import command_line, print_json, say
from vitrail.cli.training_progress import report_run, train_with_bar
from vitrail.errors import InputError

if TYPE_CHECKING:
    from vitrail.checkpoint import Checkpoint
    from vitrail.inference import Prediction
    from vitrail.training import Run

SHOWN = 6  # test images that the trained network is shown


@app.command("demo")
def run_demo(
    to: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Where everything goes.")] = Path("demo"),
    seed: Annotated[int, typer.Option(help="Which stained-glass window is drawn.")] = 12,
    image: Annotated[Path | None, typer.Option(help="Show an image of yours instead of a drawn one.")] = None,
    epochs: Annotated[float, typer.Option(min=0.0, help="How long the training is; 0 leaves it out.")] = 20.0,
    as_json: AsJson = False,
) -> None:
    """A tour: an image through a network, step by step; then a training on built-in images, with its report."""
    from vitrail.data.glass import CLASSES, window
    from vitrail.inference import open_checkpoint
    from vitrail.insight.image_tour import tour

    drawn = window(seed, 384)
    try:
        result = tour(open_checkpoint("vitrail:glass"), image or drawn.image, to)
    except OSError as error:
        raise InputError(f"cannot write to {to}: {error.strerror}") from error
    best = f"{result.prediction.labels[0]} ({100 * result.prediction.probabilities[0]:.1f} %)"
    if not as_json:
        show_walk(result.walk)
        truth = f"{image}" if image else f"a window with a {CLASSES[drawn.label]}"
        say(f"the image: {truth}; the network says: {best}")
        for file in result.files:
            say(f"  {file}")
        say(f"all on one page: {result.page}")
    summary: dict[str, Any] = {
        "page": str(result.page),
        "files": [str(file) for file in result.files],
        "labels": result.prediction.labels,
        "probabilities": result.prediction.probabilities,
        "drawn": None if image else CLASSES[drawn.label],
    }
    if epochs:
        if not as_json:
            times = "once" if epochs == 1 else f"{epochs:g} times"
            say(f"\nnow a training from nothing: 6,000 images of clothes, {times} each")
        run = _train(to, epochs)
        trained = open_checkpoint(run.folder)
        answers = _try(trained, to)
        why = _explain(trained, to, [each.path for each in answers])
        _link(trained, to, why)
        summary |= {"run": run.to_dict(), "predictions": [each._asdict() for each in answers], "explained": str(why)}
        if not as_json:
            report_run(run, False)
            for each in answers:
                best = f"{each.labels[0]} {100 * each.probabilities[0]:.1f} %"
                say(f"{each.path}: {'; '.join(filter(None, (best, each.remark)))}")
            say(f"where the answers come from: {why}")
    if as_json:
        print_json(summary)


def _train(to: Path, epochs: float) -> Run:
    from vitrail.training import Options

    options = Options(epochs=epochs, out=to, name="fashion", fresh=_is_finished(to), command=command_line())
    return train_with_bar("vitrail:fashion", options)


def _is_finished(to: Path) -> bool:
    """A demo that was finished starts anew; one that was stopped goes on."""
    return (to / "fashion" / "result.json").exists()


def _try(trained: Checkpoint, to: Path) -> list[Prediction]:
    """Some test images as files, and what the trained network says of them; each is named after what it shows."""
    import numpy as np
    from PIL import Image

    from vitrail.data import read_data
    from vitrail.inference import predict

    test = read_data("vitrail:fashion").part("test")
    folder = to / "images"
    folder.mkdir(exist_ok=True)
    paths = []
    for number, sample in enumerate(test.samples[:SHOWN]):
        paths.append(folder / f"{number + 1}-{sample.labels[0].replace('/', ' or ')}.png")
        Image.fromarray(np.asarray(test.images[number])).save(paths[-1])
    return predict(trained, paths, top=1)


def _explain(trained: Checkpoint, to: Path, images: list[str]) -> Path:
    """Where the trained network's answers come from, by three methods: a page, and a card of the first image."""
    from vitrail.insight import explain
    from vitrail.insight.cards import card
    from vitrail.insight.explanation_page import explained_image, gallery_page, write_explanation_page

    explanations = [
        [explain(trained, image, method) for method in ("relevance", "occlusion", "rollout")] for image in images
    ]
    card(explanations[0]).save(to / "explained.png")
    shown = [explained_image(Path(path).name, maps) for path, maps in zip(images, explanations, strict=True)]
    return write_explanation_page(to / "explained", gallery_page("the clothes of the demo", shown, command_line()))


def _link(trained: Checkpoint, to: Path, explained: Path) -> None:
    """Figures of the trained network, and links between all pages of the demo."""
    from vitrail.insight.model_figures import portrait
    from vitrail.reporting.page_links import PageLink, link_pages

    inside = portrait(trained, to / "inside", sorted((to / "images").iterdir()), name="the trained network")
    pages = [("The tour", to / "index.html"), ("Report of the training", to / "fashion" / "report.html")]
    pages += [("Where its answers come from", explained), ("Inside the network", inside.page)]
    link_pages([PageLink(*each) for each in pages])
