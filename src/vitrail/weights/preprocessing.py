"""How each family prepares pictures for evaluation, and how timm and transformers write that down, both ways.

A checkpoint's own file comes first (`from_timm`, `from_transformers`). Where a file says nothing, `evaluation`,
`timm_default` and `transformers_default` give what the family's own code does, and say whether that is known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from vitrail.checks import shown
from vitrail.errors import CheckpointError, InputError, VitrailError, nearest
from vitrail.images import Interpolation, Preprocess
from vitrail.network.config import ViTConfig

Size = int | tuple[int, int]

HALF: Final[dict[str, Any]] = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}
IMAGENET: Final[dict[str, Any]] = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
CLIP: Final[dict[str, Any]] = {"mean": (0.48145466, 0.4578275, 0.40821073), "std": (0.26862954, 0.26130258, 0.27577711)}
BYTE: Final = 1 / 255


class Known(NamedTuple):
    """A preprocessing, and why it is that one: the reason starts with "known" or with "assumed"."""

    preprocess: Preprocess
    why: str


# ---- what each family's own code does ----------------------------------------------------------------------------


def augreg(size: Size = 224) -> Known:
    """timm's original and AugReg networks (timm/models/vision_transformer.py, _cfg and the *_384 entries)."""
    crop = 0.9 if _side(size) < 384 else 1.0
    why = "as timm scores its original and AugReg networks"
    return Known(Preprocess(size, crop=crop, **HALF), _known(why, _side(size) in (224, 384), "at 224 and 384"))


def deit(size: Size = 224) -> Known:
    """DeiT (deit/datasets.py build_transform; main.py: --eval-crop-ratio 0.875, at every size)."""
    return Known(Preprocess(size, crop=0.875, **IMAGENET), "known: DeiT's own evaluation code; timm crops 0.9 instead")


def deit3(size: Size = 224) -> Known:
    """DeiT-III: the whole short side (deit pull request 190; mmpretrain reaches the published scores so)."""
    why = "assumed: DeiT-III was scored on the whole short side; timm crops 0.9 for the ImageNet-1k weights at 224"
    return Known(Preprocess(size, crop=1.0, **IMAGENET), why)


def dino(size: Size = 224) -> Known:
    """DINO (dino/eval_linear.py: resize 256 bicubic, centre 224)."""
    why = _known("DINO's own evaluation code", _side(size) == 224, "at 224")
    return Known(Preprocess(size, crop=0.875, **IMAGENET), why)


def dinov2(size: Size = 224) -> Known:
    """DINOv2 (dinov2/data/transforms.py: resize 256 bicubic, centre 224); at 518 as timm's pretrained config."""
    if _side(size) <= 224:
        why = _known("DINOv2's own evaluation code", _side(size) == 224, "at 224")
        return Known(Preprocess(size, crop=0.875, **IMAGENET), why)
    why = _known("as timm scores DINOv2; DINOv2's own code crops 224 of 256", _side(size) == 518, "at 518")
    return Known(Preprocess(size, crop=1.0, **IMAGENET), why)


def dinov3(size: Size = 256) -> Known:
    """DINOv3 (README, "Image transforms"): both sides to the size, bilinear, any size."""
    preprocess = Preprocess(size, "squash", 1.0, "bilinear", **IMAGENET)
    return Known(preprocess, "known: DINOv3's README, for the web weights; the satellite weights have another mean")


def clip(size: Size = 224) -> Known:
    """CLIP (clip/clip.py _transform: resize the short side to the size bicubic, centre)."""
    return Known(Preprocess(size, crop=1.0, **CLIP), "known: CLIP's own code; a few open_clip weights use mean 0.5")


def siglip(size: Size = 224) -> Known:
    """SigLIP in big_vision (SigLIP_demo.ipynb: resize|value_range; ops_image.py: bilinear, antialias=False)."""
    preprocess = Preprocess(size, "squash", 1.0, "bilinear", antialias=False, **HALF)
    return Known(preprocess, "known: big_vision's demo of SigLIP; transformers and timm resize bicubic with antialias")


def mae(size: Size = 224) -> Known:
    """MAE (mae/util/datasets.py: 224 / 256 up to 224 pixels, the whole short side above)."""
    crop = 0.875 if _side(size) <= 224 else 1.0
    return Known(Preprocess(size, crop=crop, **IMAGENET), "known: MAE's own evaluation code")


def torchvision(size: Size = 224) -> Known:
    """torchvision (models/vision_transformer.py, the transforms of each weights enum)."""
    if _side(size) <= 224:
        why = "assumed: torchvision's IMAGENET1K_V1 weights; its SWAG linear weights at 224 are bicubic without a crop"
        return Known(Preprocess(size, crop=0.875, interpolation="bilinear", **IMAGENET), why)
    why = _known("torchvision's SWAG weights", _side(size) in (384, 512, 518), "at 384, 512 and 518")
    return Known(Preprocess(size, crop=1.0, **IMAGENET), why)


def google(size: Size = 224) -> Known:
    """vit_jax (input_pipeline.py: tf.image.resize to the size, (x - 127.5) / 127.5); TensorFlow's bilinear."""
    preprocess = Preprocess(size, "squash", 1.0, "bilinear", antialias=False, **HALF)
    return Known(preprocess, "known: vit_jax's own evaluation code; timm crops 0.9 bicubic instead")


def big_vision(size: Size = 224) -> Known:
    """big_vision (configs/vit_i1k.py: resize_small(256) by area, central_crop(224); transfer.py: 448 and 384)."""
    crop = 384 / 448 if _side(size) == 384 else 0.875
    why = _known("big_vision's configs, its area filter as a box", _side(size) in (224, 384), "at 224 and 384")
    return Known(Preprocess(size, crop=crop, interpolation="box", **HALF), why)


def lucidrains(size: Size = 224) -> Known:
    """vit-pytorch is a network only, and says nothing of pictures."""
    why = "assumed: vit-pytorch says nothing; values from 0 to 1, the whole short side: give mean, std and crop"
    return Known(Preprocess(size, crop=1.0, interpolation="bilinear", mean=0.0, std=1.0), why)


EVALUATION: Final[Mapping[str, Callable[[Size], Known]]] = {
    "augreg": augreg,
    "deit": deit,
    "deit3": deit3,
    "dino": dino,
    "dinov2": dinov2,
    "dinov3": dinov3,
    "clip": clip,
    "siglip": siglip,
    "mae": mae,
    "torchvision": torchvision,
    "google": google,
    "big_vision": big_vision,
    "lucidrains": lucidrains,
}


def evaluation(family: str, size: Size = 224, channels: int = 3) -> Known:
    """What a family's own code does to a picture before it is scored; with one channel the numbers are averages."""
    if not isinstance(family, str) or family not in EVALUATION:
        raise InputError(f"no evaluation preprocessing for {shown(family)}: {nearest(str(family), EVALUATION)}")
    return _for_channels(EVALUATION[family](size), channels)


def timm_default(config: ViTConfig) -> Known:
    """What timm would do with a network that comes without a pretrained config, as far as its parts tell which it is.

    AugReg, DINO and MAE write the same names and differ in their statistics: without a file nothing tells them apart.
    """
    size, ordinary = config.image_size, 0.9 if _side(config.image_size) < 384 else 1.0
    if config.rotary is not None:
        found = Known(Preprocess(size, crop=1.0, **IMAGENET), "assumed: as timm scores DINOv3's web weights")
    elif config.embedding_norm:
        found = Known(Preprocess(size, crop=1.0, **CLIP), "assumed: a norm before the encoder is CLIP's")
    elif config.distillation_token:
        found = Known(Preprocess(size, crop=ordinary, **IMAGENET), "assumed: as timm scores distilled DeiT")
    elif config.pool == "map":
        found = Known(Preprocess(size, crop=0.9, **HALF), "assumed: as timm scores SigLIP")
    elif config.layer_scale is not None and config.pool == "cls":
        found = Known(
            Preprocess(size, crop=1.0, **IMAGENET), "assumed: LayerScale and a cls token are DINOv2's, DeiT-III's"
        )
    elif config.final_norm == "pooled" and config.cls_token:
        found = Known(Preprocess(size, crop=ordinary, **IMAGENET), "assumed: a cls token and a pooled norm are MAE's")
    else:
        why = "assumed: as timm scores AugReg; DeiT, DINO and MAE look alike, and have ImageNet's mean and std"
        found = Known(Preprocess(size, crop=ordinary, **HALF), why)
    return _for_channels(found, config.channels)


# ---- timm's pretrained config ------------------------------------------------------------------------------------

MODES: Final = {"center": "crop", "squash": "squash", "border": "pad"}
TIMM_INTERPOLATIONS: Final = ("nearest", "bilinear", "bicubic", "lanczos", "box")


def from_timm(pretrained_cfg: Mapping[str, Any], size: Size | None = None) -> Preprocess:
    """The preprocessing that a pretrained config of timm asks for; a size other than its own keeps the rule.

    What the config leaves out takes timm's own defaults (timm/data/config.py).
    """
    if not isinstance(pretrained_cfg, Mapping):
        raise CheckpointError(f"expected timm's pretrained config as a mapping, got {shown(pretrained_cfg)}")
    given = {name: value for name, value in pretrained_cfg.items() if value}  # timm skips what is empty
    shape = given.get("input_size", (3, 224, 224))
    if not isinstance(shape, Sequence) or isinstance(shape, str) or len(shape) != 3:
        raise CheckpointError(f"timm's input_size: expected (channels, height, width), got {shown(shape)}")
    mode, interpolation = given.get("crop_mode", "center"), given.get("interpolation", "bicubic")
    if mode not in list(MODES):
        raise CheckpointError(f"timm's crop_mode {shown(mode)} is unknown: {nearest(str(mode), MODES)}")
    if interpolation not in TIMM_INTERPOLATIONS:
        raise CheckpointError(
            f"timm's interpolation {shown(interpolation)} cannot be honoured: expected one of "
            f"{', '.join(TIMM_INTERPOLATIONS)}"
        )
    made = _made(
        "timm's pretrained config",
        size=list(shape[1:]) if size is None else size,
        channels=shape[0],
        resize=MODES[mode],
        crop=given.get("crop_pct", 0.875),
        interpolation=interpolation,
        mean=given.get("mean", IMAGENET["mean"]),
        std=given.get("std", IMAGENET["std"]),
    )
    if _always_bilinear(made):
        return replace(made, interpolation="bilinear")
    return made


def to_timm(preprocess: Preprocess) -> dict[str, Any]:
    """The part of timm's pretrained config that speaks of pictures, for JSON; what timm cannot do is refused."""
    _refuse_beyond_pillow(preprocess, "timm")
    if _always_bilinear(preprocess) and preprocess.interpolation != "bilinear":
        raise CheckpointError(
            f"timm resizes for a frame of {preprocess.size} always bilinear, got {preprocess.interpolation!r}: "
            "use bilinear, or a square frame"
        )
    return {
        "input_size": [preprocess.channels, *preprocess.size],
        "interpolation": preprocess.interpolation,
        "crop_pct": preprocess.crop,
        "crop_mode": next(mode for mode, resize in MODES.items() if resize == preprocess.resize),
        "mean": list(preprocess.mean),
        "std": list(preprocess.std),
    }


def _always_bilinear(preprocess: Preprocess) -> bool:
    """timm covers a frame that is not square by a resize which its interpolation does not reach."""
    return preprocess.resize == "crop" and len({math.floor(side / preprocess.crop) for side in preprocess.size}) > 1


# ---- transformers' preprocessor_config.json ----------------------------------------------------------------------

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
READ: Final = (  # keys that say what happens to a picture
    *("do_resize", "size", "default_to_square", "resample", "do_center_crop", "crop_size"),
    *("do_rescale", "rescale_factor", "do_normalize", "image_mean", "image_std"),
)
NO_MATTER: Final = (  # keys that leave the pixels of a picture as they are
    *("image_processor_type", "feature_extractor_type", "processor_class", "auto_map", "use_fast"),
    *("do_convert_rgb", "do_reduce_labels", "pad_size", "image_seq_length", "disable_grouping", "device"),
    *("data_format", "input_data_format", "return_tensors", "model_input_names", "_valid_processor_keys"),
)


def from_transformers(preprocessor_config: Mapping[str, Any], size: Size | None = None) -> Preprocess:
    """The preprocessing that a preprocessor_config.json asks for; a size other than its own keeps the rule.

    What the file leaves out takes its class's defaults; a key that is not understood, or cannot be honoured, is
    refused. Where the crop leaves an odd number of rows or columns, transformers cuts at the half rounded down, and
    `Preprocess` as torchvision does, to even: then the frame may stand one pixel further on.
    """
    if not isinstance(preprocessor_config, Mapping):
        raise CheckpointError(f"expected preprocessor_config.json as a mapping, got {shown(preprocessor_config)}")
    inner = preprocessor_config.get("image_processor", preprocessor_config)  # processor_config.json: one level down
    if not isinstance(inner, Mapping):
        raise CheckpointError(f"image_processor: expected a mapping, got {shown(inner)}")
    given = {str(name): value for name, value in inner.items() if value is not None}
    values = {**CLASSES[_class_of(given)], **{name: value for name, value in given.items() if name in READ}}
    strange = [name for name, value in given.items() if name not in (*READ, *NO_MATTER) and value is not False]
    if strange:
        raise CheckpointError(
            f"the image processor's {', '.join(sorted(strange)[:8])}: not understood, so the pixels could differ"
        )
    _refuse_values(values)
    frame, crop = _frame(values)
    made = _made(
        "the image processor",
        size=list(frame),
        resize="squash" if "height" in values["size"] else "crop",
        crop=crop,
        interpolation=_interpolation(values["resample"]),
        channels=1 if _count(values["image_mean"]) == 1 else 3,
        mean=values["image_mean"] if values["do_normalize"] else 0.0,
        std=values["image_std"] if values["do_normalize"] else 1.0,
    )
    return made if size is None else _made("the image processor", **(made.to_dict() | {"size": size}))


def to_transformers(preprocess: Preprocess, processor_type: str = "ViTImageProcessor") -> dict[str, Any]:
    """A preprocessor_config.json of the class asked for, or else of the first class that can carry this; or refused."""
    if not isinstance(processor_type, str) or processor_type not in CLASSES:
        raise InputError(f"no image processor {shown(processor_type)}: {nearest(str(processor_type), CLASSES)}")
    _refuse_beyond_pillow(preprocess, "transformers")
    height, width = preprocess.size
    tall, wide = (math.floor(side / preprocess.crop) for side in preprocess.size)
    if preprocess.resize == "pad" or (preprocess.resize == "crop" and (height, tall) != (width, wide)):
        what = "bars around the picture" if preprocess.resize == "pad" else f"covering a frame of {preprocess.size}"
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


def transformers_default(model_type: str, size: Size = 224, channels: int = 3) -> Known:
    """What a transformers folder without a preprocessor_config.json is most likely prepared with.

    Published files differ from their class's defaults: DINOv2's class has CLIP's mean, its files have ImageNet's.
    """
    if not isinstance(model_type, str) or model_type not in PUBLISHED:
        raise InputError(f"no transformers model {shown(model_type)}: {nearest(str(model_type), PUBLISHED)}")
    return _for_channels(PUBLISHED[model_type](size), channels)


def _squashed(interpolation: Interpolation, statistics: Mapping[str, Any], why: str) -> Callable[[Size], Known]:
    return lambda size: Known(Preprocess(size, "squash", 1.0, interpolation, **statistics), why)


_SIGLIP: Final = _squashed("bicubic", HALF, "known: SiglipImageProcessor's defaults")
_SIGLIP2: Final = _squashed("bilinear", HALF, "assumed: Siglip2ImageProcessor keeps each picture's aspect, this not")
PUBLISHED: Final[Mapping[str, Callable[[Size], Known]]] = {
    "vit": _squashed("bilinear", HALF, "assumed: ViTImageProcessor's defaults; DINO's files have ImageNet's mean"),
    "deit": lambda size: Known(  # convert_deit_timm_to_pytorch.py: both sides to 256 / 224 of the size, then the centre
        Preprocess(size, "squash", 0.875, **IMAGENET),
        "assumed: DeiTImageProcessor with DeiT's own mean; the class's default is 0.5",
    ),
    "dinov2": dinov2,  # convert_dinov2_to_hf.py: BitImageProcessor with 256, 224, bicubic, ImageNet's mean
    "dinov2_with_registers": dinov2,
    "dinov3_vit": dinov3,  # DINOv3ViTImageProcessor's defaults
    "clip": clip,  # CLIPImageProcessor's defaults
    "clip_vision_model": clip,
    "siglip": _SIGLIP,
    "siglip_vision_model": _SIGLIP,
    "siglip2": _SIGLIP2,
    "siglip2_vision_model": _SIGLIP2,
    "vit_mae": _squashed("bilinear", IMAGENET, "assumed: ViTImageProcessor with the mean MAE was trained with"),
    "vit_msn": _squashed("bilinear", IMAGENET, "known: transformers' conversion of MSN, convert_msn_to_pytorch.py"),
    "ijepa": _squashed("bilinear", IMAGENET, "assumed: ViTImageProcessor with the mean I-JEPA was trained with"),
    "beit": _squashed("bicubic", HALF, "known: BeitImageProcessor's defaults"),
}


# ---- small parts -------------------------------------------------------------------------------------------------


def _side(size: Size) -> int:
    return size if isinstance(size, int) else max(size)


def _known(what: str, sure: bool, where: str) -> str:
    """The reason in words: known where the source speaks of this very size, elsewhere assumed from there."""
    return f"known: {what}" if sure else f"assumed: {what}, which speaks of pictures {where}"


def _for_channels(known: Known, channels: int) -> Known:
    """The same for a grey network: one number in place of three."""
    if channels == known.preprocess.channels:
        return known
    mean, std = (sum(values) / len(values) for values in (known.preprocess.mean, known.preprocess.std))
    changes = {"channels": channels, "mean": mean, "std": std}
    grey = Preprocess.from_dict(known.preprocess.to_dict() | changes)
    return Known(grey, f"assumed: {known.why.partition(': ')[2]}; mean and std averaged over its colours")


def _made(source: str, **values: Any) -> Preprocess:
    """A Preprocess from values that a file gave; what it refuses is the file's fault."""
    try:
        return Preprocess.from_dict(values)
    except VitrailError as error:
        raise CheckpointError(f"{source} asks for what cannot be honoured: {error}") from None


def _refuse_beyond_pillow(preprocess: Preprocess, target: str) -> None:
    """Neither library resizes without antialiasing or swaps the colours."""
    if not preprocess.antialias and preprocess.interpolation != "nearest":
        raise CheckpointError(
            f"{target} always resizes with antialias=True, and this preprocessing has antialias=False"
        )
    if preprocess.order != "RGB":
        raise CheckpointError(f"{target} keeps the order RGB, and this preprocessing has order={preprocess.order!r}")


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
            "Siglip2ImageProcessor cuts every picture into a grid of its own shape, and Preprocess has one frame for "
            "all: transformers_default('siglip2') squashes them into a square"
        )
    if plain not in CLASSES:
        raise CheckpointError(f"the image processor {shown(named)} is not known here: {nearest(plain, CLASSES)}")
    return plain


def _refuse_values(values: Mapping[str, Any]) -> None:
    """Steps that Preprocess always takes, or never."""
    for name in ("do_resize", "do_center_crop", "do_rescale", "do_normalize"):
        if not isinstance(values[name], bool):
            raise CheckpointError(f"the image processor's {name}: expected true or false, got {shown(values[name])}")
    if not values["do_resize"]:
        raise CheckpointError("the image processor has do_resize false, and pictures come in every size: set true")
    factor = values.get("rescale_factor", BYTE)
    right = isinstance(factor, int | float) and not isinstance(factor, bool) and abs(factor - BYTE) < 1e-9
    if not values["do_rescale"] or not right:
        got = shown(factor) if values["do_rescale"] else "do_rescale false"
        raise CheckpointError(f"the image processor's rescale_factor: expected 1/255, got {got}")


def _frame(values: dict[str, Any]) -> tuple[tuple[int, int], float]:
    """The frame (height, width) that the network receives, and its share of the resized picture."""
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
        f"got {shown(value)}"
    )


def _interpolation(resample: Any) -> Interpolation:
    if not isinstance(resample, int) or isinstance(resample, bool) or resample not in NUMBERS:
        expected = ", ".join(f"{number} ({name})" for number, name in NUMBERS.items())
        raise CheckpointError(f"the image processor's resample: expected one of {expected}, got {shown(resample)}")
    return NUMBERS[resample]


def _count(values: Any) -> int:
    return len(values) if isinstance(values, Sequence) and not isinstance(values, str) else 0
