"""Special tokens around a text or a pair: `[CLS] A [SEP] B [SEP]` for BERT, `<s> A </s></s> B </s>` for RoBERTa."""

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
    """token type id of the second text and of the tokens after it; all earlier tokens have type 0"""

    def post_processor(self, id_to_token: Callable[[int], str]) -> processors.PostProcessor:
        """Equivalent post-processor of the `tokenizers` library."""
        end = [f"{id_to_token(i)}:0" for i in self.end]
        first = [*(f"{id_to_token(i)}:0" for i in self.start), "$A:0"]
        second = [f"$B:{self.second_type}", *(f"{id_to_token(i)}:{self.second_type}" for i in self.end)]
        pair = [*first, *(f"{id_to_token(i)}:0" for i in self.separator), *second]
        known = {(id_to_token(i), i) for i in (*self.start, *self.separator, *self.end)}
        return processors.TemplateProcessing(single=[*first, *end], pair=pair, special_tokens=sorted(known))


def template_of(backend: Tokenizer) -> TokenTemplate | None:
    """Template of the library's post-processor; None if the post-processor adds no tokens."""
    if backend.post_processor is None:
        return None
    probe = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))  # the post-processor contains the special token ids
    probe.post_processor = backend.post_processor
    pair = probe.encode("a", "a")
    a, b = pair.sequence_ids.index(0), pair.sequence_ids.index(1)
    ids = pair.ids
    frame = TokenTemplate(tuple(ids[:a]), tuple(ids[a + 1 : b]), tuple(ids[b + 1 :]), pair.type_ids[b])
    return frame if probe.encode("a").ids != [0] else None
