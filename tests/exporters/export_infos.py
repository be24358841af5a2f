"""What an exported file says of itself, with some of it changed."""

from __future__ import annotations

from typing import Any

import numpy as np

from vitrail.exporters.export_info import ExportInfo
from vitrail.images import Preprocess
from vitrail.images.model_info import ModelInfo

Array = np.ndarray[Any, Any]


def contents(preprocess: Preprocess | None = None, **changes: Any) -> ExportInfo:
    about = ModelInfo(preprocess or Preprocess(size=(8, 16), mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6)), ("a", "b"))
    settings = {"about": about, "target": "onnx", "size": (8, 16), "cell": (4, 8), "embedding": 3}
    return ExportInfo(**settings | changes)  # type: ignore[arg-type]
