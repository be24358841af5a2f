"""vit-pytorch's files: every spelling read with the same numbers, the newest and the oldest written; MNIST for real."""

from __future__ import annotations

import gzip
import re
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import oracles
from network import renames
from vitrail.checkpoint import Checkpoint
from vitrail.errors import CheckpointError
from vitrail.weights import convert, load
from vitrail.weights.families import FAMILIES
from weights.parity import SIZES, assert_equal, assert_same_bits

THEIRS: dict[str, Any] = {
    "image_size": 32,
    "patch_size": 8,
    "num_classes": 10,
    "dim": 96,
    "depth": 2,
    "heads": 2,
    "mlp_dim": 160,
}


@pytest.fixture(scope="module")
def library() -> ModuleType:
    oracles.torchvision()  # which it imports
    return pytest.importorskip("vit_pytorch", reason="the oracle vit_pytorch is not installed: make test installs it")


def vit(library: ModuleType, **changes: Any) -> nn.Module:
    """vit-pytorch's ViT, small, with random weights that hide nothing."""
    model: nn.Module = library.ViT(**{**THEIRS, **changes}).eval()
    renames.randomise(model)
    return model


def at_sizes(library: ModuleType, theirs: nn.Module, **changes: Any) -> Any:
    """Their network at any size: built for it, with positions resampled by hand; the library has no way of its own."""

    def run(pixels: Tensor) -> Tensor:
        size = tuple(pixels.shape[-2:])
        state = theirs.state_dict()
        table, slots = state["pos_embedding"], len(state["cls_token"])
        grid = table[slots:].T.reshape(1, -1, 4, 4)
        if size != (32, 32):
            grid = F.interpolate(grid, (size[0] // 8, size[1] // 8), mode="bicubic", antialias=True)
        state["pos_embedding"] = torch.cat((table[:slots], grid[0].flatten(1).T))
        other = library.ViT(**{**THEIRS, **changes, "image_size": size}).eval()
        other.load_state_dict(state, strict=True)
        answers: Tensor = other(pixels)
        return answers

    return run


def saved(tensors: Mapping[str, Tensor], path: Path) -> Path:
    torch.save(dict(tensors), path)
    return path


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"pool": "mean"},
        {"channels": 1},
        {"dim_head": 32, "heads": 4},
        {"heads": 1, "dim_head": 96},
        {"dim": 128},
    ],
    ids=str,
)
def test_the_newest_names(library: ModuleType, tmp_path: Path, changes: dict[str, Any]) -> None:
    """Equal logits at three sizes; written back, the same bits, which vit-pytorch loads strictly."""
    theirs = vit(library, **changes)
    path = saved(theirs.state_dict(), tmp_path / "theirs.pt")
    override = {"heads": changes["heads"]} if changes.get("dim_head") == 32 else {}
    ours = load(path, override=override)
    assert ours.provenance.family == "lucidrains"
    assert_equal(ours.model, at_sizes(library, theirs, **changes), SIZES, changes.get("channels", 3))
    out = tmp_path / "ours.pt"
    if override:
        with pytest.raises(CheckpointError, match="heads: 4, and it would come back as 2"):
            convert(path, out, to="lucidrains", override=override)
        return
    convert(path, out, to="lucidrains")
    written = torch.load(out, weights_only=True)
    assert_same_bits(written, theirs.state_dict())
    fresh = vit(library, **changes)
    fresh.load_state_dict(written, strict=True)
    assert_equal(ours.model, fresh, ((32, 32),), changes.get("channels", 3))


def test_without_a_head(library: ModuleType, tmp_path: Path) -> None:
    """vit-pytorch then hands on every token, which is a setting here; by default it is the cls token alone."""
    theirs = vit(library, num_classes=0)
    path = saved(theirs.state_dict(), tmp_path / "theirs.pt")
    assert_equal(load(path, override={"pool": "none"}).model, theirs, ((32, 32),))
    assert_equal(load(path).model, lambda pixels: theirs(pixels)[:, 0], ((32, 32),))
    convert(path, tmp_path / "ours.pt", to="lucidrains")
    assert_same_bits(torch.load(tmp_path / "ours.pt", weights_only=True), theirs.state_dict())


# ---- older spellings ---------------------------------------------------------------------------------------------


def older(state: Mapping[str, Tensor], *, fn: bool = True) -> dict[str, Tensor]:
    """The names of 2022: norms beside what they feed, the last one in the head, tokens with a batch axis."""
    renamed: dict[str, Tensor] = {}
    for name, value in state.items():
        if fn:
            name = re.sub(r"(layers\.\d+\.0)\.to_", r"\1.fn.to_", name)
            name = re.sub(r"(layers\.\d+\.1)\.net\.0", r"\1.norm", name)
            name = re.sub(r"(layers\.\d+\.1)\.net\.1", r"\1.fn.net.0", name)
            name = re.sub(r"(layers\.\d+\.1)\.net\.4", r"\1.fn.net.3", name)
            name = re.sub(r"^mlp_head", "mlp_head.1", name).replace("transformer.norm", "mlp_head.0")
        renamed[name] = value[None] if name in ("cls_token", "pos_embedding") else value
    return renamed


def without_patch_norms(model: nn.Module) -> nn.Module:
    """The network as it was before patches had norms."""
    model.to_patch_embedding = nn.Sequential(model.to_patch_embedding[0], model.to_patch_embedding[2])
    return model


@pytest.mark.parametrize("channels", [1, 3])
def test_the_oldest_names(library: ModuleType, tmp_path: Path, channels: int) -> None:
    """No norms on the patches; written back, the same bits under the same names."""
    theirs = without_patch_norms(vit(library, channels=channels))
    state = older(theirs.state_dict())
    ours = load(saved(state, tmp_path / "theirs.pt"))
    assert not ours.model.config.patch_norms
    assert_equal(ours.model, theirs, ((32, 32),), channels)
    convert(tmp_path / "theirs.pt", tmp_path / "ours.pt", to="lucidrains")
    written = torch.load(tmp_path / "ours.pt", weights_only=True)
    assert_same_bits(written, state)
    fresh = without_patch_norms(vit(library, channels=channels))
    names = {old: new for new, old in zip(fresh.state_dict(), older(fresh.state_dict()), strict=True)}
    back = {names[old]: value for old, value in written.items()}
    flat = {name: value[0] if name in ("cls_token", "pos_embedding") else value for name, value in back.items()}
    fresh.load_state_dict(flat, strict=True)
    assert_equal(ours.model, fresh, ((32, 32),), channels)


@pytest.mark.parametrize("fn", [False, True])
def test_names_in_between(library: ModuleType, tmp_path: Path, fn: bool) -> None:
    """Norms on the patches with names of their time: read, and written as the newest."""
    theirs = vit(library)
    path = saved(older(theirs.state_dict(), fn=fn), tmp_path / "theirs.pt")
    assert_equal(load(path).model, theirs, ((32, 32),))
    convert(path, tmp_path / "ours.pt", to="lucidrains")
    assert_same_bits(torch.load(tmp_path / "ours.pt", weights_only=True), theirs.state_dict())


def test_simple_vit(library: ModuleType, tmp_path: Path) -> None:
    """Its positions are in no file, so its size must be told; written, it is a ViT that takes the mean."""
    from vit_pytorch import SimpleViT

    theirs = SimpleViT(**THEIRS).eval()
    renames.randomise(theirs)
    path = saved(theirs.state_dict(), tmp_path / "theirs.pt")
    with pytest.raises(CheckpointError, match="override={'image_size'"):
        load(path)
    ours = load(path, override={"image_size": 32})
    assert ours.model.config.image_size == (32, 32)
    assert_equal(ours.model, theirs, ((32, 32),))
    for size in ((48, 48), (40, 24)):
        other = SimpleViT(**{**THEIRS, "image_size": size}).eval()
        other.load_state_dict(theirs.state_dict())
        assert_equal(ours.model, other, (size,))
        assert_equal(load(path, override={"image_size": size}).model, other, (size,))
    convert(path, tmp_path / "ours.pt", to="lucidrains", override={"image_size": 32})
    fresh = vit(library, pool="mean")
    fresh.load_state_dict(torch.load(tmp_path / "ours.pt", weights_only=True), strict=True)
    assert_equal(theirs, fresh, ((32, 32),))
    old = {name.replace("linear_head", "linear_head.1"): value for name, value in theirs.state_dict().items()}
    with pytest.raises(CheckpointError, match="an old SimpleViT"):
        load(saved(old, tmp_path / "old.pt"), override={"image_size": 32})


# ---- what no tensor says -----------------------------------------------------------------------------------------


def test_what_the_file_leaves_unsaid(library: ModuleType, tmp_path: Path) -> None:
    ours = load(saved(vit(library).state_dict(), tmp_path / "theirs.pt"))
    assert (ours.model.config.norm_eps, ours.model.config.activation) == (1e-5, "gelu")
    said = {setting.name: setting.why for setting in ours.provenance.settings}
    assert "no tensor says it" in said["activation"]
    assert "no tensor says it" in said["pool"]
    assert "heads of 64" in said["heads"]
    assert "vit-pytorch has none" in said["resample"]
    assert said["preprocess"].startswith("assumed")


def test_patches_and_sizes_that_are_not_square(library: ModuleType, tmp_path: Path) -> None:
    theirs = vit(library, image_size=(32, 24), patch_size=(8, 4))
    path = saved(theirs.state_dict(), tmp_path / "theirs.pt")
    with pytest.raises(CheckpointError, match="override={'patch_size'"):
        load(path)
    ours = load(path, override={"patch_size": (8, 4), "image_size": (32, 24)})
    assert_equal(ours.model, theirs, ((32, 24),))


def test_a_mean_that_takes_the_cls_token_in_is_refused(library: ModuleType, tmp_path: Path) -> None:
    path = saved(older(vit(library).state_dict()), tmp_path / "theirs.pt")
    with pytest.raises(CheckpointError, match="takes it in beside the patches"):
        load(path, override={"pool": "mean"})


def test_what_vit_pytorch_cannot_be_is_not_written(library: ModuleType, timm: ModuleType, tmp_path: Path) -> None:
    """Biases of q, k and v, one wide head with a layer after it, no cls token: refused by name."""
    from timm.models.vision_transformer import VisionTransformer

    small = {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 1, "num_heads": 1, "num_classes": 5}
    cases: dict[str, dict[str, Any]] = {
        "no place for encoder.blocks.0.attention.qkv.bias": {"embed_dim": 128, "num_heads": 2},
        "cannot carry encoder.blocks.0.attention.out.weight": {"qkv_bias": False},
        "without a cls token": {"qkv_bias": False, "class_token": False, "global_pool": "avg", "fc_norm": False},
        "cls token without a position": {"qkv_bias": False, "no_embed_class": True},
        "norm_eps: 1e-06, and it would come back as 1e-05": {"qkv_bias": False, "embed_dim": 128, "num_heads": 2},
    }
    for number, (match, changes) in enumerate(cases.items()):
        model = VisionTransformer(**{**small, **changes})
        path = saved(model.state_dict(), tmp_path / f"{number}.pt")
        with pytest.raises(CheckpointError, match=match):
            convert(path, tmp_path / "out.pt", to="lucidrains")
        assert not (tmp_path / "out.pt").exists()
    convert(path, tmp_path / "out.pt", to="lucidrains", override={"norm_eps": 1e-5})
    assert load(tmp_path / "out.pt").model.config.classes == 5


@pytest.mark.fault("W9")
def test_what_does_not_fit_is_refused(library: ModuleType, tmp_path: Path) -> None:
    state = vit(library).state_dict()
    less = {name: value for name, value in state.items() if name != "transformer.layers.1.1.net.4.bias"}
    with pytest.raises(CheckpointError, match=r"missing encoder.blocks.1.mlp.down.bias \[96\]"):
        load(saved(less, tmp_path / "less.pt"))
    with pytest.raises(CheckpointError, match=r"not used decoder.weight \[2\]"):
        load(saved(state | {"decoder.weight": torch.ones(2)}, tmp_path / "more.pt"))


# ---- the real file -----------------------------------------------------------------------------------------------

GIVEN: dict[str, Any] = {"activation": "relu", "mean": 0.1307, "std": 0.3081, "crop": 1.0}


@pytest.fixture(scope="module")
def digits(fixtures: Path) -> tuple[list[np.ndarray[Any, Any]], np.ndarray[Any, Any]]:
    """The first 2,000 test images of MNIST, and what they show."""
    raw = gzip.decompress((fixtures / "mnist" / "t10k-images-idx3-ubyte.gz").read_bytes())
    labels = gzip.decompress((fixtures / "mnist" / "t10k-labels-idx1-ubyte.gz").read_bytes())
    images = np.frombuffer(raw, np.uint8, offset=16).reshape(-1, 28, 28)[:2000]
    return list(images), np.frombuffer(labels, np.uint8, offset=8)[:2000]


def answers(checkpoint: Checkpoint, images: list[np.ndarray[Any, Any]]) -> Tensor:
    """Logits of images as the checkpoint prepares them."""
    batches = [images[start : start + 100] for start in range(0, len(images), 100)]
    with torch.inference_mode():
        return torch.cat([checkpoint.model(torch.from_numpy(checkpoint.preprocess.batch(each))) for each in batches])


def test_mnist(fixtures: Path, digits: Any) -> None:
    """96.2 % of 2,000 digits, with what no tensor says given; without it the answers are others."""
    images, labels = digits
    path = fixtures / "vit_mnist_d64_l6_h4_p4.pt"
    ours = load(path, override=GIVEN)
    config = ours.model.config
    assert (config.channels, config.patch_size, config.image_size, config.heads) == (1, (4, 4), (28, 28), 4)
    assert (config.width, config.head_width, config.mlp_width, config.classes) == (64, 64, 128, 10)
    expected = answers(ours, images)
    assert int((expected.argmax(1).numpy() == labels).sum()) == 1924
    plain = answers(load(path), images[:200])
    assert not torch.allclose(plain, expected[:200], atol=0.1)


def test_mnist_written_back(fixtures: Path, tmp_path: Path) -> None:
    """Every tensor of the real file comes back with its bits."""
    path = fixtures / "vit_mnist_d64_l6_h4_p4.pt"
    report = convert(path, tmp_path / "ours.pt", to="lucidrains")
    theirs = torch.load(path, map_location="cpu", weights_only=True)
    assert report.tensors == len(theirs) == 74
    assert_same_bits(torch.load(tmp_path / "ours.pt", weights_only=True), theirs)


@pytest.mark.skipif("transformers" not in FAMILIES, reason="the transformers family is not there")
def test_mnist_through_transformers(fixtures: Path, digits: Any, tmp_path: Path) -> None:
    """To a folder of transformers, which keeps the activation and the free head width, and back, without a bit lost."""
    images, labels = digits
    images = images[:200]
    path = fixtures / "vit_mnist_d64_l6_h4_p4.pt"
    ours = load(path, override=GIVEN)
    convert(path, tmp_path / "folder", to="transformers", override=GIVEN)
    there = load(tmp_path / "folder")
    assert (there.model.config.activation, there.model.config.head_width) == ("relu", 64)
    assert_same_bits(there.model.state_dict(), ours.model.state_dict())
    expected = answers(ours, images)
    assert torch.equal(answers(there, images), expected)
    with pytest.raises(CheckpointError, match="activation: relu, and it would come back as gelu"):
        convert(tmp_path / "folder", tmp_path / "back.pt", to="lucidrains")
    convert(tmp_path / "folder", tmp_path / "back.pt", to="lucidrains", override={"activation": "gelu"})
    theirs = torch.load(path, map_location="cpu", weights_only=True)
    assert_same_bits(torch.load(tmp_path / "back.pt", weights_only=True), theirs)
    back = load(tmp_path / "back.pt", override=GIVEN)
    assert torch.equal(answers(back, images), expected)
    assert int((expected.argmax(1).numpy() == labels[:200]).sum()) > 180
