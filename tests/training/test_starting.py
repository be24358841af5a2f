"""Recipes as whole trainings, from images to a checkpoint; those of another objective are refused."""

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

from training.starts import SMALL, images
from vitrail.data.augmentation import Augment
from vitrail.data.manifest import Manifest
from vitrail.errors import InputError
from vitrail.network.vit import ViT
from vitrail.training import RECIPES, Callbacks, train


@pytest.mark.parametrize("name", [name for name, each in RECIPES.items() if each.recipe.objective != "classify"])
def test_a_recipe_with_another_objective_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"{name} learns by masked-patch, which cannot be trained here yet"):
        train(images(), recipe=name, out=tmp_path)
    assert not list(tmp_path.iterdir())


def test_masked_patch_is_the_only_other_objective() -> None:
    assert [name for name, each in RECIPES.items() if each.recipe.objective != "classify"] == [
        "paper-pretrain-masked-patch"
    ]


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
