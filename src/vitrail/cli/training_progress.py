"""A training as the command line shows it: a bar while it lasts, its numbers after it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

from vitrail.cli.terminal import add_score, complain, drawn_bar, print_json, say, show, table_of

if TYPE_CHECKING:
    from vitrail.data.samples import Dataset
    from vitrail.training import Callbacks, Options, Run


def train_with_bar(data: str | Dataset, options: Options) -> Run:
    """A training with a bar."""
    from dataclasses import replace

    from vitrail.training import run

    with training_bar() as callbacks:
        return run(data, replace(options, callbacks=callbacks))


def report_run(result: Run, as_json: bool) -> None:
    """The results, and where they are."""
    if as_json:
        print_json(result.to_dict())
        return
    from vitrail.reporting.html_page import counted
    from vitrail.reporting.metric_names import metric_name, metric_value

    evaluation = result.evaluation
    table = table_of("", f"on {evaluation.split} images", "95 % interval")
    main = next(iter(evaluation.scores))
    for stage in result.stages:
        add_score(table, main, stage.score, f" of {stage.name}")
    for name, score in evaluation.scores.items():
        add_score(table, name, score)
    show(table)
    if evaluation.unlike_words:
        say(f"unlike training   {evaluation.unlike_words}")
    if evaluation.caveat:
        say(f"caveat            {evaluation.caveat}")
    if (best := result.best_epoch) is not None:
        reached = f"validation {metric_name(best.metric)} {metric_value(best.metric, best.score)}"
        say(f"best epoch: {best.epoch} of {best.epochs}, {reached}")
    since = " since it went on" if result.resumed else ""
    say(f"{counted(result.steps, 'step')}; {result.seconds:.0f} s{since}")
    say(f"checkpoint        {result.best}")
    say(f"report            {result.folder / 'report.html'}")
    say(f"try it            vitrail predict {shlex.quote(str(result.best))} IMAGE")


@contextmanager
def training_bar() -> Iterator[Callbacks]:
    """A bar with the time left on stderr, where somebody watches; what has to be told goes above it."""
    from vitrail.training import Callbacks

    columns = (
        TextColumn("{task.fields[thing]}"),
        MofNCompleteColumn(),
        BarColumn(),
        TextColumn("{task.description}"),
        TimeRemainingColumn(),
    )
    with drawn_bar(*columns) as bar:
        task = bar.add_task("", total=None, thing="step")
        score = ""

        def images(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total, thing="images looked at")

        def step(done: int, steps: int, loss: float) -> None:
            bar.update(task, completed=done, total=steps, thing="step", description=f"loss {loss:.3f}{score}")

        def epoch(row: dict[str, Any]) -> None:
            nonlocal score
            if "val_score" in row:
                score = f", validation {100 * row['val_score']:.1f} %"
            seconds = row["seconds"]
            times = f"{seconds['compute']:.1f} s computing, {seconds['data']:.1f} s waiting for images"
            complain(f"epoch {row['epoch']}: loss {row['loss']:.3f}{score}; {times}")
            share = seconds["data"] / max(seconds["data"] + seconds["compute"], 1e-9)
            if share > 0.3 and row["epoch"] <= 3:
                waiting = f"{100 * share:.0f} % of the time goes into waiting for images"
                complain(f"{waiting}: try --cache FOLDER, --workers 2, or a smaller --size")

        yield Callbacks(log=complain, step=step, epoch=epoch, images=images)
