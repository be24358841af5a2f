"""rerun: a run's record -> the same run again, and whether its result is the same."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from vitrail.checkpoint import content_hash, load
from vitrail.checkpoint.devices import AUTO
from vitrail.data.readers import read_data
from vitrail.data.samples import Dataset
from vitrail.errors import InputError
from vitrail.evaluation.recorded_paths import find_recorded
from vitrail.training.job import Callbacks
from vitrail.training.options import Options
from vitrail.training.pace import LENGTHS
from vitrail.training.plan import Plan, plan_differences
from vitrail.training.run_folder import CONFIG, DATA, RESULT, read_json, write_json
from vitrail.training.runs import Run, run

CHECKPOINTS = ("best.safetensors", "last.safetensors")


class RerunResult(NamedTuple):
    """A run again, and how it differs from the first."""

    run: Run
    same: bool
    differences: tuple[str, ...]


class RecordedRequest(NamedTuple):
    """What a run was asked for, and where the files that it was given are now."""

    data: str | Dataset
    options: Options
    paths_now: Mapping[str, str]


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
    data, recorded, paths_now = recorded_request(first)
    out = first.parent if out is None else out
    options = replace(recorded, out=out, name="", fresh=True, callbacks=callbacks or Callbacks())
    if plan["virtual_workers"]:
        options = replace(options, exact=True)
    lengths = ""
    if plan["minutes"] is not None:  # what they were measured to be, first and later, not measured again
        options = replace(options, steps=int(plan["steps"]))
        lengths = (first / LENGTHS).read_text("utf-8") if (first / LENGTHS).exists() else ""
    if recorded.batch == AUTO:
        options = replace(options, batch=int(plan["recipe"]["batch"]))  # the same of what memory held
    again = run(data, options, lengths)
    origin = again.plan.origin
    for name, path in paths_now.items():
        origin = origin.replace(path, str(Path(name)), 1)  # the same file, under the name it had
    _record_where(again.folder, config["options"], origin, paths_now)
    differences = plan_differences(plan, again.plan.to_dict() | {"minutes": plan["minutes"], "origin": origin})
    differences += [
        f"the weights in {name} differ" for name, value in _hashes(again.folder).items() if value != hashes[name]
    ]
    for name in ("metrics.jsonl", DATA):
        if (first / name).read_bytes() != (again.folder / name).read_bytes():
            differences.append(f"{name} differs")
    return RerunResult(again, not differences, tuple(differences))


def recorded_request(folder: Path) -> RecordedRequest:
    """What a run's record says that it was asked for."""
    config = read_json(folder / CONFIG)
    recorded = Options.from_dict(config["options"])
    paths_now = {name: find_recorded(folder, config, name, what) for name, what in _named(config["options"]).items()}
    options = replace(recorded, start=_now(recorded.start, paths_now), exclude=_now(recorded.exclude, paths_now))
    return RecordedRequest(_images(config["options"]["data"], paths_now, options), options, paths_now)


def _named(options: Mapping[str, Any]) -> dict[str, str]:
    """The paths that a run was given, each with what is there."""
    names = {"data": "images", "start": "weights", "exclude": "exclusions"}
    return {options[name]: what for name, what in names.items() if options.get(name)}


def _now(given: Any, paths_now: Mapping[str, str]) -> Any:
    """Where a path of the record is now."""
    return paths_now.get(given, given) if isinstance(given, str) else given


def _images(typed: str, paths_now: Mapping[str, str], options: Options) -> str | Dataset:
    """The images, under the name that they had, wherever they are now."""
    if paths_now[typed] == typed:
        return typed
    return replace(read_data(paths_now[typed], pattern=options.pattern), source=typed)


def _record_where(folder: Path, options: Mapping[str, Any], origin: str, paths_now: Mapping[str, str]) -> None:
    """Where something has moved: the new run's record has the names of the first, and where these are now."""
    if all(name == path for name, path in paths_now.items()):
        return
    config = read_json(folder / CONFIG)
    config["plan"]["origin"] = origin
    config["options"] |= {name: options[name] for name in ("data", "start", "exclude")}
    config["paths"] |= {name: os.path.abspath(path) for name, path in paths_now.items() if name != path}
    write_json(folder / CONFIG, config)


def _hashes(folder: Path) -> dict[str, str]:
    """Of the weights that a run has left."""
    return {name: content_hash({}, load(folder / name).model.state_dict()) for name in CHECKPOINTS}
