"""Views: a data set -> what the network sees of each image, before normalisation; in memory where it fits.

`normalise` takes views, augmented or not, to pixels: the same bits as `Preprocess.batch` gives for the images.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils import data as loading

from vitrail.checks import check_int, check_number
from vitrail.data.disk_cache import DiskCache, disk_cache_path, open_disk_cache, write_disk_cache
from vitrail.data.samples import Dataset
from vitrail.data.view_store import LIMIT, StoredViews, ViewStore, view_dtype, view_of
from vitrail.errors import ImageError, InputError, VitrailError
from vitrail.images import Preprocess, describe
from vitrail.images.decoding import read_file
from vitrail.images.file_bytes import FileBytes
from vitrail.types import Array

_CHUNK: Final = 16  # images a thread or process reads at a time


class Views:
    """What the network sees of every image of a data set, (C, H, W) each.

    Of ordinary images `Preprocess.visible_image`, 8-bit; of other bands `Preprocess.array`, float32. Those that a
    `store` has are taken from there, and the others put there as they are asked for. Else they are held in memory if
    they take at most `limit` bytes, else on disk if `cache` gives a folder and a digest of every image, else read
    whenever they are asked for. A margin of 1.25 gives views 1.25 times as large, for crops to be cut from. Several
    `threads` or `workers` (processes) read them faster, never differently. An image that cannot be read is an
    InputError that names it; so is one whose bytes are not those of its `digests` (n, 32), where they are given.
    """

    def __init__(
        self,
        dataset: Dataset,
        preprocess: Preprocess,
        *,
        margin: float = 1.0,
        limit: int = LIMIT,
        threads: int = 1,
        workers: int = 0,
        store: ViewStore | None = None,
        cache: tuple[Path, Sequence[str]] | None = None,
        digests: Array | None = None,
    ) -> None:
        if not len(dataset):
            raise InputError(f"{dataset.source}: no images to look at")
        check_int("threads", threads, 0, 1024, error=InputError)
        check_int("workers", workers, 0, 1024, error=InputError)
        check_int("limit", limit, 0, 1 << 60, error=InputError)
        self.dataset = dataset
        self.preprocess = with_margin(preprocess, margin)
        self.digests = digests
        self._reader = _Reader(dataset, self.preprocess, digests)
        self.shape: tuple[int, int, int] = (preprocess.channels, *self.preprocess.size)  # (C, H, W)
        self.dtype = view_dtype(self.preprocess)
        self._cache: DiskCache | None = None
        self._rows: Array | None = None  # of the images in the array, where they are not 0, 1, 2 ...
        self._stored: StoredViews | None = None
        self._threads = max(threads, workers)
        self._array = self._as_they_are()  # (n, C, H, W); None: read when asked for
        if self._array is not None:
            return
        stored = None if store is None else store.find(self.preprocess)
        if stored is not None:
            self._array, self._stored = stored.views, stored
            self._rows = np.array([stored.rows[each.name] for each in dataset.samples])
        elif len(dataset) * int(np.prod(self.shape)) * self.dtype.itemsize <= limit:
            self._array = self._read_all(threads, workers)
        elif cache is not None:
            self._cache = self._disk_cache(*cache, threads, workers)

    def __len__(self) -> int:
        return len(self.dataset)

    @property
    def held(self) -> bool:
        """Whether the views lie in memory or in a cache on disk, so that no image is decoded any more."""
        return self._array is not None or self._cache is not None

    def get(self, rows: Sequence[int] | Array) -> Tensor:
        """The views of these rows, in this order: (B, C, H, W), a copy."""
        rows = np.asarray(rows, np.int64)
        if rows.ndim != 1 or (rows.size and not 0 <= rows.min() <= rows.max() < len(self)):
            raise InputError(f"rows: expected a list of numbers from 0 to {len(self) - 1}, got {rows.tolist()}")
        if self._array is not None:
            own = rows if self._rows is None else self._rows[rows]
            if self._stored is not None:
                self._make(rows, own, self._stored)
            return torch.from_numpy(np.ascontiguousarray(self._array[own]))  # (B, C, H, W)
        views = np.empty((len(rows), *self.shape), self.dtype)
        read = self._reader.read if self._cache is None else self._cache.read
        for number, row in enumerate(rows.tolist()):
            views[number] = read(row)
        return torch.from_numpy(views)  # (B, C, H, W)

    def make_all(self) -> None:
        """Make the views that are kept once made, so that none has to be waited for later."""
        if self._stored is not None and self._rows is not None:
            self._make(np.arange(len(self)), self._rows, self._stored)

    def _make(self, rows: Array, own: Array, stored: StoredViews) -> None:
        """The views of these rows that were not made yet; `own` is where they stand among all that are kept."""
        missing = np.flatnonzero(~stored.made[own]).tolist()
        if len(missing) < 2 or self._threads < 2:
            for place in missing:
                self._reader.store(int(rows[place]), int(own[place]), stored)
            return
        with ThreadPoolExecutor(min(self._threads, len(missing)), "vitrail-views") as pool:
            numbers = ((int(rows[place]), int(own[place])) for place in missing)
            for made in [pool.submit(self._reader.store, row, place, stored) for row, place in numbers]:
                made.result()

    def _as_they_are(self) -> Array | None:
        """An array of images that are their own views, (n, C, H, W) without a copy; None where the view differs."""
        images, preprocess = self.dataset.images, self.preprocess
        if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.ndim not in (3, 4):
            return None
        if not images.shape[1:3] == preprocess.size == preprocess.scaled():
            return None
        planes = images[:, None] if images.ndim == 3 else images.transpose(0, 3, 1, 2)  # (n, C, H, W)
        if planes.shape[1] == 1:
            planes = np.broadcast_to(planes, (len(images), *self.shape))  # grey, in every channel
        if planes.shape[1] not in (1, 3) or planes.shape[1:] != self.shape or self.dtype != np.uint8:
            return None  # transparent, or colour for a grey network: the view computes something
        return planes if np.array_equal(planes[0], self._reader.read(0)) else None

    def _read_all(self, threads: int, workers: int) -> Array:
        """Every view, (n, C, H, W)."""
        views, start = np.empty((len(self), *self.shape), self.dtype), 0
        with self._deaths_named(), closing(self._parts(threads, workers)) as parts:
            for part in parts:
                views[start : start + len(part)] = part
                start += len(part)
        return views

    def _disk_cache(self, folder: Path, digests: Sequence[str], threads: int, workers: int) -> DiskCache:
        """The views on disk: those that are there already, or all of them read once."""
        path = disk_cache_path(folder, digests, self.preprocess)
        shape = (len(self), *self.shape)
        with self._deaths_named(), closing(self._parts(threads, workers)) as parts:
            return open_disk_cache(path, shape) or write_disk_cache(path, shape, self.dtype, parts)

    @contextmanager
    def _deaths_named(self) -> Iterator[None]:
        """The loader's signal handler raises, at any moment, when one of its processes dies."""
        try:
            yield
        except RuntimeError as error:
            if "DataLoader worker" not in str(error):
                raise
            raise VitrailError(
                f"{self.dataset.source}: a process that read images died ({str(error).splitlines()[0]}): "
                "it may have run out of memory; try fewer workers, or workers=0"
            ) from error

    def _parts(self, threads: int, workers: int) -> Generator[Array, None, None]:
        """Every view, a chunk (b, C, H, W) at a time, in order; an image that cannot be read is an error."""
        chunks = self._in_processes(workers) if workers else self._in_threads(threads)
        with closing(chunks):
            for chunk in chunks:
                if chunk.fault:
                    raise InputError(chunk.fault)
                yield chunk.views.numpy()

    def _in_threads(self, threads: int) -> Generator[_Chunk, None, None]:
        with ThreadPoolExecutor(max(1, threads), "vitrail-views") as pool:
            yield from pool.map(self._reader.__getitem__, range(len(self._reader)))

    def _in_processes(self, workers: int) -> Generator[_Chunk, None, None]:
        # A generator of its own: the loader draws a seed, and the global one would then depend on the workers.
        own = torch.Generator()
        loader = loading.DataLoader(self._reader, None, num_workers=workers, collate_fn=_unchanged, generator=own)
        chunks: Any = iter(loader)
        try:
            yield from chunks
        finally:  # until it is shut down, the death of any child of this process, whenever it comes, raises again
            for _ in range(2):
                with suppress(RuntimeError):
                    chunks._shutdown_workers()


class _Chunk(NamedTuple):
    """Some views, or why an image among them could not be read."""

    views: Tensor  # (b, C, H, W); tensors pass between processes in shared memory, which a death cannot cut in half
    fault: str = ""


class _Reader(loading.Dataset[_Chunk]):
    """Reads views one by one, or a chunk at a time."""

    def __init__(self, dataset: Dataset, preprocess: Preprocess, digests: Array | None = None) -> None:
        self.dataset = dataset
        self.preprocess = preprocess
        self.digests = digests  # (n, 32)

    def __len__(self) -> int:
        return -(-len(self.dataset) // _CHUNK)

    def __getitem__(self, chunk: int) -> _Chunk:
        rows = range(chunk * _CHUNK, min((chunk + 1) * _CHUNK, len(self.dataset)))
        try:
            return _Chunk(torch.from_numpy(np.stack([self.read(row) for row in rows])))
        except InputError as error:  # as a value: the loader buries the message of a process's exception in others
            return _Chunk(torch.empty(0), str(error))

    def read(self, row: int) -> Array:
        """One view, (C, H, W)."""
        with self._errors_named(row):
            return view_of(self._image(row), self.preprocess)

    def store(self, row: int, place: int, stored: StoredViews) -> None:
        """Make one view where others are kept."""
        with self._errors_named(row):
            stored.add(place, self._image(row))

    def _image(self, row: int) -> Path | FileBytes | Array:
        """One image; of a file that is to be the one that was listed, its bytes once they have been checked."""
        image = self.dataset.images[row]
        if self.digests is None or isinstance(image, np.ndarray):
            return image
        data = read_file(image)
        digest, expected = hashlib.sha256(data).digest(), self.digests[row].tobytes()
        if digest != expected:
            raise InputError(
                f"{describe(image)} has changed since it was listed: expected SHA-256 {expected.hex()[:16]}..., got "
                f"{digest.hex()[:16]}...: start again, with the images left as they are"
            )
        return data

    @contextmanager
    def _errors_named(self, row: int) -> Iterator[None]:
        """An image that cannot be read is a wrong input of whoever asked for the views."""
        try:
            yield
        except ImageError as error:  # of a file it gives the path, of an array only the shape
            in_array = isinstance(self.dataset.images, np.ndarray)
            name = f"{self.dataset.source}, {self.dataset.samples[row].name}: " if in_array else ""
            raise InputError(f"{name}{error}") from error


def with_margin(preprocess: Preprocess, margin: float) -> Preprocess:
    """The same, of a frame so many times as large."""
    check_number("margin", margin, 1.0, 4.0)
    height, width = (round(side * margin) for side in preprocess.size)
    return replace(preprocess, size=(height, width))


def _unchanged(chunk: Any) -> Any:
    return chunk


def normalise(images: Tensor, preprocess: Preprocess, device: torch.device | None = None) -> Tensor:
    """Views (B, C, H, W), augmented or not -> pixels, float32: the same bits as `preprocess.batch`, on any device.

    8-bit images go to the device first, as a quarter of the bytes; of other kinds it may not know all.
    """
    if images.ndim != 4 or images.shape[1] != preprocess.channels or images.shape[2:] != preprocess.size:
        expected = ("B", preprocess.channels, *preprocess.size)
        raise InputError(f"views: expected {expected}, got {tuple(images.shape)}")
    if preprocess.order == "BGR":
        images = images.flip(1)
    std, mean = np.array(preprocess.std), np.array(preprocess.mean)
    scale, shift = ((each.astype(np.float32).reshape(-1, 1, 1)) for each in (1 / (preprocess.range * std), mean / std))
    if device is not None and images.dtype == torch.uint8:
        images = images.to(device)
    pixels = images.to(torch.float32, copy=True)  # two roundings, in this order, as Preprocess does
    factor, offset = (torch.from_numpy(each).to(pixels.device) for each in (scale, shift))
    pixels = pixels.mul_(factor).sub_(offset)  # (B, C, H, W)
    return pixels if device is None else pixels.to(device)
