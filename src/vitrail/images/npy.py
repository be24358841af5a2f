"""The bytes of an .npy file -> NpyHeader, what they say of an array, for images, weights and data alike; or the array.

No claim is believed before it is held against the bytes that are there, and no array of objects is ever opened.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np

from vitrail.errors import ImageError
from vitrail.types import Array

NPY_MAGIC: Final = b"\x93NUMPY"
LARGEST_HEADER: Final = 4096  # that of an array of plain numbers takes 118 bytes
LARGEST_SIDE: Final = 2**63

_NUMBERS = re.compile(r"[<>|=](b1|[ui][1248]|f[248])")
_LONG = re.compile(r"(\d)L\b")  # how Python 2 wrote whole numbers


class NpyHeader(NamedTuple):
    """What stands before the numbers of an array."""

    word: str  # numpy's for their kind: "<f4"
    columns: bool  # the first axis runs fastest (Fortran order)
    shape: tuple[int, ...]
    start: int  # of the numbers, in the file

    def misfit(self, itemsize: int, size: int) -> str:
        """What is wrong with a file of this size for numbers of so many bytes each; empty where they fit."""
        needed, there = math.prod(self.shape) * itemsize, size - self.start
        if needed == there:
            return ""
        return f"an array of shape {list(self.shape)!r:.80} takes {needed:,} bytes, {there:,} are there"


def read_header(read: Callable[[int], bytes]) -> NpyHeader:
    """The header of a file of which `read` gives so many bytes from the start; ValueError says what is wrong."""
    head = read(12)
    version = head[6:7]
    begin = 10 if version == b"\1" else 12
    if head[:6] != NPY_MAGIC or version not in (b"\1", b"\2", b"\3") or len(head) < begin:
        raise ValueError("no array (.npy) begins like this")
    length = int.from_bytes(head[8:begin], "little")
    if length > LARGEST_HEADER:
        raise ValueError(f"the file claims a header of {length:,} bytes")
    try:
        text = read(begin + length)[begin:].decode("utf-8" if version == b"\3" else "latin-1")
        plain = ast.literal_eval(_LONG.sub(r"\1", text.strip()))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        raise ValueError("it cannot be read") from None
    if not isinstance(plain, dict) or plain.keys() != {"descr", "fortran_order", "shape"}:
        raise ValueError("it cannot be read, expected descr, fortran_order and shape")
    word, columns, shape = plain["descr"], plain["fortran_order"], plain["shape"]
    if not isinstance(word, str):
        raise ValueError("a structured array, expected plain numbers")
    if not isinstance(columns, bool):
        raise ValueError("fortran_order is neither True nor False")
    if not isinstance(shape, tuple) or not all(type(side) is int and 0 <= side < LARGEST_SIDE for side in shape):
        raise ValueError("its shape is no list of whole numbers")
    return NpyHeader(word, columns, shape, begin + length)


def read_npy(data: bytes, name: str) -> Array:
    """The array of an image in the bytes of an .npy file, without a copy; its header must account for every byte."""
    try:
        header = read_header(lambda count: data[:count])
    except ValueError as error:
        raise ImageError(
            f"{name}: the header of the array makes no sense: {error}; expected plain numbers, as numpy.save has them"
        ) from None
    if not _NUMBERS.fullmatch(header.word):
        raise ImageError(f"{name}: an array of {header.word!r:.40}, expected plain numbers: use a numeric dtype")
    dtype = np.dtype(header.word)
    wrong = header.misfit(dtype.itemsize, len(data))
    if wrong:
        raise ImageError(f"{name}: {wrong}: damaged or cut short")
    if not header.shape:
        raise ImageError(f"{name}: a single number, which takes {dtype.itemsize} bytes, is no image")
    if 0 in header.shape:
        raise ImageError(f"{name}: has no pixels")
    flat = np.frombuffer(data, dtype, offset=header.start)
    return flat.reshape(header.shape, order="F" if header.columns else "C")
