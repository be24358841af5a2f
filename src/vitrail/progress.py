"""A bar on stderr for work that is called from Python: where somebody watches, after a second, one at a time."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from vitrail.types import ProgressCallback

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

PATIENCE: Final = 1.0  # seconds before a bar comes: short work needs none


class _Screen:
    """Whether a bar may come: not beside another, and not where the command line draws its own."""

    taken = False


class LateBar:
    """A bar that comes when work has lasted, and leaves nothing behind."""

    def __init__(self, thing: str, total: int | None) -> None:
        self.thing, self.total, self.completed = thing, total, 0
        self.since = time.monotonic()
        self.drawn: tuple[RichProgress, TaskID] | None = None

    def advance(self, more: int) -> None:
        """So many more are done."""
        self.move(self.completed + more, self.total)

    def move(self, completed: int, total: int | None, words: str = "") -> None:
        """So many of the total are done."""
        self.completed, self.total = completed, total
        if self.drawn is None and time.monotonic() - self.since >= PATIENCE:
            self.drawn = self._draw()
        if self.drawn is not None:
            bar, task = self.drawn
            bar.update(task, completed=completed, total=total, description=words)

    def close(self) -> None:
        """It goes away."""
        if self.drawn is not None:
            self.drawn[0].stop()

    def _draw(self) -> tuple[RichProgress, TaskID]:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        # A notebook keeps what stands on a line by itself, as a terminal does: no widgets, which may not be there.
        at_terminal = sys.stderr.isatty()
        console = Console(stderr=True, force_jupyter=False, force_terminal=True, width=None if at_terminal else 80)
        count = "{task.completed}" if self.total is None else "{task.completed}/{task.total}"
        texts = (TextColumn(f"{count} {self.thing}"), BarColumn(), TextColumn("{task.description}"))
        bar = Progress(*texts, TimeRemainingColumn(), console=console, transient=True)
        bar.start()
        return bar, bar.add_task("", total=self.total)


@contextmanager
def late_bar(wanted: bool | None, thing: str, total: int | None) -> Iterator[LateBar | None]:
    """A bar, or None where it is not wanted; None as the wish means: where stderr is a terminal or a notebook.

    Inside the block no other bar comes.
    """
    shown = not _Screen.taken and (is_watched() if wanted is None else wanted)
    before, _Screen.taken = _Screen.taken, True
    bar = LateBar(thing, total) if shown else None
    try:
        yield bar
    finally:
        _Screen.taken = before
        if bar is not None:
            bar.close()


@contextmanager
def counting(
    done: ProgressCallback | None, wanted: bool | None, total: int | None
) -> Iterator[ProgressCallback | None]:
    """Who hears how many more images are done: the caller's own function, or else a bar."""
    with late_bar(False if done is not None else wanted, "images", total) as bar:
        yield done if bar is None else bar.advance


def leave_to_command_line() -> None:
    """The command line draws bars of its own: none from here in this process."""
    _Screen.taken = True


def is_watched() -> bool:
    """Whether stderr is read by somebody while it is written."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell" or bool(sys.stderr and sys.stderr.isatty())
