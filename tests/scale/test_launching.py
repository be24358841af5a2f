"""`vitrail train --processes`: real processes of the command line, one of them killed, and what is told."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed.elastic.agent.server.api import RunResult, WorkerState
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from training.quick import draw
from vitrail.scale import launching
from vitrail.scale.process_group import PEER_LOST

TRAIN = ("train", "photos", "--epochs", "10", "--batch", "8", "--lr", "1e-3", "--out", "runs")


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(folder)}
    environment = {name: value for name, value in environment.items() if name not in ("RANK", "WORLD_SIZE")}
    command = [sys.executable, "-m", "vitrail", *TRAIN, *words]
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            pid_of, rest = path.read_text().split(" ", 1)
        except OSError:
            continue
        if int(rest.rpartition(")")[2].split()[1]) == pid:
            found.append(int(pid_of))
    return sorted(found)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="who has started whom is read in /proc")
@pytest.mark.row("001.14")
def test_a_run_in_two_processes_of_which_one_is_killed_is_that_of_one(tmp_path: Path) -> None:
    draw(tmp_path / "photos", 12)
    alone = start(tmp_path, "--name", "alone", "--exact")
    together = start(tmp_path, "--name", "together", "--processes", "2", "--json")
    assert together.stderr is not None
    told, victim = [], 0
    for line in together.stderr:
        told.append(line)
        if "epoch 1:" in line and not victim:
            victim = children(together.pid)[1]
            os.kill(victim, signal.SIGKILL)
    out, _ = together.communicate(timeout=300)
    assert together.returncode == 0, "".join(told)
    assert out.count("\n") == 1  # one result, by the first process
    text = "".join(told)
    rank = re.search(rf"vitrail: rank (\d) of 2 \(process {victim}\) was ended by SIGKILL\n", text)
    assert rank is not None, text
    assert text.count("all processes start again, and go on from the last state") == 1
    assert text.count("going on with runs/together") == 1
    assert "Traceback" not in text
    assert "W1" not in text  # nothing of the agent's own log
    alone.communicate(timeout=300)
    assert alone.returncode == 0
    for name in ("metrics.jsonl", "data.json", "predictions.csv"):
        assert (tmp_path / "runs/together" / name).read_bytes() == (tmp_path / "runs/alone" / name).read_bytes()
    states = [sorted((tmp_path / "runs" / name / "state").glob("*.state"))[-1] for name in ("alone", "together")]
    assert states[0].name == states[1].name
    assert states[0].read_bytes() == states[1].read_bytes()
    assert list(tmp_path.glob("tmp*")) == []


def test_a_mistake_is_told_in_one_line_with_its_code(tmp_path: Path) -> None:
    together = start(tmp_path, "--processes", "2")  # there are no photos
    _, told = together.communicate(timeout=120)
    assert together.returncode == 2
    assert told.count("\n") == 1
    assert told.startswith("vitrail: ")
    assert "photos" in told


# ---- the agent ---------------------------------------------------------------------------------------------------


def failed(codes: Sequence[int], monkeypatch: pytest.MonkeyPatch) -> tuple[Any, list[str]]:
    """An agent whose processes have ended like this, and what it tells."""
    told: list[str] = []
    failures = {
        rank: ProcessFailure(local_rank=rank, pid=100 + rank, exitcode=code, error_file="")
        for rank, code in enumerate(codes)
        if code
    }
    agent = object.__new__(launching._Agent)
    agent.log = told.append
    agent._remaining_restarts = 3
    result = RunResult(WorkerState.FAILED if failures else WorkerState.SUCCEEDED, {}, failures)
    monkeypatch.setattr(launching.LocalElasticAgent, "_monitor_workers", lambda self, group: result)
    group: Any = SimpleNamespace(workers=[None] * len(codes))
    assert agent._monitor_workers(group) is result
    return agent, told


def test_who_was_killed_is_named_and_all_start_again(monkeypatch: pytest.MonkeyPatch) -> None:
    agent, told = failed([PEER_LOST, -9, -15], monkeypatch)
    assert agent._remaining_restarts == 3
    assert told == [
        "rank 1 of 3 (process 101) was ended by SIGKILL",
        "all processes start again, and go on from the last state",
    ]


@pytest.mark.parametrize(("codes", "expected"), [([2, PEER_LOST], 2), ([1, -15], 1), ([143, 143], 143), ([0, -9], 1)])
def test_an_error_that_was_told_ends_all(codes: list[int], expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    agent, told = failed(codes, monkeypatch)
    if -9 not in codes:
        assert (agent._remaining_restarts, told) == (0, [])
    failures = [ProcessFailure(local_rank=0, pid=1, exitcode=code, error_file="") for code in codes if code]
    assert max(map(launching._code_of, failures)) == expected
