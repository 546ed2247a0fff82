"""Task choose: one row and one logit per choice, and the loss over choices."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from objectives import assert_loss, assert_one_shape, encode, paper_loss, scores_of

from regard.data.text.samples import ChoiceSample
from regard.errors import RegardError, WeightsError
from regard.model import load
from regard.tasks.base import LossWeights
from regard.tasks.modality.text import HEAD_TOKENS
from tiny import near
from tiny_text_models import QUICK, SMALL, headed, last_state, letters, train

SAMPLES = [
    ChoiceSample("abc", "", ("de", "f", "gag"), 1), ChoiceSample("h", "a", ("bed", "c"), 0),
    ChoiceSample("deaf", "", ("b", "c", "a"), 2),
]  # fmt: skip


def test_each_choice_has_a_row_between_special_tokens() -> None:
    text, model = letters(), headed("choose")
    start, delimiter, extract = (text.backend.token_to_id(mark) for mark in HEAD_TOKENS)
    found = encode(model, SAMPLES)
    first, second = text.encode(["h a"])[0], text.encode(["bed", "c"])
    ways = [[start, *first, delimiter, *choice, extract] for choice in second]
    assert found.fields["text"][1].tolist() == ways[0] + ways[1]
    assert found.fields["ways"][1].tolist() == list(map(len, ways)) and found.fields["label"][1].tolist() == [0]


@pytest.mark.parametrize("terms", [LossWeights(), LossWeights(0.2, 0.5)])
def test_the_loss_equals_the_paper(terms: LossWeights) -> None:
    model = headed("choose")
    encoded = encode(model, SAMPLES)

    def log_probabilities(parts: list[list[int]]) -> torch.Tensor:
        return torch.stack([model.head.choice.weight[0] @ last_state(model, part) for part in parts]).log_softmax(0)

    right = paper_loss(model, encoded, terms, log_probabilities)
    assert_loss(model, encoded, right, 128, terms)
    batches = assert_one_shape(model, encode(model, SAMPLES * 8), 100)
    near(sum(model.objective.loss(model, batch, terms)[0] for batch in batches), 8 * right, 1e-11)


def test_predictions_are_choices_with_their_probabilities() -> None:
    model = headed("choose")
    asked = {"context": "h", "question": "a", "choices": ["bed", "c"]}
    answer = model.predict(asked)
    assert answer.value in asked["choices"] and np.isclose(sum(answer.score), 1)
    assert answer.score[0] >= answer.score[1] and answer.extra["choices"][0]["value"] == answer.value
    several = model.predict([json.dumps(asked), {"context": "abc", "choices": ["de", "f", "gag"]}])
    assert several[0].value == answer.value and np.allclose(several[0].score, answer.score, rtol=1e-12)
    assert len(several[1].score) == 3
    chosen = model.objective.rank(model, "h a", ["bed", "c"])
    assert chosen.value == answer.value and np.allclose(chosen.score, answer.score, rtol=1e-12)
    assert set(chosen.extra) >= {"prompt", "choices"}


@pytest.mark.parametrize("wrong", ["no JSON", "[1]", '{"context": "a"}', {"context": 1, "choices": ["a", "b"]}])
def test_invalid_questions_are_refused(wrong: Any) -> None:
    with pytest.raises(RegardError, match="question"):
        headed("choose").predict(wrong)
    with pytest.raises(RegardError, match="non-empty choices"):
        headed("choose").predict({"context": "a", "choices": ["b"]})


# -- heads of checkpoints


def test_a_head_without_a_bias_is_written_with_one_of_nought(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    model = headed("choose")
    model.save(tmp_path)
    assert not load_file(tmp_path / "model.safetensors")["multiple_choice_head.summary.bias"].any()
    again = load(tmp_path)
    assert again.head.choice.bias is None
    near(again.head.choice.weight, model.head.choice.weight)


def test_a_summary_that_is_computed_otherwise_is_refused(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=23, n_positions=16, n_embd=12, n_layer=1, n_head=3, bos_token_id=22, eos_token_id=22,
        summary_activation="tanh",
    )  # fmt: skip
    transformers.GPT2DoubleHeadsModel(config).save_pretrained(tmp_path)
    with pytest.raises(WeightsError, match="'tanh'"):
        load(tmp_path)
    assert load(tmp_path, task="lm").task.name == "lm"


# -- runs


def questions(path: Path, count: int) -> Path:
    """Questions whose correct choice is the animal of the story."""
    chance, animals = random.Random(4), ("cat", "dog", "cow", "hen")
    with path.open("w") as file:
        for _ in range(count):
            choices = chance.sample(animals, chance.choice((2, 3)))
            right = chance.randrange(len(choices))
            row = {"context": f"a {choices[right]} came", "question": "who?", "choices": choices, "label": right}
            file.write(json.dumps(row) + "\n")
    return path


def test_a_question_that_fills_a_micro_batch_alone_still_fits(tmp_path: Path) -> None:
    data = questions(tmp_path / "a.jsonl", 20)
    settings = (*SMALL, *QUICK, "train.steps=2", "train.epochs=0", "train.batch_tokens=8")
    train("choose", data, tmp_path / "run", *settings, model="gpt2-mini")
    assert (tmp_path / "run" / "README.md").exists()


def test_many_positions_are_reported_one_by_one(tmp_path: Path) -> None:
    model = headed("choose")
    samples = [
        ChoiceSample("abc", "", tuple(f"{'ab' * (number % 5)}c{'d' * number}" for number in range(26)), right)
        for right in (0, 3, 25)
    ]
    scores, answers = scores_of(model, encode(model, samples, 24))
    right = [sample.label == answer.extra["index"] for sample, answer in zip(samples, answers, strict=True)]
    assert scores["accuracy"] == round(100 * sum(right) / 3, 2) and scores["chance_accuracy"] == round(100 / 26, 2)
    assert "confusion_matrix" not in scores
    assert all("choice 25" in scores[name] for name in ("per_class", "most_confused"))
    assert model.objective.save_figures(tmp_path, samples, answers) == ["choices.png"]
    assert (tmp_path / "choices.png").exists()
