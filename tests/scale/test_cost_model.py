"""A forecast is arithmetic on what was measured; the bytes that it counts are those that processes hand over."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from vitrail.errors import VitrailError
from vitrail.scale import forecast
from vitrail.scale.cost_model import bytes_sent

ROOT = Path(__file__).resolve().parents[2]
B16: dict[str, Any] = {"parameters": 86_567_656, "images": 1_000_000, "epochs": 300, "batch": 1024}
VALUES = 4_000  # that the processes below add


def test_one_process_only_computes() -> None:
    found = forecast(**B16, images_per_second=2.0)
    assert found.hours == pytest.approx(300e6 / 2 / 3600)
    assert (found.images_per_second, found.bytes_sent, found.exchanging) == (2.0, 0.0, 0.0)


def test_several_compute_and_exchange() -> None:
    """Eight that do 100 images a second each: 1.28 s of computing a step, and 2 * 7/8 of the network to send."""
    found = forecast(**B16, images_per_second=100.0, processes=8, bandwidth=1e9)
    sent = 2 * 7 / 8 * 4 * B16["parameters"]
    step = 1024 / 8 / 100 + sent / 1e9
    assert found.bytes_sent == pytest.approx(sent)
    assert found.images_per_second == pytest.approx(1024 / step)
    assert found.exchanging == pytest.approx(sent / 1e9 / step)
    assert found.hours == pytest.approx(300e6 / 1024 * step / 3600)


def test_sharded_weights_cross_once_more() -> None:
    assert bytes_sent("shard", 100.0, 4) == 1.5 * bytes_sent("ddp", 100.0, 4) == 225.0


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"images_per_second": 0.0}, "images_per_second: expected more than 0"),
        ({"processes": 2}, "bandwidth: expected the bytes a second"),
        ({"processes": 0}, "processes: expected a whole number from 1"),
        ({"way": "rdd"}, "way 'rdd' is unknown"),
    ],
)
def test_what_makes_no_sense_is_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(VitrailError, match=message):
        forecast(**{**B16, "images_per_second": 1.0} | wrong)


def count(rank: int, world: int, port: int) -> dict[str, float]:
    """What one process hands over while gradients are added, in bytes."""
    import torch
    import torch.distributed as dist

    from vitrail.scale import joined, process_group

    handed = 0.0

    def counted(name: str, owner: Any, share: float) -> None:
        real = getattr(owner, name)

        def call(received: Any, sent: Any, *rest: Any) -> Any:
            nonlocal handed
            handed += sent.numel() * sent.element_size() * share
            return real(received, sent, *rest)

        setattr(owner, name, call)

    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    with joined() as processes:
        counted("all_to_all_single", dist, (world - 1) / world)  # its own part stays
        counted("_all_gather", process_group, world - 1)  # to every other
        parts = [torch.full((VALUES,), float(rank + 1))]
        total = processes.fold(parts, [1] * world, lambda every: sum(every[1:], every[0]))
    assert total.tolist() == [sum(range(1, world + 1))] * VALUES
    return {"exact": handed}


@pytest.mark.parametrize("world", [2, 4])
def test_processes_hand_over_what_the_forecast_counts(world: int) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "tests"), str(ROOT / "src")])
    script = [sys.executable, "-W", "ignore", "-m", "scale.test_cost_model", str(world)]
    done = subprocess.run(script, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    for line in done.stdout.splitlines():
        assert json.loads(line)["exact"] == bytes_sent("exact", 4 * VALUES, world)
    assert len(done.stdout.splitlines()) == world


if __name__ == "__main__":
    from scale.together import free_port

    worlds = int(sys.argv[1])
    chosen = free_port()
    children = []
    for number in range(worlds):
        child = os.fork()
        if not child:
            os.write(1, json.dumps(count(number, worlds, chosen)).encode() + b"\n")  # a line at once
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
