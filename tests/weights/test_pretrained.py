"""The list of checkpoints to start from: every entry is of an architecture here, by a name that can be fetched."""

from __future__ import annotations

import pytest

from vitrail.insight.cost import count_parameters
from vitrail.network.presets import PRESETS
from vitrail.network.surgery import build_empty
from vitrail.weights.hub import parse
from vitrail.weights.pretrained import IMAGENET, PRETRAINED, SELF_SUPERVISED, Pretrained

MILLIONS = {  # as their publishers give them; MAE's without its table of positions, which is computed
    "vit-ti16": 5.7,
    "vit-s16": 22.1,
    "vit-b16": 86.6,
    "deit3-s16": 22.1,
    "dinov2-s14": 22.1,
    "dinov2-b14": 86.6,
    "dinov3-s16": 21.6,
    "clip-b32": 87.8,
    "clip-b16": 86.2,
    "siglip-b16": 92.9,
    "mae-b16": 85.65,
}


@pytest.mark.parametrize("entry", PRETRAINED, ids=lambda entry: entry.name)
def test_every_entry_is_a_network_that_can_be_built(entry: Pretrained) -> None:
    assert parse(entry.name).repo.count("/") == 1
    assert entry.config == PRESETS[entry.preset]
    assert count_parameters(build_empty(entry.config)) / 1e6 == pytest.approx(MILLIONS[entry.preset], abs=0.06)
    assert (entry.learned == IMAGENET) == (entry.config.classes == 1000)
    assert entry.licence
    assert entry.good_for


def test_names_are_told_once_and_licences_with_conditions_are_told_as_such() -> None:
    names = [entry.name for entry in PRETRAINED]
    assert len(set(names)) == len(names)
    licences = {entry.name: entry.licence for entry in PRETRAINED if entry.licence not in ("Apache-2.0", "MIT")}
    assert {name.partition(":")[2].partition("-")[0] for name in licences} == {
        "facebook/dinov3",
        "vit_base_patch16_224.mae",
    }
    assert any(entry.learned == SELF_SUPERVISED for entry in PRETRAINED)


def test_the_list_is_in_order() -> None:
    """By what they learned; free licences first; then by size."""
    kinds = list(dict.fromkeys(entry.learned for entry in PRETRAINED))
    ranks = [(kinds.index(entry.learned), entry.licence not in ("Apache-2.0", "MIT")) for entry in PRETRAINED]
    places = [(*rank, MILLIONS[entry.preset]) for rank, entry in zip(ranks, PRETRAINED, strict=True)]
    assert places == sorted(places)
