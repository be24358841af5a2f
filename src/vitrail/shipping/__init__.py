"""The way out: runtimes, files for other runtimes, quantisation, and the search for the fastest under a budget.

Nothing heavy is imported before it is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitrail.shipping.artefact import is_packed, open_packed, save_packed
    from vitrail.shipping.benching import Bench, bench
    from vitrail.shipping.exporting import ExportReport, export
    from vitrail.shipping.optimising import Optimised, optimize
    from vitrail.shipping.packed import Packed
    from vitrail.shipping.packing import Plan
    from vitrail.shipping.quantising import Quantised, quantise
    from vitrail.shipping.runtimes import open_runtime

_HOMES = {
    "Bench": "benching",
    "ExportReport": "exporting",
    "Optimised": "optimising",
    "Packed": "packed",
    "Plan": "packing",
    "Quantised": "quantising",
    "bench": "benching",
    "export": "exporting",
    "is_packed": "artefact",
    "open_packed": "artefact",
    "open_runtime": "runtimes",
    "optimize": "optimising",
    "quantise": "quantising",
    "save_packed": "artefact",
}

__all__ = [
    "Bench",
    "ExportReport",
    "Optimised",
    "Packed",
    "Plan",
    "Quantised",
    "bench",
    "export",
    "is_packed",
    "open_packed",
    "open_runtime",
    "optimize",
    "quantise",
    "save_packed",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'vitrail.shipping' has no name {name!r}")
    return getattr(importlib.import_module(f"vitrail.shipping.{_HOMES[name]}"), name)
