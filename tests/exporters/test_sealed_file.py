"""Files are sealed by a checksum that outlives versions, and stay the same file while they are looked at."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest

from vitrail.errors import CheckpointError
from vitrail.exporters.sealed_file import PIECE, Seal, digest_of, mapped


def test_a_checksum_stays_what_it_was() -> None:
    """Files outlive versions: a SHA-256 over those of pieces of 8 MiB, each part in pieces of its own."""

    def sha(*pieces: bytes) -> str:
        return hashlib.sha256(b"".join(hashlib.sha256(piece).digest() for piece in pieces)).hexdigest()

    long = bytes(range(256)) * 40_000  # 10,240,000 bytes
    assert digest_of(long) == sha(long[: 8 << 20], long[8 << 20 :])
    assert digest_of(b"a", long, b"b") == sha(b"a", long[: 8 << 20], long[8 << 20 :], b"b")
    assert digest_of(long[: 8 << 20]) == sha(long[: 8 << 20])
    assert digest_of(b"") == sha()


def test_the_checksum_is_that_of_all_pieces() -> None:
    raw = np.random.default_rng(0).bytes(2 * PIECE + 5)
    pieces = (raw[:PIECE], raw[PIECE : 2 * PIECE], raw[2 * PIECE :])
    by_hand = hashlib.sha256(b"".join(hashlib.sha256(piece).digest() for piece in pieces)).hexdigest()
    assert digest_of(raw) == by_hand
    assert digest_of(raw[:PIECE], raw[PIECE:]) == by_hand
    assert digest_of(raw[:7], raw[7:20]) != digest_of(raw[:8], raw[8:20])  # nothing may move from one to the other
    assert digest_of(b"x") == hashlib.sha256(hashlib.sha256(b"x").digest()).hexdigest()


def test_a_seal_is_of_what_stands_before_it_and_beside_it() -> None:
    seal = Seal(b"<", b">", "is wrong")
    good = memoryview(b"body" + seal.of(b"body", b"beside"))
    assert len(good) == 4 + seal.size
    seal.check(good, "x", "again", memoryview(b"beside"))
    with pytest.raises(CheckpointError, match="x is wrong: its checksum is [0-9a-f]{64}, expected [0-9a-f]{64}: again"):
        seal.check(good, "x", "again", memoryview(b"besides"))
    for cut in (good[:-1], good[:20], good[:0]):
        with pytest.raises(CheckpointError, match="x has no checksum at its end: .*: again"):
            seal.check(cut, "x", "again", memoryview(b"beside"))


@pytest.mark.fault("W16")
def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    """Written over in place, made longer, or exchanged for another."""
    path = tmp_path / "a.onnx"

    def anew() -> None:
        path.write_bytes(b"one")
        os.utime(path, ns=(0, 1_000_000_000))

    def over() -> None:
        path.write_bytes(b"two")
        os.utime(path, ns=(0, 2_000_000_000))

    def longer() -> None:
        path.write_bytes(b"longer")
        os.utime(path, ns=(0, 1_000_000_000))

    def exchanged() -> None:
        (tmp_path / "b").write_bytes(b"two")
        os.utime(tmp_path / "b", ns=(0, 1_000_000_000))
        os.replace(tmp_path / "b", path)

    anew()
    with mapped(path) as data:
        assert bytes(data) == b"one"
    for change in (over, longer, exchanged):
        anew()
        with pytest.raises(CheckpointError, match="was changed while being read"), mapped(path):
            change()
