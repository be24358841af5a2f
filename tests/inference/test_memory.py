"""Freed memory stays for the next step and goes back afterwards, or goes back at once; in processes of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from vitrail.inference.memory import keeping_memory

PROGRAM = """
import json, resource
from pathlib import Path
import torch
from vitrail.inference.memory import keeping_memory

MB = 1 << 20

def faults(values=16 * MB):
    array = torch.empty(values)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    array[: 16 * MB] = 1
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
found["after"] = faults(400 * MB)  # more than was ever kept
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


HOLES = """
import json, resource
from pathlib import Path
import numpy
from vitrail.inference.memory import returning_memory

MB = 1 << 20

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() // MB

def returned():
    arrays = [numpy.ones(2 * MB, numpy.uint8) for _ in range(60)]
    most = resident()
    arrays[::2] = [None] * 30  # holes between those that stay
    return most - resident()

numpy.ones(30 * MB, numpy.uint8)  # freed: the C library takes arrays of this size for usual from here on
found = {"before": returned()}
with returning_memory():
    found["inside"] = returned()
found["after"] = returned()
print(json.dumps(found))
"""


def test_large_arrays_go_back_at_once_inside() -> None:
    run = subprocess.run([sys.executable, "-c", HOLES], capture_output=True, text=True, check=True)
    found = json.loads(run.stdout)
    assert found["before"] < 10
    assert found["inside"] >= 55  # of 60 MB
    assert found["after"] < 10


HUGE = """
import json
from pathlib import Path
import torch
from vitrail.inference.memory import keeping_memory

def huge():
    lines = Path("/proc/self/smaps").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("AnonHugePages:")) // 1024

with keeping_memory():
    before = huge()
    kept = torch.ones(16 << 20)
    print(json.dumps(huge() - before))
"""
SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.mark.skipif(
    not SETTING.exists() or "[never]" in SETTING.read_text(), reason="this system has no transparent huge pages"
)
def test_memory_that_is_kept_lies_in_huge_pages() -> None:
    run = subprocess.run([sys.executable, "-c", HUGE], capture_output=True, text=True, check=True)
    assert json.loads(run.stdout) >= 48  # of 64 MB
