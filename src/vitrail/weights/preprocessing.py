"""How each family prepares images for evaluation, where a checkpoint's own file says nothing.

`evaluation`, `timm_default` and `transformers_default` give what the family's own code does, and say whether that is
known. What files do say is read in families/timm_pixels.py and families/transformers_pixels.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from vitrail.checks import short_repr
from vitrail.errors import CheckpointError, InputError, VitrailError, nearest
from vitrail.images import Preprocess
from vitrail.images.preprocess import Interpolation
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
    """vit-pytorch is a network only, and says nothing of images."""
    why = "assumed: vit-pytorch says nothing; values from 0 to 1, the whole short side: give mean, std and crop"
    return Known(Preprocess(size, crop=1.0, interpolation="bilinear", mean=0.0, std=1.0), why)


RULES: Final = (
    *(augreg, deit, deit3, dino, dinov2, dinov3, mae),
    *(clip, siglip, torchvision, google, big_vision, lucidrains),
)
EVALUATION: Final[Mapping[str, Callable[[Size], Known]]] = {rule.__name__: rule for rule in RULES}


def evaluation(family: str, size: Size = 224, channels: int = 3) -> Known:
    """What a family's own code does to an image before it is scored; with one channel the numbers are averages."""
    if not isinstance(family, str) or family not in EVALUATION:
        raise InputError(f"no evaluation preprocessing for {short_repr(family)}: {nearest(str(family), EVALUATION)}")
    return for_channels(EVALUATION[family](size), channels)


def timm_default(config: ViTConfig) -> Known:
    """What timm would do with a network that comes without a pretrained config, as far as its parts tell which it is.

    AugReg, DINO and MAE write the same names and differ in their statistics: without a file nothing tells them apart.
    """
    ordinary = 0.9 if _side(config.image_size) < 384 else 1.0
    scaled, pooled = config.layer_scale is not None, config.final_norm == "pooled"
    rules = (
        (config.rotary is not None, 1.0, IMAGENET, "as timm scores DINOv3's web weights"),
        (config.embedding_norm, 1.0, CLIP, "a norm before the encoder is CLIP's"),
        (config.distillation_token, ordinary, IMAGENET, "as timm scores distilled DeiT"),
        (config.pool == "map", 0.9, HALF, "as timm scores SigLIP"),
        (scaled and config.pool == "cls", 1.0, IMAGENET, "LayerScale and a cls token are DINOv2's, DeiT-III's"),
        (pooled and config.cls_token, ordinary, IMAGENET, "a cls token and a pooled norm are MAE's"),
    )
    why = "as timm scores AugReg; DeiT, DINO and MAE look alike, and have ImageNet's mean and std"
    _, crop, statistics, why = next((rule for rule in rules if rule[0]), (True, ordinary, HALF, why))
    known = Known(Preprocess(config.image_size, crop=crop, **statistics), f"assumed: {why}")
    return for_channels(known, config.channels)


# ---- what transformers' published folders are prepared with ----------------------------------------------------


def transformers_default(model_type: str, size: Size = 224, channels: int = 3) -> Known:
    """What a transformers folder without a preprocessor_config.json is most likely prepared with.

    Published files differ from their class's defaults: DINOv2's class has CLIP's mean, its files have ImageNet's.
    """
    if not isinstance(model_type, str) or model_type not in PUBLISHED:
        raise InputError(f"no transformers model {short_repr(model_type)}: {nearest(str(model_type), PUBLISHED)}")
    return for_channels(PUBLISHED[model_type](size), channels)


def _squashed(interpolation: Interpolation, statistics: Mapping[str, Any], why: str) -> Callable[[Size], Known]:
    return lambda size: Known(Preprocess(size, "squash", 1.0, interpolation, **statistics), why)


_SIGLIP: Final = _squashed("bicubic", HALF, "known: SiglipImageProcessor's defaults")
_SIGLIP2: Final = _squashed("bilinear", HALF, "assumed: Siglip2ImageProcessor keeps each image's aspect, this not")
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
    return f"known: {what}" if sure else f"assumed: {what}, which speaks of images {where}"


def for_channels(known: Known, channels: int) -> Known:
    """The same for a grey network: one number in place of three."""
    if channels == known.preprocess.channels:
        return known
    mean, std = (sum(values) / len(values) for values in (known.preprocess.mean, known.preprocess.std))
    changes = {"channels": channels, "mean": mean, "std": std}
    why = known.why.removeprefix("known: ").removeprefix("assumed: ")
    grey = Preprocess.from_dict(known.preprocess.to_dict() | changes)
    return Known(grey, f"assumed: {why}; mean and std averaged over its colours")


def checked(source: str, **values: Any) -> Preprocess:
    """A Preprocess from values that a file gave; what it refuses is the file's fault."""
    try:
        return Preprocess.from_dict(values)
    except VitrailError as error:
        raise CheckpointError(f"{source} asks for what cannot be honoured: {error}") from None


def refuse_beyond_pillow(preprocess: Preprocess, target: str) -> None:
    """Neither library resizes without antialiasing, swaps the colours or reads more than eight bits."""
    if not preprocess.antialias and preprocess.interpolation != "nearest":
        raise CheckpointError(
            f"{target} always resizes with antialias=True, and this preprocessing has antialias=False"
        )
    if preprocess.order != "RGB":
        raise CheckpointError(f"{target} keeps the order RGB, and this preprocessing has order={preprocess.order!r}")
    if preprocess.range != 255:
        raise CheckpointError(f"{target} divides by 255, and this preprocessing has range={preprocess.range:g}")
