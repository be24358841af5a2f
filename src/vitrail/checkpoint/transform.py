"""Transform: what a DataLoader asks of a checkpoint, an image in, its pixels as a tensor out."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vitrail.images import Preprocess
from vitrail.types import Source


@dataclass(frozen=True)
class Transform:
    """An image -> the pixels (C, H, W) that the network takes: the same bits as `preprocess`, in worker processes too.

    `ImageFolder("photos", transform=checkpoint.transform)`, or in the `__getitem__` of a dataset of your own.
    """

    preprocess: Preprocess

    def __call__(self, image: Source) -> Tensor:
        return torch.from_numpy(self.preprocess(image))
