"""Convolutional Sequence to Sequence Learning (Gehring et al. 2017): the encoder–decoder before the Transformer.

What differs from Vaswani: a place sees the neighbours that a kernel covers, and a stack of them a window that grows with its
depth; positions are learned; every block of the decoder looks at the source with one head, whose values are the encoder's
states with the embeddings added. Like it, all places of a sentence are computed at once.

Where the paper's equations and the authors' code differ, this is the code: what was looked at goes through a matrix to the
width of the block, sums are multiplied by √½, and the gradient that reaches the encoder is divided by twice the number of
attentions (each hands it one through its scores and one through its values).
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.errors import SettingError
from regard.nn.attention.masks import marks
from regard.nn.attention.positions import Learned
from regard.nn.blocks.embeddings import Tables
from regard.nn.recurrent.conv_sequence import HALF, ConvStack, Slowed, Source, mapped
from regard.nn.recurrent.recurrent_state import Held, Rolling
from regard.nn.recurrent.score_attention import Context
from regard.systems.common.seq2seq import Ancestor
from regard.systems.common.seq2seq_inputs import prompt_of, target_of
from regard.systems.common.system import RECALLS, Preset, System, unpublished
from regard.types import Batch, States

STD = 0.1
"""of all embeddings at the beginning"""


@dataclass(frozen=True)
class Config(Ancestor):
    stages: tuple[str, ...] = ("512x3x9", "1024x3x4", "2048x1x2")
    """blocks of the encoder, as width x kernel x how many of them, separated by commas"""
    decoder_stages: tuple[str, ...] = ()
    """blocks of the decoder; none given: as the encoder's"""
    embedding: int = 768
    """width of the embeddings, and of what is looked at"""
    output: int = 512
    """width of the states that the next token is read from"""
    vocabulary: int = 40_000
    dropout: float = 0.2
    """share dropped of the embeddings, of what each convolution reads, and of the decoder's last states"""
    length: int = 1024
    """learned positions of each side; what stands further on shares the last"""

    sizes = ("embedding", "output", "length")
    read = "output"
    source_vocabulary: ClassVar[int] = 0
    """one tokenizer writes both sides"""

    def __post_init__(self) -> None:
        super().__post_init__()
        stages_of(self.stages, "model.stages")
        stages_of(self.decoder_stages or self.stages, "model.decoder_stages")

    @property
    def width(self) -> int:
        """Of the states that tokens are read from."""
        return self.output


def stages_of(words: tuple[str, ...], name: str) -> list[tuple[int, int]]:
    """Width and kernel of each block: ("512x3x2", "64x1") -> [(512, 3), (512, 3), (64, 1)]."""
    found: list[tuple[int, int]] = []
    for word in words:
        sizes = re.fullmatch(r"(\d+)x(\d+)(?:x(\d+))?", word.strip())
        width, kernel, count = (int(size or 1) for size in sizes.groups()) if sizes else (0, 0, 0)
        if min(width, kernel, count) < 1:
            raise SettingError(
                f"{name}: '{word}' is no stage. Write width x kernel x count in whole numbers, as 512x3x9."
            )
        found += [(width, kernel)] * count
    if not found:
        raise SettingError(f"{name} must name at least one stage, for example 512x3x9.")
    return found


PAPER: dict[str, dict[str, Any]] = {
    "train": {
        "steps": 300_000, "tokens": 32_000, "rate": 5e-4, "warmup": 4000, "schedule": "inverse_sqrt", "smoothing": 0.1,
        "clip": 0.1, "decay": 0.0,
    },
    "data": {"vocabulary": 40_000},
    "decode": {"beam": 5, "penalty": 1.0, "form": "power"},
}  # fmt: skip
"""The paper's beam, clipping and vocabulary. It learns by Nesterov's momentum of 0.99 at a rate of 0.25, without smoothing and
divided by 10 whenever validation stands still; here everything learns by Adam, and rate and schedule are Adam's."""

BASE = Config()
PRESETS = {
    "convs2s-tiny": Preset(
        replace(BASE, stages=("128x3x5",), embedding=128, output=128, vocabulary=10_000, tables="one", dropout=0.3, length=256),
        2_566_656,
        {
            "train": {**PAPER["train"], "steps": 6000, "tokens": 16_384, "rate": 4e-3, "warmup": 1500,
                      "schedule": "linear", "clip": 1.0, "average": 0.999},
            "data": {"vocabulary": 10_000},
            "decode": PAPER["decode"],
        },
    ),
    "convs2s-en-de": Preset(BASE, 209_569_920, PAPER),
}  # fmt: skip


class ConvS2S(nn.Module):
    fixed = True
    """search may ask for a state of fixed size: it has no other"""

    def __init__(
        self, tables: Tables, places: tuple[Learned, Learned], encoder: ConvStack, decoder: ConvStack, dropout: float
    ) -> None:
        """`places`: positions of the source, and of the target."""
        super().__init__()
        self.tables, self.encoder, self.decoder = tables, encoder, decoder
        self.source_position, self.target_position = places
        self.dropout = nn.Dropout(dropout)

    def embed(self, ids: Int[Tensor, "B L"], where: Int[Tensor, "..."], target: bool) -> Float[Tensor, "B L E"]:
        position = self.target_position if target else self.source_position
        assert position.length is not None
        x = self.tables.of_target(ids) if target else self.tables.of_source(ids)
        return self.dropout(x + position(where.clamp(max=position.length - 1)))

    def encode(self, batch: Batch, taps: Collection[int] = ()) -> tuple[Context, tuple[Tensor, ...]]:
        """What a decoder looks at: states as keys, states and embeddings as values."""
        if batch.offsets is not None or batch.documents is not None:
            raise ValueError("a convolution reads padded rows: it would read from one sentence into the next")
        length = batch.x.shape[1]
        where = torch.arange(length, device=batch.x.device) if batch.where is None else batch.where
        real = None if batch.mask is None else marks(batch.mask, length)
        e = self.embed(batch.x, where, target=False)
        z, tapped = self.encoder(e, real, taps=taps)
        z = Slowed.apply(z, 1 / (2 * len(self.decoder.blocks)))  # type: ignore[no-untyped-call]
        return Context(z, (z + e) * (HALF * self.spread(z, real)), real), tapped

    @staticmethod
    def spread(z: Float[Tensor, "B K E"], real: Bool[Tensor, "B K"] | None) -> Float[Tensor, "#B 1 1"]:
        """m √(1/m) of m places: the mean of m things has less variance than one has. It is taken into the values."""
        if real is None:
            return z.new_full((1, 1, 1), math.sqrt(z.shape[1]))
        return real.sum(1).to(z.dtype).sqrt()[:, None, None]

    def forward(self, batch: Batch, taps: Collection[int] = ()) -> States:
        """The decoder's states over `batch.target`; `taps` are blocks of the encoder."""
        target, (context, tapped) = target_of(batch), self.encode(batch, taps)
        length = target.shape[1]
        real = None if batch.target_mask is None else marks(batch.target_mask, length)
        g = self.embed(target, torch.arange(length, device=batch.x.device), target=True)
        sequence, _ = self.decoder(g, real, Source(context, g))
        return States(self.dropout(sequence), taps=tapped, context=context.keys)

    def read(self, x: Float[Tensor, "*rows O"]) -> Float[Tensor, "*rows V"]:
        return self.tables.read(x)

    def held(self, batch: Batch) -> Held:
        places = 2 * batch.x.shape[1] * self.tables.target.embedding_dim
        return Held(self.decoder.numbers + places, self.tables.vocabulary)

    def start(self, batch: Batch, room: int | None = None) -> Rolling:
        """Read the source, and all but the last token of the prompt `batch.target`. A past has one size, whatever `room`."""
        prompt, (context, _) = prompt_of(batch), self.encode(batch)
        pasts = self.decoder.pasts(len(batch.x), context.keys)
        state = Rolling(torch.zeros(len(batch.x), dtype=torch.long, device=batch.x.device), pasts, context.named())
        if prompt.shape[1] > 1:
            self.advance(prompt[:, :-1], state)
        return state

    def step(self, tokens: Int[Tensor, "B"], state: Rolling) -> Float[Tensor, "B V"]:
        """The logits that follow one more token of each row."""
        return self.read(self.advance(tokens[:, None], state)[:, 0])

    def advance(self, ids: Int[Tensor, "B Q"], state: Rolling) -> Float[Tensor, "B Q O"]:
        where = state.at[:, None] + torch.arange(ids.shape[1], device=ids.device)
        g = self.embed(ids, where, target=True)
        pasts = [state.own.get(str(number)) for number in range(len(self.decoder.blocks))]
        x, _ = self.decoder(g, source=Source(Context(**state.context), g), pasts=pasts)
        state.put(ids.shape[1])
        return self.dropout(x)


def tables_of(config: Config) -> Tables:
    """All begin small, and an output matrix of its own is a layer like the others."""
    tables: Any = Tables(config.vocabulary, config.embedding, config.output, config.tables)
    if tables.output is not None:
        tables.output = mapped(config.output, config.vocabulary, config.dropout)
    for table in (tables.target, tables.source):
        if table is not None:
            nn.init.normal_(table.weight, std=STD)
    return cast(Tables, tables)


def build(config: Config) -> ConvS2S:
    """The whole machine."""
    E, stages = config.embedding, stages_of(config.stages, "model.stages")
    below = stages_of(config.decoder_stages or config.stages, "model.decoder_stages")
    return ConvS2S(
        tables=tables_of(config),
        places=(Learned(config.length, E, STD), Learned(config.length, E, STD)),
        encoder=ConvStack(E, stages, E, config.dropout),
        decoder=ConvStack(E, below, config.output, config.dropout, cross=True),
        dropout=config.dropout,
    )


SYSTEM = System(
    name="convs2s", about="encoder–decoder of convolutions with gates, 2017", config=Config, presets=PRESETS, build=build,
    tasks=("translate", "recall"), recipes=RECALLS, unsayable=unpublished,
)  # fmt: skip
