"""Devices by name: what this machine has is found, all else is refused with what there is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from vitrail.checkpoint import devices
from vitrail.checkpoint.devices import (
    describe_device,
    device_names,
    device_of,
    find_device,
    number_kinds,
    seed_device,
    wait_for,
)
from vitrail.errors import InputError

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", ["cpu", CPU, "cpu:0"])
def test_the_cpu_is_there(name: Any) -> None:
    assert find_device(name) == CPU


@pytest.mark.filterwarnings("ignore:.*no longer used as device type")
@pytest.mark.parametrize(
    "name", ["gpu", "", "cuda:99999999999", "cpu ", "\0", "hpu", "privateuseone", "vulkan", "lazy", None, True, 5.5, []]
)
def test_a_device_that_is_not_there_is_told_with_those_that_are(name: Any) -> None:
    with pytest.raises(InputError, match=r"device: expected 'auto' or one that torch has, here cpu") as caught:
        find_device(name)
    assert len(str(caught.value).splitlines()) == 1


def test_shapes_alone_are_no_device_to_compute_on() -> None:
    with pytest.raises(InputError, match="holds no weights"):
        find_device("meta")


def test_auto_takes_the_accelerator_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """ "meta" stands for one here, and is asked for by name."""
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: None)
    assert find_device("auto") == CPU
    assert device_names() == ["cpu"]
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: torch.device("meta"))
    with pytest.raises(InputError, match="'meta'"):
        find_device("auto")
    for count, expected in ((1, ["cpu", "meta"]), (2, ["cpu", "meta:0", "meta:1"])):
        monkeypatch.setattr(torch.accelerator, "device_count", lambda count=count: count)
        assert device_names() == expected


def test_a_device_has_a_name_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    assert describe_device(CPU) == "cpu"
    module = SimpleNamespace(get_device_name=lambda device: "A Large One")
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    assert describe_device(torch.device("cuda:1")) == "cuda (A Large One)"


def test_numbers_that_a_device_has(monkeypatch: pytest.MonkeyPatch) -> None:
    assert number_kinds(CPU) == ("fp32", "fp16", "bf16", "fp64")
    assert number_kinds(torch.device("meta")) == ()  # it computes nothing
    assert device_of(nn.Linear(1, 1)) == CPU
    wait_for(CPU)


def test_every_generator_starts_from_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the processor, and those of all devices of the kind: the current one may be another than is meant."""
    seed_device(CPU, 3)
    first = torch.rand(2)
    seeded: list[int] = []
    module = SimpleNamespace(manual_seed_all=seeded.append, manual_seed=lambda seed: pytest.fail("the current one"))
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    seed_device(torch.device("cuda:1"), 3)
    assert torch.equal(torch.rand(2), first)
    alone = SimpleNamespace(manual_seed=seeded.append)  # as Apple's
    monkeypatch.setattr(torch, "get_device_module", lambda device: alone)
    seed_device(torch.device("mps"), 4)
    assert seeded == [3, 4]
    assert devices.AUTO == "auto"
