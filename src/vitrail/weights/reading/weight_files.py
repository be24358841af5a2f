"""open_contents: the path of a file or folder of weights -> WeightContents, decided by the bytes, not by the name."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from vitrail.checkpoint.safetensors_io import Safetensors, StoredTensor, read_safetensors
from vitrail.checks import check_type, join_limited
from vitrail.errors import CheckpointError, InputError
from vitrail.files import ReadOnlyFile, path_text
from vitrail.weights.reading import npz_arrays, pickles
from vitrail.weights.reading.contents import WeightContents
from vitrail.weights.reading.model_folders import UNITS, WeightFiles, find_weights, read_sidecars
from vitrail.weights.reading.sniff import name_suspect, name_tree
from vitrail.weights.reading.unpickler import printable

# Under what training programs keep weights, best first: averages of the weights are what one wants to use.
COPIES: Final = (
    *("model_ema", "state_dict_ema", "ema_state_dict", "ema", "teacher"),
    *("state_dict", "model", "module", "student", "backbone", "net", "weights"),
)
PREFIXES: Final = ("module.", "_orig_mod.", "model.", "backbone.")
OF_TRANSFORMERS: Final = ("model.", "backbone.")  # parts of its own names, where a config.json lies beside the weights
DEEPEST: Final = 8  # copies within copies
LONGEST_NAME: Final = 500
MOST_OTHERS: Final = 100


def open_contents(path: str | os.PathLike[str], take: str = "", header: Safetensors | None = None) -> WeightContents:
    """What a file or folder holds, no tensor read yet; take names one of several copies in a file.

    The `header` is what `read_safetensors` says of the file, if it was read already.
    """
    source = path_text(path)
    check_type("take", take, str, error=InputError)
    file = Path(source)
    if os.path.isdir(source):
        weights = find_weights(file)
    elif file.name in UNITS and os.path.isfile(source):  # the folder is the unit
        weights = WeightFiles((file,), {}, read_sidecars(file.parent))
    else:
        weights = WeightFiles((file,))
    raws = [_open(each) for each in weights.files] if header is None else [_Raw("safetensors", *header)]
    raw = raws[0] if not weights.index else _joined(source, weights, raws)
    tensors, wrapper, others = _unwrap(source, raw.tree, take)
    of_transformers = raw.kind == "safetensors" and "config.json" in weights.sidecars
    tensors, prefixes = _without_prefixes(tensors, OF_TRANSFORMERS if of_transformers else ())
    return WeightContents(
        source=source,
        kind=raw.kind,
        tensors=tensors,
        wrapper=", ".join((*wrapper, *prefixes)),
        others=tuple(others),
        metadata=raw.metadata,
        sidecars=weights.sidecars,
    )


class _Raw(NamedTuple):
    """What a file holds as it stands there."""

    kind: str
    tree: Any
    metadata: dict[str, str]


def _open(path: Path) -> _Raw:
    """One file, by its first bytes."""
    head = ReadOnlyFile(path).read(0, 4096)
    length = int.from_bytes(head[:8], "little")
    if head[8:9] == b"{" and length < 2**32:
        return _Raw("safetensors", *read_safetensors(path))
    if head.startswith(b"PK\3\4"):
        first = head[30 : 30 + int.from_bytes(head[26:28], "little")]
        if first.endswith(b".npy"):
            return _Raw("npz", npz_arrays.read_npz(path), {})
        return _Raw("pickle", pickles.read_pickle(path), {})
    if head[:1] in (b"\x80", b"(", b"c", b"]", b"}"):
        return _Raw("pickle", pickles.read_pickle(path), {})
    raise CheckpointError(f"{path} {name_suspect(head, path)}")


def _joined(source: str, weights: WeightFiles, raws: list[_Raw]) -> _Raw:
    """Several files as one: every tensor in the file that the index names, none elsewhere, none besides."""
    tree: dict[str, Any] = {}
    metadata: dict[str, str] = {}
    names = list(dict.fromkeys(weights.index.values()))
    for name, raw in zip(names, raws, strict=True):
        if not isinstance(raw.tree, dict) or raw.kind != raws[0].kind:
            raise CheckpointError(f"{source}: {name} holds no tensors by name, or is of another kind than {names[0]}")
        for tensor, value in raw.tree.items():
            if not isinstance(value, StoredTensor):
                continue
            shown = printable(str(tensor))
            if tensor in tree:
                raise CheckpointError(f"{source}: {shown} is both in {weights.index[tensor]} and in {name}")
            if weights.index.get(tensor) != name:
                expected = weights.index.get(tensor, "no file")
                raise CheckpointError(f"{source}: {shown} is in {name}, but the index says {expected}")
            tree[tensor] = value
        metadata |= raw.metadata
    missing = [printable(tensor) for tensor in weights.index if tensor not in tree]
    if missing:
        raise CheckpointError(f"{source}: not in the file that the index names: {_listed(missing)}")
    return _Raw(raws[0].kind, tree, metadata)


def _unwrap(source: str, tree: Any, take: str) -> tuple[dict[str, StoredTensor], list[str], list[str]]:
    """Go in where the weights are: the copy that was asked for, or the best, level by level.

    Tensors by name, what was taken off around them, and what else was there.
    """
    wrapper: list[str] = []
    others: list[str] = []
    asked = take
    for _ in range(DEEPEST):
        if not isinstance(tree, dict):
            what = "a single tensor without a name" if isinstance(tree, StoredTensor) else f"a {type(tree).__name__}"
            raise CheckpointError(f"{source} holds {what}: expected tensors by name, as model.state_dict() gives them")
        named = name_tree(tree)
        if named:
            inside = f" (under {', '.join(wrapper)})" if wrapper else ""
            raise CheckpointError(f"{source}{inside} {named}")
        inner = _choose(source, tree, asked)
        rest = [key for key, value in tree.items() if key != inner and (inner or not _is_weight(key, value))]
        others += [printable(str(key)) for key in rest[:MOST_OTHERS]]
        if not inner:
            break
        wrapper.append(inner)
        tree, asked = tree[inner], ""
    tensors = {name: value for name, value in tree.items() if _is_weight(name, value)}
    if not tensors:
        held = _listed([printable(str(key)) for key in list(tree)[:20]]) or "nothing"
        raise CheckpointError(f"{source} holds no tensors by name; it holds {held}")
    for name in tensors:
        if not name.isprintable() or not 0 < len(name) <= LONGEST_NAME:
            raise CheckpointError(f"{source}: {name!r:.80} cannot be the name of a tensor: the file is damaged")
    return tensors, wrapper, others[:MOST_OTHERS]


def _choose(source: str, tree: Mapping[Any, Any], asked: str) -> str:
    """The entry of a dict to go into; "" where the dict itself holds the weights, or nothing does."""
    holders = _holders(tree)
    copies = [key for key, value in tree.items() if isinstance(key, str) and id(value) in holders]
    if asked:
        if asked in copies:
            return asked
        if not copies:
            raise InputError(f"{source} holds one set of tensors, and no {asked!r:.80} to take: leave `take` away")
        raise InputError(f"{source} has no {asked!r:.80} to take: expected one of: {_listed(map(printable, copies))}")
    for name in COPIES:
        if name in copies:
            return name
    if not copies or any(isinstance(value, StoredTensor) for value in tree.values()):
        return ""
    nets = [key for key in copies if not name_tree(tree[key])]
    if len(nets) > 1:
        raise CheckpointError(f"{source} holds several sets of tensors, take one of: {_listed(map(printable, nets))}")
    return (nets or copies)[0]


def _holders(tree: Mapping[Any, Any]) -> set[int]:
    """The dicts in and below this one that hold tensors at any depth, by identity; mapping is looked at once."""
    parents: dict[int, list[int]] = {}
    todo, seen, holding = [tree], {id(tree)}, []
    while todo:
        mapping = todo.pop()
        for inner in mapping.values():
            if isinstance(inner, StoredTensor):
                holding.append(id(mapping))
            elif isinstance(inner, dict):
                parents.setdefault(id(inner), []).append(id(mapping))
                if id(inner) not in seen:
                    seen.add(id(inner))
                    todo.append(inner)
    holders: set[int] = set()
    while holding:
        number = holding.pop()
        if number not in holders:
            holders.add(number)
            holding += parents.get(number, [])
    return holders


def _is_weight(name: Any, value: Any) -> bool:
    return isinstance(name, str) and isinstance(value, StoredTensor)


def _without_prefixes(
    tensors: dict[str, StoredTensor], kept: tuple[str, ...]
) -> tuple[dict[str, StoredTensor], list[str]]:
    """Names without what stands before all of them, and what that was; the order of the tensors stays."""
    wrapper: list[str] = []
    prefixes = [each for each in PREFIXES if each not in kept]
    while prefix := next((each for each in prefixes if _before_all(each, tensors)), ""):
        tensors = {name.removeprefix(prefix): value for name, value in tensors.items()}
        wrapper.append(prefix)
    if "backbone." in prefixes:
        inner = [name for name in tensors if name.startswith("backbone.") and name != "backbone."]
        outer = [name for name in tensors if not name.startswith("backbone.")]
        bare = {name.removeprefix("backbone.") for name in inner}
        # DINO keeps the network and its projection head side by side.
        if inner and outer and bare.isdisjoint(outer) and all(_of_head(name) for name in outer):
            tensors = {name.removeprefix("backbone."): value for name, value in tensors.items()}
            wrapper.append(f"backbone. (of {len(inner)} of {len(tensors)} tensors)")
    return tensors, wrapper


def _before_all(prefix: str, names: Iterable[str]) -> bool:
    return all(name.startswith(prefix) and len(name) > len(prefix) for name in names)


def _of_head(name: str) -> bool:
    return name.partition(".")[0].endswith("head")


def _listed(names: Iterable[str]) -> str:
    return join_limited(list(names), ", ", most=12)
