"""Pages on disk -> the same pages, each with links to the others: paths from one to the next, so that folders move."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from vitrail.errors import InputError
from vitrail.files import atomic_write, reason
from vitrail.reporting.html_page import LINKS, text

_OURS = re.compile(f'{re.escape(LINKS)}(<nav aria-label="Pages".*?</nav>)?', re.DOTALL)


class PageLink(NamedTuple):
    """A page and what it is called in the links of the others."""

    title: str
    page: Path


def link_pages(pages: Sequence[PageLink], only: Path | None = None) -> None:
    """Each page links to all of them, in this order, and marks its own place; `only` changes that one alone."""
    try:
        for _, page in pages if only is None else [PageLink("", only)]:
            content = page.read_text("utf-8")
            with atomic_write(page) as part:
                before, _, after = _OURS.sub(LINKS, content, count=1).partition(LINKS)
                part.write_text(before + LINKS + _links(pages, page) + after, "utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = reason(error) if isinstance(error, OSError) else str(error)
        raise InputError(f"cannot link the pages of {pages[0].page.parent}: {why}") from error


def _links(pages: Sequence[PageLink], here: Path) -> str:
    items = []
    for title, page in pages:
        if page == here:
            items.append(f'<li><span aria-current="page">{text(title)}</span></li>')
        else:
            way = quote(Path(os.path.relpath(page, here.parent)).as_posix())
            items.append(f'<li><a href="{way}">{text(title)}</a></li>')
    return f'<nav aria-label="Pages" class="pages"><ul>{"".join(items)}</ul></nav>'
