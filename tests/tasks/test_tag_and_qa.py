"""Tasks tag and qa: labels of tokens, long texts in windows, tags and answers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from objectives import assert_loss, collate, encode, scores_of
from torch import Tensor
from torch.nn import functional as F

import regard
from data_files import refused
from encoders import encoder
from regard.data.settings import DataSettings
from regard.data.text.qa import QASample
from regard.data.text.tagged import TaggedSentence, convert_tags
from regard.decode.settings import DecodeSettings
from regard.errors import DataError, RegardError
from regard.tasks import find_task
from regard.tasks.base import HeadOptions
from regard.tasks.modality.text import window_start, windows
from regard.tasks.qa import NO_ANSWER, answer_tokens
from regard.tasks.tag import WORD_PATTERN
from regard.types import IGNORE, Prediction
from tiny import near

TASK = find_task("tag", "text")
TEXTS = ["john smith lives in new york", "mary went to rome and to paris", "unbelievably longwinded words"] * 3
LABELS = ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")
SENTENCES = [
    TaggedSentence(
        ("john", "smith", "lives", "in", "new", "york"), ("I-PER", "I-PER", "O", "O", "I-LOC", "I-LOC"), "a", 1
    ),
    TaggedSentence(("rome",), ("I-LOC",), "a", 8),
    TaggedSentence(("unbelievably", "longwinded", "mary", "went"), ("O", "O", "I-PER", "O"), "a", 10),
]


def test_windows_cover_everything_and_overlap() -> None:
    for length in (0, 1, 7, 8, 9, 20, 41):
        for room, stride in ((8, 0), (8, 3), (8, 8), (8, 100), (1, 0)):
            found = windows(length, room, stride)
            assert found[0][0] == 0 and found[-1][1] == length and all(last - first <= room for first, last in found)
            assert all(b[0] <= a[1] and b[0] > a[0] for a, b in pairwise(found))
    assert windows(20, 8, 0)[1][0] == 6


def test_the_loss_is_the_cross_entropy_of_first_pieces_padded_or_packed() -> None:
    model = encoder("tag", TEXTS, LABELS, vocab_size=40)  # some words have several pieces
    encoded = encode(model, SENTENCES, 24, DataSettings())
    expected = torch.zeros((), dtype=torch.float64)
    for number in range(3):
        alone = torch.from_numpy(encoded.fields["text"][number].astype(np.int64))[None]
        logits = model.logits(alone)[0]
        labels = torch.from_numpy(encoded.fields["label"][number].astype(np.int64)) - 1
        expected = expected + F.cross_entropy(logits[labels >= 0], labels[labels >= 0], reduction="sum")
    for tokens in (0, 64):
        batch = collate(model, encoded, tokens=tokens)
        total, count = TASK.objective.loss(model, batch)
        near(total, expected)
        assert int(count) == int((batch.labels != IGNORE).sum()) == 11


def test_a_long_sentence_is_read_in_windows_and_every_word_tagged_once() -> None:
    model = encoder("tag", TEXTS, LABELS, max_length=12)
    words = ("john", "unbelievably", "rome", "longwinded", "to", "mary") * 5
    encoded = encode(model, [TaggedSentence(words, ())], 12)
    assert len(encoded) > 3 and encoded.num_samples == 1
    assert max(map(len, encoded.fields["text"])) == 12
    answer = model.predict(words)
    assert len(answer.value) == len(words) == len(answer.score) and answer.tokens == words
    # each word has the tag of the window with the most context
    best: dict[int, tuple[int, float, str]] = {}
    ids, owners = model.tokenizer.encode_words([words])[0]
    for first, last in windows(len(ids), 10):
        x = torch.tensor([[model.config.bos_id, *ids[first:last], model.config.eos_id]])
        chances, tags = model.logits(x)[0].detach().softmax(-1).max(-1)
        for place in range(first, last):
            if place == 0 or owners[place] != owners[place - 1]:
                at = 1 + place - first
                deep = min(at, x.shape[1] - 1 - at)
                if deep > best.get(owners[place], (-1,))[0]:
                    best[owners[place]] = deep, float(chances[at]), LABELS[tags[at]]
    assert answer.value == [best[word][2] for word in range(len(words))]
    assert answer.score == pytest.approx([best[word][1] for word in range(len(words))])


def test_entities_are_spelt_out() -> None:
    model = encoder("tag", TEXTS, LABELS)
    texts = ["john smith lives in new york", "rome", "mary went to paris, unbelievably!"]
    for text, answer in zip(texts, model.predict(texts), strict=True):
        assert list(answer.tokens) == WORD_PATTERN.findall(text)
        assert_places(answer, text)
    for text in (" john  smith,\tlives in\nnew york", "rome's unbelievably (new) york"):
        assert_places(model.predict(text), text)
    for words in (("mary", "went", "to", "new york"), ["a", "b"]):
        answer = model.predict([words])[0]
        assert answer.tokens == tuple(words)
        assert_places(answer, " ".join(words))


def assert_places(answer: Prediction, text: str) -> None:
    """Words and entities are parts of the text as given, at the reported characters."""
    places = answer.extra["offsets"]
    assert [text[first:last] for first, last in places] == list(answer.tokens) == answer.extra["words"]
    assert answer.extra["text"] == text
    for entity in answer.extra["entities"]:
        assert entity["text"] == text[entity["start"] : entity["end"]]
        assert (entity["start"], entity["end"]) == (places[entity["first"]][0], places[entity["last"]][1])


def head_labels(labels: Sequence[str], data: DataSettings) -> tuple[str, ...]:
    return TASK.objective.options.fit(HeadOptions(tuple(labels)), (), data).labels


def test_head_labels_hold_every_tag_of_the_scheme() -> None:
    data = ("B-LOC", "I-LOC", "I-PER", "O")
    assert head_labels(data, DataSettings()) == LABELS
    assert "E-PER" in head_labels(data, DataSettings(tag_scheme="BIOES"))
    assert len(head_labels(data, DataSettings(tag_scheme="BIOES"))) == 9
    assert head_labels(("DT", "NN"), DataSettings()) == ("DT", "NN")
    model = encoder("tag", TEXTS, head_labels(data, DataSettings(tag_scheme="BIOES")))
    encoded = encode(model, SENTENCES, 24, DataSettings())
    labels = encoded.fields["label"][0]
    assert [model.spec.options.labels[n - 1] for n in labels if n] == ["B-PER", "E-PER", "O", "O", "B-LOC", "E-LOC"]


def test_unknown_tags_and_empty_sentences_are_named() -> None:
    model = encoder("tag", TEXTS, LABELS)
    for tag, labels, said in (("B-ORG", LABELS, "'B-ORG'"), ("O", ("O",), "tag")):
        with pytest.raises(DataError, match=said):
            encode(model, [TaggedSentence(("john",), (tag,), "file", 3)], 24, DataSettings(), HeadOptions(labels))
    for wrong in ("", "  ", [], ["a", ""], [1]):
        refused("sentence", model.predict, [wrong], error=RegardError)


def test_entities_are_printed_in_brackets_and_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    entity = {"type": "PER", "text": "dora", "probability": 0.5}
    answer = Prediction(["B-PER", "O"], (0.5, 1.0), ("dora", "sees"), {"entities": [entity]})
    assert TASK.objective.format_prediction("", answer) == "[dora PER] sees\n 0.5000  PER      dora"
    model = encoder("tag", TEXTS, LABELS)
    found = {"entities": [], "scheme": "IOB2"}
    right = [Prediction(convert_tags(sample.tags, "IOB2"), extra=found) for sample in SENTENCES]
    monkeypatch.setattr(type(TASK.objective), "_predictions", lambda *_: right)
    scores, _ = scores_of(model, encode(model, SENTENCES, 24, DataSettings()))
    perfect = dict.fromkeys(("f1", "precision", "recall", "accuracy", "macro_f1"), 100.0)
    assert scores.pop("per_class") and scores == {**perfect, "samples": 3}


QA = find_task("qa", "text")
CONTEXT = "The unbelievably old cat sat on a mat. The dog slept in Rome, near the river."
QA_TEXTS = [CONTEXT, "who sat on what", "where did it sleep"] * 3


def span(question: str, answer: str = "", context: str = CONTEXT) -> QASample:
    if not answer:
        return QASample(question, context, (), (), False, path="a", line=1)
    return QASample(question, context, (answer,), (context.index(answer),), path="a", line=1)


QUESTIONS = [span("who sat", "unbelievably old cat"), span("where did it sleep", "Rome"), span("what did who say")]


def encoded_of(model: regard.Model, samples: list[QASample]) -> Any:
    return encode(model, samples, 48, DataSettings())


def test_an_answer_inside_a_word_is_predicted_as_the_word() -> None:
    sample = QASample("?", "a longword here", ("ongwo",), (3,))
    assert answer_tokens(sample, [(0, 1), (2, 10), (11, 15)]) == (1, 1)
    assert answer_tokens(sample, [(0, 1), (11, 15)]) is None


def test_a_long_context_is_read_in_windows_and_the_answer_is_in_those_that_contain_it() -> None:
    model = encoder("qa", QA_TEXTS, max_length=24)
    context = " ".join([CONTEXT] * 4) + " In Paris."
    sample = QASample("where", context, ("Paris",), (context.index("Paris"),), path="a", line=1)
    encoded = encoded_of(model, [sample])
    ids, places = model.tokenizer.encode_offsets([context])[0]
    held = 0
    for row in range(len(encoded)):
        first, second = window_start(encoded, row), int(encoded.fields["second"][row][0])
        window = encoded.fields["text"][row].tolist()[second:-1]
        assert window == ids[first : first + len(window)] and len(encoded.fields["text"][row]) <= 24
        a, b = encoded.fields["label"][row].tolist()
        if (a, b) != (0, 0):
            held += 1
            assert context[places[first + a - second][0] : places[first + b - second][1]] == "Paris"
    assert held >= 1 and len(encoded) > 5 and encoded.num_samples == 1


def reference(model: regard.Model, encoded: Any) -> Tensor:
    """Half of −log p of both ends, row by row."""
    total = torch.zeros((), dtype=torch.float64)
    for row in range(len(encoded)):
        x = torch.from_numpy(encoded.fields["text"][row].astype(np.int64))[None]
        types = (torch.arange(x.shape[1]) >= int(encoded.fields["second"][row][0])).long()[None]
        logs = model.logits(x, token_types=types)[0].log_softmax(0)
        first, last = encoded.fields["label"][row].tolist()
        total = total - (logs[first, 0] + logs[last, 1]) / 2
    return total


def test_the_loss_is_the_same_alone_padded_and_packed_with_gradients() -> None:
    model = encoder("qa", QA_TEXTS, max_length=48)
    encoded = encoded_of(model, [*QUESTIONS, span("a", "mat", "on a mat")])
    assert_loss(model, encoded, reference(model, encoded), 160)


@pytest.mark.parametrize("silent", [False, True])
def test_the_answer_is_the_best_span_of_all_windows(silent: bool) -> None:
    model = encoder("qa", QA_TEXTS, (NO_ANSWER,) if silent else (), max_length=24)
    context = " ".join([CONTEXT] * 2)
    sample = QASample("where did it sleep", context, (), (), False)
    encoded = encode(model, [sample], 24)
    # the end token of each window, no part of an answer, has the highest logits
    model.head.register_forward_hook(lambda _, __, out: torch.cat([out[..., :-1, :], out[..., -1:, :] + 9], -2))
    answer = model.predict(("where did it sleep", context), max_new_tokens=5)
    _, places = model.tokenizer.encode_offsets([context])[0]
    best, nothing = (-np.inf, 0, 0), np.inf
    for row in range(len(encoded)):
        second, start = int(encoded.fields["second"][row][0]), window_start(encoded, row)
        x = torch.from_numpy(encoded.fields["text"][row].astype(np.int64))[None]
        types = (torch.arange(x.shape[1]) >= second).long()[None]
        logits = model.logits(x, token_types=types)[0].detach()
        nothing = min(nothing, float(logits[0].sum()))
        for a in range(second, x.shape[1] - 1):
            for b in range(a, min(a + 5, x.shape[1] - 1)):
                score = float(logits[a, 0] + logits[b, 1])
                best = max(best, (score, start + a - second, start + b - second))
    text = context[places[best[1]][0] : places[best[2]][1]]
    assert answer.extra["answers"][0]["value"] == text
    assert answer.extra["null_score_diff"] == pytest.approx(nothing - best[0])
    assert answer.value == ("" if silent and nothing > best[0] else text)
    assert 0 < answer.score[0] <= 1


@pytest.mark.parametrize("wrong", ["where", ("where",), {"question": "where"}, ("", "a"), ("a", " "), 3, "[1, 2]"])
def test_invalid_questions_are_refused(wrong: Any) -> None:
    model = encoder("qa", QA_TEXTS)
    refused("question", model.predict, [wrong], error=RegardError)


def test_the_reported_threshold_is_not_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    model = encoder("qa", QA_TEXTS, (NO_ANSWER,), max_length=48)
    samples, doubts = [span("who sat", "cat"), span("what did who say")], (1.2341, 1.2342)
    extras = [{"answers": [{"value": "cat"}], "null_score_diff": doubt} for doubt in doubts]
    answers = [Prediction("cat", (1.0,), (), extra) for extra in extras]
    monkeypatch.setattr(type(QA.objective), "_predictions", lambda *_: answers)
    encoded = encoded_of(model, samples)
    scores, _ = scores_of(model, encoded)
    assert scores["best_exact_match"] == 100 and doubts[0] <= scores["best_exact_match_threshold"] < doubts[1]
    again, _ = scores_of(model, encoded, decode=DecodeSettings(threshold=scores["best_exact_match_threshold"]))
    assert again["exact_match"] == 100


def test_transformers_reads_a_saved_model_and_its_file_does_not_record_unanswerable_questions(tmp_path: Path) -> None:
    model, asked = encoder("qa", QA_TEXTS, (NO_ANSWER,), max_length=48), ("where", CONTEXT)
    regard.save(model, tmp_path, layout="huggingface")
    peer = transformers.AutoModelForQuestionAnswering.from_pretrained(tmp_path, dtype=torch.float64)
    tokens = transformers.AutoTokenizer.from_pretrained(tmp_path)(*asked, return_tensors="pt")
    right, ours = peer(**tokens), model.logits(tokens["input_ids"], token_types=tokens["token_type_ids"])
    assert tokens["input_ids"][0].tolist() == encoded_of(model, [span("where")]).fields["text"][0].tolist()
    assert peer.config.num_labels == 2
    near(ours, torch.stack([right.start_logits, right.end_logits], -1))
    assert not model.predict(asked, threshold=-1e9).value
    alone = regard.load(tmp_path)
    assert alone.predict(asked).value and not alone.predict(asked, threshold=-1e9).value
