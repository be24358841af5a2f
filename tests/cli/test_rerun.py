"""The verb rerun."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import vitrail
from cli.command_line import Line, run_of


def test_a_rerun_that_differs_says_so(vit: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    for same, differences, words in (
        (True, (), "the same bits as old"),
        (False, ("loss", "weights"), "NOT the same as old: loss; weights"),
    ):
        repeated = SimpleNamespace(same=same, differences=differences, run=run_of())
        monkeypatch.setattr(vitrail.training, "rerun", lambda run, to, callbacks, repeated=repeated: repeated)
        assert vit("rerun", "old").out.splitlines()[-1] == words
        told = vit("rerun", "old", "--json").json
        assert (told["same"], told["differences"]) == (same, list(differences))
