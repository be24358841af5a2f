"""Any number of images, by workers: without Ray as far as that goes, then on a cluster of two workers that lose one."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import vitrail
from scale.no_ray import NoRay
from vitrail.errors import CheckpointError, InputError, VitrailError
from vitrail.inference.row_files import read_rows, writing_rows
from vitrail.inference.rows import PREDICTED, Row, prediction_maker, rows_in_order
from vitrail.scale import batch_inference
from vitrail.scale.batch_inference import BatchReport, predict_many

pytest.importorskip("pyarrow", reason="pyarrow is not installed: the extra parquet")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Thirty-six images, one of which cannot be read."""
    folder = tmp_path_factory.mktemp("photos")
    dice = np.random.default_rng(8)
    for number in range(36):
        Image.fromarray(dice.integers(0, 255, (28, 28), np.uint8)).save(folder / f"{number}.png")
    (folder / "5.png").write_bytes((folder / "5.png").read_bytes()[:60])
    return folder


@pytest.fixture(scope="module")
def rows(photos: Path) -> list[Row]:
    """What one process answers."""
    runtime = vitrail.load("vitrail:fashion")
    maker = prediction_maker(runtime, top=3)
    images = [photos / f"{number}.png" for number in range(36)]
    return list(rows_in_order(runtime, images, PREDICTED, maker, batch=4, threads=1))


def answers(folder: Path) -> list[Row]:
    """All shards, one after the other."""
    return [row for path in sorted(folder.glob("part-*")) for row in read_rows(path)]


@pytest.fixture
def no_ray(monkeypatch: pytest.MonkeyPatch) -> NoRay:
    ray = NoRay()
    ray.started = []

    @contextmanager
    def cluster(address: str, cpus: int) -> Iterator[NoRay]:
        ray.started.append((address, cpus))
        yield ray

    monkeypatch.setattr(batch_inference, "open_cluster", cluster)
    return ray


def predict(photos: Path, out: Path, **options: Any) -> BatchReport:
    return predict_many("vitrail:fashion", photos, out, top=3, **{"batch": 4, "shard_size": 8} | options)


def test_the_answers_are_those_of_one_process(no_ray: NoRay, photos: Path, rows: list[Row], tmp_path: Path) -> None:
    told: list[int] = []
    report = predict(photos, tmp_path / "out", done=told.append, workers=2)
    assert answers(tmp_path / "out") == rows
    assert (report.rows, report.shards, report.computed, report.unlike) == (36, 5, 5, 0)
    [(path, why)] = report.unread
    assert path == str(photos / "5.png")
    assert why == rows[5]["error"]
    assert told == [0, 4, 8, 8, 8, 8]
    assert no_ray.started == [("", 2)]
    assert no_ray.asked["num_cpus"] == 1
    assert no_ray.asked["compute"] == 2


def test_the_same_again_computes_what_is_missing(no_ray: NoRay, photos: Path, rows: list[Row], tmp_path: Path) -> None:
    predict(photos, tmp_path / "out")
    assert predict(photos, tmp_path / "out").computed == 0
    assert len(no_ray.started) == 1  # and no cluster is started for nothing
    (tmp_path / "out" / "part-00003.parquet").unlink()
    told: list[int] = []
    report = predict(photos, tmp_path / "out", done=told.append, threads=2)
    assert (report.rows, report.computed, told) == (36, 1, [28, 8])
    assert answers(tmp_path / "out") == rows
    with pytest.raises(InputError, match="holds another job: top: 3, now 2"):
        predict_many("vitrail:fashion", photos, tmp_path / "out", top=2, batch=4)
    report = predict_many("vitrail:fashion", photos, tmp_path / "out", top=2, batch=4, force=True)
    assert (report.computed, report.shards) == (1, 1)


def test_what_a_worker_says_is_wrong_is_raised(no_ray: NoRay, photos: Path, tmp_path: Path) -> None:
    vitrail.save(vitrail.load("vitrail:fashion"), tmp_path / "a.safetensors")
    from vitrail.scale.batch_worker import ShardWorker

    right = ShardWorker.__call__

    def changing(self: Any, given: Any) -> Any:
        (tmp_path / "a.safetensors").write_bytes(b"x")
        return right(self, given)

    no_ray.map_batches = lambda worker, **given: (  # type: ignore[method-assign]
        NoRay.map_batches(no_ray, type("Changing", (worker,), {"__call__": changing}), **given)
    )
    with pytest.raises(CheckpointError, match="has other weights at"):
        predict_many(tmp_path / "a.safetensors", photos, tmp_path / "out")


def test_a_cluster_that_gives_up_leaves_what_is_done(no_ray: NoRay, photos: Path, tmp_path: Path) -> None:
    right = no_ray.iter_rows

    def dying() -> Iterator[dict[str, str]]:
        rows = right()
        yield next(rows)
        raise NoRay.exceptions.RayError("all workers died\nand more")

    no_ray.iter_rows = dying  # type: ignore[method-assign]
    with pytest.raises(
        VitrailError, match=r"Ray gave up \(RayError: all workers died\); 4 of 5 shards are left: part-00000"
    ):
        predict(photos, tmp_path / "out")
    no_ray.iter_rows = right  # type: ignore[method-assign]
    assert predict(photos, tmp_path / "out").computed == 4


def test_shards_that_hold_something_else_are_no_result(no_ray: NoRay, photos: Path, tmp_path: Path) -> None:
    from vitrail.scale.batch_worker import ShardWorker

    right = ShardWorker.do

    def doubling(self: Any, shard: Any) -> Any:
        receipt = right(self, shard)
        path = self.task.job.part(shard.number)
        first, *others = read_rows(path)
        with writing_rows(path, PREDICTED) as put:
            for row in [first, first, *others[1:]]:
                put(row)
        from vitrail.scale.batch_job import file_digest

        return receipt._replace(size=path.stat().st_size, sha256=file_digest(path))

    ShardWorker.do = doubling  # type: ignore[method-assign]
    try:
        with pytest.raises(VitrailError, match=r"part-00000.parquet: 1 missing: '.*1.png'; 1 too many: '.*0.png'"):
            predict(photos, tmp_path / "out")
    finally:
        ShardWorker.do = right  # type: ignore[method-assign]
    assert not (tmp_path / "out" / "_finished.json").exists()


@pytest.mark.parametrize(
    "cpus, threads, workers, pool", [((8,), 2, None, 4), ((8,), 3, None, 2), ((3, 3), 2, None, 2), ((8,), 1, 3, 3)]
)
def test_workers_are_as_many_as_there_is_room_for(
    cpus: tuple[float, ...], threads: int, workers: int | None, pool: int
) -> None:
    assert batch_inference._pool(NoRay(cpus), threads, 0, workers) == pool
    with pytest.raises(InputError, match="no machine of the Ray cluster has 9 CPUs"):
        batch_inference._pool(NoRay(cpus), 9, 0, workers)


def test_each_worker_has_a_gpu_of_its_own(no_ray: NoRay, photos: Path, tmp_path: Path) -> None:
    ray = NoRay((8, 8, 2), (2, 0, 4))
    assert batch_inference._pool(ray, 1, 1, None) == 4  # the last has CPUs for two
    assert [batch_inference._placed(ray, name) for name in ("auto", "cpu", "cuda")] == ["cuda", "cpu", "cuda"]
    assert batch_inference._placed(NoRay(), "auto") == "cpu"
    with pytest.raises(InputError, match="no machine of the Ray cluster has a GPU"):
        batch_inference._pool(NoRay(), 1, 1, None)
    with pytest.raises(InputError, match="device: expected auto, cpu, cuda"):
        predict(photos, tmp_path / "out", device="cuda:1")
    predict(photos, tmp_path / "out")
    assert no_ray.asked["num_gpus"] is None


def test_mistakes_are_told_before_any_work(no_ray: NoRay, photos: Path, tmp_path: Path) -> None:
    for words, options in (
        ("shard_size: expected whole batches of 4, got 10", {"shard_size": 10}),
        ("workers: expected a whole number", {"workers": 0}),
        ("threads: expected a whole number", {"threads": 0}),
        ("batch: expected a whole number", {"batch": 0}),
    ):
        with pytest.raises(InputError, match=words):
            predict(photos, tmp_path / "out", **options)
    with pytest.raises(InputError, match="top: expected a whole number"):
        predict_many("vitrail:fashion", photos, tmp_path / "out", top=0)
    with pytest.raises(VitrailError, match="no checkpoint|could not read"):
        predict_many(tmp_path / "none.safetensors", photos, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="is a file: expected a folder"):
        predict(photos, tmp_path / "file")
    with held(tmp_path / "busy"), pytest.raises(InputError, match="is being filled by process"):
        predict(photos, tmp_path / "busy")
    assert no_ray.started == []


@contextmanager
def held(folder: Path) -> Iterator[None]:
    from vitrail.training.run_folder import locked

    folder.mkdir()
    with locked(folder):
        yield


# On a cluster of this machine.


def test_a_cluster_of_two_workers() -> None:
    """In a process of its own: Ray's core keeps what it first heard, of whoever used it before."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("ray is not installed: the extra ray")
    cases = Path(__file__).with_name("on_a_cluster.py")
    command = [
        sys.executable,
        "-m",
        "pytest",
        str(cases),
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "--tb=short",
    ]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=cases.parents[2], check=False)
    assert ran.returncode == 0, ran.stdout[-6000:] + ran.stderr[-2000:]
    assert "3 passed" in ran.stdout or "2 passed" in ran.stdout, ran.stdout[-500:]
