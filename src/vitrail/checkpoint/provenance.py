"""Provenance: where a checkpoint came from, which settings were assumed, and which tensor became which."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, NamedTuple, TypeVar

from vitrail.checks import short_repr
from vitrail.errors import CheckpointError

Row = TypeVar("Row", "Setting", "Mapped")


class Setting(NamedTuple):
    """A setting that the weights themselves do not show, and what it was taken from."""

    name: str
    value: str
    why: str


class Mapped(NamedTuple):
    """One of our tensors, and what it was made from; or one of theirs that has no place in ours."""

    ours: str  # empty where theirs says nothing new, or was left out
    theirs: tuple[str, ...]
    shape: tuple[int, ...]  # of ours, or else of theirs
    how: str


@dataclass(frozen=True)
class Provenance:
    """Where a checkpoint came from; empty where not known."""

    source: str = ""
    licence: str = ""
    run: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)
    notes: str = ""
    family: str = ""  # whose names and layout the weights had
    settings: tuple[Setting, ...] = ()
    mapping: tuple[Mapped, ...] = ()

    def __post_init__(self) -> None:
        for name in ("source", "licence", "run", "notes", "family"):
            expect(isinstance(getattr(self, name), str), name, "text", getattr(self, name))
        expect(isinstance(self.metrics, Mapping), "metrics", "numbers under names", self.metrics)
        settings, mapping = (_as_tuple(name, getattr(self, name)) for name in ("settings", "mapping"))
        for each in settings:
            expect(isinstance(each, Setting) and _texts(each), "settings", "Setting(name, value, why) of text", each)
        for each in mapping:
            expect(_is_mapped(each), "mapping", "Mapped(ours, theirs, shape, how)", each)
        object.__setattr__(self, "settings", settings)
        object.__setattr__(
            self, "mapping", tuple(Mapped(m.ours, tuple(m.theirs), tuple(m.shape), m.how) for m in mapping)
        )

    @property
    def left_open(self) -> str:
        """What the tensors of another family do not say, and what it was taken for: "heads 3; activation gelu"."""
        settings = [each for each in self.settings if each.why not in ("given", "the tensors say so")]
        return "; ".join(f"{each.name} {each.value}" for each in settings)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; `from_dict` gives the same provenance back."""
        rows = {name: [each._asdict() for each in getattr(self, name)] for name in ("settings", "mapping")}
        return asdict(self) | {"metrics": dict(self.metrics)} | rows

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Provenance:
        """A provenance from plain values; what this version does not know is left out."""
        known = {each.name for each in fields(cls)}
        values = {name: value for name, value in plain.items() if name in known}
        values["settings"] = [
            _row("settings", Setting, each) for each in _as_tuple("settings", values.get("settings", ()))
        ]
        values["mapping"] = [_row("mapping", Mapped, each) for each in _as_tuple("mapping", values.get("mapping", ()))]
        return cls(**values)


def expect(right: bool, name: str, expected: str, got: Any) -> None:
    """Refuse a part of a checkpoint that is of another kind."""
    if not right:
        raise CheckpointError(f"{name}: expected {expected}, got {short_repr(got)}")


def _as_tuple(name: str, value: Any) -> tuple[Any, ...]:
    expect(isinstance(value, tuple | list), name, "a list", value)
    return tuple(value)


def _texts(values: Any) -> bool:
    return isinstance(values, tuple | list) and all(isinstance(each, str) for each in values)


def _is_mapped(value: Any) -> bool:
    return (
        isinstance(value, Mapped)
        and _texts([value.ours, value.how])
        and _texts(value.theirs)
        and isinstance(value.shape, tuple | list)
        and all(type(each) is int and each >= 0 for each in value.shape)
    )


def _row(name: str, kind: type[Row], plain: Any) -> Row:
    """A Setting or a Mapped from plain values under the names of its fields."""
    fields = kind._fields
    expect(isinstance(plain, dict) and plain.keys() == set(fields), name, ", ".join(fields), plain)
    return kind(**plain)
