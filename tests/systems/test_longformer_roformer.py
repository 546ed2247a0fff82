"""RoFormer and Longformer against `transformers` with random parameters: outputs, gradients, checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

import regard
from regard.data.text.qa import QASample
from regard.errors import RegardError
from regard.nn.attention.positions import SinusoidalPosition
from regard.processors.tokenizer.tokenizer import TextTokenizer
from regard.tasks import TEXT_TASKS
from regard.types import Batch, Offsets
from tiny import near, noisy

ALIKE: dict[str, Any] = {
    "hidden_size": 12, "num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 20, "vocab_size": 37,
}  # fmt: skip
ROFORMER = {
    **ALIKE, "max_position_embeddings": 20, "type_vocab_size": 2, "attn_implementation": "eager", "embedding_size": 8,
    "cls_token_id": 2, "sep_token_id": 3, "mask_token_id": 4,
}  # fmt: skip
LONGFORMER = {
    **ALIKE, "max_position_embeddings": 42, "type_vocab_size": 1, "attention_window": [4, 8, 4], "pad_token_id": 1,
    "bos_token_id": 0, "sep_token_id": 2, "eos_token_id": 2, "mask_token_id": 4, "layer_norm_eps": 1e-5,
}  # fmt: skip
LENGTHS = torch.tensor([19, 4, 13])
SINGLE = 5e-7
"""Tolerance for Longformer, whose softmax is in float32 in transformers."""


def roformer(name: str, **changes: Any) -> Any:
    peer = noisy(getattr(transformers, name)(transformers.RoFormerConfig(**{**ROFORMER, **changes})))
    table = next(value for key, value in peer.named_parameters() if key.endswith("embed_positions.weight"))
    with torch.no_grad():  # rounded to float32 in transformers
        table.copy_(SinusoidalPosition(4, "halves")(torch.arange(len(table))))
    return peer


def longformer(name: str, **changes: Any) -> Any:
    return noisy(getattr(transformers, name)(transformers.LongformerConfig(**{**LONGFORMER, **changes})))


def inputs() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(3)
    mask = torch.arange(19) < LENGTHS[:, None]
    x = torch.where(mask, torch.randint(5, 37, (3, 19), generator=draw), 1)
    types = torch.randint(0, 2, (3, 19), generator=draw)
    marked = torch.zeros(3, 19, dtype=torch.bool)
    marked[:, 0] = marked[0, 7] = marked[2, 12] = True
    return x, mask, types, marked


def loaded(peer: Any, folder: Path, **more: Any) -> regard.Model:
    peer.save_pretrained(folder)
    return regard.load(folder, **more)


def gradients_agree(model: regard.Model, peer: Any, ours: Tensor, right: Tensor, tolerance: float) -> None:
    weigh = torch.randn(right.shape, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
    (ours * weigh).sum().backward()
    (right * weigh).sum().backward()
    found = {name.removeprefix("body."): p.grad for name, p in model.named_parameters() if p.grad is not None}
    written = model.spec.system.names.write(found)
    prefix = f"{model.spec.system.name}."
    checked, largest = 0, max(float(p.grad.abs().max()) for p in peer.parameters() if p.grad is not None)
    for name, parameter in peer.named_parameters():
        own = name if name in written else prefix + name
        if parameter.grad is None or name.endswith(("embed_positions.weight", "decoder.weight", "decoder.bias")):
            continue
        assert own in written, name
        assert float((written[own] - parameter.grad).abs().max()) <= tolerance * largest, name
        checked += 1
    assert checked > 20


@pytest.mark.parametrize("changes", [{}, {"rotary_value": True}, {"embedding_size": None, "hidden_act": "relu"}])
def test_masked_tokens_of_roformer_equal_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    peer = roformer("RoFormerForMaskedLM", **changes)
    model = loaded(peer, tmp_path)
    x, mask, types, _ = inputs()
    right = peer(x, attention_mask=mask, token_type_ids=types).logits[mask]
    assert model.task.name == "mlm"
    ours = model.logits(x, mask=mask, token_types=types)[mask]
    near(ours, right)
    gradients_agree(model, peer, ours, right, 1e-11)


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("RoFormerModel", {}), ("RoFormerForSequenceClassification", {"num_labels": 4}),
        ("RoFormerForTokenClassification", {"num_labels": 4}), ("RoFormerForQuestionAnswering", {}),
        ("RoFormerForMaskedLM", {}),
    ],
)  # fmt: skip
def test_folders_of_roformer_are_read_and_written(name: str, more: dict[str, Any], tmp_path: Path) -> None:
    peer = roformer(name, **more)
    model = loaded(peer, tmp_path / "theirs")
    x, mask, types, _ = inputs()
    if name == "RoFormerForSequenceClassification":
        near(model.logits(x, mask=mask, token_types=types), peer(x, attention_mask=mask, token_type_ids=types).logits)
    regard.save(model, tmp_path / "ours", layout="huggingface")
    again = getattr(transformers, name).from_pretrained(tmp_path / "ours", dtype=torch.float64)
    assert_same(again, peer)


def assert_same(again: Any, peer: Any) -> None:
    ours, right = again.state_dict(), peer.state_dict()
    assert set(ours) == set(right)
    for key in right:
        assert torch.equal(ours[key], right[key]) or key.endswith("embed_positions.weight"), key
    assert again.config.to_dict().keys() >= peer.config.to_dict().keys() - {"attn_implementation"}


@pytest.mark.parametrize("windows", [[4, 8, 4], [4, 4, 4], [64, 64, 64]])
def test_masked_tokens_of_longformer_equal_transformers(windows: list[int], tmp_path: Path) -> None:
    peer = longformer("LongformerForMaskedLM", attention_window=windows)
    model = loaded(peer, tmp_path)
    x, mask, _, marked = inputs()
    right = peer(x, attention_mask=mask.long(), global_attention_mask=marked.long()).logits[mask]
    ours = model.logits(x, mask=mask, global_tokens=marked)[mask]
    near(ours, right, SINGLE)


@pytest.mark.parametrize("windows", [[4, 8, 4], [4, 4, 4]])
def test_gradients_of_longformer_equal_transformers(windows: list[int], tmp_path: Path) -> None:
    """In transformers, padded rows and rows with unequal numbers of global tokens have NaN gradients: excluded here."""
    peer = longformer("LongformerForMaskedLM", attention_window=windows)
    model = loaded(peer, tmp_path)
    x = torch.randint(5, 37, (3, 16), generator=torch.Generator().manual_seed(5))
    marked = torch.zeros(3, 16, dtype=torch.bool)
    marked[:, 0] = marked[0, 7] = marked[1, 3] = marked[2, 15] = True
    right = peer(x, global_attention_mask=marked.long()).logits
    ours = model.logits(x, global_tokens=marked)
    near(ours, right, SINGLE)
    gradients_agree(model, peer, ours, right, 5 * SINGLE)


def test_longformer_finds_answers_with_global_attention_on_the_question(tmp_path: Path) -> None:
    """Global attention as set by the task: in transformers, all tokens before the first of two separators."""
    context = "the king of the hill is in rome and the cat sat"
    text = TextTokenizer.train_wordpiece([context, "who is where"] * 3, 80)
    peer = longformer(
        "LongformerForQuestionAnswering", vocab_size=text.size, pad_token_id=0, bos_token_id=2, sep_token_id=3,
        eos_token_id=3, cls_token_id=2,
    )  # fmt: skip
    peer.save_pretrained(tmp_path)
    text.save(tmp_path / "tokenizer.json")
    model = regard.load(tmp_path)
    samples = [QASample("who is the king", context, (), (), False), QASample("where", context[:20], (), (), False)]
    encoded = model.task.encode(samples, model.tokenizer, model.config, model.config.max_length)
    # one by one, because transformers searches the end of the question in rows without padding
    for chosen in ([0], [1]):
        batch = model.task.collate(encoded, chosen, model.config)
        right = peer(batch.inputs)
        ours = model.task.logits(model, batch)
        near(ours[..., 0], right.start_logits, SINGLE)
        near(ours[..., 1], right.end_logits, SINGLE)
        ends = (batch.inputs[0] == model.config.eos_id).nonzero()[:, 0]
        assert batch.global_tokens is not None and batch.max_global_tokens == int(batch.global_tokens.sum()) == int(
            ends[0]
        )
    drawn, end = model.explain(("who is the king", context)).maps[0], 5
    assert (drawn.weights[:, :, :end] > 0).all() and (drawn.weights[0, :, end, end + 3 :] == 0).all()  # a window of 4


def test_longformer_classifies_with_global_attention_on_its_first_token(tmp_path: Path) -> None:
    peer = longformer("LongformerForSequenceClassification", num_labels=4)
    model = loaded(peer, tmp_path)
    x, mask, _, _ = inputs()
    first = torch.zeros_like(mask)
    first[:, 0] = True
    right = peer(x, attention_mask=mask.long()).logits  # the first token is global by default
    ours = model.logits(x, mask=mask, global_tokens=first)
    near(ours, right, SINGLE)


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("LongformerModel", {}), ("LongformerForSequenceClassification", {"num_labels": 4}),
        ("LongformerForTokenClassification", {"num_labels": 4}), ("LongformerForQuestionAnswering", {}),
        ("LongformerForMaskedLM", {}),
    ],
)  # fmt: skip
def test_folders_of_longformer_are_read_and_written(name: str, more: dict[str, Any], tmp_path: Path) -> None:
    peer = longformer(name, **more)
    model = loaded(peer, tmp_path / "theirs")
    regard.save(model, tmp_path / "ours", layout="huggingface")
    again = getattr(transformers, name).from_pretrained(tmp_path / "ours", dtype=torch.float64)
    assert_same(again, peer)
    assert again.config.attention_window == [4, 8, 4] and again.config.max_position_embeddings == 42


@pytest.mark.parametrize("kind", ["roformer", "longformer"])
def test_packed_documents_have_the_states_they_have_alone(kind: str, tmp_path: Path) -> None:
    peer = roformer("RoFormerModel") if kind == "roformer" else longformer("LongformerModel")
    model = loaded(peer, tmp_path)
    x, mask, types, marked = inputs()
    types = types if kind == "roformer" else None
    marked = marked if kind == "longformer" else None
    padded = model.states(x, mask=mask, token_types=types, global_tokens=marked)
    starts = torch.tensor([0, 19, 23, 36, 36])

    def row(table: Tensor | None) -> Tensor | None:
        return None if table is None else table[mask][None]

    batch = Batch(x[mask][None], token_types=row(types), global_tokens=row(marked), offsets=Offsets(starts, 19))
    packed = model.body(batch)
    near(packed.sequence[0], padded.sequence[mask])
    near(packed.pooled[:3], padded.pooled)


def test_dilated_windows_equal_their_mask_and_need_the_native_format(tmp_path: Path) -> None:
    from regard.model import ModelSpec, assemble
    from regard.nn.attention.attention import Attention
    from regard.nn.attention.masks import materialize
    from regard.systems import SYSTEMS, longformer

    config = longformer.Config(
        width=12,
        depth=3,
        heads=3,
        ffn_dim=20,
        vocab_size=37,
        max_length=40,
        attention_window=(4, 8, 4),
        dilation=(1, 2, 3),
        undilated_layers=1,
        pad_id=1,
        bos_id=0,
        eos_id=2,
        mask_id=4,
    )
    model = noisy(assemble(ModelSpec(SYSTEMS["longformer"], config, TEXT_TASKS["embed"])))
    x, mask, _, _ = inputs()
    rules = model.body.attention_masks(Batch(x, mask))
    at = torch.arange(19)
    table = materialize(rules[1], 3, 3, at, at)
    assert table[0, 1, 9].nonzero().flatten().tolist() == [1, 3, 5, 7, 9, 11, 13, 15, 17]
    assert materialize(rules[0], 3, 3, at, at)[0, -1, 9].sum() == 5  # the first block is not dilated
    block = model.body.encoder.blocks[1].attend.inner
    states = torch.randn(3, 19, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    q, k, v = block.project(states)
    scores = (q @ k.transpose(-1, -2) / 2).masked_fill(~table, -torch.inf).softmax(-1).nan_to_num(0.0)
    expected = block.out((scores @ v).transpose(1, 2).flatten(2).masked_fill(~mask[..., None], 0.0))
    near(block(states, mask=rules[1]), expected)
    assert isinstance(block, Attention)
    model.save(tmp_path / "own")
    again = regard.load(tmp_path / "own")
    near(again.states(x, mask=mask).sequence[mask], model.states(x, mask=mask).sequence[mask])
    with pytest.raises(regard.errors.WeightsError, match="dilated"):
        regard.save(model, tmp_path / "theirs")


def test_longformer_may_use_rotary_positions_and_needs_the_native_format(tmp_path: Path) -> None:
    """A window over the whole row without global tokens is full attention, as in BERT with these positions."""
    from regard.model import ModelSpec, assemble
    from regard.systems import SYSTEMS, longformer

    config = longformer.Config(
        width=12,
        depth=2,
        heads=3,
        ffn_dim=20,
        vocab_size=37,
        max_length=40,
        attention_window=(80,),
        relative_position="rotary",
        pad_id=1,
        bos_id=0,
        eos_id=2,
        mask_id=4,
    )
    model = noisy(assemble(ModelSpec(SYSTEMS["longformer"], config, TEXT_TASKS["embed"])))
    x, mask, _, _ = inputs()
    sizes = {
        name: getattr(config, name)
        for name in ("width", "depth", "heads", "ffn_dim", "vocab_size", "max_length", "norm_eps")
    }
    tokens = {"pad_id": 1, "bos_id": 0, "eos_id": 2, "mask_id": 4, "type_vocab_size": 1, "pooler": False}
    like = SYSTEMS["bert"].config(**sizes, **tokens, relative_position="rotary")
    dense = assemble(ModelSpec(SYSTEMS["bert"], like, TEXT_TASKS["embed"])).double()
    own = {name: value for name, value in model.body.state_dict().items() if ".far_" not in name}
    # position ids start after the padding id
    own["embedding.position.table.weight"] = own["embedding.position.table.weight"][2:]
    dense.body.load_state_dict(own)
    near(model.states(x, mask=mask).sequence[mask], dense.eval().states(x, mask=mask).sequence[mask])
    with pytest.raises(RegardError, match="relative positions"):
        regard.save(model, tmp_path / "theirs", layout="huggingface")
    again = regard.load(model.save(tmp_path / "ours"))
    near(again.states(x, mask=mask).sequence, model.states(x, mask=mask).sequence)
    for name in ("t5", "shaw"):
        with pytest.raises(RegardError, match=f"={name}"):
            longformer.Config(relative_position=name)
