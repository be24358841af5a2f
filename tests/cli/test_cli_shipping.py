"""The command line: export, and the verbs that take what it wrote."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitrail
from cli.test_cli import Line, vit  # noqa: F401  (a fixture)
from shipping import small
from shipping.conftest import operators_read_once  # noqa: F401  (a fixture)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("export")
    vitrail.save(small.checkpoint(), place / "a.safetensors")
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 50, 3), np.uint8)).save(place / "a.png")
    return place


def test_export_says_what_it_checked(vit: Line, folder: Path) -> None:  # noqa: F811
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


def test_export_for_machines(vit: Line, folder: Path) -> None:  # noqa: F811
    said = vit("export", folder / "a.safetensors", folder / "b.pt2", "--to", "torch", "--bytes", "--json").json
    assert (said["format"], said["inputs"]) == ("torch", {"img": "uint8 (batch, 32, 32, 3)"})
    assert said["bytes"] == (folder / "b.pt2").stat().st_size
    assert len(said["checks"]) == 3
    assert max(each["difference"] for each in said["checks"]) == said["largest_difference"] < 1e-4
    assert said["pixels"] == {"largest": 0.0, "share": 0.0}
    assert json.dumps(said)
    labels = [
        vit("predict", folder / name, folder / "a.png", "--json").json["predictions"][0]["labels"]
        for name in ("b.pt2", "a.safetensors")
    ]
    assert labels[0] == labels[1]


def test_mistakes_are_one_line(vit: Line, folder: Path) -> None:  # noqa: F811
    assert "expected NAME.onnx" in vit.mistake("export", folder / "a.safetensors", folder / "a.tflite")
    assert "no exported file" in vit.mistake("predict", folder / "none.onnx", folder / "a.png")
    (folder / "bad.onnx").write_bytes(b"x" * 200)
    assert "no checksum at its end" in vit.mistake("embed", folder / "bad.onnx", folder / "a.png", "--json")


def test_settings_of_an_exported_file_are_refused(vit: Line, folder: Path) -> None:  # noqa: F811
    vitrail.packed.packed_file.save_packed(
        vitrail.packed.packed_runtime.Packed(made := small.checkpoint()), made, folder / "fast.safetensors"
    )
    for name, how in (("none.onnx", "exported"), ("fast.safetensors", "packed")):
        for words in (("--set", "heads=4"), ("--leave-out", "head"), ("--runtime", "eager")):
            said = vit.mistake("predict", folder / name, folder / "a.png", *words)
            assert f"{folder / name} is {how}: it is as it is, so --set, --leave-out and --runtime" in said


@pytest.mark.row("DL.7")
def test_a_video_through_an_exported_file_gives_what_the_network_says(vit: Line, folder: Path, tmp_path: Path) -> None:  # noqa: F811
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
