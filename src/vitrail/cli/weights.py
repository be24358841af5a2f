"""Weights by name, as every verb loads them; what a stranger's file leaves open is told."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from vitrail.cli.options import parse_settings
from vitrail.cli.terminal import busy, complain, left_table, show
from vitrail.errors import InputError, nearest
from vitrail.files import is_name

if TYPE_CHECKING:
    from vitrail.checkpoint import Checkpoint, Setting
    from vitrail.inference import Runtime


def load_checkpoint(
    path: str, override: list[str] | None = None, leave_out: list[str] | None = None, device: str = "cpu"
) -> Checkpoint:
    """A checkpoint, on a device; what its file leaves open is told on stderr."""
    from vitrail.inference import open_checkpoint

    with busy(f"loading {path}"):
        opened = open_checkpoint(path, override=parse_settings(override), leave_out=leave_out or (), device=device)
    _tell_notes(opened)
    return opened


def refuse_unknown(what: str) -> None:
    """An error that says what is near, where this is neither a checkpoint nor a preset."""
    from vitrail.network.presets import PRESETS
    from vitrail.weights.near_names import near_path

    if what in PRESETS or is_name(what) or os.path.lexists(what):
        return
    preset = nearest(what, PRESETS)
    listed = "`vitrail models` lists the presets" if preset.startswith("expected") else preset
    raise InputError(f"no checkpoint file and no preset {what!r}: {near_path(what) or listed}")


def load_runtime(
    path: str,
    override: list[str] | None = None,
    leave_out: list[str] | None = None,
    runtime: str = "",
    few_images: bool = False,
    scaled_decoding: bool = False,
    device: str = "cpu",
) -> Runtime:
    """What answers for a path; if asked for, it decodes large JPEGs at a part of their size."""
    from vitrail.inference import open_model

    with busy(f"opening {path}"):
        opened = open_model(
            path,
            runtime=runtime,
            override=parse_settings(override),
            leave_out=leave_out or (),
            few_images=few_images,
            device=device,
        )
    _tell_notes(opened)
    if not scaled_decoding:
        return opened
    return opened.with_preprocess(replace(opened.preprocess, scaled_decoding=True))


def _tell_notes(opened: Runtime) -> None:
    """On stderr, so that nothing is assumed in silence."""
    for note in opened.notes:
        complain(note)


def show_settings(settings: Sequence[Setting]) -> None:
    table = left_table("setting", "value", "why")
    for column in table.columns:
        column.no_wrap, column.overflow = False, "fold"
    for each in settings:
        table.add_row(each.name, each.value, each.why)
    show(table)
