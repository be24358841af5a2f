"""The verb shard, and what other verbs make of its folders."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitrail
from cli.command_line import Line


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """The classes of the checkpoint, four images each."""
    dice = np.random.default_rng(3)
    for number in range(12):
        path = tmp_path / "photos" / ("cat", "[dog]", "cow")[number % 3] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(dice.integers(0, 256, (16, 20, 3), np.uint8)).save(path)
    return tmp_path / "photos"


def test_shard_and_all_that_reads_them(vit: Line, file: Path, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "shards"
    said = vit("shard", photos, out)
    assert said.code == 0
    assert said.out.splitlines()[-1] == f"try it            vitrail train {out}"
    assert f", read back, in {out}" in said.out
    assert "is there already" in vit.mistake("shard", photos, out)
    assert vit("shard", photos, out, "--force", "--json").json["images"] == len(list(photos.rglob("*.png")))
    rows = [
        {row["path"].removeprefix(f"{root}/"): row["probabilities"] for row in found["predictions"]}
        for root in (photos, out)
        for found in [vit("predict", file, root, "--json").json]
    ]
    assert rows[0] == rows[1]
    vectors = []
    for root in (photos, out):
        assert vit("embed", file, root, "--out", tmp_path / f"{root.name}.npy").code == 0
        names = (tmp_path / f"{root.name}.txt").read_text().replace(f"{root}/", "").splitlines()
        vectors.append(dict(zip(names, np.load(tmp_path / f"{root.name}.npy").tolist(), strict=True)))
    assert vectors[0] == vectors[1]
    found = [vit("audit", root, "--json", "--out", tmp_path / f"audit-{root.name}").json for root in (photos, out)]
    assert [each.pop("source") for each in found] == [str(photos), str(out)]
    assert len({str(each.pop("files")) for each in found}) == 2
    assert found[0] == found[1]
    judged = [vitrail.evaluate(file, root, split="all", resamples=0).scores for root in (photos, out)]
    assert judged[0] == judged[1]


def test_an_image_that_cannot_be_read_is_told_and_seen_from_the_exit_code(
    vit: Line, photos: Path, tmp_path: Path
) -> None:
    bad = next(photos.rglob("*.png"))
    bad.write_bytes(bad.read_bytes()[:50])
    said = vit("shard", photos, tmp_path / "shards")
    assert said.code == 3
    assert bad.name in said.err
    assert json.loads((tmp_path / "shards" / "index.json").read_text())["format"] == 1
