"""ids (B, T) -> logits (B, T, V): the blocks of the vision transformer, causal; and text that goes on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.checks import check_int, check_number, check_type
from vitrail.errors import InputError
from vitrail.network.attention import causal_kernel
from vitrail.network.config import ACTIVATIONS, QKV_BIASES, Positions, ViTConfig
from vitrail.network.encoder import Block, BlockOutput, Encoder, Observer, build_norm
from vitrail.network.initialisation import initialise
from vitrail.network.surgery import eval_mode
from vitrail.network.tokens import TokenLayout
from vitrail.settings import Count, Eps, Flag, Number, Share, one_of, settle

# A text is an image one row high, its tokens the patches; the decoder adds its own positions.
ONE_ROW = ViTConfig(image_size=(1, 1), patch_size=(1, 1), cls_token=False, positions=Positions("none"), pool="none")
OF_BLOCKS = ("width", "depth", "heads", "head_width", "activation", "qkv_bias", "norm_eps", "dropout")  # as a ViT's


@dataclass(frozen=True, kw_only=True)
class TextConfig:
    """A whole decoder-only text model; `blocks` says what its blocks are."""

    vocabulary: Count  # V: ids run from 0 to V - 1
    block_size: Count = 256  # the longest context, in tokens
    width: Count = 384  # D
    depth: Count = 6  # L
    heads: Count = 6  # A
    head_width: Number = 0  # d; 0 means width / heads
    mlp_width: Number = 0  # M; 0 means 4 * width
    activation: Annotated[str, one_of(*ACTIVATIONS)] = "gelu"
    qkv_bias: Annotated[str, one_of(*QKV_BIASES)] = "all"
    norm_eps: Eps = 1e-5
    head_bias: Flag = False
    dropout: Share = 0.0  # after the positions and after every dense layer but qkv
    attention_dropout: Share = 0.0

    def __post_init__(self) -> None:
        settle(self)
        _ = self.blocks  # refuses what may not stand together

    @property
    def blocks(self) -> ViTConfig:
        """The description of the blocks."""
        own = {name: getattr(self, name) for name in (*OF_BLOCKS, "attention_dropout")}
        own |= {"image_size": (1, self.block_size), "mlp_width": self.mlp_width or 4 * self.width}
        return replace(ONE_ROW, **own, classes=0, initialisation="timm")


class TextDecoder(nn.Module):
    """A text model that sees only what came before; `model(ids)` gives logits, always."""

    starts: ClassVar = {"tokens": "text", "positions": "text", "head": "text"}

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        check_type("config", config, TextConfig)
        self.config = config
        blocks = config.blocks
        self.tokens = nn.Embedding(config.vocabulary, config.width)  # (V, D)
        self.positions = nn.Embedding(config.block_size, config.width)  # (longest T, D)
        self.encoder = Encoder(blocks)
        self.norm = build_norm(blocks)
        self.head = nn.Linear(config.width, config.vocabulary, bias=config.head_bias)  # D -> V
        initialise(self, blocks)
        for block in self.encoder.blocks:  # no token sees what comes after it
            cast(Block, block).attention.kernel = causal_kernel

    def forward(self, ids: Tensor) -> Tensor:
        """Logits (B, T, V): at each place, for the token that comes next."""
        return cast(Tensor, self.head(self.norm(self.encode(ids))))

    def encode(self, ids: Tensor, observer: Observer | None = None) -> Tensor:
        """Tokens after the last block (B, T, D); a kernel that an observer brings must be causal itself."""
        self._check(ids, self.config.block_size)
        t = ids.shape[1]
        x = self.tokens(ids) + self.positions.weight[:t]  # (B, T, D)
        x = F.dropout(x, self.config.dropout, self.training)
        return cast(BlockOutput, self.encoder(x, TokenLayout((1, t), 0), observer=observer)).tokens

    def loss(self, ids: Tensor, targets: Tensor | None = None) -> Tensor:
        """Mean cross-entropy over all places; without targets, each token of `ids` foretells the next."""
        if targets is None:
            self._check(ids, self.config.block_size + 1)
            if ids.shape[1] < 2:
                raise InputError("loss without targets: expected at least two tokens a text, got one")
            ids, targets = ids[:, :-1], ids[:, 1:]
        else:
            self._check(targets, self.config.block_size, "targets")
        logits = self(ids)
        if targets.shape != ids.shape:
            raise InputError(f"targets: expected the shape of ids {tuple(ids.shape)}, got {tuple(targets.shape)}")
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten().long())

    @torch.no_grad()
    def generate(
        self,
        ids: Tensor,
        new_tokens: int,
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
        seed: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """`ids` with `new_tokens` more, drawn one by one: (B, T + new_tokens).

        The context is the last `block_size` tokens, so the text may grow without end. Temperature 0 takes the
        likeliest token; `top_k` draws among that many. The same seed gives the same text, whatever the mode.
        """
        self._check(ids, None)
        check_int("new_tokens", new_tokens, 0, error=InputError)
        check_number("temperature", temperature, 0.0, 1e9, error=InputError)
        if top_k is not None:
            check_int("top_k", top_k, error=InputError)
        if seed is not None:
            check_int("seed", seed, 0, 2**63 - 1, error=InputError)
            if generator is not None:
                raise InputError("generate takes a seed or a generator, got both: leave one out")
            generator = torch.Generator().manual_seed(seed)  # of the cpu: the same text wherever the network lies
        with eval_mode(self):
            for _ in range(new_tokens):
                context = ids[:, -self.config.block_size :]
                last = self(context)[:, -1].float()  # (B, V)
                ids = torch.cat((ids, draw(last, temperature, top_k, generator).to(ids.dtype)), dim=1)
        return ids

    def _check(self, ids: Tensor, longest: int | None, name: str = "ids") -> None:
        """Refuse at the door what the tables cannot look up."""
        if not isinstance(ids, Tensor):
            raise InputError(f"{name}: expected a tensor of whole numbers (B, T), got {ids!r:.80}")
        if ids.dtype not in (torch.int64, torch.int32):
            raise InputError(f"{name}: expected int64 or int32, got {ids.dtype}: use {name}.long()")
        if ids.ndim != 2 or ids.numel() == 0:
            hint = f": for one text use {name}[None]" if ids.ndim == 1 and ids.numel() else ""
            raise InputError(f"{name}: expected (B, T), at least one token each, got {tuple(ids.shape)}{hint}")
        if longest is not None and ids.shape[1] > longest:
            wrong = f"expected at most {longest} tokens (block_size {self.config.block_size}), got {ids.shape[1]}"
            raise InputError(f"{name}: {wrong}: keep the last ones, or make block_size larger")
        least, most = (int(each) for each in ids.aminmax())
        if least < 0 or most >= self.config.vocabulary:
            raise InputError(f"{name}: expected numbers from 0 to {self.config.vocabulary - 1}, got {least} to {most}")


def draw(logits: Tensor, temperature: float, top_k: int | None, generator: torch.Generator | None) -> Tensor:
    """One id for each row of logits (B, V) -> (B, 1)."""
    if temperature == 0:
        return logits.argmax(dim=-1, keepdim=True)
    values, choices = logits.topk(min(top_k or logits.shape[-1], logits.shape[-1]))  # (B, k), likeliest first
    chances = ((values - values[:, :1]) / temperature).softmax(dim=-1)  # (B, k); shifted: no temperature overflows
    drawn = torch.multinomial(chances.to(getattr(generator, "device", chances.device)), 1, generator=generator)
    return choices.gather(1, drawn.to(choices.device))
