"""Out of memory in a step: the batch goes through in more pieces, nothing is lost, and it is told and kept."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import vitrail
from training import tiny
from training.test_loop import equal, log_of, rows, weights_of
from vitrail.errors import InputError
from vitrail.network.vit import ViT
from vitrail.training import autotune, memory
from vitrail.training.job import Callbacks, Job
from vitrail.training.loop import fit
from vitrail.training.state import read_newest

Forward = Callable[..., Tensor]
ERRORS = {
    "torch's own": lambda: torch.OutOfMemoryError("CUDA out of memory."),
    "the allocator's": lambda: RuntimeError(
        "DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"
    ),
    "python's": MemoryError,
}


def holding(
    monkeypatch: pytest.MonkeyPatch, most: int, error: Callable[[], BaseException], start: int = 0
) -> list[int]:
    """Memory for so many images at a time, from a pass on; the sizes of all passes while training."""
    seen: list[int] = []
    forward: Forward = ViT.forward

    def limited(self: ViT, pixels: Tensor, **more: Any) -> Tensor:
        logits = forward(self, pixels, **more)  # first: batch norm has seen these images then
        if self.training:
            seen.append(len(pixels))
            if len(pixels) > most and len(seen) > start:
                raise error()
        return logits

    monkeypatch.setattr(ViT, "forward", limited)
    return seen


@pytest.mark.row("001.14")
@pytest.mark.fault("T18")
@pytest.mark.parametrize("error", ERRORS)
def test_a_step_that_does_not_fit_is_done_in_pieces_with_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: str
) -> None:
    """As if it had been in those pieces from the start: batch norm, dropout, Muon, the average, all of it."""
    fit(tiny.job(tmp_path / "pieces", 6, replace(tiny.RECIPE, pieces=4)))
    seen = holding(monkeypatch, 2, ERRORS[error])
    told: list[str] = []
    progress = fit(tiny.job(tmp_path / "limited", 6, callbacks=Callbacks(log=told.append)))
    assert seen == [8, 4] + [2] * 4 * 7  # the first step once more, when its pieces are written down
    assert progress.pieces == 4
    assert equal(weights_of(tmp_path / "limited"), weights_of(tmp_path / "pieces"))
    assert equal(weights_of(tmp_path / "limited", "best"), weights_of(tmp_path / "pieces", "best"))
    assert rows(tmp_path / "limited", "step") == rows(tmp_path / "pieces", "step")
    assert rows(tmp_path / "limited", "pieces") == [{"event": "pieces", "step": 0, "pieces": 4}]
    assert told == [
        "batches of 8 go through in 4 pieces of 2, since memory did not hold more at once: the step is the same but "
        "for batch norm, which sees 2 images at a time"
    ]


def test_without_batch_norm_it_is_the_same_step() -> None:
    plain = ViT(replace(tiny.CONFIG, stem=None))
    assert memory.pieces_note(plain, 10, 4).endswith(
        "in 4 pieces of 3, since memory did not hold more at once: the step is the same"
    )


@pytest.mark.fault("T18")
def test_a_run_that_goes_on_keeps_its_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory ends in the middle; what comes after a stop is the same, though memory would hold more again."""
    holding(monkeypatch, 4, ERRORS["torch's own"], start=9)
    whole, parted = tmp_path / "a" / "run", tmp_path / "b" / "run"
    fit(tiny.job(whole, 20))
    monkeypatch.undo()
    holding(monkeypatch, 4, ERRORS["torch's own"], start=9)

    def stop(done: int, steps: int, loss: float) -> None:
        if done == 12:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(vitrail.VitrailError, match="stopped at step 12"):
        fit(tiny.job(parted, 20, callbacks=Callbacks(step=stop)))
    monkeypatch.undo()
    seen = holding(monkeypatch, 8, ERRORS["torch's own"])
    told: list[str] = []
    fit(tiny.job(parted, 20, callbacks=Callbacks(log=told.append)))
    assert set(seen) == {4}
    assert told == ["going on from step 12 of 20"]
    assert log_of(parted) == log_of(whole)
    assert rows(parted, "pieces") == [{"event": "pieces", "step": 9, "pieces": 2}]
    assert (parted / "last.safetensors").read_bytes() == (whole / "last.safetensors").read_bytes()


def test_the_pieces_are_in_a_state_before_the_step_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a kill in that very step changes nothing: not even where memory holds more again."""
    holding(monkeypatch, 4, ERRORS["torch's own"], start=3)
    fit(tiny.job(tmp_path / "whole" / "run", 8))
    monkeypatch.undo()
    holding(monkeypatch, 4, ERRORS["torch's own"], start=3)
    job = tiny.job(tmp_path / "killed" / "run", 8, save_seconds=1e9, save_share=1e-9)

    class KilledError(Exception):
        pass

    def kill(self: Any, share: float) -> None:
        if job_pieces(job):
            raise KilledError
        step(self, share)

    from vitrail.training.optimisers import Optimiser

    step = Optimiser.step
    monkeypatch.setattr(Optimiser, "step", kill)
    with pytest.raises(KilledError):
        fit(job)
    state = read_newest(job.folder / "state", pytest.fail)
    assert state is not None
    assert (state.facts["step"], state.facts["pieces"]) == (3, 2)
    monkeypatch.undo()
    fit(tiny.job(job.folder, 8))
    assert log_of(job.folder) == log_of(tmp_path / "whole" / "run")
    assert (job.folder / "last.safetensors").read_bytes() == (tmp_path / "whole/run/last.safetensors").read_bytes()


def job_pieces(job: Job) -> list[Any]:
    return rows(job.folder, "pieces")


@pytest.mark.fault("T18")
def test_one_image_that_does_not_fit_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = holding(monkeypatch, 0, ERRORS["torch's own"], start=2)
    with pytest.raises(InputError, match="not enough memory for a step of 8 images in 8 pieces; what is saved stays"):
        fit(tiny.job(tmp_path, 6))
    assert seen == [8, 8, 8, 4, 2, 1]


def test_other_errors_are_not_taken_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = holding(monkeypatch, 4, lambda: RuntimeError("expected scalar type Half"))
    with pytest.raises(RuntimeError, match="expected scalar type Half"):
        fit(tiny.job(tmp_path, 6))
    assert seen == [8]


def test_a_rollback_keeps_the_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from vitrail.training import loop

    monkeypatch.setattr(loop, "ANCHOR_STEPS", 6)
    seen = holding(monkeypatch, 4, ERRORS["torch's own"], start=8)
    learn, bad = loop._Loop.learn, [10]

    def diverging(self: Any, batch: Any) -> None:
        if bad and self.progress.step == bad[0]:
            bad.clear()
            raise loop._DivergedError("the loss is nan")
        learn(self, batch)

    monkeypatch.setattr(loop._Loop, "learn", diverging)
    progress = fit(tiny.job(tmp_path, 12))
    assert (progress.rollbacks, progress.pieces) == (1, 2)
    assert set(seen[9:]) == {4}


def test_trials_before_a_run_go_on_in_pieces_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autotune, "TRIAL_SECONDS", 0.0)
    seen = holding(monkeypatch, 4, ERRORS["torch's own"])
    assert autotune.measure_speed(tiny.job(tmp_path, 6)).step > 0
    assert seen == [8, 4, 4, 4, 4, 4, 4]


def test_virtual_workers_take_more_pieces_all_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part that does not fit makes every part go through in pieces, as if it had been so from the start."""

    def shared(folder: Path, pieces: int) -> Job:
        job = tiny.job(folder, 6, replace(tiny.RECIPE, pieces=pieces))
        return replace(job, plan=replace(job.plan, virtual_workers=2))

    fit(shared(tmp_path / "pieces", 4))
    seen = holding(monkeypatch, 2, ERRORS["torch's own"], start=1)  # the first part would have fitted
    assert fit(shared(tmp_path / "limited", 1)).pieces == 4
    assert seen == [4, 4, 2, 2] + [2] * 4 * 6
    assert equal(weights_of(tmp_path / "limited"), weights_of(tmp_path / "pieces"))
    assert rows(tmp_path / "limited", "pieces") == [{"event": "pieces", "step": 0, "pieces": 4}]


def test_a_pass_that_failed_leaves_no_statistics() -> None:
    """Nor gradients: what is done after it sees the network as it was."""
    model = ViT(tiny.CONFIG).train()
    pixels = torch.randn(4, 1, 8, 8)
    running = model.state_dict()["stem.1.running_mean"]
    before, seen = running.clone(), []

    def compute(pieces: int) -> int:
        seen.append((pieces, torch.equal(running, before), all(each.grad is None for each in model.parameters())))
        model(pixels).sum().backward()
        if pieces < 4:
            raise MemoryError
        return 7

    assert memory.in_pieces_that_fit(model, 4, 1, compute) == (7, 4)
    assert seen == [(1, True, True), (2, True, True), (4, True, True)]
    assert not torch.equal(running, before)
