"""Kills, full disks: whatever disturbs a training, it ends with the bits of one that nobody disturbed.

The campaigns are those of stress/training.py, in a process that has computed nothing before it forks.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def campaign(*arguments: str) -> dict[str, Any]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(ROOT / "stress" / "training.py"), *arguments]
    run = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600, check=False)
    assert run.stdout, run.stderr
    result: dict[str, Any] = json.loads(run.stdout)
    assert run.returncode == (1 if result["wrong"] else 0)
    return result


@pytest.mark.fault("T1", "T10", "T21")
def test_fifty_kills_change_no_bit() -> None:
    found = campaign("kills", "--count", "50", "--seed", "1", "--steps", "300")
    assert found["kills"] == 50
    assert found["trainings"] >= 1
    assert found["wrong"] == 0


@pytest.mark.fault("T2")
def test_a_kill_at_every_point_of_a_save_changes_no_bit() -> None:
    found = campaign("points", "--count", "3", "--steps", "24")
    assert found["kills"] == found["expected_kills"] == 3 * 11
    assert found["wrong"] == 0


@pytest.mark.fault("T5", "T6")
def test_fifty_full_disks_lose_nothing() -> None:
    found = campaign("disk", "--count", "50", "--seed", "1", "--steps", "12")
    assert found["budgets"] == 50
    assert found["stopped"] >= 10
    assert found["wrong"] == 0
