"""The same numbers as transformers, with the same random weights, at sizes native and not."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from network import renames
from vitrail.insight import trace
from vitrail.network import Positions, Resample, Rotary, ViT, ViTConfig, patchify

SIZES = ((32, 32), (48, 48), (40, 24))  # native, larger, and not square
CLOSE = 1e-5  # of the largest absolute value, in fp32
PLAIN = Resample(antialias=False)  # bicubic, by size: how transformers reads positions on another grid
UNUSED = "embeddings.mask_token"  # of masked pre-training

SMALL: dict[str, Any] = {"image_size": 32, "patch_size": 8, "width": 64, "depth": 2, "heads": 4, "mlp_width": 128}
THEIRS: dict[str, Any] = {
    "image_size": 32,
    "patch_size": 8,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
}
Read = Callable[[Tensor], Tensor]


def small(**changes: Any) -> ViT:
    return ViT(ViTConfig(**{**SMALL, "classes": 0, "positions": Positions(resample=PLAIN), **changes})).eval()


def tokens_of(model: ViT) -> Read:
    """All tokens after the final norm."""
    return lambda pixels: trace(model, pixels, attention=False).tokens


def state_of(theirs: nn.Module) -> dict[str, Tensor]:
    """Their tensors, without the prefix of the tower and the token of masked pre-training."""
    stripped = {_bare(name): value for name, value in theirs.state_dict().items()}
    return {name: value for name, value in stripped.items() if name != UNUSED}


TOWERS = ("vit.", "deit.", "ijepa.", "vision_model.", "dinov2.", "dinov2_with_registers.")


def _bare(name: str) -> str:
    for tower in TOWERS:
        name = name.removeprefix(tower)
    return name


def assert_equal(ours: Read, theirs: Read) -> None:
    for size in SIZES:
        pixels = torch.randn(2, 3, *size)
        with torch.no_grad():
            difference = renames.gap(ours(pixels), theirs(pixels))
        assert difference < CLOSE, f"at {size}: {difference:.2e} of the largest value"


def assert_equal_both_ways(model: ViT, theirs: nn.Module, *reads: tuple[Read, Read]) -> None:
    """Their random weights in our network, then our random weights in theirs; every pair of readings equal."""
    renames.randomise(theirs)
    renames.to_ours(renames.HF, model, state_of(theirs))
    for ours, other in reads:
        assert_equal(ours, other)
    renames.randomise(model)
    given = renames.to_theirs(renames.HF, model, state_of(theirs))
    theirs.load_state_dict({name: given.get(_bare(name), value) for name, value in theirs.state_dict().items()})
    for ours, other in reads:
        assert_equal(ours, other)


@pytest.mark.row("P.10", "003.11")
def test_vit_with_its_pooler(transformers: ModuleType) -> None:
    """Tokens, and the pooler: a layer with tanh on the cls token, our representation layer."""
    theirs = transformers.ViTModel(transformers.ViTConfig(**THEIRS)).eval()
    ours = small(representation_width=64, norm_eps=1e-12)
    assert_equal_both_ways(
        ours,
        theirs,
        (tokens_of(ours), lambda pixels: theirs(pixels, interpolate_pos_encoding=True).last_hidden_state),
        (ours, lambda pixels: theirs(pixels, interpolate_pos_encoding=True).pooler_output),
    )


def test_vit_for_classification(transformers: ModuleType) -> None:
    """The head stands on the cls token after the final norm, without a pooler."""
    theirs = transformers.ViTForImageClassification(transformers.ViTConfig(**THEIRS, num_labels=10)).eval()
    ours = small(classes=10, norm_eps=1e-12)
    assert_equal_both_ways(ours, theirs, (ours, lambda pixels: theirs(pixels, interpolate_pos_encoding=True).logits))


@pytest.mark.row("002.05")
@pytest.mark.parametrize("act, activation", [("gelu_new", "gelu_tanh"), ("relu", "relu"), ("silu", "silu")])
def test_other_activations_and_no_qkv_bias(transformers: ModuleType, act: str, activation: str) -> None:
    config = transformers.ViTConfig(**THEIRS, num_labels=10, hidden_act=act, qkv_bias=False, layer_norm_eps=1e-6)
    theirs = transformers.ViTForImageClassification(config).eval()
    ours = small(classes=10, activation=activation, qkv_bias="none")
    assert_equal_both_ways(ours, theirs, (ours, lambda pixels: theirs(pixels, interpolate_pos_encoding=True).logits))


def test_distilled_deit(transformers: ModuleType) -> None:
    """Both heads apart, and their mean."""
    config = transformers.DeiTConfig(**THEIRS, num_labels=10)
    theirs = transformers.DeiTForImageClassificationWithTeacher(config).eval()
    ours = small(classes=10, distillation_token=True, pool="cls+distillation", norm_eps=1e-12)

    def head(which: int) -> Read:
        return lambda pixels: ours.head.both(tokens_of(ours)(pixels)[:, :2])[which]

    def run(pixels: Tensor) -> Any:
        return theirs(pixels, interpolate_pos_encoding=True)

    assert_equal_both_ways(
        ours,
        theirs,
        (ours, lambda pixels: run(pixels).logits),
        (head(0), lambda pixels: run(pixels).cls_logits),
        (head(1), lambda pixels: run(pixels).distillation_logits),
    )


DINOV2 = {**THEIRS, "mlp_ratio": 2, "layer_norm_eps": 1e-6}


@pytest.mark.parametrize("swiglu", [False, True])
def test_dinov2(transformers: ModuleType, swiglu: bool) -> None:
    """transformers reads positions by size; the original by a scale with an offset, which it does not follow."""
    theirs = transformers.Dinov2Model(transformers.Dinov2Config(**DINOV2, use_swiglu_ffn=swiglu)).eval()
    mlp = {"mlp": "swiglu", "activation": "silu", "mlp_width": 88} if swiglu else {}  # 128 * 2/3, up to eights
    ours = small(layer_scale=1.0, **mlp)
    assert_equal_both_ways(ours, theirs, (tokens_of(ours), lambda pixels: theirs(pixels).last_hidden_state))


@pytest.mark.row("4.REG")
def test_dinov2_with_registers(transformers: ModuleType) -> None:
    """Positions first, then registers between cls and patches; here the resampling has antialias."""
    config = transformers.Dinov2WithRegistersConfig(**DINOV2, num_register_tokens=4)
    theirs = transformers.Dinov2WithRegistersModel(config).eval()
    ours = small(layer_scale=1.0, registers=4, positions=Positions())
    assert_equal_both_ways(ours, theirs, (tokens_of(ours), lambda pixels: theirs(pixels).last_hidden_state))


@pytest.mark.parametrize("registers", [0, 4])
def test_dinov2_for_classification(transformers: ModuleType, registers: int) -> None:
    """The head reads the cls token beside the mean of the patches; registers are in neither."""
    if registers:
        config = transformers.Dinov2WithRegistersConfig(**DINOV2, num_register_tokens=registers, num_labels=10)
        theirs = transformers.Dinov2WithRegistersForImageClassification(config).eval()
    else:
        theirs = transformers.Dinov2ForImageClassification(transformers.Dinov2Config(**DINOV2, num_labels=10)).eval()
    positions = Positions() if registers else Positions(resample=PLAIN)
    ours = small(classes=10, pool="cls+mean", layer_scale=1.0, registers=registers, positions=positions)
    assert ours.head.classify.weight.shape == theirs.classifier.weight.shape == (10, 128)
    assert_equal_both_ways(ours, theirs, (ours, lambda pixels: theirs(pixels).logits))


@pytest.mark.row("4.ROPE", "4.REG")
@pytest.mark.parametrize("gated", [False, True])
def test_dinov3(transformers: ModuleType, gated: bool) -> None:
    """Rotary positions in DINOv3's form, registers, and no bias on the keys."""
    act = "silu" if gated else "gelu"
    config = transformers.DINOv3ViTConfig(**THEIRS, num_register_tokens=4, use_gated_mlp=gated, hidden_act=act)
    theirs = transformers.DINOv3ViTModel(config).eval()
    ours = small(
        rotary=Rotary("dinov3", 100.0),
        positions=Positions("none"),
        registers=4,
        qkv_bias="no-key",
        layer_scale=1.0,
        norm_eps=1e-5,
        mlp="swiglu" if gated else "plain",
        activation=act,
    )
    assert_equal_both_ways(ours, theirs, (tokens_of(ours), lambda pixels: theirs(pixels).last_hidden_state))


def test_clip(transformers: ModuleType) -> None:
    """A norm before the encoder, quick GELU, no bias on patches and head; the logits are the joint embedding.

    transformers gives the last hidden state before the norm that its pooled output has gone through.
    """
    config = transformers.CLIPVisionConfig(**THEIRS, projection_dim=16)
    theirs = transformers.CLIPVisionModelWithProjection(config).eval()
    changes = {"embedding_norm": True, "activation": "quick_gelu", "patch_bias": False, "head_bias": False}
    ours = small(classes=16, norm_eps=1e-5, **changes)
    assert_equal_both_ways(
        ours,
        theirs,
        (ours, lambda pixels: theirs(pixels, interpolate_pos_encoding=True).image_embeds),
        (
            lambda pixels: ours.encode(pixels).tokens,
            lambda pixels: theirs(pixels, interpolate_pos_encoding=True).last_hidden_state,
        ),
    )


def test_siglip(transformers: ModuleType) -> None:
    """No cls token, the tanh form of GELU, attention pooling; tokens too."""
    theirs = transformers.SiglipVisionModel(transformers.SiglipVisionConfig(**THEIRS)).eval()
    positions = Positions(prefix=False, resample=PLAIN)
    ours = small(cls_token=False, pool="map", activation="gelu_tanh", positions=positions)
    assert_equal_both_ways(
        ours,
        theirs,
        (ours, lambda pixels: theirs(pixels, interpolate_pos_encoding=True).pooler_output),
        (tokens_of(ours), lambda pixels: theirs(pixels, interpolate_pos_encoding=True).last_hidden_state),
    )


def channels_last(weight: Tensor, patch: int = 8) -> Tensor:
    """A matrix over patches flattened as (row, column, channel), as one over (channel, row, column)."""
    return weight.unflatten(1, (patch, patch, 3)).permute(0, 3, 1, 2).flatten(1)


def test_siglip2(transformers: ModuleType) -> None:
    """SigLIP 2 of any size: patches come flattened, channels last; positions are read bilinearly, antialiased.

    A row of padding, which the mask leaves out, changes nothing.
    """
    sizes = {name: value for name, value in THEIRS.items() if name != "image_size"}
    theirs = transformers.Siglip2VisionModel(transformers.Siglip2VisionConfig(**sizes, num_patches=16)).eval()
    positions = Positions(prefix=False, resample=Resample("bilinear"))
    ours = small(cls_token=False, pool="map", activation="gelu_tanh", positions=positions)
    renames.randomise(theirs)
    state = state_of(theirs)
    state["embeddings.patch_embedding.weight"] = channels_last(state["embeddings.patch_embedding.weight"])
    renames.to_ours(renames.HF, ours, state)

    def run(pixels: Tensor, padding: int) -> Any:
        patches = patchify(pixels, 8, channels_last=True)
        b, n, _ = patches.shape
        grid = torch.tensor([[pixels.shape[2] // 8, pixels.shape[3] // 8]]).expand(b, -1)
        mask = torch.ones(b, n + padding, dtype=torch.int64)
        mask[:, n:] = 0
        padded = nn.functional.pad(patches, (0, 0, 0, padding))
        return theirs(padded, pixel_attention_mask=mask, spatial_shapes=grid)

    for padding in (0, 5):
        assert_equal(ours, lambda pixels, padding=padding: run(pixels, padding).pooler_output)
    assert_equal(tokens_of(ours), lambda pixels: run(pixels, 0).last_hidden_state)


def test_ijepa(transformers: ModuleType) -> None:
    """No cls token, no slots; the head reads the mean of the patches after the final norm."""
    theirs = transformers.IJepaForImageClassification(transformers.IJepaConfig(**THEIRS, num_labels=10)).eval()
    positions = Positions(prefix=False, resample=PLAIN)
    ours = small(classes=10, cls_token=False, pool="mean", positions=positions, norm_eps=1e-12)
    assert_equal_both_ways(ours, theirs, (ours, lambda pixels: theirs(pixels, interpolate_pos_encoding=True).logits))


def test_msn(transformers: ModuleType) -> None:
    """A plain ViT with the cls token and an eps of 1e-6."""
    theirs = transformers.ViTMSNForImageClassification(transformers.ViTMSNConfig(**THEIRS, num_labels=10)).eval()
    ours = small(classes=10)
    assert_equal_both_ways(ours, theirs, (ours, lambda pixels: theirs(pixels, interpolate_pos_encoding=True).logits))


@pytest.mark.row("003.07", "4.SIN")
def test_mae_encoder(transformers: ModuleType) -> None:
    """Nothing masked, patches in order; the fixed positions are the same before any copying.

    A fresh model of transformers 5 leaves its positions at zero: it fills them only where the patch projection has
    not been filled before, and by then it has. Its own method gives what its files hold.
    """
    theirs = transformers.ViTMAEModel(transformers.ViTMAEConfig(**THEIRS, mask_ratio=0.0)).eval()
    theirs.embeddings.patch_embeddings.projection._is_hf_initialized = False
    theirs.embeddings.initialize_weights()
    ours = small(positions=Positions("sincos-2d", resample=PLAIN), norm_eps=1e-12)
    table = ours.tokens.tables[0].table
    fixed = theirs.embeddings.position_embeddings
    assert not fixed.requires_grad
    assert renames.gap(table, fixed[0].detach()) < 1e-6
    renames.randomise(theirs, keep=("embeddings.position_embeddings",))
    renames.to_ours(renames.HF, ours, state_of(theirs))

    def run(pixels: Tensor) -> Tensor:
        patches = (pixels.shape[2] // 8) * (pixels.shape[3] // 8)
        order = torch.arange(patches, dtype=torch.float32).expand(len(pixels), -1)
        return theirs(pixels, noise=order, interpolate_pos_encoding=True).last_hidden_state

    assert_equal(tokens_of(ours), run)


@pytest.mark.row("003.13")
def test_the_base_model_with_pooler_has_as_many_parameters(transformers: ModuleType) -> None:
    from vitrail.insight.cost import count_parameters
    from vitrail.network.surgery import build_empty

    with torch.device("meta"):
        theirs = transformers.ViTModel(transformers.ViTConfig())
    ours = build_empty(ViTConfig(classes=0, representation_width=768))
    assert count_parameters(ours) == count_parameters(theirs) == 86_389_248
