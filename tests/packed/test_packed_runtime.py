"""Packed networks: the same answers as eager, from pixels and from bytes, and what happens without the kernels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

import vitrail
from shipping.packs import VARIANTS, attending, checkpoint, make_images, network
from vitrail import Checkpoint, Preprocess
from vitrail.errors import ConfigError, InputError, VitrailError
from vitrail.network import ConvStem, Positions
from vitrail.packed import onednn_kernels as kernels
from vitrail.packed import packed_runtime, packed_vit
from vitrail.packed import torchscript_program as program
from vitrail.packed.onednn_kernels import KernelProbe
from vitrail.packed.packed_file import open_packed, save_packed
from vitrail.packed.packed_layers import Int8Linear, PackedLinear
from vitrail.packed.packed_runtime import Packed
from vitrail.packed.packed_vit import PackedBlock
from vitrail.packed.packing import Dtypes, pack
from vitrail.quantisation.fake_quant import fake_quantise
from vitrail.quantisation.folding import fold
from vitrail.quantisation.quant_plan import QuantPlan, Range, quantisable
from vitrail.quantisation.range_calibration import calibrate, rank_sensitivity


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


def test_what_comes_after_the_blocks_is_fp32() -> None:
    made = checkpoint(pool="map", cls_token=False)
    runtime = Packed(made, QuantPlan("bf16"))
    assert {each.dtype for part in ("norm", "pool", "head") for each in getattr(runtime.model, part).parameters()} == {
        torch.float32
    }
    assert runtime.model.encoder.blocks[0].norm1.weight.dtype == torch.bfloat16
    logits = runtime.run(np.random.default_rng(1).standard_normal((4, 3, 32, 32), np.float32))[0]
    assert not np.array_equal(logits, torch.from_numpy(logits).bfloat16().float().numpy())  # no steps of bf16


def test_bf16_networks_that_merge_are_compared_loosely(monkeypatch: pytest.MonkeyPatch) -> None:
    """On random pixels rounding decides what merges: as far as that may move the answers, and no further."""
    both = [(checkpoint(), 0.1), (checkpoint(merge_per_block=2), 0.3)]
    noise = packed_runtime._noise(Packed(both[0][0]))
    for made, most in both:
        exact = torch.cat([made.model(each) for each in noise]).detach()
        for share in (0.9, 1.1):
            apart = exact + share * most * exact.abs().max()
            monkeypatch.setattr(packed_runtime, "proof", lambda runtime, apart=apart: apart)
            if share < 1:
                assert Packed(made, QuantPlan("bf16")).difference == pytest.approx(share * most, rel=0.01)
                continue
            with pytest.raises(VitrailError, match=f"expected at most {most:g}"):
                Packed(made, QuantPlan("bf16"))


def test_the_network_given_is_left_alone() -> None:
    made = checkpoint(layer_scale=0.5)
    before = {name: value.clone() for name, value in made.model.state_dict().items()}
    Packed(made, QuantPlan("bf16"))
    after = made.model.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert isinstance(made.model.encoder.blocks[0].attention.qkv, nn.Linear)


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


@pytest.mark.parametrize("size", [(32, 32), (48, 32), (64, 96)])
def test_other_sizes_and_batches(size: tuple[int, int]) -> None:
    made = checkpoint()
    runtime = Packed(made)
    for batch in (1, 7, 33):
        pixels = torch.randn(batch, 3, *size)
        with torch.inference_mode():
            expected = made.model(pixels)
            found = runtime.model(pixels)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5 * float(expected.abs().max()))


def test_attention_maps_come_out_of_a_packed_network() -> None:
    made = checkpoint()
    pixels = torch.randn(1, 3, 32, 32)
    with torch.inference_mode():
        ours, theirs = (vitrail.trace(each, pixels) for each in (Packed(made).model, made.model))
    for a, b in zip(ours.attention, theirs.attention, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-5)


def test_head_masks_work_on_a_packed_network() -> None:
    made = checkpoint()
    mask = torch.tensor([1.0, 0.0, 0.5, 1.0])
    pixels = torch.randn(2, 3, 32, 32)
    with torch.inference_mode():
        expected = made.model(pixels, head_mask=mask)
        torch.testing.assert_close(Packed(made).model(pixels, head_mask=mask), expected, rtol=1e-4, atol=1e-4)


ENDS = {
    "embedding norm": {"embedding_norm": True},
    "stem": {"stem": ConvStem((8, 16)), "patch_size": 2},
    "at every block": {"positions": Positions("learned", at="every")},
}


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        *(("plain", True), ("registers, mean", True), ("pruned", True), ("tanh gelu", True)),
        *(("merging", True), ("merging by tokens", True), ("merging by tokens, mean", True)),
        *(("no biases", True), ("distillation", True), ("attention pool", True)),
        *(("embedding norm", True), ("patch norms", True), ("stem", True)),
        *(("swiglu", False), ("rotary", False), ("qk norm", False), ("relative", False), ("at every block", False)),
    ],
)
@pytest.mark.parametrize(
    "precision, width, attention",  # heads of 12; or 16, whose scale goes into int8 steps
    [
        *(("fp32", 48, "kernels"), ("fp32", 48, "torch")),
        *(("bf16", 48, "kernels"), ("bf16", 48, "products"), ("bf16", 48, "torch")),
        *(("int8", 64, "kernels"), ("int8+bf16", 64, "kernels"), ("int8+bf16", 64, "products")),
        *(("some int8+bf16", 64, "kernels"), ("some int8", 64, "torch")),
    ],
)
def test_the_compiled_forward_gives_what_the_usual_one_does(
    name: str, plain: bool, precision: str, width: int, attention: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    attending(monkeypatch, attention)
    made = checkpoint(width=width, **(VARIANTS | ENDS)[name])
    int8 = dict.fromkeys(quantisable(made.model), (-3.0, 3.0)) if "int8" in precision else {}
    if "some" in precision:  # queries of the second block come scaled, others not
        int8 = {name: ends for name, ends in int8.items() if name.startswith("encoder.blocks.1")}
    plan = QuantPlan("bf16" if "bf16" in precision else "fp32", int8)
    model = Packed(made, plan).model
    assert (model.compiled is not None) == plain
    pixels = torch.randn(3, 3, 48, 32).to(Dtypes.of(plan).tokens)
    seen: list[int] = []
    with torch.inference_mode():
        compiled = model(pixels)
        hook = model.encoder.blocks[1].attention.qkv.register_forward_hook(lambda *_: seen.append(1))
        usual = model(pixels)
    assert seen == [1]  # who listens at a layer hears it
    assert torch.equal(compiled, usual)
    with torch.inference_mode():
        for ours, theirs in zip(Packed(made, plan).model.features(pixels), model.features(pixels), strict=True):
            assert (
                ours == theirs if isinstance(ours, tuple) else torch.equal(ours, theirs)
            )  # merged ones at their places
    seen.clear()
    hook.remove()
    with torch.inference_mode():
        assert torch.equal(model(pixels), usual)
        assert torch.equal(model(pixels[:1]), model(pixels[:1]))  # nothing of an image stays behind
        assert seen == []
        hook = register_module_forward_hook(lambda each, *_: seen.append(2) if isinstance(each, PackedBlock) else None)
        model(pixels)
    hook.remove()
    assert seen == [2, 2, 2]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_no_image_gives_no_answer(precision: str) -> None:
    logits, embedding = Packed(checkpoint(), QuantPlan(precision)).run(np.zeros((0, 3, 32, 32), np.float32))
    assert (logits.shape, embedding.shape) == ((0, 5), (0, 48))


# ---- int8 --------------------------------------------------------------------------------------------------------


def simulated(model: vitrail.ViT, ranges: dict[str, Range], pixels: torch.Tensor) -> torch.Tensor:
    """The same arithmetic in floats."""
    with torch.inference_mode():
        return fake_quantise(fold(model).eval(), QuantPlan("fp32", ranges))(pixels)


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
    assert sum(isinstance(each, Int8Linear) for each in runtime.model.modules()) == 4 * made.model.config.depth
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


def test_some_layers_in_int8_and_the_others_not() -> None:
    made = checkpoint()
    pixels = torch.randn(4, 3, 32, 32)
    ranges = calibrate(made.model, [pixels])
    for kept in ("encoder.blocks.1.mlp.up", "encoder.blocks.1.mlp.down", "encoder.blocks.0.attention.out"):
        some = {name: ends for name, ends in ranges.items() if name != kept}
        found, _ = Packed(made, QuantPlan("fp32", some)).run(pixels.numpy())
        expected = simulated(made.model, some, pixels).numpy()
        assert np.abs(found - expected).max() < 0.02 * np.abs(expected).max()


# ---- without the kernels ------------------------------------------------------------------------------------------


def test_every_kernel_here_was_probed() -> None:
    for precision in ("fp32", "bf16", "int8"):
        assert kernels.probe(precision) == KernelProbe(True)


def test_a_wrong_kernel_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    true = kernels.linear
    kernels.probe.cache_clear()
    monkeypatch.setattr(kernels, "linear", lambda *given: true(*given) * 1.01)
    try:
        found = kernels.probe("fp32")
    finally:
        kernels.probe.cache_clear()
    assert not found.works
    assert "differ from plain torch by 0.01" in found.why


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


@pytest.mark.parametrize("error", [RuntimeError("not supported"), AttributeError("script"), OSError("no source"), None])
def test_without_an_interpreter_kernels_are_called_from_python(
    error: Exception | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = checkpoint()
    pixels = np.random.default_rng(0).standard_normal((2, 3, 32, 32), np.float32)
    expected = Packed(made).run(pixels)[0]

    def script(module: nn.Module) -> nn.Module:
        if error is not None:
            raise error
        return module  # as where PYTORCH_JIT=0 switches it off

    monkeypatch.setattr(torch.jit, "script", script)
    runtime = Packed(made)
    assert runtime.model.compiled is None
    why = "it is switched off" if error is None else str(error)
    said = f"kernels are called from Python, slower for small networks: torch's interpreter is not there ({why})"
    assert runtime.notes == (said,)
    np.testing.assert_array_equal(runtime.run(pixels)[0], expected)
    save_packed(runtime, made, tmp_path / "packed.safetensors")
    assert open_packed(tmp_path / "packed.safetensors").notes == (said,)
    assert Packed(checkpoint(mlp="swiglu", activation="silu")).notes == ()  # which goes that way anywhere


def test_bf16_without_units_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_runtime, "has_bf16_units", lambda: False)
    assert "no bf16 units" in Packed(checkpoint(), QuantPlan("bf16")).notes[0]
    monkeypatch.setattr(packed_runtime, "has_bf16_units", lambda: True)
    assert Packed(checkpoint(), QuantPlan("bf16")).notes == ()


def test_a_network_that_packs_wrongly_is_never_used(monkeypatch: pytest.MonkeyPatch) -> None:
    other = pack(network(seed=1), QuantPlan())
    monkeypatch.setattr(packed_runtime, "pack", lambda *given: other)
    with pytest.raises(vitrail.VitrailError, match="differs from the eager one by"):
        Packed(checkpoint(seed=0))


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


@pytest.mark.parametrize("name", ["plain", "merging", "merging by tokens", "attention pool"])
def test_a_large_batch_in_pieces_gives_what_it_gives_at_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = checkpoint(**(VARIANTS | ENDS)[name])
    pixels = torch.randn(7, 3, 48, 32)
    once = Packed(made).model
    tokens, width = made.model.config.prefix + 6 * 4, made.model.config.width
    monkeypatch.setattr(program, "AT_ONCE", 3 * tokens * width)
    asked: list[int] = []
    right = program.compile_program

    def counted(made: program.Program) -> program.CompiledProgram:
        asked.append(made.at_once)
        return right(made)

    monkeypatch.setattr(packed_vit, "compile_program", counted)
    pieces = Packed(made).model
    assert asked == [3 * tokens * width]
    with torch.inference_mode():
        torch.testing.assert_close(pieces(pixels), once(pixels), rtol=0, atol=1e-5)
        for ours, theirs in zip(pieces.features(pixels), once.features(pixels), strict=True):
            if isinstance(ours, tuple):
                assert ours == theirs
            else:
                torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
        if "merging" not in name:  # which wants an image
            assert pieces(pixels[:0]).shape == once(pixels[:0]).shape == (0, once.config.classes)


@pytest.mark.parametrize("images, at_once", [(0, 1), (1, 1), (3, 3), (4, 2), (7, 3), (16, 3)])
def test_pieces_are_as_few_as_may_be_and_of_one_size(images: int, at_once: int) -> None:
    assert program._at_once(images, 10, 39) == at_once
    assert program._at_once(images, 100, 39) == 1  # one image at least
