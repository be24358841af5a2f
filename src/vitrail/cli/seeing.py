"""Verbs that look inside a network: explain, prune."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from vitrail.cli.app import app
from vitrail.cli.terminal import (
    AsJson,
    CheckpointPath,
    ImagePaths,
    LeaveOut,
    Override,
    RuntimePath,
    Skipped,
    complain,
    print_json,
    progress,
    say,
    show,
    table_of,
)
from vitrail.cli.weights import load_checkpoint, load_runtime, settings_of
from vitrail.errors import ImageError, InputError, nearest

if TYPE_CHECKING:
    from vitrail.checkpoint import Checkpoint
    from vitrail.inference import Runtime
    from vitrail.insight import Explanation, Method


@app.command()
def explain(
    checkpoint: RuntimePath,
    images: ImagePaths,
    method: Annotated[
        list[str] | None,
        typer.Option(
            help="attention, rollout, gradient-rollout, relevance, grad-cam, integrated-gradients, occlusion, flow, "
            "best, or all; may be given several times. Usual: relevance."
        ),
    ] = None,
    target: Annotated[str, typer.Option(metavar="CLASS", help="A class by name or number; usual: the answer.")] = "",
    versus: Annotated[str, typer.Option(metavar="CLASS", help="Why the target rather than this class.")] = "",
    option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE", help="Of the method: fusion=max, discard=0.5, block=3, head=1, query=[5,7]."
        ),
    ] = None,
    to: Annotated[Path, typer.Option("--out", help="A folder for the images.")] = Path("explained"),
    heads: Annotated[bool, typer.Option("--heads", help="Also draw every head of every block.")] = False,
    film: Annotated[bool, typer.Option("--film", help="Also draw an animated GIF through the blocks.")] = False,
    check: Annotated[bool, typer.Option(help="Measure how faithful each map is.")] = True,
    override: Override = None,
    leave_out: LeaveOut = None,
    as_json: AsJson = False,
) -> None:
    """Show where on an image an answer comes from: heat maps over the image, with what they are worth."""
    from vitrail.inference import find_images
    from vitrail.insight import Versus
    from vitrail.insight import explain as run
    from vitrail.insight.cards import value_of, words_of

    methods = _methods(method or ["relevance"], settings_of(option))
    if versus and not target:
        raise InputError("--versus names the other class of a pair: name the first with --target")
    aim = Versus(target, versus) if versus else target or None
    loaded = load_runtime(checkpoint, override, leave_out)
    if (heads or film) and not hasattr(loaded, "model"):
        raise InputError(f"--heads and --film show a network's inside, and {checkpoint} is exported: use its weights")
    skipped = Skipped()
    paths = find_images(images)
    rows: list[dict[str, Any]] = []
    names: set[str] = set()
    with progress(len(paths)) as done:
        for path in paths:
            try:
                found = [run(loaded, path, each, aim, check=check) for each in methods]
            except ImageError as error:
                skipped(str(path), error)
                continue
            finally:
                done(1)
            drawn = dict(zip((each.name for each in methods), found, strict=True))
            files = _draw(loaded, path, _name(path, names), drawn, to, heads, film)
            rows.append(
                {
                    "path": str(path),
                    "files": [str(each) for each in files],
                    "explanations": [each.to_dict() for each in found],
                }
            )
            if as_json:
                continue
            say(f"{path}: {found[0].target} {value_of(found[0])}")
            for each in found:
                say(f"  {words_of(each)}")
                for why in each.warnings:
                    complain(f"{path}, {each.method}: {why}")
            say(f"  {', '.join(map(str, files))}")
    if as_json:
        print_json({"explained": rows, "skipped": skipped.rows})
    skipped.finish()


@app.command()
def prune(
    checkpoint: CheckpointPath,
    data: Annotated[str, typer.Option(help="Images to rank heads on and to be judged by; of a run: its own.")] = "",
    keep: Annotated[float | None, typer.Option(min=0.0, max=1.0, help="The share of the heads to keep.")] = None,
    max_drop: Annotated[float | None, typer.Option(min=0.0, help="Cut as many as lose at most so many points.")] = None,
    channels: Annotated[bool, typer.Option("--channels", help="Cut MLP channels too, by the same share.")] = False,
    way: Annotated[str, typer.Option(help="How heads are ranked: gradient, or ablation, which is slow.")] = "gradient",
    tune: Annotated[float, typer.Option(min=0.0, metavar="EPOCHS", help="Train the smaller network a little.")] = 0.0,
    to: Annotated[Path | None, typer.Option("--out", help="FILE.safetensors; usual: NAME-pruned.safetensors.")] = None,
    split: Annotated[str, typer.Option(help="Which images judge it: test, val, train or all.")] = "",
    seed: Annotated[int, typer.Option(help="Which images rank, and how tuning goes.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Cut the heads that matter least on your images, and say what that costs and gains."""
    from vitrail.checkpoint import save
    from vitrail.evaluation import data_for
    from vitrail.insight import prune as run

    place = to or Path(f"{_stem(checkpoint)}-pruned.safetensors")
    if place.suffix != ".safetensors":
        raise InputError(f"--out: expected FILE.safetensors, got {place.name!r}")
    loaded = load_checkpoint(checkpoint, None, None)
    source = data_for(checkpoint, data, loaded.classes)
    found = run(
        loaded,
        source,
        keep=keep,
        max_drop=max_drop,
        channels=channels,
        way=way,
        tune=tune,
        split=split,
        seed=seed,
        tell=complain,
    )
    save(found.checkpoint, place)
    if as_json:
        print_json(found.to_dict() | {"file": str(place)})
        return
    table = table_of("", "before", "cut", *(["tuned"] if tune else []), "change")
    states = [found.before, found.cut, *([found.after] if tune else [])]
    values = {
        "accuracy, %" if loaded.task == "single-label" else "mean average precision, %": [
            100 * each.accuracy.value for each in states
        ],
        "parameters, M": [each.parameters / 1e6 for each in states],
        "GFLOPs": [2 * each.multiply_adds / 1e9 for each in states],
    }
    for name, row in values.items():
        last = row[-1] - row[0]
        change = f"{last:+.2f} points" if name.endswith("%") else f"{100 * last / row[0]:+.1f} %"
        table.add_row(name, *(f"{value:.4g}" for value in row), change)
    show(table)
    say(f"speed             {found.speed:.2f} times, measured in turn")
    cut = ", ".join(f"block {block}: {' '.join(map(str, heads))}" for block, heads in found.heads.items())
    say(f"heads cut         {cut or 'none'}")
    if channels:
        say(f"channels cut      {found.channels} of every MLP")
    say(f"judged by {found.split} images, ranked on {found.ranked_by}; written to {place}")


def _stem(checkpoint: str) -> str:
    """A name for what is made of a checkpoint: of a run the run's, of a file the file's."""
    path = Path(checkpoint.removeprefix("vitrail:"))
    return path.name if path.is_dir() or not path.suffix else path.stem


def _methods(names: list[str], options: dict[str, Any]) -> list[Method]:
    """The methods of those names, with the options that they have."""
    from vitrail.insight import METHODS
    from vitrail.insight.methods import named

    wanted = list(dict.fromkeys(names))
    if "all" in wanted:
        wanted = [name for name in METHODS if name != "best" or name in wanted]
    kinds = [type(named(name)) for name in wanted]
    known = {each.name for kind in kinds for each in fields(kind)}  # type: ignore[arg-type]
    for name in options:
        if name not in known:
            owner = " and ".join(wanted)
            raise InputError(
                f"--option {name}: {owner} has no such option: {nearest(name, known) if known else 'none'}"
            )
    made = []
    for kind in kinds:
        own = {each.name: options[each.name] for each in fields(kind) if each.name in options}  # type: ignore[arg-type]
        own = {name: tuple(value) if isinstance(value, list) else value for name, value in own.items()}
        made.append(kind(**own))
    return made


def _name(path: Path, names: set[str]) -> str:
    """The image's own name for its files, numbered where another image has it."""
    name, number = path.stem, 2
    while name in names:
        name, number = f"{path.stem}-{number}", number + 1
    names.add(name)
    return name


def _draw(
    checkpoint: Runtime, path: Path, name: str, found: dict[str, Explanation], to: Path, heads: bool, film: bool
) -> list[Path]:
    """A heat map a method, the card of all of them, and what else was asked for."""
    from vitrail.insight import cards

    files = []
    for method, each in found.items():
        files.append(to / f"{name}-{method}.png")
        each.save(files[-1])
    try:
        files.append(to / f"{name}-card.png")
        cards.card(list(found.values())).save(files[-1])
        if heads:
            files.append(to / f"{name}-heads.png")
            cards.heads_sheet(cast("Checkpoint", checkpoint), path).save(files[-1])
        if film:
            files.append(to / f"{name}-blocks.gif")
            cards.save_film(cards.film(cast("Checkpoint", checkpoint), path), str(files[-1]))
    except OSError as error:
        raise InputError(f"cannot write to {to}: {error.strerror}") from error
    return files
