"""What every test stands on: no internet, one thread, a fixed seed, the real fixtures, the oracles."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

os.environ["HF_HUB_OFFLINE"] = "1"  # before any import that reads it
os.environ["OMP_NUM_THREADS"] = "1"  # for the processes that tests start, too: tests run beside each other

import hypothesis
import pytest
import torch

import oracles

ROOT = Path(__file__).resolve().parents[1]
NO_FIXTURES = "no fixtures in"  # how the reason of a test that is left out for want of them begins

# Files that take long, or start many processes: `make test-quick` leaves them out.
SLOW = (
    *("tests/shipping/", "tests/training/test_kills.py", "tests/training/test_runs.py", "tests/training/test_loop.py"),
    *("tests/test_cli", "tests/test_docs.py", "tests/test_recipes.py", "tests/test_translations.py"),
    *("tests/weights/test_lucidrains.py", "tests/weights/test_timm_architectures.py", "tests/weights/test_files.py"),
    *("tests/weights/test_timm.py", "tests/weights/test_transformers.py", "tests/insight/test_explaining.py"),
    *("tests/insight/test_importance.py", "tests/training/test_every_setting.py", "tests/network/test_merging.py"),
)

# Properties are tried on the same examples every time; stress/properties.py draws others, and more of them.
hypothesis.settings.register_profile("suite", derandomize=True, database=None, deadline=None, max_examples=60)
hypothesis.settings.register_profile("stress", database=None, deadline=None, max_examples=3000, print_blob=True)
hypothesis.settings.load_profile("suite")

torch.set_num_threads(1)  # tiny networks: more would only wait for each other


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The long files come first, so that no core waits for one of them at the end."""
    for item in items:
        if item.nodeid.startswith(SLOW):
            item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: "slow" not in item.keywords)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How many tests were left out for want of fixtures: a green run without them shows less than one with them."""
    skipped = terminalreporter.stats.get("skipped", [])
    count = sum(isinstance(each.longrepr, tuple) and NO_FIXTURES in each.longrepr[2] for each in skipped)
    if count:
        said = f"{count} tests were left out: they need the fixtures that CONTRIBUTING.md speaks of"
        terminalreporter.write_line(said, yellow=True)


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
        pytest.skip(f"{NO_FIXTURES} {folder}: set VITRAIL_FIXTURES to their folder")
    return folder.resolve()


@pytest.fixture(scope="session")
def timm() -> ModuleType:
    """timm, as an oracle."""
    return oracles.timm()


@pytest.fixture(scope="session")
def transformers() -> ModuleType:
    """transformers, as an oracle."""
    return oracles.transformers()
