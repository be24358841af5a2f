"""A sound recipe and what the lint says of it with some settings changed."""

from __future__ import annotations

from typing import Any

from vitrail.data.augmentation import Augment
from vitrail.network import ViTConfig, preset
from vitrail.training.recipe import Recipe
from vitrail.training.recipe_lint import Finding, lint

SOUND = Augment(shift=2, rand_ops=1)
MICRO = preset("vit-micro4-32")
BASE = preset("vit-b16", classes=5)


def found(config: ViTConfig = MICRO, data: dict[str, Any] | None = None, **settings: Any) -> dict[str, Finding]:
    """What is said of a recipe that is sound but for these settings."""
    recipe = Recipe(**{"augment": SOUND, **settings})
    facts: dict[str, Any] = {"images": 60_000, "classes": 10, "size": config.image_size, "pretrained": False}
    return {each.name: each for each in lint(config, recipe, **{**facts, **(data or {})})}


def tuned(data: dict[str, Any] | None = None, config: ViTConfig = BASE, **settings: Any) -> dict[str, Finding]:
    """The same for fine-tuning."""
    sound = {"lr": 1e-4, "batch": 32, "augment": SOUND}
    facts = {"images": 2_000, "classes": 5, "pretrained": True}
    return found(config, {**facts, **(data or {})}, **{**sound, **settings})
