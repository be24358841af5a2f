"""An idx file, as MNIST and its kin come, packed by gzip or not -> one array. Its claims are checked before memory."""

from __future__ import annotations

import gzip
import math
import os
import stat
import zlib
from pathlib import Path
from typing import BinaryIO, Final, cast

import numpy as np

from vitrail.errors import InputError
from vitrail.images import describe
from vitrail.types import Array

LARGEST: Final = 8 * 2**30  # bytes of all images in memory; more belongs into files
EXPANSION: Final = 100  # what unpacks to more than this many times its weight is a trap; drawings reach 20
ROOM: Final = 16 * 2**20  # what small files may unpack to

_BYTES = 0x08  # the only kind of number in sets of images


def read_idx(path: Path) -> Array:
    """The uint8 array of an idx file."""
    name = describe(path)
    try:
        about = os.stat(path)
        if not stat.S_ISREG(about.st_mode):
            raise InputError(f"{name}: expected a file")
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            return _read(cast(BinaryIO, file), name, about.st_size)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{name} cannot be read: {error}: get the file anew") from error


def check_size(name: str, weight: int, size: int) -> None:
    """Refuse what would unpack to far more than the file weighs, or than memory should hold."""
    if size > LARGEST or size > EXPANSION * weight + ROOM:
        raise InputError(f"{name}: {weight:,} bytes that claim to unpack to {size:,}: refused; use a folder of images")


def _read(file: BinaryIO, name: str, weight: int) -> Array:
    head = file.read(4)
    if len(head) < 4 or head[:2] != b"\0\0" or not 1 <= head[3] <= 4:
        raise InputError(f"{name}: no idx file: expected two zero bytes, a kind and 1 to 4 dimensions")
    if head[2] != _BYTES:
        raise InputError(f"{name}: numbers of kind {head[2]:#04x}, expected bytes ({_BYTES:#04x})")
    sizes = file.read(4 * head[3])
    if len(sizes) < 4 * head[3]:
        raise InputError(f"{name} is cut short: get the file anew")
    shape = tuple(int(each) for each in np.frombuffer(sizes, ">u4"))
    count = math.prod(shape)
    check_size(name, weight, count)
    data = file.read(count + 1)  # one more would show a lie
    if len(data) != count:
        what = "more" if len(data) > count else f"{len(data):,}"
        raise InputError(f"{name}: {list(shape)} takes {count:,} bytes, {what} are there: get the file anew")
    return np.frombuffer(data, np.uint8).reshape(shape)
