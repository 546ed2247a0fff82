"""Attention maps and token probabilities, against recorded attention and against `transformers`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import regard
from conftest import Pairs, Trained
from data_files import refused
from page_data import page_data
from regard.draw.token_data import AttentionMap
from regard.errors import RegardError
from regard.explain import Explanation
from regard.explain.text_generation import MAX_MAP_TOKENS, display_pieces
from regard.nn.recording import record_attention
from regard.processors.tokenizer.tokenizer import END_OF_TEXT, TextTokenizer

SOURCE, TARGET = "the old women danced", "die alten Frauen tanzten"


@pytest.fixture(scope="module")
def model(trained: Trained) -> regard.Model:
    return regard.load(trained.path)


@pytest.fixture(scope="module")
def given(model: regard.Model) -> Explanation:
    return model.explain(SOURCE, TARGET)


def maps(explanation: Explanation) -> dict[str, AttentionMap]:
    return {item.name: item for item in explanation.maps}


def ids(model: regard.Model, text: str) -> list[int]:
    assert model.tokenizer is not None
    return model.tokenizer.encode([text])[0]


def test_maps_and_probabilities_are_those_of_one_pass(model: regard.Model, given: Explanation) -> None:
    said = [*ids(model, TARGET), model.config.eos_id]
    x, y = [*ids(model, SOURCE), model.config.eos_id], [model.config.bos_id, *said[:-1]]
    with torch.no_grad(), record_attention(model.body) as seen:
        chances = model.logits(torch.tensor([x]), torch.tensor([y])).softmax(-1)[0, range(len(said)), said].tolist()
    names = {
        "encoder": "encoder.blocks.0.attend",
        "decoder": "decoder.blocks.0.attend",
        "cross": "decoder.blocks.0.cross",
    }
    for kind, name in names.items():
        np.testing.assert_allclose(maps(given)[kind].weights, seen.weights(name), atol=1e-6, err_msg=kind)
    shown = given.facts["probability of each token"].split(" | ")
    assert shown == [f"{piece} {p:.2f}" for piece, p in zip(maps(given)["cross"].queries, chances, strict=True)]


def test_every_map_is_labeled_by_queries_and_keys(model: regard.Model, given: Explanation) -> None:
    cross, encoder, decoder = (maps(given)[name] for name in ("cross", "encoder", "decoder"))
    assert len(given.maps) == 3 and len(cross.queries) == len(ids(model, TARGET)) + 1
    assert len(cross.keys) == len(ids(model, SOURCE)) + 1
    assert joined(cross.keys[:-1]) == SOURCE and joined(cross.queries[:-1]) == TARGET
    assert cross.keys[-1] == cross.queries[-1] == "</s>" and encoder.queries == encoder.keys == cross.keys
    assert decoder.queries == decoder.keys == ("<s>", *cross.queries[:-1])


def joined(pieces: tuple[str, ...]) -> str:
    """Text of pieces: a piece that continues a word begins with a dot; a space is drawn as ␣."""
    return "".join(piece[1:] if piece.startswith("·") else f" {piece.strip('␣')}" for piece in pieces).strip()


def test_without_a_translation_its_own_is_explained(model: regard.Model, pairs: Pairs) -> None:
    source = pairs[3][0]
    own, translation = model.explain(source), model.predict(source).value
    assert own.title == f"{source} → {translation}"
    again = model.explain(source, translation)
    assert all(np.array_equal(a.weights, b.weights) for a, b in zip(own.maps, again.maps, strict=True))
    assert maps(model.explain(SOURCE, ""))["cross"].queries == ("</s>",)
    refused("empty", model.explain, " \n", error=RegardError)


# -- text: token probabilities and causal attention

VERSE = "Wer reitet so spät\ndurch Nacht und Wind?"


def speaker(text: TextTokenizer, length: int = 160, bands: tuple[int, ...] = ()) -> regard.Model:
    """Untrained model with two layers of two heads; weights large enough for different attention maps."""
    torch.manual_seed(5)
    sizes = {"width": 32, "depth": 2, "heads": 2, "ffn_dim": 64, "max_length": length}
    model = regard.build("gpt2-mini", **sizes, vocab_size=text.size, eos_id=text.backend.token_to_id(END_OF_TEXT))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    model.tokenizer = text
    model.body.window_sizes = bands or model.body.window_sizes
    return model


@pytest.fixture(scope="module")
def poet() -> regard.Model:
    return speaker(TextTokenizer.from_characters([VERSE]))


@pytest.fixture(scope="module")
def peer(poet: regard.Model, tmp_path_factory: pytest.TempPathFactory) -> tuple[Tensor, Tensor]:
    """Log-probabilities (n, V) and attention of every head of GPT-2 in transformers for the end token and the verse."""
    from transformers import GPT2LMHeadModel

    folder = regard.save(poet, tmp_path_factory.mktemp("poet"))
    other = GPT2LMHeadModel.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.no_grad():
        seen = other(torch.tensor([[poet.config.eos_id, *ids(poet, VERSE)]]), output_attentions=True)
    return seen.logits.log_softmax(-1)[0, :-1], torch.cat(seen.attentions)


def test_the_probability_of_a_text_is_the_product_over_its_tokens(poet: regard.Model, peer: Any) -> None:
    logs, _ = peer
    reading, row = poet.explain(VERSE).likelihood, ids(poet, VERSE)
    assert reading is not None
    assert "".join(guess.piece for guess in reading.tokens) == VERSE.translate({32: "␣", 10: "⏎"})
    own = logs[range(len(row)), row]
    np.testing.assert_allclose([guess.log_prob for guess in reading.tokens], own, atol=1e-4)
    total = float(own.sum())
    assert reading.log_prob == pytest.approx(total, rel=1e-5)
    facts, bits = reading.facts(), -total / math.log(2) / len(VERSE.encode())  # ä has two bytes
    assert float(facts["perplexity"]) == pytest.approx(math.exp(-total / len(row)), rel=1e-2)
    assert float(facts["bits per byte"]) == pytest.approx(bits, abs=1e-3)
    for at, guess in enumerate(reading.tokens):
        order = logs[at].argsort(descending=True).tolist()
        assert guess.rank == order.index(row[at]) + 1
        best = [display_pieces(poet.tokenizer, [token])[0] for token in order[:5]]
        assert [piece for piece, _ in guess.top_k] == best
        np.testing.assert_allclose([p for _, p in guess.top_k], logs[at, order[:5]].exp(), atol=1e-5)


def test_the_maps_of_a_text_are_causal_and_those_of_every_layer_and_head(poet: regard.Model, peer: Any) -> None:
    _, looks = peer
    (found,) = poet.explain(VERSE).maps
    many = len(ids(poet, VERSE))
    assert found.keys == (END_OF_TEXT, *found.queries) and len(found.queries) == many
    # no row for the end token, which attends to itself only
    assert found.weights.shape == (2, 2, many, many + 1)
    np.testing.assert_allclose(found.weights, looks[:, :, 1:], atol=1e-5)


def test_banded_attention_is_drawn_as_a_band() -> None:
    model = speaker(TextTokenizer.from_characters([VERSE]), bands=(0, 4))
    (found,) = model.explain(VERSE).maps
    far = np.tril(found.weights, 1 - 4)
    assert far[0].any() and not far[1].any()
    np.testing.assert_allclose(found.weights.sum(-1), 1, atol=1e-5)


def test_a_continuation_is_scored_alone_given_the_whole_prefix(poet: regard.Model) -> None:
    source, target = VERSE[:18], VERSE[18:]
    whole, parts = poet.explain(VERSE), poet.explain(source, target)
    assert whole.likelihood is not None and parts.likelihood is not None
    assert parts.likelihood.tokens == whole.likelihood.tokens and parts.likelihood.prompt_length == 18
    assert parts.likelihood.log_prob == pytest.approx(sum(guess.log_prob for guess in whole.likelihood.tokens[18:]))
    assert parts.likelihood.num_bytes == len(target.encode())
    assert parts.title == "Wer reitet so spät ▸ durch Nacht und Wind?"
    first = poet.explain("", VERSE).likelihood
    assert first is not None and (first.tokens, first.prompt_length) == (whole.likelihood.tokens, 0)


def test_of_a_long_text_the_last_tokens_are_shown_and_all_before_is_one_column(poet: regard.Model) -> None:
    text = (VERSE * 4)[:150]
    long, (short,) = poet.explain(text), poet.explain(text[:MAX_MAP_TOKENS]).maps
    (found,) = long.maps
    assert len(short.queries) == len(found.queries) == MAX_MAP_TOKENS
    assert short.keys[0] == END_OF_TEXT and not short.has_rest_column
    assert found.has_rest_column and found.keys == ("55 before", *found.queries)
    np.testing.assert_allclose(found.weights.sum(-1), 1, atol=1e-5)
    assert f"last {MAX_MAP_TOKENS} tokens" in found.title
    assert long.likelihood is not None and len(long.likelihood.tokens) == 150 and long.likelihood.first_row == -54
    assert long.likelihood.tokens[54].piece == found.queries[0]


def test_a_text_fills_the_context_and_no_more(poet: regard.Model) -> None:
    text = (VERSE * 4)[:160]
    full = poet.explain(text)
    assert full.likelihood is not None and len(full.likelihood.tokens) == 160
    assert full.maps[0].queries[-1] == full.likelihood.tokens[-2].piece  # the last token is predicted and not read
    refused("160", poet.explain, text + "W", error=RegardError)
    for nothing in (("",), ("", "")):
        refused("empty", poet.explain, *nothing, error=RegardError)


@pytest.mark.parametrize("train", ["from_characters", "train_lm_bpe", "train_sentence_bpe"])
def test_spaces_are_visible_whatever_the_tokenizer(train: str) -> None:
    text = getattr(TextTokenizer, train)([VERSE] * 9, *([] if train == "from_characters" else [300]))
    assert "".join(display_pieces(text, text.encode(["Wer reitet"])[0])) == "Wer␣reitet"
    if (end := text.backend.token_to_id(END_OF_TEXT)) is not None:
        assert display_pieces(text, [end, *text.encode(["Wer"])[0]])[0] == END_OF_TEXT


def test_a_text_becomes_figure_and_page(poet: regard.Model, tmp_path: Path) -> None:
    found = poet.explain(VERSE)
    whole, one = (found.save(tmp_path / "a.svg", *chosen).read_text("utf-8") for chosen in ((), (1, 2)))
    assert "uniform over" in whole and "layer 2 of 2, average over 2 heads" in whole
    assert "uniform over" not in one and "layer 1 of 2, head 2 of 2" in one
    path = found.save(tmp_path / "a.html")
    data, text = page_data(path), path.read_text("utf-8")
    assert [token["rank"] for token in data["reading"]["tokens"]] == [guess.rank for guess in found.likelihood.tokens]
    assert (
        data["reading"]["row"] == 0 and len(data["maps"]) == 1 and all(value in text for value in found.facts.values())
    )
