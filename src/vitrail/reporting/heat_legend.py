"""What the colours and crosses of a heat map mean: part of a page, and a strip below an image."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from vitrail.reporting.html_page import Html, text
from vitrail.reporting.image_sheets import INK, PAPER, colours_of, crossed, font

CROSSED = (
    "crossed out: a patch whose token is far larger than the others; what the network keeps there is not what the "
    "patch shows, so it is drawn like those around it"
)
FRAMED = "inside the frame: what the network sees of the image; the rest is cut off"
_WIDTH, _HEIGHT = 200, 14


def legend_html(low: str, high: str, crosses: bool = False, frames: bool = False) -> Html:
    """The scale of colours between two words, and the cross and the frame where a map has one."""
    steps = colours_of(np.linspace(0, 1, 40))
    shades = [",".join(map(str, colour.tolist())) for colour in steps]
    cells = "".join(
        f'<rect x="{5 * place}" y="0" width="5.3" height="{_HEIGHT}" fill="rgb({shade})"/>'
        for place, shade in enumerate(shades)
    )
    scale = f'<svg class="scale" viewBox="0 0 {_WIDTH} {_HEIGHT}" aria-hidden="true">{cells}</svg>'
    cross = (
        '<svg class="cross" viewBox="0 0 14 14" aria-hidden="true"><rect width="14" height="14" fill="#3e1064"/>'
        '<path d="M3 3 11 11M3 11 11 3" stroke="#fcfbf8" stroke-width="1.6"/></svg>'
    )
    frame = (
        '<svg class="cross" viewBox="0 0 14 14" aria-hidden="true"><rect width="14" height="14" fill="#15141b"/>'
        '<rect x="2.5" y="2.5" width="9" height="9" fill="#777" stroke="#fcfbf8"/></svg>'
    )
    more = f"<li>{frame}{text(FRAMED)}</li>" if frames else ""
    more += f"<li>{cross}{text(CROSSED)}</li>" if crosses else ""
    return Html(f'<ul class="heat"><li>{text(low)} {scale} {text(high)}</li>{more}</ul>')


def legend_strip(width: int, low: str, high: str, crosses: bool = False) -> Image.Image:
    """The same as an image of this width."""
    small = font(13)
    told = _lines(CROSSED, width - 38 - 16, small) if crosses else []
    page = Image.new("RGB", (width, 32 + 20 * len(told)), PAPER)
    draw = ImageDraw.Draw(page)
    draw.text((16, 8), low, INK, small)
    left = 16 + round(small.getlength(low)) + 8
    bar = Image.fromarray(np.repeat(colours_of(np.linspace(0, 1, _WIDTH))[None], _HEIGHT, axis=0))
    page.paste(bar, (left, 9))
    draw.text((left + _WIDTH + 8, 8), high, INK, small)
    if crosses:
        page.paste(crossed(Image.new("RGB", (14, 14), (62, 16, 100))), (16, 31))
    for number, line in enumerate(told):
        draw.text((38, 30 + 20 * number), line, INK, small)
    return page


def _lines(words: str, width: int, small: ImageFont.FreeTypeFont | ImageFont.ImageFont) -> list[str]:
    """Words in lines of so many pixels."""
    lines = [""]
    for word in words.split():
        longer = f"{lines[-1]} {word}".lstrip()
        if lines[-1] and small.getlength(longer) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines
