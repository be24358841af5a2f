"""Ahead: in order, never too far ahead, errors in their place, no threads left behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from vitrail.inference.ahead import Ahead


def reading() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name.startswith("vitrail-reading")]


def slow_when_even(number: int) -> int:
    time.sleep(0.002 * (number % 2 == 0))
    return number * number


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("count", [0, 1, 7, 40])
def test_in_order_whoever_is_done_first(threads: int, count: int) -> None:
    found: list[int] = []
    with Ahead(range(count), slow_when_even, threads, 6) as ahead:
        while part := ahead.take(3):
            found += part
            ahead.used(len(part))
        assert ahead.take(3) == []
    assert found == [number * number for number in range(count)]
    assert reading() == []


def test_no_more_is_drawn_than_there_is_room() -> None:
    drawn: list[int] = []

    def items() -> Iterator[int]:
        for number in range(1000):
            drawn.append(number)
            yield number

    with Ahead(items(), slow_when_even, 4, 8) as ahead:
        for used in range(0, 100, 4):
            time.sleep(0.01)  # time enough to run far ahead
            assert len(drawn) <= used + 8
            assert ahead.take(4) == [number * number for number in range(used, used + 4)]
            assert len(drawn) <= used + 8
            ahead.used(4)
    assert reading() == []
    assert len(drawn) <= 108


def test_items_are_drawn_by_one_thread_at_a_time() -> None:
    """A generator that is entered twice at once raises ValueError."""

    def items() -> Iterator[int]:
        for number in range(60):
            time.sleep(0.001)
            yield number

    with Ahead(items(), int, 4, 60) as ahead:
        assert ahead.take(60) == list(range(60))


def test_an_error_of_reading_comes_in_its_place() -> None:
    def read(number: int) -> float:
        return 1 / (number - 5)

    with Ahead(range(20), read, 3, 20) as ahead:
        assert len(ahead.take(8)) == 5
        with pytest.raises(ZeroDivisionError):
            ahead.take(8)
    assert reading() == []


def test_an_error_of_drawing_comes_in_its_place() -> None:
    def items() -> Iterator[int]:
        yield from range(5)
        raise OSError("unplugged")

    with Ahead(items(), slow_when_even, 3, 20) as ahead:
        assert ahead.take(8) == [0, 1, 4, 9, 16]
        with pytest.raises(OSError, match="unplugged"):
            ahead.take(8)
    assert reading() == []


def test_leaving_early_ends_the_threads() -> None:
    ahead = Ahead(iter(int, 1), slow_when_even, 3, 8)  # zeros without end
    assert ahead.take(2) == [0, 0]
    assert len(reading()) == 3
    ahead.close()
    assert reading() == []
    ahead.close()
