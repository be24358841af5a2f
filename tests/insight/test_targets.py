"""Targets: a class against another, and likeness to another image."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from insight.small import build
from vitrail.errors import InputError
from vitrail.insight import Likeness, Versus, explain_pixels
from vitrail.insight.targets import aim_at


@pytest.fixture
def pixels() -> Tensor:
    return torch.randn(2, 3, 8, 12, generator=torch.Generator().manual_seed(4))


def test_the_difference_of_two_classes(pixels: Tensor) -> None:
    model = build()
    for method in ("grad-cam", "integrated-gradients", "occlusion", "relevance"):
        found = explain_pixels(model, pixels, method, Versus(0, 4), check=False)
        same = explain_pixels(model, pixels, method, lambda z, _: z[:, 0] - z[:, 4], check=False)
        for one, other in zip(found, same, strict=True):
            np.testing.assert_allclose(one.map, other.map, atol=1e-6)
    assert found[0].target == "class 0 rather than class 4"
    logits = model(pixels).detach()
    assert found[0].value == pytest.approx(float(torch.sigmoid(logits[0, 0] - logits[0, 4])), abs=1e-6)


def test_likeness_to_another_image(pixels: Tensor) -> None:
    model = build(classes=0)
    with torch.no_grad():
        other = model(pixels[1:])[0]
    [found, same] = explain_pixels(model, pixels, "integrated-gradients", Likeness(other), check=False)
    with torch.no_grad():
        empty = F.cosine_similarity(model(torch.zeros_like(pixels[:1])), other[None])
        full = F.cosine_similarity(model(pixels[:1]), other[None])
    assert float(found.map.sum()) == pytest.approx(float(full - empty), rel=0.01)
    assert found.value == pytest.approx(float(full), abs=1e-6)
    assert same.value == pytest.approx(1, abs=1e-5)
    assert explain_pixels(model, pixels, "relevance", Likeness(other))[0].scores is not None


@pytest.mark.parametrize("target", [7, "7", -1])
def test_a_number_without_a_class_is_told_the_names(target: int | str) -> None:
    with pytest.raises(InputError, match="expected a class from 0 to 2, or one of one, two, five, got '?-?[17]'?$"):
        aim_at(target, torch.zeros(3), ("one", "two", "five"), "single-label", None)
    with pytest.raises(InputError, match="expected a class from 0 to 2, got"):
        aim_at(target, torch.zeros(3), (), "single-label", None)
