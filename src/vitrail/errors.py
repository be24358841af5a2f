"""The errors people may see: each names what was expected, what came, and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from importlib import import_module
from typing import Any


class VitrailError(Exception):
    """Anything a user can put right; nothing else escapes the public verbs."""


class ConfigError(VitrailError, ValueError):
    """A description of a network that makes no sense."""


class InputError(VitrailError, ValueError):
    """A wrong value, shape or name given to a verb."""


class ImageError(VitrailError, ValueError):
    """An image that cannot be read, or that is refused."""


class CheckpointError(VitrailError, ValueError):
    """A checkpoint that is damaged, or does not fit what it claims to be."""


class MissingExtraError(VitrailError, ImportError):
    """Something that needs an optional dependency which is not installed, or does not load."""


class StoppedError(VitrailError):
    """Work that was asked to stop by a signal, and has saved what the same command needs to go on."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.number = number  # of the signal


def nearest(name: str, known: Iterable[str]) -> str:
    """A sentence that helps with a mistyped name: the nearest known ones, or all of them."""
    names = [str(each) for each in known]
    close = difflib.get_close_matches(name, names, n=4, cutoff=0.8)  # a slip of the finger, else anything like it
    close = close or difflib.get_close_matches(name, names, n=4, cutoff=0.5)
    if close:
        return f"did you mean {' or '.join(repr(each) for each in close)}?"
    return f"expected one of: {', '.join(names)}"


def is_missing(error: BaseException, module: str) -> bool:
    """Whether an import failed because the module itself is not there; else it is, and does not load."""
    return isinstance(error, ModuleNotFoundError) and error.name in (module, module.partition(".")[0])


def not_loading(package: str, error: BaseException) -> str:
    """What is said of a package that is installed, and whose import failed: why, and what to do."""
    return f"{package} is installed, but does not load ({first_line(error)}): pip install --force-reinstall {package}"


def first_line(error: BaseException) -> str:
    """An error of a library in one line: its kind, and the first line of what it says."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]:.160}"


def import_extra(what: str, extra: str, *names: str) -> Any:
    """The first of these modules; where one is missing or does not load, an error that says so and what to do."""
    modules = []
    for name in names:
        try:
            modules.append(import_module(name))
        except (Exception, SystemExit) as error:  # half an installation raises anything
            todo = f"pip install 'vitrail[{extra}]'" if is_missing(error, name) else not_loading(name, error)
            raise MissingExtraError(f"{what}: {todo}") from error
    return modules[0]
