"""Recurrent translators: masked targets, refused packing, and explanations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from conftest import train_tiny
from regard.errors import SettingError
from regard.model import Model
from regard.processors.tokenizer.tokenizer import TextTokenizer
from regard.types import Batch, DecoderInputs
from tiny import CASES, near, tiny

cases = pytest.mark.parametrize(("name", "label"), [case for case in CASES if case[0] in ("rnn", "rnnsearch")])


def logits(model: Model, batch: Batch) -> Tensor:
    with torch.no_grad():
        return model.body.to_logits(model.body(batch).sequence)


@cases
def test_a_masked_target_token_is_not_read_and_others_keep_their_positions(name: str, label: str) -> None:
    model = tiny(name, label)
    x = torch.tensor([[5, 9, 2], [7, 8, 2]])
    holed, real = torch.tensor([[1, 9, 4, 6, 8], [1, 5, 6, 9, 9]]), torch.ones(2, 5, dtype=torch.bool)
    real[0, 1] = real[1, 2:4] = False
    ours = logits(model, Batch(x, decoder=DecoderInputs(holed, mask=real)))
    for row in range(2):
        alone = Batch(x[row : row + 1], decoder=DecoderInputs(holed[row : row + 1, real[row]]))
        near(ours[row, real[row]], logits(model, alone)[0])


# -- packed rows and explanations


@pytest.mark.parametrize("name", ["rnn", "rnnsearch"])
def test_packed_rows_are_refused_in_words(name: str, few: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="padded"):
        train_tiny(few, tmp_path / "run", "train.packing=on", tiny=False, model=f"{name}-tiny")


SOURCE, SAID = "the old women danced", "die alten Frauen tanzten"


@pytest.mark.parametrize(("name", "label"), [("rnn", "both ways"), ("rnnsearch", "unbiased")])
def test_an_explanation_shows_the_alignment_or_the_gradients_by_words(name: str, label: str, tmp_path: Path) -> None:
    text = TextTokenizer.train_sentence_bpe([SOURCE, SAID] * 5, 290)
    model = tiny(name, label, vocab_size=text.size)
    model.tokenizer = text
    found = model.explain(SOURCE, SAID)
    (item,) = found.maps
    config = model.config
    x = torch.tensor([[*text.encode([SOURCE])[0], config.eos_id]])
    read = torch.tensor([[config.bos_id, *text.encode([SAID])[0]]])
    assert item.weights.shape == (1, 1, read.shape[1], x.shape[1]) and item.is_single
    np.testing.assert_allclose(item.weights.sum(-1), 1, atol=1e-5)
    aligns = name == "rnnsearch"
    assert (item.name, item.is_gradient, "attention" in found.facts) == (
        ("cross", False, False) if aligns else ("depends", True, True)
    )
    if aligns:
        context, s = model.body.encode(Batch(x))
        y = model.body.tables.target(read)
        for at in range(read.shape[1]):
            alpha = model.body.decoder.align.weights(s[:, None], context)[0, 0]
            np.testing.assert_allclose(item.weights[0, 0, at], alpha.detach(), atol=1e-6)
            s = model.body.decoder.step(model.body.decoder.cell.given(y[:, at]), s, context)[0]
    else:
        near(torch.from_numpy(item.weights[0, 0]).double(), by_autograd(model, x, read, config.eos_id), 1e-6)
        assert "fixed size" in found.facts["attention"]
    assert not any(module._forward_hooks for module in model.modules())
    for suffix in ("png", "svg", "html"):
        path = found.save(tmp_path / f"explanation.{suffix}")
        assert path.stat().st_size > 5000
    drawn, page = (tmp_path / "explanation.svg").read_text("utf-8"), (tmp_path / "explanation.html").read_text("utf-8")
    subtitle = "Rows: output tokens. Columns: source tokens." if aligns else "This model has no attention"
    assert subtitle in drawn and "All layers" not in drawn
    assert ("<h1>Attention</h1>" if aligns else "Input saliency (gradient norm)") in page


def by_autograd(model: Model, x: Tensor, read: Tensor, end: int) -> Tensor:
    """Weight of each source token: norm of the gradient of each log-probability by its embedding."""
    tables, embedded = model.body.tables, []

    def keep(_: Any, args: Any, out: Tensor) -> None:
        if args[0] is x:
            embedded.append(out)

    handle = (tables.source or tables.target).register_forward_hook(keep)
    sequence = model.body(Batch(x, decoder=DecoderInputs(read))).sequence
    handle.remove()
    says = [*read[0, 1:].tolist(), end]
    logs = model.body.to_logits(sequence)[0].log_softmax(-1)[range(len(says)), says]
    norms = [torch.autograd.grad(log, embedded, retain_graph=True)[0][0].norm(dim=-1) for log in logs]
    return torch.stack([norm / norm.sum() for norm in norms])
