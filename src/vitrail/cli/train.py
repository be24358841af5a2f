"""The verb train: images to a checkpoint, honest numbers and a report."""

from __future__ import annotations

import os
import re
import statistics
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from vitrail.cli.application import app
from vitrail.cli.completion import preset_names, recipe_names, start_names
from vitrail.cli.many_processes import joined_processes, start_processes
from vitrail.cli.options import (
    DATA_HELP,
    RESIZES,
    AsJson,
    Data,
    DeviceName,
    offer,
    parse_batch,
    parse_size,
    share_option,
)
from vitrail.cli.terminal import command_line, left_table, print_json, say, show
from vitrail.cli.training_progress import report_run, train_with_bar, training_bar
from vitrail.errors import InputError
from vitrail.files import best_of_run, is_name

if TYPE_CHECKING:
    from vitrail.images.preprocess import Resize
    from vitrail.training import Options, Run


@app.command("train")
def train_model(
    context: typer.Context,
    data: Data = "",
    model: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Train this preset from nothing.",
            show_default="a small network",
            autocompletion=offer(preset_names),
        ),
    ] = "",
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="CHECKPOINT",
            help="Fine-tune these: file, folder, hf:owner/name or timm:name.",
            autocompletion=offer(start_names, beside_files=True),
        ),
    ] = "",
    recipe: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="One of `vitrail recipes`.",
            show_default="one that suits",
            autocompletion=offer(recipe_names),
        ),
    ] = "",
    epochs: Annotated[
        float | None, typer.Option(min=0, help="How often every image is seen; else as the recipe says.")
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(min=0, help="Instead: as many steps as this machine does in that time.")
    ] = None,
    batch: Annotated[
        Any,  # a number, or "auto"
        typer.Option(
            metavar="N",
            parser=parse_batch,
            help="Images per step; auto: as many as memory holds.",
            show_default="as the recipe says",
        ),
    ] = None,
    size: Annotated[
        str, typer.Option(metavar="PX", help="Image size in pixels: 64, or 160x288 (height x width).")
    ] = "",
    resize: Annotated[
        str,
        typer.Option(
            metavar="HOW",
            help="Odd shapes: crop, pad or squash.",
            show_default="what suits them",
            autocompletion=offer(RESIZES),
        ),
    ] = "",
    limit: Annotated[
        int | None, typer.Option(min=1, help="At most so many images of each split, for a quick try.")
    ] = None,
    lr: Annotated[
        float | None, typer.Option(min=0, help="The highest learning rate.", show_default="as the recipe says")
    ] = None,
    patience: Annotated[
        int | None, typer.Option(min=0, help="Stop when so many epochs in a row bring no gain; 0: never.")
    ] = None,
    balance: Annotated[
        str | None,
        typer.Option(
            metavar="HOW",
            help="Help rare classes: none, weights or sampling.",
            autocompletion=offer(("none", "weights", "sampling")),
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Sets every random choice.")] = 0,
    seeds: Annotated[
        int, typer.Option(min=1, help="Train so many times, with seeds from --seed on; prints mean and spread.")
    ] = 1,
    val: Annotated[
        float,
        share_option("Share of images to choose the best epoch by, where DATA has no split.", "10%", most=0.9),
    ] = 0.1,
    test: Annotated[
        float, share_option("Share of images to judge the result by, where DATA has no split.", "20%", most=0.9)
    ] = 0.2,
    pattern: Annotated[
        str | None,
        typer.Option(metavar="REGEX", help="Read labels from file names, by an expression with (?P<label>...)."),
    ] = None,
    exclude: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Leave out the images of this CSV, as `vitrail audit` writes it."),
    ] = None,
    unreadable: Annotated[
        str,
        typer.Option(
            metavar="HOW", help="Images that cannot be read: skip or stop.", autocompletion=offer(("skip", "stop"))
        ),
    ] = "skip",
    workers: Annotated[
        int, typer.Option(min=0, help="Threads that read images, two at least; processes where --cache is made.")
    ] = 0,
    cache: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Keep resized images here, where memory cannot hold them.")
    ] = None,
    device: DeviceName = "auto",
    precision: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Of products: fp32, tf32, bf16 or fp16.",
            show_default="as the recipe says",
            autocompletion=offer(("fp32", "tf32", "bf16", "fp16")),
        ),
    ] = None,
    compile_forward: Annotated[
        bool, typer.Option("--compile", help="Compile the network first: minutes once, then faster steps.")
    ] = False,
    elsewhere: Annotated[
        bool, typer.Option("--elsewhere", help="Go on on another device or number of threads than before.")
    ] = False,
    processes: Annotated[
        int, typer.Option(min=1, help="Train in so many processes on this machine; torchrun starts them on several.")
    ] = 1,
    exact: Annotated[
        bool | None,
        typer.Option(
            "--exact/--no-exact",
            help="The same bits for any number of processes.",
            show_default="with several, up to 30 M parameters",
        ),
    ] = None,
    shard: Annotated[
        bool, typer.Option("--shard", help="Each process holds a part of the network: less memory for each.")
    ] = False,
    to: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="The folder of all runs.")] = Path("runs"),
    name: Annotated[str, typer.Option(help="Name of the run.", show_default="made of DATA")] = "",
    resume: Annotated[str, typer.Option(metavar="RUN", help="Go on with this unfinished run.")] = "",
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start anew; an older run of that name is moved aside.")
    ] = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write events for TensorBoard too.")] = False,
    show_lr: Annotated[
        bool, typer.Option("--show-lr", help="Print the learning rate of every layer, and stop.")
    ] = False,
    find_lr: Annotated[
        bool, typer.Option("--find-lr", help="Try learning rates, print the best one, and stop.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Say what is wrong with the recipe, train nothing, and stop.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train a classifier on your images: a checkpoint, honest numbers, and a report."""
    is_tried = show_lr or find_lr or check  # nothing is trained, so one process is enough
    if not is_tried:
        start_processes(processes)
    with joined_processes(processes, needed=not is_tried):
        from vitrail.training import Options

        if is_name(model) or os.path.isfile(best_of_run(model)):
            raise InputError(
                f"--model trains a preset from nothing, and {model} has weights: start from it by --from {model}"
            )
        if resume and not data:
            report_run(_as_recorded(context, Path(resume)), as_json)
            return
        if not data:
            raise InputError(f"train: DATA is missing: {DATA_HELP} (`vitrail train --help` tells more)")
        if resume:
            to, name = _of_run(resume, name)
        options = Options(
            model=model or None,
            start=start or None,
            recipe=recipe,
            epochs=epochs,
            minutes=minutes,
            batch=batch,
            size=parse_size(size) if size else None,
            resize=cast("Resize | None", resize or None),
            limit=limit,
            lr=lr,
            patience=patience,
            balance=balance,
            seed=seed,
            val=val,
            test=test,
            pattern=pattern,
            exclude=exclude,
            unreadable=unreadable,
            workers=workers,
            cache=cache,
            device=device,
            precision=precision,
            compile=compile_forward or None,
            elsewhere=elsewhere,
            exact=exact,
            shard=shard,
            out=to,
            name=name,
            fresh=fresh,
            tensorboard=tensorboard,
            command=command_line(),
        )
        if is_tried:
            _try(data, options, show_lr, find_lr, as_json)
            return
        if seeds > 1:
            _several(data, options, seeds, as_json)
            return
        report_run(train_with_bar(data, options), as_json)


def _several(data: str, options: Options, seeds: int, as_json: bool) -> None:
    """One run a seed, and what they have in common; stopped, the same command goes on with the seed it stood at."""
    base = options.name or re.sub(r"[^\w.+=-]", "-", Path(data.removeprefix("vitrail:")).stem).strip("-.") or "run"
    runs = []
    for seed in range(options.seed, options.seed + seeds):
        runs.append(train_with_bar(data, replace(options, seed=seed, name=f"{base}-seed{seed}", finished=True)))
    key = "top1" if "top1" in runs[0].evaluation.scores else "mean_ap"
    values = [each.evaluation.scores[key].value for each in runs]
    mean, spread = statistics.mean(values), statistics.stdev(values)
    if as_json:
        scores = {"score": key, "mean": mean, "spread": spread, "caveat": runs[0].evaluation.caveat}
        print_json({"runs": [each.to_dict() for each in runs], **scores})
        return
    from vitrail.reporting.metric_names import metric_name, metric_value

    name = metric_name(key)
    table = left_table("seed", name, "run")
    for result, value in zip(runs, values, strict=True):
        table.add_row(str(result.plan.seed), metric_value(key, value), str(result.folder))
    show(table)
    say(f"{name}: {100 * mean:.2f} % on average over {seeds} seeds, standard deviation {100 * spread:.2f} %")
    if runs[0].evaluation.caveat:
        say(f"caveat: {runs[0].evaluation.caveat}")


def _try(data: str, options: Options, show_lr: bool, find_lr: bool, as_json: bool) -> None:
    """What can be known before a run: what the linter says, the rates of the layers, or a rate that suits."""
    from vitrail.training.dry_run import run_dry

    with training_bar() as callbacks:
        outcome = run_dry(data, replace(options, callbacks=callbacks), rates=show_lr, search=find_lr)
    if as_json:
        print_json(outcome.to_dict())
        return
    for each in outcome.findings:
        say(f"{each.level:<8} {each.message}")
    if not outcome.findings:
        say("nothing is known against this recipe")
    if show_lr:
        table = left_table("layer", "parameters", "learning rate", "weight decay")
        for rate in outcome.rates:
            table.add_row(rate.name, f"{rate.parameters:,}", f"{rate.lr:.3g}", f"{rate.weight_decay:g}")
        show(table)
    if find_lr:
        say(f"suggested         --lr {outcome.suggested:.2g}")
        for path in outcome.files:
            say(f"plot              {path}")
    if any(each.level == "error" for each in outcome.findings):
        raise typer.Exit(2)


def _of_run(resume: str, name: str) -> tuple[Path, str]:
    """The folder of runs and the name in `--resume runs/photos-1`."""
    folder = Path(resume)
    if name:
        raise InputError("--resume names the run already: leave --name out")
    if not (folder / "config.json").is_file():
        raise InputError(f"--resume: {resume} is no run: expected a folder with a config.json")
    if (folder / "result.json").is_file():
        raise InputError(f"--resume: {resume} is finished; `vitrail rerun {resume}` repeats it")
    return folder.parent, folder.name


def _as_recorded(context: typer.Context, folder: Path) -> Run:
    """An unfinished run, gone on with as its record says: other options would have no meaning beside it."""
    from vitrail.training.reruns import recorded_request

    moves = ("device", "elsewhere", "processes")
    parameters = [each for each in context.command.params if each.name not in ("resume", "as_json", *moves)]
    typed = [each for each in parameters if _is_typed(context, str(each.name))]
    if typed:
        names = ", ".join(each.opts[-1] for each in typed)
        raise InputError(f"--resume goes on as the run was started: leave {names} out, or name DATA and all options")
    to, name = _of_run(str(folder), "")
    request = recorded_request(folder)
    given = {name: context.params[name] for name in moves if _is_typed(context, name)}
    return train_with_bar(
        request.data, replace(request.options, out=to, name=name, fresh=False, finished=False, **given)
    )


def _is_typed(context: typer.Context, name: str) -> bool:
    """Whether an option stands on the command line, rather than being left out."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"
