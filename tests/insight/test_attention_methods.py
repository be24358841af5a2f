"""Maps from attention, against plain re-computations with loops, written from the formulas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from insight.small import POOLS, build
from vitrail.errors import ConfigError, InputError
from vitrail.insight import Attention, Flow, GradientRollout, Rollout, explain_pixels, trace
from vitrail.network import ViT

Array = np.ndarray[Any, Any]


@pytest.fixture
def pixels() -> Tensor:
    return torch.randn(2, 3, 8, 12, generator=torch.Generator().manual_seed(9))


def maps(model: ViT, pixels: Tensor, method: Any, target: Any = 3) -> list[Array]:
    return [each.map for each in explain_pixels(model, pixels, method, target, check=False)]


def weights_and_gradients(model: ViT, pixels: Tensor, target: int) -> tuple[list[Array], list[Array], Array]:
    """Attention and gradients, each block (A, T, T), of one image; and what the pool reads (T,)."""
    seen = trace(model, pixels)
    slopes = torch.autograd.grad(seen.logits[0, target], seen.attention)
    return (
        [each[0].detach().double().numpy() for each in seen.attention],
        [each[0].double().numpy() for each in slopes],
        seen.pool_weights[0].detach().double().numpy(),
    )


def cut_weak(fused: Array, discard: float, prefix: int) -> Array:
    """The weakest links set to 0, one after another; those to prefix tokens stay."""
    links = sorted(
        (fused[row, column], row, column) for row in range(len(fused)) for column in range(prefix, len(fused))
    )
    kept = fused.copy()
    for _, row, column in links[: int(len(links) * discard)]:
        kept[row, column] = 0.0
    return kept


def rolled(fused: list[Array], start: Array) -> Array:
    """The full product of all blocks, then the row that the pool reads."""
    count = len(start)
    product = np.eye(count)
    for block in fused:
        step = np.zeros((count, count))
        for row in range(count):
            for column in range(count):
                step[row, column] = block[row, column] + (1.0 if row == column else 0.0)
            step[row] /= step[row].sum()
        product = step @ product
    return start @ product


@pytest.mark.row("VE.1", "000.29", "4.REG")
@pytest.mark.parametrize("kind", POOLS)
@pytest.mark.parametrize("fusion, discard", [("mean", 0.0), ("max", 0.0), ("min", 0.5), ("mean", 0.9), ("max", 0.7)])
def test_rollout_is_the_product_of_all_blocks(pixels: Tensor, kind: str, fusion: str, discard: float) -> None:
    model = build(**POOLS[kind])
    prefix = model.config.prefix
    for row, found in enumerate(maps(model, pixels, Rollout(fusion, discard))):
        attention, _, start = weights_and_gradients(model, pixels[row : row + 1], 3)
        fused = []
        for block in attention:
            joined = np.zeros(block.shape[1:])
            for i in range(len(joined)):
                for j in range(len(joined)):
                    values = [float(head[i, j]) for head in block]
                    joined[i, j] = {"mean": sum(values) / len(values), "max": max(values), "min": min(values)}[fusion]
            fused.append(cut_weak(joined, discard, prefix))
        expected = rolled(fused, start)
        assert found.shape == (2, 3)
        np.testing.assert_allclose(found.ravel(), expected[prefix:], atol=1e-6)
        assert found.min() >= 0
        assert expected.sum() == pytest.approx(1)


def test_nine_links_in_ten_are_cut_unless_told(pixels: Tensor) -> None:
    model = build()
    for name, told in (
        ("rollout", Rollout("mean", 0.9)),
        ("gradient-rollout", GradientRollout(0.9)),
        ("flow", Flow("mean", 0.9)),
    ):
        for usual, other in zip(maps(model, pixels, name), maps(model, pixels, told), strict=True):
            np.testing.assert_array_equal(usual, other)


@pytest.mark.row("VE.2", "000.29")
@pytest.mark.parametrize("kind", POOLS)
@pytest.mark.parametrize("discard", [0.0, 0.9])
def test_gradient_rollout_follows_what_speaks_for_the_target(pixels: Tensor, kind: str, discard: float) -> None:
    model = build(**POOLS[kind])
    prefix = model.config.prefix
    for row, found in enumerate(maps(model, pixels, GradientRollout(discard))):
        attention, slopes, start = weights_and_gradients(model, pixels[row : row + 1], 3)
        fused = []
        for weights, slope in zip(attention, slopes, strict=True):
            joined = sum(weights[head] * slope[head] for head in range(len(weights))) / len(weights)
            joined[joined < 0] = 0
            fused.append(cut_weak(joined, discard, prefix))
        np.testing.assert_allclose(found.ravel(), rolled(fused, start)[prefix:], atol=1e-6)


@pytest.mark.parametrize("kind", POOLS)
def test_relevance_is_added_up_block_by_block(pixels: Tensor, kind: str) -> None:
    model = build(**POOLS[kind])
    prefix = model.config.prefix
    for row, found in enumerate(maps(model, pixels, "relevance")):
        attention, slopes, start = weights_and_gradients(model, pixels[row : row + 1], 3)
        relevance = np.eye(len(start))
        for weights, slope in zip(attention, slopes, strict=True):
            positive = np.zeros_like(relevance)
            for head in range(len(weights)):
                positive += np.maximum(weights[head] * slope[head], 0) / len(weights)
            relevance = relevance + positive @ relevance
        alone = np.zeros_like(relevance) if kind == "map" else np.eye(len(start))
        expected = start @ (relevance - alone)
        np.testing.assert_allclose(found.ravel(), expected[prefix:], atol=1e-6)


@pytest.mark.row("VE.2")
def test_the_map_changes_with_the_class(pixels: Tensor) -> None:
    model = build()
    for method in ("gradient-rollout", "relevance", "grad-cam"):
        one, other = maps(model, pixels, method, 0)[0], maps(model, pixels, method, 1)[0]
        assert np.abs(one - other).max() > 1e-4
    np.testing.assert_array_equal(maps(model, pixels, "rollout", 0)[0], maps(model, pixels, "rollout", 1)[0])


@pytest.mark.row("001.15")
@pytest.mark.parametrize("method", [Rollout("max", 0.0), Rollout("mean", 0.5), GradientRollout(0.0)])
def test_e44_rows_are_made_to_sum_to_one(pixels: Tensor, method: Any) -> None:
    """Dividing by the sums laid along the wrong side gives another map: the trap that the fixed version avoids."""
    model = build()
    attention, slopes, start = weights_and_gradients(model, pixels[:1], 3)
    fused = []
    for weights, slope in zip(attention, slopes, strict=True):
        if isinstance(method, Rollout):
            joined = weights.max(axis=0) if method.fusion == "max" else weights.mean(axis=0)
        else:
            joined = np.maximum((weights * slope).mean(axis=0), 0)
        fused.append(cut_weak(joined, method.discard, 1))
    row = start
    for each in reversed(fused):
        kept = each + np.eye(len(each))
        row = row @ (kept / kept.sum(axis=-1))  # no keepdims: column j is divided by the sum of row j
    [found] = maps(model, pixels[:1], method)
    assert np.abs(found.ravel() - row[1:]).max() > 1e-3
    np.testing.assert_allclose(found.ravel(), rolled(fused, start)[1:], atol=1e-6)


def test_e45_every_block_is_weighted_by_its_own_gradient(pixels: Tensor) -> None:
    model = build()
    attention, slopes, start = weights_and_gradients(model, pixels[:1], 3)

    def fused(order: list[Array]) -> list[Array]:
        return [np.maximum((w * s).mean(axis=0), 0) for w, s in zip(attention, order, strict=True)]

    [found] = maps(model, pixels[:1], GradientRollout(0.0))
    np.testing.assert_allclose(found.ravel(), rolled(fused(slopes), start)[1:], atol=1e-6)
    assert np.abs(found.ravel() - rolled(fused(slopes[::-1]), start)[1:]).max() > 1e-4


def test_e46_maps_under_the_fused_kernel_twice_and_for_the_whole_batch(pixels: Tensor) -> None:
    """Nothing empty, nothing left over from the call before, every image of a batch, any aspect, any prefix."""
    model = build(registers=2)
    first = maps(model, pixels, "rollout")
    again = maps(model, pixels, "rollout")
    assert len(first) == 2
    for one, two in zip(first, again, strict=True):
        assert one.shape == (2, 3)
        np.testing.assert_array_equal(one, two)
    [alone] = maps(model, pixels[1:], "rollout")
    np.testing.assert_allclose(alone, first[1], atol=1e-6)
    assert np.abs(first[0] - first[1]).max() > 1e-4


@pytest.mark.row("VE.1")
def test_links_to_the_class_token_are_never_cut() -> None:
    from vitrail.insight.rollout import without_weak
    from vitrail.network.tokens import TokenLayout

    fused = torch.tensor([[[0.01, 0.5, 0.49], [0.02, 0.38, 0.6], [0.03, 0.57, 0.4]]])
    found = without_weak(fused, 0.99, TokenLayout((1, 2), 1))
    torch.testing.assert_close(found[0, :, 0], fused[0, :, 0])
    assert (found[0, :, 1:] > 0).sum() == 1
    assert found[0, 1, 2] == pytest.approx(0.6)


@pytest.mark.parametrize("kind", POOLS)
def test_raw_attention_of_block_head_and_query(pixels: Tensor, kind: str) -> None:
    model = build(**POOLS[kind])
    seen = trace(model, pixels)
    prefix = model.config.prefix
    for block in range(3):
        for head in (None, *model.config.heads_of(block)):
            weights = seen.attention[block].detach()
            place = None if head is None else model.config.heads_of(block).index(head)
            chosen = weights.mean(dim=1) if place is None else weights[:, place]
            for query in (None, 4, (1, 1)):
                rows = chosen[:, prefix + 4]
                if query is None:
                    rows = torch.einsum("bt,bts->bs", seen.pool_weights.detach(), chosen)
                found = maps(model, pixels, Attention(block, head, query))
                expected = rows[:, prefix:].reshape(2, 2, 3).numpy()
                np.testing.assert_allclose(np.stack(found), expected, atol=1e-6)


def test_wrong_options_are_named(pixels: Tensor) -> None:
    model = build(kept_heads=((0, 2), (1,), (0, 1, 3)))
    for method, said in (
        (Attention(3), "block: expected a whole number from -3 to 2"),
        (Attention(1, 0), "head 0: block 1 has the heads 1"),
        (Attention(0, 0, 6), "query: expected a whole number from 0 to 5"),
        (Attention(0, 0, (2, 0)), "query row: expected a whole number from 0 to 1"),
    ):
        with pytest.raises(InputError, match=said):
            explain_pixels(model, pixels, method)
    with pytest.raises(ConfigError, match="fusion 'sum' is unknown"):
        Rollout("sum")
    with pytest.raises(ConfigError, match="discard: expected a number from 0"):
        Rollout(discard=1.0)


@pytest.mark.parametrize("kind", POOLS)
def test_a_few_rows_are_those_of_the_whole(pixels: Tensor, kind: str) -> None:
    model = build(**POOLS[kind])
    whole = trace(model, pixels)
    few = trace(model, pixels, rows=[0, -1, 3])
    torch.testing.assert_close(few.logits, model(pixels), atol=1e-5, rtol=1e-5)
    for one, other in zip(few.attention, whole.attention, strict=True):
        torch.testing.assert_close(one, other[:, :, [0, -1, 3]], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(
    "changes", [{"axial": True, "registers": 2}, {"positions": "relative"}, {"rotary": True}], ids=str
)
def test_a_few_rows_of_other_attention(pixels: Tensor, changes: dict[str, Any]) -> None:
    from vitrail.network import Positions, Rotary

    if "positions" in changes:
        changes = {"positions": Positions("relative")}
    if "rotary" in changes:
        changes = {"rotary": Rotary(), "positions": Positions("none")}
    model = build(**changes)
    few, whole = trace(model, pixels, rows=[2, 5], blocks=[1]), trace(model, pixels, blocks=[1])
    torch.testing.assert_close(few.attention[0], whole.attention[0][:, :, [2, 5]], atol=1e-6, rtol=1e-5)


def test_rows_that_cannot_be_are_named(pixels: Tensor) -> None:
    model = build()
    with pytest.raises(InputError, match="rows: expected a whole number from -7 to 6, got 7"):
        trace(model, pixels, rows=[7])
    with pytest.raises(InputError, match="at least one token"):
        trace(model, pixels, rows=[])
    with pytest.raises(InputError, match="attention=False"):
        trace(model, pixels, attention=False, rows=[0])
    with pytest.raises(InputError, match="merges tokens.*expected some of its 1 prefix tokens, got 3"):
        trace(build(merge_per_block=1), pixels, rows=[0, 3])
    with pytest.raises(InputError, match="merges tokens"):
        trace(build(merge_per_block=1), pixels, rows=[-1])
