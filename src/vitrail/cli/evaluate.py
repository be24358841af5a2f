"""The verb evaluate: how good a model is, with intervals."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from vitrail.cli.application import app
from vitrail.cli.options import AsJson, Batch, DeviceName, RuntimeName, RuntimePath, Split
from vitrail.cli.terminal import (
    add_score,
    command_line,
    complain_all,
    end_with_unreadable,
    print_json,
    progress,
    say,
    say_files,
    show,
    table_of,
)
from vitrail.cli.weights import load_runtime


@app.command("evaluate")
def evaluate_model(
    checkpoint: RuntimePath,
    data: Annotated[str, typer.Argument(metavar="DATA", help="Images with labels; left out, those of the run.")] = "",
    split: Split = "",
    to: Annotated[Path | None, typer.Option("--out", metavar="FOLDER", help="Write a report here.")] = None,
    batch: Batch = 64,
    runtime: RuntimeName = "",
    device: DeviceName = "auto",
    as_json: AsJson = False,
) -> None:
    """Say how good a checkpoint is: metrics with intervals, the weakest classes, and a report with the worst errors."""
    from vitrail.data.folder_walk import CLOSED
    from vitrail.data.left_out import left_out_lines, unreadable_lines
    from vitrail.evaluation import evaluate
    from vitrail.evaluation.seen_images import data_for
    from vitrail.reporting.html_page import counted

    loaded = load_runtime(checkpoint, runtime=runtime, device=device)
    source = data_for(checkpoint, data, loaded.classes)
    complain_all(left_out_lines(source.left_out, source.left_out_names))
    with progress(len(source)) as done:
        result = evaluate(loaded, source, split=split, batch=batch, done=done)
    complain_all(unreadable_lines(result.skipped))
    files: list[Path] = []
    if to is not None:
        from vitrail.evaluation.report_files import write_evaluation

        files = write_evaluation(result, to, loaded, source, command_line())
    if as_json:
        print_json(result.to_dict() | {"files": [str(each) for each in files]})
    else:
        say(f"{counted(len(result.names), 'image')} of {result.source} ({result.split})")
        show_scores(result)
        if result.caveat:
            say(f"caveat            {result.caveat}")
        if result.unlike_words:
            say(f"unlike training   {result.unlike_words}")
        say_files(files)
    end_with_unreadable(len(result.skipped), is_complete=CLOSED not in source.left_out)


def show_scores(result: Any) -> None:
    """Every score with its interval, and the classes that do worst."""
    from vitrail.reporting.metric_names import metric_value

    table = table_of("", "value", "95 % interval")
    for name, score in result.scores.items():
        add_score(table, name, score)
    show(table)
    worst = sorted(result.per_class, key=lambda row: row.f1)[:5]
    table = table_of("weakest classes", "images", "precision", "recall", "F1")
    for row in worst:
        shares = (metric_value("macro_f1", share) for share in (row.precision, row.recall, row.f1))
        table.add_row(row.name, f"{row.count:,}", *shares)
    show(table)
