"""A folder as transformers, timm or open_clip write it -> which files hold its weights, and the JSON beside them."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from vitrail.checkpoint.safetensors_io import refuse_constant, unique
from vitrail.checks import join_limited
from vitrail.errors import CheckpointError
from vitrail.files import ReadOnlyFile, best_of_run, reason

SIDECARS: Final = ("config.json", "preprocessor_config.json", "processor_config.json", "open_clip_config.json")
LARGEST_JSON: Final = 4 * 2**20
MOST_VALUES: Final = 400_000  # lists, objects and entries in one JSON file
DEEPEST_JSON: Final = 32
MOST_SHARDS: Final = 1000
REMOTE_CODE: Final = ("auto_map", "trust_remote_code")  # a file that names these wants code of its own to be run
UNITS: Final = ("model.safetensors", "open_clip_model.safetensors", "pytorch_model.bin", "open_clip_pytorch_model.bin")
ENDINGS: Final = (".pth", ".pt", ".bin", ".npz", ".ckpt", ".pkl")


@dataclass(frozen=True)
class WeightFiles:
    """The files of a folder that hold its weights; with several, which holds which tensor."""

    files: tuple[Path, ...]
    index: Mapping[str, str] = field(default_factory=dict)  # name of a tensor -> name of its file
    sidecars: Mapping[str, Any] = field(default_factory=dict)


def find_weights(folder: Path) -> WeightFiles:
    """The weights of a folder: safetensors if there are any, and nothing else is then opened."""
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise CheckpointError(f"could not read {folder}: {reason(error)}") from error
    if ".metadata" in names:
        raise CheckpointError(
            f"{folder} is a distributed checkpoint (DCP), whose .metadata is a pickle: refused. Where it was made, "
            "torch.distributed.checkpoint.format_utils.dcp_to_torch_save turns it into one file"
        )
    sidecars = read_sidecars(folder)
    chosen = _choose(folder, names)
    if chosen.endswith(".index.json"):
        index = _read_index(folder, chosen)
        files = tuple(_inside(folder, name) for name in dict.fromkeys(index.values()))
        _refuse_twins(folder, files)
        return WeightFiles(files, index, sidecars)
    return WeightFiles((_inside(folder, chosen),), {}, sidecars)


def read_sidecars(folder: Path) -> dict[str, Any]:
    """The JSON files beside the weights, by name; refused where they ask for code to be run."""
    sidecars = {name: read_json(_inside(folder, name)) for name in SIDECARS if os.path.lexists(folder / name)}
    for name, values in sidecars.items():
        objects = [each for _, each in _containers(values) if isinstance(each, dict)]
        asked = next((key for each in objects for key in REMOTE_CODE if key in each), None)
        if asked is not None:
            raise CheckpointError(
                f"{folder / name} asks for code of its own ({asked}), which is never run here: if its weights are of a "
                "known family, take that entry out"
            )
    return sidecars


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a small file: every name once, every number finite, not nested too deep."""
    file = ReadOnlyFile(path)
    if file.size > LARGEST_JSON:
        raise CheckpointError(f"{path}: {file.size:,} bytes of JSON, at most {LARGEST_JSON:,} are read")
    data = file.read(0, file.size)
    try:
        if sum(data.count(sign) for sign in b"[{,") > MOST_VALUES:
            raise ValueError(f"it holds more than {MOST_VALUES:,} values")
        text = data.decode("utf-8-sig")
        plain = json.loads(text, object_pairs_hook=unique, parse_constant=refuse_constant, parse_float=_finite)
        if not isinstance(plain, dict):
            raise ValueError(f"expected an object, got a {type(plain).__name__}")
        if max(depth for depth, _ in _containers(plain)) > DEEPEST_JSON:
            raise ValueError(f"it is nested more than {DEEPEST_JSON} deep")
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: JSON that cannot be used: {error!s:.200}") from None
    return plain


def _choose(folder: Path, names: list[str]) -> str:
    """The one file that holds the weights, or that says which do; an error lists the choice where there is one."""
    for name in ("model.safetensors", "model.safetensors.index.json", "open_clip_model.safetensors"):
        if name in names:
            return name
    tensors = [name for name in names if name.endswith(".safetensors")]
    if tensors:
        return _only(folder, tensors)
    for name in ("pytorch_model.bin", "pytorch_model.bin.index.json", "open_clip_pytorch_model.bin"):
        if name in names:
            return name
    others = [name for name in names if name.endswith(ENDINGS)]
    if others:
        return _only(folder, others)
    raise CheckpointError(f"{folder}: no weights in this folder: {_instead(folder, names)}")


def _only(folder: Path, names: list[str]) -> str:
    if len(names) > 1:
        raise CheckpointError(f"{folder} holds several files of weights: name one of {join_limited(names, ', ')}")
    return names[0]


def _instead(folder: Path, names: list[str]) -> str:
    """What a folder without weights holds instead."""
    if "saved_model.pb" in names or "checkpoint" in names or any(name.endswith(".index") for name in names):
        return "it seems to be TensorFlow's: convert it where TensorFlow is installed"
    if "snapshots" in names:
        return f"name one of its snapshots, {folder / 'snapshots'}/..."
    runs = [str(folder / name) for name in names if best_of_run(str(folder / name)) != str(folder / name)]
    if runs:
        return f"name one of its runs: {join_limited(runs, ', ')}"
    inside = ", ".join(f"{name!r:.60}" for name in names[:8]) or "nothing"
    return f"it holds {inside}{', ...' if len(names) > 8 else ''}; expected model.safetensors or the like"


def _read_index(folder: Path, name: str) -> dict[str, str]:
    """Which file holds which tensor, each a plain name of a file that lies in the folder."""
    path = _inside(folder, name)
    index = read_json(path).get("weight_map")
    if not isinstance(index, dict) or not index or not all(isinstance(shard, str) for shard in index.values()):
        raise CheckpointError(f"{path}: expected a weight_map from names of tensors to names of files")
    ending = ".safetensors" if name.startswith("model.") else ".bin"
    shards = sorted(set(index.values()))
    for shard in shards:
        plain = shard == os.path.basename(shard) and "\\" not in shard and shard.isprintable()
        if not plain or shard.startswith(".") or not shard.endswith(ending):
            raise CheckpointError(f"{path}: {shard!r:.80} is no plain name of a {ending} file in the folder: refused")
        if not os.path.lexists(folder / shard):
            raise CheckpointError(f"{path}: the file {shard} is missing: get the folder anew")
    if len(shards) > MOST_SHARDS:
        raise CheckpointError(f"{path}: {len(shards):,} files, at most {MOST_SHARDS:,} are read")
    return index


def _inside(folder: Path, name: str) -> Path:
    """A file of the folder; a link must stay in it, or among the blobs of the cache that the folder is part of."""
    path = folder / name
    if not os.path.islink(path):
        return path
    try:
        root, target = folder.resolve(), path.resolve()
    except (OSError, RuntimeError) as error:  # a loop of links
        raise CheckpointError(f"{path}: a link that leads nowhere ({error})") from None
    allowed = [root]
    cache = root.parent.parent  # models--OWNER--NAME/snapshots/HASH/config.json -> ../../blobs/HASH
    if root.parent.name == "snapshots" and cache.name.startswith("models--"):
        allowed.append(cache / "blobs")
    if not any(target.is_relative_to(each) for each in allowed):
        raise CheckpointError(f"{path} is a link out of its folder, to {target}: refused")
    return target


def _refuse_twins(folder: Path, files: tuple[Path, ...]) -> None:
    """Two names of one file."""
    seen: dict[tuple[int, int], str] = {}
    for path in files:
        try:
            about = path.stat()
        except OSError as error:
            raise CheckpointError(f"could not read {path}: {reason(error)}") from error
        other = seen.setdefault((about.st_dev, about.st_ino), path.name)
        if other != path.name:
            raise CheckpointError(f"{folder}: {other} and {path.name} are one and the same file: refused")


def _containers(plain: Any) -> Iterator[tuple[int, Any]]:
    """Every object and list in parsed JSON, with how deep it lies."""
    todo = [(1, plain)]
    while todo:
        depth, each = todo.pop()
        if isinstance(each, dict | list):
            yield depth, each
            todo += [(depth + 1, inner) for inner in (each.values() if isinstance(each, dict) else each)]


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text:.40} is too large a number")
    return value
