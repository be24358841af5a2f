"""The memory that a training step takes of each process: one with all of a network, and several with a part each.

    python benchmarks/sharded_memory.py --processes 2 --batch 8 --steps 3

A network (vit-b16 unless told otherwise) learns random images by AdamW, as `vitrail train` and `--shard` do it: the
loop of the package, over gloo on a CPU. What is counted is resident memory, from /proc: the most that a process ever
held (VmHWM) after the start of its training, less what it held (VmRSS) before there was a network: Python, torch and
the images. Prints one JSON object. Speed is not measured.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
import torch._dynamo  # optimisers import it at their first step
import torch.distributed.checkpoint
import torch.distributed.fsdp

from vitrail.checkpoint import load
from vitrail.data.cache import Views
from vitrail.data.samples import Dataset, Sample
from vitrail.images import Preprocess
from vitrail.network.presets import PRESETS
from vitrail.network.vit import ViT
from vitrail.scale import joined
from vitrail.training.job import Callbacks, Job, Part
from vitrail.training.loop import fit
from vitrail.training.plan import Plan
from vitrail.training.recipe import Recipe

CLASSES = tuple(f"class {number}" for number in range(10))


def memory(name: str) -> float:
    """A line of this process's status, in MiB."""
    [kilobytes] = re.findall(rf"^{name}:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    return int(kilobytes) / 1024


def job_of(folder: Path, asked: argparse.Namespace, world: int, processes: Any, marks: list[float]) -> Job:
    """A training of so many steps on random images."""
    config = replace(PRESETS[asked.model], classes=len(CLASSES))
    size = config.image_size
    count = asked.batch * asked.steps
    dice = np.random.default_rng(0)
    images = dice.integers(0, 256, (count, *size, 3), dtype=np.uint8)
    samples = tuple(Sample(str(row), (CLASSES[row % len(CLASSES)],), "train") for row in range(count))
    dataset = Dataset("noise", samples, images, CLASSES)
    preprocess = Preprocess(size=size, crop=1.0)
    recipe = Recipe(
        batch=asked.batch, lr=1e-4, warmup=0, pieces=asked.pieces, checkpointing=asked.checkpointing, ema=0.0
    )
    plan = Plan(
        data="noise",
        classes=CLASSES,
        task="single-label",
        model=config,
        preprocess=preprocess,
        recipe=recipe,
        steps=asked.steps,
        per_epoch=asked.steps,
        seed=0,
        threads=1,
        versions={},
        shard=world > 1,
    )
    part = Part(Views(dataset, preprocess), dataset.targets())
    part.views.get(np.arange(count))
    marks.append(memory("VmRSS"))
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts anew from here
    torch.manual_seed(0)
    callbacks = Callbacks(step=lambda step, steps, loss: marks.append(memory("VmHWM")))
    return Job(
        plan=plan,
        model=ViT(config),
        train=part,
        val=None,
        folder=folder,
        save_seconds=1e9,
        callbacks=callbacks,
        processes=processes,
    )


def work(folder: Path, asked: argparse.Namespace, world: int, rank: int) -> dict[str, Any]:
    """What one process comes to."""
    torch.set_num_threads(1)
    marks: list[float] = []
    with joined() as processes:
        fit(job_of(folder, asked, world, processes, marks))
    before, *steps = marks
    return {
        "rank": rank,
        "before_mib": round(before),
        "steps_mib": round(steps[-1] - before),  # the most of all steps, and of building and sharding the network
        "all_mib": round(memory("VmHWM") - before),  # and of writing its state and checkpoint
    }


def run(folder: Path, asked: argparse.Namespace, world: int) -> list[dict[str, Any]]:
    """The same training by so many processes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder.mkdir()
    pids = []
    for rank in range(world):
        pid = os.fork()
        if not pid:
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
            os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
            code = 1
            try:
                (folder / f"{rank}.json").write_text(json.dumps(work(folder, asked, world, rank)))
                code = 0
            except BaseException as error:
                print(f"rank {rank}: {type(error).__name__}: {error}", file=sys.stderr)
            os._exit(code)
        pids.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    if any(codes):
        raise SystemExit("a process failed")
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(world)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="vit-b16")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--pieces", type=int, default=1)
    parser.add_argument("--checkpointing", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        one = run(root / "one", asked, 1)
        several = run(root / "several", asked, asked.processes)
        ours = load(root / "several" / "last.safetensors").model.state_dict()
        theirs = load(root / "one" / "last.safetensors").model.state_dict()
        furthest = {name: float((ours[name] - theirs[name]).abs().max()) for name in ours}
    worst = max(furthest, key=lambda name: furthest[name])
    ratio = max(each["steps_mib"] for each in several) / one[0]["steps_mib"]
    result = {"one": one, "several": several, "ratio": round(ratio, 3), "furthest": [worst, furthest[worst]]}
    print(json.dumps(vars(asked) | result, indent=1))


if __name__ == "__main__":
    main()
