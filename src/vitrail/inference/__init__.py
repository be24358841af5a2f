"""Images in, answers out, by any runtime. numpy and Pillow only: no torch is imported here."""

from vitrail.inference.exported import Exported, is_exported, open_exported
from vitrail.inference.image_reader import Named
from vitrail.inference.prediction import Prediction, embed, predict, predictions, probabilities
from vitrail.inference.runtime import ByteRuntime, Runtime
from vitrail.inference.scaled_decoding import ScalingEffect, scaling_effect
from vitrail.inference.sources import find_images
from vitrail.inference.video import frames

__all__ = [
    "ByteRuntime",
    "Exported",
    "Named",
    "Prediction",
    "Runtime",
    "ScalingEffect",
    "embed",
    "find_images",
    "frames",
    "is_exported",
    "open_exported",
    "predict",
    "predictions",
    "probabilities",
    "scaling_effect",
]
