"""A Ray cluster for one job: one of our own on this machine, or one that is there. Quiet, and gone when the job is.

Ours listens on the loopback alone, behind a token of its own; it sends nothing to anybody and has no dashboard.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, Final

from vitrail.errors import InputError, StoppedError, VitrailError, first_line, import_extra
from vitrail.system_calls import is_alive

OBJECT_STORE: Final = 200 * 2**20  # bytes: what passes through are names of shards and receipts
PATIENCE: Final = 10.0  # seconds for processes of a cluster to end, before they are ended
STARTS: Final = 3  # times that a cluster of our own is tried
ANSWERS: Final = 10.0  # seconds for a cluster to answer
LEFT_BEHIND: Final = ("PYTHONBREAKPOINT", "RAY_CLIENT_MODE")  # variables that Ray sets for itself
PREFIX: Final = "vitrail-ray-"  # of folders below the system's temporary folder; then the process that uses it


@contextmanager
def open_cluster(address: str, cpus: int) -> Iterator[Any]:
    """Ray, connected to the cluster at an address; without one, to a cluster of so many CPUs on this machine.

    Where the caller is connected already, that cluster is used, and left as it is.
    """
    with ExitStack() as after:
        if not address:
            after.enter_context(_environment(_own_settings()))
        after.enter_context(_environment({"RAY_USAGE_STATS_ENABLED": "0", "RAY_DATA_DISABLE_PROGRESS_BARS": "1"}))
        ray = import_extra("--engine ray needs it", "ray", "ray", "ray.data")
        after.enter_context(_hushed(ray))
        if not ray.is_initialized():
            after.enter_context(_signals_set_back())
            _connect(ray, address, cpus, after)
        yield ray


def _connect(ray: Any, address: str, cpus: int, after: ExitStack) -> None:
    if address.startswith("ray://"):
        raise InputError(
            f"--address {address}: expected HOST:PORT of the cluster, or auto on one of its machines; a job that has "
            "to outlive its terminal goes through `ray job submit`"
        )
    if address and address != "auto":
        _check_answers(address)
    common = {"log_to_driver": False, "logging_level": logging.CRITICAL, "configure_logging": False}
    own: dict[str, Any] = {}
    if not address:
        ray._private.ray_constants.ENABLE_RAY_CLUSTER = False  # where Ray was imported before: the loopback here too
        folder = _own_folder()
        after.callback(shutil.rmtree, folder, ignore_errors=True)
        own = {"num_cpus": cpus, "object_store_memory": OBJECT_STORE, "include_dashboard": False}
        own |= {"_node_ip_address": "127.0.0.1", "_temp_dir": str(folder)}
    after.callback(_shut_down, ray, _children())  # before the folder goes
    try:
        for left in reversed(range(1 if address else STARTS)):
            try:
                with _no_stderr():  # Ray's core tells which level of silence it was given
                    ray.init(address=address or "local", **common, **own)
                break
            except (OSError, RuntimeError):
                if not left:
                    raise
                ray.shutdown()  # a machine that is busy may have been too slow: again
        _stop_on_sigterm()
        if not address and ray.util.get_node_ip_address() != "127.0.0.1":
            raise VitrailError("Ray does not keep to the loopback here: start a cluster yourself, and give --address")
    except (ConnectionError, OSError, RuntimeError, ValueError) as error:
        where = f"the Ray cluster at {address}" if address else "a Ray cluster on this machine"
        raise InputError(f"cannot reach {where}: {first_line(error)}") from error


def _check_answers(address: str) -> None:
    """Ray would wait for minutes where nobody listens."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise InputError(f"--address: expected HOST:PORT of a Ray cluster, or auto, got {address!r}")
    try:
        socket.create_connection((host.strip("[]"), int(port)), ANSWERS).close()
    except (OSError, OverflowError) as error:
        raise InputError(f"cannot reach the Ray cluster at {address}: {first_line(error)}") from error


def _shut_down(ray: Any, before: set[int]) -> None:
    """End Ray, and wait until all processes of a cluster of our own are gone."""
    left = _descendants(_children() - before)
    ray.shutdown()
    until = time.monotonic() + PATIENCE
    while (left := {process for process in left if _is_alive(process)}) and time.monotonic() < until:
        time.sleep(0.05)
    for process in left:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def _children(of: int | None = None) -> set[int]:
    """Processes that a process has started, where the system tells."""
    found: set[int] = set()
    for tasks in Path(f"/proc/{of or os.getpid()}/task").glob("*/children"):
        with suppress(OSError):
            found |= {int(each) for each in tasks.read_text("utf-8").split()}
    return found


def _descendants(processes: set[int]) -> set[int]:
    return processes.union(*(_descendants(_children(each)) for each in processes))


def _own_settings() -> dict[str, str]:
    return {
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # so Ray calls it; on Linux too it means: the loopback alone
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": _token(),  # else one is written to the user's home
        "RAY_BACKEND_LOG_LEVEL": "fatal",
        "RAY_gcs_server_port_wait_time_s": "300",  # its first process, on a busy machine
    }


@cache
def _token() -> str:
    """One for all clusters of this process: Ray's core keeps the first that it sees."""
    return secrets.token_hex(32)


def _own_folder() -> Path:
    """A folder for one cluster; those that killed processes left are taken away."""
    above = Path(tempfile.gettempdir())
    for left in above.glob(f"{PREFIX}*"):
        match = re.fullmatch(rf"{PREFIX}(\d+)-\w+", left.name)
        if match and not _is_alive(int(match[1])):
            shutil.rmtree(left, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))


def _is_alive(process: int) -> bool:
    """Whether it is there and has not ended."""
    if not is_alive(process):
        return False
    with suppress(OSError):  # one that has ended may wait to be asked for its exit code
        return Path(f"/proc/{process}/stat").read_text("utf-8").rpartition(")")[2].split()[0] != "Z"
    return True


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Variables for Ray and its processes, set back afterwards."""
    before = {name: os.environ.get(name) for name in (*values, *LEFT_BEHIND)}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _hushed(ray: Any) -> Iterator[None]:
    """Ray says much on the terminal; VITRAIL_DEBUG=1 lets it."""
    if os.environ.get("VITRAIL_DEBUG"):
        yield
        return
    printer = ray._private.worker  # a thread of it prints what other processes of Ray complain of
    prints = getattr(printer, "_worker_logs_enabled", True)
    printer._worker_logs_enabled = False
    loggers = [logging.getLogger(name) for name in ("ray", "ray.data", "ray.serve")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        printer._worker_logs_enabled = prints


@contextmanager
def _no_stderr() -> Iterator[None]:
    """Nothing on stderr, whoever writes: libraries that are no Python too."""
    if os.environ.get("VITRAIL_DEBUG"):
        yield
        return
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


@contextmanager
def _signals_set_back() -> Iterator[None]:
    """Ray takes SIGTERM for itself: as it was, afterwards."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _stop_on_sigterm() -> None:
    """SIGTERM as an error, so that the cluster is closed on the way out; to be called once Ray has set its own."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _stop)


def _stop(number: int, frame: FrameType | None) -> None:
    raise StoppedError("stopped; the same command goes on where it was", number)
