"""Kills, full disks: whatever disturbs a training, it ends with the bits of one that nobody disturbed.

The campaigns are those of stress/training.py, in processes that have computed nothing before they fork, all at once.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
CAMPAIGNS = {
    "kills": ("--count", "50", "--seed", "1", "--steps", "200"),
    "points": ("--count", "3", "--steps", "18"),
    "disk": ("--count", "50", "--seed", "1", "--steps", "6"),
}


@pytest.fixture(scope="module")
def campaigns() -> Iterator[dict[str, subprocess.Popen[str]]]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    script = str(ROOT / "stress" / "training.py")
    started = {
        name: subprocess.Popen(
            [sys.executable, script, name, *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        for name, flags in CAMPAIGNS.items()
    }
    yield started
    for each in started.values():
        each.kill()
        each.wait()


def result(campaigns: dict[str, subprocess.Popen[str]], name: str) -> dict[str, Any]:
    out, _ = campaigns[name].communicate(timeout=600)
    found: dict[str, Any] = json.loads(out)
    assert campaigns[name].returncode == (1 if found["wrong"] else 0)
    return found


@pytest.mark.fault("T1", "T10", "T21")
def test_fifty_kills_change_no_bit(campaigns: dict[str, subprocess.Popen[str]]) -> None:
    found = result(campaigns, "kills")
    assert found["kills"] == 50
    assert found["trainings"] >= 1
    assert found["wrong"] == 0


@pytest.mark.fault("T2")
def test_a_kill_at_every_point_of_a_save_changes_no_bit(campaigns: dict[str, subprocess.Popen[str]]) -> None:
    found = result(campaigns, "points")
    assert found["kills"] == found["expected_kills"] == 3 * 11
    assert found["wrong"] == 0


@pytest.mark.fault("T5", "T6")
def test_fifty_full_disks_lose_nothing(campaigns: dict[str, subprocess.Popen[str]]) -> None:
    found = result(campaigns, "disk")
    assert found["budgets"] == 50
    assert found["stopped"] >= 10
    assert found["wrong"] == 0
