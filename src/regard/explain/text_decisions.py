"""Explanation of a prediction on text: attribution of the output scores, and attention of every layer and head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from regard.data.batching.padding import pad
from regard.data.text.qa import QASample
from regard.data.text.samples import ChoiceSample, LabeledText, Pair
from regard.data.text.tagged import TaggedSentence
from regard.draw import token_data
from regard.draw.text import label
from regard.errors import RegardError, UnknownNameError
from regard.explain import Explanation, chosen_class
from regard.explain.rollout import (
    MAX_BYTES,
    OutputScore,
    RowAttention,
    ScoreFn,
    TokenBlocks,
    attribute,
    attribution_bytes,
    logit_margin,
)
from regard.explain.text_generation import display_pieces, join_titles
from regard.nn.recording import named_attentions
from regard.processors.tokenizer.token_text import WHITESPACE_SYMBOLS
from regard.processors.tokenizer.tokenizer import TextTokenizer
from regard.processors.tokenizer.vocabulary import BERT_MASK
from regard.tasks.base import Encoded, Model, act_steps, encode_samples, require_text, require_tokenizer
from regard.tasks.embed import pooling_of
from regard.tasks.mlm import mask_token, text_token_mask, token_word
from regard.tasks.modality.text import SpecialTokens, pad_id, window_start
from regard.types import IGNORE, Batch

MAX_WEIGHTS = 3_000_000
"""Attention weights per text on a page. If one map row per token would need more, tokens are grouped into blocks."""
MIN_TOKEN_ROWS, MAX_TOKEN_ROWS = 96, 512  # one map row per token: always up to the minimum, never above the maximum
MAX_BLOCKS = 128  # Blocks per text if tokens are grouped.


@dataclass(frozen=True)
class TokenRow:
    """One input sequence of the model."""

    ids: tuple[int, ...]
    second_start: int = 0  # position of the second text; 0: there is no second text
    name: str = ""  # name for titles if there are several rows
    truncations: tuple[tuple[int, int], ...] = ()  # positions with the number of tokens removed before each


def explain_scores(
    model: Model,
    batch: Batch,
    rows: Sequence[TokenRow],
    scores: Sequence[OutputScore],
    title: str,
    facts: dict[str, str],
    probabilities: Sequence[tuple[str, float]] = (),
    prediction: str = "",
    chart_title: str = token_data.PROBABILITIES_TITLE,
) -> Explanation:
    """Run the batch again with attention recording, and explain the scores. `rows`: the sequences of the batch;
    `probabilities`: candidate predictions; `prediction`: default the first candidate."""
    text = require_tokenizer(model)
    views = [_row_attention(model, batch, number, len(row.ids), scores) for number, row in enumerate(rows)]
    relevances, steps = attribute(model, batch, views, scores), act_steps(model, batch)
    attributions, with_rollout = [], set()
    for score, values in zip(scores, relevances, strict=True):
        if values is not None:
            attributions.append(_token_attribution(score, rows[score.row], text, values, token_data.GRADIENT))
        elif (score.row, score.positions) in with_rollout:
            continue  # rollout does not depend on the score
        rolled = views[score.row].rollout(score.positions)
        attributions.append(_token_attribution(score, rows[score.row], text, rolled, token_data.ROLLOUT))
        with_rollout.add((score.row, score.positions))
    names = [f": {label(row.name, 40)}" if len(rows) > 1 else "" for row in rows]
    maps = [_attention_map(view, rows[view.row], names[view.row], text) for view in views]
    maps.append(_output_map(views[scores[0].row], rows[scores[0].row].ids, text))
    facts = facts | {"tokens": " + ".join(f"{len(row.ids):,}" for row in rows)}
    if (needed := attribution_bytes(model.body, batch)) > MAX_BYTES:
        facts["gradient × attention"] = f"not computed: needs {needed / 2**30:,.0f} GiB of memory"
    if model.body.shares_layers:
        facts["layers"] = "steps of one block with shared weights"
    ponder_steps = []
    if steps:
        facts["attention rollout"] = "over all steps, including steps after a token has halted"
        for row, name, counts in zip(rows, names, steps, strict=True):
            pieces = tuple(text.display_tokens(row.ids))
            ponder_steps.append(
                token_data.ActSteps(
                    f"Ponder steps per token (ACT){name}", pieces, tuple(counts), model.config.max_steps
                )
            )
    prediction = prediction or (probabilities[0][0] if probabilities else "")
    decision = token_data.DecisionAttribution(prediction, tuple(probabilities), tuple(attributions), chart_title)
    return Explanation(title, tuple(maps), facts, decision=decision, act_steps=tuple(ponder_steps))


def _row_attention(model: Model, batch: Batch, number: int, length: int, scores: Sequence[OutputScore]) -> RowAttention:
    positions = next(score.positions for score in scores if score.row == number)
    isolated = set() if len(positions) > 8 else set(positions)
    if (global_tokens := batch.text.global_tokens) is not None:
        own = global_tokens.reshape(-1, global_tokens.shape[-1])[number, :length]
        isolated |= set(own.nonzero()[:, 0].tolist())
    heads = sum(place.heads for place in named_attentions(model.body).values()) * model.body.repeats
    most = min(max(int((MAX_WEIGHTS / heads) ** 0.5), MIN_TOKEN_ROWS), MAX_TOKEN_ROWS)
    blocks = TokenBlocks.split(length, length if length <= most else MAX_BLOCKS, isolated)
    return RowAttention(number, length, blocks, positions)


def _token_attribution(
    score: OutputScore, row: TokenRow, text: TextTokenizer, values: NDArray[np.float64], method: str
) -> token_data.TokenAttribution:
    ids, truncated = row.ids, [at for at, _ in row.truncations]
    total, begins = float(values.sum()), np.array(text.starts_word(ids))
    begins[truncated] = True  # a truncation ends a word
    # a space on both sides of special tokens and at truncations
    pieces, blank = display_pieces(text, ids), WHITESPACE_SYMBOLS[" "]
    for at in range(1, len(ids)):
        if {ids[at - 1], ids[at]} & text.special_ids or at in truncated:
            pieces[at] = blank + pieces[at].removeprefix(blank)
    content = {text.special_id("unknown"), text.special_id("mask")}  # special tokens for a word of the text
    return token_data.TokenAttribution(
        score.name,
        method,
        tuple(pieces),
        values / total if total > 0 else values,
        special=tuple(token in text.special_ids and token not in content for token in ids),
        words=tuple(np.cumsum(begins).tolist()),
        second_start=row.second_start,
        output_positions=score.positions,
        map_index=score.row,
        truncations=row.truncations,
        target_kind=score.kind,
    )


def _attention_map(view: RowAttention, row: TokenRow, name: str, text: TextTokenizer) -> token_data.AttentionMap:
    """Attention between the blocks of a text. `name`: end of the title if there are several texts."""
    names, title = view.blocks.names(text.display_tokens(row.ids)), "Self-attention"
    if in_blocks := not view.blocks.is_trivial:
        title += f", in {len(view.blocks)} blocks of up to {int(view.blocks.sizes.max()):,} tokens"
    cut = (int(view.blocks.block_ids[row.second_start]),) if row.second_start else ()
    weights, key = np.stack(view.block_maps), f"text {view.row + 1}" if name else "text"
    return token_data.AttentionMap(key, title + name, names, names, weights, boundaries=cut, sqrt_scale=in_blocks)


def _output_map(view: RowAttention, ids: Sequence[int], text: TextTokenizer) -> token_data.AttentionMap:
    """Attention from the output positions, one row per layer."""
    pieces = text.display_tokens(ids)
    names = [pieces[at] if ids[at] in text.special_ids else f"‘{pieces[at]}’" for at in view.query_positions]
    return token_data.AttentionMap(
        "asked",
        f"Attention from {token_data.describe_tokens(names)} by layer",
        tuple(f"layer {n + 1}" for n in range(len(view.query_maps))),
        view.blocks.names(pieces),
        np.stack(view.query_maps, axis=1)[None],
        sqrt_scale=not view.blocks.is_trivial,
        row_kind="layers",
        description="Rows: layers. Columns: keys.",
    )


# -- explainers of the tasks

MAX_TARGETS = 6  # Limit of explained labels, entities or mask tokens per text.


def explain_classify(
    model: Any, source: Any, target: str | None, at: None, class_name: str | None = None
) -> Explanation:
    """Explain the predicted and the next class, or all predicted labels. `target`: second text, or class to explain."""
    labels, pairing = model.spec.options.labels, model.spec.options.pair_order
    named, second = class_name, target
    if target in labels and not pairing:
        named, second = chosen_class(target, class_name), None
    if second is not None and not pairing and len(second.split()) == 1:
        raise UnknownNameError("class", second, labels)  # one word is an unlikely second text
    item = source if second is None else (source, second)
    if isinstance(item, str):
        item = tuple(item.split("\t", 1)) if pairing else (item,)
    answer = model.predict(item)
    texts = [part.strip() for part in item]
    check_not_empty(texts)
    encoded = encode_samples(model, [LabeledText(texts[0], "".join(texts[1:]), labels[0])])
    rows = _encoded_rows(model, encoded, ("given order", "reverse order"), [texts, texts[::-1]])
    probabilities = sorted(answer.extra["probabilities"].items(), key=lambda pair: -pair[1])
    classes = [*([] if named is None else [named]), *(name for name, _ in probabilities if name != named)]
    several = isinstance(answer.value, list)
    prediction = ", ".join(answer.value) or "(no label)" if several else str(answer.value)
    scores = []
    for name in classes[: min(max(len(answer.value), 1), MAX_TARGETS) if several else 2]:
        # labels are explained by their own logit, classes by their margin over the average logit
        which = labels.index(name)
        score_fn = itemgetter((0, which)) if several else margin(((0,), which))
        for number, row in enumerate(rows):
            title = name if len(rows) == 1 else f"{name}, {row.name}"
            positions, kind = _output_positions(model, row), "label" if several else "class"
            scores.append(OutputScore(title, number, positions, score_fn, kind))
    explained = f" (attribution for {label(named, 40)})" if named not in (None, prediction) else ""
    title = f"{join_titles(*texts)} → {label(prediction, 72)}{explained}"
    facts = {"prediction": prediction if several else format_confidence(*probabilities[0])} | truncation_fact(encoded)
    return explain_scores(model, row_batch(model, encoded), rows, scores, title, facts, probabilities, prediction)


def explain_choice(model: Any, source: Any, target: str | None, at: None) -> Explanation:
    """Explain every choice. `target`: the choices "one|another", if not part of the source."""
    answer = model.predict(source) if target is None else model.rank(source, target.split("|"))
    prompt, choices = answer.extra["prompt"], [item["value"] for item in answer.extra["choices"]]
    check_not_empty([prompt])
    encoded = encode_samples(model, [ChoiceSample(prompt, "", tuple(choices))])
    rows = _encoded_rows(model, encoded, choices, [[prompt, choice] for choice in choices])
    scores = [
        OutputScore(row.name, n, _output_positions(model, row), margin(((0,), n)), "choice")
        for n, row in enumerate(rows)
    ]
    probabilities = [(item["value"], item["probability"]) for item in answer.extra["choices"]]
    title = f"{join_titles(prompt)} → {label(choices[0], 72)}"
    facts = {"prediction": format_confidence(*probabilities[0])} | truncation_fact(encoded)
    batch = row_batch(model, encoded)
    return explain_scores(model, batch, rows, scores, title, facts, probabilities, chart_title="Choice probabilities")


def explain_embed(model: Any, source: Any, target: str | None, at: None) -> Explanation:
    """Attribution of the cosine similarity of two texts, or rollout of the embedding of one text."""
    texts = [require_text(source)] if target is None else [require_text(source), target]
    for text in texts:
        check_not_empty([text])
    encoded, pooling = encode_samples(model, [Pair(texts[0], texts[-1], "", 0)]), pooling_of(model.spec.options)
    ids = [encoded.fields[side][0] for side in ("first", "second")][: len(texts)]
    x, mask = pad(ids, pad_id(model.config))
    rows, names, facts = [], ("first text", "second text"), {}
    for own, name, text in zip(ids, names, texts, strict=False):
        (whole,) = require_tokenizer(model).encode([text.strip().lower() if pooling.lowercase else text.strip()])
        lost = len(whole) + 2 - len(own)  # a text that is too long is truncated at the end
        rows.append(TokenRow(tuple(own.tolist()), 0, name, ((len(own) - 1, lost),) if lost > 0 else ()))
    positions = [(0,) if pooling.mode == "cls" else tuple(range(len(own))) for own in ids]
    scores = [OutputScore("embedding", 0, positions[0], None)]
    if len(texts) > 1:
        first, second = (np.array(answer.value) for answer in model.predict(texts))
        facts["cosine similarity"] = f"{first @ second / np.linalg.norm(first) / np.linalg.norm(second):.4f}"
        scores = [
            OutputScore(f"cosine similarity, {name}", n, own, lambda v: F.cosine_similarity(v[0], v[1], dim=0))
            for n, (name, own) in enumerate(zip(names, positions, strict=True))
        ]
    title = join_titles(*texts) + (f": cosine similarity {facts['cosine similarity']}" if facts else "")
    facts |= truncation_fact(encoded)
    return explain_scores(model, Batch(x, mask).to(model.device), rows, scores, title, facts)


def explain_tag(model: Any, source: Any, target: str | None, at: None, class_name: str | None = None) -> Explanation:
    """Explain a tagger: all entities, or the words `target`; without both, the word with the lowest confidence. `class_name`:
    tag to explain in place of the predicted ones."""
    answer = model.predict(source)
    words, tags = answer.tokens, model.spec.options.labels
    spans = [(entity["first"], entity["last"]) for entity in answer.extra.get("entities", ())]
    spans = [_find_words(words, target)] if target is not None else spans or [(int(np.argmin(answer.score)),) * 2]
    encoded = encode_samples(model, [TaggedSentence(tuple(words), ())])
    windows = []  # position of the labeled token of each word, by word index
    for row in range(len(encoded)):
        labeled = (row_batch(model, encoded, row).labels[0] != IGNORE).nonzero()[:, 0].tolist()
        windows.append(dict(enumerate(labeled, window_start(encoded, row))))
    # the window with the most context on both sides of the first span
    lengths, first_word = [len(ids) for ids in encoded.fields["text"]], spans[0][0]
    context = {
        number: min(window[first_word], lengths[number] - 1 - window[first_word])
        for number, window in enumerate(windows)
        if first_word in window
    }
    row = max(context, key=lambda number: context[number])
    scores = []
    for first, last in spans[:MAX_TARGETS]:
        positions = tuple(windows[row][word] for word in range(first, last + 1) if word in windows[row])
        if len(positions) <= last - first:
            continue  # the entity is in another window of a long sentence
        outputs = tuple(tags.index(class_name or answer.value[word]) for word in range(first, last + 1))
        name = f"{' '.join(words[first : last + 1])}: {class_name or answer.value[first]}"
        score_fn = margin(*(((0, at), output) for at, output in zip(positions, outputs, strict=True)))
        scores.append(OutputScore(name, 0, positions, score_fn))
    logits = torch.from_numpy(model.objective.token_logits(model, encoded)[row][scores[0].positions[0]])
    probabilities = sorted(zip(tags, logits.softmax(-1).tolist(), strict=True), key=lambda pair: -pair[1])
    title = f"{join_titles(' '.join(words))} → {', '.join(score.name for score in scores)}"
    batch, rows = row_batch(model, encoded, row), [_window(encoded, row)]
    chart_title = f"Tag probabilities for ‘{words[first_word]}’"
    return explain_scores(model, batch, rows, scores, title, {}, probabilities, chart_title=chart_title)


def explain_qa(model: Any, source: Any, target: str | None, at: None) -> Explanation:
    """Explain start and end of the predicted answer. `target`: the context, if `source` contains only the question."""
    item = source if target is None else (source, target)
    answer = model.predict(item)
    sample, value = model.objective.parse_input(item, model.spec.options), str(answer.value)
    answers, starts = ((value,), (answer.extra["start"],)) if value else ((), ())
    encoded = encode_samples(model, [QASample(sample.question, sample.context, answers, starts, bool(value))])
    spans = [row_batch(model, encoded, row).labels[0].tolist() for row in range(len(encoded))]
    if value:
        row = next((row for row, span in enumerate(spans) if any(span)), 0)
    else:  # no answer: the window with the lowest no-answer score decides
        logits = model.objective.token_logits(model, encoded)
        row = min(range(len(encoded)), key=lambda number: float(logits[number][0].sum()))
    scores = [
        OutputScore(f"{name} of the answer", 0, (position,), margin(((0, slice(None), which), position)))
        for which, (name, position) in enumerate(zip(("start", "end"), spans[row], strict=True))
    ]
    probabilities = [(item["value"], item["probability"]) for item in answer.extra["answers"]]
    prediction = value or "(no answer in the context)"
    if not value:
        probabilities.insert(0, (prediction, answer.score[0]))
    facts = {"prediction": format_confidence(prediction, answer.score[0])}
    if len(encoded) > 1:
        facts["window"] = f"{row + 1} of {len(encoded)}"
    title = f"{join_titles(sample.question)} → {label(prediction, 72)}"
    batch, rows = row_batch(model, encoded, row), [_window(encoded, row)]
    return explain_scores(model, batch, rows, scores, title, facts, probabilities, chart_title="Answer probabilities")


def explain_mlm(model: Any, source: Any, target: str | None, at: None) -> Explanation:
    """Explain the most likely token for each mask token, or the token `target`."""
    answer = model.predict(source)
    text, config = require_tokenizer(model), model.config
    marks = SpecialTokens.from_tokenizer(text, config)
    (ids,) = text.encode_masked([source.replace(BERT_MASK, mask_token(text))])
    row = [*marks.start, *ids, *marks.extract]
    batch = Batch(torch.tensor([row], device=model.device))
    positions = [position for position, token in enumerate(row) if token == config.mask_id]
    if target is None:
        with torch.inference_mode():
            logits = model.objective.logits(model, batch)[0, positions].float().cpu()
        known = torch.from_numpy(text_token_mask(text, config))
        tokens = logits.masked_fill(~known, -torch.inf).argmax(-1).tolist()
    else:
        (ids,) = text.encode([target])
        if len(ids) != 1:
            raise RegardError(
                f"'{target}' has {len(ids)} tokens, but a mask token represents one. Pass a word of one token, or no word."
            )
        tokens = [int(ids[0])] * len(positions)
    scores = []
    for number, (position, token) in enumerate(zip(positions, tokens, strict=True)):
        name = token_word(text, token) + (f", mask {number + 1}" if len(positions) > 1 else "")
        scores.append(OutputScore(name, 0, (position,), margin(((0, position), token)), "token"))
    probabilities = [(item["word"], item["probability"]) for item in answer.extra["masks"][0]]
    title = f"{join_titles(source)} → {label(str(answer.value), 72)}"
    chart_title = f"Token probabilities at the {'first ' if len(positions) > 1 else ''}mask token"
    rows, scores = [TokenRow(tuple(row))], scores[:MAX_TARGETS]
    return explain_scores(model, batch, rows, scores, title, {}, probabilities, chart_title=chart_title)


# -- functions shared by the tasks


def row_batch(model: Model, encoded: Encoded, row: int = 0) -> Any:
    """The batch of one encoded row on the device of the model, with labels."""
    return model.objective.collate(encoded, [row], model.config).to(model.device)


def check_not_empty(texts: Sequence[str]) -> None:
    if not any(text.strip() for text in texts):
        raise RegardError("Nothing to explain: the text is empty.")


def format_confidence(prediction: str, probability: float) -> str:
    return f"{label(prediction, 40)} {100 * probability:.1f} %"


def truncation_fact(encoded: Encoded) -> dict[str, str]:
    text = "the text exceeds the maximum length of the model; the end was removed"
    return {"truncated": text} if encoded.too_long else {}


def margin(*targets: tuple[Any, int]) -> ScoreFn:
    """Score function of the logits: sum of the margins of the targets, each the place of a vector of logits, and an index."""
    return lambda logits: torch.stack([logit_margin(logits[place], index) for place, index in targets]).sum()


def _output_positions(model: Model, row: TokenRow) -> tuple[int, ...]:
    """Position of the hidden state used by the head: the first token of an encoder, the last token of a decoder."""
    return (0,) if model.config.traits.is_encoder else (len(row.ids) - 1,)


def _encoded_rows(model: Any, encoded: Encoded, names: Sequence[str], texts: Sequence[Sequence[str]]) -> list[TokenRow]:
    """Token rows of one sample, with the positions and sizes of truncations at the end of a text."""
    tokenizer, marks = require_tokenizer(model), SpecialTokens.from_tokenizer(require_tokenizer(model), model.config)
    parts = np.split(encoded.fields["text"][0], np.cumsum(encoded.fields["ways"][0])[:-1].astype(np.int64))
    rows = []
    for ids, second, name, own in zip(parts, encoded.fields["second"][0], names, texts, strict=False):
        starts = [len(marks.start), int(second)]
        ends = [int(second) - len(marks.delimiter)] * bool(second) + [len(ids) - len(marks.extract)]
        whole = tokenizer.encode([own[0], *(marks.second_text(part) for part in own[1:])])
        truncations = []
        for start, end, tokens in zip(starts, ends, whole, strict=False):
            if (lost := len(tokens) - (end - start)) > 0:
                truncations.append((end, lost))
        rows.append(TokenRow(tuple(ids.tolist()), int(second), name, tuple(truncations)))
    return rows


def _window(encoded: Encoded, row: int) -> TokenRow:
    """Token row of one window of a text."""
    return TokenRow(tuple(encoded.fields["text"][row].tolist()), int(encoded.fields["second"][row][0]))


def _find_words(words: Sequence[str], target: str) -> tuple[int, int]:
    """Indices of the first and last word of `target` in the text; exact matches first, then case-insensitive matches."""
    wanted = target.split()
    for same in (lambda word: word, str.casefold):
        for first in range(len(words) - len(wanted) + 1):
            if wanted and [same(word) for word in words[first : first + len(wanted)]] == list(map(same, wanted)):
                return first, first + len(wanted) - 1
    raise RegardError(f"'{target}' does not occur in the text: {' '.join(words)}. Pass a word of the text, or no word.")
