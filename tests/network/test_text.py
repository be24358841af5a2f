"""TextDecoder: causal, equal to GPT-2, repeatable; and the faults of a well-known text model, done right."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.errors import ConfigError, InputError
from vitrail.insight.tracing import KeepWeights, Recorder
from vitrail.network.attention import Attention, causal_kernel
from vitrail.network.config import Positions, ViTConfig
from vitrail.network.encoder import Encoder, Mlp
from vitrail.network.text import TextConfig, TextDecoder
from vitrail.network.tokens import TokenLayout

V, BLOCK, D = 11, 8, 24
CONFIG = TextConfig(vocabulary=V, block_size=BLOCK, width=D, depth=3, heads=4)


def lively(config: TextConfig = CONFIG) -> TextDecoder:
    """A decoder whose every weight matters: a fresh one is almost uniform."""
    model = TextDecoder(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():  # norms at zero would leave their biases to say it all
            parameter.normal_(mean=1.0 if "norm" in name and name.endswith("weight") else 0.0, std=0.3)
    return model


def some_ids(b: int = 2, t: int = BLOCK) -> Tensor:
    return torch.randint(0, V, (b, t), generator=torch.Generator().manual_seed(1))


# Causality


@pytest.mark.row("004.01")
@pytest.mark.parametrize("t", range(BLOCK))
def test_changing_a_token_leaves_all_before_it_unchanged(t: int) -> None:
    model, ids = lively(), some_ids()
    changed = ids.clone()
    changed[:, t] = (changed[:, t] + 1) % V
    before, after = model(ids), model(changed)
    assert before.shape == (2, BLOCK, V)
    assert torch.equal(before[:, :t], after[:, :t])
    assert all(not torch.allclose(before[:, later], after[:, later], atol=1e-3) for later in range(t, BLOCK))


@pytest.mark.row("004.01")
def test_a_shorter_text_gives_the_same_logits_as_the_start_of_a_longer_one() -> None:
    model, ids = lively(), some_ids()
    whole = model(ids)
    for t in range(1, BLOCK + 1):
        torch.testing.assert_close(model(ids[:, :t]), whole[:, :t], atol=1e-5, rtol=0)


@pytest.mark.row("004.01")
def test_gradients_never_flow_back_from_the_future() -> None:
    model = lively()
    model(some_ids(1))[0, 3].sum().backward()
    moved = model.positions.weight.grad.abs().sum(dim=1) > 0
    assert moved.tolist() == [True] * 4 + [False] * 4


@pytest.mark.row("004.01")
def test_attention_weights_stand_below_the_diagonal_and_fused_equals_explicit() -> None:
    model, ids = lively(), some_ids()
    kept = [KeepWeights(causal=True) for _ in range(3)]
    tokens = model.encode(ids, lambda block, *_: kept[block] if block < 3 else None)
    for weights in (each.weights for each in kept):
        assert weights.shape == (2, 4, BLOCK, BLOCK)
        assert torch.equal(weights, weights.tril())
        torch.testing.assert_close(weights.sum(-1), torch.ones(2, 4, BLOCK), atol=1e-6, rtol=0)
    torch.testing.assert_close(tokens, model.encode(ids), atol=1e-5, rtol=0)


@pytest.mark.row("004.01")
def test_the_parts_are_the_ones_of_the_vision_transformer() -> None:
    model = TextDecoder(CONFIG)
    assert [name for name, _ in model.named_children()] == ["tokens", "positions", "encoder", "norm", "head"]
    assert isinstance(model.encoder, Encoder)
    assert all(isinstance(block.attention, Attention) for block in model.encoder.blocks)
    per_block = 12 * D * D + 13 * D  # qkv, out, 4x MLP, their biases, two norms
    expected = V * D + BLOCK * D + 3 * per_block + 2 * D + D * V
    assert sum(each.numel() for each in model.parameters()) == expected


def test_causal_blocks_stay_causal_with_relative_positions() -> None:
    """A bias on the logits takes the kernel's causal flag away; the mask must come with the bias."""
    config = ViTConfig(
        image_size=(1, 6),
        patch_size=1,
        width=16,
        depth=2,
        heads=2,
        mlp_width=32,
        cls_token=False,
        pool="mean",
        positions=Positions("relative"),
    )
    encoder = Encoder(config).eval()
    for block in encoder.blocks:
        block.attention.kernel = causal_kernel
    for parameter in encoder.parameters():
        nn.init.normal_(parameter, std=0.3)
    x, layout = torch.randn(1, 6, 16), TokenLayout((1, 6), 0)
    changed = x.clone()
    changed[:, 4] += 1
    fused = encoder(x, layout).tokens
    assert torch.equal(fused[:, :4], encoder(changed, layout).tokens[:, :4])
    explicit = encoder(x, layout, observer=lambda *_: KeepWeights(causal=True)).tokens
    torch.testing.assert_close(fused, explicit, atol=1e-5, rtol=0)


# Against GPT-2


def from_gpt2(theirs: nn.Module, depth: int) -> dict[str, Tensor]:
    """GPT-2's tensors under our names; its dense layers hold their matrices the other way round."""
    old = theirs.state_dict()
    new = {
        "tokens.weight": old["transformer.wte.weight"],
        "positions.weight": old["transformer.wpe.weight"],
        "norm.weight": old["transformer.ln_f.weight"],
        "norm.bias": old["transformer.ln_f.bias"],
        "head.weight": old["lm_head.weight"],
    }
    names = {
        "norm1": "ln_1",
        "norm2": "ln_2",
        "attention.qkv": "attn.c_attn",
        "attention.out": "attn.c_proj",
        "mlp.up": "mlp.c_fc",
        "mlp.down": "mlp.c_proj",
    }
    for index in range(depth):
        for ours, other in names.items():
            for kind in ("weight", "bias"):
                tensor = old[f"transformer.h.{index}.{other}.{kind}"]
                new[f"encoder.blocks.{index}.{ours}.{kind}"] = tensor.T if tensor.ndim == 2 else tensor
    return new


@pytest.mark.row("004.01", "004.02")
def test_equals_gpt2(transformers: ModuleType) -> None:
    theirs = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=97,
            n_positions=32,
            n_embd=48,
            n_layer=3,
            n_head=4,
            initializer_range=0.3,  # large, so that every part shows
            bos_token_id=0,
            eos_token_id=0,
        )
    ).eval()
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(std=0.3)
    config = TextConfig(
        vocabulary=97, block_size=32, width=48, depth=3, heads=4, activation="gelu_tanh", head_bias=False
    )
    ours = TextDecoder(config).eval()
    ours.load_state_dict(from_gpt2(theirs, 3))
    ids = torch.randint(0, 97, (3, 32))
    with torch.no_grad():
        expected, got = theirs(ids, labels=ids), ours(ids)
        largest = expected.logits.abs().max()
        assert largest > 1
        assert (got - expected.logits).abs().max() / largest < 1e-5
        torch.testing.assert_close(ours.loss(ids), expected.loss, atol=1e-5, rtol=1e-5)
        prompt = ids[:1, :4]
        greedy = theirs.generate(prompt, max_new_tokens=20, do_sample=False, pad_token_id=0, eos_token_id=None)
    assert torch.equal(ours.generate(prompt, 20, temperature=0), greedy)


# Loss


@pytest.mark.row("004.02")
def test_loss_is_the_mean_cross_entropy_over_all_places() -> None:
    model, ids, targets = lively(), some_ids(), some_ids().flip(0)
    chances = model(ids).softmax(dim=-1)
    by_hand = -sum(chances[b, t, targets[b, t]].log() for b in range(2) for t in range(BLOCK)) / (2 * BLOCK)
    torch.testing.assert_close(model.loss(ids, targets), by_hand)


@pytest.mark.row("004.02")
def test_without_targets_each_token_foretells_the_next() -> None:
    model, ids = lively(), some_ids()
    torch.testing.assert_close(model.loss(ids), model.loss(ids[:, :-1], ids[:, 1:]))
    torch.testing.assert_close(model.loss(ids), F.cross_entropy(model(ids)[:, :-1].transpose(1, 2), ids[:, 1:]))
    assert model.loss(some_ids(2, BLOCK + 1)).isfinite()  # a whole block of inputs and its targets


@pytest.mark.row("004.02")
def test_a_fresh_decoder_guesses_evenly_and_learns() -> None:
    model, ids = TextDecoder(CONFIG), some_ids(1)
    assert model.loss(ids).item() == pytest.approx(torch.tensor(V).log().item(), abs=0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        model.loss(ids).backward()
        optimizer.step()
    assert model.loss(ids).item() < 0.05
    assert torch.equal(model.generate(ids[:, :1], BLOCK - 1, temperature=0), ids)


# Generation


@pytest.mark.row("004.03")
def test_generate_runs_past_the_block_size_on_the_last_tokens() -> None:
    model, ids = lively(), some_ids(2, 3)
    text = model.generate(ids, 3 * BLOCK, temperature=0)
    assert text.shape == (2, 3 + 3 * BLOCK)
    assert torch.equal(text[:, :3], ids)
    for place in range(3, text.shape[1]):
        context = text[:, max(0, place - BLOCK) : place]
        assert torch.equal(text[:, place], model(context)[:, -1].argmax(dim=-1))


@pytest.mark.row("004.03")
def test_a_prompt_longer_than_the_block_is_continued() -> None:
    model, ids = lively(), some_ids(1, 3 * BLOCK)
    text = model.generate(ids, 2, temperature=0)
    assert torch.equal(text[:, : 3 * BLOCK], ids)
    assert torch.equal(text[:, 3 * BLOCK :], model.generate(ids[:, -BLOCK:], 2, temperature=0)[:, BLOCK:])


def test_only_the_last_tokens_of_a_long_prompt_count() -> None:
    """Sixteen texts that differ before the last block go on alike; sixteen that differ in it do not."""
    model = lively()
    many, one = some_ids(16, BLOCK), some_ids(1, BLOCK).expand(16, -1)
    other_starts = model.generate(torch.cat((many, one), dim=1), 4, temperature=0)[:, 2 * BLOCK :]
    assert torch.equal(other_starts, other_starts[:1].expand(16, -1))
    other_ends = model.generate(torch.cat((one, many), dim=1), 4, temperature=0)[:, 2 * BLOCK :]
    assert len({tuple(row) for row in other_ends.tolist()}) > 4


@pytest.mark.row("004.03")
def test_the_same_seed_gives_the_same_text() -> None:
    model, ids = lively(), some_ids(2, 3)
    state = torch.get_rng_state()
    first = model.generate(ids, 30, seed=5)
    assert torch.equal(first, model.generate(ids, 30, seed=5))
    assert torch.equal(first, model.generate(ids, 30, generator=torch.Generator().manual_seed(5)))
    assert not torch.equal(first, model.generate(ids, 30, seed=6))
    assert torch.equal(state, torch.get_rng_state())  # torch's own generator was not touched
    torch.manual_seed(7)
    free = model.generate(ids, 30)
    torch.manual_seed(7)
    assert torch.equal(free, model.generate(ids, 30))


@pytest.mark.row("004.03")
def test_generate_draws_with_the_model_s_own_chances() -> None:
    model, ids = lively(), some_ids(1, 3)
    for temperature in (1.0, 2.0):
        drawn = model.generate(ids.expand(20000, -1), 1, seed=0, temperature=temperature)[:, -1]
        expected = (model(ids)[0, -1] / temperature).softmax(dim=-1)
        torch.testing.assert_close(drawn.bincount(minlength=V) / 20000, expected, atol=0.012, rtol=0)


@pytest.mark.row("004.03")
def test_top_k_keeps_exactly_k_even_where_logits_are_equal() -> None:
    model, ids = lively(), some_ids(1, 3)
    best = set(model(ids)[0, -1].topk(3).indices.tolist())
    drawn = model.generate(ids.expand(500, -1), 1, top_k=3, temperature=5.0, seed=0)[:, -1]
    assert set(drawn.tolist()) == best
    assert torch.equal(model.generate(ids, 9, top_k=1), model.generate(ids, 9, temperature=0))
    assert torch.equal(model.generate(ids, 9, top_k=1000, seed=0), model.generate(ids, 9, seed=0))
    with torch.no_grad():
        model.head.weight.zero_()
    drawn = model.generate(ids.expand(500, -1), 1, top_k=2, seed=0)[:, -1]
    assert len(set(drawn.tolist())) == 2


@pytest.mark.row("004.03")
def test_a_tiny_temperature_is_almost_greedy() -> None:
    model, ids = lively(), some_ids(2, 3)
    assert torch.equal(model.generate(ids, 9, temperature=1e-30), model.generate(ids, 9, temperature=0))


@pytest.mark.row("004.03")
def test_generate_leaves_modes_and_gradients_alone_and_does_not_drop_out() -> None:
    model = lively(replace(CONFIG, dropout=0.5, attention_dropout=0.5))
    expected = model.generate(some_ids(1, 3), 20, seed=0)
    model.train()
    model.encoder.blocks[1].eval()
    modes = [module.training for module in model.modules()]
    text = model.generate(some_ids(1, 3), 20, seed=0)
    assert torch.equal(text, expected)
    assert [module.training for module in model.modules()] == modes
    model.norm.register_forward_hook(stop)
    with pytest.raises(RuntimeError, match="stop"):
        model.generate(some_ids(1, 3), 1)
    assert [module.training for module in model.modules()] == modes
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())


def stop(*_: object) -> None:
    raise RuntimeError("stop")


@pytest.mark.row("004.03")
def test_no_new_tokens_give_the_prompt_back_and_the_dtype_stays() -> None:
    model = lively()
    assert torch.equal(model.generate(some_ids(), 0), some_ids())
    assert model.generate(some_ids().int(), 2).dtype == torch.int32
    assert model.bfloat16().generate(some_ids(), 2).shape == (2, BLOCK + 2)


@pytest.mark.row("004.04")
def test_no_block_holds_weights_for_a_context() -> None:
    model = TextDecoder(CONFIG)
    for block in model.encoder.blocks:
        assert [name for name, each in block.named_children() if isinstance(each, Attention)] == ["attention"]
        assert sorted(name for name, _ in block.named_parameters() if "attention" in name) == [
            *("attention.out.bias", "attention.out.weight"),
            *("attention.qkv.bias", "attention.qkv.weight"),
        ]
    with pytest.raises(TypeError):
        model(some_ids(), some_ids())  # nothing else to look at


# The faults of the well-known text model (trap E10), each shown right here


@pytest.mark.row("004.01")
def test_e10_1_both_tables_are_as_wide_as_the_network() -> None:
    """There: a token table as wide as the vocabulary, added to positions as wide as the network."""
    with pytest.raises(RuntimeError, match="must match"):
        _ = nn.Embedding(V, V)(some_ids()) + nn.Embedding(BLOCK, D)(torch.arange(BLOCK))
    model = lively()
    assert model.tokens.weight.shape == (V, D)
    assert model.positions.weight.shape == (BLOCK, D)
    recorder = Recorder(hidden=True)
    model.encode(some_ids(), recorder)
    by_hand = model.tokens.weight[some_ids()] + model.positions.weight[:BLOCK]
    torch.testing.assert_close(recorder.hidden[0], by_hand)


@pytest.mark.row("004.01")
def test_e10_2_heads_project_from_the_width_not_from_the_vocabulary() -> None:
    """There: Linear(vocabulary, head), which fits only where the two happen to be equal."""
    wide = TextDecoder(replace(CONFIG, vocabulary=500))
    for model in (TextDecoder(CONFIG), wide):
        for block in model.encoder.blocks:
            assert block.attention.qkv.weight.shape == (3 * D, D)
            assert block.attention.out.weight.shape == (D, D)
    assert wide(some_ids()).shape == (2, BLOCK, 500)


@pytest.mark.row("004.01")
def test_e10_3_attention_receives_embedded_tokens_not_ids() -> None:
    """There: the keys were made of the ids themselves."""
    model, seen = lively(), []
    with pytest.raises(RuntimeError):
        nn.Linear(BLOCK, 4)(some_ids())  # what that would have been: numbers, not vectors
    for block in model.encoder.blocks:
        block.attention.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    recorder = Recorder(hidden=True)
    model.encode(some_ids(), recorder)
    assert [(each.dtype, tuple(each.shape)) for each in seen] == [(torch.float32, (2, BLOCK, D))] * 3
    for block, entering, received in zip(model.encoder.blocks, recorder.hidden, seen, strict=False):
        torch.testing.assert_close(received, block.norm1(entering))


@pytest.mark.row("004.02")
def test_e10_4_logits_need_no_targets() -> None:
    """There: forward(x, targets) was called with one argument."""
    model, ids = lively(), some_ids()
    assert model(ids).shape == (2, BLOCK, V)
    assert model.loss(ids).shape == model.loss(ids, ids).shape == ()


@pytest.mark.row("004.01")
@pytest.mark.parametrize("b, t", [(1, 1), (1, BLOCK), (5, 2), (3, 7)])
def test_e10_5_batch_and_length_come_from_the_input(b: int, t: int) -> None:
    """There: T was used before it was set."""
    assert lively()(some_ids(b, t)).shape == (b, t, V)


@pytest.mark.row("004.01")
def test_e10_6_the_feed_forward_layers_compile_and_follow_each_other() -> None:
    """There: a missing comma between two layers, so that nothing ran at all."""
    with pytest.raises(SyntaxError):
        compile("layers = [\n    up(width, 4 * width)\n    activate(),\n]", "feed_forward", "exec")
    mlp = lively().encoder.blocks[0].mlp
    assert isinstance(mlp, Mlp)
    x = torch.randn(2, 3, D)
    by_hand = F.gelu(x @ mlp.up.weight.T + mlp.up.bias) @ mlp.down.weight.T + mlp.down.bias
    torch.testing.assert_close(mlp(x), by_hand, atol=1e-5, rtol=1e-5)


@pytest.mark.row("004.03")
def test_e10_7_generate_uses_the_cropped_context_and_the_last_place_of_each_text() -> None:
    """There: the cropped context was made and not used, and the logits were flat, so texts got mixed up."""
    model, ids = lively(), some_ids(4, BLOCK + 3)
    with pytest.raises(InputError, match="block_size"):
        model(ids)  # the whole text does not fit: only a cropped one can have been used
    together = model.generate(ids, 6, temperature=0)
    for row in range(4):
        assert torch.equal(together[row : row + 1], model.generate(ids[row : row + 1], 6, temperature=0))


@pytest.mark.row("004.01")
def test_e10_8_the_feed_forward_layer_is_four_times_as_wide() -> None:
    """There: as wide as the network; the paper's MLP has four times the width."""
    assert TextDecoder(CONFIG).encoder.blocks[0].mlp.up.weight.shape == (4 * D, D)
    own = TextDecoder(replace(CONFIG, mlp_width=40))
    assert own.encoder.blocks[0].mlp.up.weight.shape == (40, D)


# The description, and what is refused


def test_the_config_is_frozen_and_makes_its_blocks() -> None:
    blocks = CONFIG.blocks
    assert (blocks.width, blocks.depth, blocks.heads, blocks.per_head, blocks.mlp_width) == (D, 3, 4, 6, 96)
    assert (blocks.grid, blocks.prefix, blocks.norm_eps) == ((1, BLOCK), 0, 1e-5)
    assert replace(CONFIG, width=32).blocks.per_head == 8  # follows, as nothing else was said
    assert replace(CONFIG, width=30, head_width=5).blocks.per_head == 5
    with pytest.raises(FrozenInstanceError):
        CONFIG.width = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"vocabulary": 0}, "vocabulary: expected a whole number from 1"),
        ({"vocabulary": 2.0}, "vocabulary: .* got 2.0"),
        ({"block_size": -1}, "block_size: .* got -1"),
        ({"width": 0}, "width: .* got 0"),
        ({"width": 25}, "width 25 does not divide into 4 heads"),
        ({"depth": 0}, "depth: .* got 0"),
        ({"heads": 5}, "does not divide into 5 heads"),
        ({"mlp_width": -4}, "mlp_width: .* got -4"),
        ({"mlp_width": None}, "mlp_width: .* got None"),
        ({"activation": "gleu"}, "did you mean 'gelu'"),
        ({"qkv_bias": True}, "qkv_bias True is unknown"),
        ({"head_bias": 1}, "head_bias: expected True or False, got 1"),
        ({"dropout": 1.0}, "dropout: .* got 1.0"),
        ({"attention_dropout": -0.1}, "attention_dropout: .* got -0.1"),
        ({"norm_eps": "small"}, "norm_eps: .* got 'small'"),
    ],
)
def test_a_config_that_makes_no_sense_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        replace(CONFIG, **changes)


@pytest.mark.parametrize(
    "ids, words",
    [
        ([[1, 2]], r"expected a tensor of whole numbers \(B, T\), got \[\[1, 2\]\]"),
        (torch.tensor([[1.0]]), r"expected int64 or int32, got torch.float32: use ids.long\(\)"),
        (torch.tensor([[True]]), "got torch.bool"),
        (torch.tensor([1, 2]), r"got \(2,\): for one text use ids\[None\]"),
        (torch.zeros(1, 2, 3, dtype=torch.long), r"got \(1, 2, 3\)"),
        (torch.zeros(2, 0, dtype=torch.long), r"at least one token each, got \(2, 0\)"),
        (torch.tensor([[0, V]]), "expected numbers from 0 to 10, got 0 to 11"),
        (torch.tensor([[-1, 3]]), "expected numbers from 0 to 10, got -1 to 3"),
    ],
)
def test_wrong_ids_are_refused(ids: Any, words: str) -> None:
    model = lively()
    for use in (model, model.loss, model.encode, lambda wrong: model.generate(wrong, 1)):
        with pytest.raises(InputError, match=words):
            use(ids)


def test_a_text_longer_than_the_block_is_refused() -> None:
    for use in (lively(), lively().encode):
        with pytest.raises(InputError, match=r"at most 8 tokens \(block_size 8\), got 9"):
            use(some_ids(1, 9))
    with pytest.raises(InputError, match=r"at most 9 tokens \(block_size 8\), got 10"):
        lively().loss(some_ids(1, 10))


def test_wrong_targets_are_refused() -> None:
    model = lively()
    with pytest.raises(InputError, match=r"targets: expected the shape of ids \(2, 8\), got \(2, 7\)"):
        model.loss(some_ids(), some_ids()[:, 1:])
    with pytest.raises(InputError, match="targets: expected numbers from 0 to 10, got 0 to 99"):
        model.loss(some_ids(1, 2), torch.tensor([[0, 99]]))
    with pytest.raises(InputError, match="expected at least two tokens a text, got one"):
        model.loss(some_ids(1, 1))


@pytest.mark.parametrize(
    "wrong, words",
    [
        ({"new_tokens": -1}, "new_tokens: .* got -1"),
        ({"new_tokens": 2.0}, "new_tokens: .* got 2.0"),
        ({"new_tokens": None}, "new_tokens: .* got None"),
        ({"temperature": -1}, "temperature: .* got -1"),
        ({"temperature": float("nan")}, "temperature: .* got nan"),
        ({"temperature": float("inf")}, "temperature: .* got inf"),
        ({"temperature": "hot"}, "temperature: .* got 'hot'"),
        ({"top_k": 0}, "top_k: expected a whole number from 1 to .*, got 0"),
        ({"top_k": True}, "top_k: .* got True"),
        ({"seed": "x"}, "seed: .* got 'x'"),
        ({"seed": 1, "generator": torch.Generator()}, "got both"),
    ],
)
def test_wrong_ways_to_generate_are_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        lively().generate(some_ids(1, 2), **{"new_tokens": 1, **wrong})
