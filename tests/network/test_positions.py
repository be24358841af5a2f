"""Positions of every kind against formulas and loops of their own, and their resampling to other grids."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import oracles
from network import renames
from vitrail.insight import trace
from vitrail.network import Positions, Resample, Rotary, ViT, ViTConfig
from vitrail.network.positions import (
    RelativeKeys,
    RotaryPositions,
    apply_rotary,
    grid_coordinates,
    mixed_frequencies,
    resample,
    sincos_1d,
    sincos_2d,
)
from vitrail.network.presets import preset

Grid = tuple[int, int]
SMALL: dict[str, Any] = {
    "image_size": (24, 32),  # a grid of 3 x 4
    "patch_size": 8,
    "width": 32,
    "depth": 2,
    "heads": 2,
    "mlp_width": 64,
    "classes": 5,
}
PLAIN = Resample(antialias=False)


def config(**changes: Any) -> ViTConfig:
    return ViTConfig(**{**SMALL, **changes})


def random_model(settings: ViTConfig) -> ViT:
    model = ViT(settings).eval()
    renames.randomise(model)
    return model


# ---- sine and cosine ---------------------------------------------------------------------------------------------


@pytest.mark.row("4.SIN")
def test_sincos_1d_is_the_formula() -> None:
    table = sincos_1d(50, 12)
    for place, k in product(range(50), range(6)):
        angle = place / 10000 ** (2 * k / 12)
        assert table[place, 2 * k].item() == pytest.approx(math.sin(angle), abs=1e-6)
        assert table[place, 2 * k + 1].item() == pytest.approx(math.cos(angle), abs=1e-6)


@pytest.mark.row("4.SIN")
@pytest.mark.parametrize("moco", [False, True])
def test_sincos_2d_is_the_formula(moco: bool) -> None:
    """MAE: exponents k / (D/4); MoCo-v3: k / (D/4 - 1). Column sines, column cosines, row sines, row cosines."""
    grid, width = (3, 5), 16
    table = sincos_2d(grid, width, moco)
    quarter = width // 4
    for row, column, k in product(range(3), range(5), range(quarter)):
        omega = 10000 ** -(k / (quarter - 1 if moco else quarter))
        expected = [f(c * omega) for c in (column, row) for f in (math.sin, math.cos)]
        got = table[row * 5 + column, k::quarter].tolist()
        assert got == pytest.approx(expected, abs=1e-6)


@pytest.mark.row("4.SIN")
def test_the_two_forms_are_not_interchangeable() -> None:
    assert (sincos_2d((14, 14), 64) - sincos_2d((14, 14), 64, moco=True)).abs().max() > 0.1


@pytest.mark.row("4.SIN")
def test_the_mae_form_is_the_one_of_maes_own_code() -> None:
    """get_2d_sincos_pos_embed of MAE, in numpy: omega by division, outer product, (w, h) halves."""
    width, side = 24, 7

    def one(places: np.ndarray) -> np.ndarray:
        omega = np.arange(width // 4, dtype=np.float64) / (width / 4.0)
        out = np.einsum("m,d->md", places.reshape(-1), 1.0 / 10000**omega)
        return np.concatenate([np.sin(out), np.cos(out)], axis=1)

    grid = np.stack(np.meshgrid(np.arange(side), np.arange(side)))  # w goes first
    expected = np.concatenate([one(grid[0]), one(grid[1])], axis=1)
    assert np.abs(sincos_2d((side, side), width).numpy() - expected).max() < 1e-6


@pytest.mark.row("4.SIN")
def test_a_shift_is_one_linear_map() -> None:
    """The row of place p + k is a fixed matrix times the row of p, the same for every p."""
    width, shift = 16, 7
    table = sincos_1d(60, width).double()
    matrix = torch.zeros(width, width, dtype=torch.float64)
    for k in range(width // 2):
        angle = shift / 10000 ** (2 * k / width)
        turned = torch.tensor([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])
        matrix[2 * k : 2 * k + 2, 2 * k : 2 * k + 2] = turned
    assert (table[:-shift] @ matrix.T - table[shift:]).abs().max() < 1e-6


@pytest.mark.row("4.SIN")
@pytest.mark.parametrize("moco", [False, True])
def test_a_shift_in_two_dimensions_is_one_linear_map(moco: bool) -> None:
    """Solved from half of the places, the map from (r, c) to (r + 2, c + 3) holds for the other half."""
    grid, width = (14, 14), 16
    table = sincos_2d(grid, width, moco).double().reshape(*grid, width)
    before, after = table[:-2, :-3].reshape(-1, width), table[2:, 3:].reshape(-1, width)
    order = torch.randperm(len(before))
    fit, check = order[::2], order[1::2]
    matrix = torch.linalg.lstsq(before[fit], after[fit], driver="gelsd").solution
    assert (before[check] @ matrix - after[check]).abs().max() < 1e-5


@pytest.mark.row("4.SIN", "003.07")
@pytest.mark.parametrize("kind", ["sincos-1d", "sincos-2d", "sincos-2d-moco"])
def test_sincos_positions_take_the_place_of_learned_ones(kind: str) -> None:
    """Fixed: saved with the weights, but no parameter; the cls slot of the 2-D kinds is zero."""
    model = random_model(config(positions=Positions(kind)))
    assert not [name for name, _ in model.named_parameters() if "table" in name]
    table = model.state_dict()["tokens.tables.0.table"]
    formula = {"sincos-1d": sincos_1d(13, 32)[1:]}.get(kind, sincos_2d((3, 4), 32, moco=kind.endswith("moco")))
    assert torch.equal(table[1:], formula)
    if kind != "sincos-1d":
        assert not table[0].any()
    learned = ViT(config()).eval()
    learned.load_state_dict(model.state_dict())
    pixels = torch.randn(2, 3, 24, 32)
    assert torch.equal(model(pixels), learned(pixels))


# ---- kinds and places --------------------------------------------------------------------------------------------


def embedded(model: ViT, pixels: Tensor) -> Tensor:
    """The tokens that enter the first block."""
    return trace(model, pixels, attention=False).hidden[0]


@pytest.mark.row("P.1")
def test_no_positions_means_patches_in_any_order() -> None:
    """Without positions a permutation of the patches leaves the cls token alone; with them it does not."""
    pixels = torch.randn(1, 3, 24, 32)
    turned = pixels.flip(3).unflatten(3, (4, 8)).flip(4).flatten(3)  # patches in another order, each upright
    for kind, free in (("none", True), ("learned", False), ("learned-2d", False), ("relative", False)):
        model = random_model(config(positions=Positions(kind)))
        difference = renames.gap(model(turned), model(pixels))
        assert (difference < 1e-5) is free, (kind, difference)


@pytest.mark.row("P.1")
def test_learned_positions_are_added_once() -> None:
    """Eq. 1 of the paper: tokens = [cls; patches] + positions."""
    model = random_model(config())
    pixels = torch.randn(2, 3, 24, 32)
    patches = model.patches(pixels)
    cls = model.tokens.cls.expand(2, 1, -1)
    expected = torch.cat((cls, patches), dim=1) + model.tokens.tables[0].table
    assert torch.equal(embedded(model, pixels), expected)


@pytest.mark.row("P.1")
def test_learned_2d_positions_are_two_tables_of_half_the_width() -> None:
    model = random_model(config(positions=Positions("learned-2d")))
    table = model.tokens.tables[0]
    assert (table.rows.shape, table.columns.shape) == ((3, 16), (4, 16))
    full = table((3, 4))
    assert torch.equal(full[0], table.slots[0])
    for row, column in product(range(3), range(4)):
        expected = torch.cat((table.rows[row], table.columns[column]))
        assert torch.equal(full[1 + row * 4 + column], expected)


@pytest.mark.row("P.1")
@pytest.mark.parametrize("prefix", [0, 1, 3])
def test_relative_keys_against_loops(prefix: int) -> None:
    """score(i, j) gains q_i . key[i - j] / sqrt(d); prefix tokens gain nothing."""
    keys = RelativeKeys(config(positions=Positions("relative")))
    torch.nn.init.normal_(keys.table)
    n, d = 12, 16
    queries = torch.randn(2, 2, prefix + n, d)
    expected = torch.zeros(2, 2, prefix + n, prefix + n)
    for b, head, i, j in product(range(2), range(2), range(n), range(n)):
        key = keys.table[i - j + n - 1]
        expected[b, head, prefix + i, prefix + j] = queries[b, head, prefix + i] @ key / math.sqrt(d)
    assert (keys(queries, (3, 4), prefix) - expected).abs().max() < 1e-5


@pytest.mark.row("P.1")
def test_relative_positions_through_the_whole_attention() -> None:
    """The fused kernel and the exact weights both hold the bias; recomputed here from q, k and the table."""
    model = random_model(config(positions=Positions("relative"), depth=1))
    seen = trace(model, torch.randn(2, 3, 24, 32))
    attention = model.encoder.blocks[0].attention
    normed = model.encoder.blocks[0].norm1(seen.hidden[0])
    q, k, _ = attention.qkv(normed).reshape(2, 13, 3, 2, 16).permute(2, 0, 3, 1, 4)
    logits = torch.zeros(2, 2, 13, 13)
    for i, j in product(range(13), range(13)):
        key = k[:, :, j] + (attention.relative.table[i - j + 11] if min(i, j) > 0 else 0)
        logits[:, :, i, j] = (q[:, :, i] * key).sum(-1) / 4
    assert (seen.attention[0] - logits.softmax(-1)).abs().max() < 1e-6
    assert len([name for name, _ in model.named_parameters() if "relative" in name]) == 1


@pytest.mark.row("P.1")
@pytest.mark.parametrize("native, patches", [(8, 14), (16, 20), (16, 24), (16, 28), (8, 27), (3, 1)])
def test_relative_keys_at_ordinary_sizes(native: int, patches: int) -> None:
    """Rounding may put the last place a hair past the end; the ends are still the ends."""
    described = config(image_size=8 * native, positions=Positions("relative"))
    keys = RelativeKeys(described)
    torch.nn.init.normal_(keys.table)
    queries = torch.randn(1, 1, patches**2, 16)
    bias = keys(queries, (patches, patches), 0)[0, 0]
    if patches > 1:
        last = (queries[0, 0, -1] @ keys.table[-1] / 4).item()
        assert bias[-1, 0].item() == pytest.approx(last, abs=1e-3)
    assert bias.isfinite().all()


@pytest.mark.row("P.1")
@pytest.mark.parametrize("grid", [(5, 4), (2, 6), (4, 3), (1, 12)])
def test_relative_keys_on_another_grid_keep_their_ends(grid: tuple[int, int]) -> None:
    """Each patch takes its place on the native 3x4 grid, ends on ends, also where only the shape changes."""
    keys = RelativeKeys(config(positions=Positions("relative")))
    torch.nn.init.normal_(keys.table)
    h, w = grid
    queries = torch.randn(1, 1, h * w, 16)
    bias = keys(queries, grid, 0)[0, 0]

    def place(patch: int) -> float:
        row, column = divmod(patch, w)
        return row * 2 / max(h - 1, 1) * 4 + column * 3 / max(w - 1, 1)

    table = keys.table.detach().numpy()
    for i, j in product(range(h * w), range(h * w)):
        key = np.array([np.interp(place(i) - place(j), np.arange(-11, 12), table[:, c]) for c in range(16)])
        assert bias[i, j].item() == pytest.approx(float(queries[0, 0, i].numpy() @ key) / 4, abs=1e-4)


@pytest.mark.row("P.2")
@pytest.mark.parametrize("kind", ["learned", "learned-2d"])
def test_positions_at_the_stem_at_every_block_and_shared(kind: str) -> None:
    """One table used once; one a block; one used before every block. Each recomputed block by block."""
    pixels = torch.randn(2, 3, 24, 32)
    for at, tables in (("stem", 1), ("every", 2), ("shared", 1)):
        model = random_model(config(positions=Positions(kind, at=at), registers=1))
        assert len(model.tokens.tables) == tables
        seen = trace(model, pixels, attention=False)
        plain = torch.cat(
            (model.tokens.cls.expand(2, 1, -1), model.tokens.registers.expand(2, 1, -1), model.patches(pixels)), dim=1
        )
        _, place = model.tokens(model.patches(pixels), (3, 4))
        x = plain
        for index, block in enumerate(model.encoder.blocks):
            if at != "stem" or index == 0:
                table = model.tokens.tables[index if at == "every" else 0]((3, 4))  # cls, patches
                x = x + torch.cat((table[:1], torch.zeros(1, 32), table[1:]))  # registers have no position
            if at == "stem" and index == 0:
                assert (seen.hidden[0] - x).abs().max() < 1e-6
            x = block(x, place).tokens
            assert (seen.hidden[index + 1] - x).abs().max() < 1e-5
        if at != "stem":
            assert torch.equal(seen.hidden[0], plain)


@pytest.mark.row("P.2")
def test_tables_at_every_block_are_counted() -> None:
    counts = {
        at: sum(p.numel() for p in ViT(config(positions=Positions(at=at))).parameters())
        for at in ("stem", "every", "shared")
    }
    assert counts["shared"] == counts["stem"]
    assert counts["every"] == counts["stem"] + 13 * 32


# ---- registers ---------------------------------------------------------------------------------------------------


@pytest.mark.row("4.REG", "004.14")
def test_registers_stand_after_cls_without_positions() -> None:
    model = random_model(config(registers=3, pool="mean"))
    pixels = torch.randn(2, 3, 24, 32)
    tokens = embedded(model, pixels)
    assert tokens.shape == (2, 16, 32)
    assert torch.equal(tokens[:, 1:4], model.tokens.registers.expand(2, 3, -1))
    assert len(model.tokens.tables[0].table) == 1 + 12  # no slots for registers
    features = model.features(pixels)
    assert (features.prefix.shape, features.patches.shape) == ((2, 4, 32), (2, 12, 32))
    seen = trace(model, pixels)
    assert torch.equal(seen.pool_weights[:, :4], torch.zeros(2, 4))
    assert torch.allclose(seen.pooled, features.patches.mean(dim=1), atol=1e-6)


@pytest.mark.row("4.REG")
def test_registers_start_small() -> None:
    registers = ViT(config(registers=64)).tokens.registers
    assert 0.8e-6 < registers.std().item() < 1.2e-6


# ---- rotary ------------------------------------------------------------------------------------------------------


def rotary_of(kind: str, theta: float = 100.0, **changes: Any) -> RotaryPositions:
    rotary = Rotary(kind, theta)
    return RotaryPositions(config(rotary=rotary, positions=Positions("none"), **changes), rotary).eval()


def turned(rotary: RotaryPositions, x: Tensor, grid: Grid, prefix: int = 0, block: int = 0) -> Tensor:
    return apply_rotary(x, rotary(rotary.coordinates(grid, x.device), block), prefix)


KINDS = ["axial", "mixed", "dinov3"]


@pytest.mark.row("4.ROPE")
@pytest.mark.parametrize("kind", KINDS)
def test_scores_depend_only_on_offsets(kind: str) -> None:
    """The same query and key at every place: the score at (i, j) is a function of where j stands from i."""
    grid = (5, 6)
    rotary = rotary_of(kind)
    q, k = (torch.randn(1, 2, 1, 16).expand(1, 2, 30, 16) for _ in range(2))
    scores = turned(rotary, q, grid) @ turned(rotary, k, grid).transpose(-2, -1)  # (1, A, N, N)
    by_offset: dict[tuple[int, int], list[Tensor]] = {}
    for i, j in product(range(30), range(30)):
        offset = (j // 6 - i // 6, j % 6 - i % 6)
        by_offset.setdefault(offset, []).append(scores[0, :, i, j])
    for values in by_offset.values():
        assert (torch.stack(values) - values[0]).abs().max() < 1e-4
    firsts = torch.stack([values[0] for values in by_offset.values()])
    assert firsts.std(dim=0).min() > 0.1  # and other offsets do give other scores


@pytest.mark.row("4.ROPE")
@pytest.mark.parametrize("kind", KINDS)
def test_a_turn_keeps_lengths_and_prefix_tokens(kind: str) -> None:
    x = torch.randn(2, 2, 3 + 12, 16)
    y = turned(rotary_of(kind), x, (3, 4), prefix=3)
    assert torch.equal(y[:, :, :3], x[:, :, :3])
    assert torch.allclose(y.norm(dim=-1), x.norm(dim=-1), atol=1e-5)
    assert (y[:, :, 4:] - x[:, :, 4:]).abs().max() > 0.1


def rotate_pairs(x: Tensor, angles: list[float], halves: bool) -> Tensor:
    """One vector of d values turned pair by pair: (0, 1), (2, 3)… or (0, d/2), (1, d/2 + 1)…"""
    d = len(x)
    out = x.clone()
    for pair, angle in enumerate(angles):
        a, b = (pair, pair + d // 2) if halves else (2 * pair, 2 * pair + 1)
        out[a] = x[a] * math.cos(angle) - x[b] * math.sin(angle)
        out[b] = x[b] * math.cos(angle) + x[a] * math.sin(angle)
    return out


@pytest.mark.row("4.ROPE")
@pytest.mark.parametrize("grid", [(3, 4), (6, 2)])  # native, and another without any resampling
@pytest.mark.parametrize("kind", KINDS)
def test_rotary_against_loops(kind: str, grid: Grid) -> None:
    """axial: x frequencies then y, theta^(-k/(d/4)); mixed: f_x x + f_y y per head and block; DINOv3: y then x,
    2 pi c / theta^(k/(d/4)) with centres from -1 to 1, values paired across halves."""
    d, quarter = 16, 4
    rotary = rotary_of(kind)
    x = torch.randn(1, 2, grid[0] * grid[1], d)
    for block in range(2):
        y = turned(rotary, x, grid, block=block)
        for head, row, column in product(range(2), range(grid[0]), range(grid[1])):
            if kind == "axial":
                angles = [c * 100.0 ** (-k / quarter) for c in (column, row) for k in range(quarter)]
            elif kind == "mixed":
                f = rotary.mixed[block][head].tolist()
                angles = [row * f[0][k] + column * f[1][k] for k in range(d // 2)]
            else:
                centres = (2 * (row + 0.5) / grid[0] - 1, 2 * (column + 0.5) / grid[1] - 1)
                angles = [2 * math.pi * c / 100.0 ** (k / quarter) for c in centres for k in range(quarter)]
            n = row * grid[1] + column
            expected = rotate_pairs(x[0, head, n], angles, halves=kind == "dinov3")
            assert (y[0, head, n] - expected).abs().max() < 1e-5


@pytest.mark.row("4.ROPE")
def test_mixed_frequencies_start_as_axial_ones_turned() -> None:
    """Per head: (f_x, f_y) of length theta^(-k/(d/4)), first half along one direction, second at a right angle."""
    row, column = mixed_frequencies(6, 32, 10.0).unbind(1)  # (heads, d/2) each
    magnitude = 10.0 ** -(torch.arange(8) / 8)
    assert torch.allclose((row**2 + column**2).sqrt(), magnitude.repeat(6, 2), atol=1e-6)
    assert (row[:, :8] * row[:, 8:] + column[:, :8] * column[:, 8:]).abs().max() < 1e-6
    angles = torch.atan2(row[:, 0], column[:, 0])
    assert len({round(a, 4) for a in angles.tolist()}) == 6


@pytest.mark.row("4.ROPE")
def test_dinov3_augments_coordinates_while_training_only() -> None:
    rotary = Rotary("dinov3", shift=0.3, jitter=1.5, rescale=2.0)
    positions = RotaryPositions(config(rotary=rotary, positions=Positions("none")), rotary)
    cpu = torch.device("cpu")
    plain = positions.eval().coordinates((3, 4), cpu)
    assert torch.equal(plain, positions.coordinates((3, 4), cpu))
    assert plain[0].tolist() == pytest.approx([-2 / 3, -3 / 4])
    drawn = [positions.train().coordinates((3, 4), cpu) for _ in range(200)]
    for places in drawn:  # an affine map of each axis, within bounds
        cells = places.reshape(3, 4, 2)
        scale = torch.stack((cells[-1, 0, 0] - cells[0, 0, 0], cells[0, -1, 1] - cells[0, 0, 1]))
        factor = scale / torch.tensor([4 / 3, 6 / 4])
        assert ((factor > 1 / 3.0) & (factor < 3.0)).all()
        assert ((places.mean(dim=0) / factor).abs() <= 0.3 + 1e-5).all()
        assert not torch.equal(places, plain)


@pytest.mark.row("4.ROPE")
@pytest.mark.parametrize("kind", KINDS)
def test_networks_with_rotary_positions_run_on_any_grid(kind: str) -> None:
    """Nothing to resample: patches shared by two grids turn the same way (DINOv3 follows the relative place)."""
    model = random_model(config(rotary=Rotary(kind), positions=Positions("none")))
    assert model(torch.randn(2, 3, 40, 16)).shape == (2, 5)
    assert not list(model.tokens.tables.parameters())
    rotary = model.tokens.rotary
    small, large = (rotary(rotary.coordinates(grid, torch.device("cpu")), 0) for grid in ((3, 4), (5, 4)))
    same = torch.equal(small.cos, large.cos[..., :12, :])
    assert same is (kind != "dinov3")


# ---- resampling --------------------------------------------------------------------------------------------------

POLICIES = {
    "timm": Resample(),
    "DeiT, MAE, transformers": PLAIN,
    "DINOv2": Resample(antialias=False, offset=0.1),
    "torchvision": Resample(antialias=False, align_corners=True),
    "vit_jax": Resample("bilinear", antialias=False, align_corners=True),
    "timm npz": Resample("bilinear", antialias=False),
    "siglip2": Resample("bilinear"),
    "nearest": Resample("nearest", antialias=False),
}


@pytest.mark.row("P.10")
@pytest.mark.parametrize("family", POLICIES)
def test_the_same_grid_is_the_identity(family: str) -> None:
    table = torch.randn(12, 8)
    assert resample(table, (3, 4), (3, 4), POLICIES[family]) is table


@pytest.mark.row("P.10")
@pytest.mark.parametrize("family", POLICIES)
def test_every_policy_gives_the_grid_asked_for_and_keeps_constants(family: str) -> None:
    for new in ((5, 7), (2, 3), (3, 9), (7, 4), (14, 14), (16, 24), (37, 37)):
        assert resample(torch.ones(12, 2), (3, 4), new, POLICIES[family]).shape == (new[0] * new[1], 2)
        values = resample(torch.full((12, 2), 3.0), (3, 4), new, POLICIES[family])
        assert (values - 3.0).abs().max() < 1e-5


def cubic(distance: float, a: float) -> float:
    """The cubic convolution kernel; a is -0.75 in torch, -0.5 where it also filters (as Pillow)."""
    t = abs(distance)
    if t < 1:
        return (a + 2) * t**3 - (a + 3) * t**2 + 1
    return a * (t**3 - 5 * t**2 + 8 * t - 4) if t < 2 else 0.0


def triangle(distance: float, a: float) -> float:
    return max(0.0, 1 - abs(distance))


def matrix_of(old: int, new: int, policy: Resample) -> Tensor:
    """Along one axis, how much of each old place every new place takes; written out, place by place."""
    kernel, reach = (cubic, 2) if policy.mode == "bicubic" else (triangle, 1)
    weights = torch.zeros(new, old, dtype=torch.float64)
    for place in range(new):
        if policy.align_corners:
            centre = place * (old - 1) / (new - 1)
        else:
            step = old / (new + policy.offset) if policy.offset else old / new
            centre = (place + 0.5) * step - 0.5
        if policy.antialias:
            stretch = max(old / new, 1.0)
            first = max(int(centre + 0.5 - reach * stretch + 0.5), 0)
            last = min(int(centre + 0.5 + reach * stretch + 0.5), old)
            row = [kernel((source - centre) / stretch, -0.5) for source in range(first, last)]
            for source, weight in zip(range(first, last), row, strict=True):
                weights[place, source] += weight / sum(row)
            continue
        base = math.floor(centre)
        for source in range(base - reach + 1, base + reach + 1):
            weights[place, min(max(source, 0), old - 1)] += kernel(source - centre, -0.75)
    return weights


RESAMPLED = [
    ("timm", (14, 14), (24, 24)),
    ("timm", (7, 9), (4, 12)),
    ("DeiT, MAE, transformers", (7, 9), (4, 12)),
    ("DINOv2", (7, 9), (4, 12)),
    ("DINOv2", (37, 37), (16, 16)),
    ("torchvision", (7, 9), (4, 12)),
    ("vit_jax", (7, 7), (12, 12)),
    ("vit_jax", (7, 9), (4, 12)),
    ("timm npz", (7, 9), (4, 12)),
    ("siglip2", (7, 9), (4, 12)),
]


@pytest.mark.row("P.10")
@pytest.mark.parametrize("family, old, new", RESAMPLED)
def test_policies_against_kernels_written_out(family: str, old: Grid, new: Grid) -> None:
    """Two dimensions, one after the other, by matrices of kernel values."""
    policy = POLICIES[family]
    table = torch.randn(old[0] * old[1], 3)
    image = table.double().reshape(*old, 3)
    down, across = matrix_of(old[0], new[0], policy), matrix_of(old[1], new[1], policy)
    expected = torch.einsum("ih,jw,hwd->ijd", down, across, image).reshape(-1, 3)
    assert (resample(table, old, new, policy) - expected).abs().max() < 2e-5


@pytest.mark.row("P.10")
def test_the_policy_of_vit_jax_is_scipys_zoom() -> None:
    ndimage = pytest.importorskip("scipy.ndimage")
    table = torch.randn(49, 3)
    for side in (5, 12, 24):
        zoomed = ndimage.zoom(table.reshape(7, 7, 3).numpy(), (side / 7, side / 7, 1), order=1)
        got = resample(table, (7, 7), (side, side), POLICIES["vit_jax"]).reshape(side, side, 3)
        assert np.abs(got.numpy() - zoomed).max() < 1e-5


@pytest.mark.row("P.10")
def test_the_policy_of_torchvision_is_its_own_function() -> None:
    oracles.torchvision()
    from torchvision.models.vision_transformer import interpolate_embeddings

    table = torch.randn(1 + 16, 8)
    state = {"encoder.pos_embedding": table[None].clone()}
    theirs = interpolate_embeddings(48, 8, state)["encoder.pos_embedding"][0]
    settings = config(image_size=32, width=8, positions=Positions(resample=POLICIES["torchvision"]))
    model = ViT(settings)
    model.tokens.tables[0].table.data.copy_(table)
    assert (model.tokens.tables[0]((6, 6)) - theirs).abs().max() < 1e-6


@pytest.mark.row("P.10")
def test_dinov2_scales_by_a_little_more_than_the_grid() -> None:
    """Its own line: scale_factor = (n + 0.1) / M, bicubic, no antialias; this is not what size=n gives."""
    table = torch.randn(37 * 37, 4)
    image = table.reshape(1, 37, 37, 4).permute(0, 3, 1, 2)
    scaled = F.interpolate(image, scale_factor=((16 + 0.1) / 37, (24 + 0.1) / 37), mode="bicubic")
    assert scaled.shape[-2:] == (16, 24)
    got = resample(table, (37, 37), (16, 24), POLICIES["DINOv2"])
    assert torch.equal(got, scaled.permute(0, 2, 3, 1).reshape(-1, 4))
    assert (got - resample(table, (37, 37), (16, 24), PLAIN)).abs().max() > 0.01


@pytest.mark.row("P.10")
def test_presets_read_positions_as_their_families_do() -> None:
    policies = {
        "vit-b16": Resample(),
        "deit-s16": PLAIN,
        "deit3-b16": PLAIN,
        "mae-b16": PLAIN,
        "clip-b32": PLAIN,
        "siglip-b16": PLAIN,
        "dinov2-s14": Resample(antialias=False, offset=0.1),
        "dinov2-s14-registers": Resample(),
    }
    for name, policy in policies.items():
        assert preset(name).positions.resample == policy, name


@pytest.mark.row("P.10", "003.11")
@pytest.mark.parametrize("kind", ["learned", "learned-2d", "sincos-2d"])
def test_prefix_slots_are_untouched(kind: str) -> None:
    settings = config(positions=Positions(kind), distillation_token=True, pool="cls+distillation")
    table = random_model(settings).tokens.tables[0]
    native = table((3, 4))
    for grid in ((5, 7), (2, 3), (3, 5), (4, 3)):
        other = table(grid)
        assert other.shape == (2 + grid[0] * grid[1], 32)
        assert torch.equal(other[:2], native[:2])
        assert not torch.allclose(other[2:4], native[2:4])


@pytest.mark.row("P.10")
def test_resampling_is_in_two_dimensions() -> None:
    """Trap E37: along the list of tokens, with cls in it, the cls slot leaks and rows break."""
    settings = config(image_size=32, positions=Positions(resample=POLICIES["timm npz"]))
    model = random_model(settings)
    table = model.tokens.tables[0]
    side = torch.arange(4.0)
    with torch.no_grad():  # a slot unlike the rest; value 0 tells the row, value 1 the column
        table.table[0] = 1000.0
        table.table[1:, 0] = side.repeat_interleave(4)
        table.table[1:, 1] = side.repeat(4)
    patches = table((7, 7))[1:].reshape(7, 7, 32)
    assert patches.abs().max() < 100  # nothing of the slot
    assert torch.allclose(patches[..., 0], patches[:, :1, 0].expand(7, 7), atol=1e-5)  # rows know no column
    assert torch.allclose(patches[..., 1], patches[:1, :, 1].expand(7, 7), atol=1e-5)
    assert (patches[1:, 0, 0] - patches[:-1, 0, 0]).min() >= -1e-6  # and rise along their axis
    wrong = F.interpolate(table.table.T[None], size=50, mode="linear")[0].T[1:].reshape(7, 7, 32)
    assert wrong.abs().max() > 100
    assert not torch.allclose(wrong[1:, :, 0], wrong[1:, :1, 0].expand(6, 7), atol=1e-2)


@pytest.mark.row("P.10")
def test_the_same_number_of_patches_on_another_grid_is_resampled() -> None:
    """3 x 4 and 4 x 3 both have 12 patches; a check of the number alone would mix up rows."""
    table = random_model(config()).tokens.tables[0]
    assert not torch.allclose(table((4, 3)), table((3, 4)))
    assert torch.equal(table((4, 3))[1:], resample(table.table[1:], (3, 4), (4, 3), Resample()))


@pytest.mark.row("P.10")
def test_learned_2d_tables_are_resampled_each_along_its_axis() -> None:
    table = random_model(config(positions=Positions("learned-2d"))).tokens.tables[0]
    other = table((5, 6))[1:].reshape(5, 6, 32)
    rows = matrix_of(3, 5, Resample()).float() @ table.rows
    columns = matrix_of(4, 6, Resample()).float() @ table.columns
    assert (other[..., :16] - rows[:, None]).abs().max() < 1e-5
    assert (other[..., 16:] - columns[None]).abs().max() < 1e-5


@pytest.mark.row("003.11")
def test_a_network_for_224_runs_on_160_by_288() -> None:
    """And what it computes is what a network for that size, given the resampled table, computes."""
    settings = ViTConfig(width=48, depth=1, heads=3, mlp_width=96, classes=7)
    model = random_model(settings)
    native = ViT(replace(settings, image_size=(160, 288))).eval()
    state = model.state_dict()
    name = "tokens.tables.0.table"
    image = state[name][1:].reshape(1, 14, 14, 48).permute(0, 3, 1, 2)
    image = F.interpolate(image, size=(10, 18), mode="bicubic", antialias=True)
    native.load_state_dict(state | {name: torch.cat((state[name][:1], image.permute(0, 2, 3, 1).reshape(-1, 48)))})
    pixels = torch.randn(2, 3, 160, 288)
    assert renames.gap(model(pixels), native(pixels)) < 1e-6


@pytest.mark.parametrize("kind", ["none", "learned", "learned-2d", "relative", "sincos-1d", "sincos-2d"])
def test_every_kind_runs_on_other_sizes(kind: str) -> None:
    model = random_model(config(positions=Positions(kind)))
    for size in ((24, 32), (40, 16), (8, 8)):
        assert model(torch.randn(1, 3, *size)).isfinite().all()


def test_coordinates_go_row_by_row() -> None:
    assert grid_coordinates((2, 3)).tolist() == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]


def test_tables_of_moco_are_made_anew_for_another_grid() -> None:
    """big_vision and MoCo-v3 compute theirs for the grid at hand; MAE stretches the one it has."""
    for kind, anew in (("sincos-2d-moco", True), ("sincos-2d", False)):
        config = ViTConfig(image_size=32, patch_size=8, width=16, heads=2, depth=1, positions=Positions(kind))
        table = ViT(config).tokens.tables[0]((6, 3))
        formula = sincos_2d((6, 3), 16, moco=kind == "sincos-2d-moco")
        assert table.shape == (19, 16)
        assert torch.equal(table[1:], formula) == anew
