"""The one script of a page: known by its hash, fetching nothing, writing no markup. tests/pages runs it."""

from __future__ import annotations

import base64
import hashlib
import re

from vitrail.reporting.html_page import page
from vitrail.reporting.page_script import SCRIPT, SCRIPT_HASH


def test_the_hash_is_that_of_the_script_as_it_stands_in_a_page() -> None:
    [written] = re.findall(r"<script>(.*?)</script>", page("a", "b", []), re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(written.encode("utf-8")).digest()).decode()
    assert f"sha256-{digest}" == SCRIPT_HASH


def test_it_takes_names_as_text_and_goes_nowhere() -> None:
    """What writes markup, evaluates text or reaches a network would make a hostile class name dangerous."""
    unwanted = (
        r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|Function\(|fetch|XMLHttp|https?:|location|import\b"
    )
    assert not re.findall(unwanted, SCRIPT)
    assert "</" not in SCRIPT  # nothing in it ends the element that holds it
    assert SCRIPT.isascii()


def test_it_does_what_pages_promise() -> None:
    for name in ("aria-sort", "showModal", "ArrowLeft", "ArrowRight", "aria-label"):
        assert name in SCRIPT
