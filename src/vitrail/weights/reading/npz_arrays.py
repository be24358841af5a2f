"""An .npz file -> its arrays by name, still in the file, and back. No array of objects is ever opened."""

from __future__ import annotations

import os
import struct
import zipfile
import zlib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final

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
    volume,
)
from vitrail.errors import CheckpointError, InputError
from vitrail.files import ReadOnlyFile, atomic_write, path_text, reason
from vitrail.images.npy import NPY_MAGIC, NpyHeader, read_header
from vitrail.weights.reading.archives import STORED, ArchiveMember, check, check_sizes, read_directory, unpack
from vitrail.weights.reading.sniff import name_archive, name_suspect

LARGEST_HEADERS: Final = 2**20  # of all arrays, beyond 256 bytes each
ROOM: Final = 64 * 2**10  # what small files may unpack to beyond their size

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
    file = ReadOnlyFile(path)
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
        header = _header(file, member)
        room -= header.start
        if room < 0:
            raise CheckpointError(f"{file.name}: the headers of its arrays are too long: refused")
        if name in arrays:
            raise CheckpointError(f"{file.name}: two arrays have the name {name!r}: refused")
        arrays[name] = StoredTensor(header.shape, DTYPES[header.word], partial(_read, file, member, header))
    return arrays


def _header(file: ReadOnlyFile, member: ArchiveMember) -> NpyHeader:
    """What stands before the numbers of an array, checked against the bytes that are there."""
    where = f"{file.name}: {member.name!r}"
    try:
        header = read_header(partial(unpack, file, member))
        if header.word[1:2] == "O":
            raise ValueError("an array of Python objects, which is a pickle and never opened")
        if header.word not in DTYPES:
            what = "big-endian numbers" if header.word[:1] == ">" else "numbers"
            raise ValueError(f"{what} of kind {header.word!r:.40}, expected one of: {', '.join(DTYPES)}")
        if len(header.shape) > MOST_DIMENSIONS or volume(header.shape) > LARGEST_VOLUME:
            raise ValueError("its shape is too large")
    except CheckpointError:  # a ValueError too
        raise
    except ValueError as error:
        raise CheckpointError(f"{where}: the header of the array makes no sense: {error}") from None
    wrong = header.misfit(DTYPES[header.word].itemsize, member.size)
    if wrong:
        raise CheckpointError(f"{where}: {wrong}: refused")
    return header


def _read(file: ReadOnlyFile, member: ArchiveMember, header: NpyHeader) -> Tensor:
    """The values of an array in fresh memory, the last axis running fastest."""
    word, columns, shape, start = header
    raw = fresh(member.size - start, file.name)
    view = raw.numpy().data
    if member.method == STORED:
        head = file.read(member.start, start)
        file.fill(view, member.start + start)
        check(file, member, zlib.crc32(view, zlib.crc32(head)))
    else:
        view[:] = memoryview(unpack(file, member))[start:]
    numbers = as_numbers(raw, DTYPES[word], file.name)
    if not columns:
        return numbers.reshape(shape)
    return numbers.reshape(shape[::-1]).permute(*reversed(range(len(shape)))).contiguous()


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
        file.write(NPY_MAGIC + b"\1\0" + struct.pack("<H", len(text)) + text.encode("latin-1"))
        file.write(bytes_of(tensor))
