"""Memory that is freed inside stays for the next step, and goes back afterwards; in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from vitrail.training.memory import keeping_memory

PROGRAM = """
import json, resource
from pathlib import Path
import torch
from vitrail.training.memory import keeping_memory

MB = 1 << 20

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(16 * MB)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() // MB

found = {"before": faults()}
with keeping_memory():
    found["inside"] = min(faults() for _ in range(6))
    kept = [torch.ones(16 * MB) for _ in range(4)]
    most = resident()
    kept.clear()
    found["returned inside"] = most - resident()
found["returned after"] = most - resident()
found["after"] = faults()
print(json.dumps(found))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's own")
def test_freed_memory_is_kept_inside_and_goes_back_afterwards() -> None:
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    found = json.loads(run.stdout)
    assert found["before"] > 1000  # pages of an array of 64 MB
    assert found["inside"] < 100
    assert found["returned inside"] < 64
    assert found["returned after"] > 200
    assert found["after"] > 1000


def test_an_error_inside_passes_through() -> None:
    with pytest.raises(KeyError), keeping_memory():
        raise KeyError
