"""A command under a terminal of its own -> what is left on its screen and above it, line by line."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import NamedTuple

SEQUENCE = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])")


class TerminalSession(NamedTuple):
    """How a command ended, and the lines that somebody reads who scrolls back to its start."""

    code: int
    lines: list[str]
    raw: str


class Screen:
    """What a terminal makes of characters: enough of it for bars, and for lines that are longer than it is wide."""

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self.rows: list[list[str]] = [[]]
        self.continued: set[int] = set()  # rows that go on where the one above has ended
        self.row = self.column = 0

    def feed(self, text: str) -> None:
        position = 0
        while position < len(text):
            if match := SEQUENCE.match(text, position):
                self._obey(match[1], match[2])
                position = match.end()
                continue
            self._put(text[position])
            position += 1

    def lines(self) -> list[str]:
        """The rows, those that belong together as one, without blanks and empty rows at the end."""
        lines: list[str] = []
        for number, cells in enumerate(self.rows):
            if number in self.continued:
                lines[-1] += "".join(cells)
            else:
                lines.append("".join(cells))
        return "\n".join(line.rstrip() for line in lines).rstrip("\n").split("\n")

    def _put(self, character: str) -> None:
        if character == "\r":
            self.column = 0
        elif character == "\n":
            self._down()
        elif character >= " ":
            if self.column == self.columns:
                self._down()
                self.column = 0
                self.continued.add(self.row)
            cells = self.rows[self.row]
            cells.extend(" " * (self.column + 1 - len(cells)))
            cells[self.column] = character
            self.column += 1

    def _down(self) -> None:
        self.row += 1
        if self.row == len(self.rows):
            self.rows.append([])
        self.continued.discard(self.row)

    def _obey(self, numbers: str, letter: str) -> None:
        if letter in "mhl":  # colours; the cursor shown or hidden
            return
        count = int(numbers or 1)
        if letter == "A":
            self.row = max(0, self.row - count)
        elif letter == "K" and numbers == "2":
            self.rows[self.row] = []
        else:
            raise AssertionError(f"the terminal does not know {numbers}{letter}")


def in_terminal(*arguments: str | Path, columns: int = 80, **environment: str) -> TerminalSession:
    """vitrail with these arguments, its input, output and errors at one terminal."""
    terminal, inside = pty.openpty()
    fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    plain = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    command = [sys.executable, "-m", "vitrail", *map(str, arguments)]
    with subprocess.Popen(
        command, stdin=inside, stdout=inside, stderr=inside, env=plain | {"TERM": "xterm"} | environment
    ) as run:
        os.close(inside)
        pieces: list[bytes] = []
        try:
            while piece := os.read(terminal, 65536):
                pieces.append(piece)
        except OSError:  # how Linux says that nobody holds the other side any more
            pass
        code = run.wait(timeout=600)
    os.close(terminal)
    raw = b"".join(pieces).decode()
    screen = Screen(columns)
    screen.feed(raw)
    return TerminalSession(code, screen.lines(), raw)
