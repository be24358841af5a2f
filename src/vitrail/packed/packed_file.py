"""A packed runtime <-> one .safetensors file: weights in their precision, description, measurements, and a proof.

The proof is the answer to fixed random pixels when the file was written; opening runs them again and compares.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from torch import Tensor

from vitrail.checkpoint import Checkpoint, Provenance, content_hash, write_proven
from vitrail.checkpoint.safetensors_io import read_all, read_safetensors
from vitrail.errors import CheckpointError, InputError, VitrailError
from vitrail.files import path_text
from vitrail.images.model_info import ModelInfo
from vitrail.network.config import ViTConfig
from vitrail.network.surgery import build_empty
from vitrail.network.vit import ViT
from vitrail.packed.onednn_kernels import Bytes
from vitrail.packed.packed_runtime import LOOSELY, Packed, notes_of, possible, proof
from vitrail.packed.packing import Plan, pack
from vitrail.quantisation.folding import fold

KEY: Final = "vitrail.packed"  # of the JSON in the file's metadata
# What older readers would not know of: in 2 unclear answers are given again by all tokens; in 3 without int8, too, by
# weights that are there twice; in 4 in another precision.
FORMATS: Final = (1, 2, 3, 4)
PROOF: Final = "proof.logits"
WHOLE: Final = "proof.whole"  # the same of the network without merging, where that gives unclear answers again
FLOATS: Final = "proof.floats"  # the same in fp32, for a machine without the precision of the file
STEPS: Final = ".steps"  # after the name of a layer in bytes
EXACT: Final = "exact."  # before the name of its weight in higher precision, where unclear answers need that
WITHIN: Final = 0.05  # of the largest logit: another processor rounds otherwise, and a byte more or less follows


def save_packed(
    runtime: Packed, base: Checkpoint, path: str | os.PathLike[str], measurements: Mapping[str, Any] | None = None
) -> None:
    """Write a packed runtime, all or nothing; `base` is the checkpoint that it was packed from."""
    place = Path(path_text(path))
    if place.suffix != ".safetensors":
        raise InputError(f"a packed network is saved as NAME.safetensors, got {place.name!r}")
    if runtime.plan is None:
        raise InputError(f"nothing is packed here ({'; '.join(runtime.notes)}): save the checkpoint instead")
    check_place(place)
    folded = fold(base.model)
    tensors = {PROOF: proof(runtime), FLOATS: proof(Packed(base))}
    if runtime.clear > 1:
        tensors[WHOLE] = proof(runtime, runtime.whole)
    for name, value in folded.state_dict().items():
        layer = name.removesuffix(".weight")
        floats = value.is_floating_point()
        if layer in runtime.plan.int8:
            tensors[name], tensors[layer + STEPS] = Bytes.of(value)
        else:
            tensors[name] = value.detach().to(runtime.plan.kind_of(name) if floats else value.dtype)
        if runtime.clear > 1 and floats and _is_twice(name, runtime.plan):
            tensors[EXACT + name] = value.detach().to(runtime.plan.exact.kind_of(name))
    description = {
        "format": _format(runtime.plan, runtime.clear),
        "config": folded.config.to_dict(),
        "about": runtime.about.to_dict(),
        "plan": {"precision": runtime.plan.precision, "int8": {k: list(v) for k, v in runtime.plan.int8.items()}}
        | ({"clear": runtime.clear} if runtime.clear > 1 else {})
        | ({"again": runtime.plan.again} if runtime.plan.again else {}),
        "provenance": base.provenance.to_dict(),
        "measurements": dict(measurements or {}),
    }
    tensors = {name: value.contiguous() for name, value in tensors.items()}
    try:
        text = json.dumps(description | {"hash": content_hash(description, tensors)}, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"not saved: the description holds what JSON cannot carry ({error})") from None
    write_proven(place, tensors, {KEY: text}, open_packed)  # which lets it answer, too


def _is_twice(name: str, plan: Plan) -> bool:
    """Whether unclear answers need a tensor in higher precision beside what it is otherwise."""
    finer = plan.exact.kind_of(name).itemsize > plan.kind_of(name).itemsize
    return name.removesuffix(".weight") in plan.int8 or finer


def _format(plan: Plan, clear: float) -> int:
    """The least that says it."""
    if clear == 1:
        return 1
    return 4 if plan.exact.precision != plan.precision else 3 if plan.int8 else 2


def check_place(place: Path) -> None:
    """Refuse to take the place of weights: those packed are less than those they were made from."""
    if place.exists() and not is_packed(place):
        raise InputError(f"{place} is there already, and is no packed network: choose another name")


def is_packed(path: str | os.PathLike[str]) -> bool:
    """Whether a file is one that `save_packed` wrote; false for anything that is no such file."""
    try:
        place = path_text(path)
        if place.startswith("vitrail:") or not os.path.isfile(place) or not place.endswith(".safetensors"):
            return False
        return KEY in read_safetensors(place).metadata
    except VitrailError:
        return False


def open_packed(path: str | os.PathLike[str]) -> Packed:
    """The packed runtime of a file; everything in it is verified, and it answers as it did when it was written."""
    stored, metadata = read_safetensors(path)
    place = path_text(path)
    if KEY not in metadata:
        raise CheckpointError(f"{place} is not a packed network: vitrail optimize and vitrail export --int8 make them")
    description = _description(metadata[KEY], place)
    tensors = read_all(stored)
    expected = description.pop("hash", "")
    found = content_hash(description, tensors)
    if found != expected:
        raise CheckpointError(f"{place} is damaged: its content hash is {found}, expected {expected}: get it anew")
    try:
        return _runtime(description, tensors)
    except VitrailError as error:
        raise CheckpointError(f"{place}: {error}") from error
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise CheckpointError(f"{place} is damaged: {type(error).__name__} {error}".splitlines()[0]) from None


def _description(text: str, place: str) -> dict[str, Any]:
    try:
        plain = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{place}: the description inside is damaged: {error}") from None
    number = plain.get("format") if isinstance(plain, dict) else None
    if number not in FORMATS:
        hint = "use a newer Vitrail" if isinstance(number, int) and number > max(FORMATS) else "make it again"
        wanted = f"expected a packed network of format 1 to {max(FORMATS)}"
        raise CheckpointError(f"{place}: {wanted}, got {number!r:.40}: {hint}")
    found: dict[str, Any] = plain
    return found


def _runtime(description: Mapping[str, Any], tensors: dict[str, Tensor]) -> Packed:
    stored = description["plan"]
    ranges = {name: tuple(ends) for name, ends in stored["int8"].items()}
    plan = Plan(stored["precision"], ranges, stored.get("clear", 1.0), stored.get("again", ""))
    merging, number = bool(description["config"]["merge_per_block"]), description["format"]
    if plan.clear > 1 and not (merging or plan.doubled):
        raise CheckpointError("unclear answers given again need a network that merges, has int8 or is less precise")
    # before there was a 3, int8 networks that merge gave unclear answers again in int8
    if plan.clear > 1 and number != _format(plan, plan.clear) and not (number == 2 and not plan.again):
        raise CheckpointError(f"its plan is one of format {_format(plan, plan.clear)}, got {number}: make it again")
    usable, notes = possible(plan)
    config, about = ViTConfig.from_dict(description["config"]), ModelInfo.from_dict(description["about"])
    model = build_empty(config)
    bytes_of = {name: Bytes(tensors[name + ".weight"], tensors[name + STEPS]) for name in plan.int8}
    exact = {name.removeprefix(EXACT): value for name, value in tensors.items() if name.startswith(EXACT)}
    if usable is None or usable != plan:  # this machine lacks what the file was made for: back to floats
        bytes_of, restored = {}, bytes_of
        tensors |= {name + ".weight": each.floats() for name, each in restored.items()} | exact
    _fill(model, tensors, bytes_of)
    packed = model.float().eval() if usable is None else pack(model, usable, about.preprocess, bytes_of)
    whole = None
    if usable is not None and plan.clear > 1 and usable.doubled and number > 2:
        other = build_empty(config.unmerged)
        for name, value in other.state_dict().items():
            if value.is_floating_point() and _is_twice(name, plan) and name not in exact:
                raise CheckpointError(f"{name}: it is not there in the precision that unclear answers need")
        _fill(other, tensors | exact, {})
        whole = pack(other, usable.exact, about.preprocess)
    provenance, measured = Provenance.from_dict(description["provenance"]), description["measurements"]
    coarse = merging or (usable is not None and usable.doubled)
    clear = plan.clear if coarse else 1.0  # without what it was made for all answers are exact
    made = Packed.of(packed, about, usable, notes + notes_of(packed), provenance, measured, clear, whole)
    within = LOOSELY if usable != plan or merging else _within(tensors) if plan.int8 else WITHIN
    _compare(proof(made), tensors[PROOF if usable == plan else FLOATS], within)
    if made.clear > 1:
        _compare(proof(made, made.whole), tensors[WHOLE], LOOSELY if usable != plan else WITHIN)
    return made


def _within(tensors: Mapping[str, Tensor]) -> float:
    """How far an int8 network may be from itself, computed in another order: half as far as int8 moves its answers."""
    small, floats = tensors[PROOF], tensors[FLOATS]
    return min(LOOSELY, max(WITHIN, _apart(small, floats[: len(small)]) / 2))


def _apart(logits: Tensor, expected: Tensor) -> float:
    return float((logits - expected).abs().max() / expected.abs().max().clamp(min=1e-12))


def _compare(logits: Tensor, expected: Tensor, within: float) -> None:
    """Refuse a network that answers otherwise than when it was written."""
    expected = expected[: len(logits)]  # eager takes no bytes
    difference = _apart(logits, expected)
    if not difference <= within:
        raise CheckpointError(
            f"it answers otherwise than when it was written: {difference:.2g} of the largest logit, expected at most "
            f"{within:g}: make it again on this machine"
        )


def _fill(model: ViT, tensors: Mapping[str, Tensor], in_bytes: Mapping[str, Bytes]) -> None:
    """Put the floats in their places; layers in bytes stay empty, for their weights come beside."""
    wanted = model.state_dict()
    for name, empty in wanted.items():
        if name.removesuffix(".weight") in in_bytes:
            continue
        if name not in tensors or tensors[name].shape != empty.shape:
            raise CheckpointError(f"{name}: expected a tensor of shape {tuple(empty.shape)}")
        wanted[name] = tensors[name]
    model.load_state_dict(wanted, assign=True)


def measurements_of(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What was measured when the file was made."""
    metadata = read_safetensors(path).metadata
    if KEY not in metadata:
        raise CheckpointError(f"{path_text(path)} is not a packed network")
    found: dict[str, Any] = _description(metadata[KEY], path_text(path))["measurements"]
    return found
