"""load: a file or folder of any known family -> Checkpoint, with every tensor accounted for or an error."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

from vitrail import checkpoint
from vitrail.checkpoint import Checkpoint, Mapped, Provenance, Safetensors
from vitrail.checkpoint.devices import find_device
from vitrail.checks import short_repr
from vitrail.errors import CheckpointError, InputError, VitrailError, nearest
from vitrail.files import HUB, best_of_run, path_text
from vitrail.network.surgery import build_empty
from vitrail.types import Device
from vitrail.weights.families import FAMILIES
from vitrail.weights.family import Family
from vitrail.weights.hub import fetch
from vitrail.weights.overrides import check_names, decide, list_settings
from vitrail.weights.pairing import empty_decoder, expected, pair, read
from vitrail.weights.reading.contents import WeightContents
from vitrail.weights.reading.weight_files import open_contents
from vitrail.weights.resize import with_size


def load(
    path: str | os.PathLike[str],
    *,
    override: Mapping[str, Any] | None = None,
    leave_out: Sequence[str] = (),
    device: Device = "cpu",
    header: Safetensors | None = None,
) -> Checkpoint:
    """A checkpoint: our file, a run's folder, "vitrail:fashion", a known family's file or folder, or a
    name: "hf:owner/name" or "timm:name".

    - path: the file or folder, or its name.
    - override: settings that no tensor says: of ViTConfig, of Preprocess, `resample`, `classes`, `family`, and `take`
      for one of several copies in a file.
    - leave_out: parts to leave out, or patterns of their names.
    - device: where the network is put, such as "cuda" or "mps"; "auto": an accelerator where there is one.
    - header: what `read_safetensors` says of the file, if it was read already.
    """
    wanted = find_device(device)  # before there is any work
    return _load(path, check_names({} if override is None else override), _patterns(leave_out), header).to(wanted)


def _load(
    path: str | os.PathLike[str], override: Mapping[str, Any], leave_out: Sequence[str], header: Safetensors | None
) -> Checkpoint:
    """The same in the processor's memory."""
    local = path_text(path)
    if local.startswith("vitrail:"):
        _refuse_settings(local, override, leave_out)
        return checkpoint.load(local)
    local = str(fetch(local)) if local.startswith(HUB) else best_of_run(local)
    if not os.path.lexists(local):
        _refuse_missing(local)
    contents = open_contents(local, override.get("take", ""), header)
    if checkpoint.KEY in contents.metadata:
        _refuse_settings(local, override, leave_out)
        return checkpoint.load(local, Safetensors(dict(contents.tensors), dict(contents.metadata)))
    return from_contents(contents, override, leave_out)


def _refuse_missing(path: str) -> None:
    """An error where something was probably meant that is there; else whoever opens the path says what is expected."""
    from vitrail.weights.near_names import near_path

    if hint := near_path(path):
        raise CheckpointError(f"no checkpoint {path}: {hint}")


def from_contents(contents: WeightContents, override: Mapping[str, Any], leave_out: Sequence[str] = ()) -> Checkpoint:
    """A checkpoint from what a file holds: recognised, described, every tensor paired, then read."""
    family = recognise(contents, override)
    kept = leave(contents, family, leave_out)
    try:
        description = decide(family.describe(kept, override), override)
        model = build_empty(description.config)
    except VitrailError as error:
        told = isinstance(error, CheckpointError) and contents.source in str(error)
        where = "" if told else f"{contents.source}, read as {family.name}: "
        raise CheckpointError(f"{where}{error}") from error
    ours = expected(description, model)
    plan = pair(family, description, ours, kept)
    tensors = read(plan, kept, description.config)
    model.load_state_dict({name: tensors[name] for name in model.state_dict()}, assign=True)
    decoder = None
    if description.decoder is not None:
        decoder = empty_decoder(description.decoder, description.config.width)
        decoder.load_state_dict({name: tensors[f"decoder.{name}"] for name in decoder.state_dict()}, assign=True)
    mapping = [
        Mapped(name, link.theirs, tuple(ours[name].shape), link.codec.name) for link in plan.links for name in link.ours
    ]
    mapping += [Mapped("", (row.theirs,), kept.tensors[row.theirs].shape, row.why) for row in plan.derived]
    mapping += [Mapped("", (name,), contents.tensors[name].shape, "left out") for name in kept.left]
    provenance = Provenance(
        source=contents.source,
        family=family.name,
        settings=list_settings(description, override, contents),
        mapping=tuple(mapping),
    )
    try:
        loaded = Checkpoint(
            model.eval(),
            description.preprocess,
            description.classes,
            provenance=provenance,
            decoder=decoder,
            extras={name: tensors[f"extras.{name}"] for name in description.extras},
        )
        return loaded if "image_size" not in override else with_size(loaded, override["image_size"])
    except VitrailError as error:
        raise CheckpointError(f"{contents.source}, read as {family.name}: {error}") from error


def recognise(contents: WeightContents, override: Mapping[str, Any]) -> Family:
    """The family whose names these are; the name of the file has no say."""
    if "family" in override:
        name = override["family"]
        if not isinstance(name, str) or name not in FAMILIES:
            raise InputError(f"no family {name!r}: {nearest(str(name), FAMILIES)}")
        return FAMILIES[name]
    for family in FAMILIES.values():
        if family.knows(contents):
            return family
    names = sorted(contents.tensors)
    sample = ", ".join(f"{name} {list(contents.tensors[name].shape)}" for name in names[:6])
    raise CheckpointError(
        f"{contents.source}: {len(names)} tensors whose names are of no vision transformer known here ({sample}"
        f"{', ...' if len(names) > 6 else ''}); known families: {', '.join(FAMILIES)}"
    )


def leave(contents: WeightContents, family: Family, leave_out: Sequence[str]) -> WeightContents:
    """The contents without the parts that were named."""
    left: list[str] = []
    for asked in leave_out:
        patterns = family.parts.get(asked, (asked, f"{asked}.*", f"{asked}/*"))
        matching = [name for name in contents.tensors if any(fnmatchcase(name, pattern) for pattern in patterns)]
        if not matching:
            parts = f"; parts of {family.name}: {', '.join(family.parts)}" if family.parts else ""
            raise InputError(f"leave_out {asked!r}: no tensor has such a name{parts}")
        left += [name for name in matching if name not in left]
    kept = {name: value for name, value in contents.tensors.items() if name not in left}
    return replace(contents, tensors=kept, left=tuple(left))


# ---- small parts -------------------------------------------------------------------------------------------------


def _refuse_settings(path: str, override: Mapping[str, Any], leave_out: Sequence[str]) -> None:
    """Our own file says everything, so nothing can be set or left out."""
    if override or leave_out:
        given = ", ".join([*override, *leave_out])
        raise InputError(f"{path} is Vitrail's own and says everything itself: load it without {given}")


def _patterns(leave_out: Sequence[str]) -> Sequence[str]:
    several = isinstance(leave_out, Sequence) and not isinstance(leave_out, str)
    if not several or not all(isinstance(each, str) for each in leave_out):
        raise InputError(f"leave_out: expected a list of parts or names, got {short_repr(leave_out)}")
    return leave_out
