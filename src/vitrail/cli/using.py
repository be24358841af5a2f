"""Verbs that use weights: predict, embed, convert."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from vitrail.cli.app import app
from vitrail.cli.terminal import (
    AsJson,
    Batch,
    ImagePaths,
    LeaveOut,
    Override,
    RuntimePath,
    Skipped,
    busy,
    print_json,
    progress,
    say,
    writing,
)
from vitrail.cli.weights import load_runtime, settings_of, show_settings
from vitrail.errors import InputError

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
    to: Annotated[Path | None, typer.Option("--out", help="Write to FILE.csv or FILE.json instead.")] = None,
    override: Override = None,
    leave_out: LeaveOut = None,
    as_json: AsJson = False,
) -> None:
    """Say what is on pictures: labels with probabilities."""
    from vitrail.inference import find_images
    from vitrail.inference import predict as run

    if to is not None and to.suffix not in (".csv", ".json"):
        raise InputError(f"--out: expected FILE.csv or FILE.json, got {to.name!r}")
    loaded = load_runtime(checkpoint, override, leave_out)
    skipped = Skipped()
    paths = find_images(images)
    with progress(len(paths)) as done:
        found = run(loaded, paths, top, batch, skipped, done)
    rows: list[dict[str, Any]] = [
        {
            "path": each.path,
            "labels": [n for n, p in zip(each.labels, each.probabilities, strict=True) if p >= threshold],
            "probabilities": [p for p in each.probabilities if p >= threshold],
        }
        for each in found
    ]
    result = {"predictions": rows, "calibrated": loaded.temperature is not None, "skipped": skipped.rows}
    if to is not None and to.suffix == ".csv":
        with writing(to) as file:
            writer = csv.writer(file)
            writer.writerow(["path", "rank", "label", "probability"])
            for row in rows:
                for rank, pair in enumerate(zip(row["labels"], row["probabilities"], strict=True), 1):
                    writer.writerow([row["path"], rank, pair[0], f"{pair[1]:.6f}"])
                if not row["labels"]:
                    writer.writerow([row["path"], "", "", ""])  # nothing sure enough, but not forgotten
    elif to is not None:
        with writing(to) as file:
            json.dump(result, file, indent=1)
    if as_json:
        print_json(result)
    elif to is not None:
        say(f"{len(rows)} predictions written to {to}")
    else:
        for row in rows:
            answers = ", ".join(
                f"{name} {100 * p:.1f} %" for name, p in zip(row["labels"], row["probabilities"], strict=True)
            )
            say(f"{row['path']}: {answers or 'nothing above the threshold'}")
    if loaded.temperature is not None and not as_json:
        say("the probabilities are calibrated")
    skipped.finish()


@app.command()
def embed(
    checkpoint: RuntimePath,
    images: ImagePaths,
    to: Annotated[Path | None, typer.Option("--out", help="FILE.npy (paths go to FILE.txt) or FILE.csv.")] = None,
    batch: Batch = 16,
    override: Override = None,
    leave_out: LeaveOut = None,
    as_json: AsJson = False,
) -> None:
    """Turn pictures into vectors: what the head of the network receives."""
    import numpy as np

    from vitrail.inference import embed as run
    from vitrail.inference import find_images

    if to is None and not as_json:
        raise InputError("embed: give --out FILE.npy or FILE.csv, or --json")
    if to is not None and to.suffix not in (".npy", ".csv"):
        raise InputError(f"--out: expected FILE.npy or FILE.csv, got {to.name!r}")
    paths = [str(path) for path in find_images(images)]
    skipped = Skipped()
    loaded = load_runtime(checkpoint, override, leave_out)
    with progress(len(paths)) as done:
        vectors = run(loaded, paths, batch, skipped, done)
    kept = [path for path in paths if path not in skipped.names]
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
