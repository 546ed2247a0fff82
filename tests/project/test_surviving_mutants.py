"""Behavior whose mutants survived, or were killed by slow tests only."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import sacrebleu
import torch

import regard
from regard.data.settings import DataSettings
from regard.data.text.samples import Pair
from regard.decode.settings import DecodeSettings
from regard.files import write_json
from regard.tasks import find_task
from regard.tasks.base import Encoded, EvalSpec, LossSum, LossWeights
from regard.tasks.translate import Translate
from regard.training.checkpoint import save_checkpoint
from regard.training.distributed import ProcessGroup
from regard.training.loop import ForwardBackward, LossModule, micro_batch_indices, train_loop
from regard.training.settings import TrainSettings
from regard.types import Batch, DecoderInputs, Prediction


def small() -> regard.Model:
    sizes = {"width": 8, "depth": 1, "decoder_depth": 1, "heads": 2, "ffn_dim": 12, "vocab_size": 11}
    return regard.build("transformer-tiny", **sizes)


class Noting(ForwardBackward):
    """Records the seed of each micro-batch."""

    seeds: list[int]

    def __call__(self, batch: Batch, last: bool = True) -> Any:
        self.seeds.append(torch.initial_seed())
        return super().__call__(batch, last)


def seeds(done: int = 0, **more: Any) -> list[int]:
    settings = TrainSettings(**{"steps": 3, "grad_accum": 2, "precision": "float32", **more})
    model, ids = small(), torch.arange(3, 9).view(2, 3)
    loss = LossModule(model, find_task("translate").objective, LossWeights())
    noting = Noting(loss, settings, model.device, ProcessGroup(), static_shape=False)
    noting.seeds = []
    batches = (
        Batch(ids, labels=ids, decoder=DecoderInputs(ids)) for _ in micro_batch_indices(done, settings, ProcessGroup())
    )
    list(train_loop(model, noting, batches, torch.optim.SGD(model.parameters()), settings, done))
    return noting.seeds


def test_every_micro_batch_has_a_separate_seed_and_the_same_one_after_a_resume() -> None:
    found = seeds()
    assert len(found) == len(set(found)) == 6
    assert seeds(done=1) == found[2:]
    assert not set(found) & set(seeds(seed=2))


class Quoting(Translate):
    """Predicts fixed texts."""

    def predict(self, *_: Any, **__: Any) -> list[Prediction]:
        return [Prediction(text) for text in SAID]


SAID, MEANT = ["Hello, world.", "It's a dog."], ["Hello, world .", "It's a dog!"]


@pytest.mark.parametrize(("tokenized", "tokenizer"), [(False, "13a"), (True, "none")])
def test_bleu_is_that_of_sacrebleu_with_its_own_tokenizer_unless_texts_are_tokenized(
    tokenized: bool, tokenizer: str
) -> None:
    encoded = Encoded([Pair(text, text, "", 1) for text in MEANT], {}, [])
    spec = EvalSpec(DecodeSettings(), DataSettings(pretokenized=tokenized), LossSum(1.0, 1))
    scores, _ = Quoting(find_task("translate")).evaluate(small(), encoded, spec)
    expected = sacrebleu.corpus_bleu(SAID, [MEANT], tokenize=tokenizer, force=True)
    assert scores["bleu"] == pytest.approx(expected.score, abs=0.005)
    assert f"tok:{tokenizer}" in str(scores["signature"])


def test_a_model_in_training_mode_predicts_without_dropout(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small().train()
    monkeypatch.setattr(Translate, "predict", lambda self, model, inputs, decode: [Prediction(model.training)])
    assert model.predict("a text").value is False
    assert model.training


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of flushed or renamed files, in call order."""
    found: list[str] = []
    flush = os.fsync

    def fsync(handle: int) -> None:
        found.append(f"fsync {Path(os.readlink(f'/proc/self/fd/{handle}')).name}")
        flush(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    for real in (os.rename, os.replace):
        named = lambda old, new, real=real: (found.append(f"to {Path(new).name}"), real(old, new))  # noqa: E731
        monkeypatch.setattr(os, real.__name__, named)
    return found


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="names of open files are read from /proc")
def test_files_and_checkpoints_are_on_the_disk_before_they_have_their_names(tmp_path: Path, calls: list[str]) -> None:
    write_json(tmp_path / "a.json", {"x": 1})
    assert calls == ["fsync .a.json.writing", "to a.json"]
    save_checkpoint(tmp_path, 3, {"model": {"x": torch.ones(2)}}, {}, keep=1)
    named = calls.index("to step-00000003")
    before = {"fsync state.safetensors", "fsync state.json", "fsync .writing-00000003"}
    assert before <= set(calls[:named]) and calls[named + 1] == f"fsync {tmp_path.name}"
