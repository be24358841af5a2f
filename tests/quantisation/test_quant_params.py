"""Floats to 8 bits and back: zero stays zero, the nearest is taken, every output of a weight has its own scale."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vitrail.quantisation.quant_params import Int8Weight, QuantParams, to_uint8


@pytest.mark.parametrize(
    "low, high, symmetric, scale, zero_point",
    [
        (-1.0, 1.55, False, 0.01, 100),
        (2.0, 5.1, False, 0.02, 0),  # zero is always inside
        (-5.1, -2.0, False, 0.02, 255),
        (-1.27, 0.3, True, 0.01, 0),
        (0.0, 0.0, False, 1e-12, 0),  # no division by zero
    ],
)
def test_integers_cover_the_range_and_zero(
    low: float, high: float, symmetric: bool, scale: float, zero_point: int
) -> None:
    found = QuantParams.of_range(low, high, symmetric)
    assert found.scale == np.float32(found.scale)  # as files store it
    assert found == (pytest.approx(scale), zero_point, symmetric)
    assert found.limits == ((-128, 127) if symmetric else (0, 255))
    assert found.round_trip(torch.zeros(3)).tolist() == [0.0, 0.0, 0.0]


def test_values_go_to_the_nearest_and_stay_in_the_range() -> None:
    x = torch.tensor([-9.0, -1.0, -0.004, 0.0, 0.006, 1.234, 1.55, 7.0])
    found = QuantParams.of_range(-1.0, 1.55).round_trip(x)
    torch.testing.assert_close(found, torch.tensor([-1.0, -1.0, 0.0, 0.0, 0.01, 1.23, 1.55, 1.55]), rtol=0, atol=1e-6)
    found = QuantParams.of_range(-1.27, 0.3, symmetric=True).round_trip(x)
    torch.testing.assert_close(found, torch.tensor([-1.28, -1.0, 0.0, 0.0, 0.01, 1.23, 1.27, 1.27]), rtol=0, atol=1e-6)


@pytest.mark.parametrize("low, high", [(-4.0, 5.0), (0.0, 3.0), (-2.0, 0.0)])
def test_bytes_for_kernels_are_those_that_fake_quantisation_rounds_to(low: float, high: float) -> None:
    params = QuantParams.of_range(low, high)
    x = 2 * torch.randn(50_000, generator=torch.Generator().manual_seed(0))
    found = to_uint8(x, params.scale, params.zero_point)
    assert found.dtype == torch.uint8
    apart = (found.float() - params.zero_point) * params.scale - params.round_trip(x)
    assert (apart.abs() > 1e-6).float().mean() < 1e-3  # but for halves
    assert apart.abs().max() < 1.01 * params.scale


def test_the_bytes_are_the_same_in_torchscript() -> None:
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    with pytest.warns(DeprecationWarning, match="torch.jit.script"):
        script = torch.jit.script(to_uint8)
    assert torch.equal(script(x, 0.02, 128), to_uint8(x, 0.02, 128))


def test_every_output_of_a_weight_has_its_own_scale() -> None:
    weight = torch.tensor([[0.5, -1.0, 0.25], [0.0, 0.0, 0.0], [100.0, 254.0, -127.0]])
    found = Int8Weight.of(weight)
    torch.testing.assert_close(found.scales, torch.tensor([1 / 127, 1.0, 2.0]))
    assert found.values.tolist() == [[64, -127, 32], [0, 0, 0], [50, 127, -64]]
    assert found.values.dtype == torch.int8
    assert (found.to_float() - weight).abs().max() <= 1.0
    assert Int8Weight.of(weight.bfloat16()).scales.dtype == torch.float32
