"""Pictures in, answers out, by any runtime. numpy and Pillow only: no torch is imported here."""

from vitrail.inference.exported import Exported, is_exported, open_exported
from vitrail.inference.frames import frames
from vitrail.inference.predict import Prediction, embed, predict, predictions, probabilities
from vitrail.inference.reading import Named
from vitrail.inference.runtime import ByteRuntime, Runtime
from vitrail.inference.scaling import ScalingEffect, scaling_effect
from vitrail.inference.sources import find_images

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
