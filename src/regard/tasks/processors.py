"""What turns a task's samples into tensors: how its reader is made, found in a folder and kept in one."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

from regard.data.settings import DataSettings
from regard.files import write_json
from regard.processors.tokenizer.tokenizer import TextTokenizer


def tokenizer_config(text: TextTokenizer, config: Any) -> dict[str, Any]:
    """Its special tokens by their roles. Without the class the model's type would decide for others how its text is read, and
    not every tokenizer of a GPT-2 is GPT-2's."""
    found: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", **text.special_tokens_map()}
    if getattr(config, "type_vocab_size", 1) > 1:  # else others would read two texts as one
        found["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    return found


class ProcessorMixin:
    """A reader is a tokenizer where nothing else is said."""

    has_text: ClassVar[bool] = True
    """whether samples hold texts, which a tokenizer is made of"""
    processor_files: ClassVar[tuple[str, ...]] = ("tokenizer.json", "tokenizer_config.json")
    """of a folder, where it keeps what turns samples into tensors"""

    def train_tokenizer(self, texts: Iterable[str], data: DataSettings) -> TextTokenizer:
        return TextTokenizer.train_sentence_bpe(texts, data.vocab_size)

    def has_closed_vocabulary(self, data: DataSettings) -> bool:
        """Whether the tokenizer that is made refuses what it has not seen."""
        return data.tokenizer_type == "char"

    def adapt_tokenizer(self, text: TextTokenizer) -> TextTokenizer:
        """A tokenizer that a person brings, with what the task cannot do without."""
        return text

    def add_special_tokens(self, text: TextTokenizer, config: Any) -> TextTokenizer:
        """The tokenizer with the special tokens that only this task has."""
        return text

    def build_processor(self, text: TextTokenizer, config: Any, data: DataSettings) -> Any:
        """The reader of a fresh model, of the tokenizer that was made of its texts, or that a person brings."""
        return self.add_special_tokens(text, config)

    def default_processor(self, config: Any, data: DataSettings) -> Any:
        """The reader of a fresh model, where nothing of it is learnt from the data; None where something is."""
        return None

    fit_message: ClassVar[str] = "Computing a color palette from the training images …"
    """what is said while that is done"""

    def fit_processor(self, samples: Iterable[Any], config: Any, data: DataSettings) -> Any:
        """The reader of a fresh model, where it is learnt from samples that are no texts."""
        raise NotImplementedError

    def load_processor(self, folder: Path) -> Any:
        """What turns samples into tensors, as a folder has it; None where it has none."""
        return TextTokenizer.load(folder) if TextTokenizer.exists(folder) else None

    def adapt_processor(self, processor: Any, config: Any, data: DataSettings) -> Any:
        """The reader that a folder brings, as it serves to learn by."""
        return processor

    def save_processor(self, processor: Any, config: Any, folder: Path) -> None:
        """The reader into a folder, where others find it too."""
        processor.save(folder / "tokenizer.json")
        write_json(folder / "tokenizer_config.json", tokenizer_config(processor, config))

    def export_tokenizer(self, text: TextTokenizer, config: Any) -> TextTokenizer:
        """The tokenizer as others shall find it, who do not know this task's special tokens."""
        return text

    def describe_processor(self, processor: Any) -> str:
        return f"vocabulary of {processor.size:,} tokens"

    def row_encoding(self, processor: Any) -> tuple[int, str]:
        """How many numbers the rows of encoded samples are made of, and what of the reader they depend on."""
        return processor.size, processor.fingerprint()
