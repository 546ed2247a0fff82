"""The Transformer against torch.nn and the formulas of the paper; its search against Marian of transformers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from parity import load_peer, marian, peer_of, torch_call
from regard.decode.search import search
from regard.decode.settings import DecodeSettings
from regard.model import Model
from regard.processors.padding import pad
from regard.types import IGNORE, Batch, DecoderInputs
from tiny import TINY, Numbers, collate, near, pairs, same_gradients, tiny

SAMPLES = TINY["transformer"].samples
START, END = 1, 2


def padded(model: Model) -> tuple[Batch, Tensor, Tensor]:
    """A batch with padding, the attention mask of the sources, and the mask of real target positions."""
    batch = collate(model, SAMPLES)
    assert batch.mask is not None and batch.labels is not None
    return batch, torch.arange(batch.inputs.shape[1]) < batch.mask[:, None], batch.labels != IGNORE


def test_teacher_forcing_and_its_loss_equal_marian(tmp_path: Path) -> None:
    peer = peer_of("MarianMTModel")
    model = load_peer(peer, tmp_path)
    batch, mask, _ = padded(model)
    total, count = model.task.objective.loss(model, batch)
    labels, _ = pad([[*row, END] for row in Numbers().encode([pair.target for pair in SAMPLES])], IGNORE)
    near(total / count, peer(input_ids=batch.inputs, attention_mask=mask.long(), labels=labels).loss)


# -- torch.nn


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True:UserWarning")
def test_the_stacks_are_those_of_torch(norm: str, activation: str) -> None:
    model = tiny("transformer", norm_position=norm, activation=activation)
    body, c = model.body, model.config
    theirs = nn.Transformer(
        c.width, c.heads, c.depth, c.decoder_depth, c.ffn_dim, dropout=0.0, activation=activation, batch_first=True,
        norm_first=norm == "pre", dtype=torch.float64,
    )  # fmt: skip
    if norm == "post":  # the paper has no final norm
        theirs.encoder.norm = theirs.decoder.norm = None
    encoder, decoder = torch_call(theirs.encoder.eval(), body.encoder), torch_call(theirs.decoder.eval(), body.decoder)
    batch, mask, real = padded(model)
    assert batch.decoder is not None
    hidden = ~mask
    x, y = (body.embed(ids, torch.arange(ids.shape[1])) for ids in (batch.inputs, batch.decoder.inputs))
    future = ~torch.ones(y.shape[1], y.shape[1]).tril().bool()
    context = encoder(x, src_key_padding_mask=hidden)
    right = decoder(y, context, tgt_mask=future, memory_key_padding_mask=hidden)
    same_gradients(body, body(batch).sequence[real], right[real], 2e-12)


# -- decoding


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> tuple[Model, Any, Batch, Tensor]:
    """Model trained briefly to reverse its source: outputs depend on the source, differ, and end."""
    model = tiny("transformer", depth=1, decoder_depth=2, output_bias=True)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.mul_(0.5).add_(float(name.endswith("norm.weight")))
    random, optimiser = np.random.default_rng(0), torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(120):
        source = [random.integers(3, 23, random.integers(1, 7)) for _ in range(32)]
        total, count = model.task.objective.loss(model, collate(model, pairs((row, row[::-1]) for row in source)))
        optimiser.zero_grad()
        (total / count).backward()
        optimiser.step()
    rows = [np.append(random.integers(3, 23, length), END) for length in (4, 2, 6, 1, 5, 9)]
    x, lengths = pad(rows, 0)
    assert lengths is not None
    batch = Batch(x, lengths, decoder=DecoderInputs(torch.full((6, 1), START)))
    theirs = marian(model, tmp_path_factory.mktemp("taught"))
    return model, theirs, batch, (torch.arange(x.shape[1]) < lengths[:, None]).long()


Outputs = list[tuple[tuple[int, ...], bool]]


def generate(taught: Any, batch: Batch, limit: int, **settings: Any) -> tuple[Outputs, list[float]]:
    _, theirs, _, marks = taught
    out = theirs.generate(
        batch.inputs, attention_mask=marks, decoder_input_ids=batch.decoder.inputs, max_new_tokens=limit, do_sample=False,
        return_dict_in_generate=True, output_scores=True, **settings,
    )  # fmt: skip
    rows = out.sequences[:, batch.decoder.inputs.shape[1] :].tolist()  # type: ignore[union-attr]
    found = [(tuple(row[: row.index(END)]), True) if END in row else (tuple(row), False) for row in rows]
    return found, out.sequences_scores.tolist() if settings.get("num_beams", 1) > 1 else []


@pytest.mark.parametrize("limit", [1, 5, 12])
def test_greedy_outputs_equal_generate(taught: Any, limit: int) -> None:
    model, _, batch, _ = taught
    found = search(model.body, batch, END, torch.full((6,), limit), DecodeSettings())
    ours = [(answers[0].tokens, (answers[0].finish_reason == "eos")) for answers in found]
    right = generate(taught, batch, limit)[0]
    assert ours == right
    limits = torch.arange(1, 7)  # a maximum length per row
    found = search(model.body, batch, END, limits, DecodeSettings())
    cut = [
        (tokens[:most], ended and len(tokens) < most)
        for (tokens, ended), most in zip(right, [*range(1, 7)], strict=True)
    ]
    assert limit < 12 or [(answers[0].tokens, (answers[0].finish_reason == "eos")) for answers in found] == cut
    if limit == 12:
        assert len(set(ours)) == 6 and sum(ended for _, ended in ours) >= 4
        assert len({len(tokens) for tokens, _ in ours}) >= 3


def beams(width: int, penalty: float, stop: Any) -> DecodeSettings:
    """Settings of beam search as in transformers, with all beams returned."""
    return DecodeSettings(
        num_beams=width, num_return_sequences=width, length_penalty=penalty, length_penalty_type="power",
        early_stopping=stop,
    )  # fmt: skip


@pytest.mark.every(5)
@pytest.mark.parametrize("limit", [4, 12])
@pytest.mark.parametrize("prompt", [1, 3])
@pytest.mark.parametrize("stop", ["heuristic", "never"])
@pytest.mark.parametrize("penalty", [0.0, 0.6, 1.0, 2.0, -0.7])
def test_beams_are_those_of_generate(taught: Any, penalty: float, stop: str, prompt: int, limit: int) -> None:
    model, _, batch, _ = taught
    if prompt > 1:
        batch = replace(
            batch, decoder=DecoderInputs(torch.cat([batch.decoder.inputs, batch.inputs[:, : prompt - 1]], 1))
        )
    for width in (2, 3, 5):
        settings = beams(width, penalty, stop)
        found = search(model.body, batch, END, torch.full((6,), limit), settings)
        right, scores = generate(
            taught, batch, limit, num_beams=width, num_return_sequences=width, length_penalty=penalty,
            early_stopping={"heuristic": False, "never": "never"}[stop],
        )  # fmt: skip
        ours = [answer for answers in found for answer in answers]
        assert [(answer.tokens, (answer.finish_reason == "eos")) for answer in ours] == right
        assert [answer.score for answer in ours] == pytest.approx(scores, rel=1e-4)
        assert limit < 12 or sum((answer.finish_reason == "eos") for answer in ours) > len(ours) / 2


def test_the_two_ways_to_stop_differ_on_these_sources(taught: Any) -> None:
    model, _, batch, _ = taught
    limits = torch.full((6,), 12)
    soon, sure = (search(model.body, batch, END, limits, beams(2, 2.0, stop)) for stop in ("heuristic", "never"))
    assert soon != sure
