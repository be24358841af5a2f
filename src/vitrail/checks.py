"""Checks that settings share: each says which setting, what was expected and what came."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from numbers import Integral, Real
from typing import Any, Final

from vitrail.errors import ConfigError, VitrailError, nearest

LARGEST: Final = 1 << 20  # no honest size is larger; a file that claims one is refused before it is built


def short_repr(value: Any) -> str:
    """A value in a message: one line, never long, never an error of its own."""
    try:
        text = repr(value)
    except ValueError:  # a number of thousands of digits
        text = f"a huge {type(value).__name__}"
    if "\n" in text:
        return f"a {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."


def join_limited(parts: Sequence[str], between: str = "; ", most: int = 8) -> str:
    """The first of many parts of a message, and how many more there are."""
    more = f" and {len(parts) - most} more" if len(parts) > most else ""
    return between.join(parts[:most]) + more


def check_int(
    name: str, value: Any, least: int = 1, most: int = LARGEST, error: type[VitrailError] = ConfigError
) -> int:
    """A whole number in a range; True and False are none."""
    right = type(value) is not bool and isinstance(value, Integral)
    if not right or not least <= value <= most:
        raise error(f"{name}: expected a whole number from {least} to {most}, got {short_repr(value)}")
    return int(value)


def check_ints(name: str, values: Any, least: int = 1, most: int = LARGEST) -> tuple[int, ...]:
    """Several whole numbers."""
    if not isinstance(values, Sequence) or isinstance(values, str):
        raise ConfigError(f"{name}: expected whole numbers, got {short_repr(values)}")
    return tuple(check_int(name, each, least, most) for each in values)


def check_pair(name: str, value: Any, most: int = LARGEST) -> tuple[int, int]:
    """One whole number, or two: 16 -> (16, 16), (16, 8) -> (16, 8)."""
    both = (value, value) if isinstance(value, Integral) else value
    if not isinstance(both, Sequence) or isinstance(both, str) or len(both) != 2:
        raise ConfigError(f"{name}: expected one whole number or a pair (height, width), got {short_repr(value)}")
    return check_int(name, both[0], most=most), check_int(name, both[1], most=most)


def check_number(
    name: str, value: Any, least: float, most: float, below: bool = False, error: type[VitrailError] = ConfigError
) -> float:
    """A finite number in a range; `below` leaves the upper end out."""
    right = type(value) is not bool and isinstance(value, Real)  # no range holds NaN or infinity
    if not right or not least <= value <= most or (below and value == most):
        raise error(f"{name}: expected a number from {least} to {'under ' * below}{most}, got {short_repr(value)}")
    return float(value)


def check_choice(name: str, value: Any, known: Iterable[Any]) -> Any:
    """One of the known values, of the same type: 1 is not True."""
    known = list(known)
    if not any(type(each) is type(value) and each == value for each in known):
        raise ConfigError(f"{name} {short_repr(value)} is unknown: {nearest(short_repr(value).strip(chr(39)), known)}")
    return value


def check_bool(name: str, value: Any) -> bool:
    """True or False; 1 and 0 are neither."""
    if not isinstance(value, bool):
        raise ConfigError(f"{name}: expected True or False, got {short_repr(value)}")
    return value


def check_bools(owner: Any, *names: str) -> None:
    """Fields that are True or False."""
    for name in names:
        check_bool(name, getattr(owner, name))


def check_type(name: str, value: Any, *kinds: type, error: type[VitrailError] = ConfigError) -> Any:
    """An instance of one of the kinds."""
    if not isinstance(value, kinds):
        expected = " or ".join(kind.__name__ for kind in kinds)
        hint = f": pass its .{name}" if isinstance(getattr(value, name, None), kinds) else ""
        raise error(f"{name}: expected {expected}, got {short_repr(value)}{hint}")
    return value


def check_fields(kind: type, plain: Any) -> dict[str, Any]:
    """A mapping whose every name is a field of the dataclass."""
    if not isinstance(plain, Mapping):
        raise ConfigError(f"{kind.__name__}: expected a mapping of settings, got {short_repr(plain)}")
    names = [each.name for each in fields(kind)]
    for name in plain:
        if name not in names:
            raise ConfigError(f"{kind.__name__} has no setting {name!r}: {nearest(str(name), names)}")
    return dict(plain)
