"""Settings that carry their checks: `width: Count = 768` in a frozen dataclass, `settle(self)` in its __post_init__."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from types import NoneType
from typing import Annotated, Any, get_args, get_type_hints

from vitrail.checks import check_bool, check_choice, check_int, check_ints, check_number, check_pair, check_type

Check = Callable[[str, Any], Any]  # the name and value of a setting -> the value as it is kept, or an error


def one_of(*known: str) -> Check:
    return partial(check_choice, known=known)


def between(least: float, most: float, below: bool = False) -> Check:
    return partial(check_number, least=least, most=most, below=below)


Count = Annotated[int, check_int]  # from 1
Number = Annotated[int, partial(check_int, least=0)]
Pair = Annotated[tuple[int, int], check_pair]  # (height, width); one number means square
Counts = Annotated[tuple[int, ...], check_ints]
Flag = Annotated[bool, check_bool]
Share = Annotated[float, between(0.0, 1.0, below=True)]
Eps = Annotated[float, between(0.0, 1.0)]
Factor = Annotated[float, between(1.0, 100.0)]


@cache
def checks_of(kind: Any) -> dict[str, Check]:
    """The check of every setting of a dataclass, from its type."""
    return {name: _check_of(hint) for name, hint in get_type_hints(kind, include_extras=True).items()}


def _check_of(hint: Any) -> Check:
    if hasattr(hint, "__metadata__"):
        return partial(hint.__metadata__[0])
    kinds = [each for each in get_args(hint) or (hint,) if each is not NoneType]
    check = _check_of(kinds[0]) if hasattr(kinds[0], "__metadata__") else partial(_check_kind, kinds=kinds)
    if NoneType in get_args(hint):  # may be left out
        return lambda name, value: None if value is None else check(name, value)
    return check


def _check_kind(name: str, value: Any, kinds: list[type]) -> Any:
    return check_type(name, value, *kinds)


def settle(owner: Any, of: str = "") -> None:
    """Check every setting of a frozen dataclass, and keep it as its check gives it back: pairs, tuples, floats."""
    for name, check in checks_of(owner.__class__).items():
        object.__setattr__(owner, name, check(of + name, getattr(owner, name)))
