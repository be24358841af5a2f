"""A run's folder: found, made or resumed, and held by one process at a time; a second run never overwrites a first."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from vitrail.errors import InputError
from vitrail.files import atomic_write, reason
from vitrail.system_calls import IS_WINDOWS, lock_file

CONFIG: Final = "config.json"
DATA: Final = "data.json"
RESULT: Final = "result.json"  # written last: a run that has it is finished


class RunFolder(NamedTuple):
    """The folder of a run, and whether it goes on with what is there."""

    folder: Path
    resumes: bool


def find_run(
    out: Path,
    base: str,
    *,
    name: str = "",
    fresh: bool = False,
    finished: bool = False,
    differences: Callable[[Path], list[str]],
) -> RunFolder:
    """Where a run goes. `differences` lists how a run that is there differs from the one that is wanted.

    With a name: an unfinished run of that name goes on if it is the same one, a finished one is refused unless
    `finished` allows it, and `fresh` moves either aside. Without: an unfinished run of the very same plan goes on,
    else a new number is taken.
    """
    if name:
        _check_name(name)
        folder = out / name
        if fresh and folder.is_dir():
            with locked(folder):  # nobody may be training there
                if not IS_WINDOWS:  # which moves no folder with an open file in it
                    _move_aside(folder)
            if IS_WINDOWS:
                _move_aside(folder)
        if not (folder / CONFIG).exists():
            return RunFolder(folder, False)
        if (folder / RESULT).exists() and not finished:
            raise InputError(f"the run {folder} is finished: choose another --name, or --fresh to start anew")
        wrong = differences(folder)
        if wrong:
            raise InputError(
                f"the run {folder} was started with something else: {'; '.join(wrong)}. "
                "Give the same again to go on, or choose another --name, or --fresh to start anew"
            )
        return RunFolder(folder, True)
    numbers = _numbered(out, base)
    for number in sorted(numbers, reverse=True) if not fresh else ():
        folder = out / f"{base}-{number}"
        if (folder / CONFIG).exists() and not (folder / RESULT).exists() and _is_same(folder, differences):
            return RunFolder(folder, True)
    return RunFolder(out / f"{base}-{max(numbers, default=0) + 1}", False)


def _is_same(folder: Path, differences: Callable[[Path], list[str]]) -> bool:
    """Whether the run there is the one that is wanted; one whose record is damaged is not."""
    try:
        return not differences(folder)
    except (InputError, KeyError, OSError):
        return False


@contextmanager
def locked(
    folder: Path, patience: float = 0.0, doing: str = "trained", instead: str = "choose another --name"
) -> Iterator[None]:
    """Hold the folder, or say who does; the system lets go of it when the process ends, killed or not.

    For one that may be ending just now there are so many seconds of patience.
    """
    path = folder / "lock"
    number = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        until = time.monotonic() + patience
        while not (is_held := lock_file(number)) and time.monotonic() < until:
            time.sleep(0.05)
        os.lseek(number, 0, os.SEEK_SET)
        if not is_held:
            holder = os.read(number, 32).decode(errors="replace").strip() or "another process"
            raise InputError(f"{folder} is being {doing} by process {holder}: wait for it, stop it, or {instead}")
        os.ftruncate(number, 0)
        os.write(number, f"{os.getpid()}\n".encode())
        yield
    finally:
        os.close(number)


def make_folder(folder: Path) -> None:
    """The folder, with proof that it can be written to, before anything is computed."""
    probe = folder / ".written"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"x")
        probe.unlink()
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {reason(error)}: choose another --out") from error


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """A JSON file, whole or not at all."""
    write_text(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """A text file, whole or not at all; names that are not text go in as they are."""
    raw = text.encode("utf-8", "surrogateescape")
    try:
        with atomic_write(path) as temporary:
            temporary.write_bytes(raw)
    except OSError as error:
        raise InputError(f"could not write {path} ({len(raw):,} bytes needed): {reason(error)}") from error


def read_json(path: Path) -> dict[str, Any]:
    """What write_json wrote."""
    try:
        value = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({error}): the run's folder is damaged; start anew") from None
    if not isinstance(value, dict):
        raise InputError(f"{path}: expected an object, got {type(value).__name__}: the run's folder is damaged")
    return value


def _check_name(name: str) -> None:
    if not re.fullmatch(r"[\w][\w .+=-]{0,99}", name) or name != name.strip():
        raise InputError(f"--name: expected letters, digits, spaces and any of . _ + = -, got {name!r}")


def _numbered(out: Path, base: str) -> list[int]:
    """The numbers of the runs of a base name that are there."""
    pattern = re.compile(rf"{re.escape(base)}-(\d{{1,9}})")
    names = os.listdir(out) if out.is_dir() else []
    return [int(match[1]) for each in names if (match := pattern.fullmatch(each))]


def _move_aside(folder: Path) -> None:
    number = 1
    while (aside := folder.with_name(f"{folder.name}.old-{number}")).exists():
        number += 1
    try:
        folder.rename(aside)
    except OSError as error:
        raise InputError(f"could not move {folder} aside: {reason(error)}") from error
