"""Presets: the numbers people publish for the names they know."""

from __future__ import annotations

from dataclasses import replace

import pytest

from vitrail.errors import ConfigError
from vitrail.insight.cost import count_parameters
from vitrail.network import ResNetStem, ViTConfig, create
from vitrail.network.config import Positions
from vitrail.network.presets import PRESETS, preset
from vitrail.network.surgery import build_empty


def parameters(config: ViTConfig) -> int:
    return count_parameters(build_empty(config))


CLASSES = (0, 10, 100, 1000, 21843)
TABLE: dict[str, tuple[int, ...]] = {  # parameters by classes
    "vit-ti16": (5_524_416, 5_526_346, 5_543_716, 5_717_416, 9_740_115),
    "vit-s16": (21_665_664, 21_669_514, 21_704_164, 22_050_664, 30_075_219),
    "vit-s32": (22_493_952, 22_497_802, 22_532_452, 22_878_952, 30_903_507),
    "vit-b8": (85_807_872, 85_815_562, 85_884_772, 86_576_872, 102_605_139),
    "vit-b16": (85_798_656, 85_806_346, 85_875_556, 86_567_656, 102_595_923),
    "vit-b32": (87_455_232, 87_462_922, 87_532_132, 88_224_232, 104_252_499),
    "vit-l16": (303_301_632, 303_311_882, 303_404_132, 304_326_632, 325_690_707),
    "vit-l32": (305_510_400, 305_520_650, 305_612_900, 306_535_400, 327_899_475),
    "vit-h14": (630_764_800, 630_777_610, 630_892_900, 632_045_800, 658_745_683),
    "r50-vit-b16": (97_890_112, 97_897_802, 97_967_012, 98_659_112, 114_687_379),
}


@pytest.mark.row("001.09", "003.13")
@pytest.mark.parametrize("name", TABLE)
def test_parameters_by_classes(name: str) -> None:
    """All five columns; 21,843 is ImageNet-21k, and differs from the others in `classes` alone."""
    assert tuple(parameters(preset(name, classes=each)) for each in CLASSES) == TABLE[name]


@pytest.mark.parametrize(
    "name, without, thousand",
    [
        ("r-vit-ti16", 6_144_704, 6_337_704),
        ("r26-vit-s32", 36_046_912, 36_431_912),
        ("r50-vit-l32", 327_969_856, 328_994_856),
    ],
)
def test_parameters_of_other_hybrids(name: str, without: int, thousand: int) -> None:
    assert (parameters(preset(name, classes=0)), parameters(preset(name))) == (without, thousand)


@pytest.mark.parametrize(
    "name, expected",
    [
        ("vit-b16-384", 86_859_496),
        ("vit-l16-384", 304_715_752),
        ("vit-h14-518", 633_470_440),
        ("deit-ti16-distilled", 5_910_800),
        ("deit-s16-distilled", 22_436_432),
        ("deit-b16-distilled", 87_338_192),
        ("dinov2-s14", 22_056_192),
        ("dinov2-b14", 86_579_712),
        ("dinov2-l14", 304_367_616),
        pytest.param("dinov2-g14", 1_136_479_232, marks=pytest.mark.row("004.12")),
        ("dinov2-g14-registers", 1_136_483_840),
    ],
)
def test_parameters_of_other_families(name: str, expected: int) -> None:
    assert parameters(preset(name)) == expected


@pytest.mark.row("004.12")
def test_the_two_networks_called_g14() -> None:
    """DINOv2's giant is 1536 wide; the scaling paper's is 1408 wide. Neither is the other with a new name."""
    dino, scaling = preset("dinov2-g14"), preset("vit-giant14")
    assert (dino.width, dino.depth, dino.heads, dino.mlp, dino.mlp_width) == (1536, 40, 24, "swiglu", 4096)
    assert (scaling.width, scaling.depth, scaling.heads, scaling.mlp_width) == (1408, 40, 16, 6144)
    assert parameters(replace(dino, classes=0)) == 1_136_479_232
    assert parameters(replace(scaling, classes=0)) == 1_011_202_432


@pytest.mark.row("003.13")
def test_other_forms_of_the_base_network() -> None:
    """With transformers' pooler and no head; and without qkv bias, base, large and huge."""
    assert parameters(preset("vit-b16", classes=0, representation_width=768)) == 86_389_248
    counts = [parameters(preset(name, qkv_bias="none")) for name in ("vit-b16", "vit-l16", "vit-h14")]
    assert counts == [86_540_008, 304_252_904, 631_922_920]


@pytest.mark.row("001.01", "003.02")
@pytest.mark.parametrize(
    "name, patch, width, mlp_width, heads, depth, dropout",
    [
        ("vit-test16", 16, 1, 1, 1, 1, 0.0),
        ("vit-b16", 16, 768, 3072, 12, 12, 0.0),
        ("vit-b32", 32, 768, 3072, 12, 12, 0.0),
        ("vit-l16", 16, 1024, 4096, 16, 24, 0.1),
        ("vit-l32", 32, 1024, 4096, 16, 24, 0.0),
        ("vit-h14", 14, 1280, 5120, 16, 32, 0.1),
        ("r50-vit-b16", 1, 768, 3072, 12, 12, 0.1),
    ],
)
def test_the_sizes_behind_the_names(
    name: str, patch: int, width: int, mlp_width: int, heads: int, depth: int, dropout: float
) -> None:
    """The table of the original configs; dropout is stored per config (trap E50), the rest is common to all."""
    config = PRESETS[name]
    assert isinstance(config, ViTConfig)
    assert config.patch_size == (patch, patch)
    assert (config.width, config.mlp_width, config.heads, config.depth) == (width, mlp_width, heads, depth)
    assert config.per_head * heads == width
    assert config.attention_dropout == 0.0
    assert (config.pool, config.representation_width) == ("cls", 0)
    assert (config.image_size, config.norm_eps, config.activation) == ((224, 224), 1e-6, "gelu")
    assert config.positions == Positions("learned", at="stem", prefix=True)
    assert config.dropout == dropout
    if name == "r50-vit-b16":
        assert config.stem == ResNetStem((3, 4, 9), width_factor=1)
    else:
        assert config.stem is None


@pytest.mark.row("001.01")
def test_the_dropout_of_the_other_hybrids() -> None:
    """As the original configs set it: with the large network, not with tiny and small."""
    dropouts = {name: PRESETS[name].dropout for name in ("r-vit-ti16", "r26-vit-s32", "r50-vit-l32")}
    assert dropouts == {"r-vit-ti16": 0.0, "r26-vit-s32": 0.0, "r50-vit-l32": 0.1}


UNSEEN = ("activation", "norm_eps", "layer_scale", "pool", "drop_path", "initialisation", "merge_per_block")


@pytest.mark.parametrize(
    "name, expected",
    [
        ("vit-b16", ("gelu", 1e-6, None, "cls", 0.0, "paper", 0)),
        ("deit-b16", ("gelu", 1e-6, None, "cls", 0.1, "timm", 0)),
        ("deit-s16-distilled", ("gelu", 1e-6, None, "cls+distillation", 0.1, "timm", 0)),
        ("deit3-l16", ("gelu", 1e-6, 1e-6, "cls", 0.45, "timm", 0)),
        ("dinov2-s14", ("gelu", 1e-6, 1.0, "cls", 0.0, "dinov2", 0)),
        ("dinov2-g14", ("silu", 1e-6, 1.0, "cls", 0.0, "dinov2", 0)),
        ("dinov3-b16", ("gelu", 1e-5, 1e-5, "cls", 0.0, "dinov2", 0)),
        ("dinov3-splus16", ("silu", 1e-5, 1e-5, "cls", 0.0, "dinov2", 0)),
        ("clip-b32", ("quick_gelu", 1e-5, None, "cls", 0.0, "timm", 0)),
        ("siglip-b16", ("gelu_tanh", 1e-6, None, "map", 0.0, "paper", 0)),
        ("mae-h14", ("gelu", 1e-6, None, "cls", 0.0, "mae", 0)),
        ("vit-nano4-28", ("gelu", 1e-6, None, "mean", 0.0, "timm", 0)),
    ],
)
def test_what_tells_families_apart_that_no_shape_shows(name: str, expected: tuple[object, ...]) -> None:
    """Weights load into the wrong one without an error, and answer wrongly."""
    config = preset(name)
    assert tuple(getattr(config, field) for field in UNSEEN) == expected
    rotary = config.rotary and (config.rotary.kind, config.rotary.theta, config.rotary.rescale)
    assert rotary == (("dinov3", 100.0, 2.0) if name.startswith("dinov3") else None)


@pytest.mark.row("001.01", "003.02")
def test_a_preset_is_changed_by_replacing_fields() -> None:
    """Another project's base, large and huge have dropout 0.1 throughout: a field, not another preset."""
    for name, head_width, patch in (("vit-b16", 64, 16), ("vit-l16", 64, 16), ("vit-h14", 80, 14)):
        config = preset(name, dropout=0.1, qkv_bias="none")
        assert (config.dropout, config.per_head, config.patch_size) == (0.1, head_width, (patch, patch))
        assert config == replace(PRESETS[name], dropout=0.1, qkv_bias="none")


def test_head_width_follows_new_heads_unless_it_is_given() -> None:
    assert preset("vit-b16", heads=6).per_head == 128
    assert preset("vit-b16", width=384, heads=6).per_head == 64
    assert replace(PRESETS["vit-b16"], heads=6).per_head == 128
    assert preset("vit-b16", heads=6, head_width=32).per_head == 32


@pytest.mark.row("001.09")
def test_the_classes_of_imagenet_21k() -> None:
    config = preset("vit-b16", classes=21843)
    assert replace(config, classes=1000) == PRESETS["vit-b16"]
    head = build_empty(config).head
    assert count_parameters(head) == 21843 * (768 + 1)


@pytest.mark.row("002.10")
def test_the_number_in_a_name_is_the_patch() -> None:
    """ViT-H/14 has patches of 14 pixels: 224 gives 16 x 16 = 256 of them (trap E31), tokens of 1280 (not 14 x 14)."""
    huge, base = preset("vit-h14"), preset("vit-b16")
    assert (huge.patch_size, huge.grid, huge.tokens) == ((14, 14), (16, 16), 257)
    assert (base.patch_size, base.grid, base.tokens, base.width) == ((16, 16), (14, 14), 197, 768)  # E32: not 764
    for name, config in PRESETS.items():
        if name.startswith(("vit-", "deit", "dino", "clip", "siglip", "mae")) and config.stem is None:
            digits = "".join(each for each in name.split("-")[1] if each.isdigit())
            assert digits.endswith(str(config.patch_size[0])), name


@pytest.mark.row("000.06")
@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_builds_and_travels_through_json(name: str) -> None:
    config = PRESETS[name]
    assert ViTConfig.from_dict(config.to_dict()) == config
    assert name == name.lower()


def test_a_mistyped_name_lists_the_nearest() -> None:
    with pytest.raises(ConfigError, match="no preset 'vit-b-16': did you mean 'vit-b16'"):
        preset("vit-b-16")
    with pytest.raises(ConfigError, match="did you mean 'dinov2-g14-registers'"):
        preset("dinov2-g14-register")
    with pytest.raises(ConfigError, match="expected one of: vit-ti16, "):
        preset("????")
    with pytest.raises(ConfigError, match="no setting 'clases': did you mean 'classes'"):
        create("vit-b16", clases=10)


def test_create_gives_the_network_of_the_config() -> None:
    model = create("vit-nano4-28", classes=3)
    assert model.config == preset("vit-nano4-28", classes=3)
    assert count_parameters(model) == parameters(model.config)
