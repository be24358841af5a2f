"""Weights by name, as every verb loads them; what a stranger's file leaves open is told."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vitrail.cli.terminal import busy, complain, left_table, show
from vitrail.errors import InputError

if TYPE_CHECKING:
    from vitrail.checkpoint import Checkpoint, Setting
    from vitrail.inference import Exported


def load_checkpoint(path: str, override: list[str] | None, leave_out: list[str] | None) -> Checkpoint:
    """A checkpoint; what a stranger's file leaves open is told on stderr, so that nothing is assumed in silence."""
    from vitrail.weights import load

    with busy(f"loading {path}"):
        loaded = load(path, override=settings_of(override), leave_out=leave_out or ())
    open_ = [each for each in loaded.provenance.settings if each.why not in ("given", "the tensors say so")]
    if open_ and loaded.provenance.family:
        told = "; ".join(f"{each.name} {each.value}" for each in open_)
        complain(f"read as {loaded.provenance.family} with {told} (`vitrail inspect` says why)")
    return loaded


def load_runtime(
    path: str, override: list[str] | None = None, leave_out: list[str] | None = None
) -> Checkpoint | Exported:
    """An exported file, opened without torch; or a checkpoint."""
    from vitrail.inference import is_exported, open_exported

    if not is_exported(path):
        return load_checkpoint(path, override, leave_out)
    if override or leave_out:
        raise InputError(
            f"{path} is exported: it is as it is, so --set and --leave-out have no meaning; use them with the weights "
            "it was made from"
        )
    with busy(f"opening {path}"):
        return open_exported(path)


def settings_of(pairs: list[str] | None) -> dict[str, Any]:
    """NAME=VALUE, where a value is JSON, or else text: heads=4, activation=relu, mean=[0.5,0.5,0.5]."""
    found: dict[str, Any] = {}
    for text in pairs or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise InputError(f"--set: expected NAME=VALUE, got {text!r}")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


def show_settings(settings: Sequence[Setting]) -> None:
    table = left_table("setting", "value", "why")
    for column in table.columns:
        column.no_wrap, column.overflow = False, "fold"
    for each in settings:
        table.add_row(each.name, each.value, each.why)
    show(table)
