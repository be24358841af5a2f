"""What tells unlike images goes wherever its network goes unchanged, and is dropped or set anew wherever it changes."""

from __future__ import annotations

import ast
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import vitrail
from shipping import packs
from vitrail import Checkpoint, Preprocess
from vitrail.checkpoint import load, save
from vitrail.data.samples import Dataset, Sample
from vitrail.errors import CheckpointError
from vitrail.exporters.exported import open_exported
from vitrail.images.ood_detector import OodDetector
from vitrail.inference import Runtime, open_model
from vitrail.insight.pruning_run import prune
from vitrail.packed import Packed, open_packed, save_packed
from vitrail.quantisation.ood_recalibration import recalibrated
from vitrail.quantisation.quant_plan import QuantPlan
from vitrail.quantisation.quantiser import faked, plan_all_int8, quantise
from vitrail.shipping.optimizer import Merging, optimize
from vitrail.weights.adaptation import with_channels, with_classes
from vitrail.weights.resize import with_size

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "vitrail"
NEW = packs.make_images(40, seed=5)
STRANGE = np.random.default_rng(3).integers(0, 256, (6, 32, 32, 3), np.uint8)


def knowing(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint with a detector fitted to images of ours."""
    training, calibration = (vitrail.embed(checkpoint, packs.make_images(n, seed=s)) for n, s in ((120, 3), (39, 4)))
    return replace(checkpoint, ood=OodDetector.fit(training, calibration))


@pytest.fixture(scope="module")
def known() -> Checkpoint:
    return knowing(packs.checkpoint())


def familiarity(runtime: Runtime, images: np.ndarray = NEW) -> np.ndarray:
    assert runtime.ood is not None
    return runtime.ood.familiarity(vitrail.embed(runtime, images))


def test_it_tells_noise_from_images(known: Checkpoint) -> None:
    assert (familiarity(known, STRANGE) <= 0.05).all()
    assert np.median(familiarity(known)) > 0.2


def test_a_file_of_ours_brings_it_back_under_the_hash(known: Checkpoint, tmp_path: Path) -> None:
    save(known, tmp_path / "a.safetensors")
    assert load(tmp_path / "a.safetensors").ood == known.ood
    assert open_model(tmp_path / "a.safetensors").ood == known.ood
    data = (tmp_path / "a.safetensors").read_bytes()
    assert known.ood is not None
    text = known.ood.to_dict()["variances"].encode()
    assert data.count(text) == 1
    other = bytes([text[0] ^ 1]) + text[1:]
    (tmp_path / "b.safetensors").write_bytes(data.replace(text, other))
    with pytest.raises(CheckpointError, match="is damaged"):
        load(tmp_path / "b.safetensors")


def test_files_without_it_are_as_before_and_say_nothing(tmp_path: Path) -> None:
    plain = packs.checkpoint()
    assert "ood" not in plain.describe()
    assert "format" in plain.describe()
    assert plain.describe()["format"] == 3
    assert vitrail.load("vitrail:fashion").ood is None  # written by an earlier release, its hash verified
    save(plain, tmp_path / "a.safetensors")
    assert load(tmp_path / "a.safetensors").ood is None


def test_it_belongs_to_a_width(known: Checkpoint) -> None:
    with pytest.raises(CheckpointError, match="knows embeddings of width 48, the network gives 24"):
        replace(packs.checkpoint(width=24), ood=known.ood)


@pytest.mark.parametrize("name, options", [("a.onnx", {}), ("a.xml", {}), ("b.onnx", {"pixels": "bytes"})])
def test_an_exported_file_answers_as_the_network(
    name: str, options: dict[str, str], known: Checkpoint, tmp_path: Path
) -> None:
    vitrail.export(known, tmp_path / name, **options)  # type: ignore[arg-type]
    opened = open_exported(tmp_path / name)
    assert opened.ood == known.ood
    assert np.allclose(familiarity(opened), familiarity(known), atol=1.5 / 40)
    assert (familiarity(opened) == familiarity(known)).mean() >= 0.9
    assert (familiarity(opened, STRANGE) <= 0.05).all()


def test_a_file_that_resizes_by_itself_carries_it_too(known: Checkpoint, tmp_path: Path) -> None:
    vitrail.export(known, tmp_path / "a.onnx", pixels="bytes", resize_inside=True)
    opened = open_exported(tmp_path / "a.onnx")
    assert opened.takes == "images"
    assert np.allclose(familiarity(opened), familiarity(known), atol=0.1)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_packed_file_answers_as_the_network(precision: str, known: Checkpoint, tmp_path: Path) -> None:
    packed = Packed(known, QuantPlan(precision))
    save_packed(packed, known, tmp_path / "a.safetensors")
    opened = open_packed(tmp_path / "a.safetensors")
    assert packed.ood == opened.ood == known.ood
    apart = np.abs(familiarity(opened) - familiarity(known))
    assert apart.max() <= (1.5 / 40 if precision == "fp32" else 0.25)
    assert (familiarity(opened, STRANGE) <= 0.05).all()


def test_int8_has_its_promise_set_anew(known: Checkpoint) -> None:
    """Coarse numbers move embeddings; images that choose say by how much, and the promise is made on them."""
    data = packs.labelled(known, 160, train=60, val=80, test=20)
    messages: list[str] = []
    quantised = quantise(known, data, max_drop=50.0, batch=20, log=messages.append).checkpoint
    assert known.ood is not None
    assert quantised.ood is not None
    assert np.array_equal(quantised.ood.directions, known.ood.directions)
    assert quantised.ood.distances.size == 80
    assert any("of 80 images would be taken for such" in text for text in messages)
    evened, plan = plan_all_int8(known, [torch.from_numpy(known.preprocess.batch(list(NEW)))])
    assert evened.ood == known.ood
    assert np.allclose(familiarity(evened), familiarity(known), atol=1.5 / 40)  # the same function
    rounded = faked(evened, plan)
    assert rounded.ood is None
    rows = [row for row, sample in enumerate(data.samples) if sample.split == "val"]
    again = recalibrated(evened, known.ood, rounded, data.part("val")).ood
    assert again is not None
    embedding = vitrail.embed(rounded, [data.images[row] for row in rows])
    assert np.array_equal(again.distances, np.sort(known.ood.mahalanobis(embedding)))


def test_a_search_says_of_which_way_a_promise_is_set_anew(known: Checkpoint, tmp_path: Path) -> None:
    data = packs.labelled(known, 90, train=30, val=40, test=20)
    messages: list[str] = []
    optimize(*(known, data, tmp_path / "fast"), max_drop=30.0, batches=(4,), runtimes=("packed",), log=messages.append)
    told = [text.partition(": images unlike ")[0] for text in messages if "would be taken for such" in text]
    merged = told[1]
    assert told[:3] == ["int8", merged, f"int8, {merged}"]
    assert " merged in blocks from " in merged
    assert len(set(told)) == len(told)


def test_few_images_that_choose_promise_less(known: Checkpoint) -> None:
    few = Dataset("photos", tuple(Sample(str(n), ("0",), "val") for n in range(18)), NEW[:18], known.classes)
    ood = recalibrated(known, known.ood, known, few).ood
    assert ood is not None
    assert (ood.distances.size, ood.false_alarms) == (18, 0.06)


def test_without_images_that_choose_an_int8_file_makes_no_promise(known: Checkpoint) -> None:
    messages: list[str] = []
    trained = Dataset("photos", tuple(Sample(str(n), ("0",), "train") for n in range(40)), NEW, known.classes)
    few = Dataset("photos", tuple(Sample(str(n), ("0",), "val") for n in range(8)), NEW[:8], known.classes)
    for data in (trained, few):
        assert recalibrated(known, known.ood, known, data, log=messages.append).ood is None
    assert "no validation images" in messages[0]
    assert "8 images are too few to promise at most 10 % false alarms (expected 9)" in messages[1]
    plain = packs.checkpoint()
    assert recalibrated(plain, None, plain, few) is plain


def test_a_network_that_merges_tokens_has_none_until_calibrated(known: Checkpoint) -> None:
    assert Merging().of(known) is known
    assert Merging(2).of(known).ood is None


def test_what_changes_the_network_drops_it(known: Checkpoint) -> None:
    assert with_classes(known, ["a", "b"]).ood is None
    assert with_channels(known, 5).ood is None
    assert with_size(known, 64).ood is None
    assert with_size(known, 32).ood == known.ood
    assert known.with_preprocess(Preprocess(size=32, mean=0.1)).ood is None
    assert known.with_preprocess(replace(known.preprocess, scaled_decoding=True)).ood == known.ood
    assert Packed(known).with_preprocess(Preprocess(size=64)).ood is None


def test_a_network_for_grey_images_that_answers_the_same_keeps_it(known: Checkpoint) -> None:
    grey = with_channels(known, 1)
    image = np.repeat(NEW[:5, :, :, :1], 3, axis=3)
    assert grey.ood == known.ood
    assert np.allclose(familiarity(grey, image), familiarity(known, image), atol=1.5 / 40)


def test_a_pruned_network_is_without_and_says_so(known: Checkpoint) -> None:
    messages: list[str] = []
    data = packs.labelled(known, 60, train=40, val=20)
    slim = prune(known, data, keep=0.5, log=messages.append).checkpoint
    assert slim.ood is None
    assert any("no longer tells which images are unlike" in text for text in messages)
    assert prune(known, data, keep=1.0).checkpoint.ood == known.ood  # nothing was cut


def test_other_families_cannot_carry_it_and_ours_does(known: Checkpoint, tmp_path: Path) -> None:
    report = vitrail.convert(replace(known, classes=("a", "b", "c", "d", "e")), tmp_path / "timm", to="timm")
    assert any("unlike the training ones" in text for text in report.not_carried)
    report = vitrail.convert(known, tmp_path / "own.safetensors", to="vitrail")
    assert not any("unlike" in text for text in report.not_carried)
    assert load(tmp_path / "own.safetensors").ood == known.ood


def test_a_description_is_plain_json(known: Checkpoint) -> None:
    assert len(json.dumps(known.describe()["ood"])) < 20_000


def forgetful(package: Path) -> list[str]:
    """Where a network of a checkpoint is replaced, and nothing says what becomes of its detector."""
    complaints = []
    for path in sorted(package.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "replace":
                names = {keyword.arg for keyword in node.keywords}
                if "model" in names and "ood" not in names and "checkpoint" in ast.unparse(node.args[0]).lower():
                    complaints.append(f"{path.relative_to(package)}:{node.lineno}")
    return complaints


def test_whoever_changes_a_network_says_what_becomes_of_it(tmp_path: Path) -> None:
    assert forgetful(PACKAGE) == []
    (tmp_path / "a.py").write_text("replace(checkpoint, model=other)\nreplace(checkpoint, model=other, ood=None)\n")
    assert forgetful(tmp_path) == ["a.py:1"]
