"""The verb predict: what is on images."""

from __future__ import annotations

import csv
import json
from collections.abc import Generator, Iterator
from contextlib import closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitrail.cli.application import app
from vitrail.cli.image_paths import passed_over_rows, tell_passed_over, typed_paths
from vitrail.cli.options import (
    ROW_FILES,
    Address,
    AsJson,
    Batch,
    DeviceName,
    Engine,
    Force,
    ImagePaths,
    LeaveOut,
    Override,
    RuntimeName,
    RuntimePath,
    ScaledDecoding,
    Threads,
    Workers,
    check_engine,
    check_suffix,
    share_option,
)
from vitrail.cli.terminal import Skipped, complain, print_json, progress, refuse_overwrite, row_file, say, writing
from vitrail.cli.weights import load_runtime
from vitrail.errors import InputError

if TYPE_CHECKING:
    from vitrail.inference import Runtime
    from vitrail.types import ProgressCallback


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
        Path | None, typer.Option("--out", metavar="FILE", help="Write to FILE.csv, .json, .jsonl or .parquet instead.")
    ] = None,
    force: Force = False,
    scaled_decoding: ScaledDecoding = False,
    runtime: RuntimeName = "",
    device: DeviceName = "auto",
    override: Override = None,
    leave_out: LeaveOut = None,
    engine: Engine = "local",
    address: Address = "",
    workers: Workers = None,
    as_json: AsJson = False,
) -> None:
    """Say what is on images: labels with probabilities. Of videos, on each frame."""
    from vitrail.inference import predictions, stream_images
    from vitrail.inference.answers import prediction_row

    check_engine(engine, address, workers)
    if engine == "ray":
        from vitrail.cli.ray_engine import RayWays, answer_by_ray
        from vitrail.scale.batch_worker import Question

        if every is not None:
            raise InputError("--every: videos are for --engine local")
        question = Question("predict", top, threshold, decline, trust)
        ways = RayWays(workers, threads, batch, address, force, runtime, override, leave_out, scaled_decoding, device)
        answered = answer_by_ray(question, checkpoint, images, to, ways, as_json)
        _finish(answered.opened, answered.report.rows, answered.report.unlike, as_json)
        answered.finish()
        return
    if to is not None:
        check_suffix(to, ".csv", ".json", *ROW_FILES)
        refuse_overwrite(force, to)
    stream = stream_images(typed_paths(images), every)
    tell_passed_over(stream.files)
    loaded = load_runtime(checkpoint, override, leave_out, runtime, stream.is_short, scaled_decoding, device)
    skipped = Skipped()
    in_full = as_json or (to is not None and to.suffix == ".json")  # one object, which needs all of them
    lines = to is None and not as_json
    rows: list[dict[str, Any]] = []
    count = unlike = 0

    def answers(done: ProgressCallback) -> Generator[tuple[dict[str, Any], str], None, None]:
        """A row for each answer, and what is remarked; where rows go to a file, those of unread images among them."""
        if to is not None and to.suffix in ROW_FILES:
            from vitrail.inference.rows import PREDICTED, prediction_maker, rows_in_order

            maker = prediction_maker(loaded, top, threshold, decline, trust)
            rows_of = rows_in_order(
                loaded, stream, PREDICTED, maker, batch=batch, threads=threads, skip=skipped, done=done
            )
            with closing(rows_of) as each:
                yield from ((row, "") for row in each)
            return
        with closing(predictions(loaded, stream, top, batch, skipped, done, threads, decline, trust)) as given:
            yield from ((prediction_row(answer, threshold, decline), answer.remark) for answer in given)

    with (
        writing(to) if to is not None and to.suffix == ".csv" else nullcontext() as table,
        row_file(to, "predict") as put,
        progress(stream.count, beside_lines=lines) as done,
        closing(answers(done)) as told,
    ):
        writer = csv.writer(table) if table is not None else None
        if writer is not None:
            writer.writerow(["path", "rank", "label", "probability", "confident", "unlike"])
        for row, remark in told:
            put(row)
            if row.get("error") is not None:
                continue
            count += 1
            unlike += bool(row["unlike"])
            if in_full:
                rows.append({name: value for name, value in row.items() if name != "error"})
            if writer is not None:
                writer.writerows(_table_rows(row))
            if lines:
                say(_line(row, remark))
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
    _finish(loaded, count, unlike, as_json)
    skipped.finish(count + len(skipped.rows), stream.files.is_complete)


def _finish(loaded: Runtime, count: int, unlike: int, as_json: bool) -> None:
    """What is to be known of all answers."""
    if loaded.temperature is not None and not as_json:
        say("the probabilities were adjusted on validation images (temperature)")
    if unlike and loaded.ood is not None:
        complain(_unlike_line(unlike, count, loaded.ood.false_alarms))


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
