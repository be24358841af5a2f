"""Everything on a second device, run by test_pretend_device.py in a process of its own: there torch has that device.

The device keeps exact numbers in ordinary memory, but mixes with no tensor of the CPU, as a GPU. What it gives must be
the CPU's numbers, and come back where they come back today.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import vitrail
from training.quick import draw
from vitrail.checkpoint.devices import device_of, find_device
from vitrail.data.augmentation import Augment
from vitrail.errors import InputError
from vitrail.network.config import ConvStem, ViTConfig
from vitrail.training import Callbacks, Recipe, Run, autotune, device_choice, plain_attention

CLOSE = 1e-5
CONFIG = ViTConfig(image_size=16, patch_size=4, width=24, depth=2, heads=2, mlp_width=48)
BATCH_NORM = replace(CONFIG, patch_size=1, stem=ConvStem((8, 16)), norm="batch", pool="mean", cls_token=False)
RECIPES: dict[str, tuple[ViTConfig, dict[str, Any]]] = {
    "AdamW, mixup, clipping": (CONFIG, {"augment": Augment(mixup=0.8, crop=(0.5, 1.0)), "clip": 0.5}),
    "Muon, average": (CONFIG, {"optimiser": "muon", "ema": 0.9}),
    "accumulation, checkpointing": (CONFIG, {"pieces": 2, "checkpointing": True}),
    "batch norm": (BATCH_NORM, {}),
    "SGD, balanced classes": (CONFIG, {"optimiser": "sgd", "lr": 0.05, "balance": "weights"}),
    "dropout": (CONFIG, {"dropout": 0.2, "drop_path": 0.2}),
}


@pytest.fixture(scope="session", autouse=True)
def pretend() -> Iterator[None]:
    """torch with a second device, which has no float64 where that is asked for."""
    tool = Path(os.environ["PRETEND_DEVICE"])
    sys.path.insert(0, str(tool.parent))
    import pretend_device  # type: ignore[import-not-found]

    kept = pretend_device.install(refuse={torch.float64} if os.environ.get("PRETEND_REFUSES") else ())
    yield
    del kept


@pytest.fixture(autouse=True)
def one_kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The CPU's own kernels of attention round otherwise, and Adam makes whole steps of that: the same for both."""
    monkeypatch.setattr(plain_attention, "MOST_TOKENS", {})
    with sdpa_kernel(SDPBackend.MATH):
        yield


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw(tmp_path_factory.mktemp("data") / "photos")


def train(photos: Path, out: Path, device: str = "pretend", **options: Any) -> Run:
    config = options.pop("config", CONFIG)
    recipe = Recipe(**{"epochs": 2, "batch": 8, "lr": 3e-3} | options.pop("recipe", {}))
    given = {"model": config, "size": 16, "check": False, "report": False, "progress": False} | options
    return vitrail.train(photos, recipe=recipe, out=out, device=device, **given)


def apart(one: Path, other: Path) -> float:
    """How far the weights of two checkpoints are from each other."""
    a, b = (vitrail.load(each).model.state_dict() for each in (one, other))
    assert {each.device.type for each in (*a.values(), *b.values())} == {"cpu"}  # a file is of no device
    return max(float((a[name].float() - b[name].float()).abs().max()) for name in a)


@pytest.mark.parametrize("name", RECIPES)
def test_a_training_gives_the_cpus_numbers(name: str, photos: Path, tmp_path: Path) -> None:
    config, recipe = RECIPES[name]
    cpu, other = (
        train(photos, tmp_path / device, device, config=config, recipe=dict(recipe)) for device in ("cpu", "pretend")
    )
    assert (cpu.plan.device, other.plan.device) == ("cpu", "pretend")
    assert apart(cpu.folder / "last.safetensors", other.folder / "last.safetensors") <= CLOSE
    assert apart(cpu.best, other.best) <= CLOSE
    assert np.abs(cpu.evaluation.logits - other.evaluation.logits).max() <= CLOSE * np.abs(cpu.evaluation.logits).max()


def test_a_training_in_bf16_computes_there(photos: Path, tmp_path: Path) -> None:
    """Autocast lowers other operators there than on the CPU: the loss is the same to bf16's three digits."""
    rows = []
    for device in ("cpu", "pretend"):
        heard: list[dict[str, Any]] = []
        train(photos, tmp_path / device, device, recipe={"precision": "bf16"}, callbacks=Callbacks(epoch=heard.append))
        rows.append(heard[-1]["loss"])
    assert rows[0] == pytest.approx(rows[1], rel=0.02)


def test_fine_tuning_with_its_probe_gives_the_cpus_numbers(photos: Path, tmp_path: Path) -> None:
    start = train(photos, tmp_path / "start", "cpu").best
    runs = [train(photos, tmp_path / device, device, model=None, start=start) for device in ("cpu", "pretend")]
    assert apart(runs[0].best, runs[1].best) <= CLOSE
    assert [each.score for each in runs[0].stages] == [each.score for each in runs[1].stages]


def stopped(photos: Path, out: Path, step: int, **options: Any) -> None:
    def stop(done: int, steps: int, loss: float) -> None:
        if done == step:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(vitrail.VitrailError, match=f"stopped at step {step}"):
        train(photos, out, callbacks=Callbacks(step=stop), **options)


@pytest.mark.parametrize("name", ["Muon, average", "dropout", "batch norm"])
def test_a_run_that_was_stopped_ends_with_the_same_bits(name: str, photos: Path, tmp_path: Path) -> None:
    config, recipe = RECIPES[name]
    whole = train(photos, tmp_path / "whole", config=config, recipe=dict(recipe))
    stopped(photos, tmp_path / "stopped", 3, config=config, recipe=dict(recipe))
    again = train(photos, tmp_path / "stopped", config=config, recipe=dict(recipe))
    assert again.resumed
    for file in ("last.safetensors", "best.safetensors", "metrics.jsonl"):
        assert (again.folder / file).read_bytes() == (whole.folder / file).read_bytes(), file


def test_a_run_goes_on_elsewhere_only_if_asked_and_says_so(photos: Path, tmp_path: Path) -> None:
    whole = train(photos, tmp_path / "whole", "cpu", name="one")
    stopped(photos, tmp_path / "moved", 3, device="cpu", name="one")
    with pytest.raises(InputError, match="device: 'cpu' before, 'pretend' now"):
        train(photos, tmp_path / "moved", name="one")
    heard: list[str] = []
    moved = train(photos, tmp_path / "moved", name="one", elsewhere=True, callbacks=Callbacks(log=heard.append))
    note = "trained on cpu with 1 threads, then pretend with 1 threads: its numbers repeat to rounding, not to the bit"
    assert note in heard
    assert note in moved.notes
    assert apart(moved.best, whole.best) <= CLOSE


def test_a_run_of_its_own_accord_stays_where_it_was(photos: Path, tmp_path: Path) -> None:
    """ "auto" takes the accelerator here, and goes on with the CPU where that was taken before."""
    stopped(photos, tmp_path, 3, device="cpu", name="one")
    again = train(photos, tmp_path, "auto", name="one")
    assert again.resumed
    assert again.plan.device == "cpu"
    assert again.notes == train(photos, tmp_path, "cpu", name="two").notes  # nothing about other places


@pytest.mark.parametrize("faster", ["cpu", "pretend"])
def test_auto_times_a_small_network_on_both_and_says_which(
    faster: str, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(job: Any) -> autotune.Speed:
        return autotune.Speed(0.001 if device_of(job.model).type == faster else 0.002, 0.0)

    monkeypatch.setattr(device_choice, "measure_speed", measured)
    heard: list[str] = []
    done = train(photos, tmp_path, "auto", callbacks=Callbacks(log=heard.append))
    assert done.plan.device == faster
    times = {"cpu": "cpu 1 ms a step, pretend 2 ms a step", "pretend": "cpu 2 ms a step, pretend 1 ms a step"}
    assert f"trained on {faster}: {times[faster]}" in heard
    monkeypatch.setattr(device_choice, "SMALL", 10)  # a large one is not timed
    heard.clear()
    assert train(photos, tmp_path / "large", "auto", callbacks=Callbacks(log=heard.append)).plan.device == "pretend"
    assert not any("ms a step" in line for line in heard)


def test_devices_are_named() -> None:
    assert str(find_device("auto")) == "pretend:0"
    with pytest.raises(InputError, match=r"expected 'auto' or one that torch has, here cpu, pretend, got 'cuda'"):
        find_device("cuda")
