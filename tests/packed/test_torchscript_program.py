"""The program takes a large batch in pieces, and gives what it gives at once."""

from __future__ import annotations

import pytest
import torch

from shipping.packs import VARIANTS, checkpoint
from vitrail.network import ConvStem, Positions
from vitrail.packed import packed_vit
from vitrail.packed import torchscript_program as program
from vitrail.packed.packed_runtime import Packed

ENDS = {
    "embedding norm": {"embedding_norm": True},
    "stem": {"stem": ConvStem((8, 16)), "patch_size": 2},
    "at every block": {"positions": Positions("learned", at="every")},
}


@pytest.mark.parametrize("name", ["plain", "merging", "merging by tokens", "attention pool"])
def test_a_large_batch_in_pieces_gives_what_it_gives_at_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = checkpoint(**(VARIANTS | ENDS)[name])
    pixels = torch.randn(7, 3, 48, 32)
    once = Packed(made).model
    tokens, width = made.model.config.prefix + 6 * 4, made.model.config.width
    monkeypatch.setattr(program, "AT_ONCE", 3 * tokens * width)
    asked: list[int] = []
    right = program.compile_program

    def counted(made: program.Program) -> program.CompiledProgram:
        asked.append(made.at_once)
        return right(made)

    monkeypatch.setattr(packed_vit, "compile_program", counted)
    pieces = Packed(made).model
    assert asked == [3 * tokens * width]
    with torch.inference_mode():
        torch.testing.assert_close(pieces(pixels), once(pixels), rtol=0, atol=1e-5)
        for ours, theirs in zip(pieces.features(pixels), once.features(pixels), strict=True):
            if isinstance(ours, tuple):
                assert ours == theirs
            else:
                torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
        if "merging" not in name:  # which wants an image
            assert pieces(pixels[:0]).shape == once(pixels[:0]).shape == (0, once.config.classes)


@pytest.mark.parametrize("images, at_once", [(0, 1), (1, 1), (3, 3), (4, 2), (7, 3), (16, 3)])
def test_pieces_are_as_few_as_may_be_and_of_one_size(images: int, at_once: int) -> None:
    assert program._at_once(images, 10, 39) == at_once
    assert program._at_once(images, 100, 39) == 1  # one image at least
