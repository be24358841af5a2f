"""Ways in which a sharded state is damaged: each leaves a folder that is not as it was written."""

from __future__ import annotations

import pickle
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple


class States(NamedTuple):
    """A sharded state, the one before it, and one of another run with the same names of files."""

    newest: Path
    before: Path
    foreign: Path


def _file(folder: Path, dice: random.Random) -> Path:
    return dice.choice(sorted(each for each in folder.iterdir()))


def _shard(folder: Path, dice: random.Random) -> Path:
    return dice.choice(sorted(folder.glob("*.safetensors")))


def flip(states: States, dice: random.Random) -> str:
    """One bit anywhere, in a shard or in the manifest."""
    path = _file(states.newest, dice)
    raw = bytearray(path.read_bytes())
    place = dice.randrange(len(raw)) if dice.random() < 0.5 else dice.randrange(min(len(raw), 256))  # headers too
    raw[place] ^= 1 << dice.randrange(8)
    path.write_bytes(raw)
    return path.name


def cut(states: States, dice: random.Random) -> str:
    """The end of a file, or all of it; or something behind it."""
    path = _file(states.newest, dice)
    raw = path.read_bytes()
    kept = dice.choice([0, 8, len(raw) - 1, dice.randrange(len(raw))])
    path.write_bytes(raw[:kept] if dice.random() < 0.9 else raw + b"\0")
    return path.name


def missing(states: States, dice: random.Random) -> str:
    """A file is gone."""
    path = _file(states.newest, dice)
    path.unlink()
    return path.name


def extra(states: States, dice: random.Random) -> str:
    """A file too many: another shard that would be read with the rest, a pickle, a folder, a link."""
    kind = dice.randrange(5)
    shard = f"shard-0000{dice.randint(3, 9)}-model-00001-of-00001.safetensors"
    name = (shard, ".metadata", "notes.txt", "more", "x")[kind]
    path = states.newest / name
    if kind == 0:
        shutil.copy(_shard(states.foreign, dice), path)
    elif kind == 1:
        path.write_bytes(pickle.dumps({"plain": [1, 2]}))
    elif kind == 2:
        path.write_text("mine")
    elif kind == 3:
        path.mkdir()
    else:
        path.symlink_to("/dev/null")
    return name


def foreign_shard(states: States, dice: random.Random) -> str:
    """A sound shard of the same name and size, of an earlier state or of another run."""
    path = _shard(states.newest, dice)
    source = dice.choice([states.before, states.foreign]) / path.name
    if dice.random() < 0.2:  # one of another rank
        source = dice.choice([each for each in sorted(states.newest.glob("*.safetensors")) if each.name != path.name])
    shutil.copy(source, path)
    return path.name


def foreign_manifest(states: States, dice: random.Random) -> str:
    """The manifest of another run or state; or all of another's state under this name."""
    if dice.random() < 0.3:
        shutil.rmtree(states.newest)
        shutil.copytree(dice.choice([states.before, states.foreign]), states.newest)
    else:
        shutil.copy(dice.choice([states.before, states.foreign]) / "manifest.json", states.newest / "manifest.json")
    return states.newest.name


DAMAGES: dict[str, Callable[[States, random.Random], str]] = {
    each.__name__: each for each in (flip, cut, missing, extra, foreign_shard, foreign_manifest)
}


def contents(folder: Path) -> dict[str, bytes]:
    """The files of a folder, to see whether anything changed."""
    return {each.name: each.read_bytes() if each.is_file() else b"" for each in folder.iterdir()}


def damaged_copy(states: States, root: Path, kind: str, dice: random.Random) -> tuple[Path, str]:
    """A folder of states of which the newest is damaged, and the file that a refusal has to name."""
    shutil.rmtree(root, ignore_errors=True)
    copies = States(root / states.newest.name, root / states.before.name, states.foreign)
    while True:
        for old, new in zip(states[:2], copies[:2], strict=True):
            shutil.rmtree(new, ignore_errors=True)
            shutil.copytree(old, new)
        name = DAMAGES[kind](copies, dice)
        if contents(copies.newest) != contents(states.newest):  # shards of two states can be the same
            return root, name
