"""Prefetching: items in, what `read` makes of them out, in order; threads work, never far ahead of what was used."""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable, Iterable
from typing import Generic, NamedTuple, TypeVar

PATIENCE = 5.0  # seconds at the end of a process: a camera that gives nothing more must not hold it up for ever

Item = TypeVar("Item")
Result = TypeVar("Result")


class _Failed(NamedTuple):
    error: BaseException


class Prefetcher(Generic[Item, Result]):
    """Threads that draw items, one at a time, and read them side by side; at most `most` are drawn and not yet used.

    Whatever drawing or reading raises is raised by `take`, when all that came before has been taken. To be left by
    `close`, or as a context: the threads are gone then.
    """

    def __init__(self, items: Iterable[Item], read: Callable[[Item], Result], threads: int, most: int) -> None:
        self._items = iter(items)
        self._read = read
        self._room = threading.Semaphore(most)
        self._drawing = threading.Lock()
        self._change = threading.Condition()
        self._results: dict[int, Result | _Failed] = {}  # by number, not yet taken
        self._drawn = 0
        self._taken = 0
        self._over = False  # nothing more will be drawn
        self._threads = [
            threading.Thread(target=self._work, name=f"vitrail-reading-{number}", daemon=True)
            for number in range(threads)
        ]
        # A thread that is inside a library when Python ends would take the process down.
        atexit.register(self.close, PATIENCE)
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Prefetcher[Item, Result]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def take(self, count: int) -> list[Result]:
        """The next `count` in order; fewer before an error or the end, none at the end."""
        taken: list[Result] = []
        while len(taken) < count:
            with self._change:
                self._change.wait_for(self._is_next_known)
                if self._taken not in self._results:
                    return taken  # the end
                result = self._results[self._taken]
                if isinstance(result, _Failed):
                    if taken:
                        return taken
                    raise result.error
                del self._results[self._taken]
                self._taken += 1
                taken.append(result)
        return taken

    def used(self, count: int) -> None:
        """So many of those taken are needed no more: as many others may be drawn."""
        self._room.release(count)

    def close(self, patience: float | None = None) -> None:
        """End the threads; one that is in the middle of an item finishes it first, or so many seconds pass."""
        self._finish()
        until = time.monotonic() + (patience or 0)
        for thread in self._threads:
            thread.join(None if patience is None else max(0.0, until - time.monotonic()))
        atexit.unregister(self.close)

    def _is_next_known(self) -> bool:
        return self._taken in self._results or (self._over and self._taken >= self._drawn)

    def _work(self) -> None:
        while self._room.acquire() and self._one():
            pass

    def _one(self) -> bool:
        """Draw one item and read it; False when there is none."""
        with self._drawing:
            if self._over:
                return False
            number = self._drawn
            try:
                item = next(self._items)
            except StopIteration:
                self._finish()
                return False
            except BaseException as error:
                self._drawn += 1
                self._keep(number, _Failed(error))
                self._finish()
                return False
            self._drawn += 1
        try:
            self._keep(number, self._read(item))
        except BaseException as error:
            self._keep(number, _Failed(error))
        return True

    def _keep(self, number: int, result: Result | _Failed) -> None:
        with self._change:
            self._results[number] = result
            self._change.notify_all()

    def _finish(self) -> None:
        with self._change:
            self._over = True
            self._change.notify_all()
        self._room.release(len(self._threads))  # none waits for room for ever
