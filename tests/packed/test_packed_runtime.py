"""Packed networks: the same answers as eager, from pixels and from bytes, and what happens without the kernels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import vitrail
from shipping.packs import VARIANTS, checkpoint, make_images, network
from vitrail import Checkpoint
from vitrail.errors import ConfigError, InputError
from vitrail.packed import packed_runtime
from vitrail.packed.onednn_kernels import KernelProbe
from vitrail.packed.packed_layers import PackedLinear
from vitrail.packed.packed_runtime import Packed
from vitrail.packed.packing import pack
from vitrail.quantisation.quant_plan import QuantPlan
from vitrail.quantisation.range_calibration import calibrate


@pytest.mark.parametrize("name", VARIANTS)
def test_packed_fp32_answers_as_eager_does(name: str) -> None:
    made = checkpoint(**VARIANTS[name])
    runtime = Packed(made)
    pixels = np.random.default_rng(1).standard_normal((3, 3, 32, 32), np.float32)
    for ours, theirs in zip(runtime.run(pixels), made.run(pixels), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5 * np.abs(theirs).max())
    assert runtime.notes == ()
    assert runtime.precision == "fp32"
    layers = [each for each in runtime.model.modules() if isinstance(each, PackedLinear)]
    assert len(layers) >= 4 * made.model.config.depth + 1  # nothing was left as it was


@pytest.mark.parametrize("name", ["plain", "layer scale, no key bias", "rotary", "merging", "merging by tokens"])
def test_packed_bf16_answers_as_a_bf16_network_does(name: str) -> None:
    made = checkpoint(**VARIANTS[name])
    runtime = Packed(made, QuantPlan("bf16"))
    pixels = np.random.default_rng(1).standard_normal((2, 3, 32, 32), np.float32)
    logits, _ = runtime.run(pixels)
    exact, _ = made.run(pixels)
    assert logits.dtype == np.float32
    assert np.abs(logits - exact).max() < 0.1 * np.abs(exact).max()
    assert next(made.model.parameters()).dtype == torch.float32  # the one given stays as it was
    assert runtime.weight_bytes < 0.6 * Packed(made).weight_bytes


# ---- int8 --------------------------------------------------------------------------------------------------------


def test_a_kernel_that_is_gone_falls_back_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    made = checkpoint()
    pixels = np.random.default_rng(0).standard_normal((1, 3, 32, 32), np.float32)
    ranges = calibrate(made.model, [torch.from_numpy(pixels)])
    monkeypatch.setattr(packed_runtime, "probe", lambda name: KernelProbe(name != "int8", "no such operator"))
    runtime = Packed(made, QuantPlan("fp32", ranges))
    assert runtime.notes == ("int8 is not available (no such operator): fp32 is used instead",)
    assert runtime.precision == "fp32"
    monkeypatch.setattr(packed_runtime, "probe", lambda name: KernelProbe(False, "no such operator"))
    runtime = Packed(made, QuantPlan("bf16"))
    assert "packed bf16 is not available (no such operator)" in runtime.notes[0]
    assert runtime.notes[1] == "packed layers are not available (no such operator): the network runs eager"
    assert runtime.precision == "eager"
    assert runtime.plan is None
    np.testing.assert_array_equal(runtime.run(pixels)[0], made.run(pixels)[0])


def test_bf16_without_units_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_runtime, "has_bf16_units", lambda: False)
    assert "no bf16 units" in Packed(checkpoint(), QuantPlan("bf16")).notes[0]
    monkeypatch.setattr(packed_runtime, "has_bf16_units", lambda: True)
    assert Packed(checkpoint(), QuantPlan("bf16")).notes == ()


def test_a_network_that_packs_wrongly_is_never_used(monkeypatch: pytest.MonkeyPatch) -> None:
    other = pack(network(seed=1), QuantPlan())
    monkeypatch.setattr(packed_runtime, "pack", lambda *given: other)
    with pytest.raises(vitrail.VitrailError, match="differs from the eager one: its logits on random pixels are"):
        Packed(checkpoint(seed=0))


def test_arrays_in_any_order_are_taken() -> None:
    made = checkpoint()
    values = np.stack([made.preprocess.to_uint8(each) for each in make_images(2)])
    expected, _ = Packed(made).run_uint8(np.ascontiguousarray(values[:, :, ::-1]))
    found, _ = Packed(made).run_uint8(values[:, :, ::-1])
    np.testing.assert_array_equal(found, expected)


# ---- mistakes ----------------------------------------------------------------------------------------------------


def test_mistakes_are_told() -> None:
    made = checkpoint()
    with pytest.raises(InputError, match="expected pixels as a float array, got uint8"):
        Packed(made).run(np.zeros((1, 3, 32, 32), np.uint8))
    with pytest.raises(InputError, match=r"expected 8-bit values \(B, H, W, C\), got float32"):
        Packed(made).run_uint8(np.zeros((1, 32, 32, 3), np.float32))
    with pytest.raises(InputError, match="no such layers: encoder.blocks.9.mlp.up"):
        Packed(made, QuantPlan("fp32", {"encoder.blocks.9.mlp.up": (-1.0, 1.0)}))
    with pytest.raises(ConfigError, match="must rise from low to high"):
        QuantPlan("fp32", {"encoder.blocks.0.mlp.up": (1.0, 1.0)})
    with pytest.raises(ConfigError, match="precision 'fp16' is unknown"):
        QuantPlan("fp16")
    with pytest.raises(InputError, match="expected Checkpoint"):
        Packed(made.model)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="no images to calibrate on"):
        calibrate(made.model, [])
    with pytest.raises(InputError, match="no pool"):
        Packed(replace(made, model=network(pool="none"), classes=())).run(np.zeros((1, 3, 32, 32), np.float32))


def test_the_real_network_packs(fixtures: object) -> None:
    made = vitrail.load(f"{fixtures}/vit_tiny_patch16_224_in1k.safetensors")
    assert isinstance(made, Checkpoint)
    pixels = torch.randn(2, 3, 224, 224).numpy()
    found, expected = Packed(made).run(pixels)[0], made.run(pixels)[0]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
