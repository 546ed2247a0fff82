"""Regression tests of errors found in code reviews."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import regard
from conftest import Trained
from regard.data.batching.samplers import BatchShape
from regard.decode.search import search
from regard.decode.settings import DecodeSettings
from regard.errors import DataError, RegardError, RunError, SettingError
from regard.nn.attention.masks import Padding
from regard.processors.tokenizer.tokenizer import TextTokenizer
from regard.runs.evaluate import evaluate
from regard.runs.train import train
from regard.tasks import find_task
from regard.training.checkpoint import latest_checkpoint, save_checkpoint
from regard.training.distributed import ProcessGroup
from regard.training.loop import ForwardBackward, check_finite, train_loop
from regard.training.settings import TrainSettings
from regard.types import Batch, DecoderInputs
from tiny import tiny

GROUPS = {"model": {"w": torch.ones(3)}}


def damage(folder: Path) -> None:
    file = folder / "state.safetensors"
    file.write_bytes(file.read_bytes()[:-1])


def test_damaged_checkpoints_do_not_count_among_those_that_are_kept(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save_checkpoint(tmp_path, step, GROUPS, {}, keep=9)
    damage(tmp_path / "step-00000002")
    damage(tmp_path / "step-00000003")
    save_checkpoint(tmp_path, 1, GROUPS, {}, keep=1)
    saved, problems = latest_checkpoint(tmp_path)
    assert saved is not None and saved.step == 1 and len(problems) == 2


def test_an_interrupted_save_leaves_no_files_after_the_next(tmp_path: Path) -> None:
    (tmp_path / ".writing-00000001").mkdir()
    save_checkpoint(tmp_path, 2, GROUPS, {}, keep=1)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000002"]


def test_a_checkpoint_that_cannot_be_written_is_reported_and_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from safetensors import SafetensorError

    def full(*_: object, **__: object) -> None:
        raise SafetensorError("No space left on device")

    save_checkpoint(tmp_path, 1, GROUPS, {}, keep=2)
    monkeypatch.setattr("regard.weights.tables.save_file", full)
    with pytest.raises(RunError, match="space"):
        save_checkpoint(tmp_path, 2, GROUPS, {}, keep=2)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]


def test_a_nan_gradient_is_detected_too() -> None:
    class Root(torch.nn.Linear):
        """The loss 0 has an infinite gradient."""

        def forward(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
            return super().forward(batch.inputs).mul(0).sum().sqrt(), torch.tensor(1)

    module, settings = Root(2, 1), TrainSettings(steps=4, grad_accum=2, precision="float32")
    compute = ForwardBackward(module, settings, torch.device("cpu"), ProcessGroup(), True)
    optimizer, batches = torch.optim.SGD(module.parameters()), iter([Batch(torch.ones(1, 2))] * 4)
    found = [int(step.nonfinite) for step in train_loop(module, compute, batches, optimizer, settings, start_step=2)]
    assert found == [5, 5]
    with pytest.raises(RunError, match="step 3, micro-batch 2 of 2"):
        check_finite(torch.tensor(5), 2, ProcessGroup())


@pytest.mark.parametrize("mask", [torch.ones(2, 3), torch.ones(2, 3).long(), torch.ones(2).bool(), torch.ones(2)])
def test_a_mask_of_another_kind_is_refused_and_not_read_as_something_else(mask: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="bool mask"):
        Padding(mask)


def test_special_tokens_in_a_text_are_text() -> None:
    text = TextTokenizer.train_sentence_bpe(["a </s> b <pad> c"] * 3, 300)
    ids = text.encode(["a </s> b"])[0]
    assert text.token_to_id("</s>") not in ids and text.decode([ids]) == ["a </s> b"]


def test_a_tokenizer_without_an_end_is_refused() -> None:
    from tokenizers import Tokenizer, models

    bare = TextTokenizer(Tokenizer(models.BPE({"a": 0, "b": 1}, [])))
    with pytest.raises(DataError, match=r"<pad>, <s>, </s>"):
        find_task("translate", "text").modality.fit_config(tiny("transformer").config, bare)


def test_nan_logits_are_reported_by_every_search() -> None:
    model = tiny("transformer")
    with torch.no_grad():
        model.body.tokens.table.weight.fill_(float("nan"))
    batch = Batch(torch.tensor([[3, 2]]), decoder=DecoderInputs(torch.tensor([[1]])))
    for settings in (DecodeSettings(), DecodeSettings(num_beams=3), DecodeSettings(do_sample=True)):
        with pytest.raises(RegardError, match="NaN"):
            search(model.body, batch, 2, torch.tensor([4]), settings)


def test_padding_is_never_generated(trained: Trained) -> None:
    model = regard.load(trained.path)
    table = model.body.tokens.table.weight
    with torch.no_grad():
        table[model.config.pad_id] = 50 * table[3:].mean(0)
    for settings in ({"num_beams": 1}, {"num_beams": 3}, {"do_sample": True, "num_beams": 1}):
        answer = model.predict("the cat danced", max_extra_tokens=3, **settings)
        assert model.config.pad_id not in answer.extra["token_ids"]


def test_sampling_continues_where_the_last_chunk_ended(trained: Trained) -> None:
    model = regard.load(trained.path)
    texts, settings = ["the cat danced"] * 6, DecodeSettings(do_sample=True, max_extra_tokens=8, seed=3)
    task = model.task
    whole = [answer.value for answer in task.objective.predict(model, texts, settings)]
    parts = [
        answer.value for first in (0, 2, 4) for answer in task.objective.predict(model, texts[:2], settings, first)
    ]
    assert parts == whole and len(set(whole)) > 1


def test_a_saved_model_is_not_a_run_to_resume(tmp_path: Path) -> None:
    tiny("transformer").save(tmp_path)
    with pytest.raises(RunError, match="saved model"):
        train("translate", out=tmp_path, resume=True)


def test_a_folder_brings_its_own_tokenizer(trained: Trained, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"data\.vocab_size"):
        train("translate", ["x.tsv"], model=str(trained.path), out=tmp_path / "new", settings=["data.vocab_size=300"])


def test_evaluation_accepts_only_settings_with_an_effect(trained: Trained) -> None:
    with pytest.raises(SettingError, match=r"data\.valid_fraction"):
        evaluate(trained.path, settings=["data.valid_fraction=0.5"])


def test_an_unrequested_header_is_refused(tmp_path: Path) -> None:
    from regard.data.text.samples import iterate_pairs

    rows = "".join(f"the cat number {n},die Katze Nummer {n}\n" for n in range(9))
    path = tmp_path / "a.csv"
    path.write_text("english,german\n" + rows, encoding="utf-8")
    with pytest.raises(DataError, match="line 1"):
        list(iterate_pairs([str(path)]))
    named = list(iterate_pairs([str(path)], {"source": "english", "target": "german"}))
    counted = list(iterate_pairs([str(path)], {"source": "0", "target": "1"}))
    assert len(named) == 9 and len(counted) == 10
    path.write_text("cat,Katze\ndog,Hund\nmouse,Maus\nbird,Vogel\nhorse,Pferd\nking,König\n", encoding="utf-8")
    assert len(list(iterate_pairs([str(path)]))) == 6


def test_a_missing_run_to_resume_is_reported_with_existing_ones(trained: Trained) -> None:
    with pytest.raises(RegardError, match="Unknown"):
        train("translate", out=trained.path.with_name("tinny"), resume=True)


@pytest.mark.parametrize("length", [20, 64, 128, 500])
def test_bfloat16_attention_on_a_cpu_stays_near_float64_whichever_kernel_is_taken(length: int) -> None:
    from regard.nn.attention.attention import Attention
    from regard.nn.attention.masks import Causal

    torch.manual_seed(0)
    exact = Attention(16, 2).double()
    x, rule = (
        torch.randn(3, length, 16, dtype=torch.float64),
        Causal() & Padding(torch.tensor([0, length // 2, length])),
    )
    rounded = Attention(16, 2).bfloat16()
    rounded.load_state_dict(exact.state_dict())
    wanted, got = exact(x, mask=rule), rounded(x.bfloat16(), mask=rule)
    assert got.dtype == torch.bfloat16 and (got.double() - wanted).norm() <= 2e-2 * wanted.norm()
    assert (got[0] == rounded.out.bias).all()  # a row without real keys is 0 before the output projection
    got.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in rounded.parameters())


def test_one_packed_side_is_refused(rows: int = 4) -> None:
    model, task = tiny("transformer"), find_task("translate", "text")
    samples = [np.array([3, 4, 2])] * rows
    shape = BatchShape((64, 64), (64, 64), 8)
    from regard.tasks.base import Encoded

    packed = task.objective.collate(
        Encoded([], {"source": samples, "target": samples}, []), range(rows), model.config, shape=shape
    )
    with pytest.raises(ValueError, match="Packed"):
        model.body(Batch(packed.inputs, packing=packed.packing, decoder=DecoderInputs(packed.decoder.inputs)))
