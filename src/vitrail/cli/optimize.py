"""The verb optimize: the fastest way to answer within an accuracy budget."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vitrail.cli.application import app
from vitrail.cli.budget_images import images_for
from vitrail.cli.options import (
    AsJson,
    BudgetData,
    CheckpointPath,
    Force,
    LeaveOut,
    MaxDrop,
    Override,
    Unlabelled,
    name_after,
    offer,
    parse_numbers,
)
from vitrail.cli.terminal import busy, complain, print_json, refuse_overwrite, say, show, table_of
from vitrail.cli.weights import load_checkpoint

if TYPE_CHECKING:
    pass


@app.command("optimize")
def optimize_checkpoint(
    checkpoint: CheckpointPath,
    data: BudgetData = "",
    max_drop: MaxDrop = 0.5,
    to: Annotated[
        Path | None,
        typer.Option("--out", metavar="NAME", help="The file, without its ending.", show_default="NAME-fast"),
    ] = None,
    goal: Annotated[
        str,
        typer.Option(
            metavar="WHAT",
            help="throughput, or latency: images one by one.",
            autocompletion=offer(("throughput", "latency")),
        ),
    ] = "throughput",
    batch: Annotated[str, typer.Option(metavar="N,...", help="Batch sizes to try.")] = "1,8,16",
    merging: Annotated[bool, typer.Option(help="Try merging tokens that look alike, too.")] = True,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Draw accuracy against speed of all that was tried.")
    ] = None,
    unlabelled: Unlabelled = False,
    seed: Annotated[int, typer.Option(help="Which images are used to choose.")] = 0,
    override: Override = None,
    leave_out: LeaveOut = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Find the fastest way to answer on this machine within an accuracy budget, and write it as one file."""
    from vitrail.reporting.html_page import counted
    from vitrail.shipping.optimizer import optimize, possible_files

    if plot is not None:
        from vitrail.shipping.search_plot import check_plot, save_plot

        check_plot(plot)
    out = to or Path(f"{name_after(checkpoint)}-fast")
    refuse_overwrite(force, *possible_files(out), *([] if plot is None else [plot]))
    loaded = load_checkpoint(checkpoint, override, leave_out)
    source = images_for(loaded, checkpoint, data, unlabelled)
    with busy(f"optimizing {checkpoint}") as now:
        result = optimize(
            loaded,
            source,
            out,
            max_drop=max_drop,
            goal=goal,
            batches=parse_numbers("--batch", batch),
            merging=merging,
            seed=seed,
            progress=lambda step: now(f"trying {step}"),
            log=complain,
        )
    if plot is not None:
        save_plot(result, plot)
    if as_json:
        print_json(result.to_dict())
        return
    table = table_of("way", "batch", "readers", "images/s", "times\neager", "points\nlost", "same\nanswers", "")
    for tried in sorted(result.tried, key=lambda tried: -tried.rate):
        table.add_row(
            str(tried.way),
            str(tried.batch),
            str(tried.threads),
            f"{tried.rate:.4g}",
            f"{tried.rate / result.eager.rate:.2f}",
            f"{tried.judged.drop.value:+.2f}",
            f"{100 * tried.judged.agreement:.1f} %",
            "best" if tried == result.best else "" if tried.within else "too much",
        )
    show(table)
    drop = result.reported.drop
    say(
        f"{result.best.way}, batch {result.best.batch}, {counted(result.best.threads, 'reader')}: {result.speed:.2f} "
        f"times the checkpoint as it is, from file to answer; {drop.value:+.2f} points lost (95 % interval "
        f"{drop.low:+.2f} to {drop.high:+.2f}) on {result.reported.images} images"
    )
    say(f"{result.words}; written to {result.out}")
