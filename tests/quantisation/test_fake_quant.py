"""Fake quantisation: a plain network that rounds in the places that a plan names, and nowhere else."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from shipping.packs import VARIANTS, network
from vitrail.errors import ConfigError
from vitrail.quantisation.fake_quant import FakeBf16Linear, FakeInt8Linear, fake_quantise
from vitrail.quantisation.quant_params import Int8Weight, QuantParams
from vitrail.quantisation.quant_plan import QuantPlan, Range, quantisable
from vitrail.quantisation.range_calibration import calibrate

PIXELS = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("symmetric", [False, True])
def test_input_and_weight_of_a_layer_are_rounded(symmetric: bool) -> None:
    linear = nn.Linear(6, 4)
    layer = FakeInt8Linear(linear, Range(-1.0, 2.0), symmetric)
    x = torch.randn(5, 6)
    params = QuantParams.of_range(-1.0, 2.0, symmetric)
    expected = params.round_trip(x) @ Int8Weight.of(linear.weight).to_float().T + linear.bias
    torch.testing.assert_close(layer(x), expected)
    assert not torch.allclose(layer(x), linear(x), atol=1e-3)


def test_bf16_is_rounded_too() -> None:
    linear = nn.Linear(6, 4)
    x = torch.randn(5, 6)
    found = FakeBf16Linear(linear)(x)
    assert found.dtype == torch.float32
    assert torch.equal(found, found.bfloat16().float())
    assert not torch.equal(found, linear(x))
    torch.testing.assert_close(found, linear(x), rtol=0.02, atol=0.02)


@pytest.mark.parametrize("name", ["plain", "swiglu", "rotary", "merging", "parallel", "layer scale, no key bias"])
def test_layers_of_the_plan_are_changed_and_the_network_given_is_not(name: str) -> None:
    model = network(**VARIANTS[name])
    before = {key: value.clone() for key, value in model.state_dict().items()}
    plan = QuantPlan("bf16", calibrate(model, [PIXELS])).without({"encoder.blocks.1.mlp.up"})
    rounding = fake_quantise(model, plan)
    for layer in quantisable(rounding):
        assert isinstance(
            rounding.get_submodule(layer), FakeBf16Linear if layer == "encoder.blocks.1.mlp.up" else FakeInt8Linear
        )
    assert isinstance(rounding.patches.projection, FakeBf16Linear)
    assert not any(each.requires_grad for each in rounding.parameters())
    assert all(torch.equal(model.state_dict()[key], value) for key, value in before.items())
    assert all(isinstance(model.get_submodule(each), nn.Linear) for each in quantisable(model))
    with torch.inference_mode():
        exact, found = model(PIXELS), rounding(PIXELS)
    apart = (found - exact).abs().max() / exact.abs().max()
    assert 1e-4 < apart < 0.3
    with torch.inference_mode():
        assert torch.equal(fake_quantise(model, QuantPlan())(PIXELS), exact)  # nothing to round


def test_a_plan_names_ranges_that_rise_and_comes_back_from_json() -> None:
    plan = QuantPlan("bf16", {"encoder.blocks.0.mlp.up": (-1, 2)})  # type: ignore[dict-item]
    assert plan.int8["encoder.blocks.0.mlp.up"] == Range(-1.0, 2.0)
    assert QuantPlan.from_dict(plan.to_dict()) == plan
    assert (plan.name, plan.without(set(plan.int8)).name, QuantPlan().name) == ("int8", "bf16", "fp32")
    assert quantisable(network())[:2] == [
        "encoder.blocks.0.attention.qkv",
        "encoder.blocks.0.attention.out",
    ]
    for ends in ((1.0, 1.0), (0.0, float("inf"))):
        with pytest.raises(ConfigError, match=r"the range of a must rise from low to high"):
            QuantPlan("fp32", {"a": Range(*ends)})
    with pytest.raises(ConfigError, match="precision 'fp16' is unknown"):
        QuantPlan("fp16")
