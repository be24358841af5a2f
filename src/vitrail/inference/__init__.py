"""Pictures in, answers out, by any runtime. numpy and Pillow only: no torch is imported here."""

from vitrail.inference.exported import Exported, is_exported, open_exported
from vitrail.inference.predict import Prediction, Runtime, embed, predict, probabilities
from vitrail.inference.sources import find_images

__all__ = [
    "Exported",
    "Prediction",
    "Runtime",
    "embed",
    "find_images",
    "is_exported",
    "open_exported",
    "predict",
    "probabilities",
]
