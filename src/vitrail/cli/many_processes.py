"""A verb in many processes: started here by `--processes`, or by torchrun; joined, and heard as one."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout

import typer

from vitrail.cli import openmp
from vitrail.cli.terminal import complain
from vitrail.errors import InputError


def start_processes(wanted: int) -> None:
    """Run this very command in so many processes, and end as they end; in one of them, or for one alone, nothing."""
    from vitrail.training.processes import started_world

    if wanted < 2 or started_world() > 1:
        return
    from vitrail.scale.launching import launch

    given = os.environ.get("OMP_NUM_THREADS", "") if "OMP_NUM_THREADS" not in openmp.ours else ""
    threads = int(given) if given.isdigit() else None
    raise typer.Exit(launch(wanted, ["-m", "vitrail", *sys.argv[1:]], complain, threads=threads))


@contextmanager
def joined_processes(wanted: int, *, needed: bool = True) -> Iterator[None]:
    """Inside, this process works with those that were started with it, and the first alone is heard.

    Where they are not needed the first works alone, and the others end.
    """
    from vitrail.training.processes import ALONE, started_world, using

    if started_world() == 1:
        yield
        return
    if not needed:
        if os.environ["RANK"] != "0":
            raise typer.Exit
        with using(ALONE):
            yield
        return
    from vitrail.scale import joined

    with joined() as processes, ExitStack() as silence:
        if wanted not in (1, processes.world):
            raise InputError(f"--processes {wanted}, and {processes.world} were started: leave --processes out")
        if not processes.is_first:
            nowhere = silence.enter_context(open(os.devnull, "w", encoding="utf-8"))
            silence.enter_context(redirect_stdout(nowhere))
            silence.enter_context(redirect_stderr(nowhere))
        yield
