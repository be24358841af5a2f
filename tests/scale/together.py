"""Tiny trainings by several processes: a list of cases as JSON -> what each process came to, as JSON.

Run as a script, it imports torch once and forks the processes of one case after the other, before anything is computed.
A case has: folder, world, and if need be steps, workers (virtual ones; 0: none), base ("plain"), recipe (changes), stop
(rank and step of a signal), kill and fail (the same), seconds (that it is given), shard, calm (a network without chance
in it), run (its number). A process comes to a digest of its run's last state and log, or to an error.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import sys
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # optimisers import it at their first step, which takes a second

from training import tiny
from vitrail.checkpoint.safetensors_io import bytes_of
from vitrail.errors import InputError, VitrailError
from vitrail.network.vit import ViT
from vitrail.scale import joined
from vitrail.training import pace
from vitrail.training.job import Callbacks
from vitrail.training.loop import fit
from vitrail.training.recipe import Recipe
from vitrail.training.state import read_newest

RECIPES = {"all": tiny.RECIPE, "plain": Recipe(batch=8, lr=1e-3)}


# Nothing in it depends on which images are computed together, so several processes come to what one comes to. Keys have
# no bias: its gradient is zero but for rounding, which Adam would make as large as any other.
CALM = replace(tiny.CONFIG, stem=None, dropout=0.0, drop_path=0.0, qkv_bias="no-key")


def digest_of(folder: Path) -> str:
    """Of weights, optimiser, average, generators and log, as they stand in the newest state."""
    state = read_newest(folder / "state", print)
    if state is None:
        return "no state"
    hashed = hashlib.sha256((folder / "metrics.jsonl").read_bytes())
    for name in sorted(state.tensors):
        hashed.update(name.encode())
        hashed.update(bytes_of(state.tensors[name].contiguous()))
    return hashed.hexdigest()


def train(case: dict[str, Any], rank: int) -> dict[str, Any]:
    """What one process of a case comes to."""
    torch.set_num_threads(1)
    folder = Path(case["folder"])

    now = [0]  # of the clock of a case with seconds: from the 4th step on, the first process alone is thrice as slow
    learnt = 0

    def end(step: int, steps: int, loss: float) -> None:
        nonlocal learnt
        learnt += 1
        now[0] += (3 if step > 3 and rank == 0 else 1) * 10**9
        for how, number in (("stop", signal.SIGTERM), ("kill", signal.SIGKILL)):
            if case.get(how) == [rank, step]:
                os.kill(os.getpid(), number)
        if case.get("fail") == [rank, step]:
            raise InputError(f"no more of this, says {rank}")

    recipe = replace(RECIPES[case.get("base", "all")], **case.get("recipe", {}))
    with joined() as processes:
        job = tiny.job(folder, case.get("steps", 8), recipe, processes=processes, callbacks=Callbacks(step=end))
        job = replace(job, save_seconds=case.get("save_seconds", 1e9))
        if case.get("base") == "plain":  # batch norm and dropout see the parts of a batch
            torch.manual_seed(5)
            job = replace(job, model=ViT(replace(tiny.CONFIG, stem=None, dropout=0.0, drop_path=0.0)))
            job = replace(job, plan=replace(job.plan, model=job.model.config))
        if case.get("calm"):
            torch.manual_seed(0)
            job = replace(job, model=ViT(CALM), plan=replace(job.plan, model=CALM))
        changes = {"virtual_workers": case.get("workers", 0), "shard": case.get("shard", False)}
        job = replace(job, plan=replace(job.plan, **changes), run_id=case.get("run", ""))
        if "seconds" in case:
            pace.clock = lambda: now[0]
            steps = replace(job.plan, steps=case["seconds"], minutes=case["seconds"] / 60)
            job = replace(job, plan=steps, speed=pace.Speed(1.0, 0.0))
        progress = fit(job)
        if job.plan.shard:
            return {"step": progress.step, "best": progress.best, "learnt": learnt}
        weights = hashlib.sha256(b"".join(bytes(bytes_of(each)) for each in job.model.state_dict().values()))
        found = {"step": progress.step, "weights": weights.hexdigest()}
        return found | ({"digest": digest_of(folder)} if processes.is_first else {})


def free_port() -> int:
    """A port of this machine that nobody listens at."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def run_case(case: dict[str, Any]) -> list[dict[str, Any]]:
    """The results of all processes of a case, by rank; of one that was killed, its signal."""
    folder, world = Path(case["folder"]), int(case["world"])
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    pids = []
    for rank in range(world):
        pid = os.fork()
        if not pid:
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
            os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            try:
                found = train(case, rank)
            except VitrailError as error:
                found = {"error": type(error).__name__, "message": str(error)}
            except SystemExit as error:
                found = {"silent": error.code}
            except BaseException as error:
                traceback.print_exc()
                found = {"error": type(error).__name__, "message": str(error)}
            (folder / f"rank-{rank}.json").write_text(json.dumps(found))
            os._exit(0)
        pids.append(pid)
    results = []
    for rank, pid in enumerate(pids):
        _, status = os.waitpid(pid, 0)
        path = folder / f"rank-{rank}.json"
        results.append({"signal": os.WTERMSIG(status)} if os.WIFSIGNALED(status) else json.loads(path.read_text()))
    return results


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    if any(case.get("shard") for case in given):  # imported once, and not by every process
        import torch.distributed.checkpoint
        import torch.distributed.fsdp
    print(json.dumps([run_case(case) for case in given]))
