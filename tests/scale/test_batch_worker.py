"""A worker, without a cluster: shards in, files and receipts out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import vitrail
from vitrail.errors import CheckpointError
from vitrail.inference.row_files import read_rows
from vitrail.inference.rows import PREDICTED
from vitrail.scale import batch_worker
from vitrail.scale.batch_job import Receipt, open_job
from vitrail.scale.batch_worker import MOST_TRIES, ModelSource, Question, ShardWorker, Task
from vitrail.scale.image_rows import list_images


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Task:
    """Ten images in shards of four; the third cannot be read."""
    (tmp_path / "photos").mkdir()
    (tmp_path / "out").mkdir()
    dice = np.random.default_rng(4)
    for number in range(10):
        Image.fromarray(dice.integers(0, 255, (28, 28), np.uint8)).save(tmp_path / "photos" / f"{number}.png")
    (tmp_path / "photos" / "2.png").write_bytes(b"x" * 40)
    monkeypatch.chdir(tmp_path)
    job = open_job(tmp_path / "out", ".jsonl", PREDICTED, {}, list_images(["photos"]).rows, 2, 4)
    return Task(job, ModelSource("vitrail:fashion"), "vitrail:fashion", Question("predict", 3, 0.2), 2, 1)


def said(worker: ShardWorker, number: int) -> Any:
    return json.loads(worker({"shard": np.array([number])})["said"][0])


def test_shards_hold_the_rows_of_predict(task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    right = ModelSource.open
    monkeypatch.setattr(ModelSource, "open", lambda self, device: opened.append(self.path) or right(self, device))
    monkeypatch.chdir("/")  # wherever a worker stands
    worker = ShardWorker(task)
    receipts = [Receipt(**said(worker, number)["receipt"]) for number in (2, 0, 1)]
    assert opened == ["vitrail:fashion"]  # once
    assert [(each.shard, each.rows, each.unread) for each in receipts] == [(2, 2, 0), (0, 4, 1), (1, 4, 0)]
    for receipt in receipts:
        task.job.record(receipt)
    assert task.job.verify().rows == 10
    rows = [row for number in range(3) for row in read_rows(task.job.part(number))]
    unread = rows.pop(2)
    assert unread["path"] == "photos/2.png"
    assert unread["error"].startswith("photos/2.png: ")
    monkeypatch.chdir(tmp_path)
    paths = [f"photos/{number}.png" for number in range(10) if number != 2]
    expected = vitrail.predict("vitrail:fashion", paths, top=3, batch=2)
    assert [row["path"] for row in rows] == paths
    assert [row["labels"][0] for row in rows] == [each.labels[0] for each in expected]
    assert all(p >= 0.2 or row["probabilities"] == [p] for row in rows for p in row["probabilities"])
    assert not list(task.job.folder.glob(".*"))


def test_other_weights_are_refused(task: Task, tmp_path: Path) -> None:
    vitrail.save(vitrail.load("vitrail:fashion"), tmp_path / "a.safetensors")
    model = ModelSource(str(tmp_path / "a.safetensors"))
    digest = model.digest()
    worker = ShardWorker(Task(task.job, model, digest, task.question, 2, 1))
    assert "receipt" in said(worker, 0)
    (tmp_path / "a.safetensors").write_bytes(b"other" + (tmp_path / "a.safetensors").read_bytes())
    assert model.digest() != digest
    told = said(ShardWorker(Task(task.job, model, digest, task.question, 2, 1)), 0)
    assert (told["kind"], "has other weights at" in told["error"]) == ("CheckpointError", True)
    with pytest.raises(CheckpointError, match="could not read"):
        ModelSource(str(tmp_path / "none.safetensors")).digest()


def test_a_folder_of_weights_has_the_digest_of_all_its_files(tmp_path: Path) -> None:
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / "a").write_text("1")
    (tmp_path / "f" / "b").write_text("2")
    first = ModelSource(str(tmp_path / "f")).digest()
    (tmp_path / "f" / "b").write_text("3")
    assert ModelSource(str(tmp_path / "f")).digest() != first


def test_a_shard_that_ends_its_workers_is_given_up(task: Task) -> None:
    for _ in range(MOST_TRIES):
        task.job.begin(1)
    told = said(ShardWorker(task), 1)
    assert f"shard 1 was begun {MOST_TRIES} times by workers that died over it" in told["error"]
    assert "among 4 from photos/4.png on?" in told["error"]
    assert "receipt" in said(ShardWorker(task), 0)
    task.job.forget_tries()
    assert "receipt" in said(ShardWorker(task), 1)


def test_whatever_goes_wrong_is_told(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*given: Any) -> Any:
        raise RuntimeError("no such thing\nsecond line")

    monkeypatch.setattr(batch_worker, "read_images", broken)
    told = said(ShardWorker(task), 0)
    assert told["kind"] == "VitrailError"
    assert told["error"].endswith("RuntimeError: no such thing")
    assert not task.job.part(0).exists()
