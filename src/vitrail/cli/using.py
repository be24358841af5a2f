"""Verbs that use weights: predict, embed, convert."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitrail.cli.app import app
from vitrail.cli.terminal import (
    AsJson,
    Batch,
    ImagePaths,
    LeaveOut,
    Override,
    RuntimeName,
    RuntimePath,
    ScaledDecoding,
    Skipped,
    Threads,
    busy,
    print_json,
    progress,
    say,
    writing,
)
from vitrail.cli.weights import load_runtime, settings_of, show_settings
from vitrail.errors import ImageError, InputError
from vitrail.images.model_info import Described

if TYPE_CHECKING:
    from vitrail.images import Source
    from vitrail.inference import Named, Prediction, Runtime

TARGETS = (  # here in words, since asking the families would import torch
    "vitrail, timm, timm-naflex, transformers, google, big_vision, dino, dinov2, dinov3, mae, deit, clip, torchvision, "
    "lucidrains, jeonsworld"
)


@app.command()
def predict(
    checkpoint: RuntimePath,
    images: ImagePaths,
    top: Annotated[int, typer.Option(min=1, help="How many classes to name.")] = 5,
    threshold: Annotated[float, typer.Option(min=0.0, max=1.0, help="Leave out classes less likely than this.")] = 0.0,
    batch: Batch = 16,
    threads: Threads = 2,
    every: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Of videos and animations, every Nth frame.")
    ] = None,
    to: Annotated[Path | None, typer.Option("--out", help="Write to FILE.csv or FILE.json instead.")] = None,
    scaled_decoding: ScaledDecoding = False,
    runtime: RuntimeName = "",
    override: Override = None,
    leave_out: LeaveOut = None,
    as_json: AsJson = False,
) -> None:
    """Say what is on images: labels with probabilities. Of videos, on each frame."""
    from vitrail.inference import find_images, predictions
    from vitrail.inference.video import moves

    if to is not None and to.suffix not in (".csv", ".json"):
        raise InputError(f"--out: expected FILE.csv or FILE.json, got {to.name!r}")
    few = len(images) <= 2 and all(each.is_file() and not moves(each, animations=True) for each in images)
    loaded = _decoding(load_runtime(checkpoint, override, leave_out, runtime, few), scaled_decoding)
    skipped = Skipped()
    paths = find_images(images)
    moving = {path for path in paths if moves(path, animations=every is not None)}
    total = None if moving else len(paths)
    in_full = as_json or (to is not None and to.suffix == ".json")  # one object, which needs all of them
    lines = to is None and not as_json
    rows: list[dict[str, Any]] = []
    count = 0
    with (
        writing(to) if to is not None and to.suffix == ".csv" else nullcontext() as table,
        progress(total, beside_lines=lines) as done,
        closing(predictions(loaded, _images(paths, moving, every or 1), top, batch, skipped, done, threads)) as found,
    ):
        writer = csv.writer(table) if table is not None else None
        if writer is not None:
            writer.writerow(["path", "rank", "label", "probability"])
        for each in found:
            row = _row(each, threshold)
            count += 1
            if in_full:
                rows.append(row)
            if writer is not None:
                writer.writerows(_table_rows(row))
            if lines:
                _say_row(row)
    result = {"predictions": rows, "calibrated": loaded.temperature is not None, "skipped": skipped.rows}
    if to is not None and to.suffix == ".json":
        with writing(to) as file:
            json.dump(result, file, indent=1)
    if as_json:
        print_json(result)
    elif to is not None:
        say(f"{count} predictions written to {to}")
    if loaded.temperature is not None and not as_json:
        say("the probabilities are calibrated")
    skipped.finish()


def _decoding(loaded: Runtime, scaled: bool) -> Runtime:
    """The same runtime, decoding large JPEGs at a part of their size if that is asked for."""
    if not scaled:
        return loaded
    way = replace(loaded.preprocess, scaled_decoding=True)
    if isinstance(loaded, Described):
        loaded.about = replace(loaded.about, preprocess=way)
        return loaded
    from vitrail.checkpoint import Checkpoint

    assert isinstance(loaded, Checkpoint)
    return replace(loaded, preprocess=way)


def _images(paths: list[Path], moving: set[Path], every: int) -> Iterator[Source | Named]:
    """Every image, and every frame of what moves, called clip.mp4#120; what cannot be read stands as its error."""
    from vitrail.inference import Named, frames

    for path in paths:
        if path not in moving:
            yield path
            continue
        try:
            for number, frame in enumerate(frames(path, every)):
                yield Named(f"{path}#{number * every}", frame)
        except ImageError as error:
            yield Named(str(path), error)


def _row(found: Prediction, threshold: float) -> dict[str, Any]:
    likely = [pair for pair in zip(found.labels, found.probabilities, strict=True) if pair[1] >= threshold]
    return {"path": found.path, "labels": [n for n, _ in likely], "probabilities": [p for _, p in likely]}


def _table_rows(row: dict[str, Any]) -> Iterator[list[object]]:
    for rank, pair in enumerate(zip(row["labels"], row["probabilities"], strict=True), 1):
        yield [row["path"], rank, pair[0], f"{pair[1]:.6f}"]
    if not row["labels"]:
        yield [row["path"], "", "", ""]  # nothing sure enough, but not forgotten


def _say_row(row: dict[str, Any]) -> None:
    pairs = zip(row["labels"], row["probabilities"], strict=True)
    answers = ", ".join(f"{name} {100 * p:.1f} %" for name, p in pairs)
    say(f"{row['path']}: {answers or 'nothing above the threshold'}")


@app.command()
def embed(
    checkpoint: RuntimePath,
    images: ImagePaths,
    to: Annotated[Path | None, typer.Option("--out", help="FILE.npy (paths go to FILE.txt) or FILE.csv.")] = None,
    batch: Batch = 16,
    threads: Threads = 2,
    scaled_decoding: ScaledDecoding = False,
    runtime: RuntimeName = "",
    override: Override = None,
    leave_out: LeaveOut = None,
    as_json: AsJson = False,
) -> None:
    """Turn images into vectors: what the head of the network receives."""
    import numpy as np

    from vitrail.inference import embed as run
    from vitrail.inference import find_images

    if to is None and not as_json:
        raise InputError("embed: give --out FILE.npy or FILE.csv, or --json")
    if to is not None and to.suffix not in (".npy", ".csv"):
        raise InputError(f"--out: expected FILE.npy or FILE.csv, got {to.name!r}")
    paths = [str(path) for path in find_images(images)]
    skipped = Skipped()
    loaded = _decoding(load_runtime(checkpoint, override, leave_out, runtime), scaled_decoding)
    with progress(len(paths)) as done:
        vectors = run(loaded, paths, batch, skipped, done, threads)
    unread = skipped.names
    kept = [path for path in paths if path not in unread]
    if to is not None and to.suffix == ".npy":
        if any(len(path.splitlines()) != 1 for path in kept):
            raise InputError("a file name holds a line break, which FILE.txt cannot list: use --out FILE.csv")
        with writing(to, "wb") as file:
            np.save(file, vectors)
        with writing(to.with_suffix(".txt")) as file:
            file.writelines(f"{path}\n" for path in kept)
    elif to is not None:
        with writing(to) as file:
            writer = csv.writer(file)
            writer.writerow(["path", *range(vectors.shape[1])])
            writer.writerows([path, *map(float, row)] for path, row in zip(kept, vectors, strict=True))
    if as_json:
        print_json({"paths": kept, "embeddings": vectors.tolist(), "skipped": skipped.rows})
    else:
        say(f"{vectors.shape[0]} vectors of {vectors.shape[1]} values written to {to}")
    skipped.finish()


@app.command()
def convert(
    source: Annotated[str, typer.Argument(metavar="IN", help="Weights of any known family: a file or a folder.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The file or folder to write; it may not exist yet.")],
    to: Annotated[str, typer.Option("--to", metavar="FAMILY", help=f"One of: {TARGETS}.")],
    override: Override = None,
    leave_out: LeaveOut = None,
    as_json: AsJson = False,
) -> None:
    """Write weights the way another family does, read them back, and say how equal they are."""
    from dataclasses import asdict

    from vitrail.weights import convert as run

    with busy(f"converting {source}"):
        report = run(source, out, to=to, override=settings_of(override), leave_out=leave_out or ())
    if as_json:
        print_json(asdict(report) | {"settings": [each._asdict() for each in report.settings]})
        return
    say(f"{report.tensors} tensors written for {report.family}: {report.out}")
    say(f"mapped back       {report.identical} tensors of ours, bit for bit the same")
    say(
        f"both networks     differ by at most {report.largest_difference:.3g} on random pixels "
        f"({report.relative_difference:.3g} of the largest value); {100 * report.argmax_agreement:.0f} % agree"
    )
    say(f"preprocessing     {'carried' if report.preprocess_carried else 'NOT carried: keep it by hand'}")
    say(f"class names       {'carried' if report.classes_carried else 'NOT carried: keep them by hand'}")
    for each in report.not_carried:
        say(f"not carried       {each}")
    if report.settings:
        show_settings(report.settings)
