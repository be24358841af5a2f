"""A cluster for one job: what is started, what is left, what is told; without starting one."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from vitrail.errors import InputError, MissingExtraError, StoppedError, VitrailError
from vitrail.scale import ray_cluster as clusters
from vitrail.scale.ray_cluster import open_cluster


class Ray:
    """Notes how it is asked to start."""

    def __init__(
        self, fault: Exception | None = None, here: str = "127.0.0.1", connected: bool = False, faults: int = 99
    ) -> None:
        self.fault, self.faults, self.asked, self.ended = fault, faults, {}, 0
        self.connected = connected
        self.util = SimpleNamespace(get_node_ip_address=lambda: here)
        self._private = SimpleNamespace(
            ray_constants=SimpleNamespace(), worker=SimpleNamespace(_worker_logs_enabled=True)
        )

    def is_initialized(self) -> bool:
        return self.connected

    def init(self, **options: Any) -> None:
        os.write(2, b"noise\n")
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as Ray does
        self.asked = options | {"environment": dict(os.environ), "prints": self._private.worker._worker_logs_enabled}
        if self.fault is not None and self.faults:
            self.faults -= 1
            raise self.fault

    def shutdown(self) -> None:
        self.ended += 1


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.setattr(clusters.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(clusters, "PATIENCE", 0.0)

    def given(ray: Ray) -> Ray:
        monkeypatch.setattr(clusters, "import_extra", lambda *names: ray)
        return ray

    return given


def test_a_cluster_of_ours_keeps_to_itself(start: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "vitrail-ray-999999999-abc").mkdir()  # of a process that was killed
    (tmp_path / f"vitrail-ray-{os.getppid()}-abc").mkdir()  # of one that lives
    (tmp_path / "vitrail-ray-else").mkdir()
    ray, before, environment = start(Ray()), signal.getsignal(signal.SIGTERM), dict(os.environ)
    with open_cluster("", 3) as given:
        assert given is ray
        [folder] = tmp_path.glob(f"vitrail-ray-{os.getpid()}-*")
        with pytest.raises(StoppedError) as stopped:
            signal.raise_signal(signal.SIGTERM)
        assert stopped.value.number == signal.SIGTERM
    asked = ray.asked
    assert (asked["address"], asked["num_cpus"], asked["_temp_dir"]) == ("local", 3, str(folder))
    assert asked["include_dashboard"] is asked["log_to_driver"] is asked["prints"] is False
    assert asked["_node_ip_address"] == "127.0.0.1"
    assert asked["object_store_memory"] <= 200 * 2**20
    inside = asked["environment"]
    assert (inside["RAY_USAGE_STATS_ENABLED"], inside["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"]) == ("0", "0")
    assert inside["RAY_AUTH_MODE"] == "token"
    assert len(inside["RAY_AUTH_TOKEN"]) == 64
    other = start(Ray())
    enter("")
    assert other.asked["environment"]["RAY_AUTH_TOKEN"] == inside["RAY_AUTH_TOKEN"]  # Ray's core keeps the first
    assert ray.ended == 1
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted(
        [f"vitrail-ray-{os.getppid()}-abc", "vitrail-ray-else"]
    )
    assert signal.getsignal(signal.SIGTERM) is before
    assert dict(os.environ) == environment
    assert capfd.readouterr() == ("", "")
    assert ray._private.worker._worker_logs_enabled is True


@pytest.fixture
def port() -> Iterator[int]:
    """Where somebody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_cluster_of_others_is_joined_as_it_is(start: Any, port: int) -> None:
    ray = start(Ray())
    with open_cluster(f"127.0.0.1:{port}", 3):
        pass
    assert ray.asked["address"] == f"127.0.0.1:{port}"
    assert {"num_cpus", "_temp_dir", "_node_ip_address"}.isdisjoint(ray.asked)
    assert "RAY_AUTH_TOKEN" not in ray.asked["environment"] or "RAY_AUTH_TOKEN" in os.environ
    assert ray.asked["environment"]["RAY_USAGE_STATS_ENABLED"] == "0"
    ray = start(Ray(connected=True))
    with open_cluster("", 3):
        pass
    assert (ray.asked, ray.ended) == ({}, 0)


def enter(address: str) -> None:
    with open_cluster(address, 1):
        pass


def test_what_cannot_be_reached_is_told(start: Any, port: int) -> None:
    ray = start(Ray(ConnectionError("nobody\nthere")))
    with pytest.raises(InputError, match="expected HOST:PORT of the cluster"):
        enter("ray://host:10001")
    for odd in ("host", "host:", ":6379", "host:port"):
        with pytest.raises(InputError, match="expected HOST:PORT of a Ray cluster, or auto, got"):
            enter(odd)
    with pytest.raises(InputError, match=r"cannot reach the Ray cluster at 127.0.0.1:1: ConnectionRefusedError"):
        enter("127.0.0.1:1")
    assert ray.asked == {}
    with pytest.raises(
        InputError, match=rf"cannot reach the Ray cluster at 127.0.0.1:{port}: ConnectionError: nobody$"
    ):
        enter(f"127.0.0.1:{port}")
    with pytest.raises(InputError, match="a Ray cluster on this machine: "):
        enter("")
    assert ray.ended == 1 + 3  # one of our own is tried three times
    slow = start(Ray(RuntimeError("too slow"), faults=2))
    enter("")
    assert (slow.faults, slow.ended) == (0, 3)
    start(Ray(here="192.168.1.5"))
    with pytest.raises(VitrailError, match="does not keep to the loopback"):
        enter("")


def test_without_the_extra_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with (
        pytest.raises(MissingExtraError, match=r"--engine ray needs it: pip install 'vitrail\[ray\]'"),
        open_cluster("", 1),
    ):
        pass


def test_ray_may_speak_when_asked_to(
    start: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VITRAIL_DEBUG", "1")
    ray, level = start(Ray()), logging.getLogger("ray").level
    with open_cluster("", 1):
        assert logging.getLogger("ray").level == level
    assert ray.asked["prints"] is True
    assert capfd.readouterr().err == "noise\n"
    monkeypatch.delenv("VITRAIL_DEBUG")
    with open_cluster("", 1):
        assert logging.getLogger("ray").level > logging.CRITICAL
    assert logging.getLogger("ray").level == level


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="only Linux tells which processes a process started")
def test_processes_that_stay_are_ended(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])  # not of the cluster
    sleep = "time.sleep(600)"
    inner = f"subprocess.Popen([sys.executable, '-c', 'import time; {sleep}'])"
    source = f"import subprocess, sys, time; {inner}; print(flush=True); {sleep}"
    ray = start(Ray())
    right = ray.init
    started: list[subprocess.Popen[bytes]] = []

    def init(**options: Any) -> None:
        right(**options)
        started.append(subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE))
        started[0].stdout.readline()

    ray.init = init
    try:
        with open_cluster("", 1):
            processes = clusters._descendants({started[0].pid})
            assert len(processes) == 2
        for _ in range(100):
            if not any(map(clusters._is_alive, processes)):
                break
            time.sleep(0.1)
        assert not any(map(clusters._is_alive, processes))
        assert clusters._is_alive(other.pid)
    finally:
        other.kill()
        other.wait()
        started[0].wait()
        started[0].stdout.close()


def test_nobody_is_alive_that_never_was() -> None:
    assert clusters._is_alive(os.getpid())
    assert clusters._is_alive(1)
    assert not clusters._is_alive(999_999_999)
