"""Chart: a drawing with its title and legend -> markup inside a page, an SVG file, or a PNG file of the same."""

from __future__ import annotations

import base64
import io
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, NamedTuple

from PIL import Image, ImageFont

from vitrail.errors import InputError, MissingExtraError
from vitrail.reporting.html_page import Html, text
from vitrail.reporting.image_sheets import TileSheet
from vitrail.reporting.shapes import Colour, Mark, label, mark_shape, text_width
from vitrail.reporting.style import CHART_STYLE, LIGHT

MARGIN: Final = 16.0  # around a chart in a file of its own
ZOOM: Final = 2.0  # pixels of a PNG for each unit of the drawing
_FAMILIES: Final = "'DejaVu Sans','Liberation Sans','Noto Sans',Arial,Helvetica,sans-serif"
# What the face that comes with Pillow can write; other signs need a face of the system.
_WRITABLE: Final = frozenset(map(chr, range(32, 127))) | frozenset("\n©«°±´·»‘’“”…‹›™")


class Key(NamedTuple):
    """An entry of a legend: a name and how what it names is drawn."""

    name: str
    colour: Colour
    shape: Literal["bar", "line", "dot", "square", "triangle"] = "bar"
    filled: bool = True  # a bar or a line that is not is pale


@dataclass(frozen=True)
class Chart:
    """SVG elements in a frame of width x height; without elements there is nothing to show, and it counts as False.

    `words` say what it shows to those who cannot see it. Colours are variables of the page's style.
    """

    title: str = ""
    words: str = ""
    width: float = 0.0
    height: float = 0.0
    elements: tuple[str, ...] = ()
    legend: tuple[Key, ...] = ()
    wide: bool = False
    shrinks: bool = False  # a wide chart without words: whole on a phone rather than scrolled

    def __bool__(self) -> bool:
        return bool(self.elements)

    @property
    def html(self) -> Html:
        """The chart as part of a page; nothing where there is nothing to show."""
        if not self:
            return Html()
        caption = f"<figcaption>{text(self.title)}</figcaption>" if self.title else ""
        # A wide chart is shown at its own size: larger than a phone, it scrolls rather than shrinks beyond reading.
        least = 0.85 * self.width if self.width > 480 and not self.shrinks else 0.0
        size = f' style="max-width:{1.15 * self.width:.0f}px;min-width:{least:.0f}px"' if self.wide else ""
        image = (
            f'<svg class="plot" role="img" aria-label="{text(self.words)}" '
            f'viewBox="0 0 {self.width:.0f} {self.height:.0f}"{size}>{"".join(self.elements)}</svg>'
        )
        if self.wide:
            image = f'<div class="scroll" tabindex="0" role="region" aria-label="{text(self.words)}">{image}</div>'
        keys = "".join(
            f'<li><svg viewBox="0 0 22 10" aria-hidden="true">{_icon(key)}</svg>{text(key.name)}</li>'
            for key in self.legend
        )
        legend = f'<ul class="legend">{keys}</ul>' if keys else ""
        return Html(f'<figure class="chart{" wide" * self.wide}">{caption}{image}{legend}</figure>')

    def svg(self) -> str:
        """The chart as a file of its own, with title and legend, in the colours of light pages."""
        framed = self.framed()
        width, height = framed.width + 2 * MARGIN, framed.height + 2 * MARGIN
        markup = (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="plot" role="img" aria-label="{text(self.words)}" '
            f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}" '
            f'font-family="{_FAMILIES}" font-size="12" fill="var(--ink)"><style>{CHART_STYLE}</style>'
            f'<rect width="100%" height="100%" style="fill:var(--paper)"/>'
            f'<g transform="translate({MARGIN:.0f} {MARGIN:.0f})">{"".join(framed.elements)}</g></svg>\n'
        )
        return re.sub(r"var\(--(\w+)\)", lambda name: LIGHT[name[1]], markup)

    def framed(self) -> Chart:
        """The same with title and legend as part of the drawing, as files and rows of charts have them."""
        top = 28.0 if self.title else 0.0
        elements = [label(self.title, 0, 13, kind="plain", more=' font-size="15"')] if self.title else []
        elements.append(f'<g transform="translate(0 {top:.0f})">{"".join(self.elements)}</g>')
        x, y = 0.0, top + self.height + 16.0
        for key in self.legend:
            wide = 30 + text_width(key.name)
            if x and x + wide > self.width:
                x, y = 0.0, y + 19.0
            elements.append(
                f'<g transform="translate({x:.1f} {y - 9:.1f})">{_icon(key)}</g>{label(key.name, x + 28, y)}'
            )
            x += wide + 16
        height = y + 6 if self.legend else top + self.height
        width = max(self.width, text_width(self.title, 15.0))
        return Chart("", self.words, width, height, tuple(elements), (), True)


def chart_row(charts: Sequence[Chart], gap: float = 28.0) -> Chart:
    """Charts beside each other as one; those with nothing to show are left out."""
    shown = [each.framed() for each in charts if each]
    elements, left = [], 0.0
    for each in shown:
        elements.append(f'<g transform="translate({left:.1f} 0)">{"".join(each.elements)}</g>')
        left += each.width + gap
    words = "; ".join(each.words for each in shown)
    height = max((each.height for each in shown), default=0.0)
    return Chart("", words, left - gap, height, tuple(elements), (), True)


def image_chart(image: Image.Image, title: str, width: float) -> Chart:
    """An image as part of a row of charts; the pixels of a tiny one stay square."""
    height = width * image.height / image.width
    file = io.BytesIO()
    image.save(file, "png", optimize=True)
    data = base64.b64encode(file.getvalue()).decode("ascii")
    square = ' style="image-rendering:pixelated"' if max(image.size) <= 96 else ""
    element = (
        f'<image width="{width:.1f}" height="{height:.1f}" preserveAspectRatio="none"{square} '
        f'href="data:image/png;base64,{data}"/>'
    )
    return Chart(title, title, width, height, (element,))


def save_chart(chart: Chart, path: Path) -> Path:
    """Write FILE.svg, FILE.png or FILE.pdf; the latter two need the extra `figures`."""
    suffix = check_chart_path(path).suffix.lower()
    if suffix == ".svg":
        path.write_text(chart.svg(), encoding="utf-8", errors="replace")
        return path
    data = png_bytes(chart.svg())
    if suffix == ".png":
        path.write_bytes(data)
    else:
        with Image.open(io.BytesIO(data)) as image:
            image.convert("RGB").save(path, "pdf", resolution=96 * ZOOM)
    return path


def sheet_chart(sheet: TileSheet) -> Chart:
    """A sheet of tiles as a chart: its names in the colours of the page, nothing but gaps behind the tiles."""
    width, height = sheet.tiles[0][0].size
    left = max(map(text_width, sheet.rows), default=-8.0) + 8
    top = 20.0 if sheet.columns else 0.0
    elements = [
        label(name, left + (number + 0.5) * width + number * sheet.gap, 13, "middle")
        for number, name in enumerate(sheet.columns)
    ]
    for row, images in enumerate(sheet.tiles):
        y = top + row * (height + sheet.gap)
        if sheet.rows:
            elements.append(label(sheet.rows[row], left - 8, y + height / 2 + 4, "end"))
        for column, image in enumerate(images):
            x = left + column * (width + sheet.gap)
            elements.append(f'<image x="{x:.1f}" y="{y:.1f}" width="{width}" height="{height}" href="{_uri(image)}"/>')
    columns = max(map(len, sheet.tiles))
    across, down = left + columns * (width + sheet.gap), top + len(sheet.tiles) * (height + sheet.gap)
    words = sheet.title or f"{len(sheet.tiles)} rows of {columns} tiles"
    shrinks = not (sheet.rows or sheet.columns)
    return Chart(sheet.title, words, across - sheet.gap, down - sheet.gap, tuple(elements), wide=True, shrinks=shrinks)


def _uri(image: Image.Image) -> str:
    """An image as data: PNG where that is smaller, as of few colours, else JPEG."""
    kinds = []
    for kind in ("png", "jpeg"):
        file = io.BytesIO()
        image.convert("RGB").save(file, kind, optimize=True, quality=88)
        kinds.append((len(file.getvalue()), kind, file.getvalue()))
    _, kind, data = min(kinds)
    return f"data:image/{kind};base64,{base64.b64encode(data).decode('ascii')}"


def check_chart_path(path: Path) -> Path:
    """Refuse at once a file that could not be written later."""
    if path.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise InputError(f"a chart: expected FILE.png, .svg or .pdf, got {path.name!r}")
    if path.suffix.lower() != ".svg":
        check_png()
    return path


def check_png() -> None:
    """Say what is missing where no PNG can be made."""
    try:
        import resvg_py  # noqa: F401
    except ImportError:
        raise MissingExtraError("figures as PNG files need resvg-py: pip install 'vitrail[figures]'") from None


def png_bytes(svg: str) -> bytes:
    """An SVG file drawn as PNG: the same bytes on every machine while its words are in Latin letters.

    resvg finds no face on a machine that has none installed, and would leave every word out: the one that comes with
    Pillow is handed to it. Other scripts take a face of the system, or show as boxes where there is none.
    """
    check_png()
    import resvg_py

    latin = frozenset(svg) <= _WRITABLE
    face = ImageFont.load_default(12)
    if not isinstance(face, ImageFont.FreeTypeFont):  # a Pillow without FreeType has none to give
        return bytes(resvg_py.svg_to_bytes(svg_string=svg, zoom=ZOOM))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        file = Path(folder, "face.ttf")
        file.write_bytes(face.font_bytes)
        name = face.getname()[0]
        return bytes(
            resvg_py.svg_to_bytes(
                svg_string=svg, zoom=ZOOM, font_files=[str(file)], sans_serif_family=name, skip_system_fonts=latin
            )
        )


def _icon(key: Key) -> str:
    """How a legend shows an entry, in a box of 22 x 10."""
    if key.shape in ("bar", "line"):
        width, solid, pale = (6, 0.85, 0.35) if key.shape == "bar" else (2, 1.0, 0.55)
        opacity = solid if key.filled else pale
        return f'<path d="M1 5H21" style="stroke:var(--{key.colour});stroke-width:{width};stroke-opacity:{opacity}"/>'
    mark: Mark = key.shape  # type: ignore[assignment]
    return mark_shape(mark, 11, 5, key.colour, key.filled)
