"""rerun: a run's record -> the same run again, and whether its result is the same."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from vitrail.checkpoint import content_hash, load
from vitrail.errors import InputError
from vitrail.network.config import ViTConfig
from vitrail.training.loop import Watch
from vitrail.training.plan import plan_differences
from vitrail.training.recipe import Recipe
from vitrail.training.run_folder import CONFIG, DATA, RESULT, read_json
from vitrail.training.runs import Options, Run, run


class Repeated(NamedTuple):
    """A run again, and how it differs from the first."""

    run: Run
    same: bool
    differences: tuple[str, ...]


def repeated(
    folder: str | os.PathLike[str], out: str | os.PathLike[str] | None = None, watch: Watch | None = None
) -> Repeated:
    """Run again what a run's folder says, beside it under a new number, and compare bit by bit."""
    first = Path(folder)
    if not (first / RESULT).is_file():
        raise InputError(f"{first} is no finished run: expected a folder with {RESULT}")
    config = read_json(first / CONFIG)
    record = config["options"]
    data = record.pop("data")
    if record["start"] is None and config["plan"]["origin"]:
        raise InputError(f"{first} started from a checkpoint that was given as an object: its file is not known")
    if isinstance(record["recipe"], dict):
        record["recipe"] = Recipe.from_dict(record["recipe"])
    if isinstance(record["model"], dict):
        record["model"] = ViTConfig.from_dict(record["model"])
    if isinstance(record["size"], list):
        record["size"] = tuple(record["size"])
    options = Options(**record | {"out": first.parent if out is None else out, "name": "", "fresh": True})
    options = replace(options, watch=watch or Watch(), steps=_steps(first) or options.steps)
    again = run(data, options)
    found = plan_differences(config["plan"], again.plan.to_dict() | {"minutes": config["plan"]["minutes"]})
    for name in ("best.safetensors", "last.safetensors"):
        one, other = (load(each / name).model.state_dict() for each in (first, again.folder))
        if content_hash({}, one) != content_hash({}, other):
            found.append(f"the weights in {name} differ")
    for name in ("metrics.jsonl", DATA):
        if (first / name).read_bytes() != (again.folder / name).read_bytes():
            found.append(f"{name} differs")
    return Repeated(again, not found, tuple(found))


def _steps(folder: Path) -> int | None:
    """The steps that minutes were measured to be, so that the second run does not measure again."""
    plan = read_json(folder / CONFIG)["plan"]
    return int(plan["steps"]) if plan["minutes"] is not None else None
