"""Images in, answers out, by any runtime. numpy and Pillow only: no torch is imported here."""

from vitrail.inference.answers import Prediction
from vitrail.inference.image_reader import Named
from vitrail.inference.image_search import FoundImages, PassedOver, find_images
from vitrail.inference.prediction import embed, predict, predictions, probabilities
from vitrail.inference.recognisers import open_checkpoint, open_model
from vitrail.inference.runtime import Runtime, RuntimeBase, Takes
from vitrail.inference.sources import ImageStream, stream_images
from vitrail.inference.video import frames

__all__ = [
    "FoundImages",
    "ImageStream",
    "Named",
    "PassedOver",
    "Prediction",
    "Runtime",
    "RuntimeBase",
    "Takes",
    "embed",
    "find_images",
    "frames",
    "open_checkpoint",
    "open_model",
    "predict",
    "predictions",
    "probabilities",
    "stream_images",
]
