"""Multi-label classification: loss, checkpoints, predictions, metrics, figures and explanations."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from objectives import assert_loss, collate, encode, scores_of
from PIL import Image
from torch.nn import functional as F

import regard
from conftest import Cli
from data_files import jsonl, refused
from encoders import encoder
from regard.data.images.labeled import ImageSample
from regard.data.text.samples import LabeledText
from regard.errors import WeightsError
from regard.model import Model
from regard.processors.image import ImageProcessor
from regard.processors.tokenizer.tokenizer import TextTokenizer
from regard.runs.check import check
from regard.tasks import find_task
from regard.tasks.metrics.per_class import ClassMetrics, confusion_summary
from regard.types import IGNORE, Batch
from tiny import near, noisy
from tiny_text_models import QUICK, SMALL, train
from tiny_vision_models import fresh

TASK = find_task("classify", "text")
LABELS = ("new", "old", "red")
SAMPLES = [
    LabeledText(text, "", "", label_set=labels)
    for text, labels in (("a cat", ("new", "red")), ("the old dog slept", ()), ("a mat", ("old",)))
]
TEXTS = [sample.text for sample in SAMPLES] * 3


def model_of(multi_label: bool = True) -> Model:
    model = encoder("classify", TEXTS, LABELS)
    model.spec = replace(model.spec, options=replace(model.spec.options, multi_label=multi_label))
    return model


def published(folder: Path, **changes: Any) -> Any:
    text = TextTokenizer.train_wordpiece(TEXTS, 80)
    config = transformers.BertConfig(
        hidden_size=12, num_hidden_layers=2, num_attention_heads=3, intermediate_size=20, vocab_size=text.size,
        max_position_embeddings=16, cls_token_id=2, sep_token_id=3, mask_token_id=4, attn_implementation="eager",
        **{"problem_type": "multi_label_classification", "id2label": dict(enumerate(LABELS)), **changes},
    )  # fmt: skip
    peer = noisy(transformers.BertForSequenceClassification(config))
    peer.save_pretrained(folder)
    text.save(folder / "tokenizer.json")
    return peer


def assert_published_head(peer: Any, model: Model, items: list[Any], batch: Batch, right: Any, folder: Path) -> None:
    """Logits, loss and predictions equal those of the published head; the saved model is read by both libraries."""
    assert model.spec.options.multi_label and model.spec.options.labels == LABELS
    near(model.objective.logits(model, batch), right.logits)
    total, count = model.objective.loss(model, batch)
    near(total / count, right.loss)
    for answer, logits in zip(model.predict(items), right.logits, strict=True):
        chances = logits.sigmoid().tolist()
        assert answer.score == pytest.approx(chances, abs=1e-6)
        assert set(answer.value) == {label for label, chance in zip(LABELS, chances, strict=True) if chance >= 0.5}
        assert "|".join(answer.value) in model.objective.format_prediction("a.png", answer).split("\t")
    assert len(model.predict(items[0], threshold=0).value) == 3 and model.predict(items[0], threshold=1).value == []
    regard.save(model, folder, layout="huggingface")
    again = type(peer).from_pretrained(folder, dtype=torch.float64)
    assert again.config.problem_type == "multi_label_classification"
    assert again.config.id2label == dict(enumerate(LABELS))
    assert regard.load(folder).spec.options.multi_label


def test_loss_and_logits_are_those_of_the_published_head(tmp_path: Path) -> None:
    peer = published(tmp_path / "theirs")
    model = regard.load(tmp_path / "theirs")
    batch = collate(model, encode(model, SAMPLES, 16))
    assert batch.labels.tolist() == [[1, 0, 1], [0, 0, 0], [0, 1, 0]]
    x, lengths = batch.inputs[:, 0], batch.mask[:, 0]
    mask = torch.arange(x.shape[1]) < lengths[:, None]
    right = peer(x, attention_mask=mask.long(), labels=batch.labels.double())
    assert_published_head(peer, model, [sample.text for sample in SAMPLES], batch, right, tmp_path / "ours")


def test_several_labels_of_an_image_equal_the_published_head(tmp_path: Path) -> None:
    peer = seeing(tmp_path / "theirs")
    model = regard.load(tmp_path / "theirs")
    pictures = np.random.default_rng(0).integers(0, 256, (4, 8, 8, 3), dtype=np.uint8)
    x = model.processor.normalize(torch.from_numpy(pictures).permute(0, 3, 1, 2)).double()
    classes = torch.tensor([0, 2, 1, 1])
    right = peer(x, labels=F.one_hot(classes, 3).double())
    assert_published_head(peer, model, [*pictures], Batch(x, labels=classes), right, tmp_path / "ours")
    explained, chances = model.explain(pictures[0]), right.logits[0].sigmoid()
    order = chances.argsort(descending=True).tolist()
    assert explained.facts == {LABELS[n]: f"{100 * chances[n]:.1f} %" for n in order}


@pytest.mark.parametrize("kind", ["text", "image"])
@pytest.mark.parametrize(
    ("problem", "said"), [("regression", "problem_type=regression"), (None, "a head with one output")]
)
def test_a_regression_head_is_refused(kind: str, problem: str | None, said: str, tmp_path: Path) -> None:
    (published if kind == "text" else seeing)(tmp_path, id2label={0: "LABEL_0"}, problem_type=problem)
    refused(f"{said} is not supported", regard.load, tmp_path, error=WeightsError)
    assert kind == "image" or regard.load(tmp_path, task="embed").task.name == "embed"


def test_the_loss_is_the_same_alone_padded_and_packed_with_gradients() -> None:
    model = model_of()
    encoded = encode(model, SAMPLES, 24)
    right = torch.zeros((), dtype=torch.float64)
    for row, sample in enumerate(SAMPLES):
        x = torch.from_numpy(encoded.fields["text"][row].astype(np.int64))[None]
        wanted = torch.tensor([[float(label in (sample.label_set or ())) for label in LABELS]], dtype=torch.float64)
        right = right + F.binary_cross_entropy_with_logits(model.logits(x), wanted)
    assert_loss(model, encoded, right, 60)
    assert (collate(model, encoded, tokens=60).labels == IGNORE).any()


def test_a_single_class_is_one_of_several_labels_but_not_the_other_way() -> None:
    one = [LabeledText(sample.text, "", label) for sample, label in zip(SAMPLES, LABELS, strict=True)]
    same = [replace(sample, label_set=(sample.label,)) for sample in one]
    model = model_of()
    batches = [collate(model, encode(model, samples, 24)) for samples in (one, same)]
    near(*(TASK.objective.loss(model, batch)[0] for batch in batches))
    refused("several", TASK.objective.loss, model_of(multi_label=False), batches[1])
    refused("'blue'", encode, model, [replace(SAMPLES[0], label_set=("red", "blue"))], 24)


def test_each_label_is_counted_by_hand() -> None:
    each = ClassMetrics.from_labels([("a", "b"), (), ("a",)], [("a",), ("b",), ()], "labels")
    counts = {name: (hits.actual, hits.predicted, hits.correct) for name, hits in each.by_class.items()}
    assert counts == {"a": (2, 1, 1), "b": (1, 1, 0)}
    assert each.micro.f1 == pytest.approx(2 * 1 / (3 + 2)) and each.macro_f1 == pytest.approx((2 / 3 + 0) / 2)
    told = confusion_summary("xyz", np.array([[5, 1, 2], [0, 3, 0], [4, 0, 1]]))
    rows = [line.replace("|", "").split() for line in told.splitlines()[2:]]
    assert rows == [["z", "x", "4", "5"], ["x", "z", "2", "8"], ["x", "y", "1", "8"]]


def test_a_run_learns_several_labels(tmp_path: Path, cli: Cli) -> None:
    random = np.random.default_rng(0)
    words = {"new": "fresh", "old": "dusty", "red": "crimson"}
    rows = []
    for _ in range(160):
        own = [label for label in words if random.random() < 0.4]
        said = [*(words[label] for label in own), *random.choice(["a", "b", "c", "d"], 3)]
        random.shuffle(said)
        rows.append({"text": " ".join(said), "labels": own})
    data = jsonl(tmp_path / "d.jsonl", *rows)
    report = check("classify", data)
    many = sum(len(row["labels"]) for row in rows)
    counts = {label: sum(label in row["labels"] for row in rows) for label in words}
    assert report.as_dict()["class_counts"]["classes"]["training"] == counts
    assert f"labels, {many / 160:.2f} per row on average" in str(report)
    assert f"{sum(not row['labels'] for row in rows):,} rows without a label" in str(report)
    out = tmp_path / "run"
    more = ("model.width=32", "train.steps=150", "train.batch_tokens=256", "train.eval_every=50", "train.epochs=0")
    said = train("classify", data, out, *SMALL, *QUICK, *more, "train.lm_loss_weight=0", model="gpt2-mini")
    facts = json.loads((out / "regard.json").read_text())
    assert facts["scores"]["micro_f1"] > 95 and facts["best"]["micro_f1"], said
    assert facts["head_options"] == {"multi_label": True}
    assert {"macro_f1", "exact_match", "per_class"} <= facts["scores"].keys()
    assert (out / "classes.png").exists() and "classes.png" in (out / "README.md").read_text()
    model = regard.load(out)
    assert sorted(model.predict("a dusty b crimson a").value) == ["old", "red"] and model.predict("a b c").value == []
    told = cli("predict", out, "a dusty b crimson a").out.rstrip("\n").split("\t")
    assert sorted(told[0].split("|")) == ["old", "red"]
    assert len(told) == 4 and all(float(one.split()[1]) for one in told[1:])
    found = model.explain("a dusty b crimson a")
    assert {"old", "red"} <= {one.title for one in found.decision.attributions}
    assert found.title.endswith(("→ old, red", "→ red, old")) and "(no label)" in model.explain("a b c").title


# -- images


def seeing(folder: Path, **changes: Any) -> Any:
    config = transformers.ViTConfig(
        image_size=8, patch_size=4, hidden_size=12, num_hidden_layers=1, num_attention_heads=3, intermediate_size=20,
        **{"problem_type": "multi_label_classification", "id2label": dict(enumerate(LABELS)), **changes},
    )  # fmt: skip
    peer = noisy(transformers.ViTForImageClassification(config))
    peer.save_pretrained(folder)
    ImageProcessor((8, 8)).save(folder)
    return peer


def test_images_of_one_class_each_score_a_multi_label_model(tmp_path: Path) -> None:
    seeing(tmp_path)
    model = regard.load(tmp_path)
    samples = [ImageSample("", LABELS[number % 3], content=_file(number)) for number in range(4)]
    scores, answers = scores_of(model, encode(model, samples))
    assert {"micro_f1", "macro_f1", "exact_match", "per_class"} <= set(scores)
    rows = [model.objective.example_row(*pair) for pair in zip(samples, answers, strict=True)]
    assert [row["reference"] for row in rows] == [sample.label for sample in samples]
    assert model.objective.save_figures(tmp_path, samples, answers) == ["classes.png"]


@pytest.mark.parametrize("many", [5, 30])
def test_many_classes_are_reported_and_drawn_equally_for_texts_and_images(many: int, tmp_path: Path) -> None:
    """Up to 24 classes a confusion matrix; above 24 a score per class and the most frequent confusions."""
    labels = tuple(f"c{n:02d}" for n in range(many))
    model = noisy(fresh("vit", "classify", labels)).float().eval()
    samples = [ImageSample("", labels[n % many], content=_file(n)) for n in range(40)]
    scores, answers = scores_of(model, encode(model, samples))
    assert ({"per_class", "most_confused"} if many > 24 else {"confusion_matrix"}) <= set(scores)
    assert ("top5" in scores) == (many > 5) and ("confusion_matrix" in scores) == (many <= 24)
    if many > 24:
        table = [line.split() for line in scores["per_class"].splitlines()[2:]]
        assert {line[1] for line in table} == {*labels, "all"} and float(table[-1][3]) == scores["accuracy"]
        assert scores["most_confused"].splitlines()[0].split()[1::2] == ["true", "predicted", "count", "support"]
        assert not {"per_class", "most_confused"} & scores_of(model, encode(model, samples), most=5)[0].keys()
    texts = [LabeledText("", "", sample.label) for sample in samples]
    for objective, some in ((model.objective, samples), (TASK.objective, texts)):
        drawn = objective.save_figures(tmp_path, some, answers)
        assert drawn == ["classes.png" if many > 24 else "confusion.png"] and (tmp_path / drawn[0]).exists()


def _file(number: int) -> bytes:
    to = io.BytesIO()
    pixels = np.random.default_rng(number).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(to, format="PNG")
    return to.getvalue()
