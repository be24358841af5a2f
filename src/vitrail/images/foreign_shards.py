"""Tar files of others, as webdataset writes them -> a ShardIndex, made when they are first read and kept in a cache.

Members whose names are the same up to the first dot of their last part are one sample: KEY.jpg, KEY.cls, KEY.json.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from vitrail.errors import InputError
from vitrail.files import atomic_write, cache_folder
from vitrail.images.decoding import DEFAULT_LIMITS, describe
from vitrail.images.file_names import SUFFIXES, TAR, in_order
from vitrail.images.shards import Shard, ShardIndex, ShardSet, TarFile, has_index, read_index
from vitrail.images.tar_headers import TarMember, tar_members

LARGEST_LABEL: Final = 1 << 20  # bytes of a .cls or .json
TICK: Final = 2_000_000_000  # nanoseconds; a tar file that is younger when it is listed may change unseen
_KEY: Final = re.compile(r"((?:.*/)?[^./][^./]*)\.([^/]+)", re.DOTALL)
_WORDS: Final = ("labels", "label", "class_name", "cls", "class")  # where the label may stand in a .json


class _Listed(NamedTuple):
    """An image in a tar file."""

    name: str
    labels: tuple[str, ...] | None  # None: nothing is said of them
    is_list: bool  # several of them, or none
    start: int
    size: int


def find_shards(path: Path) -> ShardSet | None:
    """The shards that a folder holds, or that a tar file is; None of anything else."""
    if path.is_dir():
        if has_index(path):
            return read_index(path)
        tars = tars_in(path)
        return _listed(path, tars) if tars else None
    return _listed(path.parent, [path.name]) if path.suffix.lower() == TAR and path.is_file() else None


def tars_in(folder: Path) -> list[str]:
    """The tar files in a folder that holds neither folders nor images, but for hidden ones; of any other none."""
    tars = []
    with suppress(OSError), os.scandir(folder) as inside:
        for entry in inside:
            if entry.name.startswith("."):
                continue
            if entry.is_dir() or entry.name.lower().endswith(SUFFIXES):
                return []
            if entry.name.lower().endswith(TAR) and entry.is_file(follow_symlinks=False):
                tars.append(entry.name)
    return in_order(tars)


def _listed(folder: Path, tars: Sequence[str]) -> ShardSet:
    """The tar files of a folder, listed: as a cache has it, where they have not changed since."""
    since = time.time_ns()
    shards = []
    for name in tars:
        status = os.stat(folder / name)
        shards.append(Shard(name, status.st_size, "", (status.st_mtime_ns, status.st_ctime_ns)))
    cache = _cache_path(folder, tars)
    if cache is not None and (index := _recalled(cache)) is not None and index.shards == tuple(shards):
        return ShardSet(folder, index)
    index = _index(folder, shards)
    if cache is not None and all(max(each.stamp) < since - TICK for each in shards):
        with suppress(OSError):
            cache.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(cache) as temporary:
                temporary.write_text(index.to_json(), encoding="utf-8")
    return ShardSet(folder, index)


def _cache_path(folder: Path, tars: Sequence[str]) -> Path | None:
    root = cache_folder()
    names = "\0".join((os.path.realpath(folder), *tars)).encode("utf-8", "surrogateescape")
    return None if root is None else root / "shards" / f"{hashlib.sha256(names).hexdigest()[:32]}.json"


def _recalled(cache: Path) -> ShardIndex | None:
    """What a cache has; None where there is none, or none that is whole."""
    try:
        return ShardIndex.from_json(cache.read_text("utf-8"), describe(cache))
    except (OSError, ValueError):  # an InputError too
        return None


def _index(folder: Path, shards: Sequence[Shard]) -> ShardIndex:
    """Every image in these tar files, in their order."""
    listed: list[_Listed] = []
    numbers: list[int] = []
    for number, shard in enumerate(shards):
        images = _images(folder / shard.name, shard)
        listed += images
        numbers += [number] * len(images)
    if twice := len(listed) - len({each.name for each in listed}):
        raise InputError(f"{describe(folder)}: {twice:,} names of images stand twice: expected every key once a shard")
    has_lists = any(each.is_list for each in listed)
    labels = [each.labels or () for each in listed]
    return ShardIndex(
        "multi-label" if has_lists else "single-label",
        tuple(in_order({label for each in labels for label in each})),
        tuple(shards),
        [each.name for each in listed],
        labels,
        [""] * len(listed),
        [""] * len(listed),
        np.array(numbers, np.int32),
        np.array([each.start for each in listed], np.int64),
        np.array([each.size for each in listed], np.int64),
        None,
    )


def _images(path: Path, shard: Shard) -> list[_Listed]:
    """The images of one tar file, each with what stands beside it."""
    file, tar = TarFile(path), describe(path)
    images: list[_Listed] = []
    key = ""
    beside: dict[str, TarMember] = {}
    for member in tar_members(file.read, shard.bytes, tar):
        if (parts := _KEY.fullmatch(member.name)) is None:
            continue  # no sample: a name without an ending, or a hidden file
        if parts[1] != key:
            images += _sample(file, tar, shard, key, beside)
            key, beside = parts[1], {}
        ending = parts[2].lower()
        if ending in beside:
            raise InputError(f"{tar}: {member.name!r} stands there twice: expected every name once")
        beside[ending] = member
    return images + _sample(file, tar, shard, key, beside)


def _sample(file: TarFile, tar: str, shard: Shard, key: str, beside: dict[str, TarMember]) -> list[_Listed]:
    """The image among the members of one key; none where there is none."""
    endings = [each for each in beside if f".{each}" in SUFFIXES]
    if len(endings) > 1:
        raise InputError(f"{tar}: {key!r} has {len(endings)} images ({', '.join(endings)}): expected one a key")
    if not endings:
        return []
    image = beside[endings[0]]
    if image.size > DEFAULT_LIMITS.file_bytes:
        raise InputError(
            f"{tar}: {image.name!r} has {image.size:,} bytes, over the limit of {DEFAULT_LIMITS.file_bytes:,}: refused"
        )
    name = f"{shard.name[: -len(TAR)]}/{key}.{endings[0]}"
    labels, is_list = None, False
    for ending in ("cls", "json"):
        if labels is None and ending in beside:
            member = beside[ending]
            if member.size > LARGEST_LABEL:
                raise InputError(f"{tar}: {member.name!r} has {member.size:,} bytes: expected a label, refused")
            labels, is_list = _labels(file.read(member.start, member.size), ending, f"{tar}: {member.name!r}")
    return [_Listed(name, labels, is_list, image.start, image.size)]


def _labels(raw: bytes, ending: str, where: str) -> tuple[tuple[str, ...] | None, bool]:
    """What a .cls or .json says of the labels, and whether as a list."""
    try:
        text = raw.decode("utf-8").strip()
        if ending == "cls":
            return (text,) if text else None, False
        plain: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where} cannot be read ({type(error).__name__}): expected a label in UTF-8") from None
    word = next((each for each in _WORDS if each in plain), "") if isinstance(plain, dict) else ""
    if not word:
        return None, False
    value = plain[word]
    values = value if isinstance(value, list) else [value]
    if not all(isinstance(each, str | int) and not isinstance(each, bool) for each in values):
        raise InputError(f"{where}: {word!r} is {value!r:.60}: expected the name or the number of a class")
    return tuple(dict.fromkeys(map(str, values))), isinstance(value, list) and len(values) != 1
