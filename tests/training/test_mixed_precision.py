"""Precision: fp16's loss scale as torch's own, in the exact state; TF32 asked of torch and given back."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import vitrail
from training import tiny
from training.quick import NETWORK, QUICK, draw
from training.test_loop import equal, log_of, rows, weights_of
from vitrail.errors import InputError
from vitrail.network.vit import ViT
from vitrail.training import backpropagation, loop, mixed_precision, train
from vitrail.training.job import Callbacks, Job
from vitrail.training.loop import fit
from vitrail.training.mixed_precision import LossScale, check_precision, float32_products
from vitrail.training.state import read_newest

HALF = replace(tiny.RECIPE, precision="fp16")


@pytest.mark.row("001.14")
def test_the_scale_goes_as_torchs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixed_precision, "GROWTH_STEPS", 3)
    theirs = torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=3)
    weight = torch.nn.Parameter(torch.ones(1))
    optimiser = torch.optim.SGD([weight], lr=0.0)
    ours, scales = LossScale(), []
    for overflow in (True, False, False, True, False, False, False, False, False, False, True):
        theirs.scale(weight * (math.inf if overflow else 1.0)).backward()
        theirs.step(optimiser)
        theirs.update()
        optimiser.zero_grad()
        ours = ours.after(overflow=overflow)
        scales.append(ours.factor)
        assert ours.factor == theirs.get_scale()
        assert ours.good_steps == theirs._get_growth_tracker()
    assert min(scales) < max(scales)
    assert LossScale(2.0**24, 2).after(overflow=False) == LossScale(2.0**24)  # not without end


@pytest.mark.row("001.14")
def test_fp16_learns_as_fp32_does(tmp_path: Path) -> None:
    for precision in ("fp32", "fp16"):
        torch.manual_seed(5)
        fit(tiny.job(tmp_path / precision, 12, replace(HALF, precision=precision)))
    losses = [[row["loss"] for row in rows(tmp_path / name, "step")] for name in ("fp32", "fp16")]
    assert losses[1] == pytest.approx(losses[0], rel=0.02)
    assert losses[1] != losses[0]
    assert {each.dtype for each in weights_of(tmp_path / "fp16").values()} == {torch.float32, torch.int64}


def test_the_scale_leaves_no_trace_in_the_gradients(tmp_path: Path) -> None:
    """A power of two: in fp32 the same bits with it and without, and clipping sees the gradient itself."""
    job = tiny.job(tmp_path, 6, replace(HALF, precision="fp32", clip=0.01))
    batch = next(iter(loop.job_batches(job, loop._Loop(job).batch_rows(0))))
    found = []
    for scale in (1.0, 2.0**16):
        job.model.zero_grad(set_to_none=True)
        torch.manual_seed(1)
        told = backpropagation.gradients(job.model, batch, job.plan, None, loop.BatchPass(job.model, 1, scale))
        found.append((told, {name: each.grad for name, each in job.model.named_parameters()}))
    assert found[0][0] == found[1][0]
    assert all(torch.equal(value, found[1][1][name]) for name, value in found[0][1].items())


def overflowing(monkeypatch: pytest.MonkeyPatch, most: float) -> None:
    """Gradients that overflow wherever the loss is scaled by more than this."""
    true = backpropagation.gradients

    def gradients(model: ViT, *arguments: Any) -> tuple[float, float]:
        loss, norm = true(model, *arguments)
        if arguments[-1].scale > most:
            next(iter(model.parameters())).grad.fill_(math.inf)  # type: ignore[union-attr]
            norm = math.inf
        return loss, norm

    monkeypatch.setattr(backpropagation, "gradients", gradients)


def test_a_step_that_overflows_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    overflowing(monkeypatch, 2.0**14)
    job = tiny.job(tmp_path, 6, replace(HALF, ema=0.0))
    before = {name: each.clone() for name, each in job.model.named_parameters()}
    moved: list[bool] = []

    def look(done: int, steps: int, loss: float) -> None:
        moved.append(any(not torch.equal(each, before[name]) for name, each in job.model.named_parameters()))

    progress = fit(replace(job, callbacks=Callbacks(step=look)))
    assert moved == [False, False, True, True, True, True]
    assert (progress.step, progress.scale, progress.scale_steps, progress.rollbacks) == (6, 2.0**14, 4, 0)
    assert [(row["step"], row["scale"]) for row in rows(tmp_path, "loss scale")] == [(1, 2.0**15), (2, 2.0**14)]


def test_what_overflows_at_any_scale_goes_back_as_every_gradient_that_is_no_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overflowing(monkeypatch, 0.0)
    monkeypatch.setattr(mixed_precision, "LEAST_SCALE", 2.0**15)
    with pytest.raises(InputError, match="the gradient's norm inf; 5 times it went back and on with half the rate"):
        fit(tiny.job(tmp_path, 6, HALF))


@pytest.mark.parametrize("step", [1, 3])
def test_a_stop_changes_no_bit_in_fp16(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """The scale and its counter are part of the state: here it falls twice, and rises again."""
    monkeypatch.setattr(mixed_precision, "GROWTH_STEPS", 3)
    overflowing(monkeypatch, 2.0**15)
    whole, parted = tmp_path / "a" / "run", tmp_path / "b" / "run"
    fit(tiny.job(whole, 12, HALF))
    assert len(rows(whole, "loss scale")) >= 4

    def stop(done: int, steps: int, loss: float) -> None:
        if done == step:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(vitrail.VitrailError, match=f"stopped at step {step}"):
        fit(tiny.job(parted, 12, HALF, callbacks=Callbacks(step=stop)))
    state = read_newest(parted / "state", pytest.fail)
    assert state is not None
    assert (state.facts["scale"], state.facts["scale_steps"]) == (2.0**15, step - 1)
    fit(tiny.job(parted, 12, HALF))
    assert log_of(parted) == log_of(whole)
    assert equal(weights_of(parted), weights_of(whole))


# ---- TF32 --------------------------------------------------------------------------------------------------------


def switches() -> list[Any]:
    cudnn: Any = torch.backends.cudnn
    matmul = torch.backends.cuda.matmul
    return [matmul.fp32_precision, cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision]


@pytest.fixture
def given_back() -> Iterator[None]:
    yield
    assert switches() == ["none", "tf32", "tf32"]  # as torch starts
    assert torch.get_float32_matmul_precision() == "highest"
    assert torch.backends.cudnn.allow_tf32


@pytest.mark.usefixtures("given_back")
def test_tf32_is_asked_of_torch_and_given_back() -> None:
    cuda = torch.device("cuda")
    with float32_products("tf32", cuda):
        assert switches() == ["tf32"] * 3
        assert torch.backends.cuda.matmul.allow_tf32  # by its older name too
        assert torch.backends.cudnn.allow_tf32
    for precision in ("fp32", "bf16"):  # fp32 is fp32 in convolutions too, which torch rounds otherwise
        with float32_products(precision, cuda):
            assert "tf32" not in switches()
            assert not torch.backends.cudnn.allow_tf32
    with float32_products("fp32", torch.device("cpu")):
        assert switches() == ["none", "tf32", "tf32"]
    with pytest.raises(KeyError), float32_products("tf32", cuda):
        raise KeyError


@pytest.mark.usefixtures("given_back")
def test_tf32_that_was_set_by_the_newer_name_stays_so() -> None:
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    with float32_products("fp32", torch.device("cuda")):
        assert switches()[0] == "ieee"
    assert switches()[0] == "tf32"
    torch.backends.cuda.matmul.fp32_precision = "none"


def test_tf32_is_refused_where_it_means_nothing() -> None:
    for name in ("cpu", "mps"):
        with pytest.raises(InputError, match=f"tf32 is a mode of cuda and xpu devices, and {name} has none: take fp32"):
            check_precision("tf32", torch.device(name))
    check_precision("tf32", torch.device("cuda"))
    check_precision("bf16", torch.device("cpu"))


def test_a_training_takes_the_switch_of_its_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixed_precision, "TF32_DEVICES", ("cpu",))
    during: list[Any] = []

    def look(done: int, steps: int, loss: float) -> None:
        during.append(switches())

    job: Job = tiny.job(tmp_path, 1, replace(tiny.RECIPE, precision="tf32"), callbacks=Callbacks(step=look))
    fit(job)
    assert during == [["tf32"] * 3]
    assert switches() != ["tf32"] * 3
    torch.backends.cuda.matmul.fp32_precision = "none"


def test_a_run_in_tf32_goes_on_elsewhere_in_fp32_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photos = draw(tmp_path / "photos", count=8)
    given: dict[str, Any] = {"model": NETWORK, "recipe": QUICK, "precision": "tf32", "check": False, "report": False}
    given |= {"out": tmp_path, "name": "one", "elsewhere": True}

    def stop(done: int, steps: int, loss: float) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(mixed_precision, "TF32_DEVICES", ("cpu",))  # as if it had been started on another device
    with pytest.raises(vitrail.VitrailError, match="stopped at step 1"):
        train(photos, callbacks=Callbacks(step=stop), **given)
    monkeypatch.undo()
    torch.backends.cuda.matmul.fp32_precision = "none"
    told: list[str] = []
    assert train(photos, callbacks=Callbacks(log=told.append), **given).resumed
    assert "the run was started in tf32, which cpu does not have: products are in full fp32 from here on" in told
