"""The folder of a large job: cut into shards, gone on with, and proved to hold every image once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vitrail.errors import InputError, VitrailError
from vitrail.inference.row_files import writing_rows
from vitrail.inference.rows import EMBEDDED, unread_row
from vitrail.scale.batch_job import (
    DONE,
    BatchJob,
    JobShard,
    Receipt,
    differences,
    file_digest,
    open_job,
    read_images_of,
    usual_size,
)
from vitrail.scale.image_rows import ImageRow

ROWS = [ImageRow(f"é{number}.png", f"/x/é{number}.png", number) for number in range(10)]
ASKED = {"verb": "embed", "batch": 2}


def opened(folder: Path, rows: list[ImageRow] = ROWS, **more: object) -> BatchJob:
    folder.mkdir(exist_ok=True)
    options: dict = {"shard_size": 4, "suffix": ".jsonl", "asked": ASKED} | more
    asked, suffix = options.pop("asked"), options.pop("suffix")
    return open_job(folder, suffix, EMBEDDED, asked, iter(rows), **options)


def do(job: BatchJob, number: int, names: list[str] | None = None) -> Receipt:
    """Write a shard as a worker does, or with other images."""
    shard = job.shards[number]
    paths = names if names is not None else [row.path for row in read_images_of(job.folder, shard)]
    with writing_rows(job.part(number), job.columns) as put:
        for path in paths:
            put(unread_row(EMBEDDED, path, "bad"))
    path = job.part(number)
    receipt = Receipt(number, shard.images, len(paths), path.stat().st_size, file_digest(path), "here:1")
    job.record(receipt)
    return receipt


def test_a_job_is_cut_into_shards_and_verified(tmp_path: Path) -> None:
    job = opened(tmp_path / "out")
    assert [shard.images for shard in job.shards] == [4, 4, 2]
    assert [row for shard in job.shards for row in read_images_of(job.folder, shard)] == ROWS
    for number in (1, 2, 0):
        do(job, number)
    verified = job.verify()
    assert (verified.rows, verified.unlike) == (10, 0)
    assert verified.unread == [(row.path, "bad") for row in ROWS]
    job.finish(verified)
    assert json.loads((job.folder / "_finished.json").read_text()) == {"rows": 10, "unread": 10, "shards": 3}


def test_the_same_again_goes_on_with_what_is_left(tmp_path: Path) -> None:
    job = opened(tmp_path / "out")
    done = do(job, 1)
    (job.folder / ".part-00002.jsonl.77.tmp").write_text("cut")
    again = opened(tmp_path / "out")
    assert again == job
    assert again.receipts() == {1: done}
    assert not (job.folder / ".part-00002.jsonl.77.tmp").exists()
    assert opened(tmp_path / "out", shard_size=None) == job  # as it was begun
    with pytest.raises(VitrailError, match=r"part-00000.jsonl is missing, with 4 images: run the same command again"):
        again.verify()


@pytest.mark.parametrize("damage", ["torn line", "no line", "flipped", "cut", "gone", "other shard"])
def test_what_is_not_as_it_was_written_is_not_done(tmp_path: Path, damage: str) -> None:
    job = opened(tmp_path / "out")
    for number in range(3):
        do(job, number)
    part, lines = job.part(2), (job.folder / DONE).read_text().splitlines()
    raw = part.read_bytes()
    if damage == "torn line":
        (job.folder / DONE).write_text("\n".join(lines)[:-30])
    elif damage == "no line":
        (job.folder / DONE).write_text("\n".join(lines[:2]) + "\n")
    elif damage == "flipped":
        part.write_bytes(raw.replace(b"bad", b"bat", 1))
    elif damage == "cut":
        part.write_bytes(raw[:-1])
    elif damage == "gone":
        part.unlink()
    else:
        part.write_bytes(job.part(0).read_bytes())
    assert sorted(opened(tmp_path / "out").receipts()) == [0, 1]
    with pytest.raises(VitrailError, match=r"part-00002.jsonl is (missing|not as it was written), with 2 images"):
        job.verify()
    receipt = do(job, 2)  # a torn line before it does not spoil it
    assert job.receipts()[2] == receipt
    assert job.verify().rows == 10


@pytest.mark.parametrize(
    "names, words",
    [
        (["é0.png", "é1.png", "é2.png"], "1 missing: 'é3.png'"),
        (["é0.png", "é1.png", "é2.png", "é2.png"], "1 missing: 'é3.png'; 1 too many: 'é2.png'"),
        (["é0.png", "é1.png", "é2.png", "é3.png", "é9.png"], "1 too many: 'é9.png'"),
        (["é1.png", "é0.png", "é2.png", "é3.png"], "the images stand in another order"),
        ([], "4 missing: 'é0.png'; 'é1.png'; 'é2.png'; 'é3.png'"),
    ],
)
def test_missing_and_doubled_images_are_named(tmp_path: Path, names: list[str], words: str) -> None:
    job = opened(tmp_path / "out")
    do(job, 0, names)
    do(job, 1)
    do(job, 2)
    with pytest.raises(VitrailError) as told:
        job.verify()
    assert str(told.value) == f"{job.part(0)}: {words}"
    assert differences(["a"], ["a"]) == "the images stand in another order"


def test_a_shard_of_another_job_is_found(tmp_path: Path) -> None:
    job = opened(tmp_path / "out")
    for number in range(3):
        do(job, number)
    (job.folder / "part-00003.jsonl").write_text("")
    with pytest.raises(VitrailError, match=r"expected 3 shards, found others: part-00003.jsonl"):
        job.verify()


@pytest.mark.parametrize(
    "other, words",
    [
        ({"asked": {**ASKED, "batch": 3}}, "batch: 2, now 3"),
        ({"asked": {**ASKED, "sha256": "f"}}, "other weights"),
        ({"suffix": ".parquet"}, "format: '.jsonl', now '.parquet'"),
        ({"rows": ROWS[:-1]}, "images: 10, now 9; other images, or in another order"),
        ({"rows": [*ROWS[1:], ROWS[0]]}, "other images, or in another order"),
        ({"shard_size": 6}, "shard_size: 4, now 6"),
    ],
)
def test_another_question_is_refused_and_may_start_anew(tmp_path: Path, other: dict, words: str) -> None:
    job = opened(tmp_path / "out")
    do(job, 0)
    with pytest.raises(InputError, match="Give the same again to go on") as told:
        opened(tmp_path / "out", **other)
    assert f"holds another job: {words}. " in str(told.value)
    assert sorted(job.receipts()) == [0]
    assert opened(tmp_path / "out", **other, force=True).receipts() == {}
    assert not job.part(0).exists()


def test_folders_of_others_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("x")
    for force in (False, True):
        with pytest.raises(InputError, match=r"holds other files \(mine.txt\)"):
            opened(tmp_path, force=force)
    assert (tmp_path / "mine.txt").read_text() == "x"
    job = opened(tmp_path / "out")
    (job.folder / "mine.txt").write_text("x")
    with pytest.raises(InputError, match=r"holds other files \(mine.txt\)"):
        opened(tmp_path / "out", force=True)
    (job.folder / "_job.json").write_text("{}")
    with pytest.raises(InputError, match=r"_job.json is damaged"):
        opened(tmp_path / "out")


def test_a_job_that_ended_before_its_record_begins_anew(tmp_path: Path) -> None:
    job = opened(tmp_path / "out")
    (job.folder / "_job.json").unlink()
    assert opened(tmp_path / "out", rows=ROWS[:3]).shards == (JobShard(0, 3, 0, job.shards[0].length * 3 // 4),)


def test_images_that_were_changed_are_refused(tmp_path: Path) -> None:
    job = opened(tmp_path / "out")
    (job.folder / "_images.jsonl").write_text("")
    with pytest.raises(InputError, match=r"_images.jsonl was changed"):
        opened(tmp_path / "out")
    with pytest.raises(InputError, match=r"_images.jsonl was changed: expected 4 images from byte 0 on"):
        read_images_of(job.folder, job.shards[0])


def test_no_images_and_names_that_are_no_text(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no images: expected at least one"):
        opened(tmp_path / "out", rows=[])
    odd = [ImageRow("\udcff.png", "/x/\udcff.png")]
    with pytest.raises(InputError, match=r"is not text, and fits no Parquet file: use FOLDER.jsonl"):
        opened(tmp_path / "out", rows=odd, suffix=".parquet")
    job = opened(tmp_path / "out", rows=odd)
    assert read_images_of(job.folder, job.shards[0]) == odd


def test_shards_are_whole_batches() -> None:
    assert usual_size(10, 16) == 256
    assert usual_size(10, 100) == 300
    assert usual_size(1_000_000, 16) == 1008
    assert usual_size(10**9, 16) == 16_384
