"""Other families' files, in and out: one table a family, used both ways."""

from __future__ import annotations

from vitrail.weights.adaptation import adapt_channels, with_channels, with_classes
from vitrail.weights.conversion import ParityReport, convert
from vitrail.weights.families import FAMILIES
from vitrail.weights.imagenet import imagenet1k
from vitrail.weights.loading import load
from vitrail.weights.resize import with_size

__all__ = [
    "FAMILIES",
    "ParityReport",
    "adapt_channels",
    "convert",
    "imagenet1k",
    "load",
    "with_channels",
    "with_classes",
    "with_size",
]
