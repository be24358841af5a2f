"""Every known family by name, in the order in which a file is held against them: one module each."""

from __future__ import annotations

from importlib import import_module
from typing import Final

from vitrail.weights.family import Family
from vitrail.weights.family_names import FAMILY_NAMES


def _family(name: str) -> Family:
    family: Family = import_module(f"{__name__}.{name.replace('-', '_')}").FAMILY
    return family


FAMILIES: Final[dict[str, Family]] = {name: _family(name) for name in FAMILY_NAMES}
