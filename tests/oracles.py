"""Other people's libraries, imported to compare numbers with; never from the package itself.

timm needs torchvision, whose published wheel is a CUDA build: beside a CPU torch its operators do not load
and its import fails. The networks need none of those operators, so it is enough to declare that they exist.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from types import ModuleType

import pytest
import torch

# Only the names matter: nothing here ever calls them.
BACKWARD_TOO = ("roi_align", "roi_pool", "ps_roi_align", "ps_roi_pool", "deform_conv2d")
OPERATORS = ("nms", "qnms", "qroi_align", *BACKWARD_TOO, *(f"_{name}_backward" for name in BACKWARD_TOO))


@cache
def torchvision() -> ModuleType:
    """torchvision, with its operators declared where its own library does not load."""
    try:
        return _import("torchvision")
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
    library = torch.library.Library("torchvision", "FRAGMENT")
    _kept.append(library)  # a library that is dropped takes its operators with it
    for name in OPERATORS:
        library.define(f"{name}(Tensor input) -> Tensor")
    return _import("torchvision")


@cache
def timm() -> ModuleType:
    """timm, never downloading."""
    torchvision()
    return _import("timm")


@cache
def transformers() -> ModuleType:
    """transformers, never downloading."""
    torchvision()  # where it is installed, transformers looks for it
    return _import("transformers")


_kept: list[torch.library.Library] = []


def _import(name: str) -> ModuleType:
    os.environ["HF_HUB_OFFLINE"] = "1"
    return pytest.importorskip(name, reason=f"the oracle {name} is not installed: make test installs it")
