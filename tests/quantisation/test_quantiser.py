"""Quantisation under a budget: the right layers stay, an impossible budget is refused, bad images are told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

import vitrail
from shipping.packs import checkpoint, labelled, make_images, network
from vitrail import Checkpoint
from vitrail.data.readers import read_data
from vitrail.data.samples import Dataset, Sample
from vitrail.errors import InputError
from vitrail.exporters.export_info import ExportInfo
from vitrail.exporters.exported import Exported
from vitrail.network.encoder import Block
from vitrail.packed import pack_checkpoint
from vitrail.quantisation import quantiser
from vitrail.quantisation.accuracy_budget import self_labelled
from vitrail.quantisation.quant_plan import QuantPlan
from vitrail.quantisation.quantiser import OverBudgetError, Quantised, RuntimeProof, faked, fewest, quantise
from vitrail.quantisation.range_calibration import calibration_pixels, rank_sensitivity

FRAGILE = "encoder.blocks.1.mlp.down"


@pytest.fixture(autouse=True)
def fixed_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """No clock is asked: the network takes 6 ms, what was made of it 1.5."""
    monkeypatch.setattr(quantiser, "latencies", lambda runtimes, batch: {"before": 6.0 * batch, "after": 1.5 * batch})


def fragile() -> Checkpoint:
    """A network with outlier channels before one layer: the same function, but bytes there have far too large steps."""
    model = network(activation="relu")
    mlp = cast(Block, model.encoder.blocks[1]).mlp
    with torch.no_grad():
        for channel in (3, 40):
            mlp.up.weight[channel] *= 300
            mlp.up.bias[channel] *= 300
            mlp.down.weight[:, channel] /= 300
        model.head.classify.weight.mul_(3)
    return replace(checkpoint(activation="relu"), model=model)


def test_the_fragile_layer_is_found_and_kept() -> None:
    made = fragile()
    data = labelled(made, 160, train=60, val=60, test=40)
    said: list[str] = []
    found = quantise(made, data, max_drop=5.0, batch=20, log=said.append)
    assert next(each.name for each in found.kept) == FRAGILE
    assert len(found.kept) < 4
    assert FRAGILE not in found.plan.int8
    assert found.plan.name == "int8"
    all_int8 = float(next(line for line in said if line.startswith("all 12 layers")).split(": ")[1].split()[0])
    assert all_int8 > 5.0  # without keeping it, far too much was lost
    assert found.before.accuracy.value == 1.0  # the labels are its own answers
    assert found.after == found.reporting(faked(found.checkpoint, found.plan))  # as fake quantisation answers
    assert found.words == "calibrated on train, chosen by val images, reported on test"
    packed = pack_checkpoint(found.checkpoint, found.plan)
    plain = found.judge_runtime(packed, "packed", packed.weight_bytes, ("a note",)).to_dict()
    assert plain["after"]["images"] == 40
    assert plain["after"]["agreement"] == pytest.approx(plain["after"]["accuracy"]["value"])
    assert abs(plain["after"]["accuracy"]["value"] - found.after.accuracy.value) <= 0.1
    assert (plain["before"]["milliseconds"], plain["after"]["milliseconds"], plain["speed"]) == (6.0, 1.5, 4.0)
    assert plain["int8_layers"] == 12 - len(found.kept)
    assert (plain["precision"], plain["notes"]) == ("int8", ["a note"])
    assert plain["before"]["weight_bytes"] > 1.5 * plain["after"]["weight_bytes"]


def test_no_kernel_is_needed_to_find_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any machine can: with oneDNN gone, the search takes the same steps."""
    made = fragile()
    data = labelled(made, 160, train=60, val=60, test=40)
    expected = quantise(made, data, max_drop=5.0, batch=20)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.delattr(torch.cpu, name, raising=False)
    found = quantise(made, data, max_drop=5.0, batch=20)
    assert found.plan.precision == "fp32"
    assert [each.name for each in found.kept] == [each.name for each in expected.kept]


def constant(path: Path, made: Checkpoint, answers: Sequence[int]) -> Exported:
    """A file, as it seems, that answers with these classes, one image after the other, over and over."""
    config = made.model.config
    contents = ExportInfo(about=made.about, target="onnx", size=(32, 32), cell=config.cell, embedding=config.width)
    coming = cycle(answers)
    path.write_bytes(b"x" * 100)

    def compute(img: np.ndarray[Any, Any], outputs: Sequence[str]) -> list[np.ndarray[Any, Any]]:
        rows = [next(coming) for _ in img]
        return [np.eye(config.classes, dtype=np.float32)[rows], np.zeros((len(img), config.width), np.float32)]

    return Exported(path, contents, compute)


def test_a_file_is_judged_by_its_own_answers_on_the_images_that_choose(tmp_path: Path) -> None:
    made = checkpoint()
    data = labelled(made, 100, train=20, val=40, test=40)
    found = quantise(made, data, max_drop=30.0, batch=20)
    val, test = (
        [made.classes.index(each.labels[0]) for each in data.samples if each.split == split]
        for split in ("val", "test")
    )

    def wrong(labels: list[int], count: int) -> list[int]:
        return [(each + (row < count)) % 5 for row, each in enumerate(labels)]

    assert found.choosing(constant(tmp_path / "a.onnx", made, wrong(val, 12))).drop.value == pytest.approx(30.0)
    assert found.reporting(constant(tmp_path / "a.onnx", made, wrong(test, 4))).accuracy.value == pytest.approx(0.9)
    with pytest.raises(InputError, match=r"loses 32\.50 points on 40 images, and 30 were allowed"):
        found.judge_runtime(constant(tmp_path / "a.onnx", made, wrong(val, 13)), "onnx", 100)
    proof = found.judge_runtime(constant(tmp_path / "a.onnx", made, val), "onnx", 100)
    assert (proof.runtime, proof.after.weight_bytes) == ("onnx", 100)
    assert proof.before.result == found.before


def test_where_the_same_images_choose_and_report_a_file_is_judged_once(tmp_path: Path) -> None:
    made = checkpoint()
    data = labelled(made, 60, train=20, val=40)
    found = quantise(made, data, max_drop=30.0, batch=20)
    labels = [made.classes.index(each.labels[0]) for each in data.samples if each.split == "val"]
    answers = [(each + (row < 10)) % 5 for row, each in enumerate(labels)]
    plain = found.judge_runtime(constant(tmp_path / "a.onnx", made, answers), "onnx", 100).to_dict()
    assert plain["after"]["accuracy"]["value"] == pytest.approx(0.75)
    assert plain["after"]["agreement"] == pytest.approx(0.75)
    assert plain["after"]["drop"]["value"] == pytest.approx(25.0)
    assert (plain["runtime"], plain["max_drop"]) == ("onnx", 30.0)
    assert plain["fake_quantised"]["accuracy"] == found.after.accuracy._asdict()


@pytest.mark.parametrize("needed, counts", [(0, [0]), (1, [0, 1]), (3, [0, 1, 2, 4])])
def test_a_runtime_that_loses_too_much_gets_more_layers_in_higher_precision(
    needed: int, counts: list[int], tmp_path: Path
) -> None:
    """The search found nothing lost, and the file loses: it rounds in other places."""
    made = checkpoint()
    data = labelled(made, 60, train=20, val=40)
    found = quantise(made, data, max_drop=30.0, batch=20)
    labels = [made.classes.index(each.labels[0]) for each in data.samples if each.split == "val"]
    wrong = [(each + (row < 13)) % 5 for row, each in enumerate(labels)]
    tried: list[int] = []
    said: list[str] = []

    def make(quantised: Quantised) -> RuntimeProof:
        tried.append(len(quantised.kept))
        assert len(quantised.plan.int8) == 12 - len(quantised.kept)
        answers = labels if len(quantised.kept) >= needed else wrong
        return quantised.judge_runtime(constant(tmp_path / "a.onnx", made, answers), "onnx", 100)

    last = found.carry_out(make, said.append).quantised
    assert tried == counts
    assert said == [
        f"in its own runtime: 32.50 points lost; now with {count} layer{'s' * (count > 1)} in higher precision"
        for count in counts[1:]
    ]
    pixels = calibration_pixels(made, data.part("train"), 20)[0][: quantiser.RANKED_ON]
    everything = QuantPlan(last.plan.precision, found.plan.int8)
    assert list(last.kept) == rank_sensitivity(found.checkpoint.model, everything, pixels)[: counts[-1]]
    assert not {each.name for each in last.kept} & set(last.plan.int8)
    assert last.after == last.reporting(faked(last.checkpoint, last.plan))


@pytest.mark.parametrize(
    "precision, counts, told",
    [("int8", [0, 1, 2, 4], "; 4 layers stayed in higher precision"), ("bf16", [0], "")],
)
def test_a_runtime_that_never_keeps_the_budget_is_refused_after_a_few_tries(
    precision: str, counts: list[int], told: str, tmp_path: Path
) -> None:
    made = checkpoint()
    data = labelled(made, 60, train=20, val=40)
    labels = [made.classes.index(each.labels[0]) for each in data.samples if each.split == "val"]
    wrong = [(each + (row < 13)) % 5 for row, each in enumerate(labels)]
    found = quantise(made, data, precision=precision, max_drop=30.0, batch=20)
    tried: list[int] = []

    def make(quantised: Quantised) -> RuntimeProof:
        tried.append(len(quantised.kept))
        return quantised.judge_runtime(constant(tmp_path / "a.onnx", made, wrong), "onnx", 100)

    with pytest.raises(OverBudgetError) as error:
        found.carry_out(make)
    assert tried == counts
    assert str(error.value) == (
        "not exported: in its own runtime it loses 32.50 points on 40 images, and 30 were allowed: "
        f"export it for another runtime than onnx, or allow more by max_drop (--max-drop){told}"
    )
    assert error.value.result.images == 40


def test_a_budget_of_less_than_one_image_is_told(tmp_path: Path) -> None:
    made = checkpoint()
    data = labelled(made, 60, train=20, val=40)
    labels = [made.classes.index(each.labels[0]) for each in data.samples if each.split == "val"]
    wrong = [(each + (row < 1)) % 5 for row, each in enumerate(labels)]
    found = replace(quantise(made, data, max_drop=30.0, batch=20), max_drop=0.5)
    words = r"loses 2\.50 points on 40 images, and 0\.5 were allowed, less than one image: judge by more images, export"
    with pytest.raises(OverBudgetError, match=words):
        found.judge_runtime(constant(tmp_path / "a.onnx", made, wrong), "onnx", 100)


def test_no_plan_is_finer_than_one_with_half_its_layers_kept() -> None:
    made = checkpoint()
    found = quantise(made, labelled(made, 60, train=20, val=40), max_drop=30.0, batch=20)
    assert found.keep is not None
    finer = found.keep(5).finer
    assert finer is not None
    assert (len(finer.kept), len(finer.plan.int8)) == (10, 2)
    assert found.keep(6).finer is None


def test_an_impossible_budget_is_refused_with_the_best_found() -> None:
    made = fragile()
    data = labelled(made, 120, train=40, val=80)
    words = (
        r"no int8 network loses at most -1 points on 80 images: the best found loses .* with \d+ of \d+ layers in "
        r"higher precision: allow more, calibrate on more images, or do without int8"
    )
    with pytest.raises(InputError, match=words):
        quantise(made, data, max_drop=-1.0, batch=20)
    with pytest.raises(InputError, match=r"bf16 loses .* points .* and -1 were allowed: stay in fp32"):
        quantise(made, data, precision="bf16", max_drop=-1.0, batch=20)


def test_bf16_within_its_budget() -> None:
    made = checkpoint()
    found = quantise(made, labelled(made, 60, train=20, val=40), precision="bf16", max_drop=5.0, batch=20)
    assert (found.plan, found.kept) == (QuantPlan("bf16"), ())
    assert found.checkpoint is made
    packed = pack_checkpoint(found.checkpoint, found.plan)
    proof = found.judge_runtime(packed, "packed", packed.weight_bytes)
    assert proof.after.weight_bytes < 0.6 * proof.before.weight_bytes


def test_our_trained_checkpoint_in_int8_within_its_budget_on_the_test_set() -> None:
    made = vitrail.load("vitrail:fashion")
    data = read_data("vitrail:fashion")
    rows = [row for row, each in enumerate(data.samples) if each.split == "train"][:200]
    rows += [row for row, each in enumerate(data.samples) if each.split == "test"]
    found = quantise(made, data.select(rows), max_drop=0.5, batch=100)
    packed = pack_checkpoint(found.checkpoint, found.plan)
    proof = found.judge_runtime(packed, "packed", packed.weight_bytes)
    for result in (found.after, proof.after.result):  # fake quantisation, and the kernels
        assert result.images == 1000
        assert result.drop.value <= 0.5
        assert result.agreement >= 0.99
    assert found.before.accuracy.value == pytest.approx(0.881)  # as its description says
    assert proof.after.weight_bytes < 0.4 * proof.before.weight_bytes


@pytest.mark.parametrize("needed, expected, most_tries", [(1, 1, 2), (2, 2, 3), (5, 5, 6), (11, 11, 9), (12, None, 5)])
def test_the_fewest_that_hold(needed: int, expected: int | None, most_tries: int) -> None:
    tried: list[int] = []

    def holds(count: int) -> bool:
        tried.append(count)
        return count >= needed

    assert fewest(11, holds) == expected
    assert len(tried) <= most_tries
    assert max(tried) <= 11


def test_bad_images_to_calibrate_on_are_told(tmp_path: object) -> None:
    made = checkpoint()
    empty = Dataset("empty", (), np.zeros((0, 32, 32, 3), np.uint8), made.classes)
    with pytest.raises(InputError, match="empty has no images to calibrate on"):
        quantise(made, empty)
    with pytest.raises(InputError, match="has 3 images to calibrate on, expected at least 8"):
        quantise(made, labelled(made, 13, train=3, val=10))
    images = make_images(60)
    one = Dataset("alike", tuple(Sample(str(row), ("1",)) for row in range(60)), images, made.classes)
    with pytest.raises(InputError, match=r"all images to calibrate on are of one class \(1\), of 5"):
        quantise(made, one)
    strange = tuple(Sample(str(row), ("whale",)) for row in range(60))
    with pytest.raises(InputError, match="classes that the checkpoint does not know"):
        quantise(made, Dataset("others", strange, images, ("whale",)))
    grey = Dataset("tiles", one.samples, np.zeros((60, 32, 32, 7), np.uint8), made.classes)
    mixed = replace(grey, samples=tuple(Sample(str(row), (str(row % 2),)) for row in range(60)))
    with pytest.raises(InputError, match="none of .* images can be read"):
        quantise(made, mixed)
    with pytest.raises(InputError, match="0 of 60 images to calibrate on can be read, expected at least 8"):
        calibration_pixels(made, mixed, 16)
    with pytest.raises(InputError, match="not judged by its own answers"):
        self_labelled(replace(made, task="multi-label"), list(images))
    with pytest.raises(InputError, match="no head"):
        quantise(replace(checkpoint(classes=0), classes=()), labelled(made, 40))
    with pytest.raises(InputError, match="expected Checkpoint"):
        quantise(made.model, one)  # type: ignore[arg-type]
    with pytest.raises(vitrail.VitrailError, match="precision 'int4' is unknown"):
        quantise(made, one, precision="int4")
    with pytest.raises(InputError, match="no images to calibrate on"):
        self_labelled(made, [])
