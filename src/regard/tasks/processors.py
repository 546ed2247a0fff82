"""What turns a task's samples into tensors: how its reader is made, found in a folder and kept in one."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

from regard.data.settings import Data
from regard.files import write_json
from regard.processors.tokenizer.tokenizer import Text


def names_of(text: Text, config: Any) -> dict[str, Any]:
    """Its special tokens by their roles. Without the class the model's type would decide for others how its text is read, and
    not every tokenizer of a GPT-2 is GPT-2's."""
    found: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", **text.names()}
    if getattr(config, "types", 1) > 1:  # else others would read two texts as one
        found["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    return found


class Reads:
    """A reader is a tokenizer where nothing else is said."""

    worded: ClassVar[bool] = True
    """whether samples hold texts, which a tokenizer is made of"""
    reader_files: ClassVar[tuple[str, ...]] = ("tokenizer.json", "tokenizer_config.json")
    """of a folder, where it keeps what turns samples into tensors"""

    def tokenizer(self, texts: Iterable[str], data: Data) -> Text:
        return Text.train(texts, data.vocabulary)

    def closed(self, data: Data) -> bool:
        """Whether the tokenizer that is made refuses what it has not seen."""
        return data.kind == "characters"

    def adopt(self, text: Text) -> Text:
        """A tokenizer that a person brings, with what the task cannot do without."""
        return text

    def grow(self, text: Text, config: Any) -> Text:
        """The tokenizer with the special tokens that only this task has."""
        return text

    def reading(self, text: Text, config: Any, data: Data) -> Any:
        """The reader of a fresh model, of the tokenizer that was made of its texts, or that a person brings."""
        return self.grow(text, config)

    def ready(self, config: Any, data: Data) -> Any:
        """The reader of a fresh model, where nothing of it is learnt from the data; None where something is."""
        return None

    learning: ClassVar[str] = "learning colours from these pictures"
    """what is said while that is done"""

    def learnt(self, samples: Iterable[Any], config: Any, data: Data) -> Any:
        """The reader of a fresh model, where it is learnt from samples that are no texts."""
        raise NotImplementedError

    def reader(self, folder: Path) -> Any:
        """What turns samples into tensors, as a folder has it; None where it has none."""
        return Text.load(folder) if Text.exists(folder) else None

    def suited(self, reader: Any, config: Any, data: Data) -> Any:
        """The reader that a folder brings, as it serves to learn by."""
        return reader

    def keep(self, reader: Any, config: Any, folder: Path) -> None:
        """The reader into a folder, where others find it too."""
        reader.save(folder / "tokenizer.json")
        write_json(folder / "tokenizer_config.json", names_of(reader, config))

    def dressed(self, text: Text, config: Any) -> Text:
        """The tokenizer as others shall find it, who do not know this task's special tokens."""
        return text

    def about_reader(self, reader: Any) -> str:
        return f"{reader.size:,} tokens in the vocabulary"

    def rows_by(self, reader: Any) -> tuple[int, str]:
        """How many numbers the rows of encoded samples are made of, and what of the reader they depend on."""
        return reader.size, reader.fingerprint()
