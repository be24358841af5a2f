"""Checkpoint = model + preprocess + classes + provenance: one .safetensors file that cannot lose its parts.

The tensors stand under our names; all the rest is JSON in the file's metadata, with a hash over both. Saving writes
a temporary file, syncs it, reads it back and only then renames it; loading verifies everything or refuses.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from importlib import resources
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import safetensors
import torch
from safetensors.torch import load as read_tensors
from safetensors.torch import save as write_tensors
from torch import Tensor

from vitrail.checks import instance
from vitrail.errors import CheckpointError, InputError, VitrailError, nearest
from vitrail.images import Preprocess
from vitrail.network.config import ViTConfig
from vitrail.network.modes import evaluating
from vitrail.network.vit import ViT, on_meta

FORMAT: Final = 1
KEY: Final = "vitrail"  # of our JSON in the file's metadata
TASKS: Final = ("one", "several")  # labels an image may have
BUILT_IN: Final = ("glass",)
LARGEST_HEADER: Final = 32 * 2**20
FLOATS: Final = ("F64", "F32", "F16", "BF16")  # what weights may be, in the words of the file


@dataclass(frozen=True)
class Provenance:
    """Where a checkpoint came from; empty where not known."""

    source: str = ""
    licence: str = ""
    run: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)
    notes: str = ""


@dataclass(frozen=True)
class Checkpoint:
    """A network with all that its use needs; also a runtime that `predict` and `embed` take."""

    model: ViT
    preprocess: Preprocess
    classes: tuple[str, ...] = ()  # empty: numbers stand for names
    provenance: Provenance = field(default_factory=Provenance)
    task: str = "one"  # or "several": labels independent of each other
    temperature: float | None = None  # fitted on held-out data; None: probabilities are not calibrated
    thresholds: tuple[float, ...] | None = None  # per class, for several labels
    reject: float | None = None  # answers less sure than this are left open

    def __post_init__(self) -> None:
        for name, kind in (("model", ViT), ("preprocess", Preprocess), ("provenance", Provenance)):
            instance(name, getattr(self, name), kind, error=CheckpointError)
        count = self.model.config.classes
        classes = self.classes
        for name in ("classes", "thresholds"):
            value = getattr(self, name)
            if isinstance(value, str) or not (value is None or isinstance(value, Iterable)):
                raise CheckpointError(f"{name}: expected a list, got {value!r:.80}")
        if not classes and count:
            classes = tuple(str(number) for number in range(count))
        object.__setattr__(self, "classes", tuple(classes))
        if self.thresholds is not None:
            object.__setattr__(self, "thresholds", tuple(self.thresholds))
        if self.task not in TASKS:
            raise CheckpointError(f"task {self.task!r} is unknown: {nearest(str(self.task), TASKS)}")
        self._validate_classes()
        self._validate_pixels()
        self._validate_numbers()

    def _validate_classes(self) -> None:
        count = self.model.config.classes
        if len(self.classes) != count:
            raise CheckpointError(f"expected {count} class names, as the head has, got {len(self.classes)}")
        if any(not isinstance(name, str) or not name for name in self.classes):
            raise CheckpointError("class names must be text, and none may be empty")
        twice = [name for name, times in Counter(self.classes).items() if times > 1]
        if twice:
            raise CheckpointError(f"class names must differ, got twice: {', '.join(twice[:5])}")

    def _validate_pixels(self) -> None:
        config, size = self.model.config, self.preprocess.size
        if self.preprocess.channels != config.channels:
            raise CheckpointError(
                f"the network takes {config.channels} channels, the preprocessing gives {self.preprocess.channels}"
            )
        config.grid_for(size)
        if config.fixed_size and size != config.image_size:
            raise CheckpointError(f"the network takes only {config.image_size}, the preprocessing gives {size}")

    def _validate_numbers(self) -> None:
        count = self.model.config.classes
        if self.temperature is not None and not (_finite(self.temperature) and self.temperature > 0):
            raise CheckpointError(f"temperature: expected a positive number, got {self.temperature!r}")
        if self.thresholds is not None and len(self.thresholds) != count:
            raise CheckpointError(f"thresholds: expected {count}, got {len(self.thresholds)}")
        for name, value in (("reject", self.reject), *(("thresholds", each) for each in self.thresholds or ())):
            if value is not None and not (_finite(value) and 0 <= value <= 1):
                raise CheckpointError(f"{name}: expected a number from 0 to 1, got {value!r}")

    def run(self, pixels: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Pixels (B, C, H, W) -> logits (B, K) and embedding (B, D), as arrays: the eager runtime."""
        if not isinstance(pixels, np.ndarray) or pixels.dtype.kind != "f":
            got = getattr(pixels, "dtype", type(pixels).__name__)
            raise InputError(f"expected pixels as a float array, got {got}: pictures go through .preprocess")
        parameter = next(self.model.parameters())
        with evaluating(self.model), torch.inference_mode():  # a network in training would answer by chance
            tensor = torch.from_numpy(pixels).to(parameter.device, parameter.dtype)
            embedding = self.model.embed(tensor)
            logits = self.model.head(embedding)
        if embedding.ndim == 3:
            if self.model.config.pool == "none":
                raise InputError("this network has no pool: use vitrail.trace or model.features for its tokens")
            embedding = embedding.mean(dim=1)  # of the cls and the distillation token
        return logits.float().cpu().numpy(), embedding.float().cpu().numpy()

    def describe(self) -> dict[str, Any]:
        """All but the tensors, as plain values for JSON."""
        return {
            "format": FORMAT,
            "config": self.model.config.to_dict(),
            "preprocess": self.preprocess.to_dict(),
            "classes": list(self.classes),
            "task": self.task,
            "temperature": self.temperature,
            "thresholds": None if self.thresholds is None else list(self.thresholds),
            "reject": self.reject,
            "provenance": asdict(self.provenance) | {"metrics": dict(self.provenance.metrics)},
        }


def save(checkpoint: Checkpoint, path: str | os.PathLike[str]) -> None:
    """Write a checkpoint to one file, all or nothing: an older file of that name stays until the new one is proven."""
    instance("checkpoint", checkpoint, Checkpoint, error=InputError)
    if not isinstance(path, str | os.PathLike):
        raise InputError(f"expected a path to save to, got {type(path).__name__}")
    path = Path(path)
    if path.suffix != ".safetensors":
        raise InputError(f"a checkpoint is saved as NAME.safetensors, got {path.name!r}")
    tensors = {name: value.detach().cpu().contiguous() for name, value in checkpoint.model.state_dict().items()}
    _refuse_nan(tensors, "not saved")
    description = checkpoint.describe()
    try:
        text = json.dumps(description | {"hash": content_hash(description, tensors)}, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"not saved: the description holds what JSON cannot carry ({error})") from None
    data = write_tensors(tensors, {KEY: text})
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        load(temporary)  # read it back before it takes the name
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except OSError as error:
        raise CheckpointError(f"could not write {path} ({len(data):,} bytes needed): {_reason(error)}") from error
    finally:
        with suppress(OSError):
            temporary.unlink()


def load(path: str | os.PathLike[str]) -> Checkpoint:
    """Read a checkpoint and verify it: description, names, shapes and hash. "vitrail:glass" is built in."""
    raw = _read(path)
    header, description = raw.header, raw.description
    try:
        config = ViTConfig.from_dict(description["config"])
        preprocess = Preprocess.from_dict(description["preprocess"])
        stored = description["hash"]
        rest = {name: description[name] for name in ("classes", "task", "temperature", "thresholds", "reject")}
        known = {each.name for each in fields(Provenance)}
        provenance = Provenance(**{k: v for k, v in description["provenance"].items() if k in known})
    except KeyError as error:
        raise CheckpointError(f"{path}: the description lacks {error.args[0]!r}: the file is damaged") from None
    except (TypeError, AttributeError) as error:
        raise CheckpointError(f"{path}: the description is damaged: {error}") from None
    except VitrailError as error:
        raise CheckpointError(f"{path}: {error}") from error
    if len(header) < config.depth:  # each block has several: no need to build a thousand to see it
        raise CheckpointError(f"{path}: expected {config.depth} blocks, as the config says, got {len(header)} tensors")
    model = on_meta(config)
    _compare(path, header, model)
    try:
        tensors = read_tensors(raw.data)
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} is damaged: {error}") from None
    found = content_hash({name: value for name, value in description.items() if name != "hash"}, tensors)
    if found != stored:
        raise CheckpointError(f"{path} is damaged: its content hash is {found}, expected {stored}: get the file anew")
    _refuse_nan(tensors, "refused")
    model.load_state_dict(tensors, assign=True)
    try:
        return Checkpoint(model.eval(), preprocess, provenance=provenance, **rest)
    except (TypeError, VitrailError) as error:
        raise CheckpointError(f"{path}: {error}") from error


def content_hash(description: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """A SHA-256 over the description and every tensor's name, kind, shape and bytes."""
    digest = hashlib.sha256(json.dumps(description, sort_keys=True, allow_nan=False).encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return f"sha256:{digest.hexdigest()}"


class _Raw(NamedTuple):
    data: bytes
    header: dict[str, Any]
    description: dict[str, Any]


def _read(path: str | os.PathLike[str]) -> _Raw:
    """The bytes of a file in memory, its header and our description in it; the tensors are not looked at yet."""
    data = _bytes(path)
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > min(len(data) - 8, LARGEST_HEADER):
        raise CheckpointError(f"{path} is not a safetensors file, or is cut short: expected NAME.safetensors")
    try:
        header = json.loads(data[8 : 8 + length], object_pairs_hook=_unique)
        metadata = header.pop("__metadata__", {})
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{path} is not a safetensors file: its header cannot be read ({error})") from None
    if not isinstance(metadata, dict) or KEY not in metadata:
        raise CheckpointError(f"{path} has no Vitrail description: expected a file written by vitrail.save")
    try:
        description = json.loads(metadata[KEY], object_pairs_hook=_unique)
        # 1e-06 and 1E-06 are one number: only the very text that was written is sure to be undamaged.
        if json.dumps(description, allow_nan=False) != metadata[KEY]:
            raise ValueError("it is not as it was written")
    except (ValueError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{path}: the description is damaged: {error}") from None
    if not isinstance(description, dict) or description.get("format") != FORMAT:
        got = description.get("format") if isinstance(description, dict) else description
        raise CheckpointError(f"{path}: expected format {FORMAT}, got {got!r}: it may need a newer Vitrail")
    return _Raw(data, header, description)


def _bytes(path: str | os.PathLike[str]) -> bytes:
    if not isinstance(path, str | os.PathLike):
        raise InputError(f"expected the path of a checkpoint, got {type(path).__name__}")
    text = os.fspath(path)
    try:
        if text.startswith("vitrail:"):
            name = text.removeprefix("vitrail:")
            if name not in BUILT_IN:
                raise CheckpointError(
                    f"no built-in checkpoint {text!r}: {nearest(text, [f'vitrail:{each}' for each in BUILT_IN])}"
                )
            return (resources.files("vitrail") / "data" / f"{name}.safetensors").read_bytes()
        place = Path(text)
        if place.is_dir():
            raise CheckpointError(f"{text} is a folder: name the .safetensors file in it")
        if not place.is_file():
            raise CheckpointError(f"no checkpoint {text}: expected a .safetensors file, or vitrail:{BUILT_IN[0]}")
        return place.read_bytes()
    except OSError as error:
        raise CheckpointError(f"could not read {text}: {_reason(error)}") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """JSON objects with every name once; json alone would silently keep the last."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands there twice")
    return found


def _compare(path: str | os.PathLike[str], header: Mapping[str, Any], model: ViT) -> None:
    """Names and shapes in the file against those of the config, all differences in one message."""
    expected = {name: list(value.shape) for name, value in model.state_dict().items()}
    got = {name: entry.get("shape") if isinstance(entry, dict) else None for name, entry in header.items()}
    wrong = [f"missing {name}" for name in expected if name not in got]
    wrong += [f"unexpected {name}" for name in got if name not in expected]
    wrong += [f"{n}: expected {expected[n]}, got {got[n]}" for n in expected if n in got and expected[n] != got[n]]
    for name, value in model.state_dict().items():
        kind = header[name].get("dtype") if isinstance(header.get(name), dict) else None
        if kind and kind not in (FLOATS if value.is_floating_point() else ("I64",)):
            wrong.append(f"{name}: expected {'floats' if value.is_floating_point() else 'I64'}, got {kind}")
    if wrong:
        more = f" and {len(wrong) - 8} more" if len(wrong) > 8 else ""
        raise CheckpointError(f"{path}: the tensors do not fit the config: {'; '.join(wrong[:8])}{more}")


def _refuse_nan(tensors: Mapping[str, Tensor], what: str) -> None:
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise CheckpointError(f"{name} holds NaN or infinite values: {what}")


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


def _sync_folder(folder: Path) -> None:
    """Make the new name last through a power cut."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
