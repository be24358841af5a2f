"""rerun: a run's record -> the same run again, and whether its result is the same."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from vitrail.checkpoint import content_hash, load
from vitrail.errors import InputError
from vitrail.training.job import Callbacks
from vitrail.training.options import Options
from vitrail.training.plan import Plan, plan_differences
from vitrail.training.run_folder import CONFIG, DATA, RESULT, read_json
from vitrail.training.runs import Run, run

CHECKPOINTS = ("best.safetensors", "last.safetensors")


class RerunResult(NamedTuple):
    """A run again, and how it differs from the first."""

    run: Run
    same: bool
    differences: tuple[str, ...]


def rerun(
    folder: str | os.PathLike[str], out: str | os.PathLike[str] | None = None, callbacks: Callbacks | None = None
) -> RerunResult:
    """Run again what a run's folder says, beside it under a new number, and compare bit by bit."""
    first = Path(folder)
    if not (first / RESULT).is_file():
        raise InputError(f"{first} is no finished run: expected a folder with {RESULT}")
    config = read_json(first / CONFIG)
    plan = Plan.from_dict(config["plan"]).to_dict()
    if config["options"]["start"] is None and plan["origin"]:
        raise InputError(f"{first} started from a checkpoint that was given as an object: its file is not known")
    hashes = _hashes(first)  # first of all: what cannot be read cannot be compared with
    options = replace(
        Options.from_dict(config["options"]),
        out=first.parent if out is None else out,
        name="",
        fresh=True,
        callbacks=callbacks or Callbacks(),
    )
    if plan["minutes"] is not None:
        options = replace(options, steps=int(plan["steps"]))  # what minutes were measured to be, not measured again
    again = run(config["options"]["data"], options)
    differences = plan_differences(plan, again.plan.to_dict() | {"minutes": plan["minutes"]})
    differences += [
        f"the weights in {name} differ" for name, value in _hashes(again.folder).items() if value != hashes[name]
    ]
    for name in ("metrics.jsonl", DATA):
        if (first / name).read_bytes() != (again.folder / name).read_bytes():
            differences.append(f"{name} differs")
    return RerunResult(again, not differences, tuple(differences))


def _hashes(folder: Path) -> dict[str, str]:
    """Of the weights that a run has left."""
    return {name: content_hash({}, load(folder / name).model.state_dict()) for name in CHECKPOINTS}
