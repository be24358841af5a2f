"""The verbs optimize, bench, and export under a budget, as typed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import vitrail
from shipping.conftest import operators_read_once
from shipping.packs import checkpoint, labelled, make_images
from vitrail.cli import app, shipping, speeding
from vitrail.cli.weights import load_runtime
from vitrail.errors import InputError
from vitrail.evaluation import Score
from vitrail.exporters import exporter as exporting
from vitrail.inference import Exported, open_exported
from vitrail.inference.exported import SUFFIXES
from vitrail.packed import packed_runtime as packed
from vitrail.quantisation import quantiser as quantising
from vitrail.quantisation.accuracy_budget import Judge, Judged
from vitrail.quantisation.calibration import Sensitive
from vitrail.quantisation.quantiser import Measured
from vitrail.shipping import benchmark as benching
from vitrail.shipping import optimizer as optimising
from vitrail.shipping.benchmark import Alone

__all__ = ["operators_read_once"]  # a fixture

RUN = CliRunner()


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


@pytest.fixture(autouse=True)
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
    monkeypatch.setattr(benching, "_alone", lambda path: Alone(1.5, 7_000_000, 1_234))


def typed(*words: object) -> str:
    ran = RUN.invoke(app, [str(each) for each in words])
    if ran.exception is not None and not isinstance(ran.exception, SystemExit):
        raise ran.exception
    assert ran.exit_code == 0, ran.output
    return ran.stdout


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
    assert (held["runtime"], held["max_drop"], held["precision"]) == (SUFFIXES[Path(name).suffix], 20, "int8")
    images = sorted((place / "data" / "val").rglob("*.png"))
    theirs = [each.labels[:1] for each in vitrail.predict(place / name, images)]
    ours = [each.labels[:1] for each in vitrail.predict(vitrail.load(place / "net.safetensors"), images)]
    right = sum(found == (path.parent.name,) for found, path in zip(theirs, images, strict=True))
    assert held["after"]["images"] == 48
    assert held["after"]["accuracy"]["value"] == pytest.approx(right / 48)
    assert held["after"]["agreement"] == pytest.approx(sum(map(tuple.__eq__, theirs, ours)) / 48)
    assert held["after"]["drop"]["value"] == pytest.approx(100 * (1 - right / 48))  # labels are the network's answers
    assert f"{100 * right / 48:.2f} (" in told
    files = [place / name, *([place / "small.bin"] if name.endswith(".xml") else [])]
    size = sum(each.stat().st_size for each in files)
    assert 0.9 * size < held["after"]["weight_bytes"] <= size  # measured before the notes were written


def test_a_file_that_loses_too_much_in_its_own_runtime_is_not_written(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "small.onnx").write_text("older")
    bad = Judged(Score(0.5, 0.4, 0.6), Score(45.0, 40.0, 50.0), 0.5, 48)
    true = Judge.__call__
    monkeypatch.setattr(Judge, "__call__", lambda self, each: bad if isinstance(each, Exported) else true(self, each))
    with pytest.raises(
        InputError, match=r"in its own runtime it loses 45\.00 points on 48 images, and 20 were allowed"
    ):
        typed(
            *("export", place / "net.safetensors", place / "small.onnx", "--int8", "--data", place / "data"),
            *("--max-drop", 20),
        )
    assert (place / "small.onnx").read_text() == "older"
    assert not [each for each in place.iterdir() if ".tmp" in each.name]


def test_export_packed_and_bf16(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "multiplies_bf16", lambda: True)
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


def test_optimize_judged_by_its_own_answers(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("optimize", place / "net.safetensors", "--data", place / "loose", "--unlabelled", "--max-drop", 30)
    for extra in ("openvino", "onnxscript"):  # quicker
        monkeypatch.setitem(sys.modules, extra, None)
    told = typed(*words, "--out", place / "best", "--batch", 4, "--no-merging", "--plot", place / "plot.png")
    assert "times eager" in told
    [best] = [line for line in told.splitlines() if line.endswith("best")]
    assert best.split()[:6] == ["packed", "int8", "4", "1", "60", "4.00"]
    assert (place / "plot.png").is_file()
    assert (place / "best.safetensors").is_file()


@pytest.mark.row("P.13")
def test_bench_prints_its_table(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benching, "limits", lambda: {"fp32": 100.0, "int8": 400.0})  # measuring it takes seconds
    told = typed("bench", place / "net.safetensors", "--batch", "1,2", "--runtimes", "packed fp32", "--rounds", 1)
    assert "largest batch for the memory free now" in told
    assert "limit, GFLOP/s of a large product: fp32 100, int8 400" in told
    rows = [line.split() for line in told.splitlines() if line.startswith("packed fp32")]
    assert [row[3:7] for row in rows] == [["1", "250", "4", "1.00"], ["2", "250", "8", "1.00"]]
    assert [row[-4:] for row in rows] == [["1.50", "7", "MB", "1,234"]] * 2
    plain = json.loads(
        typed("bench", place / "net.safetensors", "--batch", 1, "--runtimes", "eager", "--rounds", 1, "--json")
    )
    assert [each["runtime"] for each in plain["rows"]] == ["eager"]


def test_predict_by_a_packed_runtime(place: Path) -> None:
    image = place / "loose" / "7.png"
    one, other = (
        json.loads(typed("predict", place / "net.safetensors", image, "--runtime", name, "--json"))["predictions"][0]
        for name in ("eager", "packed")
    )
    assert one["labels"] == other["labels"]
    np.testing.assert_allclose(one["probabilities"], other["probabilities"], atol=1e-5)


def test_what_a_packed_runtime_lacks_is_told(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(packed, "has_bf16_units", lambda: False)
    load_runtime(str(place / "net.safetensors"), runtime="packed-bf16")
    assert "vitrail: this processor has no bf16 units: bf16 halves the memory here" in capsys.readouterr().err


def test_what_was_lost_is_told_before_beside_after(capsys: pytest.CaptureFixture[str]) -> None:
    """By fixed numbers; which layers stay is said where some are int8."""
    before, after = (
        Measured(Judged(Score(right, right - 0.1, 1.0), Score(lost, -1.0, 9.0), same, 48), took, size)
        for right, lost, same, took, size in ((0.9, 0.0, 1.0, 8.0, 4_000_000), (0.85, 5.0, 0.96, 2.0, 1_000_000))
    )
    plan = SimpleNamespace(int8={"a": (0, 1), "b": (0, 1)})
    made = SimpleNamespace(before=before, after=after, by="packed", speed=4.0, words="48 judged it")
    made.kept, made.runtime = [Sensitive("head", 0.5)], SimpleNamespace(plan=plan)
    shipping._show(made)  # type: ignore[arg-type]
    assert [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()[1:]] == [
        "accuracy, % 90.00 (80.00 to 100.00) 85.00 (75.00 to 100.00)",
        "points lost +5.00 (-1.00 to +9.00)",
        "same answers, % 96.00",
        "ms an image 8 2",
        "weights in memory 4 MB 1 MB",
        "speed 4.00 times, packed on this machine, measured in turn; intervals are of 95 %",
        "int8 2 layers; in higher precision: head",
        "images 48 judged it",
    ]


def test_numbers_are_whole_and_from_1_and_no_number_twice() -> None:
    assert speeding._numbers("--batch", "1, 16,1,99999") == (1, 16, 99_999)
    for wrong in ("0", "1,0", "", "1,,2", "-1", "1.5", "100000", "²"):
        with pytest.raises(InputError, match="--batch: expected whole numbers like 1,16, got"):
            speeding._numbers("--batch", wrong)


@pytest.mark.parametrize(
    "words, told",
    [
        (("export", "net", "a.onnx", "--int8", "--bf16"), "choose one of them"),
        (("export", "net", "a.onnx", "--data", "data"), "are for --int8 or --bf16"),
        (("export", "net", "a.onnx", "--bf16", "--data", "data", "--max-drop", "50"), "--bf16 is for NAME.xml"),
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
