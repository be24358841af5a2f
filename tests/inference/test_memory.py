"""Freed memory stays for the next step and goes back afterwards, or goes back at once; in processes of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from vitrail.inference import memory
from vitrail.inference.memory import keeping_memory, returning_memory

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


class Library:
    """As much of glibc as is used: what it is told, in order."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []
        for name in ("mallopt", "malloc_trim", "malloc", "free", "madvise"):
            setattr(self, name, self.function(name))

    def function(self, name: str) -> Any:
        def called(*given: int) -> int:
            self.told.append((name, *given))
            return 4096 if name == "malloc" else 1

        return called


TRIM, MMAP, MMAPS = -1, -3, -4  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD and M_MMAP_MAX of malloc.h
MB = 1 << 20


def test_options_are_set_and_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever happens inside; and what is free by then goes back to the system."""
    library = Library()
    monkeypatch.setattr(memory, "_glibc", lambda: library)

    def fail() -> None:
        library.told.append(("inside",))
        raise KeyError

    with pytest.raises(KeyError), keeping_memory():
        fail()
    assert library.told == [
        ("mallopt", TRIM, 2**31 - 1),
        ("mallopt", MMAPS, 0),
        ("malloc", 1024 * MB),
        ("free", 4096),
        ("madvise", 2 * MB, 1020 * MB, 14),  # from the first huge page on, MADV_HUGEPAGE
        ("inside",),
        ("mallopt", TRIM, 128 * 1024),
        ("mallopt", MMAPS, 65536),
        ("malloc_trim", 0),
    ]
    library.told.clear()
    with pytest.raises(KeyError), returning_memory():
        raise KeyError
    assert library.told == [
        ("mallopt", MMAP, MB),
        ("mallopt", MMAP, 32 * MB),
        ("mallopt", TRIM, 64 * MB),
        ("malloc_trim", 0),
    ]
    monkeypatch.setattr(memory, "_glibc", lambda: None)  # another C library: nothing is done
    with keeping_memory(), returning_memory():
        pass


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
import json, mmap
from pathlib import Path
from vitrail.inference.memory import keeping_memory

MB = 1 << 20

def huge():
    lines = Path("/proc/self/smaps").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("AnonHugePages:")) // 1024

asked = mmap.mmap(-1, 68 * MB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
asked.madvise(mmap.MADV_HUGEPAGE)
before, piece = huge(), b"x" * MB
for _ in range(68):
    asked.write(piece)
found = {"asked": huge() - before}
with keeping_memory():
    before = huge()
    kept = bytearray(b"x") * (64 * MB)
    found["kept"] = huge() - before
print(json.dumps(found))
"""
SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.mark.skipif(
    not SETTING.exists() or "[never]" in SETTING.read_text(), reason="this system has no transparent huge pages"
)
def test_memory_that_is_kept_lies_in_huge_pages() -> None:
    """Of 64 MB, beside memory that asks for them by itself: a system whose memory is in pieces has few to give."""
    run = subprocess.run([sys.executable, "-c", HUGE], capture_output=True, text=True, check=True)
    found = json.loads(run.stdout)
    if found["asked"] < 64:
        pytest.skip(f"this system has huge pages for {found['asked']} of 68 MB only")
    assert found["kept"] >= 48
