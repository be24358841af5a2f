"""The verb convert: weights of one family as the files of another."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vitrail.cli.application import app
from vitrail.cli.options import AsJson, LeaveOut, Override, offer, parse_settings
from vitrail.cli.terminal import busy, print_json, say
from vitrail.cli.weights import show_settings
from vitrail.weights.family_names import FAMILY_NAMES

FAMILIES = ("vitrail", *sorted(FAMILY_NAMES))


@app.command("convert")
def convert_weights(
    source: Annotated[
        str,
        typer.Argument(
            metavar="IN", help="A run, or weights of any known family: a file, a folder, hf:owner/name, timm:name."
        ),
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The file or folder to write; it may not exist yet.")],
    to: Annotated[
        str,
        typer.Option("--to", metavar="FAMILY", help=f"One of: {', '.join(FAMILIES)}.", autocompletion=offer(FAMILIES)),
    ],
    override: Override = None,
    leave_out: LeaveOut = None,
    as_json: AsJson = False,
) -> None:
    """Write weights the way another family does, read them back, and say how equal they are."""
    from dataclasses import asdict

    from vitrail.weights import convert

    with busy(f"converting {source}"):
        report = convert(source, out, to=to, override=parse_settings(override), leave_out=leave_out or ())
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
