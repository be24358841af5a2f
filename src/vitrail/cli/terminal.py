"""What every verb prints with: lines, tables, bars and complaints."""

from __future__ import annotations

import errno
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from vitrail.cli.options import ROW_FILES
from vitrail.errors import ImageError, InputError
from vitrail.files import atomic_write, reason

if TYPE_CHECKING:
    from vitrail.evaluation import Score

WRONG_USAGE = 2  # the user's mistake; 1 is ours
SOME_UNREADABLE = 3  # all is done, but for images that could not be read
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # a disk, a quota, a limit, a device
MOST_TOLD = 20  # images that cannot be read, one by one
WIDEST = 10_000  # columns of a page that cuts nothing
PIPED = 120  # columns of a table that no terminal shows

tables = Console(highlight=False, soft_wrap=True, width=WIDEST)
_bar_console: Console | None = None  # where a bar is up


class Skipped:
    """Images that could not be read: the first are told at once, all are counted at the end."""

    def __init__(self) -> None:
        self.rows: list[dict[str, str]] = []

    def __call__(self, name: str, error: ImageError) -> None:
        self.rows.append({"path": name, "error": str(error)})
        if len(self.rows) <= MOST_TOLD:
            complain(str(error))
        elif len(self.rows) == MOST_TOLD + 1:
            complain("more images cannot be read, which are only counted from here on")

    @property
    def names(self) -> set[str]:
        return {row["path"] for row in self.rows}

    def finish(self, total: int, is_complete: bool = True) -> None:
        """The last word; `is_complete` says whether every folder could be looked into."""
        end_with_unreadable(len(self.rows), total, is_complete)


def end_with_unreadable(count: int, total: int | None = None, is_complete: bool = True) -> None:
    """The end of a verb that did all but so many images or some folders: told, and to be seen from its exit code."""
    if count:
        from vitrail.reporting.html_page import counted

        of = counted(count, "image") if total is None else f"{count:,} of {counted(total, 'image')}"
        complain(f"{of} could not be read" + ("" if count == total else "; the others are done"))
    if count or not is_complete:
        raise typer.Exit(SOME_UNREADABLE)


@contextmanager
def bar_console() -> Iterator[Console | None]:
    """The terminal that a bar is drawn on; None where nobody watches, or where a bar is up already.

    While it is held, what is said and complained goes above the bar, a line of its own.
    """
    global _bar_console
    if _bar_console is not None or not sys.stderr.isatty() or os.environ.get("TERM") in ("dumb", "unknown"):
        yield None
        return
    _bar_console = Console(stderr=True, highlight=False)
    try:
        yield _bar_console
    finally:
        _bar_console = None


@contextmanager
def busy(what: str) -> Iterator[Callable[[str], None]]:
    """A sign of life on stderr while one thing is worked on, and what changes its words; nobody watching: nothing."""
    with bar_console() as console:
        if console is None:
            yield lambda what: None
            return
        with console.status(escape(what)) as status:
            yield lambda what: status.update(escape(what))


@contextmanager
def progress(total: int | None, beside_lines: bool = False) -> Iterator[Callable[[int], None]]:
    """A bar on stderr while images are worked on; nothing where nobody watches.

    The total may be unknown. Where lines are printed meanwhile, on a terminal they are sign of life enough.
    """
    text = TextColumn("{task.completed} images" if total is None else "{task.completed}/{task.total} images")
    with drawn_bar(text, BarColumn(), TimeRemainingColumn(), hidden=beside_lines and sys.stdout.isatty()) as bar:
        task = bar.add_task("", total=total)
        yield lambda count: bar.advance(task, count)


@contextmanager
def drawn_bar(*columns: ProgressColumn, hidden: bool = False) -> Iterator[Progress]:
    """A bar of these columns; one that nobody sees where nobody watches. It leaves nothing behind."""
    with (
        nullcontext() if hidden else bar_console() as console,
        Progress(
            *columns,
            console=console,
            transient=True,
            redirect_stdout=_is_one_terminal(),  # a library that prints; elsewhere it would be sent to stderr
            disable=console is None,
        ) as bar,
    ):
        yield bar


def _is_one_terminal() -> bool:
    """Whether what is printed and what is complained are read at the same terminal."""
    if not (sys.stdout.isatty() and sys.stderr.isatty()):
        return False
    try:
        return os.path.sameopenfile(sys.stdout.fileno(), sys.stderr.fileno())
    except (OSError, ValueError):  # nothing of the system's
        return False


@contextmanager
def writing(path: Path, mode: str = "w") -> Iterator[IO[Any]]:
    """A file to write to, there only when all of it is; names that are not text go in as they are."""
    encoding: dict[str, Any] = {} if "b" in mode else {"encoding": "utf-8", "errors": "surrogateescape", "newline": ""}
    # A pipe or a device cannot be replaced, and of a link it is what it points to.
    target = Path(os.path.realpath(path))
    in_place = target.exists() and not target.is_file()
    try:
        with nullcontext(target) if in_place else atomic_write(target) as part, open(part, mode, **encoding) as file:
            yield file
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error


@contextmanager
def row_file(to: Path | None, verb: str) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Where the rows of a verb go; nowhere, where `to` is no file of rows."""
    if to is None or to.suffix not in ROW_FILES:
        yield lambda row: None
        return
    from vitrail.inference.row_files import writing_rows
    from vitrail.inference.rows import COLUMNS

    with writing_rows(to, COLUMNS[verb]) as put:
        yield put


def refuse_overwrite(force: bool, *paths: Path) -> None:
    """A file that is there already stays, unless it is said that it may go; to be asked before any work."""
    for path in paths:
        if not force and path.is_file():
            raise InputError(f"{path} is there already: give another name, or --force to write over it")


class ReaderGone(Exception):  # noqa: N818
    """Nobody reads our output any more: `vitrail models | head`."""


def say(text: str) -> None:
    """A line as it is: a table's markup, emoji codes and line breaks mean nothing in it."""
    try:
        _put(text)
    except BrokenPipeError as error:
        raise ReaderGone from error


def full_output(error: Exception) -> str:
    """What to say where the error came of a standard output that takes no more, whoever printed; empty of others."""
    if not isinstance(error, OSError) or error.filename is not None or error.errno not in FULL:
        return ""
    try:
        output = sys.stdout.fileno()
    except (OSError, ValueError, AttributeError):  # none of the system's
        return ""
    try:
        os.write(output, b"\n")  # a flush would not fail again
        return ""
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), output)
        return f"cannot write to standard output: {reason(error)}"


def show(table: Table) -> None:
    """A table that is too wide stands closer, then its texts go on in the next line; no number and no name is cut."""
    columns = Console().width if sys.stdout.isatty() else PIPED
    for column in table.columns:
        texts = [str(column.header), *map(str, column.cells)]
        whole = (line for text in texts for line in (text.splitlines() if column.no_wrap else text.split()))
        column.min_width = max(map(cell_len, whole), default=0)
    table.collapse_padding = tables.measure(table).maximum > columns
    with tables.capture() as drawn:
        tables.print(table, width=max(columns, tables.measure(table).minimum))
    say(drawn.get().rstrip("\n"))


def command_line() -> str:
    """What was typed, ready to be typed again."""
    return shlex.join(["vitrail", *sys.argv[1:]])


def complain(text: str) -> None:
    """One line on stderr, whatever file names are in it."""
    _put("vitrail: " + "".join(c if c.isprintable() else repr(c)[1:-1] for c in text), err=True)


def _put(text: str, err: bool = False) -> None:
    """To where it belongs; above the bar, if one is up on that terminal."""
    if _bar_console is None or not (err or _is_one_terminal()):
        typer.echo(text, err=err)
    else:
        _bar_console.out(text, highlight=False)


def complain_all(lines: Iterable[str]) -> None:
    for line in lines:
        complain(line)


def print_json(value: dict[str, Any]) -> None:
    say(json.dumps(value))


def say_files(paths: Iterable[Path]) -> None:
    """Where the results are, a line each."""
    for path in paths:
        say(f"  {path}")


def table_of(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right", no_wrap=number > 0)
    return table


def add_score(table: Table, metric: str, score: Score, of: str = "") -> None:
    """A row of a metric in words: its value and its interval."""
    from vitrail.reporting.metric_names import metric_interval, metric_name, metric_value

    value = metric_value(metric, score.value)
    table.add_row(f"{metric_name(metric)}{of}", value, metric_interval(metric, score.low, score.high))


def left_table(*columns: str) -> Table:
    table = table_of(*columns)
    for column in table.columns:
        column.justify = "left"
    return table


def short(value: Any) -> str:
    if isinstance(value, list) and len(value) > 8:
        return f"{', '.join(map(str, value[:8]))}, … ({len(value)} in all)"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def size_of(count: float) -> str:
    units = ["bytes", "KB", "MB", "GB", "TB"]
    while count >= 1000 and len(units) > 1:
        count /= 1000
        units.pop(0)
    return f"{count:.4g} {units[0]}"
