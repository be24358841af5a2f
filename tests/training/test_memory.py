"""Memory that is freed inside stays for the next step, and goes back afterwards."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import pytest
import torch

from vitrail.training.memory import keeping_memory

MB = 1 << 20
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's own")


def _faults() -> int:
    """Pages that the system had to hand out for an array of 64 MB."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(16 * MB)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def _resident() -> int:
    words = Path("/proc/self/statm").read_text().split()
    return int(words[1]) * resource.getpagesize()


@linux
def test_the_second_array_of_a_size_costs_no_pages() -> None:
    assert _faults() > 1000
    with keeping_memory():
        _faults()
        assert _faults() < 100
    assert _faults() > 1000


@linux
def test_what_was_kept_goes_back() -> None:
    with keeping_memory():
        kept = [torch.ones(16 * MB) for _ in range(4)]
        most = _resident()
        kept.clear()
        assert _resident() > most - 64 * MB
    assert _resident() < most - 200 * MB


@linux
def test_an_error_inside_ends_it_too() -> None:
    with pytest.raises(KeyError), keeping_memory():
        raise KeyError
    assert _faults() > 1000
