"""Show, Attend and Tell (Xu et al. 2015): a captioner that looks at places of the picture before each word.

What is new against Show and Tell: the picture is kept as a grid of a convolutional layer. Before a word the LSTM's state asks
every place how much it matters (Bahdanau's score), their mean by that is read with the last word, and a gate says how much of
it. Over a whole caption each place should be looked at about once in all, which is asked for by a penalty. This is the soft
attention; the hard one draws a place. The paper saw through VGG-19; here it is any body that sees.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.errors import SettingError
from regard.nn.kernels.linear import Linear
from regard.nn.recurrent.lstm_gates import gated
from regard.nn.recurrent.recurrent_state import Held, Rolling
from regard.nn.recurrent.score_attention import Additive, Align, Context
from regard.nn.vision.encoder import Eyes
from regard.systems.captioners.common import FURTHER, Captioner, Looking, beside, recipe
from regard.systems.common.seq2seq_inputs import prompt_of, target_of
from regard.systems.common.system import Preset, System, unpublished
from regard.types import IGNORE, Batch, States


@dataclass(frozen=True)
class Config(Captioner):
    tap: int | None = None
    """which map is looked at, of four from fine to coarse, 0 to 3: a coarser one knows more; none: the last states"""
    width: int = 1800
    """width of the LSTM's state"""
    embedding: int = 512
    """width of words"""
    inner: int = 0
    """inner width of the score; 0: that of a place"""
    deeper: bool = True
    """one more layer on the places before they are scored, as the authors' code has it"""
    dropout: float = 0.5
    """share dropped of the LSTM's state where words are told from it, and of what they are told by"""
    penalty: float = 1.0
    """weight of the demand that each place be looked at once in all (λ); 0 is none"""
    std: float = 0.01
    """spread of the matrices at first, as the authors have it; 0: of each by how much it reads, with which small ones learn to
    look many times sooner"""

    sizes = ("width", "embedding")

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.inner, self.penalty, self.std) < 0:
            raise SettingError("model.inner, model.penalty and model.std must be at least 0.")


TINY = Config(
    encoder="resnet-tiny",
    seeing={"stride": 2},
    size=96,
    vocabulary=2000,
    width=256,
    embedding=192,
    inner=128,
    dropout=0.3,
    std=0.0,
)
PAPER = Config(encoder="resnet-50", frozen=True, tap=2)
PRESETS = {
    "caption-attend-tiny": Preset(TINY, 4_665_586, recipe(2000)),
    "caption-attend-base": Preset(
        PAPER, 52_951_434, recipe(10_000, steps=50_000, rate=4e-4, every=2000, smoothing=0.0)
    ),
}


class Attend(Looking, nn.Module):
    """Shape letters: B rows, T words, K places, D width of a place, n of the state, m of a word."""

    fixed = True
    """a step can be recorded"""

    def __init__(self, eyes: Eyes, config: Config) -> None:
        super().__init__()
        D, n, m = eyes.tap.channels, config.width, config.embedding
        inner = config.inner or D
        self.eyes, self.penalty = eyes, config.penalty
        self.tokens = nn.Embedding(config.vocabulary, m)
        self.begin = nn.ModuleDict({"first": Linear(D, D), "h": Linear(D, n), "c": Linear(D, n)})
        self.align = Align(Additive(n, D, inner, bias=True))
        self.deeper = Linear(inner, inner) if config.deeper else None
        self.gate = Linear(n, 1)
        self.cell = nn.ModuleDict({"x": Linear(m, 4 * n), "h": Linear(n, 4 * n, False), "z": Linear(D, 4 * n, False)})
        self.out = nn.ModuleDict({"h": Linear(n, m), "z": Linear(D, m)})
        self.words = Linear(m, config.vocabulary)
        self.dropout = nn.Dropout(config.dropout)

    # -- one step

    def see(self, batch: Batch) -> tuple[Context, Float[Tensor, "B n"], Float[Tensor, "B n"]]:
        """The places made ready to be asked, and the state and memory that the LSTM begins with."""
        places = self.eyes.places(batch.x)
        mean = self.begin["first"](places.mean(1)).relu()
        h, c = (torch.tanh(self.begin[name](mean)).to(self.tokens.weight.dtype) for name in ("h", "c"))
        ready = self.align.ready(places)
        if self.deeper is not None:
            ready = replace(ready, keys=torch.tanh(self.deeper(ready.keys)))
        ready = Context(beside(ready.keys, batch), beside(ready.values, batch))
        return ready, beside(h, batch), beside(c, batch)

    def embed(self, ids: Int[Tensor, "*rows"], at: Int[Tensor, "..."]) -> Float[Tensor, "*rows m"]:
        """Nothing was said before the first word: zeros, whatever token stands there."""
        return self.tokens(ids).masked_fill((at == 0)[..., None], 0.0)

    def look(self, h: Float[Tensor, "R n"], context: Context) -> tuple[Float[Tensor, "R D"], Float[Tensor, "R K"]]:
        """What is seen before the next word, and how much each place gave to it."""
        mixed, weights = self.align(h[:, None], context)
        return torch.sigmoid(self.gate(h)) * mixed[:, 0], weights[:, 0]

    def turn(
        self, x: Float[Tensor, "R four_n"], h: Float[Tensor, "R n"], c: Float[Tensor, "R n"], z: Float[Tensor, "R D"]
    ) -> tuple[Float[Tensor, "R n"], Float[Tensor, "R n"]]:
        """The LSTM's step; `x` is what the last word gives to its gates."""
        return gated(x + self.cell["h"](h) + self.cell["z"](z), c, "ifog")

    def say(
        self, words: Float[Tensor, "*rows m"], h: Float[Tensor, "*rows n"], z: Float[Tensor, "*rows D"]
    ) -> Float[Tensor, "*rows m"]:
        """What the next word is told by: the last one, the state and what was seen."""
        told = self.out["h"](self.dropout(h)) + words + self.out["z"](z)
        return self.dropout(torch.tanh(told))

    # -- whole captions

    def forward(self, batch: Batch) -> States:
        target = target_of(batch)
        context, h, c = self.see(batch)
        words = self.embed(target, torch.arange(target.shape[1], device=target.device))
        states, seen, looks = [], [], []
        for x in self.cell["x"](words).unbind(1):
            z, weights = self.look(h, context)
            h, c = self.turn(x, h, c, z)
            states.append(h)
            seen.append(z)
            looks.append(weights)
        sequence = self.say(words, torch.stack(states, 1), torch.stack(seen, 1))
        side = {}
        if self.training and self.penalty:
            side = {"penalty": self.penalty * unevenness(torch.stack(looks, 1), _asked(batch))}
        return States(sequence, context=context.values, side=side)

    def read(self, x: Float[Tensor, "*rows m"]) -> Float[Tensor, "*rows V"]:
        return self.words(x)

    # -- word by word

    def held(self, batch: Batch) -> Held:
        places = math.prod(self.grid(batch)) * (self.align.score.inner + self.eyes.tap.channels)
        return Held(2 * self.gate.weight.shape[1] + places, self.words.weight.shape[0])

    def start(self, batch: Batch, room: int | None = None) -> Rolling:
        """Read the picture, and all but the last token of the prompt. The state has one size, whatever `room` is."""
        prompt = prompt_of(batch)
        context, h, c = self.see(batch)
        state = Rolling.fresh({"h": h, "c": c}, context.named())
        for token in prompt[:, :-1].unbind(1):
            self.advance(token, state)
        return state

    def step(self, tokens: Int[Tensor, "R"], state: Rolling) -> Float[Tensor, "R V"]:
        return self.read(self.advance(tokens, state))

    def advance(self, tokens: Int[Tensor, "R"], state: Rolling) -> Float[Tensor, "R m"]:
        words, (h, c) = self.embed(tokens, state.at), (state.own["h"], state.own["c"])
        z, _ = self.look(h, Context(**state.context))
        h, c = self.turn(self.cell["x"](words), h, c, z)
        state.put(h=h, c=c)
        return self.say(words, h, z)


def unevenness(weights: Float[Tensor, "B T K"], asked: Bool[Tensor, "B T"] | None) -> Float[Tensor, ""]:
    """Σ (1 − Σ_t α)² of all places and rows. Steps of which nothing is asked look at nothing."""
    weights = weights if weights.dtype == torch.float64 else weights.float()
    total = (weights if asked is None else weights * asked[..., None]).sum(1)
    return (1 - total).square().sum()


def _asked(batch: Batch) -> Tensor | None:
    """Which steps are of the caption and not of its padding."""
    if batch.labels is not None:
        return batch.labels != IGNORE
    if batch.target_mask is None or batch.target_mask.ndim == 2:
        return batch.target_mask
    assert batch.target is not None
    return torch.arange(batch.target.shape[1], device=batch.target.device) < batch.target_mask[:, None]


def build(config: Config) -> Attend:
    """The whole machine."""
    return attend_weights(Attend(config.eyes(), config), config.std)


WORDS = 0.1
"""Spread of the words at first, where matrices are spread by what they read."""


def attend_weights(body: Attend, std: float) -> Attend:
    """As the authors' begin: N(0, 0.01), square matrices orthogonal (so are the four of the LSTM's own), biases 0."""
    for name, parameter in body.named_parameters():
        if name.startswith("eyes."):
            continue
        if parameter.ndim < 2:
            nn.init.zeros_(parameter)
            continue
        if not std:
            nn.init.normal_(parameter, std=WORDS if name.startswith("tokens.") else parameter.shape[1] ** -0.5)
            continue
        nn.init.normal_(parameter, std=std)
        for part in parameter.chunk(4) if name.startswith("cell.") else (parameter,):
            if part.shape[0] == part.shape[1]:
                nn.init.orthogonal_(part)
    return body


SYSTEM = System(
    name="caption-attend", about="captioner of 2015 that looks at places of the picture for each word", config=Config,
    presets=PRESETS, build=build, tasks=("caption",), reads="pictures", unsayable=unpublished, further=FURTHER,
)  # fmt: skip
