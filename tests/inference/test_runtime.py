"""Runtime: everything a caller uses is declared, and whoever answers has all of it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from vitrail.checkpoint import Checkpoint, Provenance
from vitrail.images import Preprocess
from vitrail.images.model_info import ModelInfo
from vitrail.inference import Runtime, RuntimeBase
from vitrail.inference.runtime import MEMBERS
from vitrail.network import ViT, ViTConfig
from vitrail.packed.packed_runtime import Packed

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "vitrail"
Array = np.ndarray[Any, Any]


class Mean(RuntimeBase):
    """A stand-in network: the mean of each channel."""

    def __init__(self) -> None:
        self.about = ModelInfo(Preprocess(size=8, mean=(0.1, 0.2, 0.3)), ("a", "b", "c"), reject=0.4)

    def run(self, pixels: Array) -> tuple[Array, Array]:
        return pixels.mean(axis=(2, 3)), pixels.mean(axis=(2, 3))


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    torch.manual_seed(0)
    config = ViTConfig(image_size=16, patch_size=8, width=16, depth=1, heads=2, mlp_width=32, classes=3)
    return Checkpoint(ViT(config), Preprocess(size=16), tuple("abc"), provenance=Provenance(run="runs/a"))


def test_a_checkpoint_a_packed_network_and_a_plain_class_are_runtimes(checkpoint: Checkpoint) -> None:
    for runtime, takes in ((checkpoint, "pixels"), (Packed(checkpoint), "uint8"), (Mean(), "pixels")):
        assert isinstance(runtime, Runtime)
        assert runtime.takes == takes
        assert (runtime.resample is not None) == isinstance(runtime, Packed)
    assert not isinstance(object(), Runtime)


def test_8_bit_values_give_what_their_pixels_give(checkpoint: Checkpoint) -> None:
    for runtime in (checkpoint, Packed(checkpoint), Mean()):
        values = np.random.default_rng(0).integers(0, 256, (2, *runtime.preprocess.size, 3), np.uint8)
        for one, other in zip(
            runtime.run_uint8(values), runtime.run(runtime.preprocess.normalise(values)), strict=True
        ):
            assert np.allclose(one, other, atol=1e-5)


def test_another_way_to_read_images_leaves_the_first_as_it_was(checkpoint: Checkpoint) -> None:
    for runtime in (checkpoint, Packed(checkpoint), Mean()):
        scaled = runtime.with_preprocess(replace(runtime.preprocess, scaled_decoding=True))
        assert type(scaled) is type(runtime)
        assert (scaled.preprocess.scaled_decoding, runtime.preprocess.scaled_decoding) == (True, False)
        assert (scaled.classes, scaled.reject) == (runtime.classes, runtime.reject)


def test_a_runtime_says_where_it_comes_from(checkpoint: Checkpoint) -> None:
    for runtime in (checkpoint, Packed(checkpoint)):
        assert runtime.provenance is not None
        assert runtime.provenance.run == "runs/a"
    assert Mean().provenance is None


def test_no_member_of_a_runtime_is_looked_for_by_name() -> None:
    """A caller that asks whether a member is there would make the protocol a lie."""
    probing = re.compile(rf'(?:get|has)attr\((\w*runtime\w*|checkpoint|loaded|opened), "({"|".join(MEMBERS)})"')
    files = [path for path in PACKAGE.rglob("*.py") if path.name != "runtime.py"]
    assert [f"{path.name}: {match[0]}" for path in files for match in probing.finditer(path.read_text())] == []
