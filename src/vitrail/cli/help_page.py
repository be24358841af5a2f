"""The parts of a --help page -> its text, for a terminal of any width: what is needed most stands first."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence
from typing import NamedTuple

WIDEST = 80  # longer lines are hard to read
NARROW = 60  # below: what a row says goes under its name
COLUMN = 18  # names longer than this have a line of their own


class HelpRow(NamedTuple):
    """A name, and what it is."""

    name: str
    words: str


class HelpSection(NamedTuple):
    """Rows under a heading."""

    title: str
    rows: Sequence[HelpRow]


def page_width() -> int:
    """The width of the terminal, as far as it is good to read."""
    return min(shutil.get_terminal_size().columns, WIDEST)


def render_help(usage: str, about: str, examples: Sequence[str], sections: Sequence[HelpSection], width: int) -> str:
    """Usage, what it is for, examples as they are typed, then the sections in their order."""
    parts = [_wrapped(f"Usage: {usage}", width, later="       "), _paragraphs(about, width)]
    if examples:
        parts.append("\n".join(["Examples:", *(f"  {example}" for example in examples)]))
    column = _column(sections)
    parts += [_section(section, column, width) for section in sections if section.rows]
    return "\n\n".join(parts) + "\n"


def _column(sections: Sequence[HelpSection]) -> int:
    """How wide the names are: all sections have the same."""
    names = [len(row.name) for section in sections for row in section.rows if len(row.name) <= COLUMN]
    return max(names, default=0)


def _section(section: HelpSection, column: int, width: int) -> str:
    lines = [f"{section.title}:"]
    for row in section.rows:
        if width < NARROW:
            lines += [f"  {row.name}", _wrapped(row.words, width, "      ", "      ")]
            continue
        indent = " " * (column + 4)
        first = f"  {row.name:<{column}}  "
        if len(row.name) > column:
            lines.append(f"  {row.name}")
            first = indent
        lines.append(_wrapped(row.words, width, first, indent))
    return "\n".join(line for line in lines if line)


def _paragraphs(text: str, width: int) -> str:
    return "\n\n".join(_wrapped(" ".join(part.split()), width, "  ", "  ") for part in text.split("\n\n"))


def _wrapped(text: str, width: int, first: str = "", later: str = "") -> str:
    return textwrap.fill(
        text, width, initial_indent=first, subsequent_indent=later, break_on_hyphens=False, break_long_words=False
    )
