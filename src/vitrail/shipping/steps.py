"""Steps of long work: what is being tried, how many are left, and how long that may take, told as each begins."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from vitrail.reporting.html_page import counted


class SearchStep(NamedTuple):
    """One step as it begins. How many there are may change as the search learns what is worth trying."""

    what: str
    number: int  # from 1
    total: int
    seconds_left: float | None  # for this one and all after it, at the pace so far; None of the first

    def __str__(self) -> str:
        left = "" if self.seconds_left is None else f", {about(self.seconds_left)} left"
        return f"{self.what} (step {self.number} of {self.total}{left})"


SearchCallback: TypeAlias = Callable[[SearchStep], None]


def about(seconds: float) -> str:
    """A time nobody should rely on, in words."""
    if seconds < 90:
        return f"about {counted(max(5, 5 * round(seconds / 5)), 'second')}"
    return f"about {counted(round(seconds / 60), 'minute')}"


class SearchCounter:
    """Counts the steps, and tells of each."""

    def __init__(
        self, total: int, tell: SearchCallback = lambda step: None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.total, self._tell, self._clock = total, tell, clock
        self._started, self._number = clock(), 0

    def __call__(self, what: str) -> None:
        """The next step begins."""
        done = self._number
        self._number += 1
        self.total = max(self.total, self._number)
        pace = None if not done else (self._clock() - self._started) / done
        self._tell(SearchStep(what, self._number, self.total, None if pace is None else pace * (self.total - done)))

    def left(self, count: int) -> None:
        """So many steps are still to come."""
        self.total = self._number + count
