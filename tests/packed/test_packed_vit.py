"""A packed network is a ViT: any size, maps and masks; compiled or not, it answers the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

import vitrail
from shipping.packs import VARIANTS, attending, checkpoint
from vitrail.network import ConvStem, Positions
from vitrail.packed.packed_file import open_packed, save_packed
from vitrail.packed.packed_runtime import Packed
from vitrail.packed.packed_vit import PackedBlock
from vitrail.packed.packing import Dtypes
from vitrail.quantisation.quant_plan import QuantPlan, quantisable

ENDS = {
    "embedding norm": {"embedding_norm": True},
    "stem": {"stem": ConvStem((8, 16)), "patch_size": 2},
    "at every block": {"positions": Positions("learned", at="every")},
}


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
        *(("fp32", 48, "torch"), ("bf16", 48, "products"), ("bf16", 48, "torch")),
        *(("int8", 64, "torch"), ("int8+bf16", 64, "torch"), ("int8+bf16", 64, "products")),
        *(("some int8+bf16", 64, "products"), ("some int8", 64, "torch")),
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
