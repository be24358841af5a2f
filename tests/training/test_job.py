"""What a job knows of itself: whose states are its own, and whether its processes hold parts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from training import tiny
from vitrail.training.processes import Processes


def test_its_identity_is_that_of_its_number_and_its_plan(tmp_path: Path) -> None:
    job = tiny.job(tmp_path, 4)
    assert replace(job, folder=tmp_path / "moved", threads=3).identity == job.identity
    assert replace(job, run_id="another").identity != job.identity
    assert replace(job, plan=replace(job.plan, seed=4)).identity != job.identity


def test_one_process_alone_holds_everything(tmp_path: Path) -> None:
    several = Processes()
    several.world = 2
    job = tiny.job(tmp_path, 4)
    sharded = replace(job, plan=replace(job.plan, shard=True))
    assert not job.is_sharded
    assert not sharded.is_sharded
    assert replace(sharded, processes=several).is_sharded
    assert not replace(job, processes=several).is_sharded
