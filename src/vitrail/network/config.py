"""ViTConfig: one frozen, validated description for every plain vision transformer.

Everything the network is stands here, in absolute sizes; what makes no sense is refused at construction.
Vary one with `dataclasses.replace`; `to_dict` and `from_dict` carry it through JSON unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Annotated, Any, Final, cast

from vitrail.checks import check_choice, check_fields, check_int, check_ints, check_type
from vitrail.errors import ConfigError
from vitrail.settings import Count, Counts, Eps, Factor, Flag, Number, Pair, Share, between, one_of, settle

ACTIVATIONS: Final = ("gelu", "gelu_tanh", "quick_gelu", "relu", "silu")
QKV_BIASES: Final = ("all", "none", "no-key")
NORMS: Final = ("layer", "batch")
FINAL_NORMS: Final = ("tokens", "pooled", "none")
SINCOS_KINDS: Final = ("sincos-1d", "sincos-2d", "sincos-2d-moco")  # fixed tables; the others are learned
POSITION_KINDS: Final = ("none", "learned", "learned-2d", "relative", *SINCOS_KINDS)
ROTARY_KINDS: Final = ("axial", "mixed", "dinov3")
INITIALISATIONS: Final = ("paper", "timm", "hf", "mae", "dinov2")


def check_head_lists(name: str, value: Any) -> tuple[tuple[int, ...], ...]:
    if not isinstance(value, tuple | list):
        raise ConfigError(f"{name}: expected one list of heads per block, got {value!r}")
    return tuple(check_ints(name, heads, least=0) for heads in value)


@dataclass(frozen=True)
class Resample:
    """How a table of positions made for one grid is read on another; families differ (docs/network.md)."""

    mode: Annotated[str, one_of("nearest", "bilinear", "bicubic")] = "bicubic"
    antialias: Flag = True
    align_corners: Flag = False
    offset: Share = 0.0  # DINOv2 without registers scales by (n + 0.1) / M instead of n / M

    def __post_init__(self) -> None:
        settle(self, "resample ")
        if self.antialias and self.align_corners:
            raise ConfigError("resample: antialias and align_corners contradict each other: set one of them")
        if self.mode == "nearest" and (self.antialias or self.align_corners):
            raise ConfigError("resample mode 'nearest' takes neither antialias nor align_corners: set both False")
        if self.offset and self.align_corners:
            raise ConfigError("resample: an offset has no meaning with align_corners: set one of them")


@dataclass(frozen=True)
class Positions:
    """Positions that are added: to the tokens (tables) or to the attention logits (relative)."""

    kind: Annotated[str, one_of(*POSITION_KINDS)] = "learned"
    at: Annotated[str, one_of("stem", "every", "shared")] = "stem"  # once; a table for every block; one for all
    prefix: Flag = True  # whether cls and distillation tokens have slots in the table; registers never do
    resample: Resample = field(default_factory=Resample)

    def __post_init__(self) -> None:
        settle(self, "positions ")
        if self.kind in ("none", "relative") and self.at != "stem":
            none = f"positions kind {self.kind!r} adds nothing to the tokens"
            raise ConfigError(f"{none}, so at={self.at!r} has no meaning: leave it at 'stem'")
        if self.kind in SINCOS_KINDS and self.at == "every":
            raise ConfigError(f"positions kind {self.kind!r} is fixed, so every block has the same: use at='shared'")


@dataclass(frozen=True)
class Rotary:
    """Rotary positions: queries and keys of patches are turned by angles that follow their place."""

    kind: Annotated[str, one_of(*ROTARY_KINDS)] = "axial"
    theta: Annotated[float, between(1.0, 1e9)] = 100.0  # rope-vit: axial 100, mixed 10; DINOv3: 100
    shift: Annotated[float, between(0.0, 100.0)] = 0.0  # DINOv3, training only: move all coordinates by up to this
    jitter: Factor = 1.0  # DINOv3, training only: stretch each axis by up to this factor
    rescale: Factor = 1.0  # DINOv3, training only: stretch both axes by up to this factor

    def __post_init__(self) -> None:
        settle(self, "rotary ")
        if self.kind != "dinov3" and (self.shift, self.jitter, self.rescale) != (0.0, 1.0, 1.0):
            raise ConfigError(f"shift, jitter and rescale belong to kind 'dinov3', not {self.kind!r}: leave them out")


@dataclass(frozen=True)
class ConvStem:
    """A few 3x3 convolutions of stride 2 before the patches (early convolutions help small data)."""

    widths: Counts = (48, 96, 192, 384)

    def __post_init__(self) -> None:
        settle(self, "conv stem ")
        if not 1 <= len(self.widths) <= 8:
            raise ConfigError(f"conv stem: expected 1 to 8 convolutions, got {len(self.widths)}")

    @property
    def reduction(self) -> int:
        return int(2 ** len(self.widths))

    @property
    def channels(self) -> int:
        return self.widths[-1]


@dataclass(frozen=True)
class ResNetStem:
    """The ResNetV2 of the hybrids: bottlenecks per stage; no stage leaves the 7x7 convolution and the pool."""

    layers: Counts = (3, 4, 9)
    width_factor: Annotated[int, partial(check_int, most=16)] = 1
    norm_eps: Eps = 1e-6  # of the group norms
    weight_eps: Eps = 1e-5  # of the weight standardisation
    standardise: Annotated[str, one_of("deviation", "variance")] = "deviation"  # + eps (Google); root of + eps (timm)

    def __post_init__(self) -> None:
        settle(self, "resnet stem ")
        if len(self.layers) > 4:
            raise ConfigError(f"resnet stem: expected at most 4 stages, got {len(self.layers)}")

    @property
    def reduction(self) -> int:
        return int(4 * 2 ** max(len(self.layers) - 1, 0))

    @property
    def channels(self) -> int:
        base = 64 * self.width_factor
        return int(base * 4 * 2 ** (len(self.layers) - 1)) if self.layers else base


STEMS: Final = {"conv": ConvStem, "resnet": ResNetStem}


@dataclass(frozen=True, kw_only=True)
class ViTConfig:
    """A whole vision transformer; the defaults are ViT-B/16 of the paper at 224 pixels."""

    # sizes
    image_size: Pair = (224, 224)  # (H, W) in pixels; one number means square
    patch_size: Pair = (16, 16)  # in pixels; where there is a stem, in cells of its output
    channels: Count = 3
    width: Count = 768  # D
    depth: Annotated[int, partial(check_int, most=1024)] = 12  # L
    heads: Count = 12  # A, as trained; see kept_heads
    head_width: Number = 0  # d, free of the width; 0 means width / heads
    mlp_width: Count = 3072  # M
    classes: Number = 1000  # K; 0 means no head, the logits are the pooled tokens
    # the way in
    stem: ConvStem | ResNetStem | None = None
    patch_bias: Flag = True  # CLIP has none
    patch_norms: Flag = False  # a norm on each patch's pixels and one on its token (lucidrains)
    # prefix tokens, in this order: cls, distillation, registers
    cls_token: Flag = True
    distillation_token: Flag = False
    registers: Number = 0
    # positions
    positions: Positions = field(default_factory=Positions)
    rotary: Rotary | None = None
    # block
    activation: Annotated[str, one_of(*ACTIVATIONS)] = "gelu"
    mlp: Annotated[str, one_of("plain", "swiglu")] = "plain"
    qkv_bias: Annotated[str, one_of(*QKV_BIASES)] = "all"
    qk_norm: Flag = False
    layer_scale: Annotated[float, between(0.0, 1e6)] | None = None  # what LayerScale starts from; None: no LayerScale
    norm: Annotated[str, one_of(*NORMS)] = "layer"
    norm_eps: Eps = 1e-6
    parallel: Flag = False  # attention and MLP side by side on one norm (ViT-22B)
    axial: Flag = False  # blocks attend along rows, then columns, in turn
    kept_heads: Annotated[tuple[tuple[int, ...], ...], check_head_lists] | None = None  # per block, those left
    # ends
    embedding_norm: Flag = False  # a norm before the encoder (CLIP)
    final_norm: Annotated[str, one_of(*FINAL_NORMS)] = "tokens"  # or on the pooled vector (MAE's fine-tuning)
    pool: Annotated[str, one_of("cls", "mean", "cls+mean", "map", "cls+distillation", "none")] = "cls"
    representation_width: Number = 0  # a layer with tanh before the head (pre-training); 0: none
    head_bias: Flag = True
    head_bias_init: Annotated[float, between(-1e6, 1e6)] = 0.0
    # regularisation, while training only
    dropout: Share = 0.0  # after the positions and after every dense layer but qkv
    attention_dropout: Share = 0.0
    drop_path: Share = 0.0  # of the last block; rises linearly from 0
    patch_dropout: Share = 0.0  # share of patches left out
    # the rest
    initialisation: Annotated[str, one_of(*INITIALISATIONS)] = "paper"
    fixed_size: Flag = False  # refuse other input sizes instead of resampling positions
    merge_per_block: Number = 0  # tokens merged away in each block
    merge_from: Number = 0  # the first block that merges; early blocks have not yet told patches apart
    merge_every: Count = 1  # 2: every second block from there on; more at once, less often, takes less time
    merge_by: Annotated[str, one_of("keys", "tokens")] = "keys"  # whose likeness pairs patches (ToMe: the keys')

    def __post_init__(self) -> None:
        settle(self)
        _ = self.grid  # refuses an image that does not divide
        for reason in _contradictions(self):
            raise ConfigError(reason)

    @property
    def per_head(self) -> int:
        """d: the head width in force."""
        return self.head_width or self.width // self.heads

    @property
    def cell(self) -> tuple[int, int]:
        """Pixels of the image that one patch token stands for (h, w)."""
        reduction = self.stem.reduction if self.stem else 1
        return self.patch_size[0] * reduction, self.patch_size[1] * reduction

    @property
    def grid(self) -> tuple[int, int]:
        """Patches per column and row at the native size."""
        return self.grid_for(self.image_size)

    def grid_for(self, size: tuple[int, int]) -> tuple[int, int]:
        """Patches per column and row of an image of (H, W) pixels, or an error that says what would fit."""
        if size[0] < 1 or size[1] < 1 or size[0] % self.cell[0] or size[1] % self.cell[1]:
            fit = " x ".join(str(max(c, round(s / c) * c)) for s, c in zip(size, self.cell, strict=True))
            wrong = f"image {size[0]}x{size[1]} does not divide into patches of {self.cell[0]}x{self.cell[1]} pixels"
            raise ConfigError(f"{wrong}: resize it, for example to {fit}")
        return size[0] // self.cell[0], size[1] // self.cell[1]

    @property
    def prefix(self) -> int:
        """R: the number of prefix tokens."""
        return int(self.cls_token) + int(self.distillation_token) + self.registers

    @property
    def pooled_tokens(self) -> int:
        """How many prefix tokens the pool reads where it reads no patches; 0 where it does."""
        return {"cls": 1, "cls+distillation": 2}.get(self.pool, 0)

    @property
    def slots(self) -> int:
        """How many prefix tokens have a slot in the table of positions."""
        return int(self.cls_token) + int(self.distillation_token) if self.positions.prefix else 0

    @property
    def pooled_width(self) -> int:
        """Values that the pool hands on: the width, or twice that where two vectors stand side by side."""
        return 2 * self.width if self.pool == "cls+mean" else self.width

    @property
    def tokens(self) -> int:
        """T at the native size: prefix tokens and patches."""
        return self.prefix + self.grid[0] * self.grid[1]

    def heads_of(self, block: int) -> tuple[int, ...]:
        """The original numbers of the heads left in a block."""
        return self.kept_heads[block] if self.kept_heads else tuple(range(self.heads))

    def merged_in(self, block: int) -> int:
        """How many tokens a block merges away, where it has twice as many patches."""
        merges = block >= self.merge_from and (block - self.merge_from) % self.merge_every == 0
        return self.merge_per_block if merges else 0

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; `from_dict` gives the same config back."""
        plain = asdict(self)
        if self.stem:
            kind = next(name for name, stem in STEMS.items() if isinstance(self.stem, stem))
            plain["stem"] = {"kind": kind, **plain["stem"]}
        return plain

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> ViTConfig:
        """A config from plain values; an unknown name or a wrong kind of value is refused."""
        return cast(ViTConfig, _from_plain(cls, plain))


def _from_plain(kind: type, plain: Any) -> Any:
    """One of the dataclasses above from plain values, and those inside it."""
    values = check_fields(kind, plain)
    for name, inner in {"positions": Positions, "resample": Resample, "rotary": Rotary}.items():
        if name in values and (values[name] is not None or inner is not Rotary):
            values[name] = _from_plain(inner, values[name])
    if values.get("stem") is not None:
        check_type("stem", values["stem"], dict)
        stem = STEMS[check_choice("stem kind", values["stem"].get("kind"), STEMS)]
        values["stem"] = _from_plain(stem, {name: value for name, value in values["stem"].items() if name != "kind"})
    return kind(**values)


def _contradictions(config: ViTConfig) -> Iterator[str]:
    """Why a combination makes no sense, in words that say what to change."""
    kind, at = config.positions.kind, config.positions.at
    width, heads, start = config.width, config.heads, config.head_bias_init
    if config.head_width == 0 and width % heads != 0:
        each = f"width {width} does not divide into {heads} heads ({width / heads:.2f} each)"
        yield f"{each}: change one of them, or set head_width"
    if start != 0 and not (config.head_bias and config.classes):
        ends = f"head_bias={config.head_bias} and {config.classes} classes"
        yield f"head_bias_init={start} has no bias to fill with {ends}: leave it out"
    says = (("from", "where merging starts"), ("every", "which blocks merge"), ("by", "which patches merge"))
    for name, what in ((f"merge_{which}", what) for which, what in says):
        if not config.merge_per_block and getattr(config, name) != getattr(ViTConfig, name):
            yield f"{name}={getattr(config, name)!r} says {what}, and with merge_per_block=0 none do: leave it out"
    if config.merge_from >= config.depth:
        yield f"merge_from={config.merge_from}: expected a block before {config.depth}, the depth; blocks count from 0"
    if config.pool == "none" and config.merge_per_block > 0:
        yield "pool 'none' speaks for every token, and token merging leaves fewer: choose another pool, or merge none"
    if config.pool in ("cls", "cls+mean") and not config.cls_token:
        yield f"pool {config.pool!r} needs cls_token=True, or choose pool 'mean'"
    if config.pool == "cls+distillation" and not (config.cls_token and config.distillation_token):
        yield "pool 'cls+distillation' needs both cls_token=True and distillation_token=True"
    if config.distillation_token and config.pool in ("cls", "cls+mean"):
        yield f"a distillation token is read by pool 'cls+distillation' (got {config.pool!r}): set that, or drop it"
    if config.pool == "none" and config.final_norm == "pooled":
        yield "final_norm 'pooled' needs a pool, and pool is 'none': use final_norm 'tokens'"
    if config.pool == "cls+mean" and config.final_norm == "pooled":
        yield "final_norm 'pooled' is for one vector, and 'cls+mean' lays two side by side: use final_norm 'tokens'"
    if config.representation_width > 0 and config.pool == "cls+distillation":
        yield "a representation layer stands before one head, 'cls+distillation' has two: set representation_width=0"
    if config.mlp == "swiglu" and config.activation != "silu":
        yield f"mlp 'swiglu' is gated by silu, got activation {config.activation!r}: set activation='silu'"
    if config.patch_norms and config.stem is not None:
        yield "patch_norms normalise the pixels of a patch, and a stem leaves none: use one of them"
    if kind in ("sincos-2d", "sincos-2d-moco") and config.width % 4 != 0:
        yield f"positions {kind!r} split the width in four, got width {config.width}: use a multiple of 4"
    if kind in ("sincos-1d", "learned-2d") and config.width % 2 != 0:
        yield f"positions {kind!r} split the width in two, got width {config.width}: use an even width"
    if kind == "sincos-2d-moco" and config.width == 4:
        yield "positions 'sincos-2d-moco' need a width of at least 8, got 4"
    if config.rotary is not None and config.per_head % 4 != 0:
        yield f"rotary positions split the head width in four, got {config.per_head}: use a multiple of 4"
    moving = "token merging" if config.merge_per_block else "patch dropout" if config.patch_dropout else ""
    if moving and (config.axial or kind == "relative" or at != "stem"):
        yield (
            f"{moving} takes patches out of their grid, which axial attention, relative positions and positions "
            "added at blocks need: leave one of them out"
        )
    if config.axial and kind == "relative":
        yield "axial attention sees one line at a time, relative positions the whole grid: leave one of them out"
    if config.kept_heads is not None:
        if len(config.kept_heads) != config.depth:
            yield f"kept_heads: expected one list for each of {config.depth} blocks, got {len(config.kept_heads)}"
        for block, kept in enumerate(config.kept_heads):
            if not kept or list(kept) != sorted(set(kept)) or kept[-1] >= heads:
                yield f"kept_heads of block {block}: expected rising numbers below {heads}, at least one, got {kept}"
