"""What a file that holds no weights seems to be, by its first bytes, its text, its name or its members."""

from __future__ import annotations

import pytest

from vitrail.weights.reading.sniff import name_archive, name_suspect, name_tree

HEADS = {
    b"": "is empty",
    bytes(64): "nothing but zero bytes",
    b"version https://git-lfs.github.com/spec/v1": "git-LFS pointer",
    b"\x89HDF\r\n\x1a\n": "HDF5 file",
    b"\x1f\x8b\x08": "gzip file",
    b"RIFF\0\0\0\0WEBPVP8 ": "image (WebP)",
    bytes(1) * 257 + b"ustar": "tar archive",
    b"<!DOCTYPE html><html>": "web page",
    b'{"error": "not found"}': "is JSON",
    b"weights are elsewhere\n": "is text",
    b"\x08\x01\x12\x04abcd": "TensorFlow SavedModel",
    b"\x08\x07\x12\x04abcd": "ONNX model",
    b"\x80\x04\x95\0\0\0\0\0": "a pickle of something other than weights",
    b"\xfe\xed\xfa\xce\xff\xff": "of no kind known here (it starts with fe ed fa ce ff ff)",
}


@pytest.mark.parametrize("head", HEADS, ids=HEADS.values())
def test_by_the_first_bytes(head: bytes) -> None:
    assert HEADS[head] in name_suspect(head, "model.bin")


def test_by_name_by_members_and_by_values() -> None:
    assert "TensorFlow checkpoint" in name_suspect(b"\xfe\xfe\xfe", "model.data-00000-of-00001")
    for members, words in (
        (["net/code/a.py", "net/data.pkl"], "TorchScript"),
        (["archive_format", "data.json"], "torch.export"),
        (["model.h5"], "Keras"),
        (["[Content_Types].xml"], "office document"),
        (["a.pth"], "with weights in it"),
        (["a.txt"], "something else ('a.txt')"),
        ([], "something else (nothing)"),
    ):
        assert words in name_archive(members)
    assert "optimiser" in str(name_tree({"state": {}, "param_groups": []}))
    assert name_tree({"weight": 1}) is None
    assert "a pickle of plain values" in name_suspect(b"\x80", "a.pt", {"epoch": 3})
