"""The command line: every verb with --json, exit codes, one line for a mistake, names printed as they are."""

from __future__ import annotations

import csv
import dataclasses
import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from network import renames
from vitrail import cli
from vitrail.checkpoint import Checkpoint, Provenance
from vitrail.cli import terminal, touring
from vitrail.errors import StoppedError
from vitrail.images import Preprocess
from vitrail.network import ViT, ViTConfig
from vitrail.network.presets import PRESETS

CONFIG = ViTConfig(image_size=32, patch_size=8, width=16, depth=2, heads=2, mlp_width=32, classes=3)
ODD_NAMES = (
    "with space.png",
    "[red]brackets[bold].png",
    "[bold].png",
    "party 🎉.png",
    ":tada:.png",
    "été.png",
    "tab\there.png",
    "back\\slash.png",
    "x" * 200 + ".png",
)


class Said(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        assert self.out.count("\n") == 1, "one JSON object on one line"
        value = json.loads(self.out)
        assert isinstance(value, dict)
        return value


class Line:
    """The command line, in this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.monkeypatch, self.capsys = monkeypatch, capsys

    def __call__(self, *arguments: str | Path) -> Said:
        self.monkeypatch.setattr(sys, "argv", ["vitrail", *map(str, arguments)])
        self.capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        caught = self.capsys.readouterr()
        assert isinstance(stopped.value.code, int)
        return Said(stopped.value.code, caught.out, caught.err)

    def mistake(self, *arguments: str | Path) -> str:
        """What a mistake of the user leaves: exit code 2 and one line on stderr, nothing on stdout."""
        said = self(*arguments)
        assert (said.code, said.out) == (2, ""), said
        assert said.err.startswith("vitrail: ")
        assert said.err.count("\n") == 1
        assert said.err.endswith("\n")
        return said.err.removeprefix("vitrail: ").rstrip("\n")


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


def process(*arguments: str | Path, **more: Any) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "vitrail", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, timeout=600, check=False, **more)


# ---- models and inspect ------------------------------------------------------------------------------------------


def test_models_lists_every_preset(vit: Line) -> None:
    said = vit("models", "--json")
    assert said.code == 0
    rows = {row["name"]: row for row in said.json["models"]}
    assert list(rows) == list(PRESETS)
    assert rows["vit-b16"]["parameters"] == 86_567_656
    assert rows["vit-b16"]["image_size"] == [224, 224]
    assert (rows["vit-b16"]["width"], rows["vit-b16"]["depth"], rows["vit-b16"]["tokens"]) == (768, 12, 197)
    assert (rows["r50-vit-b16"]["patch"], rows["mae-b16"]["classes"]) == ([16, 16], 0)


def test_models_as_a_table(vit: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    from vitrail.network import presets

    monkeypatch.setattr(presets, "PRESETS", {name: PRESETS[name] for name in ("vit-ti16", "r26-vit-s32")})
    said = vit("models")
    assert said.code == 0
    assert said.out.splitlines()[1].split() == ["vit-ti16", "5.72", "M", "192/12/3/768", "16", "224", "197", "1000"]
    assert "2 presets" in said.out


@pytest.mark.row("003.13")
def test_inspect_a_preset(vit: Line) -> None:
    seen = vit("inspect", "vit-ti16", "--json").json
    assert seen["parameters"] == 5_717_416
    assert seen["flops"] == 2 * seen["multiply_adds"]
    assert seen["attention_matrix"] == [197, 197]
    assert seen["attention_bytes"] == 12 * 3 * 197 * 197 * 4
    assert [step["name"] for step in seen["walk"]][:3] == ["pixels", "patches", "tokens"]
    assert seen["walk"][-1] == {"name": "logits", "shape": [1, 1000], "parameters": 193_000}
    assert sum(step["parameters"] for step in seen["walk"]) == seen["parameters"]
    assert ViTConfig.from_dict(seen["config"]) == PRESETS["vit-ti16"]
    text = vit("inspect", "vit-ti16").out
    for part in ("vit-ti16, one image of 224x224", "5,717,416", "197 x 197", "1 x 196 x 192"):
        assert part in text


def test_inspect_at_another_size(vit: Line) -> None:
    seen = vit("inspect", "vit-ti16", "--size", "160x288", "--json").json
    assert seen["image_size"] == [160, 288]
    assert seen["tokens"] == 1 + 10 * 18
    assert seen["walk"][0]["shape"] == [1, 3, 160, 288]
    assert vit("inspect", "vit-ti16", "--size", "384", "--json").json["tokens"] == 577
    assert "225x225 does not divide into patches of 16x16" in vit.mistake("inspect", "vit-ti16", "--size", "225")
    for wrong in ("big", "1x2x3", "-16", "16x", "²", "9999999999999999", "16.5"):
        assert "--size: expected 384 or 160x288" in vit.mistake("inspect", "vit-ti16", f"--size={wrong}")
    assert "image_size: expected a whole number from 1" in vit.mistake("inspect", "vit-ti16", "--size", "0")


def test_inspect_a_checkpoint(vit: Line, file: Path) -> None:
    seen = vit("inspect", file, "--json").json
    assert seen["classes"] == ["cat", "[dog]", "cow"]
    assert seen["preprocess"]["size"] == [32, 32]
    assert (seen["source"], seen["licence"], seen["metrics"]) == ("photos/", "CC0-1.0", {"top1": 0.5})
    assert seen["task"] == "single-label"
    text = vit("inspect", file).out
    assert text.startswith(f"{file}, one image of 32x32\n")
    assert "cat, [dog], cow" in text


def test_a_name_that_is_nothing(vit: Line, tmp_path: Path) -> None:
    assert "no preset 'vit-b61': did you mean 'vit-b16'" in vit.mistake("inspect", "vit-b61")
    assert "no weights in this folder" in vit.mistake("inspect", tmp_path)
    assert "did you mean 'vitrail:glass'" in vit.mistake("inspect", "vitrail:glas")
    assert "no checkpoint" in vit.mistake("predict", tmp_path / "none.safetensors", tmp_path)


# ---- predict and embed -------------------------------------------------------------------------------------------


@pytest.mark.row("DL.7")
@pytest.mark.fault("I12")
def test_predict_gives_what_python_gives(vit: Line, file: Path, folder: Path) -> None:
    (folder / "3 broken.png").unlink()
    said = vit("predict", file, folder, "--json")
    assert (said.code, said.err) == (0, "")
    expected = vitrail.predict(vitrail.load(file), [folder / name for name in ("1.png", "2.png", "10.png")])
    found = said.json
    assert found["predictions"] == [
        {"path": each.path, "labels": list(each.labels), "probabilities": list(each.probabilities)} for each in expected
    ]
    assert (found["calibrated"], found["skipped"]) == (False, [])
    lines = vit("predict", file, folder, "--top", "1").out.splitlines()
    best = expected[0]
    assert lines[0] == f"{folder / '1.png'}: {best.labels[0]} {100 * best.probabilities[0]:.1f} %"
    assert len(lines) == 3


def test_an_image_that_cannot_be_read_does_not_stop_the_others(vit: Line, file: Path, folder: Path) -> None:
    said = vit("predict", file, folder, "--json")
    assert said.code == 2
    assert [Path(row["path"]).name for row in said.json["predictions"]] == ["1.png", "2.png", "10.png"]
    assert [Path(row["path"]).name for row in said.json["skipped"]] == ["3 broken.png"]
    first, last = said.err.splitlines()
    assert str(folder / "3 broken.png") in first
    assert last == "vitrail: 1 of the images could not be read; the others are done"


def test_top_and_threshold(vit: Line, file: Path, folder: Path) -> None:
    image = folder / "1.png"
    [every] = vit("predict", file, image, "--json").json["predictions"]
    [two] = vit("predict", file, image, "--top", "2", "--json").json["predictions"]
    assert two["labels"] == every["labels"][:2]
    limit = every["probabilities"][1]
    [above] = vit("predict", file, image, "--threshold", str(limit), "--json").json["predictions"]
    assert above["labels"] == every["labels"][:2]
    assert "nothing above the threshold" in vit("predict", file, image, "--threshold", "1").out
    assert "--top" in vit.mistake("predict", file, image, "--top", "0")
    assert "--threshold" in vit.mistake("predict", file, image, "--threshold", "1.5")


def test_predictions_in_a_file(vit: Line, file: Path, folder: Path, tmp_path: Path) -> None:
    (folder / "3 broken.png").unlink()
    expected = vit("predict", file, folder, "--json").json
    table, text = tmp_path / "out [x].csv", tmp_path / "out.json"
    assert vit("predict", file, folder, "--out", table).out == f"3 predictions written to {table}\n"
    with open(table, encoding="utf-8", newline="") as opened:
        rows = list(csv.reader(opened))
    assert rows[0] == ["path", "rank", "label", "probability"]
    assert [row[1] for row in rows[1:]] == ["1", "2", "3"] * 3
    assert rows[1][::2] == [str(folder / "1.png"), expected["predictions"][0]["labels"][0]]
    assert float(rows[1][3]) == pytest.approx(expected["predictions"][0]["probabilities"][0], abs=1e-6)
    assert vit("predict", file, folder, "--out", text).code == 0
    assert json.loads(text.read_text()) == expected
    assert "expected FILE.csv or FILE.json, got 'x.txt'" in vit.mistake("predict", file, folder, "--out", "x.txt")
    nowhere = tmp_path / "no folder" / "x.csv"
    assert f"cannot write {nowhere}: No such file" in vit.mistake("predict", file, folder, "--out", nowhere)


def test_a_table_is_there_only_when_all_of_it_is(
    vit: Line, file: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows go to the disk as they come, under another name; where it goes wrong, the old table stays."""
    table = tmp_path / "out.csv"
    table.write_text("the old one")
    sizes: list[int] = []
    run = Checkpoint.run

    def watched(self: Checkpoint, pixels: Any) -> Any:
        [part] = tmp_path.glob(".vitrail-*.part")
        sizes.append(part.stat().st_size)
        assert table.read_text() == "the old one"
        if len(sizes) > 60:
            raise vitrail.VitrailError("stop here")
        return run(self, pixels)

    monkeypatch.setattr(Checkpoint, "run", watched)
    images = [folder / "1.png"] * 80
    assert vit.mistake("predict", file, *images, "--batch", "1", "--out", table) == "stop here"
    assert sizes[0] == 0
    assert sizes[-1] > 0  # a buffer of it was written
    assert table.read_text() == "the old one"
    assert list(tmp_path.glob(".*")) == []
    monkeypatch.setattr(Checkpoint, "run", run)
    assert vit("predict", file, *images, "--batch", "16", "--out", table).code == 0
    assert len(table.read_text().splitlines()) == 1 + 3 * 80
    link = tmp_path / "link.csv"
    link.symlink_to(table)
    assert vit("predict", file, folder / "2.png", "--out", link).code == 0
    assert link.is_symlink()
    assert len(table.read_text().splitlines()) == 4


def test_lines_are_printed_as_they_come(vit: Line, file: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the network sees the second image, the first is told."""
    seen: list[str] = []
    run = Checkpoint.run

    def watched(self: Checkpoint, pixels: Any) -> Any:
        seen.append(vit.capsys.readouterr().out)
        return run(self, pixels)

    monkeypatch.setattr(Checkpoint, "run", watched)
    said = vit("predict", file, folder / "1.png", folder / "2.png", "--batch", "1")
    assert [text.partition(": ")[0] for text in (*seen, said.out)] == ["", f"{folder / '1.png'}", f"{folder / '2.png'}"]


@pytest.mark.row("DL.7")
def test_predict_of_videos_and_animations(vit: Line, file: Path, folder: Path, tmp_path: Path) -> None:
    dice = np.random.default_rng(1)
    shots = [Image.fromarray(dice.integers(0, 256, (6, 8, 3), np.uint8)).resize((80, 60)) for _ in range(5)]
    clip, moving = tmp_path / "clip.mjpeg", tmp_path / "moving.gif"
    with open(clip, "wb") as stream:
        for shot in shots:
            shot.save(stream, "JPEG")
    shots[0].save(moving, save_all=True, append_images=shots[1:])
    found = vit("predict", file, folder / "1.png", clip, "--json").json["predictions"]
    assert [row["path"] for row in found] == [str(folder / "1.png"), *(f"{clip}#{number}" for number in range(5))]
    expected = vitrail.predict(vitrail.load(file), list(vitrail.inference.frames(clip)))
    assert [row["labels"] for row in found[1:]] == [list(each.labels) for each in expected]
    some = vit("predict", file, clip, moving, "--every", "2", "--json").json["predictions"]
    assert [row["path"] for row in some] == [f"{name}#{number}" for name in (clip, moving) for number in (0, 2, 4)]
    assert [row["labels"] for row in some[:3]] == [row["labels"] for row in found[1::2]]
    [still] = vit("predict", file, moving, "--json").json["predictions"]
    assert still["path"] == str(moving)  # without --every an animation is its first image, as everywhere
    clip.write_bytes(clip.read_bytes()[:-100])
    cut = vit("predict", file, clip, folder / "1.png", "--json")
    assert cut.code == 2
    assert [row["path"] for row in cut.json["predictions"]] == [
        *(f"{clip}#{n}" for n in range(4)),
        f"{folder / '1.png'}",
    ]
    assert cut.json["skipped"] == [{"path": str(clip), "error": f"{clip}: cut short, the stream ends within frame 4"}]


def test_a_video_without_its_extra(vit: Line, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    video = tmp_path / "a.mp4"
    video.write_bytes(b"\0\0\0\x20ftypisom" + bytes(100))
    assert "pip install 'vitrail[video]'" in vit.mistake("predict", file, video)


def test_scaled_decoding_on_the_command_line(vit: Line, file: Path, tmp_path: Path) -> None:
    shot = Image.fromarray(np.random.default_rng(2).integers(0, 256, (30, 40, 3), np.uint8)).resize((800, 600))
    shot.save(tmp_path / "large.jpg")
    loaded = vitrail.load(file)
    scaled = dataclasses.replace(loaded, preprocess=dataclasses.replace(loaded.preprocess, scaled_decoding=True))
    for options, way in (((), loaded), (("--scaled-decoding", "--threads", "1"), scaled)):
        [row] = vit("predict", file, tmp_path / "large.jpg", "--json", *options).json["predictions"]
        [expected] = vitrail.predict(way, [tmp_path / "large.jpg"])
        assert row["probabilities"] == pytest.approx(expected.probabilities, abs=1e-7)
        vectors = vit("embed", file, tmp_path / "large.jpg", "--json", *options).json["embeddings"]
        assert np.allclose(vectors, vitrail.embed(way, [tmp_path / "large.jpg"]), atol=1e-6)
    one, other = (vitrail.embed(each, [tmp_path / "large.jpg"]) for each in (scaled, loaded))
    assert not np.array_equal(one, other)  # its answer is a near tie, which the full image decides


def test_embed_to_files(vit: Line, file: Path, folder: Path, tmp_path: Path) -> None:
    vectors, table = tmp_path / "v.npy", tmp_path / "v.csv"
    said = vit("embed", file, folder, "--out", vectors)
    assert (said.code, said.out) == (2, f"3 vectors of 16 values written to {vectors}\n")  # one is broken
    names = [str(folder / name) for name in ("1.png", "2.png", "10.png")]
    expected = vitrail.embed(vitrail.load(file), names)
    assert np.array_equal(np.load(vectors), expected)
    assert (tmp_path / "v.txt").read_text().splitlines() == names
    assert vit("embed", file, *names, "--out", table).code == 0
    with open(table, encoding="utf-8", newline="") as opened:
        rows = list(csv.reader(opened))
    assert rows[0] == ["path", *map(str, range(16))]
    assert [row[0] for row in rows[1:]] == names
    assert np.array_equal(np.array([row[1:] for row in rows[1:]], np.float32), expected)
    found = vit("embed", file, *names, "--json").json
    assert found["paths"] == names
    assert np.array_equal(np.array(found["embeddings"], np.float32), expected)
    assert found["skipped"] == []


def test_mistakes_of_embed(vit: Line, file: Path, folder: Path, tmp_path: Path) -> None:
    assert "give --out FILE.npy or FILE.csv, or --json" in vit.mistake("embed", file, folder)
    assert "expected FILE.npy or FILE.csv" in vit.mistake("embed", file, folder, "--out", "x.json")
    assert "no file or folder" in vit.mistake("embed", file, tmp_path / "none", "--json")
    broken = vit("embed", file, folder / "3 broken.png", "--json")
    assert (broken.code, broken.out) == (2, "")
    (folder / "1.png").rename(folder / "line\nbreak.png")
    out = tmp_path / "v.npy"
    assert "a file name holds a line break" in vit.mistake("embed", file, folder / "line\nbreak.png", "--out", out)
    assert vit("embed", file, folder / "line\nbreak.png", "--out", tmp_path / "v.csv").code == 0


# ---- names -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ODD_NAMES)
def test_names_print_as_they_are(vit: Line, file: Path, folder: Path, name: str) -> None:
    path = folder / name
    (folder / "1.png").rename(path)
    said = vit("predict", file, path, "--top", "3")
    assert said.code == 0
    assert said.out.startswith(f"{path}: ")
    assert said.out.count("\n") == 1
    assert "[dog] " in said.out
    assert vit("predict", file, path, "--json").json["predictions"][0]["path"] == str(path)
    path.write_bytes(b"no image")
    assert str(path) in vit("predict", file, path).err or repr(str(path)) in vit("predict", file, path).err


def test_a_line_break_in_a_name(vit: Line, file: Path, folder: Path) -> None:
    path = folder / "line\nbreak.png"
    (folder / "1.png").rename(path)
    assert vit("predict", file, path).out.startswith(f"{path}: ")
    assert vit("predict", file, path, "--json").json["predictions"][0]["path"] == str(path)
    assert r"line\nbreak" in vit.mistake("predict", file, folder / "no\nline\nbreak.png")


def test_a_name_that_is_not_text(file: Path, folder: Path, tmp_path: Path) -> None:
    path = os.fsencode(folder) + b"/\xff\xfe.png"
    try:
        os.rename(os.fsencode(folder / "1.png"), path)
    except OSError as error:
        if error.errno != errno.EILSEQ:
            raise
        pytest.skip("this file system takes only names that are text")
    name = os.fsdecode(path)
    run = process("predict", file, name, "--json", "--out", tmp_path / "x.csv")
    assert (run.returncode, run.stderr) == (0, b"")
    assert json.loads(run.stdout)["predictions"][0]["path"] == name
    run = process("predict", file, name)
    assert (run.returncode, run.stderr) == (0, b"")
    assert rb"\udcff\udcfe.png: " in run.stdout
    assert path in (tmp_path / "x.csv").read_bytes()


# ---- doctor and demo ---------------------------------------------------------------------------------------------


def test_doctor(vit: Line) -> None:
    report = vit("doctor", "--json").json
    assert list(report) == ["versions", "machine", "extras"]
    assert report["versions"]["vitrail"] == vitrail.__version__
    assert report["versions"]["torch"].startswith(torch.__version__.split("+")[0])
    text = vit("doctor").out
    assert text.startswith("versions\n")
    assert "'vitrail[" in text or "complete" in text


def test_demo(vit: Line, tmp_path: Path) -> None:
    out = tmp_path / "tour"
    found = vit("demo", "--out", out, "--epochs", "0", "--json").json
    assert found["page"] == str(out / "index.html")
    assert found["labels"][0] == found["drawn"]
    assert found["probabilities"][0] > 0.5
    for name in found["files"]:
        with Image.open(name) as image:
            assert min(image.size) > 100
            image.load()
        if Path(name).name != "image.png":
            assert Path(name).name in (out / "index.html").read_text()
    said = vit("demo", "--out", out, "--seed", "3", "--epochs", "0")
    assert said.code == 0
    assert str(out / "index.html") in said.out
    assert "the network says:" in said.out


def test_demo_trains_and_predicts(vit: Line, tmp_path: Path) -> None:
    found = vit("demo", "--out", tmp_path, "--epochs", "0.05", "--json").json
    assert found["run"]["run"] == str(tmp_path / "fashion")
    assert found["run"]["evaluation"]["n"] == 1000
    assert (tmp_path / "fashion" / "report.html").stat().st_size > 10_000
    assert [Path(each["path"]).parent for each in found["predictions"]] == [tmp_path / "images"] * 6


def test_demo_on_an_image_of_ones_own(vit: Line, tmp_path: Path, folder: Path) -> None:
    said = vit("demo", "--out", tmp_path / "tour", "--image", folder / "1.png", "--epochs", "0")
    assert (said.code, said.err) == (0, "")
    assert f"the image: {folder / '1.png'}; the network says:" in said.out
    assert "no such" in vit.mistake("demo", "--image", tmp_path / "none.png").lower()
    assert f"cannot write to {folder / '1.png'}" in vit.mistake("demo", "--out", folder / "1.png")


def test_a_demo_that_was_stopped_goes_on_and_a_finished_one_starts_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(touring, "train_watched", lambda data, options: asked.append((data, options)))
    touring._train(tmp_path, 3.0)
    (tmp_path / "fashion").mkdir()
    touring._train(tmp_path, 3.0)  # stopped: there is no result
    (tmp_path / "fashion" / "result.json").touch()
    touring._train(tmp_path, 3.0)
    assert [(data, each.name, each.fresh) for data, each in asked] == [
        ("vitrail:fashion", "fashion", fresh) for fresh in (False, False, True)
    ]


def test_the_built_in_network_knows_its_windows() -> None:
    from vitrail.data.glass import CLASSES, window

    glass = vitrail.load("vitrail:glass")
    assert glass.classes == CLASSES
    assert glass.provenance.metrics["accuracy"] > 0.9
    windows = [window(20_000_000 + seed, 96) for seed in range(64)]
    found = vitrail.predict(glass, [each.image for each in windows], top=1)
    right = sum(each.labels[0] == CLASSES[drawn.label] for each, drawn in zip(found, windows, strict=True))
    assert right >= 55


# ---- the line itself ---------------------------------------------------------------------------------------------


def test_mistyped_words_name_the_nearest(vit: Line) -> None:
    assert "No such command 'modles'. Did you mean 'models'?" in vit.mistake("modles")
    assert "--jsn" in (said := vit.mistake("models", "--jsn"))
    assert "--json" in said
    assert "CHECKPOINT" in vit.mistake("predict")
    assert "--top" in vit.mistake("predict", "a", "b", "--top", "x")


def test_help_and_nothing_at_all(vit: Line) -> None:
    for arguments in ((), ("--help",)):
        said = vit(*arguments)
        assert said.code == 0
        assert "predict" in said.out
    assert "--threshold" in vit("predict", "--help").out


def test_our_own_fault_is_exit_code_1(vit: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ZeroDivisionError("[red]oh[/red]\nno")

    monkeypatch.setattr("vitrail.doctor.examine", fail)
    said = vit("doctor")
    assert (said.code, said.out) == (1, "")
    line = r"vitrail: internal error: ZeroDivisionError: [red]oh[/red]\nno (VITRAIL_DEBUG=1 shows where)"
    assert said.err == line + "\n"
    monkeypatch.setenv("VITRAIL_DEBUG", "1")
    assert "Traceback" in vit("doctor").err


def test_an_interrupt_is_130(vit: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("vitrail.doctor.examine", interrupt)
    assert vit("doctor").code == 130


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_stopped_run_ends_with_the_code_of_its_signal(
    vit: Line, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    def stop() -> None:
        raise StoppedError("stopped at step 3", number)

    monkeypatch.setattr("vitrail.doctor.examine", stop)
    said = vit("doctor")
    assert (said.code, said.out, said.err) == (128 + number, "", "vitrail: stopped at step 3\n")


def test_sizes_in_units_of_a_thousand() -> None:
    sizes = (999, 1000, 1_024, 1_500_000, 2e9, 3e12, 4e15)
    told = ["999 bytes", "1 KB", "1.024 KB", "1.5 MB", "2 GB", "3 TB", "4000 TB"]
    assert [terminal.size_of(each) for each in sizes] == told


def test_a_reader_that_leaves_early(file: Path, folder: Path) -> None:
    """`vitrail inspect … | head -0`: silent, and no failure."""
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "vitrail", "inspect", str(file)]
    with os.fdopen(write, "wb") as pipe:
        run = subprocess.run(command, stdout=pipe, stderr=subprocess.PIPE, timeout=600, check=False)
    assert (run.returncode, run.stderr) == (0, b"")


def test_in_a_process_of_its_own(file: Path, folder: Path) -> None:
    """Exit code and streams are real ones, and a terminal that knows only ASCII does no harm."""
    (folder / "1.png").rename(folder / "été.png")
    run = process("predict", file, folder, "--json", env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert run.returncode == 2, run.stderr
    assert [Path(row["path"]).name for row in json.loads(run.stdout)["predictions"]] == ["2.png", "10.png", "été.png"]
    assert run.stderr.count(b"\n") == 2


# ---- other families' weights -------------------------------------------------------------------------------------


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """A small network in timm's names, one file without any description."""
    config = ViTConfig(image_size=32, patch_size=8, width=128, depth=2, heads=2, mlp_width=256, classes=3)
    vitrail.convert(Checkpoint(ViT(config), Preprocess(32)), tmp_path / "foreign.safetensors", to="timm")
    return tmp_path / "foreign.safetensors"


def test_convert_says_how_equal_both_are(vit: Line, foreign: Path, tmp_path: Path) -> None:
    said = vit("convert", foreign, tmp_path / "out", "--to", "timm", "--set", "mean=0.25")
    assert said.code == 0, said.err
    for words in (
        "32 tensors written for timm",
        "bit for bit the same",
        "differ by at most 0",
        "100 % agree",
        "carried",
    ):
        assert words in said.out
    assert vitrail.load(tmp_path / "out").preprocess.mean == (0.25,) * 3
    assert "already there" in vit.mistake("convert", foreign, tmp_path / "out", "--to", "timm")


def test_the_families_named_in_help_are_those_there_are() -> None:
    from vitrail.weights import FAMILIES

    assert sorted(cli.TARGETS.split(", ")) == sorted(["vitrail", *FAMILIES])


def test_convert_as_json(vit: Line, foreign: Path, tmp_path: Path) -> None:
    report = vit("convert", foreign, tmp_path / "o.safetensors", "--to", "vitrail", "--json").json
    assert report["identical"] == report["tensors"] == 32
    assert report["relative_difference"] == 0.0
    assert report["preprocess_carried"] is True
    assert (tmp_path / "o.safetensors").is_file()


@pytest.mark.parametrize(
    "words, reason",
    [
        (("--to", "tim"), "did you mean 'timm'"),
        (("--to", "google"), "expected NAME.npz"),
        (("--to", "timm", "--set", "norm_eps=1e-12"), "norm_eps: 1e-12"),
        (("--to", "timm", "--set", "activation"), "expected NAME=VALUE"),
        (("--to", "timm", "--set", "activaton=relu"), "did you mean 'activation'"),
        (("--to", "timm", "--leave-out", "text"), "no tensor has such a name"),
    ],
)
def test_convert_refuses_in_one_line(
    vit: Line, foreign: Path, tmp_path: Path, words: tuple[str, ...], reason: str
) -> None:
    assert reason in vit.mistake("convert", foreign, tmp_path / "out", *words)
    assert not (tmp_path / "out").exists()


def test_inspect_shows_how_weights_were_read(vit: Line, foreign: Path) -> None:
    said = vit("inspect", foreign, "--tensors")
    for words in ("family            timm", "timm's default", "convolution kernel flattened", "blocks.1.mlp.fc2.bias"):
        assert words in said.out
    told = vit("inspect", foreign, "--tensors", "--json").json
    assert len(told["mapping"]) == 32
    assert {"name": "norm_eps", "value": "1e-06", "why": "timm's default"} in told["settings"]


def test_predict_says_what_a_strangers_file_leaves_open(vit: Line, foreign: Path, tmp_path: Path) -> None:
    Image.new("RGB", (40, 40), (90, 20, 20)).save(tmp_path / "red.png")
    said = vit("predict", foreign, tmp_path / "red.png", "--set", "activation=relu")
    assert said.code == 0, said.err
    assert "read as timm with" in said.err
    assert "activation" not in said.err  # it was given
    assert "preprocess 32x32, crop 0.9, bicubic, mean 0.5, std 0.5" in said.err
