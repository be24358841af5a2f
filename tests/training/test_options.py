"""What a user asks for changes the recipe there and nowhere else, and is recorded so that a run can be repeated."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import vitrail
from training.quick import NETWORK
from training.starts import images
from vitrail.errors import ConfigError, InputError
from vitrail.training import RECIPES, Options, Recipe
from vitrail.training.job import Callbacks
from vitrail.training.options import resolve
from vitrail.training.published import Preset


def test_options_come_back_from_json_as_they_were() -> None:
    options = Options(model=NETWORK, recipe=Recipe(lr=0.02), size=(32, 48), cache=Path("views"), minutes=1.5, seed=7)
    plain = json.loads(json.dumps(options.to_dict(Path("data/photos"))))
    assert (plain["data"], plain["cache"], plain["size"], plain["seed"]) == ("data/photos", "views", [32, 48], 7)
    assert "callbacks" not in plain
    back = Options.from_dict(plain)
    assert replace(back, callbacks=options.callbacks) == replace(options, cache="views")
    assert options.to_dict(images())["data"] == "made"  # images in memory go by the name of their source


def test_options_of_another_release_are_refused_by_name() -> None:
    plain = Options().to_dict("photos") | {"wish": 1, "more": 2}
    with pytest.raises(InputError, match="options that are not known: more, wish"):
        Options.from_dict(plain)


@pytest.mark.parametrize("start, name", [(None, "scratch"), ("weights.safetensors", "finetune")])
def test_the_recipe_follows_from_whether_there_are_weights(start: str | None, name: str) -> None:
    assert resolve(Options(start=start)) == RECIPES[name]


def test_what_is_given_takes_the_place_of_the_recipes_own() -> None:
    recipe = Recipe(epochs=9, batch=64, pieces=16, lr=0.5, patience=3, balance="weights")
    assert resolve(Options(recipe=recipe)) == Preset(recipe=recipe)
    given = resolve(Options(recipe=recipe, epochs=2, batch=8, lr=0.25, patience=0, balance="none", limit=50))
    assert given.recipe == replace(recipe, epochs=2, batch=8, pieces=8, lr=0.25, patience=0, balance="none")
    assert (given.limit, given.steps) == (50, None)
    assert resolve(Options(recipe=recipe, batch=32)).recipe.pieces == 16  # a smaller batch alone needs fewer


def test_a_length_that_is_asked_for_goes_before_the_recipes_steps() -> None:
    name = next(name for name, each in RECIPES.items() if each.steps and each.recipe.objective == "classify")
    assert resolve(Options(recipe=name)).steps == RECIPES[name].steps
    assert resolve(Options(recipe=name, epochs=2)).steps is None
    assert resolve(Options(recipe=name, minutes=2)).steps is None
    assert resolve(Options(recipe=name, steps=11)).steps == 11


@pytest.mark.parametrize(
    "options, kind, message",
    [
        ({"epochs": 1, "minutes": 1}, InputError, "give epochs or minutes, not both"),
        ({"minutes": 0}, ConfigError, "minutes: expected a number from 0.001"),
        ({"seed": -1}, InputError, "seed: expected a whole number from 0"),
        ({"limit": 0}, InputError, "limit: expected a whole number from 1"),
        ({"batch": "most"}, ConfigError, "batch 'most' is unknown: .*auto"),
        ({"precision": "fp8"}, ConfigError, "precision 'fp8' is unknown"),
        ({"recipe": "scrtch"}, InputError, "no recipe 'scrtch': .*scratch"),
        ({"batch": 0}, ConfigError, "batch: expected a whole number from 1"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        resolve(Options(**options))


def test_nobody_hears_of_a_training_unless_asked() -> None:
    assert Options().callbacks == Callbacks()


@pytest.mark.parametrize(
    "given, told",
    [
        ({"epoch": 1}, r"train has no option 'epoch': did you mean 'epochs'\?"),
        ({"epochs": "3"}, "epochs: expected a number or None, got '3'"),
        ({"seed": True}, "seed: expected a whole number, got True"),
        ({"batch": 2.5}, "batch: expected a whole number or a text or None, got 2.5"),
        ({"size": "32"}, r"size: expected a whole number or a pair \(height, width\) or None, got '32'"),
        ({"fresh": 1}, "fresh: expected True or False, got 1"),
        ({"out": 3}, "out: expected a text or a path, got 3"),
        ({"start": 3}, "start: expected a text or a path or a Checkpoint or None, got 3"),
    ],
)
def test_a_mistake_in_python_is_told_by_name_before_anything_is_read(given: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=f"^{told}$"):
        vitrail.train("nowhere at all", **given)


def test_a_way_to_resize_that_is_not_known_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'crop'"):
        resolve(Options(resize="crap"))  # type: ignore[arg-type]
