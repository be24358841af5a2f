"""Everything on a second device, run by test_pretend_device.py in a process of its own: there torch has that device.

The device keeps exact numbers in ordinary memory, but mixes with no tensor of the CPU, as a GPU. What it gives must be
the CPU's numbers, and come back where they come back today.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from typer.testing import CliRunner

import vitrail
from training.quick import draw
from vitrail.checkpoint.devices import device_of, find_device
from vitrail.cli import load_verbs
from vitrail.data import loader
from vitrail.data.augmentation import Augment
from vitrail.errors import InputError
from vitrail.network.config import ConvStem, ViTConfig
from vitrail.network.vit import ViT
from vitrail.training import Callbacks, Recipe, Run, autotune, device_choice, final_evaluation, loop, plain_attention
from vitrail.training.state import read_newest

CLOSE = 1e-5
CONFIG = ViTConfig(image_size=16, patch_size=4, width=24, depth=2, heads=2, mlp_width=48)
BATCH_NORM = replace(CONFIG, patch_size=1, stem=ConvStem((8, 16)), norm="batch", pool="mean", cls_token=False)
EVERYTHING: dict[str, Any] = {"optimiser": "muon", "ema": 0.9, "dropout": 0.2, "drop_path": 0.1, "precision": "fp16"}
RECIPES: dict[str, tuple[ViTConfig, dict[str, Any]]] = {
    "AdamW, mixup, clipping, accumulation, checkpointing": (
        CONFIG,
        {"augment": Augment(mixup=0.8, crop=(0.5, 1.0)), "clip": 0.5, "pieces": 2, "checkpointing": True},
    ),
    "Muon, average, cutmix": (CONFIG, {"optimiser": "muon", "ema": 0.9, "augment": Augment(cutmix=1.0)}),
    "batch norm": (BATCH_NORM, {}),
    "SGD, balanced classes, dropout": (
        CONFIG,
        {"optimiser": "sgd", "lr": 0.05, "balance": "weights", "dropout": 0.2, "drop_path": 0.2},
    ),
}


@pytest.fixture(scope="session", autouse=True)
def pretend() -> Iterator[None]:
    """torch with a second device, which has no float64 where that is asked for."""
    kept = installed()
    yield
    del kept


def installed() -> Any:
    """Tell torch of the device; what comes back is to be kept."""
    sys.path.insert(0, str(Path(os.environ["PRETEND_DEVICE"]).parent))
    import pretend_device  # type: ignore[import-not-found]

    return pretend_device.install(refuse={torch.float64} if os.environ.get("PRETEND_REFUSES") else ())


@pytest.fixture(autouse=True)
def one_kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The CPU's own kernels of attention round otherwise, and Adam makes whole steps of that: the same for both."""
    monkeypatch.setattr(plain_attention, "MOST_TOKENS", {})
    with sdpa_kernel(SDPBackend.MATH):
        yield


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Intervals and syncs take a while, and say nothing of devices."""
    monkeypatch.setattr(final_evaluation, "evaluation_of", partial(final_evaluation.evaluation_of, resamples=0))
    monkeypatch.setattr(os, "fsync", lambda number: None)


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw(tmp_path_factory.mktemp("data") / "photos")


def train(photos: Path, out: Path, device: str = "pretend", **options: Any) -> Run:
    config = options.pop("config", CONFIG)
    recipe = Recipe(**{"epochs": 1, "batch": 8, "lr": 3e-3} | options.pop("recipe", {}))
    given = {"model": config, "size": 16, "check": False, "report": False, "progress": False} | options
    return vitrail.train(photos, recipe=recipe, out=out, device=device, **given)


def apart(one: Path, other: Path) -> float:
    """How far the weights of two checkpoints are from each other."""
    a, b = (vitrail.load(each).model.state_dict() for each in (one, other))
    assert {each.device.type for each in (*a.values(), *b.values())} == {"cpu"}  # a file is of no device
    return max(float((a[name].float() - b[name].float()).abs().max()) for name in a)


@pytest.fixture
def left_behind(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Tensors of a training that do not lie where its network lies, after each step; batches among them."""
    learn, found = loop._Loop.learn, []

    def looked_at(self: Any, batch: Any) -> None:
        learn(self, batch)
        everything = self.tensors() | {"pixels": batch.pixels, "targets": batch.targets}
        own = device_of(self.model)
        # Counts of steps may stay on the CPU, as torch's own optimisers keep them.
        found.extend(name for name, each in everything.items() if each.device != own and each.dim())

    monkeypatch.setattr(loop._Loop, "learn", looked_at)
    return found


@pytest.mark.parametrize("name", RECIPES)
def test_an_epoch_gives_the_cpus_numbers(name: str, photos: Path, tmp_path: Path, left_behind: list[str]) -> None:
    config, recipe = RECIPES[name]
    cpu, other = (
        train(photos, tmp_path / device, device, config=config, recipe=dict(recipe)) for device in ("cpu", "pretend")
    )
    assert (cpu.plan.device, other.plan.device) == ("cpu", "pretend")
    assert left_behind == []
    assert apart(cpu.folder / "last.safetensors", other.folder / "last.safetensors") <= CLOSE
    assert apart(cpu.best, other.best) <= CLOSE
    assert np.abs(cpu.evaluation.logits - other.evaluation.logits).max() <= CLOSE * np.abs(cpu.evaluation.logits).max()


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_training_in_half_precision_computes_there(precision: str, photos: Path, tmp_path: Path) -> None:
    """Autocast lowers other operators there than on the CPU: the loss is the same to bf16's three digits."""
    rows = []
    for device in ("cpu", "pretend"):
        heard: list[dict[str, Any]] = []
        run = train(
            photos, tmp_path / device, device, recipe={"precision": precision}, callbacks=Callbacks(epoch=heard.append)
        )
        rows.append(heard[-1]["loss"])
        facts = read_newest(run.folder / "state", pytest.fail)
        assert facts is not None
        assert bool(facts.facts["scale_steps"]) == (precision == "fp16")  # some first steps overflow, and are left out
    assert rows[0] == pytest.approx(rows[1], rel=0.02)


def test_fine_tuning_with_its_probe_gives_the_cpus_numbers(photos: Path, tmp_path: Path) -> None:
    start = train(photos, tmp_path / "start", "cpu").best
    runs = [train(photos, tmp_path / device, device, model=None, start=start) for device in ("cpu", "pretend")]
    assert apart(runs[0].best, runs[1].best) <= CLOSE
    assert [each.score for each in runs[0].stages] == [each.score for each in runs[1].stages]


# ---- pixels ------------------------------------------------------------------------------------------------------


def test_pixels_are_pinned_and_on_their_way_before_their_step(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """8-bit images go there, pinned by the threads that prepare them; each batch before the one in front is learned."""
    pinned: dict[int, str] = {}
    told: list[str] = []
    kept: list[torch.Tensor] = []
    to = torch.Tensor.to

    def pin(tensor: torch.Tensor) -> torch.Tensor:
        pinned[id(tensor)] = threading.current_thread().name
        kept.append(tensor)
        return tensor

    def moved(tensor: torch.Tensor, *arguments: Any, **named: Any) -> torch.Tensor:
        if id(tensor) in pinned and str(arguments[0]).startswith("pretend"):
            assert named == {"non_blocking": True}
            told.append(str(tensor.dtype))
        return to(tensor, *arguments, **named)

    monkeypatch.setattr(loader, "_PINS", ("pretend",))
    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    monkeypatch.setattr(torch.Tensor, "to", moved)
    step = Callbacks(step=lambda done, steps, loss: told.append(f"step {done}"))
    run = train(photos, tmp_path, callbacks=step, recipe={"augment": Augment(mixup=0.8, flip=True)})
    batch = ["torch.uint8", "torch.float32"]  # images and targets
    between = [each for number in range(1, run.steps - 1) for each in (f"step {number}", *batch)]
    assert told == [*batch * 2, *between, f"step {run.steps - 1}", f"step {run.steps}"]
    assert all(name.startswith("vitrail-loader") for name in pinned.values())


# ---- memory ------------------------------------------------------------------------------------------------------


def holding(monkeypatch: pytest.MonkeyPatch, most: int) -> list[int]:
    """Memory for so many images at a time, on the device alone; the sizes of all passes while training there."""
    seen: list[int] = []
    forward = ViT.forward

    def limited(self: ViT, pixels: torch.Tensor, **more: Any) -> torch.Tensor:
        logits = forward(self, pixels, **more)
        if self.training and pixels.device.type == "pretend":
            seen.append(len(pixels))
            if len(pixels) > most:
                raise torch.OutOfMemoryError("out of memory")
        return logits

    monkeypatch.setattr(ViT, "forward", limited)
    return seen


def test_what_does_not_fit_goes_through_in_pieces(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = EVERYTHING | {"precision": "bf16"}
    parted = train(photos, tmp_path / "pieces", config=BATCH_NORM, recipe=recipe | {"pieces": 4}, steps=2)
    seen = holding(monkeypatch, 2)
    limited = train(photos, tmp_path / "limited", config=BATCH_NORM, recipe=dict(recipe), steps=2)
    assert seen[:6] == [8, 4, 2, 2, 2, 2]
    assert set(seen[2:]) == {2}
    for name in ("last", "best"):
        a, b = (vitrail.load(each.folder / f"{name}.safetensors").model.state_dict() for each in (parted, limited))
        assert all(torch.equal(value, b[part]) for part, value in a.items())
    assert any("in 4 pieces of 2, since memory did not hold more" in note for note in limited.notes)


def test_the_batch_that_fits_is_found_by_trying(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = holding(monkeypatch, 3)
    heard: list[str] = []
    run = train(photos, tmp_path, batch="auto", steps=2, callbacks=Callbacks(log=heard.append))
    assert run.plan.recipe.batch == 2
    assert seen[:3] == [1, 2, 4]
    assert any(line.startswith("batches of 2 images: 4 do not fit on pretend; the learning rate") for line in heard)


# ---- stopped, killed, moved --------------------------------------------------------------------------------------


def stopped(photos: Path, out: Path, step: int, **options: Any) -> None:
    def stop(done: int, steps: int, loss: float) -> None:
        if done == step:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(vitrail.VitrailError, match=f"stopped at step {step}"):
        train(photos, out, callbacks=Callbacks(step=stop), **options)


def same_bits(one: Run, other: Run) -> None:
    for file in ("last.safetensors", "best.safetensors", "metrics.jsonl"):
        assert (one.folder / file).read_bytes() == (other.folder / file).read_bytes(), file


def killed(photos: Path, out: Path, options: dict[str, Any]) -> None:
    """A training in a process of its own, which is killed in its fourth step."""
    program = (
        "import os, signal, sys\nfrom pathlib import Path\n"
        "import devices.on_pretend as cases\nfrom vitrail.training import plain_attention, loop\n"
        "kept = cases.installed()\nplain_attention.MOST_TOKENS.clear()\nlearn = loop._Loop.learn\n"
        "def dying(self, batch):\n"
        "    if self.progress.step == 3: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    learn(self, batch)\n"
        "loop._Loop.learn, loop._Loop.is_time = dying, lambda self: self.progress.step == 2\n"
        "with cases.sdpa_kernel(cases.SDPBackend.MATH):\n"
        f"    cases.train(Path(sys.argv[1]), Path(sys.argv[2]), config=cases.BATCH_NORM, recipe={options!r})\n"
    )
    tests = Path(__file__).resolve().parents[1]
    paths = [str(tests), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, "-c", program, str(photos), str(out)]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert ran.returncode == -signal.SIGKILL, ran.stderr[-3000:]


def test_a_run_that_was_killed_ends_with_the_same_bits(photos: Path, tmp_path: Path) -> None:
    """fp16 with its scale, Muon and AdamW, an average, dropout, batch norm."""
    whole = train(photos, tmp_path / "whole", config=BATCH_NORM, recipe=dict(EVERYTHING))
    killed(photos, tmp_path / "killed", EVERYTHING)
    heard: list[str] = []
    again = train(
        photos, tmp_path / "killed", config=BATCH_NORM, recipe=dict(EVERYTHING), callbacks=Callbacks(log=heard.append)
    )
    assert again.resumed
    assert "going on from step 2 of 5" in heard
    same_bits(again, whole)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_run_that_was_stopped_ends_with_the_same_bits(precision: str, photos: Path, tmp_path: Path) -> None:
    recipe = EVERYTHING | {"precision": precision, "augment": Augment(mixup=0.8, cutmix=1.0)}
    whole = train(photos, tmp_path / "whole", recipe=dict(recipe))
    stopped(photos, tmp_path / "stopped", 3, recipe=dict(recipe))
    again = train(photos, tmp_path / "stopped", recipe=dict(recipe))
    assert again.resumed
    same_bits(again, whole)


def test_a_run_goes_on_elsewhere_only_if_asked_and_says_so(photos: Path, tmp_path: Path) -> None:
    whole = train(photos, tmp_path / "whole", "cpu", name="one")
    stopped(photos, tmp_path / "moved", 3, device="cpu", name="one")
    with pytest.raises(InputError, match="device: 'cpu' before, 'pretend' now"):
        train(photos, tmp_path / "moved", name="one")
    heard: list[str] = []
    options: dict[str, Any] = {"name": "one", "elsewhere": True, "report": True}
    moved = train(photos, tmp_path / "moved", callbacks=Callbacks(log=heard.append), **options)
    note = "trained on cpu with 1 threads, then pretend with 1 threads: its numbers repeat to rounding, not to the bit"
    assert note in heard
    assert note in moved.notes
    assert apart(moved.best, whole.best) <= CLOSE
    page = (moved.folder / "report.html").read_text()
    assert note in page
    assert "deterministic algorithms off" in page
    record = json.loads((moved.folder / "config.json").read_text())
    assert (record["environment"]["device"], record["elsewhere"][0]["device"]) == ("cpu", "pretend")
    assert record["environment"]["precision"] == "fp32"


def test_the_command_line_goes_on_elsewhere(photos: Path, tmp_path: Path) -> None:
    stopped(photos, tmp_path, 3, device="cpu", name="one")
    words = ["train", "--resume", str(tmp_path / "one"), "--device", "pretend"]
    refused = CliRunner().invoke(load_verbs(), words)
    assert "device: 'cpu' before, 'pretend' now" in str(refused.exception)
    assert CliRunner().invoke(load_verbs(), [*words, "--elsewhere"]).exit_code == 0
    record = json.loads((tmp_path / "one" / "config.json").read_text())
    assert record["elsewhere"][0]["device"] == "pretend"


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
