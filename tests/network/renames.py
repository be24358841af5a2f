"""Other libraries' weights under our names, and back: tables for the tests of equal numbers.

A row is (ours, theirs). `{i}` stands for the number of a block; a row names a parameter, or a layer whose weight
and bias go together; several of theirs are laid end to end in one of ours. Rows that a network does not have are
passed over, but in the end every tensor on both sides must have been named.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

Table = Sequence[tuple[str, str | tuple[str, ...]]]

TIMM: Table = (
    ("patches.projection", "patch_embed.proj"),
    ("tokens.cls", "cls_token"),
    ("tokens.distillation", "dist_token"),
    ("tokens.registers", "reg_token"),
    ("tokens.tables.0.table", "pos_embed"),
    ("embedding_norm", "norm_pre"),
    ("encoder.blocks.{i}.norm1", "blocks.{i}.norm1"),
    ("encoder.blocks.{i}.norm2", "blocks.{i}.norm2"),
    ("encoder.blocks.{i}.attention.qkv", "blocks.{i}.attn.qkv"),
    ("encoder.blocks.{i}.attention.query_norm", "blocks.{i}.attn.q_norm"),
    ("encoder.blocks.{i}.attention.key_norm", "blocks.{i}.attn.k_norm"),
    ("encoder.blocks.{i}.attention.out", "blocks.{i}.attn.proj"),
    ("encoder.blocks.{i}.mlp.up", "blocks.{i}.mlp.fc1"),
    ("encoder.blocks.{i}.mlp.down", "blocks.{i}.mlp.fc2"),
    ("encoder.blocks.{i}.scale1.gamma", "blocks.{i}.ls1.gamma"),
    ("encoder.blocks.{i}.scale2.gamma", "blocks.{i}.ls2.gamma"),
    ("norm", "norm"),
    ("norm", "fc_norm"),
    ("pool.probe", "attn_pool.latent"),
    ("pool.attention.qkv", ("attn_pool.q", "attn_pool.kv")),
    ("pool.attention.out", "attn_pool.proj"),
    ("pool.norm", "attn_pool.norm"),
    ("pool.mlp.up", "attn_pool.mlp.fc1"),
    ("pool.mlp.down", "attn_pool.mlp.fc2"),
    ("head.classify", "head"),
    ("head.distil", "head_dist"),
)

TIMM_EVA: Table = (
    *TIMM,
    ("encoder.blocks.{i}.attention.query_bias", "blocks.{i}.attn.q_bias"),
    ("encoder.blocks.{i}.attention.value_bias", "blocks.{i}.attn.v_bias"),
    ("encoder.blocks.{i}.mlp.up", ("blocks.{i}.mlp.fc1_g", "blocks.{i}.mlp.fc1_x")),
    ("encoder.blocks.{i}.scale1.gamma", "blocks.{i}.gamma_1"),
    ("encoder.blocks.{i}.scale2.gamma", "blocks.{i}.gamma_2"),
    ("tokens.rotary.mixed.{i}", "rope.freqs.{i}"),  # see freqs_apart
)

TIMM_PARALLEL: Table = (
    *TIMM,
    ("encoder.blocks.{i}.norm1", "blocks.{i}.in_norm"),
    ("encoder.blocks.{i}.attention.out", "blocks.{i}.attn_out_proj"),
    ("encoder.blocks.{i}.attention.query_norm", "blocks.{i}.q_norm"),
    ("encoder.blocks.{i}.attention.key_norm", "blocks.{i}.k_norm"),
    ("encoder.blocks.{i}.mlp.down", "blocks.{i}.mlp_out_proj"),
)


def timm_resnet(stem: str, stages: str) -> Table:
    """The rows of a ResNetV2, whose stages and units have the numbers of `layers`."""
    unit, theirs = "stem.stages.{i}.{j}.", stages + ".{i}.blocks.{j}."
    inside = [(unit + each, theirs + each) for each in ("conv1", "norm1", "conv2", "norm2", "conv3", "norm3")]
    return (
        ("stem.root", f"{stem}.conv"),
        ("stem.root_norm", f"{stem}.norm"),
        *inside,
        (unit + "shortcut", theirs + "downsample.conv"),
        (unit + "shortcut_norm", theirs + "downsample.norm"),
    )


def _hf(block: str, attention: str, out: str) -> Table:
    """The rows of a transformers block that are the same but for the prefix."""
    ours = "encoder.blocks.{i}."
    return (
        (ours + "attention.qkv", tuple(f"{block}.{attention}.{each}_proj" for each in "qkv")),
        (ours + "attention.query_bias", f"{block}.{attention}.q_proj.bias"),
        (ours + "attention.value_bias", f"{block}.{attention}.v_proj.bias"),
        (ours + "attention.out", f"{block}.{attention}.{out}"),
        (ours + "mlp.up", f"{block}.mlp.fc1"),
        (ours + "mlp.down", f"{block}.mlp.fc2"),
        (ours + "mlp.up", f"{block}.mlp.up_proj"),
        (ours + "mlp.up", (f"{block}.mlp.gate_proj", f"{block}.mlp.up_proj")),
        (ours + "mlp.down", f"{block}.mlp.down_proj"),
        (ours + "norm1", f"{block}.norm1"),
        (ours + "norm2", f"{block}.norm2"),
        (ours + "norm1", f"{block}.layernorm_before"),
        (ours + "norm2", f"{block}.layernorm_after"),
        (ours + "norm1", f"{block}.layer_norm1"),
        (ours + "norm2", f"{block}.layer_norm2"),
        (ours + "scale1.gamma", f"{block}.layer_scale1.lambda1"),
        (ours + "scale2.gamma", f"{block}.layer_scale2.lambda1"),
    )


HF: Table = (
    ("patches.projection", "embeddings.patch_embeddings.projection"),
    ("patches.projection", "embeddings.patch_embeddings"),
    ("patches.projection", "embeddings.patch_embedding"),
    ("tokens.cls", "embeddings.cls_token"),
    ("tokens.cls", "embeddings.class_embedding"),
    ("tokens.distillation", "embeddings.distillation_token"),
    ("tokens.registers", "embeddings.register_tokens"),
    ("tokens.tables.0.table", "embeddings.position_embeddings"),
    ("tokens.tables.0.table", "embeddings.position_embedding.weight"),
    ("embedding_norm", "pre_layrnorm"),
    *_hf("layers.{i}", "attention", "o_proj"),  # ViT, DeiT, MAE
    *_hf("encoder.layer.{i}", "attention", "o_proj"),  # DINOv2
    *_hf("model.layer.{i}", "attention", "o_proj"),  # DINOv3
    *_hf("encoder.layers.{i}", "self_attn", "out_proj"),  # CLIP, SigLIP
    ("norm", "layernorm"),
    ("norm", "norm"),
    ("norm", "post_layernorm"),
    ("pool.probe", "head.probe"),
    ("pool.attention.qkv.weight", "head.attention.in_proj_weight"),
    ("pool.attention.qkv.bias", "head.attention.in_proj_bias"),
    ("pool.attention.out", "head.attention.out_proj"),
    ("pool.norm", "head.layernorm"),
    ("pool.mlp.up", "head.mlp.fc1"),
    ("pool.mlp.down", "head.mlp.fc2"),
    ("head.representation", "pooler.dense"),
    ("head.classify", "classifier"),
    ("head.classify", "cls_classifier"),
    ("head.distil", "distillation_classifier"),
    ("head.classify", "visual_projection"),
)

TORCHVISION: Table = (
    ("patches.projection", "conv_proj"),
    ("tokens.cls", "class_token"),
    ("tokens.tables.0.table", "encoder.pos_embedding"),
    ("encoder.blocks.{i}.norm1", "encoder.layers.encoder_layer_{i}.ln_1"),
    ("encoder.blocks.{i}.norm2", "encoder.layers.encoder_layer_{i}.ln_2"),
    (
        "encoder.blocks.{i}.attention.qkv.weight",
        "encoder.layers.encoder_layer_{i}.self_attention.in_proj_weight",
    ),
    ("encoder.blocks.{i}.attention.qkv.bias", "encoder.layers.encoder_layer_{i}.self_attention.in_proj_bias"),
    ("encoder.blocks.{i}.attention.out", "encoder.layers.encoder_layer_{i}.self_attention.out_proj"),
    ("encoder.blocks.{i}.mlp.up", "encoder.layers.encoder_layer_{i}.mlp.0"),
    ("encoder.blocks.{i}.mlp.down", "encoder.layers.encoder_layer_{i}.mlp.3"),
    ("norm", "encoder.ln"),
    ("head.representation", "heads.pre_logits"),
    ("head.classify", "heads.head"),
)


# ---- the way over, and back --------------------------------------------------------------------------------------


def pairs(table: Table, ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> dict[str, tuple[str, ...]]:
    """Which of theirs make each of ours; both sides must come out even."""
    found: dict[str, tuple[str, ...]] = {}
    for name in ours:
        for other in _candidates(name, table):
            there = all(each in theirs for each in other)
            if there and ours[name].numel() == sum(theirs[each].numel() for each in other):
                found[name] = other
                break
    used = {each for other in found.values() for each in other}
    assert set(found) == set(ours), f"ours without a source: {sorted(set(ours) - set(found))}"
    assert used == set(theirs), f"theirs not used: {sorted(set(theirs) - used)}"
    return found


def to_ours(table: Table, model: nn.Module, theirs: dict[str, Tensor]) -> None:
    """Fill our model from their tensors."""
    ours = model.state_dict()
    for name, names in pairs(table, ours, theirs).items():
        ours[name] = torch.cat([theirs[each] for each in names]).reshape(ours[name].shape)
    model.load_state_dict(ours)


def to_theirs(table: Table, model: nn.Module, theirs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Their tensors, in their shapes, from our model."""
    ours = model.state_dict()
    given: dict[str, Tensor] = {}
    for name, names in pairs(table, ours, theirs).items():
        if len(names) == 1:
            given[names[0]] = ours[name].reshape(theirs[names[0]].shape).clone()
        else:
            parts = ours[name].split([len(theirs[each]) for each in names])
            given.update((each, part.clone()) for each, part in zip(names, parts, strict=True))
    return given


def _candidates(name: str, table: Table) -> Iterator[tuple[str, ...]]:
    """What the rows that fit one of our names say theirs would be."""
    for ours, theirs in table:
        for leaf in ("", ".weight", ".bias"):
            pattern = re.escape(ours + leaf).replace(r"\{i\}", r"(?P<i>\d+)").replace(r"\{j\}", r"(?P<j>\d+)")
            match = re.fullmatch(pattern, name)
            if match:
                names = (theirs,) if isinstance(theirs, str) else theirs
                yield tuple((each + leaf).format(**match.groupdict()) for each in names)


def freqs_apart(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """timm keeps mixed frequencies as (x and y, depth, heads, d/2); ours are (heads, y and x, d/2) a block."""
    state = dict(state)
    freqs = state.pop("rope.freqs").flip(0)
    return state | {f"rope.freqs.{i}": freqs[:, i].transpose(0, 1) for i in range(freqs.shape[1])}


def parallel_apart(state: dict[str, Tensor], mlp_width: int) -> dict[str, Tensor]:
    """timm's parallel block has the MLP's first layer and qkv in one; apart they have the names of other blocks."""
    apart: dict[str, Tensor] = {}
    for name, value in state.items():
        if ".in_proj." in name:
            apart[name.replace("in_proj", "mlp.fc1")] = value[:mlp_width]
            apart[name.replace("in_proj", "attn.qkv")] = value[mlp_width:]
        else:
            apart[name] = value
    return apart


def freqs_together(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The inverse of freqs_apart."""
    names = sorted((name for name in state if name.startswith("rope.freqs.")), key=lambda name: int(name[11:]))
    freqs = torch.stack([state[name] for name in names]).permute(2, 0, 1, 3).flip(0)
    return {name: value for name, value in state.items() if name not in names} | {"rope.freqs": freqs}


# ---- weights that hide nothing, and the measure ------------------------------------------------------------------


@torch.no_grad()
def randomise(model: nn.Module, keep: Sequence[str] = ()) -> None:
    """Fill every parameter with random values, norms, tokens, positions and scales too: no zeros, no ones."""
    for name, parameter in model.named_parameters():
        if name in keep:
            continue
        leaf = name.rsplit(".", 1)[-1]
        if parameter.ndim == 1 and leaf != "class_embedding":
            centre = 1.0 if leaf in ("weight", "gamma", "lambda1", "gamma_1", "gamma_2") else 0.0
            parameter.copy_(centre + 0.3 * torch.randn_like(parameter))
        elif leaf in ("weight", "in_proj_weight") and "position" not in name:
            parameter.copy_(torch.randn_like(parameter) * 1.5 / parameter[0].numel() ** 0.5)
        else:  # tokens, positions, probes, frequencies
            parameter.copy_(0.7 * torch.randn_like(parameter))


def gap(ours: Tensor, theirs: Tensor) -> float:
    """The largest difference, as a share of the largest absolute value."""
    assert ours.shape == theirs.shape, f"{tuple(ours.shape)} is not {tuple(theirs.shape)}"
    ours, theirs = ours.detach(), theirs.detach()
    return float((ours - theirs).abs().max() / theirs.abs().max())
