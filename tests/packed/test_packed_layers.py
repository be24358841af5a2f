"""Packed layers: bytes go in as exactly as pixels, int8 is the arithmetic it claims to be, gradients are refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import vitrail
from shipping.packs import VARIANTS, checkpoint, make_images
from vitrail import Preprocess
from vitrail.errors import InputError
from vitrail.packed.packed_layers import PackedLinear
from vitrail.packed.packed_runtime import Packed
from vitrail.quantisation.fake_quant import fake_quantise
from vitrail.quantisation.folding import fold
from vitrail.quantisation.quant_plan import QuantPlan, Range, quantisable
from vitrail.quantisation.range_calibration import calibrate

# ---- int8 --------------------------------------------------------------------------------------------------------


def simulated(model: vitrail.ViT, ranges: dict[str, Range], pixels: torch.Tensor) -> torch.Tensor:
    """The same arithmetic in floats."""
    with torch.inference_mode():
        return fake_quantise(fold(model).eval(), QuantPlan("fp32", ranges))(pixels)


@pytest.mark.parametrize("name", ["plain", "no biases", "patch norms"])
@pytest.mark.parametrize("order", ["RGB", "BGR"])
def test_bytes_go_in_without_normalising_first(name: str, order: str) -> None:
    way = Preprocess(size=32, mean=(0.4, 0.5, 0.6), std=(0.2, 0.25, 0.3), order=order)
    made = checkpoint(preprocess=way, **VARIANTS[name])
    images = make_images(4)
    values = np.stack([way.to_uint8(each) for each in images])
    runtime = Packed(made)
    assert runtime.model.patches.takes_bytes == (name != "patch norms")  # a norm in between cannot be folded
    expected, _ = made.run(way.batch(list(images)))
    found, _ = runtime.run_uint8(values)
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5 * np.abs(expected).max())


def test_bytes_in_bf16_are_as_exact_as_pixels_in_bf16() -> None:
    """Rounded weights times the mean of the bytes would be a shift that all patches share; pixels have none."""
    made = checkpoint()
    way, runtime = made.preprocess, Packed(made, QuantPlan("bf16"))
    values = np.stack([way.to_uint8(each) for each in make_images(16)])
    pixels = torch.from_numpy(way.normalise(values))
    with torch.inference_mode():
        exact = made.model.patches(pixels)
        of_bytes = runtime.model.patches(torch.from_numpy(values).permute(0, 3, 1, 2)).float() - exact  # (B, N, D)
        of_pixels = runtime.model.patches(pixels.bfloat16()).float() - exact
    assert of_bytes.square().mean() < 1.1 * of_pixels.square().mean()
    assert of_bytes.mean(dim=(0, 1)).square().mean() < 2 * of_pixels.mean(dim=(0, 1)).square().mean()


def test_a_grey_network_takes_bytes_too() -> None:
    way = Preprocess(size=32, channels=1, mean=0.3, std=0.4)
    made = checkpoint(preprocess=way, channels=1)
    image = make_images(1)[0, :, :, 0]
    found, _ = Packed(made).run_uint8(way.to_uint8(image)[None])
    expected, _ = made.run(way(image)[None])
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize(
    "name", ["plain", "layer scale, no key bias", "swiglu", "quick gelu", "merging", "merging by tokens", "parallel"]
)
def test_int8_is_the_arithmetic_it_claims_to_be(name: str) -> None:
    made = checkpoint(**VARIANTS[name])
    pixels = torch.randn(6, 3, 32, 32)
    ranges = calibrate(made.model, [pixels])
    assert list(ranges) == quantisable(made.model)
    runtime = Packed(made, QuantPlan("fp32", ranges))
    assert runtime.precision == "int8"
    layers = [each.product for each in runtime.model.modules() if isinstance(each, PackedLinear)]
    assert sum(each.int8 for each in layers) == 4 * made.model.config.depth
    found, _ = runtime.run(pixels.numpy())
    expected = simulated(made.model, ranges, pixels).numpy()
    eager, _ = made.run(pixels.numpy())
    # A value on the edge between two bytes may fall to either side, so a few steps of difference remain.
    assert np.abs(found - expected).max() < 0.25 * np.abs(eager - expected).max() + 1e-4
    assert np.abs(found - eager).max() < 0.1 * np.abs(eager).max()


def test_int8_takes_a_quarter_of_the_memory() -> None:
    made = checkpoint(width=96, mlp_width=384, depth=6)
    ranges = calibrate(made.model, [torch.randn(4, 3, 32, 32)])
    small, large = (Packed(made, each).weight_bytes for each in (QuantPlan("fp32", ranges), QuantPlan()))
    assert small < 0.4 * large


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_no_gradients_go_through_a_packed_network(precision: str) -> None:
    pixels = torch.randn(1, 3, 32, 32, requires_grad=True)
    with pytest.raises(InputError, match="packed networks have no gradients"):
        Packed(checkpoint()).model(pixels)
    model = Packed(checkpoint(), QuantPlan(precision)).model
    assert model.tokens.cls is not None
    model.tokens.cls.requires_grad_()
    kind = next(model.parameters()).dtype
    with pytest.raises(InputError, match="packed networks have no gradients"):
        model(pixels.detach().to(kind))
    with torch.no_grad():
        assert not model(pixels.detach().to(kind)).requires_grad
