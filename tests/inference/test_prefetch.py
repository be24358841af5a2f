"""Prefetcher: in order, never too far ahead, errors in their place, no threads left behind."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from vitrail.inference import prefetch
from vitrail.inference.prefetch import PATIENCE, Prefetcher

MOMENT = 0.2  # seconds: what must not happen is given so long to happen; however slow the machine, no test needs less


def reading() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name.startswith("vitrail-reading")]


def squared(number: int) -> int:
    return number * number


class Overtaking:
    """Reads numbers, each pair of them the wrong way round: an even one is done only once the next one is."""

    def __init__(self, count: int) -> None:
        self.done = [threading.Event() for _ in range(count)]

    def __call__(self, number: int) -> int:
        if number % 2 == 0 and number + 1 < len(self.done):
            self.done[number + 1].wait()
        self.done[number].set()
        return number * number


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("count", [0, 1, 7, 40])
def test_in_order_whoever_is_done_first(threads: int, count: int) -> None:
    found: list[int] = []
    read: Callable[[int], int] = squared if threads == 1 else Overtaking(count)
    with Prefetcher(range(count), read, threads, 6) as ahead:
        while part := ahead.take(3):
            found += part
            ahead.used(len(part))
        assert ahead.take(3) == []
    assert found == [number * number for number in range(count)]
    assert reading() == []


class Waiters:
    """A semaphore that tells when all threads wait for room: then nothing is_video until some is made."""

    def __init__(self, room: int, threads: int) -> None:
        self._change = threading.Condition()
        self._room, self._threads, self._waiting = room, threads, 0

    def acquire(self) -> bool:
        with self._change:
            self._waiting += 1
            self._change.notify_all()
            self._change.wait_for(lambda: self._room > 0)
            self._waiting -= 1
            self._room -= 1
        return True

    def release(self, count: int) -> None:
        with self._change:
            self._room += count
            self._change.notify_all()

    def wait_until_all_wait(self) -> None:
        with self._change:
            self._change.wait_for(lambda: self._room == 0 and self._waiting == self._threads)


def test_no_more_is_drawn_than_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time all readers wait for room, all that there was room for has been drawn, and nothing more."""
    drawn: list[int] = []
    rooms: list[Waiters] = []

    def semaphore(room: int) -> Waiters:
        rooms.append(Waiters(room, threads=4))
        return rooms[-1]

    def items() -> Iterator[int]:
        for number in range(1000):
            drawn.append(number)
            yield number

    monkeypatch.setattr(prefetch, "threading", SimpleNamespace(**vars(threading) | {"Semaphore": semaphore}))
    with Prefetcher(items(), squared, 4, 8) as ahead:
        [room] = rooms
        for used in range(0, 100, 4):
            room.wait_until_all_wait()
            assert len(drawn) == used + 8
            assert ahead.take(4) == [number * number for number in range(used, used + 4)]
            assert len(drawn) == used + 8
            ahead.used(4)
        room.wait_until_all_wait()
        assert len(drawn) == 108
    assert reading() == []
    assert len(drawn) == 108


def test_items_are_drawn_by_one_thread_at_a_time() -> None:
    """Else a generator raises ValueError, and a file gives half of one item to each."""
    second, drawn = threading.Event(), threading.Event()
    inside = 0

    class Items:
        """Gives a second thread a moment to come in while the first is still drawing."""

        def __init__(self) -> None:
            self.number = -1

        def __iter__(self) -> Items:
            return self

        def __next__(self) -> int:
            nonlocal inside
            inside += 1
            if inside > 1:
                second.set()
            elif self.number < 0:
                second.wait(MOMENT)
            self.number += 1
            inside -= 1
            drawn.set()
            if self.number >= 60:
                raise StopIteration
            return self.number

    with Prefetcher(Items(), int, 4, 60) as ahead:
        drawn.wait()
        assert not second.is_set()
        assert ahead.take(60) == list(range(60))
    assert not second.is_set()


def test_an_error_of_reading_comes_in_its_place() -> None:
    def read(number: int) -> float:
        return 1 / (number - 5)

    with Prefetcher(range(20), read, 3, 20) as ahead:
        assert len(ahead.take(8)) == 5
        with pytest.raises(ZeroDivisionError):
            ahead.take(8)
    assert reading() == []


def test_an_error_of_drawing_comes_in_its_place() -> None:
    def items() -> Iterator[int]:
        yield from range(5)
        raise OSError("unplugged")

    with Prefetcher(items(), squared, 3, 20) as ahead:
        assert ahead.take(8) == [0, 1, 4, 9, 16]
        with pytest.raises(OSError, match="unplugged"):
            ahead.take(8)
    assert reading() == []


def test_leaving_early_ends_the_threads() -> None:
    ahead = Prefetcher(iter(int, 1), squared, 3, 8)  # zeros without end
    assert ahead.take(2) == [0, 0]
    assert len(reading()) == 3
    ahead.close()
    assert reading() == []
    ahead.close()


def test_closing_waits_for_an_item_that_is_being_read() -> None:
    begun, end = threading.Event(), threading.Event()

    def read(number: int) -> int:
        begun.set()
        end.wait()
        return number

    ahead = Prefetcher(range(9), read, 1, 4)
    begun.wait()
    closing = threading.Thread(target=ahead.close)
    closing.start()
    closing.join(MOMENT)
    assert closing.is_alive()
    end.set()
    closing.join()
    assert reading() == []


def test_the_end_of_a_process_waits_for_readers_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """A camera that gives nothing more must not hold it up; a stream that was closed is forgotten."""
    at_the_end: list[tuple[Any, ...]] = []

    def forget(close: Any) -> None:
        at_the_end[:] = [each for each in at_the_end if each[0] != close]

    handlers = SimpleNamespace(register=lambda *given: at_the_end.append(given), unregister=forget)
    monkeypatch.setattr(prefetch, "atexit", handlers)
    begun, end = threading.Event(), threading.Event()

    def stuck(number: int) -> int:
        begun.set()
        end.wait()
        return number

    ahead = Prefetcher(range(9), stuck, 1, 4)
    begun.wait()
    assert at_the_end == [(ahead.close, PATIENCE)]
    assert 1 <= PATIENCE <= 60
    ahead.close(0.0)  # as at the end of a process, but at once
    assert len(reading()) == 1
    end.set()
    ahead.close()
    assert reading() == []
    assert at_the_end == []
