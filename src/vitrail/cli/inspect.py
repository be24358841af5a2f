"""The verb inspect: what a network is, what it costs, how its weights were read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitrail.cli.application import app
from vitrail.cli.completion import preset_names
from vitrail.cli.options import AsJson, DeviceName, LeaveOut, Override, offer, parse_settings, parse_size
from vitrail.cli.page_folder import link_to_report
from vitrail.cli.terminal import busy, left_table, print_json, say, short, show, size_of, table_of
from vitrail.cli.weights import refuse_unknown, show_settings
from vitrail.errors import InputError

if TYPE_CHECKING:
    from vitrail.checkpoint import Checkpoint
    from vitrail.images import Source
    from vitrail.insight.cost import Step
    from vitrail.insight.head_importance import Batches
    from vitrail.insight.model_figures import Portrait

NOT_BESIDE = ("config", "format", "provenance", "decoder", "ood")  # of a checkpoint's description: shown in other ways


@app.command("inspect")
def inspect_model(
    what: Annotated[
        str,
        typer.Argument(
            metavar="CHECKPOINT|PRESET",
            help="A run, weights, or the name of a preset.",
            autocompletion=offer(preset_names, beside_files=True),
        ),
    ],
    size: Annotated[str, typer.Option(metavar="PX", help="Another image size: 384, or 160x288 (height x width).")] = "",
    tensors: Annotated[
        bool, typer.Option("--tensors", help="List every tensor: its name here and in the file, its shape.")
    ] = False,
    figures: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Draw figures of the network here, with a page.")
    ] = None,
    images: Annotated[
        list[Path] | None, typer.Option(metavar="IMAGE", help="Images for the figures; may be given several times.")
    ] = None,
    data: Annotated[
        str, typer.Option(metavar="DATA", help="Labelled images, to measure how much each head matters.")
    ] = "",
    device: DeviceName = "auto",
    override: Override = None,
    leave_out: LeaveOut = None,
    as_json: AsJson = False,
) -> None:
    """Show what a network is made of, step by step, what it costs, and how its weights were read."""
    from vitrail.insight.cost import estimate, shape_walk
    from vitrail.network.presets import PRESETS

    if figures is None and (images or data):
        raise InputError("--images and --data are looked at for figures: name a folder for them with --figures")

    checkpoint = _checkpoint(what, override, leave_out)
    config = PRESETS[what] if checkpoint is None else checkpoint.model.config
    about = _known_beside(checkpoint)
    provenance = checkpoint.provenance if checkpoint is not None else None
    used_size = config.image_size if checkpoint is None else checkpoint.preprocess.size
    image_size = parse_size(size) if size else used_size
    cost = estimate(config, image_size)
    walk = shape_walk(config, image_size)
    drawn = _drawn(what, checkpoint, figures, images or [], data, device) if figures is not None else None
    if as_json:
        steps = [{"name": s.name, "shape": list(s.shape), "parameters": s.parameters} for s in walk]
        numbers = cost._asdict() | {"flops": cost.flops}
        print_json(
            {
                "what": what,
                "image_size": list(image_size),
                **numbers,
                "walk": steps,
                **about,
                "settings": [each._asdict() for each in provenance.settings] if provenance else [],
                "mapping": [each._asdict() for each in provenance.mapping] if provenance and tensors else [],
                "config": config.to_dict(),
                "figures": [str(each) for each in drawn.files] if drawn else [],
            }
        )
        return
    say(f"{what}, one image of {image_size[0]}x{image_size[1]}")
    show_walk(walk)
    say(f"parameters        {cost.parameters:,} ({size_of(cost.parameter_bytes)} in fp32)")
    say(f"multiply-adds     {cost.multiply_adds / 1e9:.3f} G ({cost.flops / 1e9:.2f} GFLOPs)")
    side = cost.attention_matrix[0]
    say(f"attention         {side} x {side} for each head; all maps {size_of(cost.attention_bytes)} in fp32")
    for name, value in about.items():
        if value not in ("", {}, [], None):
            say("{:<17} {}".format(*_in_words(name, value, about.get("task", ""))))
    if provenance and provenance.settings:
        show_settings(provenance.settings)
    if provenance and tensors:
        table = left_table("ours", "theirs", "shape", "how")
        for row in provenance.mapping:
            table.add_row(row.ours or "-", " + ".join(row.theirs), " x ".join(map(str, row.shape)), row.how)
        show(table)
    if drawn is not None:
        for each in drawn.left_out:
            say(f"not drawn         {each}")
        say(f"figures           {drawn.page}")


def _in_words(name: str, value: Any, task: str) -> tuple[str, str]:
    """What a checkpoint says beside its network, as people say it."""
    if name == "reject":
        return "minimum confidence", f"{100 * value:.3g} %"
    if name == "unlike":
        return "unlike images", f"are marked; a false alarm for {value}"
    if name == "metrics":
        return name, ", ".join(_metric_in_words(key, score, task) for key, score in value.items())
    if name == "preprocess":
        value = value | {"size": "x".join(map(str, value["size"]))}
    if isinstance(value, dict):
        return name, ", ".join(f"{key} {_plain(each)}" for key, each in value.items())
    return name, _plain(value)


def _plain(value: Any) -> str:
    """A number in few digits, numbers that belong together side by side."""
    if isinstance(value, list) and all(isinstance(each, int | float) for each in value):
        return " ".join(f"{each:.4g}" for each in value)
    return f"{value:.4g}" if isinstance(value, float) else short(value)


def _metric_in_words(key: str, value: float, task: str) -> str:
    """A number of a training: validation accuracy 95.0 %; those of others by their own names."""
    from vitrail.reporting.metric_names import METRICS, metric_name, metric_value

    split, _, metric = key.partition("_") if key.startswith(("val_", "test_")) else ("", "", key)
    of = {"val": "validation ", "test": "test ", "": ""}[split]
    if metric == "score":  # what the best epoch was chosen by
        metric = "mean_ap" if task == "multi-label" else "top1"
    known = metric in METRICS
    return f"{of}{metric_name(metric)} {metric_value(metric, value) if known else short(value)}"


def _drawn(what: str, checkpoint: Checkpoint | None, to: Path, images: list[Path], data: str, device: str) -> Portrait:
    """The figures of a checkpoint; a preset has nothing to show yet."""
    from vitrail.evaluation import data_for
    from vitrail.inference import find_images
    from vitrail.insight.model_figures import IMAGES, portrait
    from vitrail.insight.pruning_run import batches_of

    if checkpoint is None:
        raise InputError(f"{what} is a preset, without weights: --figures needs a checkpoint")
    checkpoint = checkpoint.to(device)
    sources: Sequence[Source] = find_images(images) if images else ()
    labelled: Batches = ()
    if data:
        dataset = data_for(what, data, checkpoint.classes)
        labelled = batches_of(checkpoint, dataset)
        sources = sources or list(dataset.images[:: max(1, len(dataset) // IMAGES)][:IMAGES])
    with busy("drawing figures"):
        drawn = portrait(checkpoint, to, sources, labelled, Path(what).name)
    link_to_report(drawn.page, what, "Inside the network")
    return drawn


def _checkpoint(what: str, override: list[str] | None, leave_out: list[str] | None) -> Checkpoint | None:
    """What is inspected, None for a preset."""
    from vitrail.inference import open_checkpoint
    from vitrail.network.presets import PRESETS

    if what in PRESETS:
        if override or leave_out:
            raise InputError(f"--set and --leave-out belong to a file of weights, and {what} is a preset")
        return None
    refuse_unknown(what)
    return open_checkpoint(what, override=parse_settings(override), leave_out=leave_out or ())


def _known_beside(checkpoint: Checkpoint | None) -> dict[str, Any]:
    """What a checkpoint says beside its network, and where it comes from."""
    if checkpoint is None:
        return {}
    about = checkpoint.describe()
    origin = {name: value for name, value in about["provenance"].items() if name not in ("settings", "mapping")}
    known = {"unlike": checkpoint.ood.words} if checkpoint.ood is not None else {}
    return {name: value for name, value in about.items() if name not in NOT_BESIDE} | known | origin


def show_walk(walk: list[Step]) -> None:
    table = table_of("station", "shape", "parameters")
    for step in walk:
        table.add_row(step.name, " x ".join(map(str, step.shape)), f"{step.parameters:,}" if step.parameters else "")
    show(table)
