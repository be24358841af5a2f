"""train: images, and every option by its name -> a run. The options stand in `Options`, in the same order."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Literal, ParamSpec, TypeVar

from vitrail.checkpoint import Checkpoint
from vitrail.data.samples import Dataset
from vitrail.errors import InputError, nearest
from vitrail.images.preprocess import Resize
from vitrail.network.config import ViTConfig
from vitrail.progress import late_bar
from vitrail.training.job import Callbacks
from vitrail.training.options import Options
from vitrail.training.processes import current
from vitrail.training.recipe import Recipe
from vitrail.training.runs import Run, run

Given = ParamSpec("Given")
Result = TypeVar("Result")


def with_known_options(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """The same function; an option that it does not have is told with the nearest that it has."""
    names = list(signature(function).parameters)

    @wraps(function)
    def checked(*given: Given.args, **options: Given.kwargs) -> Result:
        for name in options:
            if name not in names:
                raise InputError(f"train has no option {name!r}: {nearest(name, names)}")
        return function(*given, **options)

    return checked


@with_known_options
def train(
    data: str | os.PathLike[str] | Dataset,
    *,
    model: str | ViTConfig | None = None,
    start: str | os.PathLike[str] | Checkpoint | None = None,
    recipe: str | Recipe = "",
    epochs: float | None = None,
    minutes: float | None = None,
    steps: int | None = None,
    batch: int | Literal["auto"] | None = None,
    size: int | tuple[int, int] | None = None,
    resize: Resize | None = None,
    limit: int | None = None,
    lr: float | None = None,
    patience: int | None = None,
    balance: str | None = None,
    seed: int = 0,
    val: float = 0.1,
    test: float = 0.2,
    pattern: str | None = None,
    exclude: str | os.PathLike[str] | None = None,
    unreadable: str = "skip",
    workers: int = 0,
    cache: str | os.PathLike[str] | None = None,
    threads: int = 1,
    device: str = "auto",
    precision: str | None = None,
    compile: bool | None = None,
    elsewhere: bool = False,
    processes: int = 1,
    exact: bool | None = None,
    shard: bool = False,
    out: str | os.PathLike[str] = "runs",
    name: str = "",
    fresh: bool = False,
    finished: bool = False,
    check: bool = True,
    report: bool = True,
    tensorboard: bool = False,
    command: str = "",
    save_seconds: float = 60.0,
    callbacks: Callbacks = Callbacks(),  # noqa: B008  (frozen, and nobody listens)
    progress: bool | None = None,
) -> Run:
    """Train a classifier on images: a run folder with the best checkpoint, honest numbers and a report.

    - data: a folder with a folder for each class, or train/, val/ and test/ of such; a CSV table; "vitrail:fashion".
    - model: the name of a preset such as "vit-ti16", or a ViTConfig; None: what suits the images, or that of `start`.
    - start: weights to fine-tune: a path, "hf:owner/name", or a Checkpoint; None: from scratch.
    - recipe: the name of a recipe, or a Recipe; "": "scratch", or "finetune" where there are weights to start from.
    - epochs: how often every image is seen; None: as the recipe says.
    - minutes: how long it may take instead; a short trial says how many epochs that is.
    - steps: how many batches instead of either.
    - batch: images in a batch; "auto": as many as memory holds, found before it starts.
    - size: pixels of a side that the network sees, or (height, width).
    - resize: how an image of another shape is brought to size: "crop", "pad" or "squash"; None: what suits the images.
    - limit: images of each split at most, drawn class by class.
    - lr: the highest learning rate.
    - patience: epochs without a better validation score before it stops.
    - balance: how rare classes are made up for: "weights" in the loss, "sampling", or "none".
    - seed: what every random choice follows from.
    - val: the share of the images that is held out to choose by, where the data has no such split.
    - test: the share that is held out to judge by, where the data has no such split.
    - pattern: labels from file names: a regular expression with (?P<label>...).
    - exclude: a CSV table of images to leave out, such as the one that `vitrail audit` writes.
    - unreadable: "skip" leaves out images that cannot be read, "stop" does not begin.
    - workers: threads that read images, or processes where there is a `cache`; 0: by itself.
    - cache: a folder for resized images, where memory cannot hold them.
    - threads: threads that prepare batches.
    - device: where it is trained: "auto", "cpu", "cuda", "cuda:1", "mps" or "xpu".
    - precision: of products: "fp32", "tf32", "bf16" or "fp16"; None: as the recipe says.
    - compile: the forward pass by torch.compile; None: as the recipe says.
    - elsewhere: go on with a run on another device, or with another number of threads, than it was started with.
    - processes: how many train it together; a script of its own is started by torchrun, see `vitrail.scale.joined`.
    - exact: the same bits for any number of processes; None: with several, for networks up to 30 M parameters.
    - shard: each process holds a part of the network and of the optimiser, for networks that one has no memory for.
    - out: the folder that runs are put into.
    - name: the run's name; an unfinished run of that name goes on. "": a new one, numbered.
    - fresh: begin anew where there is a run of that name.
    - finished: take a finished run of that name and plan as the answer, rather than refusing to repeat it.
    - check: refuse recipes that are known to fail.
    - report: write the report, the figures and the predictions.
    - tensorboard: write the log as TensorBoard's events too.
    - command: the command line that repeats it, for the report.
    - save_seconds: the longest time between two states that it could go on from.
    - callbacks: functions that hear what happens: Callbacks(log=, step=, epoch=, images=).
    - progress: a bar on stderr; None: at a terminal and in a notebook where no callbacks listen, False: never.
    """
    options = dict(locals())  # the parameters by their names, first of all
    del options["progress"]  # of the call, not of the run
    silent = callbacks == Callbacks()
    with late_bar(progress if silent and current().is_first else False, "steps", None) as bar:
        if bar is not None:
            options["callbacks"] = Callbacks(
                step=lambda step, steps, loss: bar.move(step, steps, f"loss {loss:.3f}", "steps"),
                images=lambda done, total: bar.move(done, total, thing="images looked at"),
            )
        return run(options.pop("data"), Options(**options))
