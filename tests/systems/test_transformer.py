"""The Transformer against torch.nn; its loss against Marian of transformers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from parity import load_peer, peer_of, torch_call
from regard.data.batching.padding import pad
from regard.model import Model
from regard.types import IGNORE, Batch
from tiny import TINY, Numbers, collate, near, same_gradients, tiny

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
