"""Threads of torch: one that works by itself leaves the others theirs."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch

_changing = threading.Lock()


def threads_alone() -> Callable[[], None]:
    """What a thread calls, once or often, to have none to help it from then on: for one that ends with its work.

    To be asked for where torch has as many threads as it should. It keeps a number for each thread, and the last one
    set for those still to come: so another thread, which ends at once, sets that as it was.
    """
    with _changing:
        usual, here = torch.get_num_threads(), threading.local()

    def alone() -> None:
        if getattr(here, "alone", False):
            return
        with _changing:
            torch.get_num_threads()  # a thread takes the number for new ones when it first asks: not later than now
            torch.set_num_threads(1)
            other = threading.Thread(target=torch.set_num_threads, args=(usual,))
            other.start()
            other.join()
        here.alone = True

    return alone
