"""Every known family by name, in the order in which a file is held against them."""

from __future__ import annotations

from typing import Final

from vitrail.weights.families.big_vision import BIG_VISION
from vitrail.weights.families.clip import CLIP
from vitrail.weights.families.deit import DEIT
from vitrail.weights.families.dino import DINO, DINOV2, DINOV3
from vitrail.weights.families.google import GOOGLE
from vitrail.weights.families.jeonsworld import JEONSWORLD
from vitrail.weights.families.lucidrains import LUCIDRAINS
from vitrail.weights.families.mae import MAE
from vitrail.weights.families.naflex import NAFLEX
from vitrail.weights.families.timm import TIMM
from vitrail.weights.families.torchvision import TORCHVISION
from vitrail.weights.families.transformers import TRANSFORMERS
from vitrail.weights.family import Family

FAMILIES: Final[dict[str, Family]] = {
    family.name: family
    for family in (
        DINOV3,
        DINOV2,
        MAE,
        DEIT,
        DINO,
        TIMM,
        NAFLEX,
        GOOGLE,
        BIG_VISION,
        JEONSWORLD,
        CLIP,
        TORCHVISION,
        TRANSFORMERS,
        LUCIDRAINS,
    )
}
