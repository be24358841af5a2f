"""A second device: what on_pretend.py says of training there holds, on one that has no float64, the stricter kind.

It runs in a process of its own, since torch never lets go of a device once it has it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

CASES = Path(__file__).with_name("on_pretend.py")


@pytest.mark.row("DL.8", "001.14")
def test_networks_are_trained_on_a_second_device(fixtures: Path) -> None:
    tool = fixtures.parent / "tools" / "pretend_device.py"
    if not tool.is_file():
        pytest.skip(f"no second device for torch at {tool}")
    command = [
        sys.executable,
        "-m",
        "pytest",
        str(CASES),
        "-q",
        "-p",
        "no:cacheprovider",
        "--durations=3",
        "--tb=short",
    ]
    environment = {**os.environ, "PRETEND_DEVICE": str(tool), "PRETEND_REFUSES": "float64"}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, cwd=CASES.parents[2])
    assert ran.returncode == 0, ran.stdout[-6000:] + ran.stderr[-2000:]
    assert re.search(r"\b[12]\d passed\b", ran.stdout), ran.stdout[-500:]
