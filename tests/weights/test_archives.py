"""Zip archives: sizes, checksums and byte order are checked before a byte is believed."""

from __future__ import annotations

import io
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from vitrail.errors import CheckpointError
from vitrail.weights.reading.pickles import read_pickle
from weights import evil
from weights.pickle_files import LEGACY, TENSOR, refused, write


def test_a_flipped_bit_is_found(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    rows = torch.randn(6, 40)
    torch.save({"whole": rows, "part": rows[2:4], "other": torch.ones(3)}, path)
    data = bytearray(path.read_bytes())
    at = data.index(rows.numpy().tobytes())
    data[at + 5] ^= 1
    path.write_bytes(data)
    ours = read_pickle(path)
    assert ours["other"].read().tolist() == [1.0, 1.0, 1.0]
    for name in ("part", "whole"):
        with pytest.raises(CheckpointError, match="checksum"):
            ours[name].read()


def test_torch_may_be_told_to_write_no_checksums(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    torch.serialization.set_crc32_options(False)
    try:
        torch.save({"a": torch.arange(3.0)}, path)
    finally:
        torch.serialization.set_crc32_options(True)
    assert read_pickle(path)["a"].read().tolist() == [0.0, 1.0, 2.0]


def test_archives_of_more_than_four_gigabytes_keep_their_sizes_elsewhere(tmp_path: Path) -> None:
    values = np.arange(4, dtype="<f4").tobytes()
    data = evil.zip64_bytes({"a/data.pkl": evil.weights(TENSOR), "a/byteorder": b"little", "a/data/0": values})
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.read("a/data/0") == values  # another reader agrees that it is sound
    assert read_pickle(write(tmp_path / "x.pt", data))["weight0"].read().tolist() == [0.0, 1.0, 2.0, 3.0]
    lie = data.replace(struct.pack("<2Q", 16, 16), struct.pack("<2Q", 2**50, 2**50))
    refused(write(tmp_path / "y.pt", lie), "tampered")
    refused(write(tmp_path / "z.pt", data.replace(struct.pack("<2H", 1, 24), struct.pack("<2H", 2, 24))), "tampered")


def test_a_big_endian_zip_is_refused(tmp_path: Path) -> None:
    data = evil.zip_bytes({"a/data.pkl": LEGACY, "a/byteorder": b"big", "a/data/0": bytes(16)})
    refused(write(tmp_path / "x.pt", data), "big-endian")
