"""SIGTERM and SIGINT as a wish that the loop grants after its step, not as an end in the middle of it."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any, Final

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class Stop:
    """While it is entered, remembers the first signal instead of dying of it; a second one changes nothing."""

    def __init__(self) -> None:
        self.number = 0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Stop:
        if threading.current_thread() is threading.main_thread():  # only there can signals be caught
            self._before = {each: signal.signal(each, self._remember) for each in SIGNALS}
        return self

    def __exit__(self, *error: object) -> None:
        for each, before in self._before.items():
            signal.signal(each, before)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self.number = self.number or number
