"""Config fields and body shared by the recurrent and convolutional encoder–decoder models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from jaxtyping import Float, Int
from torch import Tensor

from regard.nn.blocks.block import EmbeddingSharing, SharedEmbeddings, TokenPredictor, check_embeddings
from regard.nn.blocks.encoder_decoder import require_prompt
from regard.nn.recurrent.rnn import RecurrentState
from regard.systems.common.system import TargetTokens
from regard.types import Batch, Traits

TINY_TOKENS: dict[str, Any] = {"vocab_size": 10_000, "tie_embeddings": "all"}


@dataclass(frozen=True)
class Seq2SeqConfig(TargetTokens):
    """Fields common to the recurrent and convolutional encoder–decoder models."""

    vocab_size: int = 30_000
    tie_embeddings: EmbeddingSharing = "none"

    source_vocab_size: ClassVar[int] = 0  # source and target share a tokenizer
    output_width_field: ClassVar[str] = "width"
    """Field with the input width of the output layer."""

    base_traits = Traits(packs=False, packs_efficiently=False)

    def check(self) -> None:
        check_embeddings(self, self.output_width_field)


class RecurrentBody(TokenPredictor):
    """Encoder–decoder with a decoding state of fixed size."""

    tables: SharedEmbeddings

    def initial_state(self, batch: Batch) -> RecurrentState:
        """State before the first token of the prompt, with the encoded source."""
        raise NotImplementedError

    def advance(self, ids: Int[Tensor, "B Q"], state: RecurrentState) -> Float[Tensor, "B Q D"]:
        """Hidden states of further tokens; updates the state."""
        raise NotImplementedError

    @property
    def output_weights(self) -> tuple[Tensor, Tensor | None]:
        return self.tables.output_weights

    def start(self, batch: Batch, max_positions: int | None = None) -> RecurrentState:
        """Encode the source, and process all but the last token of the prompt `batch.decoder.inputs`. The state has a
        fixed size, so `max_positions` has no effect."""
        prompt, state = require_prompt(batch), self.initial_state(batch)
        if prompt.shape[1] > 1:
            self.advance(prompt[:, :-1], state)
        return state

    def step(self, tokens: Int[Tensor, "B"], state: RecurrentState) -> Float[Tensor, "B V"]:
        """Logits after one more token per row."""
        return self.to_logits(self.advance(tokens[:, None], state)[:, 0])
