"""bench: every runtime of a network on this machine, beside the machine's own limit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from vitrail.checkpoint import Checkpoint, save
from vitrail.checkpoint.devices import describe_device, device_of
from vitrail.checks import check_int
from vitrail.errors import InputError, VitrailError, nearest
from vitrail.exporters import TARGETS
from vitrail.exporters.exported import open_exported
from vitrail.exporters.exporter import export
from vitrail.images import Preprocess
from vitrail.inference import Runtime
from vitrail.inference.recognisers import AUTO, CPU, as_checkpoint
from vitrail.inference.timing import interleaved
from vitrail.insight.cost import estimate
from vitrail.packed import open_packed, pack_checkpoint, save_packed
from vitrail.quantisation.cpu_features import has_bf16_units
from vitrail.quantisation.quant_plan import QuantPlan
from vitrail.quantisation.range_calibration import calibrate
from vitrail.reporting.html_page import counted
from vitrail.reporting.object_card import Card
from vitrail.shipping.candidates import bench_kinds, precisions_here
from vitrail.shipping.peak_flops import limits
from vitrail.shipping.steps import SearchCallback, SearchCounter, with_bar
from vitrail.types import Device, LogCallback


class BenchRow(NamedTuple):
    """A runtime at a batch size; memory and start are of a process of its own that answers once."""

    runtime: str
    size: tuple[int, int]  # height and width
    batch: int
    milliseconds: float  # of one pass
    images_per_second: float
    ratio: float  # to eager at the same batch
    of_limit: float | None  # of what the machine's products could do in that precision
    difference: float  # from eager, of the largest logit, on random pixels
    start_seconds: float
    memory_bytes: int | None  # None where the system does not log
    largest_batch: int | None  # that fits into the memory free now, by what more images were seen to take


@dataclass(frozen=True)
class Bench:
    """The table, and the machine's limit in GFLOP/s."""

    rows: tuple[BenchRow, ...]
    limits: dict[str, float]
    threads: int
    notes: tuple[str, ...]
    device: str = "cpu"  # where eager computes; all others do on the cpu

    def card(self) -> Card:
        """What it says of itself in a REPL and a notebook: the fastest at each size and batch."""
        fastest = {}
        for row in sorted(self.rows, key=lambda row: row.images_per_second):
            fastest[row.size, row.batch] = row
        rows = [
            (
                f"{height}x{width}, batch {batch}",
                f"{row.runtime}: {row.milliseconds:.4g} ms, {row.ratio:.2f} times eager",
            )
            for ((height, width), batch), row in sorted(fastest.items())
        ]
        tried = counted(len({row.runtime for row in self.rows}), "runtime")
        return Card(
            f"Bench: the fastest of {tried}, {counted(self.threads, 'thread')}", (*rows, ("all of it", ".rows"))
        )

    def __repr__(self) -> str:
        return self.card().as_text()

    def _repr_html_(self) -> str:
        return self.card().as_html()

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "rows": [each._asdict() for each in self.rows],
            "limits_gflops_per_second": self.limits,
            "threads": self.threads,
            "device": self.device,
            "notes": list(self.notes),
        }


@with_bar
def bench(
    checkpoint: Checkpoint | str | os.PathLike[str],
    *,
    batches: Sequence[int] = (1, 16),
    sizes: Sequence[int] = (),
    runtimes: Sequence[str] = (),
    rounds: int = 7,
    progress: SearchCallback | bool | None = None,
    log: LogCallback = lambda text: None,
    device: Device | None = None,
) -> Bench:
    """Time every runtime in turn on random pixels; by default all that are installed and make sense here.

    - checkpoint: a Checkpoint, or the path or name of one.
    - batches: batch sizes to time.
    - sizes: sides of square images; by default the network's own size.
    - runtimes: some of "eager", "packed fp32", "onnx int8" and so on; by default all.
    - rounds: how often all take their turn.
    - progress: a bar on stderr; None: at a terminal and in a notebook, False: never; or a function that is told as each
      step begins: a `SearchStep` says what is done, how many are left, and about how long that takes.
    - log: told what happens, a line at a time.
    - device: where eager computes, such as "auto" or "cuda:1"; None: where it lies, of a path "auto".

    int8 is calibrated on random pixels: its speed is true, its answers are not judged; `optimize` judges them.
    """
    checkpoint = as_checkpoint(checkpoint, device, AUTO)
    for batch in batches:
        check_int("batch", batch, error=InputError)
    for kind in runtimes:
        if kind not in bench_kinds():
            raise InputError(f"no runtime {kind!r}: {nearest(kind, bench_kinds())}")
    wanted = runtimes or [each for each in bench_kinds() if each == "eager" or each.split()[1] in precisions_here()]
    notes = [] if runtimes or has_bf16_units() else ["bf16 left out: this processor has no units for it"]
    used = device_of(checkpoint.model)
    if used.type != "cpu":
        notes.append(f"eager computes on {describe_device(used)}, all others on the cpu")
    step = SearchCounter(1 + max(1, len(sizes)) * (len(wanted) + 1 + len(batches)), progress)
    log("measuring the machine's limit")
    step("the machine's limit")
    rates = limits()
    rows: list[BenchRow] = []
    for size in sizes or (0,):
        square = checkpoint.preprocess.to_dict() | {"size": [size, size]}
        sized = checkpoint if not size else replace(checkpoint, preprocess=Preprocess.from_dict(square))
        here = sized.to(CPU)  # for the runtimes that compute on no other
        with TemporaryDirectory(prefix="vitrail-", ignore_cleanup_errors=True) as folder:
            opened = {"eager": _open_kind(sized, "eager", Path(folder))}
            for kind in wanted:
                log(f"making {kind}")
                step(kind)
                try:
                    if kind not in opened:
                        opened[kind] = _open_kind(here, kind, Path(folder))
                except VitrailError as error:
                    if kind in runtimes:
                        raise
                    notes.append(f"{kind} left out: {error}")
            log("starting each in a process of its own")
            step("each in a process of its own")
            alone = {kind: _alone(path, str(used) if kind == "eager" else CPU) for kind, (_, path) in opened.items()}
            for batch in batches:
                log(f"timing batch {batch}")
                step(f"batch {batch}")
                rows += _timed(sized, opened, batch, rounds, rates, alone)
    return Bench(tuple(rows), rates, torch.get_num_threads(), tuple(dict.fromkeys(notes)), describe_device(used))


def _open_kind(checkpoint: Checkpoint, kind: str, folder: Path) -> tuple[Runtime, Path]:
    """The runtime, and a file that a new process can open."""
    if kind == "eager":
        save(checkpoint, folder / "whole.safetensors")
        return checkpoint, folder / "whole.safetensors"
    name, _, precision = kind.partition(" ")
    plan = QuantPlan(precision) if precision != "int8" else _random_plan(checkpoint)
    if name != "packed":
        path = folder / f"{precision}{TARGETS[name].suffix}"
        export(checkpoint, path, plan=plan)
        return open_exported(path), path
    path = folder / f"{precision}.safetensors"
    save_packed(pack_checkpoint(checkpoint, plan), checkpoint, path)
    return open_packed(path), path


def _random_plan(checkpoint: Checkpoint) -> QuantPlan:
    """Ranges of random pixels: the same arithmetic as with true ones."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randn(4, checkpoint.preprocess.channels, *checkpoint.preprocess.size, generator=generator)
    kind = next(checkpoint.model.parameters()).dtype
    return QuantPlan("bf16" if has_bf16_units() else "fp32", calibrate(checkpoint.model, [pixels.to(kind)]))


def _timed(
    checkpoint: Checkpoint,
    opened: dict[str, tuple[Runtime, Path]],
    batch: int,
    rounds: int,
    rates: dict[str, float],
    alone: dict[str, Alone],
) -> list[BenchRow]:
    gflops = 2 * estimate(checkpoint.model.config, checkpoint.preprocess.size).multiply_adds / 1e9  # of one image
    shape = (batch, checkpoint.preprocess.channels, *checkpoint.preprocess.size)
    pixels = np.random.default_rng(0).standard_normal(shape, np.float32)
    expected, _ = checkpoint.run(pixels)
    took = interleaved({kind: partial(runtime.run, pixels) for kind, (runtime, _) in opened.items()}, rounds)
    rows = []
    for kind, seconds in took.items():
        logits, _ = opened[kind][0].run(pixels)
        is_elsewhere = kind == "eager" and device_of(checkpoint.model).type != "cpu"  # its limit is another
        rate = 0.0 if is_elsewhere else rates.get(kind.partition(" ")[2] or "fp32", 0.0)
        share = batch * gflops / seconds / rate if rate else None
        difference = float(np.abs(logits - expected).max() / max(np.abs(expected).max(), 1e-12))
        rows.append(
            BenchRow(
                kind,
                checkpoint.preprocess.size,
                batch,
                1000 * seconds,
                batch / seconds,
                took["eager"] / seconds,
                share,
                difference,
                alone[kind].seconds,
                alone[kind].memory,
                alone[kind].largest,
            )
        )
    return rows


class Alone(NamedTuple):
    """Seconds until the first answer, the largest memory then, and the batch that would fit into the free memory."""

    seconds: float
    memory: int | None
    largest: int | None


SEVERAL: Final = 32  # images in the second pass, which shows what each more takes
ALONE: Final = """
import json, sys, time
started = time.perf_counter()
import numpy
from vitrail.inference import open_model
runtime = open_model(sys.argv[1], device=sys.argv[3])
way = runtime.preprocess
def run(count):
    runtime.run(numpy.zeros((count, way.channels, *way.size), numpy.float32))
def peak(anew):
    # The largest so far; what getrusage says would count what this program's parent had, too.
    try:
        with open("/proc/self/status") as file:
            found = 1024 * int(dict(line.split(":", 1) for line in file)["VmHWM"].split()[0])
        if anew:
            with open("/proc/self/clear_refs", "w") as file:
                file.write("5")
        return found
    except OSError:
        return 0
run(1)
took = time.perf_counter() - started
first = peak(True)
run(1)
one = peak(True)
run(int(sys.argv[2]))
print(json.dumps([took, first, one, peak(False)]))
"""


def _alone(path: Path, device: str) -> Alone:
    """A new process that opens a file and answers; Python's own start is not counted, nor an accelerator's memory."""
    command = [sys.executable, "-c", ALONE, str(path), str(SEVERAL), device]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        last = ran.stderr.strip().splitlines()[-1:] or ["no reason given"]
        raise VitrailError(f"{path.name} could not be opened in a process of its own: {last[0]}")
    seconds, first, one, several = json.loads(ran.stdout.splitlines()[-1])
    if device != CPU:
        return Alone(float(seconds), None, None)
    each, free = (several - one) // (SEVERAL - 1), _free()
    largest = max(1, (free - first) // each) if each > 4096 and free else None
    return Alone(float(seconds), int(first) or None, largest)


def _free() -> int:
    """Bytes of memory that are free now; 0 where the system does not log."""
    try:
        with open("/proc/meminfo", encoding="utf-8") as file:
            return 1024 * int(dict(line.split(":", 1) for line in file)["MemAvailable"].split()[0])
    except OSError:
        return 0
