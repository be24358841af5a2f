"""Paths that a run was given -> where they are now, from whatever folder one looks, and where the run was moved."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from vitrail.errors import InputError


def record_paths(run: Path, names: Iterable[str | os.PathLike[str] | None]) -> dict[str, Any]:
    """What a run's record says beside the names as they were typed: where they and the run itself are."""
    typed = [os.fspath(name) for name in names if name is not None and _is_path(name)]
    return {"folder": os.path.abspath(run), "paths": {name: os.path.abspath(name) for name in typed}}


def find_recorded(run: Path, config: Mapping[str, Any], typed: str, what: str = "images") -> str:
    """Where that is now: where it was then, else as far from the run as it was then, else as it was typed.

    A folder of the same name that happens to lie where one is now holds other images, so it comes last.
    """
    if not _is_path(typed):
        return typed
    candidates = recorded_places(run, config, typed)
    for path in candidates:
        if os.path.exists(path):
            return typed if os.path.realpath(typed) == os.path.realpath(path) else path
    raise InputError(f"the {what} of {run} are not found: looked for {', '.join(candidates)}")


def recorded_places(run: Path, config: Mapping[str, Any], typed: str) -> list[str]:
    """The places where that may be, the likeliest first."""
    absolute = config.get("paths", {}).get(typed)
    if absolute is not None:
        places = [absolute, os.path.normpath(run.absolute() / os.path.relpath(absolute, config["folder"])), typed]
    else:  # a run that was recorded without: most are two folders below where they were started
        places = [typed, os.path.normpath(run.absolute().parent.parent / typed)]
    return list(dict.fromkeys(places))


def _is_path(name: str | os.PathLike[str]) -> bool:
    """Whether that names a file or a folder, not something built in or to be fetched."""
    prefix, colon, _ = os.fspath(name).partition(":")
    return not (colon and prefix in ("vitrail", "hf", "timm"))
