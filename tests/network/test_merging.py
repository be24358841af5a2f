"""Token merging: against a loop that does it by hand; nothing lost, nothing of the prefix touched."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnxruntime
import openvino
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import vitrail
from shipping.conftest import operators_read_once  # noqa: F401  (a fixture)
from vitrail.errors import ConfigError, InputError
from vitrail.insight import trace
from vitrail.insight.cost import estimate
from vitrail.insight.token_rows import carry, collect, spread
from vitrail.insight.tracing import KeepWeights, Recorder
from vitrail.network import Attention, Positions, Rotary, ViT, ViTConfig, with_merging
from vitrail.network.merging import KeepKeys, match, merge, most_joined, unmerge
from vitrail.network.tokens import TokenLayout


def build(**changes: Any) -> ViT:
    """A small model whose every parameter is random; 12 patches."""
    sizes = {"image_size": (12, 16), "patch_size": 4, "width": 16, "depth": 3, "heads": 4, "mlp_width": 24}
    model = ViT(ViTConfig(**{**sizes, "classes": 5, **changes})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def match_by_hand(metric: Tensor, count: int, weights: Tensor | None = None) -> list[int]:
    """For every patch of one image, the group it falls into, named by the lowest number that stays."""
    n = len(metric)
    first, second = list(range(0, n, 2)), list(range(1, n, 2))
    found = []
    for i in first if second else []:
        likeness = [float(torch.cosine_similarity(metric[i], metric[j], dim=0)) for j in second]
        best = max(likeness)
        weight = 1.0 if weights is None else float(weights[i]) ** 0.5  # of the one that would leave
        found.append(((1 - best) * weight, i, second[likeness.index(best)]))
    found.sort()
    into = {i: j for _, i, j in found[: min(count, n // 2)]}
    stays = [i for i in range(n) if i not in into]
    return [stays.index(into.get(i, i)) for i in range(n)]


@given(
    n=st.integers(2, 12),
    count=st.integers(1, 9),
    prefix=st.integers(0, 2),
    seed=st.integers(0, 10_000),
    weighted=st.booleans(),
)
def test_matching_against_a_loop(n: int, count: int, prefix: int, seed: int, weighted: bool) -> None:
    dice = torch.Generator().manual_seed(seed)
    metric = torch.randn(3, prefix + n, 5, generator=dice)
    weights = torch.randn(3, prefix + n, generator=dice).mul(2).softmax(1) if weighted else None
    count = most_joined(n, count)
    stays, joins, into, target = match(metric, count, prefix, weights)
    left = prefix + n - count
    for image in range(3):
        by_hand = match_by_hand(metric[image, prefix:], count, None if weights is None else weights[image, prefix:])
        assert target[image].tolist() == [*range(prefix), *(prefix + each for each in by_hand)]
        assert (target[image, stays.view(3, left)[image] - image * (prefix + n)] == torch.arange(left)).all()
        gone = joins.view(3, count)[image] - image * (prefix + n)
        assert sorted([*gone.tolist(), *(stays.view(3, left)[image] - image * (prefix + n)).tolist()]) == list(
            range(prefix + n)
        )
        assert torch.equal(into.view(3, count)[image] - image * left, target[image, gone])


def test_where_all_are_alike_the_first_are_joined() -> None:
    for weights in (None, torch.full((2, 9), 1 / 9), torch.zeros(2, 9)):
        target = match(torch.ones(2, 9, 4), 3, 1, weights).target
        assert target.tolist() == [[0, 1, 1, 1, 2, 1, 3, 4, 5]] * 2  # patches 0, 2 and 4 go into patch 1


def test_of_patches_all_alike_the_least_attended_to_are_joined() -> None:
    """Equal but for rounding: what that says of their distance must not count."""
    x = torch.randn(64) + 1e-7 * torch.randn(1, 17, 64)
    weights = torch.rand(1, 17)
    target = match(x, 3, 1, weights).target[0].tolist()
    gone = [token for token in range(1, 17) if target.count(target[token]) > 1 and token % 2]
    assert set(gone) == {1 + 2 * each for each in weights[0, 1::2].argsort()[:3].tolist()}


def test_the_most_alike_are_joined() -> None:
    metric = torch.eye(6)[None].clone()
    metric[0, 4] = torch.tensor([0.0, 0.99, 0, 0, 0, 0])  # patch 4 looks like patch 1
    stays, joins, into, target = match(metric, 1)
    assert target.tolist() == [[0, 1, 2, 3, 1, 4]]
    assert (stays.tolist(), joins.tolist(), into.tolist()) == ([0, 1, 2, 3, 5], [4], [1])


@pytest.mark.parametrize("prefix", [0, 2])
@pytest.mark.parametrize("count", [1, 3, 100])
def test_merging_is_a_mean_weighted_by_size(prefix: int, count: int) -> None:
    x, metric = torch.randn(2, prefix + 9, 4), torch.randn(2, prefix + 9, 3)
    places = torch.randn(9, 2)
    layout = TokenLayout((3, 3), prefix, places)
    patches = x[:, prefix:]
    for _ in range(3):  # merging what was merged keeps the books
        x, layout = merge(x, layout, metric, count)
        metric = torch.randn(2, x.shape[1], 3)
    left = x.shape[1] - prefix
    assert left == {1: 6, 3: 2, 100: 2}[count]  # 9, 8, 7, 6; 9, 6, 3, 2; 9, 5, 3, 2
    assert torch.equal(layout.counts.sum(dim=1), torch.full((2,), prefix + 9.0))
    assert torch.equal(layout.counts[:, :prefix], torch.ones(2, prefix))
    assert layout.patch_to_token.shape == (2, 9)
    for image in range(2):
        for token in range(left):
            members = layout.patch_to_token[image] == token
            assert members.sum() == layout.counts[image, prefix + token] >= 1
            torch.testing.assert_close(x[image, prefix + token], patches[image, members].mean(dim=0))
            torch.testing.assert_close(layout.coordinates[image, token], places[members].mean(dim=0))


def test_prefix_tokens_take_no_part() -> None:
    x = torch.ones(2, 8, 4)  # all alike: a prefix token would be the best of partners
    x[:, :3] = torch.randn(2, 3, 4)
    merged, layout = merge(x, TokenLayout((1, 5), 3), x, 2)
    assert merged.shape == (2, 6, 4)
    assert torch.equal(merged[:, :3], x[:, :3])
    assert torch.equal(layout.counts[:, :3], torch.ones(2, 3))


def test_unmerge_gives_every_patch_the_token_that_holds_it() -> None:
    x = torch.randn(2, 9, 4)
    merged, layout = merge(x, TokenLayout((2, 4), 1), torch.randn(2, 9, 3), 3)
    back = unmerge(merged[:, 1:], layout)
    assert back.shape == (2, 8, 4)
    for image in range(2):
        for patch in range(8):
            assert torch.equal(back[image, patch], merged[image, 1 + layout.patch_to_token[image, patch]])
    assert unmerge(x, TokenLayout((3, 3), 0)) is x


def test_one_patch_is_left_alone() -> None:
    x = torch.randn(2, 2, 4)
    merged, layout = merge(x, TokenLayout((1, 1), 1), x, 5)
    assert torch.equal(merged, x)
    assert layout.counts is None
    model = build(merge_per_block=50, depth=6)  # 12, 6, 3, 2, 1, 1, 1
    hidden = trace(model, torch.randn(2, 3, 12, 16)).hidden
    assert [each.shape[1] - 1 for each in hidden] == [12, 6, 3, 2, 1, 1, 1]


@pytest.mark.parametrize("explicit", [False, True])
def test_proportional_attention_counts_a_merged_token_for_all_it_holds(explicit: bool) -> None:
    """A token of size 3 draws what three equal tokens would."""
    attention = Attention(8, 2, 4).eval()
    x = torch.randn(1, 4, 8)
    counts = torch.tensor([[1.0, 1.0, 3.0, 2.0]])
    repeated = x[:, [0, 1, 2, 2, 2, 3, 3]]
    expected = attention(repeated)[:, [0, 1, 2, 5]]
    kept = KeepWeights()
    attended = attention(x, layout=TokenLayout((1, 3), 1, counts=counts), kernel=kept if explicit else None)
    torch.testing.assert_close(attended, expected, atol=1e-6, rtol=1e-5)
    assert (attention(x) - expected).abs().max() > 1e-3
    if explicit:
        torch.testing.assert_close(kept.weights.sum(-1), torch.ones(1, 2, 4))


def test_without_merging_the_network_is_plain() -> None:
    model = build()
    pixels = torch.randn(2, 3, 12, 16)
    merging = ViT(ViTConfig.from_dict({**model.config.to_dict(), "merge_per_block": 2})).eval()
    merging.load_state_dict(model.state_dict())  # merging learns nothing
    assert (merging(pixels) - model(pixels)).abs().max() > 1e-4
    for block in merging.encoder.blocks:
        block.merged = 0
    assert torch.equal(merging(pixels), model(pixels))
    assert model.encode(pixels).layout.counts is None


@pytest.mark.parametrize("rotary", [None, Rotary("axial"), Rotary("mixed", 10.0)])
def test_a_block_merges_by_its_keys_between_attention_and_mlp(rotary: Rotary | None) -> None:
    model = build(merge_per_block=2, rotary=rotary, registers=1)
    pixels = torch.randn(2, 3, 12, 16)
    recorder = Recorder(hidden=True)
    encoded = model.encode(pixels, observer=recorder)
    x, layout = model.tokens(model.patches(pixels), (3, 4))
    for index, block in enumerate(model.encoder.blocks):
        torch.testing.assert_close(recorder.hidden[index], x)
        angles = model.tokens.rotary(layout.coordinates, index) if rotary else None
        normed = block.norm1(x)
        keys = block.attention.project(normed)[1]  # before any rotation
        attended = block.attention(normed, layout=layout._replace(angles=angles))
        x, layout = merge(x + attended, layout, keys.mean(dim=1), 2)
        x = x + block.mlp(block.norm2(x))
    torch.testing.assert_close(encoded.tokens, x)
    assert [each.shape[1] for each in recorder.hidden] == [14, 12, 10, 8]
    assert torch.equal(encoded.layout.patch_to_token, layout.patch_to_token)
    assert torch.equal(encoded.layout.counts.sum(dim=1), torch.full((2,), 14.0))


def by_tokens(model: ViT, pixels: Tensor, count: int, head_mask: Tensor | None = None) -> Tensor:
    """Merging by tokens, written out, an image at a time: tokens as they leave the last block."""
    config, r = model.config, model.config.prefix
    x, _ = model.tokens(model.patches(pixels), config.grid)
    images = []
    for start in x:
        tokens, sizes = start, torch.ones(len(start))
        for number, block in enumerate(model.encoder.blocks):
            attention = block.attention
            q, k, v = attention.qkv(block.norm1(tokens)).view(len(tokens), 3, 4, 4).permute(1, 2, 0, 3)  # (A, T, d)
            maps = (q @ k.mT / 2 + sizes.log()).softmax(-1)  # (A, T, T)
            mask = torch.ones(4) if head_mask is None else head_mask
            tokens = tokens + attention.out(((maps @ v) * mask[:, None, None]).transpose(0, 1).flatten(1))
            read = number > 0 and config.pool.startswith("cls")  # at first the cls token has seen nothing
            attended_to = (maps[:, 0] * mask[:, None]).sum(0)[r:] if read else None
            groups = match_by_hand(tokens[r:], count, attended_to)
            members = torch.eye(max(groups) + 1)[groups].T * sizes[r:]  # (left, N)
            left = members @ tokens[r:] / members.sum(1, keepdim=True)
            tokens, sizes = torch.cat((tokens[:r], left)), torch.cat((sizes[:r], members.sum(1)))
            tokens = tokens + block.mlp(block.norm2(tokens))
        images.append(tokens)
    return torch.stack(images)


KINDS: dict[str, dict[str, Any]] = {
    "cls": {},
    "registers": {"registers": 2},
    "distillation": {"distillation_token": True, "pool": "cls+distillation"},
    "mean": {"pool": "mean"},
    "mean, no cls": {"pool": "mean", "cls_token": False},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mask", [None, (1.0, 0.0, 0.5, 1.0)])
def test_a_network_that_merges_by_tokens_against_a_loop(kind: str, mask: tuple[float, ...] | None) -> None:
    model = build(merge_per_block=3, merge_by="tokens", **KINDS[kind])
    pixels = torch.randn(3, 3, 12, 16)
    heads = None if mask is None else torch.tensor(mask)
    with torch.no_grad():
        found, expected = model.encode(pixels, heads).tokens, by_tokens(model, pixels, 3, heads)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
        keys = with_merging(model, 3, by="keys")
        assert (keys.encode(pixels, heads).tokens - found).abs().max() > 1e-2


def test_cls_attention_is_the_first_row_of_the_weights() -> None:
    attention = Attention(8, 2, 4).eval()
    x, counts = torch.randn(3, 5, 8), torch.tensor([[1.0, 1.0, 3.0, 2.0, 4.0]]).expand(3, -1)
    weights = KeepWeights()
    kept = KeepKeys(weights, True, None)
    attention(x, layout=TokenLayout((1, 4), 1, counts=counts), kernel=kept)
    assert kept.cls_attention is not None
    torch.testing.assert_close(kept.cls_attention, weights.weights[:, :, 0].mean(dim=1))
    unasked = KeepKeys(weights, False, None)
    attention(x, kernel=unasked)
    assert unasked.cls_attention is None


def test_where_every_head_is_silenced_tokens_merge_by_likeness_alone() -> None:
    model = build(merge_per_block=3, merge_by="tokens")
    pixels = torch.randn(2, 3, 12, 16)
    silent = model.encode(pixels, torch.zeros(4))
    for block in model.encoder.blocks:
        block.by_cls = False
    assert torch.equal(silent.layout.patch_to_token, model.encode(pixels, torch.zeros(4)).layout.patch_to_token)
    assert silent.tokens.isfinite().all()


def test_merging_by_tokens_loses_less_on_photos(fixtures: Path) -> None:
    """The whole network's answers, and how far from them both ways are: the divergence summed over ten photos."""
    checkpoint = vitrail.load(fixtures / "vit_tiny_patch16_224_in1k.safetensors")
    assert isinstance(checkpoint, vitrail.Checkpoint)
    model, photos = checkpoint.model, sorted((fixtures / "fruits360_10" / "test").rglob("*.jpg"))[::40]
    pixels = torch.as_tensor(checkpoint.preprocess.batch([str(each) for each in photos]))
    with torch.inference_mode():
        whole = model(pixels).log_softmax(1)
        for count, first in ((18, 4), (8, 0)):
            both = [with_merging(model, count, first, by)(pixels).log_softmax(1) for by in ("tokens", "keys")]
            tokens, keys = (float((whole.exp() * (whole - each)).sum()) for each in both)
            assert 0 < tokens < 0.8 * keys


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
        holder = normed[1, 1 + encoded.layout.patch_to_token[1, patch]]
        torch.testing.assert_close(features.patches[1, patch], holder)


def test_merging_can_be_learned_through() -> None:
    model = build(merge_per_block=2, pool="mean")
    model(torch.randn(2, 3, 12, 16)).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name


@pytest.mark.parametrize("rounds", [1, 3])
def test_a_row_goes_back_to_the_patches_by_their_shares(rounds: int) -> None:
    """Against matrices: the merging as the mean that it is, row after row."""
    x, layout = torch.eye(11).expand(2, -1, -1), TokenLayout((3, 3), 2)  # a merged row says what went into it
    places, shares = [layout], []
    for _ in range(rounds):
        merged, layout = merge(x, layout, torch.randn(2, x.shape[1], 3), 2)
        places.append(layout)
        shares.append(merged)  # (B, T', 11): the share of every original token
        x = merged
    row = torch.rand(2, x.shape[1])
    torch.testing.assert_close(spread(row, layout), torch.einsum("bt,bts->bs", row, shares[-1]))
    torch.testing.assert_close(spread(row, layout).sum(dim=1), row.sum(dim=1))
    heads = torch.rand(2, 3, x.shape[1])
    torch.testing.assert_close(spread(heads, layout)[:, 1], spread(heads[:, 1], layout))
    torch.testing.assert_close(collect(spread(row, layout), layout), row)
    back = row
    for number in reversed(range(rounds)):
        back = carry(back, places[number + 1], places[number])
        torch.testing.assert_close(spread(back, places[number]), spread(row, layout))  # a step at a time, or at once
    plain = TokenLayout((3, 3), 2)
    assert spread(row, plain) is row
    assert carry(row, plain, plain) is row


def test_half_precision_keeps_the_mean_of_many() -> None:
    x = torch.randn(1, 41, 8).bfloat16()
    metric = torch.zeros(1, 41, 2) + torch.tensor([1.0, 0.0])
    merged, layout = merge(x, TokenLayout((1, 40), 1), metric, 20)  # all of the first set into one
    assert merged.dtype == torch.bfloat16
    assert layout.counts[0, 1] == 21
    expected = x[0, 1:].double()[[*range(0, 40, 2), 1]].mean(dim=0)
    assert ((merged[0, 1].double() - expected).abs() <= 2**-8 * expected.abs() + 1e-6).all()  # rounded once


def test_likeness_of_half_precision_is_told_apart_in_full() -> None:
    """Two pairs far closer to each other than a step of bfloat16 near 1: the closer is joined, not the first."""
    angles = torch.tensor([0.0, 0.02, 1.5, 1.51])  # cosines of 0.9998 and 0.99995, both 1 in bfloat16
    metric = torch.stack((angles.cos(), angles.sin()), dim=-1)[None].bfloat16()
    exact = torch.cosine_similarity(metric[0, 0::2].double(), metric[0, 1::2].double(), dim=-1)
    assert exact[1] > exact[0]
    assert exact.bfloat16().tolist() == [1, 1]
    assert match(metric, 1).leaving.tolist() == [2]
    assert match(metric.float(), 1).leaving.tolist() == [2]


def test_merging_is_switched_on_for_a_loaded_network() -> None:
    model = build(registers=2, rotary=Rotary("mixed", 10.0), pool="mean", norm="batch").double()
    model.encoder.mlp_chunk = 5
    model.head.classify.weight.requires_grad_(False)
    pixels = torch.randn(2, 3, 12, 16).double()
    merging = with_merging(model, 2)
    assert merging.config == replace(model.config, merge_per_block=2, merge_by="tokens")
    assert with_merging(model, 2, by="keys").config == replace(model.config, merge_per_block=2)
    assert model.config.merge_per_block == 0
    assert merging.encoder.mlp_chunk == 5
    ours, theirs = dict(model.named_parameters()), dict(merging.named_parameters())
    assert list(ours) == list(theirs)
    for name, each in theirs.items():  # the same memory: no copy
        assert each.data_ptr() == ours[name].data_ptr()
        assert each.requires_grad is ours[name].requires_grad is (name != "head.classify.weight")
    assert not merging.training
    assert with_merging(model.train(), 1).training
    model.eval()
    by_config = ViT(replace(model.config, merge_per_block=2, merge_by="tokens")).double().eval()
    by_config.load_state_dict(model.state_dict())
    by_config.encoder.mlp_chunk = 5
    assert torch.equal(merging(pixels), by_config(pixels))
    assert (merging(pixels) - model(pixels)).abs().max() > 1e-4
    assert torch.equal(with_merging(merging, 0)(pixels), model(pixels))  # and off again
    assert with_merging(merging, 0).config == model.config
    with torch.no_grad():
        model.norm.weight.mul_(2)
    assert torch.equal(merging.norm.weight, model.norm.weight)


def test_more_than_can_be_merged_leaves_one_patch() -> None:
    model = with_merging(build(), 10_000)
    assert model.encode(torch.randn(1, 3, 12, 16)).tokens.shape[1] == 1 + 2  # 12, 6, 3, 2
    assert with_merging(build(depth=6), 10_000).encode(torch.randn(1, 3, 12, 16)).tokens.shape[1] == 1 + 1


@pytest.mark.parametrize(
    "changes, why",
    [
        ({"axial": True}, "token merging takes patches out of their grid"),
        ({"positions": Positions("relative")}, "token merging takes patches out of their grid"),
        ({"positions": Positions(at="every")}, "token merging takes patches out of their grid"),
        ({"pool": "none"}, "token merging leaves fewer"),
    ],
)
def test_a_network_that_cannot_merge_says_why(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        with_merging(build(**changes), 1)
    with pytest.raises(ConfigError, match="merge_per_block: expected a whole number"):
        with_merging(build(), -1)
    with pytest.raises(ConfigError, match="merge_by 'token' is unknown: did you mean 'tokens'"):
        with_merging(build(), 1, by="token")
    with pytest.raises(InputError, match="model: expected ViT"):
        with_merging("vit-b16", 1)  # type: ignore[arg-type]


def test_a_checkpoint_takes_a_merging_network(tmp_path: Path) -> None:
    plain = vitrail.Checkpoint(build(), vitrail.Preprocess(size=(12, 16)), classes=tuple("abcde"))
    merging = replace(plain, model=with_merging(plain.model, 2))
    vitrail.save(merging, tmp_path / "merging.safetensors")
    again = vitrail.load(tmp_path / "merging.safetensors")
    pixels = torch.randn(2, 3, 12, 16).numpy()
    assert (again.model.config.merge_per_block, again.model.config.merge_by) == (2, "tokens")
    for one, other in zip(again.run(pixels), merging.run(pixels), strict=True):
        assert (one == other).all()


@pytest.mark.parametrize(
    "changes",
    [{"rotary": Rotary("mixed", 10.0), "pool": "map", "registers": 2}, {"merge_by": "tokens", "registers": 1}],
)
def test_a_merging_network_exports_with_any_batch(changes: dict[str, Any], tmp_path: Path) -> None:
    """torch.export bit for bit, ONNX Runtime and OpenVINO within rounding; also more images than a set has patches."""
    model = build(merge_per_block=2, depth=2, **changes)
    batch = ({0: torch.export.Dim.DYNAMIC},)
    exported = torch.export.export(model, (torch.randn(2, 3, 12, 16),), dynamic_shapes=batch)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter's own
        program = torch.onnx.export(exported, dynamo=True, opset_version=18, verbose=False)
    path = tmp_path / "merging.onnx"
    program.save(path)
    session = onnxruntime.InferenceSession(path)
    compiled = openvino.Core().compile_model(
        openvino.convert_model(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": "1"}
    )
    for count in (1, 3, 5, 11):
        pixels = torch.randn(count, 3, 12, 16)
        with torch.no_grad():
            expected = model(pixels)
            assert torch.equal(exported.module()(pixels), expected)
        [found] = session.run(None, {session.get_inputs()[0].name: pixels.numpy()})
        torch.testing.assert_close(torch.from_numpy(found), expected, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(torch.from_numpy(compiled(pixels.numpy())[0]), expected, atol=1e-4, rtol=1e-4)


def test_early_blocks_may_leave_their_tokens_alone() -> None:
    model = build(merge_per_block=2, merge_from=1, depth=3)
    pixels = torch.randn(2, 3, *model.config.image_size)
    seen: list[int] = []
    for block in model.encoder.blocks:
        block.register_forward_pre_hook(lambda _, given: seen.append(given[0].shape[1]))
    with torch.inference_mode():
        out = model.encode(pixels).tokens
    full = model.config.tokens
    assert seen == [full, full, full - 2]
    assert out.shape[1] == full - 4
    same = with_merging(build(depth=3), 2, 1, "keys")
    assert same.config == model.config
    with torch.inference_mode():
        assert with_merging(build(depth=3), 2, 2).encode(pixels).tokens.shape[1] == full - 2
    with pytest.raises(ConfigError, match="merge_from=3: expected a block before 3"):
        build(merge_per_block=2, merge_from=3, depth=3)
    with pytest.raises(ConfigError, match="merge_from=1 says where merging starts"):
        build(merge_from=1)


def test_every_second_block_may_merge() -> None:
    model = with_merging(build(depth=5), 2, 1, every=2)
    pixels = torch.randn(2, 3, *model.config.image_size)
    seen: list[int] = []
    for block in model.encoder.blocks:
        block.register_forward_pre_hook(lambda _, given: seen.append(given[0].shape[1]))
    with torch.inference_mode():
        assert model.encode(pixels).tokens.shape[1] == model.config.tokens - 4
    assert [model.config.tokens - each for each in seen] == [0, 0, 2, 2, 4]
    assert estimate(model.config).multiply_adds < estimate(build(depth=5).config).multiply_adds
    assert with_merging(model, 0).config == build(depth=5).config
    assert ViTConfig.from_dict(json.loads(json.dumps(model.config.to_dict()))) == model.config
    with pytest.raises(ConfigError, match="merge_every=2 says which blocks merge"):
        build(merge_every=2)
    with pytest.raises(ConfigError, match="merge_every"):
        with_merging(model, 2, every=0)
