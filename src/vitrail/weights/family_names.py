"""The names of the families, each that of its module in families/; a new one is that file and a line here."""

from __future__ import annotations

from typing import Final

FAMILY_NAMES: Final = (  # in the order in which a file is held against them: what looks like another comes before it
    "dinov3",
    "dinov2",
    "mae",
    "deit",
    "dino",
    "timm",
    "timm-naflex",
    "google",
    "big_vision",
    "jeonsworld",
    "clip",
    "torchvision",
    "transformers",
    "lucidrains",
)
