"""The command line: one function a verb. torch is imported inside the verbs, so that --help is quick."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from vitrail.errors import ImageError, InputError, VitrailError, nearest

if TYPE_CHECKING:
    from vitrail.checkpoint import Checkpoint, Provenance, Setting
    from vitrail.network.config import ViTConfig
    from vitrail.network.cost import Step

app = typer.Typer(
    help="Vitrail: vision transformers you can see through.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
tables = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 120)

TARGETS = (  # here in words, since asking the families would import torch
    "vitrail, timm, timm-naflex, transformers, google, big_vision, dino, dinov2, dinov3, mae, deit, clip, torchvision, "
    "lucidrains, jeonsworld"
)

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object for machines.")]
CheckpointPath = Annotated[
    str, typer.Argument(metavar="CHECKPOINT", help="Weights of any known family: a file, a folder, or vitrail:glass.")
]
Override = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A setting that the file does not say: activation=relu, heads=4."),
]
LeaveOut = Annotated[
    list[str] | None, typer.Option("--leave-out", metavar="PART", help="A part of the file to do without: text, head.")
]
ImagePaths = Annotated[list[Path], typer.Argument(metavar="IMAGES...", help="Pictures, and folders of them.")]
Batch = Annotated[int, typer.Option(min=1, help="Pictures in one pass.")]


def main() -> None:
    """Run a verb; the user's mistake is one line and exit code 2, ours is exit code 1."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # file names need not be text
    try:
        code = app(sys.argv[1:] or ["--help"], standalone_mode=False)
    except typer.TyperException as error:
        _complain(error.format_message())
        code = 2
    except VitrailError as error:
        _complain(str(error))
        code = 2
    except (typer.Abort, KeyboardInterrupt):
        code = 130
    except _ReaderGone:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except Exception as error:
        if os.environ.get("VITRAIL_DEBUG"):
            traceback.print_exc()
        _complain(f"internal error: {type(error).__name__}: {error} (VITRAIL_DEBUG=1 shows where)")
        code = 1
    sys.exit(code if isinstance(code, int) else 0)


@app.command()
def models(as_json: AsJson = False) -> None:
    """List the presets with their sizes."""
    from vitrail.network.cost import count_parameters
    from vitrail.network.presets import PRESETS
    from vitrail.network.vit import on_meta

    rows: list[dict[str, Any]] = []
    for name, config in PRESETS.items():
        rows.append(
            {
                "name": name,
                "parameters": count_parameters(on_meta(config)),
                "width": config.width,
                "depth": config.depth,
                "heads": config.heads,
                "mlp_width": config.mlp_width,
                "patch": list(config.cell),
                "image_size": list(config.image_size),
                "tokens": config.tokens,
                "classes": config.classes,
            }
        )
    if as_json:
        _print_json({"models": rows})
        return
    table = _table("name", "parameters", "width/depth/heads/mlp", "patch", "image", "tokens", "classes")
    for row in rows:
        shape = "/".join(str(row[key]) for key in ("width", "depth", "heads", "mlp_width"))
        sizes = (row["patch"][0], row["image_size"][0], row["tokens"], row["classes"])
        table.add_row(row["name"], f"{row['parameters'] / 1e6:.2f} M", shape, *map(str, sizes))
    _show(table)
    _say(f"{len(rows)} presets; `vitrail inspect NAME` shows one")


@app.command()
def inspect(
    what: Annotated[str, typer.Argument(metavar="CHECKPOINT|PRESET", help="Weights of any known family, or a preset.")],
    size: Annotated[str, typer.Option(help="Another image size: 384, or 160x288 (height x width).")] = "",
    tensors: Annotated[bool, typer.Option("--tensors", help="List every tensor: ours, theirs, shape, how.")] = False,
    override: Override = None,
    leave_out: LeaveOut = None,
    as_json: AsJson = False,
) -> None:
    """Show what a network is: shape walk, parameters, FLOPs, memory of attention; and how its weights were read."""
    from vitrail.network.cost import estimate, shape_walk

    config, about, used, provenance = _described(what, override, leave_out)
    image_size = _size(size) if size else used
    cost = estimate(config, image_size)
    walk = shape_walk(config, image_size)
    if as_json:
        steps = [{"name": s.name, "shape": list(s.shape), "parameters": s.parameters} for s in walk]
        numbers = cost._asdict() | {"flops": cost.flops}
        _print_json(
            {
                "what": what,
                "image_size": list(image_size),
                **numbers,
                "walk": steps,
                **about,
                "settings": [each._asdict() for each in provenance.settings] if provenance else [],
                "mapping": [each._asdict() for each in provenance.mapping] if provenance and tensors else [],
                "config": config.to_dict(),
            }
        )
        return
    _say(f"{what}, one image of {image_size[0]}x{image_size[1]}")
    _show_walk(walk)
    _say(f"parameters        {cost.parameters:,} ({_bytes(cost.parameter_bytes)} in fp32)")
    _say(f"multiply-adds     {cost.multiply_adds / 1e9:.3f} G ({cost.flops / 1e9:.2f} GFLOPs)")
    side = cost.attention_matrix[0]
    _say(f"attention         {side} x {side} for each head; all maps {_bytes(cost.attention_bytes)} in fp32")
    for name, value in about.items():
        if value not in ("", {}, [], None):
            _say(f"{name:<17} {_short(value)}")
    if provenance and provenance.settings:
        _show_settings(provenance.settings)
    if provenance and tensors:
        table = _left("ours", "theirs", "shape", "how")
        for row in provenance.mapping:
            table.add_row(row.ours or "-", " + ".join(row.theirs), " x ".join(map(str, row.shape)), row.how)
        _show(table)


@app.command()
def predict(
    checkpoint: CheckpointPath,
    images: ImagePaths,
    top: Annotated[int, typer.Option(min=1, help="How many classes to name.")] = 5,
    threshold: Annotated[float, typer.Option(min=0.0, max=1.0, help="Leave out classes less likely than this.")] = 0.0,
    batch: Batch = 16,
    to: Annotated[Path | None, typer.Option("--out", help="Write to FILE.csv or FILE.json instead.")] = None,
    override: Override = None,
    leave_out: LeaveOut = None,
    as_json: AsJson = False,
) -> None:
    """Say what is on pictures: labels with probabilities."""
    from vitrail.inference import find_images
    from vitrail.inference import predict as run

    if to is not None and to.suffix not in (".csv", ".json"):
        raise InputError(f"--out: expected FILE.csv or FILE.json, got {to.name!r}")
    loaded = _load(checkpoint, override, leave_out)
    skipped = _Skipped()
    paths = find_images(images)
    with _progress(len(paths)) as done:
        found = run(loaded, paths, top, batch, skipped, done)
    rows: list[dict[str, Any]] = [
        {
            "path": each.path,
            "labels": [n for n, p in zip(each.labels, each.probabilities, strict=True) if p >= threshold],
            "probabilities": [p for p in each.probabilities if p >= threshold],
        }
        for each in found
    ]
    result = {"predictions": rows, "calibrated": loaded.temperature is not None, "skipped": skipped.rows}
    if to is not None and to.suffix == ".csv":
        with _writing(to) as file:
            writer = csv.writer(file)
            writer.writerow(["path", "rank", "label", "probability"])
            for row in rows:
                for rank, pair in enumerate(zip(row["labels"], row["probabilities"], strict=True), 1):
                    writer.writerow([row["path"], rank, pair[0], f"{pair[1]:.6f}"])
                if not row["labels"]:
                    writer.writerow([row["path"], "", "", ""])  # nothing sure enough, but not forgotten
    elif to is not None:
        with _writing(to) as file:
            json.dump(result, file, indent=1)
    if as_json:
        _print_json(result)
    elif to is not None:
        _say(f"{len(rows)} predictions written to {to}")
    else:
        for row in rows:
            answers = ", ".join(
                f"{name} {100 * p:.1f} %" for name, p in zip(row["labels"], row["probabilities"], strict=True)
            )
            _say(f"{row['path']}: {answers or 'nothing above the threshold'}")
    if loaded.temperature is not None and not as_json:
        _say("the probabilities are calibrated")
    skipped.finish()


@app.command()
def embed(
    checkpoint: CheckpointPath,
    images: ImagePaths,
    to: Annotated[Path | None, typer.Option("--out", help="FILE.npy (paths go to FILE.txt) or FILE.csv.")] = None,
    batch: Batch = 16,
    override: Override = None,
    leave_out: LeaveOut = None,
    as_json: AsJson = False,
) -> None:
    """Turn pictures into vectors: what the head of the network receives."""
    import numpy as np

    from vitrail.inference import embed as run
    from vitrail.inference import find_images

    if to is None and not as_json:
        raise InputError("embed: give --out FILE.npy or FILE.csv, or --json")
    if to is not None and to.suffix not in (".npy", ".csv"):
        raise InputError(f"--out: expected FILE.npy or FILE.csv, got {to.name!r}")
    paths = [str(path) for path in find_images(images)]
    skipped = _Skipped()
    loaded = _load(checkpoint, override, leave_out)
    with _progress(len(paths)) as done:
        vectors = run(loaded, paths, batch, skipped, done)
    kept = [path for path in paths if path not in skipped.names]
    if to is not None and to.suffix == ".npy":
        if any(len(path.splitlines()) != 1 for path in kept):
            raise InputError("a file name holds a line break, which FILE.txt cannot list: use --out FILE.csv")
        with _writing(to, "wb") as file:
            np.save(file, vectors)
        with _writing(to.with_suffix(".txt")) as file:
            file.writelines(f"{path}\n" for path in kept)
    elif to is not None:
        with _writing(to) as file:
            writer = csv.writer(file)
            writer.writerow(["path", *range(vectors.shape[1])])
            writer.writerows([path, *map(float, row)] for path, row in zip(kept, vectors, strict=True))
    if as_json:
        _print_json({"paths": kept, "embeddings": vectors.tolist(), "skipped": skipped.rows})
    else:
        _say(f"{vectors.shape[0]} vectors of {vectors.shape[1]} values written to {to}")
    skipped.finish()


@app.command()
def convert(
    source: Annotated[str, typer.Argument(metavar="IN", help="Weights of any known family: a file or a folder.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The file or folder to write; it may not exist yet.")],
    to: Annotated[str, typer.Option("--to", metavar="FAMILY", help=f"One of: {TARGETS}.")],
    override: Override = None,
    leave_out: LeaveOut = None,
    as_json: AsJson = False,
) -> None:
    """Write weights the way another family does, read them back, and say how equal they are."""
    from dataclasses import asdict

    from vitrail.weights import convert as run

    with _busy(f"converting {source}"):
        report = run(source, out, to=to, override=_settings(override), leave_out=leave_out or ())
    if as_json:
        _print_json(asdict(report) | {"settings": [each._asdict() for each in report.settings]})
        return
    _say(f"{report.tensors} tensors written for {report.family}: {report.out}")
    _say(f"mapped back       {report.identical} tensors of ours, bit for bit the same")
    _say(
        f"both networks     differ by at most {report.largest_difference:.3g} on random pixels "
        f"({report.relative_difference:.3g} of the largest value); {100 * report.argmax_agreement:.0f} % agree"
    )
    _say(f"preprocessing     {'carried' if report.preprocess_carried else 'NOT carried: keep it by hand'}")
    _say(f"class names       {'carried' if report.classes_carried else 'NOT carried: keep them by hand'}")
    for each in report.not_carried:
        _say(f"not carried       {each}")
    if report.settings:
        _show_settings(report.settings)


@app.command()
def doctor(as_json: AsJson = False) -> None:
    """Say what this machine has: versions, devices, what is missing."""
    from vitrail.doctor import examine

    report = examine()
    if as_json:
        _print_json(report)
        return
    for section, values in report.items():
        _say(section)
        for name, value in values.items():
            _say(f"  {name:<16} {value}")


@app.command()
def demo(
    to: Annotated[Path, typer.Option("--out", help="Where the pictures go.")] = Path("demo"),
    seed: Annotated[int, typer.Option(help="Which window is drawn.")] = 12,
    picture: Annotated[Path | None, typer.Option(help="A picture of yours instead.")] = None,
    as_json: AsJson = False,
) -> None:
    """A tour: one picture through the network, with its shape walk, attention maps and figures."""
    from vitrail.data.glass import CLASSES, window
    from vitrail.insight.tour import tour
    from vitrail.weights import load

    drawn = window(seed, 384)
    try:
        result = tour(load("vitrail:glass"), picture or drawn.image, to)
    except OSError as error:
        raise InputError(f"cannot write to {to}: {error.strerror}") from error
    best = f"{result.prediction.labels[0]} ({100 * result.prediction.probabilities[0]:.1f} %)"
    if as_json:
        _print_json(
            {
                "page": str(result.page),
                "files": [str(file) for file in result.files],
                "labels": result.prediction.labels,
                "probabilities": result.prediction.probabilities,
                "drawn": None if picture else CLASSES[drawn.label],
            }
        )
        return
    _show_walk(result.walk)
    truth = f"{picture}" if picture else f"a window with a {CLASSES[drawn.label]}"
    _say(f"the picture: {truth}; the network says: {best}")
    for file in result.files:
        _say(f"  {file}")
    _say(f"all on one page: {result.page}")


def _load(path: str, override: list[str] | None, leave_out: list[str] | None) -> Checkpoint:
    """A checkpoint; what a stranger's file leaves open is told on stderr, so that nothing is assumed in silence."""
    from vitrail.weights import load

    with _busy(f"loading {path}"):
        loaded = load(path, override=_settings(override), leave_out=leave_out or ())
    open_ = [each for each in loaded.provenance.settings if each.why not in ("given", "the tensors say so")]
    if open_ and loaded.provenance.family:
        told = "; ".join(f"{each.name} {each.value}" for each in open_)
        _complain(f"read as {loaded.provenance.family} with {told} (`vitrail inspect` says why)")
    return loaded


def _settings(pairs: list[str] | None) -> dict[str, Any]:
    """NAME=VALUE, where a value is JSON, or else text: heads=4, activation=relu, mean=[0.5,0.5,0.5]."""
    found: dict[str, Any] = {}
    for text in pairs or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise InputError(f"--set: expected NAME=VALUE, got {text!r}")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


def _show_settings(settings: Sequence[Setting]) -> None:
    table = _left("setting", "value", "why")
    for column in table.columns:
        column.no_wrap, column.overflow = False, "fold"
    for each in settings:
        table.add_row(each.name, each.value, each.why)
    _show(table)


class _Skipped:
    """Pictures that could not be read: told at once, counted at the end."""

    def __init__(self) -> None:
        self.rows: list[dict[str, str]] = []

    def __call__(self, name: str, error: ImageError) -> None:
        self.rows.append({"path": name, "error": str(error)})
        _complain(str(error))

    @property
    def names(self) -> set[str]:
        return {row["path"] for row in self.rows}

    def finish(self) -> None:
        if self.rows:
            _complain(f"{len(self.rows)} of the pictures could not be read; the others are done")
            raise typer.Exit(2)


def _described(
    what: str, override: list[str] | None, leave_out: list[str] | None
) -> tuple[ViTConfig, dict[str, Any], tuple[int, int], Provenance | None]:
    """The config of a checkpoint or a preset, what else is known of it, the size it is used at, where it comes from."""
    from vitrail.network.presets import PRESETS

    if what in PRESETS:
        if override or leave_out:
            raise InputError(f"--set and --leave-out belong to a file of weights, and {what} is a preset")
        return PRESETS[what], {}, PRESETS[what].image_size, None
    if not what.startswith(("vitrail:", "hf:")) and not Path(what).exists():
        hint = nearest(what, PRESETS)
        hint = "`vitrail models` lists the presets" if hint.startswith("expected") else hint
        raise InputError(f"no checkpoint file and no preset {what!r}: {hint}")
    from vitrail.weights import load

    loaded = load(what, override=_settings(override), leave_out=leave_out or ())
    about = loaded.describe()
    origin = {name: value for name, value in about["provenance"].items() if name not in ("settings", "mapping")}
    for name in ("config", "format", "provenance", "decoder"):
        about.pop(name, None)
    return loaded.model.config, about | origin, loaded.preprocess.size, loaded.provenance


def _size(text: str) -> tuple[int, int]:
    parts = text.lower().split("x")
    if len(parts) > 2 or not all(part.isdecimal() and len(part) < 6 for part in parts):
        raise InputError(f"--size: expected 384 or 160x288 (height x width), got {text!r}")
    return int(parts[0]), int(parts[-1])


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right", no_wrap=True)
    return table


def _left(*columns: str) -> Table:
    table = _table(*columns)
    for column in table.columns:
        column.justify = "left"
    return table


def _show_walk(walk: list[Step]) -> None:
    table = _table("station", "shape", "parameters")
    for step in walk:
        table.add_row(step.name, " x ".join(map(str, step.shape)), f"{step.parameters:,}" if step.parameters else "")
    _show(table)


@contextmanager
def _busy(what: str) -> Iterator[None]:
    """A sign of life on stderr while one thing is worked on; nothing where nobody watches."""
    if not sys.stderr.isatty():
        yield
        return
    with Console(stderr=True).status(escape(what)):
        yield


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None]]:
    """A bar on stderr while pictures are worked on; nothing where nobody watches."""
    bar = Progress(
        TextColumn("{task.completed}/{task.total} pictures"),
        BarColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    )
    with bar:
        task = bar.add_task("", total=total)
        yield lambda count: bar.advance(task, count)


def _short(value: Any) -> str:
    if isinstance(value, list) and len(value) > 8:
        return f"{', '.join(map(str, value[:8]))}, … ({len(value)} in all)"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _bytes(count: float) -> str:
    units = ["bytes", "KB", "MB", "GB", "TB"]
    while count >= 1000 and len(units) > 1:
        count /= 1000
        units.pop(0)
    return f"{count:.4g} {units[0]}"


@contextmanager
def _writing(path: Path, mode: str = "w") -> Iterator[IO[Any]]:
    """A file to write to; names that are not text go in as they are."""
    how: dict[str, Any] = {} if "b" in mode else {"encoding": "utf-8", "errors": "surrogateescape", "newline": ""}
    try:
        with open(path, mode, **how) as file:
            yield file
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error


class _ReaderGone(Exception):  # noqa: N818
    """Nobody reads our output any more: `vitrail models | head`."""


def _say(text: str) -> None:
    """A line as it is: a table's markup, emoji codes and line breaks mean nothing in it."""
    try:
        typer.echo(text)
    except BrokenPipeError as error:
        raise _ReaderGone from error


def _show(table: Table) -> None:
    with tables.capture() as drawn:
        tables.print(table)
    _say(drawn.get().rstrip("\n"))


def _complain(text: str) -> None:
    """One line on stderr, whatever file names are in it."""
    typer.echo("vitrail: " + "".join(c if c.isprintable() else repr(c)[1:-1] for c in text), err=True)


def _print_json(value: dict[str, Any]) -> None:
    _say(json.dumps(value))
