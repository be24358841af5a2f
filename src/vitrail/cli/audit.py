"""The verb audit: what would spoil a training, found in the data first."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from vitrail.checks import join_limited
from vitrail.cli.application import app
from vitrail.cli.options import AsJson, Data, DeviceName
from vitrail.cli.terminal import complain, end_with_unreadable, print_json, progress, say, say_files
from vitrail.cli.weights import load_checkpoint

if TYPE_CHECKING:
    from vitrail.auditing import Audit
    from vitrail.data import Dataset

NAMED: Final = 5  # images of a finding, in the terminal


@app.command("audit")
def audit_data(
    data: Data,
    checkpoint: Annotated[
        str, typer.Option(metavar="WEIGHTS", help="Weights that look for possible label errors, such as a run.")
    ] = "",
    to: Annotated[Path | None, typer.Option("--out", metavar="FOLDER", help="Write a page and a table here.")] = None,
    device: DeviceName = "auto",
    as_json: AsJson = False,
) -> None:
    """Look at data before training: unreadable files, duplicates, leaks, placeholders, sizes, possible label errors."""
    from vitrail.auditing import audit
    from vitrail.auditing.audit_page import write_audit
    from vitrail.data import read_data
    from vitrail.data.folder_walk import CLOSED

    loaded = load_checkpoint(checkpoint, device=device) if checkpoint else None
    source = read_data(data)
    with progress(len(source)) as done:
        result = audit(source, checkpoint=loaded, done=done)
    files = []
    if to is not None:
        with _kept_where_edited(to / "audit.csv"):
            files = write_audit(result, to, source)
    if as_json:
        print_json(result.to_dict() | {"files": [str(each) for each in files]})
    else:
        _say_findings(result)
        say_files(files)
        _say_next(result, to, source)
    end_with_unreadable(len(result.unreadable), is_complete=CLOSED not in result.left_out)


@contextmanager
def _kept_where_edited(table: Path) -> Iterator[None]:
    """A person's decisions may stand in an older table: where the new one is another, the old one is kept beside it."""
    older = table.read_bytes() if table.is_file() else None
    yield
    if older is not None and older != table.read_bytes():
        beside = table.with_name("audit-before.csv")
        beside.write_bytes(older)
        complain(f"{table} is written anew; the table that was there is kept as {beside}")


def _say_findings(audit: Audit) -> None:
    """What was found, each kind with the first of its files; then what was left out or not looked for."""
    from vitrail.auditing.findings_table import verdicts
    from vitrail.data.left_out import left_out_lines
    from vitrail.images import describe
    from vitrail.reporting.html_page import counted

    classes = counted(len(audit.balance.counts), "class")
    say(f"{counted(audit.images, 'image')} of {classes} in {describe(audit.source)}")
    findings = verdicts(audit)
    for verdict in findings:
        say(verdict.words)
        names = [join_limited([describe(each) for each in verdict.names], ", ", NAMED)] if verdict.names else []
        for line in verdict.details or names:
            say(f"  {line}")
    if not findings:
        say("Nothing to complain about.")
    for line in left_out_lines(audit.left_out, audit.left_out_names):
        say(line)
    for note in audit.notes:
        say(note)
    if audit.sizes.suggestion.resize != "crop":
        say(f"How to bring them to one size: {audit.sizes.suggestion.reason}.")


def _say_next(audit: Audit, to: Path | None, images: Dataset) -> None:
    """The command to type next, as it works."""
    from vitrail.auditing.findings_table import verdicts
    from vitrail.auditing.next_step import next_command, obstacle

    if to is None and audit.balance.counts and not verdicts(audit):
        say(f"Train on them: {next_command(audit)}")
        return
    if to is None:
        command = shlex.join(["vitrail", "audit", audit.source, "--out", "audit"])
        say(f"All files of each finding, with images, are written by: {command}")
        return
    table = to / "audit.csv"
    hint = obstacle(audit, table, images)
    say(hint or f"All files of each finding stand in {table}; change its last column as you see fit, then:")
    if not hint:
        say(f"  {next_command(audit, table)}")
