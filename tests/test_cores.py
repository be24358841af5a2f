"""The cores of a process: what it is bound to, and what its control groups leave it, read from planted files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from vitrail.cores import Cores, usable_cores

V1 = "35 22 0:3 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct"
V2 = "30 23 0:28 / /sys/fs/cgroup rw,nosuid,nodev - cgroup2 cgroup2 rw,nsdelegate"
OTHER = "31 23 0:29 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory"


@pytest.fixture(autouse=True)
def eight(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that may run on 8 of 16 cores."""
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)


def plant(root: Path, mounts: str, groups: str, **files: str) -> Path:
    """A system's files; `__` in a name stands for a slash."""
    texts = {"proc/self/mountinfo": mounts + "\n", "proc/self/cgroup": groups + "\n"}
    for name, text in (texts | {name.replace("__", "/"): text for name, text in files.items()}).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def v2(root: Path, group: str, mounts: str = V2, **quotas: str) -> Cores:
    """Of version 2: a file cpu.max in each folder that is named."""
    for folder, quota in quotas.items():
        place = root / "sys/fs/cgroup" / folder.replace("__", "/").removeprefix("top")
        place.mkdir(parents=True, exist_ok=True)
        (place / "cpu.max").write_text(quota + "\n")
    return usable_cores(plant(root, mounts, f"0::{group}"))


def test_the_cores_are_those_this_process_is_bound_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert usable_cores(tmp_path) == Cores(16, 8)
    assert str(usable_cores(tmp_path)) == "8 of 16, by the affinity of this process"
    monkeypatch.delattr(os, "sched_getaffinity")
    assert usable_cores(tmp_path) == Cores(16, 16)
    assert str(usable_cores(tmp_path)) == "16"
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert usable_cores(tmp_path).threads == 1


def test_this_machine_has_cores() -> None:
    assert 1 <= usable_cores().threads <= 8


def test_the_least_limit_of_all_groups_above_holds(tmp_path: Path) -> None:
    found = v2(tmp_path, "/jobs/mine", jobs="150000 100000", jobs__mine="400000 100000")
    assert found == Cores(16, 8, 1.5, "/sys/fs/cgroup/jobs/cpu.max")
    assert str(found).endswith("; the time of 1.5, by /sys/fs/cgroup/jobs/cpu.max")


def test_a_group_without_a_limit_is_not_limited(tmp_path: Path) -> None:
    assert v2(tmp_path, "/jobs/mine", jobs__mine="max 100000") == Cores(16, 8)


@pytest.mark.parametrize(
    "group, inside",
    [("/", "/"), ("/docker/ab12", "/docker/ab12"), ("/../../jobs", "/"), ("/elsewhere", "/docker/ab12")],
)
def test_in_a_container_the_group_is_what_is_mounted(tmp_path: Path, group: str, inside: str) -> None:
    mounts = V2.replace("0:28 /", f"0:28 {inside}")
    assert v2(tmp_path, group, mounts, top="200000 100000") == Cores(16, 8, 2.0, "/sys/fs/cgroup/cpu.max")


def test_limits_of_version_1(tmp_path: Path) -> None:
    folder = "sys__fs__cgroup__cpu,cpuacct__jobs__"
    quota = {f"{folder}cpu.cfs_quota_us": "250000\n", f"{folder}cpu.cfs_period_us": "100000\n"}
    top = {name.replace("jobs__", ""): text for name, text in quota.items()}
    root = plant(tmp_path, f"{OTHER}\n{V1}", "4:memory:/jobs\n3:cpu,cpuacct:/jobs\n0::/", **quota)
    assert usable_cores(root) == Cores(16, 8, 2.5, "/sys/fs/cgroup/cpu,cpuacct/jobs/cpu.cfs_quota_us")
    plant(tmp_path, V1, "3:cpu,cpuacct:/jobs", **quota | top | {f"{folder}cpu.cfs_quota_us": "-1\n"})
    assert usable_cores(root).limit == 2.5  # that of the group above
    plant(tmp_path, V1, "3:cpu,cpuacct:/", **dict.fromkeys(top, "-1\n"))
    assert usable_cores(root) == Cores(16, 8)


@pytest.mark.parametrize("spoiled", ["", "max", "a b c", "0 100000", "100000 0", "fast 100000"])
def test_files_that_say_nothing_set_no_limit(tmp_path: Path, spoiled: str) -> None:
    assert v2(tmp_path, "/mine", mine=spoiled) == Cores(16, 8)
    assert usable_cores(plant(tmp_path, "no mounts\n\n - cgroup2", "nothing\n")) == Cores(16, 8)


@pytest.mark.parametrize(
    "limit, threads", [(None, 8), (0.1, 1), (1.0, 1), (1.4, 1), (1.5, 2), (2.5, 3), (7.6, 8), (64.0, 8)]
)
def test_a_limit_feeds_so_many_threads(limit: float | None, threads: int) -> None:
    assert Cores(16, 8, limit).threads == threads


def test_mounts_may_have_spaces_in_their_names(tmp_path: Path) -> None:
    (tmp_path / "my groups").mkdir()
    (tmp_path / "my groups" / "cpu.max").write_text("300000 100000\n")
    root = plant(tmp_path, V2.replace("/sys/fs/cgroup", "/my\\040groups"), "0::/")
    assert usable_cores(root).limit == 3.0
