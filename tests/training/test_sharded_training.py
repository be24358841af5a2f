"""What a sharded training does otherwise, seen by one process, which then has every part."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from training import tiny
from vitrail.checkpoint import Checkpoint, load, save
from vitrail.errors import CheckpointError, InputError
from vitrail.network.surgery import eval_mode
from vitrail.training.processes import Processes
from vitrail.training.sharded_training import ShardedTraining, read_any_state
from vitrail.training.state import State, find_newest, write_state

FACTS = {"step": 3, "rollbacks": 0, "epoch_end": True}


def states_of(training: ShardedTraining) -> dict[str, torch.Tensor]:
    tensors = {f"model.{name}": value for name, value in training.tensors.items()}
    return tensors | {"optimiser.exp_avg.norm.weight": torch.randn(16), "optimiser.step.norm.weight": torch.tensor(3.0)}


@pytest.mark.parametrize("is_sharded", [True, False])
def test_a_state_of_either_form_is_read(tmp_path: Path, is_sharded: bool) -> None:
    training = ShardedTraining(tiny.job(tmp_path, 4))
    state = State(states_of(training), FACTS)
    if is_sharded:
        training.write_state(tmp_path, state)
    else:
        write_state(tmp_path, state)
    read = training.read_state(tmp_path, find_newest)
    alone = find_newest(tmp_path, print, lambda path: read_any_state(path, training.job.identity))
    for again in (read, alone):
        assert again is not None
        assert dict(again.facts) == FACTS
        assert again.tensors.keys() == state.tensors.keys()
        assert all(torch.equal(value, state.tensors[name]) for name, value in again.tensors.items())
    assert training.read_state(tmp_path / "nowhere", find_newest) is None


def test_a_state_of_another_run_is_not_read(tmp_path: Path) -> None:
    training = ShardedTraining(tiny.job(tmp_path, 4))
    training.write_state(tmp_path, State(states_of(training), FACTS))
    other = ShardedTraining(replace(training.job, run_id="another"))
    with pytest.raises(CheckpointError, match="none of the 1 states"):
        other.read_state(tmp_path, find_newest)


def test_a_checkpoint_written_in_parts_is_the_same_file(tmp_path: Path) -> None:
    training = ShardedTraining(tiny.job(tmp_path, 4))
    plan = training.job.plan
    with eval_mode(training.model):
        checkpoint = Checkpoint(training.model, plan.preprocess, plan.classes, task=plan.task)
        save(checkpoint, tmp_path / "one.safetensors")
        training.save(checkpoint, tmp_path / "parts.safetensors")
    digests = {hashlib.sha256(path.read_bytes()).hexdigest() for path in tmp_path.glob("*.safetensors")}
    assert len(digests) == 1
    assert load(tmp_path / "parts.safetensors").classes == plan.classes


def change_a_weight(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)


@pytest.mark.parametrize("value, damage, words", [(float("nan"), None, "holds NaN"), (0.5, change_a_weight, "hash")])
def test_what_is_not_as_it_was_meant_never_takes_the_name(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    value: float,
    damage: Callable[[Path], None] | None,
    words: str,
) -> None:
    from vitrail.checkpoint import checkpoint_file

    training = ShardedTraining(tiny.job(tmp_path, 4))
    with torch.no_grad():
        training.model.head.classify.bias[0] = value
    check = checkpoint_file.check_streamed
    monkeypatch.setattr(checkpoint_file, "check_streamed", lambda path: (damage and damage(path), check(path)))
    plan = training.job.plan
    with eval_mode(training.model), pytest.raises(CheckpointError, match=words):
        training.save(Checkpoint(training.model, plan.preprocess, plan.classes), tmp_path / "a.safetensors")
    assert not list(tmp_path.glob("*.safetensors"))


def test_every_process_has_an_image_at_each_step(tmp_path: Path) -> None:
    several = Processes()
    several.world = 3
    job = tiny.job(tmp_path, 4, replace(tiny.RECIPE, batch=4), processes=several)
    with pytest.raises(InputError, match="a batch of 4 has no images for one of 3 processes"):
        ShardedTraining(job)
