"""Maps from gradients: Grad-CAM from its formula, integrated gradients beside captum's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from captum.attr import IntegratedGradients as Captum
from torch import Tensor

import vitrail
from insight.small import POOLS, build
from vitrail.insight import GradCam, IntegratedGradients, Occlusion, explain_pixels, gradients
from vitrail.insight.activations import Answer
from vitrail.insight.gradients import patch_sums
from vitrail.insight.occlusion import covered
from vitrail.insight.targets import aim_at
from vitrail.network import ViT


@pytest.fixture
def pixels() -> Tensor:
    return torch.randn(2, 3, 8, 12, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("kind", POOLS)
@pytest.mark.parametrize("block", [0, 1, 2])
def test_grad_cam_is_its_formula(pixels: Tensor, kind: str, block: int) -> None:
    model = build(**POOLS[kind])
    kept: list[Tensor] = []
    watch = model.encoder.blocks[block].norm1.register_forward_hook(lambda _, __, made: kept.append(made))
    logits = model(pixels)
    watch.remove()
    found = explain_pixels(model, pixels, GradCam(block), 2, check=False)
    [slopes] = torch.autograd.grad(logits[:, 2].sum(), kept[0])
    prefix = model.config.prefix
    for row, each in enumerate(found):
        tokens, slope = kept[0][row, prefix:].detach().double().numpy(), slopes[row, prefix:].double().numpy()
        expected = np.zeros(len(tokens))
        for patch in range(len(tokens)):
            for value in range(tokens.shape[1]):
                mean = sum(slope[other, value] for other in range(len(tokens))) / len(tokens)
                expected[patch] += mean * tokens[patch, value]
        np.testing.assert_allclose(each.map.ravel(), np.maximum(expected, 0), atol=1e-6)


def test_grad_cam_of_the_last_block_is_not_blank_with_a_cls_token(pixels: Tensor) -> None:
    """After the last block only the cls token has a gradient: tokens are taken before it."""
    model = build()
    highest = [explain_pixels(model, pixels, "grad-cam", target, check=False)[0].map.max() for target in range(5)]
    assert sum(each > 0 for each in highest) >= 3  # where all speaks against a class, its map is rightly flat


def against_captum(model: ViT, pixels: Tensor, target: int, steps: int, tolerance: float) -> None:
    aim = aim_at(target, model(pixels[None])[0].detach())
    ours = IntegratedGradients(steps=steps).integrate(model, pixels, aim)
    theirs = Captum(model).attribute(
        pixels[None], baselines=0.0, target=target, n_steps=steps, method="gausslegendre", internal_batch_size=8
    )[0]
    assert (ours.pixels - theirs).abs().max() < tolerance * max(1.0, float(theirs.abs().max()))


@pytest.mark.parametrize("kind", POOLS)
def test_integrated_gradients_are_captums(pixels: Tensor, kind: str) -> None:
    model = build(**POOLS[kind])
    for steps in (5, 32):
        against_captum(model, pixels[0], 3, steps, 1e-4)


@pytest.mark.parametrize("kind", POOLS)
def test_the_attributions_sum_to_the_difference_of_outputs(pixels: Tensor, kind: str) -> None:
    model = build(**POOLS[kind])
    with torch.no_grad():
        difference = (model(pixels) - model(torch.zeros_like(pixels)))[:, 3]
    for row, each in enumerate(explain_pixels(model, pixels, "integrated-gradients", 3, check=False)):
        assert float(each.map.sum()) == pytest.approx(float(difference[row]), rel=0.01)
        assert each.pixel_map is not None
        assert each.pixel_map.shape == (8, 12)
        assert each.pixel_map.sum() == pytest.approx(each.map.sum(), rel=1e-4)


def test_too_few_steps_are_told(pixels: Tensor) -> None:
    [one] = explain_pixels(build(), pixels[:1], IntegratedGradients(steps=1), 3, check=False)
    assert any("still miss the difference of outputs by" in each for each in one.warnings)
    assert not one.reliable


@pytest.mark.parametrize(
    "errors, steps",
    [((0.007,), 32), ((0.009,), 32), ((0.011, 0.0), 64), ((0.3, 0.02, 0.014, 0.005), 256), ((1.0,) * 5, 512)],
)
def test_points_are_added_until_the_sum_is_right_within_a_hundredth(
    pixels: Tensor, monkeypatch: pytest.MonkeyPatch, errors: tuple[float, ...], steps: int
) -> None:
    """Each try misses the difference of outputs by its error; what is right enough needs no further one."""
    model = build()
    aim = aim_at(3, model(pixels[:1])[0].detach())
    with torch.no_grad():
        difference = float((model(pixels[:1]) - model(torch.zeros_like(pixels[:1])))[0, 3])
    tried: list[int] = []

    def integrate(*given: Any) -> Tensor:
        tried.append(given[3])
        return torch.full_like(pixels[0], difference * (1 + errors[len(tried) - 1]) / pixels[0].numel())

    monkeypatch.setattr(gradients, "_integrate", integrate)
    found = IntegratedGradients().integrate(model, pixels[0], aim)
    assert (found.steps, len(tried)) == (steps, len(errors))
    assert found.error == pytest.approx(errors[-1], abs=1e-4)
    tried.clear()
    [one] = explain_pixels(model, pixels[:1], "integrated-gradients", 3, check=False)
    assert any("still miss" in each for each in one.warnings) == (errors[-1] > 0.01)


@pytest.mark.parametrize("side, window", [(6, 1), (7, 1), (13, 1), (14, 2), (20, 2), (21, 3)])
def test_a_window_is_a_seventh_of_the_shorter_side_unless_told(side: int, window: int) -> None:
    """As many windows as fit are asked about, and once the whole image."""
    asked: list[int] = []

    def ask(pixels: Tensor) -> Answer:
        asked.append(len(pixels))
        return Answer(pixels.mean(dim=(2, 3)), pixels.mean(dim=(2, 3)))

    pixels = torch.rand(2, 2 * side, 2 * side + 4)
    grid = (side, side + 2)
    Occlusion().attribute_answers(ask, pixels, grid, aim_at(0, torch.zeros(2)))
    assert sum(asked) == 1 + (side - window + 1) * (side + 2 - window + 1)
    assert max(asked) <= 16


def test_integrated_gradients_of_the_real_network(fixtures: Path) -> None:
    import skimage.data

    checkpoint = vitrail.load(fixtures / "vit_tiny_patch16_224_in1k.safetensors")
    pixels = torch.from_numpy(checkpoint.preprocess(skimage.data.chelsea()))
    against_captum(checkpoint.model, pixels, 285, 8, 1e-4)


def test_sums_of_patches() -> None:
    values = torch.arange(2 * 4 * 6, dtype=torch.float32).view(2, 4, 6)
    found = patch_sums(values, (2, 3))
    for row in range(2):
        for column in range(2):
            part = values[:, 2 * row : 2 * row + 2, 3 * column : 3 * column + 3]
            assert found[row, column] == part.sum()


@pytest.mark.parametrize("window", [1, 2])
def test_occlusion_is_what_is_lost_under_every_window(pixels: Tensor, window: int) -> None:
    model = build(pool="mean")
    for row, each in enumerate(explain_pixels(model, pixels, Occlusion(window), 1, check=False)):
        sums, counts = np.zeros((2, 3)), np.zeros((2, 3))
        with torch.no_grad():
            full = float(model(pixels[row : row + 1])[0, 1])
            for top in range(2 - window + 1):
                for left in range(3 - window + 1):
                    changed = pixels[row].clone()
                    for channel in range(3):
                        mean = pixels[row, channel].mean()
                        changed[channel, 4 * top : 4 * (top + window), 4 * left : 4 * (left + window)] = mean
                    lost = full - float(model(changed[None])[0, 1])
                    sums[top : top + window, left : left + window] += lost
                    counts[top : top + window, left : left + window] += 1
        np.testing.assert_allclose(each.map, sums / counts, atol=1e-5)


def test_a_network_that_merges_tokens_is_asked_from_outside(pixels: Tensor) -> None:
    model = build(merge_per_block=1, pool="mean")
    for method in ("occlusion", "integrated-gradients"):
        assert explain_pixels(model, pixels, method, 0)[0].map.shape == (2, 3)


def test_a_covered_patch_has_the_mean_colour(pixels: Tensor) -> None:
    hidden = torch.zeros(1, 2, 3, dtype=torch.bool)
    hidden[0, 1, 2] = True
    [found] = covered(pixels[0], hidden)
    torch.testing.assert_close(found[:, 4:, 8:], pixels[0].mean(dim=(1, 2)).view(3, 1, 1).expand(3, 4, 4))
    torch.testing.assert_close(found[:, :4], pixels[0, :, :4])
