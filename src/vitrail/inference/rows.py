"""Answers about images -> rows with named values, the same for every format and every engine: an image, a row."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from typing import Any, Final, TypeAlias

from vitrail.errors import ImageError, InputError
from vitrail.images import Source
from vitrail.inference.answers import answer, marked, prediction_row
from vitrail.inference.batches import BatchResult, run_batches
from vitrail.inference.image_reader import Named, Skip
from vitrail.inference.prediction import probabilities
from vitrail.inference.runtime import Runtime
from vitrail.types import ProgressCallback

Row: TypeAlias = dict[str, Any]
RowMaker: TypeAlias = Callable[[BatchResult], list[Row]]

PREDICTED: Final = ("path", "labels", "probabilities", "confident", "needed", "unlike", "familiarity", "error")
EMBEDDED: Final = ("path", "embedding", "error")
COLUMNS: Final = {"predict": PREDICTED, "embed": EMBEDDED}  # by verb


def prediction_maker(
    runtime: Runtime, top: int = 5, threshold: float = 0.0, decline: bool = False, trust: bool = False
) -> RowMaker:
    """What makes rows of PREDICTED out of a batch."""
    if not runtime.classes:
        raise InputError("this network has no head, so it cannot predict: use embed, or train a head")

    def rows_of(batch: BatchResult) -> list[Row]:
        shares = probabilities(batch.logits, runtime.task, runtime.temperature)
        answers = [answer(name, row, runtime, top, decline) for name, row in zip(batch.names, shares, strict=True)]
        answers = answers if trust else marked(answers, batch.embedding, runtime)
        return [prediction_row(each, threshold, decline) | {"error": None} for each in answers]

    return rows_of


def embedding_rows(batch: BatchResult) -> list[Row]:
    """Rows of EMBEDDED out of a batch: vectors as float32 (D,)."""
    pairs = zip(batch.names, batch.embedding, strict=True)
    return [{"path": name, "embedding": vector, "error": None} for name, vector in pairs]


def unread_row(columns: Iterable[str], path: str, error: str) -> Row:
    """The row of an image that could not be read: its path and why, nothing else."""
    lists: Row = {name: [] for name in columns if name in ("labels", "probabilities")}
    return dict.fromkeys(columns) | lists | {"path": path, "error": error}


def rows_in_order(
    runtime: Runtime,
    images: Iterable[Source | Named],
    columns: tuple[str, ...],
    rows_of: RowMaker,
    *,
    batch: int,
    threads: int,
    cores: int | None = None,
    skip: Skip | None = None,
    done: ProgressCallback | None = None,
) -> Generator[Row, None, None]:
    """A row for every image, in their order, those that cannot be read among them; `skip` is told of these too."""
    unread: deque[Row] = deque()  # in order, not yet handed on

    def keep(name: str, error: ImageError) -> None:
        unread.append(unread_row(columns, name, str(error)))
        if skip is not None:
            skip(name, error)

    following = 0
    results = run_batches(runtime, images, batch=batch, threads=threads, skip=keep, done=done, cores=cores)
    with closing(results):
        for result in results:
            for number, row in zip(result.rows.tolist(), rows_of(result), strict=True):
                for _ in range(following, number):  # a number that is missing is that of an unread image
                    yield unread.popleft()
                yield row
                following = number + 1
    yield from unread
