"""Attention: against plain re-computation, torch's own kernel and torch's own module."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from vitrail.insight.tracing import KeepWeights
from vitrail.network import Attention, Positions, ViTConfig
from vitrail.network.attention import axial_mask, causal_kernel
from vitrail.network.tokens import TokenLayout

BIASES = ["all", "none", "no-key"]


def build(width: int = 16, heads: int = 4, head_width: int = 4, **options: Any) -> Attention:
    """Attention whose every parameter is random."""
    causal = options.pop("causal", False)
    attention = Attention(width, heads, head_width, **options).eval()
    if causal:
        attention.kernel = causal_kernel
    for name, parameter in attention.named_parameters():
        nn.init.normal_(parameter, mean=1.0 if "norm" in name else 0.0, std=0.4)
    return attention


def split(attention: Attention, x: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values by three separate dense layers, each (B, A, T, d)."""
    inner = attention.heads * attention.head_width
    weights = attention.qkv.weight.split(inner)
    zeros = torch.zeros(inner)
    if attention.query_bias is not None:
        biases = (attention.query_bias, zeros, attention.value_bias)
    else:
        biases = attention.qkv.bias.split(inner) if attention.qkv.bias is not None else (zeros,) * 3
    sources = (x, x if context is None else context, x if context is None else context)
    projected = [F.linear(source, w, b) for source, w, b in zip(sources, weights, biases, strict=True)]
    q, k, v = (
        each.reshape(len(each), each.shape[1], attention.heads, attention.head_width).transpose(1, 2)
        for each in projected
    )
    return q, k, v


class Attended(NamedTuple):
    output: Tensor
    weights: Tensor


def explicitly(attention: Attention, *given: Tensor | None, **options: Any) -> Attended:
    """The same by a kernel that keeps the weights."""
    causal = attention.kernel is causal_kernel
    kernel = KeepWeights(options.pop("rows", ()), causal)
    return Attended(attention(*given, **options, kernel=kernel), kernel.weights)


def plainly(attention: Attention, x: Tensor, context: Tensor | None = None, unseen: Tensor | None = None) -> Tensor:
    """Softmax of scaled products, head by head, joined and projected."""
    q, k, v = split(attention, x, context)
    heads = []
    for head in range(attention.heads):
        scores = q[:, head] @ k[:, head].transpose(1, 2) / math.sqrt(attention.head_width)
        if unseen is not None:
            scores = scores.masked_fill(unseen, -math.inf)
        heads.append(scores.softmax(dim=-1) @ v[:, head])
    return attention.out(torch.cat(heads, dim=-1))


@pytest.fixture
def x() -> Tensor:
    return torch.randn(2, 7, 16)


@pytest.mark.row("000.08", "000.09", "002.03", "003.03", "004.08")
@pytest.mark.parametrize("bias", BIASES)
@pytest.mark.parametrize("heads, head_width", [(4, 4), (1, 16), (4, 32), (3, 5)])
def test_one_fused_projection_equals_three(x: Tensor, bias: str, heads: int, head_width: int) -> None:
    attention = build(16, heads, head_width, qkv_bias=bias)
    q, k, v = split(attention, x)
    assert q.shape == k.shape == v.shape == (2, heads, 7, head_width)
    assert attention.qkv.weight.shape == (3 * heads * head_width, 16)
    assert attention.out.weight.shape == (16, heads * head_width)  # back to the width, whatever the heads are
    torch.testing.assert_close(attention(x), plainly(attention, x), atol=1e-5, rtol=1e-5)
    attended = explicitly(attention, x)
    torch.testing.assert_close(attended.output, plainly(attention, x), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(attention.project(x)[1], k)


@pytest.mark.row("000.08")
def test_b16_heads_are_12_of_64() -> None:
    with torch.device("meta"):
        attention, x = Attention(768, 12, 64), torch.empty(32, 197, 768)
        attended = explicitly(attention, x)
    assert attention.project(x)[1].shape == (32, 12, 197, 64)
    assert attended.weights.shape == (32, 12, 197, 197)


@pytest.mark.row("000.08", "002.03")
def test_which_projections_have_a_bias() -> None:
    assert build(qkv_bias="all").qkv.bias.shape == (48,)
    none = build(qkv_bias="none")
    assert none.qkv.bias is None
    assert none.query_bias is None
    no_key = build(qkv_bias="no-key")
    assert no_key.qkv.bias is None
    assert no_key.query_bias.shape == no_key.value_bias.shape == (16,)
    # a bias on keys moves all scores of a row alike, so "all" with any key bias gives what "no-key" gives
    full = build(qkv_bias="all")
    full.load_state_dict(
        {
            "qkv.weight": no_key.qkv.weight,
            "qkv.bias": torch.cat((no_key.query_bias, torch.randn(16), no_key.value_bias)),
            "out.weight": no_key.out.weight,
            "out.bias": no_key.out.bias,
        }
    )
    x = torch.randn(2, 7, 16)
    torch.testing.assert_close(full(x), no_key(x), atol=1e-5, rtol=1e-5)


@pytest.mark.row("000.09")
def test_equals_torch_kernel(x: Tensor) -> None:
    attention = build()
    q, k, v = split(attention, x)
    gathered = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
    for output in (attention(x), explicitly(attention, x).output):
        torch.testing.assert_close(output, attention.out(gathered), atol=1e-5, rtol=0)


@pytest.mark.row("000.09")
def test_the_scale_is_of_the_head_width_not_the_width(x: Tensor) -> None:
    """The known trap E3: dividing by the root of the full width makes attention too flat."""
    attention = build()
    weights = explicitly(attention, x).weights
    q, k, _ = split(attention, x)
    torch.testing.assert_close(weights, (q @ k.transpose(-2, -1) / 4**0.5).softmax(-1), atol=1e-6, rtol=1e-5)
    flat = (q @ k.transpose(-2, -1) / 16**0.5).softmax(-1)
    assert (weights - flat).abs().max() > 0.05
    entropy = [-(each * each.log()).sum(-1).mean() for each in (weights, flat)]
    assert entropy[0] < entropy[1]


QUERIES = np.array([[1, 0, 2], [2, 2, 2], [2, 1, 3]], dtype=np.float64)
KEYS = np.array([[0, 1, 1], [4, 4, 0], [2, 3, 1]], dtype=np.float64)
VALUES = np.array([[1, 2, 3], [2, 8, 0], [2, 6, 3]], dtype=np.float64)


def toy(scale: float) -> Attention:
    """One head of three that projects unit vectors to the toy's queries, keys and values, unchanged on the way out."""
    attention = Attention(3, 1, 3, qkv_bias="none").double()
    with torch.no_grad():
        attention.qkv.weight.copy_(torch.from_numpy(np.concatenate((QUERIES.T * scale, KEYS.T, VALUES.T))))
        attention.out.weight.copy_(torch.eye(3))
        attention.out.bias.zero_()
    return attention


@pytest.mark.row("002.04")
def test_the_toy_example() -> None:
    scores = QUERIES @ KEYS.T
    assert scores.tolist() == [[2, 4, 4], [4, 16, 12], [4, 12, 10]]
    x = torch.eye(3, dtype=torch.float64)[None]
    unscaled = explicitly(toy(math.sqrt(3)), x)  # undoes the division by the root of 3
    shifted = np.exp(scores - scores.max(axis=1, keepdims=True))
    softmax = shifted / shifted.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(unscaled.weights[0, 0].detach(), softmax, atol=1e-12)
    np.testing.assert_allclose(unscaled.output[0].detach(), softmax @ VALUES, atol=1e-12)
    np.testing.assert_allclose(unscaled.output[0, 0].detach(), [1.9366, 6.6831, 1.5951], atol=5e-5)
    np.testing.assert_allclose(toy(1.0)(x)[0, 0].detach(), [1.8639, 6.3194, 1.7042], atol=5e-5)
    large = toy(1000.0)(x)  # the known trap E34: a bare exponential overflows here
    assert large.isfinite().all()
    np.testing.assert_allclose(large[0, 1].detach(), VALUES[1], atol=1e-9)


@pytest.mark.row("003.14")
@pytest.mark.parametrize("cross", [False, True])
def test_equals_nn_multihead_attention(x: Tensor, cross: bool) -> None:
    attention = build()
    theirs = nn.MultiheadAttention(16, 4, batch_first=True).eval()
    theirs.load_state_dict(
        {
            "in_proj_weight": attention.qkv.weight,
            "in_proj_bias": attention.qkv.bias,
            "out_proj.weight": attention.out.weight,
            "out_proj.bias": attention.out.bias,
        }
    )
    context = torch.randn(2, 11, 16) if cross else x
    expected, weights = theirs(x, context, context, average_attn_weights=False)
    ours = attention(x, context if cross else None)
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)
    attended = explicitly(attention, x, context if cross else None)
    torch.testing.assert_close(attended.weights, weights, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(attended.output, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.row("003.14")
@pytest.mark.parametrize("bias", BIASES)
def test_cross_attention_plainly(x: Tensor, bias: str) -> None:
    attention = build(head_width=6, qkv_bias=bias)
    context = torch.randn(2, 3, 16)
    torch.testing.assert_close(attention(x, context), plainly(attention, x, context), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(attention(x, x), attention(x), atol=1e-6, rtol=1e-5)
    assert (attention(x, context) - attention(x, context + 1)).abs().max() > 1e-2


def test_qk_norm_normalises_each_head(x: Tensor) -> None:
    attention = build(qk_norm=True, norm_eps=1e-5)
    q, k, v = split(attention, x)

    def norm(y: Tensor, layer: nn.LayerNorm) -> Tensor:
        y = (y - y.mean(-1, keepdim=True)) / (y.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()
        return y * layer.weight + layer.bias

    q, k = norm(q, attention.query_norm), norm(k, attention.key_norm)
    expected = attention.out(((q @ k.mT / 2).softmax(-1) @ v).transpose(1, 2).flatten(2))
    torch.testing.assert_close(attention(x), expected, atol=1e-5, rtol=1e-5)
    assert attention.query_norm.weight.shape == (4,)


@pytest.mark.row("004.08")
def test_a_list_of_heads_equals_the_fused_one(x: Tensor) -> None:
    """Heads as small modules of three bias-free layers each, their outputs laid side by side."""
    attention = build(qkv_bias="none")

    class OneHead(nn.Module):
        def __init__(self, number: int) -> None:
            super().__init__()
            rows = slice(4 * number, 4 * number + 4)
            self.query, self.key, self.value = (nn.Linear(16, 4, bias=False) for _ in range(3))
            for layer, weight in zip((self.query, self.key, self.value), attention.qkv.weight.chunk(3), strict=True):
                layer.weight = nn.Parameter(weight[rows].clone())

        def forward(self, x: Tensor) -> Tensor:
            scores = self.query(x) @ self.key(x).mT * 4**-0.5
            return scores.softmax(dim=-1) @ self.value(x)

    heads = [OneHead(number) for number in range(4)]
    listed = attention.out(torch.cat([head(x) for head in heads], dim=-1))
    torch.testing.assert_close(attention(x), listed, atol=1e-5, rtol=1e-5)


@pytest.mark.row("000.09", "003.06", "002.03")
def test_attention_dropout_only_while_training() -> None:
    attention = build(attention_dropout=0.5)
    x = torch.randn(1, 7, 16)
    assert torch.equal(attention(x), attention(x))
    attention.train()
    assert not torch.equal(attention(x), attention(x))
    with torch.no_grad():  # values are dropped as whole rows of weights, so all-equal values show the sum left
        attention.qkv.weight[32:] = 0
        attention.qkv.bias[32:] = 1.0
        attention.out.weight.copy_(torch.eye(16))
        attention.out.bias.zero_()
        attended = explicitly(attention, x)
        fused = torch.stack([attention(x.expand(200, -1, -1)) for _ in range(5)])
    torch.testing.assert_close(attended.weights.sum(-1), torch.ones(1, 4, 7))  # as given: before dropout (E23)
    left = attended.output[0].unflatten(-1, (4, 4))
    assert (left - 1).abs().max() > 0.1  # as used: after it
    assert abs(fused.mean() - 1) < 0.02
    assert fused.std() > 0.1


@pytest.mark.row("003.06", "000.14")
def test_dropout_stands_after_the_projection(x: Tensor) -> None:
    attention = build(dropout=0.5)
    still = attention(x)
    dropped = attention.train()(x)
    gone = dropped == 0
    assert 0.35 < gone.float().mean() < 0.65
    torch.testing.assert_close(dropped[~gone], 2 * still[~gone], atol=1e-5, rtol=1e-5)


@pytest.mark.row("000.14")
def test_attention_adds_no_residual(x: Tensor) -> None:
    """With a silent projection nothing is left of the input: the sum belongs to the block."""
    attention = build()
    nn.init.zeros_(attention.out.weight)
    assert torch.equal(attention(x), attention.out.bias.expand(2, 7, 16))


@pytest.mark.parametrize("explicit", [False, True])
def test_causal_attention_does_not_look_ahead(x: Tensor, explicit: bool) -> None:
    attention = build(causal=True)
    after = torch.ones(7, 7, dtype=torch.bool).triu(1)
    kept = KeepWeights(causal=True) if explicit else None
    output = attention(x, kernel=kept)
    torch.testing.assert_close(output, plainly(attention, x, unseen=after), atol=1e-5, rtol=1e-5)
    changed = x.clone()
    changed[:, 4] += 1
    again = attention(changed, kernel=KeepWeights(causal=True) if explicit else None)
    torch.testing.assert_close(again[:, :4], output[:, :4], atol=1e-6, rtol=1e-6)
    assert (again[:, 4:] - output[:, 4:]).abs().min(dim=-1).values.max() > 1e-4
    if kept is not None:
        assert kept.weights[..., after].abs().max() == 0


def test_causal_attention_with_a_bias_on_its_scores(x: Tensor) -> None:
    attention = build(causal=True)
    counts = torch.tensor([1.0, 3, 1, 2, 5, 1, 1]).expand(2, 7)
    layout = TokenLayout((1, 7), 0, counts=counts)
    explicit = explicitly(attention, x, layout=layout)
    torch.testing.assert_close(attention(x, layout=layout), explicit.output, atol=1e-5, rtol=1e-5)
    assert explicit.weights.triu(1).abs().max() == 0


def test_an_axial_attention_with_a_causal_kernel_is_both() -> None:
    attention, layout, x = build(causal=True, axis="row"), TokenLayout((2, 3), 1), torch.randn(2, 7, 16)
    hidden = axial_mask(layout, "row", x.device) | torch.ones(7, 7, dtype=torch.bool).triu(1)
    expected = plainly(attention, x, unseen=hidden)
    torch.testing.assert_close(attention(x, layout=layout), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(explicitly(attention, x, layout=layout).output, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.row("000.10")
def test_a_head_mask_scales_what_a_head_gathers(x: Tensor) -> None:
    attention = build()
    mask = torch.tensor([1.0, 0.0, 0.25, 2.0])
    q, k, v = split(attention, x)
    gathered = (q @ k.mT / 2).softmax(-1) @ v * mask.view(1, 4, 1, 1)
    expected = attention.out(gathered.transpose(1, 2).flatten(2))
    attended = explicitly(attention, x, head_mask=mask)
    for output in (attention(x, head_mask=mask), attended.output):
        torch.testing.assert_close(output, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(attended.weights.sum(-1), torch.ones(2, 4, 7))  # rows as they were before the mask
    silent = attention(x, head_mask=torch.zeros(4))
    torch.testing.assert_close(silent, attention.out.bias.expand(2, 7, 16))


@pytest.mark.row("P.5")
@pytest.mark.parametrize("axis", ["row", "column"])
@pytest.mark.parametrize("prefix", [0, 1, 3])
def test_axial_attention_is_full_attention_under_a_mask(axis: str, prefix: int) -> None:
    grid = (3, 4)
    attention = build(axis=axis)
    layout = TokenLayout(grid, prefix)
    x = torch.randn(2, prefix + 12, 16)
    unseen = torch.zeros(prefix + 12, prefix + 12, dtype=torch.bool)
    for i in range(12):
        for j in range(12):
            same = i // 4 == j // 4 if axis == "row" else i % 4 == j % 4
            unseen[prefix + i, prefix + j] = not same
    assert torch.equal(axial_mask(layout, axis, x.device), unseen)
    expected = plainly(attention, x, unseen=unseen)
    torch.testing.assert_close(attention(x, layout=layout), expected, atol=1e-5, rtol=1e-5)
    attended = explicitly(attention, x, layout=layout)
    torch.testing.assert_close(attended.output, expected, atol=1e-5, rtol=1e-5)
    assert attended.weights[..., unseen].abs().max() == 0
    torch.testing.assert_close(attended.weights.sum(-1), torch.ones(2, 4, prefix + 12))


@pytest.mark.row("P.5")
def test_axial_blocks_take_rows_and_columns_in_turn() -> None:
    config = ViTConfig(image_size=16, patch_size=4, width=16, heads=4, depth=4, axial=True)
    assert [Attention.of_block(config, block).axis for block in range(4)] == ["row", "column", "row", "column"]


@pytest.mark.row("P.5")
def test_axial_attention_costs_lines_not_the_square() -> None:
    def products(axis: str, side: int) -> int:
        """Multiply-adds of scores and gathering alone."""
        with torch.device("meta"):
            attention = Attention(16, 4, 4, axis=axis)
            x = torch.empty(1, side * side, 16)
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            attention(x, layout=TokenLayout((side, side), 0))
        return counter.get_total_flops() // 2 - side * side * 16 * 64  # less qkv and out

    for side in (4, 8, 16):
        assert products("", side) == 2 * 16 * side**4
        assert products("row", side) == products("column", side) == 2 * 16 * side**3


def test_relative_keys_shift_the_scores() -> None:
    config = ViTConfig(image_size=(8, 12), patch_size=4, width=16, heads=4, depth=1, positions=Positions("relative"))
    attention = Attention.of_block(config, 0).eval()
    for parameter in attention.parameters():
        nn.init.normal_(parameter, std=0.4)
    x = torch.randn(2, 7, 16)
    layout = TokenLayout((2, 3), 1)
    q, k, v = split(attention, x)
    scores = q @ k.mT / 2
    for i in range(6):
        for j in range(6):
            scores[:, :, 1 + i, 1 + j] += q[:, :, 1 + i] @ attention.relative.table[i - j + 5] / 2
    expected = attention.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
    torch.testing.assert_close(attention(x, layout=layout), expected, atol=1e-5, rtol=1e-5)
    attended = explicitly(attention, x, layout=layout)
    torch.testing.assert_close(attended.output, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("rows", [(0,), (5,), (6, 2)])
@pytest.mark.parametrize("kind", ["plain", "causal", "row", "column", "relative", "counts"])
def test_the_rows_asked_for_are_those_of_the_whole_matrix(x: Tensor, kind: str, rows: tuple[int, ...]) -> None:
    """And beside them the tokens come from all rows, as ever."""
    layout = TokenLayout((2, 3), 1)
    if kind == "relative":
        positions = Positions("relative")
        config = ViTConfig(image_size=(8, 12), patch_size=4, width=16, heads=4, depth=1, positions=positions)
        attention = Attention.of_block(config, 0).eval()
        for parameter in attention.parameters():
            nn.init.normal_(parameter, std=0.4)
    else:
        attention = build(causal=kind == "causal", axis=kind if kind in ("row", "column") else "")
    if kind == "counts":
        layout = layout._replace(counts=torch.tensor([1.0, 3, 1, 2, 5, 1, 1]).expand(2, 7))
    every = explicitly(attention, x, layout=layout)
    some = explicitly(attention, x, layout=layout, rows=rows)
    assert every.weights is not None
    assert some.weights is not None
    torch.testing.assert_close(some.weights, every.weights[:, :, list(rows)])
    torch.testing.assert_close(some.output, every.output, atol=1e-5, rtol=1e-5)


def test_the_fused_and_explicit_ways_have_the_same_gradients(x: Tensor) -> None:
    attention = build(qk_norm=True)
    x.requires_grad_(True)
    inputs = [x, *attention.parameters()]
    fused = torch.autograd.grad(attention(x).square().sum(), inputs)
    explicit = torch.autograd.grad(explicitly(attention, x).output.square().sum(), inputs)
    for one, other in zip(fused, explicit, strict=True):
        torch.testing.assert_close(one, other, atol=1e-3, rtol=1e-3)
