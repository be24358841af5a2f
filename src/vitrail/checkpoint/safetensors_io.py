"""A .safetensors file -> its tensors by name, still in the file; each is read when asked for, into fresh memory.

The header is checked in full before anything else is looked at. The file is never mapped into memory: one that shrinks
while it is read is then an error, and not the end of the process.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import resources
from typing import IO, Any, Final, NamedTuple, TypeVar

import torch
from torch import Tensor

from vitrail.checks import short_repr
from vitrail.errors import CheckpointError, nearest
from vitrail.files import ReadOnlyFile, path_text

BUILT_IN: Final = ("fashion", "glass")
LARGEST_HEADER: Final = 32 * 2**20  # bytes
MOST_TENSORS: Final = 20_000
MOST_DIMENSIONS: Final = 32
LARGEST_DIMENSION: Final = 2**40
LARGEST_VOLUME: Final = 2**60  # strides, and bytes, then stay below 2**63
THREADS: Final = 4  # at work on the tensors of one file
DTYPES: Final = {  # kinds of number as the file calls them, in the order a writer lays them: wide ones first
    "I64": torch.int64,
    "F64": torch.float64,
    "F32": torch.float32,
    "I32": torch.int32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
DTYPE_NAMES: Final = {kind: word for word, kind in DTYPES.items()}
ENTRY: Final = {"dtype", "shape", "data_offsets"}  # what the header says of a tensor

Item = TypeVar("Item")
Result = TypeVar("Result")


class StoredTensor(NamedTuple):
    """A tensor that still lies in its file; `read` gives its values in fresh memory."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    read: Callable[[], Tensor]


class Safetensors(NamedTuple):
    """What a .safetensors file holds: tensors, in the order they lie there, and metadata."""

    tensors: dict[str, StoredTensor]
    metadata: dict[str, str]


def read_safetensors(path: str | os.PathLike[str]) -> Safetensors:
    """Read and check the header of a file; no tensor is read yet. "vitrail:fashion" is built in."""
    name = path_text(path)
    try:
        file = _open(name)
        header, body = _header(file)
    except CheckpointError:
        raise
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{name} is not a safetensors file: its header cannot be read ({error})") from None
    try:
        metadata = _metadata(header.pop("__metadata__", {}))
        entries = [_entry(tensor, plain) for tensor, plain in header.items()]
        entries.sort(key=lambda each: (each.start, each.end))
        _check_layout(entries, file.size - body)
    except ValueError as error:
        raise CheckpointError(f"{name} is damaged: {error}") from None
    tensors = {each.name: StoredTensor(each.shape, each.dtype, partial(_read, file, body, each)) for each in entries}
    return Safetensors(tensors, metadata)


def read_all(stored: Mapping[str, StoredTensor]) -> dict[str, Tensor]:
    """All these tensors in memory, several read at once."""
    return dict(zip(stored, in_threads(lambda each: each.read(), stored.values()), strict=True))


def in_threads(work: Callable[[Item], Result], given: Iterable[Item], threads: int = THREADS) -> list[Result]:
    """The same work on each, several at once; results in order, or the first error."""
    with ThreadPoolExecutor(threads, "vitrail") as pool:
        return list(pool.map(work, given))


class FileLayout(NamedTuple):
    """How a .safetensors file would be written: its first bytes, then these tensors in this order."""

    header: bytes  # its length included
    order: list[str]
    size: int  # of the whole file


def lay_out(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> FileLayout:
    """Header and order of a file: a function of names, kinds and shapes, whatever their order."""
    check_storable(tensors)
    return lay_out_described(tensors, metadata)


def storage_order(tensors: Mapping[str, Tensor]) -> list[str]:
    """Names in the order in which their tensors lie in a file."""
    return sorted(tensors, key=lambda name: (list(DTYPE_NAMES).index(tensors[name].dtype), name.encode()))


def lay_out_described(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> FileLayout:
    """The same where values are not at hand yet: of the tensors nothing counts but kind and shape."""
    order = storage_order(tensors)
    entries: dict[str, Any] = {"__metadata__": dict(metadata)}
    end = 0
    for name in order:
        start, end = end, end + tensors[name].numel() * tensors[name].dtype.itemsize
        kind, shape = DTYPE_NAMES[tensors[name].dtype], list(tensors[name].shape)
        entries[name] = {"dtype": kind, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that every tensor lies at a multiple of its numbers' size
    return FileLayout(len(text).to_bytes(8, "little") + text, order, 8 + len(text) + end)


def check_storable(tensors: Mapping[str, Tensor]) -> None:
    """Refuse what such a file cannot hold."""
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor) or tensor.layout != torch.strided or tensor.is_meta:
            raise CheckpointError(f"{name}: expected a tensor with its values in memory, got {short_repr(tensor)}")
        if tensor.dtype not in DTYPE_NAMES:
            kinds = ", ".join(str(kind).removeprefix("torch.") for kind in DTYPE_NAMES)
            raise CheckpointError(f"{name}: expected numbers of kind {kinds}, got {tensor.dtype}: convert them")


def write_safetensors(file: IO[bytes], layout: FileLayout, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors that lie in the processor's memory, straight from there."""
    file.write(layout.header)
    for name in layout.order:
        file.write(bytes_of(tensors[name]))


def as_numbers(raw: Tensor, dtype: torch.dtype, name: str) -> Tensor:
    """Bytes (n,) seen as numbers of a kind; True and False must be the bytes 1 and 0."""
    if dtype == torch.bool and raw.numel() and int(raw.max()) > 1:
        raise CheckpointError(f"{name} holds bytes that are neither true nor false")
    return raw.view(dtype)


def fresh(count: int, name: str) -> Tensor:
    """Memory for so many bytes."""
    try:
        return torch.empty(count, dtype=torch.uint8)
    except RuntimeError:  # of torch, which has no kind of its own for this
        raise CheckpointError(f"{name}: no memory for a tensor of {count:,} bytes") from None


def bytes_of(tensor: Tensor) -> memoryview:
    """The memory of a contiguous tensor, to read or to fill."""
    return tensor.detach().reshape(-1).view(torch.uint8).numpy().data


def all_finite(tensor: Tensor) -> bool:
    """Whether no number is NaN or infinite: neither is lost in a sum, which is quick and takes no memory."""
    if not tensor.is_floating_point() or bool(tensor.sum().isfinite()):
        return True
    return bool(tensor.isfinite().all())  # finite numbers, too, may have a sum that is not


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object with every name once; json alone would silently keep the last."""
    names = Counter(name for name, _ in pairs)
    if len(names) != len(pairs):
        raise ValueError(f"{names.most_common(1)[0][0]!r:.80} stands there twice")
    return dict(pairs)


def refuse_constant(word: str) -> None:
    """NaN and Infinity, which Python's json would take."""
    raise ValueError(f"{word} is no number")


def _open(name: str) -> ReadOnlyFile:
    """The file of a name; "vitrail:fashion" lies in the package."""
    if not name.startswith("vitrail:"):
        return ReadOnlyFile(name)
    built_in = [f"vitrail:{each}" for each in BUILT_IN]
    if name not in built_in:
        raise CheckpointError(f"no built-in checkpoint {name!r}: {nearest(name, built_in)}")
    resource = resources.files("vitrail") / "data" / f"{name.removeprefix('vitrail:')}.safetensors"
    with resources.as_file(resource) as file:
        return ReadOnlyFile(file, name)


def _header(file: ReadOnlyFile) -> tuple[dict[str, Any], int]:
    """The JSON object at the start of a file, every name in it once, and where it ends; ValueError says why not."""
    length = int.from_bytes(file.read(0, 8), "little")
    if file.size < 8 or length > min(file.size - 8, LARGEST_HEADER):
        raise CheckpointError(f"{file.name} is not a safetensors file, or is cut short: expected NAME.safetensors")
    raw = file.read(8, length)
    too_many = ValueError(f"it names more than {MOST_TENSORS:,} tensors")
    if raw.count(b'"data_offsets"') > MOST_TENSORS:
        raise too_many
    objects = 0

    def counted(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal objects
        objects += 1
        if objects > MOST_TENSORS + 2:  # one a tensor, however its words are spelt; the metadata; and all of it
            raise too_many
        return unique(pairs)

    text = raw.decode()
    if not text.startswith("{"):
        raise ValueError(f"expected an object, got {text[:1]!r}")
    header: dict[str, Any] = json.loads(text, object_pairs_hook=counted, parse_constant=refuse_constant)
    return header, 8 + length


def _metadata(plain: Any) -> dict[str, str]:
    """Text under names, nothing else."""
    if not isinstance(plain, dict) or not all(isinstance(value, str) for value in plain.values()):
        raise ValueError(f"expected metadata of text only, got {short_repr(plain)}")
    for each in (*plain, *plain.values()):
        each.encode()  # half a character cannot be shown to anyone
    return plain


class _TensorEntry(NamedTuple):
    """What the header says of one tensor."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int  # in bytes, from the end of the header
    end: int


def _entry(name: str, plain: Any) -> _TensorEntry:
    """One tensor's description, if it says all it must, no more, and agrees with itself."""
    name.encode()
    if not isinstance(plain, dict) or plain.keys() != ENTRY:
        raise ValueError(f"{name!r:.80}: expected dtype, shape and data_offsets, got {short_repr(plain)}")
    word, shape, span = plain["dtype"], plain["shape"], plain["data_offsets"]
    if not isinstance(word, str) or word not in DTYPES:
        raise ValueError(f"{name!r:.80}: numbers of kind {short_repr(word)}, expected one of: {', '.join(DTYPES)}")
    if not _are_ints(shape, LARGEST_DIMENSION) or len(shape) > MOST_DIMENSIONS or volume(shape) > LARGEST_VOLUME:
        raise ValueError(f"{name!r:.80}: expected a shape of whole numbers, none too large, got {short_repr(shape)}")
    if not _are_ints(span, LARGEST_VOLUME) or len(span) != 2 or span[0] > span[1]:
        raise ValueError(f"{name!r:.80}: expected data_offsets [start, end], got {short_repr(span)}")
    expected, got = math.prod(shape) * DTYPES[word].itemsize, span[1] - span[0]
    if expected != got:
        raise ValueError(f"{name!r:.80}: {word} of shape {short_repr(shape)} takes {expected:,} bytes, got {got:,}")
    return _TensorEntry(name, DTYPES[word], tuple(shape), span[0], span[1])


def _are_ints(values: Any, most: int) -> bool:
    """A list of whole numbers from 0 on; True, 1.0 and "1" are none."""
    return isinstance(values, list) and all(type(each) is int and 0 <= each <= most for each in values)


def volume(shape: Sequence[int]) -> int:
    """How many numbers, a 0 among the dimensions counted as 1: strides are computed that way."""
    return math.prod(max(each, 1) for each in shape)


def _check_layout(entries: Iterable[_TensorEntry], size: int) -> None:
    """Every byte after the header belongs to one tensor, and to one only."""
    end = 0
    for each in entries:
        if each.start != end:
            wrong = "overlaps another tensor" if each.start < end else "leaves a hole before it"
            raise ValueError(f"{each.name!r:.80} {wrong}: expected it at {end:,}, got {each.start:,}")
        end = each.end
    if end != size:
        wrong = "the file is cut short" if end > size else "something else follows them"
        raise ValueError(f"expected {end:,} bytes of tensors, got {size:,}: {wrong}")


def _read(file: ReadOnlyFile, body: int, entry: _TensorEntry) -> Tensor:
    """The values of one tensor, from the file straight into memory of their own."""
    what = f"{file.name}: {entry.name!r:.80}"
    raw = fresh(entry.end - entry.start, what)
    file.fill(bytes_of(raw), body + entry.start)
    return as_numbers(raw, entry.dtype, what).reshape(entry.shape)
