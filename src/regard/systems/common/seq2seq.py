"""Config fields shared by the pre-Transformer translation models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from regard.nn.blocks.embeddings import EmbeddingSharing, check_embeddings
from regard.systems.common.system import check_sizes


@dataclass(frozen=True)
class Seq2SeqConfig:
    """Fields common to the recurrent and convolutional encoder–decoder models."""

    vocab_size: int = 30_000
    """Vocabulary size; set by the tokenizer."""
    tie_embeddings: EmbeddingSharing = "none"
    """Shared embeddings: none, source_target, or all (also the output layer)."""
    pad_id: int = 0
    """Id of the padding token."""
    bos_id: int = 1
    """Id of the start token (bos_token_id)."""
    eos_id: int = 2
    """Id of the end token."""

    packs: ClassVar[bool] = False
    """Packing is not supported: the state would carry over from one sentence of a packed row to the next."""
    size_fields: ClassVar[tuple[str, ...]] = ()
    """Further fields that must be at least 1."""
    output_width_field: ClassVar[str] = "width"
    """Field with the input width of the output layer."""

    def __post_init__(self) -> None:
        check_sizes(self, (*self.size_fields, "vocab_size"), ("dropout",))
        check_embeddings(self, self.output_width_field)


@dataclass(frozen=True)
class RecurrentConfig(Seq2SeqConfig):
    """Fields of recurrent models."""

    source_vocab_size: int = 0
    """Source vocabulary size, if larger than the target's. 0: the same."""
