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
from vitrail.checkpoint.safetensors_io import Safetensors, read_all, read_safetensors
from vitrail.errors import CheckpointError, InputError, VitrailError
from vitrail.exporters.export_info import read_description
from vitrail.files import path_text
from vitrail.images.model_info import ModelInfo
from vitrail.network.config import ViTConfig
from vitrail.network.surgery import build_empty
from vitrail.network.vit import ViT
from vitrail.packed.packed_runtime import LOOSELY, Packed, logit_scale, logits_apart, notes_of, possible_plan, proof
from vitrail.packed.packing import Dtypes, pack
from vitrail.quantisation.folding import fold
from vitrail.quantisation.quant_params import Int8Weight
from vitrail.quantisation.quant_plan import QuantPlan

KEY: Final = "vitrail.packed"  # of the JSON in the file's metadata
FORMAT: Final = 5  # 1 to 4 were those of versions that were never released
PROOF: Final = "proof.logits"
FLOATS: Final = "proof.floats"  # the same in fp32, for a machine without the precision of the file
SCALES: Final = ".scales"  # after the name of a layer in bytes
WITHIN: Final = 0.05  # of the logits' scale: another processor rounds otherwise, and a byte more or less follows


def save_packed(
    runtime: Packed, base: Checkpoint, path: str | os.PathLike[str], measurements: Mapping[str, Any] | None = None
) -> None:
    """Write a packed runtime, all or nothing; `base` is the checkpoint that it was packed from."""
    out = Path(path_text(path))
    if out.suffix != ".safetensors":
        raise InputError(f"a packed network is saved as NAME.safetensors, got {out.name!r}")
    if runtime.plan is None:
        raise InputError(f"nothing is packed here ({'; '.join(runtime.notes)}): save the checkpoint instead")
    check_overwrite(out)
    folded, dtypes = fold(base.model), Dtypes.of(runtime.plan)
    tensors = {PROOF: proof(runtime), FLOATS: proof(Packed(base))}
    for name, value in folded.state_dict().items():
        layer = name.removesuffix(".weight")
        if layer in runtime.plan.int8:
            tensors[name], tensors[layer + SCALES] = Int8Weight.of(value)
        else:
            tensors[name] = value.detach().to(dtypes.of_tensor(name) if value.is_floating_point() else value.dtype)
    description = {
        "format": FORMAT,
        "config": folded.config.to_dict(),
        "about": runtime.about.to_dict(),
        "plan": runtime.plan.to_dict(),
        "provenance": base.provenance.to_dict(),
        "measurements": dict(measurements or {}),
    }
    tensors = {name: value.contiguous() for name, value in tensors.items()}
    try:
        text = json.dumps(description | {"hash": content_hash(description, tensors)}, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"not saved: the description holds what JSON cannot carry ({error})") from None
    write_proven(out, tensors, {KEY: text}, open_packed)  # which lets it answer, too


def check_overwrite(out: Path) -> None:
    """Refuse to take the place of weights: those packed are less than those they were made from."""
    if out.exists() and not is_packed(out):
        raise InputError(f"{out} is there already, and is no packed network: choose another name")


def is_packed(path: str | os.PathLike[str]) -> bool:
    """Whether a file is one that `save_packed` wrote; false for anything that is no such file."""
    try:
        name = path_text(path)
        if name.startswith("vitrail:") or not os.path.isfile(name) or not name.endswith(".safetensors"):
            return False
        return KEY in read_safetensors(name).metadata
    except VitrailError:
        return False


def open_packed(path: str | os.PathLike[str], header: Safetensors | None = None) -> Packed:
    """The packed runtime of a file; everything in it is verified, and it answers as it did when it was written.

    The `header` is what `read_safetensors` says of the file, if it was read already.
    """
    stored, metadata = read_safetensors(path) if header is None else header
    name = path_text(path)
    if KEY not in metadata:
        raise CheckpointError(f"{name} is not a packed network: vitrail optimize and vitrail export --int8 make them")
    description = read_description(metadata[KEY], name, "a packed network", FORMAT, "make it again from its checkpoint")
    tensors = read_all(stored)
    expected = description.pop("hash", "")
    actual = content_hash(description, tensors)
    if actual != expected:
        raise CheckpointError(f"{name} is damaged: its content hash is {actual}, expected {expected}: get it anew")
    try:
        return _runtime(description, tensors)
    except VitrailError as error:
        raise CheckpointError(f"{name}: {error}") from error
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise CheckpointError(f"{name} is damaged: {type(error).__name__} {error}".splitlines()[0]) from None


def _runtime(description: Mapping[str, Any], tensors: dict[str, Tensor]) -> Packed:
    plan = QuantPlan.from_dict(description["plan"])
    usable, notes = possible_plan(plan)
    config, about = ViTConfig.from_dict(description["config"]), ModelInfo.from_dict(description["about"])
    model = build_empty(config)
    in_int8 = {name: Int8Weight(tensors[name + ".weight"], tensors[name + SCALES]) for name in plan.int8}
    if usable != plan:  # this machine lacks what the file was made for: back to floats
        tensors |= {name + ".weight": weight.to_float() for name, weight in in_int8.items()}
        in_int8 = {}
    _fill(model, tensors, in_int8)
    packed = model.float().eval() if usable is None else pack(model, usable, about.preprocess, in_int8)
    provenance, measurements = Provenance.from_dict(description["provenance"]), description["measurements"]
    runtime = Packed.of(packed, about, usable, notes + notes_of(packed), provenance, measurements)
    _check_proof(runtime, plan, tensors)
    return runtime


def _int8_within(moved: float) -> float:
    """How far an int8 network may be from itself, computed in another order: half as far as int8 moves its answers."""
    return min(LOOSELY, max(WITHIN, moved / 2))


def _check_proof(runtime: Packed, plan: QuantPlan, tensors: Mapping[str, Tensor]) -> None:
    """Refuse a network that answers otherwise than when it was written."""
    scale = logit_scale(runtime)

    def apart(logits: Tensor, expected: Tensor) -> float:
        return logits_apart(logits, expected[: len(logits)], scale, rounds=True)  # eager takes no bytes

    within = WITHIN
    if runtime.plan != plan or runtime.model.config.merge_per_block:
        within = LOOSELY
    elif plan.int8:
        in_int8 = tensors[PROOF]
        within = _int8_within(apart(in_int8, tensors[FLOATS][: len(in_int8)]))
    difference = apart(proof(runtime), tensors[PROOF if runtime.plan == plan else FLOATS])
    if not difference <= within:
        raise CheckpointError(
            f"it answers otherwise than when it was written: its logits on random pixels are {100 * difference:.2g} % "
            f"of their usual size away, expected at most {100 * within:.2g} %: make it again on this machine"
        )


def _fill(model: ViT, tensors: Mapping[str, Tensor], in_int8: Mapping[str, Int8Weight]) -> None:
    """Put the floats in their places; layers in int8 stay empty, for their weights come beside."""
    wanted = model.state_dict()
    for name, empty in wanted.items():
        if name.removesuffix(".weight") in in_int8:
            continue
        if name not in tensors or tensors[name].shape != empty.shape:
            raise CheckpointError(f"{name}: expected a tensor of shape {tuple(empty.shape)}")
        wanted[name] = tensors[name]
    model.load_state_dict(wanted, assign=True)
