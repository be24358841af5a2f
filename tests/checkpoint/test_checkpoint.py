"""A checkpoint in the hands of who uses it: its methods, its transform, its devices."""

from __future__ import annotations

import inspect
import pickle
import subprocess
import sys
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from vitrail.checkpoint import Checkpoint
from vitrail.errors import InputError


@pytest.fixture(scope="module")
def fashion() -> Checkpoint:
    return vitrail.load("vitrail:fashion")


def image(seed: int = 0, size: tuple[int, int] = (40, 30)) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 255, size, dtype=np.uint8))


# Methods


@pytest.mark.parametrize("verb", ["predict", "embed", "explain"])
def test_a_method_takes_what_its_verb_takes(verb: str) -> None:
    method = inspect.signature(getattr(Checkpoint, verb)).parameters
    function = inspect.signature(getattr(vitrail, verb)).parameters
    expected = [(each.name, each.default, each.kind) for each in list(function.values())[1:]]
    assert [(each.name, each.default, each.kind) for each in list(method.values())[1:]] == expected


def test_methods_answer_as_the_verbs(fashion: Checkpoint) -> None:
    images = [image(0), image(1)]
    assert fashion.predict(images, top=2) == vitrail.predict(fashion, images, top=2)
    assert np.array_equal(fashion.embed(images, batch=1), vitrail.embed(fashion, images, batch=1))
    ours, theirs = fashion.explain(images[0], "grad-cam", 3), vitrail.explain(fashion, images[0], "grad-cam", 3)
    assert np.array_equal(ours.map, theirs.map)
    assert ours.target == theirs.target == fashion.classes[3]


# The transform


def test_the_transform_gives_the_bits_of_the_preprocess(fashion: Checkpoint) -> None:
    pixels = fashion.transform(image())
    assert isinstance(pixels, torch.Tensor)
    assert pixels.dtype == torch.float32
    assert np.array_equal(pixels.numpy(), fashion.preprocess(image()))


def test_the_transform_goes_to_processes_and_holds_no_weights(fashion: Checkpoint) -> None:
    stored = pickle.dumps(fashion.transform)
    assert len(stored) < 2000
    assert pickle.loads(stored) == fashion.transform


class Photos(torch.utils.data.Dataset[torch.Tensor]):
    """Images as a DataLoader's worker reads them."""

    def __init__(self, transform: object) -> None:
        self.transform = transform

    def __len__(self) -> int:
        return 4

    def __getitem__(self, row: int) -> torch.Tensor:
        pixels = self.transform(image(row))  # type: ignore[operator]
        assert isinstance(pixels, torch.Tensor)
        return pixels


def test_a_data_loader_with_workers_gives_what_the_network_takes(fashion: Checkpoint) -> None:
    loader = torch.utils.data.DataLoader(
        Photos(fashion.transform), 4, num_workers=1, multiprocessing_context=get_context("fork")
    )
    [pixels] = list(loader)
    expected = fashion.embed([image(row) for row in range(4)])
    with torch.inference_mode():
        assert np.array_equal(fashion.model.embed(pixels).numpy(), expected)


# Devices


ON_ANOTHER_DEVICE = """
import sys
sys.path.insert(0, sys.argv[1])
import numpy as np, pretend_device, vitrail
kept = pretend_device.install()
here = vitrail.load("vitrail:fashion")
there = vitrail.load("vitrail:fashion", device="pretend")
images = [np.arange(784, dtype=np.uint8).reshape(28, 28)]
assert {str(each.device) for each in there.model.parameters()} == {"pretend:0"}
assert np.array_equal(here.embed(images), there.embed(images))
assert there.predict(images) == here.predict(images)
assert there.to("pretend:0") is there
moved = here.to("pretend")
assert {str(each.device) for each in here.model.parameters()} == {"cpu"}, "moved, not copied"
assert np.array_equal(moved.explain(images[0]).map, here.explain(images[0]).map)
vitrail.save(moved, sys.argv[2])
assert np.array_equal(vitrail.load(sys.argv[2]).embed(images), here.embed(images))
assert "on pretend:0" in " ".join(repr(moved).split())
"""


def test_a_checkpoint_on_another_device_answers_the_same(fixtures: Path, tmp_path: Path) -> None:
    tools = fixtures.parent / "tools"
    if not (tools / "pretend_device.py").is_file():
        pytest.skip("no second device to try it on")
    command = [sys.executable, "-c", ON_ANOTHER_DEVICE, str(tools), str(tmp_path / "moved.safetensors")]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr


def test_on_the_device_where_it_is_a_checkpoint_is_itself(fashion: Checkpoint) -> None:
    assert fashion.to("cpu") is fashion
    assert fashion.to(torch.device("cpu")) is fashion


@pytest.mark.parametrize("device", ["nope", "meta", 3, None, "cuda:99"])
def test_a_device_that_is_not_there_is_told(fashion: Checkpoint, device: object) -> None:
    if device == 3 and torch.cuda.is_available():
        pytest.skip("this machine has devices by number")
    with pytest.raises(InputError, match="device"):
        fashion.to(device)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="device"):
        vitrail.load("vitrail:fashion", device=device)  # type: ignore[arg-type]
