"""MaskedDecoder: every patch from the few that were kept, the same numbers as transformers' ViTMAE."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from network import renames
from vitrail.errors import ConfigError, InputError
from vitrail.network import ConvStem, MaskedDecoder, Positions, Resample, Rotary, ViT, ViTConfig

CLOSE = 1e-5  # of the largest absolute value, in fp32
FIXED = Positions("sincos-2d", resample=Resample(antialias=False))
SMALL: dict[str, Any] = {"image_size": 32, "patch_size": 8, "norm_eps": 1e-6, "initialisation": "mae"}
ENCODER = ViTConfig(width=64, depth=2, heads=4, mlp_width=128, classes=0, positions=FIXED, **SMALL)
DECODER = ViTConfig(width=48, depth=3, heads=6, mlp_width=80, classes=8 * 8 * 3, pool="none", positions=FIXED, **SMALL)
N = 16  # patches at the native size

THEIRS: dict[str, Any] = {
    "image_size": 32,
    "patch_size": 8,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "decoder_hidden_size": 48,
    "decoder_num_hidden_layers": 3,
    "decoder_num_attention_heads": 6,
    "decoder_intermediate_size": 80,
    "layer_norm_eps": 1e-6,
}

POSITIONS = ("vit.embeddings.position_embeddings", "decoder.decoder_pos_embed")
OURS, LAYER = "encoder.blocks.{i}.", "decoder_layers.{i}."
ROWS: renames.Table = (
    ("entry", "decoder_embed"),
    ("mask_token", "mask_token"),
    ("positions.table", "decoder_pos_embed"),
    (OURS + "norm1", LAYER + "layernorm_before"),
    (OURS + "attention.qkv", tuple(f"{LAYER}attention.{each}_proj" for each in "qkv")),
    (OURS + "attention.out", LAYER + "attention.o_proj"),
    (OURS + "norm2", LAYER + "layernorm_after"),
    (OURS + "mlp.up", LAYER + "mlp.fc1"),
    (OURS + "mlp.down", LAYER + "mlp.fc2"),
    ("norm", "decoder_norm"),
    ("predict", "decoder_pred"),
)


def lively(config: ViTConfig = DECODER) -> MaskedDecoder:
    """A decoder whose every parameter is random; fixed positions stay."""
    decoder = MaskedDecoder(config, entering=64).eval()
    renames.randomise(decoder)
    return decoder


def shuffled(b: int, n: int = N) -> tuple[Tensor, Tensor]:
    """A random order of the patches, other for each image, and the place of each patch in it."""
    order = torch.rand(b, n).argsort(dim=1)
    return order, order.argsort(dim=1)


def kept_tokens(model: ViT, pixels: Tensor, kept: Tensor) -> Tensor:
    """The encoder on the cls token and the kept patches alone: (B, 1 + kept, D), after the final norm."""
    grid = model.config.grid_for((pixels.shape[2], pixels.shape[3]))
    tokens, place = model.tokens(model.patches(pixels), grid)
    patches = tokens[:, 1:].gather(1, kept[..., None].expand(-1, -1, tokens.shape[2]))
    return model.normed(model.encoder(torch.cat((tokens[:, :1], patches), dim=1), place).tokens)


# ---- the same numbers as transformers ----------------------------------------------------------------------------


@pytest.fixture
def mae(transformers: ModuleType) -> Any:
    """transformers' model of masked pre-training, random; its positions, zeros when fresh, are those of its files."""

    def build(
        ratio: float, keep: tuple[str, ...] = ("vit.embeddings.position_embeddings", "decoder.decoder_pos_embed")
    ):
        theirs = transformers.ViTMAEForPreTraining(transformers.ViTMAEConfig(**THEIRS, mask_ratio=ratio)).eval()
        theirs.vit.embeddings.patch_embeddings.projection._is_hf_initialized = False
        theirs.vit.embeddings.initialize_weights()
        theirs.decoder.initialize_weights(N)
        renames.randomise(theirs, keep)
        return theirs

    return build


def from_theirs(theirs: Any, config: ViTConfig = DECODER) -> MaskedDecoder:
    decoder = MaskedDecoder(config, entering=64).eval()
    renames.to_ours(ROWS, decoder, theirs.decoder.state_dict())
    return decoder


@pytest.mark.row("003.07")
def test_the_fixed_positions_are_the_same_before_any_copying(mae: Any) -> None:
    table = MaskedDecoder(DECODER, entering=64).positions.table
    assert not table.requires_grad
    assert table[0].abs().max() == 0  # the slot of the cls token
    assert renames.gap(table, mae(0.75).decoder.decoder_pos_embed[0]) < 1e-6


@pytest.mark.row("003.07")
@pytest.mark.parametrize("ratio", [0.0, 0.5, 0.75])
def test_the_same_as_their_decoder_on_their_tokens(mae: Any, ratio: float) -> None:
    theirs = mae(ratio)
    ours = from_theirs(theirs)
    with torch.no_grad():
        seen = theirs.vit(torch.randn(3, 3, 32, 32))
        assert seen.last_hidden_state.shape == (3, 1 + round(N * (1 - ratio)), 64)
        values = ours(seen.last_hidden_state, seen.ids_restore)
        assert renames.gap(values, theirs.decoder(seen.last_hidden_state, seen.ids_restore).logits) < CLOSE
        given = renames.to_theirs(ROWS, lively(), theirs.decoder.state_dict())
        theirs.decoder.load_state_dict(given)  # and back: our random weights in theirs
        ours = from_theirs(theirs)
        values = ours(seen.last_hidden_state, seen.ids_restore)
        assert renames.gap(values, theirs.decoder(seen.last_hidden_state, seen.ids_restore).logits) < CLOSE


@pytest.mark.row("003.07")
@pytest.mark.parametrize("ratio", [0.0, 0.75])
def test_encoder_and_decoder_together_give_their_logits(mae: Any, ratio: float) -> None:
    """Pixels in, values of every patch out, with the same order of patches on both sides."""
    theirs = mae(ratio)
    encoder = ViT(ENCODER).eval()
    renames.to_ours(renames.HF, encoder, theirs.vit.state_dict())
    decoder = from_theirs(theirs)
    pixels, noise = torch.randn(2, 3, 32, 32), torch.rand(2, N)
    order = noise.argsort(dim=1)
    with torch.no_grad():
        tokens = kept_tokens(encoder, pixels, order[:, : round(N * (1 - ratio))])
        values = decoder(tokens, order.argsort(dim=1))
        assert renames.gap(values, theirs(pixels, noise=noise).logits) < CLOSE


def test_learned_positions(mae: Any) -> None:
    """Positions that were trained on, or are not the fixed ones for any other reason, are loaded as learned."""
    theirs = mae(0.75, keep=())
    ours = from_theirs(theirs, replace(DECODER, positions=Positions(resample=Resample(antialias=False))))
    assert ours.positions.table.requires_grad
    with torch.no_grad():
        seen = theirs.vit(torch.randn(2, 3, 32, 32))
        logits = theirs.decoder(seen.last_hidden_state, seen.ids_restore).logits
        assert renames.gap(ours(seen.last_hidden_state, seen.ids_restore), logits) < CLOSE


def test_another_size_reads_positions_on_the_grid(mae: Any) -> None:
    """transformers resamples the decoder's positions along one line of patches, as if the image had one row.

    With positions of the right grid in its hands it gives our numbers; with its own it is far from them.
    """
    theirs = mae(0.75)
    ours = from_theirs(theirs)
    with torch.no_grad():
        seen = theirs.vit(torch.randn(2, 3, 48, 40), interpolate_pos_encoding=True)
        tokens, restore = seen.last_hidden_state, seen.ids_restore
        values = ours(tokens, restore, grid=(6, 5))
        assert values.shape == (2, 30, 192)
        along_a_line = theirs.decoder(tokens, restore, interpolate_pos_encoding=True).logits
        assert renames.gap(values, along_a_line) > 0.05
        theirs.decoder.decoder_pos_embed = nn.Parameter(ours.positions((6, 5))[None])
        assert renames.gap(values, theirs.decoder(tokens, restore).logits) < CLOSE


# ---- what it is --------------------------------------------------------------------------------------------------


def test_every_parameter_takes_part() -> None:
    decoder = lively()
    tokens, (_, restore) = torch.randn(2, 5, 64), shuffled(2)
    with torch.no_grad():
        before = decoder(tokens, restore)
        for name, parameter in decoder.named_parameters():
            kept = parameter.clone()
            parameter.add_(0.05 * torch.randn_like(parameter))
            assert renames.gap(decoder(tokens, restore), before) > 100 * CLOSE, name
            parameter.copy_(kept)


def test_each_kept_patch_returns_to_its_place() -> None:
    """Whatever the order, patch i gets the token of patch i, and the masked ones the mask token."""
    decoder = lively()
    order, restore = shuffled(3)
    kept = torch.randn(3, 4, 64)
    filled = decoder._fill(decoder.entry(kept), restore)
    for image in range(3):
        for place, patch in enumerate(order[image].tolist()):
            expected = decoder.entry(kept[image, place]) if place < 4 else decoder.mask_token[0]
            torch.testing.assert_close(filled[image, patch], expected)


def test_with_nothing_masked_the_order_of_patches_is_free() -> None:
    decoder = lively()
    tokens, (order, restore) = torch.randn(2, 1 + N, 64), shuffled(2)
    straight = torch.arange(N).expand(2, -1)
    moved = tokens[:, 1:].gather(1, order[..., None].expand(-1, -1, 64))
    with torch.no_grad():
        expected = decoder(tokens, straight)
        given = decoder(torch.cat((tokens[:, :1], moved), dim=1), restore)
    torch.testing.assert_close(given, expected, atol=1e-5, rtol=1e-5)


def test_the_cls_token_alone_is_enough() -> None:
    values = lively()(torch.randn(2, 1, 64), shuffled(2)[1])
    assert values.shape == (2, N, 192)
    assert (values[:, 0] - values[:, 1]).abs().max() > 0.01  # positions tell them apart


def test_a_fresh_decoder_starts_as_in_mae() -> None:
    """Xavier uniform in every dense layer, the last too, biases zero; the mask token normal 0.02."""
    decoder = MaskedDecoder(replace(DECODER, width=384, heads=6, mlp_width=1536, depth=1), entering=768)
    layers = {"entry": (768, 384), "predict": (384, 192), "encoder.blocks.0.mlp.up": (384, 1536)}
    for name, (entering, leaving) in layers.items():
        layer = decoder.get_submodule(name)
        bound = (6 / (entering + leaving)) ** 0.5
        assert layer.weight.abs().max() <= bound
        assert float(layer.weight.detach().std()) == pytest.approx(bound / 3**0.5, rel=0.02), name
        assert layer.bias.abs().max() == 0
    assert float(decoder.mask_token.detach().std()) == pytest.approx(0.02, rel=0.15)
    assert torch.equal(decoder.norm.weight, torch.ones(384))


def test_the_decoder_of_the_base_model_by_its_parameters() -> None:
    """Eight blocks of 512, as MAE has beside ViT-B: counted by hand, without memory."""
    config = ViTConfig(width=512, depth=8, heads=16, mlp_width=2048, classes=768, pool="none", positions=FIXED)
    with torch.device("meta"):
        decoder = MaskedDecoder(config, entering=768)
        values = decoder(torch.empty(2, 50, 768), torch.empty(2, 196, dtype=torch.int64))
    assert values.shape == (2, 196, 768)
    assert decoder.positions.table.is_meta
    block = 4 * 512 * 512 + 2 * 512 * 2048 + 4 * 512 + 2048 + 512 + 4 * 512
    by_hand = (768 + 1) * 512 + 512 + 8 * block + 2 * 512 + (512 + 1) * 768
    assert sum(each.numel() for each in decoder.parameters()) == by_hand


def test_gradients_reach_the_tokens_and_the_mask_token() -> None:
    decoder = lively().train()
    tokens = torch.randn(2, 5, 64, requires_grad=True)
    decoder(tokens, shuffled(2)[1]).square().mean().backward()
    assert tokens.grad is not None
    assert decoder.mask_token.grad is not None
    assert tokens.grad.abs().amax(dim=(0, 2)).min() > 0
    assert decoder.mask_token.grad.abs().max() > 0


# ---- what it refuses ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"classes": 10}, "expected classes=192, the values of a patch of 8x8 in 3 channels, got 10"),
        ({"pool": "cls"}, "expected pool='none', got 'cls'"),
        ({"positions": Positions("none")}, "expected positions of kind learned, sincos-1d"),
        ({"positions": Positions(prefix=False)}, "with a slot for the cls token.*prefix=False"),
        ({"positions": Positions(at="shared")}, "added at the stem"),
        ({"cls_token": False}, "expected cls_token=True, got False"),
        ({"registers": 2}, "expected registers=0, got 2"),
        ({"rotary": Rotary()}, "expected rotary=None"),
        ({"stem": ConvStem((8,)), "patch_size": 4, "classes": 48}, "expected stem=None"),
    ],
)
def test_a_config_that_describes_no_decoder(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MaskedDecoder(replace(DECODER, **changes), entering=64)


def test_a_width_that_is_none() -> None:
    with pytest.raises(ConfigError, match="entering: expected a whole number from 1"):
        MaskedDecoder(DECODER, entering=0)


@pytest.mark.parametrize(
    "tokens, restore, message",
    [
        (
            torch.randn(2, 5, 48),
            torch.arange(N).expand(2, -1),
            r"\(B, 1 \+ kept, 64\), got torch.float32 \(2, 5, 48\)",
        ),
        (torch.randn(2, 18, 64), torch.arange(N).expand(2, -1), "at most 16 patches, a grid of 4x4, got 18 tokens"),
        (torch.randn(2, 5, 64), torch.arange(20).expand(2, -1), r"int64 \(2, 16\).*got torch.int64 \(2, 20\); .*grid="),
        (torch.randn(2, 5, 64), torch.arange(N).expand(3, -1), r"int64 \(2, 16\)"),
        (torch.randn(2, 5, 64), torch.rand(2, N), "got torch.float32"),
        (torch.randn(2, 5, 64), torch.zeros(2, N, dtype=torch.int64), "each number from 0 to 15 once in every row"),
        (torch.randn(2, 5, 64), 1 + torch.arange(N).expand(2, -1), "each number from 0 to 15 once in every row"),
        ([[1.0]], torch.arange(N).expand(2, -1), r"got \[\[1.0\]\]"),
    ],
)
def test_tokens_that_cannot_be_put_back(tokens: Any, restore: Tensor, message: str) -> None:
    with pytest.raises(InputError, match=message):
        lively()(tokens, restore)
