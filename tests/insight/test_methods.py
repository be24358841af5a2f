"""Methods by name: each a class with its own computation; a new one is a class and a line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from insight.small import build
from vitrail.errors import InputError
from vitrail.insight import METHODS, Best, IntegratedGradients, Method, Rollout, explain_pixels
from vitrail.insight.methods import named
from vitrail.insight.targets import Aim
from vitrail.network import ViT


@dataclass(frozen=True)
class Brightness(Method):
    """A method of a reader's own: the mean of each patch's pixels, whatever the network thinks."""

    name: ClassVar[str] = "brightness"
    reads_tokens: ClassVar[bool] = False
    times: float = 1.0

    def maps(self, model: ViT, pixels: Tensor, aims: Sequence[Aim]) -> Tensor:
        h, w = model.grid_of(pixels)
        b, c, height, width = pixels.shape
        return self.times * pixels.view(b, c, h, height // h, w, width // w).mean(dim=(1, 3, 5))


def test_a_new_method_is_a_class_and_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, Brightness.name, Brightness)
    model = build()
    pixels = torch.randn(2, 3, 8, 12, generator=torch.Generator().manual_seed(0))
    found = explain_pixels(model, pixels, "brightness")
    for row, each in enumerate(found):
        np.testing.assert_allclose(each.map, Brightness().maps(model, pixels, [])[row].numpy())
        assert each.method == "brightness"
        assert each.scores is not None
        assert any("hardly depends on the weights" in why for why in each.warnings)  # checked as every other
    [best, _] = explain_pixels(model, pixels, Best(("rollout", "brightness")))
    assert set(best.tried) == {"rollout", "brightness"}
    assert Brightness(2.0).words == "brightness (times 2.0)"


def test_names_and_classes_agree() -> None:
    for name, kind in METHODS.items():
        assert kind.name == name == named(name).name
        assert named(kind()) == kind()
    with pytest.raises(InputError, match="method 'magic' is unknown: expected one of attention, rollout"):
        named("magic")


def test_methods_say_themselves_what_to_try_and_what_is_quicker() -> None:
    assert [each.name for each in Best(("rollout", "grad-cam")).candidates()] == ["rollout", "grad-cam"]
    assert list(Rollout().candidates()) == [Rollout()]
    assert Rollout().quicker() == Rollout()
    assert [IntegratedGradients(steps).quicker().steps for steps in (0, 7)] == [32, 7]
    assert [name for name, kind in METHODS.items() if not kind.needs_network] == ["occlusion"]
    assert [name for name, kind in METHODS.items() if not kind.reads_tokens] == ["integrated-gradients", "occlusion"]
