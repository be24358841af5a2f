"""Processes that train together over torch.distributed, real ones: the same bits for any number of them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from vitrail.training.state import read_newest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """What the processes of every case below came to, by rank: torch is imported once for all."""
    out = tmp_path_factory.mktemp("together")
    cases: dict[str, dict[str, Any]] = {
        f"exact {world}": {"folder": str(out / f"exact-{world}"), "world": world, "workers": 4} for world in (1, 2, 4)
    }
    cases["other workers"] = {"folder": str(out / "other"), "world": 2, "workers": 2}
    for name, world, stop in (("stopped", 4, [1, 3]), ("stopped again", 1, [0, 6]), ("went on", 2, None)):
        cases[name] = {"folder": str(out / "resumed"), "world": world, "workers": 4, "stop": stop}
    for world in (1, 2):
        cases[f"plain {world}"] = {"folder": str(out / f"plain-{world}"), "world": world, "base": "plain"}
    cases["killed"] = {"folder": str(out / "killed"), "world": 2, "workers": 2, "kill": [1, 3], "base": "plain"}
    cases["failed"] = {"folder": str(out / "failed"), "world": 2, "workers": 2, "fail": [1, 3], "base": "plain"}
    for world in (1, 2):
        cases[f"timed {world}"] = {"folder": str(out / f"timed-{world}"), "world": world, "workers": 2, "seconds": 12}
    for case in cases.values():
        if "base" not in case:
            case["recipe"] = {"batch": 14, "pieces": 6}  # passes of uneven sizes
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "tests"), str(ROOT / "src")])
    script = [sys.executable, "-W", "ignore", "-m", "scale.together", json.dumps(list(cases.values()))]
    done = subprocess.run(script, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return dict(zip(cases, json.loads(done.stdout), strict=True)) | {"folders": [{"out": str(out)}]}


@pytest.mark.row("001.14")
def test_one_two_and_four_processes_come_to_the_same_bits(found: dict[str, list[dict[str, Any]]]) -> None:
    """Muon and AdamW, an average, dropout, batch norm, mixup and cutmix, clipping, passes of uneven sizes."""
    digests = [found[f"exact {world}"][0]["digest"] for world in (1, 2, 4)]
    assert digests[0] == digests[1] == digests[2]
    assert found["other workers"][0]["digest"] != digests[0]  # other virtual workers are another run
    for world in (2, 4):
        assert len({each["weights"] for each in found[f"exact {world}"]}) == 1  # every process has the same network


@pytest.mark.row("001.14")
def test_a_run_goes_on_with_any_number_of_processes_to_the_same_bits(found: dict[str, list[dict[str, Any]]]) -> None:
    """A signal to one process stops all of them at the same step, and one of them tells."""
    for name, step in (("stopped", 4), ("stopped again", 6)):  # others hear of it with the next gradients
        told = [each for each in found[name] if "error" in each]
        assert [each["message"] for each in told] == [
            f"stopped at step {step} of 8; everything is saved, and the same command goes on"
        ]
        assert all(each.get("silent", 143) == 143 for each in found[name])
    assert found["went on"][0]["digest"] == found["exact 1"][0]["digest"]


def test_minutes_move_the_end_of_all_by_the_clock_of_the_first(found: dict[str, list[dict[str, Any]]]) -> None:
    """12 steps were planned; from the 4th on each takes three seconds."""
    (alone,), both = found["timed 1"], found["timed 2"]
    assert alone["step"] == 6
    assert [each["step"] for each in both] == [6, 6]
    assert both[0]["digest"] == alone["digest"]
    assert both[0]["weights"] == both[1]["weights"]


@pytest.mark.row("001.14")
def test_plain_sums_are_the_same_step_to_rounding(found: dict[str, list[dict[str, Any]]]) -> None:
    """Eight steps of AdamW: no weight is further off than a tenth of its rate."""
    out = Path(found["folders"][0]["out"])
    states = [read_newest(out / f"plain-{world}" / "state", print) for world in (1, 2)]
    assert states[0] is not None
    assert states[1] is not None
    weights = {name: value for name, value in states[0].tensors.items() if name.startswith("model.")}
    gaps = [float((value - states[1].tensors[name]).abs().max()) for name, value in weights.items()]
    assert 0 < max(gaps) < 1e-4
    assert len({each["weights"] for each in found["plain 2"]}) == 1


def test_a_peer_that_died_is_named(found: dict[str, list[dict[str, Any]]]) -> None:
    survivor, killed = found["killed"]
    assert killed == {"signal": 9}
    assert survivor["error"] == "PeerLostError"
    assert re.match(
        r"rank 1 \(process \d+ on .+\) has ended, and the others cannot go on without it; "
        "the same command goes on from the last state",
        survivor["message"],
    )


def test_an_error_of_one_is_told_by_it_alone(found: dict[str, list[dict[str, Any]]]) -> None:
    assert found["failed"] == [{"silent": 1}, {"error": "InputError", "message": "no more of this, says 1"}]
