"""Processes that train together over torch.distributed, real ones: the same bits for any number of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run_cases(*cases: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """What the processes of each case came to, by rank."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "tests"), str(ROOT / "src")])
    script = [sys.executable, "-W", "ignore", "-m", "scale.together", json.dumps(cases)]
    done = subprocess.run(script, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    found: list[list[dict[str, Any]]] = json.loads(done.stdout)
    return found


@pytest.mark.row("001.14")
def test_one_two_and_four_processes_come_to_the_same_bits(tmp_path: Path) -> None:
    """Muon and AdamW, an average, dropout, batch norm, mixup and cutmix, clipping, passes of uneven sizes."""
    recipe = {"batch": 14, "pieces": 6}
    cases = [
        {"folder": str(tmp_path / str(world)), "world": world, "workers": 4, "recipe": recipe} for world in (1, 2, 4)
    ]
    found = run_cases(*cases, {"folder": str(tmp_path / "other"), "world": 2, "workers": 2, "recipe": recipe})
    digests = [results[0]["digest"] for results in found]
    assert digests[0] == digests[1] == digests[2]
    assert digests[3] != digests[0]  # other virtual workers are another run
    for results in found:
        assert len({each["weights"] for each in results}) == 1  # and every process has the same network
