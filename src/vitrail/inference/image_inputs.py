"""Whatever images come as, from a path to a tensor -> images one after another; or pixels that are prepared already.

Tensors are known by their class's name: torch is not imported here.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias, runtime_checkable

import numpy as np
from PIL import Image

from vitrail.errors import ImageError, InputError
from vitrail.images import Preprocess, Source, describe
from vitrail.images.file_names import TAR
from vitrail.inference.image_reader import Named
from vitrail.inference.image_search import UNREADABLE_FOLDER
from vitrail.inference.sources import stream_images
from vitrail.types import Array

NEARLY_BLACK: Final = 0.1  # of values from 0 to 1


class TensorLike(Protocol):
    """A tensor of torch."""

    @property
    def shape(self) -> Sequence[int]: ...

    def numpy(self) -> Any: ...


@runtime_checkable
class ReadableFile(Protocol):
    """An open file, or io.BytesIO."""

    def read(self) -> bytes: ...


OneImage: TypeAlias = "Source | ReadableFile | TensorLike"
ManyImages: TypeAlias = "OneImage | Iterable[OneImage | Named]"


@dataclass(frozen=True)
class PreparedPixels:
    """What the network takes, nothing left to do: normalised, float32 (B, C, H, W)."""

    values: Array


def as_images(images: ManyImages, preprocess: Preprocess) -> Iterable[Source | Named] | PreparedPixels:
    """Every image of whatever came, in order. What a list or a generator holds is looked at when it is drawn."""
    if isinstance(images, str | os.PathLike):
        return list(_in_path(images))
    if _is_tensor(images):
        return _of_tensor(images, preprocess)
    if isinstance(images, np.ndarray):
        return _of_array(images, preprocess.channels)
    if isinstance(images, Image.Image | bytes | bytearray | memoryview | ReadableFile):
        return [as_image(images, preprocess)]
    if isinstance(images, Iterable) and not isinstance(images, Mapping):
        return (image for given in images for image in _each_of(given, preprocess))
    raise InputError(
        "expected images as a path, a folder, a PIL image, an array, a tensor, bytes, an open file or a list of these, "
        f"got {describe(images)}"
    )


def count_of(images: ManyImages, stream: Iterable[Source | Named] | PreparedPixels) -> int | None:
    """How many images `as_images` made of those; None where only their end tells."""
    if isinstance(stream, PreparedPixels):
        return len(stream.values)
    if isinstance(images, Sequence) and not isinstance(images, str) and any(map(_is_several, images)):
        return None
    return next((len(each) for each in (stream, images) if isinstance(each, Sized)), None)


def as_image(image: OneImage, preprocess: Preprocess) -> Source | Named:
    """One image as `decode` takes it."""
    if _is_tensor(image):
        images = _of_tensor(image, preprocess)
        if isinstance(images, PreparedPixels):
            raise InputError(
                "these pixels are prepared already: expected an image as it is; predict and embed take pixels, too, "
                "as one tensor (B, C, H, W), which torch.stack makes of several"
            )
        if len(images) != 1:
            raise InputError(f"expected one image, got a tensor of {len(images)}")
        return images[0]
    if isinstance(image, Image.Image | np.ndarray) or not isinstance(image, ReadableFile):
        return image  # type: ignore[return-value]  # what is none of these is told by whoever decodes it
    try:
        data: object = image.read()
    except UnicodeDecodeError:
        data = ""
    if not isinstance(data, bytes | bytearray | memoryview):
        raise InputError(f"{describe(image)}: expected bytes, got {type(data).__name__}: open it in binary mode, 'rb'")
    if not data:
        raise ImageError(f"{describe(image)}: nothing is left to read: it is empty, or wants a seek(0) first")
    name = getattr(image, "name", None)
    return Named(name, data) if isinstance(name, str) else data


def _each_of(given: OneImage | Named, preprocess: Preprocess) -> Iterable[Source | Named]:
    """What one entry of a list stands for: an image, or all those of a folder or pattern."""
    if isinstance(given, str | os.PathLike) and _is_several(given):
        return _in_path(given)
    return (given if isinstance(given, Named) else as_image(given, preprocess),)


def _is_several(given: object) -> bool:
    """Whether this is the path of a folder or a shard, or a pattern that is no file's name."""
    if not isinstance(given, str | os.PathLike):
        return False
    if os.fspath(given).lower().endswith(TAR) or os.path.isdir(given):
        return True
    return glob.has_magic(os.fspath(given)) and not os.path.exists(given)


def _in_path(path: str | os.PathLike[str]) -> Iterator[Source | Named]:
    """The image there, or all of a folder; a folder in it that cannot be looked into counts as an unreadable image."""
    stream = stream_images([path])
    for others in stream.files.passed_over:
        if others.reason == UNREADABLE_FOLDER:
            for folder in others.paths:
                yield Named(folder, ImageError(f"{folder}: a folder that cannot be read: check its permissions"))
    yield from stream


def _of_array(array: Array, channels: int) -> Sequence[Array]:
    """(H, W) or (H, W, C) is one image, (N, H, W) or (N, H, W, C) are several."""
    ends = (1, 3, 4, channels)
    if array.ndim == 2 or (array.ndim == 3 and array.shape[2] in ends):
        return [array]
    if array.ndim == 3 and array.shape[0] == channels > 1:
        raise InputError(
            f"an array of shape {array.shape} may be one image with its channels first, or {array.shape[0]} grey ones: "
            "use array.transpose(1, 2, 0) for one, array[..., None] for several"
        )
    if array.ndim in (3, 4):
        return list(array)
    raise InputError(f"expected an array (H, W), (H, W, C) or (N, H, W, C), got one of shape {array.shape}")


def _is_tensor(value: object) -> bool:
    return any(kind.__name__ == "Tensor" and kind.__module__ == "torch" for kind in type(value).__mro__)


def _of_tensor(tensor: Any, preprocess: Preprocess) -> list[Array] | PreparedPixels:
    """8-bit values (C, H, W) or (N, C, H, W) are images; float values are pixels, of the size the network takes."""
    if tensor.is_floating_point():
        return _pixels(np.asarray(tensor.detach().float().cpu().numpy()), preprocess)
    values: Array = tensor.detach().cpu().numpy()
    if values.dtype != np.uint8:
        raise InputError(
            f"expected a tensor of 8-bit images (torch.uint8), or of float pixels that are prepared, got "
            f"{tensor.dtype}: values from 0 to 255 become such images by tensor.to(torch.uint8)"
        )
    several = values if values.ndim == 4 else values[None]
    if several.ndim != 4 or several.shape[1] not in (1, 3, 4, preprocess.channels):
        last = (
            " and not last: tensor.movedim(-1, -3)" if values.ndim in (3, 4) and values.shape[-1] in (1, 3, 4) else ""
        )
        raise InputError(
            f"expected a tensor (C, H, W) or (N, C, H, W), got one of shape {values.shape}: channels come first{last}"
        )
    return list(several.transpose(0, 2, 3, 1))


def _pixels(values: Array, preprocess: Preprocess) -> PreparedPixels:
    expected = (preprocess.channels, *preprocess.size)
    several = values[None] if values.ndim == 3 else values
    if several.ndim != 4 or several.shape[1:] != expected:
        raise InputError(
            f"float tensors are pixels as checkpoint.preprocess makes them, {('B', *expected)}, got one of shape "
            f"{values.shape}: give 8-bit images (torch.uint8) to have them prepared".replace("'B'", "B")
        )
    if several.size:
        check_normalised(preprocess, float(several.min()), float(several.max()))
    return PreparedPixels(several)


def check_normalised(preprocess: Preprocess, low: float, high: float) -> None:
    """Refuse pixels that were not normalised as the network was trained: in silence it would only do worse."""
    if not preprocess.is_8bit:
        return
    mean, std = np.asarray(preprocess.mean), np.asarray(preprocess.std)
    darkest, brightest = float((-mean / std).min()), float(((1 - mean) / std).max())
    room = brightest - darkest
    # Once normalised, an image that is bright all over has no pixel near 0, and one of a single grey nothing else.
    unnormalised = 0 <= low < min(high, NEARLY_BLACK) and high <= 1 and darkest < -0.5
    if unnormalised or low < darkest - room or high > brightest + room:
        where = (
            "all lie between 0 and 1" if unnormalised else f"some lie at {low if low < darkest - room else high:.3g}"
        )
        raise InputError(
            f"these pixels are not normalised as this network's are, from {darkest:.3g} to {brightest:.3g}: {where}; "
            "take checkpoint.transform for a dataset, or give images as they are, in 8 bits"
        )
