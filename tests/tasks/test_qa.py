"""Task qa: answers as spans of a context; long contexts in windows; unanswerable questions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from objectives import assert_loss, encode, scores_of
from torch import Tensor

import regard
from encoders import encoder
from regard.data.settings import DataSettings
from regard.data.text.qa import QASample
from regard.decode.settings import DecodeSettings
from regard.errors import RegardError
from regard.tasks import find_task
from regard.tasks.modality.text import window_start
from regard.tasks.qa import NO_ANSWER, answer_tokens
from regard.types import Prediction
from tiny import near

TASK = find_task("qa", "text")
CONTEXT = "The unbelievably old cat sat on a mat. The dog slept in Rome, near the river."
TEXTS = [CONTEXT, "who sat on what", "where did it sleep"] * 3


def span(question: str, answer: str = "", context: str = CONTEXT) -> QASample:
    if not answer:
        return QASample(question, context, (), (), False, path="a", line=1)
    return QASample(question, context, (answer,), (context.index(answer),), path="a", line=1)


SAMPLES = [span("who sat", "unbelievably old cat"), span("where did it sleep", "Rome"), span("what did who say")]


def encoded_of(model: regard.Model, samples: list[QASample]) -> Any:
    return encode(model, samples, 48, DataSettings())


def test_the_label_is_the_tokens_of_the_answer() -> None:
    model = encoder("qa", TEXTS, max_length=48)
    encoded = encoded_of(model, SAMPLES)
    assert len(encoded) == 3 and [TASK.reader.labels(sample) for sample in SAMPLES] == [(), (), (NO_ANSWER,)]
    ids, places = model.tokenizer.encode_offsets([CONTEXT])[0]
    for number, sample in enumerate(SAMPLES):
        row, (first, last) = encoded.fields["text"][number].tolist(), encoded.fields["label"][number].tolist()
        second = int(encoded.fields["second"][number][0])
        assert row[second:-1] == ids
        assert row[0] == model.config.bos_id
        assert row[second - 1] == row[-1] == model.config.eos_id
        if sample.is_answerable:
            start, end = places[first - second][0], places[last - second][1]
            assert CONTEXT[start:end] == sample.answers[0]
        else:
            assert (first, last) == (0, 0)


def test_an_answer_inside_a_word_is_predicted_as_the_word() -> None:
    sample = QASample("?", "a longword here", ("ongwo",), (3,))
    assert answer_tokens(sample, [(0, 1), (2, 10), (11, 15)]) == (1, 1)
    assert answer_tokens(sample, [(0, 1), (11, 15)]) is None


def test_a_long_context_is_read_in_windows_and_the_answer_is_in_those_that_contain_it() -> None:
    model = encoder("qa", TEXTS, max_length=24)
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
    model = encoder("qa", TEXTS, max_length=48)
    encoded = encoded_of(model, [*SAMPLES, span("a", "mat", "on a mat")])
    assert_loss(model, encoded, reference(model, encoded), 160)


@pytest.mark.parametrize("silent", [False, True])
def test_the_answer_is_the_best_span_of_all_windows(silent: bool) -> None:
    model = encoder("qa", TEXTS, (NO_ANSWER,) if silent else (), max_length=24)
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


def test_a_question_is_a_dictionary_or_a_line() -> None:
    one, other = encoder("qa", TEXTS, max_length=24).predict(
        [{"question": "where", "context": "in rome"}, "where\tin rome"]
    )
    assert one == other


@pytest.mark.parametrize("wrong", ["where", ("where",), {"question": "where"}, ("", "a"), ("a", " "), 3, "[1, 2]"])
def test_invalid_questions_are_refused(wrong: Any) -> None:
    model = encoder("qa", TEXTS)
    with pytest.raises(RegardError, match="question"):
        model.predict([wrong])


def test_the_reported_threshold_is_not_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    model = encoder("qa", TEXTS, (NO_ANSWER,), max_length=48)
    samples, doubts = [span("who sat", "cat"), span("what did who say")], (1.2341, 1.2342)
    answers = [
        Prediction("cat", (1.0,), (), {"answers": [{"value": "cat"}], "null_score_diff": doubt}) for doubt in doubts
    ]
    monkeypatch.setattr(type(TASK.objective), "_predictions", lambda *_: answers)
    encoded = encoded_of(model, samples)
    scores, _ = scores_of(model, encoded)
    assert scores["best_exact_match"] == 100 and doubts[0] <= scores["best_exact_match_threshold"] < doubts[1]
    again, _ = scores_of(model, encoded, decode=DecodeSettings(threshold=scores["best_exact_match_threshold"]))
    assert again["exact_match"] == 100


def test_transformers_reads_a_saved_model_and_its_file_does_not_record_unanswerable_questions(tmp_path: Path) -> None:
    model, asked = encoder("qa", TEXTS, (NO_ANSWER,), max_length=48), ("where", CONTEXT)
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
