"""Images dealt out to calibrate, to choose and to report."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from shipping.packs import checkpoint, labelled, make_images
from vitrail.quantisation.accuracy_budget import Judge, self_labelled, split_for_calibration
from vitrail.quantisation.quant_plan import QuantPlan
from vitrail.quantisation.quantiser import faked
from vitrail.quantisation.range_calibration import calibrate


def test_images_are_dealt_by_their_splits() -> None:
    made = checkpoint()
    split = split_for_calibration(labelled(made, 60, train=20, val=24, test=16), made)
    assert [len(each) for each in split[:3]] == [20, 24, 16]
    assert {each.split for each in split.choosing.samples} == {"val"}
    split = split_for_calibration(labelled(made, 60, val=40, test=20), made)
    assert split.words == "calibrated on a part of val, chosen by val images, reported on test"
    assert {each.split for each in split.calibration.samples} == {"val"}
    assert {each.split for each in split.reporting.samples} == {"test"}
    assert split_for_calibration(labelled(made, 40, train=40), made).words.endswith(
        "chose and report, all of them seen in training"
    )
    split = split_for_calibration(labelled(made, 60, train=30, test=30), made)
    assert split.words == "calibrated on train, chosen by test images, reported on test"


def test_new_images_beside_training_ones_choose() -> None:
    made = checkpoint()
    data = labelled(made, 50, train=20, **{"": 30})
    split = split_for_calibration(data, made)
    assert split.words == "calibrated on train, chosen by new images, reported on new"
    assert {each.split for each in split.calibration.samples} == {"train"}
    assert {each.split for each in split.choosing.samples} == {""}
    assert split.reporting is split.choosing


def test_images_without_splits_are_dealt_by_chance_and_none_twice() -> None:
    made = checkpoint()
    data = labelled(made, 64)
    split = split_for_calibration(data, made)
    assert split.words == "16 images calibrated, the other 48 chose and report"
    first, second = ({each.name for each in lot.samples} for lot in split[:2])
    assert first.isdisjoint(second)
    assert len(first | second) == 64
    assert split.reporting is split.choosing
    assert split_for_calibration(data, made, seed=1).calibration.samples != split.calibration.samples


def test_images_without_labels_are_judged_by_agreement() -> None:
    made = checkpoint()
    data = self_labelled(made, list(make_images(40)))
    judge = Judge.by(made, data)
    assert judge(made).accuracy.value == judge(made).agreement == 1.0
    pixels = torch.from_numpy(made.preprocess.batch(list(make_images(40))))
    found = judge(faked(made, QuantPlan("fp32", calibrate(made.model, [pixels]))))
    assert found.accuracy.value == found.agreement
    assert found.drop.value == pytest.approx(100 * (1 - found.agreement))


def test_answers_that_are_not_confident_label_images_too() -> None:
    made = checkpoint()
    images = list(make_images(40))
    unsure = self_labelled(replace(made, reject=1.0), images)
    assert unsure.samples == self_labelled(made, images).samples
    assert all(len(each.labels) == 1 for each in unsure.samples)
