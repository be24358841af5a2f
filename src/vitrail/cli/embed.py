"""The verb embed: images to vectors."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Annotated

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
)
from vitrail.cli.terminal import Skipped, print_json, progress, refuse_overwrite, row_file, say, writing
from vitrail.cli.weights import load_runtime
from vitrail.errors import InputError


@app.command("embed")
def embed_images(
    checkpoint: RuntimePath,
    images: ImagePaths,
    to: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="FILE.npy (paths: FILE.txt), .csv, .jsonl or .parquet."),
    ] = None,
    force: Force = False,
    batch: Batch = 16,
    threads: Threads = 2,
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
    """Turn images into vectors, to search or to group them: what the last layer of the network receives."""
    import numpy as np

    from vitrail.inference import embed, find_images
    from vitrail.inference.rows import EMBEDDED, embedding_rows, rows_in_order

    check_engine(engine, address, workers)
    if engine == "ray":
        from vitrail.cli.ray_engine import RayWays, answer_by_ray
        from vitrail.scale.batch_worker import Question

        ways = RayWays(workers, threads, batch, address, force, runtime, override, leave_out, scaled_decoding, device)
        answer_by_ray(Question("embed"), checkpoint, images, to, ways, as_json).finish()
        return
    if to is None and not as_json:
        raise InputError("embed: give --out FILE.npy, .csv, .jsonl or .parquet, or --json")
    if to is not None:
        check_suffix(to, ".npy", ".csv", *ROW_FILES)
        refuse_overwrite(force, to, *([to.with_suffix(".txt")] if to.suffix == ".npy" else []))
    sources = find_images(typed_paths(images), shards=True)
    tell_passed_over(sources)
    paths = [str(path) for path in sources]
    skipped = Skipped()
    loaded = load_runtime(checkpoint, override, leave_out, runtime, scaled_decoding=scaled_decoding, device=device)
    stream = sources.images() if sources.in_shards else paths
    with progress(len(paths)) as done, row_file(to, "embed") as put:
        if to is not None and to.suffix in ROW_FILES:
            rows = rows_in_order(
                loaded, stream, EMBEDDED, embedding_rows, batch=batch, threads=threads, skip=skipped, done=done
            )
            read = [row["embedding"] for row in rows if put(row) is None and row["error"] is None]
            if not read:
                raise InputError("no images to embed")
            vectors = np.stack(read)
        else:
            vectors = embed(loaded, stream, batch, skipped, done, threads)
    unread = skipped.names
    kept = [path for path in paths if path not in unread]
    if to is not None and to.suffix == ".npy":
        if any(len(path.splitlines()) != 1 for path in kept):
            raise InputError("a file name holds a line break, which FILE.txt cannot list: use --out FILE.csv")
        with writing(to, "wb") as file:
            np.save(file, vectors)
        with writing(to.with_suffix(".txt")) as file:
            file.writelines(f"{path}\n" for path in kept)
    elif to is not None and to.suffix == ".csv":
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
