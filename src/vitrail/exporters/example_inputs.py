"""Images, or none -> what an exported file and its network are both given, so that their answers can be compared."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from vitrail.errors import ImageError, InputError
from vitrail.images import Preprocess, Source
from vitrail.inference.batches import Images

MOST: Final = 16  # images that files are compared on: those of the largest batch


class ExampleInputs(NamedTuple):
    """Where the values come from: the user's images, over and over, or at random."""

    preprocess: Preprocess
    pixels: str  # "float", or "bytes" as the file takes them
    images: tuple[Source, ...] | None = None

    @property
    def words(self) -> str:
        return "random pixels" if self.images is None else "your images"

    def batch(self, count: int, size: tuple[int, int], number: int) -> Tensor:
        """So many images of a size; `number` says which pass it is, so that no two are the same."""
        if self.images is None:
            return example(self.preprocess, batch=count, size=size, pixels=self.pixels, seed=number)
        chosen = [self.images[(number + row) % len(self.images)] for row in range(count)]
        sized = self.preprocess if size == self.preprocess.size else replace(self.preprocess, size=size)
        if self.pixels == "bytes":
            seen = np.stack([sized.to_uint8(each) for each in chosen])  # (B, H, W, C), in the order of RGB
            return torch.from_numpy(seen)
        return torch.from_numpy(sized.batch(chosen))  # (B, C, H, W)


def inputs_for(preprocess: Preprocess, pixels: str, images: Images | None) -> ExampleInputs:
    """Of many images some from all parts of them, since folders are sorted by class; those nobody can read left out."""
    if images is None:
        return ExampleInputs(preprocess, pixels)
    spread = np.linspace(0, max(len(images) - 1, 0), min(2 * MOST, len(images))).astype(int)
    readable: list[Source] = []
    for row in spread:
        try:
            preprocess(images[int(row)])
        except ImageError:
            continue
        readable.append(images[int(row)])
    if not readable:
        raise InputError("images: none of them can be read: give images like those that will be answered")
    evenly = np.linspace(0, len(readable) - 1, min(MOST, len(readable))).astype(int)
    return ExampleInputs(preprocess, pixels, tuple(readable[row] for row in evenly))


def example(preprocess: Preprocess, *, batch: int, size: tuple[int, int], pixels: str, seed: int = 0) -> Tensor:
    """A made-up input: random colours, large patches of others, and noise, as normalised pixels or as bytes.

    Noise alone looks the same to a network whatever its channels are called.
    """
    generator = torch.Generator().manual_seed(seed)
    shape = (batch, preprocess.channels)
    colour = torch.randn(*shape, 1, 1, generator=generator)
    patches = torch.randn(*shape, 4, 4, generator=generator)
    noise = torch.randn(*shape, *size, generator=generator)
    values = 0.7 * colour + 0.5 * interpolate(patches, size, mode="nearest") + 0.5 * noise  # (B, C, H, W), about 1
    if pixels == "bytes":
        return (128 + 64 * values).clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1).contiguous()
    return values
