"""Images that a verb keeps accuracy on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitrail.cli.image_paths import tell_passed_over
from vitrail.errors import InputError

if TYPE_CHECKING:
    from vitrail.checkpoint import Checkpoint
    from vitrail.data.samples import Dataset


def images_for(loaded: Checkpoint, checkpoint: str, data: str, unlabelled: bool) -> Dataset:
    """Images to be judged by: labelled ones, or any, with the network's own answers for labels."""
    from vitrail.evaluation import data_for
    from vitrail.inference import find_images
    from vitrail.quantisation.accuracy_budget import self_labelled

    if not unlabelled:
        return data_for(checkpoint, data, loaded.classes)
    if not data:
        raise InputError("--unlabelled: name the images with --data FOLDER")
    images = find_images([data])
    tell_passed_over(images)
    return self_labelled(loaded, images)
