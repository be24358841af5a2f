"""optimize: a checkpoint, images and a budget -> the fastest way to answer on this machine, as one file."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from vitrail.checkpoint import Checkpoint, save
from vitrail.checks import check_choice, check_int, check_number, check_type, short_repr
from vitrail.errors import ConfigError, InputError, VitrailError
from vitrail.evaluation.evaluator import Data
from vitrail.exporters.exporter import add_measurements, export
from vitrail.inference import Exported, Runtime, open_exported
from vitrail.inference.batches import run_batches
from vitrail.inference.settling import near_ties
from vitrail.inference.timing import interleaved
from vitrail.insight.cost import estimate
from vitrail.network.config import ViTConfig
from vitrail.network.surgery import with_merging
from vitrail.packed.onednn_kernels import has_bf16_units, probe
from vitrail.packed.packed_file import check_place, save_packed
from vitrail.packed.packed_runtime import Packed
from vitrail.packed.packing import Plan, Range, packable
from vitrail.quantisation.accuracy_budget import Dealt, Judge, Judged, deal
from vitrail.quantisation.calibration import calibrate
from vitrail.quantisation.quantiser import RANKED_ON, pixels_of, within_budget
from vitrail.quantisation.smooth_quant import smooth

GOALS: Final = ("throughput", "latency")
RUNTIMES: Final = ("packed", "onnx", "openvino")
TIMED: Final = 48  # images that are read and answered in each timing, at most
FINALISTS: Final = 3  # that are tried with every batch and number of threads
SHARES: Final = (0.3, 0.5, 0.7, 0.8, 0.9, 1.0, 1.2)  # of the patches, merged away in all; at 1 they run out at the end
CLEAR: Final = (1.0, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 100.0)  # times as likely as the next
UNSURE: Final = 1.5  # the same where all tokens stay and rounding alone makes answers unclear
Tell = Callable[[str], None]


class Merging(NamedTuple):
    """Tokens merged in blocks from a first one on, in all or every second; answers less clear than `clear` are given
    again without."""

    count: int = 0  # type: ignore[assignment]  # hides tuple.count, which nobody misses
    first: int = 0
    clear: float = 1.0
    every: int = 1

    def of(self, checkpoint: Checkpoint) -> Checkpoint:
        """The checkpoint, merging."""
        if not self.count:
            return checkpoint
        return replace(checkpoint, model=with_merging(checkpoint.model, self.count, self.first, every=self.every))

    @property
    def again(self) -> str:
        """The precision of answers that are given again: where all tokens were seen, only the finest is worth it."""
        return "fp32" if self.clear > 1 and not self.count else ""

    def __str__(self) -> str:
        which = "blocks" if self.every == 1 else "every second block"
        merged = f"{self.count} merged in {which} from {self.first} on" if self.count else ""
        asked = f"{self.again or 'whole'} below {self.clear:g} to 1" if self.clear > 1 else ""
        return ", ".join(each for each in (merged, asked) if each)


class Way(NamedTuple):
    """One way to answer: who, how exactly, and which tokens are merged."""

    runtime: str  # eager, packed, onnx or openvino
    precision: str
    merging: Merging = Merging()

    def __str__(self) -> str:
        return f"{self.runtime} {self.precision}" + (f", {self.merging}" if str(self.merging) else "")


class Tried(NamedTuple):
    """A way that was tried: what it lost, and how fast it is from file to answer. Rates are images a second."""

    way: Way
    batch: int
    threads: int  # that read images
    rate: float
    judged: Judged
    within: bool  # the budget

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "runtime": self.way.runtime,
            "precision": self.way.precision,
            "merge_per_block": self.way.merging.count,
            "merge_from": self.way.merging.first,
            "merge_every": self.way.merging.every,
            "clear": self.way.merging.clear,
            "again": self.way.merging.again,
            "batch": self.batch,
            "threads": self.threads,
            "images_per_second": self.rate,
            "judged": self.judged.to_dict(),
            "within": self.within,
        }


@dataclass(frozen=True, eq=False)
class Optimised:
    """The fastest within the budget, everything that was tried, and the file."""

    best: Tried
    eager: Tried  # the checkpoint as it is, at the same batch and threads
    tried: tuple[Tried, ...]
    reported: Judged  # the best on test images, which chose nothing, where the data has them
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
            "images": self.words,
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
    runtimes: Sequence[str] = RUNTIMES,
    seed: int = 0,
    tell: Tell = lambda text: None,
) -> Optimised:
    """Try runtimes, precisions, token merging, batches and reading threads; write the fastest that keeps the budget.

    Speed is from file to answer, decoding and resizing included. `goal` "latency" takes images one by one. The name
    `out` gets the ending of what won: .safetensors, .onnx or .xml.
    """
    check_type("checkpoint", checkpoint, Checkpoint, error=InputError)
    check_choice("goal", goal, GOALS)
    check_number("max_drop", max_drop, -100.0, 100.0)
    if not batches:
        raise InputError("batches: expected at least one batch size")
    for batch in batches:
        check_int("batch", batch, error=InputError)
    if isinstance(runtimes, str) or not set(runtimes) <= set(RUNTIMES):
        raise InputError(f"runtimes: expected some of {', '.join(RUNTIMES)}, got {short_repr(runtimes)}")
    for way in (Way("packed", "fp32"), Way("onnx", "fp32"), Way("openvino", "fp32")):
        place = _name(Path(out), way)
        if place.suffix == ".safetensors":
            check_place(place)
    if not checkpoint.classes:
        raise InputError("this network has no head, so no accuracy can be kept: train a head first")
    dealt = deal(data, checkpoint, seed)
    judge = Judge.by(checkpoint, dealt.choosing)
    with TemporaryDirectory(prefix="vitrail-") as folder:
        found = _candidates(checkpoint, dealt, judge, max_drop, merging, runtimes, Path(folder), tell)
        tell(f"timing {len(found)} ways from file to answer")
        tried = _raced(found, dealt, (1,) if goal == "latency" else tuple(batches), max_drop)
        allowed = [each for each in tried if each.within]
        if not allowed:
            least = min(tried, key=lambda each: each.judged.drop.value)
            raise InputError(
                f"nothing keeps the budget of {max_drop:g} points on {least.judged.images} images: the best found, "
                f"{least.way}, loses {least.judged.drop.value:.2f}"
            )
        best = max(allowed, key=lambda each: each.rate)
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
    found = [_Candidate(Way("eager", "fp32"), checkpoint, checkpoint, judge(checkpoint))]
    rates = [Merging()]
    if merging:
        rates += merged_most(checkpoint, judge, max_drop, tell)
    if merging and "packed" in runtimes:
        rates += doubting(checkpoint, judge, max_drop, tell)
    plain = checkpoint.task == "single-label" and not checkpoint.model.config.merge_per_block
    if "packed" in runtimes and plain and (probe("int8").works or has_bf16_units()):
        rates.append(Merging(clear=UNSURE))
    lossless = False  # whether all layers in int8 keep the budget as they are
    for merged in dict.fromkeys(rates):
        if lossless and merged == Merging(clear=UNSURE):
            continue
        base = merged.of(checkpoint)
        tell(f"making runtimes{f', {merged}' if str(merged) else ''}")
        small = _int8(base, batches, judge, max_drop, tell, merged) if probe("int8").works else None
        if merged == Merging():
            lossless = small is not None and len(small.ranges) == len(packable(base.model))
        for runtime in runtimes:
            if merged.clear > 1 and runtime != "packed":  # files for others hold one network
                continue
            for precision in ("fp32", *(("bf16",) if runtime != "onnx" and has_bf16_units() else ()), "int8"):
                way = Way(runtime, precision, merged)
                if precision == "int8" and small is None:
                    continue
                if precision == merged.again:
                    continue  # exact already
                try:
                    opened = _opened(way, base, small, folder)
                except VitrailError as error:  # one that cannot be made is no reason to give up the others
                    tell(f"{way} left out: {error}")
                    continue
                origin = small.base if small and precision == "int8" else base
                found.append(_Candidate(way, opened, origin, judge(opened)))
    return found


class _Small(NamedTuple):
    """A packed int8 network within the budget, and the evened one that it was packed from."""

    runtime: Packed
    base: Checkpoint
    ranges: Mapping[str, Range]


def _int8(
    base: Checkpoint, batches: list[torch.Tensor], judge: Judge, max_drop: float, tell: Tell, merged: Merging
) -> _Small | None:
    even = replace(base, model=smooth(base.model, batches))
    ranges = calibrate(even.model, batches)
    rest = "bf16" if has_bf16_units() else "fp32"
    try:
        unclear = (merged.clear, merged.again)
        found, _ = within_budget(even, ranges, judge, max_drop, rest, batches[0][:RANKED_ON], tell, *unclear)
    except InputError as error:
        tell(str(error))
        return None
    return None if found.plan is None else _Small(found, even, found.plan.int8)


def _opened(way: Way, base: Checkpoint, small: _Small | None, folder: Path) -> Runtime:
    """The runtime of a way."""
    if way.runtime == "packed":
        if small is not None and way.precision == "int8":
            return small.runtime
        plan = Plan(way.precision, clear=way.merging.clear, again=way.merging.again)
        made = Packed(base, plan)
        if made.plan != plan:
            raise InputError("; ".join(made.notes))
        return made
    path = folder / f"{len(list(folder.iterdir()))}{'.onnx' if way.runtime == 'onnx' else '.xml'}"
    if small is not None and way.precision == "int8":
        export(small.base, path, int8=small.ranges, bf16=way.runtime == "openvino" and has_bf16_units())
    else:
        export(base, path, bf16=way.precision == "bf16")
    return open_exported(path)


def merged_most(checkpoint: Checkpoint, judge: Judge, max_drop: float, tell: Tell = lambda text: None) -> list[Merging]:
    """The most tokens merged within the budget: in all blocks, from the first or a third of the depth on, whichever is
    less work; and in every second, from the next to the first on, which takes less time to merge."""
    config = checkpoint.model.config
    h, w = config.grid_for(checkpoint.preprocess.size)
    found: list[Merging] = []
    for first, every in schedules(config.depth):
        low, high = 0, max(1, int(0.95 * h * w * every / (config.depth - first)))
        while low < high:
            middle = Merging((low + high + 1) // 2, first, every=every)
            try:
                merged = middle.of(checkpoint)
            except (ConfigError, InputError) as error:
                tell(f"no token merging: {error}")
                return []
            lost = judge(merged).drop.value
            tell(f"{middle}: {lost:+.2f} points lost")
            low, high = (middle.count, high) if lost <= max_drop else (low, middle.count - 1)
        if low:
            found.append(Merging(low, first, every=every))
    each_way = [[each for each in found if each.every == every] for every in (1, 2)]
    return [min(some, key=lambda each: _work(checkpoint, each)) for some in each_way if some]


def schedules(depth: int) -> list[tuple[int, int]]:
    """Where merging may start, and after how many blocks it goes on."""
    return list(dict.fromkeys(((0, 1), (depth // 3, 1), *(((1, 2),) if depth > 2 else ()))))


def doubting(checkpoint: Checkpoint, judge: Judge, max_drop: float, tell: Tell = lambda text: None) -> list[Merging]:
    """The merging of least work, if unclear answers may be given again by all tokens: more can be merged then.

    What a threshold loses, and how many images it asks again, is counted from answers with and without merging.
    """
    if checkpoint.task != "single-label" or checkpoint.model.config.merge_per_block:
        return []
    config, truth = checkpoint.model.config, judge.baseline
    h, w = config.grid_for(checkpoint.preprocess.size)
    right = truth.logits.argmax(axis=1) == truth.targets
    found: dict[Merging, float] = {}
    for (first, every), share in product(schedules(config.depth), SHARES):
        merging = Merging(max(1, int(share * h * w * every / (config.depth - first))), first, every=every)
        try:
            fewer = merging.of(checkpoint)
        except ConfigError:  # `merged_most` said why
            return []
        try:
            logits = judge.answers(Packed(fewer, Plan("bf16" if has_bf16_units() else "fp32"))).logits
        except VitrailError as error:
            tell(f"{merging} left out: {error}")
            continue
        for clear in CLEAR:
            again = near_ties(logits, "single-label", clear)
            lost = 100 * (right.mean() - np.where(again, right, logits.argmax(axis=1) == truth.targets).mean())
            if lost <= max_drop:
                found[merging._replace(clear=clear)] = _work(checkpoint, merging) + float(again.mean())
                break
    if not found:
        return []
    best = min(found, key=lambda each: found[each])
    tell(f"{best}: {100 * found[best]:.0f} % of the work")
    return [best] if found[best] < 1 else []


def _work(checkpoint: Checkpoint, merging: Merging) -> float:
    """Multiply-adds with merging, as a share of those without."""
    config, size = checkpoint.model.config, checkpoint.preprocess.size
    return _multiply_adds(merging.of(checkpoint).model.config, size) / _multiply_adds(config, size)


@lru_cache(maxsize=256)
def _multiply_adds(config: ViTConfig, size: tuple[int, int]) -> int:
    """Counting them takes as long as a small network: the search asks for the same ones again."""
    return estimate(config, size).multiply_adds


def _raced(found: list[_Candidate], dealt: Dealt, batches: Sequence[int], max_drop: float) -> list[Tried]:
    """Rates of all at one batch, then of the fastest with every batch and number of reading threads.

    Only eager and the fastest are left in `found`: the memory of the others is free again.
    """
    chosen = dealt.choosing
    images = [chosen.images[row] for row in range(min(TIMED, len(chosen)))]
    cores = torch.get_num_threads()
    rows: dict[tuple[Way, int, int], float] = {}

    def race(candidates: list[_Candidate], batch: int, threads: int) -> None:
        def call(runtime: Runtime) -> Callable[[], object]:
            options: dict[str, Any] = {"batch": batch, "threads": threads, "skip": lambda name, error: None}
            return lambda: list(run_batches(runtime, images, **options))

        took = interleaved({each.way: call(each.runtime) for each in candidates}, rounds=5)
        rows.update({(way, batch, threads): len(images) / seconds for way, seconds in took.items()})

    most = max(batches)
    race(found, most, cores)
    fast = sorted(
        (each for each in found if each.judged.drop.value <= max_drop), key=lambda each: -rows[each.way, most, cores]
    )
    finalists = [found[0], *[each for each in fast[:FINALISTS] if each is not found[0]]]
    judged = {each.way: each.judged for each in found}
    del fast
    found[:] = finalists
    for batch in batches:
        for threads in sorted({1, cores}):
            if (batch, threads) != (most, cores):
                race(finalists, batch, threads)
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
    elif isinstance(winner.runtime, Exported):  # the very file that was judged and timed
        add_measurements(winner.runtime.path, made.out, made.to_dict())
    else:
        save(winner.base, made.out)
