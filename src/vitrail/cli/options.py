"""Arguments and options that verbs share, and what is read out of their text."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer

from vitrail.errors import InputError, nearest
from vitrail.files import is_name

SPLITS: Final = ("train", "val", "test", "all")
ROW_FILES: Final = (".jsonl", ".parquet")
RESIZES: Final = ("crop", "pad", "squash")


def offer(names: Callable[[], Iterable[str]] | Iterable[str], beside_files: bool = False) -> Callable[[str], list[str]]:
    """For the Tab key: the names that begin with what was typed. Where files may stand too, the shell offers those
    until something is typed."""

    def begun(incomplete: str) -> list[str]:
        if beside_files and not incomplete:
            return []
        return [name for name in (names() if callable(names) else names) if name.startswith(incomplete)]

    return begun


def parse_share(text: str | float, most: float = 1.0) -> float:
    """A part of a whole, as it is typed: 60% or 0.6."""
    number, percent, rest = str(text).strip().partition("%")
    try:
        share = float(number) / (100 if percent else 1)
    except ValueError:
        share = math.nan
    if rest or not 0 <= share <= most:
        hint = f": did you mean {number}%?" if not percent and most < share <= 100 * most else ""
        raise typer.BadParameter(f"expected 0% to {100 * most:g}%, or 0 to {most:g}, got {text!r}{hint}")
    return share


def share_option(words: str, default: str = "", most: float = 1.0) -> Any:
    """An option for a part of a whole; `default` is what help shows as such."""
    return typer.Option(
        metavar="SHARE", parser=partial(parse_share, most=most), help=words, show_default=default or False
    )


AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object, for programs.")]
CheckpointPath = Annotated[
    str, typer.Argument(metavar="CHECKPOINT", help="A run, or weights: a file, a folder, hf:owner/name, timm:name.")
]
RuntimePath = Annotated[
    str,
    typer.Argument(
        metavar="CHECKPOINT", help="A run, weights (file, folder, hf:owner/name, timm:name), or an exported file."
    ),
]
RuntimeName = Annotated[
    str,
    typer.Option(
        "--runtime",
        metavar="NAME",
        help="What computes: eager, packed or packed-bf16 (faster).",
        show_default="eager",
        autocompletion=offer(("eager", "packed", "packed-bf16")),
    ),
]
DEVICES: Final = ("auto", "cpu", "cuda", "mps", "xpu")
DeviceName = Annotated[
    str,
    typer.Option(
        "--device",
        metavar="NAME",
        help="Where it computes: auto, cpu, cuda, cuda:1, mps or xpu.",
        autocompletion=offer(DEVICES),
    ),
]
Override = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="What the file does not say: activation=relu, heads=4."),
]
LeaveOut = Annotated[
    list[str] | None, typer.Option("--leave-out", metavar="PART", help="Do without a part of the file: text, head.")
]
ImagePaths = Annotated[
    list[Path],
    typer.Argument(
        metavar="IMAGES...",
        help="Images, folders of them, patterns like 'photos/*.jpg'; - reads paths from standard input.",
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Write over a file that is there already.")]
Batch = Annotated[int, typer.Option(min=1, help="Images computed at once.")]
Threads = Annotated[int, typer.Option(min=1, help="Threads that read images while the network works.")]
ScaledDecoding = Annotated[
    bool,
    typer.Option("--scaled-decoding", help="Decode large JPEGs at a part of their size: faster, nearly the same."),
]
DATA_HELP = "A folder for each class, a CSV, arrays, or vitrail:fashion"
Data = Annotated[str, typer.Argument(metavar="DATA", help=f"{DATA_HELP}.")]
BudgetData = Annotated[
    str, typer.Option(metavar="DATA", help="Images to measure accuracy on.", show_default="those of the run")
]
MaxDrop = Annotated[float, typer.Option(help="How many percentage points of accuracy may be lost.")]
Split = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="train, val, test or all.",
        show_default="test, else val, else all",
        autocompletion=offer(SPLITS),
    ),
]
Unlabelled = Annotated[
    bool,
    typer.Option(
        "--unlabelled", help="--data is a folder without labels: measure how often the answers stay the same."
    ),
]


ENGINES: Final = ("local", "ray")

Engine = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="local; or ray: workers on one machine or many, --out FOLDER for their answers.",
        autocompletion=offer(ENGINES),
    ),
]
Address = Annotated[
    str, typer.Option(metavar="HOST:PORT", help="Of a Ray cluster, for --engine ray.", show_default="this machine")
]
Workers = Annotated[
    int | None,
    typer.Option(min=1, help="Of --engine ray, each with so many --threads.", show_default="what the CPUs allow"),
]


def check_engine(engine: str, address: str, workers: int | None) -> None:
    if engine not in ENGINES:
        raise InputError(f"--engine: no engine {engine!r}: {nearest(engine, ENGINES)}")
    given = [f"--{name}" for name, value in (("address", address), ("workers", workers)) if value]
    if given and engine != "ray":
        raise InputError(f"{' and '.join(given)}: for --engine ray alone")


def check_suffix(to: Path, *known: str) -> None:
    """Refuse a file whose name says nothing of what it is to hold; and one that needs a library that is missing."""
    if to.suffix not in known:
        *others, last = (f"FILE{suffix}" for suffix in known)
        raise InputError(f"--out: expected {', '.join(others)} or {last}, got {to.name!r}")
    if to.suffix == ".parquet":
        from vitrail.inference.row_files import import_arrow

        import_arrow()


def parse_settings(pairs: list[str] | None) -> dict[str, Any]:
    """NAME=VALUE, where a value is JSON, or else text: heads=4, activation=relu, mean=[0.5,0.5,0.5]."""
    settings: dict[str, Any] = {}
    for text in pairs or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise InputError(f"--set: expected NAME=VALUE, got {text!r}")
        try:
            settings[name] = json.loads(value)
        except ValueError:
            settings[name] = value
    return settings


def parse_size(text: str) -> tuple[int, int]:
    parts = text.lower().split("x")
    if len(parts) > 2 or not all(part.isdecimal() and len(part) < 6 for part in parts):
        raise InputError(f"--size: expected 384 or 160x288 (height x width), got {text!r}")
    return int(parts[0]), int(parts[-1])


def parse_batch(text: str) -> int | Literal["auto"]:
    """How many images a step takes, as it is typed: a number, or auto."""
    if text == "auto":
        return "auto"
    if not (text.isdecimal() and 0 < int(text) < 10_000_000):
        raise typer.BadParameter(f"expected a number of images, or auto, got {text!r}")
    return int(text)


def parse_numbers(option: str, text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and 0 < int(part) < 100_000 for part in parts):
        raise InputError(f"{option}: expected whole numbers like 1,16, got {text!r}")
    return tuple(dict.fromkeys(int(part) for part in parts))


def name_after(checkpoint: str) -> str:
    """A name for what is made of a checkpoint: of a run the run's, of a file the file's."""
    if is_name(checkpoint):
        return checkpoint.partition(":")[2].partition("@")[0].rpartition("/")[2]
    path = Path(checkpoint)
    return path.name if path.is_dir() or not path.suffix else path.stem
