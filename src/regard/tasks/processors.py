"""Creation, loading and saving of the processor of a task: a tokenizer, or an image or point processor."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

from regard.data.settings import DataSettings
from regard.files import write_json
from regard.processors.tokenizer.tokenizer import TextTokenizer


def tokenizer_config(text: TextTokenizer, config: Any) -> dict[str, Any]:
    """Contents of tokenizer_config.json. The class is required: otherwise Hugging Face selects a tokenizer by the model
    type, and a GPT-2 model may have another tokenizer."""
    found: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", **text.special_tokens_map()}
    if config.traits.token_types > 1:  # otherwise Hugging Face ignores token types
        found["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    return found


class ProcessorMixin:
    """Processor methods of a task. The default processor is a tokenizer."""

    has_text: ClassVar[bool] = True
    """True if samples contain text and the processor includes a tokenizer"""
    processor_files: ClassVar[tuple[str, ...]] = ("tokenizer.json", "tokenizer_config.json")
    """files of the processor in a checkpoint folder"""

    def train_tokenizer(self, texts: Iterable[str], data: DataSettings) -> TextTokenizer:
        return TextTokenizer.train_sentence_bpe(texts, data.vocab_size)

    def has_closed_vocabulary(self, data: DataSettings) -> bool:
        """True if a newly trained tokenizer has no token for unseen characters or words."""
        return data.tokenizer_type == "char"

    def adapt_tokenizer(self, text: TextTokenizer) -> TextTokenizer:
        """A tokenizer given by the user, with the tokens that the task requires."""
        return text

    def add_special_tokens(self, text: TextTokenizer, config: Any) -> TextTokenizer:
        """The tokenizer with the special tokens of this task."""
        return text

    def build_processor(self, text: TextTokenizer, config: Any, data: DataSettings) -> Any:
        """Processor of a new model, from a trained or given tokenizer."""
        return self.add_special_tokens(text, config)

    def default_processor(self, config: Any, data: DataSettings) -> Any:
        """Processor of a new model if no part of the processor is fitted to the data; otherwise None."""
        return None

    fit_message: ClassVar[str] = "Computing a color palette from the training images …"
    """log message during `fit_processor`"""

    def fit_processor(self, samples: Iterable[Any], config: Any, data: DataSettings) -> Any:
        """Processor of a new model, fitted to samples other than text."""
        raise NotImplementedError

    def load_processor(self, folder: Path) -> Any:
        """Processor from a checkpoint folder, or None."""
        return TextTokenizer.load(folder) if TextTokenizer.exists(folder) else None

    def adapt_processor(self, processor: Any, config: Any, data: DataSettings) -> Any:
        """Processor of a checkpoint, adapted to the training settings."""
        return processor

    def save_processor(self, processor: Any, config: Any, folder: Path) -> None:
        """Save the processor in Hugging Face format."""
        processor.save(folder / "tokenizer.json")
        write_json(folder / "tokenizer_config.json", tokenizer_config(processor, config))

    def export_tokenizer(self, text: TextTokenizer, config: Any) -> TextTokenizer:
        """Tokenizer for export, for programs without the special tokens of this task."""
        return text

    def describe_processor(self, processor: Any) -> str:
        return f"vocabulary of {processor.size:,} tokens"

    def row_encoding(self, processor: Any) -> tuple[int, str]:
        """Number of distinct values in encoded rows, and a fingerprint of the processor for their cache."""
        return processor.size, processor.fingerprint()
