"""Commands on the pages: ```console run blocks, typed in a folder, what they print held against what the page shows.

$ vitrail predict net.onnx new/     typed; a line that ends in \\ goes on in the next
new/1.jpg: two 97.3 %               must be printed: any number may stand where one stands, any blanks where some do
…                                   any lines; within a line, anything
$ echo $?                           the exit code of the command before, which else must be 0
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from vitrail import cli

BLOCK = re.compile(r"^```console run\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NUMBER = r"[+-]?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?"
SHELL = re.compile(r"[|<>;&]|\$\(")  # what only a shell understands


class Command(NamedTuple):
    """One command of a page, and what the page says it prints."""

    line: int  # of the page, from 1
    typed: str
    shown: list[str]


class Printed(NamedTuple):
    code: int
    text: str


def commands(page: str) -> list[Command]:
    """The commands of a page's blocks, in order."""
    listed: list[Command] = []
    for block in BLOCK.finditer(page):
        first = page[: block.start(1)].count("\n") + 1
        for number, line in enumerate(block[1].splitlines(), start=first):
            if line.startswith("$ "):
                listed.append(Command(number, line[2:], []))
            elif listed and listed[-1].typed.endswith("\\") and not listed[-1].shown:
                listed[-1] = listed[-1]._replace(typed=f"{listed[-1].typed[:-1]}{line.strip()}")
            else:
                listed[-1].shown.append(line)
    return listed


def fits(shown: list[str], printed: str) -> bool:
    """Whether a text is what a page shows."""
    pattern = ""
    for line in shown:
        pattern += r"(?:[^\n]*\n)*?" if line.strip() == "…" else f"{_line(line)}\\n"
    return re.fullmatch(pattern, "".join(f"{' '.join(line.split())}\n" for line in printed.splitlines())) is not None


def _line(shown: str) -> str:
    parts = re.split(rf"(…|{NUMBER})", " ".join(shown.split()))
    kinds = {"…": "[^\n]*"}
    return "".join(kinds.get(part, NUMBER) if index % 2 else re.escape(part) for index, part in enumerate(parts))


def type_page(page: Path, folder: Path) -> list[tuple[Command, Printed]]:
    """Type the commands of a page in a folder, one after the other."""
    typed: list[tuple[Command, Printed]] = []
    for command in commands(page.read_text("utf-8")):
        if command.typed == "echo $?":
            typed.append((command, Printed(0, f"{typed[-1][1].code}\n")))
        else:
            typed.append((command, type_command(command.typed, folder)))
    return typed


def complaints(name: str, typed: list[tuple[Command, Printed]]) -> list[str]:
    """What is not so: output that is not as shown, and exit codes that nobody asked about."""
    listed: list[str] = []
    following = [command.typed for command, _ in typed[1:]] + [""]
    for (command, printed), after in zip(typed, following, strict=True):
        if printed.code and after != "echo $?":
            listed.append(f"{name}:{command.line}: $ {command.typed}\nended with {printed.code}\n{printed.text}")
        elif not fits(command.shown, printed.text):
            shown = "\n".join(command.shown)
            listed.append(f"{name}:{command.line}: $ {command.typed}\nshown:\n{shown}\nis:\n{printed.text}")
    return listed


def check(page: Path, folder: Path) -> list[str]:
    """What is not so when the commands of a page are typed in a folder."""
    return complaints(page.name, type_page(page, folder))


def type_command(line: str, folder: Path) -> Printed:
    """One line, as it would be typed: `vitrail` in this process, where no shell is needed; else a shell."""
    words = shlex.split(line, comments=True)
    if words[0] == "vitrail" and not SHELL.search(line):
        expanded = [name for word in words[1:] for name in _glob(word, folder)]
        return _in_process(expanded, folder)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    ran = subprocess.run(
        ["bash", "-c", line],
        cwd=folder,
        env={**os.environ, "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
    return Printed(ran.returncode, ran.stdout)


def _glob(word: str, folder: Path) -> list[str]:
    if not any(sign in word for sign in "*?"):
        return [word]
    return sorted(path.relative_to(folder).as_posix() for path in folder.glob(word)) or [word]


def _in_process(arguments: list[str], folder: Path) -> Printed:
    text = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        patch.setattr(sys, "argv", ["vitrail", *arguments])
        patch.chdir(folder)
        with pytest.raises(SystemExit) as stopped:
            cli.main()
    assert isinstance(stopped.value.code, int)
    return Printed(stopped.value.code, text.getvalue())


if __name__ == "__main__":  # what the commands of a page print today: to write the page by
    for asked, answer in type_page(Path(sys.argv[1]), Path(sys.argv[2])):
        print(f"$ {asked.typed}\n{answer.text}(exit code {answer.code})\n")
