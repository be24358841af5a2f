"""ViTConfig: what it is by default, what it refuses and with which words, and its way through JSON."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError, fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from network.refusals import HUGE, NAN, refusal, tiny
from vitrail.checks import check_pair
from vitrail.errors import ConfigError
from vitrail.network import ConvStem, Positions, Resample, ResNetStem, Rotary, ViTConfig
from vitrail.network.config import (
    ACTIVATIONS,
    FINAL_NORMS,
    INITIALISATIONS,
    NORMS,
    POSITION_KINDS,
    QKV_BIASES,
    ROTARY_KINDS,
)


@pytest.mark.row("000.01")
def test_one_number_means_square_and_a_pair_is_kept() -> None:
    assert check_pair("patch_size", 16) == (16, 16)
    assert check_pair("patch_size", (16, 8)) == (16, 8)
    assert check_pair("patch_size", [16, 8]) == (16, 8)
    config = ViTConfig(image_size=224, patch_size=(16, 8))
    assert (config.image_size, config.patch_size) == ((224, 224), (16, 8))
    assert config.grid == (14, 28)


@pytest.mark.row("000.06")
def test_the_defaults_are_vit_b16() -> None:
    config = ViTConfig()
    hf = {  # transformers' ViTConfig, under our names
        "width": 768,
        "depth": 12,
        "heads": 12,
        "mlp_width": 3072,
        "activation": "gelu",
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "image_size": (224, 224),
        "patch_size": (16, 16),
        "channels": 3,
        "qkv_bias": "all",
    }
    assert {name: getattr(config, name) for name in hf} == hf
    assert (config.per_head, config.tokens, config.prefix) == (64, 197, 1)
    assert config.norm_eps == 1e-6  # Google's; files of transformers say 1e-12, and may (E21)
    assert ViTConfig(norm_eps=1e-12).norm_eps == 1e-12
    assert ViTConfig(initialisation="hf").initialisation == "hf"  # deviation 0.02: test_initialisation.py


@pytest.mark.row("003.01")
def test_one_dict_describes_the_whole_network() -> None:
    settings = {
        "image_size": [224, 224],
        "channels": 3,
        "patch_size": 16,
        "width": 768,
        "depth": 12,
        "heads": 12,
        "dropout": 0.1,
        "head_width": 64,
        "mlp_width": 3072,
        "classes": 1000,
    }
    config = ViTConfig(**settings)
    assert config == ViTConfig.from_dict(settings) == replace(ViTConfig(), dropout=0.1, head_width=64)


@pytest.mark.row("000.07")
def test_a_width_that_heads_do_not_divide_is_refused() -> None:
    message = refusal(ViTConfig, width=770, heads=12)
    assert "width 770 does not divide into 12 heads" in message
    assert "set head_width" in message
    assert ViTConfig(width=770, heads=12, head_width=64).head_width == 64


def test_an_image_that_does_not_divide() -> None:
    message = refusal(ViTConfig, image_size=(225, 224))
    assert "image 225x224 does not divide into patches of 16x16 pixels" in message
    assert "224 x 224" in message
    assert "image 60x64" in refusal(tiny, image_size=(60, 64), stem=ConvStem((4, 8)))


@pytest.mark.parametrize(
    "size, fit", [((231, 233), "224 x 240"), ((1, 7), "16 x 16"), ((248, 500), "256 x 496"), ((225, 239), "224 x 240")]
)
def test_an_image_that_does_not_divide_is_told_the_nearest_that_does(size: tuple[int, int], fit: str) -> None:
    assert refusal(ViTConfig, image_size=size).endswith(f"resize it, for example to {fit}")


def test_a_network_of_more_than_1024_blocks_is_refused() -> None:
    assert tiny(depth=1024).depth == 1024
    assert refusal(tiny, depth=1025) == "depth: expected a whole number from 1 to 1024, got 1025"


MLP_WIDTHS = {"width": 18, "heads": 3, "head_width": 8}
MERGING = "token merging takes patches out of their grid"
DROPPING = "patch dropout takes patches out of their grid"
CONTRADICTIONS = [
    ({"cls_token": False}, "pool 'cls' needs cls_token=True"),
    ({"pool": "cls+distillation"}, "needs both cls_token=True and distillation_token=True"),
    (
        {"pool": "cls+distillation", "cls_token": False, "distillation_token": True},
        "needs both cls_token=True and distillation_token=True",
    ),
    ({"distillation_token": True}, "read by pool 'cls+distillation' (got 'cls')"),
    ({"pool": "none", "final_norm": "pooled"}, "final_norm 'pooled' needs a pool"),
    (
        {"pool": "cls+distillation", "distillation_token": True, "representation_width": 8},
        "set representation_width=0",
    ),
    ({"mlp": "swiglu"}, "got activation 'gelu': set activation='silu'"),
    ({"image_size": 16, "patch_norms": True, "stem": ConvStem((4,))}, "patch_norms normalise the pixels"),
    ({**MLP_WIDTHS, "positions": Positions("sincos-2d")}, "got width 18: use a multiple of 4"),
    ({**MLP_WIDTHS, "positions": Positions("sincos-2d-moco")}, "got width 18: use a multiple of 4"),
    ({"width": 15, "heads": 3, "positions": Positions("sincos-1d")}, "got width 15: use an even width"),
    ({"width": 15, "heads": 3, "positions": Positions("learned-2d")}, "got width 15: use an even width"),
    ({"width": 4, "positions": Positions("sincos-2d-moco")}, "at least 8, got 4"),
    ({"head_width": 6, "rotary": Rotary()}, "head width in four, got 6"),
    ({"merge_by": "tokens"}, "merge_by='tokens' says which patches merge, and with merge_per_block=0 none do"),
    ({"merge_per_block": 1, "axial": True}, MERGING),
    (
        {"merge_per_block": 1, "positions": Positions("relative")},
        MERGING,
    ),
    (
        {"merge_per_block": 1, "positions": Positions(at="every")},
        MERGING,
    ),
    ({"patch_dropout": 0.5, "axial": True}, DROPPING),
    (
        {"patch_dropout": 0.5, "positions": Positions("relative")},
        DROPPING,
    ),
    (
        {"patch_dropout": 0.5, "positions": Positions(at="shared")},
        DROPPING,
    ),
    ({"axial": True, "positions": Positions("relative")}, "relative positions the whole grid"),
    ({"kept_heads": ((0, 1),)}, "expected one list for each of 2 blocks, got 1"),
    ({"kept_heads": ()}, "expected one list for each of 2 blocks, got 0"),
    (
        {"kept_heads": ((0, 1), ())},
        "block 1: expected rising numbers below 4, at least one, got ()",
    ),
    ({"kept_heads": ((1, 0), (0,))}, "kept_heads of block 0: expected rising numbers below 4"),
    ({"kept_heads": ((0, 0), (0,))}, "kept_heads of block 0: expected rising numbers below 4"),
    (
        {"kept_heads": ((0,), (4,))},
        "block 1: expected rising numbers below 4, at least one, got (4,)",
    ),
    ({"kept_heads": 3}, "kept_heads: expected one list of heads per block, got 3"),
    ({"kept_heads": (0, 1)}, "kept_heads: expected whole numbers, got 0"),
    ({"kept_heads": ((0,), (-1,))}, "got -1"),
]


@pytest.mark.parametrize("changes, words", CONTRADICTIONS)
def test_what_may_not_stand_together(changes: dict[str, Any], words: str) -> None:
    assert words in refusal(tiny, **changes)


PARTS = [
    (Resample, {"mode": "bicubc"}, "did you mean 'bicubic'"),
    (Resample, {"antialias": 1}, "antialias: expected True or False, got 1"),
    (Resample, {"offset": NAN}, "resample offset: expected a number from 0.0 to under 1.0, got nan"),
    (Resample, {"offset": 2}, "got 2"),
    (Resample, {"align_corners": True}, "antialias and align_corners contradict each other"),
    (Resample, {"mode": "nearest"}, "takes neither antialias nor align_corners"),
    (Resample, {"antialias": False, "align_corners": True, "offset": 0.1}, "no meaning with align_corners"),
    (Positions, {"kind": "learnt"}, "did you mean 'learned'"),
    (Positions, {"at": "start"}, "positions at 'start' is unknown"),
    (Positions, {"prefix": None}, "prefix: expected True or False, got None"),
    (Positions, {"resample": "bicubic"}, "got 'bicubic'"),
    (Positions, {"kind": "relative", "at": "every"}, "at='every' has no meaning"),
    (Positions, {"kind": "none", "at": "shared"}, "at='shared' has no meaning"),
    (Positions, {"kind": "sincos-1d", "at": "every"}, "use at='shared'"),
    (Positions, {"kind": "sincos-2d", "at": "every"}, "use at='shared'"),
    (Rotary, {"kind": "axle"}, "rotary kind 'axle' is unknown"),
    (Rotary, {"theta": 0.5}, "rotary theta: expected a number from 1.0"),
    (Rotary, {"theta": HUGE}, "rotary theta: expected a number from 1.0"),
    (
        Rotary,
        {"kind": "dinov3", "jitter": 0.9},
        "rotary jitter: expected a number from 1.0 to 100.0, got 0.9",
    ),
    (Rotary, {"kind": "dinov3", "rescale": 0.0}, "rotary rescale"),
    (Rotary, {"kind": "dinov3", "shift": -1.0}, "rotary shift"),
    (Rotary, {"kind": "mixed", "shift": 0.1}, "belong to kind 'dinov3', not 'mixed'"),
    (ConvStem, {"widths": ()}, "expected 1 to 8 convolutions, got 0"),
    (ConvStem, {"widths": (8,) * 9}, "expected 1 to 8 convolutions, got 9"),
    (ConvStem, {"widths": 48}, "conv stem widths: expected whole numbers, got 48"),
    (ConvStem, {"widths": (8, 0)}, "got 0"),
    (ResNetStem, {"layers": (1,) * 5}, "expected at most 4 stages, got 5"),
    (ResNetStem, {"width_factor": 17}, "expected a whole number from 1 to 16, got 17"),
    (ResNetStem, {"norm_eps": -1.0}, "resnet stem norm_eps"),
    (ResNetStem, {"weight_eps": "0"}, "got '0'"),
]


@pytest.mark.parametrize("kind, changes, words", PARTS)
def test_parts_are_checked_too(kind: type, changes: dict[str, Any], words: str) -> None:
    assert words in refusal(kind, **changes)


@pytest.mark.row("003.01")
@pytest.mark.parametrize(
    "plain, words",
    [
        ({"widht": 16}, "ViTConfig has no setting 'widht': did you mean 'width'"),
        ({3: 3}, "ViTConfig has no setting 3"),
        ({"positions": {"knd": "none"}}, "Positions has no setting 'knd': did you mean 'kind'"),
        (
            {"positions": {"resample": {"mod": "bicubic"}}},
            "Resample has no setting 'mod': did you mean 'mode'",
        ),
        ({"positions": {"resample": None}}, "Resample: expected a mapping of settings, got None"),
        ({"positions": "learned"}, "Positions: expected a mapping of settings, got 'learned'"),
        ({"rotary": {"tetha": 1.0}}, "Rotary has no setting 'tetha': did you mean 'theta'"),
        ({"rotary": ["axial"]}, "Rotary: expected a mapping of settings, got ['axial']"),
        ({"stem": {"widths": [8]}}, "stem kind None is unknown"),
        ({"stem": {"kind": "convolution"}}, "stem kind 'convolution' is unknown"),
        ({"stem": {"kind": "conv", "layers": [3]}}, "ConvStem has no setting 'layers'"),
        ({"stem": 3}, "stem: expected dict, got 3"),
        ({"width": "768"}, "got '768'"),
        ([], "ViTConfig: expected a mapping of settings, got []"),
        (None, "ViTConfig: expected a mapping of settings, got None"),
        ("width", "ViTConfig: expected a mapping of settings, got 'width'"),
    ],
)
def test_plain_values_are_checked(plain: Any, words: str) -> None:
    assert words in refusal(ViTConfig.from_dict, plain=plain)


def test_a_config_from_before_merge_by_merges_by_keys() -> None:
    plain = json.loads(json.dumps(tiny(merge_per_block=2, merge_from=1).to_dict()))
    assert plain.pop("merge_by") == "keys"
    assert ViTConfig.from_dict(plain) == tiny(merge_per_block=2, merge_from=1, merge_by="keys")
    tokens = tiny(merge_per_block=2, merge_by="tokens")
    assert ViTConfig.from_dict(json.loads(json.dumps(tokens.to_dict()))) == tokens


def test_a_config_does_not_change_and_its_variants_are_checked() -> None:
    config = tiny()
    with pytest.raises(FrozenInstanceError):
        config.width = 32  # type: ignore[misc]
    assert replace(config, classes=7).classes == 7
    assert config.classes == 5
    with pytest.raises(ConfigError, match="got 'cls'"):
        replace(config, distillation_token=True)
    with pytest.raises(ConfigError, match="got -1"):
        replace(config, classes=-1)
    assert hash(tiny()) == hash(config)


def test_heads_keep_their_numbers() -> None:
    config = tiny(kept_heads=[[0, 2], [3]])
    assert config.kept_heads == ((0, 2), (3,))
    assert [config.heads_of(block) for block in range(2)] == [(0, 2), (3,)]
    assert tiny().heads_of(1) == (0, 1, 2, 3)


def test_what_follows_from_the_settings() -> None:
    config = tiny(registers=3, distillation_token=True, pool="cls+distillation")
    assert (config.grid, config.prefix, config.slots, config.tokens) == ((2, 3), 5, 2, 11)
    assert tiny(positions=Positions(prefix=False)).slots == 0
    stemmed = tiny(image_size=(32, 64), patch_size=2, stem=ResNetStem((1, 1)))
    assert (stemmed.cell, stemmed.grid) == ((16, 16), (2, 4))
    assert ResNetStem((3, 4, 9)).channels == 1024
    assert (ResNetStem(()).channels, ResNetStem(()).reduction) == (64, 4)


RESAMPLES = st.one_of(
    st.builds(Resample, mode=st.sampled_from(["bilinear", "bicubic"]), offset=st.floats(0, 1, exclude_max=True)),
    st.builds(Resample, mode=st.just("bicubic"), antialias=st.just(False), align_corners=st.just(True)),
    st.just(Resample("nearest", antialias=False)),
)
POSITIONS = st.builds(
    Positions, kind=st.sampled_from(POSITION_KINDS), prefix=st.booleans(), resample=RESAMPLES
) | st.builds(Positions, kind=st.sampled_from(["learned", "learned-2d"]), at=st.sampled_from(["every", "shared"]))
ROTARIES = st.none() | st.builds(Rotary, kind=st.sampled_from(ROTARY_KINDS), theta=st.floats(1, 1e6))
STEMS = st.one_of(
    st.none(),
    st.builds(ConvStem, widths=st.lists(st.integers(1, 64), min_size=1, max_size=2)),
    st.builds(ResNetStem, layers=st.lists(st.integers(1, 3), max_size=2), width_factor=st.integers(1, 2)),
)
CONFIGS = st.builds(
    tiny,
    image_size=st.tuples(st.integers(1, 4), st.integers(1, 4)).map(lambda grid: (grid[0] * 32, grid[1] * 32)),
    patch_size=st.sampled_from([1, 2, 4, (2, 4)]),
    channels=st.integers(1, 13),
    head_width=st.sampled_from([0, 4, 8]),
    classes=st.integers(1, 30000),
    stem=STEMS,
    positions=POSITIONS,
    rotary=ROTARIES,
    registers=st.integers(0, 8),
    activation=st.sampled_from(ACTIVATIONS),
    qkv_bias=st.sampled_from(QKV_BIASES),
    qk_norm=st.booleans(),
    layer_scale=st.none() | st.floats(0, 10) | st.integers(0, 3),
    norm=st.sampled_from(NORMS),
    norm_eps=st.floats(0, 1),
    final_norm=st.sampled_from(FINAL_NORMS),
    pool=st.sampled_from(["cls", "mean", "map"]),
    kept_heads=st.none() | st.just(((0, 3), (1, 2))),
    representation_width=st.integers(0, 64),
    dropout=st.floats(0, 1, exclude_max=True),
    initialisation=st.sampled_from(INITIALISATIONS),
    head_bias_init=st.floats(-10, 10),
)


@pytest.mark.row("000.06")
@given(config=CONFIGS)
def test_json_carries_every_config_unchanged(config: ViTConfig) -> None:
    text = json.dumps(config.to_dict(), allow_nan=False)
    back = ViTConfig.from_dict(json.loads(text))
    assert back == config
    assert json.dumps(back.to_dict()) == text
    assert set(json.loads(text)) == {each.name for each in fields(ViTConfig)}


def test_numbers_of_numpy_are_stored_as_plain_ones() -> None:
    config = tiny(width=np.int64(32), heads=np.int32(4), dropout=np.float32(0.5), norm_eps=np.float64(1e-5))
    assert json.loads(json.dumps(config.to_dict())) == json.loads(
        json.dumps(tiny(width=32, heads=4, dropout=0.5, norm_eps=1e-5).to_dict())
    )
    assert (type(config.width), type(config.dropout)) == (int, float)


def test_replacing_the_width_or_the_heads_moves_the_head_width() -> None:
    assert replace(ViTConfig(), heads=6).per_head == 128
    with pytest.raises(ConfigError, match="width 770 does not divide into 12 heads"):
        replace(ViTConfig(), width=770)


def test_a_head_without_bias_has_none_to_start() -> None:
    assert "head_bias_init=-10.0 has no bias to fill" in refusal(tiny, head_bias=False, head_bias_init=-10.0)
