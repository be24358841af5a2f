"""A checkpoint <-> one .safetensors file that cannot lose its parts.

The tensors stand under our names; all the rest is JSON in the file's metadata, with a hash over both. Saving writes
a temporary file, syncs it, reads it back and only then renames it; loading verifies everything or refuses, and holds
each weight in memory once.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from vitrail.checkpoint.checkpoint import DECODER, EXTRAS, FORMAT, Checkpoint
from vitrail.checkpoint.devices import find_device
from vitrail.checkpoint.provenance import Provenance
from vitrail.checkpoint.safetensors_io import (
    DTYPE_NAMES,
    Safetensors,
    StoredTensor,
    all_finite,
    bytes_of,
    check_storable,
    in_threads,
    lay_out,
    lay_out_described,
    read_safetensors,
    unique,
    write_safetensors,
)
from vitrail.checks import check_type, join_limited, short_repr
from vitrail.errors import CheckpointError, InputError, VitrailError
from vitrail.files import atomic_write, reason
from vitrail.images import Preprocess
from vitrail.images.model_info import EARLIER_TASKS
from vitrail.images.ood_detector import OodDetector
from vitrail.network.config import ViTConfig
from vitrail.network.masked import MaskedDecoder
from vitrail.network.surgery import build_empty
from vitrail.types import Device

EARLIER: Final = 2  # the format before this one: the same, but for the word of the task
KEY: Final = "vitrail"  # of our JSON in the file's metadata
UNSIGNED: Final = f"sha256:{64 * '0'}"  # as long as a hash
FITTED: Final = ("classes", "task", "temperature", "thresholds", "reject")


def save(checkpoint: Checkpoint, path: str | os.PathLike[str]) -> None:
    """Write a checkpoint to one file, all or nothing: an older file of that name stays until the new one is proven."""
    check_type("checkpoint", checkpoint, Checkpoint, error=InputError)
    if not isinstance(path, str | os.PathLike):
        raise InputError(f"expected a path to save to, got {type(path).__name__}")
    path = Path(path)
    if path.suffix != ".safetensors":
        raise InputError(f"a checkpoint is saved as NAME.safetensors, got {path.name!r}")
    check_storable(checkpoint.tensors())
    tensors = {name: value.detach().cpu().contiguous() for name, value in checkpoint.tensors().items()}
    seen = dict(zip(tensors, in_threads(_examine, tensors.values()), strict=True))
    _refuse_nan(seen, "not saved")
    description = checkpoint.describe()
    try:
        text = json.dumps(description | {"hash": _signature(description, seen)}, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"not saved: the description holds what JSON cannot carry ({error})") from None
    write_proven(path, tensors, {KEY: text}, load)


def save_streamed(checkpoint: Checkpoint, path: Path, read: Callable[[str], Tensor]) -> None:
    """The same one tensor at a time: `read` gives the values of each by its name, in the order of `storage_order`.

    Of the checkpoint's own tensors only kind and shape count; each is asked for once.
    """
    described, description = checkpoint.tensors(), checkpoint.describe()
    unsigned = lay_out_described(described, {KEY: json.dumps(description | {"hash": UNSIGNED}, allow_nan=False)})
    try:
        with atomic_write(path, check_streamed) as temporary, open(temporary, "wb") as file:
            file.write(unsigned.header)  # of the right length; the hash is known when all tensors were seen
            seen = {}
            for name in unsigned.order:
                tensor = read(name).detach().cpu().contiguous()
                seen[name] = _examine(tensor).forgotten()
                file.write(bytes_of(tensor))
            _refuse_nan(seen, "not saved")
            text = json.dumps(description | {"hash": _signature(description, seen)}, allow_nan=False)
            file.seek(0)
            file.write(lay_out_described(described, {KEY: text}).header)
    except OSError as error:
        raise CheckpointError(f"could not write {path} ({unsigned.size:,} bytes needed): {reason(error)}") from error


def check_streamed(path: str | os.PathLike[str]) -> None:
    """Verify a checkpoint as `load` does, one tensor at a time, without keeping any."""
    stored, metadata = read_safetensors(path)
    description = _description(path, metadata)
    _compare(path, stored, _described(path, _translated(description), len(stored)).tensors())
    _check_hash(path, description, {name: _examine(each.read()).forgotten() for name, each in stored.items()})


def write_proven(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str], prove: Callable[[Path], object]
) -> None:
    """Write a .safetensors file, all or nothing: it takes its name once `prove` has read it back without an error."""
    layout = lay_out(tensors, metadata)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path, prove) as temporary, open(temporary, "wb") as file:
            write_safetensors(file, layout, tensors)
    except OSError as error:
        raise CheckpointError(f"could not write {path} ({layout.size:,} bytes needed): {reason(error)}") from error


def load(path: str | os.PathLike[str], header: Safetensors | None = None, device: Device = "cpu") -> Checkpoint:
    """Read a checkpoint and verify it: description, names, shapes and hash. "vitrail:fashion" is built in.

    The `header` is what `read_safetensors` says of the file, if it was read already.
    """
    wanted = find_device(device)  # before there is any work
    stored, metadata = read_safetensors(path) if header is None else header
    description = _description(path, metadata)
    empty = _described(path, _translated(description), len(stored))
    _compare(path, stored, empty.tensors())
    seen = dict(zip(stored, in_threads(lambda each: _examine(each.read()), stored.values()), strict=True))
    _check_hash(path, description, seen)
    return _filled(empty, {name: each.tensor for name, each in seen.items()}).to(wanted)


def _check_hash(path: str | os.PathLike[str], description: dict[str, Any], seen: Mapping[str, _Examined]) -> None:
    """Refuse tensors that are not those which were written, and numbers that are none."""
    expected = description.pop("hash")
    signature = _signature(description, seen)
    if signature != expected:
        raise CheckpointError(
            f"{path} is damaged: its content hash is {signature}, expected {expected}: get the file anew"
        )
    _refuse_nan(seen, "refused")


def content_hash(description: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """A SHA-256 over the description and every tensor's name, kind, shape and own SHA-256."""
    plain = [tensor.detach().cpu().contiguous() for tensor in tensors.values()]
    return _signature(description, dict(zip(tensors, in_threads(_examine, plain), strict=True)))


class _Examined(NamedTuple):
    tensor: Tensor
    digest: str
    finite: bool

    def forgotten(self) -> _Examined:
        """The same without the values."""
        return self._replace(tensor=torch.empty(self.tensor.shape, dtype=self.tensor.dtype, device="meta"))


def _examine(tensor: Tensor) -> _Examined:
    """A tensor with the hash of its bytes, while they are at hand."""
    return _Examined(tensor, hashlib.sha256(bytes_of(tensor)).hexdigest(), all_finite(tensor))


def _signature(description: Mapping[str, Any], seen: Mapping[str, _Examined]) -> str:
    lines = [json.dumps(description, sort_keys=True, allow_nan=False)]
    for name in sorted(seen):
        tensor, digest, _ = seen[name]
        lines.append(json.dumps([name, DTYPE_NAMES[tensor.dtype], list(tensor.shape), digest]))
    return f"sha256:{hashlib.sha256(chr(10).join(lines).encode()).hexdigest()}"


def _description(path: str | os.PathLike[str], metadata: Mapping[str, str]) -> dict[str, Any]:
    """Our JSON in the metadata of a file, exactly as it was written."""
    if KEY not in metadata:
        raise CheckpointError(f"{path} has no Vitrail description: expected a file written by vitrail.save")
    try:
        description = json.loads(metadata[KEY], object_pairs_hook=unique)
        # 1e-06 and 1E-06 are one number: only the very text that was written is sure to be undamaged.
        if json.dumps(description, allow_nan=False) != metadata[KEY]:
            raise ValueError("it is not as it was written")
    except (ValueError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{path}: the description is damaged: {error}") from None
    if not isinstance(description, dict) or description.get("format") not in (EARLIER, FORMAT):
        got = description.get("format") if isinstance(description, dict) else description
        hint = "it was made by an older one: make it anew" if got == 1 else "it may need a newer Vitrail"
        raise CheckpointError(f"{path}: expected format {FORMAT}, got {short_repr(got)}: {hint}")
    for name in ("config", "decoder", "preprocess", *FITTED, "provenance", "hash"):
        if name not in description:
            raise CheckpointError(f"{path}: the description lacks {name!r}: the file is damaged")
    return description


def _translated(description: Mapping[str, Any]) -> Mapping[str, Any]:
    """The description of an earlier release's file in the words of this one; its hash is over its own."""
    if description["format"] != EARLIER:
        return description
    task = description["task"]
    return {**description, "task": EARLIER_TASKS.get(task, task) if isinstance(task, str) else task}


def _described(path: str | os.PathLike[str], description: Mapping[str, Any], count: int) -> Checkpoint:
    """What a description says, its networks without memory yet; `count` tensors are there to fill them."""
    try:
        config = ViTConfig.from_dict(description["config"])
        decoding = None if description["decoder"] is None else ViTConfig.from_dict(description["decoder"])
        depth = max(config.depth, decoding.depth if decoding else 0)
        if count < depth:  # each block has several: no need to build a thousand to see it
            raise CheckpointError(f"expected {depth} blocks, as the config says, got {count} tensors")
        with torch.device("meta"):
            decoder = MaskedDecoder(decoding, config.width).eval() if decoding else None
        return Checkpoint(
            build_empty(config).eval(),
            Preprocess.from_dict(description["preprocess"]),
            provenance=Provenance.from_dict(description["provenance"]),
            decoder=decoder,
            **{name: description[name] for name in FITTED},
            ood=OodDetector.from_dict(description["ood"]) if "ood" in description else None,
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path}: the description is damaged: {error}") from None
    except VitrailError as error:
        raise CheckpointError(f"{path}: {error}") from error


def _filled(empty: Checkpoint, tensors: Mapping[str, Tensor]) -> Checkpoint:
    """The same with its tensors, which are not copied."""
    empty.model.load_state_dict({name: tensors[name] for name in empty.model.state_dict()}, assign=True)
    if empty.decoder is not None:
        own = {name: tensors[DECODER + name] for name in empty.decoder.state_dict()}
        empty.decoder.load_state_dict(own, assign=True)
    extras = {name.removeprefix(EXTRAS): value for name, value in tensors.items() if name.startswith(EXTRAS)}
    return replace(empty, extras=extras)


def _compare(path: str | os.PathLike[str], stored: Mapping[str, StoredTensor], expected: Mapping[str, Tensor]) -> None:
    """Names, shapes and kinds in the file against those of the config, all differences in one message."""
    wrong = [f"missing {name}" for name in expected if name not in stored]
    wrong += [f"unexpected {name}" for name in stored if name not in expected and not name.startswith(EXTRAS)]
    both = [(name, expected[name], stored[name]) for name in expected if name in stored]
    wrong += [f"{n}: expected {list(a.shape)}, got {list(b.shape)}" for n, a, b in both if a.shape != b.shape]
    for name, ours, theirs in both:
        if theirs.dtype != ours.dtype and not (ours.is_floating_point() and theirs.dtype.is_floating_point):
            kind = "floats" if ours.is_floating_point() else DTYPE_NAMES[ours.dtype]
            wrong.append(f"{name}: expected {kind}, got {DTYPE_NAMES[theirs.dtype]}")
    if wrong:
        raise CheckpointError(f"{path}: the tensors do not fit the config: {join_limited(wrong)}")


def _refuse_nan(seen: Mapping[str, _Examined], what: str) -> None:
    for name, each in seen.items():
        if not each.finite:
            raise CheckpointError(f"{name} holds NaN or infinite values: {what}")
