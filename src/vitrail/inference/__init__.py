"""Images in, answers out, by any runtime. numpy and Pillow only: no torch is imported here."""

from vitrail.inference.exported import Exported, is_exported, open_exported
from vitrail.inference.image_reader import Named
from vitrail.inference.prediction import Prediction, embed, predict, predictions, probabilities
from vitrail.inference.runtime import Runtime, RuntimeBase, Takes
from vitrail.inference.sources import find_images
from vitrail.inference.video import frames

__all__ = [
    "Exported",
    "Named",
    "Prediction",
    "Runtime",
    "RuntimeBase",
    "Takes",
    "embed",
    "find_images",
    "frames",
    "is_exported",
    "open_exported",
    "predict",
    "predictions",
    "probabilities",
]
