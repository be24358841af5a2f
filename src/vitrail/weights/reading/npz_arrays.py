"""An .npz file -> its arrays by name, still in the file, and back. No array of objects is ever opened."""

from __future__ import annotations

import ast
import math
import os
import struct
import zipfile
import zlib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from vitrail.checkpoint.safetensors_io import (
    LARGEST_VOLUME,
    MOST_DIMENSIONS,
    MOST_TENSORS,
    StoredTensor,
    as_numbers,
    bytes_of,
    fresh,
)
from vitrail.errors import CheckpointError, InputError
from vitrail.files import ReadOnlyFile, atomic_write, path_text, reason
from vitrail.weights.reading.archives import STORED, ArchiveMember, check, check_sizes, read_directory, unpack
from vitrail.weights.reading.sniff import name_archive, name_suspect

LARGEST_HEADER: Final = 64 * 2**10  # of one array
LARGEST_HEADERS: Final = 2**20  # of all, beyond 256 bytes each
ROOM: Final = 64 * 2**10  # what small files may unpack to beyond their size
MAGIC: Final = b"\x93NUMPY"

# How numpy names kinds of number. It has no bfloat16: files hold its bytes as two-byte blanks.
DTYPES: Final = {
    "<f8": torch.float64,
    "<f4": torch.float32,
    "<f2": torch.float16,
    "|V2": torch.bfloat16,
    "<V2": torch.bfloat16,
    "<i8": torch.int64,
    "<i4": torch.int32,
    "<i2": torch.int16,
    "|i1": torch.int8,
    "|u1": torch.uint8,
    "|b1": torch.bool,
    "<u2": torch.uint16,
    "<u4": torch.uint32,
    "<u8": torch.uint64,
    "<c8": torch.complex64,
    "<c16": torch.complex128,
}
DTYPE_NAMES: Final = {kind: word for word, kind in reversed(DTYPES.items())}


def read_npz(path: str | os.PathLike[str]) -> dict[str, StoredTensor]:
    """The arrays of an .npz file by name, with "/" between the parts of a name."""
    return read_opened(ReadOnlyFile(path))


def read_opened(file: ReadOnlyFile) -> dict[str, StoredTensor]:
    """The same from a file that is open already."""
    head = file.read(0, 4096)
    if not head.startswith(b"PK\3\4"):
        raise CheckpointError(f"{file.name} {name_suspect(head, file.name)}")
    members = read_directory(file)
    if len(members) > MOST_TENSORS or not all(name.endswith(".npy") for name in members):
        raise CheckpointError(f"{file.name} {name_archive(members)}")
    check_sizes(file, members, deflated=True, room=ROOM)
    arrays: dict[str, StoredTensor] = {}
    room = LARGEST_HEADERS + 256 * len(members)
    for member in members.values():
        name = member.name.removesuffix(".npy").replace("\\", "/")
        array = _describe(file, member)
        room -= array.start
        if room < 0:
            raise CheckpointError(f"{file.name}: the headers of its arrays are too long: refused")
        if name in arrays:
            raise CheckpointError(f"{file.name}: two arrays have the name {name!r}: refused")
        arrays[name] = StoredTensor(array.shape, array.dtype, partial(_read, file, member, array))
    return arrays


class _Array(NamedTuple):
    """What the header of an array says."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    columns: bool  # the first axis runs fastest (Fortran order)
    start: int  # of the numbers, in the member


def _describe(file: ReadOnlyFile, member: ArchiveMember) -> _Array:
    """The header of an array, checked against the bytes that are there."""
    where = f"{file.name}: {member.name!r}"
    head = unpack(file, member, 256)  # nearly all headers are shorter
    if head[:6] != MAGIC or len(head) < 12 or head[6] not in (1, 2, 3):
        raise CheckpointError(f"{where} is no array (.npy): refused")
    wide = head[6] > 1
    (length,) = struct.unpack_from("<I" if wide else "<H", head, 8)
    start = 8 + (4 if wide else 2) + length
    if length > LARGEST_HEADER or start > member.size:
        raise CheckpointError(f"{where} claims a header of {length:,} bytes: refused")
    if start > len(head):
        head = unpack(file, member, start)
    try:
        plain = ast.literal_eval(head[start - length : start].decode("utf-8" if head[6] == 3 else "latin-1").strip())
        array = _checked(plain, start)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        text = f"{error!s:.120}" if type(error) is ValueError else "it cannot be read"
        raise CheckpointError(f"{where}: the header of the array makes no sense: {text}") from None
    expected, got = math.prod(array.shape) * array.dtype.itemsize, member.size - start
    if expected != got:
        raise CheckpointError(
            f"{where}: an array of shape {list(array.shape)!r:.80} takes {expected:,} bytes, {got:,} are there: refused"
        )
    return array


def _checked(plain: Any, start: int) -> _Array:
    """The three entries of a header, each of its kind; ValueError says which is not."""
    if not isinstance(plain, dict) or plain.keys() != {"descr", "fortran_order", "shape"}:
        raise ValueError("expected descr, fortran_order and shape")
    word, columns, shape = plain["descr"], plain["fortran_order"], plain["shape"]
    if not isinstance(word, str):
        raise ValueError("a structured array, expected plain numbers")
    if word[1:2] == "O":
        raise ValueError("an array of Python objects, which is a pickle and never opened")
    if word not in DTYPES:
        what = "big-endian numbers" if word[:1] == ">" else "numbers"
        raise ValueError(f"{what} of kind {word!r:.40}, expected one of: {', '.join(DTYPES)}")
    if not isinstance(columns, bool):
        raise ValueError("fortran_order is neither True nor False")
    if not isinstance(shape, tuple) or not all(type(each) is int and 0 <= each <= LARGEST_VOLUME for each in shape):
        raise ValueError("its shape is no list of whole numbers")
    if len(shape) > MOST_DIMENSIONS or math.prod(max(each, 1) for each in shape) > LARGEST_VOLUME:
        raise ValueError("its shape is too large")
    return _Array(shape, DTYPES[word], columns, start)


def _read(file: ReadOnlyFile, member: ArchiveMember, array: _Array) -> Tensor:
    """The values of an array in fresh memory, the last axis running fastest."""
    raw = fresh(member.size - array.start, file.name)
    view = raw.numpy().data
    if member.method == STORED:
        head = file.read(member.start, array.start)
        file.fill(view, member.start + array.start)
        check(file, member, zlib.crc32(view, zlib.crc32(head)))
    else:
        view[:] = memoryview(unpack(file, member))[array.start :]
    numbers = as_numbers(raw, array.dtype, file.name)
    if not array.columns:
        return numbers.reshape(array.shape)
    return numbers.reshape(array.shape[::-1]).permute(*reversed(range(len(array.shape)))).contiguous()


def write_npz(path: str | os.PathLike[str], tensors: Mapping[str, Tensor]) -> None:
    """Write tensors as an .npz, all or nothing; the same tensors always give the same bytes."""
    target = Path(path_text(path))
    for name, tensor in tensors.items():
        _check_name(name)
        if tensor.dtype not in DTYPE_NAMES:
            raise CheckpointError(f"{name}: numbers of kind {tensor.dtype} cannot be stored in an .npz: convert them")
    try:
        with atomic_write(target) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as archive:
            for name, tensor in tensors.items():
                _write(archive, name, tensor.detach().cpu().contiguous())
    except OSError as error:
        raise CheckpointError(f"could not write {target}: {reason(error)}") from error


def _check_name(name: str) -> None:
    parts = name.split("/") if isinstance(name, str) else [""]
    if not all(each.isprintable() and each not in ("", ".", "..") for each in parts) or "\\" in name or len(name) > 500:
        raise InputError(f"{name!r:.80} cannot be the name of an array: expected parts with '/' between them")


def _write(archive: zipfile.ZipFile, name: str, tensor: Tensor) -> None:
    text = f"{{'descr': {DTYPE_NAMES[tensor.dtype]!r}, 'fortran_order': False, 'shape': {tuple(tensor.shape)!r}, }}"
    text += " " * (-(len(text) + 11) % 64) + "\n"  # so that the numbers begin at a multiple of 64, as numpy has it
    member = zipfile.ZipInfo(f"{name}.npy")  # of 1980: the same bytes whenever it is written
    member.external_attr = 0o600 << 16
    member.file_size = 10 + len(text) + tensor.nbytes
    with archive.open(member, "w") as file:
        file.write(MAGIC + b"\1\0" + struct.pack("<H", len(text)) + text.encode("latin-1"))
        file.write(bytes_of(tensor))
