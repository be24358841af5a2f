"""Tensors in a file: read as they were written, from any thread; a malformed header is refused before anything else."""

from __future__ import annotations

import errno
import gc
import io
import json
import os
import struct
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load as their_load
from safetensors.torch import save as their_save

from vitrail.checkpoint import safetensors_io as module
from vitrail.checkpoint.safetensors_io import (
    DTYPES,
    StoredTensor,
    check_storable,
    in_threads,
    lay_out,
    read_all,
    read_safetensors,
)
from vitrail.checkpoint.safetensors_io import write_safetensors as write
from vitrail.errors import CheckpointError, InputError

SHAPES = ((3, 5), (7,), (), (2, 0, 4), (1, 1, 1, 2))


def tensors_of_every_kind() -> dict[str, torch.Tensor]:
    return {
        f"{word}.{number}": (torch.randn(shape) * 9).to(kind)
        for word, kind in DTYPES.items()
        for number, shape in enumerate(SHAPES)
    }


def joined(header: Any, body: bytes = b"") -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + body


def entry(start: int = 0, end: int = 8, dtype: Any = "F32", shape: Any = (2,), **more: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end], **more}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "x.safetensors"


class Reads(list[int]):
    """How many bytes each read of a file gave."""


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    found, read = Reads(), os.preadv

    def counted(number: int, views: list[memoryview], start: int) -> int:
        found.append(read(number, views, start))
        return found[-1]

    monkeypatch.setattr(os, "preadv", counted)
    return found


# ---- there and back ----------------------------------------------------------------------------------------------


def test_every_kind_and_shape_is_read_as_safetensors_reads_it(path: Path) -> None:
    data = their_save(tensors_of_every_kind(), {"a": "1", "é": 'x "\\ \n'})
    path.write_bytes(data)
    tensors, metadata = read_safetensors(path)
    expected = their_load(data)
    assert tensors.keys() == expected.keys()
    for name, value in read_all(tensors).items():
        assert tensors[name].dtype == value.dtype == expected[name].dtype
        assert tensors[name].shape == tuple(value.shape) == tuple(expected[name].shape)
        assert torch.equal(value, expected[name]), name
    assert metadata == {"a": "1", "é": 'x "\\ \n'}


def test_a_tensor_may_lie_at_any_byte(path: Path) -> None:
    header = {"a": entry(0, 1, "U8", [1]), "b": entry(1, 17, "F64", [2]), "c": entry(17, 21, "BF16", [2])}
    body = b"\x07" + struct.pack("<2d", 1 / 3, -2.0) + b"\x80\x3f\x00\xc0"
    path.write_bytes(joined(header, body))
    found = read_all(read_safetensors(path).tensors)
    assert found["a"].tolist() == [7]
    assert found["b"].tolist() == [1 / 3, -2.0]
    assert found["c"].tolist() == [1.0, -2.0]


def test_our_writer_writes_the_bytes_that_safetensors_writes() -> None:
    tensors = tensors_of_every_kind() | {'"\\\n\x01\x7f é 木': torch.ones(2)}
    metadata = {"vitrail": json.dumps({"é": [1, 1e-6, "\n"]})}
    layout = lay_out(dict(reversed(tensors.items())), metadata)
    file = io.BytesIO()
    write(file, layout, tensors)
    assert file.getvalue() == their_save(tensors, metadata)
    assert layout.size == len(file.getvalue())


def test_only_the_header_is_read_until_a_tensor_is_asked_for(path: Path, reads: Reads) -> None:
    data = their_save({"a": torch.zeros(1000), "b": torch.ones(500)})
    path.write_bytes(data)
    tensors = read_safetensors(path).tensors
    assert sum(reads) == len(data) - 6000
    tensors["b"].read()
    assert reads[-1] == 2000
    assert sum(reads) == len(data) - 4000


def test_each_read_has_memory_of_its_own(path: Path) -> None:
    path.write_bytes(their_save({"a": torch.arange(4.0)}))
    a = read_safetensors(path).tensors["a"]
    first, second = a.read(), a.read()
    first += 1
    assert second.tolist() == a.read().tolist() == [0, 1, 2, 3]


def test_a_read_that_gives_little_at_a_time_goes_on(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = torch.randn(1000)
    path.write_bytes(their_save({"a": values}))
    read = os.preadv
    monkeypatch.setattr(os, "preadv", lambda number, views, start: read(number, [views[0][:37]], start))
    assert torch.equal(read_safetensors(path).tensors["a"].read(), values)


def test_many_threads_may_read_at_once(path: Path) -> None:
    values = {str(number): torch.full((1000 + number,), float(number)) for number in range(40)}
    path.write_bytes(their_save(values))
    tensors = read_safetensors(path).tensors
    for found in in_threads(lambda _: read_all(tensors), range(8), threads=8):
        assert list(found) == list(tensors)
        assert all(torch.equal(found[name], value) for name, value in values.items())


def test_in_threads_keeps_the_order_and_gives_the_first_error() -> None:
    assert in_threads(lambda x: x * x, range(100), threads=7) == [x * x for x in range(100)]

    def fail(number: int) -> int:
        if number % 10 == 3:
            raise CheckpointError(f"number {number}")
        return number

    with pytest.raises(CheckpointError, match="^number 3$"):
        in_threads(fail, range(100))


def test_the_file_is_closed_with_the_last_of_its_tensors(path: Path) -> None:
    path.write_bytes(their_save({"a": torch.zeros(4), "b": torch.ones(4)}))

    def open_files() -> int:
        """How often this file is open, whatever other files other threads open and close."""
        names = []
        for number in os.listdir("/proc/self/fd"):
            with suppress(OSError):  # the one of the list itself is gone
                names.append(os.readlink(f"/proc/self/fd/{number}"))
        return names.count(str(path.resolve()))

    assert open_files() == 0
    tensors = read_safetensors(path).tensors
    last = tensors.pop("b")
    assert open_files() == 1
    del tensors
    assert open_files() == 1
    assert last.read().tolist() == [1, 1, 1, 1]
    del last
    assert open_files() == 0
    path.write_bytes(b"not one at all")
    with pytest.raises(CheckpointError, match="not a safetensors file"):
        read_safetensors(path)
    gc.collect()  # an error and the place it came from hold each other
    assert open_files() == 0


def test_the_built_in_checkpoint_is_a_file_like_others() -> None:
    tensors, metadata = read_safetensors("vitrail:glass")
    assert "vitrail" in metadata
    assert tensors["tokens.cls"].read().isfinite().all()


# ---- what is malformed -------------------------------------------------------------------------------------------

BODY = bytes(8)
MALFORMED: dict[str, tuple[bytes, str]] = {
    "empty: no byte": (b"", "cut short"),
    "length: less than its own 8 bytes": (b"\x02\0\0", "cut short"),
    "length: more than the file": (struct.pack("<Q", 3) + b"{}", "cut short"),
    "length: 2^63": (struct.pack("<Q", 2**63) + b"{}", "cut short"),
    "length: none": (struct.pack("<Q", 0), "expected an object, got ''"),
    "utf-8: wrong bytes": (joined(b'{"\xff\xfe": 5}'), "can't decode byte 0xff"),
    "utf-8: half a character": (joined({"\ud800": entry()}, BODY), "surrogates not allowed"),
    "utf-8: another encoding": (joined('{"a": 5}'.encode("utf-16")), "header cannot be read"),
    "json: broken": (joined(b'{"a": '), "header cannot be read"),
    "json: a list": (joined(b"[]"), "expected an object, got '\\['"),
    "json: NaN": (joined(b'{"a": NaN}'), "NaN is no number"),
    "json: two objects": (joined(b"{}{}"), "Extra data"),
    "depth: nested lists": (joined(b'{"a":' + b"[" * 100_000), "recursion"),
    "depth: nested objects": (joined(b'{"a":' * 100_000), "recursion"),
    "duplicate: a tensor": (joined(b'{"a": {}, "a": {}}'), "stands there twice"),
    "duplicate: metadata": (joined(b'{"__metadata__": {"x": "1", "x": "2"}}'), "stands there twice"),
    "duplicate: in an entry": (joined(b'{"a": {"dtype": "F32", "dtype": "F32"}}'), "stands there twice"),
    "metadata: a number": (joined({"__metadata__": 5}), "metadata of text only, got 5"),
    "metadata: a number in it": (joined({"__metadata__": {"a": 5}}), "metadata of text only"),
    "metadata: half a character": (joined({"__metadata__": {"a": "\udfff"}}), "surrogates not allowed"),
    "entry: a number": (joined({"a": 5}), "'a': expected dtype, shape and data_offsets, got 5"),
    "entry: one thing less": (joined({"a": {"dtype": "F32", "shape": [2]}}, BODY), "expected dtype, shape and"),
    "entry: one thing more": (joined({"a": entry(more=1)}, BODY), "expected dtype, shape and data_offsets"),
    "dtype: unknown": (joined({"a": entry(dtype="F99")}, BODY), "'a': numbers of kind 'F99', expected one of: I64"),
    "dtype: of 8 bits": (joined({"a": entry(dtype="F8_E4M3", shape=[8])}, BODY), "kind 'F8_E4M3'"),
    "dtype: a list": (joined({"a": entry(dtype=["F32"])}, BODY), "numbers of kind \\['F32'\\]"),
    "shape: text": (joined({"a": entry(shape="2")}, BODY), "expected a shape of whole numbers"),
    "shape: negative": (joined({"a": entry(shape=[-1, -2])}, BODY), "expected a shape of whole numbers"),
    "shape: a fraction": (joined({"a": entry(shape=[2.0])}, BODY), "expected a shape of whole numbers"),
    "shape: true": (joined({"a": entry(shape=[2, True])}, BODY), "expected a shape of whole numbers"),
    "shape: of many dimensions": (joined({"a": entry(shape=[2] + [1] * 999)}, BODY), "expected a shape of whole"),
    "shape: another size": (joined({"a": entry(shape=[3])}, BODY), r"F32 of shape \[3\] takes 12 bytes, got 8"),
    "overflow: 2^62 times 0": (joined({"a": entry(0, 0, shape=[2**62, 0])}), "expected a shape of whole numbers"),
    "overflow: a product": (joined({"a": entry(shape=[2**33, 2**31])}, BODY), "expected a shape of whole numbers"),
    "overflow: beside a 0": (joined({"a": entry(0, 0, shape=[2**40, 0, 2**40])}), "expected a shape of whole"),
    "overflow: 4,000 digits": (joined(b'{"a": ' + b"9" * 4000 + b"}"), "expected dtype, shape and data_offsets"),
    "overflow: 5,000 digits": (joined(b'{"a": ' + b"9" * 5000 + b"}"), "header cannot be read"),
    "offsets: backwards": (joined({"a": entry(8, 0)}, BODY), "expected data_offsets"),
    "offsets: negative": (joined({"a": entry(-8, 0)}, BODY), "expected data_offsets"),
    "offsets: three": (joined({"a": entry() | {"data_offsets": [0, 4, 8]}}, BODY), "expected data_offsets"),
    "offsets: text": (joined({"a": entry() | {"data_offsets": "08"}}, BODY), "expected data_offsets"),
    "offsets: huge": (joined({"a": entry(2**62, 2**62 + 8)}, BODY), "expected data_offsets"),
    "overlap: in part": (joined({"a": entry(), "b": entry(4, 12)}, bytes(12)), "'b' overlaps another tensor"),
    "overlap: the same": (joined({"a": entry(), "b": entry()}, BODY), "overlaps another tensor"),
    "overlap: of nothing": (joined({"a": entry(), "b": entry(4, 4, shape=[0])}, BODY), "'b' overlaps another"),
    "hole: at the start": (joined({"a": entry(8, 16)}, bytes(16)), "'a' leaves a hole before it: expected it at 0"),
    "hole: between": (joined({"a": entry(), "b": entry(9, 17)}, bytes(17)), "'b' leaves a hole before it"),
    "trailing bytes": (joined({"a": entry()}, bytes(9)), "8 bytes of tensors, got 9: something else follows"),
    "trailing bytes, and no tensor": (joined({}, b"x"), "expected 0 bytes of tensors, got 1"),
    "cut short": (joined({"a": entry()}, bytes(7)), "expected 8 bytes of tensors, got 7: the file is cut short"),
}


@pytest.mark.fault("W7", "W8")
@pytest.mark.parametrize("name", MALFORMED)
def test_what_is_malformed_is_refused_from_its_header(path: Path, reads: Reads, name: str) -> None:
    data, reason = MALFORMED[name]
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=reason) as caught:
        read_safetensors(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert len(message) < len(str(path)) + 400
    assert "\n" not in message
    header = int.from_bytes(data[:8], "little")
    assert sum(reads) <= 8 + (header if header <= len(data) else 0)  # and so no memory for tensors either


def test_what_is_just_right_is_not_refused(path: Path) -> None:
    """The neighbours of the malformed ones: so that those are refused for their fault."""
    for data, count in (
        (joined({}), 0),
        (joined(b'{"__metadata__": {}}   '), 0),
        (joined({"a": entry()}, BODY), 1),
        (joined({"b": entry(8, 16), "a": entry(), "c": entry(16, 16, shape=[0])}, bytes(16)), 3),
        (joined({"a": entry(0, 4, shape=[]), "b": entry(4, 4, "F64", [2**40, 0])}, bytes(4)), 2),
        (joined({"a": entry(shape=[2] + [1] * 31)}, BODY), 1),
    ):
        path.write_bytes(data)
        assert len(read_all(read_safetensors(path).tensors)) == count


@pytest.mark.fault("W8")
def test_too_many_tensors_are_refused_before_all_are_parsed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = 0
    unique = module.unique

    def counted(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal parsed
        parsed += 1
        return unique(pairs)

    monkeypatch.setattr(module, "unique", counted)
    one_more = {f"t{number}": entry(0, 0, shape=[0]) for number in range(20_001)}
    many, spelt = json.dumps(one_more).encode(), json.dumps(one_more | {"__metadata__": {}}).encode()
    for header, most in ((many, 0), (spelt.replace(b'"data_', b'"d\\u0061ta_'), 20_002)):
        path.write_bytes(joined(header))
        with pytest.raises(CheckpointError, match="names more than 20,000 tensors"):
            read_safetensors(path)
        assert parsed <= most
    metadata = {"__metadata__": {"a": "b"}}
    path.write_bytes(joined(metadata | {f"t{number}": entry(0, 0, shape=[0]) for number in range(20_000)}))
    assert len(read_safetensors(path).tensors) == 20_000


@pytest.mark.fault("W7")
def test_a_header_too_long_is_not_read(path: Path, reads: Reads) -> None:
    length = 32 * 2**20 + 1
    with path.open("wb") as file:
        file.write(struct.pack("<Q", length) + b"{")
        file.truncate(8 + length)  # a hole: it takes no room on the disk
    with pytest.raises(CheckpointError, match="is not a safetensors file"):
        read_safetensors(path)
    assert sum(reads) == 8


@pytest.mark.fault("W7")
def test_truth_values_are_0_or_1(path: Path) -> None:
    path.write_bytes(joined({"a": entry(0, 3, "BOOL", [3])}, b"\0\1\2"))
    with pytest.raises(CheckpointError, match="'a' holds bytes that are neither true nor false"):
        read_safetensors(path).tensors["a"].read()


def test_what_is_no_path_is_refused() -> None:
    class Odd:
        def __fspath__(self) -> bytes:
            return b"x.safetensors"

    for wrong in (None, 5, b"x.safetensors", Odd()):
        with pytest.raises(InputError, match="expected the path of a file or folder of weights"):
            read_safetensors(wrong)  # type: ignore[arg-type]


def test_a_file_that_may_not_be_written_is_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ReadOnlyFile to read and nothing else, without waiting, and not for programs that are started meanwhile."""
    path.write_bytes(their_save({"a": torch.arange(3.0)}))
    flags, open_file = [], os.open

    def opened(name: str, how: int) -> int:
        flags.append(how)
        return open_file(name, how)

    monkeypatch.setattr(os, "open", opened)
    assert read_safetensors(path).tensors["a"].read().tolist() == [0, 1, 2]
    assert flags == [os.O_RDONLY | os.O_NONBLOCK]


def test_a_pipe_does_not_hang(path: Path) -> None:
    os.mkfifo(path)
    with pytest.raises(CheckpointError, match="is a pipe or device"):
        read_safetensors(path)


# ---- what changes while it is read -------------------------------------------------------------------------------


@pytest.fixture
def large(path: Path) -> dict[str, StoredTensor]:
    """A header read, with two tensors of 400,000 bytes still in the file."""
    path.write_bytes(their_save({"a": torch.arange(100_000.0), "b": torch.arange(100_000.0)}))
    return read_safetensors(path).tensors


@pytest.mark.fault("W14")
def test_a_file_cut_before_a_tensor_is_read(path: Path, large: dict[str, StoredTensor]) -> None:
    os.truncate(path, 500_000)
    for name in large:
        with pytest.raises(CheckpointError, match=f"{path} was cut short while being read: get the file anew"):
            large[name].read()
    with pytest.raises(CheckpointError, match="cut short while being read"):
        read_all(large)


@pytest.mark.fault("W14")
def test_a_file_cut_by_another_thread_in_the_middle_of_a_tensor(
    path: Path, large: dict[str, StoredTensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    read, counts = os.preadv, []

    def slowly(number: int, views: list[memoryview], start: int) -> int:
        counts.append(read(number, [views[0][:10_000]], start))
        if len(counts) == 3:
            cutter = threading.Thread(target=os.truncate, args=(path, 100))
            cutter.start()
            cutter.join()
        return counts[-1]

    monkeypatch.setattr(os, "preadv", slowly)
    with pytest.raises(CheckpointError, match="cut short while being read"):
        large["a"].read()
    assert counts == [10_000, 10_000, 10_000, 0]


@pytest.mark.fault("W14")
@pytest.mark.parametrize("restored", [False, True])
def test_a_file_cut_and_restored_between_any_two_reads_is_right_or_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch, restored: bool
) -> None:
    """Cut before one of the reads, and whole again after it: by then, size and time may be what they were."""
    expected = torch.arange(1000.0)
    data = their_save({"a": expected})
    path.write_bytes(data)
    before = path.stat()
    read, reads, turn = os.preadv, 0, 0

    def cutting(number: int, views: list[memoryview], start: int) -> int:
        nonlocal reads
        reads += 1
        if reads == turn:
            os.truncate(path, 50)
        count = read(number, [views[0][:500]], start)
        if reads == turn and restored:
            path.write_bytes(data)
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        return count

    monkeypatch.setattr(os, "preadv", cutting)
    assert torch.equal(read_safetensors(path).tensors["a"].read(), expected)
    assert reads > 9
    for turn in range(1, reads + 1):
        path.write_bytes(data)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        reads = 0
        if restored and turn <= 2:  # from before the cut: a short read, which goes on in what is there again
            assert torch.equal(read_safetensors(path).tensors["a"].read(), expected)
            continue
        with pytest.raises(CheckpointError, match="cut short while being read"):
            read_safetensors(path).tensors["a"].read()


@pytest.mark.fault("W14")
def test_a_file_changed_since_its_header_was_read_is_refused(path: Path, large: dict[str, StoredTensor]) -> None:
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(size - 4)
        file.write(b"abcd")
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))  # clocks of file systems are coarse
    assert path.stat().st_size == size
    with pytest.raises(CheckpointError, match=f"{path} was changed while being read: load it again"):
        large["b"].read()


@pytest.mark.fault("W14")
def test_a_file_replaced_by_another_is_still_read_as_it_was(path: Path, large: dict[str, StoredTensor]) -> None:
    other = path.with_name("other")
    other.write_bytes(bytes(10))
    other.replace(path)
    assert torch.equal(large["b"].read(), torch.arange(100_000.0))


def test_errors_of_disk_and_memory_are_ours(
    path: Path, large: dict[str, StoredTensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def full(*_: Any, **__: Any) -> torch.Tensor:
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory")

    with monkeypatch.context() as patch:
        patch.setattr(os, "preadv", fail)
        with pytest.raises(CheckpointError, match=f"could not read {path}: Input/output error"):
            large["a"].read()
        with pytest.raises(CheckpointError, match=f"could not read {path}: Input/output error"):
            read_safetensors(path)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "empty", full)
        with pytest.raises(CheckpointError, match="'a': no memory for a tensor of 400,000 bytes"):
            large["a"].read()


# ---- what cannot be written --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong, reason",
    [
        (torch.zeros(2, dtype=torch.complex64), "expected numbers of kind int64, .*, bool, got torch.complex64"),
        (torch.zeros(2, dtype=torch.float8_e5m2), "expected numbers of kind .* got torch.float8_e5m2: convert them"),
        (torch.zeros(2, device="meta"), "expected a tensor with its values in memory"),
        (torch.eye(2).to_sparse(), "expected a tensor with its values in memory"),
        ([1.0], r"expected a tensor with its values in memory, got \[1.0\]"),
    ],
)
def test_what_a_file_cannot_hold_is_named(wrong: Any, reason: str) -> None:
    for verb in (check_storable, lambda tensors: lay_out(tensors, {})):
        with pytest.raises(CheckpointError, match=f"^x: {reason}"):
            verb({"right": torch.zeros(2), "x": wrong})
