"""Every known family by name, in the order in which a file is held against them: one module each."""

from __future__ import annotations

from importlib import import_module
from typing import Final

from vitrail.weights.family import Family
from vitrail.weights.family_names import FAMILY_NAMES

FAMILIES: Final[dict[str, Family]] = {
    name: import_module(f"{__name__}.{name.replace('-', '_')}").FAMILY for name in FAMILY_NAMES
}
