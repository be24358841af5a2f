"""The verb export, and the verbs that take what it wrote."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

import vitrail
from cli.command_line import Line, typed
from shipping import small
from shipping.conftest import operators_read_once
from vitrail.cli import export
from vitrail.errors import InputError
from vitrail.evaluation import Score
from vitrail.exporters import TARGETS, target_of
from vitrail.exporters.exported import Exported, open_exported
from vitrail.inference import Runtime
from vitrail.packed import Packed, save_packed
from vitrail.quantisation.accuracy_budget import BudgetResult, Judge
from vitrail.quantisation.quantiser import RuntimeMeasurement
from vitrail.quantisation.range_calibration import Sensitivity

__all__ = ["operators_read_once"]  # a fixture

pytestmark = pytest.mark.usefixtures("fixed_times")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("export")
    vitrail.save(small.checkpoint(), place / "a.safetensors")
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 50, 3), np.uint8)).save(place / "a.png")
    return place


def test_export_says_what_it_checked(vit: Line, folder: Path) -> None:
    said = vit("export", folder / "a.safetensors", folder / "a.onnx")
    assert (said.code, said.err) == (0, "")
    lines = said.out.splitlines()
    assert lines[0].startswith(f"written           {folder / 'a.onnx'} (onnx, ")
    assert lines[1:3] == [
        "input             img: float32 (batch, 3, 32, 32)",
        "outputs           logits, embedding, probs",
    ]
    assert [line.split()[:3] for line in lines[4:7]] == [
        ["1", "image", "32x32"],
        ["3", "images", "32x32"],
        ["16", "images", "32x32"],
    ]
    assert lines[-1] == f"try it            vitrail predict {folder / 'a.onnx'} IMAGE"

    ours = vit("predict", folder / "a.safetensors", folder / "a.png", "--json").json["predictions"][0]
    theirs = vit("predict", folder / "a.onnx", folder / "a.png", "--json").json
    assert theirs["calibrated"] is True
    assert theirs["predictions"][0]["labels"] == ours["labels"]
    assert theirs["predictions"][0]["probabilities"] == pytest.approx(ours["probabilities"], abs=1e-5)
    vectors = [
        vit("embed", folder / name, folder / "a.png", "--json").json["embeddings"]
        for name in ("a.safetensors", "a.onnx")
    ]
    np.testing.assert_allclose(vectors[0], vectors[1], atol=1e-4)


def test_export_for_machines(vit: Line, folder: Path) -> None:
    said = vit("export", folder / "a.safetensors", folder / "b.pt2", "--to", "torch", "--bytes", "--json").json
    assert (said["format"], said["inputs"]) == ("torch", {"img": "uint8 (batch, 32, 32, 3)"})
    assert said["bytes"] == (folder / "b.pt2").stat().st_size
    assert len(said["checks"]) == 3
    assert max(each["difference"] for each in said["checks"]) == said["largest_difference"] < 1e-4
    assert said["pixels"] == {"largest": 0.0, "share": 0.0}
    assert json.dumps(said)
    assert "for torch.export.load, outside of Vitrail" in vit.mistake("predict", folder / "b.pt2", folder / "a.png")


def test_mistakes_are_one_line(vit: Line, folder: Path) -> None:
    assert "expected NAME.onnx" in vit.mistake("export", folder / "a.safetensors", folder / "a.tflite")
    assert "no exported file" in vit.mistake("predict", folder / "none.onnx", folder / "a.png")
    (folder / "bad.onnx").write_bytes(b"x" * 200)
    assert "no checksum at its end" in vit.mistake("embed", folder / "bad.onnx", folder / "a.png", "--json")


@pytest.mark.parametrize(
    "out, there", [("a.onnx", "a.onnx"), ("a.xml", "a.bin"), ("a.pt2", "a.pt2"), ("fast.safetensors",) * 2]
)
def test_what_is_there_already_is_not_written_over_unless_it_is_said(
    out: str, there: str, vit: Line, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = tmp_path / there
    if there == "fast.safetensors":
        save_packed(Packed(made := small.checkpoint(seed=1)), made, older)
    else:
        older.write_bytes(b"older")
    before = older.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(export, "load_checkpoint", None)  # nothing is worked on first
        said = vit.mistake("export", folder / "a.safetensors", tmp_path / out)
    assert said.strip() == f"{older} is there already: give another name, or --force to write over it"
    assert older.read_bytes() == before
    assert vit("export", folder / "a.safetensors", tmp_path / out, "--force").code == 0
    assert older.read_bytes() != before


def test_settings_of_an_exported_file_are_refused(vit: Line, folder: Path) -> None:
    save_packed(Packed(made := small.checkpoint()), made, folder / "fast.safetensors")
    for name, how in (("none.onnx", "exported"), ("fast.safetensors", "packed")):
        for words, given in (
            (("--set", "heads=4"), "heads"),
            (("--leave-out", "head"), "head"),
            (("--runtime", "eager"), "runtime='eager'"),
        ):
            said = vit.mistake("predict", folder / name, folder / "a.png", *words)
            assert f"{folder / name} is {how} and says everything itself: open it without {given}" in said


@pytest.mark.row("DL.7")
def test_a_video_through_an_exported_file_gives_what_the_network_says(vit: Line, folder: Path, tmp_path: Path) -> None:
    clip = tmp_path / "clip.mjpeg"
    dice = np.random.default_rng(4)
    with open(clip, "wb") as stream:
        for _ in range(3):
            Image.fromarray(dice.integers(0, 256, (40, 50, 3), np.uint8)).save(stream, "JPEG")
    vit("export", folder / "a.safetensors", tmp_path / "video.onnx")
    one, other = (
        vit("predict", file, clip, "--json").json["predictions"]
        for file in (folder / "a.safetensors", tmp_path / "video.onnx")
    )
    assert [row["path"] for row in one] == [f"{clip}#{number}" for number in range(3)]
    for ours, theirs in zip(one, other, strict=True):
        assert (ours["path"], ours["labels"]) == (theirs["path"], theirs["labels"])
        np.testing.assert_allclose(ours["probabilities"], theirs["probabilities"], atol=1e-5)


def test_export_in_int8_under_a_budget(place: Path) -> None:
    net, data = place / "net.safetensors", place / "data"
    told = typed("export", net, place / "small.safetensors", "--int8", "--data", data, "--max-drop", 20)
    assert "points lost" in told
    assert "packed int8" in told
    said = json.loads(typed("predict", place / "small.safetensors", place / "loose" / "3.png", "--json"))
    assert len(said["predictions"]) == 1
    found = json.loads(typed("export", net, place / "small.onnx", "--int8", "--data", data, "--max-drop", 20, "--json"))
    assert found["format"] == "onnx"
    assert (found["int8"]["int8_layers"], found["int8"]["runtime"]) == (12, "onnx")
    assert (place / "small.onnx").stat().st_size < (place / "net.safetensors").stat().st_size
    again = json.loads(typed("predict", place / "small.onnx", place / "loose" / "3.png", "--json"))
    assert again["predictions"][0]["labels"][0] == said["predictions"][0]["labels"][0]
    evaluated = json.loads(typed("evaluate", place / "small.safetensors", data, "--json"))
    assert evaluated["n"] == 48
    assert evaluated["top1"] >= 0.8


@pytest.mark.parametrize("name", ["small.onnx", "small.xml"])
def test_a_file_holds_its_own_accuracy_and_agreement(name: str, place: Path) -> None:
    words = ("export", place / "net.safetensors", place / name, "--int8", "--data", place / "data", "--max-drop", 20)
    told = typed(*words, *(["--bytes"] if name.endswith(".xml") else []))
    held = open_exported(place / name).contents.measurements
    assert (held["runtime"], held["max_drop"], held["precision"]) == (target_of(name).name, 20, "int8")
    images = sorted((place / "data" / "val").rglob("*.png"))
    theirs = [each.labels[:1] for each in vitrail.predict(place / name, images)]
    ours = [each.labels[:1] for each in vitrail.predict(vitrail.load(place / "net.safetensors"), images)]
    right = sum(found == (path.parent.name,) for found, path in zip(theirs, images, strict=True))
    assert held["after"]["images"] == 48
    assert held["after"]["accuracy"]["value"] == pytest.approx(right / 48)
    assert held["after"]["agreement"] == pytest.approx(sum(map(tuple.__eq__, theirs, ours)) / 48)
    assert held["after"]["drop"]["value"] == pytest.approx(100 * (1 - right / 48))  # labels are the network's answers
    assert f"{100 * right / 48:.1f} % (" in told
    files = [place / name, *([place / "small.bin"] if name.endswith(".xml") else [])]
    size = sum(each.stat().st_size for each in files)
    assert 0.9 * size < held["after"]["weight_bytes"] <= size  # measured before the notes were written


def test_a_file_that_loses_too_much_in_its_own_runtime_is_not_written(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "small.onnx").write_text("older")
    bad = BudgetResult(Score(0.5, 0.4, 0.6), Score(45.0, 40.0, 50.0), 0.5, 48)
    true = Judge.__call__
    monkeypatch.setattr(Judge, "__call__", lambda self, each: bad if isinstance(each, Exported) else true(self, each))
    with pytest.raises(
        InputError, match=r"in its own runtime it loses 45\.00 points on 48 images, and 20 were allowed"
    ):
        typed(
            *("export", place / "net.safetensors", place / "small.onnx", "--int8", "--data", place / "data"),
            *("--max-drop", 20, "--force"),
        )
    assert (place / "small.onnx").read_text() == "older"
    assert not [each for each in place.iterdir() if ".tmp" in each.name]


@pytest.mark.parametrize("name", ["small.onnx", "small.safetensors"])
def test_a_file_that_loses_too_much_is_made_with_more_layers_in_higher_precision(
    name: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = BudgetResult(Score(0.5, 0.4, 0.6), Score(45.0, 40.0, 50.0), 0.5, 48)
    true = Judge.__call__
    files: list[object] = []

    def judge(self: Judge, runtime: Runtime) -> BudgetResult:
        if not isinstance(runtime, Exported | Packed):
            return true(self, runtime)
        files.append(runtime)
        return bad if len(files) < 3 else true(self, runtime)

    monkeypatch.setattr(Judge, "__call__", judge)
    words = ("--int8", "--data", place / "data", "--max-drop", 20, "--force", "--json")
    told = json.loads(typed("export", place / "net.safetensors", place / name, *words))
    proof = told["int8"] if name == "small.onnx" else told
    assert (proof["int8_layers"], len(proof["kept"])) == (10, 2)  # after none and one
    assert proof["after"]["drop"]["value"] <= 20


def test_export_packed_and_bf16(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TARGETS, "openvino", replace(TARGETS["openvino"], check=lambda graph, precision: None))
    net = place / "net.safetensors"
    assert "packed fp32" in typed("export", net, place / "fast.safetensors")
    told = json.loads(
        typed("export", net, place / "half.safetensors", "--bf16", "--data", place / "data", "--max-drop", 30, "--json")
    )
    assert told["precision"] == "bf16"
    assert told["after"]["images"] == 48
    told = json.loads(
        typed("export", net, place / "half.xml", "--bf16", "--data", place / "data", "--max-drop", 30, "--json")
    )
    assert (told["format"], told["bf16"]["runtime"], told["bf16"]["precision"]) == ("openvino", "openvino", "bf16")
    assert open_exported(place / "half.xml").contents.measurements == told["bf16"]


def test_what_was_lost_is_told_before_beside_after(capsys: pytest.CaptureFixture[str]) -> None:
    """By fixed numbers; which layers stay is said where some are int8."""
    before, after = (
        RuntimeMeasurement(BudgetResult(Score(right, right - 0.1, 1.0), Score(lost, -1.0, 9.0), same, 48), took, size)
        for right, lost, same, took, size in ((0.9, 0.0, 1.0, 8.0, 4_000_000), (0.85, 5.0, 0.96, 2.0, 1_000_000))
    )
    plan = SimpleNamespace(int8={"a": (0, 1), "b": (0, 1)})
    quantised = SimpleNamespace(plan=plan, kept=[Sensitivity("head", 0.5)], words="48 judged it")
    proof = SimpleNamespace(quantised=quantised, before=before, after=after, runtime="packed", speed=4.0)
    export._show(proof)  # type: ignore[arg-type]
    assert [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()[1:]] == [
        "accuracy 90.0 % (80.0 to 100.0 %) 85.0 % (75.0 to 100.0 %)",
        "points lost +5.00 (-1.00 to +9.00)",
        "same answers 96.0 %",
        "ms an image 8 2",
        "weights in memory 4 MB 1 MB",
        "speed 4.00 times, packed on this machine, measured in turn; intervals are of 95 %",
        "int8 2 layers; in higher precision: head",
        "images 48 judged it",
    ]


@pytest.mark.parametrize(
    "words, told",
    [
        (("export", "net", "a.onnx", "--int8", "--bf16"), "choose one of them"),
        (("export", "net", "a.onnx", "--data", "data"), "are for --int8 or --bf16"),
        (("export", "net", "a.onnx", "--bf16", "--data", "data", "--max-drop", "50"), "bf16 goes into NAME.xml"),
        (("export", "net", "a.safetensors", "--dynamic-size"), "leave the other options out"),
        (
            ("export", "net", "a.onnx", "--int8", "--data", "data", "--max-drop", "-5"),
            "no int8 network loses at most -5",
        ),
        (("export", "net", "a.onnx", "--int8", "--data", "nothing"), "no data in nothing"),
        (("export", "net", "a.onnx", "--int8", "--unlabelled"), "name the images with --data"),
        (("optimize", "net", "--data", "data", "--batch", "x"), "--batch: expected whole numbers"),
        (("bench", "net", "--runtimes", "tensorrt"), "no runtime 'tensorrt'"),
        (("predict", "net", "loose", "--runtime", "onnx"), "makes a file for onnx"),
    ],
)
def test_mistakes_are_told_and_leave_nothing(
    words: tuple[str, ...], told: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    before = sorted(each.name for each in place.iterdir())
    with pytest.raises(InputError, match=told):
        typed(*("net.safetensors" if each == "net" else each for each in words))
    assert sorted(each.name for each in place.iterdir()) == before
