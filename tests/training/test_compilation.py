"""The forward pass compiled: the same network under the same names, and a clear word where it cannot be."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from training import tiny
from training.test_loop import log_of, rows, weights_of
from vitrail.errors import InputError
from vitrail.network.vit import ViT
from vitrail.training import compilation
from vitrail.training.loop import fit
from vitrail.training.state import read_newest

COMPILED = replace(tiny.RECIPE, compile=True, optimiser="sgd", lr=0.05)


def counted_programs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Every program that is made of the network, run as it was traced: quick, and the same numbers."""
    made: list[int] = []

    def backend(program: Any, examples: Any) -> Any:
        made.append(len(examples))
        return program.forward

    torch._dynamo.reset()
    monkeypatch.setattr(compilation, "BACKEND", backend)
    return made


def test_a_compiled_training_has_the_networks_names_and_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = counted_programs(monkeypatch)
    config = replace(tiny.CONFIG, dropout=0.0, drop_path=0.0)
    for compiled in (False, True):
        torch.manual_seed(5)
        fit(tiny.job(tmp_path / str(compiled), 7, replace(COMPILED, compile=compiled), model=ViT(config)))
        assert bool(made) is compiled
    states = [read_newest(tmp_path / name / "state", pytest.fail) for name in ("False", "True")]
    assert states[0] is not None
    assert states[1] is not None
    assert states[0].tensors.keys() == states[1].tensors.keys()
    weights = [weights_of(tmp_path / name) for name in ("False", "True")]
    for name, value in weights[0].items():
        torch.testing.assert_close(weights[1][name], value, rtol=0, atol=1e-5)
    assert [row["loss"] for row in rows(tmp_path / "True", "step")] == pytest.approx(
        [row["loss"] for row in rows(tmp_path / "False", "step")], abs=1e-5
    )


def test_what_cannot_be_compiled_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(program: Any, examples: Any) -> Any:
        raise RuntimeError("no C++ compiler found")

    torch._dynamo.reset()
    monkeypatch.setattr(compilation, "BACKEND", broken)
    with pytest.raises(InputError, match=r"--compile: torch could not compile the network: .*leave --compile out"):
        fit(tiny.job(tmp_path, 3, COMPILED))


def test_without_it_the_network_is_called_itself(tmp_path: Path) -> None:
    model = ViT(tiny.CONFIG)
    assert compilation.training_forward(model, False) is model
    fit(tiny.job(tmp_path, 1, tiny.RECIPE))
    assert log_of(tmp_path)
