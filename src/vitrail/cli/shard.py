"""The verb shard: images in files to tar files with an index."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from vitrail.cli.application import app
from vitrail.cli.options import AsJson, Data, Force
from vitrail.cli.terminal import complain, end_with_unreadable, print_json, say, size_of


@app.command("shard")
def shard_data(
    data: Data,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The folder to write.")],
    size: Annotated[
        float, typer.Option("--shard-size", metavar="MB", min=0.001, help="About how large a tar file becomes.")
    ] = 500.0,
    pattern: Annotated[
        str | None, typer.Option(metavar="REGEX", help="Read labels from file names, as `vitrail train --help` says.")
    ] = None,
    unreadable: Annotated[
        str, typer.Option(metavar="skip|stop", help="What to do about images that cannot be read.")
    ] = "skip",
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Write a data set into tar files with an index, for disks and networks on which many small files are slow.

    Every image keeps its bytes, name, class, split and group; training, predict and webdataset read them as they are.
    """
    from vitrail.data.shard_writing import shard
    from vitrail.progress import left_to_library
    from vitrail.reporting.html_page import counted

    with left_to_library():
        report = shard(data, out, shard_bytes=round(1e6 * size), pattern=pattern, unreadable=unreadable, force=force)
    if as_json:
        print_json(report.to_dict())
    else:
        for note in report.notes:
            complain(note)
        written = f"{counted(report.images, 'image')} in {counted(len(report.shards), 'shard')}"
        say(f"{written} of {size_of(report.bytes)}, read back, in {out}")
        say(f"try it            vitrail train {shlex.quote(str(out))}")
    end_with_unreadable(len(report.unreadable))
