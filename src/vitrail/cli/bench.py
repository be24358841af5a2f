"""The verb bench: every runtime on this machine, side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from vitrail.cli.application import app
from vitrail.cli.completion import preset_names
from vitrail.cli.options import AsJson, DeviceName, offer, parse_numbers
from vitrail.cli.terminal import busy, complain, print_json, say, show, size_of, table_of
from vitrail.cli.weights import load_checkpoint, refuse_unknown
from vitrail.shipping.candidates import bench_kinds

if TYPE_CHECKING:
    from vitrail.checkpoint import Checkpoint


@app.command("bench")
def bench_runtimes(
    checkpoint: Annotated[
        str,
        typer.Argument(
            metavar="CHECKPOINT|PRESET",
            help="A run, weights, or the name of a preset.",
            autocompletion=offer(preset_names, beside_files=True),
        ),
    ],
    batch: Annotated[str, typer.Option(metavar="N,...", help="Batch sizes to measure.")] = "1,16",
    runtimes: Annotated[
        str,
        typer.Option(metavar="NAMES", help=f"all, or some of: {', '.join(bench_kinds())}."),
    ] = "all",
    rounds: Annotated[int, typer.Option(min=1, help="How often each is measured.")] = 7,
    size: Annotated[
        str, typer.Option(metavar="PX,...", help="Image sizes to measure.", show_default="the network's own")
    ] = "",
    device: DeviceName = "auto",
    as_json: AsJson = False,
) -> None:
    """Speed, memory and start-up of every runtime on this machine, beside the machine's own limit."""
    from vitrail.reporting.html_page import counted
    from vitrail.shipping.benchmark import bench

    loaded = _weights_or_preset(checkpoint, device)
    wanted = () if runtimes == "all" else tuple(each.strip() for each in runtimes.split(","))
    sizes = parse_numbers("--size", size) if size else ()
    with busy(f"measuring {checkpoint}") as now:
        result = bench(
            loaded,
            batches=parse_numbers("--batch", batch),
            sizes=sizes,
            runtimes=wanted,
            rounds=rounds,
            progress=lambda step: now(f"measuring {step}"),
            log=complain,
        )
    if as_json:
        print_json(result.to_dict())
        return
    table = table_of(
        *("runtime", "size", "batch", "ms", "images/s", "times\neager", "of the\nlimit", "differs\nby"),
        *("start", "memory", "most"),
    )
    for row in result.rows:
        table.add_row(
            row.runtime,
            f"{row.size[0]}x{row.size[1]}",
            str(row.batch),
            f"{row.milliseconds:.4g}",
            f"{row.images_per_second:.4g}",
            f"{row.ratio:.2f}",
            "" if row.of_limit is None else f"{100 * row.of_limit:.0f} %",
            f"{row.difference:.1e}",
            f"{row.start_seconds:.2f} s",
            "" if row.memory_bytes is None else size_of(row.memory_bytes),
            "" if row.largest_batch is None else f"{row.largest_batch:,}",
        )
    show(table)
    rates = ", ".join(f"{name} {rate:.0f}" for name, rate in result.limits.items())
    say(f"the machine's limit, GFLOP/s of a large product: {rates}; {counted(result.threads, 'thread')}")
    say("start and memory: a new process until its first answer; most: the largest batch for the memory free now")
    say("int8 is calibrated on random pixels here, so its difference says nothing; `vitrail optimize` judges it")
    for note in result.notes:
        complain(note)


def _weights_or_preset(name: str, device: str) -> Checkpoint:
    from vitrail.checkpoint import Checkpoint
    from vitrail.images import Preprocess
    from vitrail.network.presets import PRESETS, create

    refuse_unknown(name)
    if name not in PRESETS:
        return load_checkpoint(name, device=device)
    complain(f"{name} is a preset: its weights are random, so only speed is true")
    model = create(name).eval()
    return Checkpoint(model, Preprocess(size=model.config.image_size, channels=model.config.channels)).to(device)
