"""Options: what a user may ask of a training; `resolve` gives the recipe that follows from it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from vitrail.checkpoint import Checkpoint
from vitrail.checkpoint.devices import AUTO
from vitrail.checks import check_choice, check_int, check_number, short_repr
from vitrail.data.samples import Dataset
from vitrail.errors import InputError, nearest
from vitrail.images.preprocess import Resize
from vitrail.network.config import ViTConfig
from vitrail.training.job import Callbacks
from vitrail.training.published import RECIPES, Preset
from vitrail.training.recipe import Recipe, check_objective


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a user may ask of a training; None leaves it to the recipe or the data."""

    model: str | ViTConfig | None = None
    start: str | os.PathLike[str] | Checkpoint | None = None  # weights to start from
    recipe: str | Recipe = ""  # empty: scratch, or finetune where there are weights to start from
    epochs: float | None = None
    minutes: float | None = None
    steps: int | None = None  # instead of either
    batch: int | Literal["auto"] | None = None
    size: int | tuple[int, int] | None = None
    resize: Resize | None = None  # how an image of another shape is brought to size; None: what suits the images
    limit: int | None = None  # images of each split, drawn class by class; None: as the recipe says, or all
    lr: float | None = None
    patience: int | None = None
    balance: str | None = None
    seed: int = 0
    val: float = 0.1
    test: float = 0.2
    pattern: str | None = None
    exclude: str | os.PathLike[str] | None = None
    unreadable: str = "skip"
    workers: int = 0  # that read images: threads, two at least, or processes where a cache on disk is made
    cache: str | os.PathLike[str] | None = None  # a folder for resized images that memory cannot hold
    threads: int = 1  # that prepare batches
    device: str = "auto"  # where to compute; auto: an accelerator where there is one and it is faster
    precision: str | None = None  # of products: fp32, tf32, bf16 or fp16
    compile: bool | None = None  # the forward pass by torch.compile
    elsewhere: bool = False  # go on with a run on another device or number of threads than it was started with
    processes: int = 1  # that train together: as many as were started
    exact: bool | None = None  # the same bits for any number of processes; None: with several, up to 30 M parameters
    shard: bool = False  # each process holds a part of the network and the optimiser, where there are several
    out: str | os.PathLike[str] = "runs"
    name: str = ""
    fresh: bool = False
    finished: bool = False  # whether a finished run of that name and plan is taken as it is, rather than refused
    check: bool = True  # refuse recipes that are known to fail
    report: bool = True  # write the report, the figures and the predictions
    tensorboard: bool = False  # write the log as TensorBoard's events too
    command: str = ""  # that repeats it
    save_seconds: float = 60.0
    callbacks: Callbacks = field(default_factory=Callbacks)

    def __post_init__(self) -> None:
        for name, kinds in _option_kinds().items():
            value = getattr(self, name)
            if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
                expected = " or ".join(dict.fromkeys(KIND_NAMES.get(kind, f"a {kind.__name__}") for kind in kinds))
                raise InputError(f"{name}: expected {expected}, got {short_repr(value)}")

    def to_dict(self, data: str | os.PathLike[str] | Dataset) -> dict[str, Any]:
        """What `rerun` needs; a checkpoint given as an object cannot be repeated from a file, and is left out."""
        names = [each.name for each in fields(self) if each.name not in ("callbacks", "processes")]
        plain = {name: _plain(getattr(self, name)) for name in names}
        return plain | {"data": data.source if isinstance(data, Dataset) else os.fspath(data)}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Options:
        """The options that `to_dict` wrote, without the data."""
        values = {name: value for name, value in plain.items() if name != "data"}
        if unknown := values.keys() - {each.name for each in fields(cls)}:
            raise InputError(f"the run was recorded with options that are not known: {', '.join(sorted(unknown))}")
        for name, kind in (("recipe", Recipe), ("model", ViTConfig)):
            if isinstance(values[name], Mapping):
                values[name] = kind.from_dict(values[name])
        if isinstance(values["size"], list):
            values["size"] = tuple(values["size"])
        return cls(**values)


KIND_NAMES: Final[dict[type, str]] = {
    bool: "True or False",
    Integral: "a whole number",
    Real: "a number",
    str: "a text",
    os.PathLike: "a path",
    tuple: "a pair (height, width)",
    list: "a pair (height, width)",
    NoneType: "None",
}
RUNTIME_KINDS: Final[dict[Any, tuple[type, ...]]] = {  # of a type as it is written: what a value may be
    int: (Integral,),
    float: (Real,),
    tuple: (tuple, list),
    Literal: (str,),
}


@cache
def _option_kinds() -> dict[str, tuple[type, ...]]:
    """What the value of every option may be, from the types above."""
    kinds: dict[str, tuple[type, ...]] = {}
    for name, hint in get_type_hints(Options).items():
        parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        origins = [get_origin(part) or part for part in parts]
        kinds[name] = tuple(kind for origin in origins for kind in RUNTIME_KINDS.get(origin, (origin,)))
    return kinds


def _plain(value: Any) -> Any:
    """A value of an option for JSON."""
    if isinstance(value, Recipe | ViTConfig):
        return value.to_dict()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return None if isinstance(value, Checkpoint) else value


def resolve(options: Options) -> Preset:
    """The recipe by name or as given, with what the options change in it."""
    preset = _preset_of(options)
    if options.epochs is not None and options.minutes is not None:
        raise InputError("give epochs or minutes, not both")
    if options.minutes is not None:
        check_number("minutes", options.minutes, 1e-3, 1e6)
    check_int("seed", options.seed, 0, 2**62, InputError)
    limit = preset.limit if options.limit is None else check_int("limit", options.limit, 1, 2**62, InputError)
    if options.resize is not None:
        check_choice("resize", options.resize, get_args(Resize))
    if isinstance(options.batch, str):
        check_choice("batch", options.batch, (AUTO,))
    names = ("epochs", "batch", "lr", "patience", "balance", "precision", "compile")
    given = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    if given.get("batch") == AUTO:
        del given["batch"]  # it is found when the network is there
    elif "batch" in given:
        given["pieces"] = min(preset.recipe.pieces, max(given["batch"], 1))  # they are for memory alone
    steps = None if "epochs" in given or options.minutes is not None else preset.steps
    return replace(preset, recipe=replace(preset.recipe, **given), steps=options.steps or steps, limit=limit)


def _preset_of(options: Options) -> Preset:
    """The recipe that is asked for; one that learns by an objective that does not exist here is refused."""
    if isinstance(options.recipe, Recipe):
        check_objective(options.recipe)
        return Preset(recipe=options.recipe)
    name = options.recipe or ("scratch" if options.start is None else "finetune")
    if name not in RECIPES:
        raise InputError(f"no recipe {name!r}: {nearest(name, RECIPES)}")
    check_objective(RECIPES[name].recipe, name)
    return RECIPES[name]
