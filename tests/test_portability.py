"""macOS and Windows: no call that one of them lacks stands in a module but the one that has another way for each."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "vitrail"
GUARDED = "system_calls.py"  # has another way for each

# What not every system has, or has with another meaning: os.kill(pid, 0) ends the process on Windows.
CALLS = {
    "os": {
        *(
            "preadv",
            "preadv2",
            "pwritev",
            "pread",
            "pwrite",
            "sched_getaffinity",
            "sched_setaffinity",
            "kill",
            "killpg",
        ),
        *(
            "geteuid",
            "getuid",
            "getegid",
            "getgid",
            "getpgid",
            "setsid",
            "fork",
            "forkpty",
            "wait",
            "waitpid",
            "mkfifo",
        ),
        *("O_NONBLOCK", "O_CLOEXEC", "O_NOFOLLOW", "O_DIRECTORY", "O_SYNC", "O_BINARY", "posix_fallocate", "sendfile"),
        *("posix_fadvise", "statvfs", "fchmod", "chown", "getloadavg", "uname", "sysconf", "nice", "fdatasync", "sync"),
        *("fsync", "replace", "rename", "renames", "mknod", "pipe2", "eventfd", "memfd_create", "set_blocking", "link"),
    },
    "signal": {
        *("SIGKILL", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGPIPE", "SIGALRM", "SIGCHLD", "SIGSTOP", "SIGQUIT", "SIGCONT"),
        *("alarm", "pause", "setitimer", "sigwait", "pthread_kill", "pthread_sigmask", "siginterrupt"),
    },
}
MODULES = {"fcntl", "msvcrt", "resource", "termios", "tty", "pty", "pwd", "grp", "syslog", "winreg", "posix", "_winapi"}
# Other modules that may: each has another way at hand, which the reason names.
REASONS = {
    ("data/shard_writing.py", "fsync"): "of files that are open to be written",
    ("data/shard_writing.py", "rename"): "of folders whose files are closed",
    ("training/state.py", "fsync"): "of a file that is open to be written, and is closed before it is renamed",
    ("training/state.py", "rename"): "of a folder that should not be there",
    ("training/sharded_state.py", "fsync"): "of a file that is open to be written",
    ("training/run_folder.py", "rename"): "of a folder that nobody holds open",
    ("scale/batch_job.py", "fsync"): "of a file that is open to be written",
    ("scale/ray_cluster.py", "kill"): "only where the system names the processes of a cluster",
    ("scale/ray_cluster.py", "SIGKILL"): "only there too",
}
SYSTEM_PATHS = ("/proc", "/sys/", "/dev/", "/tmp", "/etc/")
PATH_REASONS = {
    "cores.py": "control groups are Linux's; elsewhere there are none",
    "exporters/openvino.py": "else OpenVINO's word is taken",
    "scale/process_group.py": "else the process is asked",
    "scale/ray_cluster.py": "else Ray's word is taken that its processes are gone",
    "shipping/benchmark.py": "else memory is not told",
}


def names_of(path: Path) -> Iterator[tuple[str, int]]:
    """Every name in a module that not every system has, with its line."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.attr in CALLS.get(node.value.id, ())
        ):
            yield node.attr, node.lineno
        elif isinstance(node, ast.ImportFrom) and node.module in {*CALLS, *MODULES}:
            wrong = {each.name for each in node.names} & CALLS.get(node.module, {each.name for each in node.names})
            yield from ((name, node.lineno) for name in sorted(wrong))
        elif isinstance(node, ast.Import):
            yield from ((each.name, node.lineno) for each in node.names if each.name in MODULES)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "rename":
            yield "rename", node.lineno  # of a Path


def paths_of(path: Path) -> Iterator[tuple[str, int]]:
    """Texts that name a place that only some systems have, docstrings left out."""
    tree = ast.parse(path.read_text("utf-8"))
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield from ((each, node.lineno) for each in SYSTEM_PATHS if node.value.startswith(each))


def unencoded(path: Path) -> Iterator[int]:
    """Lines that read or write text in whatever encoding the system prefers: Windows has another."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        words = {each.arg for each in node.keywords}
        if isinstance(node.func, ast.Attribute) and node.func.attr in ("read_text", "write_text"):
            is_named = "encoding" in words or len(node.args) > (node.func.attr == "write_text")
        elif isinstance(node.func, ast.Name) and node.func.id == "open":
            mode = [*node.args[1:2], *(each.value for each in node.keywords if each.arg == "mode")]
            is_binary = bool(mode) and not (isinstance(mode[0], ast.Constant) and "b" not in str(mode[0].value))
            is_named = is_binary or "encoding" in words or None in words
        else:
            continue
        if not is_named:
            yield node.lineno


def modules() -> list[tuple[str, Path]]:
    return [(path.relative_to(PACKAGE).as_posix(), path) for path in sorted(PACKAGE.rglob("*.py"))]


def test_calls_that_a_system_lacks_stand_in_one_module() -> None:
    found = {(name, call): line for name, path in modules() if name != GUARDED for call, line in names_of(path)}
    assert {f"{name}:{line} {call}" for (name, call), line in found.items() if (name, call) not in REASONS} == set()
    assert set(REASONS) <= set(found)  # none that nothing needs


def test_places_that_a_system_lacks_are_not_needed() -> None:
    found = {(name, place): line for name, path in modules() for place, line in paths_of(path)}
    assert {f"{name}:{line} {place}" for (name, place), line in found.items() if name not in PATH_REASONS} == set()


def test_text_is_written_in_one_encoding_everywhere() -> None:
    assert [f"{name}:{line}" for name, path in modules() for line in unencoded(path)] == []


@pytest.mark.parametrize(
    "source, expected",
    [
        ("import os\nos.kill(1, 0)", ["kill"]),
        ("from os import preadv", ["preadv"]),
        ("import fcntl", ["fcntl"]),
        ("from fcntl import flock", ["flock"]),
        ("import signal\nsignal.SIGKILL", ["SIGKILL"]),
        ("path.rename(other)", ["rename"]),
        ("import os\nos.getpid()\nimport signal\nsignal.SIGTERM", []),
    ],
)
def test_such_a_call_is_found(source: str, expected: list[str], tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(source)
    assert [name for name, _ in names_of(tmp_path / "a.py")] == expected


@pytest.mark.parametrize(
    "source, count",
    [
        *(("open(a)", 1), ("open(a, 'w')", 1), ("open(a, mode='w')", 1), ("a.read_text()", 1), ("a.write_text(b)", 1)),
        *(("open(a, 'rb')", 0), ("open(a, encoding='utf-8')", 0), ("a.read_text('utf-8')", 0), ("open(a, **b)", 0)),
        ("a.write_text(b, 'utf-8')", 0),
    ],
)
def test_text_without_an_encoding_is_found(source: str, count: int, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(source)
    assert len(list(unencoded(tmp_path / "a.py"))) == count


def test_a_run_its_predictions_and_its_export_without_what_others_lack(tmp_path: Path) -> None:
    command = [sys.executable, str(Path(__file__).with_name("without_posix.py")), str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]
    told = json.loads(ran.stdout.splitlines()[-1])
    assert told["stopped"] == "stopped at step 2 of 4; everything is saved, and the same command goes on"
    assert "is being trained by process" in told["held"]
    assert told["runs"] == ["stopped", "whole", "whole.old-1"]
    assert told["classes"] == ["Käfer", "bees"]
    assert {name: told[name] for name in ("resumed", "bits", "same", "cached")} == dict.fromkeys(
        ("resumed", "bits", "same", "cached"), True
    )
    assert told["left"] == []  # nothing half-written, though it cannot be asked who writes
    assert told["folder"] == "CheckpointError"
