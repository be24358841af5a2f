"""A walk: what a new user types, line by line, with what was printed; run again and compared, or recorded anew.

    $ COMMAND           a line for the shell, in the walk's own folder
    >>> STATEMENT       a line for Python's prompt, "... " goes on
    # TEXT              said to the reader, not run

All else is what the line above it printed. Words must be the same; numbers may differ as far as another processor's
rounding moves a score, and times, speeds and sizes of this machine may be any. To record a walk anew:

    python tests/walks/walking.py tests/walks/own_photos.txt
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

PROMPTS = ("$ ", ">>> ", "... ", "# ")
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e-?\d+)?")
OF_THE_MACHINE = re.compile(
    r"(?:\d[\d,.]*(?:e-?\d+)?(?: to )?)+(?= ?(?:s|ms|min|minutes?|seconds?|images/s|MB/s|GFLOP/s|times)\b)"
    r"|(?<=ms an image )[\d. ]+"
)
SLACK = 0.06  # of a number, for another processor's rounding
POINTS = 6.0  # of a percentage


class Line(NamedTuple):
    """One thing typed, and what was printed after it."""

    typed: str
    printed: tuple[str, ...]


def parse(text: str) -> list[Line]:
    """The lines of a walk."""
    lines: list[Line] = []
    for line in text.splitlines():
        if line.startswith(PROMPTS) or line in (">>>", "...", "#"):
            lines.append(Line(line, ()))
        elif lines:
            lines[-1] = Line(lines[-1].typed, (*lines[-1].printed, line))
        elif line:
            raise ValueError(f"a walk begins with something typed, got {line!r}")
    return lines


def walk(lines: list[Line], folder: Path, environment: Mapping[str, str]) -> Iterator[Line]:
    """What is printed now: each shell line by itself, all lines of Python at one prompt."""
    statements = [line.typed[4:] for line in lines if line.typed.startswith((">>>", "..."))]
    answers = iter(_python(statements, folder, environment)) if statements else iter(())
    for line in lines:
        if line.typed.startswith("$ "):
            yield Line(line.typed, _shell(line.typed[2:], folder, environment))
        elif line.typed.startswith((">>>", "...")):
            yield Line(line.typed, next(answers))
        else:
            yield Line(line.typed, ("",) if line.printed else ())


def _shell(command: str, folder: Path, environment: Mapping[str, str]) -> tuple[str, ...]:
    """What a command prints to both of its streams, and its exit code where it is not 0."""
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        check=False,
    )
    printed = tuple(_plain(line, folder) for line in done.stdout.splitlines())
    return printed if done.returncode == 0 else (*printed, f"[exit code {done.returncode}]")


PROMPT = """
import code, sys, traceback
class Console(code.InteractiveConsole):
    def showtraceback(self):
        kind, error, _ = sys.exc_info()
        print("Traceback (most recent call last):", *traceback.format_exception_only(kind, error), sep="\\n", end="")
mark = sys.argv[1]
console = Console({"__name__": "__main__"})
for statement in sys.stdin.read().split("\\0"):
    console.push(statement)
    sys.stderr.flush()
    print(mark, flush=True)
"""


def _python(statements: list[str], folder: Path, environment: Mapping[str, str]) -> list[tuple[str, ...]]:
    """What Python's prompt answers to each line; of an error its last line, for the lines above tell of files."""
    mark = "-- next statement --"
    done = subprocess.run(
        [sys.executable, "-c", PROMPT, mark],
        cwd=folder,
        env=dict(environment),
        input="\0".join(statements),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        check=False,
    )
    parts = done.stdout.split(f"{mark}\n")[:-1]
    if len(parts) != len(statements):
        raise RuntimeError(
            f"Python's prompt ended after {len(parts)} of {len(statements)} lines:\n{done.stdout[-2000:]}"
        )
    return [tuple(_plain(line, folder) for line in part.splitlines()) for part in parts]


def _plain(line: str, folder: Path) -> str:
    """Without the name of the folder that a walk happens in, nor trailing blanks."""
    return line.replace(f"{folder}/", "").replace(str(folder), ".").rstrip()


def differences(recorded: list[Line], now: list[Line]) -> list[str]:
    """Where a walk leaves the recorded one, in words; none where it does not."""
    complaints = []
    for before, after in zip(recorded, now, strict=True):
        if not same_text("\n".join(before.printed), "\n".join(after.printed)):
            complaints.append("\n".join((before.typed, "recorded:", *before.printed, "now:", *after.printed)))
    return complaints


def same_text(recorded: str, now: str) -> bool:
    """The same words, and numbers that are near enough; how wide a column is does not matter."""
    recorded, now = (OF_THE_MACHINE.sub("N", re.sub(r"[ \t]+", " ", text).strip()) for text in (recorded, now))
    if NUMBER.sub("0", recorded) != NUMBER.sub("0", now):
        return False
    spans = zip(NUMBER.finditer(recorded), NUMBER.finditer(now), strict=True)
    return all(_near(a[0], b[0], recorded[a.end() :].startswith((" %", " points", " to "))) for a, b in spans)


def _near(recorded: str, now: str, is_percent: bool) -> bool:
    if recorded == now:
        return True
    first, second = (float(text.replace(",", "")) for text in (recorded, now))
    if "e" in recorded and "e" in now:
        return first <= 10 * second and second <= 10 * first  # of rounding errors the order alone is the same
    if "." not in recorded + now and "e" not in recorded + now and not is_percent:
        return False  # counts are counts
    return abs(first - second) <= (POINTS if is_percent else SLACK * max(abs(first), abs(second)))


def environment_for(folder: Path) -> dict[str, str]:
    """A plain terminal of 100 columns, this Python's commands first, and nothing of the user's own settings."""
    kept = {name: os.environ[name] for name in ("HOME", "LANG", "OMP_NUM_THREADS", "PYTHONPATH") if name in os.environ}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return kept | {"PATH": path, "COLUMNS": "100", "TMPDIR": str(folder.parent), "HF_HUB_OFFLINE": "1", "TERM": "dumb"}


def record(script: Path, folder: Path) -> None:
    """Walk, and write what was printed into the script."""
    lines = walk(parse(script.read_text("utf-8")), folder, environment_for(folder))
    script.write_text("".join(f"{part}\n" for line in lines for part in (line.typed, *line.printed)), "utf-8")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from walks.test_walks import FOLDERS

    for name in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as scratch:
            start = Path(scratch) / "home"
            FOLDERS[Path(name).stem](start)
            record(Path(name), start)
