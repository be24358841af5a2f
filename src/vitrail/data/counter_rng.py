"""Random numbers that are functions of (seed, stream, epoch, index): the same whoever asks, and whenever."""

from __future__ import annotations

import hashlib

import numpy as np

from vitrail.types import Array

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def key(seed: int, stream: str, epoch: int = 0) -> int:
    """A 64-bit number for one use of randomness in one epoch."""
    digest = hashlib.blake2b(f"{seed}/{stream}/{epoch}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def uniform(seed: int, stream: str, epoch: int, indices: Array, count: int) -> Array:
    """`count` numbers from 0 to under 1 for every index: float64 (n, count)."""
    place = indices.astype(np.uint64)[:, None] * np.uint64(count) + np.arange(count, dtype=np.uint64)
    with np.errstate(over="ignore"):
        mixed = _mix(np.uint64(key(seed, stream, epoch)) + (place + np.uint64(1)) * _GOLDEN)
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(values: Array) -> Array:
    """The finaliser of SplitMix64: every bit of the result depends on every bit of the value."""
    values = (values ^ (values >> np.uint64(30))) * _FIRST
    values = (values ^ (values >> np.uint64(27))) * _SECOND
    return np.asarray(values ^ (values >> np.uint64(31)))
