"""The 1,000 classes of ImageNet (ILSVRC 2012) in their usual order: names for people, and WordNet's numbers."""

from __future__ import annotations

from functools import cache
from importlib import resources


def imagenet1k() -> tuple[str, ...]:
    """One name a class, WordNet's first word for it; where two classes share one, a word in brackets tells them apart.

    No two names are the same even when capitals are ignored, so that folders can be named after them.
    """
    return tuple(name for _, name in _classes())


def synsets() -> tuple[str, ...]:
    """WordNet's number of each class, such as n02124075: how ImageNet names its folders."""
    return tuple(number for number, _ in _classes())


@cache
def _classes() -> tuple[tuple[str, str], ...]:
    """(synset, name) of every class; a line of the file is `n02124075 Egyptian cat`."""
    text = (resources.files("vitrail") / "data" / "imagenet1k.txt").read_text("utf-8")
    pairs = (line.partition(" ") for line in text.splitlines())
    return tuple((number, name) for number, _, name in pairs)
