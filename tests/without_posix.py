"""Load, train, stop, go on, predict and export where a system lacks what Linux has: test_portability.py runs this.

Before vitrail is imported, calls that macOS or Windows lack are taken away, and files behave as on Windows: what is
open can be neither replaced, nor removed, nor moved; folders cannot be opened; what is synced was opened to be written.
No machine with either system was at hand: this is what they are known to refuse.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch  # made for the system that it is on, as Python's own library: both are imported before
from PIL import Image

OS = (
    *("preadv", "pread", "pwrite", "pwritev", "sched_getaffinity", "sched_setaffinity", "kill", "killpg", "geteuid"),
    *("getuid", "getgid", "getegid", "getpgid", "setsid", "mkfifo", "posix_fallocate", "posix_fadvise"),
    *("O_NONBLOCK", "O_CLOEXEC", "O_NOFOLLOW", "O_DIRECTORY", "O_SYNC", "O_DSYNC", "O_TMPFILE", "nice"),
    *("set_blocking", "sendfile", "fchmod", "getloadavg", "fdatasync", "WNOHANG", "waitstatus_to_exitcode"),
)
SIGNALS = ("SIGKILL", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGPIPE", "SIGALRM", "SIGCHLD", "SIGSTOP", "SIGQUIT", "alarm")
MODULES = ("fcntl", "resource", "termios", "pwd", "grp", "syslog")


def take_away() -> None:
    """What Windows lacks."""
    for owner, names in ((os, OS), (signal, SIGNALS)):
        for name in names:
            if hasattr(owner, name):
                delattr(owner, name)
    for name in MODULES:
        sys.modules[name] = None  # type: ignore[assignment]


def open_paths() -> set[str]:
    """Files that this process has open or mapped."""
    mapped = {line.split(maxsplit=5)[5].strip() for line in open("/proc/self/maps") if line.count(" /")}  # noqa: SIM115
    numbers = (f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd"))
    return mapped | {os.path.realpath(each) for each in numbers if os.path.lexists(each)}


def as_on_windows() -> None:
    """Open files stay where they are; folders are not opened; only what may be written can be synced."""

    def guarded(call: Callable[..., Any], count: int) -> Callable[..., Any]:
        def guard(*paths: Any, **options: Any) -> Any:
            for path in map(os.path.realpath, paths[:count]):
                if any(each == path or each.startswith(path + os.sep) for each in open_paths()):
                    raise PermissionError(13, "The process cannot access the file: it is being used", str(path))
            return call(*paths, **options)

        return guard

    for name, count in (("replace", 2), ("rename", 2), ("unlink", 1), ("remove", 1)):
        setattr(os, name, guarded(getattr(os, name), count))
    plain_open, plain_sync, flags_of = os.open, os.fsync, fcntl.fcntl

    def open_file(path: Any, *rest: Any, **options: Any) -> int:
        if options.get("dir_fd") is None and os.path.isdir(path):
            raise PermissionError(13, "Permission denied", str(path))
        return plain_open(path, *rest, **options)

    def sync(number: int) -> None:
        if flags_of(number, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(9, "Bad file descriptor")
        plain_sync(number)

    os.open, os.fsync = open_file, sync  # type: ignore[assignment]
    shutil._use_fd_functions = False  # type: ignore[attr-defined]  # as where folders cannot be opened


def locks_as_windows() -> ModuleType:
    """msvcrt, with the one call that is asked of it; Linux's own lock stands behind it."""
    module: Any = ModuleType("msvcrt")
    hold = fcntl.flock
    module.LK_NBLCK = 2
    module.locking = lambda number, kind, count: hold(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return module  # type: ignore[no-any-return]


def main(folder: Path) -> None:
    locks = locks_as_windows()
    take_away()
    as_on_windows()
    real, sys.platform, sys.modules["msvcrt"] = sys.platform, "win32", locks
    import vitrail.system_calls

    sys.platform = real
    del sys.modules["msvcrt"]  # by which Python's own library would know Windows
    assert vitrail.system_calls.IS_WINDOWS
    print(json.dumps(use(folder)))


def use(folder: Path) -> dict[str, Any]:
    """What a person does with the package, and what came of it."""
    import vitrail
    from vitrail.data.disk_cache import open_disk_cache, write_disk_cache
    from vitrail.training import Callbacks
    from vitrail.training.run_folder import locked

    dice = np.random.default_rng(0)
    for number in range(24):
        place = folder / "photos" / ("Käfer", "bees")[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(dice.integers(0, 255, (20, 20, 3), dtype=np.uint8)).save(place / f"{number}.png")
    config = vitrail.ViTConfig(image_size=16, patch_size=8, width=16, depth=1, heads=1, mlp_width=16)

    def train(name: str, stop: int = 0, **options: Any) -> vitrail.Run:
        def end(done: int, steps: int, loss: float) -> None:
            if done == stop:
                signal.raise_signal(signal.SIGINT)

        return vitrail.train(
            folder / "photos",
            model=config,
            size=16,
            steps=4,
            batch=4,
            seed=1,
            device="cpu",
            check=False,
            progress=False,
            out=folder / "runs",
            name=name,
            callbacks=Callbacks(step=end),
            **options,
        )

    told: dict[str, Any] = {"threads": torch.get_num_threads()}
    whole = train("whole", report=False)
    try:
        train("stopped", stop=2)
    except vitrail.VitrailError as error:
        told["stopped"] = str(error)
    stopped = train("stopped")
    told["resumed"] = stopped.resumed
    weights = [vitrail.load(run.folder / "last.safetensors").model.state_dict() for run in (whole, stopped)]
    told["bits"] = all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    with locked(stopped.folder):
        try:
            train("stopped", fresh=True)
        except vitrail.VitrailError as error:
            told["held"] = str(error)
    train("whole", fresh=True, report=False)
    told["runs"] = sorted(os.listdir(folder / "runs"))

    checkpoint = vitrail.load(stopped.folder)
    vitrail.save(checkpoint, stopped.best)  # over the file that it came from
    told["classes"] = list(vitrail.load(stopped.best).classes)
    images = sorted((folder / "photos" / "bees").iterdir())
    answers = [vitrail.predict(stopped.folder, images, progress=False)]
    for _ in range(2):  # a second time over the first
        vitrail.export(checkpoint, folder / "a.onnx")
    answers.append(vitrail.predict(folder / "a.onnx", images, progress=False))
    vitrail.convert(checkpoint, folder / "timm", to="timm")
    told["same"] = [each.labels for each in answers[0]] == [each.labels for each in answers[1]]
    views = dice.integers(0, 255, (3, 3, 8, 8), dtype=np.uint8)
    (folder / ".views-1.77.tmp").write_bytes(b"left by one who was killed")
    cache = write_disk_cache(folder / "views.npy", views.shape, views.dtype, [views])
    told["cached"] = bool((cache.read(2) == views[2]).all() and open_disk_cache(folder / "views.npy", views.shape))
    told["left"] = sorted(path.name for path in folder.rglob(".*") if path.is_file())
    try:
        vitrail.load(folder / "photos")
    except vitrail.VitrailError as error:
        told["folder"] = type(error).__name__
    return told


if __name__ == "__main__":
    main(Path(sys.argv[1]))
