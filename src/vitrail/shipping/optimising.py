"""optimize: a checkpoint, pictures and a budget -> the fastest way to answer on this machine, as one file."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

import torch

from vitrail.checkpoint import Checkpoint, save
from vitrail.checks import choice, instance, number, whole
from vitrail.errors import ConfigError, InputError, MissingExtraError
from vitrail.evaluation.evaluate import Data
from vitrail.inference import Runtime, open_exported
from vitrail.inference.passes import passes
from vitrail.network.vit import with_merging
from vitrail.shipping.artefact import save_packed
from vitrail.shipping.calibration import calibrate
from vitrail.shipping.exporting import export
from vitrail.shipping.judging import Dealt, Judge, Judged, deal
from vitrail.shipping.kernels import has_bf16_units, probe
from vitrail.shipping.packed import Packed
from vitrail.shipping.packing import Plan
from vitrail.shipping.quantising import RANKED_ON, pixels_of, within_budget
from vitrail.shipping.smoothing import smooth
from vitrail.shipping.timing import interleaved

GOALS: Final = ("throughput", "latency")
TIMED: Final = 48  # pictures that are read and answered in each timing, at most
FINALISTS: Final = 3  # that are tried with every batch and number of threads
Tell = Callable[[str], None]


class Way(NamedTuple):
    """One way to answer: who, how exactly, and how many tokens are merged in each block."""

    runtime: str  # eager, packed, onnx or openvino
    precision: str
    merged: int

    def __str__(self) -> str:
        return f"{self.runtime} {self.precision}" + (f", {self.merged} merged a block" if self.merged else "")


class Tried(NamedTuple):
    """A way that was tried: what it lost, and how fast it is from file to answer. Rates are pictures a second."""

    way: Way
    batch: int
    threads: int  # that read pictures
    rate: float
    judged: Judged
    within: bool  # the budget

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            **self.way._asdict(),
            "batch": self.batch,
            "threads": self.threads,
            "pictures_per_second": self.rate,
            "judged": self.judged.to_dict(),
            "within": self.within,
        }


@dataclass(frozen=True, eq=False)
class Optimised:
    """The fastest within the budget, everything that was tried, and the file."""

    best: Tried
    eager: Tried  # the checkpoint as it is, at the same batch and threads
    tried: tuple[Tried, ...]
    reported: Judged  # the best on test pictures, which chose nothing, where the data has them
    out: Path
    words: str

    @property
    def speed(self) -> float:
        """How many times faster than the checkpoint as it is, from file to answer."""
        return self.best.rate / self.eager.rate

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "best": self.best.to_dict(),
            "eager": self.eager.to_dict(),
            "speed": self.speed,
            "reported": self.reported.to_dict(),
            "pictures": self.words,
            "tried": [each.to_dict() for each in self.tried],
            "out": str(self.out),
        }


class _Candidate(NamedTuple):
    way: Way
    runtime: Runtime
    base: Checkpoint  # what it was made from
    judged: Judged


def optimize(
    checkpoint: Checkpoint,
    data: Data,
    out: str | os.PathLike[str],
    *,
    max_drop: float = 0.5,
    goal: str = "throughput",
    batches: Sequence[int] = (1, 8, 16),
    merging: bool = True,
    runtimes: Sequence[str] = ("packed", "onnx", "openvino"),
    seed: int = 0,
    tell: Tell = lambda text: None,
) -> Optimised:
    """Try runtimes, precisions, token merging, batches and reading threads; write the fastest that keeps the budget.

    Speed is from file to answer, decoding and resizing included. `goal` "latency" takes pictures one by one. The name
    `out` gets the ending of what won: .safetensors, .onnx or .xml.
    """
    instance("checkpoint", checkpoint, Checkpoint, error=InputError)
    choice("goal", goal, GOALS)
    number("max_drop", max_drop, -100.0, 100.0)
    for batch in batches:
        whole("batch", batch, error=InputError)
    if not checkpoint.classes:
        raise InputError("this network has no head, so no accuracy can be kept: train a head first")
    dealt = deal(data, checkpoint, seed)
    judge = Judge.by(checkpoint, dealt.choosing)
    with TemporaryDirectory(prefix="vitrail-") as folder:
        found = _candidates(checkpoint, dealt, judge, max_drop, merging, runtimes, Path(folder), tell)
        tell(f"timing {len(found)} ways from file to answer")
        tried = _raced(found, dealt, (1,) if goal == "latency" else tuple(batches), max_drop)
        best = max((each for each in tried if each.within), key=lambda each: each.rate)
        winner = next(each for each in found if each.way == best.way)
        reported = Judge.by(checkpoint, dealt.reporting)(winner.runtime)
        eager = next(each for each in tried if (each.way.runtime, each.batch, each.threads) == ("eager", *best[1:3]))
        made = Optimised(best, eager, tuple(tried), reported, _name(Path(out), best.way), dealt.words)
        _write(winner, made)
    return made


def _candidates(
    checkpoint: Checkpoint,
    dealt: Dealt,
    judge: Judge,
    max_drop: float,
    merging: bool,
    runtimes: Sequence[str],
    folder: Path,
    tell: Tell,
) -> list[_Candidate]:
    batches = pixels_of(checkpoint, dealt.calibration, 32)
    found = [_Candidate(Way("eager", "fp32", 0), checkpoint, checkpoint, judge(checkpoint))]
    rates = [0]
    if merging:
        rate = _most_merged(checkpoint, judge, max_drop, tell)
        rates += [rate] if rate else []
    for merged in rates:
        base = replace(checkpoint, model=with_merging(checkpoint.model, merged)) if merged else checkpoint
        for runtime in runtimes:
            tell(f"making {runtime}{f' with {merged} tokens merged a block' if merged else ''}")
            if runtime == "packed":
                found += _packed(base, batches, judge, max_drop, merged, tell)
                continue
            try:
                path = folder / (f"{merged}.onnx" if runtime == "onnx" else f"{merged}.xml")
                export(base, path)
                opened = open_exported(path)
            except MissingExtraError as error:
                tell(f"{runtime} left out: {error}")
                continue
            found.append(_Candidate(Way(runtime, "fp32", merged), opened, base, judge(opened)))
    return found


def _packed(
    base: Checkpoint, batches: list[torch.Tensor], judge: Judge, max_drop: float, merged: int, tell: Tell
) -> list[_Candidate]:
    found = []
    for precision in ("fp32", *(("bf16",) if has_bf16_units() else ())):
        runtime = Packed(base, Plan(precision))
        found.append(_Candidate(Way("packed", precision, merged), runtime, base, judge(runtime)))
    if probe("int8").works:
        even = replace(base, model=smooth(base.model, batches))
        ranges = calibrate(even.model, batches)
        rest = "bf16" if has_bf16_units() else "fp32"
        try:
            small, _ = within_budget(even, ranges, judge, max_drop, rest, batches[0][:RANKED_ON], tell)
        except InputError as error:
            tell(str(error))
        else:
            found.append(_Candidate(Way("packed", "int8", merged), small, even, judge(small)))
    return found


def _most_merged(checkpoint: Checkpoint, judge: Judge, max_drop: float, tell: Tell) -> int:
    """The most tokens merged in each block within the budget; 0 where the network cannot merge."""
    config = checkpoint.model.config
    h, w = config.grid_for(checkpoint.preprocess.size)
    low, high = 0, max(1, int(0.95 * h * w / config.depth))
    while low < high:
        middle = (low + high + 1) // 2
        try:
            merged = replace(checkpoint, model=with_merging(checkpoint.model, middle))
        except (ConfigError, InputError) as error:
            tell(f"no token merging: {error}")
            return 0
        lost = judge(Packed(merged)).drop.value
        tell(f"{middle} tokens merged a block: {lost:+.2f} points lost")
        low, high = (middle, high) if lost <= max_drop else (low, middle - 1)
    return low


def _raced(found: list[_Candidate], dealt: Dealt, batches: Sequence[int], max_drop: float) -> list[Tried]:
    """Rates of all at one batch, then of the fastest with every batch and number of reading threads."""
    pictures = dealt.choosing
    images = [pictures.images[row] for row in range(min(TIMED, len(pictures)))]
    cores = torch.get_num_threads()
    rows: dict[tuple[Way, int, int], float] = {}

    def race(candidates: list[_Candidate], batch: int, threads: int) -> None:
        def call(runtime: Runtime) -> Callable[[], object]:
            return lambda: list(passes(runtime, images, batch=batch, threads=threads, skip=lambda name, error: None))

        took = interleaved({each.way: call(each.runtime) for each in candidates}, rounds=5)
        rows.update({(way, batch, threads): len(images) / seconds for way, seconds in took.items()})

    most = max(batches)
    race(found, most, cores)
    fast = sorted(
        (each for each in found if each.judged.drop.value <= max_drop), key=lambda each: -rows[each.way, most, cores]
    )
    finalists = [found[0], *[each for each in fast[:FINALISTS] if each is not found[0]]]
    for batch in batches:
        for threads in sorted({1, cores}):
            if (batch, threads) != (most, cores):
                race(finalists, batch, threads)
    judged = {each.way: each.judged for each in found}
    return [
        Tried(way, batch, threads, rate, judged[way], judged[way].drop.value <= max_drop)
        for (way, batch, threads), rate in rows.items()
    ]


def _name(out: Path, way: Way) -> Path:
    suffix = {"onnx": ".onnx", "openvino": ".xml"}.get(way.runtime, ".safetensors")
    if out.suffix in (".onnx", ".xml", ".safetensors", ".bin"):
        out = out.with_suffix("")
    return out.with_name(out.name + suffix)


def _write(winner: _Candidate, made: Optimised) -> None:
    if isinstance(winner.runtime, Packed) and winner.runtime.plan is not None:
        save_packed(winner.runtime, winner.base, made.out, made.to_dict())
    elif winner.way.runtime in ("onnx", "openvino"):
        export(winner.base, made.out, measurements=made.to_dict())
    else:
        save(winner.base, made.out)
