"""The verb predict: what is on images."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from contextlib import closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitrail.cli.application import app
from vitrail.cli.image_paths import passed_over_rows, tell_passed_over, typed_paths
from vitrail.cli.options import (
    AsJson,
    Batch,
    DeviceName,
    Force,
    ImagePaths,
    LeaveOut,
    Override,
    RuntimeName,
    RuntimePath,
    ScaledDecoding,
    Threads,
    share_option,
)
from vitrail.cli.terminal import Skipped, complain, print_json, progress, refuse_overwrite, say, writing
from vitrail.cli.weights import load_runtime
from vitrail.errors import InputError

if TYPE_CHECKING:
    from vitrail.inference import Prediction


@app.command("predict")
def predict_images(
    checkpoint: RuntimePath,
    images: ImagePaths,
    top: Annotated[int, typer.Option(min=1, help="How many classes to name.")] = 5,
    threshold: Annotated[
        float, share_option("Leave out classes less likely than this, such as 60% or 0.6, but for the likeliest.", "0%")
    ] = 0.0,
    decline: Annotated[
        bool, typer.Option("--decline", help="Give no answer where the confidence is below the minimum.")
    ] = False,
    trust: Annotated[
        bool, typer.Option("--trust", help="Do not mark images unlike anything it was trained on.")
    ] = False,
    batch: Batch = 16,
    threads: Threads = 2,
    every: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Of videos and animations, every Nth frame.")
    ] = None,
    to: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write to FILE.csv or FILE.json instead.")
    ] = None,
    force: Force = False,
    scaled_decoding: ScaledDecoding = False,
    runtime: RuntimeName = "",
    device: DeviceName = "auto",
    override: Override = None,
    leave_out: LeaveOut = None,
    as_json: AsJson = False,
) -> None:
    """Say what is on images: labels with probabilities. Of videos, on each frame."""
    from vitrail.inference import predictions, stream_images

    if to is not None and to.suffix not in (".csv", ".json"):
        raise InputError(f"--out: expected FILE.csv or FILE.json, got {to.name!r}")
    if to is not None:
        refuse_overwrite(force, to)
    stream = stream_images(typed_paths(images), every)
    tell_passed_over(stream.files)
    loaded = load_runtime(checkpoint, override, leave_out, runtime, stream.is_short, scaled_decoding, device)
    skipped = Skipped()
    in_full = as_json or (to is not None and to.suffix == ".json")  # one object, which needs all of them
    lines = to is None and not as_json
    rows: list[dict[str, Any]] = []
    count = unlike = 0
    with (
        writing(to) if to is not None and to.suffix == ".csv" else nullcontext() as table,
        progress(stream.count, beside_lines=lines) as done,
        closing(predictions(loaded, stream, top, batch, skipped, done, threads, decline, trust)) as answers,
    ):
        writer = csv.writer(table) if table is not None else None
        if writer is not None:
            writer.writerow(["path", "rank", "label", "probability", "confident", "unlike"])
        for answer in answers:
            row = _row(answer, threshold, decline)
            count += 1
            unlike += bool(answer.unlike)
            if in_full:
                rows.append(row)
            if writer is not None:
                writer.writerows(_table_rows(row))
            if lines:
                say(_line(row, answer.remark))
    result = {
        "predictions": rows,
        "calibrated": loaded.temperature is not None,
        "skipped": skipped.rows,
        "passed_over": passed_over_rows(stream.files),
    }
    if to is not None and to.suffix == ".json":
        with writing(to) as file:
            json.dump(result, file, indent=1)
    if as_json:
        print_json(result)
    elif to is not None:
        say(f"{count:,} {'prediction' if count == 1 else 'predictions'} written to {to}")
    if loaded.temperature is not None and not as_json:
        say("the probabilities were adjusted on validation images (temperature)")
    if unlike and loaded.ood is not None:
        complain(_unlike_line(unlike, count, loaded.ood.false_alarms))
    skipped.finish(count + len(skipped.rows), stream.files.is_complete)


def _row(answer: Prediction, threshold: float, decline: bool) -> dict[str, Any]:
    pairs = list(zip(answer.labels, answer.probabilities, strict=True))
    likely = [pair for pair in pairs if pair[1] >= threshold]
    if not likely and not decline:
        likely = pairs[:1]
    plain = {"path": answer.path, "labels": [name for name, _ in likely], "probabilities": [p for _, p in likely]}
    doubts = {"confident": answer.confident, "needed": answer.needed}
    return plain | doubts | {"unlike": answer.unlike, "familiarity": answer.familiarity}


def _table_rows(row: dict[str, Any]) -> Iterator[list[object]]:
    signs = ["" if row[name] is None else "yes" if row[name] else "no" for name in ("confident", "unlike")]
    for rank, pair in enumerate(zip(row["labels"], row["probabilities"], strict=True), 1):
        yield [row["path"], rank, pair[0], f"{pair[1]:.6f}", *signs]
    if not row["labels"]:
        yield [row["path"], "", "", "", *signs]  # declined, but not forgotten


def _unlike_line(unlike: int, count: int, promised: float) -> str:
    """How many of all images are unlike the training ones, and what that word is worth."""
    which = "the image is" if count == 1 else f"{unlike} of {count} images {'is' if unlike == 1 else 'are'}"
    return (
        f"{which} unlike anything this network was trained on (a false alarm for at most {100 * promised:g} % of "
        "images like the training ones; --trust leaves this out)"
    )


def _line(row: dict[str, Any], remark: str) -> str:
    pairs = zip(row["labels"], row["probabilities"], strict=True)
    answers = ", ".join(f"{name} {100 * p:.1f} %" for name, p in pairs)
    if not answers and not remark.startswith("declined"):
        answers = "declined (nothing above the threshold)"
    return f"{row['path']}: {'; '.join(filter(None, (answers, remark)))}"
