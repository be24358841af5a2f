"""How much work a piece of code does, in counts that no clock, no load and no other test can change."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class TooMuchWork(BaseException):
    """More calls than allowed. No Exception, so that no handler takes it for one of its own."""


class Calls:
    """How many functions were called, Python's and C's; a step of a generator is one too."""

    def __init__(self) -> None:
        self.count = 0


@contextmanager
def at_most(calls: int) -> Iterator[Calls]:
    """What is inside may call so many functions in this thread; one more raises TooMuchWork there."""
    made, before = Calls(), sys.getprofile()

    def counted(frame: Any, event: str, argument: Any) -> None:
        if event in ("call", "c_call"):
            made.count += 1
            if made.count > calls:
                sys.setprofile(None)
                raise TooMuchWork(f"more than {calls:,} calls")

    sys.setprofile(counted)
    try:
        yield made
    finally:
        sys.setprofile(before)


def calls_of(work: Callable[[], object], most: int = 10**7) -> int:
    """How many calls a piece of work makes."""
    with at_most(most) as made:
        work()
    return made.count
