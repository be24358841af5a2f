"""prune_heads: a cut head is a masked head, its numbers stay, and what is left travels like any network."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import vitrail
from vitrail.errors import InputError
from vitrail.insight import prune_heads, trace
from vitrail.network import Positions, Rotary, ViT, ViTConfig
from vitrail.network.surgery import with_head

pytestmark = pytest.mark.row("000.15")

CUTS = {0: [1, 2], 2: [0]}

KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "no bias": {"qkv_bias": "none"},
    "no key bias": {"qkv_bias": "no-key"},
    "free head width": {"head_width": 12},
    "mixed rotary": {"rotary": Rotary("mixed", 10.0), "positions": Positions("none")},
    "axial rotary": {"rotary": Rotary("axial")},
    "dinov3": {"rotary": Rotary("dinov3"), "qkv_bias": "no-key", "registers": 2, "layer_scale": 0.5},
    "merging": {"merge_per_block": 1, "pool": "mean"},
    "merging, mixed rotary": {"merge_per_block": 1, "rotary": Rotary("mixed", 10.0), "pool": "map"},
    "relative": {"positions": Positions("relative")},
    "qk norm": {"qk_norm": True},
    "axial": {"axial": True},
    "parallel": {"parallel": True},
    "map": {"pool": "map"},
    "batch norm": {"norm": "batch"},
}


def build(**changes: Any) -> ViT:
    """A small model whose every parameter is random."""
    sizes = {"image_size": (8, 12), "patch_size": 4, "width": 16, "depth": 3, "heads": 4, "mlp_width": 24}
    model = ViT(ViTConfig(**{**sizes, "classes": 5, **changes})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.25)
    return model


def mask_of(cuts: dict[int, list[int]]) -> Tensor:
    mask = torch.ones(3, 4)
    for block, heads in cuts.items():
        mask[block, heads] = 0
    return mask


def parameters(model: ViT) -> int:
    return sum(each.numel() for each in model.parameters())


@pytest.fixture
def pixels() -> Tensor:
    return torch.randn(3, 3, 8, 12)


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
def test_a_cut_head_is_a_masked_head(pixels: Tensor, kind: str) -> None:
    model = build(**KINDS[kind])
    masked = model(pixels, head_mask=mask_of(CUTS))
    pruned = prune_heads(model, CUTS)
    assert (pruned(pixels) - masked).abs().max() < 1e-6 * max(1.0, float(masked.abs().max()))
    assert (masked - model(pixels)).abs().max() > 1e-4
    assert pruned.config.kept_heads == ((0, 3), (0, 1, 2, 3), (1, 2, 3))
    larger = torch.randn(2, 3, 8, 16)
    gap = (pruned(larger) - model(larger, head_mask=mask_of(CUTS))).abs().max()
    assert gap < 2e-6 * max(1.0, float(model(larger).abs().max()))


@pytest.mark.parametrize("bias, biases", [("all", 3), ("none", 0), ("no-key", 2)])
@pytest.mark.parametrize("head_width", [4, 12])
def test_parameters_fall_by_exactly_what_a_head_had(bias: str, biases: int, head_width: int) -> None:
    model = build(qkv_bias=bias, head_width=head_width)
    width = model.config.width
    each = 4 * width * head_width + biases * head_width
    assert parameters(model) - parameters(prune_heads(model, {1: [2]})) == each
    assert parameters(model) - parameters(prune_heads(model, CUTS)) == 3 * each


def test_mixed_rotary_loses_the_frequencies_of_the_head_too() -> None:
    model = build(rotary=Rotary("mixed", 10.0))
    pruned = prune_heads(model, {1: [2]})
    assert parameters(model) - parameters(pruned) == 4 * 16 * 4 + 3 * 4 + 4  # two axes of half a head width
    left = [0, 1, 3]
    assert torch.equal(pruned.tokens.rotary.mixed[1], model.tokens.rotary.mixed[1][left])


def test_rows_and_columns_left_are_the_old_ones() -> None:
    model = build()
    pruned = prune_heads(model, {1: [0, 2]})
    old, new = model.encoder.blocks[1].attention, pruned.encoder.blocks[1].attention
    assert new.heads == 2
    rows = torch.tensor([4, 5, 6, 7, 12, 13, 14, 15])
    for part in range(3):
        assert torch.equal(new.qkv.weight[8 * part : 8 * part + 8], old.qkv.weight[16 * part + rows])
        assert torch.equal(new.qkv.bias[8 * part : 8 * part + 8], old.qkv.bias[16 * part + rows])
    assert torch.equal(new.out.weight, old.out.weight[:, rows])
    assert torch.equal(new.out.bias, old.out.bias)


@pytest.mark.parametrize("kind", ["plain", "mixed rotary", "merging", "no key bias"])
def test_cutting_again_uses_the_original_numbers(pixels: Tensor, kind: str) -> None:
    model = build(**KINDS[kind])
    twice = prune_heads(prune_heads(model, {0: [1]}), {0: [2], 2: [0]})
    once = prune_heads(model, CUTS)
    assert twice.config == once.config
    for name, value in once.state_dict().items():
        assert torch.equal(twice.state_dict()[name], value), name
    assert torch.equal(twice(pixels), once(pixels))


def test_cutting_what_is_gone_changes_nothing(pixels: Tensor) -> None:
    pruned = prune_heads(build(), CUTS)
    again = prune_heads(pruned, {0: [1], 2: (0,), 1: []})
    assert again.config == pruned.config
    assert torch.equal(again(pixels), pruned(pixels))
    none = prune_heads(build(), {})
    assert parameters(none) == parameters(build())


@pytest.mark.parametrize("kind", ["plain", "mixed rotary", "merging"])
def test_masks_and_traces_of_a_pruned_model_mean_original_numbers(pixels: Tensor, kind: str) -> None:
    model = build(**KINDS[kind])
    pruned = prune_heads(model, CUTS)
    mask = mask_of(CUTS)
    mask[0, 3], mask[1, 2] = 0.5, 0.0
    expected = model(pixels, head_mask=mask)
    torch.testing.assert_close(pruned(pixels, head_mask=mask), expected, atol=1e-6, rtol=1e-5)
    ignored = mask.clone()
    ignored[0, 1] = 7.0  # a head that is gone
    assert torch.equal(pruned(pixels, head_mask=ignored), pruned(pixels, head_mask=mask))
    seen, whole = trace(pruned, pixels), trace(model, pixels, head_mask=mask_of(CUTS))
    for block, weights in enumerate(seen.attention):
        left = list(pruned.config.heads_of(block))
        torch.testing.assert_close(weights, whole.attention[block][:, left], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_a_pruned_model_saves_and_loads(pixels: Tensor, kind: str) -> None:
    pruned = prune_heads(build(**KINDS[kind]), CUTS)
    file = io.BytesIO()
    torch.save(pruned.state_dict(), file)
    file.seek(0)
    config = ViTConfig.from_dict(json.loads(json.dumps(pruned.config.to_dict())))
    other = ViT(config).eval()
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(other(pixels), pruned(pixels))


def test_the_original_is_left_alone(pixels: Tensor) -> None:
    model = build(rotary=Rotary("mixed", 10.0))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    logits = model(pixels)
    pruned = prune_heads(model, CUTS)
    with torch.no_grad():
        for parameter in pruned.parameters():
            parameter.zero_()
    assert model.config.kept_heads is None
    assert torch.equal(model(pixels), logits)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_what_the_model_was_set_to_is_kept(pixels: Tensor) -> None:
    model = build().to(torch.float64)
    model.patches.requires_grad_(False)
    pruned = prune_heads(model, CUTS)
    assert {parameter.dtype for parameter in pruned.parameters()} == {torch.float64}
    assert {parameter.device.type for parameter in pruned.parameters()} == {"cpu"}
    frozen = {name for name, parameter in pruned.named_parameters() if not parameter.requires_grad}
    assert frozen == {"patches.projection.weight", "patches.projection.bias"}
    assert pruned.training is False
    assert prune_heads(model.train(), CUTS).training is True
    pruned(pixels.double()).sum().backward()  # it learns on
    assert pruned.encoder.blocks[0].attention.qkv.weight.grad.abs().max() > 0


@pytest.mark.parametrize(
    "cuts, words",
    [
        ({0: [0, 1, 2, 3]}, "pruning [0, 1, 2, 3] would leave block 0 without heads: keep at least one"),
        ({1: [4]}, "head to prune from block 1: expected a whole number from 0 to 3, got 4"),
        ({1: [-1]}, "head to prune from block 1: expected a whole number from 0 to 3, got -1"),
        ({1: ["a"]}, "head to prune from block 1: expected a whole number from 0 to 3, got 'a'"),
        ({3: [0]}, "block to prune: expected a whole number from 0 to 2, got 3"),
        ({-1: [0]}, "block to prune: expected a whole number from 0 to 2, got -1"),
        ({"0": [0]}, "block to prune: expected a whole number from 0 to 2, got '0'"),
    ],
)
def test_cuts_that_cannot_be_are_named(cuts: Any, words: str) -> None:
    with pytest.raises(InputError) as caught:
        vitrail.prune_heads(build(), cuts)
    assert str(caught.value) == words
    assert isinstance(caught.value, ValueError)


def test_the_last_heads_cannot_go_one_by_one() -> None:
    model = prune_heads(prune_heads(build(), {1: [0, 3]}), {1: [2]})
    with pytest.raises(InputError, match="would leave block 1 without heads"):
        prune_heads(model, {1: [1]})
    assert model.config.heads_of(1) == (1,)


def test_other_networks_can_be_made_from_a_pruned_one(pixels: Tensor) -> None:
    pruned = prune_heads(build(), CUTS)
    tuned = with_head(pruned, 2)
    assert tuned.config.kept_heads == pruned.config.kept_heads
    assert torch.equal(tuned.features(pixels).patches, pruned.features(pixels).patches)


def test_what_is_not_a_mapping_of_heads_is_told() -> None:
    model = build()
    for wrong in ([1], {0: 1}, {0: ["one"]}, {0: [[1]]}, {True: [0]}, {0: [True]}):
        with pytest.raises(InputError):
            prune_heads(model, wrong)  # type: ignore[arg-type]
    heads = prune_heads(model, {np.int64(0): np.array([1])}).config.kept_heads  # type: ignore[dict-item]
    assert heads is not None
    assert 1 not in heads[0]


def test_cutting_nothing_leaves_the_config_alone() -> None:
    model = build()
    assert prune_heads(model, {}).config == model.config
