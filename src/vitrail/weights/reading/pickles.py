"""A torch file (.pt, .pth, .bin) -> the tree of plain values in it, its tensors as Stored leaves.

No unpickler is used, torch's neither: `opcodes` runs the pickle over the inert names below. Sizes, strides and places
of tensors are held against the bytes that are really there before memory is taken for any.
"""

from __future__ import annotations

import math
import os
import struct
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from vitrail.errors import CheckpointError
from vitrail.opened import Opened, as_numbers, fresh
from vitrail.stored import LARGEST_VOLUME, MOST_DIMENSIONS, MOST_TENSORS, Stored
from vitrail.weights.reading.archives import Member, check, check_sizes, read_directory, unpack
from vitrail.weights.reading.opcodes import (
    Bag,
    CutShort,
    RefusedName,
    RefusedPickle,
    Run,
    StandIn,
    Symbol,
    plain_key,
    printable,
    run,
)
from vitrail.weights.reading.suspects import name_archive, name_suspect

LARGEST_PICKLE: Final = 64 * 2**20
MAGIC: Final = 0x1950A86A20F9469CFC6C  # what torch wrote first, before its files were zip archives
PROTOCOL: Final = 1001
PIECE: Final = 2**20  # how much of such a file is looked at first, and how much at once for checksums

STORAGES: Final = {
    "Double": torch.float64,
    "Float": torch.float32,
    "Half": torch.float16,
    "BFloat16": torch.bfloat16,
    "Long": torch.int64,
    "Int": torch.int32,
    "Short": torch.int16,
    "Char": torch.int8,
    "Byte": torch.uint8,
    "Bool": torch.bool,
    "ComplexFloat": torch.complex64,
    "ComplexDouble": torch.complex128,
}
KINDS: Final = (
    *("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"),
    *("uint16", "uint32", "uint64", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2"),
)


def read_pickle(path: str | os.PathLike[str]) -> Any:
    """The values of a torch file of either format; a tensor is a Stored and is read when asked for."""
    return read_opened(Opened(path))


def read_opened(file: Opened) -> Any:
    """The same from a file that is open already."""
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


def _read_zip(file: Opened) -> Any:
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

    def place(key: str) -> Member:
        member = members.get(f"{top}/data/{key}")
        if member is None:
            raise ValueError(f"it names the bytes {printable(key)!r}, which are not there")
        return member

    found = run(unpack(file, program), *_Tensors(file, place).tools)
    if found.end != program.size:
        raise RefusedPickle(f"has {program.size - found.end:,} bytes after the end of its pickle: refused")
    return found.value


def _is_script(members: dict[str, Member], top: str) -> bool:
    return f"{top}/constants.pkl" in members or any(name.startswith(f"{top}/code/") for name in members)


def _refuse_names(file: Opened) -> None:
    """Refuse a pickle of the oldest protocols by the name it asks for; torch never wrote any."""
    try:
        run(file.read(0, PIECE), *_Tensors(file, None).tools)
    except RefusedName:
        raise
    except ValueError:
        return  # perhaps no pickle at all


def _read_legacy(file: Opened, head: bytes) -> Any:
    """The format before: five pickles (magic, version, machine, values, keys), then the storages' bytes."""
    length = PIECE
    while True:
        data = file.read(0, min(length, LARGEST_PICKLE))
        tensors = _Tensors(file, None)
        try:
            parts = _five(file, data, head, tensors)
            break
        except CutShort:
            if len(data) == file.size:
                raise
            if length >= LARGEST_PICKLE:
                raise RefusedPickle(f"has pickles of more than {LARGEST_PICKLE:,} bytes: refused") from None
        length *= 8
    _place_storages(file, tensors, parts)
    return parts[3].value


def _five(file: Opened, data: bytes, head: bytes, tensors: _Tensors) -> list[Run]:
    first = run(data, *tensors.tools)
    if first.value != MAGIC or type(first.value) is not int:
        raise CheckpointError(f"{file.name} {name_suspect(head, file.name, first.value)}")
    parts = [first]
    for _ in range(2):
        parts.append(run(data, {}, None, parts[-1].end))
    version, machine = parts[1].value, parts[2].value
    if version != PROTOCOL or type(machine) is not dict:
        raise ValueError(f"expected version {PROTOCOL}, got another")
    if machine.get("little_endian") is not True:
        raise CheckpointError(f"{file.name} was written on a big-endian machine: save it again on another")
    parts.append(run(data, *tensors.tools, parts[-1].end))
    parts.append(run(data, {}, None, parts[-1].end))
    return parts


def _place_storages(file: Opened, tensors: _Tensors, parts: Sequence[Run]) -> None:
    """Find the bytes of every storage; together they must reach exactly to the end of the file."""
    keys, at = parts[4].value, parts[4].end
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

    def __init__(self, file: Opened, dtype: torch.dtype | None, count: int, member: Member | None) -> None:
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

    def _check_all(self, member: Member) -> None:
        """The checksum of all bytes, piece by piece, for a tensor that looks at some of them."""
        checksum = 0
        for start in range(0, self.size, PIECE):
            piece = self.file.read(self.start + start, min(PIECE, self.size - start))
            checksum = zlib.crc32(piece, checksum)
        check(self.file, member, checksum)


class _Tensors:
    """The storages that a pickle names, and the makers of tensors that look at them."""

    def __init__(self, file: Opened, place: Callable[[str], Member] | None) -> None:
        self.file, self.place = file, place
        self.storages: dict[str, _Storage] = {}
        self.count = 0
        makers: dict[str, Callable[..., Any]] = {
            "torch._utils._rebuild_tensor": self.tensor,
            "torch._utils._rebuild_tensor_v2": self.tensor,
            "torch._utils._rebuild_tensor_v3": self.tensor_of_kind,
            "torch._utils._rebuild_parameter": _parameter,
            "torch._utils._rebuild_parameter_with_state": _parameter,
            "torch._tensor._rebuild_from_type_v2": _typed,
        }
        symbols = _SYMBOLS | {name: Symbol(name, make) for name, make in makers.items()}
        self.tools = (symbols, self.storage)  # what `run` needs to know of us

    def storage(self, about: Any) -> _Storage:
        """The storage that a pickle means by ("storage", kind, key, device, count)."""
        if type(about) is tuple and about[:1] == ("module",):
            raise RefusedPickle("holds a whole pickled network, not only weights: save its state_dict instead")
        right = type(about) is tuple and len(about) in (5, 6) and about[5:] in ((), (None,))
        if not right or about[0] != "storage":
            raise RefusedPickle("asks for something outside of its pickle that is no storage of a tensor")
        _, kind, key, _, count = about[:5]
        if not isinstance(kind, _Kind) or type(key) is not str or type(count) is not int or not 0 <= count < 2**60:
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

    def tensor(self, storage: Any, offset: Any, shape: Any, stride: Any, *_: Any) -> Stored:
        """_rebuild_tensor: a look at a storage of numbers."""
        if not isinstance(storage, _Storage) or storage.dtype is None:
            raise ValueError("a tensor without a storage of numbers")
        return self.look(storage, storage.dtype, offset, shape, stride)

    def tensor_of_kind(
        self, storage: Any, offset: Any, shape: Any, stride: Any, grad: Any, hooks: Any, kind: Any, *_: Any
    ) -> Stored:
        """_rebuild_tensor_v3: a look at a storage of bytes as numbers of a kind."""
        if not isinstance(storage, _Storage) or not isinstance(kind, torch.dtype):
            raise ValueError("a tensor without a storage")
        return self.look(storage, kind, offset, shape, stride)

    def look(self, storage: _Storage, dtype: torch.dtype, offset: Any, shape: Any, stride: Any) -> Stored:
        """A tensor, if its shape, stride and offset stay within its storage."""
        self.count += 1
        if self.count > MOST_TENSORS:
            raise RefusedPickle(f"holds more than {MOST_TENSORS:,} tensors: refused")
        view = _view(storage.size // dtype.itemsize, offset, shape, stride)
        return Stored(view.shape, dtype, partial(_read, storage, dtype, view))


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
        if math.prod(max(each, 1) for each in shape) > LARGEST_VOLUME or offset > room:
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


# ---- names that a torch file may ask for, each with an inert stand-in


class _Kind(NamedTuple):
    """A class of storages: the kind of number in them, None for bytes."""

    dtype: torch.dtype | None


def _parameter(tensor: Any, *_: Any) -> Stored:
    if not isinstance(tensor, Stored):
        raise ValueError("a parameter that is no tensor")
    return tensor


def _typed(make: Any, kind: Any, arguments: Any, state: Any) -> Any:
    """A tensor with attributes: the tensor. What makes it must be one of the makers of tensors."""
    if type(make) is not Symbol or "._rebuild_tensor" not in make.name or make.make is None:
        raise RefusedPickle("makes a tensor in an unusual way: refused")
    if type(kind) is not Symbol or type(arguments) is not tuple:
        raise ValueError("a tensor without kind or arguments")
    return make.make(*arguments)


def _mapping(pairs: Any = ()) -> dict[Any, Any]:
    """OrderedDict, Counter: a dict, perhaps from pairs."""
    if type(pairs) is dict:
        return dict(pairs)
    if type(pairs) not in (list, tuple) or not all(type(each) in (list, tuple) and len(each) == 2 for each in pairs):
        raise ValueError("a dict of what is no pairs")
    return {plain_key(key): value for key, value in pairs}


def _defaults(factory: Any = None, pairs: Any = ()) -> dict[Any, Any]:
    return _mapping(pairs)


def _listed(values: Any = ()) -> list[Any]:
    if type(values) not in (list, tuple):
        raise ValueError("a set of what is no list")
    return list(values)


def _size(values: Any = ()) -> tuple[int, ...]:
    if type(values) not in (list, tuple) or len(values) > MOST_DIMENSIONS:
        raise ValueError("a shape of what is no list")
    return tuple(values)


def _encoded(text: Any = "", encoding: Any = "latin1") -> bytes:
    """_codecs.encode, bytearray: how older protocols write bytes."""
    if type(text) is bytes:
        return text
    if type(text) is not str or encoding not in ("latin1", "latin-1"):
        raise RefusedPickle("encodes text in an unusual way: refused")
    return text.encode("latin-1")


def _joined(*parts: Any) -> str:
    """A path, or a version: its text."""
    if not all(type(each) is str for each in parts):
        raise ValueError("a path or version that is no text")
    return "/".join(parts).replace("//", "/")


def _device(*about: Any) -> str:
    if not all(type(each) in (str, int) for each in about):
        raise ValueError("a device without a name")
    return ":".join(str(each) for each in about)


def _complex(real: Any = 0.0, imaginary: Any = 0.0) -> complex:
    if not all(type(each) in (int, float) for each in (real, imaginary)):
        raise ValueError("a complex number of what is none")
    return complex(real, imaginary)


def _object(kind: Any, base: Any, state: Any) -> Any:
    """copyreg._reconstructor: an object before its attributes; only of a kind that we have a stand-in for."""
    if type(kind) is not Symbol or kind.name != "argparse.Namespace":
        raise RefusedPickle("makes an object in an unusual way: refused")
    return Bag()


class _NumberKind(StandIn):
    """numpy.dtype: the code of a kind of number; little-endian unless it says otherwise."""

    __slots__ = ("order",)

    def fill(self, state: Any) -> None:
        self.order = state[1] if type(state) is tuple and len(state) > 1 and state[1] == ">" else "<"


_CODES: Final = {
    "f8": "d",
    "f4": "f",
    "f2": "e",
    "i8": "q",
    "i4": "i",
    "i2": "h",
    "i1": "b",
    "u8": "Q",
    "u4": "I",
    "u2": "H",
    "u1": "B",
    "b1": "?",
}


def _number_kind(code: Any, *_: Any) -> _NumberKind:
    kind = _NumberKind(code if type(code) is str and code in _CODES else "numpy.dtype")
    kind.fill(None)
    return kind


def _number(kind: Any, raw: Any = b"") -> Any:
    """numpy's scalar: a number of Python's, or a stand-in where it is none."""
    if type(kind) is not _NumberKind:
        raise ValueError("a number without a kind")
    raw = raw.encode("latin-1") if type(raw) is str and len(raw) <= 8 else raw
    if kind.name not in _CODES or type(raw) is not bytes:
        return StandIn("numpy.scalar")
    return struct.unpack(kind.order + _CODES[kind.name], raw)[0]


def _stand_in(name: str) -> Callable[..., StandIn]:
    return lambda *_: StandIn(name)


def _symbols() -> dict[str, Any]:
    """Every name with what takes its place; those of tensors are added for each file."""
    makers: dict[str, Callable[..., Any] | None] = {
        "collections.OrderedDict": _mapping,
        "collections.Counter": _mapping,
        "collections.defaultdict": _defaults,
        "argparse.Namespace": lambda: Bag(),
        "torch.Size": _size,
        "torch.device": _device,
        "torch.torch_version.TorchVersion": _joined,
        "torch.Tensor": None,
        "torch.nn.parameter.Parameter": None,
        "_codecs.encode": _encoded,
    }
    for module in ("copyreg", "copy_reg"):
        makers[f"{module}._reconstructor"] = _object
    for module in ("builtins", "__builtin__"):
        makers |= {f"{module}.set": _listed, f"{module}.frozenset": _listed, f"{module}.complex": _complex}
        makers |= {f"{module}.bytearray": _encoded, f"{module}.slice": _stand_in("slice")}
        makers |= {f"{module}.{name}": None for name in ("object", "list", "dict", "int", "float")}
    for module in ("pathlib", "pathlib._local"):
        for name in ("PosixPath", "PurePosixPath", "WindowsPath", "PureWindowsPath"):
            makers[f"{module}.{name}"] = _joined
    for module in ("numpy.core", "numpy._core"):
        makers[f"{module}.multiarray.scalar"] = _number
        makers[f"{module}.multiarray._reconstruct"] = _stand_in("numpy.ndarray")
    makers |= {"numpy.dtype": _number_kind, "numpy.ndarray": None}
    found: dict[str, Any] = {name: Symbol(name, make) for name, make in makers.items()}
    found |= {f"torch.{name}": getattr(torch, name) for name in KINDS}
    for name, dtype in STORAGES.items():
        found |= {f"torch.{name}Storage": _Kind(dtype), f"torch.cuda.{name}Storage": _Kind(dtype)}
    for name in ("torch.storage.UntypedStorage", "torch.UntypedStorage"):
        found[name] = _Kind(None)
    return found


_SYMBOLS: Final = _symbols()
