"""Workers of Ray on this machine, real ones; run by test_batch_inference.py in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vitrail
from scale.test_batch_inference import answers, photos, predict, rows
from vitrail.inference.rows import Row
from vitrail.scale import ray_cluster
from vitrail.scale.batch_inference import embed_many

__all__ = ["photos", "rows"]  # fixtures


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """One for all tests: whoever is connected already is left as it is."""
    before, variables = ray_cluster._children(), dict(os.environ)
    with ray_cluster.open_cluster("", 2) as ray:
        ours = ray_cluster._descendants(ray_cluster._children() - before)
        folders = list(Path(tempfile.gettempdir()).glob(f"vitrail-ray-{os.getpid()}-*"))
        yield ray
    assert folders
    assert not ray.is_initialized()
    assert not any(map(ray_cluster._is_alive, ours))
    assert not any(map(Path.exists, folders))
    current = "PYTEST_CURRENT_TEST"
    assert {**os.environ, current: ""} == variables | {current: ""}


def test_a_lost_worker_loses_and_repeats_nothing(
    cluster: Any, photos: Path, rows: list[Row], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    killed: list[int] = []

    def kill(count: int) -> None:
        if count and not killed:
            last = (tmp_path / "out" / "_done.jsonl").read_text().splitlines()[-1]
            killed.append(int(json.loads(last)["worker"].rpartition(":")[2]))
            os.kill(killed[0], signal.SIGKILL)

    report = predict(photos, tmp_path / "out", shard_size=4, workers=2, done=kill)
    assert len(killed) == 1
    assert answers(tmp_path / "out") == rows
    assert (report.rows, report.shards, report.computed) == (36, 9, 9)
    assert capfd.readouterr() == ("", "")  # Ray says nothing on the terminal


def test_vectors_of_a_table_of_images(cluster: Any, photos: Path, tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    numbers = [number for number in range(12) if number != 5]
    cells = [(photos / f"{number}.png").read_bytes() for number in numbers]
    names = [f"n{number}" for number in numbers]
    parquet.write_table(pyarrow.table({"id": names, "image": cells}), tmp_path / "t.parquet", row_group_size=5)
    out = tmp_path / "out.jsonl"
    options: dict[str, Any] = {"batch": 4, "shard_size": 4, "workers": 1}
    report = embed_many("vitrail:fashion", tmp_path / "t.parquet", out, **options)
    assert (report.rows, report.computed, report.shards) == (11, 3, 3)
    found = answers(out)
    assert [row["path"] for row in found] == names
    expected = vitrail.embed("vitrail:fashion", cells, batch=4, threads=1)
    assert np.abs(np.stack([row["embedding"] for row in found]) - expected).max() < 1e-5


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="only Linux tells which sockets listen")
def test_a_cluster_of_ours_listens_on_the_loopback_alone(cluster: Any) -> None:
    ours = ray_cluster._descendants(ray_cluster._children()) | {os.getpid()}
    sockets = set()
    for process in ours:
        for entry in Path(f"/proc/{process}/fd").iterdir() if Path(f"/proc/{process}/fd").exists() else ():
            try:
                sockets.add(os.readlink(entry))
            except OSError:
                continue
    listening = []
    for name in ("tcp", "tcp6"):
        for line in Path("/proc/net", name).read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in sockets:
                listening.append(words[1].partition(":")[0])
    assert len(listening) > 3
    loopback = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
    assert set(listening) <= loopback
