"""--engine ray as it is typed: what is handed on, what is told, what is refused."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cli.command_line import Line
from scale.no_ray import NoRay
from vitrail.inference.row_files import read_rows
from vitrail.scale import batch_inference


@pytest.fixture
def no_ray(monkeypatch: pytest.MonkeyPatch) -> NoRay:
    ray = NoRay()

    @contextmanager
    def cluster(address: str, cpus: int) -> Iterator[NoRay]:
        yield ray

    monkeypatch.setattr(batch_inference, "open_cluster", cluster)
    return ray


def test_predict_by_ray_answers_as_predict_does(
    no_ray: NoRay, vit: Line, file: Path, folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    words = ("predict", file, folder, "--top", "2", "--threshold", "10%")
    said = vit(*words, "--engine", "ray", "--out", out, "--workers", "1", "--threads", "1")
    assert said.code == 3
    assert said.out == f"4 rows written to {out}, in 1 shard\nevery image is there once\n"
    first, last = said.err.splitlines()
    assert str(folder / "3 broken.png") in first
    assert last == "vitrail: 1 of 4 images could not be read; the others are done"
    vit(*words, "--out", tmp_path / "one.jsonl", "--threads", "1")
    assert list(read_rows(out / "part-00000.jsonl")) == list(read_rows(tmp_path / "one.jsonl"))
    again = vit(*words, "--engine", "ray", "--out", out, "--workers", "1", "--threads", "1", "--json").json
    [skipped] = again.pop("skipped")
    assert skipped["path"] == str(folder / "3 broken.png")
    counts = {"rows": 4, "shards": 1, "computed": 0, "unlike": 0}
    assert again == counts | {"out": str(out), "calibrated": False, "passed_over": []}
    kept = vit(*words, "--engine", "ray", "--out", out).out
    assert kept == f"4 rows written to {out}, in 1 shard, 1 of them there before\nevery image is there once\n"


def test_images_unlike_the_training_ones_are_counted(
    no_ray: NoRay, vit: Line, wary: Path, folder: Path, tmp_path: Path
) -> None:
    said = vit("predict", wary, folder, "--engine", "ray", "--out", tmp_path / "out.jsonl")
    assert "1 of 3 images is unlike anything this network was trained on" in said.err
    assert vit("predict", wary, folder, "--engine", "ray", "--out", tmp_path / "o.jsonl", "--trust").err == ""


def test_embed_by_ray(no_ray: NoRay, vit: Line, file: Path, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    said = vit("embed", file, folder / "1.png", folder / "2.png", "--engine", "ray", "--out", out)
    assert (said.code, said.out) == (0, f"2 rows written to {out}, in 1 shard\nevery image is there once\n")
    rows = list(read_rows(out / "part-00000.jsonl"))
    assert [(row["path"], row["embedding"].shape) for row in rows] == [
        (str(folder / name), (16,)) for name in ("1.png", "2.png")
    ]


def test_mistakes(vit: Line, file: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for verb in ("predict", "embed"):
        assert "no engine 'rai': did you mean 'ray'?" in vit.mistake(verb, file, folder, "--engine", "rai")
        told = vit.mistake(verb, file, folder, "--workers", "2", "--address", "a:1")
        assert told == "--address and --workers: for --engine ray alone"
        assert "give --out FOLDER" in vit.mistake(verb, file, folder, "--engine", "ray")
    out: tuple[Any, ...] = ("--engine", "ray", "--out", tmp_path / "out.jsonl")
    assert "videos are for --engine local" in vit.mistake("predict", file, folder, *out, "--every", "2")
    (folder / "clip.mp4").write_bytes(b"x")
    assert "clip.mp4 is a video" in vit.mistake("predict", file, folder / "clip.mp4", *out)
    monkeypatch.setitem(sys.modules, "ray", None)
    told = vit.mistake("predict", file, folder, *out)
    assert told == "--engine ray needs it: pip install 'vitrail[ray]'"
