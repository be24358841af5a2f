"""What every test stands on: no internet, one thread, a fixed seed, the real fixtures, the oracles."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

os.environ["HF_HUB_OFFLINE"] = "1"  # before any import that reads it

import pytest
import torch

import oracles

ROOT = Path(__file__).resolve().parents[1]

torch.set_num_threads(1)  # tiny networks: more would only wait for each other


@pytest.fixture(autouse=True)
def seed() -> Iterator[None]:
    """The same random numbers for every test, whichever tests ran before; threads as they were."""
    torch.manual_seed(0)
    yield
    torch.set_num_threads(1)  # tiny networks: more would only wait for each other


@pytest.fixture(scope="session")
def fixtures() -> Path:
    """The folder of real weights and images, which are not part of the project."""
    folder = Path(os.environ.get("VITRAIL_FIXTURES") or ROOT.parent / "shared" / "fixtures")
    if not folder.is_dir():
        pytest.skip(f"no fixtures in {folder}: set VITRAIL_FIXTURES to their folder")
    return folder.resolve()


@pytest.fixture(scope="session")
def timm() -> ModuleType:
    """timm, as an oracle."""
    return oracles.timm()


@pytest.fixture(scope="session")
def transformers() -> ModuleType:
    """transformers, as an oracle."""
    return oracles.transformers()
