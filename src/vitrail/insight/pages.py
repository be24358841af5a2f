"""Figures -> a folder with their images and one page that shows them."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from PIL import Image

STYLE = """:root{color-scheme:light dark}body{font:16px/1.5 system-ui,sans-serif;color:#201e26;background:#fcfbf8;
max-width:1000px;margin:2rem auto;padding:0 1rem}img{max-width:100%;height:auto;border-radius:4px}
figure{margin:2.5rem 0}figcaption{color:#5c5866}table{border-collapse:collapse}
td,th{padding:.15rem .9rem .15rem 0;text-align:left}td+td{font-family:monospace}
@media(prefers-color-scheme:dark){body{color:#e8e5df;background:#1b1a20}figcaption{color:#aaa5b2}}"""


class Figure(NamedTuple):
    """An image, and what one sees on it."""

    name: str
    caption: str
    image: Image.Image


def write_page(out: Path, title: str, lead: str, figures: Sequence[Figure], tail: str = "") -> list[Path]:
    """The images as PNG, and index.html; `lead` is text, `tail` is markup."""
    out.mkdir(parents=True, exist_ok=True)
    files = []
    for figure in figures:
        files.append(out / f"{figure.name}.png")
        figure.image.save(files[-1], optimize=True)
    shown = "".join(
        f'<figure><img src="{each.name}.png" alt="{html.escape(each.caption)}">'
        f"<figcaption>{html.escape(each.caption)}</figcaption></figure>"
        for each in figures
    )
    (out / "index.html").write_text(
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>Vitrail: {html.escape(title)}</title><style>{STYLE}</style><h1>{html.escape(title)}</h1>"
        f"<p>{html.escape(lead)}</p>{shown}{tail}</html>\n",
        encoding="utf-8",
        errors="surrogateescape",
    )
    return files
