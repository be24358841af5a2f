"""Processes: one alone gives back what it got; one of several has to join the others first."""

from __future__ import annotations

import pytest
import torch

from vitrail.errors import InputError
from vitrail.training.processes import ALONE, Processes, current, flatten, unflatten, using


def test_one_alone_gives_back_what_it_got() -> None:
    rows = torch.arange(6.0).view(3, 2)
    assert (ALONE.rank, ALONE.world, ALONE.is_first, ALONE.is_teller()) == (0, 1, True, True)
    assert ALONE.broadcast({"a": [1]}) == {"a": [1]}
    assert ALONE.all_gather([1, 2.5]) == [[1, 2.5]]
    assert ALONE.concatenate(rows, [3]) is rows
    assert ALONE.sum(rows) is rows
    assert ALONE.fold([rows[0], rows[1]], [2], lambda parts: parts[0] - parts[1]).tolist() == [-2.0, -2.0]
    assert ALONE.broadcast_tensors({"a": rows})["a"] is rows


def test_who_trains_together_is_known_inside_and_no_longer_outside() -> None:
    others = Processes()
    with using(others):
        assert current() is others
    assert current() is ALONE


def test_one_of_several_that_has_not_joined_them_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match=r"one of 2 that were started together.*with vitrail.scale.joined\(\)"):
        current()
    with using(ALONE):
        assert current() is ALONE


def test_flat_values_come_apart_as_they_were() -> None:
    parts = [torch.randn(2, 3), torch.randn(()), torch.randn(4)]
    for found, part in zip(unflatten(flatten(parts), parts), parts, strict=True):
        assert torch.equal(found, part)
