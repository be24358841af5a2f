"""Pickles written and refused: one that is sound, and what a refusal must say."""

from __future__ import annotations

from pathlib import Path

import pytest

from vitrail.errors import CheckpointError
from vitrail.weights.reading.pickles import read_pickle
from weights import evil

TENSOR = evil.tensor((4,), (1,))
LEGACY = evil.weights(TENSOR)  # the pickle of the older format


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def refused(path: Path, *words: str) -> str:
    with pytest.raises(CheckpointError) as caught:
        read_pickle(path)
    message = str(caught.value)
    assert any(word in message for word in words), message
    assert message.startswith(str(path))
    assert len(message) < 600 + len(str(path))
    return message
