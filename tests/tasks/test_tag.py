"""Task tag: words and tags, aligned to word pieces; long sentences in windows; tag schemes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from objectives import collate, encode, scores_of
from torch.nn import functional as F

from encoders import encoder
from regard.data.settings import DataSettings
from regard.data.text.tagged import TaggedSentence, convert_tags
from regard.errors import DataError, RegardError
from regard.tasks import find_task
from regard.tasks.base import HeadOptions
from regard.tasks.modality.text import windows
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


def test_the_first_piece_of_each_word_is_labeled_and_tags_are_converted() -> None:
    model = encoder("tag", TEXTS, LABELS)
    encoded = encode(model, SENTENCES, 24, DataSettings())
    for number, sample in enumerate(SENTENCES):
        ids, words = model.tokenizer.encode_words([sample.words])[0]
        row, label = encoded.fields["text"][number].tolist(), encoded.fields["label"][number].tolist()
        assert row == [model.config.bos_id, *ids, model.config.eos_id]
        firsts = [1 + words.index(word) for word in range(len(sample.words))]
        assert [place for place, value in enumerate(label) if value] == firsts
        said = [LABELS[label[place] - 1] for place in firsts]
        assert [tag[2:] or tag for tag in said] == [tag[2:] or tag for tag in sample.tags]
        if number == 0:
            assert said == ["B-PER", "I-PER", "O", "O", "B-LOC", "I-LOC"]


def test_the_loss_is_the_cross_entropy_of_first_pieces_padded_or_packed() -> None:
    model = encoder("tag", TEXTS, LABELS)
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
        for entity in answer.extra["entities"]:
            assert entity["text"] == " ".join(answer.tokens[entity["first"] : entity["last"] + 1])
    assert model.predict(("a", "b")).tokens == ("a", "b")


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
        with pytest.raises(RegardError, match="sentence"):
            model.predict([wrong])


def test_entities_are_printed_in_brackets_scored_and_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entity = {"type": "PER", "text": "dora", "probability": 0.5}
    answer = Prediction(["B-PER", "O"], (0.5, 1.0), ("dora", "sees"), {"entities": [entity]})
    assert TASK.objective.format_prediction("", answer) == "[dora PER] sees\n 0.5000  PER      dora"
    answers = encoder("tag", TEXTS, LABELS).predict([sample.words for sample in SENTENCES])
    assert (
        TASK.objective.save_figures(tmp_path, SENTENCES, answers) == ["tags.png"] and (tmp_path / "tags.png").exists()
    )
    model = encoder("tag", TEXTS, LABELS)
    found = {"entities": [], "scheme": "IOB2"}
    right = [Prediction(convert_tags(sample.tags, "IOB2"), extra=found) for sample in SENTENCES]
    monkeypatch.setattr(type(TASK.objective), "_predictions", lambda *_: right)
    scores, _ = scores_of(model, encode(model, SENTENCES, 24, DataSettings()))
    assert (
        scores.pop("per_class")
        and scores.pop("samples") == 3
        and scores == dict.fromkeys(("f1", "precision", "recall", "accuracy", "macro_f1"), 100.0)
    )
