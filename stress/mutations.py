"""Faults put into the code one at a time, to see whether the tests notice: a survivor is a missing test.

    python stress/mutations.py                          every fault of stress/faults/*.toml
    python stress/mutations.py --only training/clip     those whose name is, or starts with, this
    python stress/mutations.py --sample 20 --seed 3     so many of them, drawn with a seed
    python stress/mutations.py --list                   only their names

A fault is a few characters of a file and what they become, with the tests that should fail for it. Each is put into a
copy of the working tree, never into the tree itself. The tests must pass in the copy as it is, or nothing is said about
faults. One line a fault: caught, SURVIVED, or BROKEN where the fault no longer fits the code (then nothing was shown);
the last line is `N caught, M survived`. Exits 0 where every fault was caught.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import random
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
FAULTS = ROOT / "stress" / "faults"
SECONDS = 600  # for the tests of one fault: a fault that makes them hang is noticed too
FAILED = 1  # pytest's exit code for tests that ran and failed; others mean that they could not run


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A few characters of a file, what they become, and the tests that should notice."""

    name: str  # room/what-is-wrong
    file: str  # from the project's root
    line: str  # stands there exactly once
    becomes: str
    tests: tuple[str, ...]  # pytest's node ids, from the project's root

    def applied(self, text: str) -> str:
        """The file's text with the fault in it; ValueError where it does not fit."""
        count = text.count(self.line)
        if count != 1:
            raise ValueError(f"{self.file} holds its line {count} times, expected once: {self.line!r}")
        changed = text.replace(self.line, self.becomes)
        if changed == text:
            raise ValueError("it changes nothing")
        if self.file.endswith(".py"):
            compile(changed, self.file, "exec")
        return changed


@dataclass(frozen=True)
class Outcome:
    """What became of a fault: caught, SURVIVED or BROKEN; and the test that saw it, or why it could not be shown."""

    fault: Fault
    verdict: str
    detail: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.verdict:<8} {self.fault.name:<52} {self.seconds:5.1f} s  {self.detail}"


def read_faults(folder: Path = FAULTS) -> list[Fault]:
    """Every fault, room by room; a name that stands twice, or an unknown key, is refused."""
    faults: list[Fault] = []
    for path in sorted(folder.glob("*.toml")):
        for row in tomllib.loads(path.read_text("utf-8"))["fault"]:
            faults.append(Fault(**row | {"name": f"{path.stem}/{row['name']}", "tests": tuple(row["tests"])}))
    names = [fault.name for fault in faults]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SystemExit(f"these names stand more than once: {', '.join(twice)}")
    return faults


def chosen(faults: Sequence[Fault], only: Sequence[str], sample: int | None, seed: int) -> list[Fault]:
    """Those asked for by name, and of these a sample; in their order."""
    for name in only:
        if not any(fault.name.startswith(name) for fault in faults):
            raise SystemExit(f"no fault is called {name!r}: --list names them")
    found = [fault for fault in faults if not only or fault.name.startswith(tuple(only))]
    if sample is not None and sample < len(found):
        drawn = random.Random(seed).sample(range(len(found)), sample)
        found = [found[place] for place in sorted(drawn)]
    return found


@contextmanager
def copies(count: int) -> Iterator[list[Path]]:
    """So many copies of the working tree, without what git ignores."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    names = [os.fsdecode(name) for name in listed.stdout.split(b"\0") if name]
    with tempfile.TemporaryDirectory(prefix="vitrail-mutations-") as folder:
        trees = [Path(folder) / str(number) / "vitrail" for number in range(count)]
        for tree in trees:
            for name in names:
                if (ROOT / name).is_file():
                    (tree / name).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(ROOT / name, tree / name)
        yield trees


def environment(tree: Path) -> dict[str, str]:
    """Of a process that imports the copy, writes no bytecode that could outlive a fault, and finds the fixtures."""
    fixtures = os.environ.get("VITRAIL_FIXTURES") or str(ROOT.parent / "shared" / "fixtures")
    return os.environ | {
        "PYTHONPATH": str(tree / "src"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "VITRAIL_FIXTURES": fixtures,
    }


# Starting Python and torch anew for every fault would take most of the time: a process imports what never changes, and
# each run of the tests is a fork of it. vitrail itself is imported in the fork alone.
SERVER = """
import json, os, signal, sys, time
import numpy, PIL.Image, pytest, safetensors.torch, torch, torch.utils.checkpoint

for line in sys.stdin:
    log, seconds, flags = json.loads(line)
    number = os.fork()
    if number == 0:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for stream in (1, 2):
            os.dup2(os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND), stream)
        if "vitrail" in sys.modules:
            os._exit(99)
        code = int(pytest.main(flags))
        import vitrail
        inside = os.path.realpath(vitrail.__file__).startswith(os.path.realpath(os.getcwd()))
        sys.stdout.flush()
        os._exit(code if inside else 98)
    ends = time.monotonic() + seconds
    while not (found := os.waitpid(number, os.WNOHANG))[0]:
        if time.monotonic() > ends:
            os.killpg(number, signal.SIGKILL)
            os.waitpid(number, 0)
            break
        time.sleep(0.02)
    print(os.waitstatus_to_exitcode(found[1]) if found[0] else "late", flush=True)
"""


class Ran(NamedTuple):
    """A run of pytest: its exit code, None if it did not end in time, and what it printed."""

    code: int | None
    text: str


class Copy:
    """A copy of the tree, and a process that runs tests in it."""

    def __init__(self, tree: Path) -> None:
        self.tree = tree
        self.server = subprocess.Popen(
            [sys.executable, "-c", SERVER],
            cwd=tree,
            env=environment(tree),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def pytest(self, tests: Sequence[str], *flags: str, seconds: float = 1e9) -> Ran:
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        log = self.tree.parent / "log.txt"
        log.write_text("")
        command = ["-q", "--no-header", "--tb=line", "-p", "no:cacheprovider", "--durations=0", "--durations-min=1e9"]
        self.server.stdin.write(json.dumps([str(log), seconds, [*command, *flags, *tests]]) + "\n")
        self.server.stdin.flush()
        answer = self.server.stdout.readline().strip()
        return Ran(None if answer == "late" else int(answer), log.read_text(errors="replace"))

    def close(self) -> None:
        self.server.__exit__(None, None, None)  # closes its pipes, upon which it ends

    def try_fault(self, fault: Fault) -> Outcome:
        """Put one fault in, run its tests, and take it out again."""
        path, started = self.tree / fault.file, time.monotonic()
        original = path.read_bytes() if path.is_file() else b""

        def outcome(verdict: str, detail: str) -> Outcome:
            return Outcome(fault, verdict, detail, time.monotonic() - started)

        try:
            changed = fault.applied(original.decode())
        except (ValueError, SyntaxError) as error:
            return outcome("BROKEN", str(error))
        path.write_text(changed, "utf-8")
        try:
            ran = self.pytest(fault.tests, "-x", seconds=SECONDS)
        finally:
            path.write_bytes(original)
        if ran.code is None:
            return outcome("caught", f"no end within {SECONDS} s")
        if ran.code == FAILED:
            return outcome("caught", first_failure(ran.text))
        if ran.code == 0:
            return outcome("SURVIVED", f"these passed: {' '.join(fault.tests)}")
        last = ran.text.strip().splitlines()
        return outcome("BROKEN", f"pytest exited {ran.code}: {last[-1] if last else 'no output'}")


def first_failure(text: str) -> str:
    """The test that saw a fault, as pytest's summary names it."""
    for line in text.splitlines():
        if line.startswith(("FAILED ", "ERROR ")):
            return line.split(" ", 1)[1].split(" - ")[0]
    return "a test failed"


def sound(copy: Copy, tests: Sequence[str]) -> bool:
    """Whether tests pass in a copy without a fault; what does not is printed."""
    ran = copy.pytest(tests) if tests else Ran(0, "")
    if ran.code != 0:
        print(ran.text[-4000:])
    return ran.code == 0


def by_file(tests: Sequence[str], parts: int) -> list[list[str]]:
    """Tests dealt out, those of a file together."""
    files = sorted({test.partition("::")[0] for test in tests})
    return [[test for test in tests if test.partition("::")[0] in files[part::parts]] for part in range(parts)]


def main() -> int:
    parser = argparse.ArgumentParser(description="Put faults into the code, and see whether the tests notice.")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="a name or its start; repeatable")
    parser.add_argument("--sample", type=int, metavar="N", help="so many of them, at random")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="faults tried at a time, a copy each")
    parser.add_argument("--list", action="store_true", help="print the names and stop")
    arguments = parser.parse_args()

    faults = chosen(read_faults(), arguments.only, arguments.sample, arguments.seed)
    if arguments.list:
        print("\n".join(fault.name for fault in faults))
        return 0
    if arguments.sample is not None:
        print(f"seed {arguments.seed}")
    tests = sorted({test for fault in faults for test in fault.tests})
    print(f"{len(faults)} faults; first their {len(tests)} tests, without a fault ...", flush=True)
    outcomes: list[Outcome] = []
    with copies(max(1, arguments.jobs)) as trees, ThreadPoolExecutor(len(trees)) as pool:
        open_copies = [Copy(tree) for tree in trees]
        free: queue.SimpleQueue[Copy] = queue.SimpleQueue()
        for copy in open_copies:
            free.put(copy)

        def one(fault: Fault) -> Outcome:
            copy = free.get()
            try:
                return copy.try_fault(fault)
            finally:
                free.put(copy)

        try:
            if not all(pool.map(sound, open_copies, by_file(tests, len(open_copies)))):
                print("these tests must pass before a fault can be shown")
                return 2
            for outcome in pool.map(one, faults):
                print(outcome, flush=True)
                outcomes.append(outcome)
        finally:
            for copy in open_copies:
                copy.close()
    verdicts = [outcome.verdict for outcome in outcomes]
    if "BROKEN" in verdicts:
        print(f"{verdicts.count('BROKEN')} broken: they no longer fit the code")
    print(f"{verdicts.count('caught')} caught, {verdicts.count('SURVIVED')} survived")
    return int(verdicts.count("caught") != len(outcomes))


if __name__ == "__main__":
    sys.exit(main())
