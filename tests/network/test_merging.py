"""Token merging: against a loop that does it by hand; nothing lost, nothing of the prefix touched."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from vitrail.insight import trace
from vitrail.network import Attention, Rotary, ViT, ViTConfig
from vitrail.network.encoder import Tape
from vitrail.network.merging import match, merge, unmerge
from vitrail.network.tokens import Place


def build(**changes: Any) -> ViT:
    """A small model whose every parameter is random; 12 patches."""
    sizes = {"image_size": (12, 16), "patch_size": 4, "width": 16, "depth": 3, "heads": 4, "mlp_width": 24}
    model = ViT(ViTConfig(**{**sizes, "classes": 5, **changes})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def match_by_hand(metric: Tensor, count: int) -> list[int]:
    """For every patch of one image, the group it falls into, named by the lowest number that stays."""
    n = len(metric)
    first, second = list(range(0, n, 2)), list(range(1, n, 2))
    found = []
    for i in first if second else []:
        likeness = [float(torch.cosine_similarity(metric[i], metric[j], dim=0)) for j in second]
        best = max(likeness)
        found.append((best, i, second[likeness.index(best)]))
    found.sort(key=lambda each: (-each[0], each[1]))
    into = {i: j for _, i, j in found[: min(count, n // 2)]}
    stays = [i for i in range(n) if i not in into]
    return [stays.index(into.get(i, i)) for i in range(n)]


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 12), count=st.integers(0, 9), seed=st.integers(0, 10_000))
def test_matching_against_a_loop(n: int, count: int, seed: int) -> None:
    metric = torch.randn(2, n, 5, generator=torch.Generator().manual_seed(seed))
    matching = match(metric, count)
    assert matching.left == n - min(count, n // 2)
    for image in range(2):
        assert matching.target[image].tolist() == match_by_hand(metric[image], count)


def test_the_most_alike_are_joined() -> None:
    metric = torch.eye(6)[None].clone()
    metric[0, 4] = torch.tensor([0.0, 0.99, 0, 0, 0, 0])  # patch 4 looks like patch 1
    target, left = match(metric, 1)
    assert left == 5
    assert target.tolist() == [[0, 1, 2, 3, 1, 4]]


@pytest.mark.parametrize("prefix", [0, 2])
@pytest.mark.parametrize("count", [1, 3, 100])
def test_merging_is_a_mean_weighted_by_size(prefix: int, count: int) -> None:
    x, metric = torch.randn(2, prefix + 9, 4), torch.randn(2, prefix + 9, 3)
    places = torch.randn(9, 2)
    place = Place((3, 3), prefix, places)
    patches = x[:, prefix:]
    for _ in range(3):  # merging what was merged keeps the books
        x, place = merge(x, place, metric, count)
        metric = torch.randn(2, x.shape[1], 3)
    left = x.shape[1] - prefix
    assert left == {1: 6, 3: 2, 100: 2}[count]  # 9, 8, 7, 6; 9, 6, 3, 2; 9, 5, 3, 2
    assert torch.equal(place.sizes.sum(dim=1), torch.full((2,), prefix + 9.0))
    assert torch.equal(place.sizes[:, :prefix], torch.ones(2, prefix))
    assert place.sources.shape == (2, 9)
    for image in range(2):
        for token in range(left):
            members = place.sources[image] == token
            assert members.sum() == place.sizes[image, prefix + token] >= 1
            torch.testing.assert_close(x[image, prefix + token], patches[image, members].mean(dim=0))
            torch.testing.assert_close(place.places[image, token], places[members].mean(dim=0))


def test_prefix_tokens_take_no_part() -> None:
    x = torch.ones(2, 8, 4)  # all alike: a prefix token would be the best of partners
    x[:, :3] = torch.randn(2, 3, 4)
    merged, place = merge(x, Place((1, 5), 3), x, 2)
    assert merged.shape == (2, 6, 4)
    assert torch.equal(merged[:, :3], x[:, :3])
    assert torch.equal(place.sizes[:, :3], torch.ones(2, 3))


def test_unmerge_gives_every_patch_the_token_that_holds_it() -> None:
    x = torch.randn(2, 9, 4)
    merged, place = merge(x, Place((2, 4), 1), torch.randn(2, 9, 3), 3)
    back = unmerge(merged[:, 1:], place)
    assert back.shape == (2, 8, 4)
    for image in range(2):
        for patch in range(8):
            assert torch.equal(back[image, patch], merged[image, 1 + place.sources[image, patch]])
    assert unmerge(x, Place((3, 3), 0)) is x


def test_one_patch_is_left_alone() -> None:
    x = torch.randn(2, 2, 4)
    merged, place = merge(x, Place((1, 1), 1), x, 5)
    assert torch.equal(merged, x)
    assert torch.equal(place.sizes, torch.ones(2, 2))
    model = build(merge_per_block=50, depth=6)  # 12, 6, 3, 2, 1, 1, 1
    hidden = trace(model, torch.randn(2, 3, 12, 16)).hidden
    assert [each.shape[1] - 1 for each in hidden] == [12, 6, 3, 2, 1, 1, 1]


@pytest.mark.parametrize("explicit", [False, True])
def test_proportional_attention_counts_a_merged_token_for_all_it_holds(explicit: bool) -> None:
    """A token of size 3 draws what three equal tokens would."""
    attention = Attention(8, 2, 4).eval()
    x = torch.randn(1, 4, 8)
    sizes = torch.tensor([[1.0, 1.0, 3.0, 2.0]])
    repeated = x[:, [0, 1, 2, 2, 2, 3, 3]]
    expected = attention(repeated)[:, [0, 1, 2, 5]]
    attended = attention.attend(x, place=Place((1, 3), 1, sizes=sizes), explicit=explicit)
    torch.testing.assert_close(attended.output, expected, atol=1e-6, rtol=1e-5)
    assert (attention(x) - expected).abs().max() > 1e-3
    if explicit:
        torch.testing.assert_close(attended.weights.sum(-1), torch.ones(1, 2, 4))


def test_without_merging_the_network_is_plain() -> None:
    model = build()
    pixels = torch.randn(2, 3, 12, 16)
    merging = ViT(ViTConfig.from_dict({**model.config.to_dict(), "merge_per_block": 2})).eval()
    merging.load_state_dict(model.state_dict())  # merging learns nothing
    assert (merging(pixels) - model(pixels)).abs().max() > 1e-4
    for block in merging.encoder.blocks:
        block.merged = 0
    assert torch.equal(merging(pixels), model(pixels))
    assert model.encode(pixels).place.sizes is None


@pytest.mark.parametrize("rotary", [None, Rotary("axial"), Rotary("mixed", 10.0)])
def test_a_block_merges_by_its_keys_between_attention_and_mlp(rotary: Rotary | None) -> None:
    model = build(merge_per_block=2, rotary=rotary, registers=1)
    pixels = torch.randn(2, 3, 12, 16)
    tape = Tape(hidden=True)
    encoded = model.encode(pixels, tape=tape)
    x, place = model.tokens(model.patches(pixels), (3, 4))
    for index, block in enumerate(model.encoder.blocks):
        torch.testing.assert_close(tape.hidden[index], x)
        rotation = model.tokens.rotary(place.places, index) if rotary else None
        attended = block.attention.attend(block.norm1(x), place=place, rotation=rotation)
        x, place = merge(x + attended.output, place, attended.keys.mean(dim=1), 2)
        x = x + block.mlp(block.norm2(x))
    torch.testing.assert_close(encoded.tokens, x)
    assert [each.shape[1] for each in tape.hidden] == [14, 12, 10, 8]
    assert torch.equal(encoded.place.sources, place.sources)
    assert torch.equal(encoded.place.sizes.sum(dim=1), torch.full((2,), 14.0))


@pytest.mark.parametrize("pool", ["mean", "map"])
def test_features_give_merged_patches_back_to_their_places(pool: str) -> None:
    model = build(merge_per_block=3, pool=pool)
    pixels = torch.randn(2, 3, 12, 16)
    features = model.features(pixels)
    assert features.patches.shape == (2, 12, 16)
    assert features.grid == (3, 4)
    encoded = model.encode(pixels)
    assert encoded.tokens.shape == (2, 4, 16)
    normed = model.norm(encoded.tokens)
    for patch in range(12):
        holder = normed[1, 1 + encoded.place.sources[1, patch]]
        torch.testing.assert_close(features.patches[1, patch], holder)


def test_merging_can_be_learned_through() -> None:
    model = build(merge_per_block=2, pool="mean")
    model(torch.randn(2, 3, 12, 16)).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name
