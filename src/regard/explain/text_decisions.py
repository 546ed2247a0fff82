"""Explanation of a prediction on text: attribution of the output scores, and attention of every layer and head."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from regard.data.settings import DataSettings
from regard.data.text.qa import QASample
from regard.data.text.samples import ChoiceSample, LabeledText, Pair
from regard.data.text.tagged import TaggedSentence
from regard.draw.text import label
from regard.draw.token_data import (
    GRADIENT,
    PROBABILITIES_TITLE,
    ROLLOUT,
    ActSteps,
    AttentionMap,
    DecisionAttribution,
    TokenAttribution,
    describe_tokens,
)
from regard.errors import RegardError, UnknownNameError
from regard.explain.attribution import MAX_BYTES, OutputScore, attribute, attribution_bytes, logit_margin
from regard.explain.explanation import Explanation
from regard.explain.rollout import RowAttention, TokenBlocks
from regard.explain.text_generation import display_pieces, join_titles
from regard.nn.recording import named_attentions
from regard.processors.padding import pad
from regard.processors.tokenizer.token_text import WHITESPACE_SYMBOLS
from regard.processors.tokenizer.tokenizer import TextTokenizer
from regard.processors.tokenizer.vocabulary import BERT_MASK
from regard.tasks.act import act_steps
from regard.tasks.base import Encoded
from regard.tasks.fill_mask import mask_token, text_token_mask, token_word
from regard.tasks.multilabel import pair_order
from regard.tasks.protocol import ModelProtocol
from regard.tasks.special_tokens import SpecialTokens, pad_id
from regard.tasks.windowed import window_start
from regard.types import IGNORE, Batch, Prediction

MAX_WEIGHTS = 3_000_000
"""Attention weights per text on a page. If one map row per token would need more, tokens are grouped into blocks."""
MIN_TOKEN_ROWS, MAX_TOKEN_ROWS = 96, 512
"""Texts up to the minimum always have one map row per token, texts above the maximum never."""
MAX_BLOCKS = 128
"""Blocks per text if tokens are grouped."""


@dataclass(frozen=True)
class TokenRow:
    """One input sequence of the model."""

    ids: tuple[int, ...]
    second_start: int = 0
    """position of the second text; 0: there is no second text"""
    name: str = ""
    """name for titles if there are several rows"""
    truncations: tuple[tuple[int, int], ...] = ()
    """positions after a truncation, each with the number of tokens removed before the position"""


@dataclass(frozen=True)
class Decision:
    """A prediction to explain: input rows, candidate probabilities and output scores."""

    title: str
    prediction: str
    probabilities: tuple[tuple[str, float], ...]
    """candidate predictions with probabilities"""
    rows: tuple[TokenRow, ...]
    batch: Batch
    scores: tuple[OutputScore, ...]
    facts: dict[str, str] = field(default_factory=dict)
    probabilities_title: str = PROBABILITIES_TITLE
    """title of the probability chart"""


def explain_decision(model: ModelProtocol, decision: Decision) -> Explanation:
    """Explain the decision: run the batch again with attention recording."""
    heads = sum(place.heads for place in named_attentions(model.body).values()) * model.body.repeats
    most = int((MAX_WEIGHTS / heads) ** 0.5)
    views = [_row_attention(decision, number, most) for number in range(len(decision.rows))]
    found = attribute(model, decision.batch, views, decision.scores)
    steps = act_steps(model, decision.batch)
    text, counted, told_of = model.require_tokenizer(), [], set()
    for score, owed in zip(decision.scores, found, strict=True):
        make = partial(_token_attribution, decision, score, text)
        if owed is not None:
            counted.append(make(owed, GRADIENT))
        elif (score.row, score.positions) in told_of:
            continue  # rollout does not depend on the score
        counted.append(make(views[score.row].rollout(score.positions), ROLLOUT))
        told_of.add((score.row, score.positions))
    maps = [_attention_map(decision, view, text) for view in views]
    maps.append(_output_map(decision, views[decision.scores[0].row], text))
    facts = decision.facts | {"tokens": " + ".join(f"{len(row.ids):,}" for row in decision.rows)}
    if (room := attribution_bytes(model.body, decision.batch)) > MAX_BYTES:
        facts["gradient × attention"] = f"not computed: needs {room / 2**30:,.0f} GiB of memory"
    if model.body.shares_layers:
        facts["layers"] = "steps of one block with shared weights"
    if steps is not None:
        facts["attention rollout"] = "over all steps, including steps after a token has halted"
    decided = DecisionAttribution(
        decision.prediction, decision.probabilities, tuple(counted), decision.probabilities_title
    )
    thoughts = () if steps is None else tuple(_act_steps(decision, text, steps, model.config.max_steps))
    return Explanation(decision.title, tuple(maps), facts, decision=decided, act_steps=thoughts)


def _act_steps(decision: Decision, text: TextTokenizer, steps: Sequence[list[int]], most: int) -> Iterator[ActSteps]:
    """Number of steps per token of each row, for models with adaptive computation time."""
    for row, own in zip(decision.rows, steps, strict=True):
        name = f": {label(row.name, 40)}" if len(decision.rows) > 1 else ""
        yield ActSteps(f"Ponder steps per token (ACT){name}", tuple(text.display_tokens(row.ids)), tuple(own), most)


def _row_attention(decision: Decision, number: int, most: int) -> RowAttention:
    own = [score for score in decision.scores if score.row == number]
    at = own[0].positions
    marked = decision.batch.global_tokens
    apart = set() if len(at) > 8 else set(at)
    length = len(decision.rows[number].ids)
    if marked is not None:
        apart |= set(np.flatnonzero(marked.reshape(-1, marked.shape[-1])[number].cpu().numpy()[:length]).tolist())
    blocks = TokenBlocks.split(
        length, length if length <= min(max(most, MIN_TOKEN_ROWS), MAX_TOKEN_ROWS) else MAX_BLOCKS, apart
    )
    return RowAttention(number, length, blocks, at)


def _token_attribution(
    decision: Decision, score: OutputScore, text: TextTokenizer, values: Any, way: str
) -> TokenAttribution:
    row = decision.rows[score.row]
    total, begins = float(values.sum()), np.array(text.starts_word(row.ids))
    begins[[at for at, _ in row.truncations]] = True  # a truncation ends a word
    return TokenAttribution(
        title=score.name,
        target_kind=score.kind,
        method=way,
        pieces=tuple(_pieces(text, row)),
        fractions=values / total if total > 0 else values,
        special=tuple(token in text.special_ids and token not in _content_special_ids(text) for token in row.ids),
        words=tuple(np.cumsum(begins).tolist()),
        second_start=row.second_start,
        output_positions=score.positions,
        map_index=score.row,
        truncations=row.truncations,
    )


def _content_special_ids(text: TextTokenizer) -> set[int | None]:
    """Special tokens that represent a word of the text: unknown and mask."""
    return {text.special_id("unknown"), text.special_id("mask")}


def _pieces(text: TextTokenizer, row: TokenRow) -> list[str]:
    """Displayed tokens, with a space on both sides of special tokens and at truncations."""
    ids, seams = row.ids, dict(row.truncations)
    pieces, blank = display_pieces(text, ids), WHITESPACE_SYMBOLS[" "]
    for at in range(1, len(ids)):
        if {ids[at - 1], ids[at]} & text.special_ids or at in seams:
            pieces[at] = blank + pieces[at].removeprefix(blank)
    return pieces


def _attention_map(decision: Decision, view: RowAttention, text: TextTokenizer) -> AttentionMap:
    row, several = decision.rows[view.row], len(decision.rows) > 1
    names = view.blocks.names(text.display_tokens(row.ids))
    title = "Self-attention"
    if not view.blocks.is_trivial:
        title += f", in {len(view.blocks)} blocks of up to {int(view.blocks.sizes.max()):,} tokens"
    if several:
        title += f": {label(row.name, 40)}"
    name = f"text {view.row + 1}" if several else "text"
    cut = (int(view.blocks.block_ids[row.second_start]),) if row.second_start else ()
    return AttentionMap(
        name, title, names, names, np.stack(view.block_maps), boundaries=cut, sqrt_scale=not view.blocks.is_trivial
    )


def _output_map(decision: Decision, view: RowAttention, text: TextTokenizer) -> AttentionMap:
    """Attention from the output positions, one row per layer."""
    row = decision.rows[view.row]
    pieces = text.display_tokens(row.ids)
    keys = view.blocks.names(pieces)
    names = [pieces[at] if row.ids[at] in text.special_ids else f"‘{pieces[at]}’" for at in view.query_positions]
    title = f"Attention from {describe_tokens(names)} by layer"
    weights = np.stack(view.query_maps, axis=1)[None]
    return AttentionMap(
        "asked", title, tuple(f"layer {n + 1}" for n in range(len(view.query_maps))), keys, weights, row_kind="layers",
        sqrt_scale=not view.blocks.is_trivial, description="Rows: layers. Columns: keys.",
    )  # fmt: skip


# -- functions shared by the tasks


def encode_sample(
    model: ModelProtocol, sample: Any, data: DataSettings | None = None, labels: Sequence[str] = ()
) -> Encoded:
    """One sample, encoded by the task of the model."""
    config = model.config
    encoded: Encoded = model.task.encode([sample], model.require_tokenizer(), config, config.max_length, data, labels)
    return encoded


def check_not_empty(texts: Sequence[str]) -> None:
    if not any(text.strip() for text in texts):
        raise RegardError("Nothing to explain: the text is empty.")


def format_confidence(prediction: str, probability: float) -> str:
    return f"{label(prediction, 40)} {100 * probability:.1f} %"


def truncation_fact(encoded: Encoded, part: str = "middle") -> dict[str, str]:
    return (
        {"truncated": f"the text exceeds the maximum length of the model; the {part} was removed"}
        if encoded.too_long
        else {}
    )


MAX_LABELS = 6
"""Limit of explained labels per text."""


def decide_classify(model: Any, source: Any, target: str | None) -> Decision:
    """Prediction of a classifier. `target`: the second text of a pair, or the class to explain instead of the predicted class.

    The most likely other class is explained too. Multi-label classifiers: all predicted labels, up to `MAX_LABELS`."""
    labels, pairing = model.spec.labels, pair_order(model.spec.head_options)
    named = target if not pairing and target in labels else None
    if target is not None and named is None and not pairing and len(target.split()) == 1:
        raise UnknownNameError("class", target, labels)  # one word is an unlikely second text
    item = source if target is None or named is not None else (source, target)
    if isinstance(item, str):
        item = tuple(item.split("\t", 1)) if pairing else (item,)
    answer = model.predict(item)
    texts = [part.strip() for part in item]
    check_not_empty(texts)
    sample = LabeledText(texts[0], "".join(texts[1:]), labels[0])
    encoded = encode_sample(
        model, sample, DataSettings(pair_order="symmetric" if pairing == "symmetric" else "ordered"), labels
    )
    orders = [texts, texts[::-1]]
    rows = _mark_truncations(model, _encoded_rows(encoded, ("given order", "reverse order")), orders)
    chances = sorted(answer.extra["probabilities"].items(), key=lambda pair: -pair[1])
    wanted = [*([] if named is None else [named]), *(name for name, _ in chances if name != named)]
    several = isinstance(answer.value, list)
    said = str(answer.value) if not several else ", ".join(answer.value) or "(no label)"
    count = 2 if not several else min(max(len(answer.value), 1), MAX_LABELS)
    scores = []
    for name in wanted[:count]:
        # labels are explained by their own logit, classes by their margin over the average logit
        of = functools.partial(_class_logit if several else _class_margin, labels.index(name))
        for number, row in enumerate(rows):
            shown = name if len(rows) == 1 else f"{name}, {row.name}"
            scores.append(
                OutputScore(shown, number, _output_positions(model, row), of, "label" if several else "class")
            )
    return Decision(
        title=f"{join_titles(*texts)} → {label(said, 72)}"
        + (f" (attribution for {label(named, 40)})" if named not in (None, said) else ""),
        prediction=said,
        probabilities=tuple(chances),
        rows=rows,
        batch=model.task.collate(encoded, [0], model.config).to(model.device),
        scores=tuple(scores),
        facts={"prediction": format_confidence(said, chances[0][1]) if not several else said}
        | truncation_fact(encoded),
    )


def decide_choice(model: Any, source: Any, target: str | None) -> Decision:
    """Prediction among choices; every choice is explained. `target`: the choices "one|another", if not part of the source."""
    answer = model.predict(source) if target is None else model.rank(source, target.split("|"))
    told, choices = answer.extra["prompt"], [item["value"] for item in answer.extra["choices"]]
    check_not_empty([told])
    encoded = encode_sample(model, ChoiceSample(told, "", tuple(choices)))
    rows = _mark_truncations(model, _encoded_rows(encoded, choices), [[told, choice] for choice in choices])
    scores = [
        OutputScore(row.name, n, _output_positions(model, row), functools.partial(_class_margin, n), "choice")
        for n, row in enumerate(rows)
    ]
    chances = tuple((item["value"], item["probability"]) for item in answer.extra["choices"])
    return Decision(
        title=f"{join_titles(told)} → {label(choices[0], 72)}",
        prediction=choices[0],
        probabilities=chances,
        rows=rows,
        batch=model.task.collate(encoded, [0], model.config).to(model.device),
        scores=tuple(scores),
        facts={"prediction": format_confidence(*chances[0])} | truncation_fact(encoded),
        probabilities_title="Choice probabilities",
    )


def decide_embed(model: Any, source: Any, target: str | None) -> Decision:
    """Attribution of the cosine similarity of two texts, or rollout of the embedding of one text."""
    texts = [source] if target is None else [source, target]
    for text in texts:
        check_not_empty([text])
    encoded = encode_sample(model, Pair(texts[0], texts[-1], "", 0))
    ids = [encoded.fields[side][0] for side in ("first", "second")][: len(texts)]
    x, mask = pad(ids, pad_id(model.config))
    alone = model.task.pooling.mode == "cls"
    places = [(0,) if alone else tuple(range(len(row))) for row in ids]
    names = ("first text", "second text")
    facts = {}
    if len(texts) > 1:
        first, second = (np.array(answer.value) for answer in model.predict(texts))
        facts["cosine similarity"] = f"{first @ second / np.linalg.norm(first) / np.linalg.norm(second):.4f}"
        scores = [OutputScore(f"cosine similarity, {name}", n, places[n], _cosine) for n, name in enumerate(names)]
    else:
        scores = [OutputScore("embedding", 0, places[0], None)]
    return Decision(
        title=join_titles(*texts) + (f": cosine similarity {facts['cosine similarity']}" if facts else ""),
        prediction="",
        probabilities=(),
        rows=tuple(_truncated_row(model, row, name, text) for row, name, text in zip(ids, names, texts, strict=False)),
        batch=Batch(x, mask).to(model.device),
        scores=tuple(scores),
        facts=facts | truncation_fact(encoded, "end"),
    )


def _truncated_row(model: Any, row: np.ndarray, name: str, text: str) -> TokenRow:
    """Token row of one text, truncated at the end if too long."""
    lower = model.task.pooling.lowercase
    (whole,) = model.require_tokenizer().encode([text.strip().lower() if lower else text.strip()])
    lost = len(whole) + 2 - len(row)
    return TokenRow(tuple(row.tolist()), 0, name, ((len(row) - 1, lost),) if lost > 0 else ())


def _class_margin(which: int, logits: Tensor) -> Tensor:
    return logit_margin(logits[0], which)


def _class_logit(which: int, logits: Tensor) -> Tensor:
    return logits[0, which]


def _cosine(vectors: Tensor) -> Tensor:
    return F.cosine_similarity(vectors[0], vectors[1], dim=0)


def _encoded_rows(encoded: Encoded, names: Sequence[str]) -> tuple[TokenRow, ...]:
    """Token rows of one sample: a text, both orders of a pair, or one row per choice."""
    ids, sizes = encoded.fields["text"][0], encoded.fields["ways"][0]
    parts = np.split(ids, np.cumsum(sizes)[:-1].astype(np.int64))
    seconds = encoded.fields["second"][0]
    return tuple(
        TokenRow(tuple(part.tolist()), int(second), name)
        for part, second, name in zip(parts, seconds, names, strict=False)
    )


def _mark_truncations(model: Any, rows: Sequence[TokenRow], texts: Sequence[Sequence[str]]) -> tuple[TokenRow, ...]:
    """The rows with the positions and sizes of truncations in the middle of a text."""
    text = model.require_tokenizer()
    marks = SpecialTokens.from_tokenizer(text, model.config)
    found = []
    for row, parts in zip(rows, texts, strict=False):
        ends = [row.second_start - len(marks.delimiter)] * bool(row.second_start) + [len(row.ids) - len(marks.extract)]
        begins = [len(marks.start), row.second_start]
        whole = text.encode([parts[0], *(marks.second_text(part) for part in parts[1:])])
        seams = []
        for begin, end, ids in zip(begins, ends, whole, strict=False):
            if (lost := len(ids) - (end - begin)) > 0:
                seams.append((end - (end - begin) // 2, lost))
        found.append(replace(row, truncations=tuple(seams)))
    return tuple(found)


def _output_positions(model: ModelProtocol, row: TokenRow) -> tuple[int, ...]:
    """Position of the hidden state used by the head: the first token of an encoder, the last token of a decoder."""
    return (0,) if model.config.traits.is_encoder else (len(row.ids) - 1,)


MAX_TARGETS = 6
"""Limit of explained entities or mask tokens per text."""


def decide_tag(model: Any, source: Any, target: str | None) -> Decision:
    """Prediction of a tagger: all entities, or the words `target`; without both, the word with the lowest confidence."""
    answer = model.predict(source)
    words, names = answer.tokens, model.spec.labels
    stretches = [_find_words(words, target)] if target is not None else _entity_spans(answer)
    stretches = stretches or [(int(np.argmin(answer.score)),) * 2]
    encoded = encode_sample(model, TaggedSentence(tuple(words), ()))
    windows = [_word_positions(model, encoded, row) for row in range(len(encoded))]
    row = _best_window(encoded, windows, stretches[0][0])
    places = windows[row]
    scores, said = [], []
    for first, last in stretches[:MAX_TARGETS]:
        at = tuple(places[word] for word in range(first, last + 1) if word in places)
        if len(at) <= last - first:
            continue  # the entity is in another window of a long sentence
        tags = [names.index(answer.value[word]) for word in range(first, last + 1)]
        shown = f"{' '.join(words[first : last + 1])}: {answer.value[first]}"
        scores.append(OutputScore(shown, 0, at, functools.partial(_position_margin, at, tuple(tags))))
        said.append(shown)
    logits = torch.from_numpy(model.task.token_logits(model, encoded)[row][scores[0].positions[0]])
    chances = sorted(zip(names, logits.softmax(-1).tolist(), strict=True), key=lambda pair: -pair[1])
    return _window_decision(
        model, encoded, row, scores,
        title=f"{join_titles(' '.join(words))} → {', '.join(said)}", said=chances[0][0], chances=tuple(chances),
        asked=f"Tag probabilities for ‘{words[stretches[0][0]]}’",
    )  # fmt: skip


def decide_qa(model: Any, source: Any, target: str | None) -> Decision:
    """Start and end of the predicted answer. `target`: the context, if `source` contains only the question."""
    item = source if target is None else (source, target)
    answer = model.predict(item)
    question, context = _split_question(item)
    said = str(answer.value)
    answers, starts = ((said,), (answer.extra["start"],)) if said else ((), ())
    encoded = encode_sample(model, QASample(question, context, answers, starts, bool(said)))
    ends = [model.task.collate(encoded, [row], model.config).labels[0].tolist() for row in range(len(encoded))]
    if said:
        row = next((row for row, found in enumerate(ends) if any(found)), 0)
    else:  # no answer: the window with the lowest no-answer score decides
        logits = model.task.token_logits(model, encoded)
        row = min(range(len(encoded)), key=lambda number: float(logits[number][0].sum()))
    scores = [
        OutputScore(f"{how} of the answer", 0, (place,), functools.partial(_span_margin, place, which))
        for which, (how, place) in enumerate(zip(("start", "end"), ends[row], strict=True))
    ]
    chances = [(item["value"], item["probability"]) for item in answer.extra["answers"]]
    shown = said or "(no answer in the context)"
    if not said:
        chances.insert(0, (shown, answer.score[0]))
    facts = {"prediction": format_confidence(shown, answer.score[0])}
    if len(encoded) > 1:
        facts["window"] = f"{row + 1} of {len(encoded)}"
    return _window_decision(
        model, encoded, row, scores,
        title=f"{join_titles(question)} → {label(shown, 72)}", said=shown, chances=tuple(chances), facts=facts,
        asked="Answer probabilities",
    )  # fmt: skip


def decide_mlm(model: Any, source: Any, target: str | None) -> Decision:
    """Most likely token for each mask token, or the token `target`."""
    answer = model.predict(source)
    text, config = model.require_tokenizer(), model.config
    marks = SpecialTokens.from_tokenizer(text, config)
    (ids,) = text.encode_masked([source.replace(BERT_MASK, mask_token(text))])
    row = [*marks.start, *ids, *marks.extract]
    batch = Batch(torch.tensor([row], device=model.device))
    places = [at for at, token in enumerate(row) if token == config.mask_id]
    with torch.inference_mode():
        logits = model.task.logits(model, batch)[0, places].float().cpu()
    known = torch.from_numpy(text_token_mask(text, config))
    likeliest = logits.masked_fill(~known, -torch.inf).argmax(-1).tolist()
    best = likeliest if target is None else [_single_token_id(text, target)] * len(places)
    scores = []
    for number, (place, token) in enumerate(zip(places, best, strict=True)):
        name = token_word(text, token) + (f", mask {number + 1}" if len(places) > 1 else "")
        scores.append(OutputScore(name, 0, (place,), functools.partial(_position_margin, (place,), (token,)), "token"))
    chances = tuple((item["word"], item["probability"]) for item in answer.extra["masks"][0])
    return Decision(
        title=f"{join_titles(source)} → {label(str(answer.value), 72)}",
        prediction=chances[0][0],
        probabilities=chances,
        rows=(TokenRow(tuple(row)),),
        batch=batch,
        scores=tuple(scores[:MAX_TARGETS]),
        probabilities_title=f"Token probabilities at the {'first ' if len(places) > 1 else ''}mask token",
    )


def _position_margin(places: tuple[int, ...], outputs: tuple[int, ...], logits: Tensor) -> Tensor:
    """Sum of the margins of `outputs` at `places` of the only sequence."""
    found = [logit_margin(logits[0, place], output) for place, output in zip(places, outputs, strict=True)]
    return torch.stack(found).sum()


def _span_margin(place: int, which: int, logits: Tensor) -> Tensor:
    """Margin of token `place` over all tokens, as start (0) or end (1) of the answer."""
    return logit_margin(logits[0, :, which], place)


def _window_decision(
    model: Any, encoded: Encoded, row: int, scores: Sequence[OutputScore], *, title: str, said: str,
    chances: tuple[tuple[str, float], ...], facts: dict[str, str] | None = None, asked: str = PROBABILITIES_TITLE,
) -> Decision:  # fmt: skip
    """A prediction made in one window of a text."""
    own = TokenRow(tuple(encoded.fields["text"][row].tolist()), int(encoded.fields["second"][row][0]))
    batch = model.task.collate(encoded, [row], model.config).to(model.device)
    return Decision(title, said, chances, (own,), batch, tuple(scores), facts or {}, asked)


# -- words


def _entity_spans(answer: Prediction) -> list[tuple[int, int]]:
    return [(entity["first"], entity["last"]) for entity in answer.extra.get("entities", ())]


def _find_words(words: Sequence[str], target: str) -> tuple[int, int]:
    """Indices of the first and last word of `target` in the text; exact matches first, then case-insensitive matches."""
    wanted = target.split()
    for same in (lambda word: word, str.casefold):
        for first in range(len(words) - len(wanted) + 1):
            if wanted and [same(word) for word in words[first : first + len(wanted)]] == list(map(same, wanted)):
                return first, first + len(wanted) - 1
    raise RegardError(f"'{target}' does not occur in the text: {' '.join(words)}. Pass a word of the text, or no word.")


def _word_positions(model: Any, encoded: Encoded, row: int) -> dict[int, int]:
    """Position of the labeled token of each word in a window, by word index."""
    labels = model.task.collate(encoded, [row], model.config).labels[0]
    return {
        window_start(encoded, row) + number: at for number, at in enumerate((labels != IGNORE).nonzero()[:, 0].tolist())
    }


def _best_window(encoded: Encoded, windows: Sequence[dict[int, int]], word: int) -> int:
    """The window with the most context on both sides of a word."""
    lengths = [len(ids) for ids in encoded.fields["text"]]
    deep = {n: min(at[word], lengths[n] - 1 - at[word]) for n, at in enumerate(windows) if word in at}
    return max(deep, key=lambda number: deep[number])


def _split_question(item: Any) -> tuple[str, str]:
    """Question and context of an input that `predict` has accepted."""
    if isinstance(item, str):
        question, tab, context = item.partition("\t")
        item = (question, context) if tab else json.loads(item)
    if isinstance(item, dict):
        item = item["question"], item["context"]
    return item[0].strip(), item[1]


def _single_token_id(text: Any, word: str) -> int:
    (ids,) = text.encode([word])
    if len(ids) != 1:
        raise RegardError(
            f"'{word}' has {len(ids)} tokens, but a mask token represents one. Pass a word of one token, or no word."
        )
    return int(ids[0])
