"""Their tensors against ours: all paired and finite, or one message that lists both sides."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from vitrail.errors import CheckpointError, InputError
from vitrail.weights import load


def test_a_part_can_be_left_out_by_name(bare: Path) -> None:
    """The head by its part; the report keeps what was left; a name that fits nothing is a mistake."""
    ckpt = load(bare, leave_out=("head",))
    assert ckpt.model.config.classes == 0
    left = [row.theirs[0] for row in ckpt.provenance.mapping if row.how == "left out"]
    assert sorted(left) == ["head.bias", "head.weight"]
    with pytest.raises(InputError, match="leave_out 'haed'"):
        load(bare, leave_out=("haed",))
    with pytest.raises(InputError, match="list"):
        load(bare, leave_out="head")


@pytest.mark.parametrize("name", ["cls_token", "pos_embed"])
def test_a_batch_axis_of_two_does_not_fit(bare: Path, name: str) -> None:
    """Of two cls tokens, or two tables, none is taken in silence."""
    tensors = load_file(bare)
    save_file(tensors | {name: torch.cat((tensors[name], tensors[name]))}, bare)
    with pytest.raises(CheckpointError, match=rf"expected \[(1|17), 128\], got {name} \[2, (1|17), 128\]"):
        load(bare)


def test_a_gap_between_blocks_is_named(bare: Path) -> None:
    """Block 1 is called 2: not one block too few, but a file that is not whole."""
    renamed = {name.replace("blocks.1.", "blocks.2."): value for name, value in load_file(bare).items()}
    save_file(renamed, bare)
    with pytest.raises(CheckpointError, match=r"expected blocks numbered from 0 without a gap, got \[0, 2\]"):
        load(bare)


@pytest.mark.fault("W9")
def test_a_wrong_model_is_one_message_and_no_half_load(bare: Path) -> None:
    """Missing, unexpected, mis-shaped and of another kind: all in one message."""
    tensors = load_file(bare)
    del tensors["norm.bias"]
    tensors["blocks.0.mlp.fc2.bias"] = torch.ones(7)
    tensors["blocks.0.norm1.weight"] = torch.ones(128, dtype=torch.int64)
    tensors["extra.weight"] = torch.ones(2, 2)
    save_file(tensors, bare)
    with pytest.raises(CheckpointError) as caught:
        load(bare)
    for part in ("missing norm.bias", "fc2.bias [7]", "torch.int64", "not used extra.weight [2, 2]", "of 32 tensors"):
        assert part in str(caught.value)


@pytest.mark.fault("W8")
def test_nan_is_refused(bare: Path) -> None:
    tensors = load_file(bare)
    tensors["norm.bias"][3] = float("nan")
    save_file(tensors, bare)
    with pytest.raises(CheckpointError, match="norm.bias hold NaN"):
        load(bare)


def test_half_precision_stays_and_mixed_is_widened(bare: Path) -> None:
    tensors = load_file(bare)
    save_file({name: value.bfloat16() for name, value in tensors.items()}, bare)
    assert {value.dtype for value in load(bare).model.state_dict().values()} == {torch.bfloat16}
    mixed = {name: value.half() if "mlp" in name else value for name, value in tensors.items()}
    save_file(mixed, bare)
    model = load(bare).model
    assert {value.dtype for value in model.state_dict().values()} == {torch.float32}
    assert torch.equal(model.state_dict()["encoder.blocks.0.mlp.up.weight"], mixed["blocks.0.mlp.fc1.weight"].float())


def test_numbers_that_no_network_computes_in_are_refused(bare: Path) -> None:
    tensors = load_file(bare)
    save_file(tensors | {"norm.weight": tensors["norm.weight"].to(torch.int8)}, bare)
    with pytest.raises(CheckpointError, match="expected a float of 16, 32 or 64 bits, got torch.int8"):
        load(bare)
    torch.save({name: value.to(torch.float8_e4m3fn) for name, value in tensors.items()}, bare)
    with pytest.raises(CheckpointError, match="float8"):
        load(bare)
