"""Kill, starve and damage trainings, and see whether anything is lost.

    python stress/training.py kills --count 200 --seed 1      SIGKILL at random moments
    python stress/training.py points --count 25               SIGKILL at every named point of a save
    python stress/training.py disk --count 50                 random limits of what a file may hold
    python stress/training.py whole --count 20                SIGKILL of whole runs: data, training, report
    python stress/training.py minutes --count 200             SIGKILL at random moments, where minutes move the end

The parent imports everything and computes nothing; each training is a forked child. A campaign passes when the last
child's weights, optimiser state and log are the same bits as those of a training that nobody disturbed. Prints one
JSON object. Every campaign is a function of its seed but for how fast the machine is.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import random
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "training"))

import torch._dynamo  # noqa: F401  (optimisers import it at their first step, which takes a second)
from tiny import CONFIG, RECIPE, job, make_images

from vitrail.checkpoint.safetensors_io import bytes_of
from vitrail.data.loader import Batch
from vitrail.errors import VitrailError
from vitrail.training import loop, pace, train
from vitrail.training import state as saving
from vitrail.training.loop import fit

STEPS = 600
EVERY_STEP = {"save_seconds": 0.0, "save_share": math.inf}  # a state after each: their number is no matter of time
POINTS = (
    *("before-write", "mid-write", "written", "synced", "renamed", "verified", "pruning"),
    *("before-best", "after-best", "before-last", "after-last"),
)


def child(work: Callable[[], None]) -> int:
    """Run in a forked process of its own; its number."""
    number = os.fork()
    if number:
        return number
    code = 1
    try:
        work()
        code = 0
    except VitrailError as error:
        print(f"  {error}", file=sys.stderr)
        code = 2
    except BaseException as error:
        print(f"  {type(error).__name__}: {error}", file=sys.stderr)
    finally:
        os._exit(code)


def ended(number: int) -> int:
    """How a child ended: its code, or minus the signal it died of."""
    return os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])


def fingerprint(folder: Path) -> dict[str, str]:
    """Of everything a training leaves that must not depend on when it was disturbed."""
    newest = max((folder / "state").glob("r*.state"), key=lambda path: path.name)
    state = saving.read_state(newest)
    tensors = hashlib.sha256()
    for name in sorted(state.tensors):
        tensors.update(name.encode() + bytes(bytes_of(state.tensors[name])))
    found = {"state": tensors.hexdigest(), "facts": json.dumps(dict(state.facts), sort_keys=True)}
    for name in ("metrics.jsonl", "best.safetensors", "last.safetensors"):
        found[name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    leftovers = [path.name for path in (folder / "state").iterdir() if path.name.endswith(".tmp")]
    return found | {"leftovers": ",".join(leftovers)}


def plain(folder: Path, steps: int) -> None:
    """A training of so many steps."""
    fit(job(folder, steps))


def in_minutes(folder: Path, steps: int) -> None:
    """A training of as many seconds, by a planted clock: on a machine that slows down by 3, and later frees up."""
    now, learn = [0], loop._Loop.learn

    def slower(training: loop._Loop, batch: Batch) -> None:
        now[0] += (1 if training.progress.step < steps // 3 or training.progress.step > steps // 2 else 3) * 10**9
        learn(training, batch)

    loop._Loop.learn = slower  # type: ignore[method-assign]
    pace.clock = lambda: now[0]
    planned = job(folder, steps, speed=pace.Speed(1.0, 0.0))
    fit(replace(planned, plan=replace(planned.plan, minutes=steps / 60)))


def reference(root: Path, steps: int, train_in: Callable[[Path, int], None] = plain) -> dict[str, str]:
    """The training that nobody disturbs."""
    folder = root / "reference" / "run"
    assert ended(child(lambda: train_in(folder, steps))) == 0, "the undisturbed training failed"
    return fingerprint(folder)


def minutes(root: Path, count: int, seed: int, steps: int) -> dict[str, object]:
    """The same where the end moves while it trains: each kill may fall between a decision and what follows from it."""
    found = kills(root, count, seed, steps, in_minutes)
    rows = [json.loads(line) for line in (root / "reference" / "run" / "metrics.jsonl").read_text().splitlines()]
    return found | {"moves": sum(row["event"] == "length" for row in rows)}


def kills(
    root: Path, count: int, seed: int, steps: int, train_in: Callable[[Path, int], None] = plain
) -> dict[str, object]:
    """SIGKILL after a random time, again and again; when a training ends, the next one starts."""
    dice = random.Random(seed)
    expected = reference(root, steps, train_in)
    killed = trainings = wrong = 0
    folder = root / "killed-0" / "run"
    while killed < count or not trainings:
        number = child(lambda folder=folder: train_in(folder, steps))
        wait = dice.uniform(0.03, 0.25) if killed < count else 600.0
        until = time.monotonic() + wait
        while time.monotonic() < until and os.waitid(os.P_PID, number, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            time.sleep(0.002)
        if os.waitid(os.P_PID, number, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            os.kill(number, signal.SIGKILL)
        code = ended(number)
        if code == -signal.SIGKILL:
            killed += 1
            continue
        trainings += 1
        wrong += code != 0 or fingerprint(folder) != expected
        folder = root / f"killed-{trainings}" / "run"
    return {"kills": killed, "trainings": trainings, "wrong": wrong}


def points(root: Path, count: int, seed: int, steps: int) -> dict[str, object]:
    """SIGKILL at every named point of a save, after every step: at its first, second, ... n-th occurrence."""
    expected = reference(root, steps)
    killed = wrong = 0
    for point in POINTS:
        for turn in range(count):
            folder = root / f"{point}-{turn}" / "run"

            def work(point: str = point, turn: int = turn, folder: Path = folder) -> None:
                met = 0

                def reached(name: str) -> None:
                    nonlocal met
                    met += name == point
                    if met > (0 if point.endswith(("best", "last")) else turn % 8):  # those may come but once
                        os.kill(os.getpid(), signal.SIGKILL)

                saving.reached = reached
                fit(job(folder, steps, **EVERY_STEP))

            killed += ended(child(work)) == -signal.SIGKILL
            code = ended(child(lambda folder=folder: fit(job(folder, steps)) and None))
            wrong += code != 0 or fingerprint(folder) != expected
    return {"points": len(POINTS), "kills": killed, "expected_kills": len(POINTS) * count, "wrong": wrong}


def disk(root: Path, count: int, seed: int, steps: int) -> dict[str, object]:
    """Files may hold only so many bytes; afterwards the limit is gone, and the training goes on."""
    dice = random.Random(seed)
    expected = reference(root, steps)
    largest = max(path.stat().st_size for path in (root / "reference").rglob("*") if path.is_file())
    stopped = wrong = 0
    for turn in range(count):
        folder = root / f"disk-{turn}" / "run"
        budget = dice.randrange(0, 2 * largest)

        def limited(folder: Path = folder, budget: int = budget) -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (budget, budget))
            fit(job(folder, steps))

        folder.mkdir(parents=True)
        code = ended(child(limited))
        stopped += code == 2
        wrong += code not in (0, 2)
        code = ended(child(lambda folder=folder: fit(job(folder, steps)) and None))
        wrong += code != 0 or fingerprint(folder) != expected
    return {"budgets": count, "largest_file": largest, "stopped": stopped, "wrong": wrong}


def whole(root: Path, count: int, seed: int, steps: int) -> dict[str, object]:
    """SIGKILL of runs from the reading of the data to the report; the same call goes on each time."""
    dice = random.Random(seed)

    def work(out: Path) -> None:
        train(
            make_images(),
            model=CONFIG,
            recipe=RECIPE,
            epochs=steps / 6,
            out=out,
            name="run",
            check=False,
            save_seconds=0.05,
        )

    assert ended(child(lambda: work(root / "reference"))) == 0, "the undisturbed run failed"
    expected = fingerprint(root / "reference" / "run")
    killed = 0
    while True:
        number = child(lambda: work(root / "killed"))
        until = time.monotonic() + (dice.uniform(0.2, 2.5) if killed < count else 600.0)
        while time.monotonic() < until and os.waitid(os.P_PID, number, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            time.sleep(0.005)
        if os.waitid(os.P_PID, number, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            os.kill(number, signal.SIGKILL)
        code = ended(number)
        killed += code == -signal.SIGKILL
        if code != -signal.SIGKILL:
            same = code == 0 and fingerprint(root / "killed" / "run") == expected
            return {"kills": killed, "wrong": int(not same)}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("campaign", choices=("kills", "points", "disk", "whole", "minutes"))
    options.add_argument("--count", type=int, default=50)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--steps", type=int, default=STEPS)
    chosen = options.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        run = {"kills": kills, "points": points, "disk": disk, "whole": whole, "minutes": minutes}[chosen.campaign]
        result = run(Path(place), chosen.count, chosen.seed, chosen.steps)
    print(json.dumps(vars(chosen) | result | {"seconds": round(time.monotonic() - started, 1)}))
    sys.exit(1 if result["wrong"] else 0)


if __name__ == "__main__":
    main()
