"""Mask tokens in a text, and the predicted words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from regard.data.batching.samplers import Indices, LengthBucketed
from regard.errors import RegardError
from regard.processors.padding import pad
from regard.processors.tokenizer.token_text import TokenFormat, word_mark
from regard.processors.tokenizer.tokenizer import TextTokenizer
from regard.processors.tokenizer.vocabulary import BERT_MASK
from regard.tasks.protocol import ModelProtocol
from regard.tasks.special_tokens import SpecialTokens
from regard.types import Batch, Prediction

TOP_K = 5
"""Number of candidates per mask token."""

BATCH_TOKENS = 16_384
"""Tokens per batch."""


def text_token_mask(text: TextTokenizer, config: Any) -> npt.NDArray[np.bool_]:
    """(V,) True for ids of text tokens, False for special tokens and unused ids."""
    table = np.zeros(config.vocab_size, dtype=bool)
    table[[number for number in text.backend.get_vocab().values() if number not in text.special_ids]] = True
    return table


def mask_token(text: TextTokenizer) -> str:
    """The mask token as text."""
    mask = text.special_id("mask")
    if mask is None:
        raise RegardError("The tokenizer has no mask token, so the model cannot predict masked words.")
    return text.id_to_token(mask)


def fill_masks(model: ModelProtocol, inputs: Sequence[str]) -> list[Prediction]:
    """Fill each mask token with the most likely token, independently of other mask tokens. `extra["masks"]` has the `TOP_K`
    candidates of each mask token."""
    text, config = model.require_tokenizer(), model.config
    gap = mask_token(text)
    asked = [item.replace(BERT_MASK, gap) for item in inputs]
    for item in asked:
        if gap not in item:
            raise RegardError(f"No {gap} in {item!r:.80}. Write {gap} in place of each word to predict.")
    marks = SpecialTokens.from_tokenizer(text, config)
    rows = [[*marks.start, *ids, *marks.extract] for ids in text.encode_masked(asked)]
    if (most := max(map(len, rows), default=0)) > config.max_length:
        raise RegardError(
            f"Input has {most:,} tokens, but the model supports at most {config.max_length:,}. Shorten the text around "
            f"{gap}."
        )
    answers: list[Prediction] = [Prediction("")] * len(rows)
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    known = torch.from_numpy(np.flatnonzero(text_token_mask(text, config))).to(model.device)
    for chosen in LengthBucketed(lengths, max(BATCH_TOKENS, most), seed=0).sequential() if rows else ():
        x, mask = pad([rows[i] for i in chosen], config.pad_id)
        batch = Batch(x, mask).to(model.device)
        at = (batch.inputs == config.mask_id).nonzero()
        with torch.inference_mode():
            states = model.body(batch)
            gaps = states.sequence[at[:, 0], at[:, 1]]
            chances = model.head.words(gaps, model.body.tokens).double().softmax(-1)[:, known]
        sure, best = chances.topk(min(TOP_K, len(known)))
        tokens = known[best].cpu().numpy()
        for number, row in enumerate(chosen.tolist()):
            mine = (at[:, 0] == number).cpu()
            answers[row] = _make_prediction(text, asked[row], rows[row], tokens[mine.numpy()], sure.cpu()[mine].numpy())
            if states.act_steps is not None:
                answers[row].extra["act_steps"] = states.act_steps[number, : len(rows[row])].tolist()
    return answers


def _make_prediction(
    text: TextTokenizer, asked: str, row: Sequence[int], tokens: Indices, sure: np.ndarray
) -> Prediction:
    filled, gap = np.array(row, dtype=np.int64), mask_token(text)
    places = np.flatnonzero(filled == text.special_id("mask"))
    gaps: list[list[dict[str, Any]]] = [[] for _ in places]
    filled[places] = tokens[:, 0]
    starts = text.starts_word(filled)
    for number, place in enumerate(places):
        for token, chance in zip(tokens[number].tolist(), sure[number].tolist(), strict=True):
            other = filled.copy()
            other[place] = token
            begins = bool(text.starts_word(other[: place + 1])[-1])
            word = token_word(text, token)
            gaps[number].append({"word": word, "begins": begins, "probability": chance})
    said, *rest = asked.split(gap)
    for number, part in enumerate(rest):
        # a piece that continues a word is appended without a space
        said = (said if starts[places[number]] else said.rstrip()) + gaps[number][0]["word"] + part
    scores = tuple(float(chance) for chance in sure[:, 0])
    return Prediction(said, scores, tuple(text.display_tokens(filled[places].tolist())), {"masks": gaps})


def token_word(text: TextTokenizer, token: int) -> str:
    """A token as a word or a piece of a word."""
    if text.token_format is TokenFormat.WORDPIECE:
        return text.id_to_token(token).removeprefix(word_mark(text.backend))
    return text.decode([[token]])[0].strip()


def format_candidates(gap: Sequence[dict[str, Any]]) -> str:
    """Candidates of a mask token with probabilities. A dot marks pieces that continue the previous word."""
    return "  ".join(f"{'' if item['begins'] else '·'}{item['word']} {item['probability']:.3f}" for item in gap)
