"""Task lm: data, loss, predictions and settings of language modeling."""

from __future__ import annotations

import json
import math
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from objectives import encode as encode_samples
from objectives import scores_of
from torch.nn import functional as F

import regard
from conftest import facts, rows
from data_files import refused, write
from regard.data.settings import DataSettings
from regard.data.text.documents import Passage
from regard.data.training_files import DataSources, TrainingFiles
from regard.decode.settings import DecodeSettings, apply_overrides
from regard.errors import DataError, InputError, RegardError, SettingError
from regard.processors.tokenizer.tokenizer import END_OF_TEXT, TextTokenizer
from regard.runs.evaluate import validation_loss
from regard.runs.settings import resolve
from regard.runs.spec import new_spec
from regard.tasks import find_task, lm
from regard.tasks.base import LossSum
from regard.tasks.lm import document_spans
from tiny_text_models import headed
from tiny_text_models import train as train_task

SMALL = (
    "model.width=32", "model.depth=2", "model.heads=2", "model.ffn_dim=64", "model.max_length=16", "train.batch_tokens=64",
    "train.warmup_steps=2", "train.log_every=4", "train.precision=float32",
)  # fmt: skip
CHARACTERS = "data.tokenizer_type=char"
TASK = find_task("lm")
OBJECTIVE: Any = TASK.objective


def model_of(length: int = 24) -> regard.Model:
    return headed("lm", max_length=length).requires_grad_(False)


def passages(*texts: str) -> list[Passage]:
    """Passages: + continues the text before; / too, after a held-out part; | starts a document after a held-out end."""
    return [Passage(t.lstrip("+/|"), "f.txt", i, t[0] not in "+/", t[0] in "/|") for i, t in enumerate(texts, 1)]


def encode(model: regard.Model, *texts: str, data: DataSettings | None = None) -> Any:
    return encode_samples(model, passages(*texts), data=data)


def test_no_document_ends_where_the_rest_of_it_is_held_out(tmp_path: Path) -> None:
    draw, model = random.Random(0), model_of()
    whole = ["".join(draw.choices("abcdefghij", k=draw.choice((40, 400, 3000)))) for _ in range(60)]
    whole = ["\n".join(text[at : at + 50] for at in range(0, len(text), 50)) for text in whole]
    path = write(tmp_path / "a.jsonl", "".join(json.dumps({"text": text}) + "\n" for text in whole))
    files = TrainingFiles(TASK, DataSources((path,)), 0.4, lambda line: None)
    found = files.scan()
    text, end = model.tokenizer, model.config.eos_id
    for samples in (list(files.samples(found, "read")), found.held):
        encoded = encode_samples(model, samples)
        values, ends, cut = encoded.fields["text"].values.tolist(), 0, 0
        for first, last in document_spans(encoded).tolist():
            words = text.decode([[i for i in values[first : last + 1] if i != end]])[0]
            closed = values[last] == end
            assert any(other.endswith(words) if closed else words in other for other in whole)
            ends, cut = ends + closed, cut + (not closed)
        assert ends > 10 and cut > 5
        opening = [(a, b) for a, b in pairwise(samples) if b.starts_document]  # complete documents have an end token
        assert all(b.after_gap is not any(other.endswith(a.text) for other in whole) for a, b in opening)
    assert len(found.held) > 30
    near = [(a, b) for a, b in pairwise(found.held) if not b.starts_document and b.line == a.line]
    follows = [b.after_gap for a, b in near if a.text + b.text in whole[b.line - 1]]
    assert follows and not any(follows)  # neighboring held-out passages stay together


@pytest.mark.parametrize("stride", [1, 5, 8])
def test_with_a_stride_every_token_is_predicted_once_with_the_longest_context(stride: int) -> None:
    model = model_of(length=8)
    text = "abc defghij\nabcabc hijiji"
    ids = [model.config.eos_id, *model.tokenizer.encode([text])[0]]
    right, start, said = 0.0, 0, 0
    while said < len(ids) - 1:
        stop = min(start + 8, len(ids) - 1)
        logs = model.logits(torch.tensor([ids[start:stop]]))[0].detach().log_softmax(-1)
        right -= sum(float(logs[place - start, ids[place + 1]]) for place in range(said, stop))
        said, start = stop, start + stride
    settings = resolve({"train": {"precision": "float32"}}, {})
    sums = validation_loss(model, encode(model, text, data=DataSettings(stride=stride)), settings)
    assert sums.count == len(ids) - 1 and sums.total == pytest.approx(right, rel=1e-10)


def test_windows_of_one_shape_teach_every_token_after_its_own_document_alone() -> None:
    model = model_of(length=8)
    texts = ["abc", "defghijabcd efg\n" * 9, "|hi", "j" * 40 + "ab" * 99]
    encoded = encode(model, *texts)
    plan = OBJECTIVE.sampler(encoded, model.config, 8, 1, False)
    assert plan.static_shape and plan.shape is None
    values, spans, places = encoded.fields["text"].values, document_spans(encoded).tolist(), []
    for grain in plan.epoch(0):
        batch = OBJECTIVE.collate(encoded, grain, model.config)
        assert batch.labels is not None and batch.inputs.shape == batch.labels.shape == (1, 8)
        part, count = OBJECTIVE.loss(model, batch)
        first, last, said, _ = grain[0].tolist()
        start, stop = next((a, b) for a, b in spans if a <= first and last <= b)
        assert first == max(start, last - 8) and stop >= last
        row = torch.from_numpy(values[first : last + 1].astype(np.int64))
        losses = F.cross_entropy(model.logits(row[None, :-1])[0], row[1:], reduction="none")[said - first :]
        assert int(count) == last - said and float(part) == pytest.approx(float(losses.sum()), rel=1e-9)
        places += range(said + 1, last + 1)
    assert sorted(places) == [place for a, b in spans for place in range(a + 1, b + 1)]


@pytest.mark.parametrize("packed", [False, True])
def test_micro_batches_of_short_documents_equal_each_document_alone(packed: bool) -> None:
    model = model_of(length=8)
    encoded = encode(model, "abc", "defghijabcdefg", "hi", "j")
    plan = OBJECTIVE.sampler(encoded, model.config, 32, 1, packed)
    total, count = 0.0, 0.0
    for grain in plan.epoch(0):
        part, labels = OBJECTIVE.loss(model, OBJECTIVE.collate(encoded, grain, model.config, plan.shape))
        total, count = total + float(part.detach()), count + float(labels)
    right = 0.0
    for first, last in np.concatenate(plan.epoch(0)).tolist():
        row = torch.from_numpy(encoded.fields["text"].values[first : last + 1].astype(np.int64))
        right += float(F.cross_entropy(model.logits(row[None, :-1])[0].detach(), row[1:], reduction="sum"))
    assert count == sum(last - first for first, last in document_spans(encoded).tolist())
    assert total == pytest.approx(right, rel=1e-9)


def test_perplexity_bits_and_words_match_their_names() -> None:
    model = model_of(length=64)
    encoded = encode(model, "abc de\nfg\n", "hij")
    scores, answers = scores_of(model, encoded, decode=DecodeSettings(max_new_tokens=3), loss=LossSum(30.0, 12.0))
    assert scores["perplexity"] == pytest.approx(math.exp(30 / 12), abs=1e-3)
    assert scores["bits_per_byte"] == pytest.approx(30 / math.log(2) / 13, abs=1e-4)
    # six words and line ends: abc de ⏎ fg ⏎ hij
    assert scores["word_perplexity"] == pytest.approx(math.exp(30 / 6), abs=1e-2)
    assert len(answers) == 2 and "bits/byte" in OBJECTIVE.format_scores(scores)


def test_samples_of_a_validation_begin_with_text_as_the_model_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(lm.DETOKENIZERS, "wikitext", lambda text: text.replace(" e", "e"))
    model = model_of(length=64)
    encoded = encode(model, "a b c d e f g h i j a b c d ")
    data, decode = DataSettings(detokenize="wikitext"), DecodeSettings(max_new_tokens=3)
    _, answers = scores_of(model, encoded, data, decode, LossSum(1.0, 1.0))
    assert answers[0].extra["prompt"].startswith("a b c de f")


# -- predictions


@pytest.mark.parametrize("settings", [{}, {"num_beams": 3}, {"repetition_penalty": 1.5}])
def test_prompts_of_different_lengths_together_equal_each_alone(settings: dict[str, Any]) -> None:
    texts = ["abc", "", "j", "abc def ghij", "a\nb"]
    model, more = model_of(length=32), {"max_new_tokens": 9, "do_sample": False, **settings}
    for text, answer in zip(texts, model.predict(texts, **more), strict=True):
        alone = model.predict(text, **more)
        assert alone.value == answer.value and alone.score == pytest.approx(answer.score, rel=1e-9, abs=1e-6)


def test_prompts_and_outputs_are_limited_by_the_context() -> None:
    model = model_of()
    first = int(model.logits(torch.tensor([[model.config.eos_id]]))[0, -1].argmax())
    assert first != model.config.eos_id  # an empty prompt is the beginning of a document
    assert model.predict("", max_new_tokens=1, do_sample=False).extra["token_ids"] == [first]
    model, long, greedy = model_of(length=8), "abcdefghijab", {"do_sample": False}
    for call in (model.predict, model.stream):
        refused(r"decode\.truncate_prompt", call, long, error=RegardError)
    cropped = model.predict(long, truncate_prompt=True, max_new_tokens=4, **greedy)
    assert cropped.value == model.predict(long[-5:], max_new_tokens=4, **greedy).value
    found = model.predict("abcde", max_new_tokens=100, stop_strings=(), **greedy)
    assert len(found.extra["token_ids"]) == 4 and found.extra["finish_reason"] == "context"
    assert len(model.predict("abcdefgh", max_new_tokens=100, **greedy).extra["token_ids"]) == 1
    assert model.predict("abcde", max_new_tokens=4, **greedy).extra["token_ids"] == found.extra["token_ids"]
    assert model.predict("abc", temperature=0).extra["token_ids"] == model.predict("abc", **greedy).extra["token_ids"]


def test_stop_strings_cut_the_output_before_them_and_streams_are_equal() -> None:
    model = model_of(length=64)
    whole = model.predict("abc", max_new_tokens=40, do_sample=False).value
    stop = whole[5:7]
    cut = model.predict("abc", max_new_tokens=40, do_sample=False, stop_strings=[stop])
    assert cut.value == whole[: whole.index(stop)] and cut.extra["finish_reason"] == "stop"
    assert "".join(model.stream("abc", max_new_tokens=40, do_sample=False, stop_strings=[stop])) == cut.value
    assert "".join(model.stream("abc", max_new_tokens=40, do_sample=False)) == whole


def test_samples_follow_their_seed_and_number_alone() -> None:
    model = model_of(length=64)
    asked: dict[str, Any] = {"max_new_tokens": 12, "temperature": 1.0, "seed": 5}
    many = [option["value"] for option in model.predict("abc", num_return_sequences=6, **asked).extra["alternatives"]]
    assert len(set(many)) > 1
    batch = model.predict(["abc", "def"], num_return_sequences=6, **asked)
    assert [option["value"] for option in batch[0].extra["alternatives"]] == many
    assert model.predict("abc", max_new_tokens=12, seed=6, temperature=1.0).value != model.predict("abc", **asked).value
    decode = apply_overrides(model.spec.decode, asked)
    answers = [answer.value for answer in model.predict(["abc", "abc"], **asked)]
    assert answers == ["".join(OBJECTIVE.stream(model, "abc", decode, first)) for first in (0, 1)]
    assert answers[0] != answers[1]


def test_the_choice_is_the_most_likely_continuation() -> None:
    model = model_of(length=32)
    found = model.rank("abc", ["de", "j", "hij hij"])
    logs = {}
    for choice in ("de", "j", "hij hij"):
        given, said = model.tokenizer.encode(["abc", choice])
        table = model.logits(torch.tensor([[*given, *said]]))[0].log_softmax(-1)
        logs[choice] = sum(float(table[len(given) - 1 + i, token]) for i, token in enumerate(said))
    best = max(logs, key=lambda choice: logs[choice])
    assert found.value == best and sum(found.score) == pytest.approx(1.0)
    for option in found.extra["choices"]:
        assert option["logprob"] == pytest.approx(logs[option["value"]], rel=1e-9)
    for wrong in ([], ["a"], ["a", ""]):
        refused("non-empty choices", model.rank, "abc", wrong, error=InputError)


# -- runs


def train(data: Any, out: Path, *settings: str, **more: Any) -> tuple[regard.Model, str]:
    said = train_task("lm", data, out, *SMALL, *settings, **more)
    return regard.load(out), said


STORY = "".join(f"the cat number {i} sat on the mat and the dog {i % 7} ran away\n" for i in range(400))


def test_the_best_checkpoint_has_the_lowest_perplexity(tmp_path: Path) -> None:
    diverging = ("train.steps=3", "train.eval_every=1", "train.lr=0.3", "train.warmup_steps=0", "train.grad_clip=0")
    train(write(tmp_path / "a.txt", STORY), tmp_path / "run", CHARACTERS, *diverging)
    found = {row["step"]: row["perplexity"] for row in rows(tmp_path / "run", "valid")}
    best = facts(tmp_path / "run")["best"]["step"]
    assert found[best] == min(found.values()) < max(found.values())


@pytest.mark.parametrize("letter", "abcdef")
def test_a_small_text_holds_out_a_small_meaningful_part(tmp_path: Path, letter: str) -> None:
    draw = random.Random(1)
    text = "".join(draw.choices("abcdefgh\n", k=8191)) + "\n" + letter
    files = TrainingFiles(TASK, DataSources((write(tmp_path / "a.txt", text),)), 0.02, lambda line: None)
    held = sum(len(sample.text) for sample in files.scan().held)
    assert 100 < held < 0.1 * len(text)


def test_too_small_a_micro_batch_and_no_text_are_refused(tmp_path: Path) -> None:
    for setting, told in (("data.stride=17", r"data\.stride"), ("train.batch_tokens=8", r"model\.max_length")):
        with pytest.raises(SettingError, match=told):
            train(str(tmp_path / "a.txt"), tmp_path / "run", setting)  # the file does not exist
    refused("text", train, write(tmp_path / "b.txt", " \n\n"), tmp_path / "run", CHARACTERS)
    with pytest.raises(DataError, match=END_OF_TEXT.replace("|", r"\|")):
        TASK.modality.fit_config(model_of().config, TextTokenizer.train_sentence_bpe(["a b c"] * 9, 300))
    refused(r"model\.eos_id", regard.build, "gpt2-mini", vocab_size=13, error=SettingError)
    refused("one text", model_of().stream, ["abc"], error=RegardError)


def test_pretrained_weights_have_a_lower_learning_rate_and_the_decoding_of_presets(tmp_path: Path) -> None:
    model_of().float().save(tmp_path / "own")
    regard.save(model_of().float(), tmp_path / "published")
    order = new_spec(TASK, str(tmp_path / "published"), DataSources(("a.txt",)), {})
    assert order.settings.train.label_smoothing == 0 and order.settings.train.lr < 1e-4
    assert order.settings.decode.do_sample and order.settings.decode.top_k == 40
    assert regard.load(tmp_path / "published").spec.decode.do_sample
    given = {"data": {"tokenizer_type": "char"}}
    with pytest.raises(SettingError, match=r"data\.tokenizer_type"):
        new_spec(TASK, str(tmp_path / "own"), DataSources(("a.txt",)), given)


def test_given_steps_override_the_epochs_of_a_recipe() -> None:
    recipe = {"train": {"epochs": 3}}
    assert resolve(recipe, {}).train.epochs == 3 and resolve(recipe, {"train": {"steps": 5}}).train.epochs == 0
    refused("steps", resolve, recipe, {"train": {"steps": 5, "epochs": 2}}, error=SettingError)


def test_a_character_vocabulary_covers_the_validation_data_too(tmp_path: Path) -> None:
    data, valid = write(tmp_path / "a.txt", STORY), write(tmp_path / "v.txt", "the cat über alles\n" * 9)
    model, said = train(data, tmp_path / "run", CHARACTERS, "train.steps=1", valid=valid)
    assert "windows of 16 tokens" in said and model.tokenizer is not None and model.tokenizer.encode(["ü"])


def test_a_tokenizer_without_an_end_is_given_one_and_long_texts_are_not_packed(tmp_path: Path) -> None:
    TextTokenizer.train_sentence_bpe([STORY], 300).save(tmp_path / "tokenizer.json")
    data, valid = write(tmp_path / "a.txt", STORY), write(tmp_path / "v.txt", STORY[:900])
    settings = ("train.steps=1", "train.packing=on", f"data.tokenizer={tmp_path}")
    model, said = train(data, tmp_path / "run", *settings, valid=valid)
    assert model.tokenizer is not None and model.tokenizer.backend.token_to_id(END_OF_TEXT) == model.config.eos_id
    assert model.config.attention_dropout == 0.1 and "packed rows" not in said


def test_others_read_the_text_of_a_saved_model_as_we_do(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    model = model_of()
    regard.save(model.float(), tmp_path / "a")
    theirs = AutoTokenizer.from_pretrained(tmp_path / "a")
    text = "abc de\nfg  j"
    assert theirs(text)["input_ids"] == model.tokenizer.encode([text])[0]
    assert theirs.decode(theirs(text)["input_ids"], clean_up_tokenization_spaces=False) == text
    assert theirs.eos_token == END_OF_TEXT
