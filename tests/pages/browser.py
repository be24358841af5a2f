"""Browser: Chromium as tests use it, a page at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any


class Browser:
    """A page at a time, as a person with a mouse, a keyboard, a phone or a dark room would have it."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, page: Path, *, dark: bool = False, width: int = 1200) -> None:
        """A file, in light or dark, on a screen so wide."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        screen = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        self.driver.get(page.as_uri())

    def run(self, script: str, *values: Any) -> Any:
        """What a script returns."""
        return self.driver.execute_script(script, *values)

    def find(self, selector: str) -> Any:
        """The first element of a CSS selector."""
        return self.driver.find_element("css selector", selector)

    def press(self, key: str) -> None:
        """A key, to what has the focus."""
        self.driver.switch_to.active_element.send_keys(key)

    def faults(self, axe: str) -> list[str]:
        """What axe-core finds on the page that is serious or critical: the rule, and where."""
        self.run(axe)
        found = self.driver.execute_async_script(
            "const done = arguments[0]; axe.run(document, {resultTypes: ['violations']}).then(done)"
        )
        return [
            f"{each['id']}: {each['nodes'][0]['html'][:200]} {each['nodes'][0].get('failureSummary', '')}"
            for each in found["violations"]
            if each["impact"] in ("serious", "critical")
        ]
