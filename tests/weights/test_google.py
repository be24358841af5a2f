"""vit_jax's npz files: the numbers of an independent network in numpy and of timm's own reader; bit-exact back."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from network import renames
from vitrail.errors import CheckpointError
from vitrail.network.config import Resample, ResNetStem
from vitrail.network.positions import resample
from vitrail.weights import convert, load
from vitrail.weights.families.google import RESAMPLE
from weights import google_writer as writer
from weights.google_writer import Arrays, Network
from weights.parity import SIZES, assert_equal, assert_same_bits

VARIANTS = {
    "AugReg": Network(),
    "original, with pre_logits": Network(representation=48),
    "no head": Network(classes=0),
    "mean of the patches": Network(pool="gap"),
    "narrow heads": Network(heads=3, head_width=8),
    "hybrid": Network(patch=1, resnet=(1, 2)),
    "hybrid without stages": Network(patch=2, resnet=()),
    "grey": Network(channels=1),
}
TIMM_WAY: dict[str, Any] = {"activation": "gelu", "resample": Resample("bilinear", antialias=False)}


def read(path: Path) -> dict[str, Tensor]:
    """An npz as numpy reads it."""
    with np.load(path) as arrays:
        return {name: torch.from_numpy(np.array(arrays[name])) for name in arrays.files}


def oracle(network: Network, arrays: Arrays, resize: str = "zoom") -> Any:
    """The network in numpy, as a function of tensors."""
    return lambda pixels: torch.from_numpy(writer.forward(network, arrays, pixels.numpy(), resize)).float()


@pytest.mark.row("001.08")
@pytest.mark.parametrize("name", VARIANTS)
def test_read_and_written_back(tmp_path: Path, name: str) -> None:
    """Equal logits at three sizes, one not square; written back, every array has the same name, shape and bits."""
    network = VARIANTS[name]
    arrays = writer.draw(network)
    path = writer.save(tmp_path / "theirs.npz", writer.vit_jax(arrays))
    ours = load(path)
    assert ours.provenance.family == "google"
    assert_equal(ours.model, oracle(network, arrays), SIZES, network.channels)
    report = convert(path, tmp_path / "ours.npz", to="google")
    assert report.preprocess_carried
    assert_same_bits(read(tmp_path / "ours.npz"), read(path))


def test_what_the_shapes_and_the_code_say(tmp_path: Path) -> None:
    path = writer.save(tmp_path / "theirs.npz", writer.vit_jax(writer.draw(Network(representation=48))))
    ours = load(path)
    config = ours.model.config
    assert (config.width, config.depth, config.heads, config.mlp_width) == (64, 2, 4, 96)
    assert (config.image_size, config.patch_size, config.classes) == ((32, 32), (8, 8), 7)
    assert (config.activation, config.norm_eps, config.representation_width) == ("gelu_tanh", 1e-6, 48)
    assert config.positions.resample == RESAMPLE
    whys = {each.name: each.why for each in ours.provenance.settings}
    assert whys["heads"] == "the tensors say so"
    assert "tanh" in whys["activation"]
    preprocess = ours.preprocess
    assert (preprocess.resize, preprocess.interpolation, preprocess.antialias) == ("squash", "bilinear", False)
    grey = np.full((32, 32, 3), 51, np.uint8)
    assert np.allclose(preprocess(grey), (51 - 127.5) / 127.5, atol=1e-6)


def test_heads_are_in_the_tensors(tmp_path: Path) -> None:
    """Another number than theirs is refused, although as many values would fit."""
    path = writer.save(tmp_path / "theirs.npz", writer.vit_jax(writer.draw(Network())))
    with pytest.raises(CheckpointError, match=r"attention.qkv.weight: expected \[192, 64\], got .*\[64, 4, 16\]"):
        load(path, override={"heads": 2})


@pytest.mark.row("001.08")
def test_hybrids_compute_as_google_does(tmp_path: Path) -> None:
    """Filters by deviation + 1e-5, group norms with 1e-6; and norms in either of flax's two shapes."""
    network = VARIANTS["hybrid"]
    arrays = writer.vit_jax(writer.draw(network))
    published = load(writer.save(tmp_path / "published.npz", arrays)).model
    assert published.config.stem == ResNetStem((1, 2), norm_eps=1e-6, weight_eps=1e-5, standardise="deviation")
    flat = {name: value.reshape(-1) if "/gn" in f"/{name}" else value for name, value in arrays.items()}
    assert flat["gn_root/scale"].shape == (64,)
    newer = load(writer.save(tmp_path / "newer.npz", flat)).model
    assert_same_bits(newer.state_dict(), published.state_dict())


@pytest.mark.parametrize("before", ["opt/target/", "params/"])
def test_prefixes(tmp_path: Path, before: str) -> None:
    """The same network under a prefix; what a training state has beside it is left out by name only."""
    arrays = writer.vit_jax(writer.draw(Network()))
    bare = load(writer.save(tmp_path / "bare.npz", arrays)).model
    longer = writer.prefixed(arrays, before) | {"opt/state/step": np.array([7], np.int32)}
    path = writer.save(tmp_path / "longer.npz", longer)
    with pytest.raises(CheckpointError, match=r"opt/state/step.*leave_out=\('optimizer',\)"):
        load(path)
    assert_same_bits(load(path, leave_out=("optimizer",)).model.state_dict(), bare.state_dict())


def test_names_written_on_windows(tmp_path: Path) -> None:
    arrays = writer.vit_jax(writer.draw(Network()))
    bare = load(writer.save(tmp_path / "bare.npz", arrays)).model
    turned = {name.replace("/", "\\"): value for name, value in arrays.items()}
    assert_same_bits(load(writer.save(tmp_path / "turned.npz", turned)).model.state_dict(), bare.state_dict())


# ---- other sizes -------------------------------------------------------------------------------------------------


def test_resampling_is_scipys_zoom() -> None:
    """As vit_jax does it, but for pairs such as 8 to 26, where scipy rounds past the end and fills with zeros."""
    ndimage = pytest.importorskip("scipy.ndimage")
    random = np.random.default_rng(0)
    for old, new in ((14, 24), (7, 12), (14, 32), (24, 14), (12, 7), (16, 37), (1, 3), (3, 1), (4, 9)):
        grid = 3 + random.standard_normal((old, old, 2))
        expected = ndimage.zoom(grid, (new / old, new / old, 1), order=1)
        ours = resample(torch.from_numpy(grid).flatten(0, 1), (old, old), (new, new), RESAMPLE)
        assert np.allclose(ours.numpy().reshape(new, new, 2), expected, atol=1e-12), (old, new)
        assert np.allclose(writer.zoom(grid, (new, new)), expected, atol=1e-12), (old, new)
    assert torch.allclose(resample(torch.ones(64, 1), (8, 8), (26, 26), RESAMPLE), torch.ones(676, 1))


@pytest.mark.row("001.08")
@pytest.mark.parametrize("name", ["AugReg", "hybrid"])
def test_made_for_a_larger_size(tmp_path: Path, name: str) -> None:
    """As from 224 to 384: names, kernels, heads, grid resized, with its head or without; and written again."""
    network, larger = VARIANTS[name], (56, 56)
    arrays = writer.draw(network)
    path = writer.save(tmp_path / "theirs.npz", writer.vit_jax(arrays))
    ours = load(path, override={"image_size": larger})
    assert ours.model.config.image_size == larger
    assert ours.preprocess.size == larger
    assert_equal(ours.model, oracle(network, arrays), (larger,))
    convert(ours, tmp_path / "larger.npz", to="google")
    written = read(tmp_path / "larger.npz")
    table = written["Transformer/posembed_input/pos_embedding"]
    places = arrays["pos_embedding"][0]
    assert torch.equal(table[0, 0], torch.from_numpy(places[0]))  # the place of cls is never resized
    grid = writer.zoom(places[1:].reshape(4, 4, -1).astype(np.float64), (7, 7)).reshape(49, -1)
    assert np.allclose(table[0, 1:].numpy(), grid, atol=1e-6)
    headless = load(path, override={"image_size": larger}, leave_out=("head",))
    assert headless.model.config.classes == 0
    assert_equal(headless.model, oracle(replace(network, classes=0), arrays), (larger,))


@pytest.mark.parametrize("name", ["AugReg", "original, with pre_logits"])
def test_without_the_head(tmp_path: Path, name: str) -> None:
    network = VARIANTS[name]
    arrays = writer.draw(network)
    path = writer.save(tmp_path / "theirs.npz", writer.vit_jax(arrays))
    ours = load(path, leave_out=("head",)).model
    assert ours.config.classes == 0
    assert_equal(ours, oracle(replace(network, classes=0), arrays))
    if network.representation:
        pooled = load(path, leave_out=("head", "pre_logits")).model
        assert_equal(pooled, oracle(replace(network, classes=0, representation=0), arrays))


# ---- timm's own reader -------------------------------------------------------------------------------------------


def timm_vit(timm: ModuleType, path: Path, **changes: Any) -> torch.nn.Module:
    """timm's network with timm's reading of the file."""
    from timm.models.vision_transformer import VisionTransformer

    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 2, "num_heads": 4, "mlp_ratio": 1.5}
    model = VisionTransformer(**{**sizes, "num_classes": 7, **changes}).eval()
    model.load_pretrained(str(path))
    return model


def test_timm_reads_the_same(timm: ModuleType, tmp_path: Path) -> None:
    """timm takes the exact GELU and half-pixel resizing for these files: asked for so, ours gives its numbers."""
    path = writer.save(tmp_path / "theirs.npz", writer.vit_jax(writer.draw(Network())))
    ours = load(path, override=TIMM_WAY).model
    assert_equal(ours, timm_vit(timm, path), ((32, 32),))
    assert_equal(ours, timm_vit(timm, path, img_size=48), ((48, 48),))
    pixels = torch.randn(2, 3, 32, 32)
    with torch.no_grad():  # the form of GELU can be told apart
        assert renames.gap(load(path).model(pixels), ours(pixels)) > 1e-5


def test_timm_drops_pre_logits(timm: ModuleType, tmp_path: Path) -> None:
    """So does ours where it is told to; left to itself it computes them, as vit_jax does."""
    path = writer.save(tmp_path / "theirs.npz", writer.vit_jax(writer.draw(Network(representation=64))))
    theirs = timm_vit(timm, path)
    assert_equal(load(path, override=TIMM_WAY, leave_out=("pre_logits",)).model, theirs, ((32, 32),))
    pixels = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert renames.gap(load(path, override=TIMM_WAY).model(pixels), theirs(pixels)) > 0.1


@pytest.mark.parametrize("name", ["hybrid", "hybrid without stages"])
def test_timm_reads_the_same_hybrid(timm: ModuleType, tmp_path: Path, name: str) -> None:
    from timm.layers import HybridEmbed
    from timm.models.vision_transformer_hybrid import _resnetv2

    network = VARIANTS[name]
    path = writer.save(tmp_path / "theirs.npz", writer.vit_jax(writer.draw(network)))
    layer = partial(HybridEmbed, backbone=_resnetv2(network.resnet))
    theirs = timm_vit(timm, path, embed_layer=layer, patch_size=network.patch)
    stem = ResNetStem(network.resnet or (), norm_eps=1e-5, weight_eps=1e-8, standardise="variance")
    ours = load(path, override={**TIMM_WAY, "stem": stem}).model
    assert_equal(ours, theirs, ((32, 32),))


# ---- to other families and back ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["AugReg", "no head", "hybrid without stages"])
def test_through_timm_and_back(timm: ModuleType, tmp_path: Path, name: str) -> None:
    """timm resamples in its own way, and the report says so; every bit comes back."""
    network = replace(VARIANTS[name], width=128, heads=2, head_width=64)
    path = writer.save(tmp_path / "theirs.npz", writer.vit_jax(writer.draw(network)))
    there, back = {}, {}
    if network.resnet is not None:
        with pytest.raises(CheckpointError, match="timm cannot carry.*standardise='deviation'"):
            convert(path, tmp_path / "refused", to="timm")
        assert not (tmp_path / "refused").exists()
        there["stem"] = ResNetStem(network.resnet, norm_eps=1e-5, weight_eps=1e-8, standardise="variance")
        back["stem"] = ResNetStem(network.resnet)
    report = convert(path, tmp_path / "folder", to="timm", override=there)
    assert [each.partition(":")[0] for each in report.not_carried] == ["resample"]
    assert load(tmp_path / "folder").model.config.activation == "gelu_tanh"
    convert(tmp_path / "folder", tmp_path / "back.npz", to="google", override=back)
    assert_same_bits(read(tmp_path / "back.npz"), read(path))


def test_what_vit_jax_has_no_place_for(tmp_path: Path) -> None:
    """Refused by name, with nothing left behind."""
    out = tmp_path / "out.npz"
    pooled = writer.save(tmp_path / "map.npz", writer.draw(Network(pool="map")))
    with pytest.raises(CheckpointError, match=r"google has no place for .*pool.probe"):
        convert(pooled, out, to="google")
    bare = writer.save(tmp_path / "tok.npz", writer.draw(Network(slot=False)))
    with pytest.raises(CheckpointError, match="vit_jax adds a position to the cls token"):
        convert(bare, out, to="google")
    plain = writer.save(tmp_path / "plain.npz", writer.vit_jax(writer.draw(Network())))
    with pytest.raises(CheckpointError, match="activation: gelu, and it would come back as gelu_tanh"):
        convert(plain, out, to="google", override={"activation": "gelu"})
    oblong = load(plain, override={"image_size": (24, 40)})
    for family in ("google", "big_vision", "jeonsworld"):
        with pytest.raises(CheckpointError, match="stands for a square, and this network has a grid of 3x5"):
            convert(oblong, tmp_path / ("out.bin" if family == "jeonsworld" else "out.npz"), to=family)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["map.npz", "plain.npz", "tok.npz"]


# ---- what is wrong with a file -----------------------------------------------------------------------------------


@pytest.mark.fault("W9")
def test_one_message_for_all_that_is_wrong(tmp_path: Path) -> None:
    arrays = writer.vit_jax(writer.draw(Network()))
    del arrays["Transformer/encoderblock_1/MlpBlock_3/Dense_1/bias"]
    arrays["head/bias"] = np.ones(8, np.float32)
    arrays["extra/kernel"] = np.ones(3, np.float32)
    key = "Transformer/encoderblock_0/MultiHeadDotProductAttention_1/key/kernel"
    arrays[key] = arrays[key].reshape(64, 2, 32)  # as many values for other heads
    with pytest.raises(CheckpointError) as caught:
        load(writer.save(tmp_path / "wrong.npz", arrays))
    text = str(caught.value)
    assert "missing encoder.blocks.1.mlp.down.bias [64] (theirs: Transformer/encoderblock_1/MlpBlock_3" in text
    assert "head.classify.bias: expected [7], got head/bias [8]" in text
    assert "encoder.blocks.0.attention.qkv.weight: expected [192, 64]" in text
    assert "not used extra/kernel [3]" in text


@pytest.mark.fault("W9")
@pytest.mark.parametrize(
    "name, value, message",
    [
        ("Transformer/posembed_input/pos_embedding", np.ones((1, 18, 64), np.float32), "18 positions make no square"),
        ("embedding/kernel", np.ones((8, 8, 3), np.float32), "expected embedding/kernel with 4 axes"),
        ("embedding/kernel", np.ones((0, 8, 3, 64), np.float32), "patch_size"),
        ("cls", np.ones((2, 1, 64), np.float32), r"tokens.cls: expected \[1, 64\], got cls \[2, 1, 64\]"),
        ("head/kernel", np.full((64, 7), np.nan, np.float32), "NaN"),
        ("head/kernel", np.ones((64, 7), np.int32), "head.classify.weight: expected a float of .*, got torch.int32"),
    ],
)
def test_wrong_shapes_and_values(tmp_path: Path, name: str, value: np.ndarray, message: str) -> None:
    arrays = writer.vit_jax(writer.draw(Network())) | {name: value}
    with pytest.raises(CheckpointError, match=message):
        load(writer.save(tmp_path / "wrong.npz", arrays))
