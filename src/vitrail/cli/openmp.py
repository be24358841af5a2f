"""What torch's threads do while they wait, and how many they are: set in the environment, before torch is loaded.

Threads of OpenMP spin at every barrier before they sleep. Alone on a machine that saves a little time; beside other
work they burn the time that the thread they wait for would need (benchmarks/shared_machine.py). Its runtimes read their
settings once, when they are loaded, each by names of its own. Processes that are started later inherit them.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from typing import Final

from vitrail.cores import Cores, usable_cores

# Of a runtime: its setting, the value measured best, and the user's own settings that say the same or leave it out.
WAITING: Final = {
    "GOMP_SPINCOUNT": ("10000", ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")),  # GNU's, as in torch's wheels for Linux
    "KMP_BLOCKTIME": ("1", ("KMP_BLOCKTIME", "KMP_LIBRARY", "OMP_WAIT_POLICY")),  # LLVM's and Intel's: milliseconds
}
THREADS: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")

ours: dict[str, str] = {}  # what was set here, in this process


def prepare_openmp(environment: MutableMapping[str, str] = os.environ, cores: Cores | None = None) -> None:
    """Set what suits a shared machine, where the user has set nothing; to be called before torch is loaded.

    The number of threads is set only where control groups leave less time than the cores have: that the cores are
    fewer than the machine's is known to torch.
    """
    chosen = {
        name: value for name, (value, others) in WAITING.items() if not any(each in environment for each in others)
    }
    cores = usable_cores() if cores is None else cores
    if cores.threads < cores.allowed and not any(name in environment for name in THREADS):
        chosen["OMP_NUM_THREADS"] = str(cores.threads)
    environment.update(chosen)
    ours.update(chosen)


def why_threads(environment: MutableMapping[str, str] = os.environ) -> str:
    """Why torch has as many threads as it has, in words."""
    given = [f"{name}={environment[name]}" for name in THREADS if name in environment and name not in ours]
    if given:
        return f"set by {' and '.join(given)}"
    return "what the control groups leave" if "OMP_NUM_THREADS" in ours else "one a core"


def waiting_settings(environment: MutableMapping[str, str] = os.environ) -> str:
    """How threads wait: every setting of the environment that says so, and which of them are ours."""
    names = dict.fromkeys(name for _, others in WAITING.values() for name in others)
    found = [f"{name}={environment[name]}{'' if name in ours else ' (yours)'}" for name in names if name in environment]
    return ", ".join(found) or "as the runtime does by itself"
