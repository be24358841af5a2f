"""Torch files: the right values from honest ones, and nothing run, believed or allocated for the others."""

from __future__ import annotations

import argparse
import collections
import os
import pathlib
import pickle
import struct
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from vitrail.checkpoint.safetensors_io import StoredTensor
from vitrail.errors import CheckpointError
from vitrail.files import ReadOnlyFile
from vitrail.weights.reading.pickles import read_pickle
from vitrail.weights.reading.unpickler import Inert
from weights import evil
from weights.pickle_files import LEGACY, refused, write

FORMS = {"zip": {}, "legacy": {"_use_new_zipfile_serialization": False}}
KINDS = (
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16),
    *(torch.int8, torch.uint8, torch.bool, torch.complex64, torch.complex128),
)


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
