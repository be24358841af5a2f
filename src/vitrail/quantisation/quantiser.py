"""quantise: a checkpoint, images and a budget -> a plan for int8 or bf16, as far as accuracy allows, with its proof.

The search runs on fake-quantised plain torch, so it needs no kernels. Whoever carries the plan out, a packed network or
an exported file, is judged once more in its own runtime (`Quantised.judge_runtime`): its arithmetic is another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Final, NamedTuple, TypeVar

from torch import Tensor

from vitrail.checkpoint import Checkpoint
from vitrail.checks import check_choice, check_int, check_number, check_type
from vitrail.errors import InputError
from vitrail.evaluation.evaluator import Data
from vitrail.inference import Runtime
from vitrail.inference.timing import latencies
from vitrail.quantisation.accuracy_budget import BudgetResult, CalibrationSplit, Judge, points, split_for_calibration
from vitrail.quantisation.cpu_features import has_bf16_units
from vitrail.quantisation.fake_quant import fake_quantise
from vitrail.quantisation.ood_recalibration import recalibrated
from vitrail.quantisation.quant_plan import QuantPlan
from vitrail.quantisation.range_calibration import Sensitivity, calibrate, calibration_pixels, rank_sensitivity
from vitrail.quantisation.smooth_quant import smooth
from vitrail.reporting.html_page import counted
from vitrail.types import LogCallback

RANKED_ON = 16  # images that layers are ranked on
TRIES: Final = 4  # of a runtime that loses too much, each with more layers in higher precision
Result = TypeVar("Result")


class OverBudgetError(InputError):
    """A runtime that loses more than the budget allows, and how much."""

    def __init__(self, message: str, result: BudgetResult) -> None:
        super().__init__(message)
        self.result = result


class SearchResult(NamedTuple):
    """A plan within the budget, and the layers that it leaves in higher precision, the most harmful first."""

    plan: QuantPlan
    kept: tuple[Sensitivity, ...]
    ranking: tuple[Sensitivity, ...] = ()  # of all layers, where they had to be ranked


@dataclass(frozen=True, eq=False)
class Quantised:
    """A plan, the checkpoint that it is for, and what it loses on fake-quantised torch."""

    plan: QuantPlan
    checkpoint: Checkpoint  # with evened weights, where the plan has int8
    kept: tuple[Sensitivity, ...]
    before: BudgetResult  # on the images that report
    after: BudgetResult
    original: Checkpoint  # what is judged against
    choosing: Judge  # of the images that choose, and so decide on the budget
    reporting: Judge
    max_drop: float  # the budget, in points
    words: str  # which images did what
    keep: Callable[[int], Quantised] | None = field(default=None, repr=False)  # the same with so many layers kept

    @property
    def finer(self) -> Quantised | None:
        """The same with twice as many layers in higher precision, a few at least; None where none would be in int8."""
        layers = len(self.plan.int8) + len(self.kept)
        count = max(2 * len(self.kept), layers // 12, 1)
        return None if self.keep is None or count >= layers else self.keep(count)

    def carry_out(self, make: Callable[[Quantised], Result], log: LogCallback = lambda text: None) -> Result:
        """What `make` makes of it, a runtime that it judges; where that loses more than the budget, of a finer one.

        The search judges fake quantisation, and a runtime rounds elsewhere: of few images a single one may decide.
        """
        tried = self
        for _ in range(TRIES - 1):
            try:
                return make(tried)
            except OverBudgetError as error:
                finer = tried.finer
                if finer is None:
                    raise
                lost, count = points(error.result.drop.value), counted(len(finer.kept), "layer")
                log(f"in its own runtime: {lost}; now with {count} in higher precision")
                tried = finer
        return make(tried)

    def judge_runtime(
        self, runtime: Runtime, name: str, weight_bytes: int, notes: tuple[str, ...] = ()
    ) -> RuntimeProof:
        """What the plan is worth in a runtime that carries it out; one that loses more than the budget is refused."""
        decided = self.choosing(runtime)
        if decided.drop.value > self.max_drop:
            few = ", less than one image: judge by more images," if 100 / decided.images > self.max_drop else ":"
            kept = f"; {counted(len(self.kept), 'layer')} stayed in higher precision" if self.kept else ""
            raise OverBudgetError(
                f"not exported: in its own runtime it loses {decided.drop.value:.2f} points on "
                f"{counted(decided.images, 'image')}, and {self.max_drop:g} were allowed{few} export it for another "
                f"runtime than {name}, or allow more by max_drop (--max-drop){kept}",
                decided,
            )
        milliseconds = latencies({"before": self.original, "after": runtime}, batch=1)
        after = decided if self.reporting is self.choosing else self.reporting(runtime)
        own = sum(each.nbytes for each in (*self.original.model.parameters(), *self.original.model.buffers()))
        return RuntimeProof(
            quantised=self,
            runtime=name,
            before=RuntimeMeasurement(self.before, milliseconds["before"], own),
            after=RuntimeMeasurement(after, milliseconds["after"], weight_bytes),
            notes=notes,
        )


class RuntimeMeasurement(NamedTuple):
    """What a runtime is worth: answers, time and memory."""

    result: BudgetResult  # on the images that report
    milliseconds: float  # one image, batch 1, the two in turn
    weight_bytes: int  # in memory; of a file its own

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**self.result.to_dict(), "milliseconds": self.milliseconds, "weight_bytes": self.weight_bytes}


@dataclass(frozen=True, eq=False)
class RuntimeProof:
    """A plan carried out by a runtime, beside the eager network that it was made from."""

    quantised: Quantised
    runtime: str  # packed, or the target of an exported file
    before: RuntimeMeasurement
    after: RuntimeMeasurement
    notes: tuple[str, ...] = ()

    @property
    def speed(self) -> float:
        """How many times faster one image is."""
        return self.before.milliseconds / self.after.milliseconds

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        quantised = self.quantised
        return {
            "before": self.before.to_dict(),
            "after": self.after.to_dict(),
            "fake_quantised": quantised.after.to_dict(),
            "runtime": self.runtime,
            "max_drop": quantised.max_drop,
            "precision": quantised.plan.name,
            "int8_layers": len(quantised.plan.int8),
            "kept": [each._asdict() for each in quantised.kept],
            "speed": self.speed,
            "images": quantised.words,
            "notes": list(self.notes),
        }


def quantise(
    checkpoint: Checkpoint,
    data: Data,
    *,
    precision: str = "int8",
    max_drop: float = 0.5,
    batch: int = 32,
    seed: int = 0,
    against: Checkpoint | None = None,
    log: LogCallback = lambda text: None,
) -> Quantised:
    """A plan for int8 (or bf16) with at most `max_drop` points lost on validation images, or an error.

    Lost against the network itself, or `against` another that it was made from, by merging or pruning.

    Ranges come from training images. If all layers in int8 lose too much, those that harm most by themselves stay in
    higher precision, as few as the budget needs; every choice that is taken was tried. Test images only report.
    """
    check_type("checkpoint", checkpoint, Checkpoint, error=InputError)
    check_choice("precision", precision, ("int8", "bf16"))
    check_number("max_drop", max_drop, -100.0, 100.0)
    check_int("batch", batch, error=InputError)
    if not checkpoint.classes:
        raise InputError("this network has no head, so no accuracy can be kept: train a head, or stay in fp32")
    split = split_for_calibration(data, checkpoint, seed)
    original = checkpoint if against is None else against
    judge = Judge.by(original, split.choosing, batch)
    if precision == "bf16":
        plan = QuantPlan("bf16")
        rounded = faked(checkpoint, plan)
        _refuse_over(judge(rounded), max_drop, "bf16")
        checkpoint = recalibrated(checkpoint, checkpoint.ood, rounded, split.choosing, batch, log)
        return _with_report(original, checkpoint, SearchResult(plan, ()), split, judge, max_drop)
    batches = calibration_pixels(checkpoint, split.calibration, batch)
    log(f"calibrating on {counted(sum(map(len, batches)), 'image')}")
    evened, plan = plan_all_int8(checkpoint, batches)
    search = search_plan(evened, plan, judge, max_drop, batches[0][:RANKED_ON], log)

    @cache
    def ranking() -> list[Sensitivity]:
        return list(search.ranking) or rank_sensitivity(evened.model, plan, batches[0][:RANKED_ON])

    def keep(count: int) -> Quantised:
        kept = ranking()[:count]
        return finish(SearchResult(plan.without({each.name for each in kept}), tuple(kept)))

    def finish(search: SearchResult) -> Quantised:
        ready = recalibrated(evened, checkpoint.ood, faked(evened, search.plan), split.choosing, batch, log)
        return replace(_with_report(original, ready, search, split, judge, max_drop), keep=keep)

    return finish(search)


def plan_all_int8(checkpoint: Checkpoint, batches: list[Tensor]) -> tuple[Checkpoint, QuantPlan]:
    """The checkpoint with its channels made even, and the plan that has every layer of it in int8.

    All else is bf16 where this machine multiplies that by itself.
    """
    evened = replace(checkpoint, model=smooth(checkpoint.model, batches), ood=checkpoint.ood)  # the same function
    return evened, QuantPlan("bf16" if has_bf16_units() else "fp32", calibrate(evened.model, batches))


def faked(checkpoint: Checkpoint, plan: QuantPlan) -> Checkpoint:
    """The checkpoint with a network that rounds as the plan says: a runtime like any other."""
    return replace(checkpoint, model=fake_quantise(checkpoint.model, plan), ood=None)  # unless calibrated anew


def search_plan(
    checkpoint: Checkpoint,
    plan: QuantPlan,
    judge: Callable[[Runtime], BudgetResult],
    max_drop: float,
    pixels: Tensor,
    log: LogCallback = lambda text: None,
) -> SearchResult:
    """The plan with as many of its layers in int8 as the budget allows, the harmful ones left out; layers are ranked on
    these pixels."""
    verdict = judge(faked(checkpoint, plan))
    log(f"all {counted(len(plan.int8), 'layer')} in int8: {points(verdict.drop.value)}")
    if verdict.drop.value <= max_drop:
        return SearchResult(plan, ())
    log(f"ranking {counted(len(plan.int8), 'layer')} by what each loses alone")
    order = rank_sensitivity(checkpoint.model, plan, pixels)
    tried = {0: verdict}

    def without(count: int) -> QuantPlan:
        return plan.without({each.name for each in order[:count]})

    def holds(count: int) -> bool:
        tried[count] = judge(faked(checkpoint, without(count)))
        lost = tried[count].drop.value
        log(f"{counted(count, 'layer')} in higher precision: {points(lost)}")
        return lost <= max_drop

    count = fewest(len(order) - 1, holds)
    if count is None:
        best = min(tried, key=lambda each: tried[each].drop.value)
        lost = tried[best]
        raise InputError(
            f"no int8 network loses at most {max_drop:g} points on {lost.images} images: the best found loses "
            f"{lost.drop.value:.2f} (95 % interval {lost.drop.low:.2f} to {lost.drop.high:.2f}) with {best} of "
            f"{len(order)} layers in higher precision: allow more, calibrate on more images, or do without int8"
        )
    return SearchResult(without(count), tuple(order[:count]), tuple(order))


def fewest(most: int, holds: Callable[[int], bool]) -> int | None:
    """The least count from 1 to most that holds, by doubling and halving; None if not even the most does."""
    high = 1
    low = 0  # does not hold
    while not holds(high):
        if high >= most:
            return None
        low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _refuse_over(result: BudgetResult, max_drop: float, precision: str) -> None:
    if result.drop.value > max_drop:
        raise InputError(
            f"{precision} loses {result.drop.value:.2f} points (95 % interval {result.drop.low:.2f} to "
            f"{result.drop.high:.2f}) on {result.images} images, and {max_drop:g} were allowed: stay in fp32"
        )


def _with_report(
    original: Checkpoint,
    checkpoint: Checkpoint,
    search: SearchResult,
    split: CalibrationSplit,
    choosing: Judge,
    max_drop: float,
) -> Quantised:
    same = split.reporting is split.choosing
    reporting = choosing if same else Judge.by(original, split.reporting, choosing.batch)
    return Quantised(
        plan=search.plan,
        checkpoint=checkpoint,
        kept=search.kept,
        before=reporting.of(reporting.baseline),
        after=reporting(faked(checkpoint, search.plan)),
        original=original,
        choosing=choosing,
        reporting=reporting,
        max_drop=max_drop,
        words=split.words,
    )
