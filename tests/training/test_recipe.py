"""A recipe is checked as a whole when it is made, and comes back from plain values as it was."""

from __future__ import annotations

import json

import numpy as np
import pytest

from vitrail.data.augmentation import Augment
from vitrail.errors import ConfigError, InputError
from vitrail.training.recipe import Recipe, check_objective


def test_plain_values_carry_every_setting() -> None:
    recipe = Recipe(
        epochs=2.5, batch=12, pieces=3, optimiser="sgd", dropout=0.25, augment=Augment(flip=True, mixup=0.2)
    )
    plain = json.loads(json.dumps(recipe.to_dict()))
    assert (plain["epochs"], plain["dropout"], plain["drop_path"]) == (2.5, 0.25, None)
    assert (plain["augment"]["flip"], plain["augment"]["mixup"]) == (True, 0.2)
    assert Recipe.from_dict(plain) == recipe
    with pytest.raises(ConfigError, match="Recipe has no setting 'optimizer': .*optimiser"):
        Recipe.from_dict(plain | {"optimizer": "sgd"})
    with pytest.raises(ConfigError, match="Augment has no setting 'flips': .*flip"):
        Recipe.from_dict(plain | {"augment": {"flips": True}})


def test_numbers_are_stored_as_plain_ones() -> None:
    recipe = Recipe(lr=np.float32(0.5), batch=np.int64(16), epochs=3)
    assert [type(each) for each in (recipe.lr, recipe.batch, recipe.epochs)] == [float, int, float]
    assert (recipe.lr, recipe.batch, recipe.epochs) == (0.5, 16, 3.0)


def test_what_cannot_be_trained_yet_is_refused_under_its_name() -> None:
    check_objective(Recipe())
    with pytest.raises(InputError, match=r"^mine learns by masked-patch, which cannot be trained here yet"):
        check_objective(Recipe(objective="masked-patch"), "mine")
