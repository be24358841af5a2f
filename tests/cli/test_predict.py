"""The verb predict: what Python gives, to lines, tables and JSON."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import vitrail
from cli.command_line import Line, typed
from vitrail.checkpoint import Checkpoint
from vitrail.cli.weights import load_runtime
from vitrail.inference.row_files import read_rows
from vitrail.packed import packed_runtime as packed


@pytest.mark.row("DL.7")
@pytest.mark.fault("I12")
def test_predict_gives_what_python_gives(vit: Line, file: Path, folder: Path) -> None:
    (folder / "3 broken.png").unlink()
    said = vit("predict", file, folder, "--json")
    assert (said.code, said.err) == (0, "")
    expected = vitrail.predict(vitrail.load(file), [folder / name for name in ("1.png", "2.png", "10.png")])
    found = said.json
    assert found["predictions"] == [
        each._asdict() | {"labels": list(each.labels), "probabilities": list(each.probabilities)} for each in expected
    ]
    assert (found["calibrated"], found["skipped"]) == (False, [])
    lines = vit("predict", file, folder, "--top", "1").out.splitlines()
    best = expected[0]
    assert lines[0] == f"{folder / '1.png'}: {best.labels[0]} {100 * best.probabilities[0]:.1f} %"
    assert len(lines) == 3


def test_an_image_that_cannot_be_read_does_not_stop_the_others(vit: Line, file: Path, folder: Path) -> None:
    said = vit("predict", file, folder, "--json")
    assert said.code == 3
    assert [Path(row["path"]).name for row in said.json["predictions"]] == ["1.png", "2.png", "10.png"]
    assert [Path(row["path"]).name for row in said.json["skipped"]] == ["3 broken.png"]
    first, last = said.err.splitlines()
    assert str(folder / "3 broken.png") in first
    assert last == "vitrail: 1 of 4 images could not be read; the others are done"


def test_top_and_threshold(vit: Line, file: Path, folder: Path) -> None:
    image = folder / "1.png"
    [every] = vit("predict", file, image, "--json").json["predictions"]
    [two] = vit("predict", file, image, "--top", "2", "--json").json["predictions"]
    assert two["labels"] == every["labels"][:2]
    limit = every["probabilities"][1]
    [above] = vit("predict", file, image, "--threshold", str(limit), "--json").json["predictions"]
    assert above["labels"] == every["labels"][:2]
    [best] = vit("predict", file, image, "--threshold", "1", "--json").json["predictions"]
    assert best["labels"] == every["labels"][:1]  # the likeliest is always given
    assert vit("predict", file, image, "--threshold", "1", "--decline").out == (
        f"{image}: declined (nothing above the threshold)\n"
    )
    assert "--top" in vit.mistake("predict", file, image, "--top", "0")
    assert "--threshold" in vit.mistake("predict", file, image, "--threshold", "1.5")


@pytest.fixture
def unsure(file: Path, folder: Path, tmp_path: Path) -> tuple[Path, list[float]]:
    """The same network with a minimum confidence that one of three images does not reach; its probability, and it."""
    (folder / "3 broken.png").unlink()
    loaded = vitrail.load(file)
    best = [each.probabilities[0] for each in vitrail.predict(loaded, sorted(folder.iterdir()))]
    lowest, middle, _ = sorted(best)
    vitrail.save(dataclasses.replace(loaded, reject=(lowest + middle) / 2), tmp_path / "unsure.safetensors")
    return tmp_path / "unsure.safetensors", [lowest, (lowest + middle) / 2]


def test_an_answer_that_is_not_confident_is_given_and_marked(
    vit: Line, unsure: tuple[Path, list[float]], folder: Path, tmp_path: Path
) -> None:
    network, (lowest, needed) = unsure
    lines = vit("predict", network, folder).out.splitlines()
    [marked] = [line for line in lines if "not confident" in line]
    [expected] = [each for each in vitrail.predict(network, sorted(folder.iterdir())) if not each.confident]
    answers = ", ".join(f"{a} {100 * p:.1f} %" for a, p in zip(expected.labels, expected.probabilities, strict=True))
    assert marked == f"{expected.path}: {answers}; {expected.remark}"
    assert (expected.probabilities[0], expected.needed) == (lowest, needed)
    rows = vit("predict", network, folder, "--json").json["predictions"]
    assert [row["confident"] for row in rows].count(False) == 1
    assert [(len(row["labels"]), row["needed"]) for row in rows] == [(3, needed)] * 3
    vit("predict", network, folder, "--out", tmp_path / "out.csv")
    with open(tmp_path / "out.csv", encoding="utf-8", newline="") as opened:
        table = list(csv.DictReader(opened))
    assert {row["path"] for row in table if row["confident"] == "no"} == {expected.path}
    assert [row["label"] for row in table if row["path"] == expected.path] == list(expected.labels)
    assert len(table) == 9


def test_declined_answers_are_left_out_and_counted(
    vit: Line, unsure: tuple[Path, list[float]], folder: Path, tmp_path: Path
) -> None:
    network, (_, needed) = unsure
    lines = vit("predict", network, folder, "--decline").out.splitlines()
    [declined] = [line for line in lines if line.endswith(f": declined (needs {100 * needed:.0f} %)")]
    rows = vit("predict", network, folder, "--decline", "--json").json["predictions"]
    [empty] = [row for row in rows if not row["confident"]]
    assert declined.startswith(empty["path"])
    assert (len(rows), empty["labels"], empty["probabilities"], empty["needed"]) == (3, [], [], needed)
    vit("predict", network, folder, "--decline", "--out", tmp_path / "out.csv")
    with open(tmp_path / "out.csv", encoding="utf-8", newline="") as opened:
        table = list(csv.reader(opened))
    assert [row for row in table if row[4] == "no"] == [[empty["path"], "", "", "", "no", ""]]


def test_images_unlike_the_training_ones_are_marked(vit: Line, wary: Path, folder: Path, tmp_path: Path) -> None:
    answered = vit("predict", wary, folder, "--top", "1")
    first, second, strange = answered.out.splitlines()
    assert strange.startswith(str(folder / "10.png"))
    assert strange.endswith(" %; unlike anything it was trained on")
    assert "unlike anything" not in first + second
    told = (
        "vitrail: 1 of 3 images is unlike anything this network was trained on (a false alarm for at most 5 % of "
        "images like the training ones; --trust leaves this out)\n"
    )
    assert answered.err == told
    answered = vit("predict", wary, folder, "--json")
    assert [row["unlike"] for row in answered.json["predictions"]] == [False, False, True]
    familiar = [row["familiarity"] for row in answered.json["predictions"]]
    assert familiar[2] == pytest.approx(1 / 21)
    assert familiar[0] > 0.05 < familiar[1]
    vit("predict", wary, folder, "--out", tmp_path / "out.csv")
    with open(tmp_path / "out.csv", encoding="utf-8", newline="") as opened:
        table = list(csv.DictReader(opened))
    assert {row["path"] for row in table if row["unlike"] == "yes"} == {str(folder / "10.png")}
    assert {row["unlike"] for row in table} == {"yes", "no"}
    assert vit("predict", wary, folder / "10.png").err.startswith("vitrail: the image is unlike anything")


def test_a_network_may_be_trusted(vit: Line, wary: Path, file: Path, folder: Path) -> None:
    trusted = vit("predict", wary, folder, "--trust")
    assert trusted == vit("predict", file, folder)  # which does not know
    assert "unlike anything" not in trusted.out + trusted.err
    rows = vit("predict", wary, folder, "--trust", "--json").json["predictions"]
    assert [(row["unlike"], row["familiarity"]) for row in rows] == [(None, None)] * 3
    image = folder / "10.png"
    loaded = vitrail.load(wary)
    for answer, trust in ((vitrail.predict(loaded, [image]), False), (loaded.predict([image], trust=True), True)):
        assert answer[0].unlike is (None if trust else True)
        assert answer[0].remark == ("" if trust else "unlike anything it was trained on")


def test_predictions_in_a_file(vit: Line, file: Path, folder: Path, tmp_path: Path) -> None:
    (folder / "3 broken.png").unlink()
    expected = vit("predict", file, folder, "--json").json
    table, text = tmp_path / "out [x].csv", tmp_path / "out.json"
    assert vit("predict", file, folder, "--out", table).out == f"3 predictions written to {table}\n"
    with open(table, encoding="utf-8", newline="") as opened:
        rows = list(csv.reader(opened))
    assert rows[0] == ["path", "rank", "label", "probability", "confident", "unlike"]
    assert [row[1] for row in rows[1:]] == ["1", "2", "3"] * 3
    assert {row[4] for row in rows[1:]} == {"yes"}
    assert rows[1][:3:2] == [str(folder / "1.png"), expected["predictions"][0]["labels"][0]]
    assert float(rows[1][3]) == pytest.approx(expected["predictions"][0]["probabilities"][0], abs=1e-6)
    assert vit("predict", file, folder, "--out", text).code == 0
    text.write_text("mine")
    for kept in (table, text):
        before = kept.read_bytes()
        told = vit.mistake("predict", file, tmp_path / "nothing there", "--out", kept)  # before any work
        assert told == f"{kept} is there already: give another name, or --force to write over it"
        assert kept.read_bytes() == before
    assert vit("predict", file, folder, "--out", text, "--force").code == 0
    assert json.loads(text.read_text()) == expected
    words = "expected FILE.csv, FILE.json, FILE.jsonl or FILE.parquet, got 'x.txt'"
    assert words in vit.mistake("predict", file, folder, "--out", "x.txt")
    nowhere = tmp_path / "no folder" / "x.csv"
    assert f"cannot write {nowhere}: No such file" in vit.mistake("predict", file, folder, "--out", nowhere)


def test_what_is_passed_over_is_told(vit: Line, file: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "3 broken.png").unlink()
    for name in ("notes.txt", "table.csv", ".4.png"):
        (folder / name).touch()
    (folder / "1.png").rename(folder / "1")  # an image by its first bytes
    said = vit("predict", file, folder, "--json")
    assert said.code == 0
    assert [Path(row["path"]).name for row in said.json["predictions"]] == ["1", "2.png", "10.png"]
    hidden = {"reason": "hidden file", "count": 1, "paths": [str(folder / ".4.png")]}
    others = [str(folder / name) for name in ("notes.txt", "table.csv")]
    assert said.json["passed_over"] == [hidden, {"reason": "file that is no image", "count": 2, "paths": others}]
    assert said.err.splitlines() == [
        f"vitrail: 1 hidden file passed over: {folder / '.4.png'}",
        f"vitrail: 2 files that are no images passed over: {', '.join(others)}",
    ]
    scandir = os.scandir
    (folder / "private").mkdir()

    def forbidden(path: Any) -> Any:
        if str(path).endswith("private"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", forbidden)
    for verb in ("predict", "embed"):
        said = vit(verb, file, folder, "--json")
        assert said.code == 3  # as where an image cannot be read
        assert f"vitrail: 1 folder that cannot be read passed over: {folder / 'private'}" in said.err.splitlines()
        assert said.json["passed_over"][0]["paths"] == [str(folder / "private")]


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet"])
def test_rows_in_a_file_are_those_of_json_and_the_unread_images(
    vit: Line, file: Path, folder: Path, tmp_path: Path, name: str
) -> None:
    out = tmp_path / name
    said = vit("predict", file, folder, "--threshold", "30%", "--out", out)
    assert (said.code, said.out) == (3, f"3 predictions written to {out}\n")
    expected = vit("predict", file, folder, "--threshold", "30%", "--json").json
    rows = list(read_rows(out))
    assert [Path(row["path"]).name for row in rows] == ["1.png", "2.png", "3 broken.png", "10.png"]
    unread = rows.pop(2)
    assert [{**row, "error": None} for row in expected["predictions"]] == rows
    [skipped] = expected["skipped"]
    assert (unread["path"], unread["error"], unread["labels"]) == (skipped["path"], skipped["error"], [])
    assert "is there already" in vit.mistake("predict", file, folder, "--out", out)
    both = vit("predict", file, folder, "--threshold", "30%", "--out", out, "--force", "--json").json
    assert both == expected


def test_many_unreadable_images_are_counted(vit: Line, file: Path, folder: Path) -> None:
    for number in range(30):
        (folder / f"bad {number}.png").write_bytes(b"no image")
    said = vit("predict", file, folder, "--json")
    assert len(said.json["skipped"]) == 31
    lines = said.err.splitlines()
    assert len(lines) == 22
    assert lines[-2:] == [
        "vitrail: more images cannot be read, which are only counted from here on",
        "vitrail: 31 of 34 images could not be read; the others are done",
    ]


def test_heic_without_the_extra_is_named(vit: Line, file: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    shot = folder / "a.heic"
    shot.write_bytes(b"\0\0\0\x18ftypheic" + bytes(100))
    said = vit("predict", file, shot, folder / "1.png", "--json")
    told = f"{shot} is a HEIC image: reading it needs pillow-heif: pip install 'vitrail[heif]'"
    assert (said.code, said.json["skipped"]) == (3, [{"path": str(shot), "error": told}])


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
    assert cut.code == 3
    assert [row["path"] for row in cut.json["predictions"]] == [
        *(f"{clip}#{n}" for n in range(4)),
        f"{folder / '1.png'}",
    ]
    [skipped] = cut.json["skipped"]
    assert skipped["path"] == str(clip)
    assert f"{clip}: not a video that can be read, or damaged after frame 3" in skipped["error"]


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


def test_predict_says_what_a_strangers_file_leaves_open(vit: Line, foreign: Path, tmp_path: Path) -> None:
    Image.new("RGB", (40, 40), (90, 20, 20)).save(tmp_path / "red.png")
    said = vit("predict", foreign, tmp_path / "red.png", "--set", "activation=relu")
    assert said.code == 0, said.err
    assert "read as timm with" in said.err
    assert "activation" not in said.err  # it was given
    assert "preprocess 32x32, crop 0.9, bicubic, mean 0.5, std 0.5" in said.err


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
