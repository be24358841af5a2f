"""A worker of a large job: a shard of images in, its file of answers out, written whole or not at all.

It opens the network once, and holds two batches of images and the rows of one piece of a file, however many come.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from vitrail.errors import CheckpointError, VitrailError, first_line
from vitrail.files import best_of_run, is_name, reason
from vitrail.inference import Runtime, open_model
from vitrail.inference.row_files import writing_rows
from vitrail.inference.rows import COLUMNS, Row, RowMaker, embedding_rows, prediction_maker, rows_in_order
from vitrail.scale.batch_job import BatchJob, JobShard, Receipt, file_digest, read_images_of
from vitrail.scale.image_rows import ImageRow, read_images

MOST_TRIES: Final = 10  # at a shard whose workers die


@dataclass(frozen=True)
class ModelSource:
    """A network as every worker opens it."""

    path: str
    runtime: str = ""
    override: tuple[tuple[str, Any], ...] = ()
    leave_out: tuple[str, ...] = ()
    scaled_decoding: bool = False

    def open(self, device: str = "cpu") -> Runtime:
        override = dict(self.override)
        opened = open_model(self.path, runtime=self.runtime, override=override, leave_out=self.leave_out, device=device)
        if not self.scaled_decoding:
            return opened
        return opened.with_preprocess(replace(opened.preprocess, scaled_decoding=True))

    def digest(self) -> str:
        """What tells the weights from others: of the file, or of all files of the folder; of a name the name."""
        path = Path(best_of_run(self.path))
        if is_name(self.path):
            return self.path
        try:
            files = sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]
            digests = [f"{each.relative_to(path)} {file_digest(each)}" for each in files]
        except OSError as error:
            raise CheckpointError(f"could not read {self.path}: {reason(error)}") from error
        return digests[0].split()[-1] if len(digests) == 1 else "\n".join(digests)


@dataclass(frozen=True)
class Question:
    """What is asked of every image."""

    verb: str  # predict or embed
    top: int = 5
    threshold: float = 0.0
    decline: bool = False
    trust: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        return COLUMNS[self.verb]

    def maker(self, runtime: Runtime) -> RowMaker:
        if self.verb == "embed":
            return embedding_rows
        return prediction_maker(runtime, self.top, self.threshold, self.decline, self.trust)


@dataclass(frozen=True)
class Task:
    """All that a worker has to know."""

    job: BatchJob
    model: ModelSource
    sha256: str  # of the model, as whoever asks has it
    question: Question
    batch: int
    threads: int
    device: str = "cpu"  # where each worker computes


class ShardWorker:
    """Does the shards it is given, one after another, and says of each that it is done, or why it is not."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.runtime: Runtime | None = None

    def __call__(self, given: dict[str, Any]) -> dict[str, Any]:
        """Shards by number -> a word about each, as JSON."""
        return {"said": np.array([json.dumps(self._said(int(number))) for number in given["shard"]])}

    def _said(self, number: int) -> dict[str, Any]:
        try:
            shard = self.task.job.shards[number]
            if (tries := self.task.job.begin(number)) >= MOST_TRIES:
                first = read_images_of(self.task.job.folder, shard)[0].path
                raise VitrailError(
                    f"shard {number} was begun {tries} times by workers that died over it: is there memory enough, or "
                    f"an image that ends them, among {shard.images:,} from {first} on?"
                )
            receipt = self.do(shard)
            self.task.job.end(number)
            return {"receipt": receipt._asdict()}
        except VitrailError as error:
            return {"error": str(error), "kind": type(error).__name__}
        except Exception as error:
            return {"error": f"shard {number} on {platform.node()}: {first_line(error)}", "kind": "VitrailError"}

    def do(self, shard: JobShard) -> Receipt:
        """The answers about the images of a shard, in a file."""
        runtime, task = self._opened(), self.task
        images = read_images_of(task.job.folder, shard)
        path = task.job.part(shard.number)
        rows = rows_in_order(
            runtime,
            read_images(images),
            task.question.columns,
            task.question.maker(runtime),
            batch=task.batch,
            threads=task.threads,
            cores=task.threads,  # what reads and what computes take turns: the others belong to other workers
        )
        unread, worker = 0, f"{platform.node()}:{os.getpid()}"
        with writing_rows(path, task.question.columns) as put:
            for image, row in zip(images, rows, strict=True):
                put(_named(row, image))
                unread += row["error"] is not None
        return Receipt(shard.number, shard.images, unread, path.stat().st_size, file_digest(path), worker)

    def _opened(self) -> Runtime:
        """The network, opened when it is first needed."""
        if self.runtime is None:
            if (found := self.task.model.digest()) != self.task.sha256:
                raise CheckpointError(
                    f"{platform.node()} has other weights at {self.task.model.path}: {found:.16}, expected "
                    f"{self.task.sha256:.16}: every machine has to see the same file"
                )
            self.runtime = self.task.model.open(self.task.device)
            if "torch" in sys.modules:
                sys.modules["torch"].set_num_threads(self.task.threads)
        return self.runtime


def _named(row: Row, image: ImageRow) -> Row:
    """The row with the image called as it was given; a worker reads it by another path."""
    error = row["error"]
    if error is not None:
        if error.startswith(image.where):
            error = image.path + error.removeprefix(image.where)
        elif image.path not in error:
            error = f"{image.path}: {error}"
    return {**row, "path": image.path, "error": error}
