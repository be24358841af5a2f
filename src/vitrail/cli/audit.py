"""The verb audit: what would spoil a training, found in the data first."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vitrail.cli.application import app
from vitrail.cli.options import AsJson, Data
from vitrail.cli.terminal import print_json, progress, say, say_files
from vitrail.cli.weights import load_checkpoint


@app.command("audit")
def audit_data(
    data: Data,
    checkpoint: Annotated[str, typer.Option(help="Weights whose features find likely label errors.")] = "",
    to: Annotated[Path | None, typer.Option("--out", help="A folder for audit.html, audit.csv and audit.json.")] = None,
    as_json: AsJson = False,
) -> None:
    """Look at data before training: unreadable files, duplicates, leaks, imbalance, sizes, likely label errors."""
    from vitrail.auditing.audit_page import write_audit
    from vitrail.auditing.auditor import audit
    from vitrail.auditing.findings_table import verdicts
    from vitrail.data import read_data

    loaded = load_checkpoint(checkpoint, None, None) if checkpoint else None
    source = read_data(data)
    with progress(len(source)) as done:
        result = audit(source, checkpoint=loaded, done=done)
    files = write_audit(result, to, source) if to is not None else []
    if as_json:
        print_json(result.to_dict() | {"files": [str(each) for each in files]})
        return
    findings = verdicts(result)
    for verdict in findings:
        say(verdict.words)
    if not findings:
        say(f"{len(source)} images: nothing to complain about")
    for note in result.notes:
        say(note)
    say_files(files)
