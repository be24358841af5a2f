"""What a runtime makes of images that were read: a batch in; its answers out, and its near ties, to be decided."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from vitrail.errors import ImageError, InputError
from vitrail.images import Source
from vitrail.inference.image_reader import File, Named, Read, Unread, read, ways
from vitrail.inference.settling import CLEAR, near_ties, settle

Array = np.ndarray[Any, Any]


class Passed(NamedTuple):
    """What the network made of some images; those that could not be read are missing."""

    rows: Array  # (B,) their numbers
    names: list[str]
    logits: Array  # (B, K)
    embedding: Array  # (B, D)


class Tie(NamedTuple):
    """An image whose likeliest classes are too close to call: what was seen of it, and where to see it in full."""

    values: Array
    file: File | None


class Waiting(NamedTuple):
    """A batch that was run, and its near ties by place; those of several are decided at once, which takes less time."""

    passed: Passed
    ties: dict[int, Tie]


class Answering:
    """A runtime and how it is asked: by which of its networks, and whether the full image decides near ties."""

    def __init__(self, runtime: Any, settled: bool) -> None:
        self._runtime = runtime
        self._settled = settled
        # Two networks: one that is quick, and one that is sure.
        has_two = hasattr(runtime, "quick") and hasattr(runtime, "sure")
        self._two = settled and has_two and getattr(runtime, "clear", 1.0) > 1
        # What is no near tie, in times as likely as the next: by scaled decoding, or by the network.
        self._clear = max(CLEAR, runtime.clear) if self._two else CLEAR
        self._make, self._run = ways(runtime.quick if self._two else runtime, runtime.preprocess)

    def read(self, row: int, item: Source | Named) -> Read | Unread:
        return read(self._make, self._settled, row, item)

    def run(self, kept: list[Read]) -> Waiting:
        """The list is emptied: the network may work long, and nothing is held twice meanwhile."""
        rows, names = [each.row for each in kept], [each.name for each in kept]
        values, files = np.stack([each.values for each in kept]), [each.file for each in kept]
        kept.clear()
        passed = Passed(np.array(rows), names, *self._checked(self._run(values), len(rows)))
        near = near_ties(passed.logits, self._runtime.task, self._clear) if self._settled else np.zeros(0)
        return Waiting(passed, {int(place): Tie(values[place].copy(), files[place]) for place in np.flatnonzero(near)})

    def settle(self, waiting: list[Waiting], batch: int, threads: int) -> Iterator[Passed]:
        """What was passed, near ties decided by the full image; of two networks by the sure one, whatever it sees."""
        if not any(each.ties for each in waiting):
            yield from (each.passed for each in waiting)
            return
        full = replace(self._runtime.preprocess, scaled_decoding=False)
        make, run = ways(self._runtime.sure if self._two else self._runtime, full)
        ties = {(number, place): tie for number, each in enumerate(waiting) for place, tie in each.ties.items()}

        def look(tie: Tie) -> Array | None:
            before = tie.values if self._two else None
            if tie.file is None or not tie.file.same:  # changed since, or gone: what was read of it must do
                return before
            try:
                values = make(tie.file.source)
            except ImageError:
                return before
            return before if np.array_equal(values, tie.values) else values

        def rerun(again: Array) -> tuple[Array, Array]:
            parts = [again[first : first + batch] for first in range(0, len(again), batch)]
            logits, embedding = zip(*(self._checked(run(part), len(part)) for part in parts), strict=True)
            return np.concatenate(logits), np.concatenate(embedding)

        if threads == 1:
            seen = [look(tie) for tie in ties.values()]
        else:
            with ThreadPoolExecutor(threads) as pool:
                seen = list(pool.map(look, ties.values()))
        answers = settle([each.passed[2:] for each in waiting], dict(zip(ties, seen, strict=True)), rerun)
        for each, (logits, embedding) in zip(waiting, answers, strict=True):
            yield each.passed._replace(logits=logits, embedding=embedding)

    def _checked(self, answers: tuple[Array, Array], count: int) -> tuple[Array, Array]:
        logits, embedding = answers
        if not len(logits) == len(embedding) == count:
            raise InputError(
                f"{type(self._runtime).__name__} gave {len(logits)} rows of logits and {len(embedding)} embeddings "
                f"for {count} images"
            )
        return logits, embedding
