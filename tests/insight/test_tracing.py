"""trace: exact on every kind of network; its weights make the outputs that the network made."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import vitrail
from vitrail.errors import InputError
from vitrail.insight import Trace, trace
from vitrail.network import ConvStem, Positions, Rotary, ViT, ViTConfig

NONE = Positions("none")
BOTH = {"distillation_token": True, "pool": "cls+distillation"}

KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    # every pool
    "mean": {"pool": "mean"},
    "map": {"pool": "map"},
    "cls+distillation": BOTH,
    "unpooled": {"pool": "none"},
    "mean, no prefix": {"pool": "mean", "cls_token": False},
    "mean, norm after": {"pool": "mean", "final_norm": "pooled"},
    "no final norm": {"final_norm": "none"},
    "representation": {"representation_width": 9},
    # every position
    "no positions": {"positions": NONE},
    "learned at every block": {"positions": Positions(at="every"), "registers": 2},
    "learned, shared": {"positions": Positions(at="shared")},
    "learned, no slots": {"positions": Positions(prefix=False)},
    "learned-2d": {"positions": Positions("learned-2d")},
    "learned-2d at every block": {"positions": Positions("learned-2d", at="every")},
    "relative": {"positions": Positions("relative"), "registers": 1},
    "sincos-1d": {"positions": Positions("sincos-1d")},
    "sincos-2d": {"positions": Positions("sincos-2d")},
    "sincos-2d-moco, shared": {"positions": Positions("sincos-2d-moco", at="shared")},
    # every rotary kind
    "rotary axial": {"rotary": Rotary("axial")},
    "rotary mixed": {"rotary": Rotary("mixed", 10.0), "positions": NONE, "registers": 2},
    "rotary dinov3": {"rotary": Rotary("dinov3"), "positions": NONE, "qkv_bias": "no-key"},
    # every block
    "axial": {"axial": True, "registers": 2},
    "axial, no prefix, rotary": {"axial": True, "rotary": Rotary(), "cls_token": False, "pool": "mean"},
    "merging": {"merge_per_block": 1, "pool": "mean"},
    "merging, map, rotary": {"merge_per_block": 2, "pool": "map", "rotary": Rotary("mixed", 10.0)},
    "parallel": {"parallel": True, "layer_scale": 0.5},
    "qk norm, wide heads": {"qk_norm": True, "head_width": 8, "qkv_bias": "none"},
    "swiglu, batch norm": {"mlp": "swiglu", "activation": "silu", "norm": "batch"},
    "embedding norm, pruned": {"embedding_norm": True, "kept_heads": ((0, 2), (1,), (0, 1, 2, 3))},
    "stem": {"stem": ConvStem((4,)), "patch_size": 2},
}


def build(**changes: Any) -> ViT:
    """A small model whose every parameter is random; three blocks, 2x3 patches."""
    sizes = {"image_size": (8, 12), "patch_size": 4, "width": 16, "depth": 3, "heads": 4, "mlp_width": 24}
    model = ViT(ViTConfig(**{**sizes, "classes": 5, **changes})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.25)
        if model.config.norm == "batch":  # statistics to evaluate with
            for each in model.modules():
                if isinstance(each, nn.BatchNorm1d):
                    each.momentum = 1.0
            model.train()(torch.randn(8, 3, 8, 12))
    return model.eval()


def values_of(model: ViT, seen: Trace, index: int) -> Tensor:
    """The values of a block, recomputed from what entered it: (B, A, T, d)."""
    block = model.encoder.blocks[index]
    grid = model.config.grid
    additions = model.tokens.additions(grid)
    x = seen.hidden[index] + additions[index] if additions else seen.hidden[index]
    attention = block.attention
    third = attention.heads * attention.head_width
    bias = attention.value_bias if attention.qkv.bias is None else attention.qkv.bias[2 * third :]
    values = F.linear(block.norm1(x), attention.qkv.weight[2 * third :], bias)
    return values.unflatten(2, (attention.heads, attention.head_width)).transpose(1, 2)


@pytest.fixture
def pixels() -> Tensor:
    return torch.randn(2, 3, 8, 12)


@pytest.mark.row("000.11", "000.12", "001.06")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("masked", [False, True])
def test_weights_times_values_are_what_the_block_gathered(pixels: Tensor, kind: str, masked: bool) -> None:
    model = build(**KINDS[kind])
    outputs: list[Tensor] = []
    for block in model.encoder.blocks:
        block.attention.out.register_forward_hook(lambda _, __, output: outputs.append(output))
    mask = torch.rand(3, 4) if masked else None
    logits = model(pixels, head_mask=mask)
    fused = list(outputs)
    outputs.clear()
    seen = trace(model, pixels, head_mask=mask)
    torch.testing.assert_close(seen.logits, logits, atol=1e-5, rtol=1e-5)
    assert len(seen.attention) == 3
    assert len(seen.hidden) == 4
    for index, weights in enumerate(seen.attention):
        tokens = seen.hidden[index].shape[1]
        kept = model.config.heads_of(index)
        assert weights.shape == (2, len(kept), tokens, tokens)
        assert weights.min() >= 0
        assert (weights.sum(dim=-1) - 1).abs().max() < 1e-6
        gathered = weights @ values_of(model, seen, index)
        if mask is not None:
            gathered = gathered * mask[index, list(kept)].view(-1, 1, 1)
        output = model.encoder.blocks[index].attention.out(gathered.transpose(1, 2).flatten(2))
        torch.testing.assert_close(output, fused[index], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(outputs[index], fused[index], atol=1e-5, rtol=1e-5)


@pytest.mark.row("000.12", "000.11")
def test_twelve_blocks_leave_thirteen_hidden_states(pixels: Tensor) -> None:
    model = build(depth=12)
    seen = trace(model, pixels)
    assert len(seen.hidden) == 13
    assert len(seen.attention) == 12
    embedded, layout = model.tokens(model.patches(pixels), (2, 3))
    torch.testing.assert_close(seen.hidden[0], embedded)
    torch.testing.assert_close(seen.hidden[5], model.encoder.blocks[4](seen.hidden[4], layout).tokens)
    torch.testing.assert_close(seen.hidden[12], model.encode(pixels).tokens, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(seen.tokens, model.norm(seen.hidden[12]))  # the last is before the final norm
    assert (seen.tokens - seen.hidden[12]).abs().max() > 0.1


@pytest.mark.row("000.13")
def test_read_by_name_or_unpacked(pixels: Tensor) -> None:
    model = build()
    seen = vitrail.trace(model, pixels)
    assert isinstance(seen, vitrail.Trace)
    tokens, pooled, logits, hidden, attention, pool_weights = seen
    assert tokens is seen.tokens
    assert pooled is seen.pooled
    assert logits is seen.logits
    assert hidden is seen.hidden
    assert attention is seen.attention
    assert pool_weights is seen.pool_weights
    torch.testing.assert_close(pooled, model.norm(hidden[-1])[:, 0])
    bare = trace(model, pixels, attention=False, hidden=False)
    assert len(bare) == 6  # fields never move
    assert (bare.hidden, bare.attention) == ((), ())
    torch.testing.assert_close(bare.logits, logits, atol=1e-5, rtol=1e-5)
    assert torch.equal(bare.logits, model(pixels))


@pytest.mark.row("000.11", "001.06")
def test_blocks_come_in_the_order_asked_for(pixels: Tensor) -> None:
    model = build(depth=4)
    everything = trace(model, pixels).attention
    for blocks in ([2], [3, 0], [-1], [-4, 1], [1, 1], (2, -2), range(4)):
        chosen = trace(model, pixels, blocks=blocks).attention
        assert len(chosen) == len(blocks)
        for weights, block in zip(chosen, blocks, strict=True):
            torch.testing.assert_close(weights, everything[block], atol=1e-6, rtol=1e-5)
    assert (everything[0] - everything[1]).abs().max() > 1e-3


@pytest.mark.parametrize("block", [3, -4, 1.0, "last", None])
def test_unknown_blocks_are_named(pixels: Tensor, block: Any) -> None:
    with pytest.raises(InputError) as caught:
        trace(build(), pixels, blocks=[0, block])
    assert str(caught.value) == f"blocks: expected a whole number from -3 to 2, got {block!r}"


@pytest.mark.row("001.06")
def test_only_the_blocks_asked_for_leave_the_fused_kernel(pixels: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(depth=4)
    fused: list[int] = []
    kernel = F.scaled_dot_product_attention

    def counted(*args: Any, **options: Any) -> Tensor:
        fused.append(1)
        return kernel(*args, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", counted)
    for blocks, left in ((None, 0), ([1], 3), ([0, -1], 2), ([], 4)):
        fused.clear()
        trace(model, pixels, blocks=blocks)
        assert len(fused) == left
    fused.clear()
    trace(model, pixels, attention=False)
    assert len(fused) == 4
    fused.clear()
    model(pixels)
    assert len(fused) == 4  # a plain call stays on it


@pytest.mark.row("000.11")
@pytest.mark.parametrize("kind", KINDS)
def test_a_logit_has_a_gradient_at_the_weights_of_every_block(pixels: Tensor, kind: str) -> None:
    model = build(**KINDS[kind])
    seen = trace(model, pixels)
    gradients = torch.autograd.grad(seen.logits[..., 2].sum(), seen.attention)
    for gradient, weights in zip(gradients, seen.attention, strict=True):
        assert gradient.shape == weights.shape
        assert gradient.abs().amax(dim=(1, 2, 3)).min() > 1e-6  # for each image
    (chosen,) = trace(model, pixels, blocks=[-2]).attention
    assert chosen.requires_grad


def test_the_gradient_is_the_slope(pixels: Tensor) -> None:
    """Against a small step: weights of one head moved by hand, the logit recomputed."""
    model = build(depth=1).double()
    seen = trace(model, pixels.double())
    (gradient,) = torch.autograd.grad(seen.logits[0, 1], seen.attention)
    (block,) = model.encoder.blocks
    values = values_of(model, seen, 0)

    def logit(weights: Tensor) -> Tensor:
        x = seen.hidden[0] + block.attention.out((weights @ values).transpose(1, 2).flatten(2))
        x = x + block.mlp(block.norm2(x))
        return model.head.classify(model.norm(x)[:, 0])[0, 1]

    step = torch.zeros_like(seen.attention[0])
    step[0, 2, 0, 3] = 1e-6
    slope = (logit(seen.attention[0] + step) - logit(seen.attention[0] - step)) / 2e-6
    torch.testing.assert_close(slope, gradient[0, 2, 0, 3], atol=1e-7, rtol=1e-5)


@pytest.mark.row("000.10")
@pytest.mark.parametrize("shape", ["heads", "blocks"])
def test_rows_are_given_before_the_mask_and_a_masked_head_is_silent(pixels: Tensor, shape: str) -> None:
    model = build()
    inputs: list[Tensor] = []
    for block in model.encoder.blocks:
        block.attention.out.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    mask = torch.ones(3, 4)
    mask[:, 1], mask[:, 2] = 0.0, 0.5
    if shape == "heads":
        mask = mask[0]
    plain = trace(model, pixels)
    unmasked = list(inputs)
    inputs.clear()
    seen = trace(model, pixels, head_mask=mask)
    torch.testing.assert_close(seen.attention[0], plain.attention[0], atol=1e-6, rtol=1e-5)
    heads = inputs[0].unflatten(-1, (4, 4))
    assert heads[..., 1, :].abs().max() == 0
    torch.testing.assert_close(heads[..., 2, :], unmasked[0].unflatten(-1, (4, 4))[..., 2, :] / 2)
    torch.testing.assert_close(heads[..., 3, :], unmasked[0].unflatten(-1, (4, 4))[..., 3, :])
    for weights in seen.attention:
        assert (weights.sum(-1) - 1).abs().max() < 1e-6
    with pytest.raises(InputError, match="head_mask: expected a tensor .4,. or .3, 4., got .4, 3."):
        trace(model, pixels, head_mask=torch.ones(4, 3))


@pytest.mark.parametrize("merged", [0, 1])
def test_pool_weights_are_what_the_pool_took(pixels: Tensor, merged: int) -> None:
    def weights(**changes: Any) -> Tensor:
        seen = trace(build(merge_per_block=merged, **changes), pixels)
        assert seen.pool_weights.shape == seen.tokens.shape[:2]
        torch.testing.assert_close(seen.pool_weights.sum(dim=1), torch.ones(2))
        return seen.pool_weights

    left = 6 - 3 * merged
    assert torch.equal(weights(registers=2), torch.eye(3 + left)[0].expand(2, -1))
    two = weights(**BOTH)
    assert torch.equal(two, torch.tensor([0.5, 0.5] + [0.0] * left).expand(2, -1))
    mean = weights(pool="mean", registers=2)
    assert mean[:, :3].abs().max() == 0
    if merged:
        sixths = mean[:, 3:] * 6
        torch.testing.assert_close(sixths, sixths.round())  # by how many patches each token holds
        assert sixths.max() >= 2
    else:
        torch.testing.assert_close(mean[:, 3:], torch.full((2, 6), 1 / 6))
    if not merged:
        assert torch.equal(weights(pool="none"), torch.full((2, 7), 1 / 7))

    model = build(merge_per_block=merged, pool="map")
    seen = trace(model, pixels)
    counts = model.encode(pixels).layout.counts
    attention, patches = model.pool.attention, seen.tokens[:, 1:]
    query = F.linear(model.pool.probe, attention.qkv.weight[:16], attention.qkv.bias[:16]).reshape(1, 4, 1, 4)
    keys = F.linear(patches, attention.qkv.weight[16:32], attention.qkv.bias[16:32])
    scores = query @ keys.reshape(2, left, 4, 4).permute(0, 2, 3, 1) / 2
    if counts is not None:
        scores = scores + counts[:, None, None, 1:].log()
    expected = scores.softmax(dim=-1).mean(dim=1)[:, 0]  # the probe's own attention to the patches
    torch.testing.assert_close(seen.pool_weights[:, 1:], expected, atol=1e-5, rtol=1e-4)
    assert seen.pool_weights[:, 0].abs().max() == 0
    assert expected.std(dim=1).min() > 1e-3
    (gradient,) = torch.autograd.grad(seen.logits.sum(), seen.attention[:1])
    assert gradient.abs().max() > 0


@pytest.mark.row("P.5")
def test_axial_maps_have_zeros_off_the_line(pixels: Tensor) -> None:
    seen = trace(build(axial=True, registers=1), pixels)
    for index, weights in enumerate(seen.attention):
        patches = weights[:, :, 2:, 2:]
        for i in range(6):
            for j in range(6):
                same = i // 3 == j // 3 if index % 2 == 0 else i % 3 == j % 3
                assert bool((patches[:, :, i, j] > 0).all()) == same
        assert (weights[:, :, :2] > 0).all()  # prefix tokens see all
        assert (weights[:, :, :, :2] > 0).all()  # and are seen by all


def test_a_trace_while_training_is_the_pass_that_was_made(pixels: Tensor) -> None:
    model = build(dropout=0.3, attention_dropout=0.3, drop_path=0.3).train()
    model.encoder.checkpointing = True
    seen = trace(model, pixels)
    for weights in seen.attention:
        assert (weights.sum(-1) - 1).abs().max() < 1e-6  # before dropout
    torch.testing.assert_close(seen.logits, model.head(model.norm(seen.hidden[-1])[:, 0]))
    gradients = torch.autograd.grad(seen.logits.sum(), seen.attention)
    assert max(float(each.abs().max()) for each in gradients) > 0  # drop path may silence a block


def test_other_sizes_are_traced_too() -> None:
    model = build(rotary=Rotary())
    pixels = torch.randn(1, 3, 16, 8)
    seen = trace(model, pixels)
    assert seen.attention[0].shape == (1, 4, 9, 9)
    torch.testing.assert_close(seen.logits, model(pixels), atol=1e-5, rtol=1e-5)


def test_tracing_leaves_no_trace_on_the_model(pixels: Tensor) -> None:
    model = build()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    first = trace(model, pixels)
    second = trace(model, pixels)
    assert torch.equal(first.logits, second.logits)
    assert len(second.attention) == 3  # nothing piles up from call to call (E46)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    assert not any(isinstance(each, nn.Module) and each._forward_hooks for each in model.modules())


def test_blocks_that_are_no_list_or_not_wanted() -> None:
    model = ViT(ViTConfig(image_size=8, patch_size=4, width=8, depth=2, heads=2, mlp_width=8, classes=3)).eval()
    pixels = torch.randn(1, 3, 8, 8)
    with pytest.raises(InputError, match="expected a list of numbers, got 1"):
        trace(model, pixels, blocks=1)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="attention=False"):
        trace(model, pixels, attention=False, blocks=[0])
