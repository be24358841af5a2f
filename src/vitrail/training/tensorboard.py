"""TensorBoardLog: the log of a run as TensorBoard scalars, for those who watch several runs side by side.

The log is the truth and this a copy of it: what a resumed or rolled-back run has taken back is taken back here too.
"""

from __future__ import annotations

import importlib.util
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from vitrail.errors import MissingExtraError
from vitrail.training.job import Callbacks
from vitrail.training.record import Record

SCALARS: Final = {
    "step": {"loss": "train/loss", "lr": "train/lr"},
    "epoch": {"loss": "epoch/loss", "val_loss": "val/loss", "val_score": "val/score"},
    "rollback": {"rate": "train/rollback"},
}


def check_tensorboard() -> None:
    """Say so before anything is trained."""
    if importlib.util.find_spec("tensorboard") is None:
        raise MissingExtraError("--tensorboard needs tensorboard: pip install 'vitrail[tensorboard]'")


class TensorBoardLog:
    """Event files beside the log, brought up to it after every epoch."""

    def __init__(self, run: Path) -> None:
        self.folder = run / "tensorboard"
        self.log = Record(run / "metrics.jsonl")
        self._writer: Any = None
        self._written: list[Any] = []

    def update(self) -> None:
        """Write the rows that are new; where the log has taken rows back, or at the start, all of them."""
        rows = self.log.rows()
        if self._writer is None or rows[: len(self._written)] != self._written:
            self._start()
        for row in rows[len(self._written) :]:
            for name, tag in SCALARS[row["event"]].items():
                if row.get(name) is not None and math.isfinite(row[name]):
                    self._writer.add_scalar(tag, row[name], row["step"])
        self._writer.flush()
        self._written = rows

    def _start(self) -> None:
        from torch.utils.tensorboard import SummaryWriter

        if self._writer is not None:
            self._writer.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        self._writer = SummaryWriter(str(self.folder))
        self._written = []


def with_tensorboard(callbacks: Callbacks, run: Path) -> Callbacks:
    """The same, with the event files brought up to date after every epoch."""
    events = TensorBoardLog(run)

    def epoch(row: dict[str, Any]) -> None:
        events.update()
        callbacks.epoch(row)

    return replace(callbacks, epoch=epoch)
