"""Card: a title and rows of name and value -> what a REPL prints, and a notebook shows, of an object."""

from __future__ import annotations

import textwrap
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from PIL import Image

from vitrail.reporting.html_page import png_uri, printable, text
from vitrail.reporting.style import DARK, LIGHT

LINES: Final = 10  # of what is printed, the title among them
COLUMNS: Final = 100
NAMES: Final = 8  # of a list, before the rest is only counted
SIDE: Final = 360  # pixels of the longer side of an image in a notebook, at most
SMALLEST: Final = 180  # and at least about so many on the screen

Row = tuple[str, str]


class Card(NamedTuple):
    """What an object says of itself in few lines; rows without a value are left out."""

    title: str
    rows: Sequence[Row]
    image: Image.Image | None = None
    image_says: str = ""  # in place of the image, for those who cannot see it

    def as_text(self) -> str:
        """At most ten lines of a hundred columns, for `__repr__`."""
        rows = [(name, _one_line(value)) for name, value in self.rows if value]
        if len(rows) > LINES - 1:
            rest = ", ".join(name for name, _ in rows[LINES - 2 :])
            rows = [*rows[: LINES - 2], ("and", rest)]
        indent = max((len(name) for name, _ in rows), default=0) + 2
        lines, spare = [_one_line(self.title)], LINES - 1 - len(rows)
        for name, value in rows:
            parts = _wrapped(value, COLUMNS - 2 - indent, 1 + spare)
            spare -= len(parts) - 1
            names = (name, *[""] * (len(parts) - 1))
            lines += [f"  {each.ljust(indent)}{part}" for each, part in zip(names, parts, strict=True)]
        return "\n".join(cut(line, COLUMNS) for line in lines)

    def as_html(self) -> str:
        """The same as a small card for `_repr_html_`: no scripts, no network, its own rules for light and dark."""
        shown = "".join(f"<dt>{text(name)}</dt><dd>{text(value)}</dd>" for name, value in self.rows if value)
        rows = f"<dl>{shown}</dl>" if shown else ""
        return (
            f'<div class="vitrail-card" role="group" aria-label="{text(self.title)}"><style>{_STYLE}</style>'
            f'<div class="vitrail-title">{text(self.title)}</div>{self._figure()}{rows}</div>'
        )

    def _figure(self) -> str:
        if self.image is None:
            return ""
        small = self.image.copy()
        small.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
        width = small.width * max(1, round(SMALLEST / max(small.size)))
        return f'<img src="{png_uri(small)}" width="{width}" alt="{text(self.image_says)}">'


def listing(names: Iterable[str], most: int = NAMES) -> str:
    """How many names there are, and the first of them."""
    every = tuple(names)
    rest = ", …" if len(every) > most else ""
    return f"{len(every):,}: {', '.join(every[:most])}{rest}" if every else ""


def cut(line: str, columns: int) -> str:
    """A line that is not longer than so many columns; letters of East Asia take two."""
    widths = [2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in line]
    if sum(widths) <= columns:
        return line
    used, kept = 0, 0
    while used + widths[kept] <= columns - 1:
        used += widths[kept]
        kept += 1
    return line[:kept] + "…"


def _wrapped(value: str, columns: int, most: int) -> list[str]:
    """A value in lines of so many columns; the last takes all that is left, however long."""
    whole = value.replace(" %", "\u00a0%")  # a number keeps its unit
    lines = textwrap.wrap(whole, columns, break_long_words=False, break_on_hyphens=False)
    lines = [each.replace("\u00a0", " ") for each in lines]
    return [*lines[: most - 1], " ".join(lines[most - 1 :])] if len(lines) > most else lines


def _one_line(value: str) -> str:
    return printable(" ".join(value.split()))


def _rules(selector: str, colours: dict[str, str]) -> str:
    named = ";".join(f"--{name}:{colours[name]}" for name in ("card", "ink", "soft", "line", "blue"))
    return f"{selector}{{{named}}}"


def _style() -> str:
    """Light, dark by the reader's system, and either by what the notebook says of itself."""
    light, dark = dict(LIGHT), dict(DARK)
    own = ".vitrail-card"
    return "".join(
        (
            _rules(own, light),
            f"@media (prefers-color-scheme:dark){{{_rules(own, dark)}}}",
            _rules(f'[data-jp-theme-light="true"] {own},.vscode-light {own}', light),
            _rules(f'[data-jp-theme-light="false"] {own},.vscode-dark {own}', dark),
            f"{own}{{max-width:46em;box-sizing:border-box;padding:12px 16px;border:1px solid var(--line);"
            "border-left:5px solid var(--blue);border-radius:6px;background:var(--card);color:var(--ink);"
            "font:14px/1.5 system-ui,-apple-system,'Segoe UI',Roboto,'Liberation Sans',sans-serif}",
            f"{own} .vitrail-title{{font-weight:600;font-size:16px;margin:0 0 6px;overflow-wrap:anywhere}}",
            f"{own} img{{display:block;max-width:100%;height:auto;margin:6px 0 10px;border-radius:4px}}",
            f"{own} dl{{display:grid;grid-template-columns:max-content minmax(0,1fr);gap:3px 16px;margin:0}}",
            f"{own} dt{{color:var(--soft);font-weight:400;margin:0}}",
            f"{own} dd{{margin:0;overflow-wrap:anywhere;font-variant-numeric:tabular-nums}}",
        )
    )


_STYLE: Final = _style()
