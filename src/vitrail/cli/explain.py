"""The verb explain: where on an image an answer comes from."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import typer

from vitrail.cli.application import app
from vitrail.cli.image_paths import passed_over_rows, tell_passed_over, typed_paths
from vitrail.cli.options import AsJson, DeviceName, ImagePaths, LeaveOut, Override, RuntimePath, offer, parse_settings
from vitrail.cli.page_folder import link_to_report
from vitrail.cli.terminal import Skipped, command_line, complain, print_json, progress, say
from vitrail.cli.weights import load_runtime
from vitrail.errors import ImageError, InputError, nearest

if TYPE_CHECKING:
    from vitrail.checkpoint import Checkpoint
    from vitrail.inference import Runtime
    from vitrail.insight import Explanation, Method

METHOD_NAMES: Final = (  # as the table of methods has them, which brings torch
    *("attention", "rollout", "gradient-rollout", "relevance", "grad-cam", "integrated-gradients"),
    *("occlusion", "flow", "best"),
)


@app.command("explain")
def explain_images(
    checkpoint: RuntimePath,
    images: ImagePaths,
    method: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help=f"{', '.join(METHOD_NAMES)}, or all; may be given several times.",
            show_default="relevance",
            autocompletion=offer((*METHOD_NAMES, "all")),
        ),
    ] = None,
    target: Annotated[
        str, typer.Option(metavar="CLASS", help="Explain this class, by name or number.", show_default="the answer")
    ] = "",
    versus: Annotated[str, typer.Option(metavar="CLASS", help="Why the target and not this class.")] = "",
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A setting of the method: fusion=max, discard=0.5, block=3, head=1."),
    ] = None,
    to: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Write the images here.")] = Path("explained"),
    heads: Annotated[bool, typer.Option("--heads", help="Also draw every head of every block.")] = False,
    film: Annotated[bool, typer.Option("--film", help="Also draw an animated GIF through the blocks.")] = False,
    check: Annotated[bool, typer.Option(help="Measure how far each map can be trusted.")] = True,
    device: DeviceName = "auto",
    override: Override = None,
    leave_out: LeaveOut = None,
    as_json: AsJson = False,
) -> None:
    """Show where on an image an answer comes from: heat maps over the image, with what they are worth."""
    from vitrail.inference import find_images
    from vitrail.insight import Versus, explain
    from vitrail.insight.cards import numbers_of, value_of, words_of
    from vitrail.insight.explanation_page import ExplainedImage, explained_image, gallery_page
    from vitrail.insight.explanation_page import write_explanation_page as write_page

    methods = _methods(method or ["relevance"], parse_settings(option))
    if versus and not target:
        raise InputError("--versus names the other class of a pair: name the first with --target")
    aim = Versus(target, versus) if versus else target or None
    loaded = load_runtime(checkpoint, override, leave_out, device=device)
    if (heads or film) and not hasattr(loaded, "model"):
        raise InputError(f"--heads and --film show a network's inside, and {checkpoint} is exported: use its weights")
    skipped = Skipped()
    paths = find_images(typed_paths(images))
    tell_passed_over(paths)
    rows: list[dict[str, Any]] = []
    names: set[str] = set()
    shown: list[ExplainedImage] = []
    with progress(len(paths)) as done:
        for path in paths:
            try:
                explanations = [explain(loaded, path, each, aim, check=check) for each in methods]
            except ImageError as error:
                skipped(str(path), error)
                continue
            finally:
                done(1)
            drawn = dict(zip((each.name for each in methods), explanations, strict=True))
            files = _draw(loaded, path, _name(path, names), drawn, to, heads, film)
            shown.append(explained_image(str(path), explanations))
            rows.append(
                {
                    "path": str(path),
                    "files": [str(each) for each in files],
                    "explanations": [each.to_dict() for each in explanations],
                }
            )
            if as_json:
                continue
            answer = f"{explanations[0].target} {value_of(explanations[0])}"
            say(f"{path}: {'; '.join(filter(None, (answer, explanations[0].remark)))}")
            for explanation in explanations:
                say(f"  {words_of(explanation)}")
                for line in numbers_of(explanation):
                    say(f"    {line}")
                for why in explanation.warnings:
                    complain(f"{path}, {explanation.method}: {why}")
            say(f"  {', '.join(map(str, files))}")
    index = ""
    if shown:
        name = Path(checkpoint).name or checkpoint
        index = str(link_to_report(write_page(to, gallery_page(name, shown, command_line())), checkpoint, "Maps"))
    if as_json:
        print_json({"explained": rows, "skipped": skipped.rows, "passed_over": passed_over_rows(paths), "page": index})
    elif index:
        say(f"all on one page: {index}")
    skipped.finish(len(paths), paths.is_complete)


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
    methods: list[Method] = []
    for kind in kinds:
        own = {each.name: options[each.name] for each in fields(kind) if each.name in options}  # type: ignore[arg-type]
        own = {name: tuple(value) if isinstance(value, list) else value for name, value in own.items()}
        methods.append(kind(**own))
    return methods


def _name(path: Path, names: set[str]) -> str:
    """The image's own name for its files, numbered where another image has it."""
    name, number = path.stem, 2
    while name in names:
        name, number = f"{path.stem}-{number}", number + 1
    names.add(name)
    return name


def _draw(
    checkpoint: Runtime, path: Path, name: str, explanations: dict[str, Explanation], to: Path, heads: bool, film: bool
) -> list[Path]:
    """A heat map a method, the card of all of them, and what else was asked for."""
    from vitrail.insight import cards

    files = []
    for method, explanation in explanations.items():
        files.append(to / f"{name}-{method}.png")
        explanation.save(files[-1])
    try:
        files.append(to / f"{name}-card.png")
        cards.card(list(explanations.values())).save(files[-1])
        if heads:
            files.append(to / f"{name}-heads.png")
            cards.heads_sheet(cast("Checkpoint", checkpoint), path).save(files[-1])
        if film:
            files.append(to / f"{name}-blocks.gif")
            cards.save_film(cards.film(cast("Checkpoint", checkpoint), path), str(files[-1]))
    except OSError as error:
        raise InputError(f"cannot write to {to}: {error.strerror}") from error
    return files
