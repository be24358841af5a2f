"""Damage sharded states, and see whether any is taken for sound; scan folders that we write for pickles.

    python stress/sharded_states.py --count 1000 --seed 0

Two processes (gloo) train a tiny network with `shard`, and leave states; two others leave those of another run. Each
damage is done to a copy of the two newest: a bit flipped, a file cut, missing, too many, a shard or a manifest of
another state or run. It passes when the damaged one is refused by one line that names the file, and the state before it
comes back bit for bit. The folders of that run, and of a whole `train` with its report, hold no pickle. Prints one JSON
object. All of it is a function of the seed, but for the steps after which the states were written.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import torch
import torch.distributed.checkpoint
import torch.distributed.fsdp

from pickle_scan import pickles_in
from scale.together import run_case
from training import tiny
from training.shard_damage import DAMAGES, States, damaged_copy
from vitrail.training import train
from vitrail.training.sharded_state import ShardManifest
from vitrail.training.sharded_training import read_any_state
from vitrail.training.state import State, find_newest


def make_states(root: Path) -> States:
    """The states of two runs, by real processes."""
    case = {"world": 2, "shard": True}
    stopped = run_case(case | {"folder": str(root / "run"), "stop": [1, 6]})
    ended = run_case(case | {"folder": str(root / "run")})
    other = run_case(case | {"folder": str(root / "other"), "run": "another"})
    if not any("error" in each for each in stopped) or any("step" not in each for each in ended + other):
        raise SystemExit(f"the trainings failed: {stopped}, {ended}, {other}")
    newest, before = _states(root / "run")[:2]
    return States(newest, before, _states(root / "other")[0])


def _states(folder: Path) -> list[Path]:
    """The states of a run, the newest first."""
    return sorted((folder / "state").glob("*.shards"), key=lambda path: path.name, reverse=True)


def same(one: State, other: State) -> bool:
    """Whether two states have the same bits."""
    if one.tensors.keys() != other.tensors.keys() or one.facts != other.facts:
        return False
    return all(torch.equal(value, other.tensors[name]) for name, value in one.tensors.items())


def damages(root: Path, count: int, seed: int) -> dict[str, object]:
    """Damage after damage, each kind in its turn."""
    states = make_states(root)
    manifest = ShardManifest.from_json((states.newest / "manifest.json").read_text())
    read = partial(read_any_state, run=manifest.run)
    expected, dice = read(states.before), random.Random(seed)
    refused: Counter[str] = Counter()
    wrong: list[str] = []
    for number in range(count):
        kind = list(DAMAGES)[number % len(DAMAGES)]
        folder, name = damaged_copy(states, root / "damaged", kind, dice)
        told: list[str] = []
        found = find_newest(folder, told.append, read)
        path = str(folder / states.newest.name)
        if found is not None and same(found, expected) and len(told) == 1 and path in told[0] and name in told[0]:
            refused[kind] += 1
        else:
            wrong.append(f"{number} {kind} {name}: {told}")
    return {"refused": dict(refused), "wrong": wrong}


def scans(root: Path) -> dict[str, object]:
    """Pickles in the folders of runs, and how many files were looked through."""
    recipe = replace(tiny.RECIPE, epochs=2)
    train(tiny.make_images(), model=tiny.CONFIG, recipe=recipe, out=root / "runs", name="whole", check=False)
    folders = {"sharded": root / "run", "whole": root / "runs" / "whole"}
    return {
        "files": {name: sum(each.is_file() for each in path.rglob("*")) for name, path in folders.items()},
        "pickles": [f"{name}: {each}" for name, path in folders.items() for each in pickles_in(path)],
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--count", type=int, default=1000)
    options.add_argument("--seed", type=int, default=0)
    chosen = options.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        result = damages(Path(place), chosen.count, chosen.seed)
        result |= scans(Path(place))
    print(json.dumps(vars(chosen) | result | {"seconds": round(time.monotonic() - started, 1)}))
    sys.exit(1 if result["wrong"] or result["pickles"] else 0)


if __name__ == "__main__":
    main()
