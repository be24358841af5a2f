"""An .npz file -> the arrays asked for. No array of objects is ever opened, and no claim of a size is believed."""

from __future__ import annotations

import io
import math
from collections.abc import Container
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from vitrail.data.idx import check_size
from vitrail.errors import CheckpointError, InputError
from vitrail.files import ReadOnlyFile
from vitrail.images import describe
from vitrail.types import Array
from vitrail.weights.reading.archives import ArchiveMember, read_directory, unpack

HEADER: Final = 12_000  # bytes: numpy reads headers of up to 10,000
KINDS: Final = "biufUS"  # truth, numbers and text


def read_npz(path: Path, wanted: Container[str]) -> dict[str, Array]:
    """The arrays with these names, as many of them as are there."""
    name = describe(path)
    try:
        file = ReadOnlyFile(path, name)
        members = {each.name.removesuffix(".npy"): each for each in read_directory(file).values()}
        found = {key: _described(file, each) for key, each in members.items() if key in wanted}
        check_size(name, file.size, sum(array.member.size for array in found.values()))
        return {key: _values(file, each) for key, each in found.items()}
    except CheckpointError as error:  # of the reader that weights share
        raise InputError(str(error)) from None


class _Described(NamedTuple):
    """What the header of an array says."""

    member: ArchiveMember
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    columns: bool  # the first axis runs fastest (Fortran order)
    start: int  # of the numbers, in the member


def _described(file: ReadOnlyFile, member: ArchiveMember) -> _Described:
    """The header of an array, checked against the bytes that are there."""
    where = f"{file.name}: {member.name!r}"
    head = io.BytesIO(unpack(file, member, HEADER))
    try:
        version = np.lib.format.read_magic(head)
        if version == (1, 0):
            shape, columns, dtype = np.lib.format.read_array_header_1_0(head)
        else:
            shape, columns, dtype = np.lib.format.read_array_header_2_0(head)
    except ValueError as error:
        raise InputError(f"{where} is no array that can be read: {str(error).splitlines()[0]:.120}") from None
    if dtype.hasobject:
        raise InputError(f"{where} holds Python objects, which is a pickle and never opened")
    if dtype.kind not in KINDS:
        raise InputError(f"{where}: values of kind {dtype}, expected numbers or text")
    expected, got = math.prod(shape) * dtype.itemsize, member.size - head.tell()
    if min(shape, default=0) < 0 or expected != got:
        raise InputError(f"{where}: an array of shape {shape} takes {expected:,} bytes, {got:,} are there: refused")
    return _Described(member, shape, dtype, columns, head.tell())


def _values(file: ReadOnlyFile, array: _Described) -> Array:
    data = unpack(file, array.member)
    flat = np.frombuffer(data, array.dtype, offset=array.start) if math.prod(array.shape) else np.empty(0, array.dtype)
    return flat.reshape(array.shape, order="F" if array.columns else "C")
