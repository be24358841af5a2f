"""Named recipes: the numbers of the papers and repositories they are from."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from vitrail.data.augmentation import Augment
from vitrail.insight.cost import count_parameters
from vitrail.network.config import ConvStem
from vitrail.network.surgery import build_empty
from vitrail.training.optimisers import build_optimiser
from vitrail.training.published import RECIPES, Preset
from vitrail.training.recipe import Recipe
from vitrail.training.schedule import lr_factor

ROOT = Path(__file__).resolve().parents[2]

PRETRAINING = {  # the paper's table 3: network, epochs, lr, decay, weight decay, dropout
    "b16-jft": ("vit-b16", 7, 8e-4, "linear", 0.1, 0.0),
    "b32-jft": ("vit-b32", 7, 8e-4, "linear", 0.1, 0.0),
    "l32-jft": ("vit-l32", 7, 6e-4, "linear", 0.1, 0.0),
    "l16-jft": ("vit-l16", 7, 4e-4, "linear", 0.1, 0.0),
    "l16-jft-long": ("vit-l16", 14, 4e-4, "linear", 0.1, 0.0),
    "h14-jft": ("vit-h14", 14, 3e-4, "linear", 0.1, 0.0),
    "r50-b16-jft": ("r50-vit-b16", 7, 8e-4, "linear", 0.1, 0.0),
    "r50-b32-jft": ("r50-vit-b32", 7, 8e-4, "linear", 0.1, 0.0),
    "r50-l32-jft": ("r50-vit-l32", 7, 2e-4, "linear", 0.1, 0.0),
    "r50-l16-jft": ("vit-l16", 7, 4e-4, "linear", 0.1, 0.0),
    "r50-l16-jft-long": ("vit-l16", 14, 4e-4, "linear", 0.1, 0.0),
    "b16-i21k": ("vit-b16", 90, 1e-3, "linear", 0.03, 0.1),
    "b32-i21k": ("vit-b32", 90, 1e-3, "linear", 0.03, 0.1),
    "l16-i21k": ("vit-l16", 30, 1e-3, "linear", 0.03, 0.1),
    "l16-i21k-long": ("vit-l16", 90, 1e-3, "linear", 0.03, 0.1),
    "l32-i21k": ("vit-l32", 30, 1e-3, "linear", 0.03, 0.1),
    "l32-i21k-long": ("vit-l32", 90, 1e-3, "linear", 0.03, 0.1),
    "imagenet": ("vit-b16", 300, 3e-3, "cosine", 0.3, 0.1),
}


@pytest.mark.parametrize("name", PRETRAINING)
def test_pre_training_is_the_papers_table_3(name: str) -> None:
    found = RECIPES[f"paper-pretrain-{name}"]
    recipe = found.recipe
    facts = (found.model, recipe.epochs, recipe.lr, recipe.schedule, recipe.weight_decay, recipe.dropout)
    assert facts == PRETRAINING[name]
    assert (recipe.batch, recipe.warmup, found.size, recipe.beta2) == (4096, 10_000, 224, 0.999)
    assert recipe.clip == (1.0 if name == "imagenet" else 0.0)
    assert found.steps is None


def test_every_line_of_table_3_is_there() -> None:
    names = {name.removeprefix("paper-pretrain-") for name in RECIPES if name.startswith("paper-pretrain-")}
    assert names == {*PRETRAINING, "masked-patch"}


def test_masked_patches_are_appendix_b() -> None:
    found = RECIPES["paper-pretrain-masked-patch"]
    recipe = found.recipe
    facts = (found.steps, recipe.lr, recipe.warmup, recipe.schedule, recipe.batch)
    assert facts == (1_000_000, 2e-4, 10_000, "cosine", 4096)


SMALL = (0.001, 0.003, 0.01, 0.03)
LARGE = (0.003, 0.01, 0.03, 0.06)
FINE_TUNING = {  # the paper's table 4: steps, rates tried; then size and average
    "imagenet": (20_000, LARGE, 384, 0.0),
    "imagenet-l16-512": (20_000, LARGE, 512, 0.9999),
    "imagenet-h14-518": (20_000, LARGE, 518, 0.9999),
    "cifar": (10_000, SMALL, 384, 0.0),
    "pets-flowers": (500, SMALL, 384, 0.0),
    "vtab": (2_500, (0.01,), 384, 0.0),
}


@pytest.mark.parametrize("name", FINE_TUNING)
def test_fine_tuning_is_the_papers_table_4(name: str) -> None:
    found = RECIPES[f"paper-finetune-{name}"]
    recipe = found.recipe
    assert (found.steps, found.sweep, found.size, recipe.ema) == FINE_TUNING[name]
    facts = (recipe.optimiser, recipe.momentum, recipe.batch, recipe.schedule, recipe.weight_decay, recipe.clip)
    assert facts == ("sgd", 0.9, 512, "cosine", 0.0, 1.0)
    assert recipe.lr in found.sweep
    assert recipe.head_start == "zeros"


@pytest.mark.row("P.14")
@pytest.mark.parametrize(
    "name, steps, lr, warmup",
    [
        ("google-finetune-cifar", 10_000, 0.03, 500),
        ("google-finetune-cifar10-b16", 10_000, 0.01, 500),
        ("google-finetune-imagenet", 20_000, 0.03, 500),
        ("google-finetune-augreg", 500, 0.03, 100),
    ],
)
def test_googles_repository(name: str, steps: int, lr: float, warmup: int) -> None:
    found = RECIPES[name]
    recipe = found.recipe
    assert (found.steps, recipe.lr, recipe.warmup, recipe.pieces, recipe.batch) == (steps, lr, warmup, 8, 512)
    assert (recipe.optimiser, recipe.clip, recipe.schedule) == ("sgd", 1.0, "cosine")
    assert recipe.augment == Augment(crop=(0.05, 1.0), flip=True)


@pytest.mark.row("001.12", "001.13")
def test_jeonsworld() -> None:
    found = RECIPES["jeonsworld-cifar"]
    expected = Recipe(
        optimiser="sgd",
        momentum=0.9,
        lr=3e-2,
        weight_decay=0.0,
        schedule="cosine",
        warmup=500,
        clip=1.0,
        batch=512,
        augment=Augment(crop=(0.05, 1.0)),
        dropout=0.1,
        head_start="zeros",
    )
    assert (found.recipe, found.steps, found.size, found.model) == (expected, 10_000, 224, "vit-b16")
    assert [lr_factor(found.recipe, step, 10_000, 97.0) for step in (0, 499, 500, 5250)] == [0.002, 1.0, 1.0, 0.5]


@pytest.mark.row("002.08")
def test_qucy() -> None:
    found = RECIPES["qucy-cifar100"]
    recipe = found.recipe
    facts = (recipe.batch, recipe.optimiser, recipe.lr, recipe.patience, recipe.epochs, recipe.schedule)
    assert facts == (64, "adam", 1e-5, 3, 50, "constant")
    config = found.network(100)
    assert config is not None
    assert (config.image_size, config.patch_size, config.depth, config.width) == ((32, 32), (4, 4), 6, 768)
    assert found.recipe.weight_decay == found.recipe.warmup == found.recipe.clip == 0
    quick = RECIPES["qucy-cifar100-quick"]
    assert (found.limit, quick.limit, quick.recipe, quick.network(100)) == (0, 1000, recipe, config)


@pytest.mark.row("003.16")
def test_learnopencv() -> None:
    found = RECIPES["learnopencv-imagenet"]
    recipe = found.recipe
    facts = (recipe.optimiser, recipe.lr, recipe.weight_decay, recipe.batch, recipe.epochs)
    assert facts == ("adamw", 1e-4, 0.05, 128, 300)
    per_epoch = 10_009  # 1,281,167 images in batches of 128
    restarts = [
        epoch for epoch in range(1, 300) if lr_factor(recipe, epoch * per_epoch, 300 * per_epoch, per_epoch) == 1.0
    ]
    assert restarts == [10, 30, 70, 150]
    config = found.network(1000)
    assert config is not None
    assert count_parameters(build_empty(config)) == 86_540_008


@pytest.mark.parametrize("name, schedule", [("eva6-cats-dogs", "constant"), ("eva6-cats-dogs-step", "step")])
def test_eva6(name: str, schedule: str) -> None:
    found = RECIPES[name]
    recipe = found.recipe
    assert (recipe.schedule, recipe.step_epochs, recipe.step_factor) == (schedule, 1, 0.7)
    assert (recipe.optimiser, recipe.lr, recipe.batch, recipe.epochs) == ("adam", 3e-5, 64, 50)
    config = found.network(2)
    assert config is not None
    assert (config.image_size, config.patch_size, config.width) == ((224, 224), (32, 32), 128)
    assert (config.depth, config.heads, config.tokens) == (12, 8, 50)


def test_deit_without_a_teacher() -> None:
    found = RECIPES["deit-imagenet"]
    recipe = found.recipe
    assert (recipe.optimiser, recipe.weight_decay, recipe.epochs, recipe.ema) == ("adamw", 0.05, 300, 0.99996)
    assert recipe.lr == 5e-4 * recipe.batch / 512 == 1e-3
    assert recipe.lr * recipe.final == pytest.approx(1e-5)
    assert (recipe.drop_path, recipe.smoothing) == (0.1, 0.1)
    augment = recipe.augment
    assert (augment.mixup, augment.cutmix, augment.erase, augment.rand_ops) == (0.8, 1.0, 0.25, 2)
    assert augment.rand_magnitude == 9
    per_epoch = 1251
    warm = [lr_factor(recipe, step, 300 * per_epoch, per_epoch) for step in (5 * per_epoch - 2, 5 * per_epoch - 1)]
    assert warm == [pytest.approx(1 - 1 / (5 * per_epoch)), 1.0]  # five epochs of warm-up


@pytest.mark.parametrize(
    "name, epochs, lr, decay, drop_path",
    [("b16", 100, 2e-3, 0.65, 0.1), ("l16", 50, 4e-3, 0.75, 0.2), ("h14", 50, 4e-3, 0.75, 0.3)],
)
def test_mae_fine_tuning(name: str, epochs: int, lr: float, decay: float, drop_path: float) -> None:
    found = RECIPES[f"mae-finetune-{name}"]
    recipe = found.recipe
    assert (recipe.epochs, recipe.lr, recipe.layer_decay, recipe.drop_path) == (epochs, lr, decay, drop_path)
    assert (recipe.batch, recipe.weight_decay, recipe.smoothing, recipe.head_start) == (1024, 0.05, 0.1, "zeros")
    assert recipe.warmup * epochs == pytest.approx(5)
    assert recipe.lr * recipe.final == pytest.approx(1e-6)
    config = found.network(1000)
    assert config is not None
    assert (config.pool, config.final_norm, config.classes) == ("mean", "pooled", 1000)


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_can_be_used(name: str) -> None:
    found = RECIPES[name]
    assert Recipe.from_dict(json.loads(json.dumps(found.recipe.to_dict()))) == found.recipe
    assert found.note.endswith(".")
    config = found.network(10)
    if config is None:
        assert found.changes == {}
        return
    assert config.classes == 10
    if found.size:
        assert config.image_size == (found.size, found.size)
    model = build_empty(replace(config, depth=2))  # no memory: shapes only
    optimiser = build_optimiser(model, found.recipe)
    assert sum(len(group["params"]) for group in optimiser.groups) == len(list(model.parameters()))


def test_hybrids_have_their_stem() -> None:
    config = RECIPES["paper-pretrain-r50-l16-jft"].network(1000)
    assert config is not None
    assert (config.width, config.grid, config.cell) == (1024, (14, 14), (16, 16))
    assert not isinstance(config.stem, ConvStem)


def test_our_own_stand_first_and_need_no_network() -> None:
    assert list(RECIPES)[:3] == ["scratch", "finetune", "probe"]
    assert all(RECIPES[name].network(10) is None for name in ("scratch", "finetune", "probe"))
    assert RECIPES["probe"].recipe.tune == "head"
    assert Preset(recipe=Recipe()).steps is None


@pytest.mark.row("EVA.1")
@pytest.mark.parametrize("epochs, share, per_epoch", [(1, 0.7, 10), (3, 0.5, 7), (0.5, 0.9, 4)])
def test_the_stepped_schedule_is_torchs(epochs: float, share: float, per_epoch: int) -> None:
    recipe = Recipe(schedule="step", step_epochs=epochs, step_factor=share, warmup=0)
    optimiser = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimiser, step_size=int(epochs * per_epoch), gamma=share)
    for step in range(6 * per_epoch):
        assert lr_factor(recipe, step, 6 * per_epoch, per_epoch) == pytest.approx(
            optimiser.param_groups[0]["lr"], rel=1e-12
        )
        optimiser.step()
        scheduler.step()


def test_the_stepped_schedule_warms_up_and_ends_above_zero() -> None:
    recipe = Recipe(schedule="step", step_epochs=1, step_factor=0.5, warmup=4, final=0.2)
    found = [lr_factor(recipe, step, 100, 10) for step in (0, 3, 4, 13, 14, 99)]
    assert found == pytest.approx([0.25, 1.0, 1.0, 1.0, 0.6, 0.2 + 0.8 * 0.5**9])
