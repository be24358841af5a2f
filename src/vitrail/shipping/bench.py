"""bench: every runtime of a network on this machine, beside the machine's own limit."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from vitrail.checkpoint import Checkpoint, save
from vitrail.checks import instance, whole
from vitrail.errors import InputError, MissingExtraError, VitrailError, nearest
from vitrail.inference import Runtime, open_exported
from vitrail.network.cost import estimate
from vitrail.shipping.artefact import open_packed, save_packed
from vitrail.shipping.calibration import calibrate
from vitrail.shipping.exporting import export
from vitrail.shipping.kernels import has_bf16_units
from vitrail.shipping.limits import limits
from vitrail.shipping.packed import Packed
from vitrail.shipping.packing import Plan
from vitrail.shipping.timing import interleaved

KINDS: Final = ("eager", "packed fp32", "packed bf16", "packed int8", "onnx fp32", "openvino fp32")
Tell = Callable[[str], None]


class Row(NamedTuple):
    """A runtime at a batch size; memory and start are of a process of its own that answers once."""

    runtime: str
    batch: int
    milliseconds: float  # of one pass
    pictures_per_second: float
    ratio: float  # to eager at the same batch
    of_limit: float  # of what the machine's products could do in that precision
    difference: float  # from eager, of the largest logit, on random pixels
    start_seconds: float
    memory_bytes: int


@dataclass(frozen=True)
class Bench:
    """The table, and the machine's limit in GFLOP/s."""

    rows: tuple[Row, ...]
    limits: dict[str, float]
    gflops: float  # of one picture
    threads: int
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "rows": [each._asdict() for each in self.rows],
            "limits_gflops_per_second": self.limits,
            "gflops_per_picture": self.gflops,
            "threads": self.threads,
            "notes": list(self.notes),
        }


def bench(
    checkpoint: Checkpoint,
    *,
    batches: Sequence[int] = (1, 16),
    runtimes: Sequence[str] = (),
    rounds: int = 7,
    tell: Tell = lambda text: None,
) -> Bench:
    """Time every runtime in turn on random pixels; by default all that are installed and make sense here.

    int8 is calibrated on random pixels: its speed is true, its answers are not judged; `optimize` judges them.
    """
    instance("checkpoint", checkpoint, Checkpoint, error=InputError)
    for batch in batches:
        whole("batch", batch, error=InputError)
    for kind in runtimes:
        if kind not in KINDS:
            raise InputError(f"no runtime {kind!r}: {nearest(kind, KINDS)}")
    wanted = runtimes or [each for each in KINDS if each != "packed bf16" or has_bf16_units()]
    notes = [] if runtimes or has_bf16_units() else ["bf16 left out: this processor has no units for it"]
    with TemporaryDirectory(prefix="vitrail-") as name:
        folder = Path(name)
        made: dict[str, Runtime] = {"eager": checkpoint}
        files: dict[str, Path] = {}
        save(checkpoint, folder / "whole.safetensors")
        files["eager"] = folder / "whole.safetensors"
        for kind in wanted:
            tell(f"making {kind}")
            try:
                if kind != "eager":
                    made[kind], files[kind] = _made(checkpoint, kind, folder)
            except MissingExtraError as error:
                if kind in runtimes:
                    raise
                notes.append(f"{kind} left out: {error}")
        tell("measuring the machine's limit")
        rates = limits()
        rows = []
        alone = {kind: _alone(files[kind]) for kind in made}
        for batch in batches:
            tell(f"timing batch {batch}")
            rows += _timed(checkpoint, made, batch, rounds, rates, alone)
    gflops = _gflops(checkpoint)
    kept = tuple(each for each in rows if each.runtime in wanted or each.runtime == "eager")
    return Bench(kept, rates, gflops, torch.get_num_threads(), tuple(notes))


def _made(checkpoint: Checkpoint, kind: str, folder: Path) -> tuple[Runtime, Path]:
    """The runtime, and a file that a new process can open."""
    name, _, precision = kind.partition(" ")
    if name != "packed":
        path = folder / ("network.onnx" if name == "onnx" else "network.xml")
        export(checkpoint, path)
        return open_exported(path), path
    plan = Plan(precision) if precision != "int8" else _random_plan(checkpoint)
    path = folder / f"{precision}.safetensors"
    save_packed(Packed(checkpoint, plan), checkpoint, path)
    return open_packed(path), path


def _random_plan(checkpoint: Checkpoint) -> Plan:
    """Ranges of random pixels: the same arithmetic as with true ones."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randn(4, checkpoint.preprocess.channels, *checkpoint.preprocess.size, generator=generator)
    kind = next(checkpoint.model.parameters()).dtype
    return Plan("bf16" if has_bf16_units() else "fp32", calibrate(checkpoint.model, [pixels.to(kind)]))


def _timed(
    checkpoint: Checkpoint,
    made: dict[str, Runtime],
    batch: int,
    rounds: int,
    rates: dict[str, float],
    alone: dict[str, tuple[float, int]],
) -> list[Row]:
    shape = (batch, checkpoint.preprocess.channels, *checkpoint.preprocess.size)
    pixels = np.random.default_rng(0).standard_normal(shape, np.float32)
    expected, _ = checkpoint.run(pixels)
    took = interleaved({kind: _call(each, pixels) for kind, each in made.items()}, rounds)
    rows = []
    for kind, seconds in took.items():
        logits, _ = made[kind].run(pixels)
        rate = rates.get(kind.partition(" ")[2] or "fp32", 0.0)
        share = batch * _gflops(checkpoint) / seconds / rate if rate else float("nan")
        difference = float(np.abs(logits - expected).max() / max(np.abs(expected).max(), 1e-12))
        rows.append(
            Row(kind, batch, 1000 * seconds, batch / seconds, took["eager"] / seconds, share, difference, *alone[kind])
        )
    return rows


def _call(runtime: Runtime, pixels: np.ndarray[Any, Any]) -> Callable[[], object]:
    return lambda: runtime.run(pixels)


def _gflops(checkpoint: Checkpoint) -> float:
    return 2 * estimate(checkpoint.model.config, checkpoint.preprocess.size).multiply_adds / 1e9


ALONE = """
import json, resource, sys, time
started = time.perf_counter()
import numpy
from vitrail.inference import is_exported, open_exported
if is_exported(sys.argv[1]):
    runtime = open_exported(sys.argv[1])
else:
    from vitrail.shipping.runtimes import open_runtime
    runtime = open_runtime(sys.argv[1])
way = runtime.preprocess
runtime.run(numpy.zeros((1, way.channels, *way.size), numpy.float32))
took = time.perf_counter() - started
try:  # the largest since this program began; getrusage would count what its parent had too
    lines = dict(line.split(":", 1) for line in open("/proc/self/status"))
    peak = 1024 * int(lines["VmHWM"].split()[0])
except OSError:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps([took, peak]))
"""


def _alone(path: Path) -> tuple[float, int]:
    """Seconds until the first answer of a new process, Python itself not counted, and its largest memory."""
    ran = subprocess.run([sys.executable, "-c", ALONE, str(path)], capture_output=True, text=True, check=False)
    if ran.returncode:
        last = ran.stderr.strip().splitlines()[-1:] or ["no reason given"]
        raise VitrailError(f"{path.name} could not be opened in a process of its own: {last[0]}")
    seconds, peak = json.loads(ran.stdout.splitlines()[-1])
    return float(seconds), int(peak)
