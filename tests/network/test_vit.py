"""The whole network: what it takes, what it refuses and with which words, what it hands out, how it travels."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import vitrail
from vitrail.errors import InputError
from vitrail.network import Features, Positions, Rotary, ViT, ViTConfig, patchify, unpatchify
from vitrail.network.patches import PatchEmbed
from vitrail.network.surgery import eval_mode, with_head

NONE = Positions("none")


def build(**changes: Any) -> ViT:
    """A small model whose every parameter is random."""
    sizes = {"image_size": (8, 12), "patch_size": 4, "width": 16, "depth": 2, "heads": 4, "mlp_width": 24}
    model = ViT(ViTConfig(**{**sizes, "classes": 5, **changes})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


@pytest.fixture
def pixels() -> Tensor:
    return torch.randn(3, 3, 8, 12)


# ---- sizes


@pytest.mark.row("000.04")
def test_another_size_is_refused_or_resampled() -> None:
    fixed = build(fixed_size=True)
    with pytest.raises(ValueError, match="expected images of 8x12, got 16x12.*fixed_size=False") as caught:
        fixed(torch.randn(1, 3, 16, 12))
    assert isinstance(caught.value, InputError)
    assert fixed(torch.randn(1, 3, 8, 12)).shape == (1, 5)
    free = build()
    free.load_state_dict(fixed.state_dict())
    larger = torch.randn(1, 3, 16, 12)
    tokens, layout = free.tokens(free.patches(larger), (4, 3))
    table = free.tokens.tables[0].table
    grid = table[1:].T.reshape(1, 16, 2, 3)
    resampled = F.interpolate(grid, size=(4, 3), mode="bicubic", antialias=True)[0].flatten(1).T
    torch.testing.assert_close(tokens[0, 1:], free.patches(larger)[0] + resampled)
    torch.testing.assert_close(tokens[0, 0], free.tokens.cls[0] + table[0])  # the cls token's is left as it is
    expected = free.head.classify(free.norm(free.encoder(tokens, layout).tokens)[:, 0])
    torch.testing.assert_close(free(larger), expected)


@pytest.mark.parametrize("size", [(4, 4), (8, 20), (28, 4)])
def test_any_size_that_divides_and_any_aspect(size: tuple[int, int]) -> None:
    features = build().features(torch.randn(2, 3, *size))
    assert features.grid == (size[0] // 4, size[1] // 4)
    assert features.patches.shape == (2, size[0] * size[1] // 16, 16)
    assert features.patches.isfinite().all()


# ---- what it refuses


@pytest.mark.row("000.23")
@pytest.mark.parametrize(
    "pixels, words",
    [
        (None, "expected pixels, a float tensor .B, 3, H, W., got None"),
        ([[1.0]], "expected pixels, a float tensor .B, 3, H, W., got ..1.0.."),
        ("a.jpg", "got 'a.jpg': checkpoint.transform.image..None. makes them"),
        (torch.zeros(3, 8, 12), "expected pixels .B, 3, H, W., got .3, 8, 12.; for one image use pixels.None."),
        (torch.zeros(8, 12), "expected pixels .B, 3, H, W., got .8, 12."),
        (torch.zeros(2, 1, 8, 12), "expected pixels .B, 3, H, W., got .2, 1, 8, 12."),
        (torch.zeros(2, 8, 12, 3), "got .2, 8, 12, 3.; for .B, H, W, C. use .*channels_first"),
        (torch.zeros(2, 3, 8, 12, dtype=torch.uint8), "expected float pixels, got torch.uint8: .*Preprocess"),
        (torch.zeros(2, 3, 9, 12), "image 9x12 does not divide into patches of 4x4 pixels: .*8 x 12"),
        (torch.zeros(2, 3, 0, 12), "image 0x12 does not divide into patches of 4x4 pixels: .*4 x 12"),
        (torch.zeros(2, 3, 3, 3), "image 3x3 does not divide into patches of 4x4 pixels: .*4 x 4"),
    ],
)
@pytest.mark.parametrize("verb", ["call", "features", "embed", "trace"])
def test_wrong_pixels_are_named(pixels: Any, words: str, verb: str) -> None:
    model = build()
    call = {"call": model, "features": model.features, "embed": model.embed}.get(verb)
    with pytest.raises(InputError, match=words) as caught:
        call(pixels) if call else vitrail.trace(model, pixels)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, vitrail.VitrailError)


@pytest.mark.row("000.10")
@pytest.mark.parametrize(
    "mask", [torch.ones(3), torch.ones(1, 4), torch.ones(3, 4), torch.ones(2, 1, 4), torch.tensor(1.0), [1, 1, 1, 1], 1]
)
def test_a_mask_of_the_wrong_shape_is_named(pixels: Tensor, mask: Any) -> None:
    got = str(tuple(mask.shape)) if isinstance(mask, Tensor) else repr(mask)
    for call in (build(), build().features):
        with pytest.raises(InputError) as caught:
            call(pixels, head_mask=mask)
        assert str(caught.value) == f"head_mask: expected a tensor (4,) or (2, 4), got {got}"


# ---- what it hands out


@pytest.mark.row("000.10")
def test_head_masks_of_both_shapes(pixels: Tensor) -> None:
    model = build()
    ones = model(pixels, head_mask=torch.ones(4))
    torch.testing.assert_close(ones, model(pixels), atol=1e-6, rtol=1e-5)
    row = torch.tensor([1.0, 0.0, 0.5, 1.0])
    torch.testing.assert_close(model(pixels, head_mask=row), model(pixels, head_mask=row.expand(2, 4)))
    assert (model(pixels, head_mask=row) - ones).abs().max() > 1e-3
    whole = model(pixels, head_mask=torch.tensor([1, 0, 1, 1]))  # whole numbers and booleans will do
    assert torch.equal(whole, model(pixels, head_mask=torch.tensor([True, False, True, True])))
    silent = copy.deepcopy(model)  # a silenced head is one whose columns of the projection are zeros
    with torch.no_grad():
        silent.encoder.blocks[1].attention.out.weight[:, 4:8] = 0
    mask = torch.ones(2, 4)
    mask[1, 1] = 0
    torch.testing.assert_close(model(pixels, head_mask=mask), silent(pixels), atol=1e-6, rtol=1e-5)


def test_a_mask_names_heads_by_their_original_numbers(pixels: Tensor) -> None:
    """Of a pruned network, too: the numbers of heads that are gone mask nothing."""
    model = build()
    pruned = vitrail.prune_heads(model, {0: [0], 1: [1, 2]})
    mask = torch.tensor([[9.0, 0.5, 1.0, 0.0], [0.25, 9.0, 9.0, 2.0]])
    as_if = mask.clone()
    as_if[0, 0] = as_if[1, 1] = as_if[1, 2] = 0  # a head that is gone is a silenced one
    torch.testing.assert_close(pruned(pixels, head_mask=mask), model(pixels, head_mask=as_if), atol=1e-5, rtol=1e-5)


def test_modes_are_as_before_also_after_an_error() -> None:
    model = build(dropout=0.5).train()
    model.encoder.blocks[0].eval()
    before = [module.training for module in model.modules()]

    def fail() -> None:
        with eval_mode(model):
            assert not any(module.training for module in model.modules())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert [module.training for module in model.modules()] == before
    with eval_mode(model, [model.head]):  # those alone that are named
        assert [module for module in model.modules() if module.training != before.pop(0)] == [model.head]


@pytest.mark.row("000.10")
def test_importance_of_heads_by_the_gradient_of_the_mask(pixels: Tensor) -> None:
    mask = torch.ones(2, 4, requires_grad=True)
    build()(pixels, head_mask=mask).square().sum().backward()
    assert (mask.grad.abs() > 1e-6).all()


@pytest.mark.row("004.13", "000.22")
@pytest.mark.parametrize("final_norm", ["tokens", "pooled", "none"])
def test_features_are_the_tokens_after_the_final_norm(pixels: Tensor, final_norm: str) -> None:
    model = build(registers=2, final_norm=final_norm, pool="mean")
    features = model.features(pixels)
    assert isinstance(features, Features)
    prefix, patches, grid = features
    tokens = model.encode(pixels).tokens
    if final_norm != "none":
        tokens = F.layer_norm(tokens, (16,), model.norm.weight, model.norm.bias, 1e-6)
    torch.testing.assert_close(torch.cat((prefix, patches), dim=1), tokens)
    assert (prefix.shape, patches.shape, grid) == ((3, 3, 16), (3, 6, 16), (2, 3))
    assert isinstance(model.patches, PatchEmbed)  # the input embedding is an attribute
    mask = torch.tensor([1.0, 0, 1, 1])
    assert (model.features(pixels, head_mask=mask).patches - patches).abs().max() > 1e-3


@pytest.mark.row("004.13")
@pytest.mark.parametrize("changes", [{}, {"pool": "mean", "final_norm": "pooled"}, {"representation_width": 9}])
def test_the_embedding_is_what_the_last_layer_receives(pixels: Tensor, changes: dict[str, Any]) -> None:
    model = build(**changes)
    embedding = model.embed(pixels)
    assert embedding.shape == (3, changes.get("representation_width", 16))
    torch.testing.assert_close(model.head.classify(embedding), model(pixels))
    torch.testing.assert_close(with_head(model, 0, keep_representation=True)(pixels), embedding)


@pytest.mark.row("001.06", "001.07")
def test_attention_weights_come_from_trace_and_only_if_asked(pixels: Tensor) -> None:
    model = build()
    logits = model(pixels)
    assert isinstance(logits, Tensor)  # always: no flag changes what a model returns
    seen = vitrail.trace(model, pixels)
    assert len(seen.attention) == 2
    torch.testing.assert_close(seen.logits, logits, atol=1e-5, rtol=1e-5)
    assert vitrail.trace(model, pixels, attention=False).attention == ()


@pytest.mark.row("001.07", "004.09")
def test_a_loss_is_one_line_more(pixels: Tensor) -> None:
    model = build()
    targets = torch.tensor([4, 0, 2])
    logits = model(pixels)
    loss = F.cross_entropy(logits, targets)
    by_hand = -(logits - logits.logsumexp(dim=1, keepdim=True))[torch.arange(3), targets].mean()
    torch.testing.assert_close(loss, by_hand)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(30):
        optimiser.zero_grad()
        F.cross_entropy(model(pixels), targets).backward()
        optimiser.step()
    assert F.cross_entropy(model(pixels), targets) < 0.5 * loss


@pytest.mark.row("002.06", "004.09")
def test_a_small_one_for_small_images() -> None:
    model = ViT(
        ViTConfig(image_size=32, patch_size=4, width=24, depth=6, heads=3, mlp_width=48, classes=10, dropout=0.1)
    )
    pixels = torch.randn(4, 3, 32, 32)
    logits = model.eval()(pixels)
    assert logits.shape == (4, 10)
    assert torch.equal(logits, torch.zeros(4, 10))  # a fresh head of the paper is silent
    assert model.config.tokens == 65
    assert len(model.encoder.blocks) == 6
    nn.init.normal_(model.head.classify.weight)
    assert model(pixels).std(dim=0).min() > 0  # other images, other logits
    assert not torch.equal(model.train()(pixels), model(pixels))


# ---- order of patches


def shuffled(pixels: Tensor, order: Tensor) -> Tensor:
    """The patches of 4x4 of an image of 2x3 patches in another order."""
    return unpatchify(patchify(pixels, (4, 4))[:, order], (2, 3), (4, 4))


@pytest.mark.row("004.15")
def test_without_positions_patches_are_a_set(pixels: Tensor) -> None:
    """What a CNN is built with, a ViT must learn: moved patches move the features, and nothing else changes."""
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    model = build(positions=NONE)
    torch.testing.assert_close(model(shuffled(pixels, order)), model(pixels), atol=1e-5, rtol=1e-5)
    moved = model.features(shuffled(pixels, order)).patches
    torch.testing.assert_close(moved, model.features(pixels).patches[:, order], atol=1e-5, rtol=1e-5)


@pytest.mark.row("004.15")
@pytest.mark.parametrize(
    "changes",
    [
        {"positions": Positions("learned")},
        {"positions": Positions("learned-2d", at="every")},
        {"positions": Positions("sincos-2d")},
        {"positions": Positions("relative")},
        {"positions": NONE, "rotary": Rotary("axial")},
        {"positions": NONE, "rotary": Rotary("dinov3")},
        {"positions": NONE, "axial": True},
    ],
)
def test_with_positions_they_are_not(pixels: Tensor, changes: dict[str, Any]) -> None:
    model = build(**changes)
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    assert (model(shuffled(pixels, order)) - model(pixels)).abs().max() > 1e-4


@pytest.mark.row("004.15")
def test_a_shift_by_a_patch_moves_the_features_where_only_offsets_count() -> None:
    """With rotary positions alone scores know offsets only: one column further right gives the same features."""
    model = build(positions=NONE, rotary=Rotary("axial"), cls_token=False, pool="mean", depth=1)
    content = torch.randn(1, 3, 8, 8)
    angles = model.tokens.rotary(torch.tensor([[0.0, 1], [0, 2], [1, 1], [1, 2]]), 0)
    (block,) = model.encoder.blocks
    tokens, layout = model.tokens(model.patches(content), (2, 2))
    shifted = model.norm(block(tokens, layout._replace(angles=angles)).tokens)
    torch.testing.assert_close(shifted, model.features(content).patches, atol=1e-5, rtol=1e-5)


# ---- how it travels


@pytest.mark.parametrize(
    "changes",
    [
        {"registers": 2, "layer_scale": 0.1, "qk_norm": True},
        {"rotary": Rotary("mixed", 10.0), "positions": Positions("sincos-2d")},
        {"norm": "batch", "pool": "map", "qkv_bias": "no-key"},
    ],
)
def test_state_dicts_carry_everything(pixels: Tensor, changes: dict[str, Any]) -> None:
    model = build(**changes)
    if changes.get("norm") == "batch":
        model.train()(pixels)  # statistics travel too
        model.eval()
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    other = ViT(ViTConfig.from_dict(model.config.to_dict())).eval()
    assert other.load_state_dict(torch.load(file, weights_only=True)).missing_keys == []
    assert torch.equal(other(pixels), model(pixels))
    twin = copy.deepcopy(model)
    assert torch.equal(twin(pixels), model(pixels))
    with torch.no_grad():
        twin.patches.projection.weight.zero_()
    assert not torch.equal(twin(pixels), model(pixels))
    assert torch.equal(other(pixels), model(pixels))


@pytest.mark.parametrize("dtype, gap", [(torch.bfloat16, 0.1), (torch.float16, 0.02), (torch.float64, 1e-5)])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"rotary": Rotary("axial"), "qk_norm": True},
        {"rotary": Rotary("mixed", 10.0), "merge_per_block": 1},
        {"rotary": Rotary("dinov3"), "positions": NONE},
        {"positions": Positions("relative"), "pool": "mean"},
        {"positions": Positions("learned-2d", at="every"), "pool": "map"},
        {"axial": True, "layer_scale": 0.5},
    ],
)
def test_other_precisions_give_close_numbers(
    pixels: Tensor, dtype: torch.dtype, gap: float, changes: dict[str, Any]
) -> None:
    model = build(**changes)
    for size in (pixels, torch.randn(2, 3, 16, 16)):
        exact = copy.deepcopy(model)(size)
        out = copy.deepcopy(model).to(dtype)(size.to(dtype))
        assert out.dtype == dtype
        if "merge_per_block" not in changes:  # where the likeness of two pairs is close, rounding decides
            assert (out.float() - exact).abs().max() < gap * exact.abs().max()
        assert out.isfinite().all()


def test_a_double_model_agrees_with_itself_to_the_last_digits(pixels: Tensor) -> None:
    """Rounding only: between fp32 and fp64 nothing else may differ, merging and mixed rotary included."""
    model = build(rotary=Rotary("mixed", 10.0), merge_per_block=1)
    exact = copy.deepcopy(model).double()(pixels.double())
    assert (model(pixels).double() - exact).abs().max() < 1e-5 * exact.abs().max()


def test_autocast_runs_every_part(pixels: Tensor) -> None:
    model = build(rotary=Rotary("mixed", 10.0), qk_norm=True, pool="map", layer_scale=0.5)
    with torch.autocast("cpu", torch.bfloat16):
        out = model(pixels)
    exact = model(pixels)
    assert (out.float() - exact).abs().max() < 0.1 * exact.abs().max()


def test_no_images_give_no_logits() -> None:
    assert build()(torch.zeros(0, 3, 8, 12)).shape == (0, 5)


@pytest.mark.row("002.02", "002.01")
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_pixels_of_another_precision_are_told(dtype: torch.dtype) -> None:
    model = ViT(ViTConfig(image_size=8, patch_size=4, width=8, depth=1, heads=2, mlp_width=8, classes=3)).eval()
    pixels = torch.randn(1, 3, 8, 8)
    with pytest.raises(InputError, match=f"expected torch.float32 pixels, as the weights are, got {dtype}"):
        model(pixels.to(dtype))
    with torch.autocast("cpu", dtype=torch.bfloat16):  # which turns them itself
        model(pixels.bfloat16())


def test_a_new_head_keeps_what_was_frozen_and_how_memory_is_spent() -> None:
    model = ViT(ViTConfig(image_size=8, patch_size=4, width=8, depth=1, heads=2, mlp_width=8, classes=3))
    model.encoder.checkpointing, model.encoder.mlp_chunk = True, 2
    model.requires_grad_(False)
    other = with_head(model, 5)
    assert {name for name, each in other.named_parameters() if each.requires_grad} == {
        "head.classify.weight",
        "head.classify.bias",
    }
    assert other.encoder.checkpointing
    assert other.encoder.mlp_chunk == 2


@pytest.mark.parametrize(
    "changes",
    [{}, {"pool": "map", "registers": 2}, {"rotary": Rotary("mixed")}, {"axial": True}, {"merge_per_block": 1}],
    ids=str,
)
def test_export_with_any_batch(changes: dict[str, Any]) -> None:
    """An ordinary module: torch.export takes it with a free batch, and the program gives the same."""
    settings = {"image_size": 16, "patch_size": 4, "width": 16, "depth": 2, "heads": 2, "mlp_width": 16, "classes": 3}
    model = ViT(ViTConfig(**{**settings, **changes})).eval()
    batch = torch.export.Dim("batch", min=1, max=64)
    with torch.no_grad():
        program = torch.export.export(model, (torch.randn(2, 3, 16, 16),), dynamic_shapes={"pixels": {0: batch}})
        pixels = torch.randn(5, 3, 16, 16)
        torch.testing.assert_close(program.module()(pixels), model(pixels), atol=1e-6, rtol=1e-5)


def test_a_hook_sees_what_the_layer_gave() -> None:
    """Without gradients the MLP is activated in place, but not behind the back of someone who looks."""
    model = ViT(ViTConfig(image_size=8, patch_size=4, width=8, depth=1, heads=2, mlp_width=8, classes=3)).eval()
    pixels, seen = torch.randn(1, 3, 8, 8), []
    up = model.encoder.blocks[0].mlp.up
    with torch.no_grad():
        plain = model(pixels)
        hook = up.register_forward_hook(lambda module, inputs, output: seen.append((inputs[0].clone(), output)))
        assert torch.equal(model(pixels), plain)
        hook.remove()
        assert torch.equal(seen[0][1], up(seen[0][0]))
    assert torch.equal(model(pixels), plain)  # with gradients, out of place


@pytest.mark.parametrize("wrong", [None, {}, "vit-b16", 3])
def test_what_is_no_config_is_told(wrong: Any) -> None:
    for build_from in (ViT, vitrail.TextDecoder):
        with pytest.raises(vitrail.VitrailError, match="config: expected .*Config, got"):
            build_from(wrong)
    with pytest.raises(vitrail.VitrailError, match="no preset"):
        vitrail.create(wrong if wrong != "vit-b16" else "vit-b17")


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("mask", [None, torch.tensor([1.0, 0.0, 0.5, 1.0])])
def test_torch_traces_it_for_one_size_and_any_batch(mask: torch.Tensor | None) -> None:
    torch.manual_seed(0)
    model = ViT(ViTConfig(image_size=32, patch_size=8, width=32, depth=2, heads=4, mlp_width=64, classes=3)).eval()
    beside = () if mask is None else (mask,)
    traced = torch.jit.trace(model, (torch.randn(2, 3, 32, 32), *beside))  # type: ignore[no-untyped-call]
    pixels = torch.randn(5, 3, 32, 32)
    torch.testing.assert_close(traced(pixels, *beside), model(pixels, *beside))
