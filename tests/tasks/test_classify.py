"""Tasks classify and choose: input formats, losses, and heads of checkpoints."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from objectives import assert_loss, assert_one_shape, paper_loss
from objectives import encode as encode_samples
from tokenizers import Tokenizer, models, pre_tokenizers

import regard
from conftest import facts
from data_files import jsonl, refused
from regard.data.settings import DataSettings
from regard.data.text.samples import ChoiceSample, LabeledText
from regard.errors import RegardError, WeightsError
from regard.model import load
from regard.processors.tokenizer.tokenizer import TextTokenizer
from regard.runs.evaluate import evaluate
from regard.runs.spec import load_initial_weights
from regard.systems import gpt2
from regard.tasks import find_task
from regard.tasks.base import HeadOptions, LossWeights
from regard.tasks.metrics.per_class import confusion_matrix, confusion_scores
from regard.tasks.modality.base import Export
from regard.tasks.modality.text import HEAD_TOKENS, truncate
from tiny import near
from tiny_text_models import QUICK, SMALL, headed, last_state, letters, train

LABELS = ("good", "bad", "so")
TEXTS = {"abc": "good", "h": "bad", "deaf bed": "bad", "cab": "so"}
SAMPLES = [LabeledText(text, "", label) for text, label in TEXTS.items()]
PAIRS = [LabeledText("abc", "de", "good"), LabeledText("h", "gag", "so"), LabeledText("deaf", "b", "bad")]


def ids(said: str) -> list[int]:
    """Token ids of a string; S, D and E are the special tokens, the rest are letters."""
    text = letters()
    marks = {name: text.backend.token_to_id(mark) for name, mark in zip("SDE", HEAD_TOKENS, strict=True)}
    return [marks[letter] if letter in marks else text.encode([letter])[0][0] for letter in said]


def encode(model: Any, samples: Any, pair: str = "ordered", longest: int = 99) -> Any:
    return encode_samples(model, samples, longest, DataSettings(pair_order=pair))


# -- input format


def test_texts_and_pairs_are_put_between_special_tokens() -> None:
    model = headed("classify", labels=LABELS)
    one, ordered = encode(model, SAMPLES), encode(model, PAIRS)
    assert one.fields["text"][0].tolist() == ids("SabcE") and ordered.fields["text"][0].tolist() == ids("SabcDdeE")
    both = encode(model, PAIRS, "symmetric")
    assert both.fields["text"][0].tolist() == ids("SabcDdeE") + ids("SdeDabcE")
    assert both.fields["ways"][0].tolist() == [8, 8] and [int(x[0]) for x in both.fields["label"]] == [0, 2, 1]


def test_long_texts_lose_their_end_and_never_a_special_token() -> None:
    assert truncate([list(range(9))], 5) == [[0, 1, 2, 3, 4]]
    assert truncate([list(range(9)), [7, 8]], 6) == [[0, 1, 2, 3], [7, 8]]
    assert truncate([[7, 8], list(range(9))], 6) == [[7, 8], [0, 1, 2, 3]]
    assert truncate([list(range(9)), list(range(8))], 7) == [[0, 1, 2, 3], [0, 1, 2]]
    assert truncate([list(range(8)), list(range(8))], 7) == [[0, 1, 2], [0, 1, 2, 3]]
    assert truncate([[1, 2], [3]], 3) == [[1, 2], [3]]
    for first, second, most in product(range(9), range(9), range(2, 12)):  # as transformers
        row = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
        row.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        row.enable_truncation(most)
        kept = row.encode("a " * first, "b " * second).ids
        assert truncate([[0] * first, [1] * second], most) == [[0] * kept.count(0), [1] * kept.count(1)]
    model = headed("classify", labels=LABELS)
    found = encode(model, [LabeledText("abcdefgh", "", "good"), LabeledText("abcdef", "", "bad")], longest=8)
    assert found.fields["text"][0].tolist() == ids("SabcdefE") and found.too_long == found.samples[:1]
    long = model.predict("abcdefgh" * 4)
    assert long.extra["truncated"] and "truncated" not in model.predict("abc").extra
    # the context has 24 positions, whatever data.max_length is
    assert len(encode(model, [LabeledText("a" * 80, "b" * 80, "good")], longest=500).fields["text"][0]) == 24


def test_an_unknown_label_is_named() -> None:
    model = headed("classify", labels=LABELS)
    strange = [LabeledText("a", "", "odd", "x.tsv", 3), *SAMPLES, LabeledText("b", "", "odd", "x.tsv", 9)]
    refused("line 3", encode, model, strange)
    refused("class", encode_samples, model, SAMPLES, options=HeadOptions(("good",)))


# -- loss


@pytest.mark.parametrize("terms", [LossWeights(), LossWeights(0.1, 0.5)])
@pytest.mark.parametrize("pair", ["", "ordered", "symmetric"])
def test_the_loss_equals_the_paper(pair: str, terms: LossWeights) -> None:
    model = headed("classify", labels=LABELS, pair=pair)
    encoded = encode(model, PAIRS if pair else SAMPLES, pair or "ordered")

    def log_probabilities(parts: list[list[int]]) -> torch.Tensor:
        return (model.head.classes.weight @ sum(last_state(model, part) for part in parts)).log_softmax(-1)

    assert_loss(model, encoded, paper_loss(model, encoded, terms, log_probabilities), 96, terms)


def test_a_symmetric_pair_has_no_order_and_an_ordered_one_has() -> None:
    same, other = (headed("classify", labels=LABELS, pair=pair) for pair in ("symmetric", "ordered"))
    near(*(torch.tensor(same.predict(pair).score) for pair in (("abc", "de"), ("de", "abc"))), 1e-6)
    assert not np.allclose(other.predict(("abc", "de")).score, other.predict(("de", "abc")).score, rtol=1e-3)
    assert other.predict("abc\tde").score == other.predict(("abc", "de")).score
    listed = other.predict([("abc", "de"), "de\tabc"])
    assert np.allclose(listed[0].score, other.predict("abc\tde").score) and len(listed) == 2
    refused("text pairs", other.predict, "abc", error=RegardError)
    refused("pair", other.predict, [("a", "b", "c")], error=RegardError)


def test_metrics_equal_their_definitions() -> None:
    right = list("aaaabbbbcc")
    said = list("aaabbbacca")
    counts = confusion_matrix("abcd", right, said)
    assert counts.tolist() == [[3, 1, 0, 0], [1, 2, 1, 0], [1, 0, 1, 0], [0, 0, 0, 0]]
    found = confusion_scores(counts)
    # F1: a 2·3/(4+5), b 2·2/(4+3), c 2·1/(2+2); a class that is neither present nor predicted does not count
    assert math.isclose(found["accuracy"], 0.6) and math.isclose(found["macro_f1"], (6 / 9 + 4 / 7 + 2 / 4) / 3)
    # (6·10 − (4·5 + 4·3 + 2·2)) / √((100 − 36)(100 − 38))
    assert math.isclose(found["mcc"], (60 - 36) / math.sqrt(64 * 62))
    two = confusion_scores(np.array([[90, 4], [1, 5]]))  # (TP·TN − FP·FN) / √((TP+FP)(TP+FN)(TN+FP)(TN+FN))
    assert math.isclose(two["mcc"], (5 * 90 - 4 * 1) / math.sqrt(9 * 6 * 94 * 91))
    assert confusion_scores(np.array([[3, 0], [2, 0]]))["mcc"] == 0


# -- heads of checkpoints


def test_a_classifier_loaded_for_another_task_drops_its_head_and_reports_it(tmp_path: Path) -> None:
    model = headed("classify", labels=LABELS)
    model.save(tmp_path / "run")
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["architectures"] == ["GPT2ForSequenceClassification"]
    again = load(tmp_path / "run")
    assert again.predict("abc").value == model.predict("abc").value and not again.notes
    assert np.allclose(again.predict("abc").score, model.predict("abc").score, rtol=1e-12)
    plain = load(tmp_path / "run", task="lm")
    assert plain.notes == ["Not used: score.weight (of another task)."] and plain.head is None
    near(plain.logits(torch.tensor([[1, 2]])), model.body.to_logits(model.states(torch.tensor([[1, 2]])).sequence))
    other = load(tmp_path / "run", task="choose")
    assert other.notes[1] == "Random weights: head.choice.weight (1 x 12), missing in the file." and other.has_new_head
    assert other.head.choice.weight.dtype == torch.float64
    plain.save(tmp_path / "lm")
    bare = load(tmp_path / "lm", task="classify")
    assert bare.notes == ["The model has no classification head yet: no classes are defined."]
    refused("classify", bare.predict, "abc", error=RegardError)


def test_both_orders_are_not_supported_in_hugging_face_format(tmp_path: Path) -> None:
    model = headed("classify", labels=LABELS, pair="symmetric")
    refused("order", regard.save, model, tmp_path / "no", error=WeightsError)
    model.save(tmp_path / "run")
    assert json.loads((tmp_path / "run" / "config.json").read_text())["model_type"] == "regard"
    again = load(tmp_path / "run")
    assert again.spec.options.pair_order == "symmetric"
    near(*(torch.tensor(one.predict(("abc", "d")).score) for one in (again, model)))
    assert load(tmp_path / "run", task="lm").notes == ["Not used: head.classes.weight (of another task)."]


def test_missing_class_names_have_defaults_and_a_missing_head_is_an_error(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    regard.save(headed("classify", labels=LABELS), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({key: config[key] for key in config if "label" not in key}))
    assert load(tmp_path).spec.options.labels == ("LABEL_0", "LABEL_1", "LABEL_2")
    headed("classify", labels=LABELS).save(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors.pop("score.weight")
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    refused("classes", load, tmp_path, error=WeightsError)


# -- runs

GOOD, BAD = ("great", "lovely", "fine", "superb"), ("awful", "dull", "poor", "bleak")
REST = ("the", "film", "story", "it", "was", "and", "quite", "a")


def sentences(count: int, seed: int = 0) -> list[tuple[str, str]]:
    chance, found = random.Random(seed), []
    for number in range(count):
        words = [chance.choice(REST) for _ in range(chance.randint(2, 5))]
        words.insert(chance.randrange(len(words) + 1), chance.choice(BAD if number % 2 else GOOD))
        found.append((" ".join(words), "bad" if number % 2 else "good"))
    return found


def write(path: Path, samples: list[tuple[str, ...]], header: str = "sentence\tlabel") -> Path:
    path.write_text("\n".join([header, *("\t".join(sample) for sample in samples)]) + "\n")
    return path


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("classify")
    write(folder / "labels.tsv", sentences(80))
    (folder / "text.txt").write_text("".join(f"{text}.\n" for text, _ in sentences(150, 1)))
    train("lm", folder / "text.txt", folder / "lm", *SMALL, "train.steps=20", "train.eval_every=20", "train.batch_tokens=256",
          model="gpt2-mini", valid=str(folder / "text.txt"))  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def tuned(place: Path) -> str:
    return train("classify", place / "labels.tsv", place / "run", *QUICK, "train.epochs=12", model=str(place / "lm"))


def test_fine_tuning_reports_new_weights_and_improves(place: Path, tuned: str) -> None:
    assert "Newly initialized: 3 new tokens, new head for 2 classes (32 parameters)." in tuned
    assert "64 training texts, 16 validation texts" in tuned
    assert "vocabulary of 293 tokens" in tuned
    model = load(place / "run")
    assert [a.value for a in model.predict(["a superb story", "it was dull"])] == ["good", "bad"]
    known = facts(place / "run")
    assert known["labels"] == ["bad", "good"] and known["settings"]["train"]["lm_loss_weight"] == 0.5
    assert known["settings"]["train"]["lr_schedule"] == "linear" and known["scores"]["accuracy"] == 100
    card = (place / "run" / "README.md").read_text()
    assert "| good |" in card


def test_a_finished_run_is_evaluated_on_its_stored_data_and_on_other_files(place: Path, tuned: str) -> None:
    found = evaluate(place / "run")
    assert found.scores["accuracy"] == facts(place / "run")["scores"]["accuracy"] and "confusion_matrix" in found.scores
    other = write(place / "more.tsv", [*sentences(6, 5), ("it was so", "middling")])
    refused("line 8", evaluate, place / "run", [str(other)])
    said: list[str] = []
    long = write(place / "long.tsv", [("fine " * 99, "good"), *sentences(3, 6)])
    evaluate(place / "run", [str(long)], log=said.append)
    assert "warning: 1 texts have more than 48 tokens and are truncated at the end." in said


def test_the_body_begins_as_the_folder_has_it(place: Path, tuned: str) -> None:
    before, after = load(place / "lm"), load(place / "run")
    fresh = regard.model.assemble(replace(after.spec), after.tokenizer)
    rows_before, made = before.config.vocab_size, fresh.body.tokens.table.weight[-3:].clone()
    said = load_initial_weights(fresh, place / "lm", {})
    assert said == ["Newly initialized: 3 new tokens, new head for 2 classes (32 parameters)."]
    ours, theirs = fresh.body.state_dict(), before.body.state_dict()
    for name, tensor in theirs.items():
        assert torch.equal(ours[name][: len(tensor)], tensor), name
    assert len(ours["tokens.table.weight"]) == rows_before + 3 and torch.equal(ours["tokens.table.weight"][-3:], made)
    assert after.tokenizer.backend.token_to_id(HEAD_TOKENS[0]) == rows_before
    assert load_initial_weights(fresh, place / "run", {}) == []
    assert torch.equal(fresh.head.classes.weight, after.head.classes.weight)
    named = regard.model.assemble(replace(after.spec, options=HeadOptions(("good", "bad"))), after.tokenizer)
    assert load_initial_weights(named, place / "run", {}) == [
        f"Not used: the head of {place / 'run'} for other classes (bad, good).",
        "Newly initialized: new head for 2 classes (32 parameters).",
    ]  # fmt: skip


def test_pairs_are_trained_in_both_formats_from_scratch(tmp_path: Path) -> None:
    words = [*GOOD, *BAD]
    pairs = [(a, b, "same" if (a in GOOD) == (b in GOOD) else "other") for a in words for b in words]
    path = write(tmp_path / "pairs.tsv", pairs, "text\tpair\tlabel")
    settings = (*SMALL, *QUICK, "train.steps=4", "train.epochs=0", "data.pair_order=symmetric")
    said = train("classify", path, tmp_path / "run", *settings, model="gpt2-mini")
    assert "new tokens" not in said
    model = load(tmp_path / "run")
    assert model.spec.options.pair_order == "symmetric"
    assert facts(tmp_path / "run")["head_options"] == {"pair_order": "symmetric"}
    assert model.predict("fine\tpoor").value in ("same", "other")
    near(*(torch.tensor(model.predict(pair).score) for pair in (("fine", "poor"), ("poor", "fine"))), 1e-5)


def test_other_libraries_add_the_special_tokens(tmp_path: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    words = TextTokenizer.train_lm_bpe(["a wonderful evening, a dull one"] * 5, 280)
    text = find_task("classify").modality.build_processor(words, gpt2.Config())
    find_task("classify").modality.save_processor(text, gpt2.Config(), tmp_path, Export())
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    start, delimiter, extract = (text.backend.token_to_id(mark) for mark in ("_start_", "_delimiter_", "_classify_"))
    one, other = text.encode(["a dull evening", "wonderful"])
    assert theirs("a dull evening")["input_ids"] == [start, *one, extract]
    assert theirs("a dull evening", "wonderful")["input_ids"] == [start, *one, delimiter, *other, extract]
    assert TextTokenizer.load(tmp_path).encode(["a dull evening"]) == [one]


@pytest.mark.slow
def test_a_document_of_65_536_tokens_is_trained_on(tmp_path: Path) -> None:
    """The length exceeds every token id of a small vocabulary."""
    random = np.random.default_rng(0)
    texts = [" ".join(random.choice(list("abcdef"), many)) for many in (65_600, 20, 30, 25)]
    rows = [{"text": text, "label": "xy"[number % 2]} for number, text in enumerate(texts)]
    data, valid = jsonl(tmp_path / "d.jsonl", *rows), jsonl(tmp_path / "v.jsonl", *rows[1:])
    sizes = ("width=4", "depth=1", "heads=1", "ffn_dim=4", "attention_window=8", "max_length=65536")
    more = ("max_length=65536", "tokenizer_type=wordpiece", "vocab_size=40")
    settings = (*(f"model.{size}" for size in sizes), *(f"data.{one}" for one in more), "train.batch_tokens=65536")
    short = ("train.steps=2", "train.precision=float32")
    said = train("classify", data, tmp_path / "run", *settings, *short, model="longformer-mini", valid=[valid])
    assert "1 training texts have more than 65,536 tokens" in said


# -- choices

QUESTIONS = [
    ChoiceSample("abc", "", ("de", "f", "gag"), 1), ChoiceSample("h", "a", ("bed", "c"), 0),
    ChoiceSample("deaf", "", ("b", "c", "a"), 2),
]  # fmt: skip


@pytest.mark.parametrize("terms", [LossWeights(), LossWeights(0.2, 0.5)])
def test_the_loss_of_choices_equals_the_paper(terms: LossWeights) -> None:
    model = headed("choose")
    encoded = encode_samples(model, QUESTIONS)

    def log_probabilities(parts: list[list[int]]) -> torch.Tensor:
        return torch.stack([model.head.choice.weight[0] @ last_state(model, part) for part in parts]).log_softmax(0)

    right = paper_loss(model, encoded, terms, log_probabilities)
    assert_loss(model, encoded, right, 128, terms)
    batches = assert_one_shape(model, encode_samples(model, QUESTIONS * 8), 100)
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


@pytest.mark.parametrize("packed", [False, True])
def test_a_question_that_is_longer_than_a_micro_batch_is_a_micro_batch(packed: bool) -> None:
    model = headed("choose")
    plan = model.objective.sampler(encode_samples(model, QUESTIONS), model.config, 4, 0, packed)
    assert sorted(int(row) for grain in plan.epoch(0) for row in grain) == [0, 1, 2]


@pytest.mark.parametrize("wrong", ["no JSON", "[1]", '{"context": "a"}', {"context": 1, "choices": ["a", "b"]}])
def test_invalid_questions_are_refused(wrong: Any) -> None:
    refused("question", headed("choose").predict, wrong, error=RegardError)
    refused("non-empty choices", headed("choose").predict, {"context": "a", "choices": ["b"]}, error=RegardError)


def test_a_summary_that_is_computed_otherwise_is_refused(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=23, n_positions=16, n_embd=12, n_layer=1, n_head=3, bos_token_id=22, eos_token_id=22,
        summary_activation="tanh",
    )  # fmt: skip
    transformers.GPT2DoubleHeadsModel(config).save_pretrained(tmp_path)
    refused("'tanh'", load, tmp_path, error=WeightsError)
    assert load(tmp_path, task="lm").task.name == "lm"
