"""The verb compare: two models on the same images."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vitrail.cli.application import app
from vitrail.cli.options import AsJson, Batch, Data, DeviceName, Split
from vitrail.cli.terminal import (
    command_line,
    complain_all,
    end_with_unreadable,
    print_json,
    say,
    say_files,
    show,
    table_of,
)
from vitrail.cli.weights import load_runtime
from vitrail.progress import left_to_library

if TYPE_CHECKING:
    from vitrail.evaluation import Comparison


@app.command("compare")
def compare_models(
    first: Annotated[str, typer.Argument(metavar="A", help="A run, weights, or an exported file.")],
    second: Annotated[str, typer.Argument(metavar="B", help="Another one.")],
    data: Data,
    split: Split = "",
    to: Annotated[
        Path | None, typer.Option("--out", metavar="FOLDER", help="Write a page here, with the images they differ on.")
    ] = None,
    batch: Batch = 64,
    device: DeviceName = "auto",
    as_json: AsJson = False,
) -> None:
    """Compare two models on the same images, with a paired test: is the difference more than chance?"""
    from vitrail.data.folder_walk import CLOSED
    from vitrail.data.left_out import left_out_lines, unreadable_lines
    from vitrail.evaluation import compare
    from vitrail.evaluation.report_files import write_comparison
    from vitrail.evaluation.seen_images import data_for_both

    one, other = (load_runtime(each, device=device) for each in (first, second))
    source = data_for_both(first, second, data, one.classes)
    complain_all(left_out_lines(source.left_out, source.left_out_names))
    with left_to_library():
        result = compare(one, other, source, split=split, batch=batch)
    files = write_comparison(result, to, one, source, (first, second), command_line()) if to is not None else []
    complain_all(unreadable_lines(result.a.skipped))
    if as_json:
        print_json(result.to_dict() | {"files": [str(each) for each in files]})
    else:
        _show_comparison(result, first, second)
        say_files(files)
    end_with_unreadable(len(result.a.skipped), is_complete=CLOSED not in source.left_out)


def _show_comparison(result: Comparison, first: str, second: str) -> None:
    from vitrail.reporting.html_page import counted
    from vitrail.reporting.metric_names import metric_name, metric_value

    say(f"{counted(len(result.a), 'image')} of {result.a.source} ({result.a.split})")
    say(f"A is {first}, B is {second}")
    table = table_of("", "A", "B")
    for name, score in result.a.scores.items():
        table.add_row(metric_name(name), *(metric_value(name, s.value) for s in (score, result.b.scores[name])))
    show(table)
    say(f"right: both {result.both_right}, only A {result.only_a}, only B {result.only_b}, neither {result.both_wrong}")
    say(
        f"A - B             {100 * result.difference.value:+.1f} percentage points (95 % interval "
        f"{100 * result.difference.low:+.1f} to {100 * result.difference.high:+.1f}); p = {result.p_value:.3g}"
    )
    if result.caveat:
        say(f"caveat            {result.caveat}")
