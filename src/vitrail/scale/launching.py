"""A command -> so many processes of it on this machine, by torch's elastic agent: all of them end well, or none.

The agent meets its processes on the loopback interface. One that is killed brings all of them down, and up again from
the last state; one that ends with an error has said why, and nothing is started again.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile
import uuid
from collections.abc import Sequence
from typing import Final

from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
from torch.distributed.elastic.rendezvous import RendezvousParameters, registry

from vitrail.cores import usable_cores
from vitrail.scale.process_group import LAUNCHED, PEER_LOST
from vitrail.types import LogCallback

RESTARTS: Final = 10  # after processes were killed: more often than that by chance is unlikely
SAVING_SECONDS: Final = 120  # that a process may take to save and end when it is asked to


def launch(count: int, arguments: Sequence[str], log: LogCallback, *, threads: int | None = None) -> int:
    """Run `python arguments` in so many processes; gives the exit code that says best what came of it."""
    logging.disable()  # what matters is told by us, in a line
    os.environ[LAUNCHED] = str(os.getpid())
    os.environ["OMP_NUM_THREADS"] = str(threads or max(1, usable_cores().threads // count))
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    meeting = RendezvousParameters(
        backend="c10d",
        endpoint="127.0.0.1:0",
        run_id=uuid.uuid4().hex,
        min_nodes=1,
        max_nodes=1,
        local_addr="127.0.0.1",
        is_host="true",
    )
    with tempfile.TemporaryDirectory() as logs:
        registry._register_default_handlers()
        spec = WorkerSpec(
            role="vitrail",
            local_world_size=count,
            entrypoint=sys.executable,
            args=tuple(arguments),
            rdzv_handler=registry.get_rendezvous_handler(meeting),
            max_restarts=RESTARTS,
            monitor_interval=0.1,
            local_addr="127.0.0.1",
        )
        agent = _Agent(spec, DefaultLogsSpecs(log_dir=logs), shutdown_timeout=SAVING_SECONDS)
        agent.log = log
        try:
            result = agent.run()
        except SignalException as error:
            return 128 + int(error.sigval)
        finally:
            spec.rdzv_handler.shutdown()
    return max((_code_of(each) for each in result.failures.values()), default=0) if result.is_failed() else 0


class _Agent(LocalElasticAgent):
    """torch's agent, which names who was killed, and starts nothing again after an error that was told."""

    log: LogCallback

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        result: RunResult = super()._monitor_workers(worker_group)
        if result.state not in (WorkerState.FAILED, WorkerState.UNHEALTHY):
            return result
        failures = list(result.failures.values())
        if any(each.exitcode > 0 and each.exitcode != PEER_LOST for each in failures):
            self._remaining_restarts = 0
            return result
        killed = [(rank, each) for rank, each in result.failures.items() if _is_killed(each)]
        world = len(worker_group.workers)
        for rank, each in killed:
            name = signal.Signals(-each.exitcode).name
            self.log(f"rank {rank} of {world} (process {each.pid}) was ended by {name}")
        if self._remaining_restarts:
            self.log("all processes start again, and go on from the last state")
        else:
            self.log("this was once too often: the same command goes on from the last state")
        return result


def _is_killed(failure: ProcessFailure) -> bool:
    """Whether a process was ended by a signal that the agent did not send: it asks the others to end after that."""
    return failure.exitcode < 0 and -failure.exitcode != signal.SIGTERM


def _code_of(failure: ProcessFailure) -> int:
    """What an exit code of one process says of all: what it told, else that something is wrong."""
    return failure.exitcode if 0 < failure.exitcode != PEER_LOST else 1
