"""The best weights are evaluated on the images held out, calibrated, and said what they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import vitrail
from training import tiny
from vitrail.evaluation.calibration import fit_temperature
from vitrail.inference import probabilities
from vitrail.training import final_evaluation
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
