"""ExportInfo: what an exported file says of itself, to and from the JSON inside it; without torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from vitrail.checks import check_bools, check_choice, check_int, check_pair, check_type, short_repr
from vitrail.errors import CheckpointError
from vitrail.images.model_info import ModelInfo

FORMAT: Final = 2  # of what is written inside; a file of a higher one needs a newer Vitrail
PIXELS: Final = ("float", "bytes")
PRECISIONS: Final = ("float32", "bf16", "int8", "int8+bf16")  # after the plus: of what is not int8, if not float32
_LONGEST: Final = 64 << 20  # characters of JSON; a million class names take fewer


class Check(NamedTuple):
    """One pass that was compared with the network itself: images of a size, and how far the outputs were apart."""

    batch: int
    height: int
    width: int
    difference: float  # of embedding and logits, as a share of their largest value; where the file rounds, typical


@dataclass(frozen=True, kw_only=True)
class ExportInfo:
    """What turns the outputs into answers, and which inputs the graph takes."""

    about: ModelInfo
    target: str
    size: tuple[int, int]  # (H, W) in pixels of what the network sees
    cell: tuple[int, int]  # pixels of one patch: other sizes, where free, are multiples of it
    embedding: int  # its width
    config: Mapping[str, Any] = field(default_factory=dict)  # of the network, as ViTConfig.to_dict writes it
    precision: str = "float32"
    pixels: str = "float"  # normalised (B, C, H, W), or "bytes": uint8 (B, H, W, C)
    dynamic_size: bool = False
    resize_inside: bool = False  # takes whole images of any size
    run: str = ""  # that trained it; empty where not known, as in files of earlier releases
    source: str = ""  # of its images, as that run was given it
    checks: tuple[Check, ...] = ()  # made once the file was there, as measurements are
    measurements: Mapping[str, Any] = field(default_factory=dict)  # what the file itself is worth, in its own runtime

    def __post_init__(self) -> None:
        check_type("about", self.about, ModelInfo)
        for name in ("target", "run", "source"):
            check_type(name, getattr(self, name), str)
        check_choice("pixels", self.pixels, PIXELS)
        check_bools(self, "dynamic_size", "resize_inside")
        check_choice("precision", self.precision, PRECISIONS)
        for name in ("config", "measurements"):
            plain = dict(check_type(name, getattr(self, name), Mapping))
            object.__setattr__(self, name, json.loads(json.dumps(plain)))  # lists, as they come back
        for name in ("size", "cell"):
            object.__setattr__(self, name, check_pair(name, getattr(self, name)))
        object.__setattr__(self, "embedding", check_int("embedding", self.embedding))
        object.__setattr__(self, "checks", tuple(Check(*each) for each in self.checks))

    @property
    def channels(self) -> int:
        return self.about.preprocess.channels

    @property
    def in_int8(self) -> bool:
        return self.precision.startswith("int8")

    @property
    def in_bf16(self) -> bool:
        """Whether what is not int8 computes in bf16, where the processor can."""
        return self.precision.endswith("bf16")

    def to_json(self) -> str:
        """All that is known before the file is there; `read_contents` gives it back."""
        plain = {"format": FORMAT, **{name: getattr(self, name) for name in (*_PLAIN, *_LATER)}}
        plain["about"] = self.about.to_dict()
        return json.dumps(plain, allow_nan=False)

    def noted_json(self) -> str:
        """What was found out about the file once it was there."""
        return json.dumps({"checks": self.checks, "measurements": self.measurements}, allow_nan=False)


_PLAIN: Final = (
    *("target", "size", "cell", "embedding", "precision", "pixels"),
    *("dynamic_size", "resize_inside", "config"),
)
_LATER: Final = ("run", "source")  # which files of earlier releases lack


def read_contents(description: str, noted: str, name: str) -> ExportInfo:
    """What stands in a file, or an error that says why it cannot be used."""
    if len(description) + len(noted) > _LONGEST:
        raise CheckpointError(f"{name}: refused, a description of {len(description) + len(noted):,} characters")
    plain = read_description(description, name, "an export", FORMAT, "export the checkpoint again")
    missing = [each for each in (*_PLAIN, "about") if each not in plain]
    if missing:
        raise CheckpointError(f"{name}: the description inside lacks {', '.join(missing)}: export the checkpoint again")
    try:
        notes = check_type("notes", json.loads(noted or "{}"), Mapping)
        return ExportInfo(
            **{each: plain[each] for each in _PLAIN},
            **{each: plain[each] for each in _LATER if each in plain},
            about=ModelInfo.from_dict(check_type("about", plain["about"], Mapping)),
            checks=tuple(map(_check, check_type("checks", notes.get("checks", []), list))),
            measurements=notes.get("measurements", {}),
        )
    except (ValueError, TypeError, OverflowError, RecursionError) as error:  # our own kinds are ValueErrors too
        raise CheckpointError(f"{name}: the description inside is damaged: {error}") from None


def read_description(text: str, name: str, what: str, known: int, again: str) -> dict[str, Any]:
    """JSON that says of which format it is; `again` is what to do about an older one."""
    try:
        plain = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{name}: the description inside is damaged: {error}") from None
    number = plain.get("format") if isinstance(plain, dict) else None
    if number != known:
        hint = "use a newer Vitrail" if isinstance(number, int) and number > known else again
        raise CheckpointError(f"{name}: expected {what} of format {known}, got {short_repr(number)}: {hint}")
    return dict(plain)


def _check(value: Any) -> Check:
    right = isinstance(value, list) and len(value) == 4 and all(type(each) is int for each in value[:3])
    if not right or type(value[3]) not in (int, float):
        raise CheckpointError(f"checks: expected batch, height, width and difference, got {short_repr(value)}")
    return Check(value[0], value[1], value[2], float(value[3]))
