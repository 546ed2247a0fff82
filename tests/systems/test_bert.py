"""BERT: losses of pre-training and question answering, packed texts, old names, heads of other tasks, refused inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import regard
from parity import REAL, SIZES, assert_gradients, load_peer, make_peer, text_inputs
from regard.errors import RegardError
from regard.tasks.base import LossWeights
from regard.types import IGNORE, Batch, TextFields
from tiny import near


def loaded(name: str, folder: Path, task: str = "", **changes: Any) -> tuple[Any, regard.Model]:
    peer = make_peer("BertConfig", name, **{**SIZES["Bert"], **changes})
    return peer, load_peer(peer, folder, **({"task": task} if task else {}))


def test_heads_of_other_tasks_are_dropped_and_new_heads_are_created(tmp_path: Path) -> None:
    _, model = loaded("BertForSequenceClassification", tmp_path / "1", "choose", num_labels=4)
    assert any("classifier.weight" in note for note in model.notes) and model.has_new_head
    _, model = loaded("BertModel", tmp_path / "2", "mlm")
    assert model.has_new_head and model.config.nsp and model.head.follows.weight.shape == (2, 12)
    _, model = loaded("BertForPreTraining", tmp_path / "3", "classify")
    assert any("masked tokens" in note for note in model.notes)


def test_old_names_of_norms_are_read(tmp_path: Path) -> None:
    peer, _ = loaded("BertModel", tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    old = {
        name.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta"): t for name, t in tensors.items()
    }
    save_file(old, tmp_path / "model.safetensors", {"format": "pt"})
    x, types, _ = text_inputs()
    right = peer(x, attention_mask=REAL, token_type_ids=types).pooler_output
    near(regard.load(tmp_path).states(x, mask=REAL, token_types=types).pooled, right)


def test_long_texts_and_the_auxiliary_loss_are_refused(tmp_path: Path) -> None:
    _, model = loaded("BertForSequenceClassification", tmp_path)
    with pytest.raises(RegardError, match="19"):
        model.states(torch.zeros(1, 20, dtype=torch.long))
    with pytest.raises(RegardError, match="lm_loss_weight"):
        labels = torch.tensor([0, 1, IGNORE])
        model.task.objective.loss(model, Batch(text_inputs()[0], REAL, labels=labels), LossWeights(auxiliary=0.5))


def test_the_loss_of_question_answering_equals_transformers(tmp_path: Path) -> None:
    peer, model = loaded("BertForQuestionAnswering", tmp_path)
    # no padding: transformers includes padding in the softmax
    x, ends = text_inputs()[0][:, :4], torch.tensor([[1, 3], [0, 0], [2, 2]])
    expected = peer(x, start_positions=ends[:, 0], end_positions=ends[:, 1]).loss
    total, count = model.task.objective.loss(model, Batch(x, labels=ends))
    near(total / count, expected)
    assert_gradients(model, peer, total, expected * 3, tmp_path / "gradients")


def hidden_words() -> Tensor:
    """Labels (3, 19) of some real tokens."""
    chosen = torch.rand(3, 19, generator=torch.Generator().manual_seed(5)) < 0.4
    return torch.where(chosen & REAL, (text_inputs()[0] + 7) % 37, IGNORE)


@pytest.mark.parametrize("name", ["BertForMaskedLM", "BertForPreTraining"])
def test_the_pretraining_loss_is_mlm_plus_nsp(name: str, tmp_path: Path) -> None:
    peer, model = loaded(name, tmp_path)
    x, types, _ = text_inputs()
    labels, follows, nsp = hidden_words(), torch.tensor([0, 1, 1]), name == "BertForPreTraining"
    more = {"next_sentence_label": follows} if nsp else {}
    right = peer(x, attention_mask=REAL, token_type_ids=types, labels=labels, **more).loss
    assert model.config.nsp == model.config.pooler == nsp
    batch = Batch(x, REAL, labels=labels, text=TextFields(token_types=types))
    if nsp:
        places = (labels != IGNORE).flatten().nonzero()[:, 0]
        batch = Batch(
            x,
            REAL,
            labels=labels.flatten()[places],
            text=TextFields(label_positions=places, nsp_labels=follows, token_types=types),
        )
    total, count = model.task.objective.loss(model, batch)
    assert int(count) == int((labels != IGNORE).sum()) > 3
    near(total / count, right)
    assert_gradients(model, peer, total / count, right, tmp_path / "gradients")
