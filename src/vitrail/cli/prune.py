"""The verb prune: the heads that matter least, cut."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vitrail.cli.application import app
from vitrail.cli.options import SPLITS, AsJson, CheckpointPath, DeviceName, Force, name_after, offer, share_option
from vitrail.cli.terminal import complain, print_json, refuse_overwrite, say, show, table_of
from vitrail.cli.weights import load_checkpoint
from vitrail.errors import InputError
from vitrail.progress import left_to_library


@app.command("prune")
def prune_checkpoint(
    checkpoint: CheckpointPath,
    data: Annotated[
        str,
        typer.Option(metavar="DATA", help="Images to rank heads on and to judge by.", show_default="those of the run"),
    ] = "",
    keep: Annotated[float | None, share_option("Keep this share of the heads: 75% or 0.75.")] = None,
    max_drop: Annotated[
        float | None, typer.Option(min=0.0, help="Instead: cut as many as cost at most so many points of accuracy.")
    ] = None,
    channels: Annotated[bool, typer.Option("--channels", help="Cut MLP channels too, by the same share.")] = False,
    way: Annotated[
        str,
        typer.Option(
            metavar="HOW",
            help="How heads are ranked: gradient, or ablation (slow).",
            autocompletion=offer(("gradient", "ablation")),
        ),
    ] = "gradient",
    tune: Annotated[
        float, typer.Option(min=0.0, metavar="EPOCHS", help="Then train the smaller network for so many epochs.")
    ] = 0.0,
    to: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Where to write.", show_default="NAME-pruned.safetensors"),
    ] = None,
    split: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="Which images judge it: test, val, train or all.", autocompletion=offer(SPLITS)
        ),
    ] = "",
    seed: Annotated[int, typer.Option(help="Sets every random choice.")] = 0,
    device: DeviceName = "auto",
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Cut the heads that matter least on your images, and say what that costs and gains."""
    from vitrail.checkpoint import save
    from vitrail.evaluation import data_for
    from vitrail.insight import prune
    from vitrail.insight.pruning_run import heads_in_words
    from vitrail.reporting.metric_names import metric_name, metric_value

    out = to or Path(f"{name_after(checkpoint)}-pruned.safetensors")
    if out.suffix != ".safetensors":
        raise InputError(f"--out: expected FILE.safetensors, got {out.name!r}")
    refuse_overwrite(force, out)
    loaded = load_checkpoint(checkpoint, device=device)
    source = data_for(checkpoint, data, loaded.classes)
    with left_to_library():
        result = prune(
            loaded,
            source,
            keep=keep,
            max_drop=max_drop,
            channels=channels,
            way=way,
            tune=tune,
            split=split,
            seed=seed,
            log=complain,
        )
    save(result.checkpoint, out)
    if as_json:
        print_json(result.to_dict() | {"file": str(out)})
        return
    table = table_of("", "before", "cut", *(["tuned"] if tune else []), "change")
    states = [result.before, result.cut, *([result.after] if tune else [])]
    key = "top1" if loaded.task == "single-label" else "mean_ap"
    accuracy = [state.accuracy.value for state in states]
    change = f"{100 * (accuracy[-1] - accuracy[0]):+.2f} points"
    table.add_row(metric_name(key), *(metric_value(key, value) for value in accuracy), change)
    for name, sizes in (
        ("parameters, M", [state.parameters / 1e6 for state in states]),
        ("GFLOPs", [2 * state.multiply_adds / 1e9 for state in states]),
    ):
        table.add_row(name, *(f"{value:.4g}" for value in sizes), f"{100 * (sizes[-1] / sizes[0] - 1):+.1f} %")
    show(table)
    say(f"speed             {result.speed:.2f} times that of before, measured in turn")
    say(f"heads cut         {heads_in_words(result.heads)}")
    if channels:
        say(f"channels cut      {result.channels} of every MLP")
    say(f"judged by {result.split} images, ranked on {result.ranked_by}; written to {out}")
