"""Task mlm: from a folder of documents to a pretrained encoder: losses, metrics and predictions."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from objectives import encode as encode_samples
from objectives import scores_of
from torch import Tensor
from torch.nn import functional as F

import regard
from conftest import rows
from data_files import refused
from encoders import encoder
from regard.data.settings import DataSettings
from regard.data.text.documents import Passage
from regard.data.training_files import DataSources, TrainingFiles
from regard.errors import DataError, RegardError, SettingError
from regard.model import ModelSpec, assemble
from regard.nn.kernels.losses import cross_entropy
from regard.processors.tokenizer.tokenizer import TextTokenizer
from regard.runs.check import check
from regard.systems import bert
from regard.tasks import find_task
from regard.tasks.base import Encoded, LossWeights
from regard.tasks.mlm import NSP_NOT_MEASURED, document_parts
from regard.types import IGNORE, Batch
from tiny import gradients, near, noisy
from tiny_text_models import train as train_task
from tokenizer_files import write_roberta

TASK = find_task("mlm")
OBJECTIVE: Any = TASK.objective
SHORT = DataSettings(max_length=24)
SMALL = (
    "model.width=32", "model.depth=1", "model.heads=2", "model.ffn_dim=64", "model.max_length=48", "model.dropout=0",
    "model.attention_dropout=0", "data.vocab_size=120", "data.max_length=24", "data.valid_fraction=0.1",
    "train.batch_tokens=384", "train.precision=float32", "train.steps=8", "train.eval_every=4", "train.log_every=2",
    "train.warmup_steps=5", "train.lr=5e-3",
)  # fmt: skip

WORDS = (
    "sun", "sand", "sea", "shell", "wave", "salt", "iron", "coal", "steam", "smoke", "wheel", "rail", "milk", "egg",
    "bread", "oven",
)  # fmt: skip


def story(word: str, sentences: int, draw: random.Random) -> str:
    """A document that repeats one word: masked words and the topic are easy to predict."""
    return "\n".join(" ".join([word] * draw.randint(4, 9)) + " ." for _ in range(sentences))


def stories(count: int = 30, seed: int = 0) -> list[str]:
    draw = random.Random(seed)
    return [story(WORDS[i % len(WORDS)], draw.randint(3, 12), draw) for i in range(count)]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    for number, text in enumerate(stories(60)):
        (folder / f"{number:02d}.txt").write_text(text, encoding="utf-8")
    return folder


def train(data: Any, out: Path, *settings: str) -> str:
    return train_task("mlm", data, out, *SMALL, *settings)


def passages(*texts: str) -> list[Passage]:
    """Passages: + continues the text before; / too, after a held-out part; | follows a held-out document start."""
    found, document = [], 0
    for line, text in enumerate(texts, 1):
        opens = text[0] not in "+/|"
        document += opens or text[0] == "|"
        found.append(Passage(text.lstrip("+/|"), "f.txt", line, opens, text[0] in "/|", document))
    return found


def asked_model(**changes: Any) -> regard.Model:
    return encoder("mlm", [f"{word} {word} ." for word in WORDS], **changes)


def encode(model: regard.Model, *texts: str, **settings: Any) -> Encoded:
    return encode_samples(model, passages(*texts), data=DataSettings(**{"max_length": 24, **settings}))


def logits_of(model: regard.Model, batch: Batch) -> Tensor:
    """Logits at the masked tokens."""
    logits = model.logits(batch.inputs, mask=batch.mask, token_types=batch.text.token_types)
    assert logits.shape == (*batch.inputs.shape, model.config.vocab_size)
    return logits.flatten(0, 1)[batch.text.label_positions]


def test_spans_are_contiguous_text_and_documents_are_numbered() -> None:
    model = asked_model()
    encoded = encode(model, "sun sand", "+sea .", "iron coal steam", "/rail .", "+salt", "milk")
    assert document_parts(encoded).tolist() == [[0, 4, 1], [4, 7, 2], [7, 10, 2], [10, 11, 3]]
    assert not {*model.tokenizer.special_ids} & {*encoded.fields["text"].values.tolist()}
    # the beginning of the first document is held out
    assert document_parts(encode(model, "/sun sand", "sea")).tolist() == [[0, 2, 0], [2, 3, 1]]
    assert document_parts(encode(model, "sun sand", "|sea", "/sun")).tolist() == [[0, 2, 1], [2, 3, 2], [3, 4, 2]]


def test_passages_out_of_the_middle_of_documents_are_validated_in_pairs(tmp_path: Path) -> None:
    """Held-out passages rarely begin a document, but keep the number of their document."""
    for number in range(6):
        (tmp_path / f"{number}.txt").write_text("\n".join(stories(40, seed=number)))
    held = TrainingFiles(TASK, DataSources((str(tmp_path),)), 0.1, [].append).scan().held
    held = tuple(passage for passage in held if not passage.starts_document)
    assert len({passage.path for passage in held}) > 2
    model = asked_model()
    encoded = encode_samples(model, held, data=SHORT)
    number = {passage.document: passage.path for passage in held}
    assert len(set(number.values())) == len(number) == len(set(document_parts(encoded)[:, 2].tolist()))
    follows = torch.cat([batch.text.nsp_labels for batch in OBJECTIVE.eval_batches(encoded, model.config, 384)])
    assert {*follows.tolist()} == {0, 1}
    assert 0 <= scores_of(model, encoded, SHORT)[0]["nsp_accuracy"] <= 100


@pytest.mark.parametrize("pairs", [True, False])
def test_packed_rows_train_as_padded_rows_do(pairs: bool) -> None:
    model = asked_model(nsp=pairs, pooler=pairs)
    encoded = encode(model, *stories(12))
    plan = OBJECTIVE.sampler(encoded, model.config, 144, 1, True)
    for number in range(3):
        chosen = plan.micro_batch(number)[1]
        batches = [OBJECTIVE.collate(encoded, chosen, model.config, shape) for shape in (plan.shape, None)]
        (ours, count), (right, number_of_labels) = (OBJECTIVE.loss(model, batch) for batch in batches)
        near(ours, right)
        assert count == number_of_labels
        found, expected = gradients(model, ours), gradients(model, right)
        assert found.keys() == expected.keys() == dict(model.named_parameters()).keys()
        for name, gradient in found.items():
            near(gradient, expected[name], 1e-9)


def test_the_loss_is_the_mean_over_masked_tokens_plus_the_mean_over_pairs_per_masked_token() -> None:
    model = asked_model()
    encoded = encode(model, *stories(8))
    chosen = OBJECTIVE.sampler(encoded, model.config, 144, 1, False).micro_batch(0)[1]
    batch = OBJECTIVE.collate(encoded, chosen, model.config)
    total, count = OBJECTIVE.loss(model, batch)
    words = F.cross_entropy(logits_of(model, batch), batch.labels)
    assert int(count) == len(batch.labels)
    states = model.states(batch.inputs, mask=batch.mask, token_types=batch.text.token_types)
    near(total / count, words + F.cross_entropy(model.head.follows(states.pooled), batch.text.nsp_labels))
    unknown = replace(batch.text, nsp_labels=torch.full_like(batch.text.nsp_labels, IGNORE))
    near(OBJECTIVE.loss(model, replace(batch, text=unknown))[0] / count, words)
    # label smoothing applies to words only
    smooth = OBJECTIVE.loss(model, batch, LossWeights(smoothing=0.2))[0]
    plain, smoothed = (cross_entropy(logits_of(model, batch), batch.labels, share)[0] for share in (0.0, 0.2))
    near(smooth - total, smoothed - plain, 1e-10)


def test_the_validation_loss_does_not_depend_on_batching() -> None:
    model = asked_model()
    encoded = encode(model, *stories(10))
    losses = []
    for tokens in (48, 300, 10_000):
        batches, again = (list(OBJECTIVE.eval_batches(encoded, model.config, tokens)) for _ in range(2))
        for pair in zip(batches, again, strict=True):
            assert all(torch.equal(*both) for both in zip(*(one.tensors() for one in pair), strict=True))
        labels = sorted(label for batch in batches for label in batch.labels.tolist())
        words = sum(F.cross_entropy(logits_of(model, batch), batch.labels, reduction="sum") for batch in batches)
        losses.append((labels, float(words.detach())))
    assert losses[0][0] == losses[1][0] == losses[2][0]
    assert losses[0][1] == pytest.approx(losses[1][1], rel=1e-10) == pytest.approx(losses[2][1], rel=1e-10)


def test_examples_show_masks_with_references_and_scores_name_the_chance() -> None:
    model = asked_model()
    encoded = encode(model, *stories(10))
    scores, answers = scores_of(model, encoded, SHORT)
    assert len(answers) == 3 and all(answer.extra["masks"] for answer in answers)
    shown = OBJECTIVE.format_example(encoded.samples[0], answers[0])
    assert "[MASK]" in shown and answers[0].extra["references"][0] in shown
    assert "chance: 50 %" in OBJECTIVE.format_scores(scores)
    # a validation of one document has no NSP score
    one = scores_of(model, encode(model, *stories(1)), SHORT)[0]
    assert one["nsp_accuracy"] == NSP_NOT_MEASURED
    assert "chance" not in OBJECTIVE.format_scores(one) and "single document" in OBJECTIVE.format_scores(one)
    # samples without masked tokens are shown unchanged
    encoded = encode(model, "sun [MASK] sea", "? ! .", "sun sand " * 30)
    scores, answers = scores_of(model, encoded, SHORT)
    assert [len(answer.extra["references"]) for answer in answers] == [0, 0, 2] and scores["mlm_loss"] > 0
    assert OBJECTIVE.format_example(encoded.samples[0], answers[0]) == "    sun [MASK] sea\n"
    row = OBJECTIVE.example_row(encoded.samples[1], answers[1])
    assert row == {"text": "? ! .", "prediction": "", "reference": ""}


def test_mask_tokens_are_filled_with_the_most_likely_words() -> None:
    model = asked_model()
    text = model.tokenizer
    given = ["sun [MASK] sea", "[MASK] coal steam [MASK] .", "milk[MASK]"]
    answers = model.predict(given)
    for item, answer in zip(given, answers, strict=True):
        ids = [model.config.bos_id, *text.encode_masked([item])[0], model.config.eos_id]
        chances = model.logits(torch.tensor([ids]))[0].detach().softmax(-1)
        places = [place for place, token in enumerate(ids) if token == model.config.mask_id]
        assert len(answer.extra["masks"]) == len(places) == item.count("[MASK]")
        for place, gap in zip(places, answer.extra["masks"], strict=True):
            best = [i for i in chances[place].argsort(descending=True).tolist() if i not in text.special_ids][:5]
            assert [word["word"] for word in gap] == [text.id_to_token(i).removeprefix("##") for i in best]
            begins = [not text.id_to_token(i).startswith("##") or place == 1 for i in best]  # a row begins with a word
            assert [word["begins"] for word in gap] == begins
            near(torch.tensor([word["probability"] for word in gap]).double(), chances[place][best], 1e-6)
        said = item
        for gap in answer.extra["masks"]:
            before, _, after = said.partition("[MASK]")
            said = (before if gap[0]["begins"] else before.rstrip()) + gap[0]["word"] + after
        assert answer.value == said and answer.score[0] == answer.extra["masks"][0][0]["probability"]
    shown = OBJECTIVE.format_prediction(given[1], answers[1])
    assert "| mask |" in shown and answers[1].value in shown
    # a continued word is written without a space
    piece = next(number for number in range(text.size) if text.id_to_token(number).startswith("##"))
    with torch.no_grad():
        model.head.words.bias[piece] = 1e3
    name = text.id_to_token(piece).removeprefix("##")
    answer = model.predict("sun [MASK] sea.")
    assert answer.value == f"sun{name} sea." and f"·{name} 1.000" in OBJECTIVE.format_prediction("", answer)


@pytest.mark.parametrize(("texts", "said"), [(["sun [MASK]", "sun sea"], "MASK"), (["sun " * 30 + "[MASK]"], "24")])
def test_a_text_without_a_mask_token_or_too_long_is_refused(texts: list[str], said: str) -> None:
    refused(said, asked_model().predict, texts, error=RegardError)


def test_a_mask_token_can_be_written_as_in_the_tokenizer_or_as_in_bert(tmp_path: Path) -> None:
    text = TextTokenizer.load(write_roberta(tmp_path))
    config = TASK.modality.fit_config(bert.Config(width=12, depth=1, heads=3, ffn_dim=20, max_length=24), text)
    model = noisy(assemble(ModelSpec(bert.SYSTEM, config, TASK), text))
    one, two = model.predict(["the <mask> sat"])[0], model.predict("the [MASK] sat")
    assert one == two and one.value.startswith("the") and one.value.endswith(" sat") and "<mask>" not in one.value


def test_mlm_alone_needs_no_pairs_no_pooler_and_no_second_document(tmp_path: Path) -> None:
    path, run = tmp_path / "one.txt", tmp_path / "run"
    path.write_text("\n".join(stories(20)), encoding="utf-8")
    refused(r"model\.nsp", train, path, run)
    said = train(path, run, "model.nsp=false", "train.packing=on", "data.whole_word_mask=true", "data.mask_prob=0.3")
    assert "packed rows of texts up to 24 tokens" in said
    model = regard.load(run)
    assert not model.config.nsp and model.body.pooler is None and not model.head.has_nsp
    assert '"BertForMaskedLM"' in (run / "config.json").read_text()
    assert set(rows(run, "valid")[0]) == {"kind", "step", "loss", "mlm_loss", "perplexity", "accuracy"}


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("data.mask_prob=0", "mask_prob"), ("data.mask_prob=1.5", "mask_prob"), ("data.max_length=6", "data.max_length"),
        ("model.max_length=5", "model.max_length"), ("train.batch_tokens=20", "data.max_length"),
        ("data.tokenizer_type=byte_bpe", "tokenizer"),
    ],
)  # fmt: skip
def test_settings_that_cannot_work_are_refused(corpus: Path, tmp_path: Path, setting: str, message: str) -> None:
    with pytest.raises((SettingError, DataError), match=message):
        train(corpus, tmp_path / "run", "data.vocab_size=300", setting)
    assert not (tmp_path / "run").exists()


def test_data_for_it_is_checked_as_text_is(corpus: Path) -> None:
    report = check("mlm", str(corpus))
    assert report.task == "mlm" and report.counts["documents"] == 60 and not report.errors
    assert "single_document" in [finding.id for finding in check("mlm", str(corpus / "00.txt")).findings]
