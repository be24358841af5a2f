"""Steps of long work: what is being tried, how many are left, and how long that may take, told as each begins."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple, ParamSpec, TypeAlias, TypeVar

from vitrail.checks import short_repr
from vitrail.errors import InputError
from vitrail.progress import late_bar
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
Given = ParamSpec("Given")
Result = TypeVar("Result")


def with_bar(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """The same function; where no function is told of its steps, a bar shows them if `progress` is True, or if it is
    None and somebody watches."""

    @wraps(function)
    def with_steps(*given: Given.args, **options: Given.kwargs) -> Result:
        wish: Any = options.get("progress")
        if not (wish is None or isinstance(wish, bool) or callable(wish)):
            raise InputError(f"progress: expected True, False, None or a function, got {short_repr(wish)}")
        with late_bar(False if callable(wish) else wish, "steps", None) as bar:
            if bar is not None:
                options["progress"] = lambda step: bar.move(step.number - 1, step.total, step.what)
            return function(*given, **options)

    return with_steps


def about(seconds: float) -> str:
    """A time nobody should rely on, in words."""
    if seconds < 90:
        return f"about {counted(max(5, 5 * round(seconds / 5)), 'second')}"
    return f"about {counted(round(seconds / 60), 'minute')}"


class SearchCounter:
    """Counts the steps, and tells of each."""

    def __init__(
        self, total: int, progress: SearchCallback | bool | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.total, self._clock = total, clock
        self._progress: SearchCallback = progress if callable(progress) else lambda step: None
        self._started, self._number = clock(), 0
        self._done, self._now, self._coming = 0, 0, total  # in lengths of an ordinary step

    def __call__(self, what: str, length: int = 1) -> None:
        """The next step begins; it may take as long as several."""
        self._done += self._now
        self._now, self._coming = length, max(length, self._coming)
        self._number += 1
        self.total = max(self.total, self._number)
        pace = None if not self._done else (self._clock() - self._started) / self._done
        self._progress(SearchStep(what, self._number, self.total, None if pace is None else pace * self._coming))
        self._coming -= length

    def left(self, count: int, length: int | None = None) -> None:
        """So many steps are still to come, which take as long as `length` ordinary ones."""
        self.total = self._number + count
        self._coming = count if length is None else length
