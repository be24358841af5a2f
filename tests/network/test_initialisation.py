"""How a fresh network starts: every cell of the table in initialisation.py, measured."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from vitrail.errors import ConfigError
from vitrail.network import Positions, ResNetStem, ViT, ViTConfig
from vitrail.network.config import INITIALISATIONS
from vitrail.network.initialisation import initialise, lecun, truncated

D, M, P, K = 96, 192, 8, 50


def fresh(style: str, **changes: Any) -> ViT:
    sizes = {"image_size": 64, "patch_size": P, "width": D, "depth": 2, "heads": 4, "mlp_width": M, "classes": K}
    return ViT(ViTConfig(**{**sizes, "initialisation": style, **changes}))


def assert_start(tensor: Tensor, kind: str, fan: tuple[int, int] = (0, 0)) -> None:
    """Mean, deviation and bounds of a fresh tensor; `fan` is (in, out)."""
    values = tensor.detach().double().flatten()
    word, _, number = kind.partition(" ")
    if word == "zeros":
        assert (values == 0).all()
        return
    bound = math.inf
    if word in ("normal", "truncated"):
        deviation = float(number)
    elif word == "xavier":
        bound = math.sqrt(6 / sum(fan))
        deviation = bound / math.sqrt(3)
    elif word == "torch":
        bound = 1 / math.sqrt(fan[0])
        deviation = bound / math.sqrt(3)
    else:
        deviation = 1 / math.sqrt(fan[0])
        bound = 2 * deviation / 0.8796
    loose = 5 / math.sqrt(2 * len(values))  # five deviations of a deviation
    assert abs(values.std() / deviation - 1) < loose, (kind, values.std(), deviation)
    assert abs(values.mean()) < 5 * deviation / math.sqrt(len(values))
    assert values.abs().max() <= bound * (1 + 1e-6)
    if bound < math.inf:
        assert values.abs().max() > 0.9 * bound


TABLE = {  # style: dense, MLP biases, patch kernel, cls token, positions, last layer
    "paper": ("xavier", "normal 1e-6", "lecun", "zeros", "normal 0.02", "zeros"),
    "timm": ("truncated 0.02", "zeros", "torch", "normal 1e-6", "truncated 0.02", "truncated 0.02"),
    "hf": ("truncated 0.02", "zeros", "truncated 0.02", "truncated 0.02", "truncated 0.02", "truncated 0.02"),
    "mae": ("xavier", "zeros", "xavier", "normal 0.02", "normal 0.02", "truncated 2e-5"),
    "dinov2": ("truncated 0.02", "zeros", "torch", "normal 1e-6", "truncated 0.02", "normal 0.01"),
}


def test_every_style_stands_in_the_table() -> None:
    assert set(TABLE) == set(INITIALISATIONS)


@pytest.mark.row("000.22", "001.05")
@pytest.mark.parametrize("style", INITIALISATIONS)
def test_a_fresh_network_is_the_table(style: str) -> None:
    dense, mlp_bias, patch, cls, positions, last = TABLE[style]
    model = fresh(
        style,
        representation_width=64,
        registers=4,
        head_bias_init=-3.0,
        layer_scale=0.1,
        distillation_token=True,
        pool="mean",
    )
    assert_start(model.patches.projection.weight, patch, (3 * P * P, D))
    assert_start(model.patches.projection.bias, "zeros")
    assert_start(model.tokens.cls, cls)
    assert_start(model.tokens.distillation, cls)
    assert_start(model.tokens.registers, "normal 1e-6")
    assert_start(model.tokens.tables[0].table, positions)
    for block in model.encoder.blocks:
        for part in block.attention.qkv.weight.chunk(3):  # q, k and v apart
            assert_start(part, dense, (D, D))
        assert_start(block.attention.out.weight, dense, (D, D))
        assert_start(block.mlp.up.weight, dense, (D, M))
        assert_start(block.mlp.down.weight, dense, (M, D))
        for bias in (block.attention.qkv.bias, block.attention.out.bias):
            assert_start(bias, "zeros")
        for bias in (block.mlp.up.bias, block.mlp.down.bias):
            assert_start(bias, mlp_bias)
        for scale in (block.scale1, block.scale2):
            assert torch.equal(scale.gamma, torch.full((D,), 0.1))
    assert_start(model.head.representation.weight, dense, (D, 64))
    assert_start(model.head.representation.bias, "zeros")
    assert_start(model.head.classify.weight, last, (64, K))
    assert torch.equal(model.head.classify.bias, torch.full((K,), -3.0))
    norms = [each for each in model.modules() if isinstance(each, nn.LayerNorm)]
    assert len(norms) == 5
    for norm in norms:
        assert torch.equal(norm.weight, torch.ones(D))
        assert torch.equal(norm.bias, torch.zeros(D))


@pytest.mark.parametrize("style", INITIALISATIONS)
def test_other_parts_start_as_the_table_says(style: str) -> None:
    dense, mlp_bias, _, _, positions, last = TABLE[style]
    model = fresh(
        style, pool="map", mlp="swiglu", activation="silu", qkv_bias="no-key", positions=Positions("relative")
    )
    assert_start(model.pool.probe, "xavier", (D, 1))
    assert_start(model.pool.attention.qkv.weight[:D], dense, (D, D))
    assert_start(model.pool.mlp.up.weight, dense, (D, M))
    assert_start(model.pool.mlp.down.bias, mlp_bias)
    for block in model.encoder.blocks:
        assert_start(block.mlp.up.weight, dense, (D, 2 * M))
        assert_start(block.mlp.up.bias, mlp_bias)
        assert_start(block.attention.relative.table, positions)
        assert_start(block.attention.query_bias, "zeros")
        assert_start(block.attention.value_bias, "zeros")
    two = fresh(style, distillation_token=True, pool="cls+distillation", positions=Positions("learned-2d", at="every"))
    assert_start(two.head.classify.weight, last, (D, K))
    assert_start(two.head.distil.weight, last, (D, K))
    for table in two.tokens.tables:
        for each in (table.slots, table.rows, table.columns):
            assert_start(each, positions)
    assert not torch.equal(two.tokens.tables[0].rows, two.tokens.tables[1].rows)


def test_positions_do_not_start_near_zero() -> None:
    """The known trap E5: with deviation 1e-6 all patches would start at the same place."""
    model = fresh("paper")
    assert model.tokens.tables[0].table.std() > 0.015
    assert model.tokens.cls.abs().max() == 0


@pytest.mark.parametrize("kind", ["sincos-1d", "sincos-2d", "sincos-2d-moco"])
def test_fixed_tables_are_not_parameters(kind: str) -> None:
    model = fresh("paper", positions=Positions(kind))
    assert not any("tables" in name for name, _ in model.named_parameters())
    table = model.tokens.tables[0].table
    assert table.requires_grad is False
    assert table.abs().max() <= 1
    assert table.std() > 0.3  # the style left it alone
    assert "tokens.tables.0.table" in model.state_dict()


def test_the_last_norm_of_a_bottleneck_starts_from_zero() -> None:
    model = fresh("paper", patch_size=1, stem=ResNetStem((1, 1)))
    for stage in model.stem.stages:
        for unit in stage:
            assert torch.equal(unit.norm3.weight, torch.zeros_like(unit.norm3.weight))
            assert torch.equal(unit.norm1.weight, torch.ones_like(unit.norm1.weight))


def test_lecun_has_the_variance_flax_gives_it() -> None:
    weight = torch.empty(400, 3, 16, 16)
    lecun(weight)
    assert abs(weight.std() * math.sqrt(768) - 1) < 0.005
    assert weight.abs().max() * math.sqrt(768) < 2 / 0.8796


def test_truncated_keeps_the_deviation_it_says() -> None:
    weight = torch.empty(400, 400)
    truncated(0.02)(weight)
    assert abs(weight.std() - 0.02) < 0.0003


def test_two_networks_of_one_seed_are_the_same_and_of_two_are_not() -> None:
    def one(seed: int) -> ViT:
        torch.manual_seed(seed)
        return fresh("timm")

    first, again, other = one(1), one(1), one(2)
    for name, value in first.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name
    assert not torch.equal(first.patches.projection.weight, other.patches.projection.weight)


class Bare(nn.Module):
    """A part with a parameter and a dense layer of its own, which says nothing of how they start."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(3))
        self.dense = nn.Linear(3, 3)


class Gate(Bare):
    starts: ClassVar = {"factor": "cls", "dense": "dense"}


@pytest.mark.parametrize(
    "starts, words",
    [
        (None, "how Bare.factor starts is not known"),
        ({"factor": "cls"}, "how Bare.dense starts is not known"),
        ({"dense": "dense"}, "how Bare.factor starts is not known"),
        ({"factor": "cls", "dense": "kaiming"}, "how Bare.dense starts is not known.*one of dense, "),
    ],
)
def test_a_part_that_no_style_knows_is_refused(
    starts: dict[str, str] | None, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing keeps torch's own start silently: a new kind of positions, pool or block says how it begins."""
    model = ViT(ViTConfig(image_size=8, patch_size=4, width=8, depth=1, heads=2, mlp_width=8, classes=3))
    if starts is not None:
        monkeypatch.setattr(Bare, "starts", starts, raising=False)
    model.encoder.blocks[0].extra = Bare()
    with pytest.raises(ConfigError, match=words):
        initialise(model, model.config)


def test_a_part_that_says_how_it_starts_is_taken() -> None:
    model = ViT(ViTConfig(image_size=8, patch_size=4, width=8, depth=1, heads=2, mlp_width=8, classes=3))
    gate = Gate()
    model.encoder.blocks[0].extra = gate
    before = gate.dense.weight.clone()
    initialise(model, model.config)
    assert gate.factor.count_nonzero() == 0  # as the paper's cls token
    assert gate.dense.bias.count_nonzero() == 0
    assert not torch.equal(gate.dense.weight, before)
    assert gate.dense.weight.abs().max() <= (6 / 6) ** 0.5  # Xavier uniform
