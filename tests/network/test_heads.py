"""Pools and heads: what each takes of the tokens, and what it makes of them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.errors import ConfigError
from vitrail.insight import trace
from vitrail.insight.cost import estimate, shape_walk
from vitrail.insight.tracing import pool_weights, weigh_pool
from vitrail.network import Positions, ViT, ViTConfig
from vitrail.network.config import INITIALISATIONS
from vitrail.network.heads import AttentionPool, Head, Pool
from vitrail.network.surgery import build_empty, with_head
from vitrail.network.tokens import TokenLayout

BOTH = {"distillation_token": True, "pool": "cls+distillation"}


def build(**changes: Any) -> ViT:
    """A small model whose every parameter is random."""
    sizes = {"image_size": (8, 12), "patch_size": 4, "width": 16, "depth": 2, "heads": 4, "mlp_width": 24}
    model = ViT(ViTConfig(**{**sizes, "classes": 5, **changes})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return model


@pytest.fixture
def pixels() -> Tensor:
    return torch.randn(3, 3, 8, 12)


@pytest.mark.row("000.20", "000.24")
def test_embed_encode_norm_pool_head(pixels: Tensor) -> None:
    model = build()
    tokens = model.encode(pixels).tokens
    normed = F.layer_norm(tokens, (16,), model.norm.weight, model.norm.bias, 1e-6)
    expected = normed[:, 0] @ model.head.classify.weight.T + model.head.classify.bias
    torch.testing.assert_close(model(pixels), expected, atol=1e-5, rtol=1e-5)
    assert model.head.representation is None
    bare = build(classes=0)
    assert bare.head.classify is None
    assert list(bare.head.parameters()) == []
    torch.testing.assert_close(bare(pixels), bare.norm(bare.encode(pixels).tokens)[:, 0])


@pytest.mark.row("003.10")
def test_the_head_reads_token_0_alone_and_gap_the_patches_alone(pixels: Tensor) -> None:
    tokens = torch.randn(3, 9, 16)
    layout = TokenLayout((2, 3), 3)
    changed = tokens.clone()
    changed[:, 1:] += 1
    assert torch.equal(Pool("cls")(changed, layout), Pool("cls")(tokens, layout))
    changed = tokens.clone()
    changed[:, :3] += 1
    assert torch.equal(Pool("mean")(changed, layout), Pool("mean")(tokens, layout))
    model = build()
    trained = build(pool="mean")
    for each in (model, trained):  # both heads train: every parameter they read has a gradient
        each(pixels).square().sum().backward()
        assert each.head.classify.weight.grad.abs().max() > 0
        assert each.patches.projection.weight.grad.abs().max() > 0


@pytest.mark.row("4.GAP", "P.3")
@pytest.mark.parametrize("final_norm", ["tokens", "pooled", "none"])
@pytest.mark.parametrize("changes", [{}, {"registers": 4}, {"cls_token": False, "registers": 2}])
def test_gap_is_the_mean_of_patches_with_the_norm_before_or_after(
    pixels: Tensor, final_norm: str, changes: dict[str, Any]
) -> None:
    model = build(pool="mean", final_norm=final_norm, **changes)
    patches = model.encode(pixels).tokens[:, model.config.prefix :]
    assert patches.shape == (3, 6, 16)
    if final_norm == "tokens":
        pooled = model.norm(patches).mean(dim=1)
    elif final_norm == "pooled":
        pooled = model.norm(patches.mean(dim=1))
    else:
        pooled = patches.mean(dim=1)
        assert model.norm is None
    torch.testing.assert_close(model(pixels), model.head.classify(pooled), atol=1e-5, rtol=1e-5)


@pytest.mark.row("P.3")
def test_unpooled_heads_speak_for_every_token(pixels: Tensor) -> None:
    """token, gap, unpooled (patches only) and token_unpooled (all tokens) of the original code."""
    logits = build(pool="none")(pixels)
    assert logits.shape == (3, 7, 5)  # token_unpooled
    model = build(pool="none")
    tokens = model.norm(model.encode(pixels).tokens)
    torch.testing.assert_close(model(pixels), model.head.classify(tokens))
    cls = build(pool="cls")
    cls.load_state_dict(model.state_dict())
    torch.testing.assert_close(model(pixels)[:, 0], cls(pixels), atol=1e-6, rtol=1e-5)
    unpooled = build(pool="none", cls_token=False)
    assert unpooled(pixels).shape == (3, 6, 5)
    gap = build(pool="mean", cls_token=False)
    gap.load_state_dict(unpooled.state_dict())
    torch.testing.assert_close(unpooled(pixels).mean(dim=1), gap(pixels), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("final_norm", ["tokens", "none"])
@pytest.mark.parametrize("registers", [0, 2])
def test_the_cls_token_beside_the_mean_of_the_patches(pixels: Tensor, final_norm: str, registers: int) -> None:
    """One vector of twice the width: cls first, then patches alone, each after the final norm."""
    model = build(pool="cls+mean", registers=registers, final_norm=final_norm)
    tokens = model.normed(model.encode(pixels).tokens)
    expected = torch.cat((tokens[:, 0], tokens[:, 1 + registers :].mean(dim=1)), dim=1)
    assert model.head.classify.weight.shape == (5, 32)
    torch.testing.assert_close(model.embed(pixels), expected)
    torch.testing.assert_close(model(pixels), model.head.classify(expected), atol=1e-5, rtol=1e-5)
    seen = trace(model, pixels)
    torch.testing.assert_close(seen.pooled, expected)
    torch.testing.assert_close(seen.logits, model(pixels))
    share = torch.tensor([0.5] + [0.0] * registers + [0.5 / 6] * 6)
    torch.testing.assert_close(seen.pool_weights, share.expand(3, -1))


def test_two_vectors_side_by_side_with_a_representation_and_another_head(pixels: Tensor) -> None:
    """The layer with tanh reads both vectors; a new head without it is twice as wide as a token again."""
    model = build(pool="cls+mean", representation_width=24)
    assert model.head.representation.weight.shape == (24, 32)
    assert model.head.classify.weight.shape == (5, 24)
    both = model.pool(model.norm(model.encode(pixels).tokens), TokenLayout((2, 3), 1))
    expected = torch.tanh(both @ model.head.representation.weight.T + model.head.representation.bias)
    torch.testing.assert_close(trace(model, pixels).pooled, expected, atol=1e-5, rtol=1e-4)
    tuned = with_head(model, 3)
    assert torch.equal(tuned.head.classify.weight, torch.zeros(3, 32))
    torch.testing.assert_close(tuned.embed(pixels), both)
    kept = with_head(model, 3, keep_representation=True)
    torch.testing.assert_close(kept.embed(pixels), expected, atol=1e-5, rtol=1e-4)
    bare = with_head(model, 0)
    torch.testing.assert_close(bare(pixels), both)


def test_merged_tokens_count_for_all_they_hold_beside_the_cls_token() -> None:
    tokens, layout = torch.randn(1, 4, 16), TokenLayout((2, 3), 1, counts=torch.tensor([[1.0, 1.0, 3.0, 2.0]]))
    whole = tokens[:, [1, 2, 2, 2, 3, 3]].mean(dim=1)
    torch.testing.assert_close(Pool("cls+mean")(tokens, layout), torch.cat((tokens[:, 0], whole), dim=1))
    shares = pool_weights(tokens, layout, "cls+mean")
    torch.testing.assert_close(shares, torch.tensor([[6.0, 1.0, 3.0, 2.0]]) / 12)


def test_what_the_wider_head_costs() -> None:
    """Against the cls token alone: K more values of a token's width, and their products; the walk says both."""
    narrow, wide = ViTConfig(classes=10), ViTConfig(classes=10, pool="cls+mean")
    assert (narrow.pooled_width, wide.pooled_width) == (768, 1536)
    one, two = estimate(narrow), estimate(wide)
    assert two.parameters - one.parameters == two.multiply_adds - one.multiply_adds == 768 * 10
    steps = {step.name: step for step in shape_walk(wide)}
    assert steps["pool (cls+mean)"].shape == (1, 1536)
    assert steps["logits"].parameters == 1536 * 10 + 10


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"cls_token": False}, "pool 'cls[+]mean' needs cls_token=True, or choose pool 'mean'"),
        ({"final_norm": "pooled"}, "lays two side by side: use final_norm 'tokens'"),
        ({"distillation_token": True}, "read by pool 'cls[+]distillation' .got 'cls[+]mean'."),
    ],
)
def test_what_cannot_stand_beside_the_mean(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(pool="cls+mean", **changes)


@pytest.mark.row("P.3")
@pytest.mark.parametrize("pool", ["cls", "mean", "none", "map"])
def test_a_head_that_starts_from_zero_says_its_bias(pixels: Tensor, pool: str) -> None:
    model = ViT(
        ViTConfig(
            image_size=(8, 12),
            patch_size=4,
            width=16,
            depth=1,
            heads=4,
            mlp_width=24,
            classes=5,
            pool=pool,
            head_bias_init=-math.log(99),
        )
    )
    assert torch.equal(model.head.classify.weight, torch.zeros(5, 16))
    logits = model.eval()(pixels)
    torch.testing.assert_close(logits, torch.full_like(logits, -math.log(99)))
    torch.testing.assert_close(logits.sigmoid().mean(), torch.tensor(0.01))  # a prior of one in a hundred
    bare = build(pool=pool, head_bias=False)
    assert bare.head.classify.bias is None


@pytest.mark.row("000.21", "000.24", "P.3", "4.REP")
@pytest.mark.parametrize("width", [16, 40])
@pytest.mark.parametrize("pool", ["cls", "mean", "map", "none"])
def test_a_representation_layer_is_dense_and_tanh(pixels: Tensor, width: int, pool: str) -> None:
    model = build(representation_width=width, pool=pool)
    nn.init.normal_(model.head.representation.weight)
    seen = trace(model, pixels)
    layer = model.head.representation
    encoded = model.encode(pixels)
    vector = model.pool(model.norm(encoded.tokens), encoded.layout)
    expected = torch.tanh(vector @ layer.weight.T + layer.bias)
    assert layer.weight.shape == (width, 16)
    torch.testing.assert_close(seen.pooled, expected, atol=1e-5, rtol=1e-4)
    assert seen.pooled.abs().max() <= 1
    assert seen.pooled.abs().max() > 0.5
    torch.testing.assert_close(model(pixels), model.head.classify(expected), atol=1e-4, rtol=1e-4)
    flat = F.linear(F.linear(vector, layer.weight, layer.bias), model.head.classify.weight, model.head.classify.bias)
    assert (flat - model(pixels)).abs().max() > 0.05  # without tanh the two would be one linear map (E4)


@pytest.mark.row("000.24", "000.21")
def test_100_classes_on_the_representation_or_on_token_0() -> None:
    """Both heads at full size: on the tanh layer, and straight on the cls token (E22)."""
    pixels = torch.empty(32, 3, 224, 224, device="meta")
    pooled = build_empty(ViTConfig(classes=100, representation_width=768))
    straight = build_empty(ViTConfig(classes=100))
    assert pooled(pixels).shape == straight(pixels).shape == (32, 100)
    assert trace(pooled, pixels, attention=False, hidden=False).pooled.shape == (32, 768)
    counts = [sum(each.numel() for each in model.parameters()) for model in (pooled, straight)]
    assert counts[0] - counts[1] == 768 * 768 + 768
    assert counts[1] == 85_875_556


@pytest.mark.row("4.REP", "004.10")
@pytest.mark.parametrize("changes", [{}, {"pool": "map"}, {"norm": "batch"}])
def test_fine_tuning_drops_the_representation_and_keeps_the_rest(pixels: Tensor, changes: dict[str, Any]) -> None:
    model = build(representation_width=40, classes=9, **changes)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    tuned = with_head(model, 3)
    assert (tuned.config.classes, tuned.config.representation_width) == (3, 0)
    assert tuned.head.representation is None
    state = tuned.state_dict()
    assert {name for name in before if name.startswith("head.")} - set(state) == {
        "head.representation.weight",
        "head.representation.bias",
    }
    for name, value in state.items():
        if not name.startswith("head."):
            assert torch.equal(value, before[name]), name
            assert value.data_ptr() != model.state_dict()[name].data_ptr(), name  # its own memory
    assert torch.equal(state["head.classify.weight"], torch.zeros(3, 16))
    assert torch.equal(tuned.features(pixels).patches, model.features(pixels).patches)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert tuned.training is False
    assert with_head(model.train(), 3).training is True


@pytest.mark.row("4.REP", "004.10")
def test_the_hidden_layer_may_stay_while_the_last_is_reset(pixels: Tensor) -> None:
    model = build(representation_width=40, classes=9)
    tuned = with_head(model, 3, keep_representation=True)
    assert tuned.config.representation_width == 40
    assert torch.equal(tuned.head.representation.weight, model.head.representation.weight)
    assert torch.equal(tuned.head.representation.bias, model.head.representation.bias)
    assert torch.equal(tuned.head.classify.weight, torch.zeros(3, 40))
    first, second = trace(model, pixels), trace(tuned, pixels)
    assert torch.equal(first.pooled, second.pooled)
    assert torch.equal(second.logits, torch.zeros(3, 3))


@pytest.mark.row("004.10")
def test_swapped_heads_keep_dtype_and_may_be_absent(pixels: Tensor) -> None:
    model = build(**BOTH).to(torch.float64)
    tuned = with_head(model, 2)
    assert tuned.head.distil.weight.dtype == torch.float64
    assert torch.equal(tuned.head.distil.weight, torch.zeros(2, 16, dtype=torch.float64))
    bare = with_head(model, 0)
    embedding = bare(pixels.double())
    tokens = model.norm(model.encode(pixels.double()).tokens)
    torch.testing.assert_close(embedding, tokens[:, :2].mean(dim=1))


def test_two_heads_speak_for_two_tokens_and_the_mean_counts(pixels: Tensor) -> None:
    model = build(**BOTH, registers=2)
    assert model.head.distil is not None
    tokens = model.norm(model.encode(pixels).tokens)
    first = tokens[:, 0] @ model.head.classify.weight.T + model.head.classify.bias
    second = tokens[:, 1] @ model.head.distil.weight.T + model.head.distil.bias
    torch.testing.assert_close(model(pixels), (first + second) / 2, atol=1e-5, rtol=1e-5)
    one, other = model.head.both(trace(model, pixels).pooled)
    torch.testing.assert_close(one, first)
    torch.testing.assert_close(other, second)
    assert (first - second).abs().max() > 0.1


def softmax_pool(pool: AttentionPool, tokens: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """MAP step by step, head by head: the vector and the mean attention of the probe."""
    attention, width = pool.attention, pool.attention.head_width
    q, k, v = (
        F.linear(source, weight, each).unflatten(2, (attention.heads, width)).transpose(1, 2)
        for source, weight, each in zip(
            (pool.probe.expand(len(tokens), -1, -1), tokens, tokens),
            attention.qkv.weight.chunk(3),
            attention.qkv.bias.chunk(3),
            strict=True,
        )
    )
    scores = q @ k.mT / math.sqrt(width)
    weights = (scores if bias is None else scores + bias).softmax(dim=-1)  # (B, A, 1, T)
    x = attention.out((weights @ v).transpose(1, 2).flatten(2))
    x = x + pool.mlp.down(F.gelu(pool.mlp.up(pool.norm(x))))
    return x[:, 0], weights.mean(dim=1)[:, 0]


@pytest.mark.row("003.14")
def test_map_is_a_probe_that_attends_then_an_mlp(pixels: Tensor) -> None:
    """It looks at patches alone: prefix tokens have no weight."""
    model = build(pool="map", registers=1)
    encoded = model.encode(pixels)
    tokens = model.norm(encoded.tokens)
    vector, weights = softmax_pool(model.pool, tokens[:, 2:])
    torch.testing.assert_close(model.pool(tokens, encoded.layout), vector, atol=1e-5, rtol=1e-5)
    pooled = weigh_pool(model.pool, tokens, encoded.layout)
    torch.testing.assert_close(pooled.vector, vector, atol=1e-5, rtol=1e-5)
    assert pooled.weights[:, :2].abs().max() == 0
    torch.testing.assert_close(pooled.weights[:, 2:], weights, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(model(pixels), model.head.classify(vector), atol=1e-5, rtol=1e-5)
    assert weights.std() > 1e-3


def test_merged_tokens_count_for_all_they_hold() -> None:
    tokens = torch.randn(1, 4, 16)
    counts = torch.tensor([[1.0, 1.0, 3.0, 2.0]])
    layout = TokenLayout((2, 3), 1, counts=counts)
    whole = tokens[:, [1, 2, 2, 2, 3, 3]]
    torch.testing.assert_close(Pool("mean")(tokens, layout), whole.mean(dim=1))
    weights = pool_weights(tokens, layout, "mean")
    torch.testing.assert_close(weights, torch.tensor([[0, 1, 3, 2]]) / 6)
    pool = build(pool="map").pool
    vector, shares = softmax_pool(pool, tokens[:, 1:], counts[:, 1:].log()[:, None, None])
    pooled = weigh_pool(pool, tokens, layout)
    torch.testing.assert_close(pooled.vector, vector, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(pooled.weights, F.pad(shares, (1, 0)), atol=1e-6, rtol=1e-5)
    repeated = pool(tokens[:, [0, 1, 2, 2, 2, 3, 3]], TokenLayout((2, 3), 1))
    torch.testing.assert_close(pooled.vector, repeated, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("pool", ["cls", "mean", "cls+distillation"])
@pytest.mark.parametrize("merged", [0, 2])
def test_pool_weights_say_what_the_pool_took(pixels: Tensor, pool: str, merged: int) -> None:
    two = pool == "cls+distillation"
    model = build(pool=pool, distillation_token=two, registers=2, merge_per_block=merged)
    encoded = model.encode(pixels)
    pooled = weigh_pool(model.pool, encoded.tokens, encoded.layout)
    torch.testing.assert_close(pooled.weights.sum(dim=1), torch.ones(3))
    mean = (pooled.weights[..., None] * encoded.tokens).sum(dim=1)
    torch.testing.assert_close(mean, pooled.vector.mean(dim=1) if two else pooled.vector, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("style", INITIALISATIONS)
def test_every_style_leaves_a_head_that_learns(style: str) -> None:
    model = build(initialisation=style, positions=Positions("learned"))
    assert isinstance(model.head, Head)
    loss = F.cross_entropy(model(torch.randn(2, 3, 8, 12)), torch.tensor([0, 3]))
    loss.backward()
    assert model.head.classify.weight.grad.abs().max() > 1e-4
