"""Processes that hold a part of the network each: the numbers of one that holds all, and states for any number."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from vitrail.checkpoint import load
from vitrail.training.sharded_training import read_any_state
from vitrail.training.state import State

ROOT = Path(__file__).resolve().parents[2]
Results = dict[str, list[dict[str, Any]]]
STEPS = 8
LEARNT = {"batch": 8, "lr": 3e-4, "ema": 0.9, "clip": 0.5, "pieces": 3, "checkpointing": True}
MUON = {"batch": 6, "lr": 3e-4, "optimiser": "muon"}


def state_of(folder: Path) -> State:
    """The newest state of a run, all of it."""
    path = max((folder / "state").glob("r*"), key=lambda each: each.name)
    run = json.loads(json.loads((path / "manifest.json").read_text())["state"])["run"] if path.is_dir() else ""
    return read_any_state(path, run)


def furthest(one: Path, other: Path) -> float:
    """The largest difference between the newest states of two runs: weights, optimiser and average."""
    ours, theirs = state_of(one), state_of(other)
    assert ours.tensors.keys() == theirs.tensors.keys()
    assert ours.facts["step"] == theirs.facts["step"] > 0
    floats = [name for name, value in ours.tensors.items() if value.is_floating_point()]
    assert len(floats) > 100
    return max(float((ours.tensors[name] - theirs.tensors[name]).abs().max()) for name in floats)


def told_of(results: list[dict[str, Any]]) -> str:
    """What the one that told it said had ended them all."""
    [message] = [each["message"] for each in results if "message" in each]
    assert isinstance(message, str)
    return message


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Results]:
    """All trainings of this file, one after the other: starting processes takes longest."""
    root = tmp_path_factory.mktemp("sharded")
    calm = {"base": "plain", "calm": True, "recipe": LEARNT, "shard": True}
    muon = {"base": "plain", "calm": True, "recipe": MUON, "shard": True}
    lively = {"recipe": {"batch": 10, "pieces": 2}}
    cases: dict[str, dict[str, Any]] = {
        "one": calm | {"world": 1},
        "two": calm | {"world": 2},
        "muon-one": muon | {"world": 1},
        "muon-two": muon | {"world": 2},
        "half-two": muon | {"world": 2, "recipe": MUON | {"precision": "bf16"}},
        "replicas": lively | {"world": 2},
        "shards": lively | {"world": 2, "shard": True},
        "moved-2": calm | {"world": 2, "stop": [1, 3], "folder": "moved"},
        "moved-1": calm | {"world": 1, "stop": [0, 6], "folder": "moved"},
        "moved-3": calm | {"world": 3, "folder": "moved"},
        "other": calm | {"world": 2, "run": "another", "folder": "two"},
        "tiny batch": {"base": "plain", "world": 2, "shard": True, "recipe": {"batch": 2}},
    }
    for name, case in cases.items():
        case["folder"] = str(root / case.get("folder", name))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "tests"), str(ROOT / "src")])
    script = [sys.executable, "-W", "ignore", "-m", "scale.together", json.dumps(list(cases.values()))]
    done = subprocess.run(script, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return root, dict(zip(cases, json.loads(done.stdout), strict=True))


def test_two_come_to_the_numbers_of_one(runs: tuple[Path, Results]) -> None:
    """AdamW, an average, clipping by the norm of all, passes of uneven sizes, blocks computed twice."""
    root, found = runs
    assert [each["step"] for each in found["two"]] == [STEPS, STEPS]
    assert furthest(root / "one", root / "two") <= 1e-6
    assert found["one"][0]["best"] == pytest.approx(found["two"][1]["best"], abs=1e-6)


def test_what_they_write_is_an_ordinary_checkpoint(runs: tuple[Path, Results]) -> None:
    root, _ = runs
    for name in ("best", "last"):
        one, two = (load(root / each / f"{name}.safetensors") for each in ("one", "two"))
        ours, theirs = one.model.state_dict(), two.model.state_dict()
        assert max(float((ours[each] - theirs[each]).abs().max()) for each in ours) <= 1e-6
        assert one.classes == two.classes
    last, average = load(root / "two" / "last.safetensors"), state_of(root / "two").tensors
    assert all(torch.equal(value, average[f"average.{name}"]) for name, value in last.model.state_dict().items())


def test_a_state_holds_a_part_from_each(runs: tuple[Path, Results]) -> None:
    root, _ = runs
    [path] = (root / "two" / "state").glob(f"r000-s{STEPS:09d}*")
    assert sorted(each.name for each in path.iterdir()) == [
        "manifest.json",
        "shard-00001-model-00001-of-00001.safetensors",
        "shard-00002-model-00001-of-00001.safetensors",
    ]
    sizes = [each.stat().st_size for each in path.glob("shard-*")]
    assert min(sizes) > 0.75 * max(sizes)


def test_matrices_are_made_orthogonal_whole(runs: tuple[Path, Results]) -> None:
    """Muon needs all of a matrix, wherever its parts lie."""
    root, _ = runs
    assert furthest(root / "muon-one", root / "muon-two") <= 1e-6


def test_half_precision_is_near_the_full(runs: tuple[Path, Results]) -> None:
    root, _ = runs
    assert 1e-5 < furthest(root / "muon-two", root / "half-two") < 1e-3


def test_chance_is_that_of_processes_with_all_of_the_network(runs: tuple[Path, Results]) -> None:
    """Dropout, drop path, batch norm and its running statistics: the same step, wherever the weights lie."""
    root, _ = runs
    assert furthest(root / "replicas", root / "shards") <= 2e-6


def test_a_run_goes_on_in_one_and_in_three(runs: tuple[Path, Results]) -> None:
    root, found = runs
    assert re.search("stopped at step [34] of 8", told_of(found["moved-2"]))
    assert "stopped at step 6" in found["moved-1"][0]["message"]
    assert [each["step"] for each in found["moved-3"]] == [STEPS] * 3
    assert furthest(root / "one", root / "moved") <= 1e-6
    assert [each["learnt"] for each in found["moved-3"]] == [STEPS - 6] * 3  # from what one had written


def test_a_state_of_another_run_is_refused_by_all(runs: tuple[Path, Results]) -> None:
    _, found = runs
    assert re.search("none of the [23] states in", told_of(found["other"]))


def test_a_batch_with_nothing_for_a_process_is_refused(runs: tuple[Path, Results]) -> None:
    _, found = runs
    assert "a batch of 2 has no images for one of 2 processes" in told_of(found["tiny batch"])
