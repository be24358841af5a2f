"""Ranges are those of what layers receive, and calibration leaves no trace."""

from __future__ import annotations

from typing import cast

import pytest
import torch

from shipping.packs import network
from vitrail.errors import InputError
from vitrail.network.encoder import Block
from vitrail.quantisation.range_calibration import calibrate, watch_layers


@pytest.mark.row("DL.7")
def test_ranges_are_those_of_what_layers_receive() -> None:
    model = network()
    batches = [torch.randn(2, 3, 32, 32), torch.randn(1, 3, 32, 32)]
    ranges = calibrate(model, batches)
    for block, tokens in ((1, 17), (2, 1)):  # of the last one, those that the pool reads
        seen: list[torch.Tensor] = []
        layer = cast(Block, model.encoder.blocks[block]).mlp.up
        hook = layer.register_forward_pre_hook(lambda _, given, seen=seen: seen.append(given[0]))
        with torch.inference_mode():
            for pixels in batches:
                model(pixels)
        hook.remove()
        values = torch.cat([each[:, :tokens].flatten() for each in seen])
        expected = (float(values.min()), float(values.max()))
        assert ranges[f"encoder.blocks.{block}.mlp.up"] == pytest.approx(expected, abs=1e-5)


def test_calibration_leaves_the_network_as_it_was() -> None:
    model = network().train()
    last = model.encoder.blocks[-1]
    calibrate(model, [torch.randn(2, 3, 32, 32)])
    assert (model.encoder.blocks[-1] is last, model.training) == (True, True)
    assert not any(each._forward_pre_hooks for each in model.modules())

    def look(name: str, values: torch.Tensor) -> None:
        raise InputError("expected")

    with pytest.raises(InputError, match="expected"):
        watch_layers(model, [torch.randn(2, 3, 32, 32)], look)
    assert (model.encoder.blocks[-1] is last, model.training) == (True, True)  # after an error, too
    assert not any(each._forward_pre_hooks for each in model.modules())
