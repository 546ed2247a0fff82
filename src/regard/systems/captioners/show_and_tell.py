"""Show and Tell: A Neural Image Caption Generator (Vinyals et al. 2015): a captioner without attention.

What it is: one vector of the whole picture is read by an LSTM once, as if it were the first word, and then the LSTM speaks.
What it has not kept of the picture by then it cannot look up. The paper saw through GoogLeNet; here it is any body that sees.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.nn.kernels.linear import Linear, linear
from regard.nn.recurrent.lstm_gates import gated
from regard.nn.recurrent.recurrent_state import Held, Rolling
from regard.nn.recurrent.rnn import fused
from regard.nn.vision.encoder import Eyes
from regard.systems.captioners.common import FURTHER, Captioner, Looking, beside, recipe
from regard.systems.common.seq2seq_inputs import prompt_of, target_of
from regard.systems.common.system import Preset, System, unpublished
from regard.types import Batch, States


@dataclass(frozen=True)
class Config(Captioner):
    width: int = 512
    """width of the LSTM's state"""
    embedding: int = 512
    """width of words, and of the picture as it is read"""
    depth: int = 1
    """LSTMs one above the other"""
    dropout: float = 0.3
    """share dropped of what the LSTM reads and of what it gives"""

    sizes = ("width", "embedding", "depth")


PAPER = Config(encoder="resnet-50", frozen=True)
TINY = Config(
    encoder="resnet-tiny", seeing={"stride": 2}, size=96, vocabulary=2000, width=320, embedding=192, dropout=0.3
)
PRESETS = {
    "caption-fixed-tiny": Preset(TINY, 4_528_304, recipe(2000)),
    "caption-fixed-base": Preset(
        PAPER, 36_908_368, recipe(10_000, steps=50_000, rate=4e-4, every=2000, smoothing=0.0) | {"decode": {"beam": 20}}
    ),
}
"""The paper's beam is 20, and that of its later release 3. It taught by SGD with one rate; Adam wants a smaller one."""


class Fixed(Looking, nn.Module):
    fixed = True
    """a step can be recorded"""

    def __init__(self, eyes: Eyes, config: Config) -> None:
        super().__init__()
        self.eyes = eyes
        self.tokens = nn.Embedding(config.vocabulary, config.embedding)
        self.project = Linear(eyes.tap.channels, config.embedding)
        between = config.dropout if config.depth > 1 else 0.0
        self.lstm = nn.LSTM(config.embedding, config.width, config.depth, batch_first=True, dropout=between)
        self.words = Linear(config.width, config.vocabulary)
        self.dropout = nn.Dropout(config.dropout)
        nn.init.uniform_(self.tokens.weight, -0.08, 0.08)

    def see(self, batch: Batch) -> Float[Tensor, "B m"]:
        """The picture as a word."""
        return beside(self.project(self.eyes.summary(batch.x)), batch)

    def forward(self, batch: Batch) -> States:
        """Teacher forcing: nothing is asked of what stands behind the picture itself."""
        picture = self.see(batch)[:, None]
        words = self.tokens(target_of(batch))
        x = torch.cat([picture.to(words.dtype), words], 1)
        states, _ = fused(self.lstm, self.dropout(x))
        return States(self.dropout(states[:, 1:]))

    def read(self, x: Float[Tensor, "*rows n"]) -> Float[Tensor, "*rows V"]:
        return self.words(x)

    def held(self, batch: Batch) -> Held:
        return Held(2 * self.lstm.num_layers * self.lstm.hidden_size, self.words.weight.shape[0])

    def start(self, batch: Batch, room: int | None = None) -> Rolling:
        """Read the picture, and all but the last token of the prompt. The state has one size, whatever `room` is."""
        prompt, picture = prompt_of(batch), self.see(batch)
        shape = len(picture), self.lstm.num_layers, self.lstm.hidden_size
        state = Rolling.fresh({name: self.tokens.weight.new_zeros(shape) for name in ("h", "c")})
        self.advance(picture, state, 0)
        for token in prompt[:, :-1].unbind(1):
            self.advance(self.tokens(token), state)
        return state

    def step(self, tokens: Int[Tensor, "R"], state: Rolling) -> Float[Tensor, "R V"]:
        return self.read(self.advance(self.tokens(tokens), state))

    def advance(self, x: Float[Tensor, "R m"], state: Rolling, tokens: int = 1) -> Float[Tensor, "R n"]:
        """One step of all LSTMs, as matrices that are fast for few rows."""
        found: dict[str, list[Tensor]] = {"h": [], "c": []}
        for layer, (h, c) in enumerate(zip(state.own["h"].unbind(1), state.own["c"].unbind(1), strict=True)):
            matrices = [
                getattr(self.lstm, f"{name}_l{layer}") for name in ("weight_ih", "bias_ih", "weight_hh", "bias_hh")
            ]
            x, c = gated(linear(x, *matrices[:2]) + linear(h, *matrices[2:]), c)
            found["h"].append(x)
            found["c"].append(c)
        state.put(tokens, **{name: torch.stack(parts, 1) for name, parts in found.items()})
        return x


def build(config: Config) -> Fixed:
    """The whole machine."""
    return Fixed(config.eyes(), config)


SYSTEM = System(
    name="caption-fixed", about="captioner of 2015 without attention: sees once, then speaks", config=Config,
    presets=PRESETS, build=build, tasks=("caption",), reads="pictures", unsayable=unpublished, further=FURTHER,
)  # fmt: skip
