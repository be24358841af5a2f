"""Checkpoints that are good to start from, by the names that --from takes: a short list, with licences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from vitrail.network.config import ViTConfig

IMAGENET: Final = "trained on the 1,000 classes of ImageNet"
IMAGE_TEXT: Final = "trained on images and their texts"
SELF_SUPERVISED: Final = "trained without labels"


class Pretrained(NamedTuple):
    """One checkpoint that others published. Its licence is theirs: read it before you ship what you made of it."""

    name: str  # to be typed
    preset: str  # the same architecture here
    learned: str  # ImageNet's classes, or how without any
    licence: str
    good_for: str

    @property
    def config(self) -> ViTConfig:
        from vitrail.network.presets import PRESETS  # torch comes with it, and the names alone do without

        return PRESETS[self.preset]


def _augreg(size: str) -> str:
    return f"timm:vit_{size}_patch16_224.augreg_in21k_ft_in1k"


APACHE: Final = "Apache-2.0"
NOT_PHOTOS: Final = "drawings, logos and other images that are no photos"
PRETRAINED: Final = (  # by what they learned, then by size; those whose licence has conditions stand last
    Pretrained(_augreg("tiny"), "vit-ti16", IMAGENET, APACHE, "a first try; quick on a CPU"),
    Pretrained(_augreg("small"), "vit-s16", IMAGENET, APACHE, "photos; slow on a CPU"),
    Pretrained("timm:deit3_small_patch16_224.fb_in22k_ft_in1k", "deit3-s16", IMAGENET, APACHE, "photos; slow on a CPU"),
    Pretrained(_augreg("base"), "vit-b16", IMAGENET, APACHE, "photos, on a GPU"),
    Pretrained("timm:vit_base_patch16_clip_224.openai", "clip-b16", IMAGE_TEXT, "MIT", f"{NOT_PHOTOS}, on a GPU"),
    Pretrained("timm:vit_base_patch32_clip_224.openai", "clip-b32", IMAGE_TEXT, "MIT", f"{NOT_PHOTOS}; fast"),
    Pretrained("timm:vit_base_patch16_siglip_224.webli", "siglip-b16", IMAGE_TEXT, APACHE, f"{NOT_PHOTOS}, on a GPU"),
    Pretrained("hf:facebook/dinov2-small", "dinov2-s14", SELF_SUPERVISED, APACHE, "few labels; search by likeness"),
    Pretrained(
        "hf:facebook/dinov2-base", "dinov2-b14", SELF_SUPERVISED, APACHE, "few labels; search by likeness, on a GPU"
    ),
    Pretrained(
        "hf:facebook/dinov3-vits16-pretrain-lvd1689m",
        "dinov3-s16",
        SELF_SUPERVISED,
        "DINOv3's own; gated: ask for access",
        "few labels; fine detail",
    ),
    Pretrained(
        "timm:vit_base_patch16_224.mae", "mae-b16", SELF_SUPERVISED, "non-commercial (CC-BY-NC-4.0)", "long fine-tuning"
    ),
)
