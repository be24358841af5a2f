"""Tokens: prefix tokens first and in order, positions where they belong, dropout only while training."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.errors import InputError
from vitrail.network import Positions, Rotary, ViT, ViTConfig
from vitrail.network.positions import grid_coordinates
from vitrail.network.surgery import build_empty
from vitrail.network.tokens import Tokens, drop_patches

BOTH = {"distillation_token": True, "pool": "cls+distillation"}


def tiny(**changes: Any) -> ViTConfig:
    sizes = {"image_size": (8, 12), "patch_size": 4, "width": 16, "depth": 2, "heads": 4, "mlp_width": 24}
    return ViTConfig(**{**sizes, "classes": 5, **changes})


def build(**changes: Any) -> Tokens:
    """Tokens whose every parameter is random, so that nothing hides behind a zero."""
    tokens = Tokens(tiny(**changes)).eval()
    for parameter in tokens.parameters():
        nn.init.normal_(parameter)
    return tokens


@pytest.fixture
def patches() -> Tensor:
    return torch.randn(3, 6, 16)


@pytest.mark.row("000.05", "004.06", "004.07", "002.02")
def test_cls_first_then_patches_each_with_its_position(patches: Tensor) -> None:
    """The same as `nn.Embedding` tables looked up with 0, 1, 2…: a parameter is a table."""
    tokens = build()
    out, layout = tokens(patches, (2, 3))
    assert out.shape == (3, 7, 16)
    assert (layout.grid, layout.prefix) == ((2, 3), 1)

    positions, cls = nn.Embedding(7, 16), nn.Embedding(1, 16)
    positions.weight = nn.Parameter(tokens.tables[0].table.clone())
    cls.weight = nn.Parameter(tokens.cls.clone())
    first = cls(torch.zeros(3, 1, dtype=torch.long))
    expected = torch.cat((first, patches), dim=1) + positions(torch.arange(7))
    torch.testing.assert_close(out, expected)
    assert torch.equal(out[0, 0], out[2, 0])  # one cls token, the same for every image
    assert tokens.cls.shape == (1, 16)


@pytest.mark.row("000.05", "002.09", "002.01")
def test_the_walk_of_b16() -> None:
    """[1, 3, 224, 224] -> 14x14 cells of 768 -> 196 patches -> 197 tokens -> 1000 logits."""
    model = ViT(ViTConfig(depth=1)).eval()
    nn.init.normal_(model.head.classify.weight, std=0.02)
    pixels = torch.randn(1, 3, 224, 224)
    with torch.no_grad():
        cells = F.conv2d(pixels, model.patches.kernel, model.patches.projection.bias, stride=16)
        assert cells.shape == (1, 768, 14, 14)
        patches = model.patches(pixels)
        assert patches.shape == (1, 196, 768)
        torch.testing.assert_close(patches[0, 14 * 3 + 5], cells[0, :, 3, 5], atol=1e-5, rtol=1e-5)  # row by row
        tokens, layout = model.tokens(patches, (14, 14))
        assert tokens.shape == (1, 197, 768)
        torch.testing.assert_close(tokens[0, 0], model.tokens.cls[0] + model.tokens.tables[0].table[0])
        torch.testing.assert_close(tokens[0, 196], patches[0, 195] + model.tokens.tables[0].table[196])
        logits = model(pixels)
        assert logits.shape == (1, 1000)
        (block,) = model.encoder.blocks
        by_hand = model.head.classify(model.norm(block(tokens, layout).tokens)[:, 0])
    torch.testing.assert_close(logits, by_hand)
    whole = build_empty(ViTConfig())
    assert whole(torch.empty(32, 3, 224, 224, device="meta")).shape == (32, 1000)
    assert whole.tokens(torch.empty(32, 196, 768, device="meta"), (14, 14))[0].shape == (32, 197, 768)


@pytest.mark.row("002.01")
def test_the_cls_token_starts_from_zero_and_follows_the_dtype() -> None:
    model = ViT(tiny())
    assert torch.equal(model.tokens.cls, torch.zeros(1, 16))
    half = model.tokens.to(torch.bfloat16)
    out, _ = half(torch.randn(2, 6, 16, dtype=torch.bfloat16), (2, 3))
    assert out.dtype == torch.bfloat16
    assert torch.equal(out[:, 0], half.tables[0].table[0].expand(2, -1))  # zeros and its position


@pytest.mark.row("002.02")
def test_positions_of_zero_add_nothing_and_a_wrong_rank_is_refused(patches: Tensor) -> None:
    tokens = build()
    nn.init.zeros_(tokens.tables[0].table)
    out, _ = tokens(patches, (2, 3))
    assert torch.equal(out[:, 1:], patches)
    assert torch.equal(out[:, 0], tokens.cls.expand(3, -1))
    with pytest.raises(InputError, match="expected pixels .B, 3, H, W., got .3, 8, 12."):
        ViT(tiny())(torch.zeros(3, 8, 12))


@pytest.mark.row("4.REG")
def test_prefix_tokens_stand_in_order_and_registers_have_no_position(patches: Tensor) -> None:
    tokens = build(registers=3, **BOTH)
    out, layout = tokens(patches, (2, 3))
    table = tokens.tables[0].table
    assert table.shape == (8, 16)  # cls, distillation, six patches
    assert layout.prefix == 5
    torch.testing.assert_close(out[1, 0], tokens.cls[0] + table[0])
    torch.testing.assert_close(out[1, 1], tokens.distillation[0] + table[1])
    assert torch.equal(out[1, 2:5], tokens.registers)
    torch.testing.assert_close(out[:, 5:], patches + table[2:])


def test_without_slots_only_patches_have_positions(patches: Tensor) -> None:
    tokens = build(positions=Positions(prefix=False), registers=2)
    out, _ = tokens(patches, (2, 3))
    table = tokens.tables[0].table
    assert table.shape == (6, 16)
    assert torch.equal(out[0, :1], tokens.cls)
    assert torch.equal(out[0, 1:3], tokens.registers)
    torch.testing.assert_close(out[:, 3:], patches + table)


def test_without_prefix_tokens_and_positions_patches_pass_unchanged(patches: Tensor) -> None:
    tokens = build(cls_token=False, pool="mean", positions=Positions("none"))
    out, layout = tokens(patches, (2, 3))
    assert torch.equal(out, patches)
    assert layout.prefix == 0
    assert list(tokens.parameters()) == []


@pytest.mark.parametrize("at, count", [("every", 2), ("shared", 1)])
def test_positions_at_blocks_wait_for_the_blocks(patches: Tensor, at: str, count: int) -> None:
    tokens = build(positions=Positions(at=at), registers=2, **BOTH)
    out, _ = tokens(patches, (2, 3))
    assert torch.equal(out[:, 4:], patches)  # nothing was added at the stem
    assert torch.equal(out[0, :1], tokens.cls)
    additions = tokens.additions((2, 3))
    assert len(tokens.tables) == count
    assert len(additions) == 2
    for block, addition in enumerate(additions):
        table = tokens.tables[block % count].table
        assert torch.equal(addition[:2], table[:2])
        assert torch.equal(addition[2:4], torch.zeros(2, 16))  # registers
        assert torch.equal(addition[4:], table[2:])
    assert torch.equal(additions[0], additions[1]) == (at == "shared")
    assert build().additions((2, 3)) == []


@pytest.mark.row("000.05")
def test_dropout_stands_after_the_positions_and_only_while_training(patches: Tensor) -> None:
    tokens = build(dropout=0.5)
    still, _ = tokens(patches, (2, 3))
    dropped, _ = tokens.train()(patches, (2, 3))
    gone = dropped == 0
    assert 0.3 < gone.float().mean() < 0.7
    torch.testing.assert_close(dropped[~gone], still[~gone] * 2)  # positions inside, so all of it is scaled
    assert gone[:, 0].any()  # the cls token is no exception


def test_patch_dropout_only_while_training(patches: Tensor) -> None:
    tokens = build(patch_dropout=0.5, rotary=Rotary())
    still, layout = tokens(patches, (2, 3))
    assert still.shape == (3, 7, 16)
    assert torch.equal(layout.coordinates, grid_coordinates((2, 3)))

    out, layout = tokens.train()(patches, (2, 3))
    assert out.shape == (3, 4, 16)  # the cls token and half of six
    assert torch.equal(out[:, 0], still[:, 0])
    assert layout.coordinates.shape == (3, 3, 2)
    chosen = set()
    for image in range(3):
        for token, (row, column) in zip(out[image, 1:], layout.coordinates[image].long().tolist(), strict=True):
            assert torch.equal(token, still[image, 1 + 3 * row + column])  # the layout followed its patch
        numbers = [3 * row + column for row, column in layout.coordinates[image].long().tolist()]
        assert numbers == sorted(numbers)
        chosen.add(tuple(numbers))
    assert len(chosen) > 1  # other patches for each image


@pytest.mark.parametrize("share, left", [(0.0, 6), (0.1, 5), (0.34, 4), (0.5, 3), (0.99, 1)])
def test_patch_dropout_keeps_the_share_it_says(patches: Tensor, share: float, left: int) -> None:
    kept, coordinates = drop_patches(patches, None, share)
    assert kept.shape == (3, left, 16)
    assert coordinates is None
    for image, original in zip(kept, patches, strict=True):
        for patch in image:
            assert (patch == original).all(dim=1).sum() == 1


def test_patch_dropout_is_fair() -> None:
    counts = torch.zeros(8)
    for _ in range(20):
        kept, _ = drop_patches(torch.arange(8.0).reshape(1, 8, 1).expand(50, -1, -1), None, 0.5)
        counts += kept.flatten().long().bincount(minlength=8)
    shares = counts / 1000
    assert (shares - 0.5).abs().max() < 0.08  # five deviations
