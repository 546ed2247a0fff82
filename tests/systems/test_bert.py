"""BERT against `transformers` in float64 with random parameters: outputs, gradients, padding, checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

import regard
from regard.errors import RegardError
from regard.tasks.base import LossWeights
from regard.types import IGNORE, Batch
from tiny import near, noisy

SIZES = {
    "hidden_size": 12, "num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 20, "vocab_size": 37,
    "max_position_embeddings": 16, "type_vocab_size": 2, "attn_implementation": "eager",
    "cls_token_id": 2, "sep_token_id": 3, "mask_token_id": 4,
}  # fmt: skip
LENGTHS = [9, 4, 7]


def theirs(name: str, **changes: Any) -> Any:
    config = transformers.BertConfig(**{**SIZES, **changes})
    return noisy(getattr(transformers, name)(config))


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    """Ids (3, 9), attention mask and token types."""
    draw = torch.Generator().manual_seed(3)
    x = torch.randint(5, 37, (3, 9), generator=draw)
    mask = torch.arange(9) < torch.tensor(LENGTHS)[:, None]
    types = torch.randint(0, 2, (3, 9), generator=draw)
    return torch.where(mask, x, 0), mask, types


def loaded(peer: Any, folder: Path, **more: Any) -> regard.Model:
    peer.save_pretrained(folder)
    return regard.load(folder, **more)


def gradients_agree(model: regard.Model, peer: Any, ours: Tensor, right: Tensor) -> None:
    """Compare the gradients of a weighted sum for every parameter."""
    weigh = torch.randn(right.shape, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
    (ours * weigh).sum().backward()
    (right * weigh).sum().backward()
    found = {name.removeprefix("body."): p.grad for name, p in model.named_parameters() if p.grad is not None}
    names = model.spec.system.names
    written = names.write(found)
    expected = {name: p.grad for name, p in peer.named_parameters() if p.grad is not None}
    prefix = "" if any(name.startswith("bert.") for name in expected) else "bert."
    assert {prefix + name for name in expected} <= set(written) | set(names.tied)
    largest = max(float(grad.abs().max()) for grad in expected.values())
    for name, grad in expected.items():
        if prefix + name in written:
            gap = float((written[prefix + name] - grad).abs().max())
            assert gap <= 1e-11 * largest, f"{name}: {gap:.3g}"


@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "relu"])
def test_states_and_summary_are_those_of_the_bare_model(activation: str, tmp_path: Path) -> None:
    peer = theirs("BertModel", hidden_act=activation)
    model = loaded(peer, tmp_path)
    x, mask, types = inputs()
    right = peer(x, attention_mask=mask, token_type_ids=types)
    found = model.states(x, mask=mask, token_types=types)
    real = mask[..., None]
    near(torch.where(real, found.sequence, 0.0), torch.where(real, right.last_hidden_state, 0.0))
    assert found.pooled is not None
    near(found.pooled, right.pooler_output)
    gradients_agree(model, peer, found.pooled, right.pooler_output)


def test_a_packed_row_has_the_states_and_summaries_of_its_texts(tmp_path: Path) -> None:
    from regard.types import Offsets

    model = loaded(theirs("BertModel"), tmp_path)
    x, mask, types = inputs()
    padded = model.states(x, mask=mask, token_types=types)
    starts = torch.tensor([0, 9, 13, 20, 20])  # and an empty text at the end
    packed = model.body(Batch(x[mask][None], token_types=types[mask][None], offsets=Offsets(starts, 9)))
    near(packed.sequence[0], padded.sequence[mask])
    near(packed.pooled[:3], padded.pooled)


def test_classes_are_those_of_sequence_classification(tmp_path: Path) -> None:
    peer = theirs("BertForSequenceClassification", num_labels=4)
    model = loaded(peer, tmp_path)
    x, mask, types = inputs()
    right = peer(x, attention_mask=mask, token_type_ids=types).logits
    assert model.task.name == "classify" and model.spec.labels == tuple(f"LABEL_{i}" for i in range(4))
    ours = model.logits(x, mask=mask, token_types=types)
    near(ours, right)
    gradients_agree(model, peer, ours, right)


def test_choices_are_those_of_multiple_choice(tmp_path: Path) -> None:
    peer = theirs("BertForMultipleChoice")
    model = loaded(peer, tmp_path)
    x, mask, types = (part[None].repeat(2, 1, 1) for part in inputs())
    right = peer(x, attention_mask=mask, token_type_ids=types).logits
    ours = model.logits(x, mask=mask, token_types=types)
    near(ours, right)
    gradients_agree(model, peer, ours, right)


@pytest.mark.parametrize(
    ("name", "more"),
    [("BertModel", {}), ("BertForSequenceClassification", {"num_labels": 4}), ("BertForMultipleChoice", {})],
)
def test_folders_are_written_as_they_were_read(name: str, more: dict[str, Any], tmp_path: Path) -> None:
    peer = theirs(name, **more)
    model = loaded(peer, tmp_path / "theirs")
    regard.save(model, tmp_path / "ours", layout="huggingface")
    again = getattr(transformers, name).from_pretrained(tmp_path / "ours", dtype=torch.float64)
    ours, right = again.state_dict(), peer.state_dict()
    assert set(ours) == set(right) and all(torch.equal(ours[key], right[key]) for key in right)
    config, before = again.config, peer.config
    for key in ("hidden_act", "layer_norm_eps", "type_vocab_size", "hidden_dropout_prob", "num_labels"):
        assert getattr(config, key) == getattr(before, key)


def test_a_head_of_another_task_is_left_out_and_a_new_one_made(tmp_path: Path) -> None:
    model = loaded(theirs("BertForSequenceClassification", num_labels=4), tmp_path, task="choose")
    assert any("classifier.weight" in note for note in model.notes) and model.has_new_head


def test_old_names_of_norms_are_read(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    peer = theirs("BertModel")
    peer.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in tensors.items()
    }
    save_file(old, tmp_path / "model.safetensors", {"format": "pt"})
    x, mask, types = inputs()
    right = peer(x, attention_mask=mask, token_type_ids=types).pooler_output
    near(regard.load(tmp_path).states(x, mask=mask, token_types=types).pooled, right)


def test_a_text_longer_than_the_positions_is_refused(tmp_path: Path) -> None:
    model = loaded(theirs("BertModel"), tmp_path)
    with pytest.raises(RegardError, match="16"):
        model.states(torch.zeros(1, 17, dtype=torch.long))


def test_the_auxiliary_loss_is_refused(tmp_path: Path) -> None:
    model = loaded(theirs("BertForSequenceClassification"), tmp_path)
    x, mask, _ = inputs()
    with pytest.raises(RegardError, match="lm_loss_weight"):
        model.task.loss(model, Batch(x, mask, labels=torch.tensor([0, 1, IGNORE])), LossWeights(auxiliary=0.5))


def test_tags_are_those_of_token_classification(tmp_path: Path) -> None:
    peer = theirs("BertForTokenClassification", num_labels=5)
    model = loaded(peer, tmp_path)
    x, mask, types = inputs()
    right = peer(x, attention_mask=mask, token_type_ids=types).logits[mask]
    assert model.task.name == "tag" and len(model.spec.labels) == 5 and not model.config.pooler
    ours = model.logits(x, mask=mask, token_types=types)[mask]
    near(ours, right)
    gradients_agree(model, peer, ours, right)


def test_ends_and_their_loss_are_those_of_question_answering(tmp_path: Path) -> None:
    peer = theirs("BertForQuestionAnswering")
    model = loaded(peer, tmp_path)
    x, mask, types = inputs()
    right = peer(x, attention_mask=mask, token_type_ids=types)
    ours = model.logits(x, mask=mask, token_types=types)
    near(ours[mask], torch.stack([right.start_logits, right.end_logits], -1)[mask])
    # no padding: transformers includes padding in the softmax
    x, ends = (
        x[:, :4],
        torch.tensor([[1, 3], [0, 0], [2, 2]]),
    )
    expected = peer(x, start_positions=ends[:, 0], end_positions=ends[:, 1])
    total, count = model.task.loss(model, Batch(x, labels=ends))
    near(total / count, expected.loss)
    gradients_agree(model, peer, total, expected.loss * 3)


@pytest.mark.parametrize(
    ("name", "more"), [("BertForTokenClassification", {"num_labels": 5}), ("BertForQuestionAnswering", {})]
)
def test_folders_of_tokenwise_tasks_are_written_as_they_were_read(
    name: str, more: dict[str, Any], tmp_path: Path
) -> None:
    test_folders_are_written_as_they_were_read(name, more, tmp_path)


def hidden_words() -> Tensor:
    """Labels (3, 9) of some real tokens."""
    x, mask, _ = inputs()
    asked = torch.rand(3, 9, generator=torch.Generator().manual_seed(5)) < 0.4
    return torch.where(asked & mask, (x + 7) % 37, IGNORE)


def test_masked_token_logits_equal_the_masked_language_model(tmp_path: Path) -> None:
    peer = theirs("BertForMaskedLM")
    model = loaded(peer, tmp_path)
    x, mask, types = inputs()
    right = peer(x, attention_mask=mask, token_type_ids=types, labels=hidden_words())
    assert model.task.name == "mlm" and not model.config.nsp and not model.config.pooler and not model.notes
    ours = model.logits(x, mask=mask, token_types=types)
    near(ours[mask], right.logits[mask])
    total, count = model.task.loss(model, Batch(x, mask, labels=hidden_words(), token_types=types))
    near(total / count, right.loss)
    gradients_agree(model, peer, total / count, right.loss)


def test_the_pretraining_loss_is_mlm_plus_nsp(tmp_path: Path) -> None:
    peer = theirs("BertForPreTraining")
    model = loaded(peer, tmp_path)
    x, mask, types = inputs()
    labels, follows = hidden_words(), torch.tensor([0, 1, 1])
    right = peer(x, attention_mask=mask, token_type_ids=types, labels=labels, next_sentence_label=follows)
    assert model.task.name == "mlm" and model.config.nsp and model.config.pooler and not model.notes
    near(model.logits(x, mask=mask, token_types=types)[mask], right.prediction_logits[mask])
    near(model.head.follows(model.states(x, mask=mask, token_types=types).pooled), right.seq_relationship_logits)
    asked = (labels != IGNORE).flatten().nonzero()[:, 0]
    total, count = model.task.loss(
        model,
        Batch(x, mask, labels=labels.flatten()[asked], label_positions=asked, nsp_labels=follows, token_types=types),
    )
    assert int(count) == len(asked) > 3
    near(total / count, right.loss)
    gradients_agree(model, peer, total / count, right.loss)


@pytest.mark.parametrize("name", ["BertForMaskedLM", "BertForPreTraining"])
def test_folders_of_pre_training_are_written_as_they_were_read(name: str, tmp_path: Path) -> None:
    test_folders_are_written_as_they_were_read(name, {}, tmp_path)
    again = regard.load(tmp_path / "ours")
    assert again.task.name == "mlm" and again.config.nsp is (name == "BertForPreTraining")


def test_a_bare_body_gets_a_new_head_for_mlm_and_nsp(tmp_path: Path) -> None:
    model = loaded(theirs("BertModel"), tmp_path, task="mlm")
    assert model.has_new_head and model.config.nsp and model.head.follows.weight.shape == (2, 12)
    with_words = loaded(theirs("BertForPreTraining"), tmp_path / "more", task="classify")
    assert any("masked tokens" in note for note in with_words.notes)
