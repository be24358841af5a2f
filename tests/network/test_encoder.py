"""The encoder: its formulas recomputed plainly, its dropout where the paper puts it, its memory savers exact."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.errors import ConfigError
from vitrail.insight.tracing import KeepWeights
from vitrail.network import ViT, ViTConfig
from vitrail.network.config import ACTIVATIONS
from vitrail.network.encoder import Block, LayerScale, Mlp, SwiGLU, TokenBatchNorm, activate, drop_path
from vitrail.network.tokens import TokenLayout

HERE = TokenLayout((2, 3), 1)


def tiny(**changes: Any) -> ViTConfig:
    sizes = {"image_size": (8, 12), "patch_size": 4, "width": 16, "depth": 3, "heads": 4, "mlp_width": 24}
    return ViTConfig(**{**sizes, "classes": 5, **changes})


def shaken(module: nn.Module, size: float = 0.3) -> Any:
    """The module in eval mode with every parameter moved, so that nothing hides behind a zero or a one."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter) * size)
    return module.eval()


def block(**changes: Any) -> Any:
    return shaken(Block(tiny(**changes), index=2))


def layer_norm(x: Tensor, layer: nn.LayerNorm, eps: float = 1e-6) -> Tensor:
    mean = x.mean(dim=-1, keepdim=True)
    variance = ((x - mean) ** 2).mean(dim=-1, keepdim=True)
    return (x - mean) / (variance + eps).sqrt() * layer.weight + layer.bias


@pytest.fixture
def x() -> Tensor:
    return torch.randn(2, 7, 16)


@pytest.fixture
def pixels() -> Tensor:
    return torch.randn(4, 3, 8, 12)


# ---- the formulas


def by_formula(x: Tensor, activation: str) -> Tensor:
    x = x.double()
    if activation == "gelu":
        return x * (1 + torch.erf(x / math.sqrt(2))) / 2
    if activation == "gelu_tanh":
        return x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2
    if activation == "quick_gelu":
        return x / (1 + torch.exp(-1.702 * x))
    return x.clamp(min=0) if activation == "relu" else x / (1 + torch.exp(-x))


@pytest.mark.row("000.16", "003.09")
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_are_their_formulas(activation: str) -> None:
    """Each by its name: the known traps E19 (one hard-coded) and E48 (two forms of GELU)."""
    x = torch.linspace(-6, 6, 401)
    torch.testing.assert_close(activate(x, activation).double(), by_formula(x, activation), atol=2e-6, rtol=1e-5)
    for other in ACTIVATIONS:
        if other != activation:
            assert (activate(x, other) - activate(x, activation)).abs().max() > 1e-4
    mlp = shaken(Mlp(16, 24, activation))
    y = torch.randn(2, 7, 16)
    expected = by_formula(mlp.up(y), activation).float() @ mlp.down.weight.T + mlp.down.bias
    torch.testing.assert_close(mlp(y), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.row("000.16", "003.09", "001.05")
def test_mlp_has_the_parameters_its_widths_say() -> None:
    def count(module: nn.Module) -> int:
        return sum(parameter.numel() for parameter in module.parameters())

    with torch.device("meta"):
        assert count(Mlp(768, 3072)) == 768 * 3072 + 3072 + 3072 * 768 + 768 == 4_722_432
        assert count(SwiGLU(768, 2048)) == 768 * 4096 + 4096 + 2048 * 768 + 768
        b16 = Block(ViTConfig())
        assert count(b16) == 7_087_872  # of B/16
        assert b16.norm1.eps == b16.norm2.eps == 1e-6


def test_swiglu_gates_with_the_first_half(x: Tensor) -> None:
    mlp = shaken(SwiGLU(16, 24))
    gate = x @ mlp.up.weight[:24].T + mlp.up.bias[:24]
    value = x @ mlp.up.weight[24:].T + mlp.up.bias[24:]
    expected = (gate / (1 + (-gate).exp()) * value) @ mlp.down.weight.T + mlp.down.bias
    torch.testing.assert_close(mlp(x), expected, atol=1e-5, rtol=1e-4)
    inside = block(mlp="swiglu", activation="silu")
    assert isinstance(inside.mlp, SwiGLU)


@pytest.mark.row("000.17", "000.14", "001.05", "002.05")
@pytest.mark.parametrize("eps", [1e-6, 1e-12, 0.1])
def test_a_block_is_equations_2_and_3(x: Tensor, eps: float) -> None:
    each = block(norm_eps=eps)
    after = each.attention(layer_norm(x, each.norm1, eps)) + x  # z' = MSA(LN(z)) + z
    expected = each.mlp(layer_norm(after, each.norm2, eps)) + after  # z = MLP(LN(z')) + z'
    torch.testing.assert_close(each(x, HERE).tokens, expected, atol=1e-5, rtol=1e-5)
    assert each.norm1.eps == each.norm2.eps == eps
    post = layer_norm(x + each.attention(x), each.norm1, eps)  # the other order gives other numbers
    assert (post - after).abs().max() > 0.1


@pytest.mark.row("P.5")
@pytest.mark.parametrize("index, axis", [(0, "row"), (1, "column")])
def test_an_axial_block_attends_along_its_line_and_then_has_its_mlp(x: Tensor, index: int, axis: str) -> None:
    each: Any = shaken(Block(tiny(axial=True), index=index))
    assert each.attention.axis == axis
    after = each.attention(layer_norm(x, each.norm1), layout=HERE) + x
    expected = each.mlp(layer_norm(after, each.norm2)) + after
    torch.testing.assert_close(each(x, HERE).tokens, expected, atol=1e-5, rtol=1e-5)
    everywhere = shaken(Block(tiny(), index=index))
    everywhere.load_state_dict(each.state_dict())
    assert (each(x, HERE).tokens - everywhere(x, HERE).tokens).abs().max() > 1e-3


@pytest.mark.row("000.16", "000.14")
def test_the_residual_sums_belong_to_the_block(x: Tensor) -> None:
    each = block()
    for layer in (each.attention.out, each.mlp.down):
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
    assert torch.equal(each(x, HERE).tokens, x)
    assert torch.equal(each.mlp(x), torch.zeros_like(x))


def test_a_parallel_block_reads_one_norm(x: Tensor) -> None:
    each = block(parallel=True)
    assert each.norm2 is None
    normed = layer_norm(x, each.norm1)
    expected = x + each.attention(normed) + each.mlp(normed)
    torch.testing.assert_close(each(x, HERE).tokens, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("start", [0.0, 1e-5, 1])
def test_layer_scale_starts_where_it_says_and_scales_each_value(x: Tensor, start: float) -> None:
    fresh = LayerScale(16, start)
    assert torch.equal(fresh.gamma, torch.full((16,), float(start)))
    each = block(layer_scale=start)
    after = x + each.attention(each.norm1(x)) * each.scale1.gamma
    expected = after + each.mlp(each.norm2(after)) * each.scale2.gamma
    torch.testing.assert_close(each(x, HERE).tokens, expected, atol=1e-5, rtol=1e-5)
    if start == 0:
        model = ViT(tiny(layer_scale=0.0)).eval()
        tokens, _ = model.tokens(model.patches(torch.ones(1, 3, 8, 12)), (2, 3))
        assert torch.equal(model.encode(torch.ones(1, 3, 8, 12)).tokens, tokens)  # no block says a word


# ---- memory savers


@pytest.mark.row("000.18")
@pytest.mark.parametrize("changes", [{}, {"parallel": True}, {"mlp": "swiglu", "activation": "silu"}])
@pytest.mark.parametrize("chunk", [1, 3, 7, 100])
def test_a_chunked_mlp_gives_the_same(pixels: Tensor, changes: dict[str, Any], chunk: int) -> None:
    model = shaken(ViT(tiny(**changes)))
    whole = model(pixels)
    seen: list[int] = []
    model.encoder.blocks[0].mlp.register_forward_hook(lambda _, args, __: seen.append(args[0].shape[1]))
    model.encoder.mlp_chunk = chunk
    torch.testing.assert_close(model(pixels), whole, atol=1e-5, rtol=1e-5)
    assert sum(seen) == 7
    assert max(seen) == min(chunk, 7)


def loss_and_gradients(model: ViT, pixels: Tensor) -> tuple[Tensor, list[Tensor]]:
    torch.manual_seed(5)
    loss = F.cross_entropy(model(pixels), torch.tensor([0, 1, 2, 3]))
    return loss, list(torch.autograd.grad(loss, list(model.parameters())))


@pytest.mark.row("000.19")
@pytest.mark.parametrize("noise", [0.0, 0.3])
@pytest.mark.parametrize("changes", [{}, {"axial": True}, {"merge_per_block": 1}])
def test_checkpointing_changes_memory_not_results(pixels: Tensor, noise: float, changes: dict[str, Any]) -> None:
    noises = {"dropout": noise, "attention_dropout": noise, "drop_path": noise}
    model = shaken(ViT(tiny(**noises, **changes))).train()
    kept: list[int] = []

    def keep(value: Tensor) -> Tensor:
        kept[-1] += value.numel()
        return value

    kept.append(0)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
        loss, gradients = loss_and_gradients(model, pixels)
    runs = []
    model.encoder.blocks[1].register_forward_pre_hook(lambda *_: runs.append(1))
    model.encoder.checkpointing = True
    again, others = loss_and_gradients(model, pixels)
    kept.append(0)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
        model(pixels)
    assert kept[1] < kept[0] / 2
    del runs[2:]
    assert len(runs) == 2  # forwards, and once more on the way back
    assert torch.equal(loss, again)
    for one, other in zip(gradients, others, strict=True):
        torch.testing.assert_close(one, other, atol=1e-7, rtol=1e-5)
    runs.clear()
    model.eval()(pixels).sum().backward()
    assert len(runs) == 1  # only while training


# ---- depth, dropout, drop path


@pytest.mark.row("000.19")
def test_the_encoder_is_its_blocks_in_order(pixels: Tensor) -> None:
    model = shaken(ViT(tiny()))
    x, layout = model.tokens(model.patches(pixels), (2, 3))
    for each in model.encoder.blocks:
        x, layout = each(x, layout)
    assert len(model.encoder.blocks) == 3
    torch.testing.assert_close(model.encode(pixels).tokens, x)


@pytest.mark.row("003.06", "002.05", "003.09", "000.16")
def test_dropout_stands_where_the_paper_puts_it(pixels: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    """After positions, on attention's weights, after its projection, and after both layers of the MLP."""
    model = shaken(ViT(tiny(dropout=0.25, attention_dropout=0.5, depth=1))).train()
    seen: list[tuple[tuple[int, ...], float, bool]] = []
    plain = F.dropout

    def watched(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        seen.append((tuple(x.shape), p, training))
        return plain(x, p, training, inplace)

    monkeypatch.setattr(F, "dropout", watched)
    (only,) = model.encoder.blocks
    x, layout = model.tokens(model.patches(pixels), (2, 3))
    only(x, layout, kernel=KeepWeights())
    tokens, hidden, weights = (4, 7, 16), (4, 7, 24), (4, 4, 7, 7)
    assert seen == [
        (tokens, 0.25, True),
        (weights, 0.5, True),
        (tokens, 0.25, True),
        (hidden, 0.25, True),
        (tokens, 0.25, True),
    ]


@pytest.mark.row("003.06", "003.09", "000.16")
def test_each_dropout_of_the_mlp_acts(x: Tensor) -> None:
    mlp = shaken(Mlp(16, 4000, dropout=0.5))
    with torch.no_grad():
        mlp.up.weight.zero_()
        mlp.up.bias.fill_(3.0)
        mlp.down.weight.fill_(1 / 4000)
        mlp.down.bias.zero_()
    still = mlp(x)
    assert torch.equal(mlp(x), still)
    noisy = mlp.train()(x)
    gone = noisy == 0
    assert 0.35 < gone.float().mean() < 0.65  # the second, on the way out
    left = noisy[~gone] / (2 * still[~gone])
    assert (left - 1).abs().max() < 0.15
    assert left.std() > 0.005  # the first, inside: a mean over 4000 coins, deviation 1/sqrt(4000)


@pytest.mark.row("003.06")
@pytest.mark.parametrize("rates", [{"dropout": 0.2}, {"attention_dropout": 0.2}, {"drop_path": 0.5}])
def test_training_and_evaluation_differ(pixels: Tensor, rates: dict[str, float]) -> None:
    model = shaken(ViT(tiny(**rates)))
    plain = ViT(tiny()).eval()
    plain.load_state_dict(model.state_dict())
    assert torch.equal(model(pixels), plain(pixels))  # no noise in evaluation
    model.train()
    assert (model(pixels) - plain(pixels)).abs().max() > 1e-3
    assert (model(pixels) - model(pixels)).abs().max() > 1e-3


def test_drop_path_silences_whole_images_and_keeps_the_mean() -> None:
    x = torch.randn(4000, 3, 2)
    out = drop_path(x, 0.3)
    gone = (out == 0).all(dim=(1, 2))
    assert torch.equal(gone, (out == 0).any(dim=2).any(dim=1))  # all of an image, or nothing of it
    assert abs(gone.float().mean() - 0.3) < 0.03
    torch.testing.assert_close(out[~gone], x[~gone] / 0.7)


def test_drop_path_rises_from_block_to_block() -> None:
    model = ViT(tiny(depth=5, drop_path=0.4))
    torch.testing.assert_close(
        torch.tensor([each.drop_path for each in model.encoder.blocks]), torch.tensor([0.0, 0.1, 0.2, 0.3, 0.4])
    )


def test_drop_path_acts_on_both_branches() -> None:
    each = block(drop_path=0.5).train()
    assert each.drop_path == 0.5
    x = torch.randn(1, 7, 16).expand(400, -1, -1)
    out = each(x, HERE).tokens.detach()
    kinds = {tuple(image[0].mul(1e3).round().int().tolist()) for image in out}
    assert len(kinds) == 4  # neither branch, one of them, the other, both
    untouched = (out == x).all(dim=(1, 2)).float().mean()
    assert abs(untouched - 0.25) < 0.1


# ---- norms


@pytest.mark.row("003.08")
@pytest.mark.parametrize("changes", [{}, {"pool": "mean"}, {"pool": "map"}, {"merge_per_block": 1}])
def test_one_image_alone_gives_its_row_of_a_batch(changes: dict[str, Any]) -> None:
    model = shaken(ViT(tiny(**changes)))
    pixels = torch.randn(8, 3, 8, 12)
    batch = model(pixels)
    for index in range(8):
        torch.testing.assert_close(model(pixels[index : index + 1])[0], batch[index], atol=1e-5, rtol=1e-5)
    model.train()  # layer norms know no batch in training either
    torch.testing.assert_close(model(pixels[3:4])[0], batch[3], atol=1e-5, rtol=1e-5)


@pytest.mark.row("003.19")
def test_batch_norm_depends_on_the_batch_and_layer_norm_does_not() -> None:
    pixels = torch.randn(8, 3, 8, 12)
    other = torch.cat((pixels[:1], 3 * torch.randn(7, 3, 8, 12)))
    layer = shaken(ViT(tiny(norm="layer"))).train()
    batch = shaken(ViT(tiny(norm="batch"))).train()
    torch.testing.assert_close(layer(pixels)[0], layer(other)[0], atol=1e-5, rtol=1e-5)
    assert (batch(pixels)[0] - batch(other)[0]).abs().max() > 0.05
    batch.eval()  # in evaluation it uses what it saw while training
    torch.testing.assert_close(batch(pixels)[0], batch(other)[0], atol=1e-5, rtol=1e-5)


@pytest.mark.row("003.19", "003.08")
def test_which_values_each_norm_averages() -> None:
    x = torch.randn(5, 7, 16) * 3 + 2
    norm = TokenBatchNorm(16, eps=1e-6).train()
    out = norm(x)
    torch.testing.assert_close(out.mean(dim=(0, 1)), torch.zeros(16), atol=1e-5, rtol=0)  # one per feature
    torch.testing.assert_close(out.var(dim=(0, 1), unbiased=False), torch.ones(16), atol=1e-4, rtol=0)
    torch.testing.assert_close(norm.running_mean, 0.1 * x.mean(dim=(0, 1)), atol=1e-5, rtol=1e-4)
    vectors = torch.randn(9, 16)
    torch.testing.assert_close(norm(vectors), nn.BatchNorm1d(16, eps=1e-6)(vectors))
    layer = Block(tiny()).norm1
    out = layer(x)
    torch.testing.assert_close(out.mean(dim=-1), torch.zeros(5, 7), atol=1e-5, rtol=0)  # one per token
    torch.testing.assert_close(out.var(dim=-1, unbiased=False), torch.ones(5, 7), atol=1e-4, rtol=0)


def test_every_norm_of_the_network_is_of_the_kind_asked_for() -> None:
    model = ViT(tiny(norm="batch", embedding_norm=True, pool="map", norm_eps=0.01))
    kinds = [each for each in model.modules() if isinstance(each, nn.LayerNorm | nn.BatchNorm1d)]
    assert len(kinds) == 2 * 3 + 3
    assert all(isinstance(each, TokenBatchNorm) and each.eps == 0.01 for each in kinds)


def test_the_norm_before_the_encoder(pixels: Tensor) -> None:
    model = shaken(ViT(tiny(embedding_norm=True)))
    x, layout = model.tokens(model.patches(pixels), (2, 3))
    expected = model.encoder(layer_norm(x, model.embedding_norm), layout).tokens
    torch.testing.assert_close(model.encode(pixels).tokens, expected, atol=1e-5, rtol=1e-5)
    without = copy.deepcopy(model)
    without.embedding_norm = None
    assert (without(pixels) - model(pixels)).abs().max() > 1e-3


def test_batch_norm_refuses_checkpointing() -> None:
    """The second pass through a block would count the batch twice."""
    model = ViT(ViTConfig(image_size=8, patch_size=4, width=8, depth=2, heads=2, mlp_width=8, classes=3, norm="batch"))
    with pytest.raises(ConfigError, match="batch norm would count the batch twice"):
        model.encoder.checkpointing = True
    assert model.encoder.checkpointing is False
