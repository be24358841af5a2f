"""Pictures in, answers out, by any runtime. numpy and Pillow only: no torch is imported here."""

from vitrail.inference.predict import Prediction, Runtime, embed, predict, probabilities
from vitrail.inference.sources import find_images

__all__ = ["Prediction", "Runtime", "embed", "find_images", "predict", "probabilities"]
