"""Folders: the right files are chosen, nothing outside is reached, nothing they ask for is run."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from vitrail.errors import CheckpointError
from vitrail.weights.reading.model_folders import read_json
from vitrail.weights.reading.weight_files import open_contents
from weights import evil

CONFIG = {"model_type": "vit", "hidden_size": 4}


def values(number: float) -> dict[str, torch.Tensor]:
    return {"layer.weight": torch.full((2, 2), number), "layer.bias": torch.full((2,), number)}


def put(path: Path, value: Any) -> None:
    """A file: JSON from dicts, tensors by the ending, bytes and text as they are."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(value, bytes):
        path.write_bytes(value)
    elif isinstance(value, str):
        path.write_text(value)
    elif path.suffix == ".json":
        path.write_text(json.dumps(value))
    elif path.suffix == ".safetensors":
        save_file(value, path)
    else:
        torch.save(value, path)


def folder_of(tmp_path: Path, files: dict[str, Any]) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    for name, value in files.items():
        put(folder / name, value)
    return folder


def first(path: Path) -> float:
    return float(open_contents(path).tensors["layer.weight"].read()[0, 0])


def refused(path: Path, words: str) -> str:
    with pytest.raises(CheckpointError, match=words) as caught:
        open_contents(path)
    return str(caught.value)


# Which file


CHOICES: dict[str, tuple[dict[str, Any], float]] = {
    "model": ({"model.safetensors": values(1), "config.json": CONFIG}, 1),
    "no config": ({"model.safetensors": values(1)}, 1),
    "any name": ({"vit_tiny.safetensors": values(1), "README.md": "x"}, 1),
    "open_clip": ({"open_clip_model.safetensors": values(1), "open_clip_config.json": {"model_cfg": {}}}, 1),
    "transformers before open_clip": (
        {"model.safetensors": values(1), "open_clip_model.safetensors": values(2), "config.json": CONFIG},
        1,
    ),
    "safetensors before bin": ({"pytorch_model.bin": values(2), "model.safetensors": values(1)}, 1),
    "any safetensors before bin": ({"pytorch_model.bin": values(2), "x.safetensors": values(1)}, 1),
    "bin": ({"pytorch_model.bin": values(3), "training_args.bin": {"x": 1}}, 3),
    "open_clip bin": ({"open_clip_pytorch_model.bin": values(3), "open_clip_config.json": {}}, 3),
    "pth": ({"checkpoint.pth": values(4), "log.txt": "x"}, 4),
    "pt": ({"x.pt": values(4)}, 4),
}


@pytest.mark.parametrize("name", CHOICES)
def test_the_right_file_is_chosen(tmp_path: Path, name: str) -> None:
    files, number = CHOICES[name]
    folder = folder_of(tmp_path, files)
    assert first(folder) == number
    contents = open_contents(str(folder))
    assert contents.source == str(folder)
    assert contents.kind == ("safetensors" if number == 1 else "pickle")
    assert set(contents.sidecars) == {each for each in files if each.endswith(".json")}
    assert all(contents.sidecars[each] == files[each] for each in contents.sidecars)


@pytest.mark.fault("W12")
def test_w12_with_safetensors_there_the_bin_is_never_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    canary = tmp_path / "canary"
    payload = evil.by_reduce(evil.Target("os", "system", (f"touch {canary}",)), 2)
    bin = evil.torch_zip(evil.in_weights(payload, 2))
    folder = folder_of(tmp_path, {"model.safetensors": values(1), "pytorch_model.bin": bin, "config.json": CONFIG})
    opened: list[str] = []
    real = os.open

    def watch(path: Any, *rest: Any, **more: Any) -> int:
        opened.append(os.path.basename(path))
        return real(path, *rest, **more)

    monkeypatch.setattr(os, "open", watch)
    assert first(folder) == 1
    assert "model.safetensors" in opened
    assert "pytorch_model.bin" not in opened
    (folder / "model.safetensors").unlink()
    assert "os.system" in refused(folder, "os.system")
    assert "pytorch_model.bin" in opened  # the watch sees what is opened
    assert not canary.exists()


@pytest.mark.parametrize(
    "files, words",
    [
        ({"a.safetensors": values(1), "b.safetensors": values(2)}, "several files of weights: name one of a.safe"),
        ({"a.pth": values(1), "b.npz": b"", "c.bin": b""}, "name one of a.pth, b.npz, c.bin"),
        ({}, "no weights in this folder: it holds nothing"),
        ({"config.json": CONFIG, "notes.txt": "x"}, "no weights .* 'config.json', 'notes.txt'"),
        ({"saved_model.pb": b"x", "x.index": b""}, "TensorFlow"),
        ({"checkpoint": "model_checkpoint_path: x"}, "TensorFlow"),
    ],
)
def test_a_folder_without_a_choice_says_what_it_holds(tmp_path: Path, files: dict[str, Any], words: str) -> None:
    refused(folder_of(tmp_path, files), words)


@pytest.mark.fault("W3")
def test_a_folder_of_runs_names_them(tmp_path: Path) -> None:
    for name in ("photos-1", "photos-2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "data.json").write_text("{}")
    with pytest.raises(CheckpointError, match="name one of its runs: .*photos-1, .*photos-2$"):
        open_contents(tmp_path)


def test_w3_a_distributed_checkpoint_is_refused_unread(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    payload = evil.program(evil.by_reduce(evil.Target("os", "system", (f"touch {canary}",)), 4), 4)
    folder = folder_of(tmp_path, {".metadata": payload, "__0_0.distcp": b"x", "model.safetensors": values(1)})
    message = refused(folder, "distributed checkpoint .* is a pickle")
    assert "dcp_to_torch_save" in message
    assert "os.system" in refused(folder / ".metadata", "os.system")
    assert not canary.exists()


def test_a_file_with_the_name_of_a_unit_brings_its_folder(tmp_path: Path) -> None:
    folder = folder_of(
        tmp_path,
        {"model.safetensors": values(1), "other.safetensors": values(2), "config.json": CONFIG},
    )
    assert open_contents(folder / "model.safetensors").sidecars == {"config.json": CONFIG}
    assert open_contents(folder / "other.safetensors").sidecars == {}
    assert first(folder / "other.safetensors") == 2


# Shards


def sharded(tmp_path: Path, index: Any = None) -> Path:
    shards = {
        "model-1.safetensors": {"layer.weight": torch.ones(2, 2)},
        "model-2.safetensors": {"layer.bias": torch.zeros(2), "head.weight": torch.full((3,), 7.0)},
    }
    honest = {name: shard for shard, tensors in shards.items() for name in tensors}
    weight_map = honest if index is None else index(dict(honest))
    return folder_of(tmp_path, shards | {"model.safetensors.index.json": {"metadata": {}, "weight_map": weight_map}})


def test_shards_are_one(tmp_path: Path) -> None:
    contents = open_contents(sharded(tmp_path))
    assert {name: each.read().flatten().tolist() for name, each in contents.tensors.items()} == {
        "layer.weight": [1.0] * 4,
        "layer.bias": [0.0] * 2,
        "head.weight": [7.0] * 3,
    }


def test_shards_of_pickles_are_one(tmp_path: Path) -> None:
    index = {"weight_map": {"layer.weight": "pytorch_model-1.bin", "layer.bias": "pytorch_model-2.bin"}}
    folder = folder_of(
        tmp_path,
        {
            "pytorch_model-1.bin": {"layer.weight": torch.ones(2, 2)},
            "pytorch_model-2.bin": {"layer.bias": torch.zeros(2)},
            "pytorch_model.bin.index.json": index,
        },
    )
    assert first(folder) == 1
    assert open_contents(folder).kind == "pickle"


def _to(**changes: str) -> Any:
    return lambda honest: honest | {name.replace("_", "."): shard for name, shard in changes.items()}


BAD_INDEX: dict[str, tuple[Any, str]] = {
    "parent": (_to(layer_bias="../model-2.safetensors"), "no plain name"),
    "absolute": (_to(layer_bias="/etc/passwd.safetensors"), "no plain name"),
    "subfolder": (_to(layer_bias="a/model-2.safetensors"), "no plain name"),
    "windows": (_to(layer_bias="..\\model-2.safetensors"), "no plain name"),
    "hidden": (_to(layer_bias=".model.safetensors"), "no plain name"),
    "newline": (_to(layer_bias="a\n.safetensors"), "no plain name"),
    "another kind": (_to(layer_bias="model-2.bin"), "no plain name"),
    "empty name": (_to(layer_bias=""), "no plain name"),
    "missing": (_to(layer_bias="model-3.safetensors"), "model-3.safetensors is missing"),
    "wrong shard": (_to(layer_bias="model-1.safetensors"), "layer.bias is in model-2.safetensors, but the index says"),
    "tensor missing": (_to(norm_bias="model-1.safetensors"), "not in the file that the index names: norm.bias"),
    "tensor unlisted": (lambda honest: {k: v for k, v in honest.items() if k != "head.weight"}, "head.weight is in"),
    "no names": (lambda honest: dict.fromkeys(honest, 1), "expected a weight_map"),
    "a list": (lambda honest: list(honest), "expected a weight_map"),
    "nothing": (lambda honest: {}, "expected a weight_map"),
}


@pytest.mark.fault("W11")
@pytest.mark.parametrize("name", BAD_INDEX)
def test_w11_a_bad_index_is_refused(tmp_path: Path, name: str) -> None:
    index, words = BAD_INDEX[name]
    folder = sharded(tmp_path, index)
    (tmp_path / "model-2.safetensors").write_bytes((folder / "model-2.safetensors").read_bytes())
    refused(folder, words)


@pytest.mark.fault("W11")
def test_w11_a_tensor_or_shard_that_stands_twice_is_refused(tmp_path: Path) -> None:
    folder = sharded(tmp_path)
    text = (folder / "model.safetensors.index.json").read_text()
    twice = text.replace('"weight_map": {', '"weight_map": {"layer.bias": "model-1.safetensors", ')
    (folder / "model.safetensors.index.json").write_text(twice)
    refused(folder, "'layer.bias' stands there twice")
    (folder / "model.safetensors.index.json").write_text(text)
    save_file({"layer.weight": torch.ones(2, 2), "layer.bias": torch.ones(2)}, folder / "model-1.safetensors")
    refused(folder, "layer.bias is in model-1.safetensors, but the index says model-2")
    (folder / "model-1.safetensors").unlink()
    os.link(folder / "model-2.safetensors", folder / "model-1.safetensors")
    refused(folder, "one and the same file")


# Links


@pytest.mark.fault("W11")
@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_w11_a_link_out_of_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    folder = folder_of(tmp_path, {"model.safetensors": values(1), "config.json": CONFIG})
    outside = tmp_path / "outside"
    (folder / name).rename(outside)
    (folder / name).symlink_to(outside)
    refused(folder, "link out of its folder")
    (folder / name).unlink()
    (folder / name).symlink_to(Path("..") / "outside")
    refused(folder, "link out of its folder")
    (folder / name).unlink()
    (folder / name).symlink_to(name)
    refused(folder, "link|could not read|leads nowhere")


@pytest.mark.fault("W11")
def test_w11_a_shard_that_is_a_link_out_is_refused(tmp_path: Path) -> None:
    folder = sharded(tmp_path)
    (folder / "model-2.safetensors").rename(tmp_path / "outside.safetensors")
    (folder / "model-2.safetensors").symlink_to(tmp_path / "outside.safetensors")
    refused(folder, "link out of its folder")


def test_links_inside_the_folder_are_followed(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, {"weights.data": b"", "config.json": CONFIG})
    save_file(values(5), folder / "weights.data")
    (folder / "model.safetensors").symlink_to("weights.data")
    assert first(folder) == 5


def test_a_cache_of_hugging_face_is_read_through_its_links(tmp_path: Path) -> None:
    cache = tmp_path / "models--google--vit"
    snapshot = cache / "snapshots" / "abc123"
    put(cache / "blobs" / "one", json.dumps(CONFIG))
    save_file(values(6), cache / "blobs" / "two")
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").symlink_to("../../blobs/one")
    (snapshot / "model.safetensors").symlink_to("../../blobs/two")
    assert first(snapshot) == 6
    assert open_contents(snapshot).sidecars == {"config.json": CONFIG}
    refused(cache, "name one of its snapshots")
    (snapshot / "config.json").unlink()
    (cache / "refs").write_text("{}")
    (snapshot / "config.json").symlink_to("../../refs")  # in the cache, but no blob
    refused(snapshot, "link out of its folder")
    (snapshot / "config.json").unlink()
    (snapshot / "config.json").symlink_to("../../../elsewhere")
    refused(snapshot, "link out of its folder")


def test_only_a_cache_has_such_links(tmp_path: Path) -> None:
    snapshot = tmp_path / "mine" / "snapshots" / "abc123"
    put(tmp_path / "mine" / "blobs" / "one", json.dumps(CONFIG))
    put(snapshot / "model.safetensors", values(6))
    (snapshot / "config.json").symlink_to("../../blobs/one")
    refused(snapshot, "link out of its folder")


# JSON


BAD_JSON: dict[str, tuple[str | bytes, str]] = {
    "NaN": ('{"a": NaN}', "NaN is no number"),
    "infinity": ('{"a": -Infinity}', "Infinity is no number"),
    "overflow": ('{"a": 1e999}', "too large a number"),
    "long number": ('{"a": ' + "9" * 5000 + "}", "cannot be used"),
    "twice": ('{"hidden_size": 1, "hidden_size": 2}', "'hidden_size' stands there twice"),
    "twice inside": ('{"a": {"b": 1, "b": 2}}', "'b' stands there twice"),
    "list": ("[1]", "expected an object"),
    "number": ("7", "expected an object"),
    "empty": ("", "cannot be used"),
    "cut": ('{"a": 1', "cannot be used"),
    "deep": ('{"a":' * 40 + "1" + "}" * 40, "nested more than 32"),
    "very deep": ('{"a":' * 100_000, "cannot be used"),
    "deep lists": ('{"a": ' + "[" * 100_000 + "}", "cannot be used"),
    "no text": (b'{"a": "\xff"}', "cannot be used"),
    "too large": ('{"a": "' + "x" * (4 * 2**20) + '"}', "at most 4,194,304"),
    "too many": ('{"a": [' + "[]," * 300_000 + "1]}", "more than 400,000 values"),
    "page": ("<html>404</html>", "cannot be used"),
}


@pytest.mark.fault("W11")
@pytest.mark.parametrize("name", BAD_JSON)
def test_w11_a_bad_config_is_refused(tmp_path: Path, name: str) -> None:
    text, words = BAD_JSON[name]
    folder = folder_of(tmp_path, {"model.safetensors": values(1), "config.json": text})
    assert str(folder / "config.json") in refused(folder, words)


@pytest.mark.fault("W11")
@pytest.mark.parametrize("file", ["config.json", "preprocessor_config.json"])
@pytest.mark.parametrize(
    "extra",
    [
        {"auto_map": {"AutoModel": "modeling_evil.Evil"}},
        {"trust_remote_code": True},
        {"vision_config": {"auto_map": {"AutoModel": "x--y.Z"}}},
        {"list": [{"auto_map": {}}]},
    ],
)
def test_w11_code_that_a_folder_brings_is_never_run(tmp_path: Path, file: str, extra: dict[str, Any]) -> None:
    canary = tmp_path / "canary"
    code = f"open({str(canary)!r}, 'w')"
    files = {"model.safetensors": values(1), "config.json": CONFIG, "modeling_evil.py": code}
    folder = folder_of(tmp_path, files | {file: CONFIG | extra})
    message = refused(folder, "code of its own")
    assert "auto_map" in message or "trust_remote_code" in message
    refused(folder / "model.safetensors", "code of its own")
    assert not canary.exists()


@pytest.mark.fault("W11")
def test_w11_odd_numbers_are_left_to_those_who_judge_sizes(tmp_path: Path) -> None:
    odd = {"num_hidden_layers": 10**9, "hidden_size": -3, "patch_size": "16"}
    folder = folder_of(tmp_path, {"model.safetensors": values(1), "config.json": odd})
    assert open_contents(folder).sidecars["config.json"] == odd


def test_json_is_read_as_it_stands(tmp_path: Path) -> None:
    text = '\ufeff{"a": [1, 2.5, null, true, "é"], "b": {"c": -1e-6}}'
    (tmp_path / "x.json").write_text(text, encoding="utf-8")
    assert read_json(tmp_path / "x.json") == {"a": [1, 2.5, None, True, "é"], "b": {"c": -1e-6}}


def test_a_pipe_or_folder_in_place_of_a_file_does_not_hold_us_up(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, {})
    os.mkfifo(folder / "model.safetensors")
    refused(folder, "pipe or device")
    (folder / "config.json").mkdir()
    refused(folder, "config.json is a folder")
