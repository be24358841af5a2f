"""Lint: every rule speaks up on its known-bad case, and none on what is known to work."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from training.lint_cases import MICRO, SOUND, found, tuned
from vitrail.errors import ConfigError, InputError
from vitrail.network import preset
from vitrail.training.published import RECIPES, Preset
from vitrail.training.recipe import Recipe
from vitrail.training.recipe_lint import Finding, lint


def test_what_is_sound_passes_in_silence() -> None:
    assert found() == {}
    assert tuned() == {}


# ---- the network ---------------------------------------------------------------------------------------------------


# ---- the data ------------------------------------------------------------------------------------------------------


# ---- the rate ------------------------------------------------------------------------------------------------------


# ---- the steps -----------------------------------------------------------------------------------------------------


# ---- all together --------------------------------------------------------------------------------------------------


def test_the_worst_come_first() -> None:
    recipe = Recipe(lr=0.1, warmup=0, tune="all", layer_decay=0.5, augment=SOUND)
    said = lint(MICRO, recipe, images=1_000, classes=10, size=32, pretrained=False)
    assert [each.level for each in said] == ["error", "warning", "warning", "advice"]
    assert [each.name for each in said] == ["rate", "warmup", "layer-decay", "few-images"]


GOOD = [  # recipe, network, images, pretrained
    ("scratch", "vit-nano4-28", 54_000, False),
    ("scratch", "vit-micro4-32", 45_000, False),
    ("scratch", "vit-micro4-32-conv", 45_000, False),
    ("scratch", "vit-mini8-64", 5_000, False),
    ("finetune", "vit-b16", 500, True),
    ("finetune", "vit-l16", 20_000, True),
    ("finetune", "dinov2-s14", 2_000, True),
    ("probe", "vit-b16", 100, True),
]


@pytest.mark.parametrize("name, model, images, pretrained", GOOD)
def test_our_defaults_are_neither_wrong_nor_doubtful(name: str, model: str, images: int, pretrained: bool) -> None:
    config = preset(model, classes=10)
    said = lint(config, RECIPES[name].recipe, images=images, classes=10, size=config.image_size, pretrained=pretrained)
    assert [each for each in said if each.level != "advice"] == []


def of_published(name: str) -> list[Finding]:
    """What is said of a published recipe on the data it was made for."""
    found: Preset = RECIPES[name]
    images = next(
        count
        for part, count in {
            "jft": 303_000_000,
            "masked": 303_000_000,
            "i21k": 14_200_000,
            "cifar": 49_000,
            "pets": 3_312,
            "vtab": 1_000,
            "augreg": 3_312,
            "cats": 20_000,
            "": 1_281_167,
        }.items()
        if part in name
    )
    recipe = found.recipe
    if found.steps:
        recipe = replace(recipe, epochs=found.steps / max(1, images // recipe.batch))
    config = found.network(100) or preset("vit-b16", image_size=found.size, classes=100)
    fresh = "pretrain" in name or name in ("qucy-cifar100", "learnopencv-imagenet", "eva6-cats-dogs", "deit-imagenet")
    return lint(config, recipe, images=images, classes=100, size=found.size, pretrained=not fresh)


@pytest.mark.parametrize("name", [name for name, each in RECIPES.items() if each.size])
def test_published_recipes_are_only_told_what_is_known_of_them(name: str) -> None:
    said = {each.name: each.level for each in of_published(name) if each.level != "advice"}
    known = {"qucy-cifar100": {"by-heart": "warning"}, "eva6-cats-dogs": {"head-width": "warning"}}
    assert said == known.get(name, {})


def test_nonsense_is_refused() -> None:
    facts: dict[str, Any] = {"classes": 10, "pretrained": False}
    with pytest.raises(InputError, match="images: expected a whole number from 1"):
        lint(MICRO, Recipe(), images=0, size=32, **facts)
    with pytest.raises(ConfigError, match="size: expected one whole number or a pair"):
        lint(MICRO, Recipe(), images=10, size="32", **facts)  # type: ignore[arg-type]
