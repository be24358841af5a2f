"""The learning rate of a step, as a share of the recipe's: warm-up, then cosine, linear, constant, restarts or steps.

A pure function of the step, so that a run which goes on has the very rates it would have had.

Against others' schedules, with w steps of warm-up out of T:
- transformers and Google's code give step s of the warm-up s / w, so that their first step changes nothing;
  here it is (s + 1) / w: the first step counts, and step w - 1 has the full rate already.
- from step w on the values are the same as theirs: 1 at w, `final` at T; the last step that is taken is T - 1.
- restarts are torch's CosineAnnealingWarmRestarts told the epoch as a fraction before every step.
- step is torch's StepLR stepped at the end of every epoch, where the warm-up has no steps.
"""

from __future__ import annotations

import math

from vitrail.errors import InputError
from vitrail.training.recipe import Recipe


def lr_factor(recipe: Recipe, step: int, steps: int, steps_per_epoch: float) -> float:
    """What lr is multiplied by at a step, counted from 0, of so many; restarts and step ask for the epoch's length."""
    if step < 0 or steps < 1 or steps_per_epoch <= 0:
        raise InputError(
            "expected a step from 0 of at least 1, in epochs of more than 0 steps; "
            f"got step {step} of {steps}, {steps_per_epoch} an epoch"
        )
    warm = warmup_steps(recipe, steps)
    if step < warm:
        return (step + 1) / warm
    if recipe.schedule == "constant":
        return 1.0
    if recipe.schedule == "step":
        cuts = int((step - warm) // (steps_per_epoch * recipe.step_epochs))
        return recipe.final + (1.0 - recipe.final) * math.pow(recipe.step_factor, cuts)
    if recipe.schedule == "restarts":
        done = _since_restart((step - warm) / steps_per_epoch, recipe.restart_epochs, recipe.restart_factor)
    else:
        done = min((step - warm) / max(steps - warm, 1), 1.0)
    left = 1.0 - done if recipe.schedule == "linear" else (1.0 + math.cos(math.pi * done)) / 2
    return recipe.final + (1.0 - recipe.final) * left


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
