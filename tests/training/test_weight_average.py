"""WeightAverage: the running mean of the weights, by its formula and beside torch's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim.swa_utils import get_ema_multi_avg_fn

from vitrail.errors import CheckpointError, ConfigError, InputError
from vitrail.network import ConvStem, ViT, ViTConfig
from vitrail.training.weight_average import WeightAverage


def small(**changes: Any) -> ViT:
    sizes: dict[str, Any] = {"image_size": 8, "patch_size": 4, "width": 8, "depth": 1, "heads": 2, "mlp_width": 16}
    return ViT(ViTConfig(**{**sizes, "classes": 3, "initialisation": "timm", **changes}))


def jolt(model: ViT) -> dict[str, Tensor]:
    """New random weights, and a copy of them."""
    with torch.no_grad():
        for value in model.parameters():
            value.normal_()
    return {name: value.clone() for name, value in model.state_dict().items()}


@pytest.mark.row("P.11")
def test_the_average_follows_its_formula() -> None:
    model = small()
    average = WeightAverage(model, 0.9999)
    expected = {name: value.double() for name, value in model.state_dict().items()}
    for step in range(30):
        decay = min(0.9999, (1 + step) / (10 + step))
        for name, value in jolt(model).items():
            expected[name] = decay * expected[name] + (1 - decay) * value.double()
        average.update(model, step)
    for name, value in average.tensors().items():
        torch.testing.assert_close(value.double(), expected[name], rtol=0, atol=1e-6)


def test_the_decay_rises_to_what_was_asked_for() -> None:
    average = WeightAverage(small(), 0.9)
    assert [average.decay_at(step) for step in (0, 1, 8, 80, 81, 10**6)] == [0.1, 2 / 11, 0.5, 0.9, 0.9, 0.9]
    assert WeightAverage(small(), 0.9999).decay_at(89_990) == pytest.approx(0.9999, abs=1e-12)


@pytest.mark.row("P.11")
def test_past_its_start_the_average_is_torchs_to_the_bit() -> None:
    model = small()
    average = WeightAverage(model, 0.9999)
    theirs = [value.clone() for value in average.tensors().values()]
    update = get_ema_multi_avg_fn(0.9999)
    for step in range(100_000, 100_005):  # far enough for the full decay
        update(theirs, list(jolt(model).values()), torch.tensor(step))
        average.update(model, step)
    for ours, other in zip(average.tensors().values(), theirs, strict=True):
        assert torch.equal(ours, other)


def test_running_statistics_are_averaged_and_counts_copied() -> None:
    model = small(stem=ConvStem((4, 8)), patch_size=1)
    average = WeightAverage(model, 0.5)
    before = model.state_dict()["stem.1.running_mean"].clone()
    model(torch.randn(4, 3, 8, 8) + 3)
    after = model.state_dict()
    average.update(model, 100)
    found = average.tensors()
    assert not torch.equal(before, after["stem.1.running_mean"])
    torch.testing.assert_close(found["stem.1.running_mean"], (before + after["stem.1.running_mean"]) / 2)
    assert int(found["stem.1.num_batches_tracked"]) == 1


def test_fixed_positions_stay_as_they_are() -> None:
    from vitrail.network import Positions

    model = small(positions=Positions("sincos-2d"))
    average = WeightAverage(model, 0.999)
    table = model.state_dict()["tokens.tables.0.table"].clone()
    for step in range(20):
        average.update(model, step)
    assert torch.equal(average.tensors()["tokens.tables.0.table"], table)


def test_its_network_is_for_looking_not_for_training() -> None:
    model = small(dropout=0.5).train()
    average = WeightAverage(model, 0.9)
    pixels = torch.randn(2, 3, 8, 8)
    jolt(model)
    average.update(model, 0)
    with average.applied_to(model) as averaged:
        assert averaged is not model
    assert model.training
    assert not averaged.training
    assert not any(value.requires_grad for value in averaged.parameters())
    again = small()
    again.load_state_dict(average.tensors())
    assert torch.equal(averaged(pixels), again.eval()(pixels))
    jolt(model)
    assert torch.equal(averaged(pixels), again(pixels))  # shares no memory with the network in training


def test_saved_and_loaded_it_goes_on_to_the_same_bits() -> None:
    model = small()
    average = WeightAverage(model, 0.99)
    jolt(model)
    average.update(model, 0)
    saved = {name: value.clone() for name, value in average.tensors().items()}
    weights = jolt(model)
    average.update(model, 1)

    other = WeightAverage(small(), 0.99)
    other.load(saved)
    model.load_state_dict(weights)
    other.update(model, 1)
    for name, value in average.tensors().items():
        assert torch.equal(other.tensors()[name], value)
        with other.applied_to(model) as averaged:
            assert torch.equal(averaged.state_dict()[name], value)


def test_tensors_of_another_network_are_refused() -> None:
    average = WeightAverage(small(), 0.9)
    with pytest.raises(CheckpointError, match="another network: tokens.registers"):
        average.load(small(registers=1).state_dict())
    with pytest.raises(CheckpointError, match=r"head.classify.weight: \(4, 8\) torch.float32, not \(3, 8\)"):
        average.load(small(classes=4).state_dict())
    with pytest.raises(CheckpointError, match=r"out.bias: \(8,\) torch.float64, not \(8,\) torch.float32"):
        average.load(small().double().state_dict())
    with pytest.raises(InputError, match="made for another network"):
        average.update(small(registers=1), 0)


def test_a_decay_of_one_would_never_learn() -> None:
    with pytest.raises(ConfigError, match="ema: expected a number from 0.0 to under 1.0, got 1.0"):
        WeightAverage(small(), 1.0)
