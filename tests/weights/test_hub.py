"""Checkpoints by name: from the folder VITRAIL_WEIGHTS names, from the cache, from the network, and what is said."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from vitrail.checkpoint import Checkpoint
from vitrail.errors import CheckpointError, InputError
from vitrail.images import Preprocess
from vitrail.inference import open_model
from vitrail.network import ViT, ViTConfig
from vitrail.weights import convert, load
from vitrail.weights.hub import VARIABLE, parse, places

TINY = "vit_tiny_patch16_224.augreg_in21k_ft_in1k"


@pytest.fixture(autouse=True)
def no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Any:
    """huggingface_hub without a network and with nothing in its cache."""
    module = pytest.importorskip("huggingface_hub")

    def unreachable(*_: Any, **__: Any) -> None:
        raise ConnectionError("no route to anywhere")

    monkeypatch.setattr(module, "model_info", unreachable)
    monkeypatch.setattr(module, "snapshot_download", unreachable)
    return module


def publishes(*names: str) -> Callable[..., Any]:
    """What stands in for model_info: a repository with files of these names."""
    siblings = [SimpleNamespace(rfilename=name) for name in names]
    return lambda repo, *, revision, timeout: SimpleNamespace(siblings=siblings)


def downloads(asked: list[dict[str, Any]], folder: Path, cached: bool = False) -> Callable[..., str]:
    """What stands in for snapshot_download: it notes what it is asked, and has the folder."""

    def download(repo: str, **how: Any) -> str:
        asked.append({"repo": repo, **how})
        if how.get("local_files_only") and not cached:
            raise FileNotFoundError(repo)
        return str(folder)

    return download


@pytest.fixture
def in_timm(bare: Path, tmp_path: Path) -> Path:
    """A folder as timm publishes one."""
    convert(bare, tmp_path / "in-timm", to="timm")
    return tmp_path / "in-timm"


@pytest.mark.parametrize(
    "place, name",
    [
        ("timm/small", "timm:small"),
        ("timm--small", "timm:small"),
        ("small", "timm:small"),
        ("timm/small", "hf:timm/small"),
        ("someone/small.v2", "hf:someone/small.v2"),
        ("someone--small.v2", "hf:someone/small.v2"),
        ("someone/small@v2", "hf:someone/small@v2"),
    ],
)
def test_a_folder_of_checkpoints_is_looked_in_first(
    place: str, name: str, in_timm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """huggingface_hub is not even asked for."""
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.setenv(VARIABLE, str(tmp_path / "weights"))
    shutil.copytree(in_timm, tmp_path / "weights" / place)
    pixels = np.random.default_rng(0).standard_normal((2, 3, 32, 32), np.float32)
    expected = load(in_timm).run(pixels)[0]
    for loaded in (load(name), open_model(name)):
        np.testing.assert_array_equal(loaded.run(pixels)[0], expected)


def test_a_folder_as_transformers_writes_it_is_found_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    config = ViTConfig(image_size=32, patch_size=8, width=128, depth=2, heads=2, mlp_width=256, classes=3)
    made = Checkpoint(ViT(config).eval(), Preprocess(32), ("a", "b", "c"))
    convert(made, tmp_path / "weights" / "lab" / "frogs", to="transformers")
    assert (tmp_path / "weights" / "lab" / "frogs" / "config.json").is_file()
    monkeypatch.setenv(VARIABLE, str(tmp_path / "weights"))
    loaded = load("hf:lab/frogs")
    assert loaded.classes == ("a", "b", "c")
    pixels = np.random.default_rng(0).standard_normal((2, 3, 32, 32), np.float32)
    np.testing.assert_allclose(loaded.run(pixels)[0], made.run(pixels)[0], atol=1e-6)


def test_the_published_tiny_network_is_found_by_its_name_in_timm(
    fixtures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = fixtures / "vit_tiny_patch16_224_in1k.safetensors"
    (tmp_path / "timm").mkdir()
    (tmp_path / "timm" / f"{TINY}.safetensors").symlink_to(file.resolve())
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    pixels = np.random.default_rng(0).standard_normal((1, 3, 224, 224), np.float32)
    np.testing.assert_array_equal(load(f"timm:{TINY}").run(pixels)[0], load(file).run(pixels)[0])
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (60, 50, 3), np.uint8))
    [found] = vitrail.predict(open_model(f"timm:{TINY}"), [image])
    assert len(found.labels) == 5


def test_places_are_looked_at_in_order_and_stay_in_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    found = [str(each.relative_to(tmp_path)) for each in places(parse("timm:small"))]
    stems = ("timm/small", "timm--small", "small")
    assert found == [f"{stem}{ending}" for stem in stems for ending in ("", ".safetensors")]
    for name in ("hf:../secrets", "hf:a/..", "timm:..", "timm:a/b", "hf:nothing", "timm:", "hf:a/b@../c"):
        with pytest.raises(InputError, match="expected hf:owner/name or timm:name"):
            parse(name)


def test_a_folder_that_is_none_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "none"))
    with pytest.raises(InputError, match="VITRAIL_WEIGHTS names .*none', which is no folder"):
        load("timm:small")


def test_names_lead_to_the_folder_that_was_fetched(
    bare: Path, in_timm: Path, tmp_path: Path, hub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As huggingface_hub lays its cache out: names that point to blobs beside the snapshot."""
    blobs, snapshot = tmp_path / "models--a--b" / "blobs", tmp_path / "models--a--b" / "snapshots" / "main"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for file in in_timm.iterdir():
        (blobs / file.stem).write_bytes(file.read_bytes())
        (snapshot / file.name).symlink_to(Path("..") / ".." / "blobs" / file.stem)
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(hub, "model_info", publishes("config.json", "model.safetensors", "run.py"))
    monkeypatch.setattr(hub, "snapshot_download", downloads(asked, snapshot))
    loaded = load("hf:a/b@v2")
    assert asked == [
        {"repo": "a/b", "revision": "v2", "local_files_only": True},
        # no code, and no pickles where they are not needed
        {"repo": "a/b", "revision": "v2", "allow_patterns": ["*.json", "*.safetensors"]},
    ]
    assert torch.equal(loaded.model.norm.weight, load(bare).model.norm.weight)
    load("timm:some.name")
    assert asked[-1]["repo"] == "timm/some.name"


def test_what_is_in_the_cache_is_not_fetched_again(
    bare: Path, in_timm: Path, hub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the revision that was asked for; and no network is needed."""
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(hub, "snapshot_download", downloads(asked, in_timm, cached=True))
    assert torch.equal(load("hf:a/b@v2").model.norm.weight, load(bare).model.norm.weight)
    assert asked == [{"repo": "a/b", "revision": "v2", "local_files_only": True}]


def test_a_cache_with_no_more_than_a_config_is_filled(
    bare: Path, in_timm: Path, tmp_path: Path, hub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other tools fetch parts of a repository."""
    (tmp_path / "part").mkdir()
    shutil.copy(in_timm / "config.json", tmp_path / "part" / "config.json")
    monkeypatch.setattr(hub, "model_info", publishes("config.json", "model.safetensors"))

    def download(repo: str, *, local_files_only: bool = False, **how: Any) -> str:
        return str(tmp_path / "part" if local_files_only else in_timm)

    monkeypatch.setattr(hub, "snapshot_download", download)
    assert torch.equal(load("hf:a/b").model.norm.weight, load(bare).model.norm.weight)


@pytest.mark.parametrize(
    "names, pickles",
    [(["config.json", "pytorch_model.bin"], True), (["config.json", "pytorch_model.bin", "a.safetensors"], False)],
)
def test_pickles_are_fetched_only_where_there_is_nothing_else(
    bare: Path, hub: Any, monkeypatch: pytest.MonkeyPatch, names: list[str], pickles: bool
) -> None:
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(hub, "model_info", publishes(*names))
    monkeypatch.setattr(hub, "snapshot_download", downloads(asked, bare))
    load("hf:a/b")
    patterns = asked[-1]["allow_patterns"]
    assert ("*.bin" in patterns) is pickles
    assert "*.safetensors" in patterns
    assert not any(each.endswith("py") or each == "*" for each in patterns)


@pytest.mark.usefixtures("hub")
def test_offline_it_is_said_what_was_looked_for_where_and_what_to_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(CheckpointError) as told:
        load("timm:small")
    files = "config.json, model.safetensors and, where there is one, preprocessor_config.json"
    assert str(told.value) == (
        "timm:small could not be fetched (no network), and VITRAIL_WEIGHTS is not set. Without a network, copy "
        f"{files} of timm/small from another machine into FOLDER/timm/small, and set VITRAIL_WEIGHTS=FOLDER"
    )
    assert len(str(told.value).split()) <= 45
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    with pytest.raises(CheckpointError) as told:
        load("timm:small")
    assert str(told.value) == (
        f"timm:small could not be fetched (no network), and VITRAIL_WEIGHTS ({tmp_path}) has no timm/small, "
        f"timm--small or small. Without a network, copy {files} of timm/small from another machine into "
        f"{tmp_path}/timm/small"
    )


def test_why_nothing_was_fetched_is_told_in_words(hub: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the libraries are an address and a number."""
    httpx = pytest.importorskip("httpx")
    reasons = {
        hub.errors.OfflineModeIsEnabled("Cannot reach https://huggingface.co/api"): "HF_HUB_OFFLINE is set",
        httpx.ConnectError("[Errno -2] Name or service not known"): "no network",
        httpx.ReadTimeout("timed out"): "the hub did not answer",
        RuntimeError("the disk\nis full"): "the disk",
    }
    for error, words in reasons.items():

        def fail(*_: Any, error: Exception = error, **__: Any) -> None:
            raise error

        monkeypatch.setattr(hub, "model_info", fail)
        with pytest.raises(CheckpointError, match=rf"^hf:a/b could not be fetched \({words}\), and"):
            load("hf:a/b")


@pytest.mark.usefixtures("hub")
def test_a_mistyped_name_is_told_with_the_nearest(bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    published = f"timm:{TINY}"
    for name in (published[:-1], published.partition(".")[0]):
        with pytest.raises(CheckpointError) as told:
            load(name)
        assert str(told.value).startswith(f"{name} could not be fetched (no network): did you mean '{published}'? ")
        assert len(str(told.value).split()) <= 45
    for name in (published, published.replace("tiny", "large")):  # not mistyped: that there is no network is all
        with pytest.raises(CheckpointError, match=r"\(no network\), and VITRAIL_WEIGHTS is not set"):
            load(name)
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    (tmp_path / "someone").mkdir()
    for stem, typed, name in (
        ("someone/net", "hf:someone/nett", "hf:someone/net"),
        ("small", "timm:smal", "timm:small"),
    ):
        shutil.copy(bare, tmp_path / f"{stem}.safetensors")
        with pytest.raises(CheckpointError, match=rf"did you mean '{name}'\? Without a network, copy"):
            load(typed)


@pytest.mark.parametrize("has_refs", [True, False])
def test_a_cache_that_was_copied_into_the_folder_is_found(
    in_timm: Path, bare: Path, tmp_path: Path, has_refs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the revision that its refs name; without refs, if there is one snapshot alone."""
    copied = tmp_path / "folder" / "models--timm--small"
    shutil.copytree(in_timm, copied / "snapshots" / "abc")
    if has_refs:
        (copied / "refs").mkdir()
        (copied / "refs" / "main").write_text("abc")
        (copied / "snapshots" / "older").mkdir()
    monkeypatch.setenv(VARIABLE, str(tmp_path / "folder"))
    assert torch.equal(load("timm:small").model.norm.weight, load(bare).model.norm.weight)
    assert load("hf:timm/small@abc").provenance is not None
    if not has_refs:
        (copied / "snapshots" / "other").mkdir()
        assert not any(place.exists() for place in places(parse("timm:small")))  # which of two is not known


def test_without_a_network_it_is_asked_once_and_silently(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """huggingface_hub's own requests, to a port where nobody listens: its retries would take half a minute."""
    pytest.importorskip("huggingface_hub")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.hf_api.api.endpoint", "http://127.0.0.1:9")
    monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail(f"it waits for {seconds} s"))
    with pytest.raises(CheckpointError, match="hf:no/one could not be fetched"):
        load("hf:no/one")
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "kind, words",
    [
        ("GatedRepoError", "log in with `hf auth login`"),
        ("RepositoryNotFoundError", "there is none of this name, or it is private"),
        ("RevisionNotFoundError", "it has no such revision"),
    ],
)
def test_a_refusal_is_told_in_words(kind: str, words: str, hub: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = getattr(hub.errors, kind)

    def refuse(*_: Any, **__: Any) -> None:
        raise refusal.__new__(refusal)

    monkeypatch.setattr(hub, "model_info", refuse)
    with pytest.raises(CheckpointError, match=words):
        load("hf:a/b@v2")


def test_without_the_extra_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(
        vitrail.VitrailError, match=r"pip install 'vitrail\[hub\]'. Without a network, copy config.json"
    ):
        load("hf:someone/nothing")


def test_a_file_that_is_not_there_reminds_of_names() -> None:
    with pytest.raises(CheckpointError, match=r"hf:owner/name or timm:name \(`vitrail models --pretrained`"):
        load("nothing")
