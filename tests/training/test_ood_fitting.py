"""After training, what is familiar is learned from training images, and promised on validation images alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vitrail
from training import tiny
from vitrail.data.augmentation import Augment
from vitrail.data.cache import Views
from vitrail.data.samples import Dataset
from vitrail.images.ood_detector import OodDetector
from vitrail.training import ood_fitting
from vitrail.training.final_evaluation import FinalResult, evaluate_best
from vitrail.training.job import Callbacks, Job, Part
from vitrail.training.loop import fit
from vitrail.training.ood_fitting import answers_of, fit_ood, training_embeddings


def part_of(dataset: Dataset, split: str, job: Job) -> Part:
    part = dataset.part(split)
    return Part(Views(part, job.plan.preprocess), part.targets())


def finished(folder: Path, count: int = 128, messages: list[str] | None = None) -> tuple[Job, FinalResult]:
    """A short training on noise, its last quarter for the test."""
    dataset = tiny.make_images(count)
    quarter = 3 * count // 4
    samples = tuple(each._replace(split="test") if n >= quarter else each for n, each in enumerate(dataset.samples))
    dataset = replace(dataset, samples=samples)
    callbacks = Callbacks() if messages is None else Callbacks(log=messages.append)
    job = tiny.job(folder, 8, callbacks=callbacks)
    train = part_of(dataset, "train", job)
    plan = replace(job.plan, per_epoch=len(train.targets) // job.plan.recipe.batch)
    job = replace(job, plan=plan, train=train, val=part_of(dataset, "val", job))
    return job, evaluate_best(job, fit(job), dataset, part_of(dataset, "test", job))


def test_every_checkpoint_trained_here_has_it(tmp_path: Path) -> None:
    messages: list[str] = []
    job, final = finished(tmp_path, messages=messages)
    kept = vitrail.load(tmp_path / "best.safetensors")
    assert kept.ood is not None
    assert job.val is not None
    _, training = answers_of(kept, job.train.views)
    _, validation = answers_of(kept, job.val.views)
    assert kept.ood == OodDetector.fit(training, validation) == final.checkpoint.ood
    assert any(
        text == "what is familiar was learned from 72 training images; at most 5 % of images like them are taken for "
        "unlike, set on 24 validation images"
        for text in messages
    )


def test_false_alarms_are_measured_on_images_that_set_nothing(tmp_path: Path) -> None:
    _, final = finished(tmp_path)
    unlike = final.evaluation.unlike
    assert unlike is not None
    assert unlike.promised == 0.05
    assert final.evaluation.split == "test"
    embedding = vitrail.embed(final.checkpoint, tiny.make_images(128).images[96:])
    assert final.checkpoint.ood is not None
    signs = final.checkpoint.ood.familiarity(embedding) <= 0.05
    assert unlike.images is not None
    assert unlike.images.tolist() == signs.tolist()
    expected = signs.mean()
    assert unlike.share.value == pytest.approx(expected)
    assert unlike.share.low <= expected <= unlike.share.high
    plain = final.evaluation.to_dict()
    assert (plain["unlike"], plain["unlike_promised"]) == (unlike.share.value, 0.05)
    assert plain["unlike_interval"] == [unlike.share.low, unlike.share.high]
    assert final.validation is not None
    assert final.validation.unlike is None
    assert final.validation.to_dict()["unlike"] is None


def test_too_few_validation_images_promise_nothing(tmp_path: Path) -> None:
    messages: list[str] = []
    _, final = finished(tmp_path, 40, messages)
    assert final.checkpoint.ood is None
    assert any("8 validation images cannot promise at most 10 % false alarms (9 can)" in text for text in messages)


def test_few_validation_images_promise_less(tmp_path: Path) -> None:
    messages: list[str] = []
    _, final = finished(tmp_path, 64, messages)
    assert final.checkpoint.ood is not None
    assert final.checkpoint.ood.false_alarms == 0.08
    assert any("at most 8 % of images like them are taken for unlike, set on 12" in text for text in messages)
    assert final.evaluation.unlike is not None
    assert final.evaluation.unlike.promised == 0.08


def test_it_looks_at_a_part_of_many_images_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job, final = finished(tmp_path)
    looked: list[int] = []

    def counting(job: Job, checkpoint: vitrail.Checkpoint, rows: Any) -> Any:
        looked.append(len(rows))
        return training_embeddings(job, checkpoint, rows)

    monkeypatch.setattr(ood_fitting, "training_embeddings", counting)
    monkeypatch.setattr(ood_fitting, "ENOUGH", 20)
    assert job.val is not None
    validation = answers_of(final.checkpoint, job.val.views)[1]
    few, many = (fit_ood(job, final.checkpoint, validation, seen) for seen in (8 * 40, 8 * 400))
    assert looked == [48, 72]
    assert few is not None
    assert few != many
    assert few == fit_ood(job, final.checkpoint, validation, 8 * 40)  # chosen by the seed
    monkeypatch.setattr(ood_fitting, "CALIBRATED", 21)
    fewer = fit_ood(job, final.checkpoint, validation, 8 * 400)
    assert fewer is not None
    assert fewer.distances.size == 21


def test_views_with_room_for_crops_are_scaled_down(tmp_path: Path) -> None:
    """Nearly what predict sees, without decoding every image once more."""
    job, final = finished(tmp_path)
    dataset = tiny.make_images(128).part("train")
    recipe = replace(job.plan.recipe, augment=Augment(crop=(0.5, 1.0)))
    smooth = replace(dataset, images=np.repeat(np.repeat(np.asarray(dataset.images)[:, ::2, ::2], 2, 1), 2, 2))
    roomy = Part(Views(smooth, job.plan.preprocess, margin=1.25), smooth.targets())
    plain = Part(Views(smooth, job.plan.preprocess), smooth.targets())
    rows = np.arange(20)
    cropping = replace(job, train=roomy, plan=replace(job.plan, recipe=recipe))
    scaled = training_embeddings(cropping, final.checkpoint, rows)
    exact = training_embeddings(replace(job, train=plain), final.checkpoint, rows)
    assert np.array_equal(exact, answers_of(final.checkpoint, plain.views)[1][:20])
    spread = exact.std(axis=0).mean()
    assert 0 < np.abs(scaled - exact).mean() < spread
