"""Attention in bf16 by products of matrices: the numbers of the formula, in pieces or at once, in every network."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from shipping.packs import VARIANTS, attending, checkpoint
from vitrail.packed import packed_attention
from vitrail.packed.packed_attention import attention_by_products, packed_kernel, prefers_products
from vitrail.packed.packed_runtime import Packed
from vitrail.quantisation.quant_plan import QuantPlan
from vitrail.quantisation.range_calibration import calibrate


def formula(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    logits = q.double() @ k.double().mT / q.shape[-1] ** 0.5
    return (logits if bias is None else logits + bias.double()).softmax(-1) @ v.double()


@pytest.mark.parametrize("kind, within", [(torch.bfloat16, 0.02), (torch.float32, 1e-5)])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(
    "most, heads, queries",  # scores held at once, and the pieces that leaves: all, some heads, one head, some queries
    [(1 << 20, 12, 29), (5 * 29 * 29, 5, 29), (29 * 29, 1, 29), (8 * 29, 1, 8)],
)
def test_pieces_give_what_the_formula_gives(
    kind: torch.dtype, within: float, biased: bool, most: int, heads: int, queries: int, monkeypatch: Any
) -> None:
    seen: list[tuple[int, ...]] = []
    piece = packed_attention._attention_weights
    monkeypatch.setattr(
        packed_attention, "_attention_weights", lambda q, *rest: (seen.append(tuple(q.shape)), piece(q, *rest))[1]
    )
    monkeypatch.setattr(packed_attention, "attention_by_products", partial(attention_by_products, most=most, least=4))
    attending(monkeypatch, "products")
    monkeypatch.setattr(packed_attention, "prefers_products", lambda kind: True)
    # Views into one table, as a qkv layer gives them.
    q, k, v = torch.randn(4, 29, 3, 3, 16).to(kind).permute(2, 0, 3, 1, 4).unbind(0)
    for bias in (torch.randn(4, 1, 1, 29), torch.randn(4, 3, 29, 29)) if biased else (None,):
        seen.clear()
        bias = None if bias is None else bias.to(kind)
        torch.testing.assert_close(packed_kernel(q, k, v, bias).double(), formula(q, k, v, bias), rtol=0, atol=within)
        assert max(each[0] for each in seen) == heads
        assert max(each[1] for each in seen) == queries
        assert all(np.prod(each[:2]) * 29 <= most for each in seen)  # no more scores than that, ever
        assert sum(int(np.prod(each)) for each in seen) == q.numel()


def test_queries_may_come_scaled() -> None:
    q, k, v = torch.randn(3, 4, 29, 16).bfloat16().unbind(0)
    assert torch.equal(attention_by_products(q / 4, k, v, None, True), attention_by_products(q, k, v))


def test_scaled_queries_with_a_bias_are_scaled_once() -> None:
    q, k, v = torch.randn(3, 4, 29, 16).unbind(0)
    bias = torch.randn(4, 29, 29)
    found = attention_by_products(q / 4, k, v, bias, True)
    torch.testing.assert_close(found, attention_by_products(q, k, v, bias), rtol=0, atol=1e-6)
    assert not torch.allclose(found, attention_by_products(q / 4, k, v, bias), atol=0.01)


def test_one_query_gathers_from_all() -> None:
    q, k, v = torch.randn(3, 2, 3, 40, 16).bfloat16().unbind(0)
    found = packed_kernel(q[:, :, :1], k, v)
    torch.testing.assert_close(found.double(), formula(q, k, v, None)[:, :, :1], rtol=0, atol=0.02)


def test_only_where_bf16_has_units_and_no_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    for units, tiles in ((True, False), (True, True), (False, False)):
        monkeypatch.setattr(packed_attention, "has_bf16_units", lambda units=units: units)
        monkeypatch.setattr(packed_attention, "has_tiles", lambda tiles=tiles: tiles)
        assert prefers_products(torch.bfloat16) == (units and not tiles)
        assert not prefers_products(torch.float32)


@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("name", VARIANTS)
def test_networks_of_every_kind_answer_the_same_by_it(name: str, int8: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    made = checkpoint(**VARIANTS[name])
    pixels = np.random.default_rng(1).standard_normal((2, 3, 32, 32), np.float32)
    ranges = calibrate(made.model, [torch.from_numpy(pixels)]) if int8 else {}
    ranges.pop("encoder.blocks.1.mlp.down", None)
    ranges.pop("encoder.blocks.2.attention.out", None)
    answers = {}
    for way in ("torch", "products"):
        attending(monkeypatch, way)
        runtime = Packed(made, QuantPlan("bf16", ranges))
        answers[way] = runtime.run(pixels)[0]
    assert answers["products"].dtype == np.float32
    for found in answers.values():  # as far as bf16 may be from eager
        assert np.abs(found - answers["torch"]).max() < 0.1 * np.abs(answers["torch"]).max()
    assert next(runtime.model.parameters()).dtype == (torch.float32 if int8 else torch.bfloat16)


@pytest.mark.parametrize("name", ["plain", "registers, mean", "swiglu", "rotary"])
def test_int8_with_bf16_around_it_is_as_exact_as_with_fp32(name: str) -> None:
    made = checkpoint(**VARIANTS[name])
    pixels = np.random.default_rng(1).standard_normal((8, 3, 32, 32), np.float32)
    exact = made.run(pixels)[0]
    ranges = calibrate(made.model, [torch.from_numpy(pixels)])
    apart = {
        rest: float(np.abs(Packed(made, QuantPlan(rest, ranges)).run(pixels)[0] - exact).mean() / np.abs(exact).max())
        for rest in ("bf16", "fp32")
    }
    assert apart["bf16"] < 1.5 * apart["fp32"] + 0.002
