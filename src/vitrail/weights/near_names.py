"""A name or path that leads to no checkpoint -> what may have been meant, in words; empty where nothing is near."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from vitrail.network.presets import PRESETS
from vitrail.weights.hub import names_in_folder
from vitrail.weights.pretrained import PRETRAINED
from vitrail.weights.reading.model_folders import ENDINGS

KINDS: Final = ("hf", "timm", "vitrail")
WEIGHTS: Final = (".safetensors", *ENDINGS)
REPOSITORY: Final = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
SLIP: Final = 0.95  # likeness of names that differ by a slip alone: published names are long, and much alike
NEAR: Final = 0.8


def near_name(source: str) -> str:
    """For a name such as timm:vit_tiny: "did you mean ...?", of what is published and of the user's own folder."""
    published = [each.name for each in PRETRAINED]
    if source in published:
        return ""
    begun = [name for name in published if name.startswith(f"{source}.")]
    return _question([*_close(source, names_in_folder(), NEAR), *begun, *_close(source, published, SLIP)])


def near_path(path: str) -> str:
    """For a path that is not there: a preset, a name without its kind or with another, a file or run beside it."""
    if path in PRESETS:
        trained = [each.name for each in PRETRAINED if each.preset == path]
        weights = f"; trained weights for it: {', '.join(trained)}" if trained else ""
        return f"that is a preset, which has no weights: `vitrail train --model {path}` trains it from nothing{weights}"
    kind, colon, rest = path.partition(":")
    if colon and (right := _close(kind.lower(), KINDS, 0.7)):
        return _known(f"{right[0]}:{rest}") or _question([f"{right[0]}:{rest}"])
    named = _known(f"hf:{path}" if "/" in path else f"timm:{path}")
    return _question(_beside(Path(path))) or named or _question(_repository(path))


def _known(name: str) -> str:
    """A name that is published or lies in the user's folder, as it is or nearly."""
    return near_name(name) or (_question([name]) if any(name == each.name for each in PRETRAINED) else "")


def _beside(path: Path) -> list[str]:
    """Runs, folders and files of weights in the same folder, whose names are alike."""
    if not path.parent.is_dir():
        return []
    stems = {each.stem: str(each) for each in path.parent.iterdir() if each.is_dir() or each.suffix in WEIGHTS}
    return [stems[stem] for stem in _close(path.stem, stems, NEAR)]


def _repository(path: str) -> list[str]:
    """owner/name, where no such folder and no such ending says that a file was meant."""
    is_file = path.endswith(WEIGHTS) or os.path.isdir(os.path.dirname(path))
    return [f"hf:{path}"] if REPOSITORY.fullmatch(path) and not is_file else []


def _close(name: str, known: Iterable[str], likeness: float) -> list[str]:
    return difflib.get_close_matches(name, list(known), n=1, cutoff=likeness)


def _question(names: Iterable[str]) -> str:
    """The first of them."""
    name = next(iter(names), "")
    return f"did you mean {name!r}?" if name else ""
