"""The verb embed: images to vectors."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Annotated

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
)
from vitrail.cli.terminal import Skipped, print_json, progress, refuse_overwrite, say, writing
from vitrail.cli.weights import load_runtime
from vitrail.errors import InputError


@app.command("embed")
def embed_images(
    checkpoint: RuntimePath,
    images: ImagePaths,
    to: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="FILE.npy (paths go to FILE.txt) or FILE.csv.")
    ] = None,
    force: Force = False,
    batch: Batch = 16,
    threads: Threads = 2,
    scaled_decoding: ScaledDecoding = False,
    runtime: RuntimeName = "",
    device: DeviceName = "auto",
    override: Override = None,
    leave_out: LeaveOut = None,
    as_json: AsJson = False,
) -> None:
    """Turn images into vectors, to search or to group them: what the last layer of the network receives."""
    import numpy as np

    from vitrail.inference import embed, find_images

    if to is None and not as_json:
        raise InputError("embed: give --out FILE.npy or FILE.csv, or --json")
    if to is not None and to.suffix not in (".npy", ".csv"):
        raise InputError(f"--out: expected FILE.npy or FILE.csv, got {to.name!r}")
    if to is not None:
        refuse_overwrite(force, to, *([to.with_suffix(".txt")] if to.suffix == ".npy" else []))
    sources = find_images(typed_paths(images), shards=True)
    tell_passed_over(sources)
    paths = [str(path) for path in sources]
    skipped = Skipped()
    loaded = load_runtime(checkpoint, override, leave_out, runtime, scaled_decoding=scaled_decoding, device=device)
    with progress(len(paths)) as done:
        vectors = embed(loaded, sources.images() if sources.in_shards else paths, batch, skipped, done, threads)
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
        print_json(
            {
                "paths": kept,
                "embeddings": vectors.tolist(),
                "skipped": skipped.rows,
                "passed_over": passed_over_rows(sources),
            }
        )
    else:
        count, width = vectors.shape
        say(f"{count:,} {'vector' if count == 1 else 'vectors'} of {width} values written to {to}")
    skipped.finish(len(paths), sources.is_complete)
