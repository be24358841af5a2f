"""Sharded states: whole or not there; whatever was done to one, it is refused by name, and never unpickled."""

from __future__ import annotations

import io
import pickle
import random
from functools import partial
from pathlib import Path

import pytest
import torch

from pickle_scan import pickles_in
from training.shard_damage import DAMAGES, States, damaged_copy
from vitrail.errors import CheckpointError
from vitrail.training import sharded_state
from vitrail.training.processes import ALONE
from vitrail.training.sharded_state import check_sharded_state, read_sharded_state, write_sharded_state
from vitrail.training.state import State, clean, find_epoch, find_newest, forget_later, write_state

RUN = "a run"
COUNT = 8  # damages of each kind; stress/sharded_states.py has a thousand


def made(step: int, rollbacks: int = 0, epoch_end: bool = False, seed: int = 0) -> State:
    torch.manual_seed(1000 * seed + step)
    tensors = {f"model.{number}": torch.randn(6, 5) for number in range(5)}
    tensors |= {"optimiser.step.a": torch.tensor(float(step)), "model.half": torch.randn(3).bfloat16()}
    tensors |= {"model.count": torch.tensor(step), "random.torch": torch.arange(9, dtype=torch.uint8)}
    return State(tensors, {"step": step, "rollbacks": rollbacks, "epoch_end": epoch_end, "loss": 0.1 + step})


def same(one: State, other: State) -> bool:
    names = one.tensors.keys() == other.tensors.keys() and dict(one.facts) == dict(other.facts)
    return names and all(
        torch.equal(one.tensors[name], other.tensors[name]) and one.tensors[name].dtype == other.tensors[name].dtype
        for name in one.tensors
    )


def newest(folder: Path, told: list[str]) -> State | None:
    return find_newest(folder, told.append, partial(read_sharded_state, run=RUN))


@pytest.fixture(autouse=True)
def several_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process writes several, as it does of a large network."""
    monkeypatch.setattr(sharded_state, "FILE_BYTES", 250)


@pytest.fixture(scope="module")
def states(tmp_path_factory: pytest.TempPathFactory) -> States:
    """Three states: two of a run, and one of another."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharded_state, "FILE_BYTES", 250)
        root = tmp_path_factory.mktemp("states")
        before = write_sharded_state(root, made(5), RUN, ALONE)
        last = write_sharded_state(root, made(9), RUN, ALONE)
        return States(last, before, write_sharded_state(root / "foreign", made(9, seed=1), "another run", ALONE))


def test_a_state_comes_back_bit_for_bit(tmp_path: Path) -> None:
    path = write_sharded_state(tmp_path, made(7), RUN, ALONE)
    assert path.name == "r000-s000000007.shards"
    assert len(list(path.glob("*.safetensors"))) > 2
    told: list[str] = []
    found = newest(tmp_path, told)
    assert found is not None
    assert same(found, made(7))
    assert not told


@pytest.mark.parametrize("kind", DAMAGES)
def test_whatever_was_done_to_it_the_one_before_is_used(states: States, tmp_path: Path, kind: str) -> None:
    dice = random.Random(f"shards {kind}")
    for number in range(COUNT):
        folder, name = damaged_copy(states, tmp_path / str(number), kind, dice)
        told: list[str] = []
        found = newest(folder, told)
        assert found is not None
        assert same(found, made(5))
        assert len(told) == 1
        assert str(folder / states.newest.name) in told[0]
        assert name in told[0]
        assert told[0].endswith(": falling back to the state before it")


@pytest.mark.parametrize(
    "change, words",
    [
        (
            lambda folder: (folder / "more.safetensors").write_bytes(b""),
            "does not name more.safetensors, which is there",
        ),
        (lambda folder: next(folder.glob("shard*")).unlink(), "missing shard-00001-model-0000"),
        (lambda folder: (folder / "manifest.json").unlink(), "manifest.json is missing"),
        (lambda folder: (folder / "manifest.json").write_text("[]"), "manifest.json is damaged"),
        (lambda folder: next(folder.glob("shard*")).write_bytes(b"x"), "got 1: it is cut short"),
    ],
)
def test_a_refusal_says_what_is_wrong(tmp_path: Path, change: object, words: str) -> None:
    assert callable(change)
    path = write_sharded_state(tmp_path, made(3), RUN, ALONE)
    change(path)
    with pytest.raises(CheckpointError, match=words):
        check_sharded_state(path, RUN)


def test_a_state_of_another_run_or_of_another_step_is_refused(states: States, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is of another run: its manifest.json names another run"):
        check_sharded_state(states.foreign, RUN)
    path = write_sharded_state(tmp_path, made(3), RUN, ALONE)
    moved = path.rename(tmp_path / "r000-s000000004.shards")
    with pytest.raises(CheckpointError, match="is that of another state"):
        check_sharded_state(moved, RUN)
    (tmp_path / "r000-s000000005.shards").symlink_to(moved)
    with pytest.raises(CheckpointError, match="expected a folder of shards"):
        check_sharded_state(tmp_path / "r000-s000000005.shards", RUN)


class Trap:
    """What runs when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return Path.touch, (self.path,)  # type: ignore[return-value]


@pytest.mark.fault("W3")
@pytest.mark.parametrize("is_ours", [True, False])
def test_w3_a_pickle_of_a_distributed_checkpoint_is_never_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_ours: bool
) -> None:
    """Beside sound shards of ours, and in a folder as torch's own writer leaves it."""
    from torch.distributed.checkpoint import FileSystemWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    before = write_sharded_state(tmp_path, made(3), RUN, ALONE)
    path, canary = tmp_path / "r000-s000000009.shards", tmp_path / "canary"
    if is_ours:
        write_sharded_state(tmp_path, made(9), RUN, ALONE)
    else:
        with pytest.warns(UserWarning, match="torch.distributed is disabled"):
            save(dict(made(9).tensors), storage_writer=FileSystemWriter(path))
    (path / ".metadata").write_bytes(pickle.dumps(Trap(canary)))
    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, lambda *given, **more: pytest.fail("a pickle was opened"))
    told: list[str] = []
    found = newest(tmp_path, told)
    assert found is not None
    assert same(found, made(3))
    assert len(told) == 1
    assert f"{path} holds .metadata, the pickle of torch's own distributed checkpoints: refused" in told[0]
    assert not canary.exists()
    assert before.is_dir()


def test_where_none_is_whole_the_run_says_so(tmp_path: Path) -> None:
    for step in (3, 4):
        path = write_sharded_state(tmp_path, made(step), RUN, ALONE)
        (path / "extra").touch()
    with pytest.raises(CheckpointError, match="none of the 2 states in .* can be read: start anew"):
        newest(tmp_path, [])


def test_only_what_may_be_needed_is_kept_in_either_form(tmp_path: Path) -> None:
    write_sharded_state(tmp_path, made(1, epoch_end=True), RUN, ALONE)
    write_state(tmp_path, made(2))
    write_sharded_state(tmp_path, made(3), RUN, ALONE)
    write_sharded_state(tmp_path, made(4), RUN, ALONE)
    assert sorted(each.name for each in tmp_path.iterdir()) == [
        "r000-s000000001-epoch.shards",
        "r000-s000000003.shards",
        "r000-s000000004.shards",
    ]
    write_state(tmp_path, made(4))  # the same step in another form: the later one stands
    assert not (tmp_path / "r000-s000000004.shards").exists()
    write_sharded_state(tmp_path, made(1, rollbacks=1), RUN, ALONE)
    forget_later(tmp_path, 1, 1)
    found = find_epoch(tmp_path, lambda text: None, partial(check_sharded_state, run=RUN))
    assert found is not None
    assert found.facts["step"] == 1


def test_what_a_kill_left_behind_is_no_state_and_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed anywhere before the folder has its name, the state before it is the newest."""

    class Killed(BaseException):
        pass

    for point in ("before-write", "written", "synced"):
        write_sharded_state(tmp_path, made(3), RUN, ALONE)

        def kill(name: str, point: str = point) -> None:
            if name == point:
                raise Killed

        with monkeypatch.context() as patch:
            patch.setattr(sharded_state, "reached", kill)
            with pytest.raises(Killed):
                write_sharded_state(tmp_path, made(4), RUN, ALONE)
        assert list(tmp_path.glob(".*.tmp"))
        found = newest(tmp_path, [])
        assert found is not None
        assert found.facts["step"] == 3
        clean(tmp_path)
        assert [each.name for each in tmp_path.iterdir()] == ["r000-s000000003.shards"]


def test_what_does_not_read_back_is_an_error_and_removes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = write_sharded_state(tmp_path, made(3), RUN, ALONE)

    def rot(name: str) -> None:
        if name == "written":
            for path in tmp_path.glob(".*.tmp/shard*"):
                path.write_bytes(path.read_bytes()[:-1] + b"!")

    monkeypatch.setattr(sharded_state, "reached", rot)
    with pytest.raises(CheckpointError, match="does not read back as it was written"):
        write_sharded_state(tmp_path, made(4), RUN, ALONE)
    assert check_sharded_state(before, RUN).facts["step"] == 3
    assert not list(tmp_path.glob("*4.shards"))


def test_the_scan_finds_every_pickle_that_is_there(tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    for protocol in range(6):
        (tmp_path / "whole" / f"{protocol}").write_bytes(pickle.dumps({"a": [1, 2.5, None]}, protocol))
    assert len(pickles_in(tmp_path / "whole")) == 6
    noise = random.Random(1).randbytes(50_000)
    (tmp_path / "inside").mkdir()
    for protocol in range(2, 6):
        raw = noise[:20_000] + pickle.dumps(Trap(tmp_path), protocol) + noise[20_000:]
        (tmp_path / "inside" / f"{protocol}").write_bytes(raw)
    assert [each.partition(" at ")[0] for each in pickles_in(tmp_path / "inside")] == ["2", "3", "4", "5"]
    (tmp_path / "archive").mkdir()
    archive = io.BytesIO()
    torch.save({"a": torch.ones(2)}, archive)
    (tmp_path / "archive" / "model.bin").write_bytes(archive.getvalue())
    assert any("data.pkl at 0" in each for each in pickles_in(tmp_path / "archive"))
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "noise").write_bytes(noise)
    assert pickles_in(tmp_path / "none") == []


def test_no_pickle_is_in_a_sharded_state(states: States) -> None:
    assert pickles_in(states.newest.parent) == []
