"""Runs that are given by their paths: from Python, too, no verb judges them by images that they were trained on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitrail


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run, and the images it split by itself: 12 to train on, 6 to choose by, 6 to test."""
    photos = tmp_path_factory.mktemp("photos")
    for number in range(24):
        folder = photos / ("ants", "bees")[number % 2]
        folder.mkdir(exist_ok=True)
        values = np.random.default_rng(number).integers(0, 255, (20, 30, 3), dtype=np.uint8)
        Image.fromarray(values).save(folder / f"{number}.png")
    config = vitrail.ViTConfig(image_size=16, patch_size=8, width=16, depth=2, heads=2, mlp_width=16, classes=2)
    out = tmp_path_factory.mktemp("runs")
    run = vitrail.train(
        photos, model=config, steps=2, batch=4, size=16, val=0.25, test=0.25, out=out, check=False, report=False
    )
    return run.folder, photos


def test_two_runs_are_compared_on_images_that_neither_saw(trained: tuple[Path, Path]) -> None:
    run, photos = trained
    result = vitrail.compare(run, run / "best.safetensors", photos, progress=False)
    assert (len(result.a), result.a.split, result.caveat) == (6, "test", "")
    assert result.a.names == vitrail.evaluate(run).names


def test_a_run_is_optimised_by_images_it_was_not_trained_on(trained: tuple[Path, Path], tmp_path: Path) -> None:
    run, photos = trained
    options = {"max_drop": 100, "batches": (1,), "merging": False, "runtimes": ("packed",), "progress": False}
    result = vitrail.optimize(run, photos, tmp_path / "fast", **options)
    assert result.words == "calibrated on train, chosen by val images, reported on test"
    assert result.reported.images == 6


def test_a_run_alone_is_optimised_by_its_own_images(
    trained: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `vitrail optimize RUN` does it; a network in memory knows of no images."""
    run, _ = trained
    monkeypatch.chdir(tmp_path)
    options = {"max_drop": 100, "batches": (1,), "merging": False, "runtimes": ("packed",), "progress": False}
    result = vitrail.optimize(run, **options)
    assert result.words == "calibrated on train, chosen by val images, reported on test"
    assert (result.reported.images, result.out) == (6, Path(f"{run.name}-fast.safetensors"))
    assert result.out.is_file()
    with pytest.raises(vitrail.VitrailError, match="expected images to judge it by"):
        vitrail.optimize(vitrail.load(run), out="other", **options)
