"""Training: the loop, exact resume, optimisers, schedules, recipes; `train` is the whole way."""

from __future__ import annotations

from vitrail.training.loop import Watch
from vitrail.training.published import RECIPES
from vitrail.training.recipe import Recipe
from vitrail.training.reruns import Repeated, repeated
from vitrail.training.runs import Options, Run, run, train

__all__ = ["RECIPES", "Options", "Recipe", "Repeated", "Run", "Watch", "repeated", "run", "train"]
