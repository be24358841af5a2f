"""What a network costs before it is built, against the published figures and a formula of its own."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from vitrail.errors import ConfigError, InputError
from vitrail.insight import trace
from vitrail.insight.cost import count_parameters, estimate, shape_walk
from vitrail.network import Positions, ViT, ViTConfig
from vitrail.network.presets import preset

GMACS = {  # multiply-adds in thousand millions, as printed: at 224, and at 384
    "vit-ti16": ("1.254", "4.68"),
    "vit-s16": ("4.599", "15.49"),
    "vit-s32": ("1.143", "3.44"),
    "vit-b8": ("78.15", "294.0"),
    "vit-b16": ("17.564", "55.48"),
    "vit-b32": ("4.409", "13.04"),
    "vit-l16": ("61.555", "191.1"),
    "vit-l32": ("15.378", "45.28"),
    "vit-h14": ("167.3", None),
}


def by_formula(config: ViTConfig, size: int) -> int:
    """Multiply-adds of a plain ViT: patches, then per block qkv, scores, weights, projection and MLP, then the head."""
    patch, width = config.patch_size[0], config.width
    n = (size // patch) ** 2
    tokens = n + 1
    patches = n * patch * patch * 3 * width
    block = tokens * width * 3 * width + 2 * tokens * tokens * width + tokens * width * width
    block += 2 * tokens * width * config.mlp_width
    return patches + config.depth * block + width * config.classes


@pytest.mark.row("003.15")
@pytest.mark.parametrize("name", GMACS)
def test_multiply_adds_are_the_published_ones(name: str) -> None:
    """To every digit printed, and to the last multiply-add of the formula."""
    config = preset(name)
    for size, printed in zip((224, 384), GMACS[name], strict=True):
        if printed is None:
            continue
        cost = estimate(config, (size, size))
        digits = len(printed.split(".")[1])
        assert f"{cost.multiply_adds / 1e9:.{digits}f}" == printed, size
        assert cost.multiply_adds == by_formula(config, size)
        assert cost.flops == 2 * cost.multiply_adds


@pytest.mark.row("003.15")
def test_pixels_as_tokens() -> None:
    """100 x 100 pixels as tokens: every pixel looks at every other, a matrix of 10,000 x 10,000 a head."""
    config = ViTConfig(
        image_size=100,
        patch_size=1,
        width=64,
        depth=2,
        heads=4,
        mlp_width=128,
        cls_token=False,
        pool="mean",
        positions=Positions(prefix=False),
    )
    cost = estimate(config)
    assert cost.tokens == 10_000
    assert cost.attention_matrix == (10_000, 10_000)
    assert cost.attention_bytes == 2 * 4 * 10_000 * 10_000 * 4  # blocks, heads, values, bytes
    coarse = estimate(replace(config, patch_size=(10, 10)))
    assert coarse.attention_matrix == (100, 100)
    assert cost.attention_bytes == 10_000 * coarse.attention_bytes  # with the square of the tokens


@pytest.mark.row("003.15")
def test_attention_memory_grows_with_the_fourth_power_of_the_side() -> None:
    config = preset("vit-b16", cls_token=False, pool="mean")
    small, large = estimate(config, (224, 224)), estimate(config, (448, 448))
    assert large.attention_bytes == 16 * small.attention_bytes
    assert small.attention_bytes == 12 * 12 * 196 * 196 * 4
    assert large.parameters == small.parameters


@pytest.mark.row("003.15")
def test_an_estimate_is_of_the_network_as_built() -> None:
    """Nothing is allocated, and the number of parameters is that of the real one."""
    config = preset("vit-nano4-28", registers=2, qk_norm=True, layer_scale=0.1)
    cost = estimate(config)
    model = ViT(config)
    assert cost.parameters == count_parameters(model) == sum(p.numel() for p in model.parameters())
    assert cost.parameter_bytes == 4 * cost.parameters
    assert cost.tokens == 1 + 2 + 49


@pytest.mark.row("003.15")
@pytest.mark.parametrize("merged", [0, 4, 30])
def test_attention_memory_is_what_the_maps_take(merged: int) -> None:
    """Added up over the maps that `trace` gives; merging makes them smaller from block to block."""
    kept = ((0, 2), *((0, 1, 2),) * 5)
    model = ViT(preset("vit-nano4-28", merge_per_block=merged, registers=2, kept_heads=kept)).eval()
    for size in ((28, 28), (16, 40)):
        maps = trace(model, torch.randn(1, 3, *size), hidden=False).attention
        cost = estimate(model.config, size)
        assert cost.attention_bytes == sum(each.numel() * each.element_size() for each in maps)


def test_fewer_heads_cost_less() -> None:
    full = preset("vit-nano4-28")
    pruned = replace(full, kept_heads=((0, 2), *((0, 1, 2),) * 5))
    before, after = estimate(full), estimate(pruned)
    assert before.parameters - after.parameters == 4 * 96 * 32 + 3 * 32
    assert before.attention_bytes - after.attention_bytes == 50 * 50 * 4
    assert before.multiply_adds - after.multiply_adds == 50 * 4 * 96 * 32 + 2 * 50 * 50 * 32


def test_a_size_that_does_not_divide_is_refused() -> None:
    with pytest.raises(InputError, match="image 225x224 does not divide into patches of 16x16"):
        estimate(preset("vit-b16"), (225, 224))


@pytest.mark.row("003.13")
def test_the_shape_walk_of_the_base_network() -> None:
    steps = {step.name: step for step in shape_walk(preset("vit-b16", qkv_bias="none"))}
    assert steps["pixels"].shape == (1, 3, 224, 224)
    assert steps["patches"].shape == (1, 196, 768)
    assert steps["tokens"].shape == (1, 197, 768)
    assert steps["block 11"].shape == (1, 197, 768)
    assert steps["pool (cls)"].shape == (1, 768)
    assert steps["logits"].shape == (1, 1000)
    assert sum(step.parameters for step in steps.values()) == 86_540_008


@pytest.mark.parametrize(
    "name", ["r26-vit-s32", "deit-ti16-distilled", "siglip-b16", "dinov3-s16", "vit-micro4-32-conv"]
)
def test_the_shape_walk_counts_every_parameter(name: str) -> None:
    config = preset(name)
    steps = shape_walk(config)
    assert sum(step.parameters for step in steps) == estimate(config).parameters
    assert steps[-1].name == ("logits" if config.classes else "embedding")
    with torch.device("meta"):
        model = ViT(config).eval()
        assert steps[-1].shape == model(torch.empty(1, 3, *config.image_size)).shape


def test_one_number_means_square_and_nonsense_is_told() -> None:
    assert estimate(preset("vit-ti16"), 384) == estimate(preset("vit-ti16"), (384, 384))
    for wrong in ((-16, 16), "384", (1, 2, 3)):
        with pytest.raises(ConfigError, match="image_size: expected"):
            shape_walk(preset("vit-ti16"), wrong)


@pytest.mark.parametrize("final_norm", ["tokens", "pooled", "none"])
def test_the_walk_has_the_norm_where_it_is(final_norm: str) -> None:
    names = [step.name for step in shape_walk(preset("vit-nano4-28", final_norm=final_norm))]
    tail = {"tokens": ["norm", "pool (mean)"], "pooled": ["pool (mean)", "norm"], "none": ["pool (mean)"]}[final_norm]
    assert names[names.index("block 5") + 1 : -1] == tail
