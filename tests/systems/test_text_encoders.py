"""BERT: losses, old names, other heads, refused inputs. Longformer: gradients, global tokens, rotary positions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from objectives import encode
from safetensors.torch import load_file, save_file

import regard
from data_files import refused
from parity import REAL, assert_gradients, load_peer, peer_of, text_inputs, weighted_sum
from regard.data.text.qa import QASample
from regard.errors import RegardError
from regard.processors.tokenizer.tokenizer import TextTokenizer
from regard.systems import longformer
from regard.tasks.base import LossWeights
from regard.types import IGNORE, Batch
from tiny import near, tiny

SINGLE = 5e-7
"""Tolerance: the softmax of transformers is in float32."""
IDS: dict[str, Any] = {"vocab_size": 37, "max_length": 40, "pad_id": 1, "bos_id": 0, "eos_id": 2, "mask_id": 4}


@pytest.mark.parametrize("windows", [[4, 8, 4], [4, 4, 4]])
def test_gradients_of_longformer_equal_transformers(windows: list[int], tmp_path: Path) -> None:
    """In transformers, padded rows and rows with unequal numbers of global tokens have NaN gradients: excluded here."""
    peer = peer_of("LongformerForMaskedLM", attention_window=windows)
    model = load_peer(peer, tmp_path)
    x = torch.randint(5, 37, (3, 16), generator=torch.Generator().manual_seed(5))
    marked = torch.zeros(3, 16, dtype=torch.bool)
    marked[:, 0] = marked[0, 7] = marked[1, 3] = marked[2, 15] = True
    right = peer(x, global_attention_mask=marked.long()).logits
    ours = model.logits(x, global_tokens=marked)
    near(ours, right, SINGLE)
    assert_gradients(model, peer, weighted_sum([ours]), weighted_sum([right]), tmp_path / "gradients", 5 * SINGLE, 1.0)


def test_longformer_finds_answers_with_global_attention_on_the_question(tmp_path: Path) -> None:
    """Global attention as set by the task: in transformers, all tokens before the first of two separators."""
    context = "the king of the hill is in rome and the cat sat"
    text = TextTokenizer.train_wordpiece([context, "who is where"] * 3, 80)
    ids = {"pad_token_id": 0, "bos_token_id": 2, "sep_token_id": 3, "eos_token_id": 3, "cls_token_id": 2}
    peer = peer_of("LongformerForQuestionAnswering", vocab_size=text.size, **ids)
    peer.save_pretrained(tmp_path)
    text.save(tmp_path / "tokenizer.json")
    model = regard.load(tmp_path)
    samples = [QASample("who is the king", context, (), (), False), QASample("where", context[:20], (), (), False)]
    encoded = encode(model, samples, model.config.max_length)
    # one by one, because transformers searches the end of the question in rows without padding
    for chosen in ([0], [1]):
        batch = model.task.objective.collate(encoded, chosen, model.config)
        right = peer(batch.inputs)
        near(model.task.objective.logits(model, batch), torch.stack([right.start_logits, right.end_logits], -1), SINGLE)
        end = int((batch.inputs[0] == model.config.eos_id).nonzero()[0])
        assert batch.text.max_global_tokens == int(batch.text.global_tokens.sum()) == end
    drawn, end = model.explain(("who is the king", context)).maps[0], 5
    assert (drawn.weights[:, :, :end] > 0).all() and (drawn.weights[0, :, end, end + 3 :] == 0).all()  # a window of 4


def test_longformer_may_use_rotary_positions_and_needs_the_native_format(tmp_path: Path) -> None:
    """A window over the whole row without global tokens is full attention, as in BERT with these positions."""
    rotary: dict[str, Any] = {"relative_position": "rotary", "depth": 2, **IDS}
    model, x = tiny("longformer", attention_window=(80,), **rotary), text_inputs()[0]
    dense = tiny("bert", norm_eps=model.config.norm_eps, type_vocab_size=1, **rotary)
    own = {name: value for name, value in model.body.state_dict().items() if ".far_" not in name}
    # position ids start after the padding id
    own["embedding.position.table.weight"] = own["embedding.position.table.weight"][2:]
    dense.body.load_state_dict(own)
    near(model.states(x, mask=REAL).sequence[REAL], dense.states(x, mask=REAL).sequence[REAL])
    refused("relative positions", regard.save, model, tmp_path / "theirs", layout="huggingface", error=RegardError)
    for name in ("t5", "shaw"):
        refused(f"={name}", longformer.Config, relative_position=name, error=RegardError)


# -- BERT


def loaded(name: str, folder: Path, task: str = "", **changes: Any) -> tuple[Any, regard.Model]:
    peer = peer_of(name, **changes)
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
    refused("19", model.states, torch.zeros(1, 20, dtype=torch.long), error=RegardError)
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
