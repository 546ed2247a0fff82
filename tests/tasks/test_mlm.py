"""Task mlm: from a folder of documents to a pretrained encoder: losses, metrics and predictions."""

from __future__ import annotations

import io
import json
import random
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from rich.console import Console
from torch import Tensor
from torch.nn import functional as F

import regard
from conftest import checkpoints, rows, same_tensors, stopped_in
from encoders import encoder
from regard.cli import main
from regard.data.batching.loader import prefetch
from regard.data.settings import DataSettings
from regard.data.text.documents import Passage
from regard.errors import DataError, RegardError, SettingError
from regard.nn.kernels.losses import cross_entropy
from regard.processors.tokenizer.tokenizer import TextTokenizer
from regard.runs.check import check
from regard.runs.evaluate import evaluate, validation_loss
from regard.runs.settings import resolve
from regard.systems import bert
from regard.tasks import find_task
from regard.tasks.base import Encoded, LossWeights
from regard.tasks.mlm import NSP_NOT_MEASURED, MaskedLM, document_parts
from regard.types import IGNORE, Batch
from tiny import near, noisy
from tokenizer_files import write_roberta

TASK = find_task("mlm")
SMALL = (
    "model.width=32",
    "model.depth=1",
    "model.heads=2",
    "model.ffn_dim=64",
    "model.max_length=48",
    "model.dropout=0",
    "model.attention_dropout=0",
    "data.vocab_size=120",
    "data.max_length=24",
    "data.valid_fraction=0.1",
    "train.batch_tokens=384",
    "train.precision=float32",
    "train.steps=8",
    "train.eval_every=4",
    "train.log_every=2",
    "train.warmup_steps=5",
    "train.lr=5e-3",
)

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


def train(data: Any, out: Path, *settings: str, **more: Any) -> str:
    """Console output of a training run."""
    said = io.StringIO()
    given = str(data) if data else ()
    console = Console(file=said, width=300)
    regard.train(
        "mlm", given, out=out, settings=[*SMALL, *settings] if given else (), console=console, device="cpu", **more
    )
    return said.getvalue()


@pytest.fixture(scope="module")
def trained(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    out = tmp_path_factory.mktemp("runs") / "run"
    return out, train(
        corpus, out, "train.steps=300", "train.eval_every=150", "train.log_every=50", "train.batch_tokens=768"
    )


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


def encode(model: regard.Model, texts: Iterable[str], **settings: Any) -> Encoded:
    data = DataSettings(**{"max_length": 24, **settings})
    return TASK.objective.encode(passages(*texts), model.require_tokenizer(), model.config, 10**9, data)


def grain(model: regard.Model, encoded: Encoded, number: int = 0, packed: bool = False, seed: int = 1) -> Batch:
    plan = TASK.objective.sampler(encoded, model.config, 144, seed, packed)
    return TASK.objective.collate(encoded, plan.micro_batch(number)[1], model.config, plan.shape)


def same(one: Batch, two: Batch) -> bool:
    both = [batch.tensors() for batch in (one, two)]
    return len(both[0]) == len(both[1]) and all(torch.equal(a, b) for a, b in zip(*both, strict=True))


# -- documents


def test_spans_are_contiguous_text_and_documents_are_numbered() -> None:
    model = asked_model()
    encoded = encode(model, ["sun sand", "+sea .", "iron coal steam", "/rail .", "+salt", "milk"])
    assert document_parts(encoded).tolist() == [[0, 4, 1], [4, 7, 2], [7, 10, 2], [10, 11, 3]]
    assert not {*model.require_tokenizer().special_ids} & {*encoded.fields["text"].values.tolist()}
    # the beginning of the first document is held out
    assert document_parts(encode(model, ["/sun sand", "sea"])).tolist() == [
        [0, 2, 0],
        [2, 3, 1],
    ]
    assert document_parts(encode(model, ["sun sand", "|sea", "/sun"])).tolist() == [[0, 2, 1], [2, 3, 2], [3, 4, 2]]


def test_passages_out_of_the_middle_of_documents_are_validated_in_pairs(corpus: Path, tmp_path: Path) -> None:
    """Held-out passages rarely begin a document, but keep the number of their document."""
    from regard.runs.preprocess import TrainingFiles
    from regard.runs.spec import DataSources

    (tmp_path / "some").mkdir()
    for number in range(6):
        (tmp_path / "some" / f"{number}.txt").write_text("\n".join(stories(40, seed=number)))
    held = TrainingFiles(TASK, DataSources((str(tmp_path / "some"),)), 0.1, [].append).scan().held
    held = tuple(passage for passage in held if not passage.starts_document)
    assert len({passage.path for passage in held}) > 2
    model = asked_model()
    encoded = TASK.objective.encode(held, model.require_tokenizer(), model.config, 10**9, DataSettings(max_length=24))
    number = {passage.document: passage.path for passage in held}
    assert len(set(number.values())) == len(number) == len(set(document_parts(encoded)[:, 2].tolist()))
    follows = torch.cat([batch.text.nsp_labels for batch in TASK.objective.eval_batches(encoded, model.config, 384)])
    assert {*follows.tolist()} == {0, 1}
    scores, _ = TASK.objective.evaluate(model, encoded, model.spec.decode, DataSettings(max_length=24), None)
    assert 0 <= scores["nsp_accuracy"] <= 100
    alone = TASK.objective.encode(held[:1], model.require_tokenizer(), model.config, 10**9, DataSettings(max_length=24))
    scores, _ = TASK.objective.evaluate(model, alone, model.spec.decode, DataSettings(max_length=24), None)
    assert "a single document" in TASK.objective.format_scores(scores)


def test_held_out_text_is_never_in_a_training_row(corpus: Path) -> None:
    from regard.runs.preprocess import TrainingFiles
    from regard.runs.spec import DataSources

    model = asked_model()
    found = TrainingFiles(TASK, DataSources((str(corpus),)), 0.3, lambda line: None)
    reading = found.scan()
    split = [list(found.samples(reading, "read")), list(reading.held)]
    for own, other in (split, split[::-1]):
        encoded = TASK.objective.encode(
            own, model.require_tokenizer(), model.config, 10**9, DataSettings(max_length=24)
        )
        plan = TASK.objective.sampler(encoded, model.config, 144, 1, False)
        whole = [
            "".join(model.require_tokenizer().decode([row]))
            for row in model.require_tokenizer().encode([s.text for s in own])
        ]
        text = encoded.fields["text"]
        for number in range(10):
            for a, b, c, d in plan.micro_batch(number)[1][:, :4].tolist():
                for first, last in ((a, b), (c, d)):
                    said = model.require_tokenizer().decode([text.values[first:last].tolist()])[0]
                    assert any(said in sample for sample in whole)
        assert len(other) > 5


# -- rows


@pytest.mark.parametrize("packed", [False, True])
def test_a_row_is_two_texts_between_special_tokens_with_labels_of_masked_tokens(packed: bool) -> None:
    model = asked_model()
    config, encoded = model.config, encode(model, stories(8))
    plan = TASK.objective.sampler(encoded, config, 144, 1, packed)
    stream = encoded.fields["text"].values
    for number in range(6):
        chosen = plan.micro_batch(number)[1]
        batch = TASK.objective.collate(encoded, chosen, config, plan.shape)
        assert (
            batch.labels is not None
            and batch.text.label_positions is not None
            and batch.text.token_types is not None
            and batch.text.nsp_labels is not None
        )
        ids = batch.inputs.flatten().clone()
        real = batch.labels != IGNORE
        hidden = ids[batch.text.label_positions[real]]
        ids[batch.text.label_positions[real]] = batch.labels[real]
        begins = np.cumsum([0, *plan.row_lengths(chosen)]) if packed else batch.inputs.shape[1] * np.arange(len(chosen))
        for (a, b, c, d, follows, *_), first, at in zip(chosen.tolist(), begins.tolist(), range(99), strict=False):
            right = [config.bos_id, *stream[a:b].tolist(), config.eos_id, *stream[c:d].tolist(), config.eos_id]
            assert ids[first : first + len(right)].tolist() == right and len(right) <= 24
            types = batch.text.token_types.flatten()[first : first + len(right)]
            assert types.tolist() == [0] * (b - a + 2) + [1] * (d - c + 1)
            assert int(batch.text.nsp_labels[at]) == follows
            inside = (batch.text.label_positions[real] >= first) & (
                batch.text.label_positions[real] < first + len(right)
            )
            assert int(inside.sum()) == max(round(0.15 * (len(right) - 3)), 1)
        assert float((hidden == config.mask_id).double().mean()) > 0.5
        assert bool((batch.text.nsp_labels[len(chosen) :] == IGNORE).all())


def test_packed_micro_batches_have_one_shape_with_equally_many_labels() -> None:
    model = asked_model()
    encoded = encode(model, stories(20))
    shapes = {
        tuple(tuple(tensor.shape) for tensor in grain(model, encoded, number, packed=True).tensors())
        for number in range(40)
    }
    assert len(shapes) == 1


@pytest.mark.parametrize("pairs", [True, False])
def test_packed_rows_train_as_padded_rows_do(pairs: bool) -> None:
    model = asked_model(nsp=pairs, pooler=pairs)
    encoded = encode(model, stories(12))
    plan = TASK.objective.sampler(encoded, model.config, 144, 1, True)
    for number in range(3):
        chosen = plan.micro_batch(number)[1]
        losses = []
        for shape in (plan.shape, None):
            model.zero_grad()
            total, count = TASK.objective.loss(
                model, TASK.objective.collate(encoded, chosen, model.config, shape), LossWeights()
            )
            total.backward()
            losses.append((total.detach(), count, [p.grad for p in model.parameters()]))
        near(*(loss[0] for loss in losses))
        assert losses[0][1] == losses[1][1] and all(p is not None for p in losses[0][2])
        for one, two in zip(losses[0][2], losses[1][2], strict=True):
            near(one, two, 1e-9)


def test_a_micro_batch_is_the_same_in_any_order_and_from_workers_and_differs_from_others() -> None:
    model = asked_model()
    encoded = encode(model, stories(20))
    plan = TASK.objective.sampler(encoded, model.config, 144, 1, False)

    def made(number: int) -> Batch:
        return TASK.objective.collate(encoded, plan.micro_batch(number)[1], model.config)

    first = [made(number) for number in range(12)]
    assert all(same(made(number), first[number]) for number in (11, 3, 0, 7))
    assert all(same(*both) for both in zip(first, prefetch(made, range(12), workers=2), strict=True))
    other = [grain(model, encoded, number, seed=2) for number in range(12)]
    assert not any(same(*both) for both in zip(first, other, strict=True))
    # the same rows in another micro-batch have other masked tokens
    chosen = plan.micro_batch(0)[1]
    again = chosen.copy()
    again[:, 6] = 5
    one, two = (TASK.objective.collate(encoded, which, model.config) for which in (chosen, again))
    assert torch.equal(one.text.nsp_labels, two.text.nsp_labels) and not torch.equal(
        one.text.label_positions, two.text.label_positions
    )


def test_whole_words_are_masked_together() -> None:
    model = encoder("mlm", ["sun sea salt"], vocab_size=30)
    text = model.require_tokenizer()
    encoded = encode(
        model, ["sunsalt sea saltsea sun " * 6, "salt sun sunsea " * 6], whole_word_mask=True, mask_prob=0.3
    )
    batch = grain(model, encoded)
    assert batch.text.label_positions is not None and batch.labels is not None
    ids = batch.inputs.flatten().clone()
    ids[batch.text.label_positions] = batch.labels
    asked, pieces = {*batch.text.label_positions.tolist()}, 0
    for row in range(len(batch.inputs)):
        first = row * batch.inputs.shape[1]
        begins = [
            first + at for at in np.flatnonzero(text.starts_word(ids[first : first + batch.inputs.shape[1]].numpy()))
        ]
        for a, b in zip(begins, [*begins[1:], first + batch.inputs.shape[1]], strict=True):
            assert not asked & {*range(a, b)} or asked >= {*range(a, b)}
            pieces += b - a > 1 and a in asked
    assert pieces > 3


# -- the loss


def test_the_loss_is_the_mean_over_masked_tokens_plus_the_mean_over_pairs_per_masked_token() -> None:
    model = asked_model()
    batch = grain(model, encode(model, stories(8)))
    assert batch.labels is not None and batch.text.label_positions is not None and batch.text.nsp_labels is not None
    total, count = TASK.objective.loss(model, batch)
    logits = model.logits(batch.inputs, mask=batch.mask, token_types=batch.text.token_types)
    assert logits.shape == (*batch.inputs.shape, model.config.vocab_size)
    words = F.cross_entropy(logits.flatten(0, 1)[batch.text.label_positions], batch.labels)
    summary = model.states(batch.inputs, mask=batch.mask, token_types=batch.text.token_types).pooled
    follows = F.cross_entropy(model.head.follows(summary), batch.text.nsp_labels)
    assert int(count) == len(batch.labels)
    near(total / count, words + follows)
    unknown = TASK.objective.loss(
        model, replace(batch, text=replace(batch.text, nsp_labels=torch.full_like(batch.text.nsp_labels, IGNORE)))
    )[0]
    near(unknown / count, words)


def test_smoothing_is_of_words_alone() -> None:
    model = asked_model()
    batch = grain(model, encode(model, stories(8)))
    smooth, plain = (TASK.objective.loss(model, batch, LossWeights(smoothing=share))[0] for share in (0.2, 0.0))
    words = [cross_entropy(_logits(model, batch), batch.labels, share)[0] for share in (0.2, 0.0)]
    near(smooth - plain, words[0] - words[1], 1e-10)


# -- validation


def test_the_validation_loss_does_not_depend_on_batching() -> None:
    model = asked_model()
    encoded = encode(model, stories(10))
    losses = []
    for tokens in (48, 300, 10_000):
        batches = list(TASK.objective.eval_batches(encoded, model.config, tokens))
        labels = sorted(label for batch in batches for label in batch.labels.tolist())
        words = sum(F.cross_entropy(_logits(model, batch), batch.labels, reduction="sum") for batch in batches)
        losses.append((labels, float(words.detach())))
        assert all(
            same(*both)
            for both in zip(batches, TASK.objective.eval_batches(encoded, model.config, tokens), strict=True)
        )
    assert losses[0][0] == losses[1][0] == losses[2][0]
    assert losses[0][1] == pytest.approx(losses[1][1], rel=1e-10) == pytest.approx(losses[2][1], rel=1e-10)


def _logits(model: regard.Model, batch: Batch) -> Tensor:
    return model.logits(batch.inputs, mask=batch.mask, token_types=batch.text.token_types).flatten(0, 1)[
        batch.text.label_positions
    ]


def test_scores_are_those_of_the_masked_tokens_and_pairs_of_validation() -> None:
    model = asked_model()
    encoded, data = encode(model, stories(10)), DataSettings(max_length=24)
    sums = validation_loss(model, encoded, resolve({"train": {"precision": "float32"}, "data": {"max_length": 24}}, {}))
    scores, answers = TASK.objective.evaluate(model, encoded, model.spec.decode, data, sums)
    hits, count, told, pairs, loss = 0, 0, 0, 0, 0.0
    for batch in TASK.objective.eval_batches(encoded, model.config, 100, data):
        logits = _logits(model, batch)
        said = model.head.follows(
            model.states(batch.inputs, mask=batch.mask, token_types=batch.text.token_types).pooled
        ).argmax(-1)
        hits, count = hits + int((logits.argmax(-1) == batch.labels).sum()), count + len(batch.labels)
        told, pairs = told + int((said == batch.text.nsp_labels).sum()), pairs + len(batch.text.nsp_labels)
        loss += float(F.cross_entropy(logits, batch.labels, reduction="sum").detach())
    assert scores["accuracy"] == round(100 * hits / count, 2) and sums.count == count
    assert scores["nsp_accuracy"] == round(100 * told / pairs, 2)
    assert scores["mlm_loss"] == round(loss / count, 4)
    assert len(answers) == 3 and all(answer.extra["masks"] for answer in answers)
    shown = TASK.objective.format_example(encoded.samples[0], answers[0])
    assert "[MASK]" in shown and answers[0].extra["references"][0] in shown
    assert "chance: 50 %" in TASK.objective.format_scores(scores) and set(
        TASK.objective.example_row(None, answers[0])
    ) == {
        "text",
        "prediction",
        "reference",
    }


def test_validation_of_one_document_has_no_nsp_score() -> None:
    model = asked_model()
    encoded = encode(model, stories(1))
    sums = validation_loss(model, encoded, resolve({"data": {"max_length": 24}}, {}))
    scores, _ = TASK.objective.evaluate(model, encoded, model.spec.decode, DataSettings(max_length=24), sums)
    assert scores["nsp_accuracy"] == NSP_NOT_MEASURED and scores["mlm_loss"] == pytest.approx(sums.mean, abs=1e-3)
    assert "chance" not in TASK.objective.format_scores(scores)


def test_samples_without_masked_tokens_are_shown_unchanged() -> None:
    model = asked_model()
    encoded = encode(model, ["sun [MASK] sea", "? ! .", "sun sand " * 30])
    scores, answers = TASK.objective.evaluate(model, encoded, model.spec.decode, DataSettings(max_length=24), None)
    assert [len(answer.extra["references"]) for answer in answers] == [0, 0, 2] and scores["mlm_loss"] > 0
    assert TASK.objective.format_example(encoded.samples[0], answers[0]) == "    sun [MASK] sea\n"
    assert TASK.objective.example_row(encoded.samples[1], answers[1]) == {
        "text": "? ! .",
        "prediction": "",
        "reference": "",
    }


# -- predictions


def test_mask_tokens_are_filled_with_the_most_likely_words() -> None:
    model = asked_model()
    text = model.require_tokenizer()
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
    assert model.predict(given[0]).value == answers[0].value
    assert "| mask |" in TASK.objective.format_prediction(given[1], answers[1]) and answers[
        1
    ].value in TASK.objective.format_prediction(given[1], answers[1])


def test_a_continued_word_is_written_without_a_space() -> None:
    model = asked_model()
    text = model.require_tokenizer()
    piece = next(number for number in range(text.size) if text.id_to_token(number).startswith("##"))
    with torch.no_grad():
        model.head.words.bias[piece] = 1e3
    name = text.id_to_token(piece).removeprefix("##")
    answer = model.predict("sun [MASK] sea.")
    assert answer.value == f"sun{name} sea." and f"·{name} 1.000" in TASK.objective.format_prediction("", answer)


def test_a_text_without_a_mask_token_or_too_long_is_refused() -> None:
    model = asked_model()
    with pytest.raises(RegardError, match="MASK"):
        model.predict(["sun [MASK]", "sun sea"])
    with pytest.raises(RegardError, match="24"):
        model.predict("sun " * 30 + "[MASK]")
    assert model.predict([]) == []


def test_a_mask_token_can_be_written_as_in_the_tokenizer_or_as_in_bert(tmp_path: Path) -> None:
    text = TextTokenizer.load(write_roberta(tmp_path))
    config = TASK.modality.fit_config(bert.Config(width=12, depth=1, heads=3, ffn_dim=20, max_length=24), text)
    from regard.model import ModelSpec, assemble

    model = noisy(assemble(ModelSpec(bert.SYSTEM, config, TASK), text))
    one, two = model.predict(["the <mask> sat"])[0], model.predict("the [MASK] sat")
    assert one == two and one.value.startswith("the") and one.value.endswith(" sat") and "<mask>" not in one.value


# -- runs


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def call(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["regard", *map(str, words)])
        with pytest.raises(SystemExit) as left:
            main()
        return int(left.value.code or 0), *capsys.readouterr()

    return call


def test_a_folder_of_documents_is_trained_on(trained: tuple[Path, str]) -> None:
    out, said = trained
    valid = rows(out, "valid")
    assert valid[-1]["mlm_loss"] < 0.5 * rows(out, "train")[0]["loss"] and valid[-1]["perplexity"] < 3
    assert valid[-1]["nsp_accuracy"] > 65 and valid[-1]["accuracy"] > 70
    assert "rows of text pairs up to 24 tokens" in said and "NSP accuracy" in said and "(chance: 50 %)" in said
    assert "[MASK]" in (out / "samples.txt").read_text() and "mlm_loss" in (out / "README.md").read_text()


def test_a_run_predicts_on_the_command_line_and_is_evaluated(
    trained: tuple[Path, str], corpus: Path, cli: Callable[..., tuple[int, str, str]]
) -> None:
    out, _ = trained
    code, said, _ = cli("predict", out, "sun sun [MASK] sun sun .")
    assert code == 0 and said.startswith("sun sun sun sun sun .\n") and "| mask |" in said
    row = json.loads(cli("predict", out, "coal [MASK] coal .", "--json")[1])
    assert row["value"] == "coal coal coal ." and row["masks"][0][0]["probability"] > 0.3
    scores = evaluate(out).scores
    assert scores["mlm_loss"] == json.loads((out / "regard.json").read_text())["scores"]["mlm_loss"]
    assert evaluate(out, [str(corpus)]).scores["accuracy"] > 50
    code, _, wrong = cli("predict", out, "sun sand")
    assert code == 2 and "No [MASK] in 'sun sand'" in wrong


def test_transformers_reads_a_run(trained: tuple[Path, str]) -> None:
    out, _ = trained
    peer = transformers.AutoModelForPreTraining.from_pretrained(out, attn_implementation="eager")
    tokens = transformers.AutoTokenizer.from_pretrained(out)
    assert type(peer).__name__ == "BertForPreTraining"
    given = dict(tokens("sun sand sea", "salt wave", return_tensors="pt", return_token_type_ids=True))
    model = regard.load(out)
    ends = model.config.eos_id
    assert given["input_ids"][0, [0, 4, -1]].tolist() == [model.config.bos_id, ends, ends]
    assert given["token_type_ids"].tolist() == [[0] * 5 + [1] * 3]
    with torch.no_grad():
        ours = model.logits(given["input_ids"], token_types=given["token_type_ids"])
        right = peer(**given)
        near(ours, right.prediction_logits, 1e-5)
        near(model.head.follows(model.states(given["input_ids"], token_types=given["token_type_ids"]).pooled),
             right.seq_relationship_logits, 1e-5)  # fmt: skip


@pytest.mark.slow
def test_an_interrupted_run_resumes_to_the_same_weights(corpus: Path, tmp_path: Path) -> None:
    train(corpus, tmp_path / "whole")
    with stopped_in(6):
        train(corpus, tmp_path / "cut")
    train((), tmp_path / "cut", resume=True)
    runs = [tmp_path / name for name in ("whole", "cut")]
    assert checkpoints(runs[0])[-1] == checkpoints(runs[1])[-1]
    same_tensors(*(run / "checkpoints" / checkpoints(run)[-1] / "state.safetensors" for run in runs))
    assert rows(runs[0]) == rows(runs[1])


def test_mlm_alone_needs_no_pairs_no_pooler_and_no_second_document(tmp_path: Path) -> None:
    path = tmp_path / "one.txt"
    path.write_text("\n".join(stories(20)), encoding="utf-8")
    with pytest.raises(DataError, match=r"model\.nsp"):
        train(path, tmp_path / "run")
    train(
        path, tmp_path / "run", "model.nsp=false", "train.packing=on", "data.whole_word_mask=true", "data.mask_prob=0.3"
    )
    model = regard.load(tmp_path / "run")
    assert not model.config.nsp and not hasattr(model.body, "pooler") and not model.head.has_nsp
    config = json.loads((tmp_path / "run/config.json").read_text())
    assert config["architectures"] == ["BertForMaskedLM"]
    assert set(rows(tmp_path / "run", "valid")[0]) == {"kind", "step", "loss", "mlm_loss", "perplexity", "accuracy"}


def test_a_model_is_pre_trained_further(trained: tuple[Path, str], corpus: Path, tmp_path: Path) -> None:
    said = io.StringIO()
    console = Console(file=said, width=300)
    settings = [
        "train.steps=2",
        "train.eval_every=2",
        "train.batch_tokens=384",
        "data.max_length=24",
        "train.precision=float32",
    ]
    regard.train(
        "mlm",
        str(corpus),
        model=str(trained[0]),
        out=tmp_path / "more",
        settings=settings,
        console=console,
        device="cpu",
    )
    before, after = rows(trained[0], "valid")[-1]["mlm_loss"], rows(tmp_path / "more", "valid")[0]["mlm_loss"]
    assert after < before + 1 and "new" not in said.getvalue()  # training continues from the pretrained weights


def test_a_pre_trained_model_is_fine_tuned(trained: tuple[Path, str], tmp_path: Path) -> None:
    table = "text\tlabel\n" + "".join(f"{' '.join(story(t, 1, random.Random(i)).split())}\t{t}\n"
                                      for i in range(20) for t in WORDS[:3])  # fmt: skip
    (tmp_path / "a.tsv").write_text(table)
    said = io.StringIO()
    settings = [
        "train.steps=30",
        "train.eval_every=30",
        "train.batch_tokens=384",
        "train.lr=3e-3",
        "data.valid_fraction=0.2",
    ]
    regard.train(
        "classify", str(tmp_path / "a.tsv"), model=str(trained[0]), out=tmp_path / "run", settings=settings,
        console=Console(file=said, width=300), device="cpu",
    )  # fmt: skip
    assert rows(tmp_path / "run", "valid")[-1]["accuracy"] > 80 and "Not used" in said.getvalue()


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("data.mask_prob=0", r"data\.mask_prob"),
        ("data.mask_prob=1.5", r"data\.mask_prob"),
        ("data.max_length=6", r"data\.max_length"),
        ("model.max_length=5", r"model\.max_length"),
        ("train.batch_tokens=20", r"data\.max_length"),
        ("data.tokenizer_type=byte_bpe", "tokenizer"),
    ],
)
def test_settings_that_cannot_work_are_refused(corpus: Path, tmp_path: Path, setting: str, message: str) -> None:
    with pytest.raises((SettingError, DataError), match=message):
        train(corpus, tmp_path / "run", "data.vocab_size=300", setting)
    assert not (tmp_path / "run").exists()


def test_data_for_it_is_checked_as_text_is(corpus: Path) -> None:
    report = check("mlm", str(corpus))
    assert report.task == "mlm" and report.counts["documents"] == 60 and not report.errors
    one = check("mlm", str(corpus / "00.txt"))
    assert [finding.id for finding in one.findings if finding.id == "single_document"] == ["single_document"]


def test_it_is_a_task_of_encoders_alone() -> None:
    assert isinstance(TASK.objective, MaskedLM) and bert.SYSTEM.tasks[0] == "mlm"
    with pytest.raises(SettingError, match="'mlm'"):
        regard.train("mlm", "a.txt", model="gpt2-mini", out="nowhere")
