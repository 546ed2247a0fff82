"""Regression tests of errors found in code reviews, and behavior whose mutants were killed by slow tests only."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sacrebleu
import torch
from tokenizers import Tokenizer, models

import regard
from conftest import Trained
from regard.data.batching.samplers import BatchShape
from regard.data.settings import DataSettings
from regard.data.text.samples import Pair
from regard.decode.settings import DecodeSettings
from regard.errors import DataError, RegardError, RunError, SettingError
from regard.nn.attention.attention import Attention
from regard.nn.attention.masks import Causal, Padding
from regard.processors.tokenizer.tokenizer import TextTokenizer
from regard.runs.evaluate import evaluate
from regard.runs.train import train
from regard.tasks import find_task
from regard.tasks.base import Encoded, EvalSpec, LossSum
from regard.tasks.translate import Translate
from regard.training.distributed import ProcessGroup
from regard.training.loop import ForwardBackward, train_loop
from regard.training.settings import TrainSettings
from regard.types import Batch, DecoderInputs, Prediction
from tiny import tiny

TRANSLATE = find_task("translate", "text")


def test_a_nan_gradient_is_detected_too() -> None:
    class Root(torch.nn.Linear):
        """The loss 0 has an infinite gradient."""

        model = tiny("transformer")

        def forward(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
            return super().forward(batch.inputs).mul(0).sum().sqrt(), torch.tensor(1)

    module, settings = Root(2, 1), TrainSettings(steps=4, grad_accum=2, precision="float32")
    compute = ForwardBackward(module, settings, torch.device("cpu"), ProcessGroup(), True)
    optimizer, batches = torch.optim.SGD(module.parameters()), iter([Batch(torch.ones(1, 2))] * 4)
    found = [int(step.nonfinite) for step in train_loop(module, compute, batches, optimizer, settings, start_step=2)]
    assert found == [5, 5]


def packed_on_one_side() -> Any:
    model, rows = tiny("transformer"), [np.array([3, 4, 2])] * 4
    encoded, shape = Encoded([], {"source": rows, "target": rows}, []), BatchShape((64, 64), (64, 64), 8)
    packed = TRANSLATE.objective.collate(encoded, range(4), model.config, shape=shape)
    return model.body(Batch(packed.inputs, packing=packed.packing, decoder=DecoderInputs(packed.decoder.inputs)))


REFUSED: dict[str, tuple[Callable[[Path, Path], Any], type[Exception], str]] = {
    "a mask of numbers": (lambda run, new: Padding(torch.ones(2, 3)), ValueError, "bool mask"),
    "a mask of integers": (lambda run, new: Padding(torch.ones(2, 3).long()), ValueError, "bool mask"),
    "a mask of rows": (lambda run, new: Padding(torch.ones(2).bool()), ValueError, "bool mask"),
    "lengths that are no integers": (lambda run, new: Padding(torch.ones(2)), ValueError, "bool mask"),
    "one packed side": (lambda run, new: packed_on_one_side(), ValueError, "Packed"),
    "a tokenizer without an end": (
        lambda run, new: TRANSLATE.modality.fit_config(
            tiny("transformer").config, TextTokenizer(Tokenizer(models.BPE({"a": 0, "b": 1}, [])))
        ), DataError, "<pad>, <s>, </s>",
    ),
    "a saved model is not a run to resume": (
        lambda run, new: train("translate", out=tiny("transformer").save(new), resume=True), RunError, "saved model",
    ),
    "a folder brings its own tokenizer": (
        lambda run, new: train("translate", ["x.tsv"], model=str(run), out=new, settings=["data.vocab_size=300"]),
        SettingError, r"data\.vocab_size",
    ),
    "a setting without an effect on evaluation": (
        lambda run, new: evaluate(run, settings=["data.valid_fraction=0.5"]), SettingError, r"data\.valid_fraction",
    ),
    "a missing run to resume": (
        lambda run, new: train("translate", out=run.with_name("tinny"), resume=True), RegardError, "Unknown",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_invalid_arguments_are_refused(what: str, trained: Trained, tmp_path: Path) -> None:
    call, kind, message = REFUSED[what]
    with pytest.raises(kind, match=message):
        call(trained.path, tmp_path / "new")


def test_padding_is_never_generated(trained: Trained) -> None:
    model = regard.load(trained.path)
    table = model.body.tokens.table.weight
    with torch.no_grad():
        table[model.config.pad_id] = 50 * table[3:].mean(0)
    for settings in ({"num_beams": 1}, {"num_beams": 3}, {"do_sample": True, "num_beams": 1}):
        answer = model.predict("the cat danced", max_extra_tokens=3, **settings)
        assert model.config.pad_id not in answer.extra["token_ids"]


def test_sampling_continues_where_the_last_chunk_ended(trained: Trained) -> None:
    model, settings = regard.load(trained.path), DecodeSettings(do_sample=True, max_extra_tokens=8, seed=3)
    predict, texts = model.objective.predict, ["the cat danced"] * 6
    whole = [answer.value for answer in predict(model, texts, settings)]
    parts = [answer.value for first in (0, 2, 4) for answer in predict(model, texts[:2], settings, first)]
    assert parts == whole and len(set(whole)) > 1


@pytest.mark.parametrize("length", [20, 64, 128, 500])
def test_bfloat16_attention_on_a_cpu_stays_near_float64_whichever_kernel_is_taken(length: int) -> None:
    torch.manual_seed(0)
    exact, rounded = Attention(16, 2).double(), Attention(16, 2).bfloat16()
    x, rule = torch.randn(3, length, 16).double(), Causal() & Padding(torch.tensor([0, length // 2, length]))
    rounded.load_state_dict(exact.state_dict())
    wanted, got = exact(x, mask=rule), rounded(x.bfloat16(), mask=rule)
    assert got.dtype == torch.bfloat16 and (got.double() - wanted).norm() <= 2e-2 * wanted.norm()
    assert (got[0] == rounded.out.bias).all()  # a row without real keys is 0 before the output projection
    got.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in rounded.parameters())


def test_a_model_in_training_mode_predicts_without_dropout(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("transformer").train()
    monkeypatch.setattr(Translate, "predict", lambda self, model, inputs, decode: [Prediction(model.training)])
    assert model.predict("a text").value is False and model.training


class Quoting(Translate):
    """Predicts fixed texts."""

    def predict(self, *_: Any, **__: Any) -> list[Prediction]:
        return [Prediction(text) for text in SAID]


SAID, MEANT = ["Hello, world.", "It's a dog."], ["Hello, world .", "It's a dog!"]


@pytest.mark.parametrize(("tokenized", "tokenizer"), [(False, "13a"), (True, "none")])
def test_bleu_is_that_of_sacrebleu_with_its_tokenizer_for_plain_texts(tokenized: bool, tokenizer: str) -> None:
    encoded = Encoded([Pair(text, text, "", 1) for text in MEANT], {}, [])
    spec = EvalSpec(DecodeSettings(), DataSettings(pretokenized=tokenized), LossSum(1.0, 1))
    scores, _ = Quoting(TRANSLATE).evaluate(tiny("transformer"), encoded, spec)
    expected = sacrebleu.corpus_bleu(SAID, [MEANT], tokenize=tokenizer, force=True)
    assert scores["bleu"] == pytest.approx(expected.score, abs=0.005)
    assert f"tok:{tokenizer}" in str(scores["signature"])
