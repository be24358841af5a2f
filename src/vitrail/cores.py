"""Cores that this process may use: those it is bound to, and the time that its control groups leave it -> Cores."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import NamedTuple


class Cores(NamedTuple):
    """How much of a machine is this process's own."""

    machine: int  # cores that the machine has
    allowed: int  # of them, those that this process may run on
    limit: float | None = None  # cores' worth of time that its control groups leave it; None: no limit
    limited_by: str = ""  # the file that says so

    @property
    def threads(self) -> int:
        """Threads that these cores can feed: a limit counts to the nearest whole number, and one is the least."""
        if self.limit is None:
            return self.allowed
        return max(1, min(self.allowed, int(self.limit + 0.5)))

    def __str__(self) -> str:
        bound = f" of {self.machine}, by the affinity of this process" if self.allowed < self.machine else ""
        limit = "" if self.limit is None else f"; the time of {self.limit:g}, by {self.limited_by}"
        return f"{self.allowed}{bound}{limit}"


def usable_cores(root: Path = Path("/")) -> Cores:
    """The cores of this process, as the system tells; `root` is where its files are."""
    machine = os.cpu_count() or 1
    bound = getattr(os, "sched_getaffinity", None)  # not on macOS and Windows
    allowed = len(bound(0)) if bound is not None else machine
    limits = sorted(_limits(root))
    return Cores(max(machine, allowed), allowed, *limits[0]) if limits else Cores(max(machine, allowed), allowed)


def _limits(root: Path) -> Iterator[tuple[float, str]]:
    """Every limit of time that holds for this process, in cores, with the file it stands in: its groups' and theirs."""
    for mounted, folder in _groups(root):
        for group in (folder, *folder.parents):
            try:
                if (group / "cpu.max").exists():
                    quota, period = (group / "cpu.max").read_text("utf-8").split()
                    name = "cpu.max"
                else:
                    quota = (group / "cpu.cfs_quota_us").read_text("utf-8")
                    period = (group / "cpu.cfs_period_us").read_text("utf-8")
                    name = "cpu.cfs_quota_us"
                if quota != "max" and int(quota) > 0 and int(period) > 0:
                    yield int(quota) / int(period), f"/{(group / name).relative_to(root)}"
            except (OSError, ValueError):
                pass  # a group without such a file, as the topmost is, sets no limit
            if group == mounted:
                break


def _groups(root: Path) -> Iterator[tuple[Path, Path]]:
    """Where the control groups that share out time are mounted, each with the folder of this process's own group."""
    groups: dict[str, str] = {}
    mounts: list[str] = []
    with suppress(OSError, ValueError):
        for line in (root / "proc/self/cgroup").read_text("utf-8").splitlines():
            _, controllers, group = line.split(":", 2)
            groups |= dict.fromkeys(controllers.split(","), group)  # "" is the one hierarchy of version 2
        mounts = (root / "proc/self/mountinfo").read_text("utf-8").splitlines()
    for line in mounts:
        before, _, after = line.partition(" - ")
        kind, _, options = (*after.split(" "), "", "")[:3]
        if not (kind == "cgroup2" or (kind == "cgroup" and "cpu" in options.split(","))):
            continue
        controller = "" if kind == "cgroup2" else "cpu"
        if controller not in groups:
            continue
        inside, mounted = (_unescaped(word) for word in before.split(" ")[3:5])
        place = root / mounted.lstrip("/")
        yield place, place.joinpath(*_below(groups[controller], inside))


def _below(group: str, inside: str) -> tuple[str, ...]:
    """The way from what is mounted to a group; none where the group lies outside, as in a container it may."""
    path = PurePosixPath(group)
    if ".." in path.parts or not path.is_relative_to(inside):
        return ()
    return path.relative_to(inside).parts


def _unescaped(word: str) -> str:
    """A word of the list of mounts, which writes a space as \\040."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), word)
