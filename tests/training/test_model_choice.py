"""The network of a training: of the size, the head and the ends that the recipe asks for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import vitrail
from training.quick import NETWORK, QUICK, draw
from training.starts import SMALL, images
from vitrail.errors import ConfigError
from vitrail.network.config import ViTConfig
from vitrail.network.vit import ViT
from vitrail.training import RECIPES, Callbacks, Options, Recipe, Run, rerun, train
from vitrail.training import loop as looping
from vitrail.training.job import Job, Progress
from vitrail.training.model_choice import ModelRequest, build_model, small_network
from vitrail.training.options import resolve
from vitrail.training.preparation import prepare
from vitrail.training.published import Preset
from vitrail.training.runs import prepare_model

SMALL_H = replace(SMALL, image_size=28, patch_size=14)


def checkpoint(config: ViTConfig = SMALL) -> vitrail.Checkpoint:
    torch.manual_seed(1)
    return vitrail.Checkpoint(ViT(config), vitrail.Preprocess(size=config.image_size), ("a", "b", "c", "d"))


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


def test_another_seed_starts_from_other_weights(tmp_path: Path) -> None:
    prepared = prepare(draw(tmp_path / "colours"), Options())
    request = ModelRequest.of(Preset(recipe=QUICK), Options(model=NETWORK))
    found = [build_model(request, prepared, QUICK, seed).model for seed in (0, 0, 1)]
    weights = [model.encoder.blocks[0].mlp.up.weight for model in found]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_the_network_for_small_sets_has_about_sixteen_tokens() -> None:
    grids = {size: small_network(size, 3, 10).grid for size in ((32, 32), (64, 64), (96, 96), (224, 224), (64, 96))}
    assert grids == {(32, 32): (4, 4), (64, 64): (4, 4), (96, 96): (6, 6), (224, 224): (7, 7), (64, 96): (4, 6)}


def wide_images(folder: Path, width: int = 120) -> Path:
    """Two classes, three times as wide as high where nobody says another width, with a bright left edge."""
    for label in ("a", "b"):
        (folder / label).mkdir(parents=True)
        for number in range(6):
            image = Image.new("RGB", (width, 40), (number, 0, ord(label)))
            image.paste((255, 255, 255), (0, 0, 12, 40))
            image.save(folder / label / f"{number}.png")
    return folder


@pytest.mark.parametrize(
    "width, own, seen, told",
    [
        (120, "crop", ("squash", 1.0), True),  # a crop would cut two thirds off
        (120, "pad", ("pad", 1.0), False),  # it sees whole images already
        (40, "crop", ("crop", 0.9), False),
    ],
)
def test_images_for_a_checkpoint_are_resized_as_suits_their_shapes_and_that_is_told(
    width: int, own: Any, seen: tuple[str, float], told: bool, tmp_path: Path
) -> None:
    lines: list[str] = []
    crop = 0.9 if own == "crop" else 1.0
    given = replace(checkpoint(), preprocess=vitrail.Preprocess(size=32, crop=crop, resize=own))
    tuned = train(
        wide_images(tmp_path / "photos", width), start=given, steps=1, batch=4, report=False, check=False,
        out=tmp_path, callbacks=Callbacks(log=lines.append),
    )  # fmt: skip
    saved = vitrail.load(tuned.best).preprocess
    assert (saved.resize, saved.crop) == seen
    assert any("--resize squash: all of the images have one shape" in line for line in lines) == told


@pytest.mark.parametrize("resize", ["crop", "pad", "squash"])
def test_images_are_resized_as_asked_for_and_a_rerun_keeps_it(resize: str, tmp_path: Path) -> None:
    """A wide image, bright at its ends alone: cut, they are not seen; squashed or padded, they are."""
    folder = wide_images(tmp_path / "photos")
    crop = 0.9  # of the checkpoint: pad and squash show all of the image instead
    model = checkpoint()
    vitrail.save(replace(model, preprocess=vitrail.Preprocess(size=32, crop=crop)), tmp_path / "start.safetensors")
    options: dict[str, Any] = {"steps": 1, "batch": 4, "report": False, "check": False, "resize": resize}
    fresh = train(folder, model=NETWORK, size=NETWORK.image_size, out=tmp_path / "runs", **options)
    assert fresh.plan.preprocess.resize == resize
    tuned = train(folder, start=tmp_path / "start.safetensors", out=tmp_path / "tuned", **options)
    saved = vitrail.load(tuned.best).preprocess
    assert (saved.resize, saved.crop) == (resize, crop if resize == "crop" else 1.0)
    with Image.open(folder / "a" / "0.png") as image:
        left = saved.visible_image(image).getpixel((0, 16))
    assert (left[0] > 200) == (resize != "crop")
    again = rerun(tuned.folder, tmp_path / "again")
    assert again.same, again.differences
    assert again.run.plan.preprocess == tuned.plan.preprocess
