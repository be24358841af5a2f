"""Pictures in, answers out, by any runtime. numpy and Pillow only: no torch is imported here."""

from vitrail.inference.frames import frames
from vitrail.inference.passes import Named
from vitrail.inference.predict import Prediction, embed, predict, predictions, probabilities
from vitrail.inference.runtime import ByteRuntime, Runtime
from vitrail.inference.scaling import ScalingEffect, scaling_effect
from vitrail.inference.sources import find_images

__all__ = [
    "ByteRuntime",
    "Named",
    "Prediction",
    "Runtime",
    "ScalingEffect",
    "embed",
    "find_images",
    "frames",
    "predict",
    "predictions",
    "probabilities",
    "scaling_effect",
]
