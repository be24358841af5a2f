"""Weights by name on the command line: what a typed path, runtime and device lead to, and what is told of them."""

from __future__ import annotations

import pytest

from vitrail.checkpoint import Checkpoint
from vitrail.checkpoint.devices import device_of
from vitrail.cli.weights import load_checkpoint, load_runtime, refuse_unknown
from vitrail.errors import InputError

FASHION = "vitrail:fashion"


@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_weights_go_to_a_device(device: str) -> None:
    for opened in (load_checkpoint(FASHION, device=device), load_runtime(FASHION, device=device)):
        assert isinstance(opened, Checkpoint)
        assert device_of(opened.model).type == "cpu"


def test_a_device_that_is_not_there_is_told_before_anything_is_loaded() -> None:
    for load in (load_checkpoint, load_runtime):
        with pytest.raises(InputError, match="device: expected 'auto' or one that torch has, here cpu"):
            load(FASHION, device="gpu")


def test_a_packed_network_stays_where_its_kernels_are() -> None:
    packed = load_runtime(FASHION, runtime="packed", device="auto")
    assert not isinstance(packed, Checkpoint)
    with pytest.raises(InputError, match="device 'cuda': the runtime packed computes on the cpu"):
        load_runtime(FASHION, runtime="packed", device="cuda")


def test_scaled_decoding_is_asked_for() -> None:
    assert not load_runtime(FASHION).preprocess.scaled_decoding
    assert load_runtime(FASHION, scaled_decoding=True).preprocess.scaled_decoding


def test_a_name_that_is_nothing_is_told_with_what_is_near() -> None:
    refuse_unknown("vit-b16")
    refuse_unknown(FASHION)
    with pytest.raises(InputError, match="no checkpoint file and no preset 'vit-b61': did you mean 'vit-b16'"):
        refuse_unknown("vit-b61")
