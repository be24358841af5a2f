"""Figures -> a folder with each as a file, and one page that shows all of them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from vitrail.errors import InputError, MissingExtraError
from vitrail.files import reason
from vitrail.reporting.heat_legend import legend_html
from vitrail.reporting.html_page import Html, Section, data_uri, page, plate, text
from vitrail.reporting.image_sheets import TileSheet
from vitrail.reporting.svg import Chart, save_chart, sheet_chart


class Figure(NamedTuple):
    """An image or a chart, and what one sees on it."""

    name: str
    caption: str
    content: Image.Image | Chart | TileSheet
    file: Image.Image | None = None  # where the file shall show another image than the page
    scale: tuple[str, str] | None = None  # what its darkest and its brightest colour mean


def write_figure_page(
    folder: Path, title: str, subtitle: str, figures: Sequence[Figure], more: Sequence[Section] = (), note: str = ""
) -> list[Path]:
    """Images as NAME.png, charts as NAME.svg and, with the extra `figures`, NAME.png; all of them in index.html.

    The note introduces them.
    """
    files = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for each in figures:
            files += _write_figure(each, folder)
        sections = [Section("Figures", "".join(map(_plate, figures)), note), *more]
        (folder / "index.html").write_text(page(title, subtitle, sections), encoding="utf-8", errors="replace")
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {reason(error)}") from error
    return files


def _write_figure(figure: Figure, folder: Path) -> list[Path]:
    file = folder / f"{figure.name}.png"
    if not isinstance(figure.content, Chart):
        image = figure.content.image() if isinstance(figure.content, TileSheet) else figure.content
        (figure.file or image).save(file, optimize=True)
        return [file]
    files = [save_chart(figure.content, file.with_suffix(".svg"))]
    with suppress(MissingExtraError):  # the page and the SVG file show the same
        files.append(save_chart(figure.content, file))
    return files


def _plate(figure: Figure) -> Html:
    scale = legend_html(*figure.scale) if figure.scale else ""
    return plate(Html(_drawn(figure) + scale), figure.caption)


def _drawn(figure: Figure) -> Html:
    if isinstance(figure.content, TileSheet):
        return sheet_chart(figure.content).html
    if isinstance(figure.content, Chart):
        return figure.content.html
    return Html(f'<img src="{data_uri(figure.content, reduced=False)}" alt="{text(figure.caption)}">')
