"""Kill, starve and damage trainings, and see whether anything is lost.

    python stress/training.py kills --count 200 --seed 1      SIGKILL at random moments
    python stress/training.py points --count 25               SIGKILL at every named point of a save
    python stress/training.py disk --count 50                 random limits of what a file may hold
    python stress/training.py whole --count 20                SIGKILL of whole runs: data, training, report

The parent imports everything and computes nothing; each training is a forked child. A campaign passes when the last
child's weights, optimiser state and log are the same bits as those of a training that nobody disturbed. Prints one
JSON object. Every campaign is a function of its seed but for how fast the machine is.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

from vitrail.data.augment import Augment
from vitrail.data.cache import Views
from vitrail.data.samples import Dataset, Sample
from vitrail.errors import VitrailError
from vitrail.images import Preprocess
from vitrail.network.config import ConvStem, ViTConfig
from vitrail.network.vit import ViT
from vitrail.stored import bytes_of
from vitrail.training import state as saving
from vitrail.training import train
from vitrail.training.loop import Job, Part, fit
from vitrail.training.plan import Plan
from vitrail.training.recipe import Recipe

STEPS = 600
POINTS = (
    *("before-write", "mid-write", "written", "synced", "renamed", "verified", "pruning"),
    *("before-best", "after-best", "before-last", "after-last"),
)
CONFIG = ViTConfig(
    image_size=(8, 8),
    patch_size=(2, 2),
    channels=1,
    width=16,
    depth=2,
    heads=2,
    mlp_width=32,
    classes=3,
    stem=ConvStem((8,)),
    drop_path=0.1,
    dropout=0.1,
)
RECIPE = Recipe(
    batch=8,
    optimiser="muon",
    lr=2e-3,
    ema=0.9,
    smoothing=0.1,
    augment=Augment(shift=1, flip=True, erase=0.2, mixup=0.2, cutmix=0.5),
)


def pictures(count: int = 64) -> Dataset:
    """Three classes of noise with a bright corner each."""
    dice = np.random.default_rng(7)
    labels = np.arange(count) % 3
    images = dice.integers(0, 120, (count, 8, 8), dtype=np.uint8)
    for row, label in enumerate(labels):
        images[row, 4 * (label % 2) : 4 * (label % 2) + 3, 4 * (label // 2) : 4 * (label // 2) + 3] += 100
    samples = tuple(
        Sample(f"{row}", (f"class {label}",), "val" if row % 4 == 0 else "train") for row, label in enumerate(labels)
    )
    return Dataset("noise", samples, images, ("class 0", "class 1", "class 2"))


def job(folder: Path, steps: int) -> Job:
    """A tiny training with every part that has a state."""
    torch.manual_seed(0)
    dataset = pictures()
    preprocess = Preprocess(size=8, crop=1.0, channels=1)
    parts = []
    for split in ("train", "val"):
        part = dataset.part(split)
        parts.append(Part(Views(part, preprocess), part.targets()))
    plan = Plan(
        data="noise",
        classes=dataset.classes,
        task="one",
        model=CONFIG,
        preprocess=preprocess,
        recipe=RECIPE,
        steps=steps,
        per_epoch=len(parts[0].targets) // RECIPE.batch,
        seed=3,
        threads=1,
        versions={},
    )
    folder.mkdir(parents=True, exist_ok=True)
    return Job(
        plan=plan,
        model=ViT(CONFIG),
        train=parts[0],
        val=parts[1],
        folder=folder,
        threads=1,
        save_seconds=0.02,
        save_share=0.5,
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


def reference(root: Path, steps: int) -> dict[str, str]:
    """The training that nobody disturbs."""
    folder = root / "reference" / "run"
    assert ended(child(lambda: fit(job(folder, steps)) and None)) == 0, "the undisturbed training failed"
    return fingerprint(folder)


def kills(root: Path, count: int, seed: int, steps: int) -> dict[str, object]:
    """SIGKILL after a random time, again and again; when a training ends, the next one starts, until count is reached."""
    dice = random.Random(seed)
    expected = reference(root, steps)
    killed = trainings = wrong = 0
    folder = root / "killed-0" / "run"
    while killed < count or not trainings:
        number = child(lambda: fit(job(folder, steps)) and None)
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
    """SIGKILL at every named point of a save: at its first, second, ... n-th occurrence in a training."""
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
                    if met > turn % (2 if point.endswith("last") else 8) // (2 if point.endswith("last") else 1):
                        os.kill(os.getpid(), signal.SIGKILL)

                saving.reached = reached
                fit(job(folder, steps))

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
            pictures(),
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
    options.add_argument("campaign", choices=("kills", "points", "disk", "whole"))
    options.add_argument("--count", type=int, default=50)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--steps", type=int, default=STEPS)
    chosen = options.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        run = {"kills": kills, "points": points, "disk": disk, "whole": whole}[chosen.campaign]
        result = run(Path(place), chosen.count, chosen.seed, chosen.steps)
    print(json.dumps(vars(chosen) | result | {"seconds": round(time.monotonic() - started, 1)}))
    sys.exit(1 if result["wrong"] else 0)


if __name__ == "__main__":
    main()
