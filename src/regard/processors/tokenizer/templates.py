"""The special tokens around a text and between two: `[CLS] A [SEP] B [SEP]` with BERT, `<s> A </s></s> B </s>` with RoBERTa."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tokenizers import Tokenizer, models, processors


@dataclass(frozen=True)
class TokenTemplate:
    start: tuple[int, ...] = ()
    separator: tuple[int, ...] = ()
    end: tuple[int, ...] = ()
    second_type: int = 0
    """the type of the second text and of what stands behind it; all before has type 0"""

    def post_processor(self, id_to_token: Callable[[int], str]) -> processors.PostProcessor:
        """The same for the library."""
        end = [f"{id_to_token(i)}:0" for i in self.end]
        first = [*(f"{id_to_token(i)}:0" for i in self.start), "$A:0"]
        second = [f"$B:{self.second_type}", *(f"{id_to_token(i)}:{self.second_type}" for i in self.end)]
        pair = [*first, *(f"{id_to_token(i)}:0" for i in self.separator), *second]
        known = {(id_to_token(i), i) for i in (*self.start, *self.separator, *self.end)}
        return processors.TemplateProcessing(single=[*first, *end], pair=pair, special_tokens=sorted(known))


def template_of(backend: Tokenizer) -> TokenTemplate | None:
    """What the library puts around a text; None: nothing."""
    if backend.post_processor is None:
        return None
    probe = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))  # ids of special tokens stand in the processor itself
    probe.post_processor = backend.post_processor
    pair = probe.encode("a", "a")
    a, b = pair.sequence_ids.index(0), pair.sequence_ids.index(1)
    ids = pair.ids
    frame = TokenTemplate(tuple(ids[:a]), tuple(ids[a + 1 : b]), tuple(ids[b + 1 :]), pair.type_ids[b])
    return frame if probe.encode("a").ids != [0] else None
