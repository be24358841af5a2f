"""Optimisers: groups and their rates, exact states, and Muon beside torch's."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.errors import CheckpointError, ConfigError
from vitrail.network import ConvStem, Positions, Rotary, ViT, ViTConfig
from vitrail.training.optimisers import Muon, Optimiser, build_optimiser, orthogonalise, parameter_groups, show_rates
from vitrail.training.recipe import OPTIMISERS, Recipe

KINDS = ("adamw", "adam", "sgd", "muon")
SMALL: dict[str, Any] = {"image_size": 16, "patch_size": 8, "width": 16, "depth": 3, "heads": 2, "mlp_width": 32}


def small(**changes: Any) -> ViT:
    torch.manual_seed(1)
    return ViT(ViTConfig(**{**SMALL, "classes": 4, "initialisation": "timm", **changes}))


def rates(model: ViT, **settings: Any) -> dict[str, tuple[float, float]]:
    """Rate and weight decay of every parameter, by its name."""
    return {
        name: (group["lr"], group["weight_decay"])
        for group in parameter_groups(model, Recipe(**settings))
        for name, _ in group["params"]
    }


def learn(model: ViT, optimiser: Optimiser, start: int, stop: int) -> None:
    """Steps on images that depend on the step alone, each with another factor."""
    for step in range(start, stop):
        dice = torch.Generator().manual_seed(step)
        targets = torch.randint(0, 4, (8,), generator=dice)
        pixels = torch.randn(8, 3, 16, 16, generator=dice) + targets[:, None, None, None]
        F.cross_entropy(model(pixels), targets).backward()
        optimiser.step(1 / (1 + step))
        optimiser.zero()


def overfit(model: ViT, optimiser: Optimiser, steps: int) -> float:
    """What is left of the loss after some steps on one batch, as a share of the first."""
    dice = torch.Generator().manual_seed(0)
    pixels, targets = torch.randn(8, 3, 16, 16, generator=dice), torch.arange(8) % 4
    losses = []
    for _ in range(steps):
        loss = F.cross_entropy(model(pixels), targets)
        loss.backward()
        optimiser.step(1.0)
        optimiser.zero()
        losses.append(float(loss.detach()))
    return losses[-1] / losses[0]


def recipe_of(kind: str) -> Recipe:
    return Recipe(optimiser=kind, lr=0.05 if kind == "sgd" else 3e-3, layer_decay=0.8, weight_decay=0.1)


# ---- groups --------------------------------------------------------------------------------------------------------


def test_rates_fall_from_block_to_block_as_in_beit() -> None:
    found = rates(small(registers=2), lr=1.0, layer_decay=0.5)
    by_layer = {name: lr for name, (lr, _) in found.items()}
    for name in ("patches.projection.weight", "patches.projection.bias", "tokens.tables.0.table"):
        assert by_layer[name] == 0.5**4
    assert by_layer["tokens.cls"] == by_layer["tokens.registers"] == 0.5**4
    for block in range(3):
        own = {lr for name, lr in by_layer.items() if name.startswith(f"encoder.blocks.{block}.")}
        assert own == {0.5 ** (3 - block)}
    assert {by_layer[name] for name in ("norm.weight", "norm.bias", "head.classify.weight")} == {1.0}


@pytest.mark.parametrize(
    "changes, name, share",
    [
        ({"stem": ConvStem((8,)), "patch_size": 4}, "stem.0.weight", 4),
        ({"embedding_norm": True}, "embedding_norm.weight", 4),
        ({"distillation_token": True, "pool": "cls+distillation"}, "tokens.distillation", 4),
        ({"distillation_token": True, "pool": "cls+distillation"}, "head.distil.weight", 0),
        ({"positions": Positions(at="every")}, "tokens.tables.0.table", 3),
        ({"positions": Positions(at="every")}, "tokens.tables.2.table", 1),
        ({"positions": Positions(at="shared")}, "tokens.tables.0.table", 4),
        ({"positions": Positions("learned-2d")}, "tokens.tables.0.rows", 4),
        ({"positions": Positions("relative")}, "encoder.blocks.1.attention.relative.table", 2),
        ({"rotary": Rotary("mixed", theta=10.0)}, "tokens.rotary.mixed.1", 2),
        ({"pool": "map"}, "pool.probe", 0),
        ({"representation_width": 8}, "head.representation.weight", 0),
    ],
)
def test_every_part_follows_its_layer(changes: dict[str, Any], name: str, share: int) -> None:
    assert rates(small(**changes), lr=1.0, layer_decay=0.5)[name][0] == 0.5**share


@pytest.mark.parametrize(
    "changes, undecayed",
    [
        ({"registers": 2}, {"tokens.cls", "tokens.registers", "tokens.tables.0.table"}),
        ({"pool": "map"}, {"tokens.cls", "tokens.tables.0.table", "pool.probe"}),
        ({"positions": Positions("none"), "rotary": Rotary("mixed", theta=10.0)}, {"tokens.cls", "tokens.rotary"}),
        ({"positions": Positions("relative")}, {"tokens.cls", "relative.table"}),
        ({"layer_scale": 0.1, "stem": ConvStem((8,)), "patch_size": 4}, {"tokens.cls", "tokens.tables.0.table"}),
    ],
)
def test_vectors_tokens_and_positions_have_no_weight_decay(changes: dict[str, Any], undecayed: set[str]) -> None:
    model = small(**changes)
    sizes = {name: value.ndim for name, value in model.named_parameters()}
    for name, (_, decay) in rates(model, weight_decay=0.3).items():
        free = sizes[name] == 1 or any(part in name for part in undecayed)
        assert decay == (0.0 if free else 0.3), name


def test_every_parameter_stands_in_one_group_and_frozen_ones_in_none() -> None:
    model = small()
    model.patches.requires_grad_(False)
    named = [name for group in parameter_groups(model, Recipe(layer_decay=0.5)) for name, _ in group["params"]]
    expected = [name for name, _ in model.named_parameters() if not name.startswith("patches.")]
    assert sorted(named) == sorted(expected)


@pytest.mark.row("003.10")
@pytest.mark.parametrize("pool, head_lr", [("cls", 1.0), ("mean", 3 / 8)])
def test_both_heads_train_each_at_its_own_rate(pool: str, head_lr: float) -> None:
    """The paper's figure 9: the mean of the patches wants 3e-4 where the cls token had 8e-4."""
    model = small(pool=pool)
    recipe = Recipe(lr=8e-4, head_lr=head_lr, weight_decay=0.0)
    found = rates(model, lr=8e-4, head_lr=head_lr)
    assert found["head.classify.weight"][0] == pytest.approx(8e-4 * head_lr)
    assert found["encoder.blocks.2.mlp.up.weight"][0] == 8e-4
    optimiser = build_optimiser(model, recipe)
    before = [value.clone() for value in model.head.parameters()]
    assert overfit(model, optimiser, 60) < 0.8
    assert not any(torch.equal(old, new) for old, new in zip(before, model.head.parameters(), strict=True))


def test_tuning_the_head_moves_nothing_else() -> None:
    model = small()
    optimiser = build_optimiser(model, Recipe(tune="head", head_lr=2.0, lr=0.01))
    assert [(group["name"], group["lr"]) for group in optimiser.groups] == [("head", 0.02)] * 2
    before = {name: value.clone() for name, value in model.state_dict().items()}
    learn(model, optimiser, 0, 2)
    moved = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert moved == {"head.classify.weight", "head.classify.bias"}


def test_nothing_to_train_is_refused() -> None:
    with pytest.raises(ConfigError, match="no head to train: give it classes"):
        parameter_groups(small(classes=0), Recipe(tune="head"))
    with pytest.raises(ConfigError, match="no parameter is left to train"):
        parameter_groups(small().requires_grad_(False), Recipe())


# ---- the rates as shown, and under other people's schedulers -------------------------------------------------------


def test_show_rates_counts_every_parameter_once() -> None:
    model = small()
    shown = show_rates(model, Recipe(lr=1e-3, layer_decay=0.5, weight_decay=0.1))
    assert sum(rate.parameters for rate in shown) == sum(each.numel() for each in model.parameters())
    layers = list(dict.fromkeys(rate.name for rate in shown))
    assert layers == ["entry", "block 0", "block 1", "block 2", "end", "head"]
    first = next(rate for rate in shown if rate.name == "block 0" and rate.weight_decay)
    assert first == ("block 0", 16 * 48 + 16 * 16 + 2 * 16 * 32, pytest.approx(1.25e-4), 0.1)


def test_torchs_own_scheduler_keeps_the_ratios() -> None:
    optimiser = torch.optim.AdamW(parameter_groups(small(), Recipe(lr=1e-3, layer_decay=0.5)))
    before = [group["lr"] for group in optimiser.param_groups]
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: 1 / (1 + step))
    for _ in range(3):
        optimiser.step()
        scheduler.step()
    after = [group["lr"] for group in optimiser.param_groups]
    assert after == pytest.approx([lr / 4 for lr in before])
    assert len({round(lr, 12) for lr in after}) == 5  # entry, three blocks, and end with head


def test_the_loops_factor_keeps_the_ratios() -> None:
    optimiser = build_optimiser(small(), Recipe(lr=1e-3, layer_decay=0.5))
    optimiser.step(0.25)
    assert [group["lr"] for group in optimiser.groups] == [group["base"] / 4 for group in optimiser.groups]
    optimiser.step(1.0)
    assert [group["lr"] for group in optimiser.groups] == [group["base"] for group in optimiser.groups]


@pytest.mark.parametrize("registers", [0, 2])
def test_rates_are_timms_but_for_the_final_norm(timm: ModuleType, registers: int) -> None:
    """timm keeps the share in `lr_scale`, for its own schedulers only, and counts the norm to the last block."""
    from timm.optim import param_groups_layer_decay

    theirs = timm.models.vision_transformer.VisionTransformer(
        img_size=16, patch_size=8, embed_dim=16, depth=3, num_heads=2, mlp_ratio=2, num_classes=4, reg_tokens=registers
    )
    names = {id(value): name for name, value in theirs.named_parameters()}
    skipped = theirs.no_weight_decay()
    parted = param_groups_layer_decay(theirs, weight_decay=0.3, no_weight_decay_list=skipped, layer_decay=0.5)
    expected = {
        names[id(value)]: (group["lr_scale"], group["weight_decay"]) for group in parted for value in group["params"]
    }
    renamed = {
        name.replace("encoder.", "")
        .replace("attention.out", "attn.proj")
        .replace("attention", "attn")
        .replace("mlp.up", "mlp.fc1")
        .replace("mlp.down", "mlp.fc2")
        .replace("patches.projection", "patch_embed.proj")
        .replace("tokens.cls", "cls_token")
        .replace("tokens.registers", "reg_token")
        .replace("tokens.tables.0.table", "pos_embed")
        .replace("head.classify", "head"): value
        for name, value in rates(small(registers=registers), lr=1.0, layer_decay=0.5, weight_decay=0.3).items()
    }
    assert renamed.keys() == expected.keys()
    different = {name for name in expected if renamed[name] != expected[name]}
    assert different == {"norm.weight", "norm.bias"}
    assert (renamed["norm.weight"], expected["norm.weight"]) == ((1.0, 0.0), (0.5, 0.0))


# ---- states --------------------------------------------------------------------------------------------------------


def go_on(folder: str) -> None:
    """The second half of every training, from files alone; runs in a process of its own."""
    torch.set_num_threads(1)
    for kind in KINDS:
        stored = load_file(f"{folder}/{kind}.safetensors")
        model, optimiser = started(kind)
        model.load_state_dict({name[6:]: value for name, value in stored.items() if name.startswith("model.")})
        optimiser.load_state_tensors({name[6:]: value for name, value in stored.items() if name.startswith("state.")})
        learn(model, optimiser, 3, 6)
        save_file(everything(model, optimiser), f"{folder}/{kind}-after.safetensors")


def started(kind: str) -> tuple[ViT, Optimiser]:
    model = small()
    return model, build_optimiser(model, recipe_of(kind))


def everything(model: ViT, optimiser: Optimiser) -> dict[str, Tensor]:
    found = {f"model.{name}": value for name, value in model.state_dict().items()}
    return found | {f"state.{name}": value for name, value in optimiser.state_tensors().items()}


def test_a_fresh_process_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    assert set(KINDS) == set(OPTIMISERS)
    expected = {}
    for kind in KINDS:
        model, optimiser = started(kind)
        learn(model, optimiser, 0, 3)
        save_file(everything(model, optimiser), tmp_path / f"{kind}.safetensors")
        learn(model, optimiser, 3, 6)
        expected[kind] = everything(model, optimiser)
    code = f"import runpy, sys; runpy.run_path({__file__!r})['go_on'](sys.argv[1])"
    run = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=120, check=False
    )
    assert run.returncode == 0, run.stderr
    for kind in KINDS:
        found = load_file(tmp_path / f"{kind}-after.safetensors")
        assert found.keys() == expected[kind].keys()
        for name, value in expected[kind].items():
            assert torch.equal(found[name], value), f"{kind}: {name}"


@pytest.mark.parametrize("kind", KINDS)
def test_states_have_stable_names(kind: str) -> None:
    model, optimiser = started(kind)
    assert optimiser.state_tensors() == {}
    learn(model, optimiser, 0, 1)
    parameters = dict(model.named_parameters())
    expected = set()
    for name in parameters:
        by_muon = kind == "muon" and name.startswith("encoder.blocks.") and name.endswith("weight")
        momentum = kind == "sgd" or (by_muon and "norm" not in name)
        keys = ("momentum_buffer",) if momentum else ("step", "exp_avg", "exp_avg_sq")
        expected |= {f"{key}.{name}" for key in keys}
    assert set(optimiser.state_tensors()) == expected


def test_loading_copies_and_forgets_what_was_there() -> None:
    model, optimiser = started("adamw")
    learn(model, optimiser, 0, 2)
    saved = {name: value.clone() for name, value in optimiser.state_tensors().items()}
    other_model, other = started("adamw")
    learn(other_model, other, 0, 5)
    other.load_state_tensors(saved)
    assert all(torch.equal(value, saved[name]) for name, value in other.state_tensors().items())
    learn(other_model, other, 0, 1)
    assert float(saved["step.tokens.cls"]) == 2.0
    other.load_state_tensors({})
    assert other.state_tensors() == {}


@pytest.mark.parametrize(
    "change, message",
    [
        ({"exp_avg.tokens.cls": None}, "tokens.cls has step, exp_avg_sq of step, exp_avg, exp_avg_sq"),
        ({"exp_avg.tokens.cls": torch.zeros(2, 16)}, r"exp_avg.tokens.cls is \(2, 16\) torch.float32, not \(1, 16\)"),
        ({"exp_avg.tokens.cls": torch.zeros(1, 16).double()}, r"torch.float64, not \(1, 16\) torch.float32"),
        ({"step.tokens.cls": torch.zeros(1)}, r"step.tokens.cls is \(1,\) torch.float32, not \(\) torch.float32"),
        ({"exp_avg.no.such": torch.zeros(1)}, "exp_avg.no.such is of no parameter that is trained"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(change: dict[str, Tensor | None], message: str) -> None:
    model, optimiser = started("adamw")
    learn(model, optimiser, 0, 1)
    saved = {name: value.clone() for name, value in optimiser.state_tensors().items()}
    changed = {name: value for name, value in (saved | change).items() if value is not None}
    with pytest.raises(CheckpointError, match=message):
        optimiser.load_state_tensors(changed)
    assert all(torch.equal(value, saved[name]) for name, value in optimiser.state_tensors().items())


def test_a_state_of_another_optimiser_is_refused() -> None:
    model, optimiser = started("sgd")
    learn(model, optimiser, 0, 1)
    with pytest.raises(CheckpointError, match="does not fit this network and recipe: momentum_buffer"):
        started("adamw")[1].load_state_tensors(optimiser.state_tensors())


# ---- the steps themselves ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_every_optimiser_learns(kind: str) -> None:
    model = small()
    optimiser = build_optimiser(model, Recipe(optimiser=kind, lr=0.1 if kind == "sgd" else 3e-3))
    assert overfit(model, optimiser, 25) < 0.7


@pytest.mark.row("001.11")
def test_sgd_with_momentum_is_what_it_says() -> None:
    """Written out: buffer = 0.9 * buffer + gradient + decay * weight; weight -= lr * buffer."""
    model = small()
    optimiser = build_optimiser(model, Recipe(optimiser="sgd", lr=0.1, momentum=0.9, weight_decay=0.01))
    weight = model.head.classify.weight
    expected, buffer = weight.detach().clone(), torch.zeros_like(weight)
    for _ in range(3):
        for value in model.parameters():
            value.grad = torch.full_like(value, 0.5)
        buffer = 0.9 * buffer + 0.5 + 0.01 * expected
        expected = expected - 0.1 * 0.5 * buffer
        optimiser.step(0.5)
    torch.testing.assert_close(weight.detach(), expected)


def test_adamw_takes_its_decay_apart_from_the_gradient_and_adam_does_not() -> None:
    moved = {}
    for kind in ("adamw", "adam"):
        model = small()
        weight = model.head.classify.weight
        before = weight.detach().clone()
        for value in model.parameters():
            value.grad = torch.zeros_like(value)
        build_optimiser(model, Recipe(optimiser=kind, lr=0.01, weight_decay=0.5)).step(1.0)
        moved[kind] = (before, weight.detach())
    before, after = moved["adamw"]
    torch.testing.assert_close(after, before * (1 - 0.01 * 0.5))
    before, after = moved["adam"]
    torch.testing.assert_close(after, before - 0.01 * before.sign(), atol=1e-6, rtol=1e-4)


def test_beta2_and_momentum_reach_the_optimiser() -> None:
    assert {group["betas"] for group in build_optimiser(small(), Recipe(beta2=0.95)).groups} == {(0.9, 0.95)}
    assert {group["momentum"] for group in build_optimiser(small(), Recipe(optimiser="sgd", momentum=0.8)).groups} == {
        0.8
    }


# ---- Muon ----------------------------------------------------------------------------------------------------------


def newton_schulz(matrix: Tensor) -> Tensor:
    """The iteration as it is written in the post, in fp64."""
    x = matrix.double()
    x = x.T if x.shape[0] > x.shape[1] else x
    x = x / x.norm()
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x.T if matrix.shape[0] > matrix.shape[1] else x


@pytest.mark.parametrize("shape", [(24, 24), (24, 96), (96, 24), (72, 24)])
def test_the_iteration_on_the_gram_matrix_is_the_one_on_the_matrix(shape: tuple[int, int]) -> None:
    stack = torch.randn(3, *shape)
    for found, matrix in zip(orthogonalise(stack), stack, strict=True):
        expected = newton_schulz(matrix)
        assert float((found - expected).norm() / expected.norm()) < 1e-4
        singular = torch.linalg.svdvals(found)
        assert 0.6 < float(singular.median()) < float(singular.max()) < 1.25


def test_momentum_of_low_rank_is_kept_exact() -> None:
    """Where bfloat16 is off by half and more."""
    matrix = torch.randn(48, 3) @ torch.randn(3, 192) + 1e-3 * torch.randn(48, 192)
    expected = newton_schulz(matrix)
    assert float((orthogonalise(matrix[None])[0] - expected).norm() / expected.norm()) < 1e-3


@pytest.mark.parametrize("shape", [(32, 32), (32, 128), (128, 32)])
def test_muon_is_torchs_within_the_rounding_of_bfloat16(shape: tuple[int, int]) -> None:
    start = torch.randn(shape)
    ours, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    own = Muon([ours], lr=0.1, weight_decay=0.1)
    other = torch.optim.Muon([theirs], lr=0.1, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    for _ in range(4):
        ours.grad = torch.randn(shape)
        theirs.grad = ours.grad.clone()
        own.step()
        other.step()
    torch.testing.assert_close(own.state[ours]["momentum_buffer"], other.state[theirs]["momentum_buffer"])
    moved, difference = theirs.detach() - start, ours.detach() - theirs.detach()
    assert float(difference.norm() / moved.norm()) < 0.02


def test_a_step_of_muon_is_as_long_as_one_of_adamw() -> None:
    """0.2 * sqrt(larger side) times a nearly orthogonal matrix: a root mean square of about 0.2."""
    weight = nn.Parameter(torch.zeros(64, 256))
    weight.grad = torch.randn(64, 256)
    Muon([weight], lr=1.0, weight_decay=0.0).step()
    assert 0.15 < float(weight.detach().square().mean().sqrt()) < 0.25


def test_matrices_of_one_shape_do_not_touch_each_other() -> None:
    """Stacked for speed; each at its own rate, and those without a gradient left alone."""
    first, second, still = (nn.Parameter(torch.randn(8, 16)) for _ in range(3))
    before = still.detach().clone()
    alone = nn.Parameter(second.detach().clone())
    first.grad, second.grad = torch.randn(8, 16), torch.randn(8, 16)
    alone.grad = second.grad.clone()
    Muon([{"params": [first, still], "lr": 0.3}, {"params": [second], "lr": 0.1}]).step()
    Muon([alone], lr=0.1).step()
    torch.testing.assert_close(second, alone)
    assert torch.equal(still, before)


def test_muon_moves_matrices_of_blocks_and_adamw_the_rest() -> None:
    model = small(positions=Positions("relative"), layer_scale=0.1)
    parted = build_optimiser(model, Recipe(optimiser="muon"))
    by_muon = {name for kind, name, _ in parted._parameters() if kind == "muon"}
    parts = ("attention.qkv", "attention.out", "mlp.up", "mlp.down")
    assert by_muon == {f"encoder.blocks.{block}.{part}.weight" for block in range(3) for part in parts}
    assert len(parted._parameters()) == len(list(model.parameters()))


def test_muon_refuses_what_is_no_matrix() -> None:
    with pytest.raises(ConfigError, match=r"Muon is for matrices, got a parameter of shape \(3,\)"):
        Muon([nn.Parameter(torch.zeros(3))])


def test_a_gradient_of_zeros_is_no_trouble() -> None:
    weight = nn.Parameter(torch.ones(4, 4))
    weight.grad = torch.zeros(4, 4)
    Muon([weight], lr=0.1, weight_decay=0.5).step()
    assert math.isclose(float(weight.detach().mean()), 0.95, rel_tol=1e-6)
