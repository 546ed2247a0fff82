"""Attributions of a prediction against finite differences; rollout and relevance against loops, also of long rows."""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from data_files import refused
from encoders import encoder as tiny_encoder
from regard.draw.token_data import GRADIENT, ROLLOUT, TokenAttribution
from regard.errors import RegardError
from regard.explain import Explanation
from regard.explain.rollout import AttentionLayer, AttentionSlice, RowAttention, TokenBlocks, rollout
from regard.model import Model
from regard.nn.recording import record_attention
from regard.tasks.base import HeadOptions
from regard.types import AttentionRecord, Batch, TextFields
from tiny import near, noise
from tiny_text_models import headed
from tokenizer_files import STORY

SENTENCES = (
    "the cat sat on the mat and looked at the moon",
    "a dog that never barked was sleeping under the table",
    "who saw the unbelievable comet yesterday evening",
)
LABELS = ("good", "bad", "so")
TAGS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")


def encoder(name: str, labels: Sequence[str] = (), pair: str = "") -> Model:
    """BERT of two layers with random weights and a vocabulary of the sentences."""
    options = HeadOptions(tuple(labels), pair_order=pair)
    return tiny_encoder(name, SENTENCES * 3, vocab_size=130, options=options, scale=0.3, max_length=48)


def classifier(system: str) -> tuple[Model, str]:
    """A classifier and a text."""
    if system == "bert":
        return encoder("classify", LABELS), "the cat sat"
    return headed("classify", labels=LABELS), "deaf"


def counted(found: Explanation, way: str = GRADIENT) -> list[TokenAttribution]:
    assert found.decision is not None
    return [one for one in found.decision.attributions if one.method == way]


# -- attributions


def moved(model: Model, batch: Batch, which: tuple[int, ...], step: float) -> Tensor:
    """Logits after a change of one attention weight (layer, head, query, key) by `step`."""
    (layer, head, query, key), calls = which, iter(range(1000))

    def edit(name: str, weights: Tensor, keys: Tensor | None) -> Tensor:
        if next(calls) == layer:
            weights = weights.clone()
            weights[0, head, query, key] += step
        return weights

    with torch.no_grad(), record_attention(model.body, edits=[edit]):
        return model.task.objective.logits(model, batch)


@pytest.mark.every(2)
@pytest.mark.parametrize("system", ["bert", "gpt2"])
def test_attributions_equal_finite_differences_by_each_weight(system: str) -> None:
    """Ā is the positive part of weight × gradient of (logit - average logit), averaged over heads; then R ← R + Ā R."""
    model, source = classifier(system)
    found = model.explain(source)
    one = counted(found)[0]
    label = model.spec.options.labels.index(one.title)
    assert found.decision is not None and one.title == found.decision.prediction
    length, depth, heads = len(one.pieces), model.config.depth, model.config.heads
    row = [model.tokenizer.backend.token_to_id(piece.strip("␣")) for piece in one.pieces]
    batch = Batch(torch.tensor([row]))
    with torch.no_grad(), record_attention(model.body) as seen:
        chance = float(model.task.objective.logits(model, batch).softmax(-1)[0, label])
    assert chance == pytest.approx(found.decision.probabilities[0][1], rel=1e-12)
    joined = torch.eye(length, dtype=torch.float64)
    for layer, name in enumerate(seen.names()):
        weights, mean = seen.weights(name)[0], torch.zeros(length, length, dtype=torch.float64)
        for head, query, key in np.ndindex(heads, length, length):
            up, down = (moved(model, batch, (layer, head, query, key), step)[0] for step in (1e-4, -1e-4))
            up, down = up[label] - up.mean(), down[label] - down.mean()
            mean[query, key] += (weights[head, query, key] * (up - down) / 2e-4).clamp(min=0) / heads
        joined = joined + mean @ joined
    assert layer == depth - 1
    asked = 0 if system == "bert" else length - 1
    right = joined[asked] - torch.eye(length)[asked]
    assert one.output_positions == (asked,) and float(right.sum()) > 0
    np.testing.assert_allclose(one.fractions, right / right.sum(), atol=1e-7)


@pytest.mark.parametrize("system", ["bert", "gpt2"])
def test_rollout_starts_from_the_predicted_token(system: str) -> None:
    model, source = classifier(system)
    found = model.explain(source)
    one = counted(found, ROLLOUT)[0]
    text, asked = (item.weights.astype(np.float64) for item in found.maps)
    product = np.eye(len(one.pieces))
    for layer in text:
        product = (layer.mean(0) + np.eye(len(product))) / 2 @ product
    np.testing.assert_allclose(one.fractions, product[one.output_positions[0]], atol=1e-6)
    assert one.fractions.sum() == pytest.approx(1) and (system == "bert") == (one.output_positions == (0,))
    # the row of the predicted token, layer by layer
    np.testing.assert_allclose(asked[0].transpose(1, 0, 2), text[:, :, one.output_positions[0]], atol=1e-7)
    assert found.maps[1].queries == tuple(f"layer {n + 1}" for n in range(model.config.depth))
    if system == "gpt2":
        assert not np.triu(text, 1).any()


def test_attention_weights_stay_in_the_graph_only_on_request() -> None:
    model, batch = encoder("classify", LABELS), Batch(torch.tensor([[2, 7, 9, 3]]))
    with record_attention(model.body) as plain:
        model.task.objective.logits(model, batch)
    assert not any(look.weights.requires_grad for look in plain.records)
    model.requires_grad_(False)
    with record_attention(model.body, gradients=True) as seen:  # even if frozen
        value = model.task.objective.logits(model, batch)[0, 1]
    found = torch.autograd.grad(value, [look.weights for look in seen.records])
    assert len(found) == 2 and all(bool(gradient.any()) for gradient in found)


def test_explaining_leaves_the_model_as_it_was() -> None:
    model = encoder("classify", LABELS).train()
    quiet = encoder("classify", LABELS).explain(SENTENCES[0])
    again = model.explain(SENTENCES[0])
    assert model.training and not any(module._forward_pre_hooks for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())
    for a, b in zip(counted(quiet), counted(again), strict=True):
        assert np.array_equal(a.fractions, b.fractions)  # dropout is disabled during the explanation


# -- inputs and predictions of tasks


def test_two_texts_are_separated_and_both_orders_of_a_symmetric_pair_are_shown() -> None:
    first, second = "the cat sat", "a dog"
    found = encoder("classify", LABELS, pair="ordered").explain(first, second)
    one = counted(found)[0]
    words = [piece.strip("␣") for piece in one.pieces]
    assert words == ["[CLS]", "the", "cat", "sat", "[SEP]", "a", "dog", "[SEP]"] and one.second_start == 5
    assert found.maps[0].boundaries == (5,) and found.title.startswith("the cat sat ▸ a dog → ")
    assert found.decision is not None
    assert [one.title for one in counted(found)] == [name for name, _ in found.decision.probabilities[:2]]
    both = encoder("classify", LABELS, pair="symmetric").explain(f"{first}\t{second}")
    orders = [(one.map_index, one.second_start) for one in counted(both)]
    assert orders == [(0, 5), (1, 4), (0, 5), (1, 4)]
    assert [item.name for item in both.maps] == ["text 1", "text 2", "asked"]


def test_another_class_than_the_predicted_one_can_be_explained() -> None:
    model = encoder("classify", LABELS)
    usual = model.explain(SENTENCES[0])
    assert usual.decision is not None
    predicted, other = usual.decision.prediction, usual.decision.probabilities[2][0]
    named = model.explain(SENTENCES[0], other)
    assert [one.title for one in counted(named)] == [other, predicted]
    assert np.array_equal(counted(named)[1].fractions, counted(usual)[0].fractions)
    assert named.title == f"{usual.title} (attribution for {other})"
    assert named.decision is not None and named.decision.prediction == predicted
    assert model.explain(SENTENCES[0], predicted).title == usual.title
    refused(r"'goood'.*good", model.explain, SENTENCES[0], "goood", error=RegardError)


@pytest.mark.parametrize("system", ["bert", "gpt2"])
def test_every_choice_is_explained_separately(system: str) -> None:
    model = encoder("choose") if system == "bert" else headed("choose")
    told, choices = ("the cat", ["a dog", "the moon"]) if system == "bert" else ("abc", ["de", "hag"])
    found = model.explain(told, "|".join(choices))
    answer = model.rank(told, choices)
    assert found.decision is not None and found.decision.prediction == answer.value
    assert [one.title for one in counted(found)] == [item["value"] for item in answer.extra["choices"]]
    assert [one.map_index for one in counted(found)] == [0, 1] and len(found.maps) == 3
    alone = {one.title: one for one in counted(model.explain(told, "|".join(choices[::-1])))}
    for one in counted(found):
        np.testing.assert_allclose(one.fractions, alone[one.title].fractions, atol=1e-12)
    again = model.explain(json.dumps({"context": told, "choices": choices}))
    assert np.array_equal(counted(again)[0].fractions, counted(found)[0].fractions)


def shares_of(
    model: Model, row: Sequence[int], at: Sequence[int], value: Callable[[Tensor], Tensor], types: Tensor | None = None
) -> np.ndarray:
    """Attribution of each token for a function of the last hidden states (L, D) of one row, by matrix products."""
    with record_attention(model.body, gradients=True) as seen:
        states = model.body(Batch(torch.tensor([list(row)]), text=TextFields(token_types=types))).sequence[0]
    weights = [look.weights for look in seen.records]
    joined = torch.eye(len(row), dtype=torch.float64)
    for own, gradient in zip(weights, torch.autograd.grad(value(states), weights), strict=True):
        joined = joined + (gradient * own.detach())[0].clamp(min=0).mean(0) @ joined
    start = torch.eye(len(row), dtype=torch.float64)[list(at)].mean(0)
    found = start @ joined - start
    return (found / found.sum()).numpy()


def ids(model: Model, words: str) -> list[int]:
    return [int(model.tokenizer.backend.token_to_id(word) or 0) for word in words.split()]


def test_entities_and_named_words_are_explained_at_their_first_tokens() -> None:
    model, source = encoder("tag", TAGS), "the cat sat on the unbelievable moon"
    answer, found = model.predict(source), model.explain(source, "Moon")
    (one,) = counted(found)
    (at,) = one.output_positions
    assert one.pieces[at] == "␣moon" and one.title == f"moon: {answer.value[6]}"
    row = [model.config.bos_id, *model.tokenizer.encode([source])[0], model.config.eos_id]

    def value(states: Tensor) -> Tensor:
        logits = model.head(states)[at]
        return logits[TAGS.index(answer.value[6])] - logits.mean()

    np.testing.assert_allclose(one.fractions, shares_of(model, row, one.output_positions, value), atol=1e-10)
    assert found.decision is not None
    assert dict(found.decision.probabilities)[answer.value[6]] == pytest.approx(answer.score[6])
    assert counted(model.explain(source, "the cat"))[0].output_positions == (1, 2)
    refused("'sun'", model.explain, source, "sun", error=RegardError)


def test_without_a_named_word_every_entity_is_explained() -> None:
    model, source = encoder("tag", TAGS), "the cat sat on the moon"
    bias = model.head.tags.bias.data
    bias[:2] += torch.tensor([-50, 25])  # every word is an entity
    assert [one.title for one in counted(model.explain(source))] == [f"{word}: B-PER" for word in source.split()][:6]
    bias[0] += 200  # no word is an entity
    (one,) = counted(model.explain(source))
    assert one.title == f"{source.split()[int(np.argmin(model.predict(source).score))]}: O"


def test_both_ends_of_an_answer_are_explained_in_their_window() -> None:
    model = encoder("qa")
    question, context = "who saw the comet", "a dog that never barked was sleeping under the table"
    answer = model.predict((question, context))
    found = model.explain(question, context)
    begins, ends = counted(found)
    said = [piece.strip("␣") for piece in begins.pieces[begins.output_positions[0] : ends.output_positions[0] + 1]]
    assert "".join(said) == str(answer.value).replace(" ", "") and begins.second_start == 6
    row = [2, *ids(model, question), 3, *model.tokenizer.encode([context])[0], 3]
    types = torch.tensor([[0] * begins.second_start + [1] * (len(row) - begins.second_start)])

    for which, one in enumerate((begins, ends)):

        def value(states: Tensor, which: int = which, at: int = one.output_positions[0]) -> Tensor:
            numbers = model.head(states)[:, which]
            return numbers[at] - numbers.mean()

        np.testing.assert_allclose(one.fractions, shares_of(model, row, one.output_positions, value, types), atol=1e-10)
    again = model.explain(json.dumps({"question": question, "context": context}))
    assert np.array_equal(counted(again)[1].fractions, ends.fractions)


def test_a_mask_token_is_explained_by_its_most_likely_word_or_a_named_one() -> None:
    model = encoder("mlm")
    source = "the cat [MASK] on the [MASK]"
    answer = model.predict(source)
    found = model.explain(source)
    assert [one.output_positions for one in counted(found)] == [(3,), (6,)]
    assert [one.title for one in counted(found)] == [
        f"{gap[0]['word']}, mask {number}" for number, gap in enumerate(answer.extra["masks"], start=1)
    ]
    assert not any(counted(found)[0].special[1:-1])  # a mask token represents a word
    row, token = [2, *ids(model, "the cat [MASK] on the [MASK]"), 3], ids(model, "moon")[0]

    def value(states: Tensor) -> Tensor:
        logits = model.head.words(states[3], model.body.tokens)
        return logits[token] - logits.mean()

    named = counted(model.explain(source, "moon"))[0]
    np.testing.assert_allclose(named.fractions, shares_of(model, row, (3,), value), atol=1e-10)
    refused("'moonlit'", model.explain, source, "moonlit", error=RegardError)


def test_the_likeness_of_two_texts_is_shared_among_the_words_of_both() -> None:
    model = encoder("embed")
    found = model.explain("the cat sat", "a dog")
    first, second = counted(found)
    assert (first.map_index, first.output_positions) == (0, tuple(range(5)))
    assert (second.map_index, second.output_positions) == (1, tuple(range(4)))
    row, other = [2, *ids(model, "the cat sat"), 3], [2, *ids(model, "a dog"), 3]
    with torch.no_grad():
        fixed = model.body(Batch(torch.tensor([other]))).sequence[0].mean(0)

    def value(states: Tensor) -> Tensor:
        return torch.nn.functional.cosine_similarity(states.mean(0), fixed, dim=0)

    np.testing.assert_allclose(first.fractions, shares_of(model, row, range(5), value), atol=1e-10)
    vectors = [np.array(answer.value) for answer in model.predict(["the cat sat", "a dog"])]
    assert found.facts["cosine similarity"] == f"{vectors[0] @ vectors[1]:.4f}"
    alone = model.explain("the cat sat")
    assert not counted(alone) and len(counted(alone, ROLLOUT)) == 1


def test_unsupported_explanations_are_refused_with_a_message() -> None:
    model = encoder("classify", LABELS)
    refused("explain", model.explain, "  ", error=RegardError)
    with torch.no_grad():
        model.head.classes.weight.fill_(float("nan"))
    refused("diverged", model.explain, "the cat", error=RegardError)


def test_without_memory_for_gradients_attention_is_shown_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    from regard.explain import rollout, text_decisions

    model = encoder("classify", LABELS)
    whole = model.explain(SENTENCES[0])
    for module in (rollout, text_decisions):
        monkeypatch.setattr(module, "MAX_BYTES", 1000)
    found = model.explain(SENTENCES[0])
    assert not counted(found) and "not computed" in found.facts["gradient × attention"]
    (alone,) = counted(found, ROLLOUT)  # identical for all classes
    for other in counted(whole, ROLLOUT):
        np.testing.assert_allclose(alone.fractions, other.fractions, atol=1e-12)
    for a, b in zip(found.maps, whole.maps, strict=True):
        np.testing.assert_allclose(a.weights, b.weights, atol=1e-7)


# -- truncated texts

WORDS = " ".join(["the cats", "sat on", "a mat"] * 12)


@pytest.mark.parametrize("pair", [False, True])
def test_the_cut_is_where_the_end_was_removed(pair: bool) -> None:
    model = tiny_encoder("classify", [STORY, WORDS], ("bad", "good"), vocab_size=200)
    text = model.tokenizer
    found = model.explain(WORDS, "the cat is a cat" if pair else None)
    assert found.decision is not None and "truncated" in found.facts
    (whole,) = text.encode([WORDS])
    for one in found.decision.attributions:
        ((at, lost),) = one.truncations
        kept = "".join(one.pieces[1:at]).replace("␣", " ").strip()
        assert kept == text.decode([whole[: at - 1]])[0].strip() and at - 1 + lost == len(whole)
        assert at == (one.second_start - 1 if pair else len(one.pieces) - 1)
        assert one.words[at] != one.words[at - 1]


def test_of_an_embedded_text_the_end_is_left_out_and_of_a_short_one_nothing() -> None:
    model = tiny_encoder("embed", [STORY, WORDS], vocab_size=200)
    (whole,) = model.tokenizer.encode([WORDS])
    long, short = (model.explain(text).decision for text in (WORDS, "the cats"))
    assert long is not None and short is not None
    assert [one.truncations for one in long.attributions] == [((23, len(whole) - 22),)] * len(long.attributions)
    assert all(not one.truncations for one in short.attributions)


def test_no_word_extends_into_the_removed_part() -> None:
    model = tiny_encoder("classify", [" ".join("abcdefgh"), "abcdefgh"], ("bad", "good"), vocab_size=24)
    text, inside = model.tokenizer, 0
    for more in range(4):
        source = " ".join(["abcdefgh"] * more + ["hgfedcba"] * 12)
        (whole,) = text.encode([source])
        found = model.explain(source).decision
        assert found is not None
        one = found.attributions[0]
        ((at, lost),) = one.truncations
        inside += not text.starts_word(whole)[at - 1]
        assert at - 1 + lost == len(whole)
        assert one.words[at] != one.words[at - 1] and one.pieces[at].startswith("␣")
    assert inside, "the cut must be inside a word in this test"


# -- rollout

L, H, DEPTH = 7, 3, 4


def looks(causal: bool = False, blind: int | None = None, seed: int = 0) -> list[Tensor]:
    """Attention weights (H, L, L) per layer; query `blind` attends to nothing."""
    found = []
    for layer in range(DEPTH):
        weights = (noise(H, L, L, seed=10 * seed + layer) * 2).exp()
        weights = weights.tril() if causal else weights
        weights = weights / weights.sum(-1, keepdim=True)
        if blind is not None:
            weights[:, blind] = 0
        found.append(weights)
    return found


def written_out(weights: list[Tensor]) -> Tensor:
    """Product over the layers of (A + I) / 2 with rows normalized to 1."""
    found = torch.eye(L, dtype=torch.float64)
    for heads in weights:
        step = heads.double().mean(0) + torch.eye(L)
        found = step / step.sum(1, keepdim=True) @ found
    return found


def slices_of(weights: list[Tensor]) -> list[AttentionLayer]:
    return [[AttentionSlice(heads.mean(0)[None])] for heads in weights]


def unit_row(at: int, length: int = L) -> Tensor:
    row = torch.zeros(length, dtype=torch.float64)
    row[at] = 1
    return row


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("blind", [None, 2])
def test_a_row_is_propagated_as_the_product_of_all_layers(causal: bool, blind: int | None) -> None:
    weights = looks(causal, blind)
    right = written_out(weights)
    for at in range(L):
        row = rollout(slices_of(weights), unit_row(at))
        near(row, right[at])
        assert float(row.sum()) == pytest.approx(1, abs=1e-12) and float(row.min()) >= 0
        assert not causal or not row[at + 1 :].any()
    mean = rollout(slices_of(weights), torch.full((L,), 1 / L, dtype=torch.float64))
    near(mean, right.mean(0))


# -- rollout: windows: a record has fewer columns than tokens, with the key index of each column


def windowed(length: int, wide: int, heads: int, steps: tuple[int, ...] = (1,), seed: int = 0) -> AttentionRecord:
    """Weights over the neighbors up to `wide` steps to each side; columns outside the row have key -1."""
    at, beside = torch.arange(length), torch.arange(-wide, wide + 1)
    keys = torch.stack([at[:, None] + beside * step for step in steps])
    there = (keys >= 0) & (keys < length)
    keys = torch.where(there, keys, -1)
    weights = torch.rand(heads, length, 2 * wide + 1, generator=torch.Generator().manual_seed(seed)) * there
    return AttentionRecord("it", (weights / weights.sum(-1, keepdim=True))[None], keys[None])


def dense(look: AttentionRecord, length: int) -> Tensor:
    """The same weights as a dense matrix (H, L, L)."""
    assert look.key_index is not None
    found = torch.zeros(look.weights.shape[1], length, length, dtype=look.weights.dtype)
    for h, i, c in np.ndindex(*look.weights.shape[1:]):
        key = int(look.key_index[0, h if look.key_index.shape[1] > 1 else 0, i, c])
        if key >= 0:
            found[h, i, key] += look.weights[0, h, i, c]
    return found


def test_a_global_token_has_a_separate_row() -> None:
    record = windowed(L, 1, H, (1, 2, 3))
    far = torch.rand(1, H, 3, L, generator=torch.Generator().manual_seed(9)).softmax(-1)
    extra = AttentionRecord("it", far, None, torch.tensor([[0, 4, -1]]))
    right = dense(record, L)
    right[:, [0, 4]] = far[0, :, :2]
    view = RowAttention(0, L, TokenBlocks.split(L, L), (3, 4))
    view.add([record, extra])
    for at in (3, 4):  # a window, and a global token
        near(torch.from_numpy(view.rollout((at,))), rollout(slices_of([right]), unit_row(at)), 1e-6)
    assert np.allclose(view.block_maps[0], right, atol=1e-6)
    assert np.allclose(view.query_maps[0], right[:, [3, 4]].mean(1), atol=1e-6)


@pytest.mark.parametrize("dilation", [(), (1, 2, 3)])
def test_a_longformer_is_explained_as_by_its_dense_matrices(dilation: tuple[int, ...]) -> None:
    words, labels = "the cat sat on the mat and looked at the moon", ("good", "bad")
    more = {"attention_window": (4,), "dilation": dilation, "scale": 0.3}
    model = tiny_encoder("classify", [words] * 3, labels, "longformer", 90, **more)
    config, text = model.config, model.tokenizer
    found = model.explain(words)
    assert found.decision is not None
    counted, rolled = found.decision.attributions[:2]
    row = torch.tensor([[config.bos_id, *text.encode([words])[0], config.eos_id]])
    length, marked = row.shape[1], torch.zeros_like(row, dtype=torch.bool)
    marked[0, 0] = True  # the first token has global attention
    with record_attention(model.body, gradients=True) as seen:
        logits = model.task.objective.logits(model, Batch(row, text=TextFields(global_tokens=marked)))[0]
    which = labels.index(counted.title)
    owed = torch.autograd.grad(logits[which] - logits.mean(), [look.weights for look in seen.records])
    # per layer a record of windows and a record of the global row
    assert len(seen.records) == 4 and len(seen.names()) == 2
    product = joined = torch.eye(length, dtype=torch.float64)
    for layer in range(2):
        near_by, far = seen.records[2 * layer : 2 * layer + 2]
        parts = [near_by.weights.detach(), (owed[2 * layer] * near_by.weights).detach().clamp(min=0)]
        mean, counts = (dense(replace(near_by, weights=part), length).mean(0) for part in parts)
        mean[0] = far.weights.detach()[0, :, 0].mean(0)
        counts[0] = (owed[2 * layer + 1] * far.weights).detach().clamp(min=0)[0, :, 0].mean(0)
        product = (mean + torch.eye(length)) / 2 @ product
        joined = joined + counts @ joined
        np.testing.assert_allclose(found.maps[0].weights[layer].mean(0), mean, atol=1e-7)
    right = joined[0] - torch.eye(length)[0]
    np.testing.assert_allclose(counted.fractions, right / right.sum(), atol=1e-10)
    np.testing.assert_allclose(rolled.fractions, product[0], atol=1e-10)


# -- rollout: blocks


def test_a_tile_is_the_mean_of_its_tokens() -> None:
    weights = looks()[0]
    blocks = TokenBlocks.split(L, 4, isolated=(0,))
    assert blocks.starts == (0, 1, 3, 5, 7) and not blocks.is_trivial and TokenBlocks.split(L, L).is_trivial
    rows = noise(2, H, L + 2, L + 2).abs()  # another row, and two positions of padding
    rows[1, :, :L, :L] = weights
    view = RowAttention(1, L, blocks, (0,))
    view.add([AttentionRecord("it", rows)])
    for h, i, j in np.ndindex(H, 4, 4):
        (a, b), (c, d) = blocks.starts[i : i + 2], blocks.starts[j : j + 2]
        right = sum(float(weights[h, x, y]) for x in range(a, b) for y in range(c, d)) / (b - a)
        assert view.block_maps[0][h, i, j] == pytest.approx(right, abs=1e-6)
    assert np.allclose(view.block_maps[0].sum(-1), 1, atol=1e-6)
    assert blocks.names(list("abcdefg")) == ("a", "b c", "d e", "f g")


def test_there_are_at_most_the_requested_tiles_and_separate_texts_stay_separate() -> None:
    for length in (1, 5, 96, 97, 500, 4097, 65_536):
        for apart in ((), (0,), (0, length - 1), tuple(range(min(length, 9))), tuple(range(0, length, 3))):
            blocks = TokenBlocks.split(length, 96, apart)
            assert len(blocks) <= 96 and blocks.starts[0] == 0 and blocks.starts[-1] == length
            assert blocks.sizes.min() > 0 and blocks.is_trivial == (length <= 96)
            if len(apart) < 3:
                assert all(blocks.sizes[int(blocks.block_ids[at])] == 1 for at in apart)
    assert TokenBlocks.split(65_536, 96, (0,)).names(["x"] * 65_536)[:2] == ("x", "2–691")


def test_sixty_thousand_tokens_are_explained_in_bounded_memory() -> None:
    """The record of a layer with 2 heads has 26 MB; a dense matrix would have 17 GB per head."""
    length, wide, depth = 65_536, 24, 3
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    view = RowAttention(0, length, TokenBlocks.split(length, 96, (0,)), (0,))
    record = windowed(length, wide, 2)
    all_of_it = torch.full((1, 2, 1, length), 1 / length)
    for _ in range(depth):
        view.add([record, AttentionRecord("it", all_of_it, None, torch.zeros(1, 1, dtype=torch.long))])
    row = view.rollout((0,))
    assert row.sum() == pytest.approx(1, abs=1e-5) and row.shape == (length,) and (row[1:] > 0).all()
    assert row[0] == pytest.approx(0.5**depth, rel=0.01)  # the first token keeps half of its weight in each layer
    assert view.layers[0][0].keys is view.layers[2][0].keys  # as large as the weights: stored once
    tiles = view.block_maps[0]
    assert tiles.shape == (2, 96, 96) and np.allclose(tiles.sum(-1), 1, atol=1e-3)
    band = np.abs(np.subtract.outer(np.arange(96), np.arange(96))) <= 1
    assert not tiles[:, 1:][:, ~band[1:]].any() and (tiles[:, 0] > 0).all()  # a band and one global row
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * (1 if sys.platform == "darwin" else 1024)
    assert grown < 5e8
