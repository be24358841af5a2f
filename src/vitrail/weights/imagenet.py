"""The 1,000 classes of ImageNet (ILSVRC 2012) in their usual order: names for people."""

from __future__ import annotations

from functools import cache
from importlib import resources


@cache
def imagenet1k() -> tuple[str, ...]:
    """One name a class, WordNet's first word for it; where two classes share one, a word in brackets tells them apart.

    No two names are the same even when capitals are ignored, so that folders can be named after them. A line of the
    file is `n02124075 Egyptian cat`, with WordNet's number first.
    """
    text = (resources.files("vitrail") / "data" / "imagenet1k.txt").read_text("utf-8")
    return tuple(line.partition(" ")[2] for line in text.splitlines())
