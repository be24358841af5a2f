"""--engine ray: answers about any number of images, by workers of a Ray cluster, in a folder of shards."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from vitrail.cli.image_paths import passed_over_rows, tell_passed_over, typed_paths
from vitrail.cli.options import parse_settings
from vitrail.cli.terminal import Skipped, print_json, progress, say
from vitrail.cli.weights import load_runtime
from vitrail.errors import ImageError, InputError

if TYPE_CHECKING:
    from vitrail.inference import Runtime
    from vitrail.scale.batch_inference import BatchReport
    from vitrail.scale.batch_worker import Question


class RayWays(NamedTuple):
    """How the work is shared out, and how each worker opens the network."""

    workers: int | None
    threads: int
    batch: int
    address: str
    force: bool
    runtime: str
    override: list[str] | None
    leave_out: list[str] | None
    scaled_decoding: bool
    device: str


class Answered(NamedTuple):
    report: BatchReport
    opened: Runtime
    skipped: Skipped

    def finish(self) -> None:
        self.skipped.finish(self.report.rows, self.report.files.is_complete)


def answer_by_ray(
    question: Question, checkpoint: str, images: Sequence[Path], to: Path | None, ways: RayWays, as_json: bool
) -> Answered:
    """Do the job and say what came of it, but for the last word."""
    from vitrail.scale import batch_inference

    if to is None:
        raise InputError("--engine ray: give --out FOLDER, for Parquet files, or FOLDER.jsonl")
    opened = load_runtime(checkpoint, ways.override, ways.leave_out, ways.runtime, scaled_decoding=ways.scaled_decoding)
    options = ways._asdict() | {"override": parse_settings(ways.override), "leave_out": ways.leave_out or ()}
    paths = typed_paths(images)
    report = batch_inference.run_batch_job(checkpoint, paths, to, question, opened=opened, bar=progress, **options)
    from vitrail.reporting.html_page import counted

    tell_passed_over(report.files)
    skipped = Skipped()
    for path, why in report.unread:
        skipped(path, ImageError(why))
    if as_json:
        print_json(
            {
                "out": str(to),
                "rows": report.rows,
                "shards": report.shards,
                "computed": report.computed,
                "unlike": report.unlike,
                "calibrated": opened.temperature is not None,
                "skipped": skipped.rows,
                "passed_over": passed_over_rows(report.files),
            }
        )
    else:
        kept = f", {report.shards - report.computed:,} of them there before" if report.computed < report.shards else ""
        say(f"{counted(report.rows, 'row')} written to {to}, in {counted(report.shards, 'shard')}{kept}")
        say("every image is there once")
    return Answered(report, opened, skipped)
