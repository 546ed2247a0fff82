"""classify with several labels of a text: the loss, what is published, what is said, scored, drawn and explained."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch.nn import functional as F

import regard
from encoders import encoder
from headed import QUICK, SMALL, train
from regard.cli import main
from regard.data.plan import Packs
from regard.data.tables import Labelled
from regard.errors import DataError, WeightsError
from regard.inputs.text import Text
from regard.model import Model
from regard.runs.checking import check
from regard.runs.evaluating import evaluate
from regard.tasks import TASKS
from regard.tasks.each import Each, confused
from regard.tasks.several import SEVERAL
from regard.waists import IGNORE
from tiny import gradients, near, noisy

TASK = TASKS["classify"]
LABELS = ("new", "old", "red")
SAMPLES = [
    Labelled(text, "", "", several=labels)
    for text, labels in (("a cat", ("new", "red")), ("the old dog slept", ()), ("a mat", ("old",)))
]
TEXTS = [sample.text for sample in SAMPLES] * 3


def model_of(pair: str = SEVERAL) -> Model:
    model = encoder("classify", TEXTS, LABELS)
    model.identity = replace(model.identity, pair=pair)
    return model


def published(folder: Path, **changes: Any) -> Any:
    text = Text.wordpiece(TEXTS, 80)
    config = transformers.BertConfig(
        hidden_size=12, num_hidden_layers=2, num_attention_heads=3, intermediate_size=20, vocab_size=text.size,
        max_position_embeddings=16, cls_token_id=2, sep_token_id=3, mask_token_id=4, attn_implementation="eager",
        **{"problem_type": "multi_label_classification", "id2label": dict(enumerate(LABELS)), **changes},
    )  # fmt: skip
    peer = noisy(transformers.BertForSequenceClassification(config))
    peer.save_pretrained(folder)
    text.save(folder / "tokenizer.json")
    return peer


def test_loss_and_logits_are_those_of_the_published_head(tmp_path: Path) -> None:
    peer = published(tmp_path / "theirs")
    model = regard.load(tmp_path / "theirs")
    assert model.identity.pair == SEVERAL and model.identity.labels == LABELS
    encoded = TASK.encode(SAMPLES, model.text, model.config, 16, labels=model.identity.labels)
    batch = TASK.collate(encoded, range(3), model.config)
    assert batch.labels.tolist() == [[1, 0, 1], [0, 0, 0], [0, 1, 0]]
    x, lengths = batch.x[:, 0], batch.mask[:, 0]
    mask = torch.arange(x.shape[1]) < lengths[:, None]
    right = peer(x, attention_mask=mask.long(), labels=batch.labels.double())
    near(TASK.logits(model, batch), right.logits)
    total, count = TASK.loss(model, batch)
    near(total / count, right.loss)
    said = model.answer([sample.text for sample in SAMPLES])
    for answer, logits in zip(said, right.logits, strict=True):
        chances = logits.sigmoid().tolist()
        assert answer.scores == pytest.approx(chances)
        assert set(answer.value) == {label for label, chance in zip(LABELS, chances, strict=True) if chance >= 0.5}
    assert len(model.answer("a cat", threshold=0).value) == 3 and model.answer("a cat", threshold=1).value == []
    regard.save(model, tmp_path / "ours", layout="huggingface")
    again = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "ours", dtype=torch.float64)
    assert again.config.problem_type == "multi_label_classification" and again.config.id2label == dict(
        enumerate(LABELS)
    )
    assert regard.load(tmp_path / "ours").identity.pair == SEVERAL


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"problem_type": "regression"}, "problem_type is regression"),
        ({"problem_type": None}, "its head has one output"),
    ],
)
def test_a_head_that_tells_a_number_is_refused(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    published(tmp_path, id2label={0: "LABEL_0"}, **changes)
    with pytest.raises(WeightsError, match=f"{said}: it tells a number, and classify tells classes"):
        regard.load(tmp_path)
    assert regard.load(tmp_path, task="embed").task.name == "embed"


def test_the_loss_is_the_same_alone_padded_and_packed_with_gradients() -> None:
    model = model_of()
    encoded = TASK.encode(SAMPLES, model.text, model.config, 24, labels=LABELS)
    right = torch.zeros((), dtype=torch.float64)
    for row, sample in enumerate(SAMPLES):
        x = torch.from_numpy(encoded.sides["text"][row].astype(np.int64))[None]
        wanted = torch.tensor([[float(label in (sample.several or ())) for label in LABELS]], dtype=torch.float64)
        right = right + F.binary_cross_entropy_with_logits(model.logits(x), wanted)
    shape = Packs(TASK.lengths(encoded), 60, 0).shape
    for batch in (TASK.collate(encoded, range(3), model.config, shape) for shape in (None, shape)):
        total, count = TASK.loss(model, batch)
        near(total, right)
        assert int(count) == 3
        for name, gradient in gradients(model, total).items():
            near(gradient, gradients(model, right)[name], 1e-10)
    assert (batch.labels == IGNORE).any()


def test_a_single_class_is_one_of_several_labels_but_not_the_other_way() -> None:
    one = [Labelled(sample.text, "", label) for sample, label in zip(SAMPLES, LABELS, strict=True)]
    same = [replace(sample, several=(sample.label,)) for sample in one]
    model, losses = model_of(), []
    for samples in (one, same):
        encoded = TASK.encode(samples, model.text, model.config, 24, labels=LABELS)
        batch = TASK.collate(encoded, range(3), model.config)
        losses.append(TASK.loss(model, batch)[0])
    near(*losses)
    with pytest.raises(DataError, match="several labels here, and this model tells one class"):
        TASK.loss(model_of(pair=""), batch)
    with pytest.raises(DataError, match="not trained on the label 'blue'"):
        TASK.encode([replace(SAMPLES[0], several=("red", "blue"))], model.text, model.config, 24, labels=LABELS)


def test_each_label_is_counted_by_hand() -> None:
    each = Each.of([("a", "b"), (), ("a",)], [("a",), ("b",), ()], "labels")
    assert {name: (hits.right, hits.said, hits.hit) for name, hits in each.hits.items()} == {
        "a": (2, 1, 1),
        "b": (1, 1, 0),
    }
    assert each.whole.f1 == pytest.approx(2 * 1 / (3 + 2)) and each.macro_f1 == pytest.approx((2 / 3 + 0) / 2)
    assert [line.split() for line in confused("xyz", np.array([[5, 1, 2], [0, 3, 0], [4, 0, 1]])).splitlines()[2:]] == [
        ["|", "z", "|", "x", "|", "4", "|", "5", "|"], ["|", "x", "|", "z", "|", "2", "|", "8", "|"],
        ["|", "x", "|", "y", "|", "1", "|", "8", "|"],
    ]  # fmt: skip


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def call(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["regard", *words])
        with pytest.raises(SystemExit) as left:
            main()
        found = capsys.readouterr()
        assert not left.value.code, found.err
        return found.out

    return call


def test_a_run_learns_several_labels(tmp_path: Path, cli: Callable[..., str]) -> None:
    random = np.random.default_rng(0)
    words = {"new": "fresh", "old": "dusty", "red": "crimson"}
    rows = []
    for _ in range(160):
        own = [label for label in words if random.random() < 0.4]
        said = [*(words[label] for label in own), *random.choice(["a", "b", "c", "d"], 3)]
        random.shuffle(said)
        rows.append({"text": " ".join(said), "labels": own})
    data = tmp_path / "d.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    report = check("classify", str(data))
    many = sum(len(row["labels"]) for row in rows)
    assert report.as_dict()["spreads"]["classes"]["training"] == {
        label: sum(label in row["labels"] for row in rows) for label in words
    }
    assert f"labels, {many / 160:.2f} to a row in the mean" in str(report)
    assert f"{sum(not row['labels'] for row in rows):,} rows have none" in str(report)
    out = tmp_path / "run"
    more = (
        "model.width=32",
        "train.steps=150",
        "train.tokens=256",
        "train.every=50",
        "train.auxiliary=0",
        "train.passes=0",
    )
    said = train("classify", data, out, *SMALL, *QUICK, *more, model="gpt2-mini")
    facts = json.loads((out / "regard.json").read_text())
    assert facts["scores"]["micro_f1"] > 95 and facts["best"]["micro_f1"] and facts["pair"] == SEVERAL, said
    assert {"macro_f1", "exact", "each"} <= facts["scores"].keys()
    assert evaluate(out).scores["micro_f1"] == facts["scores"]["micro_f1"]
    assert (out / "classes.png").exists() and "classes.png" in (out / "README.md").read_text()
    model = regard.load(out)
    assert sorted(model.answer("a dusty b crimson a").value) == ["old", "red"] and model.answer("a b c").value == []
    told = cli("run", str(out), "a dusty b crimson a").rstrip("\n").split("\t")
    assert (
        sorted(told[0].split("|")) == ["old", "red"]
        and len(told) == 4
        and all(float(one.split()[1]) for one in told[1:])
    )
    peer = transformers.AutoModelForSequenceClassification.from_pretrained(out)
    tokens = transformers.AutoTokenizer.from_pretrained(out)("a dusty b crimson a", return_tensors="pt")
    near(peer(**tokens).logits.sigmoid()[0], torch.tensor(model.answer("a dusty b crimson a").scores), 1e-5)
    found = model.explain("a dusty b crimson a")
    assert {one.title for one in found.decided.counted if "old" in one.title or "red" in one.title} == {"old", "red"}
    assert found.title.endswith(("→ old, red", "→ red, old")) and "(no label)" in model.explain("a b c").title
