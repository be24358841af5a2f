"""A thread of torch by itself: the others, and those still to come, keep theirs."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch

from vitrail.threads import threads_alone


@pytest.fixture(autouse=True)
def three() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def fresh() -> int:
    """What a new thread is given."""
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    return found[0]


def test_all_but_that_thread_keep_theirs() -> None:
    alone, inside = threads_alone(), []
    meeting = threading.Barrier(3)

    def work() -> None:
        try:
            for _ in range(3):
                alone()
                meeting.wait()
                inside.append((torch.get_num_threads(), fresh()))
        except BaseException:
            meeting.abort()  # the others need not wait for this one
            raise

    threads = [threading.Thread(target=work) for _ in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert inside == [(1, 3)] * 9
    assert (torch.get_num_threads(), fresh()) == (3, 3)


def test_one_thread_after_another_works_alone() -> None:
    """Each by itself: what one has done already is not yet done for the next."""
    alone, inside = threads_alone(), []

    def work() -> None:
        for _ in range(2):
            alone()
            inside.append(torch.get_num_threads())

    for _ in range(3):
        worker = threading.Thread(target=work)
        worker.start()
        worker.join()
    assert inside == [1] * 6
    assert (torch.get_num_threads(), fresh()) == (3, 3)


def test_several_at_once_do_not_take_each_others_number() -> None:
    found: list[int] = []

    def asks() -> None:
        worker = threading.Thread(target=threads_alone())
        worker.start()
        worker.join()
        found.append(torch.get_num_threads())

    threads = [threading.Thread(target=asks) for _ in range(24)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert found == [3] * 24
    assert fresh() == 3
