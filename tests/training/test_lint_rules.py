"""Every rule of the lint, from a recipe that breaks it and one beside it that does not."""

from __future__ import annotations

import inspect
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from training.lint_cases import BASE, MICRO, SOUND, found, tuned
from vitrail.data.augmentation import Augment
from vitrail.network import ConvStem, ViTConfig, preset
from vitrail.training import recipe_lint
from vitrail.training.recipe_lint import Finding


def one(said: dict[str, Finding], name: str, level: str, *parts: str) -> None:
    """One finding and no other, at its level, with these words."""
    assert list(said) == [name]
    assert said[name].level == level
    for part in parts:
        assert part in said[name].message, said[name].message


def test_patches_too_large_for_the_image() -> None:
    said = found(preset("vit-ti16", image_size=32))
    one(said, "patches", "warning", "patches of 16x16 cut images of 32x32 into 4", "50 %", "take patches of 4")
    assert found(preset("vit-ti16", image_size=64)) == {}  # 16 of them


def test_patches_behind_a_stem_count_in_pixels() -> None:
    config = replace(MICRO, stem=ConvStem((48, 96, 192, 192)), patch_size=(1, 1))
    one(found(config), "patches", "warning", "patches of 16x16 cut images of 32x32 into 4")


def test_a_size_that_does_not_divide() -> None:
    one(found(data={"size": 30}), "patches", "error", "image 30x30 does not divide into patches of 4x4")


def test_narrow_heads() -> None:
    config = preset("vit-micro4-32", width=128, heads=8, mlp_width=512)
    one(found(config), "head-width", "warning", "heads of 16 values", "take 4 heads in a width of 128")
    assert found(preset("vit-micro4-32", heads=8)) == {}  # 24 each
    assert tuned(config=replace(BASE, heads=48)) == {}  # they are as they are


def test_a_deep_network_on_few_images() -> None:
    deep = preset("vit-micro4-32", depth=16)
    said = found(deep, {"images": 40_000})
    assert said["depth"].level == "warning"
    assert "16 blocks from scratch on 40,000 images" in said["depth"].message
    assert "depth" not in found(deep, {"images": 50_000})
    assert "depth" not in found(data={"images": 40_000})
    assert tuned(config=replace(BASE, depth=24)) == {}


def test_much_dropout_on_small_data() -> None:
    one(found(dropout=0.5), "dropout", "warning", "dropout 0.5")
    one(found(replace(MICRO, dropout=0.4)), "dropout", "warning", "dropout 0.4")
    assert found(replace(MICRO, dropout=0.4), dropout=0.1) == {}  # the recipe's counts
    assert found(data={"images": 200_000}, dropout=0.5) == {}


@pytest.mark.parametrize("config", [replace(MICRO, norm="batch"), preset("vit-micro4-32-conv")])
def test_batch_norm_with_few_images_at_a_time(config: ViTConfig) -> None:
    one(found(config, batch=64, pieces=16), "batch-norm", "warning", "sees 4 images at a time")
    assert found(config, batch=64, pieces=8) == {}
    assert found(batch=64, pieces=16) == {}


def test_few_images_from_scratch() -> None:
    one(found(data={"images": 10_000}), "few-images", "advice", "10,000 images to train from nothing", "--from")
    assert found(data={"images": 50_000}) == {}


def test_few_images_a_class() -> None:
    one(tuned({"classes": 300}), "few-per-class", "advice", "2,000 images for 300 classes", "--recipe probe")
    assert tuned({"classes": 200}) == {}
    assert "start from a pretrained" in found(data={"images": 900, "classes": 100})["few-per-class"].message


def test_images_blown_up() -> None:
    sizes = [(20, 30), (32, 32), (50, 40)]
    one(found(preset("vit-b16"), {"sizes": sizes}), "upscaled", "warning", "of 32 pixels are blown up 7.0 times")
    one(tuned({"sizes": sizes}), "upscaled", "advice", "49 times the work", "try a smaller one too")
    assert found(data={"sizes": sizes}) == {}
    assert tuned({"sizes": [(112, 400)]}) == {}  # twice, by the shorter side


@pytest.mark.parametrize(
    "names, said",
    [
        (("turn_left", "turn-right"), "class names say left and right"),
        (("Clockwise", "still"), "class names say clockwise"),
        (tuple("0123456789"), "classes look like digits or letters"),
        (tuple("bdpq"), "classes look like digits or letters"),
        (("cat", "dog"), ""),
        (("bright", "copyright"), ""),
        ((), ""),
    ],
)
def test_mirrored_classes(names: tuple[str, ...], said: str) -> None:
    mirrored = found(data={"names": names}, augment=replace(SOUND, flip=True))
    if said:
        one(mirrored, "mirrored", "advice", said, "flip=False")
    else:
        assert mirrored == {}
    assert found(data={"names": names}) == {}


@pytest.mark.parametrize("optimiser, level", [("adam", "error"), ("adamw", "error"), ("muon", "warning")])
def test_a_rate_of_sgd_with_adam(optimiser: str, level: str) -> None:
    settings = {"optimiser": optimiser, "lr": 1e-2, "weight_decay": 0.0}
    one(found(**settings), "rate", level, "lr 0.01", "one class for every image", "take 1e-3")
    one(tuned(**settings), "rate", level)
    assert tuned(**settings, tune="head") == {}


def test_a_rate_too_high_for_the_batch() -> None:
    one(found(lr=5e-3), "rate-batch", "warning", "5.0 times what batches of 64 usually bear", "about 0.001")
    one(found(lr=1e-3, batch=4), "rate-batch", "warning", "4.0 times")
    assert found(lr=3e-3) == {}
    assert found(lr=5e-3, batch=512) == {}


def test_a_rate_too_high_for_pretrained_weights() -> None:
    one(tuned(lr=2e-3), "rate-finetune", "warning", "lr 0.002 with adamw overwrites", "layer_decay 0.75")
    assert tuned(lr=1e-3) == {}
    assert tuned(lr=4e-3, layer_decay=0.75) == {}  # the blocks in the middle move far slower
    assert tuned(lr=5e-3, tune="head") == {}


def test_sgd_with_a_rate_of_adam() -> None:
    one(tuned(optimiser="sgd", lr=1e-4), "rate-sgd", "warning", "lr 0.0001 is a rate for adamw")
    assert tuned(optimiser="sgd", lr=1e-3) == {}


def test_sgd_from_scratch() -> None:
    one(found(optimiser="sgd", lr=0.1), "sgd-scratch", "warning", "74.5 %", "81.8 %")
    assert found(preset("vit-micro4-32-conv"), optimiser="sgd", lr=0.1) == {}


def test_mean_pool_at_a_high_rate() -> None:
    large = {"batch": 4096, "lr": 8e-4, "epochs": 60}
    one(found(**large), "rate-mean-pool", "advice", "figure 9", "head_lr 0.375")
    assert found(**large, head_lr=0.375) == {}
    assert found(replace(MICRO, pool="cls"), **large) == {}
    assert found(**{**large, "batch": 512}) == {}


def test_no_warm_up() -> None:
    one(found(warmup=0), "warmup", "warning", "no warm-up at lr 0.001")
    assert found(warmup=0, lr=5e-4) == {}
    assert tuned(warmup=0, lr=1e-3) == {}


def test_a_warm_up_longer_than_half_of_it() -> None:
    said = found(warmup=10_000, epochs=10)
    one(said, "warmup-length", "warning", "10,000 steps of warm-up in a training of 9,370")
    assert found(warmup=4_685, epochs=10) == {}


def test_layer_decay_from_scratch() -> None:
    one(found(layer_decay=0.5), "layer-decay", "warning", "block 0 would move 512 times slower")
    assert tuned(layer_decay=0.5) == {}


def test_heavy_weight_decay() -> None:
    one(found(weight_decay=0.6), "weight-decay", "warning", "weight_decay 0.6 pulls weights to zero")
    one(found(optimiser="adam", weight_decay=0.05), "weight-decay", "warning", "6.3 %", "take adamw")
    assert found(weight_decay=0.5) == {}
    assert found(optimiser="adam", weight_decay=1e-4) == {}


def test_the_head_of_a_random_network() -> None:
    one(found(tune="head"), "random-start", "error", "has random weights")
    assert tuned(tune="head") == {}


def test_a_batch_larger_than_the_data() -> None:
    one(
        tuned({"images": 100}, batch=512, epochs=200), "batch", "warning", "more than all 100 images", "--batch 8 or so"
    )
    assert tuned({"images": 512}, batch=512, epochs=200) == {}


def test_too_few_steps() -> None:
    one(tuned({"images": 320}, batch=320, epochs=1), "steps", "warning", "1 step in all is too few", "--epochs, now 1)")
    one(tuned({"images": 320}, epochs=9.9), "steps", "warning", "99 steps in all", "batch (now 32)")
    assert "steps" not in tuned({"images": 320}, epochs=0)  # as asked for
    assert "(--minutes, now 0.3)" in tuned({"images": 320, "minutes": 0.3}, epochs=9.9)["steps"].message
    assert tuned({"images": 320}, epochs=10) == {}
    assert tuned({"images": 320}, epochs=1, tune="head") == {}


def test_mixing_in_a_short_training() -> None:
    mixed = replace(SOUND, mixup=0.8)
    one(found(epochs=10, augment=mixed), "mixing", "warning", "not 10", "train 20 epochs")
    one(tuned(epochs=3, augment=Augment(cutmix=1.0)), "mixing", "warning", "train 5 epochs")
    assert found(epochs=20, augment=mixed) == {}
    assert tuned(epochs=5, augment=mixed) == {}


def test_the_same_images_too_often() -> None:
    one(found(epochs=50, augment=Augment()), "by-heart", "warning", "30.7 %", "augment them")
    one(tuned(epochs=50, augment=Augment()), "by-heart", "warning", "2,000 images")
    assert found(epochs=20, augment=Augment()) == {}
    assert tuned(epochs=30, augment=Augment()) == {}
    for some in (Augment(flip=True), Augment(crop=(0.5, 1.0)), Augment(erase=0.1), Augment(cutmix=1.0)):
        assert found(epochs=50, augment=some) == {}


def test_an_average_slower_than_the_training() -> None:
    said = found(ema=0.9999, epochs=30)
    one(said, "average", "advice", "averages over 10,000 steps, and there are 28,110", "0.999644 would span a tenth")
    assert found(ema=0.999, epochs=30) == {}


def test_bf16_and_fp16_where_they_are_emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_f": True, "avx512_bf16": False})
    one(found(precision="bf16"), "half-precision", "warning", "this cpu has no units for bf16", "precision='fp32'")
    one(found(precision="fp16"), "half-precision", "warning", "this cpu has no units for fp16", "precision='fp32'")
    assert found() == {}
    assert found(data={"device": "cuda (NVIDIA A100)"}, precision="bf16") == {}  # it has its own
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": True, "avx512_bf16": False})
    assert found(precision="bf16") == {}
    one(found(precision="fp16"), "half-precision", "warning", "no units for fp16", "precision='fp32'")


def test_every_rule_has_a_case_here() -> None:
    """A new rule without a test of its name fails."""
    rules = set(re.findall(r'"(?:error|warning|advice)",\n\s+"([a-z0-9-]+)"', inspect.getsource(recipe_lint)))
    assert len(rules) == 26
    text = Path(__file__).read_text("utf-8")
    assert [name for name in rules if f'"{name}", ' not in text and f'["{name}"]' not in text] == []
