"""The verb rerun: a run repeated from its record."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vitrail.cli.application import app
from vitrail.cli.options import AsJson
from vitrail.cli.terminal import print_json, say
from vitrail.cli.training_progress import report_run, training_bar


@app.command("rerun")
def rerun_training(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run.")],
    to: Annotated[
        Path | None,
        typer.Option("--out", metavar="FOLDER", help="The folder for the new run.", show_default="that of RUN"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Repeat a run from its record, and say whether the result is the same, bit for bit."""
    from vitrail.training import rerun

    with training_bar() as callbacks:
        repeat = rerun(run, to, callbacks)
    if as_json:
        print_json({"same": repeat.same, "differences": list(repeat.differences), **repeat.run.to_dict()})
        return
    report_run(repeat.run, False)
    say(f"the same bits as {run}" if repeat.same else f"NOT the same as {run}: {'; '.join(repeat.differences)}")
