"""Verbs about speed: optimize, bench."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vitrail.cli.app import app
from vitrail.cli.images import Unlabelled, images_for
from vitrail.cli.terminal import (
    AsJson,
    CheckpointPath,
    LeaveOut,
    Override,
    complain,
    print_json,
    say,
    show,
    size_of,
    table_of,
)
from vitrail.cli.weights import load_checkpoint
from vitrail.errors import InputError

if TYPE_CHECKING:
    from vitrail.checkpoint import Checkpoint


@app.command()
def optimize(
    checkpoint: CheckpointPath,
    data: Annotated[str, typer.Option(help="Images to calibrate on and to be judged by; of a run: its own.")] = "",
    max_drop: Annotated[float, typer.Option(help="Points of accuracy that may be lost.")] = 0.5,
    to: Annotated[Path | None, typer.Option("--out", help="The file's name; its ending is that of what wins.")] = None,
    goal: Annotated[str, typer.Option(help="throughput, or latency: images one by one.")] = "throughput",
    batch: Annotated[str, typer.Option(help="Batch sizes to try.")] = "1,8,16",
    merging: Annotated[bool, typer.Option(help="Try merging tokens.")] = True,
    plot: Annotated[Path | None, typer.Option(help="FILE.png: accuracy against speed of all that was tried.")] = None,
    unlabelled: Unlabelled = False,
    seed: Annotated[int, typer.Option(help="Which images calibrate and choose.")] = 0,
    override: Override = None,
    leave_out: LeaveOut = None,
    as_json: AsJson = False,
) -> None:
    """Find the fastest way to answer on this machine within an accuracy budget, and write it as one file."""
    from vitrail.shipping.optimizer import optimize as run

    if plot is not None:
        from vitrail.shipping.search_plot import check_plot, save_plot

        check_plot(plot)
    loaded = load_checkpoint(checkpoint, override, leave_out)
    name = Path(checkpoint.removeprefix("vitrail:"))
    place = to or Path(f"{name.name if name.is_dir() or not name.suffix else name.stem}-fast")
    source = images_for(loaded, checkpoint, data, unlabelled)
    found = run(
        loaded,
        source,
        place,
        max_drop=max_drop,
        goal=goal,
        batches=_numbers("--batch", batch),
        merging=merging,
        seed=seed,
        tell=complain,
    )
    if plot is not None:
        save_plot(found, plot)
    if as_json:
        print_json(found.to_dict())
        return
    table = table_of("way", "batch", "readers", "images/s", "times eager", "lost, points", "agree, %", "")
    for each in sorted(found.tried, key=lambda each: -each.rate):
        table.add_row(
            str(each.way),
            str(each.batch),
            str(each.threads),
            f"{each.rate:.4g}",
            f"{each.rate / found.eager.rate:.2f}",
            f"{each.judged.drop.value:+.2f}",
            f"{100 * each.judged.agreement:.1f}",
            "best" if each == found.best else "" if each.within else "over the budget",
        )
    show(table)
    drop = found.reported.drop
    say(
        f"{found.best.way}, batch {found.best.batch}, {found.best.threads} reading: {found.speed:.2f} times the "
        f"checkpoint as it is, from file to answer; {drop.value:+.2f} points lost (95 % interval {drop.low:+.2f} to "
        f"{drop.high:+.2f}) on {found.reported.images} images"
    )
    say(f"{found.words}; written to {found.out}")


@app.command()
def bench(
    checkpoint: Annotated[str, typer.Argument(metavar="CHECKPOINT|PRESET", help="Weights, or the name of a preset.")],
    batch: Annotated[str, typer.Option(help="Batch sizes to time.")] = "1,16",
    runtimes: Annotated[
        str,
        typer.Option(help="all, or some of: eager; packed or openvino fp32, bf16, int8; onnx fp32, int8."),
    ] = "all",
    rounds: Annotated[int, typer.Option(min=1, help="How often all take their turn.")] = 7,
    size: Annotated[str, typer.Option(metavar="PX,...", help="Sides of square images; usual: the network's own.")] = "",
    as_json: AsJson = False,
) -> None:
    """Speed, memory and start-up of every runtime on this machine, beside the machine's own limit."""
    from vitrail.shipping.benchmark import bench as run

    loaded = _weights_or_preset(checkpoint)
    wanted = () if runtimes == "all" else tuple(each.strip() for each in runtimes.split(","))
    sizes = _numbers("--size", size) if size else ()
    found = run(loaded, batches=_numbers("--batch", batch), sizes=sizes, runtimes=wanted, rounds=rounds, tell=complain)
    if as_json:
        print_json(found.to_dict())
        return
    table = table_of(
        *("runtime", "size", "batch", "ms", "images/s", "times eager", "limit, %", "difference"),
        *("start, s", "memory", "most"),
    )
    for each in found.rows:
        table.add_row(
            each.runtime,
            f"{each.size[0]}x{each.size[1]}",
            str(each.batch),
            f"{each.milliseconds:.4g}",
            f"{each.images_per_second:.4g}",
            f"{each.ratio:.2f}",
            "" if each.of_limit is None else f"{100 * each.of_limit:.0f}",
            f"{each.difference:.1e}",
            f"{each.start_seconds:.2f}",
            "" if each.memory_bytes is None else size_of(each.memory_bytes),
            "" if each.largest_batch is None else f"{each.largest_batch:,}",
        )
    show(table)
    rates = ", ".join(f"{name} {rate:.0f}" for name, rate in found.limits.items())
    say(f"the machine's limit, GFLOP/s of a large product: {rates}; {found.threads} threads")
    say("start and memory: a new process until its first answer; most: the largest batch for the memory free now")
    say("int8 is calibrated on random pixels here, so its difference says nothing; `vitrail optimize` judges it")
    for note in found.notes:
        complain(note)


def _weights_or_preset(name: str) -> Checkpoint:
    from vitrail.checkpoint import Checkpoint
    from vitrail.images import Preprocess
    from vitrail.network.presets import PRESETS, create

    if name not in PRESETS:
        return load_checkpoint(name, None, None)
    complain(f"{name} is a preset: its weights are random, so only speed is true")
    model = create(name).eval()
    return Checkpoint(model, Preprocess(size=model.config.image_size, channels=model.config.channels))


def _numbers(option: str, text: str) -> tuple[int, ...]:
    parts = [each.strip() for each in text.split(",")]
    if not all(each.isdecimal() and 0 < int(each) < 100_000 for each in parts):
        raise InputError(f"{option}: expected whole numbers like 1,16, got {text!r}")
    return tuple(dict.fromkeys(int(each) for each in parts))
