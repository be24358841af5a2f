"""Other families' files, in and out: one table a family, used both ways. The names below are imported when used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitrail.weights.adaptation import adapt_channels, with_channels, with_classes
    from vitrail.weights.conversion import ParityReport, convert
    from vitrail.weights.families import FAMILIES
    from vitrail.weights.imagenet import imagenet1k
    from vitrail.weights.loading import load
    from vitrail.weights.resize import with_size
    from vitrail.weights.saving import save

_HOMES = {
    "FAMILIES": "families",
    "ParityReport": "conversion",
    "adapt_channels": "adaptation",
    "convert": "conversion",
    "imagenet1k": "imagenet",
    "load": "loading",
    "save": "saving",
    "with_channels": "adaptation",
    "with_classes": "adaptation",
    "with_size": "resize",
}

__all__ = [
    "FAMILIES",
    "ParityReport",
    "adapt_channels",
    "convert",
    "imagenet1k",
    "load",
    "save",
    "with_channels",
    "with_classes",
    "with_size",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
