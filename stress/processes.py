"""Kill processes that train together, and see whether a bit is lost.

    python stress/processes.py --count 100 --seed 1           SIGKILL of one process, of the agent, or of all
    python stress/processes.py --count 12 --seed 2 --epochs 20

The command is `vitrail train --processes N --exact`, with another N whenever it is started again. What one process of
several loses is started again by the agent; what the agent loses is started here. A run that ended is followed by the
next one. The campaign passes when every run has the bits of one that a single process made undisturbed: weights,
optimiser, average, log and predictions; and when nobody outlives an agent. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "training"))

from quick import draw

from vitrail.checkpoint.safetensors_io import bytes_of
from vitrail.training.state import read_state

ROOT = Path(__file__).resolve().parents[1]
WORLDS = (1, 2, 4)
LEFT_SECONDS = 5.0  # in which processes are to end whose agent was killed


def start(folder: Path, name: str, world: int, epochs: int, log: Path) -> subprocess.Popen[bytes]:
    """The command in a session of its own."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    words = ["train", "photos", "--epochs", str(epochs), "--batch", "12", "--lr", "1e-3", "--exact", "--out", "runs"]
    command = [sys.executable, "-m", "vitrail", *words, "--name", name, "--processes", str(world)]
    with open(log, "ab") as file:
        return subprocess.Popen(command, cwd=folder, env=environment, stdout=file, stderr=file, start_new_session=True)


def children(pid: int) -> list[int]:
    """The living processes that one has started."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            number, rest = path.read_text().split(" ", 1)
        except OSError:
            continue
        state, parent = rest.rpartition(")")[2].split()[:2]
        if int(parent) == pid and state != "Z":
            found.append(int(number))
    return sorted(found)


def is_there(pid: int) -> bool:
    """Whether a process lives."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def fingerprint(run: Path) -> dict[str, str]:
    """Of everything that must not depend on when it was disturbed."""
    newest = max((run / "state").glob("r*.state"), key=lambda path: path.name)
    state = read_state(newest)
    tensors = hashlib.sha256()
    for name in sorted(state.tensors):
        tensors.update(name.encode() + bytes(bytes_of(state.tensors[name])))
    found = {"state": newest.name, "tensors": tensors.hexdigest()}
    for name in ("metrics.jsonl", "predictions.csv", "data.json"):
        found[name] = hashlib.sha256((run / name).read_bytes()).hexdigest()
    return found


def until_it_trains(log: Path, since: int, process: subprocess.Popen[bytes]) -> None:
    """Wait for an epoch or a resumed step behind a place of the log, or for the end."""
    while process.poll() is None:
        text = log.read_bytes()[since:]
        if b"going on from step" in text or b"vitrail: epoch" in text:
            return
        time.sleep(0.02)


def campaign(root: Path, count: int, seed: int, epochs: int) -> dict[str, object]:
    dice = random.Random(seed)
    draw(root / "photos", 24)
    assert start(root, "alone", 1, epochs, root / "alone.log").wait() == 0, "the undisturbed run failed"
    expected = fingerprint(root / "runs" / "alone")
    killed: Counter[str] = Counter()
    starts: Counter[int] = Counter()
    runs = wrong = orphans = 0
    while sum(killed.values()) < count or not runs:
        name, log, world = f"killed-{runs}", root / f"killed-{runs}.log", 0
        log.touch()
        while True:
            world = dice.choice([each for each in WORLDS if each != world])
            starts[world] += 1
            since = log.stat().st_size
            process = start(root, name, world, epochs, log)
            while True:
                until_it_trains(log, since, process)
                if sum(killed.values()) >= count:
                    process.wait()
                try:
                    process.wait(dice.uniform(0.0, 2.5))
                    break
                except subprocess.TimeoutExpired:
                    pass
                workers = children(process.pid) if world > 1 else []
                how = dice.choice(["worker", "agent", "all"]) if workers else "all"
                since = log.stat().st_size
                killed[how] += 1
                for pid in {"worker": workers and [dice.choice(workers)], "agent": [], "all": workers}[how]:
                    os.kill(pid, signal.SIGKILL)
                if how == "worker":
                    continue
                process.kill()
                process.wait()
                until = time.monotonic() + LEFT_SECONDS
                while any(map(is_there, workers)) and time.monotonic() < until:
                    time.sleep(0.02)
                left = [pid for pid in workers if is_there(pid)]
                orphans += len(left)
                for pid in left:
                    os.kill(pid, signal.SIGKILL)
                break
            if process.returncode == 0:
                break
            if process.returncode != -signal.SIGKILL:
                wrong += 1
                print(log.read_text()[-2000:], file=sys.stderr)
                break
        runs += 1
        if process.returncode == 0:
            found = fingerprint(root / "runs" / name)
            wrong += found != expected
            print(f"run {runs}: {dict(killed)}, {'the same' if found == expected else found}", file=sys.stderr)
    return {"kills": dict(killed), "starts": dict(starts), "runs": runs, "orphans": orphans, "wrong": wrong}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100, help="kills")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=40)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = campaign(Path(folder), given.count, given.seed, given.epochs)
    print(json.dumps(result))
    sys.exit(1 if result["wrong"] or result["orphans"] else 0)
