"""What a recipe makes of the network it starts from: its size, its head, its ends; and recipes as whole trainings."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from vitrail.data.augmentation import Augment
from vitrail.data.manifest import Manifest
from vitrail.data.samples import Dataset, Sample
from vitrail.errors import ConfigError, InputError
from vitrail.network.config import ViTConfig
from vitrail.network.vit import ViT
from vitrail.training import RECIPES, Callbacks, Options, Recipe, Run, train
from vitrail.training import loop as looping
from vitrail.training.job import Job, Progress
from vitrail.training.options import resolve
from vitrail.training.runs import prepare_model

SMALL = ViTConfig(image_size=32, patch_size=16, width=24, depth=2, heads=2, mlp_width=48, classes=4)
SMALL_H = replace(SMALL, image_size=28, patch_size=14)


def checkpoint(config: ViTConfig = SMALL) -> vitrail.Checkpoint:
    torch.manual_seed(1)
    return vitrail.Checkpoint(ViT(config), vitrail.Preprocess(size=config.image_size), ("a", "b", "c", "d"))


def images(count: int = 24, side: int = 40) -> Dataset:
    """Two classes, dark and bright, split into train, val and test."""
    dice = np.random.default_rng(2)
    labels = np.arange(count) % 2
    pixels = (
        dice.integers(0, 120, (count, side, side, 3), dtype=np.uint8)
        + (120 * labels).astype(np.uint8)[:, None, None, None]
    )
    splits = ["train", "train", "train", "train", "val", "test"]
    samples = tuple(
        Sample(str(row), (("dark", "bright")[label],), splits[row // 2 % 6]) for row, label in enumerate(labels)
    )
    return Dataset("made", samples, pixels, ("bright", "dark"))


def start(recipe: str | Recipe, tmp_path: Path, config: ViTConfig = SMALL, **options: Any) -> Run:
    """A few steps from a checkpoint."""
    given = {"steps": 2, "batch": 4, "report": False, "check": False} | options
    return train(images(12), start=checkpoint(config), recipe=recipe, out=tmp_path, **given)


@pytest.mark.row("P.11")
@pytest.mark.parametrize(
    "name, size, config",
    [
        ("paper-finetune-cifar", 384, SMALL),
        ("paper-finetune-imagenet-l16-512", 512, SMALL),
        ("paper-finetune-imagenet-h14-518", 518, SMALL_H),
    ],
)
def test_a_recipe_fine_tunes_at_its_own_size(name: str, size: int, config: ViTConfig, tmp_path: Path) -> None:
    told: list[str] = []
    seen: list[tuple[int, ...]] = []
    done = start(name, tmp_path, config, steps=1, callbacks=Callbacks(log=told.append))
    assert done.plan.preprocess.size == done.plan.model.image_size == (size, size)
    assert f"images of {size}x{size}, as the recipe says: --size gives another" in told
    saved = vitrail.load(done.best)
    saved.model.patches.register_forward_hook(lambda _, given, out: seen.append(tuple(out.shape)))
    vitrail.predict(saved, [Image.new("RGB", (60, 50))])
    side = size // config.patch_size[0]
    assert seen == [(1, side * side, 24)]  # and that is how it predicts
    assert done.plan.recipe.ema == (0.0 if name.endswith("cifar") else 0.9999)


def test_a_size_that_is_asked_for_goes_before_the_recipes(tmp_path: Path) -> None:
    assert start("paper-finetune-cifar", tmp_path, size=64).plan.preprocess.size == (64, 64)
    own = Recipe(epochs=1, batch=4)
    assert start(own, tmp_path, steps=1).plan.preprocess.size == (32, 32)  # a recipe without a size: the network's


@pytest.mark.row("P.11")
@pytest.mark.parametrize("name", ["paper-finetune-cifar", "google-finetune-augreg", "jeonsworld-cifar"])
def test_a_head_of_zeros_where_the_recipe_says_so(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heads: list[tuple[float, float]] = []
    right = looping.fit

    def fit(job: Job) -> Progress:
        head = job.model.head.classify
        assert head is not None
        heads.append((float(head.weight.detach().abs().max()), float(head.bias.detach().abs().max())))
        return right(job)

    monkeypatch.setattr("vitrail.training.runs.fit", fit)
    assert [stage.name for stage in start(name, tmp_path, size=32).stages] == ["k-NN", "linear probe"]
    recipe = replace(RECIPES[name].recipe, head_start="probe")
    start(recipe, tmp_path)
    assert heads[0] == (0.0, 0.0)
    assert heads[1][0] > 0


def test_nothing_learned_and_a_head_of_zeros_is_refused() -> None:
    with pytest.raises(ConfigError, match="would leave a head of zeros"):
        Recipe(epochs=0, head_start="zeros")


def test_what_a_recipe_changes_after_the_blocks_reaches_a_network_that_is_there() -> None:
    """MAE fine-tunes by the mean of the patches, whatever the checkpoint pooled by; its depth stays as it is."""
    told: list[str] = []
    options = Options(recipe="mae-finetune-b16", start=checkpoint(), callbacks=Callbacks(log=told.append))
    preset = resolve(options)
    _, chosen = prepare_model(images(), preset, options)
    assert (chosen.model.config.pool, chosen.model.config.final_norm) == ("mean", "pooled")
    assert (chosen.model.config.depth, chosen.model.config.drop_path) == (2, 0.1)
    before = checkpoint().model.state_dict()
    assert torch.equal(
        chosen.model.state_dict()["encoder.blocks.1.mlp.up.weight"], before["encoder.blocks.1.mlp.up.weight"]
    )


def test_a_recipe_for_another_network_says_so(tmp_path: Path) -> None:
    told: list[str] = []
    start("qucy-cifar100", tmp_path, steps=1, callbacks=Callbacks(log=told.append))
    assert any("made for another: patch_size (16, 16); depth 2" in each for each in told), told


@pytest.mark.parametrize("name", [name for name, each in RECIPES.items() if each.objective != "classify"])
def test_a_recipe_with_another_objective_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"{name} learns by masked-patch, which cannot be trained here yet"):
        train(images(), recipe=name, out=tmp_path)
    assert not list(tmp_path.iterdir())


def test_masked_patch_is_the_only_other_objective() -> None:
    assert [name for name, each in RECIPES.items() if each.objective != "classify"] == ["paper-pretrain-masked-patch"]


# ---- recipes as whole trainings ------------------------------------------------------------------------------------


@pytest.mark.row("EVA.1")
def test_cats_from_dogs_by_their_file_names_with_a_stepped_rate(tmp_path: Path) -> None:
    dice = np.random.default_rng(0)
    folder = tmp_path / "pets"
    folder.mkdir()
    for number in range(40):
        for name, bright in (("cat", 0), ("dog", 120)):
            pixels = dice.integers(bright, bright + 120, (24, 30, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"{name}.{number}.jpg")
    done = train(
        folder,
        pattern=r"(?P<label>cat|dog)\.\d+\.jpg",
        recipe="eva6-cats-dogs-step",
        epochs=3,
        batch=16,
        val=0.2,
        test=0.0,
        size=64,
        out=tmp_path / "runs",
        report=False,
        check=False,
    )
    assert done.plan.classes == ("cat", "dog")
    entries = Manifest.from_json((done.folder / "data.json").read_text()).entries
    counts = Counter((each.split, each.labels[0]) for each in entries)
    assert counts == {("train", "cat"): 32, ("train", "dog"): 32, ("val", "cat"): 8, ("val", "dog"): 8}
    logged = [json.loads(line) for line in (done.folder / "metrics.jsonl").read_text().splitlines()]
    rates = [row["lr"] for row in logged if row["event"] == "step"]
    assert rates == pytest.approx([3e-5 * 0.7**epoch for epoch in (0, 1, 2) for _ in range(4)], rel=1e-12)
    assert (done.plan.model.patch_size, done.plan.model.width, done.plan.model.heads) == ((32, 32), 128, 8)


@pytest.mark.row("002.08")
def test_the_quick_form_trains_on_so_many_images_and_keeps_the_best(tmp_path: Path) -> None:
    told: list[str] = []
    config = replace(SMALL, patch_size=8)
    options: dict[str, Any] = {"model": config, "epochs": 1, "report": False, "check": False, "out": tmp_path}
    done = train(images(2000, 8), recipe="qucy-cifar100-quick", callbacks=Callbacks(log=told.append), **options)
    entries = Manifest.from_json((done.folder / "data.json").read_text()).entries
    assert Counter(each.split for each in entries) == {"train": 1000, "val": 332, "test": 332}
    assert "1,664 of 2,000 images are used: at most 1,000 of each split, class by class" in told
    assert done.plan.per_epoch == 1000 // 64
    assert done.best.is_file()
    assert done.plan.recipe.patience == 3
    fewer = train(images(2000, 8), recipe="qucy-cifar100-quick", limit=64, **options)
    assert (fewer.plan.per_epoch, len(fewer.evaluation.targets)) == (1, 64)


@pytest.mark.row("P.14")
def test_split_folders_with_crops_flips_accumulation_clipping_and_an_end_above_zero(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice = np.random.default_rng(0)
    for split, count in (("train", 12), ("test", 4)):
        for number in range(count):
            for name, bright in (("night", 0), ("noon", 120)):
                place = tmp_path / "data" / split / name
                place.mkdir(parents=True, exist_ok=True)
                Image.fromarray(dice.integers(bright, bright + 120, (20, 26, 3), dtype=np.uint8)).save(
                    place / f"{number}.jpg"
                )
    passes: list[int] = []
    norms: list[float] = []
    pixels: list[torch.Tensor] = []
    clip = torch.nn.utils.clip_grad_norm_

    def clipped(parameters: list[torch.nn.Parameter], most: float) -> torch.Tensor:
        before = clip(parameters, most)
        norms.append(float(torch.cat([each.grad.flatten() for each in parameters if each.grad is not None]).norm()))
        return before

    def forward(self: ViT, given: torch.Tensor, **more: Any) -> torch.Tensor:
        if self.training:
            passes.append(len(given))
            pixels.append(given.detach().clone())
        return right(self, given, **more)

    right = ViT.forward
    monkeypatch.setattr(ViT, "forward", forward)
    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", clipped)
    google = RECIPES["google-finetune-imagenet"].recipe
    recipe = replace(google, batch=8, pieces=4, lr=0.03, schedule="linear", final=1e-5 / 0.03, warmup=0, clip=1e-3)
    options: dict[str, Any] = {"model": replace(SMALL, patch_size=8), "steps": 6, "val": 0.0, "out": tmp_path / "runs"}
    done = train(tmp_path / "data", recipe=recipe, report=False, check=False, **options)
    entries = Manifest.from_json((done.folder / "data.json").read_text()).entries
    assert Counter(each.split for each in entries) == {"train": 24, "test": 8}
    assert passes == [2] * 4 * 6  # four passes a step
    assert max(norms) == pytest.approx(1e-3, rel=1e-3)
    logged = [json.loads(line) for line in (done.folder / "metrics.jsonl").read_text().splitlines()]
    rates = [row["lr"] for row in logged if row["event"] == "step"]
    assert rates == pytest.approx([1e-5 + (0.03 - 1e-5) * (1 - step / 6) for step in range(6)])
    plain = train(tmp_path / "data", recipe=replace(recipe, augment=Augment()), report=False, check=False, **options)
    assert plain.plan.recipe.augment != google.augment == Augment(crop=(0.05, 1.0), flip=True)
    assert not torch.equal(pixels[0], pixels[24])  # the same rows, cropped and flipped or not
