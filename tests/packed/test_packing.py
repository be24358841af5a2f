"""Packing follows its plan, layer by layer, and leaves the network given alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import vitrail
from shipping.packs import checkpoint, network
from vitrail.packed.packed_runtime import Packed
from vitrail.packed.packing import Dtypes, pack
from vitrail.quantisation.fake_quant import fake_quantise
from vitrail.quantisation.folding import fold
from vitrail.quantisation.quant_plan import QuantPlan, Range
from vitrail.quantisation.range_calibration import calibrate, rank_sensitivity

# ---- int8 --------------------------------------------------------------------------------------------------------


def simulated(model: vitrail.ViT, ranges: dict[str, Range], pixels: torch.Tensor) -> torch.Tensor:
    """The same arithmetic in floats."""
    with torch.inference_mode():
        return fake_quantise(fold(model).eval(), QuantPlan("fp32", ranges))(pixels)


def test_what_comes_after_the_blocks_is_fp32() -> None:
    made = checkpoint(pool="map", cls_token=False)
    runtime = Packed(made, QuantPlan("bf16"))
    assert {each.dtype for part in ("norm", "pool", "head") for each in getattr(runtime.model, part).parameters()} == {
        torch.float32
    }
    assert runtime.model.encoder.blocks[0].norm1.weight.dtype == torch.bfloat16
    logits = runtime.run(np.random.default_rng(1).standard_normal((4, 3, 32, 32), np.float32))[0]
    assert not np.array_equal(logits, torch.from_numpy(logits).bfloat16().float().numpy())  # no steps of bf16


def test_the_network_given_is_left_alone() -> None:
    made = checkpoint(layer_scale=0.5)
    before = {name: value.clone() for name, value in made.model.state_dict().items()}
    Packed(made, QuantPlan("bf16"))
    after = made.model.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert isinstance(made.model.encoder.blocks[0].attention.qkv, nn.Linear)


def test_some_layers_in_int8_and_the_others_not() -> None:
    made = checkpoint()
    pixels = torch.randn(4, 3, 32, 32)
    ranges = calibrate(made.model, [pixels])
    for kept in ("encoder.blocks.1.mlp.up", "encoder.blocks.1.mlp.down", "encoder.blocks.0.attention.out"):
        some = {name: ends for name, ends in ranges.items() if name != kept}
        found, _ = Packed(made, QuantPlan("fp32", some)).run(pixels.numpy())
        expected = simulated(made.model, some, pixels).numpy()
        assert np.abs(found - expected).max() < 0.02 * np.abs(expected).max()


def test_a_half_precision_checkpoint_packs_in_fp32() -> None:
    made = replace(checkpoint(), model=network().bfloat16())
    runtime = Packed(made)
    pixels = np.random.default_rng(0).standard_normal((2, 3, 32, 32), np.float32)
    expected = network()
    expected.load_state_dict({name: value.float() for name, value in made.model.state_dict().items()})
    with torch.inference_mode():
        exact = expected(torch.from_numpy(pixels)).numpy()
    np.testing.assert_allclose(runtime.run(pixels)[0], exact, rtol=0, atol=1e-5 * np.abs(exact).max())
    ranges = calibrate(made.model, [torch.from_numpy(pixels).bfloat16()])
    assert len(rank_sensitivity(made.model, QuantPlan("fp32", ranges), torch.from_numpy(pixels).bfloat16())) == 12


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
@pytest.mark.parametrize("program", [False, True])
def test_the_program_can_be_left_out_and_changes_no_answer(precision: str, program: bool) -> None:
    model = network()
    pixels = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    ranges = calibrate(model, [pixels]) if precision == "int8" else {}
    plan = QuantPlan("bf16" if precision == "bf16" else "fp32", ranges)
    packed = pack(model, plan, program=program)
    given = pixels.to(Dtypes.of(plan).tokens)
    assert (packed.compiled is not None) == program
    with torch.inference_mode():
        assert torch.equal(packed(given), pack(model, plan)(given))
