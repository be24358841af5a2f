"""Vitrail: vision transformers you can see through. The public names, imported when first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from vitrail.auditing import Audit, audit
    from vitrail.checkpoint import Checkpoint
    from vitrail.data.shard_writing import shard
    from vitrail.errors import VitrailError
    from vitrail.evaluation import Comparison, Evaluation, compare, evaluate
    from vitrail.exporters.exporter import ExportReport, export
    from vitrail.images import Preprocess
    from vitrail.inference import Prediction, embed, predict
    from vitrail.insight import Explanation, Trace, explain, prune, prune_heads, trace
    from vitrail.network.config import ViTConfig
    from vitrail.network.presets import create
    from vitrail.network.text import TextConfig, TextDecoder
    from vitrail.network.vit import ViT
    from vitrail.shipping import bench, optimize
    from vitrail.training import Recipe, Run, train
    from vitrail.weights import ParityReport, convert, load, save

_HOMES = {
    "Audit": "vitrail.auditing",
    "Checkpoint": "vitrail.checkpoint",
    "Comparison": "vitrail.evaluation",
    "Evaluation": "vitrail.evaluation",
    "Explanation": "vitrail.insight",
    "ExportReport": "vitrail.exporters.exporter",
    "ParityReport": "vitrail.weights",
    "Prediction": "vitrail.inference",
    "Preprocess": "vitrail.images",
    "Recipe": "vitrail.training",
    "Run": "vitrail.training",
    "TextConfig": "vitrail.network.text",
    "TextDecoder": "vitrail.network.text",
    "Trace": "vitrail.insight",
    "ViT": "vitrail.network.vit",
    "ViTConfig": "vitrail.network.config",
    "VitrailError": "vitrail.errors",
    "audit": "vitrail.auditing",
    "bench": "vitrail.shipping",
    "compare": "vitrail.evaluation",
    "convert": "vitrail.weights",
    "create": "vitrail.network.presets",
    "embed": "vitrail.inference",
    "evaluate": "vitrail.evaluation",
    "explain": "vitrail.insight",
    "export": "vitrail.exporters.exporter",
    "load": "vitrail.weights",
    "optimize": "vitrail.shipping",
    "predict": "vitrail.inference",
    "prune": "vitrail.insight",
    "prune_heads": "vitrail.insight",
    "save": "vitrail.weights",
    "shard": "vitrail.data.shard_writing",
    "trace": "vitrail.insight",
    "train": "vitrail.training",
}

__all__ = [
    "Audit",
    "Checkpoint",
    "Comparison",
    "Evaluation",
    "Explanation",
    "ExportReport",
    "ParityReport",
    "Prediction",
    "Preprocess",
    "Recipe",
    "Run",
    "TextConfig",
    "TextDecoder",
    "Trace",
    "ViT",
    "ViTConfig",
    "VitrailError",
    "audit",
    "bench",
    "compare",
    "convert",
    "create",
    "embed",
    "evaluate",
    "explain",
    "export",
    "load",
    "optimize",
    "predict",
    "prune",
    "prune_heads",
    "save",
    "shard",
    "trace",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'vitrail' has no name {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
