"""Verbs that judge: audit, evaluate, compare."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from vitrail.cli.app import app
from vitrail.cli.learning import Data
from vitrail.cli.terminal import (
    AsJson,
    Batch,
    RuntimeName,
    RuntimePath,
    command_line,
    complain,
    left_table,
    print_json,
    progress,
    say,
    show,
    table_of,
)
from vitrail.cli.weights import load_checkpoint, load_runtime
from vitrail.errors import ImageError

Split = Annotated[str, typer.Option(help="train, val, test or all; by default test, else val, else all.")]


@app.command()
def evaluate(
    checkpoint: RuntimePath,
    data: Annotated[
        str, typer.Argument(metavar="DATA", help="Images with labels; of a run: its own, if left out.")
    ] = "",
    split: Split = "",
    to: Annotated[Path | None, typer.Option("--out", help="A folder for the report.")] = None,
    batch: Batch = 64,
    runtime: RuntimeName = "",
    as_json: AsJson = False,
) -> None:
    """Say how good a checkpoint is: metrics with intervals, calibration, confusion, worst errors."""
    from vitrail.evaluation import evaluate
    from vitrail.evaluation.seen_images import data_for

    loaded = load_runtime(checkpoint, runtime=runtime)
    source = data_for(checkpoint, data, loaded.classes)
    with progress(len(source)) as done:
        found = evaluate(loaded, source, split=split, batch=batch, skip=_skipped, done=done)
    files: list[Path] = []
    if to is not None:
        from vitrail.evaluation.report_files import write_evaluation

        files = write_evaluation(found, to, loaded, source, command_line())
    if as_json:
        print_json(found.to_dict() | {"files": [str(each) for each in files]})
        return
    say(f"{len(found.names)} images of {found.source} ({found.split})")
    show_scores(found)
    for each in files:
        say(f"  {each}")


@app.command()
def compare(
    first: Annotated[str, typer.Argument(metavar="A", help="A checkpoint, or an exported file.")],
    second: Annotated[str, typer.Argument(metavar="B", help="Another.")],
    data: Data,
    split: Split = "",
    to: Annotated[Path | None, typer.Option("--out", help="A folder for the page with the images that differ.")] = None,
    batch: Batch = 64,
    as_json: AsJson = False,
) -> None:
    """Compare two models on the same images, with a paired test."""
    from vitrail.evaluation import compare
    from vitrail.evaluation.report_files import write_comparison
    from vitrail.evaluation.seen_images import data_for_both

    one, other = load_runtime(first), load_runtime(second)
    source = data_for_both(first, second, data, one.classes)
    found = compare(one, other, source, split=split, batch=batch)
    files = write_comparison(found, to, one, source, (first, second), command_line()) if to is not None else []
    if as_json:
        print_json(found.to_dict() | {"files": [str(each) for each in files]})
        return
    say(f"{len(found.a)} images of {found.a.source} ({found.a.split})")
    for name, why in found.a.skipped:
        complain(f"{name} is skipped: {why}")
    table = table_of("", "A", "B")
    for name, score in found.a.scores.items():
        table.add_row(name, f"{score.value:.4f}", f"{found.b.scores[name].value:.4f}")
    show(table)
    say(f"right: both {found.both_right}, only A {found.only_a}, only B {found.only_b}, neither {found.both_wrong}")
    say(
        f"A - B             {100 * found.difference.value:+.2f} points, 95 % interval "
        f"{100 * found.difference.low:+.2f} to {100 * found.difference.high:+.2f}; p = {found.p_value:.3g}"
    )
    for each in files:
        say(f"  {each}")


@app.command()
def audit(
    data: Data,
    checkpoint: Annotated[str, typer.Option(help="Weights whose features find likely label errors.")] = "",
    to: Annotated[Path | None, typer.Option("--out", help="A folder for audit.html, audit.csv and audit.json.")] = None,
    as_json: AsJson = False,
) -> None:
    """Look at data before training: unreadable files, duplicates, leaks, imbalance, sizes, likely label errors."""
    from vitrail.audit.audit_page import write_audit
    from vitrail.audit.auditor import audit as run
    from vitrail.audit.findings_table import verdicts
    from vitrail.data import read_data

    loaded = load_checkpoint(checkpoint, None, None) if checkpoint else None
    source = read_data(data)
    with progress(len(source)) as done:
        found = run(source, checkpoint=loaded, done=done)
    files = write_audit(found, to, source) if to is not None else []
    if as_json:
        print_json(found.to_dict() | {"files": [str(each) for each in files]})
        return
    said = verdicts(found)
    for verdict in said:
        say(verdict.words)
    if not said:
        say(f"{len(source)} images: nothing to complain about")
    for note in found.notes:
        say(note)
    for each in files:
        say(f"  {each}")


def show_scores(found: Any) -> None:
    """Every score with its interval, and the classes that do worst."""
    table = table_of("", "value", "95 % interval")
    for name, score in found.scores.items():
        table.add_row(name, f"{score.value:.4f}", f"{score.low:.4f} to {score.high:.4f}")
    show(table)
    worst = sorted(found.per_class, key=lambda each: each.f1)[:5]
    names = left_table("weakest classes", "images", "precision", "recall", "f1")
    for each in worst:
        names.add_row(each.name, str(each.count), f"{each.precision:.3f}", f"{each.recall:.3f}", f"{each.f1:.3f}")
    show(names)
    if found.skipped:
        complain(f"{len(found.skipped)} images could not be read; the others are counted")


def _skipped(name: str, error: ImageError) -> None:
    complain(str(error))
