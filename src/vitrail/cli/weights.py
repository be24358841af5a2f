"""Weights by name, as every verb loads them; what a stranger's file leaves open is told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from vitrail.cli.options import parse_settings
from vitrail.cli.terminal import busy, complain, left_table, show
from vitrail.errors import InputError

if TYPE_CHECKING:
    from vitrail.checkpoint import Checkpoint, Setting
    from vitrail.inference import Runtime
    from vitrail.packed import Packed


def load_checkpoint(path: str, override: list[str] | None, leave_out: list[str] | None) -> Checkpoint:
    """A checkpoint; what a stranger's file leaves open is told on stderr, so that nothing is assumed in silence."""
    from vitrail.weights import load

    with busy(f"loading {path}"):
        loaded = load(path, override=parse_settings(override), leave_out=leave_out or ())
    open_ = [each for each in loaded.provenance.settings if each.why not in ("given", "the tensors say so")]
    if open_ and loaded.provenance.family:
        told = "; ".join(f"{each.name} {each.value}" for each in open_)
        complain(f"read as {loaded.provenance.family} with {told} (`vitrail inspect` says why)")
    return loaded


def load_runtime(
    path: str,
    override: list[str] | None = None,
    leave_out: list[str] | None = None,
    runtime: str = "",
    few: bool = False,
    scaled_decoding: bool = False,
) -> Runtime:
    """The runtime of that name; if asked for, it decodes large JPEGs at a part of their size."""
    opened = _open(path, override, leave_out, runtime, few)
    return _scaled(opened) if scaled_decoding else opened


def _open(path: str, override: list[str] | None, leave_out: list[str] | None, runtime: str, few: bool) -> Runtime:
    """An exported file, without torch unless it is a .pt2; a packed network; or a checkpoint, packed if asked for."""
    from vitrail.inference import is_exported, open_exported

    if is_exported(path):
        _refuse_settings(path, "exported", override, leave_out, runtime)
        with busy(f"opening {path}"):
            return open_exported(path, few=few)
    from vitrail.packed import is_packed, open_packed
    from vitrail.shipping.runtimes import check_checkpoint_runtime, packed

    if is_packed(path):
        _refuse_settings(path, "packed", override, leave_out, runtime)
        with busy(f"opening {path}"):
            return _told(open_packed(path))
    check_checkpoint_runtime(runtime, path)
    loaded = load_checkpoint(path, override, leave_out)
    return loaded if runtime in ("", "eager") else _told(packed(loaded, runtime))


def _scaled(opened: Runtime) -> Runtime:
    """The same runtime, decoding large JPEGs at a part of their size."""
    return opened.with_preprocess(replace(opened.preprocess, scaled_decoding=True))


def _refuse_settings(
    path: str, how: str, override: list[str] | None, leave_out: list[str] | None, runtime: str
) -> None:
    if override or leave_out or runtime:
        raise InputError(
            f"{path} is {how}: it is as it is, so --set, --leave-out and --runtime have no meaning; use them with the "
            "weights it was made from"
        )


def _told(opened: Packed) -> Packed:
    for note in opened.notes:
        complain(note)
    return opened


def show_settings(settings: Sequence[Setting]) -> None:
    table = left_table("setting", "value", "why")
    for column in table.columns:
        column.no_wrap, column.overflow = False, "fold"
    for each in settings:
        table.add_row(each.name, each.value, each.why)
    show(table)
