"""Files of arrays, read and written as numpy does it; bad ones are refused before they cost anything."""

from __future__ import annotations

import io
import os
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from vitrail.errors import CheckpointError, InputError
from vitrail.weights.reading.npz_arrays import read_npz, write_npz
from weights import evil

KINDS = ("<f8", "<f4", "<f2", "<i8", "<i4", "<i2", "|i1", "|u1", "|b1", "<u2", "<u4", "<u8", "<c8", "<c16")


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    found = {f"kinds/{kind[1:]}": (9 * rng.standard_normal((3, 4))).astype(kind) for kind in KINDS if kind != "|b1"}
    found |= {
        "bools": rng.standard_normal((5,)) > 0,
        "Transformer/encoderblock_0/LayerNorm_0/scale": rng.standard_normal(7).astype("f4"),
        "scalar": np.float32(2.5) * np.ones(()),
        "empty": np.zeros((0, 3), "f4"),
        "columns": np.asfortranarray(rng.standard_normal((2, 3, 4))).astype("f4", order="F"),
        "one column": np.asfortranarray(rng.standard_normal((5, 1)).astype("f4")),
    }
    assert found["columns"].flags.f_contiguous
    return found


@pytest.mark.row("001.08")
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_are_those_that_numpy_wrote(tmp_path: Path, save: object) -> None:
    path, values = tmp_path / "x.npz", arrays()
    save(path, **values)  # type: ignore[operator]
    ours = read_npz(path)
    assert list(ours) == list(values)
    for name, value in values.items():
        tensor = ours[name].read()
        assert ours[name].shape == tensor.shape == value.shape, name
        assert ours[name].dtype == tensor.dtype
        assert tensor.is_contiguous()
        assert tensor.numpy().dtype == value.dtype
        assert tensor.numpy().tobytes() == value.tobytes(), name
    assert ours["columns"].read()[1, 2, 3] == values["columns"][1, 2, 3]


def test_arrays_without_a_kind_are_bfloat16(tmp_path: Path) -> None:
    """numpy has no bfloat16: big_vision's files hold two-byte blanks."""
    value = torch.tensor([[1.0, -2.5], [3.140625, 1e30]], dtype=torch.bfloat16)
    blanks = value.view(torch.int16).numpy().view("V2")
    np.savez(tmp_path / "x.npz", **{"params/img/head/kernel": blanks})
    stored = read_npz(tmp_path / "x.npz")["params/img/head/kernel"]
    assert stored.dtype == torch.bfloat16
    assert torch.equal(stored.read(), value)


def test_names_with_backslashes_are_those_of_windows(tmp_path: Path) -> None:
    data = evil.zip_bytes({"Transformer\\posembed\\w.npy": evil.npy((1,), data=struct.pack("<f", 7.0))})
    ours = read_npz(write(tmp_path / "x.npz", data))
    assert {name: each.read().tolist() for name, each in ours.items()} == {"Transformer/posembed/w": [7.0]}


@pytest.mark.row("001.08")
def test_what_is_written_is_what_numpy_and_we_read(tmp_path: Path) -> None:
    tensors = {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in arrays().items()}
    tensors["view"] = torch.arange(12.0).reshape(3, 4).t()
    tensors["parameter"] = torch.nn.Parameter(torch.randn(2, 2))
    tensors["half"] = torch.randn(3, 2).bfloat16()
    path = tmp_path / "x.npz"
    write_npz(path, tensors)
    ours = read_npz(path)
    with np.load(path, allow_pickle=False) as theirs:
        assert list(ours) == list(theirs) == list(tensors)
        for name, value in tensors.items():
            value = value.detach()
            assert torch.equal(ours[name].read(), value), name
            if name == "half":
                assert theirs[name].dtype == np.dtype("V2")
                assert theirs[name].tobytes() == value.view(torch.int16).numpy().tobytes()
            else:
                assert np.array_equal(theirs[name], value.numpy()), name
    assert [each.name for each in tmp_path.iterdir()] == ["x.npz"]


def test_the_same_tensors_give_the_same_bytes(tmp_path: Path) -> None:
    tensors = {"a": torch.arange(5.0), "b/c": torch.ones(2, 2)}
    write_npz(tmp_path / "x.npz", tensors)
    os.utime(tmp_path / "x.npz", (1, 1))
    write_npz(tmp_path / "y.npz", tensors)
    data = (tmp_path / "x.npz").read_bytes()
    assert data == (tmp_path / "y.npz").read_bytes()
    assert data.index(np.arange(5, dtype="<f4").tobytes()) > 0  # not compressed


def test_an_older_file_stays_if_writing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.npz"
    write_npz(path, {"a": torch.ones(1)})

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match="No space left"):
        write_npz(path, {"a": torch.zeros(1)})
    assert read_npz(path)["a"].read().tolist() == [1.0]
    assert [each.name for each in tmp_path.iterdir()] == ["x.npz"]


@pytest.mark.parametrize("name", ["", "../x", "a//b", "/a", "a\\b", "a\nb", "x" * 501, "a/./b"])
def test_odd_names_are_not_written(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="name of an array"):
        write_npz(tmp_path / "x.npz", {name: torch.ones(1)})
    assert list(tmp_path.iterdir()) == []


def test_kinds_that_numpy_lacks_are_not_written(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="float8"):
        write_npz(tmp_path / "x.npz", {"a": torch.ones(1).to(torch.float8_e5m2)})


def test_a_flipped_bit_is_found(tmp_path: Path) -> None:
    value = torch.randn(200)
    write_npz(tmp_path / "x.npz", {"a": value, "b": torch.ones(2)})
    data = bytearray((tmp_path / "x.npz").read_bytes())
    data[data.index(value.numpy().tobytes()) + 99] ^= 16
    ours = read_npz(write(tmp_path / "y.npz", bytes(data)))
    assert ours["b"].read().tolist() == [1.0, 1.0]
    with pytest.raises(CheckpointError, match="checksum"):
        ours["a"].read()


@pytest.mark.fault("W14")
def test_w14_a_file_cut_while_open_is_an_error(tmp_path: Path) -> None:
    write_npz(tmp_path / "x.npz", {"a": torch.ones(5000)})
    ours = read_npz(tmp_path / "x.npz")
    os.truncate(tmp_path / "x.npz", 4000)
    with pytest.raises(CheckpointError, match="cut short|changed"):
        ours["a"].read()


# Bad files


def _pickled() -> bytes:
    file = io.BytesIO()
    np.save(file, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    return file.getvalue()


def _npz(*members: bytes, names: tuple[str, ...] = ("a.npy", "b.npy")) -> bytes:
    return evil.zip_bytes(dict(zip(names, members, strict=False)))


ONE = evil.npy((1,), data=bytes(4))
BAD = {
    "bomb": (evil.zip_bytes({"a.npy": evil.npy((2**22,), data=bytes(2**24))}, zipfile.ZIP_DEFLATED), "unpack to"),
    "4 TB": (_npz(evil.npy((2**40,), data=bytes(64))), "4,398,046,511,104 bytes"),
    "overflow": (_npz(evil.npy((2**32, 2**32), data=bytes(64))), "too large"),
    "huge axis": (_npz(evil.npy((2**70, 0))), "no list of whole numbers"),
    "objects": (_npz(_pickled()), "Python objects"),
    "objects by hand": (_npz(evil.npy((1,), descr="|O", data=bytes(8))), "Python objects"),
    "objects in a structure": (_npz(evil.npy((1,), descr=[("a", "|O")], data=bytes(8))), "structured"),
    "structure": (_npz(evil.npy((1,), descr=[("a", "<f4")], data=bytes(4))), "structured"),
    "text": (_npz(evil.npy((1,), descr="<U4", data=bytes(16))), "<U4"),
    "big-endian": (_npz(evil.npy((1,), descr=">f4", data=bytes(4))), "big-endian"),
    "date": (_npz(evil.npy((1,), descr="<M8[s]", data=bytes(8))), "M8"),
    "pickle renamed": (evil.program(evil.by_reduce(evil.Target("os", "system", ("x",)), 2), 2), "pickle"),
    "pickle inside": (_npz(evil.program(b"N", 2) * 20), "no array"),
    "parent folder": (_npz(ONE, names=("../a.npy",)), "tampered"),
    "absolute": (_npz(ONE, names=("/a.npy",)), "tampered"),
    "windows parent": (_npz(ONE, names=("..\\a.npy",)), "tampered"),
    "drive": (_npz(ONE, names=("C:\\a.npy",)), "tampered"),
    "twice": (_npz(ONE, ONE, names=("a.npy", "b.npy")).replace(b"b.npy", b"a.npy"), "two members"),
    "twice by separator": (_npz(ONE, ONE, names=("a/b.npy", "a\\b.npy")), "two arrays have the name 'a/b'"),
    "long header": (_npz(evil.npy((1,), data=bytes(4), length=2**20)), "header of 1,048,"),
    "deep header": (_npz(evil.npy_raw("(" * 60_000)), "makes no sense"),
    "header with a call": (_npz(evil.npy_raw("__import__('os').system('x')")), "makes no sense"),
    "header beyond the member": (_npz(b"\x93NUMPY\1\0\xff\xff" + b" " * 100), "claims a header"),
    "version 9": (_npz(b"\x93NUMPY\x09\0" + ONE[8:]), "no array"),
    "shape of text": (_npz(evil.npy(("1",), data=bytes(4))), "no list of whole numbers"),
    "shape of true": (_npz(evil.npy((True,), data=bytes(4))), "no list of whole numbers"),
    "negative shape": (_npz(evil.npy((-1,), data=bytes(4))), "no list of whole numbers"),
    "order of text": (_npz(evil.npy((1,), data=bytes(4), columns="no")), "neither True nor False"),
    "entry missing": (_npz(evil.npy_raw("{'descr': '<f4', 'shape': ()}\n" + " " * 34) + bytes(4)), "expected descr"),
    "too few bytes": (_npz(evil.npy((2,), data=bytes(4))), "takes 8 bytes, 4 are there"),
    "too many bytes": (_npz(evil.npy((1,), data=bytes(8))), "takes 4 bytes, 8 are there"),
    "forty axes": (_npz(evil.npy((1,) * 40, data=bytes(4))), "too large"),
    "something else": (_npz(ONE, b"hello", names=("a.npy", "readme.txt")), "zip archive of something else"),
    "encrypted": (b"".join((_npz(ONE)[:6], b"\1\0", _npz(ONE)[8:])), "contradict"),
    "lone array": (ONE, r"lone array \(.npy\)"),
    "size lie": (
        _npz(ONE).replace(struct.pack("<II", len(ONE), len(ONE)), struct.pack("<II", 2**31, 2**31)),
        "tampered",
    ),
    "nothing": (b"", "is empty"),
}


@pytest.mark.fault("W5")
@pytest.mark.parametrize("name", BAD)
def test_w5_bad_files_are_refused_before_anything_is_taken_from_them(tmp_path: Path, name: str) -> None:
    data, words = BAD[name]
    with pytest.raises(CheckpointError, match=words) as caught:
        read_npz(write(tmp_path / "x.npz", data))
    assert str(caught.value).startswith(str(tmp_path / "x.npz"))
    assert len(str(caught.value)) < 600


def _archive(body: bytes, *entries: bytes) -> bytes:
    """A zip of these members' bytes, with a directory of these entries."""
    directory = b"".join(entries)
    numbers = (0, 0, len(entries), len(entries), len(directory), len(body), 0)
    return body + directory + b"PK\5\6" + struct.pack("<4H2IH", *numbers)


def _parts(name: str, member: bytes) -> tuple[bytes, bytes]:
    """A member's bytes with its own header, and its entry in the directory."""
    whole = evil.zip_bytes({name: member})
    start = whole.rindex(b"PK\1\2")
    return whole[:start], whole[start : whole.rindex(b"PK\5\6")]


def _moved(entry: bytes, place: int) -> bytes:
    return entry[:42] + struct.pack("<I", place) + entry[46:]


@pytest.mark.fault("W5")
def test_w5_members_that_share_bytes_or_hide_some_are_refused(tmp_path: Path) -> None:
    """One member inside the bytes of another, as bombs have it; and bytes between members that no entry names."""
    inner, inner_entry = _parts("b.npy", ONE)
    outer, outer_entry = _parts("a.npy", evil.npy((len(inner),), descr="|u1", data=inner))
    path = tmp_path / "x.npz"
    honest = _archive(outer + inner, outer_entry, _moved(inner_entry, len(outer)))
    assert read_npz(write(path, honest))["b"].read().tolist() == [0.0]
    shared = _archive(outer, outer_entry, _moved(inner_entry, outer.index(inner)))
    with pytest.raises(CheckpointError, match="'b.npy' overlaps another member"):
        read_npz(write(path, shared))
    hidden = _archive(outer + bytes(100) + inner, outer_entry, _moved(inner_entry, len(outer) + 100))
    with pytest.raises(CheckpointError, match="'b.npy' has hidden bytes before it"):
        read_npz(write(path, hidden))
    last = _archive(outer + bytes(100), outer_entry)
    with pytest.raises(CheckpointError, match="hidden bytes stand before it"):
        read_npz(write(path, last))


@pytest.mark.fault("W5")
@pytest.mark.parametrize("field", [14, 18, 22], ids=["checksum", "packed size", "size"])
def test_w5_a_member_whose_own_header_says_otherwise_is_refused(tmp_path: Path, field: int) -> None:
    """Readers that believe the header and readers that believe the directory would see two different files."""
    data = bytearray(_npz(ONE))
    data[field] ^= 1
    with pytest.raises(CheckpointError, match="'a.npy' and the directory contradict each other"):
        read_npz(write(tmp_path / "x.npz", bytes(data)))


@pytest.mark.fault("W4", "W5")
def test_w5_a_member_that_lies_about_its_size_unpacks_no_further(tmp_path: Path) -> None:
    """The directory says 528 bytes; the compressed ones would go on for 64 MB."""
    honest = evil.npy((100,), data=bytes(400))
    bomb = honest + bytes(2**26)
    data = evil.zip_bytes({"a.npy": bomb}, zipfile.ZIP_DEFLATED)
    data = data.replace(struct.pack("<I", len(bomb)), struct.pack("<I", len(honest)))
    ours = read_npz(write(tmp_path / "x.npz", data))
    with pytest.raises(CheckpointError, match="does not unpack to"):
        ours["a"].read()


def test_compressed_weights_that_compress_too_well_are_refused(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "x.npz", a=np.zeros(100_000, "f4"))
    with pytest.raises(CheckpointError, match="without compression"):
        read_npz(tmp_path / "x.npz")
