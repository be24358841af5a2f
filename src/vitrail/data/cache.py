"""Views: a data set -> what the network sees of each image, before normalisation; in memory where it fits.

`normalise` takes views, augmented or not, to pixels: the same bits as `Preprocess.batch` gives for the images.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
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
from vitrail.data.disk_cache import Shelf, make_shelf, open_shelf, shelf_path
from vitrail.data.samples import Dataset
from vitrail.errors import ImageError, InputError, VitrailError
from vitrail.images import Preprocess

Array = np.ndarray[Any, Any]
Done = Callable[[int], None]  # told how many more images are done
Skip = Callable[[str, ImageError], None]  # told of an image that could not be read

LIMIT: Final = 2 * 2**30  # bytes held in memory
_CHUNK: Final = 16  # images a thread or process reads at a time


class UnreadableError(InputError):
    """An image that cannot be read; a training that goes on without it needs its row."""

    def __init__(self, message: str, row: int = -1) -> None:
        super().__init__(message)
        self.row = row


class Views:
    """What the network sees of every image of a data set, (C, H, W) each.

    Of ordinary images `Preprocess.visible_image`, 8-bit; of other bands `Preprocess.array`, float32. They are held in
    memory if they take at most `limit` bytes, else on disk if `shelf` gives a folder and a digest of every image, else
    read whenever they are asked for. A margin of 1.25 gives views 1.25 times as large, for crops to be cut from.
    Several `threads` or `workers` (processes) read them faster, never differently.
    An image that cannot be read is an UnreadableError; give `skip` to be told of it and go on: its row then stands
    in `unreadable`, and asking for it is an error.
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
        done: Done | None = None,
        skip: Skip | None = None,
        shelf: tuple[Path, Sequence[str]] | None = None,
    ) -> None:
        if not len(dataset):
            raise InputError(f"{dataset.source}: no images to look at")
        margin = check_number("margin", margin, 1.0, 4.0)
        check_int("threads", threads, 0, 1024, error=InputError)
        check_int("workers", workers, 0, 1024, error=InputError)
        check_int("limit", limit, 0, 1 << 60, error=InputError)
        self.dataset = dataset
        height, width = (round(side * margin) for side in preprocess.size)
        self.preprocess = replace(preprocess, size=(height, width))
        self._reader = _Reader(dataset, self.preprocess)
        self._reasons: dict[int, str] = {}  # of rows that were skipped
        self._shelf: Shelf | None = None
        first = self._first(strict=skip is None)
        self.shape: tuple[int, int, int] = first.shape  # (C, H, W)
        self.dtype = first.dtype
        self._array = _as_they_are(dataset.images, self.preprocess, first)  # (n, C, H, W); None: read when asked for
        if self._array is None and len(dataset) * first.nbytes <= limit:
            self._array = np.zeros((len(dataset), *self.shape), self.dtype)
            self._fill(self._array, threads, workers, done, skip)
        elif self._array is None and shelf is not None:
            self._shelf = self._shelved(*shelf, threads, workers, done)
        elif done is not None:
            done(len(dataset))

    def __len__(self) -> int:
        return len(self.dataset)

    @property
    def held(self) -> bool:
        """Whether the views lie in memory or on a shelf, so that no image is decoded any more."""
        return self._array is not None or self._shelf is not None

    @property
    def unreadable(self) -> tuple[int, ...]:
        """Rows that were skipped."""
        return tuple(sorted(self._reasons))

    def get(self, rows: Sequence[int] | Array) -> Tensor:
        """The views of these rows, in this order: (B, C, H, W), a copy."""
        rows = np.asarray(rows, np.int64)
        if rows.ndim != 1 or (rows.size and not 0 <= rows.min() <= rows.max() < len(self)):
            raise InputError(f"rows: expected a list of numbers from 0 to {len(self) - 1}, got {rows.tolist()}")
        for row in rows.tolist() if self._reasons else ():
            if row in self._reasons:
                raise UnreadableError(self._reasons[row], row)
        if self._array is not None:
            return torch.from_numpy(np.ascontiguousarray(self._array[rows]))  # (B, C, H, W)
        found = np.empty((len(rows), *self.shape), self.dtype)
        read = self._reader.read if self._shelf is None else self._shelf.read
        for place, row in enumerate(rows.tolist()):
            found[place] = read(row)
        return torch.from_numpy(found)  # (B, C, H, W)

    def _first(self, strict: bool) -> Array:
        """The first view that can be read: it says what all look like."""
        for row in range(len(self.dataset)):
            try:
                return self._reader.read(row)
            except UnreadableError:
                if strict:
                    raise
        raise InputError(f"{self.dataset.source}: not one of its {len(self.dataset)} images can be read")

    def _fill(self, array: Array, threads: int, workers: int, done: Done | None, skip: Skip | None) -> None:
        """Read every image into its place; what cannot be read is skipped, or an error."""
        with self._deaths_named(), closing(self._parts(threads, workers, done)) as parts:
            for part in parts:
                for row, reason in part.reasons:
                    if skip is None:
                        raise UnreadableError(reason, row)
                    skip(self.dataset.samples[row].name, ImageError(reason))
                    self._reasons[row] = reason
                array[part.start : part.start + len(part.views)] = part.views.numpy()

    def _shelved(self, folder: Path, digests: Sequence[str], threads: int, workers: int, done: Done | None) -> Shelf:
        """The views on disk: those that are there already, or all of them read once."""
        path = shelf_path(folder, digests, self.preprocess)
        shape = (len(self), *self.shape)
        found = open_shelf(path, shape)
        if found is not None:
            if done is not None:
                done(len(self))
            return found

        def views() -> Generator[Array, None, None]:
            with closing(self._parts(threads, workers, done)) as parts:
                for part in parts:
                    for row, reason in part.reasons:
                        raise UnreadableError(reason, row)
                    yield part.views.numpy()

        with self._deaths_named(), closing(views()) as filled:
            return make_shelf(path, shape, self.dtype, filled)

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

    def _parts(self, threads: int, workers: int, done: Done | None) -> Generator[_Part, None, None]:
        """Every image, a chunk at a time, in order."""
        with closing(self._in_processes(workers) if workers else self._in_threads(threads)) as parts:
            for part in parts:
                yield part
                if done is not None:
                    done(len(part.views))

    def _in_threads(self, threads: int) -> Generator[_Part, None, None]:
        starts = range(0, len(self.dataset), _CHUNK)
        if threads < 2:
            yield from map(self._reader.part, starts)
            return
        with ThreadPoolExecutor(threads, "vitrail-views") as pool:
            yield from pool.map(self._reader.part, starts)

    def _in_processes(self, workers: int) -> Generator[_Part, None, None]:
        # A generator of its own: the loader draws a seed, and the global one would then depend on the workers.
        own = torch.Generator()
        loader = loading.DataLoader(self._reader, None, num_workers=workers, collate_fn=_unchanged, generator=own)
        parts: Any = iter(loader)
        try:
            yield from parts
        finally:  # until it is shut down, the death of any child of this process, whenever it comes, raises again
            for _ in range(2):
                with suppress(RuntimeError):
                    parts._shutdown_workers()


class _Part(NamedTuple):
    """Some views, zero where an image could not be read, and why it could not."""

    start: int
    views: Tensor  # (b, C, H, W); tensors pass between processes in shared memory, which a death cannot cut in half
    reasons: list[tuple[int, str]]


class _Reader(loading.Dataset[_Part]):
    """Reads views one by one, or a chunk at a time."""

    def __init__(self, dataset: Dataset, preprocess: Preprocess) -> None:
        self.dataset = dataset
        self.preprocess = preprocess

    def __len__(self) -> int:
        return -(-len(self.dataset) // _CHUNK)

    def __getitem__(self, chunk: int) -> _Part:
        return self.part(chunk * _CHUNK)

    def part(self, start: int) -> _Part:
        views: list[Array | None] = []
        reasons = []
        for row in range(start, min(start + _CHUNK, len(self.dataset))):
            try:
                views.append(self.read(row))
            except UnreadableError as error:
                views.append(None)
                reasons.append((row, str(error)))
        known = next((view for view in views if view is not None), np.zeros((1, 1, 1), np.uint8))
        filled = [np.zeros_like(known) if view is None else view for view in views]
        return _Part(start, torch.from_numpy(np.stack(filled)), reasons)

    def read(self, row: int) -> Array:
        """One view, (C, H, W)."""
        image = self.dataset.images[row]
        try:
            view = (
                np.asarray(self.preprocess.visible_image(image))
                if self.preprocess.is_8bit
                else self.preprocess.array(image)
            )
        except ImageError as error:  # of a file it gives the path, of an array only the shape
            name = f"{self.dataset.source}, {self.dataset.samples[row].name}: " if isinstance(image, np.ndarray) else ""
            raise UnreadableError(f"{name}{error}", row) from error
        return view[None] if view.ndim == 2 else view.transpose(2, 0, 1)  # (C, H, W)


def _unchanged(part: Any) -> Any:
    return part


def _as_they_are(images: Sequence[Any] | Array, preprocess: Preprocess, first: Array) -> Array | None:
    """An array of images that are their own views, (n, C, H, W) without a copy; None where the view differs."""
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.ndim not in (3, 4):
        return None
    if not images.shape[1:3] == preprocess.size == preprocess.scaled():
        return None
    planes = images[:, None] if images.ndim == 3 else images.transpose(0, 3, 1, 2)  # (n, C, H, W)
    if planes.shape[1] == 1:
        planes = np.broadcast_to(planes, (len(images), *first.shape))  # grey, in every channel
    if planes.shape[1] not in (1, 3) or planes.shape[1:] != first.shape:
        return None  # transparent, or colour for a grey network: the view computes something
    return planes if first.dtype == np.uint8 and np.array_equal(planes[0], first) else None


def normalise(images: Tensor, preprocess: Preprocess) -> Tensor:
    """Views (B, C, H, W), augmented or not -> pixels, float32: the same bits as `preprocess.batch`."""
    if images.ndim != 4 or images.shape[1] != preprocess.channels or images.shape[2:] != preprocess.size:
        expected = ("B", preprocess.channels, *preprocess.size)
        raise InputError(f"views: expected {expected}, got {tuple(images.shape)}")
    if preprocess.order == "BGR":
        images = images.flip(1)
    std, mean = np.array(preprocess.std), np.array(preprocess.mean)
    scale, shift = ((each.astype(np.float32).reshape(-1, 1, 1)) for each in (1 / (preprocess.range * std), mean / std))
    pixels = images.to(torch.float32, copy=True)  # two roundings, in this order, as Preprocess does
    return pixels.mul_(torch.from_numpy(scale)).sub_(torch.from_numpy(shift))  # (B, C, H, W)
