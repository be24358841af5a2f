"""The verb recipes: what is listed is what a training follows."""

from __future__ import annotations

import pytest

from cli.command_line import Line
from vitrail.training.published import RECIPES


def test_all_recipes_are_listed_with_what_they_reached(vit: Line) -> None:
    rows = {row["name"]: row for row in vit("recipes", "--json").json["recipes"]}
    assert list(rows) == list(RECIPES)
    cifar = rows["paper-finetune-cifar"]
    assert (cifar["epochs"], cifar["steps"], cifar["length"]) == (None, 10_000, "10,000 steps")
    assert (cifar["size"], cifar["model"], cifar["batch"], cifar["trainable"]) == (384, None, 512, True)
    assert "99.15 and 93.25 %" in cifar["note"]
    assert rows["mae-finetune-b16"]["length"] == "100 epochs"
    assert "85.15 % on ImageNet, after 30 or 90 epochs" in rows["paper-pretrain-l16-i21k"]["note"]
    assert rows["probe"]["length"] == "the head alone"
    assert not rows["paper-pretrain-masked-patch"]["trainable"]
    said = vit("recipes")
    words = " ".join(said.out.split())
    assert all(f"\n{name} " in said.out for name in RECIPES)
    assert "100 epochs facebookresearch/mae, FINETUNE.md: 83.66 % on ImageNet." in words
    assert words.count("Not trained here yet.") == sum(not row["trainable"] for row in rows.values()) > 0
    assert f"{len(RECIPES)} recipes" in said.out


def test_a_recipe_in_full(vit: Line) -> None:
    told = vit("recipes", "paper-finetune-cifar", "--json").json
    assert told["recipe"] == RECIPES["paper-finetune-cifar"].recipe.to_dict() | {
        "augment": told["recipe"]["augment"]  # tuples are lists in JSON
    }
    assert told["sweep"] == [0.001, 0.003, 0.01, 0.03]
    lines = [" ".join(line.split()) for line in vit("recipes", "eva6-cats-dogs").out.splitlines()]
    assert lines[0].startswith("eva6-cats-dogs: vivek-a81/EVA6, from scratch on 20,000 images")
    for row in (
        "network vit-b32",
        "network: width 128",
        "size 224 pixels",
        "epochs 50",
        "lr 3e-05",
        "augment: flip yes",
        "augment: crop 0.08 to 1",
        "augment: aspect 1.333",
        "checkpointing no",
        "dropout as the network says",
    ):
        assert row in lines
    assert "augment: crop none" in {" ".join(line.split()) for line in vit("recipes", "scratch").out.splitlines()}
    hybrid = {" ".join(line.split()) for line in vit("recipes", "paper-pretrain-r50-l16-jft").out.splitlines()}
    assert {"network: patch_size 1, 1", "warmup 10000", "weight_decay 0.1"} <= hybrid
    assert lines[-1] == "try it vitrail train DATA --recipe eva6-cats-dogs"
    assert vit("recipes", "paper-pretrain-r50-l16-jft", "--json").json["changes"]["patch_size"] == [1, 1]


@pytest.mark.parametrize("words", [("finetun",), ("finetun", "--json")])
def test_a_recipe_that_is_not_there(vit: Line, words: tuple[str, ...]) -> None:
    assert "no recipe 'finetun': did you mean 'finetune'?" in vit.mistake("recipes", *words)
