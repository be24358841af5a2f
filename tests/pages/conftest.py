"""A browser for the pages: Chromium without a screen, one for all tests; axe-core, where it is at hand."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import NO_BROWSER, ROOT
from pages.browser import Browser

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),
)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Chromium, if it and its driver are on the path."""
    chromium, chromedriver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or chromedriver is None:
        pytest.skip(f"{NO_BROWSER}: chromium and chromedriver are not on the path")
    webdriver = pytest.importorskip("selenium.webdriver", reason=f"{NO_BROWSER}: selenium is not installed")
    service = pytest.importorskip("selenium.webdriver.chrome.service")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        driver = webdriver.Chrome(options=options, service=service.Service(chromedriver))
        driver.set_script_timeout(60)
        yield Browser(driver)
        driver.quit()


@pytest.fixture(scope="session")
def axe() -> str:
    """axe-core, which is not part of the project."""
    file = Path(os.environ.get("VITRAIL_AXE") or ROOT / "node_modules" / "axe-core" / "axe.min.js")
    if not file.is_file():
        pytest.skip(f"{NO_BROWSER}: no axe-core at {file}: set VITRAIL_AXE to its axe.min.js")
    return file.read_text("utf-8")
