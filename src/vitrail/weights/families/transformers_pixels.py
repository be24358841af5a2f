"""transformers' preprocessor_config.json: read, and written."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from vitrail.checks import short_repr
from vitrail.errors import CheckpointError, nearest
from vitrail.images import Preprocess
from vitrail.images.preprocess import Interpolation
from vitrail.weights.preprocessing import BYTE, CLIP, HALF, IMAGENET, checked, refuse_beyond_pillow

NUMBERS: Final[Mapping[int, Interpolation]] = {  # Pillow's numbers of its filters
    0: "nearest",
    1: "lanczos",
    2: "bilinear",
    3: "bicubic",
    4: "box",
}


_SQUARE: Final = {"height": 224, "width": 224}
_CUT: Final = {"do_center_crop": True, "crop_size": _SQUARE}


def _processor(size: Mapping[str, int], resample: int, statistics: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of an image processor class that crops nothing."""
    return {
        "do_resize": True,
        "size": size,
        "resample": resample,
        "do_center_crop": False,
        "do_rescale": True,
        "do_normalize": True,
        "image_mean": statistics["mean"],
        "image_std": statistics["std"],
        "default_to_square": "height" in size,
    }


CLASSES: Final[Mapping[str, Mapping[str, Any]]] = {  # the class attributes in transformers/models/*/image_processing_*
    "ViTImageProcessor": _processor(_SQUARE, 2, HALF),
    "DeiTImageProcessor": _processor({"height": 256, "width": 256}, 3, HALF) | _CUT,
    "BeitImageProcessor": _processor(_SQUARE, 3, HALF) | {"crop_size": _SQUARE},
    "BitImageProcessor": _processor({"shortest_edge": 224}, 3, CLIP) | _CUT,
    "CLIPImageProcessor": _processor({"shortest_edge": 224}, 3, CLIP) | _CUT,
    "SiglipImageProcessor": _processor(_SQUARE, 3, HALF) | {"default_to_square": False},
    "DINOv3ViTImageProcessor": _processor(_SQUARE, 2, IMAGENET),
}
READ: Final = (  # keys that say what happens to an image
    *("do_resize", "size", "default_to_square", "resample", "do_center_crop", "crop_size"),
    *("do_rescale", "rescale_factor", "do_normalize", "image_mean", "image_std"),
)
NO_MATTER: Final = (  # keys that leave the pixels of an image as they are
    *("image_processor_type", "feature_extractor_type", "processor_class", "auto_map", "use_fast"),
    *("do_convert_rgb", "do_reduce_labels", "pad_size", "image_seq_length", "disable_grouping", "device"),
    *("data_format", "input_data_format", "return_tensors", "model_input_names", "_valid_processor_keys"),
)


def from_transformers(preprocessor_config: Mapping[str, Any]) -> Preprocess:
    """The preprocessing that a preprocessor_config.json asks for.

    What the file leaves out takes its class's defaults; a key that is not understood, or cannot be honoured, is
    refused. Where the crop leaves an odd number of rows or columns, transformers cuts at the half rounded down, and
    `Preprocess` as torchvision does, to even: then the frame may stand one pixel further on.
    """
    if not isinstance(preprocessor_config, Mapping):
        raise CheckpointError(f"expected preprocessor_config.json as a mapping, got {short_repr(preprocessor_config)}")
    inner = preprocessor_config.get("image_processor", preprocessor_config)  # processor_config.json: one level down
    if not isinstance(inner, Mapping):
        raise CheckpointError(f"image_processor: expected a mapping, got {short_repr(inner)}")
    given = {str(name): value for name, value in inner.items() if value is not None}
    values = {**CLASSES[_class_of(given)], **{name: value for name, value in given.items() if name in READ}}
    strange = [name for name, value in given.items() if name not in (*READ, *NO_MATTER) and value is not False]
    if strange:
        raise CheckpointError(
            f"the image processor's {', '.join(sorted(strange)[:8])}: not understood, so the pixels could differ"
        )
    _refuse_values(values)
    frame, crop = _frame(values)
    mean = values["image_mean"]
    return checked(
        "the image processor",
        size=list(frame),
        resize="squash" if "height" in values["size"] else "crop",
        crop=crop,
        interpolation=_interpolation(values["resample"]),
        channels=1 if isinstance(mean, list | tuple) and len(mean) == 1 else 3,
        mean=mean if values["do_normalize"] else 0.0,
        std=values["image_std"] if values["do_normalize"] else 1.0,
    )


def to_transformers(preprocess: Preprocess, processor_type: str) -> dict[str, Any]:
    """A preprocessor_config.json of the class asked for, or else of the first class that can carry this; or refused."""
    refuse_beyond_pillow(preprocess, "transformers")
    height, width = preprocess.size
    tall, wide = (math.floor(side / preprocess.crop) for side in preprocess.size)
    if preprocess.resize == "pad" or (preprocess.resize == "crop" and (height, tall) != (width, wide)):
        what = "bars around the image" if preprocess.resize == "pad" else f"covering a frame of {preprocess.size}"
        raise CheckpointError(f"no image processor of transformers does {what}: use 'squash', or a square 'crop'")
    cut = (tall, wide) != (height, width)
    if preprocess.resize == "crop":
        able = ["BitImageProcessor", "CLIPImageProcessor"]
    elif cut:
        able = ["DeiTImageProcessor", "BeitImageProcessor"]
    else:
        able = ["ViTImageProcessor", "SiglipImageProcessor", "DINOv3ViTImageProcessor", "BeitImageProcessor"]
    plain: dict[str, Any] = {
        "image_processor_type": processor_type if processor_type in able else able[0],
        "do_convert_rgb": preprocess.channels == 3,
        "do_resize": True,
        "size": {"shortest_edge": tall} if preprocess.resize == "crop" else {"height": tall, "width": wide},
        "resample": next(number for number, name in NUMBERS.items() if name == preprocess.interpolation),
        "do_center_crop": cut or preprocess.resize == "crop",
        "do_rescale": True,
        "rescale_factor": BYTE,
        "do_normalize": True,
        "image_mean": list(preprocess.mean),
        "image_std": list(preprocess.std),
    }
    if plain["do_center_crop"]:
        plain["crop_size"] = {"height": height, "width": width}
    return plain


def _class_of(given: Mapping[str, Any]) -> str:
    """The image processor that a file names; Fast, Pil and old feature extractors are the same classes."""
    named = given.get("image_processor_type", given.get("feature_extractor_type"))
    if named is None:
        missing = [name for name in ("size", "resample", "image_mean", "image_std") if name not in given]
        if missing:
            raise CheckpointError(f"the image processor names no class, and lacks {', '.join(missing)}")
        return "ViTImageProcessor"
    plain = str(named).removesuffix("Fast").removesuffix("Pil").replace("FeatureExtractor", "ImageProcessor")
    if plain == "Siglip2ImageProcessor":
        raise CheckpointError(
            "Siglip2ImageProcessor cuts every image into a grid of its own shape, and Preprocess has one frame for "
            "all: transformers_default('siglip2') squashes them into a square"
        )
    if plain not in CLASSES:
        raise CheckpointError(f"the image processor {short_repr(named)} is not known here: {nearest(plain, CLASSES)}")
    return plain


def _refuse_values(values: Mapping[str, Any]) -> None:
    """Steps that Preprocess always takes, or never."""
    for name in ("do_resize", "do_center_crop", "do_rescale", "do_normalize"):
        if not isinstance(values[name], bool):
            raise CheckpointError(
                f"the image processor's {name}: expected true or false, got {short_repr(values[name])}"
            )
    if not values["do_resize"]:
        raise CheckpointError("the image processor has do_resize false, and images come in every size: set true")
    factor = values.get("rescale_factor", BYTE)
    right = isinstance(factor, int | float) and not isinstance(factor, bool) and abs(factor - BYTE) < 1e-9
    if not values["do_rescale"] or not right:
        got = short_repr(factor) if values["do_rescale"] else "do_rescale false"
        raise CheckpointError(f"the image processor's rescale_factor: expected 1/255, got {got}")


def _frame(values: dict[str, Any]) -> tuple[tuple[int, int], float]:
    """The frame (height, width) that the network receives, and its share of the resized image."""
    resized = values["size"] = _sides("size", values["size"], bool(values.get("default_to_square", True)))
    if not values["do_center_crop"]:
        if "shortest_edge" in resized:
            raise CheckpointError("the image processor resizes the short side and crops nothing: no frame is the same")
        return (resized["height"], resized["width"]), 1.0
    cropped = _sides("crop_size", values.get("crop_size"), True)
    frame = (cropped["height"], cropped["width"])
    scaled = (resized["shortest_edge"],) * 2 if "shortest_edge" in resized else (resized["height"], resized["width"])
    if "shortest_edge" in resized and frame[0] != frame[1]:
        raise CheckpointError(f"the image processor's crop_size: expected a square with shortest_edge, got {frame}")
    crop = frame[0] / scaled[0]
    while math.floor(frame[0] / crop) < scaled[0]:  # 224 / (224 / 235) may come out as 234.99
        crop = math.nextafter(crop, 0.0)
    if math.floor(frame[1] / crop) != scaled[1]:
        raise CheckpointError(f"the image processor crops {frame} of {scaled}: expected the same share of both sides")
    return frame, crop


def _sides(name: str, value: Any, square: bool) -> dict[str, int]:
    """{"height", "width"} or {"shortest_edge"} from any of the ways transformers writes a size."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = {"height": value, "width": value} if square else {"shortest_edge": value}
    elif isinstance(value, Sequence) and not isinstance(value, str) and len(value) == 2:
        value = {"height": value[0], "width": value[1]}
    if isinstance(value, Mapping):
        sides = {key: side for key, side in value.items() if side is not None}
        whole = all(type(side) is int and 0 < side <= 16_384 for side in sides.values())
        if whole and (set(sides) == {"height", "width"} or (name == "size" and set(sides) == {"shortest_edge"})):
            return sides
    raise CheckpointError(
        f"the image processor's {name}: expected a height and a width{', or a shortest_edge' * (name == 'size')}, "
        f"got {short_repr(value)}"
    )


def _interpolation(resample: Any) -> Interpolation:
    if not isinstance(resample, int) or isinstance(resample, bool) or resample not in NUMBERS:
        expected = ", ".join(f"{number} ({name})" for number, name in NUMBERS.items())
        raise CheckpointError(f"the image processor's resample: expected one of {expected}, got {short_repr(resample)}")
    return NUMBERS[resample]
