"""Speed and memory on one device, ours beside timm and transformers: the same network, batch and precision.

    python benchmarks/device.py                              S/16 and B/16 at 224 on the accelerator that is there
    python benchmarks/device.py --device cuda:1 --precision bf16 --batch 256 --compile
    python benchmarks/device.py --device cpu --quick         a tiny network: does the script run here?
    python benchmarks/device.py --json figures.json          the rows, with the device, its name and the versions

Each library has a process of its own. In a round each comes once: a few steps that are not timed, then as many as take
a second. A training step is forward, cross entropy, backward and the fused AdamW, on pixels that lie on the device;
inference is a forward pass. Images a second are the median over rounds; memory is the most that torch had allocated on
the device in a round, on a CPU the most of the process since it began. The clock is read when the device is done.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

HERE = Path(__file__).resolve().parent
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))

from training import build  # noqa: E402  (the networks of benchmarks/training.py)
from vitrail.checkpoint.devices import describe_device, find_device, wait_for  # noqa: E402
from vitrail.training.environment import describe_environment  # noqa: E402
from vitrail.training.mixed_precision import autocast, check_precision, float32_products  # noqa: E402
from vitrail.training.optimisers import build_optimiser  # noqa: E402
from vitrail.training.plain_attention import install  # noqa: E402
from vitrail.training.recipe import PRECISIONS, Recipe  # noqa: E402

Case = dict[str, int]
NETWORKS: dict[str, Case] = {
    "S/16": {"size": 224, "patch": 16, "channels": 3, "width": 384, "depth": 12, "heads": 6},
    "B/16": {"size": 224, "patch": 16, "channels": 3, "width": 768, "depth": 12, "heads": 12},
}
TINY: dict[str, Case] = {"tiny": {"size": 32, "patch": 8, "channels": 3, "width": 32, "depth": 2, "heads": 2}}
PEERS = ("vitrail", "timm", "transformers")
JOBS = ("training step", "inference")


class Measured(NamedTuple):
    """One round of one library."""

    rate: float  # images a second
    memory: float | None  # MB; None where the device does not tell the most that was allocated


class Worker:
    """A library's network on the device, which trains or answers when it is asked."""

    def __init__(self, peer: str, case: Case, device: torch.device, precision: str, compiled: bool) -> None:
        torch.manual_seed(0)
        self.device, self.precision, self.batch = device, precision, case["batch"]
        self.model: nn.Module = build(peer, case).to(device)
        if peer == "vitrail":  # as `vitrail train` has it
            install(self.model)
            own = build_optimiser(self.model, Recipe(lr=1e-3, clip=0.0))  # type: ignore[arg-type]
            self.step, self.zero = (lambda: own.step(1.0)), own.zero
        else:
            theirs = torch.optim.AdamW(self.model.parameters(), lr=1e-3, fused=True)
            self.step, self.zero = theirs.step, theirs.zero_grad
        self.called: Any = torch.compile(self.model, dynamic=False) if compiled else self.model
        self.pixels = torch.randn(self.batch, case["channels"], case["size"], case["size"]).to(device)
        self.labels = torch.randint(10, (self.batch,)).to(device)

    def learn(self) -> None:
        """One training step."""
        with autocast(self.device, self.precision):
            logits = self.called(self.pixels)
        F.cross_entropy(logits.float(), self.labels).backward()
        self.step()
        self.zero()

    def answer(self) -> None:
        """One forward pass."""
        with torch.inference_mode(), autocast(self.device, self.precision):
            self.called(self.pixels)

    def measure(self, job: str, seconds: float) -> Measured:
        """Images a second and the most memory, after a warm-up."""
        work = self.learn if job == "training step" else self.answer
        self.model.train(job == "training step")
        for _ in range(3):
            work()
        started = self.now()
        work()
        count = max(1, round(seconds / max(self.now() - started, 1e-6)))
        module = torch.get_device_module(self.device)
        counts = hasattr(module, "reset_peak_memory_stats")
        if counts:
            module.reset_peak_memory_stats(self.device)
        started = self.now()
        for _ in range(count):
            work()
        rate = count * self.batch / (self.now() - started)
        if self.device.type == "cpu":
            return Measured(rate, _resident() / 1e6)
        return Measured(rate, module.max_memory_allocated(self.device) / 1e6 if counts else None)

    def now(self) -> float:
        """The time when the device has done what it was given."""
        wait_for(self.device)
        return time.perf_counter()


def _resident() -> int:
    """The most memory of this process so far, in bytes."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def work(options: argparse.Namespace, case: Case) -> None:
    """In a process of its own: a line on stdin names a job, a line on stdout gives its figures."""
    device = find_device(options.device)
    with float32_products(options.precision, device):
        worker = Worker(options.peer, case, device, options.precision, options.compile)
        print("ready", flush=True)
        for line in sys.stdin:
            print(json.dumps(worker.measure(line.strip(), options.seconds)), flush=True)


def compare(options: argparse.Namespace, name: str, case: Case, precision: str) -> list[dict[str, object]]:
    """Rows of one network in one precision: every job, every library."""
    command = [sys.executable, __file__, "--device", options.device, "--precision", precision, "--case", name]
    command += ["--batch", str(case["batch"]), "--seconds", str(options.seconds)]
    command += ["--compile"] if options.compile else []
    pipes = {
        peer: subprocess.Popen([*command, "--peer", peer], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for peer in options.peers
    }
    found: dict[tuple[str, str], list[Measured]] = {(job, peer): [] for job in JOBS for peer in options.peers}
    try:
        for peer, pipe in pipes.items():
            if _line(pipe) != "ready":
                raise SystemExit(f"{peer} did not start: its error stands above")
        for _ in range(options.rounds):
            for job in JOBS:
                for peer, pipe in pipes.items():
                    print(job, file=pipe.stdin, flush=True)
                    if not (line := _line(pipe)):
                        raise SystemExit(f"{peer} ended in the {job} of {name}: its error stands above")
                    found[job, peer].append(Measured(*json.loads(line)))
    finally:
        for pipe in pipes.values():
            pipe.communicate()
    rows: list[dict[str, object]] = []
    for (job, peer), rounds in found.items():
        ratios = [ours.rate / each.rate for ours, each in zip(found[job, "vitrail"], rounds, strict=True)]
        rows.append(
            {
                "network": name,
                "batch": case["batch"],
                "precision": precision,
                "compiled": options.compile,
                "job": job,
                "library": peer,
                "images_per_second": round(statistics.median(each.rate for each in rounds), 2),
                "memory_mb": _most([each.memory for each in rounds]),
                "ours_by_theirs": round(statistics.median(ratios), 3),
                "rounds": len(rounds),
            }
        )
    return rows


def _most(memory: list[float | None]) -> float | None:
    known = [each for each in memory if each is not None]
    return round(max(known), 1) if known else None


def _line(pipe: subprocess.Popen[str]) -> str:
    assert pipe.stdout is not None
    return pipe.stdout.readline().strip()


def show(row: dict[str, object]) -> None:
    """A row as a line."""
    compiled = " compiled" if row["compiled"] else ""
    what = f"{row['network']} batch {row['batch']} {row['precision']}{compiled}, {row['job']}"
    memory = "–" if row["memory_mb"] is None else row["memory_mb"]
    figures = f"{row['images_per_second']:>10} images/s {memory:>9} MB   ours by theirs {row['ours_by_theirs']}"
    print(f"{what:<44}{row['library']:<14}{figures}")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--device", default="auto")
    options.add_argument("--precision", choices=PRECISIONS, action="append", help="again for another; else fp32, bf16")
    options.add_argument("--batch", type=int, default=0, help="images a step; else 64")
    options.add_argument("--compile", action="store_true", help="every network by torch.compile")
    options.add_argument("--rounds", type=int, default=7)
    options.add_argument("--seconds", type=float, default=1.0, help="of each job in each round")
    options.add_argument("--quick", action="store_true", help="a tiny network, one round")
    options.add_argument("--peers", nargs="+", choices=PEERS[1:], default=PEERS[1:], help="beside whom")
    options.add_argument("--json", type=Path)
    options.add_argument("--peer", help=argparse.SUPPRESS)
    options.add_argument("--case", help=argparse.SUPPRESS)
    chosen = options.parse_args()
    cases = TINY if chosen.quick else NETWORKS
    if chosen.peer:
        chosen.precision = chosen.precision[0]
        work(chosen, (NETWORKS | TINY)[chosen.case] | {"batch": chosen.batch})
        return
    device = find_device(chosen.device)
    precisions = chosen.precision or ["fp32", "bf16"]
    chosen.peers = ["vitrail", *chosen.peers]
    for precision in precisions:
        check_precision(precision, device)
    if chosen.quick:
        chosen.rounds, chosen.seconds = 1, 0.0
    batch = chosen.batch or (4 if chosen.quick else 64)
    facts = dict(describe_environment(device, Recipe(compile=chosen.compile)))
    print(f"{describe_device(device)}, torch {torch.__version__}, attention {facts['attention']}")
    rows: list[dict[str, object]] = []
    for name, case in cases.items():
        for precision in precisions:
            for row in compare(chosen, name, case | {"batch": batch}, precision):
                rows.append(row)
                show(row)
    if chosen.json:
        chosen.json.write_text(json.dumps({"environment": facts, "rows": rows}, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
