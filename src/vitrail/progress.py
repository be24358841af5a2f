"""A bar on stderr for work that is called from Python: where somebody watches, after a second, one at a time."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from vitrail.types import ProgressCallback

PATIENCE: Final = 1.0  # seconds before a bar comes: short work needs none
PAUSE: Final = 0.25  # seconds between two lines of a notebook


class _Screen:
    """Whether a bar may come: not beside another, and not where the command line draws its own."""

    taken = False


class LateBar:
    """A bar that comes when work has lasted, and leaves nothing behind."""

    def __init__(self, thing: str, total: int | None) -> None:
        self.thing, self.total, self.completed = thing, total, 0
        self.since = time.monotonic()
        self.drawn: TerminalBar | NotebookLine | None = None

    def advance(self, more: int) -> None:
        """So many more are done."""
        self.move(self.completed + more, self.total)

    def move(self, completed: int, total: int | None, words: str = "", thing: str = "") -> None:
        """So many of the total are done; perhaps of another thing than before."""
        self.completed, self.total = completed, total
        if thing and thing != self.thing:
            self.close()
            self.thing, self.drawn = thing, None
        if self.drawn is None and time.monotonic() - self.since >= PATIENCE:
            self.drawn = (TerminalBar if sys.stderr.isatty() else NotebookLine)(self.thing)
        if self.drawn is not None:
            self.drawn.show(completed, total, words)

    def close(self) -> None:
        """It goes away."""
        if self.drawn is not None:
            self.drawn.close()


class TerminalBar:
    """A bar with the time left, at a terminal."""

    def __init__(self, thing: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        texts = (TextColumn(f"{{task.description}} {thing}"), BarColumn(), TextColumn("{task.fields[words]}"))
        self.bar = Progress(*texts, TimeRemainingColumn(), console=Console(stderr=True), transient=True)
        self.bar.start()
        self.task = self.bar.add_task("", total=None, words="")

    def show(self, completed: int, total: int | None, words: str) -> None:
        self.bar.update(self.task, completed=completed, total=total, description=_count(completed, total), words=words)

    def close(self) -> None:
        self.bar.stop()


class NotebookLine:
    """One line that is written over: what a notebook keeps of it is empty in the end."""

    def __init__(self, thing: str) -> None:
        self.thing, self.last, self.width = thing, -math.inf, 0

    def show(self, completed: int, total: int | None, words: str) -> None:
        if time.monotonic() - self.last < PAUSE and completed != total:
            return
        self.last = time.monotonic()
        line = f"{_count(completed, total)} {self.thing} {words}".rstrip()
        sys.stderr.write(f"\r{line.ljust(self.width)}")
        sys.stderr.flush()
        self.width = len(line)

    def close(self) -> None:
        sys.stderr.write(f"\r{' ' * self.width}\r")
        sys.stderr.flush()


def _count(completed: int, total: int | None) -> str:
    return f"{completed:,}" if total is None else f"{completed:,}/{total:,}"


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


@contextmanager
def left_to_command_line() -> Iterator[None]:
    """The command line draws bars of its own: none from here inside the block."""
    with late_bar(False, "", None):
        yield


@contextmanager
def left_to_library() -> Iterator[None]:
    """A verb that draws none of its own gives the place back: bars come as from Python."""
    before, _Screen.taken = _Screen.taken, False
    try:
        yield
    finally:
        _Screen.taken = before


def is_watched() -> bool:
    """Whether stderr is read by somebody while it is written."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell" or bool(sys.stderr and sys.stderr.isatty())
