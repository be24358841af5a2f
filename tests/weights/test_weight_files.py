"""One path in, its contents out: copies and prefixes taken off, strangers named, bombs and mutants refused cheaply."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from vitrail.errors import CheckpointError, InputError, VitrailError
from vitrail.weights.reading.contents import WeightContents
from vitrail.weights.reading.weight_files import COPIES, open_contents
from weights import evil

STRESS = Path(__file__).parents[2] / "stress" / "weights.py"


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def opened(tmp_path: Path, values: Any, take: str = "") -> WeightContents:
    torch.save(values, tmp_path / "x.pt")
    return open_contents(tmp_path / "x.pt", take)


def net(number: float, *names: str) -> dict[str, torch.Tensor]:
    return {name: torch.full((2,), number) for name in names or ("blocks.0.weight", "norm.bias")}


def values(contents: WeightContents) -> dict[str, float]:
    return {name: float(stored.read()[0]) for name, stored in contents.tensors.items()}


# Kinds of file


@pytest.mark.parametrize("name", ["x.safetensors", "x.pt", "x.npz", "x.bin", "x", "x.jpg"])
def test_the_bytes_decide_and_not_the_name(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    save_file(net(1), path, {"note": "a"})
    contents = open_contents(path)
    assert (contents.kind, contents.metadata, contents.source) == ("safetensors", {"note": "a"}, str(path))
    assert values(contents) == {"blocks.0.weight": 1, "norm.bias": 1}
    for options in ({}, {"_use_new_zipfile_serialization": False}):
        torch.save(net(2), path, **options)
        contents = open_contents(str(path))
        assert contents.kind == "pickle"
        assert values(contents) == {"blocks.0.weight": 2, "norm.bias": 2}
    with open(path, "wb") as file:
        np.savez(file, **{"head/kernel": np.full(2, 3, "f4")})
    contents = open_contents(path)
    assert (contents.kind, values(contents)) == ("npz", {"head/kernel": 3})
    assert (contents.wrapper, contents.others, contents.sidecars) == ("", (), {})


def test_the_real_files_open(fixtures: Path) -> None:
    tiny = open_contents(fixtures / "vit_tiny_patch16_224_in1k.safetensors")
    assert (tiny.kind, len(tiny.tensors), tiny.wrapper) == ("safetensors", 152, "")
    assert tiny.tensors["patch_embed.proj.weight"].shape == (192, 3, 16, 16)
    mnist = open_contents(fixtures / "vit_mnist_d64_l6_h4_p4.pt")
    assert (mnist.kind, len(mnist.tensors), mnist.wrapper) == ("pickle", 74, "")
    assert mnist.tensors["pos_embedding"].shape == (1, 50, 64)


@pytest.mark.parametrize("path", [None, 3, b"x", ["x"], "", "a\0b"])
def test_what_is_no_path_is_refused(path: Any) -> None:
    with pytest.raises(InputError, match="expected the path"):
        open_contents(path)


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint .*nothing.pt"):
        open_contents(tmp_path / "nothing.pt")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CheckpointError, match="pipe or device"):
        open_contents(tmp_path / "pipe")
    with pytest.raises(CheckpointError, match="could not read"):
        open_contents(tmp_path / ("x" * 300))


# Copies


COPIED: dict[str, tuple[dict[str, Any], str, tuple[str, ...]]] = {
    "state dict": (
        {"state_dict": net(1), "epoch": 3, "optimizer": {"state": {}, "param_groups": []}},
        "state_dict",
        ("epoch", "optimizer"),
    ),
    "mae": ({"model": net(1), "args": None, "scaler": {"scale": 1.0}}, "model", ("args", "scaler")),
    "ema before model": ({"model": net(2), "model_ema": net(1), "epoch": 1}, "model_ema", ("model", "epoch")),
    "teacher before student": ({"student": net(2), "teacher": net(1)}, "teacher", ("student",)),
    "ema before state dict": ({"state_dict": net(2), "state_dict_ema": net(1)}, "state_dict_ema", ("state_dict",)),
    "nested": ({"state_dict": {"model": net(1), "step": 7}, "x": 1}, "state_dict, model", ("x", "step")),
    "ema in its object": ({"ema": {"decay": 0.9, "shadow": net(1)}}, "ema, shadow", ("decay",)),
    "unknown name": ({"params_ema": net(1), "meta": {"a": 1}}, "params_ema", ("meta",)),
    "not the optimiser": (
        {"generator": net(1), "optim": {"state": {0: {"m": torch.ones(2)}}, "param_groups": []}},
        "generator",
        ("optim",),
    ),
    "a tensor beside": ({"model": net(1), "best": torch.ones(1)}, "model", ("best",)),
    "numbers in the weights": (net(1) | {"step": 3, "_metadata": {"a": {"version": 1}}}, "", ("step", "_metadata")),
    "an empty copy": ({"model": net(1), "model_ema": {}, "teacher": None}, "model", ("model_ema", "teacher")),
    "the same copy twice": ((lambda d: {"ema": d, "model": d})(net(1)), "ema", ("model",)),
}


@pytest.mark.parametrize("name", COPIED)
def test_the_best_copy_is_taken(tmp_path: Path, name: str) -> None:
    tree, wrapper, others = COPIED[name]
    contents = opened(tmp_path, tree)
    assert values(contents) == {"blocks.0.weight": 1, "norm.bias": 1}
    assert (contents.wrapper, contents.others) == (wrapper, others)


def test_every_known_name_of_a_copy_is_looked_for(tmp_path: Path) -> None:
    for place, name in enumerate(COPIES):
        tree = {each: net(COPIES.index(each)) for each in reversed(COPIES[place:])}
        contents = opened(tmp_path, tree)
        assert set(values(contents).values()) == {place}
        assert contents.wrapper == name


def test_one_may_say_which_copy(tmp_path: Path) -> None:
    tree = {"student": net(2), "teacher": net(1), "other": {"inner": net(3)}, "epoch": 1}
    assert set(values(opened(tmp_path, tree, "student")).values()) == {2}
    contents = opened(tmp_path, tree, "other")
    assert (set(values(contents).values()), contents.wrapper) == ({3}, "other, inner")
    with pytest.raises(InputError, match="no 'studnet' to take: expected one of: student, teacher, other"):
        open_contents(tmp_path / "x.pt", "studnet")
    with pytest.raises(InputError, match="student, teacher, other"):
        open_contents(tmp_path / "x.pt", "epoch")
    with pytest.raises(InputError, match="take: expected str"):
        open_contents(tmp_path / "x.pt", 3)  # type: ignore[arg-type]
    save_file(net(1), tmp_path / "x.safetensors")
    with pytest.raises(InputError, match="one set of tensors"):
        open_contents(tmp_path / "x.safetensors", "teacher")


NOTHING: dict[str, tuple[Any, str]] = {
    "several": ({"left": net(1), "right": net(2)}, "several sets of tensors, take one of: left, right"),
    "numbers": ({"a": 1, "b": {"c": 2}}, "no tensors by name; it holds a, b"),
    "empty": ({}, "no tensors by name; it holds nothing"),
    "list": ([torch.ones(1)], "holds a list: expected tensors by name"),
    "tensor": (torch.ones(1), "a single tensor without a name"),
    "optimiser": ({"state": {0: {"m": torch.ones(2)}}, "param_groups": [{"lr": 1}]}, "state of an optimiser"),
    "optimiser inside": (
        {"optimizer": {"state": {0: {"m": torch.ones(2)}}, "param_groups": []}, "epoch": 1},
        r"\(under optimizer\) is the state of an optimiser",
    ),
    "numbered": ({0: torch.ones(1), 1: torch.ones(1)}, "no tensors by name; it holds 0, 1"),
    "unprintable name": ({"a\x1b[2J": torch.ones(1)}, "cannot be the name of a tensor"),
    "long name": ({"a" * 501: torch.ones(1)}, "cannot be the name of a tensor"),
}


@pytest.mark.fault("W10")
@pytest.mark.parametrize("name", NOTHING)
def test_w10_files_without_named_tensors_say_what_they_hold(tmp_path: Path, name: str) -> None:
    tree, words = NOTHING[name]
    with pytest.raises(CheckpointError, match=words) as caught:
        opened(tmp_path, tree)
    assert str(tmp_path / "x.pt") in str(caught.value)


def test_values_that_hold_themselves_are_walked_once(tmp_path: Path) -> None:
    tree: dict[str, Any] = {"a": {"b": {}}, "weights": net(1)}
    tree["a"]["b"]["again"] = tree
    tree["itself"] = tree
    contents = opened(tmp_path, tree)
    assert set(values(contents).values()) == {1}
    knot: dict[str, Any] = {"t": torch.ones(2)}
    knot["model"] = knot
    with pytest.raises(CheckpointError, match="no tensors|holds"):
        opened(tmp_path, {"model": (loop := {}) or loop.update(model=loop) or loop})
    assert set(opened(tmp_path, knot).tensors) == {"t"}


# Prefixes


PREFIXED: dict[str, tuple[tuple[str, ...], tuple[str, ...], str]] = {
    "parallel": (("module.a", "module.b.c"), ("a", "b.c"), "module."),
    "compiled": (("_orig_mod.a", "_orig_mod.b"), ("a", "b"), "_orig_mod."),
    "several": (("module._orig_mod.model.a", "module._orig_mod.model.b"), ("a", "b"), "module., _orig_mod., model."),
    "twice": (("module.module.a",), ("a",), "module., module."),
    "not all": (("module.a", "b"), ("module.a", "b"), ""),
    "transformers": (("model.layer.0.a", "embeddings.b"), ("model.layer.0.a", "embeddings.b"), ""),
    "encoder stays": (("encoder.a", "encoder.b"), ("encoder.a", "encoder.b"), ""),
    "nothing else": (("module.",), ("module.",), ""),
    "dino": (
        ("backbone.cls_token", "backbone.norm.weight", "head.mlp.0.weight"),
        ("cls_token", "norm.weight", "head.mlp.0.weight"),
        "backbone. (of 2 of 3 tensors)",
    ),
    "dino in parallel": (
        ("module.backbone.cls_token", "module.head.last_layer"),
        ("cls_token", "head.last_layer"),
        "module., backbone. (of 1 of 2 tensors)",
    ),
    "dinov2": (
        ("backbone.cls_token", "dino_head.mlp", "ibot_head.mlp"),
        ("cls_token", "dino_head.mlp", "ibot_head.mlp"),
        "backbone. (of 1 of 3 tensors)",
    ),
    "two heads of one name": (("backbone.head.w", "head.w"), ("backbone.head.w", "head.w"), ""),
    "backbone beside others": (("backbone.a", "neck.b"), ("backbone.a", "neck.b"), ""),
}


@pytest.mark.parametrize("name", PREFIXED)
def test_prefixes_of_all_names_are_taken_off(tmp_path: Path, name: str) -> None:
    theirs, ours, wrapper = PREFIXED[name]
    contents = opened(tmp_path, {"teacher": {each: torch.full((2,), float(n)) for n, each in enumerate(theirs)}})
    assert values(contents) == {each: n for n, each in enumerate(ours)}
    assert contents.wrapper == ", ".join(["teacher", wrapper] if wrapper else ["teacher"])


def test_names_of_transformers_stay_as_they_are(tmp_path: Path) -> None:
    names = ("model.layer.0.norm1.weight", "model.layer.0.norm2.weight")
    save_file(net(1, *names), tmp_path / "model.safetensors")
    assert set(open_contents(tmp_path / "model.safetensors").tensors) == {name[6:] for name in names}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "dinov3_vit"}))
    for path in (tmp_path, tmp_path / "model.safetensors"):
        assert set(open_contents(path).tensors) == set(names)
    save_file(net(1, *(f"module.{name}" for name in names)), tmp_path / "model.safetensors")
    contents = open_contents(tmp_path)
    assert (set(contents.tensors), contents.wrapper) == (set(names), "module.")
    save_file(net(1, "backbone.a", "head.b"), tmp_path / "model.safetensors")
    assert set(open_contents(tmp_path).tensors) == {"backbone.a", "head.b"}


# Strangers


def _tar(data: bytes) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        member = tarfile.TarInfo("weights.pt")
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))
    return file.getvalue()


def _image(kind: str) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (8, 8)).save(file, kind)
    return file.getvalue()


ONNX = b"\x08\x0a\x12\x07pytorch\x1a\x062.13.0\x3a\x80\x04\x0a\x40" + bytes(range(64))
STRANGERS: dict[str, tuple[bytes, str]] = {
    "web page": (b"<!DOCTYPE html>\n<html><head><title>404</title>", "web page, not weights: the download went wrong"),
    "web page with a mark": (b"\xef\xbb\xbf\r\n <HTML>", "web page"),
    "access denied": (b'<?xml version="1.0"?><Error>AccessDenied</Error>', "web page"),
    "answer of a server": (b'{"error": "Repository not found"}', "JSON, perhaps the answer of a server"),
    "git-LFS pointer": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 346351599\n",
        "git-LFS pointer.*run 'git lfs pull'",
    ),
    "text": (b"Entry not found\n", "is text"),
    "empty": (b"", "is empty"),
    "zeros": (bytes(5000), "nothing but zero bytes"),
    "onnx": (ONNX, "ONNX"),
    "saved model": (b"\x08\x01\x12\xb5\x93\x03\x0a\xf0\x02", "SavedModel"),
    "script": (
        evil.zip_bytes({"x/data.pkl": b"N.", "x/constants.pkl": b"N.", "x/code/a.py": b"def f(): pass"}),
        "TorchScript.*torch.jit.load",
    ),
    "script for phones": (evil.zip_bytes({"x/bytecode.pkl": b"N."}), "TorchScript"),
    "exported program": (evil.zip_bytes({"m/archive_format": b"pt2", "m/models/model.json": b"{}"}), "torch.export"),
    "keras": (evil.zip_bytes({"config.json": b"{}" * 99, "model.weights.h5": b"x"}, 8), "Keras archive"),
    "office": (evil.zip_bytes({"[Content_Types].xml": b"<x>" * 99, "word/document.xml": b""}, 8), "office document"),
    "zip of weights": (evil.zip_bytes({"a/model.safetensors": b"x"}), "zip archive with weights in it: unpack"),
    "zip of something": (evil.zip_bytes({"notes.txt": b"x" * 999}, 8), "zip archive of something else .'notes.txt'"),
    "empty zip": (evil.zip_bytes({}), "empty zip"),
    "h5": (b"\x89HDF\r\n\x1a\n" + bytes(99), "HDF5.*Keras"),
    "tensorflow": (b'model_checkpoint_path: "model.ckpt-1"\n', "TensorFlow"),
    "gzip": (b"\x1f\x8b\x08\0" + bytes(9), "gzip file: unpack"),
    "bzip2": (b"BZh91AY&SY", "bzip2"),
    "xz": (b"\xfd7zXZ\0\0\4", "xz file"),
    "7z": (b"7z\xbc\xaf\x27\x1c\0\4", "7z archive"),
    "rar": (b"Rar!\x1a\7\0", "RAR"),
    "zstandard": (b"\x28\xb5\x2f\xfd\4", "Zstandard"),
    "tar": (_tar(b"x"), "tar archive: unpack"),
    "gguf": (b"GGUF\3\0\0\0", "GGUF"),
    "lone array": (evil.npy((1,), data=bytes(4)), r"lone array \(.npy\)"),
    "png": (_image("PNG"), "image .PNG."),
    "jpeg": (_image("JPEG"), "image .JPEG."),
    "webp": (_image("WEBP"), "image .WebP."),
    "gif": (_image("GIF"), "image .GIF."),
    "pdf": (b"%PDF-1.7\n\xe2\xe3", "PDF"),
    "pickle of a list": (b"\x80\x04]\x94.", "pickle of something other than weights"),
    "pickle of a dict": (b"\x80\x04}\x94\x8c\1a\x94K\1s.", "pickle of plain values without tensors"),
    "pickle of an optimiser": (
        b"\x80\x02}(" + evil.text("state", 2) + b"}" + evil.text("param_groups", 2) + b"]u.",
        "state of an optimiser",
    ),
    "old pickle": (b"(dp0\nVa\np1\nI1\ns.", "is text|no kind"),
    "random": (bytes(np.random.default_rng(5).integers(128, 256, 4000, dtype=np.uint8)), "no kind known"),
    "short": (b"\xfa\xfb\xfc", "no kind known"),
    "half a zip": (evil.torch_zip(evil.weights())[:100], "directory is missing: it is cut short"),
    "half a safetensors": (b"\x40\0\0\0\0\0\0\0{" + b'"a":', "safetensors"),
}


@pytest.mark.fault("W10")
@pytest.mark.parametrize("name", STRANGERS)
def test_w10_strangers_are_named(tmp_path: Path, name: str) -> None:
    data, words = STRANGERS[name]
    path = write(tmp_path / "weights.pt", data)
    with pytest.raises(CheckpointError, match=words) as caught:
        open_contents(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert message.isprintable()
    assert len(message) < 500


@pytest.mark.fault("W10")
def test_w10_checkpoints_of_tensorflow_are_known_by_name(tmp_path: Path) -> None:
    for name in ("model.ckpt-1.index", "model.ckpt-1.data-00000-of-00001"):
        with pytest.raises(CheckpointError, match="TensorFlow"):
            open_contents(write(tmp_path / name, b"\0\xd3\xfe" * 90))


@pytest.mark.fault("W10")
def test_w10_random_bytes_end_in_our_error(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for number in range(300):
        data = rng.integers(0, 256, 200, dtype=np.uint8).tobytes()
        data = bytes([b"(c]}\x80P\x08{\x89"[number % 9]]) + data
        with pytest.raises(VitrailError):
            open_contents(write(tmp_path / "x", data))


# Bombs and mutants


MEASURE = """
import json, os, resource, sys
from pathlib import Path
from vitrail.errors import VitrailError
from vitrail.weights.reading.weight_files import open_contents

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

def attempt(path):
    before = peak()
    try:
        for stored in open_contents(path).tensors.values():
            stored.read()
        said = "opened"
    except VitrailError as error:
        said = str(error)
    except BaseException as error:
        said = "foreign " + repr(error)
    return {"name": path.name, "grew": peak() - before, "said": said}

try:
    open_contents(Path(sys.argv[1]) / "warm")
except VitrailError:
    pass
for path in sorted(Path(sys.argv[1]).iterdir()):
    process = os.fork()
    if process == 0:
        print(json.dumps(attempt(path)), flush=True)
        os._exit(0)
    os.waitpid(process, 0)
"""


@pytest.mark.fault("W4", "W6")
def test_w4_thirty_bombs_are_refused_before_they_cost_memory(tmp_path: Path) -> None:
    bombs = evil.bombs()
    assert len(bombs) >= 30
    for name, data in bombs.items():
        write(tmp_path / name, data)
    honest = torch.zeros(2**24)
    torch.save({"a": honest}, tmp_path / "honest")
    run = subprocess.run([sys.executable, "-c", MEASURE, tmp_path], capture_output=True, text=True, check=True)
    results = {each["name"]: each for each in map(json.loads, run.stdout.splitlines())}
    assert results.keys() == {*bombs, "honest"}
    control = results.pop("honest")
    assert control["said"] == "opened"
    assert control["grew"] > 60  # MB: the measure sees a tensor of 64 MB
    for name, each in results.items():
        assert each["said"] != "opened", name
        assert not each["said"].startswith("foreign"), each
        assert each["grew"] < 2 * len(bombs[name]) / 2**20 + 50, each


def stress() -> ModuleType:
    spec = importlib.util.spec_from_file_location("stress_weights", STRESS)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["stress_weights"] = module
    sys.path.insert(0, str(STRESS.parent))  # it shares its injuries with stress/image_campaign.py
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(STRESS.parent))
    return module


@pytest.mark.fault("W13")
def test_w13_fifteen_hundred_damaged_files(tmp_path: Path) -> None:
    """The first files of the campaign in stress/weights.py, of every kind."""
    campaign = stress()
    seeds = campaign.seed_files()
    path = tmp_path / "x"
    for kind, seed in seeds.items():
        assert campaign.outcome(write(path, seed.data)) == "read", kind
        assert campaign.outcome(write(path, seed.around(seed.inner))) == "read", kind
    found: dict[str, list[str]] = {}
    for index in range(1500):
        kind, data = campaign.damaged(index, 0, seeds)
        found.setdefault(campaign.outcome(write(path, data)), []).append(kind)
    assert found.keys() == {"read", "refused"}
    assert set(found["refused"]) == set(seeds)
    assert 20 < len(found["read"]) < 750
    assert campaign.outcome(tmp_path / "x" / "y") == "refused"


@pytest.mark.fault("W13")
def test_w13_a_foreign_error_would_be_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    campaign = stress()

    def broken(_: Path) -> None:
        raise KeyError("x")

    monkeypatch.setattr(campaign, "open_contents", broken)
    assert campaign.outcome(tmp_path) == "KeyError: 'x'"


def field(number: int, value: bytes) -> bytes:
    """One field of a protocol buffer, as bytes with their length."""
    length, digits = len(value), b""
    while length >= 128:
        digits, length = digits + bytes([length % 128 + 128]), length // 128
    return bytes([8 * number + 2]) + digits + bytes([length]) + value


@pytest.mark.fault("W16")
@pytest.mark.parametrize("location", ["../secret.bin", "/etc/passwd", "weights.data"])
def test_w16_an_exported_network_is_named_and_nothing_it_points_to_is_opened(tmp_path: Path, location: str) -> None:
    """ONNX whose tensors lie elsewhere, and claim to be huge: refused for what it is, from its first bytes."""
    entry = field(1, b"location") + field(2, location.encode())
    claimed = b"\x08\x80\x80\x80\x80\x80\x80\x80\x80\x01"  # 2^56 values
    tensor = claimed + field(8, b"weight") + field(13, entry) + b"\x70\x01"
    (tmp_path / "in").mkdir()
    path = tmp_path / "in" / "net.onnx"
    path.write_bytes(b"\x08\x0a" + field(2, b"pytorch") + field(3, b"2.13.0") + field(7, field(5, tensor)))
    os.mkfifo(tmp_path / "secret.bin")  # whoever opens it waits for ever
    with pytest.raises(CheckpointError, match="ONNX"):
        open_contents(path)
