"""SmoothQuant changes no answer, and evens what layers receive."""

from __future__ import annotations

from typing import cast

import pytest
import torch
from torch import nn

from shipping.packs import VARIANTS, network
from vitrail.network.encoder import Block
from vitrail.quantisation.quant_plan import QuantPlan
from vitrail.quantisation.range_calibration import calibrate, rank_sensitivity
from vitrail.quantisation.smooth_quant import smooth


@pytest.mark.parametrize(
    "name", ["plain", "layer scale, no key bias", "parallel", "registers, mean", "swiglu", "no biases"]
)
def test_smoothing_changes_no_answer(name: str) -> None:
    model = network(**VARIANTS[name])
    pixels = torch.randn(5, 3, 32, 32)
    evened = smooth(model, [pixels])
    with torch.inference_mode():
        expected = model(pixels)
        torch.testing.assert_close(evened(pixels), expected, rtol=0, atol=1e-5 * float(expected.abs().max()))
    first = cast(Block, evened.encoder.blocks[0]).attention.qkv.weight
    assert not torch.equal(first, cast(Block, model.encoder.blocks[0]).attention.qkv.weight)


def test_smoothing_evens_what_a_layer_receives() -> None:
    model = network()
    norm = cast(nn.LayerNorm, cast(Block, model.encoder.blocks[0]).norm1)
    with torch.no_grad():
        norm.weight[7] *= 60  # an outlier channel after a norm
    pixels = torch.randn(6, 3, 32, 32)
    with torch.inference_mode():
        expected = model(pixels)
    name = "encoder.blocks.0.attention.qkv"
    errors = []
    for each in (model, smooth(model, [pixels])):
        ranges = calibrate(each, [pixels])
        harm = {layer.name: layer.harm for layer in rank_sensitivity(each, QuantPlan("fp32", ranges), pixels)}
        errors.append(harm[name])
        assert expected.isfinite().all()
    assert errors[1] < 0.2 * errors[0]
