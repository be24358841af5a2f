"""The learning rate of a step, as a share of the recipe's: warm-up, then cosine, linear, constant, restarts or steps.

A pure function of the step, so that a run which goes on has the very rates it would have had.

Against others' schedules, with w steps of warm-up out of T:
- transformers and Google's code give step s of the warm-up s / w, so that their first step changes nothing;
  here it is (s + 1) / w: the first step counts, and step w - 1 has the full rate already.
- from step w on the values are the same as theirs: 1 at w, `final` at T; the last step that is taken is T - 1.
- restarts are torch's CosineAnnealingWarmRestarts told the epoch as a fraction before every step.
- step is torch's StepLR stepped at the end of every epoch, where the warm-up has no steps.

Where the end moves while it trains, as minutes may ask for (pace.py), the schedule stays the one of the T steps that
were planned, and is walked at another pace. At step s, where the schedule stands at v and the new end is step E, each
step from s on moves it by (T - v) / (E - s): it goes on from the value it has, and reaches its own end at the new one.
Restarts and step count epochs: they go on as they were, to the new end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from vitrail.errors import InputError
from vitrail.training.recipe import Recipe


def lr_factor(
    recipe: Recipe, step: int, steps: int, steps_per_epoch: float, lengths: Sequence[Sequence[int]] = ()
) -> float:
    """What lr is multiplied by at a step, counted from 0, of so many; restarts and step ask for the epoch's length.

    `lengths` are the moves of the end since it began: pairs of the step at which, and the steps that there are since.
    """
    if step < 0 or steps < 1 or steps_per_epoch <= 0:
        raise InputError(
            "expected a step from 0 of at least 1, in epochs of more than 0 steps; "
            f"got step {step} of {steps}, {steps_per_epoch} an epoch"
        )
    warm = warmup_steps(recipe, steps)
    counts_epochs = recipe.schedule in ("restarts", "step")
    position = step if counts_epochs else position_on_schedule(step, steps, lengths)
    if position < warm:
        return min((position + 1) / warm, 1.0)
    if recipe.schedule == "constant":
        return 1.0
    if recipe.schedule == "step":
        cuts = int((position - warm) // (steps_per_epoch * recipe.step_epochs))
        return recipe.final + (1.0 - recipe.final) * math.pow(recipe.step_factor, cuts)
    if recipe.schedule == "restarts":
        done = _since_restart((position - warm) / steps_per_epoch, recipe.restart_epochs, recipe.restart_factor)
    else:
        done = min((position - warm) / max(steps - warm, 1), 1.0)
    left = 1.0 - done if recipe.schedule == "linear" else (1.0 + math.cos(math.pi * done)) / 2
    return recipe.final + (1.0 - recipe.final) * left


def position_on_schedule(step: int, steps: int, lengths: Sequence[Sequence[int]]) -> float:
    """Where a step stands on the schedule of so many planned steps: at itself, as long as the end has not moved.

    From each move on, what is left of the schedule is shared out evenly over the steps that are left.
    """
    position, since, end = 0.0, 0, steps
    for moved, length in lengths:
        if moved > step:
            break
        position += (moved - since) * (steps - position) / max(end - since, 1)
        since, end = moved, length
    return position + (step - since) * (steps - position) / max(end - since, 1) if since else step


def warmup_steps(recipe: Recipe, steps: int) -> int:
    """The length of the warm-up: a share of all steps where it is under 1, else that many."""
    return round(recipe.warmup * steps if recipe.warmup < 1 else recipe.warmup)


def _since_restart(epochs: float, period: float, growth: int) -> float:
    """How much of the present period is over, from 0 to under 1; each period is `growth` times the one before."""
    if growth == 1:
        return epochs % period / period
    while epochs >= period:
        epochs -= period
        period *= growth
    return epochs / period
