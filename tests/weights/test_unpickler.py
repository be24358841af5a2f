"""Pickles are read by an interpreter of our own that calls nothing: tricks and payloads are refused by name."""

from __future__ import annotations

import ast
import importlib
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import vitrail
from vitrail.weights.reading.pickles import read_pickle
from weights import evil
from weights.pickle_files import TENSOR, refused, write


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


def _bypasses() -> dict[str, tuple[bytes, str]]:
    """Ideas that get past scanners, each with words of the refusal."""
    call, named, text, plain = evil.by_reduce(_REDUCED, 2), evil.named, evil.text, evil.plain
    whole = evil.program(call, 2)
    join = named("pathlib", "PosixPath", 2)
    honest = evil.weights(TENSOR)
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
        "call of a tensor": (evil.torch_zip(evil.program(TENSOR + b")R", 2), data), "calls a StoredTensor"),
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
            evil.torch_zip(evil.program(TENSOR + b"}b", 2), data),
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
    values = evil.program(b"(" + evil.text("w", 2) + TENSOR + evil.text("x", 2) + evil.plain(inner, 2) + b"d", 2)
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


def test_no_module_of_the_room_knows_an_unpickler() -> None:
    """Nothing in this room imports pickle or the like, or calls torch.load, numpy.load, eval or exec."""
    never = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "tarfile", "runpy"}
    calls = {"torch.load", "np.load", "numpy.load", "eval", "exec", "torch.hub.load", "torch.jit.load", "torch.package"}
    folder = Path(vitrail.__file__).parent / "weights"
    seen = 0
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert never.isdisjoint(name.split(".")[0] for name in names), path.name
            if isinstance(node, ast.Call):
                seen += 1
                assert ast.unparse(node.func) not in calls, f"{path.name}:{node.lineno}"
    assert seen > 100
