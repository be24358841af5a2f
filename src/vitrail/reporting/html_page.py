"""Parts of a page -> one HTML file: no network, one script of our own; every given name is text, never markup."""

from __future__ import annotations

import base64
import html
import io
import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple

from PIL import Image

from vitrail.errors import InputError
from vitrail.files import reason
from vitrail.images import decode
from vitrail.reporting.page_script import SCRIPT, SCRIPT_HASH
from vitrail.reporting.style import BAND, MARK, STYLE

Tone = Literal["", "good", "bad", "warn"]

TINY: Final = 96  # images up to this many pixels are kept as they are and shown with square pixels
LARGEST: Final = 48_000  # letters that an image may take on a page
_THUMBS: Final = ((480, 80), (352, 74), (224, 72), (128, 66))  # side in pixels and quality: the first small enough

_LONG_WORD: Final = 24  # letters from which a word may be broken, lest it push a table's other columns away
_NAME: Final = 12  # letters from which a column needs room on a phone
_SENTENCE: Final = 36  # and from which it needs much
_FULL_QUALITY: Final = 90  # of an image that keeps its size

_POLICY: Final = (
    f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src '{SCRIPT_HASH}'; "
    "base-uri 'none'; form-action 'none'"
)
LINKS: Final = "<!--pages-->"  # where links to other pages go; escaped in any text of a page
_NUMERIC: Final = re.compile(r"[-+−]?\d[\d,.]*(\s?%)?( to [-+−]?\d[\d,.]*(\s?%)?)?|–")
_JOINTS: Final = re.compile(r"[/_](?=\w)")  # of a file's name: where it breaks best
_LONG_NAME: Final = re.compile(r"\S{13,}")
_UNBROKEN: Final = re.compile(r"\d[\d.,]* %|--[a-z][a-z-]*")  # shares and options
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff\ufffe\uffff\u202a-\u202e\u2066-\u2069]")


class Html(str):
    """Text that is markup already; any other text is escaped."""

    __slots__ = ()


Cell = Html | str | int | float | None


class Section(NamedTuple):
    """A part of a page; the note is a sentence that says what one sees."""

    title: str
    body_html: str
    note: str = ""


class Shown(NamedTuple):
    """An image in a gallery; the first line of its caption stands out."""

    image: Image.Image
    caption: str
    tone: Tone = ""


class Tile(NamedTuple):
    """A number that matters, what it is, and what it means."""

    value: str
    label: str
    note: str = ""
    tone: Tone = ""  # of its edge; without one, tiles in a row differ by their places alone


def page(title: str, subtitle: str, sections: Sequence[Section]) -> str:
    """The whole file."""
    anchors = [f"s{number}" for number in range(1, len(sections) + 1)]
    links = "".join(
        f'<li><a href="#{anchor}">{text(each.title)}</a></li>' for anchor, each in zip(anchors, sections, strict=True)
    )
    parts = "".join(
        f'<section id="{anchor}" aria-labelledby="{anchor}-title"><h2 id="{anchor}-title">{text(each.title)}</h2>'
        f"{_note(each.note)}{each.body_html}</section>\n"
        for anchor, each in zip(anchors, sections, strict=True)
    )
    contents = f'<nav aria-label="Contents"><ul>{links}</ul></nav>' if len(sections) > 1 else ""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{text(title)} · Vitrail</title><style>{STYLE}</style></head>\n<body>{BAND}"
        f'<header><div class="inner"><div class="name">{MARK}Vitrail</div><h1>{text(title)}</h1>'
        f'<p class="subtitle">{words(subtitle)}</p>{LINKS}{contents}</div></header>\n'
        f'<main class="inner">{parts}</main>\n'
        '<footer><div class="inner">Made by Vitrail. This file holds everything it shows and fetches nothing.</div>'
        f"</footer><script>{SCRIPT}</script></body></html>\n"
    )


def write_files(folder: Path, files: Mapping[str, str]) -> list[Path]:
    """Texts by the names of their files; names of images that are not text go in as they are."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (folder / name).write_bytes(content.encode("utf-8", "surrogateescape"))
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {reason(error)}") from error
    return [folder / name for name in files]


def text(value: object) -> Html:
    """Any value as text, safe in an element and in a quoted attribute."""
    return value if isinstance(value, Html) else Html(html.escape(printable(str(value)), quote=True))


def printable(name: str) -> str:
    """A name as it may be shown: signs that hide or turn the text around them become visible marks."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", name)


def words(value: str) -> Html:
    """Text inside an element, whose shares and options stay on one line: 5 %, --images."""
    return Html(_UNBROKEN.sub(r'<span class="w">\g<0></span>', text(value)))


def breakable(value: object) -> Html:
    """The same, and a long file name breaks where its parts meet."""
    if isinstance(value, Html):
        return value
    parted = _LONG_NAME.sub(lambda name: _JOINTS.sub(r"\g<0><wbr>", name[0]), text(value))
    return Html(_UNBROKEN.sub(r'<span class="w">\g<0></span>', parted))


def counted(count: int, thing: str) -> str:
    """1 image, 2 images, 1,000 images; 1 class, 2 classes."""
    return f"{count:,} {plural(count, thing)}"


def plural(count: int, thing: str) -> str:
    """The same without the number, where that stands elsewhere."""
    return thing if count == 1 else f"{thing}{'es' if thing.endswith('s') else 's'}"


def number(value: float | None, digits: int = 3) -> str:
    """A number in few digits; a dash where there is none."""
    if value is None or math.isnan(value):
        return "–"
    if isinstance(value, int):
        return f"{value:,}"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.{digits}g}"


def percent(value: float | None, digits: int = 1) -> str:
    """A share 0..1 in per cent; a dash where there is none."""
    return "–" if value is None or not math.isfinite(value) else f"{100 * value:.{digits}f} %"


def paragraph(sentence: str) -> Html:
    """A paragraph of text."""
    return Html(f"<p>{words(sentence)}</p>")


def heading(sentence: str) -> Html:
    """A heading inside a section."""
    return Html(f"<h3>{text(sentence)}</h3>")


def callout(sentence: str, tone: Tone = "") -> Html:
    """A sentence that must not be missed."""
    return Html(f'<p class="callout {_tone(tone)}">{words(sentence)}</p>')


def facts(pairs: Iterable[tuple[str, object]]) -> Html:
    """Names with their values."""
    rows = "".join(f"<div><dt>{text(name)}</dt><dd>{breakable(value)}</dd></div>" for name, value in pairs)
    return Html(f'<dl class="facts">{rows}</dl>') if rows else Html()


def tiles(items: Iterable[Tile]) -> Html:
    """The numbers that matter, large."""
    shown = "".join(
        f'<div class="{f"tile {_tone(each.tone)}".rstrip()}"><b>{text(each.value)}</b><span>{text(each.label)}</span>'
        f"<small>{words(each.note)}</small></div>"
        for each in items
    )
    return Html(f'<div class="tiles">{shown}</div>') if shown else Html()


def table(headers: Sequence[str], rows: Sequence[Sequence[Cell]], most: int = 0, fixed: int = 0) -> Html:
    """Rows under headers, sorted by a click on one; the first cell names its row. Numbers stand right.

    Rows after `most` are folded away; the first `fixed` ones stay first, however the others are sorted.
    """
    for row in rows:
        if len(row) != len(headers):
            raise InputError(f"a row of {len(row)} cells under {len(headers)} headers: give every header one cell")
    if not rows:
        return Html()
    right = [place > 0 and all(_is_number(row[place]) for row in rows) for place in range(len(headers))]
    first, rest = (rows[:most], rows[most:]) if most else (rows, ())
    shown = _table(headers, first, right, fixed)
    if rest:
        shown = Html(shown + folded(f"{len(rest):,} more", _table(headers, rest, right)))
    return Html(f'<div class="table">{shown}</div>')


def gallery(items: Iterable[Shown], size: Literal["", "small", "large"] = "") -> Html:
    """Images with captions; small ones stand three in a narrow row, large ones four in a wide one."""
    figures = []
    for item in items:
        first, *more = item.caption.split("\n")
        caption = "<br>".join([f"<b>{breakable(first)}</b>", *map(breakable, more)])
        alt = text(item.caption.replace("\n", ", "))
        tiny = ' class="tiny"' if max(item.image.size) <= TINY else ""
        figures.append(
            f'<figure class="{_tone(item.tone)}"><img{tiny} src="{data_uri(item.image)}" alt="{alt}" loading="lazy">'
            f"<figcaption>{caption}</figcaption></figure>"
        )
    return Html(f'<div class="{f"gallery {size}".rstrip()}">{"".join(figures)}</div>') if figures else Html()


def plate(content: Html, caption: str) -> Html:
    """A figure as wide as the page, with what one sees on it below."""
    return Html(f'<figure class="plate">{content}<figcaption>{words(caption)}</figcaption></figure>')


def data_uri(image: Image.Image, reduced: bool = True) -> str:
    """An image as part of the page: as it is when tiny, else reduced until the file is small."""
    decoded = decode(image)
    if max(decoded.size) <= TINY:
        return _embedded(decoded, "png")
    if not reduced:
        return _embedded(decoded, "jpeg", _FULL_QUALITY)
    for side, quality in _THUMBS:
        small = decoded.copy()
        small.thumbnail((side, side), Image.Resampling.LANCZOS)
        uri = _embedded(small, "jpeg", quality)
        if len(uri) <= LARGEST:
            break
    return uri


def png_uri(image: Image.Image) -> str:
    """An image as it is, every pixel kept."""
    return _embedded(image, "png")


def _embedded(image: Image.Image, kind: str, quality: int = 0) -> str:
    file = io.BytesIO()
    image.save(file, kind, optimize=True, quality=quality)
    return f"data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode('ascii')}"


def beside(*parts: str) -> Html:
    """Charts or galleries beside each other where there is room; an empty part leaves its place free."""
    shown = "".join(f"<div>{part}</div>" for part in parts)
    return Html(f'<div class="charts">{shown}</div>') if any(parts) else Html()


def tabs(name: str, views: Sequence[tuple[str, str]]) -> Html:
    """Up to four views of which one shows; `name` differs from that of any other tabs on the page."""
    if not 1 <= len(views) <= 4 or not name.isidentifier():
        raise InputError(f"tabs: expected 1 to 4 views and a plain name, got {len(views)} and {name!r}")
    doors = "".join(
        f'<input type="radio" name="{name}" id="{name}{place}"{" checked" * (place == 0)}>'
        f'<label for="{name}{place}">{text(label)}</label>'
        for place, (label, _) in enumerate(views)
    )
    rooms = "".join(f'<div class="tab">{body}</div>' for _, body in views)
    return Html(f'<div class="tabs">{doors}{rooms}</div>')


def folded(title: str, body_html: str) -> Html:
    """Something to open when wanted."""
    return Html(f"<details><summary>{text(title)}</summary>{body_html}</details>")


def code(content: str) -> Html:
    """A command, to copy."""
    return Html(f"<pre><code>{text(content)}</code></pre>")


def meter(share: float) -> Html:
    """A small bar for a share 0..1; the number stands beside it."""
    width = min(max(share, 0.0), 1.0) if math.isfinite(share) else 0.0
    return Html(f'<span class="meter" aria-hidden="true"><i style="width:{100 * width:.1f}%"></i></span>')


def _note(sentence: str) -> str:
    return f'<p class="note">{words(sentence)}</p>' if sentence else ""


def _tone(tone: str) -> str:
    if tone not in ("", "good", "bad", "warn"):
        raise InputError(f"tone: expected good, bad, warn or nothing, got {tone!r}")
    return tone


def _is_number(cell: Cell) -> bool:
    if isinstance(cell, Html):
        return False
    return cell is None or isinstance(cell, int | float) or _NUMERIC.fullmatch(cell) is not None


def _kind(cells: Iterable[Cell]) -> str:
    """The class of a column of words, by its longest: how wide it must be on a phone to be read."""
    longest = max((len(each) for each in cells if isinstance(each, str) and not isinstance(each, Html)), default=0)
    return ' class="sentences"' if longest > _SENTENCE else ' class="names"' if longest > _NAME else ""


def _table(headers: Sequence[str], rows: Sequence[Sequence[Cell]], right: Sequence[bool], fixed: int = 0) -> Html:
    sides = [' class="n"' if each else "" for each in right]
    kinds = [side or _kind(row[place] for row in rows) for place, side in enumerate(sides)]
    head = "".join(f'<th scope="col"{kind}>{text(name)}</th>' for name, kind in zip(headers, kinds, strict=True))
    body = []
    for place, row in enumerate(rows):
        cells = [each if isinstance(each, str) else number(each) for each in row]
        others = "".join(
            f"<td{side}>{text(cell)}</td>" for cell, side in itertools.islice(zip(cells, sides, strict=True), 1, None)
        )
        stays = ' class="fixed"' if place < fixed else ""
        long = ' class="long"' if max(map(len, cells[0].split()), default=0) > _LONG_WORD else ""
        body.append(f'<tr{stays}><th scope="row"{long}>{text(cells[0])}</th>{others}</tr>')
    return Html(
        f'<div class="scroll" tabindex="0" role="region" aria-label="{text(", ".join(headers))}"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"
    )
