"""Training, from what a user asks for to a run, each step in a file of its own:

Options  what a user asks for; None leaves it open (options.py)
Recipe   how a network is trained: one of the published ones, or given, with what the options change (recipe.py)
Plan     all that the result depends on, settled: two equal plans give the same bits (planning.py, plan.py)
Job      the plan with its images, network and folder, as the loop carries it out (job.py, loop.py)
Run      what came of it: the folder, its best checkpoint, and how good that is (runs.py)
"""

from __future__ import annotations

from vitrail.training.job import Callbacks
from vitrail.training.options import Options
from vitrail.training.published import RECIPES
from vitrail.training.recipe import Recipe
from vitrail.training.reruns import RerunResult, rerun
from vitrail.training.runs import Run, run
from vitrail.training.trainer import train

__all__ = ["RECIPES", "Callbacks", "Options", "Recipe", "RerunResult", "Run", "rerun", "run", "train"]
