"""What the tests of this room share: torch's ONNX operators, read once."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from functools import cache

import pytest
from torch.onnx._internal.exporter._registration import ONNXRegistry


@pytest.fixture(scope="session", autouse=True)
def operators_read_once() -> Iterator[None]:
    """Every export gets the same table; torch parses the source of 500 operators for each, a quarter of a small one."""
    read = cache(ONNXRegistry.from_torchlib)

    def table(opset_version: int) -> ONNXRegistry:
        found = copy(read(opset_version))
        found.functions = {target: list(each) for target, each in found.functions.items()}  # an export adds its own
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ONNXRegistry, "from_torchlib", staticmethod(table))
        yield
