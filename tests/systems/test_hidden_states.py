"""Hidden states and attention weights of all layers, against transformers and for every system."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from test_threads import together
from torch import Tensor

import regard
from encoders import encoder
from parity import LENGTHS, REAL, SIZES, load_peer, peer_of, text_inputs
from regard.errors import InputError
from regard.nn.recording import named_attentions
from regard.systems import SYSTEMS
from tiny import TINY, collate, near, noise, tiny
from tiny_caption_models import USUAL, batch_of, captioner
from tiny_point_models import made as points
from tiny_vision_models import ASKED, batch_for, made
from tokenizer_files import STORY

EAGER = {"attn_implementation": "eager"}
TEXTS = ["BertModel", "RoFormerModel", "DebertaV2Model", "ModernBertModel", "GPT2LMHeadModel", "OpenAIGPTLMHeadModel"]


def equal(ours: Any, theirs: Any, real: Tensor | None = None, tolerance: float = 1e-11) -> None:
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        near(one if real is None else one[real], other if real is None else other[real], tolerance)


def attentions(states: Any, part: str) -> list[Tensor]:
    """Recorded weights of the modules of a name."""
    return [states.attentions.weights(name) for name in states.attentions.names() if part in name]


@pytest.mark.parametrize("name", TEXTS)
def test_states_and_attentions_of_text_models(name: str, tmp_path: Path) -> None:
    changes = {} if name.startswith("ModernBert") else EAGER
    peer = peer_of(name, **changes)
    model, x = load_peer(peer, tmp_path / "peer"), text_inputs()[0]
    found = model.states(x, mask=REAL, layers="all", attentions=bool(changes))
    more = {"token_type_ids": torch.zeros_like(x)} if name.startswith(("Bert", "RoFormer")) else {}
    right = peer(x, attention_mask=REAL.long(), output_hidden_states=True, output_attentions=bool(changes), **more)
    equal(found.hidden_states, right.hidden_states, REAL)
    assert found.hidden_states[-1] is found.sequence and not found.encoder_hidden_states
    if changes:
        rows = REAL[:, None].expand(-1, model.config.heads, -1)
        equal(attentions(found, "attend"), right.attentions, rows)


def test_states_and_attentions_of_both_sides_of_a_translator(tmp_path: Path) -> None:
    peer = peer_of("MarianMTModel", **EAGER)
    model, x, y = load_peer(peer, tmp_path / "peer"), text_inputs()[0] % 21, text_inputs()[0][:, :7].flip(1) % 21
    found = model.states(x, y, mask=LENGTHS, layers="all", attentions=True)
    right = peer(
        input_ids=x, attention_mask=REAL.long(), decoder_input_ids=y, output_hidden_states=True, output_attentions=True
    )
    equal(found.hidden_states, right.decoder_hidden_states)
    equal(found.encoder_hidden_states, right.encoder_hidden_states, REAL)
    equal(attentions(found, "cross"), right.cross_attentions)
    equal([a for a in attentions(found, "attend") if a.shape[-1] == 7], right.decoder_attentions)
    rows = REAL[:, None].expand(-1, model.config.heads, -1)
    equal([a for a in attentions(found, "attend") if a.shape[-1] == 19], right.encoder_attentions, rows)


@pytest.mark.parametrize("name", ["ViTModel", "SwinModel", "ResNetModel", "BitModel"])
def test_states_of_image_models(name: str, tmp_path: Path) -> None:
    peer = peer_of(name)
    model, side = load_peer(peer, tmp_path / "peer"), SIZES[name.removesuffix("Model")].get("image_size", 40)
    x = noise(2, model.config.in_channels, side, side, seed=3)
    found = model.states(x, layers="all", attentions=True)
    equal(found.hidden_states, peer(x, output_hidden_states=True).hidden_states)
    if name == "ViTModel":
        peer.set_attn_implementation("eager")  # computes the weights in float32
        equal(attentions(found, "attend"), peer(x, output_attentions=True).attentions, tolerance=5e-7)


ALL: dict[str, Any] = {
    **{name: lambda name=name: (m := tiny(name), collate(m, TINY[name].samples)) for name in TINY},
    **{name: lambda name=name, task=task: (m := made(name, task), batch_for(m)) for name, task in ASKED},
    **{name: lambda name=name: (captioner(name), batch_of()) for name, _ in USUAL},
}
WITHOUT = ("rnn", "rnnsearch", "caption-fixed", "caption-attend", "point")


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_system_has_states_of_its_layers_or_says_so(name: str) -> None:
    if name == "point":
        model, inputs = points("classify"), (noise(2, 60, 3),)
        with pytest.raises(InputError, match="layers"):
            model.states(*inputs, layers="all")
        return
    model, batch = ALL[name]()
    x = batch.inputs if model.task.name != "draw" else batch.inputs.clamp(max=model.config.num_colors - 1)
    given = (x,) if batch.decoder is None or not model.objective.has_decoder_inputs else (x, batch.decoder.inputs)
    if name in WITHOUT:
        with pytest.raises(InputError, match="layers"):
            model.states(*given, layers="all")
        return
    plain, found = model.states(*given), model.states(*given, layers="all", attentions=True)
    near(found.sequence, plain.sequence)
    assert len(found.hidden_states) > 1 and not plain.hidden_states and plain.attentions is None
    assert {*found.attentions.names()} == {*named_attentions(model.body)}
    if given[1:]:
        assert found.encoder_hidden_states and found.hidden_states[-1].shape[:2] == given[1].shape


def test_other_layers_are_refused_and_threads_have_separate_states() -> None:
    model = encoder("embed", [STORY])
    for layers in ("some", 3, [0], True):
        with pytest.raises(InputError, match="layers"):
            model.states(torch.tensor([[5, 6]]), layers=layers)  # type: ignore[arg-type]
    rows = [torch.tensor([[5, 6, 7 + number]]) for number in range(8)]
    right = [model.states(row, layers="all").hidden_states for row in rows]

    def compare(number: int) -> None:
        for _ in range(5):
            model.states(rows[number])
            equal(model.states(rows[number], layers="all").hidden_states, right[number])

    together(compare)


def test_states_of_all_layers_have_gradients() -> None:
    model = regard.build("bert-mini", task="embed", width=8, heads=2, ffn_dim=8, depth=2, vocab_size=50)
    first, *_, last = model.states(torch.tensor([[5, 6]]), layers="all").hidden_states
    (gradient,) = torch.autograd.grad(last.sum(), first)
    assert gradient.shape == first.shape
