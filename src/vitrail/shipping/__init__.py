"""The way out: files for other runtimes. Nothing heavy is imported before it is used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitrail.shipping.exporting import ExportReport, export

_HOMES = {"ExportReport": "vitrail.shipping.exporting", "export": "vitrail.shipping.exporting"}

__all__ = ["ExportReport", "export"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'vitrail.shipping' has no name {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
