"""An .npz file -> the arrays asked for. No array of objects is ever opened, and no claim of a size is believed."""

from __future__ import annotations

from collections.abc import Container
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from vitrail.data.idx import check_size
from vitrail.errors import CheckpointError, InputError
from vitrail.files import ReadOnlyFile
from vitrail.images import describe
from vitrail.images.npy import NpyHeader, read_header
from vitrail.types import Array
from vitrail.weights.reading.archives import ArchiveMember, read_directory, unpack

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
    """An array in the archive: what its header says."""

    member: ArchiveMember
    header: NpyHeader
    dtype: np.dtype[Any]


def _described(file: ReadOnlyFile, member: ArchiveMember) -> _Described:
    """The header of an array, checked against the bytes that are there."""
    where = f"{file.name}: {member.name!r}"
    try:
        header = read_header(partial(unpack, file, member))
        dtype = np.dtype(header.word)
    except CheckpointError:  # a ValueError too
        raise
    except (ValueError, TypeError, SyntaxError) as error:
        raise InputError(f"{where} is no array that can be read, refused: {error!s:.120}") from None
    if dtype.hasobject:
        raise InputError(f"{where} holds Python objects, which is a pickle and never opened")
    if dtype.kind not in KINDS:
        raise InputError(f"{where}: values of kind {dtype}, expected numbers or text")
    wrong = header.misfit(dtype.itemsize, member.size)
    if wrong:
        raise InputError(f"{where}: {wrong}: refused")
    return _Described(member, header, dtype)


def _values(file: ReadOnlyFile, array: _Described) -> Array:
    data, shape = unpack(file, array.member), array.header.shape
    flat = np.empty(0, array.dtype) if 0 in shape else np.frombuffer(data, array.dtype, offset=array.header.start)
    return flat.reshape(shape, order="F" if array.header.columns else "C")
