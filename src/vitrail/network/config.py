"""ViTConfig: one frozen, validated description for every plain vision transformer.

Everything the network is stands here, in absolute sizes; what makes no sense is refused at construction.
Vary one with `dataclasses.replace`; `to_dict` and `from_dict` carry it through JSON unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from vitrail.checks import (
    check_bools,
    check_choice,
    check_fields,
    check_int,
    check_ints,
    check_number,
    check_pair,
    check_type,
)
from vitrail.errors import ConfigError

ACTIVATIONS: Final = ("gelu", "gelu_tanh", "quick_gelu", "relu", "silu")
MLPS: Final = ("plain", "swiglu")
QKV_BIASES: Final = ("all", "none", "no-key")
NORMS: Final = ("layer", "batch")
FINAL_NORMS: Final = ("tokens", "pooled", "none")
POOLS: Final = ("cls", "mean", "cls+mean", "map", "cls+distillation", "none")
POSITION_KINDS: Final = (
    "none",
    "learned",
    "learned-2d",
    "relative",
    "sincos-1d",
    "sincos-2d",
    "sincos-2d-moco",
)
POSITION_PLACES: Final = ("stem", "every", "shared")
ROTARY_KINDS: Final = ("axial", "mixed", "dinov3")
RESAMPLE_MODES: Final = ("nearest", "bilinear", "bicubic")
STANDARDISATIONS: Final = ("deviation", "variance")
MERGINGS: Final = ("keys", "tokens")
INITIALISATIONS: Final = ("paper", "timm", "hf", "mae", "dinov2")


@dataclass(frozen=True)
class Resample:
    """How a table of positions made for one grid is read on another; families differ (docs/network.md)."""

    mode: str = "bicubic"
    antialias: bool = True
    align_corners: bool = False
    offset: float = 0.0  # DINOv2 without registers scales by (n + 0.1) / M instead of n / M

    def __post_init__(self) -> None:
        check_choice("resample mode", self.mode, RESAMPLE_MODES)
        check_bools(self, "antialias", "align_corners")
        object.__setattr__(self, "offset", check_number("resample offset", self.offset, 0.0, 1.0, below=True))
        if self.antialias and self.align_corners:
            raise ConfigError("resample: antialias and align_corners contradict each other: set one of them")
        if self.mode == "nearest" and (self.antialias or self.align_corners):
            raise ConfigError("resample mode 'nearest' takes neither antialias nor align_corners: set both False")
        if self.offset and self.align_corners:
            raise ConfigError("resample: an offset has no meaning with align_corners: set one of them")


@dataclass(frozen=True)
class Positions:
    """Positions that are added: to the tokens (tables) or to the attention logits (relative)."""

    kind: str = "learned"
    at: str = "stem"  # added once at the stem; at every block with its own table; or one table shared by all
    prefix: bool = True  # whether cls and distillation tokens have slots in the table; registers never do
    resample: Resample = field(default_factory=Resample)

    def __post_init__(self) -> None:
        check_choice("positions kind", self.kind, POSITION_KINDS)
        check_choice("positions at", self.at, POSITION_PLACES)
        check_bools(self, "prefix")
        check_type("positions resample", self.resample, Resample)
        if self.kind in ("none", "relative") and self.at != "stem":
            raise ConfigError(
                f"positions kind {self.kind!r} adds nothing to the tokens, so at={self.at!r} has no meaning: "
                "leave it at 'stem'"
            )
        if self.kind in ("sincos-2d", "sincos-2d-moco", "sincos-1d") and self.at == "every":
            raise ConfigError(f"positions kind {self.kind!r} is fixed, so every block has the same: use at='shared'")


@dataclass(frozen=True)
class Rotary:
    """Rotary positions: queries and keys of patches are turned by angles that follow their place."""

    kind: str = "axial"
    theta: float = 100.0  # rope-vit: axial 100, mixed 10; DINOv3: 100
    shift: float = 0.0  # DINOv3, training only: move all coordinates by up to this much
    jitter: float = 1.0  # DINOv3, training only: stretch each axis by up to this factor
    rescale: float = 1.0  # DINOv3, training only: stretch both axes by up to this factor

    def __post_init__(self) -> None:
        check_choice("rotary kind", self.kind, ROTARY_KINDS)
        ranges = {"theta": (1.0, 1e9), "shift": (0.0, 100.0), "jitter": (1.0, 100.0), "rescale": (1.0, 100.0)}
        for name, (low, high) in ranges.items():
            object.__setattr__(self, name, check_number(f"rotary {name}", getattr(self, name), low, high))
        if self.kind != "dinov3" and (self.shift, self.jitter, self.rescale) != (0.0, 1.0, 1.0):
            raise ConfigError(
                f"rotary shift, jitter and rescale belong to kind 'dinov3', not {self.kind!r}: leave them out"
            )


@dataclass(frozen=True)
class ConvStem:
    """A few 3x3 convolutions of stride 2 before the patches (early convolutions help small data)."""

    widths: tuple[int, ...] = (48, 96, 192, 384)

    def __post_init__(self) -> None:
        object.__setattr__(self, "widths", check_ints("conv stem widths", self.widths))
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

    layers: tuple[int, ...] = (3, 4, 9)
    width_factor: int = 1
    norm_eps: float = 1e-6  # of the group norms
    weight_eps: float = 1e-5  # of the weight standardisation
    standardise: str = "deviation"  # filters by deviation + eps (Google), or by sqrt(variance + eps) (timm, eps 1e-8)

    def __post_init__(self) -> None:
        check_choice("resnet stem standardise", self.standardise, STANDARDISATIONS)
        object.__setattr__(self, "layers", check_ints("resnet stem layers", self.layers))
        object.__setattr__(self, "width_factor", check_int("resnet stem width_factor", self.width_factor, most=16))
        for name in ("norm_eps", "weight_eps"):
            object.__setattr__(self, name, check_number(f"resnet stem {name}", getattr(self, name), 0.0, 1.0))
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
    image_size: tuple[int, int] = (224, 224)  # (H, W) in pixels; one number means square
    patch_size: tuple[int, int] = (16, 16)  # in pixels; where there is a stem, in cells of its output
    channels: int = 3
    width: int = 768  # D
    depth: int = 12  # L
    heads: int = 12  # A, as trained; see kept_heads
    head_width: int = 0  # d, free of the width; 0 means width / heads
    mlp_width: int = 3072  # M
    classes: int = 1000  # K; 0 means no head, the logits are the pooled tokens
    # the way in
    stem: ConvStem | ResNetStem | None = None
    patch_bias: bool = True  # CLIP has none
    patch_norms: bool = False  # a norm on each patch's pixels and one on its token (lucidrains)
    # prefix tokens, in this order: cls, distillation, registers
    cls_token: bool = True
    distillation_token: bool = False
    registers: int = 0
    # positions
    positions: Positions = field(default_factory=Positions)
    rotary: Rotary | None = None
    # block
    activation: str = "gelu"
    mlp: str = "plain"
    qkv_bias: str = "all"
    qk_norm: bool = False
    layer_scale: float | None = None  # what LayerScale starts from; None: no LayerScale
    norm: str = "layer"
    norm_eps: float = 1e-6
    parallel: bool = False  # attention and MLP side by side on one norm (ViT-22B)
    axial: bool = False  # blocks attend along rows, then columns, in turn
    kept_heads: tuple[tuple[int, ...], ...] | None = None  # per block, the original numbers of the heads left
    # ends
    embedding_norm: bool = False  # a norm before the encoder (CLIP)
    final_norm: str = "tokens"  # on the tokens; on the pooled vector (MAE's fine-tuning); or none
    pool: str = "cls"
    representation_width: int = 0  # a layer with tanh before the head (pre-training); 0: none
    head_bias: bool = True
    head_bias_init: float = 0.0
    # regularisation, while training only
    dropout: float = 0.0  # after the positions and after every dense layer but qkv
    attention_dropout: float = 0.0
    drop_path: float = 0.0  # of the last block; rises linearly from 0
    patch_dropout: float = 0.0  # share of patches left out
    # the rest
    initialisation: str = "paper"
    fixed_size: bool = False  # refuse other input sizes instead of resampling positions
    merge_per_block: int = 0  # tokens merged away in each block
    merge_from: int = 0  # the first block that merges; early blocks have not yet told patches apart
    merge_every: int = 1  # 2: every second block from there on; more at once, less often, takes less time
    merge_by: str = "keys"  # whose likeness pairs patches: the keys' (Bolya et al.) or, losing less, the tokens' own

    def __post_init__(self) -> None:
        _normalise(self)
        _validate(self)

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
            raise ConfigError(
                f"image {size[0]}x{size[1]} does not divide into patches of {self.cell[0]}x{self.cell[1]} pixels: "
                f"resize it, for example to {fit}"
            )
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

    @property
    def unmerged(self) -> ViTConfig:
        """The same without token merging."""
        return replace(self, merge_per_block=0, merge_from=0, merge_every=1, merge_by="keys")

    def merges_by_cls(self, block: int) -> bool:
        """Whether a block also merges by how much the cls token attends to each patch: where that gives the answer.

        Not in the first block, where that token is the same for every image and has seen nothing of this one.
        """
        return self.merge_by == "tokens" and self.pooled_tokens > 0 and block > 0

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
        values = check_fields(cls, plain)
        if values.get("stem") is not None:
            values["stem"] = _stem_from(values["stem"])
        if values.get("rotary") is not None:
            values["rotary"] = Rotary(**check_fields(Rotary, values["rotary"]))
        if "positions" in values:
            positions = check_fields(Positions, values["positions"])
            if "resample" in positions:
                positions["resample"] = Resample(**check_fields(Resample, positions["resample"]))
            values["positions"] = Positions(**positions)
        return cls(**values)


def _stem_from(plain: Any) -> ConvStem | ResNetStem:
    """The stem that plain values with a kind describe."""
    check_type("stem", plain, dict)
    kind = check_choice("stem kind", plain.get("kind"), STEMS)
    rest = {name: value for name, value in plain.items() if name != "kind"}
    return ConvStem(**check_fields(ConvStem, rest)) if kind == "conv" else ResNetStem(**check_fields(ResNetStem, rest))


_WHOLE = {  # the least each may be
    **dict.fromkeys(("channels", "width", "depth", "heads", "mlp_width", "merge_every"), 1),
    **dict.fromkeys(("head_width", "classes", "registers", "representation_width", "merge_per_block", "merge_from"), 0),
}
_SHARES = ("dropout", "attention_dropout", "drop_path", "patch_dropout")
_NUMBERS = {"norm_eps": (0.0, 1.0), "layer_scale": (0.0, 1e6), "head_bias_init": (-1e6, 1e6)}


def _normalise(config: ViTConfig) -> None:
    """Plain numbers, pairs from single ones, tuples from JSON's lists."""
    settle = object.__setattr__
    settle(config, "image_size", check_pair("image_size", config.image_size))
    settle(config, "patch_size", check_pair("patch_size", config.patch_size))
    if config.kept_heads is not None:
        if not isinstance(config.kept_heads, tuple | list):
            raise ConfigError(f"kept_heads: expected one list of heads per block, got {config.kept_heads!r}")
        kept = tuple(check_ints("kept_heads", block, least=0) for block in config.kept_heads)
        settle(config, "kept_heads", kept)
    for name, least in _WHOLE.items():
        settle(config, name, check_int(name, getattr(config, name), least))
    for name in _SHARES:
        settle(config, name, check_number(name, getattr(config, name), 0.0, 1.0, below=True))
    for name, (low, high) in _NUMBERS.items():
        if name != "layer_scale" or config.layer_scale is not None:
            settle(config, name, check_number(name, getattr(config, name), low, high))


def _validate(config: ViTConfig) -> None:
    """Every rule in one place: first each value, then what may not stand together."""
    check_int("depth", config.depth, most=1024)
    check_choice("activation", config.activation, ACTIVATIONS)
    check_choice("mlp", config.mlp, MLPS)
    check_choice("qkv_bias", config.qkv_bias, QKV_BIASES)
    check_choice("norm", config.norm, NORMS)
    check_choice("final_norm", config.final_norm, FINAL_NORMS)
    check_choice("pool", config.pool, POOLS)
    check_choice("initialisation", config.initialisation, INITIALISATIONS)
    check_choice("merge_by", config.merge_by, MERGINGS)
    check_bools(config, "patch_bias", "patch_norms", "cls_token", "distillation_token", "qk_norm", "parallel")
    check_bools(config, "axial", "embedding_norm", "head_bias", "fixed_size")
    check_type("positions", config.positions, Positions)
    if config.rotary is not None:
        check_type("rotary", config.rotary, Rotary)
    if config.stem is not None:
        check_type("stem", config.stem, ConvStem, ResNetStem)
    _ = config.grid  # refuses an image that does not divide
    for reason in _contradictions(config):
        raise ConfigError(reason)


def _contradictions(config: ViTConfig) -> Iterator[str]:
    """Why a combination makes no sense, in words that say what to change."""
    kind, at = config.positions.kind, config.positions.at
    if config.head_width == 0 and config.width % config.heads != 0:
        yield (
            f"width {config.width} does not divide into {config.heads} heads "
            f"({config.width / config.heads:.2f} each): change one of them, or set head_width"
        )
    if config.head_bias_init != 0 and not (config.head_bias and config.classes):
        yield (
            f"head_bias_init={config.head_bias_init} has no bias to fill with head_bias={config.head_bias} and "
            f"{config.classes} classes: leave it out"
        )
    if config.merge_from > 0 and not config.merge_per_block:
        yield f"merge_from={config.merge_from} says where merging starts, and with merge_per_block=0 there is none"
    if config.merge_every > 1 and not config.merge_per_block:
        yield f"merge_every={config.merge_every} says which blocks merge, and with merge_per_block=0 none do: drop it"
    if config.merge_by != "keys" and not config.merge_per_block:
        yield f"merge_by={config.merge_by!r} says which patches merge, and with merge_per_block=0 none do: leave it out"
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
        most = config.heads
        if len(config.kept_heads) != config.depth:
            yield f"kept_heads: expected one list for each of {config.depth} blocks, got {len(config.kept_heads)}"
        for block, kept in enumerate(config.kept_heads):
            if not kept or list(kept) != sorted(set(kept)) or kept[-1] >= most:
                yield f"kept_heads of block {block}: expected rising numbers below {most}, at least one, got {kept}"
