"""Torch files: the right values from honest ones, and nothing run, believed or allocated for the others."""

from __future__ import annotations

import argparse
import ast
import collections
import importlib
import io
import os
import pathlib
import pickle
import struct
import threading
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import vitrail
from vitrail.checkpoint.safetensors_io import StoredTensor
from vitrail.errors import CheckpointError
from vitrail.files import ReadOnlyFile
from vitrail.weights.reading.pickles import read_pickle
from vitrail.weights.reading.unpickler import Inert
from weights import evil

FORMS = {"zip": {}, "legacy": {"_use_new_zipfile_serialization": False}}
KINDS = (
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16),
    *(torch.int8, torch.uint8, torch.bool, torch.complex64, torch.complex128),
)


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def same(ours: Any, theirs: Any) -> bool:
    """Whether values are equal, tensors bit by bit; objects are compared with the plain values in their place."""
    if isinstance(theirs, torch.Tensor):
        assert isinstance(ours, StoredTensor)
        value = ours.read()
        kinds = (value.dtype, value.shape, ours.dtype, torch.Size(ours.shape)) == (theirs.dtype, theirs.shape) * 2
        theirs = theirs.detach().contiguous()
        return kinds and value.is_contiguous() and bits(value) == bits(theirs)
    if isinstance(theirs, argparse.Namespace):
        theirs = vars(theirs)
    if isinstance(theirs, dict):
        return list(ours) == list(theirs) and all(same(ours[key], theirs[key]) for key in theirs)
    if isinstance(theirs, set | frozenset):
        return set(ours) == theirs
    if isinstance(theirs, list | tuple):
        return len(ours) == len(theirs) and all(same(a, b) for a, b in zip(ours, theirs, strict=True))
    if isinstance(theirs, pathlib.PurePath | torch.device | torch.torch_version.TorchVersion):
        theirs = str(theirs)
    return bool(ours == theirs)


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.reshape(-1).view(torch.uint8).numpy().tobytes()


def nested() -> dict[str, Any]:
    """Everything that training programs are known to leave beside their weights."""
    rows = torch.arange(24.0).reshape(4, 6)
    network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    marked = torch.randn(3)
    marked.note = "a tensor with an attribute"  # type: ignore[attr-defined]
    return {
        "kinds": {str(kind): (torch.randn(2, 3) * 9).to(kind) for kind in KINDS},
        "newer kinds": {
            str(kind): torch.arange(6).to(kind)
            for kind in (torch.uint16, torch.uint32, torch.uint64, torch.float8_e5m2)
        },
        "state_dict": network.state_dict(),
        "shared": [rows, rows[1:3], rows.t(), rows[:, 2], rows[::2, 1::2], rows.permute(1, 0)[2:]],
        "parameter": nn.Parameter(torch.randn(2, 2)),
        "marked": marked,
        "scalar": torch.tensor(3.5),
        "empty": [torch.zeros(0), torch.zeros(0, 7), torch.zeros(3, 0, 2)],
        "channels last": torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
        "args": argparse.Namespace(lr=1e-3, data=pathlib.PurePosixPath("/data/in"), sizes=[224, 384], model=None),
        "numpy": [np.float64(0.25), np.float32(-1.5), np.int64(-7), np.uint8(200), np.bool_(True), np.float16(2.0)],
        "plain": [
            None,
            True,
            False,
            0,
            255,
            65_535,
            -1,
            2**31,
            -(2**70),
            1.5,
            "é😀",
            b"\x00\xff",
            (1, (2, ())),
            {1, 2},
        ],
        "frozen": frozenset({"a"}),
        "complex": 1 + 2j,
        "bytes": bytearray(b"abc"),
        "counter": collections.Counter({"a": 2}),
        "default": collections.defaultdict(list, a=[1]),
        "size": torch.zeros(2, 5).size(),
        "device": torch.device("cpu"),
        "version": torch.torch_version.TorchVersion("2.1.0"),
        "dtype": torch.float16,
        "keys": {1: "a", None: "b", 2.5: "c", True + 5: "d"},
    }


# Honest files


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("form", FORMS)
def test_values_are_those_that_torch_reads(tmp_path: Path, form: str, protocol: int) -> None:
    path = tmp_path / "x.pt"
    values = nested()
    newer = values.pop("newer kinds") if form == "legacy" else {}  # torch itself cannot read these there
    torch.save(values, path, pickle_protocol=protocol, **FORMS[form])
    theirs = torch.load(path, weights_only=False)  # a file of our own making
    ours = read_pickle(path)
    for name, value in theirs.items():
        assert same(ours[name], value), name
    assert list(ours) == list(theirs)
    torch.save(newer, path, pickle_protocol=protocol, **FORMS[form])
    assert same(read_pickle(path), newer)


def test_a_comparison_can_fail(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    torch.save({"a": torch.tensor([0.0, 1.0])}, path)
    ours = read_pickle(path)
    assert not same(ours, {"a": torch.tensor([-0.0, 1.0])})
    assert not same(ours, {"a": torch.tensor([[0.0, 1.0]])})
    assert not same(ours, {"b": torch.tensor([0.0, 1.0])})


def test_the_real_file_reads_as_torch_reads_it(fixtures: Path) -> None:
    path = fixtures / "vit_mnist_d64_l6_h4_p4.pt"
    theirs = torch.load(path, weights_only=True, map_location="cpu")
    assert len(theirs) == 74
    assert same(read_pickle(path), theirs)


def test_python_2_wrote_texts_as_bytes(tmp_path: Path) -> None:
    steps = evil.tensor((2, 2), (2, 1)).replace(b"X\x07\0\0\0storage", b"U\x07storage")
    assert b"U\x07storage" in steps
    values = evil.program(b"(U\x06weight" + steps + b"U\x04name" + b"U\x02\xff\xfed", 2)
    ours = read_pickle(write(tmp_path / "x.pt", evil.torch_zip(values, {"0": np.arange(4, dtype="<f4").tobytes()})))
    assert ours["weight"].read().tolist() == [[0.0, 1.0], [2.0, 3.0]]
    assert ours["name"] == "ÿþ"


def test_each_tensor_has_memory_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    rows = torch.arange(6.0)
    torch.save({"all": rows, "some": rows[2:4]}, path)
    ours = read_pickle(path)
    first, second, third = ours["some"].read(), ours["some"].read(), ours["all"].read()
    first.zero_()
    assert second.tolist() == [2.0, 3.0]
    assert third.tolist() == rows.tolist()
    assert second.untyped_storage().nbytes() == 8  # no more than it shows


def test_nothing_is_read_before_it_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.pt"
    torch.save({"large": torch.zeros(2**22), "small": torch.ones(2)}, path)
    filled: list[int] = []  # bytes that were asked of the file, piece by piece
    fill = ReadOnlyFile.fill

    def counting(file: ReadOnlyFile, view: memoryview, start: int) -> None:
        filled.append(view.nbytes)
        fill(file, view, start)

    monkeypatch.setattr(ReadOnlyFile, "fill", counting)
    ours = read_pickle(path)
    assert ours["large"].shape == (2**22,)
    assert ours["small"].read().tolist() == [1.0, 1.0]
    assert 0 < sum(filled) < 100_000
    assert ours["large"].read().sum() == 0
    assert 2**24 <= sum(filled) < 2**24 + 100_000


def test_a_file_may_go_away_while_it_is_open(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    torch.save({"a": torch.arange(4.0)}, path)
    ours = read_pickle(path)
    os.replace(write(tmp_path / "y", b"something else"), path)
    assert ours["a"].read().tolist() == [0.0, 1.0, 2.0, 3.0]
    path.unlink()
    assert ours["a"].read().tolist() == [0.0, 1.0, 2.0, 3.0]


@pytest.mark.fault("W14")
@pytest.mark.parametrize("form", FORMS)
def test_w14_a_file_cut_or_changed_while_open_is_an_error(tmp_path: Path, form: str) -> None:
    path = tmp_path / "x.pt"
    torch.save({"a": torch.arange(40_000.0)}, path, **FORMS[form])
    ours = read_pickle(path)
    whole = path.read_bytes()
    os.truncate(path, 2000)
    with pytest.raises(CheckpointError, match="cut short while being read"):
        ours["a"].read()
    path.write_bytes(whole)
    os.utime(path, ns=(1, 1))
    with pytest.raises(CheckpointError, match="changed while being read|cut short"):
        ours["a"].read()


@pytest.mark.fault("W14")
def test_w14_a_file_truncated_from_a_thread_never_ends_the_process(tmp_path: Path) -> None:
    """Cut while it is being read, whenever the cut comes: right values before, our error after, nothing else."""
    path = tmp_path / "x.pt"
    torch.save({str(n): torch.arange(10_000.0) for n in range(50)}, path)
    ours = read_pickle(path)
    reading, cut = threading.Event(), threading.Event()

    def truncate() -> None:
        reading.wait()
        os.truncate(path, 100_000)
        cut.set()

    cutter = threading.Thread(target=truncate)
    cutter.start()
    read, errors, was_cut = 0, 0, False
    while not was_cut:
        was_cut = cut.is_set()  # then one round more, all of it after the cut
        for each in ours.values():
            try:
                assert each.read()[-1] == 9999.0
                read += 1
                assert not was_cut
            except CheckpointError:
                errors += 1
            reading.set()
    cutter.join()
    assert read > 0
    assert errors >= len(ours)


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
    data = evil.zip64_bytes({"a/data.pkl": evil.weights(_TENSOR), "a/byteorder": b"little", "a/data/0": values})
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.read("a/data/0") == values  # another reader agrees that it is sound
    assert read_pickle(write(tmp_path / "x.pt", data))["weight0"].read().tolist() == [0.0, 1.0, 2.0, 3.0]
    lie = data.replace(struct.pack("<2Q", 16, 16), struct.pack("<2Q", 2**50, 2**50))
    refused(write(tmp_path / "y.pt", lie), "tampered")
    refused(write(tmp_path / "z.pt", data.replace(struct.pack("<2H", 1, 24), struct.pack("<2H", 2, 24))), "tampered")


def test_tensors_saved_on_other_devices_read_here(tmp_path: Path) -> None:
    steps = evil.tensor((4,), (1,)).replace(b"torch\nFloat", b"torch.cuda\nFloat")
    path = write(tmp_path / "x.pt", evil.torch_zip(evil.weights(steps), {"0": np.arange(4, dtype="<f4").tobytes()}))
    assert read_pickle(path)["weight0"].read().tolist() == [0.0, 1.0, 2.0, 3.0]


def test_arrays_of_numpy_are_kept_as_blanks(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    torch.save({"a": torch.ones(1), "rng": np.random.RandomState(0).get_state()}, path)
    ours = read_pickle(path)
    assert ours["rng"][0] == "MT19937"
    assert isinstance(ours["rng"][1], Inert)
    assert ours["a"].read().tolist() == [1.0]


# Malicious files


def refused(path: Path, *words: str) -> str:
    with pytest.raises(CheckpointError) as caught:
        read_pickle(path)
    message = str(caught.value)
    assert any(word in message for word in words), message
    assert message.startswith(str(path))
    assert len(message) < 600 + len(str(path))
    return message


def forbid(monkeypatch: pytest.MonkeyPatch) -> None:
    """No unpickler of anyone's may be called."""

    def stop(*_: object, **__: object) -> None:
        raise AssertionError("an unpickler was used")

    for module, name in ((pickle, "load"), (pickle, "loads"), (pickle, "Unpickler"), (torch, "load"), (np, "load")):
        monkeypatch.setattr(module, name, stop)
    monkeypatch.setattr(importlib, "import_module", stop)


def test_the_payloads_work(tmp_path: Path) -> None:
    """Some of the malicious pickles in Python's own unpickler leave their canary: they are no dummies."""
    canary = tmp_path / "canary"
    live = {"os.system", "builtins.exec", "subprocess.call", "builtins.open", "os.mkdir", "builtins.eval"}
    found = set()
    for target in evil.targets(canary):
        if target.full not in live:
            continue
        for protocol in range(6):
            for step in (evil.by_reduce, evil.by_memory, evil.by_build):
                values = pickle.loads(evil.in_weights(step(target, protocol), protocol))
                assert canary.exists(), (target, protocol)
                found.add(target.full)
                canary.rmdir() if canary.is_dir() else canary.unlink()
                _close(values["state_dict"]["cls_token"])
    assert found == live


def _close(value: Any) -> None:
    value = getattr(value, "x", value)
    if hasattr(value, "close"):
        value.close()


@pytest.mark.fault("W1", "W15")
@pytest.mark.parametrize("forced", [False, True])
def test_w1_six_hundred_malicious_pickles_are_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forced: bool
) -> None:
    if forced:  # torch then trusts every file; we do not ask torch
        monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    forbid(monkeypatch)
    canary = tmp_path / "canary"
    count = 0
    for each in evil.pickles(canary):
        if forced and count % 7:
            count += 1
            continue
        path = write(tmp_path / each.name.replace("/", "_"), each.data)
        refused(path, *each.words)
        path.unlink()
        count += 1
    assert count == 600
    assert len({(target.module, target.name) for target in evil.targets(canary)}) == 40
    assert not canary.exists()


_REDUCED = evil.Target("os", "system", ("touch x",))
_TENSOR = evil.tensor((4,), (1,))


def _bypasses() -> dict[str, tuple[bytes, str]]:
    """Ideas that get past scanners, each with words of the refusal."""
    call, named, text, plain = evil.by_reduce(_REDUCED, 2), evil.named, evil.text, evil.plain
    whole = evil.program(call, 2)
    join = named("pathlib", "PosixPath", 2)
    honest = evil.weights(_TENSOR)
    data = {"0": bytes(16)}
    found: dict[str, tuple[bytes, str]] = {
        "memo never set": (evil.torch_zip(evil.program(b"h\x09.", 2)), "damaged"),
        "memo overwritten": (
            evil.torch_zip(
                evil.program(
                    named("collections", "OrderedDict", 2) + b"q\x010" + named("os", "system", 2) + b"q\x01.", 2
                )
            ),
            "os.system",
        ),
        "name assembled by a path": (
            evil.torch_zip(evil.program(text("os", 2) + join + plain(("sys", "tem"), 2) + b"R\x93", 2)),
            "os.sys/tem",
        ),
        "name assembled by a device": (
            evil.torch_zip(
                evil.program(named("torch", "device", 2) + plain(("os",), 2) + b"R" + text("system", 2) + b"\x93", 2)
            ),
            "os.system",
        ),
        "name of bytes": (evil.torch_zip(evil.program(b"C\x02osC\x06system\x93", 2)), "no text"),
        "name of a list": (evil.torch_zip(evil.program(b"]]\x93", 2)), "no text"),
        "dotted name": (
            evil.torch_zip(evil.program(named("collections", "OrderedDict.__init__.__globals__", 4), 4)),
            "__globals__",
        ),
        "dotted name of ours": (
            evil.torch_zip(evil.program(named("torch._utils", "_rebuild_tensor_v2.__globals__", 4), 4)),
            "__globals__",
        ),
        "getattr chain": (
            evil.torch_zip(evil.program(named("builtins", "getattr", 2) + named("os", "path", 2) + b".", 2)),
            "builtins.getattr",
        ),
        "lookalike letters": (evil.torch_zip(evil.program(named("\u043es", "system", 2), 2)), "\u043es.system"),
        "empty module": (evil.torch_zip(evil.program(named("", "eval", 2), 2)), ".eval"),
        "newline in a name": (evil.torch_zip(evil.program(named("os", "sys\ntem", 4), 4)), r"os.sys\ntem"),
        "escape codes in a name": (evil.torch_zip(evil.program(named("os", "\x1b[2Jx", 4), 4)), r"\x1b[2Jx"),
        "long name": (evil.torch_zip(evil.program(b"X\0\x01\0\0" + b"o" * 256 + text("x", 2) + b"\x93", 2)), "oooo..."),
        "call of a dict": (evil.torch_zip(evil.program(b"})R", 2)), "calls a dict"),
        "call of a tensor": (evil.torch_zip(evil.program(_TENSOR + b")R", 2), data), "calls a StoredTensor"),
        "call of a kind": (evil.torch_zip(evil.program(named("torch", "float32", 2) + b")R", 2)), "calls a dtype"),
        "call of a storage": (
            evil.torch_zip(evil.program(named("torch", "FloatStorage", 2) + b"I9\n\x85R", 2)),
            "calls",
        ),
        "call of object": (evil.torch_zip(evil.program(named("builtins", "object", 2) + b")R", 2)), "builtins.object"),
        "attributes of a name": (
            evil.torch_zip(evil.program(named("torch._utils", "_rebuild_tensor_v2", 2) + b"}b", 2)),
            "attributes of a Symbol",
        ),
        "attributes of a tensor": (
            evil.torch_zip(evil.program(_TENSOR + b"}b", 2), data),
            "attributes of a StoredTensor",
        ),
        "entries of a name": (
            evil.torch_zip(evil.program(named("collections", "OrderedDict", 2) + text("a", 2) + b"Ns", 2)),
            "no dict",
        ),
        "append to a tuple": (evil.torch_zip(evil.program(b")Na", 2)), "no list"),
        "set with a factory": (
            evil.torch_zip(
                evil.program(named("collections", "defaultdict", 2) + named("os", "system", 2) + b"\x85R", 2)
            ),
            "os.system",
        ),
        "typed tensor made by another": (
            evil.torch_zip(
                evil.program(
                    named("torch._tensor", "_rebuild_from_type_v2", 2)
                    + b"("
                    + named("torch", "Size", 2)
                    + named("torch", "Tensor", 2)
                    + plain(((1,), None), 2)[1:]
                    + b"R",
                    2,
                )
            ),
            "unusual way",
        ),
        "object of another class": (
            evil.torch_zip(
                evil.program(
                    named("copyreg", "_reconstructor", 2)
                    + b"("
                    + named("collections", "OrderedDict", 2)
                    + named("builtins", "object", 2)
                    + b"NtR",
                    2,
                )
            ),
            "unusual way",
        ),
        "encoding by name": (
            evil.torch_zip(evil.program(named("_codecs", "encode", 2) + plain(("x", "zip"), 2) + b"R", 2)),
            "unusual way",
        ),
        "outside text": (evil.torch_zip(b"Pos.system\n."), "PERSID"),
        "outside module": (
            evil.torch_zip(evil.program(plain(("module", "x", "file", "source"), 2) + b"Q", 2)),
            "whole pickled network",
        ),
        "outside something": (evil.torch_zip(evil.program(plain(("eval", "1"), 2) + b"Q", 2)), "no storage"),
        "buffer": (evil.torch_zip(evil.program(b"\x97", 5)), "NEXT_BUFFER"),
        "newer protocol": (evil.torch_zip(evil.program(b"N", 9)), "newer protocol"),
        "unknown step": (evil.torch_zip(evil.program(b"\xfe", 2)), "0xfe"),
        "after the end": (evil.torch_zip(honest + whole, data), "bytes after the end"),
        "second pickle, raw": (pickle.dumps({"a": 1}, protocol=2) + whole, "without tensors"),
        "legacy, machine": (evil.MAGIC + evil.VERSION + whole, "os.system"),
        "legacy, version": (evil.MAGIC + whole, "os.system"),
        "legacy, keys": (evil.MAGIC + evil.VERSION + evil.MACHINE + pickle.dumps({}, 2) + whole, "os.system"),
        "legacy, after the keys": (evil.legacy(pickle.dumps({}, 2), [], whole), "holds more"),
        "zip in front": (b"#!/bin/sh\n" + evil.torch_zip(honest, data), "text|no kind"),
        "zip behind": (evil.torch_zip(honest, data) + whole, "appended"),
        "zip in zip": (evil.torch_zip(honest, data) + evil.torch_zip(whole), "before or after"),
        "deflated": (evil.zip_bytes({"archive/data.pkl": honest * 9}, zipfile.ZIP_DEFLATED), "unpack|compressed"),
        "bzip2": (evil.zip_bytes({"archive/data.pkl": honest}, zipfile.ZIP_BZIP2), "unusual way"),
        "two tops": (evil.zip_bytes({"a/data.pkl": honest, "b/data.pkl": whole}), "zip archive of something else"),
        "parent folder": (evil.zip_bytes({"../data.pkl": honest}), "tampered"),
        "absolute": (evil.zip_bytes({"/archive/data.pkl": honest}), "tampered"),
        "drive": (evil.zip_bytes({"C:/data.pkl": honest}), "tampered"),
        "script": (
            evil.zip_bytes({"archive/data.pkl": honest, "archive/constants.pkl": whole, "archive/code/x.py": b"1"}),
            "TorchScript",
        ),
        "script by code alone": (
            evil.zip_bytes({"archive/data.pkl": honest, "archive/code/x.py": b"1"}),
            "TorchScript",
        ),
    }
    plainly = evil.torch_zip(honest, data)
    twice = evil.zip_bytes({"archive/data.pkl": honest, "archive/data.pkx": whole})
    found |= {
        "twice": (twice.replace(b"data.pkx", b"data.pkl"), "two members"),
        "password": (_flagged(plainly, 0x0001), "encrypted"),
        "odd flags": (_flagged(plainly, 0x2040), "encrypted, or of an unusual kind"),
        "password here only": (_flagged(plainly, 0x0001, local=False), "encrypted"),
        "password there only": (_flagged(plainly, 0x0001, central=False), "contradict"),
        "two names": (plainly.replace(b"archive/data.pkl", b"archive/data.pkx", 1), "not where the directory says"),
        "two methods": (_patched(plainly, b"PK\3\4", 8, b"\x08\0"), "contradict"),
        "two sizes": (_patched(plainly, b"PK\3\4", 22, struct.pack("<I", 5)), "contradict"),
        "several disks": (_patched(plainly, b"PK\5\6", 4, b"\1\0"), "several"),
        "count lie": (_patched(plainly, b"PK\5\6", 8, b"\1\0\1\0"), "more than it says"),
        "comment": (plainly[:-2] + b"\4\0abcd", "appended"),
        "overlap": (evil.overlapping(3), "tampered"),
    }
    return found


def _flagged(archive: bytes, flags: int, local: bool = True, central: bool = True) -> bytes:
    """The archive with a flag set in its first member's own header, in the directory, or in both."""
    for mark, place, wanted in ((b"PK\3\4", 6, local), (b"PK\1\2", 8, central)):
        if wanted:
            archive = _patched(archive, mark, place, struct.pack("<H", flags))
    return archive


def _patched(archive: bytes, mark: bytes, place: int, value: bytes) -> bytes:
    at = archive.index(mark) + place
    return archive[:at] + value + archive[at + len(value) :]


BYPASSES = _bypasses()


@pytest.mark.fault("W2")
@pytest.mark.parametrize("name", BYPASSES)
def test_w2_tricks_that_pass_scanners_are_refused(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    forbid(monkeypatch)
    data, words = BYPASSES[name]
    message = refused(write(tmp_path / "x.pt", data), *words.split("|"))
    assert message.isprintable()


@pytest.mark.fault("W2")
def test_w2_a_pickle_in_a_pickle_stays_bytes(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    inner = evil.program(evil.by_reduce(evil.Target("os", "system", (f"touch {canary}",)), 2), 2)
    values = evil.program(b"(" + evil.text("w", 2) + _TENSOR + evil.text("x", 2) + evil.plain(inner, 2) + b"d", 2)
    ours = read_pickle(write(tmp_path / "x.pt", evil.torch_zip(values, {"0": bytes(16)})))
    assert ours["x"] == inner
    assert ours["w"].read().tolist() == [0.0] * 4
    assert not canary.exists()


@pytest.mark.fault("W2")
def test_w2_colliding_keys_are_refused(tmp_path: Path) -> None:
    prime = 2**61 - 1  # multiples of it all have the same hash
    keys = b"".join(b"\x8a\x0a" + (prime * n).to_bytes(10, "little") + b"N" for n in range(1, 20_000))
    refused(write(tmp_path / "x.pt", evil.torch_zip(evil.program(b"}(" + keys + b"u", 2))), "key of kind int")


@pytest.mark.parametrize(
    "kind", ["torch.nn.modules.linear.Linear", "timm.models.vision_transformer.VisionTransformer", "__main__.Net"]
)
@pytest.mark.parametrize("protocol", [2, 4])
def test_a_whole_network_is_refused_as_such(tmp_path: Path, kind: str, protocol: int) -> None:
    module, _, name = kind.rpartition(".")
    remembered = b"q\x01" if protocol == 2 else b"\x94"
    steps = evil.named(module, name, protocol) + remembered + b")\x81}b"
    message = refused(write(tmp_path / "x.pt", evil.torch_zip(evil.program(steps, protocol))), kind)
    assert "whole pickled object" in message
    assert "state_dict()" in message


@pytest.mark.parametrize("form", FORMS)
def test_a_network_that_torch_saved_whole_is_refused(tmp_path: Path, form: str) -> None:
    torch.save(nn.Linear(2, 2), tmp_path / "x.pt", **FORMS[form])
    assert "whole pickled" in refused(tmp_path / "x.pt", "torch.nn.modules.linear.Linear")


def test_expanded_tensors_that_torch_saved_are_refused(tmp_path: Path) -> None:
    torch.save({"a": torch.zeros(1).expand(2**40)}, tmp_path / "x.pt")
    assert (tmp_path / "x.pt").stat().st_size < 3000
    assert "clone()" in refused(tmp_path / "x.pt", "same numbers several times")


HUGE = 2**40
BAD_TENSORS = {
    "stride 0": evil.tensor((HUGE,), (0,)),
    "stride 0 on one axis": evil.tensor((2, 2), (0, 1)),
    "negative stride": evil.tensor((2,), (-1,), offset=3),
    "offset past the end": evil.tensor((1,), (1,), offset=4),
    "offset far past the end": evil.tensor((1,), (1,), offset=2**63),
    "negative offset": evil.tensor((1,), (1,), offset=-1),
    "one too many": evil.tensor((5,), (1,)),
    "last one outside": evil.tensor((2, 2), (3, 1)),
    "negative size": evil.tensor((-4,), (1,)),
    "sizes that overflow": evil.tensor((2**32, 2**32), (2**32, 1)),
    "empty but huge": evil.tensor((2**59, 0, 2**59), (1, 1, 1)),
    "windows": evil.tensor((3, 2), (1, 1)),
    "shape without stride": evil.tensor((2, 2), (1,)),
    "forty axes": evil.tensor((1,) * 40, (1,) * 40),
    "storage too large": evil.tensor((4,), (1,), numbers=HUGE),
    "storage too small": evil.tensor((3,), (1,), numbers=3),
    "storage of another kind": evil.tensor((4,), (1,), kind="DoubleStorage"),
    "negative storage": evil.tensor((0,), (1,), numbers=-4),
    "absent storage": evil.tensor((4,), (1,), key="7"),
    "storage in another folder": evil.tensor((4,), (1,), key="../data.pkl"),
    "shape of text": evil.tensor((4,), (1,)).replace(b"(I4\nt(I1\nt", evil.plain(("4",), 2) + b"(I1\nt"),
    "shape of true": evil.tensor((4,), (1,)).replace(b"(I4\nt(I1\nt", b"(\x88t(I1\nt"),
    "two sizes of one storage": evil.tensor((4,), (1,)) + evil.text("b", 2) + evil.tensor((2,), (1,), numbers=2),
    "bytes without a kind": evil.tensor((4,), (1,), numbers=16, kind="UntypedStorage").replace(
        b"ctorch\nUntyped", b"ctorch.storage\nUntyped"
    ),
}


@pytest.mark.fault("W6")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", BAD_TENSORS)
def test_w6_tensors_that_reach_beyond_their_bytes_are_refused(tmp_path: Path, name: str, form: str) -> None:
    pickled = evil.weights(BAD_TENSORS[name])
    if form == "zip":
        data = evil.torch_zip(pickled, {"0": bytes(16)})
    else:
        data = evil.legacy(pickled, ["0"], struct.pack("<Q", 4) + bytes(16))
    refused(write(tmp_path / "x.pt", data), "damaged", "refused")


def test_w6_tensors_within_their_bytes_are_read(tmp_path: Path) -> None:
    """What stands beside the bad ones, so that the refusals above are for what they say."""
    good = [evil.tensor((2, 2), (1, 2)), evil.tensor((1,), (0,), offset=3), evil.tensor((2, 1), (3, 9))]
    values = np.arange(4, dtype="<f4").tobytes()
    for number, data in enumerate(
        (
            evil.torch_zip(evil.weights(*good), {"0": values}),
            evil.legacy(evil.weights(*good), ["0"], struct.pack("<Q", 4) + values),
        )
    ):
        ours = read_pickle(write(tmp_path / f"{number}.pt", data))
        assert [each.read().tolist() for each in ours.values()] == [[[0.0, 2.0], [1.0, 3.0]], [3.0], [[0.0], [3.0]]]


LEGACY = evil.weights(evil.tensor((4,), (1,)))
BAD_LEGACY = {
    "cut in the bytes": evil.legacy(LEGACY, ["0"], struct.pack("<Q", 4) + bytes(15)),
    "cut in the count": evil.legacy(LEGACY, ["0"], b"\4\0\0"),
    "no bytes": evil.legacy(LEGACY, ["0"]),
    "bytes left over": evil.legacy(LEGACY, ["0"], struct.pack("<Q", 4) + bytes(17)),
    "another count": evil.legacy(LEGACY, ["0"], struct.pack("<Q", 5) + bytes(20)),
    "huge count": evil.legacy(LEGACY, ["0"], struct.pack("<Q", 2**63) + bytes(16)),
    "key missing": evil.legacy(LEGACY, [], struct.pack("<Q", 4) + bytes(16)),
    "key twice": evil.legacy(LEGACY, ["0", "0"], 2 * (struct.pack("<Q", 4) + bytes(16))),
    "key unknown": evil.legacy(LEGACY, ["0", "1"], 2 * (struct.pack("<Q", 4) + bytes(16))),
    "keys no list": evil.MAGIC + evil.VERSION + evil.MACHINE + LEGACY + pickle.dumps({"0": 1}, 2) + bytes(24),
    "big-endian": evil.legacy(LEGACY, ["0"], bytes(24))
    .replace(b"little_endian\x94\x88", b"")
    .replace(b"little_endianq\x02\x88", b"little_endianq\x02\x89"),
    "other version": evil.MAGIC + pickle.dumps(1000, 2) + evil.MACHINE + LEGACY,
    "cut after the magic": evil.MAGIC,
    "cut in the values": (evil.MAGIC + evil.VERSION + evil.MACHINE + LEGACY)[:-20],
}


@pytest.mark.parametrize("name", BAD_LEGACY)
def test_broken_files_of_the_older_format_are_refused(tmp_path: Path, name: str) -> None:
    refused(write(tmp_path / "x.pt", BAD_LEGACY[name]), "damaged", "big-endian")


def test_a_big_endian_zip_is_refused(tmp_path: Path) -> None:
    data = evil.zip_bytes({"a/data.pkl": LEGACY, "a/byteorder": b"big", "a/data/0": bytes(16)})
    refused(write(tmp_path / "x.pt", data), "big-endian")


def test_bytes_that_are_neither_true_nor_false_are_refused(tmp_path: Path) -> None:
    steps = evil.weights(evil.tensor((4,), (1,), kind="BoolStorage"))
    good = read_pickle(write(tmp_path / "a.pt", evil.torch_zip(steps, {"0": b"\1\0\1\1"})))
    assert good["weight0"].read().tolist() == [True, False, True, True]
    bad = read_pickle(write(tmp_path / "b.pt", evil.torch_zip(steps, {"0": b"\1\0\2\1"})))
    with pytest.raises(CheckpointError, match="neither true nor false"):
        bad["weight0"].read()


def test_a_long_pickle_of_the_older_format_is_read(tmp_path: Path) -> None:
    """Longer than the first piece that is looked at."""
    values = {"a": torch.arange(3.0), "notes": ["x" * 90_000 + str(n) for n in range(20)]}
    torch.save(values, tmp_path / "x.pt", _use_new_zipfile_serialization=False)
    ours = read_pickle(tmp_path / "x.pt")
    assert ours["notes"] == values["notes"]
    assert ours["a"].read().tolist() == [0.0, 1.0, 2.0]


def test_more_tensors_than_anyone_has_are_refused(tmp_path: Path) -> None:
    steps = evil.named("torch._utils", "_rebuild_tensor_v2", 2)
    arguments = evil.tensor((4,), (1,))[len(steps) : -1]
    many = b"(" + steps + arguments + b"q\x010" + steps + b"q\x020(" + b"h\x02h\x01R" * 20_001 + b"l"
    refused(write(tmp_path / "x.pt", evil.torch_zip(evil.program(many[1:], 2), {"0": bytes(16)})), "20,000 tensors")


def test_no_module_of_the_room_knows_an_unpickler() -> None:
    """Nothing in this room imports pickle or the like, or calls torch.load, numpy.load, eval or exec."""
    never = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "tarfile", "runpy"}
    calls = {"torch.load", "np.load", "numpy.load", "eval", "exec", "torch.hub.load", "torch.jit.load", "torch.package"}
    folder = Path(vitrail.__file__).parent / "weights"
    seen = 0
    for path in folder.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert never.isdisjoint(name.split(".")[0] for name in names), path.name
            if isinstance(node, ast.Call):
                seen += 1
                assert ast.unparse(node.func) not in calls, f"{path.name}:{node.lineno}"
    assert seen > 100


@pytest.mark.fault("W15")
def test_w15_the_setting_that_makes_torch_trust_files_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    canary = tmp_path / "canary"
    target = evil.Target("os", "system", (f"touch {canary}",))
    path = write(tmp_path / "x.pt", evil.torch_zip(evil.in_weights(evil.by_reduce(target, 2), 2)))
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    refused(path, "os.system")
    assert not canary.exists()
    with pytest.warns(UserWarning, match="TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"):
        torch.load(path)
    assert canary.exists()  # the setting and the file are real
