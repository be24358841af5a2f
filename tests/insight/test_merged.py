"""Maps of networks that merge tokens: of all patches, and where only equal ones merge, those of the whole network."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import vitrail
from insight.small import BOTH, build
from insight.test_attention_methods import maps
from insight.test_flow import by_linear_programme
from vitrail.insight import Attention, Explanation, Flow, GradCam, GradientRollout, Rollout, explain_pixels, trace
from vitrail.insight.cards import film, heads_sheet
from vitrail.insight.flow import merged_rows
from vitrail.insight.rollout import with_residual, without_weak
from vitrail.insight.token_rows import spread
from vitrail.insight.tracing import trace_with_layouts
from vitrail.network import Positions, Rotary, ViT, with_merging
from vitrail.network.tokens import TokenLayout

KINDS: dict[str, dict[str, Any]] = {
    "cls": {},
    "mean": {"pool": "mean"},
    "mean, norm after": {"pool": "mean", "final_norm": "pooled"},
    "mean, no prefix": {"pool": "mean", "cls_token": False},
    "map, registers": {"pool": "map", "registers": 2},
    "cls+distillation": BOTH,
    "cls+mean, parallel": {"pool": "cls+mean", "parallel": True},
    "pruned": {"kept_heads": ((0, 2), (1,), (0, 1, 3))},
}
METHODS = [
    *(Attention(block) for block in (0, 1, 2)),
    Attention(1, head=1),
    Attention(2, query=(1, 2)),
    Rollout(discard=0.0),
    Rollout("max", 0.0),
    Rollout("min", 0.0),
    GradientRollout(0.0),
    "relevance",
    *(GradCam(block) for block in (0, 1, 2)),
]


def of_few(copies: list[int]) -> Tensor:
    """An image of six different patches, each in so many places, neighbours equal; one row: (1, 3, 4, 4 * patches)."""
    dice = torch.Generator().manual_seed(3)
    patches = torch.randn(len(copies), 3, 4, 4, generator=dice)
    return torch.cat([patches[kind] for kind, count in enumerate(copies) for _ in range(count)], dim=2)[None]


def nowhere(copies: list[int], **changes: Any) -> ViT:
    """Without positions equal patches stay equal tokens in every block."""
    return build(image_size=(4, 4 * sum(copies)), positions=Positions("none"), **changes).double()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("copies, per_block", [([2] * 6, 2), ([4] * 5, 4), ([4, 1, 1, 6, 2, 2], 2)])
def test_where_equal_patches_merge_nothing_changes(kind: str, copies: list[int], per_block: int) -> None:
    """Merging equal tokens is exact with attention in proportion to size, and so is every map."""
    model, pixels = nowhere(copies, **KINDS[kind]), of_few(copies).double()
    merging = with_merging(model, per_block)
    merged = trace_with_layouts(merging, pixels).layouts[-1]
    assert merged.counts is not None
    for patch in range(sum(copies)):  # the test is one only if equal ones have merged, and no others
        mates = (merged.patch_to_token[0] == merged.patch_to_token[0, patch]).nonzero().flatten().tolist()
        kinds = np.repeat(range(len(copies)), copies)
        assert {int(kinds[each]) for each in mates} == {int(kinds[patch])}
    torch.testing.assert_close(merging(pixels), model(pixels))
    methods = METHODS if kind != "pruned" else [each for each in METHODS if each != Attention(2, query=(1, 2))]
    for method in methods:
        if isinstance(method, Attention) and method.query is not None:
            method = Attention(method.block, query=sum(copies) - 2)
        [found], [expected] = maps(merging, pixels, method), maps(model, pixels, method)
        assert found.shape == (1, sum(copies))
        np.testing.assert_allclose(found, expected, atol=1e-6 * max(1.0, np.abs(expected).max()), err_msg=str(method))


@pytest.mark.parametrize("kind", KINDS)
def test_maps_of_a_merging_network_against_matrices(kind: str) -> None:
    """Rollout and relevance as full products, with a matrix for each merging that says who is how much of whom."""
    model = build(merge_per_block=1, **KINDS[kind])
    pixels = torch.randn(2, 3, 8, 12, generator=torch.Generator().manual_seed(9))
    rolled, relevant = maps(model, pixels, Rollout(discard=0.0)), maps(model, pixels, "relevance", 3)
    for row in range(2):
        seen, places = trace_with_layouts(model, pixels[row : row + 1])
        slopes = torch.autograd.grad(seen.logits[0, 3], seen.attention)
        prefix, start = model.config.prefix, seen.pool_weights[0].detach().double().numpy()
        product = relevance = np.eye(prefix + 6)
        whole = np.eye(prefix + 6)  # mergings alone
        for block, weights in enumerate(seen.attention):
            before, after = (_held(place, prefix) for place in places[block : block + 2])
            merging = np.zeros((len(after), len(before)))
            for new, held in enumerate(after):
                for old, part in enumerate(before):
                    merging[new, old] = len(held & part) / len(held)
            attention = weights[0].detach().double().numpy()
            step = attention.mean(axis=0) + np.eye(len(before))
            product = merging @ (step / 2) @ product
            sizes = np.array([len(each) for each in before])
            slope = slopes[block][0].double().numpy() / sizes[None, :, None]
            positive = np.maximum(attention * slope, 0).mean(axis=0)
            relevance = merging @ (relevance + positive @ relevance)
            whole = merging @ whole
        expected = start @ product
        assert expected.sum() == pytest.approx(1)
        np.testing.assert_allclose(rolled[row].ravel(), expected[prefix:], atol=1e-6)
        own = 0 if model.config.pool == "map" else start @ whole
        np.testing.assert_allclose(relevant[row].ravel(), (start @ relevance - own)[prefix:], atol=1e-5)


def _held(place: TokenLayout, prefix: int) -> list[set[int]]:
    """Which original tokens each token holds."""
    tokens: list[set[int]] = [{number} for number in range(prefix)]
    if place.patch_to_token is None:
        return tokens + [{prefix + number} for number in range(6)]
    sources = place.patch_to_token[0].tolist()
    count = max(sources) + 1
    return tokens + [{prefix + patch for patch in range(6) if sources[patch] == token} for token in range(count)]


def test_a_query_is_seen_by_the_token_that_holds_it() -> None:
    model = build(merge_per_block=2, registers=1)
    pixels = torch.randn(2, 3, 8, 12, generator=torch.Generator().manual_seed(1))
    seen, places = trace_with_layouts(model, pixels)
    for block in range(3):
        for patch in range(6):
            found = maps(model, pixels, Attention(block, 1, patch))
            for row in range(2):
                sources = None if places[block].patch_to_token is None else places[block].patch_to_token[row].tolist()
                token = patch if sources is None else sources[patch]
                weights = seen.attention[block][row, 1, 2 + token].detach()
                for other in range(6):
                    holder = other if sources is None else sources[other]
                    count = 1 if sources is None else sources.count(holder)
                    value = float(weights[2 + holder]) / count
                    assert found[row].ravel()[other] == pytest.approx(value, abs=1e-6)
    torch.testing.assert_close(trace(model, pixels, rows=[1, 0]).attention[2], seen.attention[2][:, :, [1, 0]])


def test_weak_links_are_counted_between_patches() -> None:
    """A token of three patches has links three times as many, each a third as strong."""
    place = TokenLayout((1, 4), 1, counts=torch.tensor([[1.0, 3.0, 1.0]]), patch_to_token=torch.tensor([[0, 0, 0, 1]]))
    fused = torch.tensor([[[0.1, 0.6, 0.3], [0.1, 0.45, 0.45], [0.3, 0.66, 0.04]]])
    # strengths: 0.2 (x3), 0.3 (x1); 0.15 (x9), 0.45 (x3); 0.22 (x3), 0.04 (x1): 20, from the weakest 1, 9, 3, 3
    for discard, cut in ((0.04, []), (0.05, [4]), (0.49, [4]), (0.5, [4, 2]), (0.65, [4, 2, 0]), (0.8, [4, 2, 0, 5])):
        kept = without_weak(fused, discard, place)
        expected = fused.clone()
        for link in cut:
            row, column = {4: (2, 2), 2: (1, 1), 0: (0, 1), 5: (2, 1)}[link]
            expected[0, row, column] = 0
        torch.testing.assert_close(kept, expected)


def test_links_of_a_merged_token_are_the_mean_of_what_it_holds() -> None:
    """A cls token and four patches, of which three become one: at once, or two and then the third."""
    whole = TokenLayout((1, 4), 1)
    two = TokenLayout(
        (1, 4), 1, counts=torch.tensor([[1.0, 2.0, 1.0, 1.0]]), patch_to_token=torch.tensor([[0, 0, 1, 2]])
    )
    three = TokenLayout((1, 4), 1, None, torch.tensor([[1.0, 3.0, 1.0]]), torch.tensor([[0, 0, 0, 1]]))
    step = torch.rand(1, 5, 5)
    first, merged, last = merged_rows(step, whole, three)[0]
    torch.testing.assert_close((first, last), (step[0, 0], step[0, 4]))
    torch.testing.assert_close(merged, step[0, 1:4].mean(dim=0))
    step = torch.rand(1, 4, 4)
    first, merged, last = merged_rows(step, two, three)[0]
    torch.testing.assert_close((first, last), (step[0, 0], step[0, 3]))
    torch.testing.assert_close(merged, (2 * step[0, 1] + step[0, 2]) / 3)
    assert merged_rows(step, whole, whole) is step


def test_flow_goes_through_merged_tokens() -> None:
    model = build(merge_per_block=1)
    pixels = torch.randn(1, 3, 8, 12, generator=torch.Generator().manual_seed(1))
    seen, places = trace_with_layouts(model, pixels)
    steps = []
    for block, weights in enumerate(seen.attention):
        joined = merged_rows(with_residual(weights.detach().mean(dim=1)), places[block], places[block + 1])
        assert joined.shape[1:] == (6 - block, 7 - block)
        torch.testing.assert_close(joined.sum(dim=2), torch.ones(1, 6 - block))
        steps.append(joined[0].double().numpy())
    start = seen.pool_weights[0].detach().double().numpy()
    padded = [np.pad(each, ((0, 7 - each.shape[0]), (0, 7 - each.shape[1]))) for each in steps]
    [found] = maps(model, pixels, Flow(discard=0.0))
    for patch in range(6):
        optimum = by_linear_programme(padded, np.pad(start, (0, 7 - len(start))), 1 + patch)
        assert found.ravel()[patch] == pytest.approx(optimum, abs=1e-4)


@pytest.mark.parametrize("kind", ["cls", "mean", "map, registers"])
def test_every_method_explains_a_merging_network(kind: str) -> None:
    """With its checks: deletion and insertion, shuffled weights, outlying tokens."""
    model = build(merge_per_block=2, rotary=Rotary("axial"), **KINDS[kind])
    pixels = torch.randn(2, 3, 8, 12, generator=torch.Generator().manual_seed(5))
    for method in ("best", "rollout", "gradient-rollout", "relevance", "grad-cam", "attention", "flow"):
        for each in explain_pixels(model, pixels, method, 1):
            assert isinstance(each, Explanation)
            assert each.map.shape == (2, 3)
            assert np.isfinite(each.map).all()
            assert each.scores is not None


def test_sheets_and_films_show_all_patches() -> None:
    model = build(merge_per_block=2)
    checkpoint = vitrail.Checkpoint(model, vitrail.Preprocess(size=(8, 12)))
    image = np.random.default_rng(0).integers(0, 256, (8, 12, 3), np.uint8)
    from vitrail.insight.attention_figures import looks

    pixels = torch.from_numpy(checkpoint.preprocess(image))[None]
    seen = trace_with_layouts(model, pixels)
    for block in (0, 1, -1):
        found = looks(seen, block, (2, 3))
        row = spread(seen.trace.attention[block][:, :, 0], seen.layouts[block % 3])[0, :, 1:]
        torch.testing.assert_close(found.flatten(1), row.detach())
        np.testing.assert_allclose(found.mean(dim=0).numpy(), maps(model, pixels, Attention(block))[0], atol=1e-6)
    assert len(film(checkpoint, image)) == 3
    assert heads_sheet(checkpoint, image, 4).width > 100
