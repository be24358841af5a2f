"""A training beside other work on the same cores: how many times as long it takes, by how its threads wait.

    python benchmarks/shared_machine.py                              as torch does by itself, and as we set it
    python benchmarks/shared_machine.py --ways none,spin:100,spin:1000,spin:10000,spin:100000,passive --rounds 3
    python benchmarks/shared_machine.py --ways none,ours,block:0,block:1 --preload libiomp5.so    Intel's runtime
    python benchmarks/shared_machine.py --quick                      few images, one round: only whether it runs

Times `vitrail train vitrail:fashion --epochs 1` as a whole, alone and beside busy processes. Each of these, and the
training, has a session of its own: the kernel shares out the cores by session (autogroup), as between people who work
on one machine. In a round every way takes its turn, in random order, first alone, then beside the others. "beside" is
its time beside the others divided by its own time alone; "alone" is its time alone divided by that of `none` in the
same round: medians, with quartiles. A fair share of the time is (busy + 1) / cores where the training keeps all cores
busy. Whatever ends this script ends the busy processes too: they watch who started them.

Ways: `none`, nothing is set; `ours`, what the command line sets; `spin:N`, GOMP_SPINCOUNT=N; `block:N`,
KMP_BLOCKTIME=N milliseconds; `passive` and `active`, OMP_WAIT_POLICY.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
MOST_BESIDE, MOST_ALONE = 6.0, 1.03  # what is promised of `ours`
SETTINGS = ("GOMP_SPINCOUNT", "KMP_BLOCKTIME", "KMP_LIBRARY", "OMP_WAIT_POLICY", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
BUSY = """
import os, sys
parent = int(sys.argv[1])
while os.getppid() == parent:
    for _ in range(100_000):
        pass
"""
OURS = "import sys; from vitrail.cli import main; sys.argv[0] = 'vitrail'; main()"
NONE = OURS.replace("; sys", "; import vitrail.cli as line; line.prepare_openmp = lambda: None; sys", 1)


def environment_of(way: str, threads: int, preload: str) -> dict[str, str]:
    """What a way is, as settings; nothing of those that stand around this script."""
    kind, _, number = way.partition(":")
    given = {
        "none": {},
        "ours": {},
        "spin": {"GOMP_SPINCOUNT": number},
        "block": {"KMP_BLOCKTIME": number},
        "passive": {"OMP_WAIT_POLICY": "passive"},
        "active": {"OMP_WAIT_POLICY": "active"},
    }
    if kind not in given or (kind in ("spin", "block")) != bool(number):
        raise SystemExit(f"--ways: expected none, ours, spin:N, block:N, passive or active, got {way!r}")
    around = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    around |= given[kind] | ({"OMP_NUM_THREADS": str(threads)} if threads else {})
    return around | {"PYTHONPATH": str(ROOT / "src")} | ({"LD_PRELOAD": preload} if preload else {})


def end(process: subprocess.Popen[Any]) -> None:
    """One that was started here, and no other."""
    process.kill()
    process.wait()


@contextmanager
def busy(count: int) -> Iterator[list[int]]:
    """So many processes that never rest, each in a session of its own; their numbers."""
    started: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(count):
            command = [sys.executable, "-c", BUSY, str(os.getpid())]
            started.append(subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL))
        yield [each.pid for each in started]
    finally:
        for each in started:
            end(each)


def timed(command: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """How long a command takes in a session of its own, and how much of the processors' time."""
    with tempfile.TemporaryDirectory() as folder:
        before = time.perf_counter()
        with open(Path(folder) / "errors", "w+b") as errors:
            process = subprocess.Popen(
                command, env=environment, cwd=folder, start_new_session=True, stdout=subprocess.DEVNULL, stderr=errors
            )
            try:
                _, status, usage = os.wait4(process.pid, 0)
                process.returncode = os.waitstatus_to_exitcode(status)
            finally:
                if process.returncode is None:
                    end(process)
            took = time.perf_counter() - before
            if process.returncode:
                errors.seek(0)
                raise SystemExit(f"{shlex.join(command)} failed:\n{errors.read().decode(errors='replace')}")
    return took, usage.ru_utime + usage.ru_stime


def command_of(way: str, given: argparse.Namespace) -> list[str]:
    if given.command:
        return shlex.split(given.command)
    few = ["--limit", "20"] if given.quick else []
    program = NONE if way == "none" else OURS
    words = ["train", "vitrail:fashion", "--epochs", f"{given.epochs:g}", "--out", ".", *few]
    return [sys.executable, "-c", program, *words]


def summary(values: list[float]) -> dict[str, Any]:
    low, middle, high = statistics.quantiles(values, n=4) if len(values) > 1 else 3 * values
    return {"median": round(middle, 3), "quartiles": [round(low, 3), round(high, 3)]}


def measure(ways: list[str], given: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each way."""
    dice = random.Random(given.seed)
    rounds: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
    for number in range(given.rounds):
        for way in dice.sample(ways, len(ways)):
            command, environment = command_of(way, given), environment_of(way, given.threads, given.preload)
            alone, alone_cpu = timed(command, environment)
            with busy(given.busy):
                beside, beside_cpu = timed(command, environment)
            row = {"alone": alone, "alone_cpu": alone_cpu, "beside": beside, "beside_cpu": beside_cpu}
            rounds[way].append(row)
            print(json.dumps({"round": number, "way": way} | row), file=sys.stderr, flush=True)
    first = rounds[ways[0]]
    return [
        {
            "way": way,
            "rounds": len(rows),
            "alone_seconds": round(statistics.median(row["alone"] for row in rows), 2),
            "beside_seconds": round(statistics.median(row["beside"] for row in rows), 2),
            "beside": summary([row["beside"] / row["alone"] for row in rows]),
            "alone": summary([row["alone"] / other["alone"] for row, other in zip(rows, first, strict=True)]),
        }
        for way, rows in rounds.items()
    ]


def show(rows: list[dict[str, Any]]) -> None:
    def with_quartiles(ratio: dict[str, Any]) -> str:
        low, high = ratio["quartiles"]
        return f"{ratio['median']:.2f} ({low:.2f} to {high:.2f})"

    table = Table("way", "alone, s", "beside, s", "beside / alone", f"alone / alone of {rows[0]['way']}", box=None)
    for row in rows:
        seconds = (f"{row['alone_seconds']:.1f}", f"{row['beside_seconds']:.1f}")
        table.add_row(row["way"], *seconds, with_quartiles(row["beside"]), with_quartiles(row["alone"]))
    Console(width=120).print(table)
    for row in rows:
        if row["way"] == "ours" and rows[0]["way"] == "none":
            kept = row["beside"]["median"] <= MOST_BESIDE and row["alone"]["median"] <= MOST_ALONE
            words = (
                f"at most {MOST_BESIDE:g} times as long beside the others, at most {MOST_ALONE - 1:.0%} longer alone"
            )
            print(f"{words}: {'kept' if kept else 'NOT KEPT'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", default="none,ours")
    parser.add_argument("--busy", type=int, default=3, help="processes beside it")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=float, default=1.0)
    parser.add_argument("--threads", type=int, default=0, help="of torch; 0: as the command line has them")
    parser.add_argument("--preload", default="", help="another OpenMP runtime: the path of its library")
    parser.add_argument("--command", default="", help="time another command")
    parser.add_argument("--seed", type=int, default=0, help="of the order")
    parser.add_argument("--quick", action="store_true", help="few images, one round")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if given.quick:
        given.rounds = 1
    ways = given.ways.split(",")
    for way in ways:
        environment_of(way, given.threads, given.preload)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # as Ctrl-C: all that was started ends
    rows = measure(ways, given)
    show(rows)
    if given.json:
        load = os.getloadavg() if hasattr(os, "getloadavg") else ()
        about = {"cores": os.cpu_count(), "busy": given.busy, "load_after": load}
        given.json.write_text(json.dumps({"about": about, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
