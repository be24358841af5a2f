"""quantise: a checkpoint, images and a budget -> the same network in int8 or bf16, as far as accuracy allows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitrail.checkpoint import Checkpoint
from vitrail.checks import check_choice, check_int, check_number, check_type
from vitrail.data.samples import Dataset
from vitrail.errors import ImageError, InputError
from vitrail.evaluation.evaluator import Data
from vitrail.inference import Exported
from vitrail.inference.timing import latencies
from vitrail.packed.onednn_kernels import has_bf16_units, probe
from vitrail.packed.packed_runtime import Packed, weight_bytes
from vitrail.packed.packing import Plan, Range
from vitrail.quantisation.accuracy_budget import FEWEST, Dealt, Judge, Judged, deal
from vitrail.quantisation.calibration import Sensitive, calibrate, sensitivity
from vitrail.quantisation.smooth_quant import smooth

RANKED_ON = 16  # images that layers are ranked on
Tell = Callable[[str], None]


class Measured(NamedTuple):
    """What a runtime is worth: answers, time and memory."""

    judged: Judged  # on the images that report
    milliseconds: float  # one image, batch 1, the two in turn
    weights: int  # bytes in memory; of a file its own


@dataclass(frozen=True, eq=False)
class Quantised:
    """The quantised runtime, or a file it was exported to, beside the eager network that it was made from."""

    runtime: Packed
    checkpoint: Checkpoint  # with evened weights: what the runtime was packed from
    before: Measured
    after: Measured
    kept: tuple[Sensitive, ...]  # layers left in higher precision, the most harmful first
    original: Checkpoint  # what is judged against
    choosing: Judge  # of the images that choose, and so decide on the budget
    judge: Judge  # of the images that report
    max_drop: float  # the budget, in points
    words: str  # which images did what
    notes: tuple[str, ...]
    by: str = "packed"  # whose numbers `after` has: the packed runtime's, or those of a file for onnx or openvino

    @property
    def rest(self) -> str:
        """The precision of what is not int8."""
        return "fp32" if self.runtime.plan is None else self.runtime.plan.precision

    @property
    def speed(self) -> float:
        """How many times faster one image is."""
        return self.before.milliseconds / self.after.milliseconds

    def in_file(self, opened: Exported) -> Quantised:
        """The same with the numbers of a file that it was exported to, in its own runtime, whose arithmetic is another.

        A file that loses more than the budget on the images that choose is refused.
        """
        decided = self.choosing(opened)
        if decided.drop.value > self.max_drop:
            raise InputError(
                f"not exported: in its own runtime it loses {decided.drop.value:.2f} points on {decided.images} "
                f"images, and {self.max_drop:g} were allowed: export a packed NAME.safetensors, or allow more"
            )
        took = latencies({"before": self.original, "after": opened}, batch=1)
        judged = decided if self.judge is self.choosing else self.judge(opened)
        target = opened.contents.target
        files = [opened.path, *([opened.path.with_suffix(".bin")] if target == "openvino" else [])]
        return replace(
            self,
            before=self.before._replace(milliseconds=took["before"]),
            after=Measured(judged, took["after"], sum(each.stat().st_size for each in files)),
            by=target,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        states = {
            name: {**each.judged.to_dict(), "milliseconds": each.milliseconds, "weight_bytes": each.weights}
            for name, each in (("before", self.before), ("after", self.after))
        }
        return {
            **states,
            "runtime": self.by,
            "max_drop": self.max_drop,
            "precision": self.runtime.precision,
            "int8_layers": len(self.runtime.plan.int8) if self.runtime.plan else 0,
            "kept": [each._asdict() for each in self.kept],
            "speed": self.speed,
            "images": self.words,
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
    tell: Tell = lambda text: None,
) -> Quantised:
    """The network in int8 (or bf16) with at most `max_drop` points lost on validation images, or an error.

    Lost against the network itself, or `against` another that it was made from, by merging or pruning.

    Ranges come from training images. If all layers in int8 lose too much, those that harm most by themselves stay in
    higher precision, as few as the budget needs; every choice that is taken was tried. Test images only report.
    """
    check_type("checkpoint", checkpoint, Checkpoint, error=InputError)
    check_choice("precision", precision, ("int8", "bf16"))
    check_number("max_drop", max_drop, -100.0, 100.0)
    check_int("batch", batch, error=InputError)
    found = probe(precision)
    if not found.works:
        raise InputError(f"{precision} is not available here: {found.why}")
    if not checkpoint.classes:
        raise InputError("this network has no head, so no accuracy can be kept: train a head, or stay in fp32")
    dealt = deal(data, checkpoint, seed)
    original = checkpoint if against is None else against
    judge = Judge.by(original, dealt.choosing, batch)
    if precision == "bf16":
        runtime = Packed(checkpoint, Plan("bf16"))
        _refuse_over(judge(runtime), max_drop, "bf16")
        return _reported(original, checkpoint, runtime, (), dealt, judge, max_drop)
    batches = pixels_of(checkpoint, dealt.calibration, batch)
    tell(f"calibrating on {sum(map(len, batches))} images")
    base = replace(checkpoint, model=smooth(checkpoint.model, batches))
    ranges = calibrate(base.model, batches)
    rest = "bf16" if has_bf16_units() else "fp32"
    runtime, kept = within_budget(base, ranges, judge, max_drop, rest, batches[0][:RANKED_ON], tell)
    return _reported(original, base, runtime, kept, dealt, judge, max_drop)


def within_budget(
    base: Checkpoint,
    ranges: dict[str, Range],
    judge: Callable[[Packed], Judged],
    max_drop: float,
    rest: str,
    pixels: Tensor,
    tell: Tell = lambda text: None,
    clear: float = 1.0,
    again: str = "",
) -> tuple[Packed, tuple[Sensitive, ...]]:
    """As many layers in int8 as the budget allows, the harmful ones left out; and those."""
    whole_plan = Packed(base, Plan(rest, ranges, clear, again))
    verdict = judge(whole_plan)
    tell(f"all {len(ranges)} layers in int8: {verdict.drop.value:+.2f} points lost")
    if verdict.drop.value <= max_drop:
        return whole_plan, ()
    tell(f"ranking {len(ranges)} layers by what each loses alone")
    order = sensitivity(base.model, ranges, pixels)
    tried = {0: verdict}
    del whole_plan  # one at a time is enough to hold

    def without(count: int) -> Packed:
        left = {each.name for each in order[:count]}
        return Packed(base, Plan(rest, {name: ends for name, ends in ranges.items() if name not in left}, clear, again))

    def holds(count: int) -> bool:
        tried[count] = judge(without(count))
        lost = tried[count].drop.value
        tell(f"{count} layers in {rest}: {lost:+.2f} points lost")
        return lost <= max_drop

    count = fewest(len(order) - 1, holds)
    if count is None:
        best = min(tried, key=lambda each: tried[each].drop.value)
        lost = tried[best]
        raise InputError(
            f"no int8 network loses at most {max_drop:g} points on {lost.images} images: the best found loses "
            f"{lost.drop.value:.2f} (95 % interval {lost.drop.low:.2f} to {lost.drop.high:.2f}) with {best} of "
            f"{len(order)} layers in {rest}: allow more, calibrate on more images, or stay in {rest}"
        )
    return without(count), tuple(order[:count])


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


def pixels_of(checkpoint: Checkpoint, data: Dataset, batch: int) -> list[Tensor]:
    """Pixels of images, a batch at a time; those that cannot be read are left out."""
    kind = next(checkpoint.model.parameters()).dtype
    found: list[Tensor] = []
    for first in range(0, len(data), batch):
        pixels = []
        for row in range(first, min(first + batch, len(data))):
            with suppress(ImageError):
                pixels.append(checkpoint.preprocess(data.images[row]))
        if pixels:
            found.append(torch.from_numpy(np.stack(pixels)).to(kind))
    read = sum(map(len, found))
    if read < FEWEST:
        raise InputError(
            f"{data.source}: {read} of {len(data)} images to calibrate on can be read, expected at least {FEWEST}: "
            "`vitrail audit` says what is wrong with the others"
        )
    return found


def _refuse_over(judged: Judged, max_drop: float, precision: str) -> None:
    if judged.drop.value > max_drop:
        raise InputError(
            f"{precision} loses {judged.drop.value:.2f} points (95 % interval {judged.drop.low:.2f} to "
            f"{judged.drop.high:.2f}) on {judged.images} images, and {max_drop:g} were allowed: stay in fp32"
        )


def _reported(
    original: Checkpoint,
    base: Checkpoint,
    runtime: Packed,
    kept: Sequence[Sensitive],
    dealt: Dealt,
    choosing: Judge,
    max_drop: float,
) -> Quantised:
    same = dealt.reporting is dealt.choosing
    judge = choosing if same else Judge.by(original, dealt.reporting, choosing.batch)
    took = latencies({"before": original, "after": runtime}, batch=1)
    return Quantised(
        runtime=runtime,
        checkpoint=base,
        before=Measured(judge.of(judge.baseline), took["before"], weight_bytes(original.model)),
        after=Measured(judge(runtime), took["after"], weight_bytes(runtime.model)),
        kept=tuple(kept),
        original=original,
        choosing=choosing,
        judge=judge,
        max_drop=max_drop,
        words=dealt.words,
        notes=runtime.notes,
    )
