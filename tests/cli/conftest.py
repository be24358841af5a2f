"""What the tests of verbs are given: the command line, small checkpoints, images, data."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from cli.command_line import Line
from network import renames
from shipping.packs import checkpoint, labelled, make_images
from vitrail.checkpoint import Checkpoint, Provenance, save
from vitrail.images import Preprocess
from vitrail.images.ood_detector import OodDetector
from vitrail.network import ViT, ViTConfig
from vitrail.quantisation import quantiser as quantising
from vitrail.shipping import benchmark as benching
from vitrail.shipping import optimizer as optimising
from vitrail.shipping.benchmark import Alone

CONFIG = ViTConfig(image_size=32, patch_size=8, width=16, depth=2, heads=2, mlp_width=32, classes=3)


@pytest.fixture
def vit(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Line:
    return Line(monkeypatch, capsys)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small checkpoint under a name that a terminal library might eat."""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("checkpoint") / "my [bold] net.safetensors"
    provenance = Provenance("photos/", "CC0-1.0", metrics={"top1": 0.5})
    model = ViT(CONFIG).eval()
    renames.randomise(model)
    vitrail.save(Checkpoint(model, Preprocess(size=32), ("cat", "[dog]", "cow"), provenance), path)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three images, and one that is cut short."""
    place = tmp_path / "photos"
    place.mkdir()
    dice = np.random.default_rng(0)
    for name in ("1.png", "2.png", "10.png"):
        Image.fromarray(dice.integers(0, 256, (40, 50, 3), np.uint8)).save(place / name)
    (place / "3 broken.png").write_bytes((place / "1.png").read_bytes()[:100])
    return place


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """A small network in timm's names, one file without any description."""
    config = ViTConfig(image_size=32, patch_size=8, width=128, depth=2, heads=2, mlp_width=256, classes=3)
    vitrail.convert(Checkpoint(ViT(config), Preprocess(32)), tmp_path / "foreign.safetensors", to="timm")
    return tmp_path / "foreign.safetensors"


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three classes by colour, 20 images each; one of them twice, one unreadable."""
    folder = tmp_path_factory.mktemp("data") / "photos"
    dice = np.random.default_rng(3)
    for number, name in enumerate(("red", "green", "blue")):
        (folder / name).mkdir(parents=True)
        for row in range(20):
            pixels = dice.integers(0, 90, (16, 16, 3), dtype=np.uint8)
            pixels[:, :, number] += 120
            Image.fromarray(pixels).save(folder / name / f"{row}.png")
    Image.open(folder / "blue" / "0.png").save(folder / "blue" / "copy.bmp")
    (folder / "red" / "broken.png").write_bytes(b"no image")
    return folder


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights to start from."""
    torch.manual_seed(0)
    config = ViTConfig(image_size=16, patch_size=4, width=24, depth=1, heads=1, mlp_width=48, classes=3)
    path = tmp_path_factory.mktemp("weights") / "start.safetensors"
    save(Checkpoint(ViT(config).eval(), Preprocess(size=16, crop=1.0), ["a", "b", "c"]), path)
    return path


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A checkpoint, labelled images in folders, and others without labels."""
    made = checkpoint()
    vitrail.save(made, tmp_path / "net.safetensors")
    data = labelled(made, 72, train=24, val=48)
    for number, sample in enumerate(data.samples):
        folder = tmp_path / "data" / sample.split / sample.labels[0]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.asarray(data.images[number])).save(folder / f"{number}.png")
    for split in ("train", "val"):
        for name in made.classes:
            (tmp_path / "data" / split / name).mkdir(parents=True, exist_ok=True)
    (tmp_path / "loose").mkdir()
    for number, image in enumerate(make_images(40, seed=5)):
        Image.fromarray(image).save(tmp_path / "loose" / f"{number}.png")
    return tmp_path


@pytest.fixture
def fixed_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """No clock decides: the network takes 6 ms, what was made of it 1.5; int8 wins a race."""
    times = {"eager": 2.0, "fp32": 1.0, "bf16": 1.5, "int8": 0.5}
    took = {"before": 6.0, "after": 1.5}
    monkeypatch.setattr(quantising, "latencies", lambda runtimes, batch: took)
    monkeypatch.setattr(
        optimising,
        "interleaved",
        lambda calls, rounds: {way: times.get(way.runtime, times[way.precision]) for way in calls},
    )
    monkeypatch.setattr(benching, "interleaved", lambda calls, rounds: dict.fromkeys(calls, 0.25))
    monkeypatch.setattr(benching, "_alone", lambda path, device: Alone(1.5, 7_000_000, 1_234))


@pytest.fixture
def wary(file: Path, folder: Path, tmp_path: Path) -> Path:
    """The same network, which knows images of one kind only: those of the folder, but for 10.png."""
    (folder / "3 broken.png").unlink()
    loaded = vitrail.load(file)
    known = vitrail.embed(loaded, [folder / "1.png", folder / "2.png"])
    near = np.repeat(known, 10, axis=0) + np.random.default_rng(0).normal(size=(20, known.shape[1])) * 1e-4
    ood = OodDetector.fit(near, near)
    vitrail.save(dataclasses.replace(loaded, ood=ood), tmp_path / "wary.safetensors")
    return tmp_path / "wary.safetensors"
