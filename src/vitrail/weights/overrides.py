"""What no tensor says: taken from the user, or from the family with its reason; and told in words."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Final

from vitrail.checkpoint import Setting
from vitrail.checks import check_fields, check_type, short_repr
from vitrail.errors import InputError, nearest
from vitrail.images import Preprocess
from vitrail.network.config import Positions, Resample, Rotary, ViTConfig
from vitrail.weights.family import Description
from vitrail.weights.imagenet import imagenet1k
from vitrail.weights.preprocessing import Known, for_channels
from vitrail.weights.reading.contents import WeightContents
from vitrail.weights.reading.labels import read_labels

SHOWN: Final = (
    *("image_size", "patch_size", "channels", "heads", "activation", "norm_eps", "qkv_bias", "resample", "rotary"),
    *("pool", "preprocess", "classes"),
)
UNSAID: Final = ("activation", "norm_eps", "resample", "preprocess")  # by tensors, ever
IMAGENET: Final = "1000 outputs: ImageNet-1k in its usual order"
OF_CONFIG: Final = tuple(each.name for each in fields(ViTConfig))
OF_PIXELS: Final = tuple(each.name for each in fields(Preprocess))
OF_LOADING: Final = ("resample", "family", "take")


def check_names(override: Mapping[str, Any]) -> Mapping[str, Any]:
    """Overrides whose every name is a setting."""
    check_type("override", override, Mapping, error=InputError)
    known = sorted({*OF_CONFIG, *OF_PIXELS, *OF_LOADING})
    for name in override:
        if name not in known:
            raise InputError(f"override has no setting {name!r}: {nearest(str(name), known)}")
    return override


def decide(description: Description, override: Mapping[str, Any]) -> Description:
    """The description with what the user knows better."""
    config, preprocess, classes = description.config, description.preprocess, description.classes
    changes = {name: override[name] for name in OF_CONFIG if name in override}
    if "image_size" in changes:  # where it does not fit the table of positions, the table is resampled later
        del changes["image_size"]
        preprocess = _pixels(preprocess, {"size": override["image_size"]})
    if "classes" in changes:
        classes = _class_names(changes.pop("classes"), config.classes)
    if "resample" in override:
        positions = changes.get("positions", config.positions)
        check_type("positions", positions, Positions)
        changes["positions"] = replace(positions, resample=_resample(override))
    config = replace(config, **changes)
    reasons = dict(description.reasons)
    if config.channels in (1, 3):  # a folder may speak of colours where the network sees none
        known = for_channels(Known(preprocess, reasons.get("preprocess", "")), config.channels)
        preprocess, reasons["preprocess"] = known
    pixels = {name: override[name] for name in OF_PIXELS if name in override and name != "channels"}
    preprocess = _pixels(preprocess, pixels)
    return replace(description, config=config, preprocess=preprocess, classes=classes, reasons=reasons)


def list_settings(
    description: Description, override: Mapping[str, Any], contents: WeightContents
) -> tuple[Setting, ...]:
    """What no tensor says, or only in part: the value in force, and why it is that."""
    config = description.config
    values: dict[str, Any] = {name: getattr(config, name) for name in SHOWN if hasattr(config, name)}
    values["resample"] = config.positions.resample if config.positions.kind not in ("none", "relative") else None
    values["preprocess"] = description.preprocess
    values["classes"] = f"{config.classes}" + (" with names" if description.classes else "")
    pixels = [name for name in OF_PIXELS if name in override]
    settings = []
    for name, value in values.items():
        if value is None:
            continue
        given = name in override or (name == "preprocess" and pixels)
        usual = "as the family's own code computes" if name in UNSAID else "the tensors say so"
        if name == "classes" and description.classes:
            usual = IMAGENET if description.classes == imagenet1k() else "the file names them"
        why = "given" if given else description.reasons.get(name, usual)
        settings.append(Setting(name, setting_text(value), why))
    if contents.wrapper:
        beside = f"; also there: {', '.join(contents.others)}" if contents.others else ""
        settings.append(Setting("take", contents.wrapper, f"where the file keeps its weights{beside}"))
    return tuple(settings)


def setting_text(value: Any) -> str:
    """A setting in few words."""
    return SETTING_TEXTS.get(type(value), str)(value)


def _resample_text(value: Resample) -> str:
    marks = [name for name in ("antialias", "align_corners") if getattr(value, name)]
    return ", ".join([value.mode, *marks, *([f"offset {value.offset}"] if value.offset else [])])


def _preprocess_text(value: Preprocess) -> str:
    mean, std = (_one(numbers) for numbers in (value.mean, value.std))
    smooth = "" if value.antialias else " without antialias"
    frame = f"{value.size[0]}x{value.size[1]}, {value.resize} {value.crop:g}, {value.interpolation}{smooth}"
    rest = ", BGR" * (value.order == "BGR") + ", scaled decoding" * value.scaled_decoding
    return f"{frame}, mean {mean}, std {std}{rest}"


SETTING_TEXTS: Final[Mapping[type, Callable[[Any], str]]] = {
    Resample: _resample_text,
    Preprocess: _preprocess_text,
    Rotary: lambda value: f"{value.kind}, theta {value.theta:g}",
    tuple: lambda value: "x".join(map(str, value)),
}


def _one(numbers: Sequence[float]) -> str:
    """Numbers, or the one that all of them are."""
    return f"{numbers[0]:g}" if len(set(numbers)) == 1 else "/".join(f"{number:g}" for number in numbers)


def _class_names(names: Any, count: int) -> tuple[str, ...]:
    """Names for the outputs: a list of them, or the path of a file that lists them."""
    if isinstance(names, str | os.PathLike):
        return read_labels(names)
    if not isinstance(names, Sequence):
        raise InputError(
            f"classes: expected {count} names or a file of them, got {short_repr(names)}; "
            "for another number load first, then vitrail.weights.with_classes"
        )
    return tuple(names)


def _resample(override: Mapping[str, Any]) -> Resample:
    value = override["resample"]
    return value if isinstance(value, Resample) else Resample(**check_fields(Resample, value))


def _pixels(preprocess: Preprocess, changes: Mapping[str, Any]) -> Preprocess:
    return Preprocess.from_dict(preprocess.to_dict() | dict(changes)) if changes else preprocess
