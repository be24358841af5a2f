"""What timm's config.json decides, and what shapes decide where it is missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from vitrail.errors import CheckpointError
from vitrail.weights import load
from weights.parity import assert_equal
from weights.timm_files import saved


def folder(model: nn.Module, path: Path, **said: Any) -> Path:
    """A folder as timm's hub has them: weights, and a config.json that says so much."""
    path.mkdir()
    saved(model, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps({"architecture": "vit_base_patch16_224", **said}))
    return path


SIZES = {"embed_dim": 128, "num_heads": 2}


@pytest.mark.parametrize(
    "said, reason",
    [
        ({"model_args": {**SIZES, "pool_include_prefix": True}}, "not known here: pool_include_prefix=True"),
        ({"model_args": {**SIZES, "norm_layer": "rmsnorm"}}, "not known here: norm_layer='rmsnorm'"),
        ({"model_args": {**SIZES, "act_layer": "mish"}}, "act_layer 'mish' is none of"),
        ({"model_args": {**SIZES, "act_layer": ["gelu"]}}, "is none of"),
        ({"model_args": {**SIZES, "global_pool": "max"}}, "global_pool 'max' is none of"),
        ({"model_args": {**SIZES, "pos_embed": "rope"}}, "not known here: pos_embed='rope'"),
        ({"model_args": {"embed_dim": 128}}, "does not say num_heads"),
        ({"model_args": SIZES, "global_pool": "avg"}, "config.json says global_pool 'avg', and timm would load"),
        ({"model_args": SIZES, "architecture": "vit_base_patch16_rpn_224"}, "norms behind the branches"),
        ({"model_args": SIZES, "label_names": ["a", "b"]}, "expected names for 10 outputs"),
    ],
)
def test_a_config_that_says_more_than_is_known_here_is_refused(
    timm_vit: Any, tmp_path: Path, said: dict[str, Any], reason: str
) -> None:
    with pytest.raises(CheckpointError, match=reason):
        load(folder(timm_vit(), tmp_path / "folder", **said))


def test_what_config_json_says_of_heads_activation_pool_and_size(timm_vit: Any, tmp_path: Path) -> None:
    theirs = timm_vit(num_heads=4, act_layer="relu", global_pool="avg", fc_norm=False, img_size=(16, 64))
    said = {"num_heads": 4, "act_layer": "relu", "global_pool": "avg", "img_size": [16, 64], "drop_rate": 0.1}
    ours = load(folder(theirs, tmp_path / "folder", model_args={"embed_dim": 128, **said}))
    assert_equal(ours.model, theirs, ((16, 64), (32, 32)))


def test_a_grey_network_whose_folder_speaks_of_colours(timm_vit: Any, tmp_path: Path) -> None:
    """timm keeps three means beside one channel: they are averaged, which is said, unless others are given."""
    said = {"mean": [0.4, 0.5, 0.6], "std": [0.2, 0.2, 0.2], "input_size": [3, 32, 32], "crop_pct": 1.0}
    path = folder(timm_vit(in_chans=1), tmp_path / "folder", model_args=SIZES, pretrained_cfg=said)
    ours = load(path)
    assert ours.preprocess.channels == 1
    assert ours.preprocess.mean + ours.preprocess.std == pytest.approx((0.5, 0.2))
    why = next(each.why for each in ours.provenance.settings if each.name == "preprocess")
    assert why == "assumed: the folder's config.json; mean and std averaged over its colours"
    assert load(path, override={"mean": 0.1307}).preprocess.mean == (0.1307,)
