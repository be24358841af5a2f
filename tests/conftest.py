"""What every test stands on: no internet, one thread, a fixed seed, the real fixtures, the oracles."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

os.environ["HF_HUB_OFFLINE"] = "1"  # before any import that reads it
os.environ["VITRAIL_CACHE"] = tempfile.mkdtemp(prefix="vitrail-caches-")  # not the user's own
os.environ["OMP_NUM_THREADS"] = "1"  # for the processes that tests start, too: tests run beside each other

import hypothesis
import pytest
import torch

import oracles

ROOT = Path(__file__).resolve().parents[1]
NO_FIXTURES = "no fixtures in"  # how the reason of a test that is left out for want of them begins
NO_BROWSER = "no browser for the pages"  # the same of a browser, its driver, or axe-core

# Files that take long, start many processes or import other libraries, the longest first: `make test-quick` leaves them
# out, and `make test` begins with them, so that no core waits for one of them at the end.
SLOW = (
    *(
        "tests/shipping/",
        "tests/packed/",
        "tests/quantisation/",
        "tests/exporters/",
        "tests/training/test_kills.py",
        "tests/cli/",
        "tests/training/test_runs.py",
    ),
    *("tests/insight/test_head_importance.py", "tests/network/test_merging.py", "tests/test_translations.py"),
    *("tests/training/test_loop.py", "tests/training/test_every_setting.py", "tests/test_recipes.py"),
    *("tests/test_consoles.py", "tests/test_notebooks.py", "tests/pages/test_site.py"),
    *("tests/test_docs.py", "tests/insight/test_explainer.py", "tests/training/test_starting.py"),
    *("tests/training/test_model_choice.py", "tests/training/test_pace.py"),
    *(
        "tests/training/test_optimisers.py",
        "tests/test_mutations.py",
        "tests/insight/test_image_tour.py",
        "tests/weights/",
    ),
    *("tests/network/test_parity", "tests/exporters/test_exported.py"),
)

# Properties are tried on the same examples every time; stress/properties.py draws others, and more of them.
hypothesis.settings.register_profile("suite", derandomize=True, database=None, deadline=None, max_examples=60)
hypothesis.settings.register_profile("stress", database=None, deadline=None, max_examples=3000, print_blob=True)
hypothesis.settings.load_profile("suite")

torch.set_num_threads(1)  # tiny networks: more would only wait for each other


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith(SLOW):
            item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: next((n for n, start in enumerate(SLOW) if item.nodeid.startswith(start)), len(SLOW)))


def pytest_sessionfinish() -> None:
    shutil.rmtree(os.environ["VITRAIL_CACHE"], ignore_errors=True)


def pytest_unconfigure(config: pytest.Config) -> None:
    """As the last line, how many tests were left out for want of fixtures: without them a green run shows less."""
    reporter = config.pluginmanager.getplugin("terminalreporter")
    if reporter is None:  # in a process beside the one that reports
        return
    skipped = [each.longrepr for each in reporter.stats.get("skipped", []) if isinstance(each.longrepr, tuple)]
    if count := sum(NO_FIXTURES in reason for _, _, reason in skipped):
        reporter.write_line(f"left out for want of the fixtures that CONTRIBUTING.md speaks of: {count} tests")
    if count := sum(NO_BROWSER in reason for _, _, reason in skipped):
        reporter.write_line(f"left out for want of chromium, chromedriver, selenium or axe-core: {count} tests")


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
