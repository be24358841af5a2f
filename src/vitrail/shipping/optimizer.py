"""optimize: a checkpoint, images and a budget -> the fastest way to answer on this machine, as one file."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

import torch

from vitrail.checkpoint import Checkpoint, save
from vitrail.checks import check_choice, check_int, check_number, short_repr
from vitrail.data.samples import Dataset
from vitrail.errors import ConfigError, InputError, VitrailError
from vitrail.evaluation.evaluator import Data, own_data
from vitrail.exporters import TARGETS
from vitrail.exporters.exported import Exported, open_exported
from vitrail.exporters.exporter import add_measurements, export
from vitrail.inference import Runtime
from vitrail.inference.batches import run_batches
from vitrail.inference.recognisers import CPU, as_checkpoint
from vitrail.inference.timing import interleaved
from vitrail.insight.cost import estimate
from vitrail.network.surgery import with_merging
from vitrail.packed import Packed, check_overwrite, pack_checkpoint, save_packed
from vitrail.quantisation.accuracy_budget import BudgetResult, CalibrationSplit, Judge, points, split_for_calibration
from vitrail.quantisation.ood_recalibration import recalibrated
from vitrail.quantisation.quant_plan import QuantPlan
from vitrail.quantisation.quantiser import RANKED_ON, faked, plan_all_int8, search_plan
from vitrail.quantisation.range_calibration import calibration_pixels
from vitrail.reporting.html_page import counted
from vitrail.reporting.object_card import Card
from vitrail.shipping.candidates import precisions_here, precisions_of, runtime_names
from vitrail.shipping.steps import SearchCallback, SearchCounter, with_bar
from vitrail.types import LogCallback

GOALS: Final = ("throughput", "latency")
TIMED: Final = 48  # images that are read and answered in each timing, at most
FINALISTS: Final = 3  # that are tried with every batch and number of threads


class Merging(NamedTuple):
    """Tokens merged in blocks from a first one on, in all or every second."""

    count: int = 0  # type: ignore[assignment]  # hides tuple.count, which nobody misses
    first: int = 0
    every: int = 1

    def of(self, checkpoint: Checkpoint) -> Checkpoint:
        """The checkpoint, merging."""
        if not self.count:
            return checkpoint
        model = with_merging(checkpoint.model, self.count, self.first, every=self.every)
        return replace(checkpoint, model=model, ood=None)  # unless calibrated anew

    def __str__(self) -> str:
        which = "blocks" if self.every == 1 else "every second block"
        return f"{self.count} merged in {which} from {self.first} on" if self.count else ""


class Way(NamedTuple):
    """One way to answer: who, how exactly, and which tokens are merged."""

    runtime: str  # eager, packed, or the name of a target
    precision: str
    merging: Merging = Merging()

    def __str__(self) -> str:
        return f"{self.runtime} {self.precision}" + (f", {self.merging}" if self.merging.count else "")


class Attempt(NamedTuple):
    """A way that was tried: what it lost, and how fast it is from file to answer. Rates are images a second."""

    way: Way
    batch: int
    threads: int  # that read images
    rate: float
    judged: BudgetResult
    within: bool  # the budget

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "runtime": self.way.runtime,
            "precision": self.way.precision,
            "merge_per_block": self.way.merging.count,
            "merge_from": self.way.merging.first,
            "merge_every": self.way.merging.every,
            "batch": self.batch,
            "threads": self.threads,
            "images_per_second": self.rate,
            "judged": self.judged.to_dict(),
            "within": self.within,
        }


@dataclass(frozen=True, eq=False)
class Optimised:
    """The fastest within the budget, everything that was tried, and the file."""

    best: Attempt
    eager: Attempt  # the checkpoint as it is, at the same batch and threads
    tried: tuple[Attempt, ...]
    reported: BudgetResult  # the best on test images, which chose nothing, where the data has them
    out: Path
    words: str

    @property
    def speed(self) -> float:
        """How many times faster than the checkpoint as it is, from file to answer."""
        return self.best.rate / self.eager.rate

    def card(self) -> Card:
        """What it says of itself in a REPL and a notebook."""
        value, low, high = self.reported.drop
        return Card(
            f"Optimised: {self.out}",
            (
                ("fastest", f"{self.best.way}, batch {self.best.batch}, {counted(self.best.threads, 'reader')}"),
                ("speed", f"{self.best.rate:.4g} images/s, {self.speed:.2f} times the checkpoint as it is"),
                ("points lost", f"{value:+.2f} (95 % interval {low:+.2f} to {high:+.2f})"),
                ("same answers", f"{100 * self.reported.agreement:.2f} % of {counted(self.reported.images, 'image')}"),
                ("images", self.words),
                ("tried", f"{counted(len(self.tried), 'way')}, in .tried"),
            ),
        )

    def __repr__(self) -> str:
        return self.card().as_text()

    def _repr_html_(self) -> str:
        return self.card().as_html()

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
    judged: BudgetResult


@with_bar
def optimize(
    checkpoint: Checkpoint | str | os.PathLike[str],
    data: Data | None = None,
    out: str | os.PathLike[str] | None = None,
    *,
    max_drop: float = 0.5,
    goal: str = "throughput",
    batches: Sequence[int] = (1, 8, 16),
    merging: bool = True,
    runtimes: Sequence[str] | None = None,
    seed: int = 0,
    progress: SearchCallback | bool | None = None,
    log: LogCallback = lambda text: None,
) -> Optimised:
    """Try runtimes, precisions, token merging, batches and reading threads; write the fastest that keeps the budget.

    - checkpoint: a Checkpoint, the path or name of one, or a run's folder, which tells what it was trained on.
    - data: images to be judged by, a folder, table or Dataset: training images calibrate, validation images choose,
      test images report, as far as there are any; None: those of the run, where its path is given.
    - out: the file's name; it gets the ending of what won: .safetensors, or that of a target. None: that of the
      checkpoint, with -fast after it, in the current folder.
    - max_drop: points of accuracy that may be lost against the checkpoint as it is.
    - goal: "throughput", or "latency", which takes images one by one.
    - batches: batch sizes to try.
    - merging: whether merging tokens is tried.
    - runtimes: some of "packed", "onnx", "openvino"; by default all that are installed.
    - seed: which images calibrate and choose.
    - progress: a bar on stderr; None: at a terminal and in a notebook, False: never; or a function that is told as each
      step begins: a `SearchStep` says what is tried, how many are left, and about how long that takes.
    - log: told what came of it, a line at a time.

    Speed is from file to answer, decoding and resizing included.
    """
    path = checkpoint if isinstance(checkpoint, str | os.PathLike) else None
    checkpoint = as_checkpoint(checkpoint, CPU)  # where all that is tried computes
    check_choice("goal", goal, GOALS)
    check_number("max_drop", max_drop, -100.0, 100.0)
    if not batches:
        raise InputError("batches: expected at least one batch size")
    for batch in batches:
        check_int("batch", batch, error=InputError)
    known = runtime_names()
    runtimes = known if runtimes is None else runtimes
    if isinstance(runtimes, str) or not set(runtimes) <= set(known):
        raise InputError(f"runtimes: expected some of {', '.join(known)}, got {short_repr(runtimes)}")
    out = Path(f"{_name_of(checkpoint, path)}-fast" if out is None else out)
    check_overwrite(_name(out, Way("packed", "fp32")))
    if not checkpoint.classes:
        raise InputError("this network has no head, so no accuracy can be kept: train a head first")
    split = split_for_calibration(own_data(path, data, checkpoint), checkpoint, seed)
    batches = (1,) if goal == "latency" else tuple(batches)
    races = len(race_settings(batches))
    step = SearchCounter(0, progress)
    first = _ways(runtimes) * (1 + 2 * merging)
    step.left(1 + merging + first + races, 1 + merging + first + _race_length(races, first))
    step("the checkpoint as it is")
    judge = Judge.by(checkpoint, split.choosing)
    with TemporaryDirectory(prefix="vitrail-", ignore_cleanup_errors=True) as folder:
        search = _Search(split, judge, max_drop, runtimes, Path(folder), step, races, log)
        candidates = _candidates(checkpoint, merging, search)
        log(f"timing {len(candidates)} ways from file to answer")
        tried = _raced(candidates, split, batches, max_drop, step)
        allowed = [each for each in tried if each.within]
        if not allowed:
            least = min(tried, key=lambda each: each.judged.drop.value)
            raise InputError(
                f"nothing keeps the budget of {max_drop:g} points on {least.judged.images} images: the best found, "
                f"{least.way}, loses {least.judged.drop.value:.2f}"
            )
        best = max(allowed, key=lambda each: each.rate)
        winner = next(each for each in candidates if each.way == best.way)
        reported = Judge.by(checkpoint, split.reporting)(winner.runtime)
        eager = next(each for each in tried if (each.way.runtime, each.batch, each.threads) == ("eager", *best[1:3]))
        result = Optimised(best, eager, tuple(tried), reported, _name(out, best.way), split.words)
        _write(winner, result)
    return result


class _Search(NamedTuple):
    """What every candidate is made and judged by."""

    split: CalibrationSplit
    judge: Judge
    max_drop: float
    runtimes: Sequence[str]
    folder: Path
    step: SearchCounter
    races: int  # steps after the candidates
    log: LogCallback


def _ways(runtimes: Sequence[str]) -> int:
    """Steps for one network: what may be int8, then every runtime in every precision."""
    return 1 + sum(precision in precisions_of(runtime) for runtime, precision in product(runtimes, precisions_here()))


def _candidates(checkpoint: Checkpoint, merging: bool, search: _Search) -> list[_Candidate]:
    split, judge, log, step = search.split, search.judge, search.log, search.step
    batches = calibration_pixels(checkpoint, split.calibration, 32)
    candidates = [_Candidate(Way("eager", "fp32"), checkpoint, checkpoint, judge(checkpoint))]
    merged_ways = [Merging()]
    if merging:
        step("how many tokens may be merged")
        merged_ways += merged_most(checkpoint, judge, search.max_drop, log)
    for done, merged in enumerate(merged_ways):
        ways = _ways(search.runtimes)
        coming = ways * (len(merged_ways) - done)
        step.left(coming + search.races, coming + _race_length(search.races, ways * len(merged_ways)))
        base = merged.of(checkpoint)
        if merged.count:
            base = recalibrated(base, checkpoint.ood, base, split.choosing, log=_told_of(str(merged), log))
        log(f"making runtimes{f', {merged}' if merged.count else ''}")
        step(f"what may be int8{f', {merged}' if merged.count else ''}")
        quantised = _int8(base, batches, search, merged)
        plans = {"fp32": (base, QuantPlan()), "bf16": (base, QuantPlan("bf16")), "int8": quantised}
        for runtime, precision in product(search.runtimes, precisions_here()):
            if precision not in precisions_of(runtime):
                continue
            way = Way(runtime, precision, merged)
            step(str(way))
            if (planned := plans[precision]) is None:
                continue
            made_from, plan = planned
            try:
                opened = _opened(way, made_from, plan, split.choosing, search.folder)
            except VitrailError as error:  # one that cannot be made is no reason to give up the others
                log(f"{way} left out: {error}")
                continue
            candidates.append(_Candidate(way, opened, made_from, judge(opened)))
    return candidates


def _told_of(what: str, log: LogCallback) -> LogCallback:
    """The same log, whose lines begin with what they are of."""
    return lambda text: log(f"{what}: {text}")


def _int8(
    base: Checkpoint, batches: list[torch.Tensor], search: _Search, merged: Merging
) -> tuple[Checkpoint, QuantPlan] | None:
    """The checkpoint with its channels made even, and a plan for it within the budget; None where there is none."""
    split, log = search.split, search.log
    evened, plan = plan_all_int8(base, batches)
    try:
        plan = search_plan(evened, plan, search.judge, search.max_drop, batches[0][:RANKED_ON], log).plan
        told = _told_of(", ".join(filter(None, ("int8", str(merged)))), log)
        return recalibrated(evened, base.ood, faked(evened, plan), split.choosing, log=told), plan
    except InputError as error:
        log(str(error))
        return None


def _opened(way: Way, base: Checkpoint, plan: QuantPlan, choosing: Dataset, folder: Path) -> Runtime:
    """The runtime of a way; a file is compared with the network on the images that choose."""
    if way.runtime == "packed":
        return pack_checkpoint(base, plan)
    path = folder / f"{len(list(folder.iterdir()))}{TARGETS[way.runtime].suffix}"
    export(base, path, plan=plan, images=choosing.images)
    return open_exported(path)


def merged_most(
    checkpoint: Checkpoint, judge: Judge, max_drop: float, log: LogCallback = lambda text: None
) -> list[Merging]:
    """The most tokens merged within the budget: in all blocks, from the first or a third of the depth on, whichever is
    less work; and in every second, from the next to the first on, which takes less time to merge."""
    config = checkpoint.model.config
    h, w = config.grid_for(checkpoint.preprocess.size)
    most: list[Merging] = []
    for first, every in schedules(config.depth):
        low, high = 0, max(1, int(0.95 * h * w * every / (config.depth - first)))
        while low < high:
            middle = Merging((low + high + 1) // 2, first, every=every)
            try:
                merged = middle.of(checkpoint)
            except (ConfigError, InputError) as error:
                log(f"no token merging: {error}")
                return []
            lost = judge(merged).drop.value
            log(f"{middle}: {points(lost)}")
            low, high = (middle.count, high) if lost <= max_drop else (low, middle.count - 1)
        if low:
            most.append(Merging(low, first, every=every))
    by_stride = [[each for each in most if each.every == every] for every in (1, 2)]
    return [min(some, key=lambda each: _multiply_adds(each.of(checkpoint))) for some in by_stride if some]


def schedules(depth: int) -> list[tuple[int, int]]:
    """Where merging may start, and after how many blocks it goes on."""
    return list(dict.fromkeys(((0, 1), (depth // 3, 1), *(((1, 2),) if depth > 2 else ()))))


def _multiply_adds(checkpoint: Checkpoint) -> int:
    return estimate(checkpoint.model.config, checkpoint.preprocess.size).multiply_adds


def race_settings(batches: Sequence[int]) -> list[tuple[int, int]]:
    """Batch sizes and numbers of reading threads: first the one by which most are left behind."""
    first = (max(batches), torch.get_num_threads())
    return [first, *(each for each in product(batches, sorted({1, first[1]})) if each != first)]


def _race_length(races: int, ways: int) -> int:
    """How many ways are timed in all: one takes about as long as making and judging it did."""
    return ways + (races - 1) * min(ways, 1 + FINALISTS)


def _raced(
    candidates: list[_Candidate], split: CalibrationSplit, batches: Sequence[int], max_drop: float, step: SearchCounter
) -> list[Attempt]:
    """Rates of all at one batch, then of the fastest with every batch and number of reading threads.

    Only eager and the fastest are left in `candidates`: the memory of the others is free again.
    """
    chosen = split.choosing
    images = [chosen.images[row] for row in range(min(TIMED, len(chosen)))]
    settings = race_settings(batches)
    (most, cores), *later = settings
    step.left(len(settings), _race_length(len(settings), len(candidates)))
    rates: dict[tuple[Way, int, int], float] = {}

    def race(batch: int, threads: int) -> None:
        step(f"batch {batch} with {counted(threads, 'reading thread')}", len(candidates))

        def call(runtime: Runtime) -> Callable[[], object]:
            options: dict[str, Any] = {"batch": batch, "threads": threads, "skip": lambda name, error: None}
            return lambda: list(run_batches(runtime, images, **options))

        took = interleaved({each.way: call(each.runtime) for each in candidates}, rounds=5)
        rates.update({(way, batch, threads): len(images) / seconds for way, seconds in took.items()})

    race(most, cores)
    results = {each.way: each.judged for each in candidates}
    eager, *others = candidates
    others = [each for each in others if each.judged.drop.value <= max_drop]
    others.sort(key=lambda each: -rates[each.way, most, cores])
    candidates[:] = [eager, *others[:FINALISTS]]
    del others
    for batch, threads in later:
        race(batch, threads)
    return [Attempt(*key, rate, results[key[0]], results[key[0]].drop.value <= max_drop) for key, rate in rates.items()]


def possible_files(out: Path) -> list[Path]:
    """Every file that a search may write under this name, whatever wins."""
    ways = [Way(runtime, "fp32") for runtime in runtime_names()]
    named = [(_name(out, way), TARGETS.get(way.runtime)) for way in ways]
    return [file for path, target in named for file in ([path] if target is None else target.files(path))]


def _name_of(checkpoint: Checkpoint, path: str | os.PathLike[str] | None) -> str:
    """Of a run its name, of a file the file's."""
    return checkpoint.provenance.run or Path("network" if path is None else path).stem


def _name(out: Path, way: Way) -> Path:
    suffix = TARGETS[way.runtime].suffix if way.runtime in TARGETS else ".safetensors"
    known = {".safetensors"}.union(*((target.suffix, *target.beside) for target in TARGETS.values()))
    if out.suffix in known:
        out = out.with_suffix("")
    return out.with_name(out.name + suffix)


def _write(winner: _Candidate, result: Optimised) -> None:
    if isinstance(winner.runtime, Packed) and winner.runtime.plan is not None:
        save_packed(winner.runtime, winner.base, result.out, result.to_dict())
    elif isinstance(winner.runtime, Exported):  # the very file that was judged and timed
        add_measurements(winner.runtime.path, result.out, result.to_dict())
    else:
        save(winner.base, result.out)
