"""Tables of names: rows spelled out for each block, and codecs that give back what they were given, bit for bit."""

from __future__ import annotations

import pytest
import torch

from vitrail.network.config import ViTConfig
from vitrail.weights import name_tables
from vitrail.weights.name_tables import Derived, Row, derived, renamed, spell, to_theirs, weights_of

CONFIG = ViTConfig(image_size=8, patch_size=(2, 4), channels=3, width=8, depth=2, heads=2, mlp_width=12)
CODECS = {
    "SAME": [(5, 3)],
    "QKV": [(8, 8)] * 3,
    "GATED": [(12, 8)] * 2,
    "WITHOUT_BATCH": [(1, 7, 8)],
    "ROW": [(8,)],
    "TRANSPOSED": [(3, 8)],
    "KERNEL": [(8, 3, 2, 4)],
    "CHANNELS_LAST": [(8, 24)],
}


@pytest.mark.parametrize("name", CODECS)
def test_what_is_decoded_is_encoded_back_bit_for_bit(name: str) -> None:
    codec = getattr(name_tables, name)
    theirs = [torch.randn(shape) for shape in CODECS[name]]
    back = codec.encode(codec.decode(theirs, CONFIG), CONFIG)
    assert len(back) == len(theirs)
    assert all(torch.equal(one, other) for one, other in zip(back, theirs, strict=True))


def test_values_stand_where_the_codecs_say() -> None:
    q, k, v = (torch.full((2, 2), float(number)) for number in range(3))
    [qkv] = name_tables.QKV.decode([q, k, v], CONFIG)
    assert qkv[:, 0].tolist() == [0, 0, 1, 1, 2, 2]
    pixels = torch.arange(24.0).reshape(1, 2, 4, 3)  # rows, columns, channels
    [weight] = name_tables.CHANNELS_LAST.decode([pixels.flatten(1)], CONFIG)
    assert torch.equal(weight.reshape(3, 2, 4), pixels[0].permute(2, 0, 1))
    both = name_tables.then(name_tables.ROW, name_tables.TRANSPOSED)
    assert both.decode([torch.arange(3.0)], CONFIG)[0].tolist() == [[0.0], [1.0], [2.0]]
    assert both.encode([torch.tensor([[0.0], [1.0], [2.0]])], CONFIG)[0].tolist() == [0.0, 1.0, 2.0]
    assert both.name == "as one row, then transposed"


def test_a_row_is_spelled_out_for_each_block_and_leaf_that_is_there() -> None:
    ours = ["encoder.blocks.0.norm1.weight", "encoder.blocks.0.norm1.bias", "encoder.blocks.1.norm1.weight", "cls"]
    table = (
        Row("encoder.blocks.{i}.norm1", "layer.{i}.ln"),
        Row("cls", "token", name_tables.ROW),
        Row("tokens.registers", "registers"),  # which this network lacks
        Derived("layer.{i}.ids", lambda config: torch.arange(3), "numbers"),
    )
    links = spell(table, ours)
    assert [(link.ours, link.theirs) for link in links] == [
        (("encoder.blocks.0.norm1.weight",), ("layer.0.ln.weight",)),
        (("encoder.blocks.0.norm1.bias",), ("layer.0.ln.bias",)),
        (("encoder.blocks.1.norm1.weight",), ("layer.1.ln.weight",)),
        (("cls",), ("token",)),
    ]
    assert [row.theirs for row in derived(table, 2)] == ["layer.0.ids", "layer.1.ids"]
    assert weights_of(table, "encoder.blocks.{i}.norm1") == ("layer.{i}.ln.weight",)
    assert weights_of(table, "head") == ()
    assert [row.theirs for row in renamed(table[2:], str.upper)] == [("REGISTERS",), "LAYER.{I}.IDS"]
    tensors = {name: torch.randn(1, 4) for name in [*ours, "left"]}
    theirs, unplaced = to_theirs(table, tensors, CONFIG)
    assert unplaced == ["left"]
    assert theirs["token"].shape == (4,)
    assert list(theirs)[-2:] == ["layer.0.ids", "layer.1.ids"]
