"""The best weights are evaluated on the images held out, calibrated, and said what they are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from training import tiny
from training.quick import NETWORK
from vitrail.data.augmentation import Augment
from vitrail.data.cache import Views
from vitrail.data.loader import epoch_order
from vitrail.evaluation.calibration import fit_temperature, fit_thresholds
from vitrail.evaluation.report import Report
from vitrail.images import Preprocess
from vitrail.inference import probabilities
from vitrail.network.vit import ViT
from vitrail.training import final_evaluation
from vitrail.training.job import Part
from vitrail.training.loop import fit
from vitrail.training.validation import logits_of


def test_the_best_is_judged_not_the_last(tmp_path: Path) -> None:
    job = tiny.job(tmp_path, 12)
    progress = fit(job)
    kept = vitrail.load(tmp_path / "best.safetensors")
    assert job.val is not None
    expected = logits_of(kept.model, job.val, job.plan)
    torch.nn.init.normal_(kept.model.head.classify.weight)
    vitrail.save(kept, tmp_path / "last.safetensors")  # of another mind
    found = final_evaluation.evaluate_best(job, progress, tiny.make_images(), None)
    assert progress.best is not None
    assert found.evaluation.split == "val"
    assert found.evaluation.scores["top1"].value == progress.best[0]
    assert np.allclose(found.evaluation.logits, expected)
    best = vitrail.load(tmp_path / "best.safetensors")
    assert np.array_equal(logits_of(best.model, job.val, job.plan), expected)
    assert best.temperature is not None
    assert best.temperature == pytest.approx(
        fit_temperature(found.evaluation.logits, job.val.targets, "single-label"), rel=1e-4
    )
    known = probabilities(found.evaluation.logits, "single-label", best.temperature)
    assert np.allclose(found.evaluation.probabilities, known)
    assert not np.allclose(known, probabilities(found.evaluation.logits, "single-label", None))


def test_what_is_fitted_never_sees_the_test_images(tmp_path: Path) -> None:
    job = tiny.job(tmp_path, 6)
    progress = fit(job)
    images, half = tiny.make_images(), tiny.make_images(32)
    test = Part(Views(half, job.plan.preprocess), half.targets())
    samples = tuple(each._replace(split="test") for each in half.samples)
    dataset = replace(images, samples=images.samples + samples, images=np.concatenate([images.images, half.images]))
    found = final_evaluation.evaluate_best(job, progress, dataset, test)
    assert found.validation is not None
    assert (found.evaluation.split, len(found.evaluation)) == ("test", 32)
    assert (found.validation.split, len(found.validation)) == ("val", 16)
    assert job.val is not None
    fitted = fit_temperature(found.validation.logits, job.val.targets, "single-label")
    assert found.checkpoint.temperature == pytest.approx(fitted)
    metrics = found.checkpoint.provenance.metrics
    assert metrics["test_top1"] == found.evaluation.scores["top1"].value
    assert vitrail.load(tmp_path / "best.safetensors").provenance.metrics == metrics


def test_with_several_labels_each_has_its_threshold() -> None:
    logits = np.array([[3.0, -1.0, 0.5], [-2.0, 2.0, 0.1], [1.0, 1.0, -3.0], [-1.0, -2.0, 2.0]])
    targets = np.array([[1, 0, 1], [0, 1, 0], [1, 1, 0], [0, 0, 1]])
    checkpoint = vitrail.Checkpoint(ViT(tiny.CONFIG), Preprocess(8, channels=1), task="multi-label")
    fitted = final_evaluation.calibrated(checkpoint, logits, targets)
    known = probabilities(logits, "multi-label", fitted.temperature)
    assert fitted.thresholds == fit_thresholds(known, targets)
    assert ((known >= np.array(fitted.thresholds)) == targets).all()
    assert fitted.reject is None


def test_the_report_shows_images_that_a_person_can_judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole, and larger than the network sees them."""
    photos = tmp_path / "photos"
    for name in ("a", "b"):
        (photos / name).mkdir(parents=True)
        for row in range(4):
            Image.new("RGB", (800, 400), (60 * row, 90, 0 if name == "a" else 200)).save(photos / name / f"{row}.png")
    sizes: list[tuple[int, int]] = []
    right = final_evaluation.build

    def build(report: Report) -> str:
        assert report.images is not None
        sizes.append(report.images(0).size)
        return right(report)

    monkeypatch.setattr(final_evaluation, "build", build)
    vitrail.train(photos, model=NETWORK, size=NETWORK.image_size, steps=1, batch=4, check=False, out=tmp_path / "runs")
    assert sizes == [(320, 160)]


def test_images_are_shown_as_the_network_meets_them(tmp_path: Path) -> None:
    job = tiny.job(tmp_path, 1, replace(tiny.RECIPE, augment=Augment()))
    shown = final_evaluation.what_it_sees(job, 5)
    rows = epoch_order(job.plan.seed, 0, len(job.train.targets))[:5]
    views = job.train.views.get(rows)
    for (image, label), row, view in zip(shown, rows.tolist(), views, strict=True):
        assert label == f"class {job.train.targets[row]}"
        assert np.array_equal(np.asarray(image), np.asarray(view)[0])
