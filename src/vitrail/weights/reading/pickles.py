"""A torch file (.pt, .pth, .bin) -> the tree of plain values in it, its tensors as StoredTensor leaves.

No unpickler is used, torch's neither: our own machine runs the pickle over the inert names of the allow-list. Sizes,
strides and places of tensors are held against the bytes that are really there before memory is taken for any.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from vitrail.checkpoint.safetensors_io import (
    LARGEST_VOLUME,
    MOST_DIMENSIONS,
    MOST_TENSORS,
    StoredTensor,
    as_numbers,
    fresh,
    volume,
)
from vitrail.errors import CheckpointError
from vitrail.files import ReadOnlyFile
from vitrail.weights.reading.archives import ArchiveMember, check, check_sizes, read_directory, unpack
from vitrail.weights.reading.pickle_allowlist import SYMBOLS, Kind, parameter, typed
from vitrail.weights.reading.pickle_opcodes import RefusedPickle
from vitrail.weights.reading.sniff import name_archive, name_suspect
from vitrail.weights.reading.unpickler import PickleResult, RefusedName, Symbol, printable, run

LARGEST_PICKLE: Final = 64 * 2**20
MAGIC: Final = 0x1950A86A20F9469CFC6C  # what torch wrote first, before its files were zip archives
PROTOCOL: Final = 1001
PIECE: Final = 2**20  # how much is looked at once for checksums


def read_pickle(path: str | os.PathLike[str]) -> Any:
    """The values of a torch file of either format; a tensor is a StoredTensor and is read when asked for."""
    file = ReadOnlyFile(path)
    head = file.read(0, 4096)
    try:
        if head.startswith(b"PK\3\4"):
            return _read_zip(file)
        if head[:1] == b"\x80" and head[1:2] <= b"\x05":
            return _read_legacy(file, head)
        if head[:1] in (b"(", b"c", b"]", b"}"):
            _refuse_names(file)
        raise CheckpointError(f"{file.name} {name_suspect(head, file.name)}")
    except CheckpointError:
        raise
    except RefusedPickle as error:
        raise CheckpointError(f"{file.name} {error}") from None
    except (ValueError, struct.error) as error:
        raise CheckpointError(f"{file.name}: its pickle is damaged: {error}") from None


def _read_zip(file: ReadOnlyFile) -> Any:
    """The format since torch 1.6: NAME/data.pkl, and a member NAME/data/KEY for every storage."""
    members = read_directory(file)
    tops = {name.partition("/")[0] for name in members}
    top = next(iter(tops), "")
    if len(tops) != 1 or f"{top}/data.pkl" not in members or _is_script(members, top):
        raise CheckpointError(f"{file.name} {name_archive(members)}")
    check_sizes(file, members)
    order = members.get(f"{top}/byteorder")
    if order is not None and unpack(file, order, 16) != b"little":
        raise CheckpointError(f"{file.name} was written on a big-endian machine: save it again on another")
    program = members[f"{top}/data.pkl"]
    if program.size > LARGEST_PICKLE:
        raise RefusedPickle(f"has a pickle of {program.size:,} bytes, at most {LARGEST_PICKLE:,} are read")

    def place(key: str) -> ArchiveMember:
        member = members.get(f"{top}/data/{key}")
        if member is None:
            raise ValueError(f"it names the bytes {printable(key)!r}, which are not there")
        return member

    found = run(unpack(file, program), *_Tensors(file, place).tools)
    if found.end != program.size:
        raise RefusedPickle(f"has {program.size - found.end:,} bytes after the end of its pickle: refused")
    return found.value


def _is_script(members: dict[str, ArchiveMember], top: str) -> bool:
    return f"{top}/constants.pkl" in members or any(name.startswith(f"{top}/code/") for name in members)


def _refuse_names(file: ReadOnlyFile) -> None:
    """Refuse a pickle of the oldest protocols by the name it asks for; torch never wrote any."""
    try:
        run(file.read(0, PIECE), *_Tensors(file, None).tools)
    except RefusedName:
        raise
    except ValueError:
        return  # perhaps no pickle at all


def _read_legacy(file: ReadOnlyFile, head: bytes) -> Any:
    """The format before: five pickles (magic, version, machine, values, keys), then the storages' bytes."""
    data, tensors = file.read(0, LARGEST_PICKLE), _Tensors(file, None)
    magic = run(data, *tensors.tools)
    if magic.value != MAGIC or type(magic.value) is not int:
        raise CheckpointError(f"{file.name} {name_suspect(head, file.name, magic.value)}")
    version = run(data, {}, None, magic.end)
    machine = run(data, {}, None, version.end)
    if version.value != PROTOCOL or type(machine.value) is not dict:
        raise ValueError(f"expected version {PROTOCOL}, got another")
    if machine.value.get("little_endian") is not True:
        raise CheckpointError(f"{file.name} was written on a big-endian machine: save it again on another")
    values = run(data, *tensors.tools, machine.end)
    _place_storages(file, tensors, run(data, {}, None, values.end))
    return values.value


def _place_storages(file: ReadOnlyFile, tensors: _Tensors, listed: PickleResult) -> None:
    """Find the bytes of every storage; together they must reach exactly to the end of the file."""
    keys, at = listed
    if type(keys) is not list or not all(type(key) is str for key in keys):
        raise ValueError("its list of storages is no list of names")
    if len(set(keys)) != len(keys) or set(keys) != tensors.storages.keys():
        raise ValueError("its list of storages is not that of its tensors")
    for key in keys:
        storage = tensors.storages[key]
        count = int.from_bytes(file.read(at, 8), "little")
        if at + 8 > file.size or count != storage.count:
            raise ValueError(f"a storage of {count:,} numbers where {storage.count:,} were promised")
        storage.start, at = at + 8, at + 8 + storage.size
    if at != file.size:
        wrong = "is cut short" if at > file.size else "holds more than its tensors"
        raise ValueError(f"the file {wrong}: expected {at:,} bytes, got {file.size:,}")


class _Storage:
    """Bytes that one or more tensors look at."""

    __slots__ = ("count", "dtype", "file", "member", "size", "sound", "start")

    def __init__(self, file: ReadOnlyFile, dtype: torch.dtype | None, count: int, member: ArchiveMember | None) -> None:
        self.file, self.dtype, self.count, self.member = file, dtype, count, member
        self.size = count * (1 if dtype is None else dtype.itemsize)  # in bytes; without a dtype they are counted so
        self.start = 0 if member is None else member.start  # in the file
        self.sound = member is None  # the older format has no checksums

    def bytes(self, start: int, count: int) -> Tensor:
        """Some of the bytes, in memory of their own, once all of them are known to be sound."""
        raw = fresh(count, self.file.name)
        view = raw.numpy().data
        self.file.fill(view, self.start + start)
        if self.sound or self.member is None:
            return raw
        if (start, count) == (0, self.size):
            check(self.file, self.member, zlib.crc32(view))
        else:
            self._check_all(self.member)
        self.sound = True
        return raw

    def _check_all(self, member: ArchiveMember) -> None:
        """The checksum of all bytes, piece by piece, for a tensor that looks at some of them."""
        checksum = 0
        for start in range(0, self.size, PIECE):
            piece = self.file.read(self.start + start, min(PIECE, self.size - start))
            checksum = zlib.crc32(piece, checksum)
        check(self.file, member, checksum)


class _Tensors:
    """The storages that a pickle names, and the makers of tensors that look at them."""

    def __init__(self, file: ReadOnlyFile, place: Callable[[str], ArchiveMember] | None) -> None:
        self.file, self.place = file, place
        self.storages: dict[str, _Storage] = {}
        self.count = 0
        makers: dict[str, Callable[..., Any]] = {
            "torch._utils._rebuild_tensor": self.tensor,
            "torch._utils._rebuild_tensor_v2": self.tensor,
            "torch._utils._rebuild_tensor_v3": self.tensor_of_kind,
            "torch._utils._rebuild_parameter": parameter,
            "torch._utils._rebuild_parameter_with_state": parameter,
            "torch._tensor._rebuild_from_type_v2": typed,
        }
        symbols = SYMBOLS | {name: Symbol(name, make) for name, make in makers.items()}
        self.tools = (symbols, self.storage)  # what `run` needs to know of us

    def storage(self, about: Any) -> _Storage:
        """The storage that a pickle means by ("storage", kind, key, device, count)."""
        if type(about) is tuple and about[:1] == ("module",):
            raise RefusedPickle("holds a whole pickled network, not only weights: save its state_dict instead")
        right = type(about) is tuple and len(about) in (5, 6) and about[5:] in ((), (None,))
        if not right or about[0] != "storage":
            raise RefusedPickle("asks for something outside of its pickle that is no storage of a tensor")
        _, kind, key, _, count = about[:5]
        if not isinstance(kind, Kind) or type(key) is not str or type(count) is not int or not 0 <= count < 2**60:
            raise ValueError("a storage without kind, name or size")
        known = self.storages.get(key)
        if known is not None:
            if (known.dtype, known.count) != (kind.dtype, count):
                raise ValueError(f"the storage {printable(key)!r} is described in two ways")
            return known
        found = _Storage(self.file, kind.dtype, count, None if self.place is None else self.place(key))
        there = self.file.size if found.member is None else found.member.size
        if found.size > there or (found.member is not None and found.size != there):
            raise ValueError(f"the storage {printable(key)!r} should have {found.size:,} bytes, {there:,} are there")
        self.storages[key] = found
        return found

    def tensor(self, storage: Any, offset: Any, shape: Any, stride: Any, *_: Any) -> StoredTensor:
        """_rebuild_tensor: a look at a storage of numbers."""
        if not isinstance(storage, _Storage) or storage.dtype is None:
            raise ValueError("a tensor without a storage of numbers")
        return self.look(storage, storage.dtype, offset, shape, stride)

    def tensor_of_kind(
        self, storage: Any, offset: Any, shape: Any, stride: Any, grad: Any, hooks: Any, kind: Any, *_: Any
    ) -> StoredTensor:
        """_rebuild_tensor_v3: a look at a storage of bytes as numbers of a kind."""
        if not isinstance(storage, _Storage) or not isinstance(kind, torch.dtype):
            raise ValueError("a tensor without a storage")
        return self.look(storage, kind, offset, shape, stride)

    def look(self, storage: _Storage, dtype: torch.dtype, offset: Any, shape: Any, stride: Any) -> StoredTensor:
        """A tensor, if its shape, stride and offset stay within its storage."""
        self.count += 1
        if self.count > MOST_TENSORS:
            raise RefusedPickle(f"holds more than {MOST_TENSORS:,} tensors: refused")
        view = _view(storage.size // dtype.itemsize, offset, shape, stride)
        return StoredTensor(view.shape, dtype, partial(_read, storage, dtype, view))


class _View(NamedTuple):
    """How a tensor lies in a storage, in numbers, not bytes."""

    offset: int
    span: int  # from its first number to its last
    shape: tuple[int, ...]
    stride: tuple[int, ...]


def _view(room: int, offset: Any, shape: Any, stride: Any) -> _View:
    """The view, if no number of it lies outside of the storage and none is shown twice."""
    if type(shape) is not tuple or type(stride) is not tuple or len(shape) != len(stride):
        raise ValueError("a tensor whose shape and stride do not fit each other")
    if len(shape) > MOST_DIMENSIONS or any(type(each) is not int for each in (offset, *shape, *stride)):
        raise ValueError("a tensor whose shape is no list of whole numbers")
    if min((offset, *shape, *stride)) < 0 or max((offset, *shape, *stride)) > LARGEST_VOLUME:
        raise ValueError(f"a tensor of shape {_few(shape)} with stride {_few(stride)} from {offset} on")
    if 0 in shape:
        if volume(shape) > LARGEST_VOLUME or offset > room:
            raise ValueError(f"a tensor of shape {_few(shape)} from {offset} on")
        return _View(offset, 0, shape, stride)
    reach = 1  # numbers from the first to the last, over the axes so far, those of small stride first
    for step, size in sorted(zip(stride, shape, strict=True)):
        if size > 1 and step < reach:
            raise RefusedPickle(
                f"holds a tensor of shape {_few(shape)} that shows the same numbers several times (stride "
                f"{_few(stride)}): refused; save a copy of it (tensor.clone())"
            )
        reach += (size - 1) * step
    if offset + reach > room:
        raise RefusedPickle(
            f"holds a tensor of shape {_few(shape)}, stride {_few(stride)} from {offset} on that reaches beyond the "
            f"{room:,} numbers there are: refused"
        )
    return _View(offset, reach, shape, stride)


def _few(values: tuple[int, ...]) -> str:
    return f"{list(values)!r:.80}"


def _read(storage: _Storage, dtype: torch.dtype, view: _View) -> Tensor:
    """The values of a tensor, from the file into fresh memory."""
    width = dtype.itemsize
    raw = storage.bytes(view.offset * width, view.span * width)
    numbers = as_numbers(raw, dtype, storage.file.name)
    if not view.span:
        return numbers.reshape(view.shape)
    laid = numbers.as_strided(view.shape, view.stride)
    return laid if laid.is_contiguous() else laid.contiguous()
