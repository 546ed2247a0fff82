"""Captioners against loops of their equations, torch modules, and `VisionEncoderDecoderModel` with its checkpoints."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

import regard
from parity import assert_gradients, assert_same_weights, load_peer, torch_call
from regard.errors import WeightsError
from regard.nn.kernels.losses import cross_entropy
from regard.nn.recurrent.score_attention import ScoreContext
from regard.systems.captioners import vit_gpt2
from regard.types import Batch, DecoderInputs
from tiny import lecture, near, noisy, same_gradients
from tiny_caption_models import batch_of, captions, made, pictures


@pytest.mark.parametrize("depth", [1, 2])
def test_show_and_tell_equals_torch_cells_that_read_the_image_first(depth: int) -> None:
    body, batch = made("caption-fixed", depth=depth), batch_of()
    assert batch.decoder is not None
    weights = dict(body.lstm.named_parameters())
    picture = body.eyes.pooled(batch.inputs) @ body.project.weight.T + body.project.bias
    states, right = [(torch.zeros(3, 10, dtype=torch.float64),) * 2] * depth, []
    for at in range(-1, 6):
        x = picture if at < 0 else body.tokens.weight[batch.decoder.inputs[:, at]]
        for layer in range(depth):
            own = [weights[f"{name}_l{layer}"] for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
            states[layer] = torch.lstm_cell(x, states[layer], *own)
            x = states[layer][0]
        if at >= 0:
            right.append(x @ body.words.weight.T + body.words.bias)
    same_gradients(body, body.to_logits(body(batch).sequence), torch.stack(right, 1), 1e-11)


def attended(body: Any, places: Tensor, tokens: list[int]) -> tuple[Tensor, Tensor]:
    """Logits (T, V) and attention weights (T, K) of one caption, from the equations alone."""

    def affine(layer: Any, x: Tensor) -> Tensor:
        return layer.weight @ x + (0 if layer.bias is None else layer.bias)

    score, first = body.align.score, affine(body.begin["first"], places.mean(0)).clamp(min=0)
    h, c = (torch.tanh(affine(body.begin[name], first)) for name in ("h", "c"))
    known = places @ score.k.weight.T + score.k.bias
    if body.deeper is not None:
        known = torch.tanh(known @ body.deeper.weight.T + body.deeper.bias)
    said, looks = [], []
    for t, token in enumerate(tokens):
        word = body.tokens.weight[token] * (t > 0)
        energy = torch.tanh(known + score.q.weight @ h) @ score.v.weight[0] + score.v.bias[0]
        alpha = energy.exp() / energy.exp().sum()
        z = torch.sigmoid(affine(body.gate, h)) * (alpha @ places)
        total = sum(affine(body.cell[name], given) for name, given in (("x", word), ("h", h), ("z", z)))
        i, f, o, g = total.chunk(4)  # type: ignore[union-attr]
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        told = torch.tanh(affine(body.out["h"], h) + word + affine(body.out["z"], z))
        said.append(affine(body.words, told))
        looks.append(alpha)
    return torch.stack(said), torch.stack(looks)


@pytest.mark.parametrize(("inner", "deeper"), [(9, True), (0, True), (5, False)])
def test_show_attend_and_tell_equals_loops_of_its_equations(inner: int, deeper: bool) -> None:
    body = made("caption-attend", width=3, embedding_dim=4, attention_dim=inner, project_features=deeper, vocab_size=8)
    target = torch.tensor([[1, 5, 7], [1, 3, 3]])
    batch = Batch(batch_of((3, 3)).inputs, decoder=DecoderInputs(target))
    places = body.eyes.patch_features(batch.inputs)
    assert places.shape == (2, 4, 12) and (body.deeper is not None) == deeper
    theirs = [attended(body, places[row], target[row].tolist()) for row in range(2)]
    right = torch.stack([said for said, _ in theirs])
    same_gradients(body, body.to_logits(body(batch).sequence), right)
    body.train()
    body.eyes.eval()
    body.dropout.p = 0.0
    penalty = sum(((1 - looks.sum(0)) ** 2).sum() for _, looks in theirs)
    near(body(batch).aux_losses["penalty"], penalty, 1e-12)  # type: ignore[arg-type]


def test_attention_penalty_is_correct_for_captions_of_all_lengths() -> None:
    """The penalty excludes positions after the end of a caption, given by labels, lengths or a mask."""
    body, batch = made("caption-attend", dropout=0.0, attention_penalty=0.7, freeze_encoder=True).train(), batch_of()
    assert batch.decoder is not None and batch.labels is not None

    def penalty(given: Batch) -> Tensor:
        return body(given).aux_losses["penalty"]

    alone, lengths = [], torch.tensor([6, 3, 5])
    for row, length in enumerate(lengths):
        one = Batch(batch.inputs[row : row + 1], decoder=DecoderInputs(batch.decoder.inputs[row : row + 1, :length]))
        alone.append(penalty(one))
        near(penalty(replace(one, labels=batch.labels[row : row + 1, :length])), alone[-1])
    right = torch.stack(alone).sum()
    near(penalty(batch), right)
    for mask in (lengths, torch.arange(6) < lengths[:, None]):
        near(penalty(replace(batch, labels=None, decoder=replace(batch.decoder, mask=mask))), right)
    double = made("caption-attend", dropout=0.0, attention_penalty=1.4, freeze_encoder=True).train()
    near(double(batch).aux_losses["penalty"], 2 * right)
    assert not body.eval()(batch).aux_losses
    assert not made("caption-attend", attention_penalty=0.0).train()(batch).aux_losses


def test_a_step_on_a_grid_of_nine_positions_equals_the_lectures() -> None:
    """v · tanh(h W_h + z W_z) over the positions, and [i f o g] = T [E y; h; c] + b. The lectures have no gate."""
    given, right = lecture("caption step")
    body = made("caption-attend", width=3, embedding_dim=2, attention_dim=4, project_features=False)
    body.align.score = type(body.align.score)(3, 2, 4, bias=True).double()
    body.cell["z"], score = nn.Linear(2, 12, bias=False).double(), body.align.score
    with torch.no_grad():
        score.q.weight.copy_(given["W_h"].T)
        score.k.weight.copy_(given["W_z"].T)
        score.v.weight.copy_(given["v_att"][None])
        for bias in (score.k.bias, score.v.bias, body.gate.weight):
            bias.zero_()
        body.gate.bias.fill_(math.inf)
        for name, first, last in (("x", 0, 2), ("h", 2, 5), ("z", 5, 7)):
            body.cell[name].weight.copy_(given["T"][:, first:last])
        body.cell["x"].bias.copy_(given["b"])
    h, c, word = (given[name][None] for name in ("h_prev", "memory_prev", "Ey_prev"))
    ready: ScoreContext = body.align.prepare(given["z"].flatten(0, 1)[None])
    near(score(h[:, None], ready.keys)[0, 0], right["e"].flatten(), 1e-12)
    z, weights = body.attend(h, ready)
    near(weights[0], right["a"].flatten(), 1e-12)
    near(z[0], right["c"], 1e-12)
    h, c = body.lstm_step(body.cell["x"](word), h, c, z)
    near(h[0], right["h"], 1e-12)
    near(c[0], right["memory"], 1e-12)


def torchs(body: Any, norm: str) -> tuple[Any, Any]:
    """Encoder and decoder of torch with our parameters."""
    sizes: dict[str, Any] = {"dropout": 0.0, "batch_first": True, "norm_first": norm == "pre", "dtype": torch.float64}
    last = [nn.LayerNorm(16, dtype=torch.float64) if norm == "pre" else None for _ in range(2)]
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 20, **sizes), 2, last[0], False).eval()
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(16, 4, 20, **sizes), 2, last[1]).eval()
    return torch_call(encoder, body.encoder), torch_call(decoder, body.decoder)


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize(("places", "height", "width"), [("learned", 32, 32), ("sines", 32, 48), ("none", 48, 32)])
def test_a_captioner_is_torchs_encoder_and_decoder_on_a_feature_map(
    norm: str, places: str, height: int, width: int
) -> None:
    body = made("caption-transformer", norm_position=norm, image_positions=places)
    batch = batch_of((6, 3, 5), height, width)
    assert batch.decoder is not None
    encoder, decoder = torchs(body, norm)
    rows, columns = height // 16, width // 16
    x = body.eyes.body.feature_maps(batch.inputs)[-1].permute(0, 2, 3, 1).reshape(3, rows * columns, 12)
    x = x @ body.project.weight.T + body.project.bias
    if places == "learned":
        x = x + body.places.table
    for row in range(rows if places == "sines" else 0):
        for column in range(columns):
            for pair in range(4):
                wave = 10000 ** (-2 * pair / 8)
                waves = [math.sin(row * wave), math.cos(row * wave), math.sin(column * wave), math.cos(column * wave)]
                for quarter, value in enumerate(waves):
                    x[:, row * columns + column, 4 * quarter + pair] += value
    words = body.tokens.table.weight[batch.decoder.inputs] * 4.0
    words = words + body.position(torch.arange(6))
    future = nn.Transformer.generate_square_subsequent_mask(6, dtype=torch.float64)
    right = decoder(words, encoder(x), tgt_mask=future, tgt_is_causal=True) @ body.tokens.table.weight.T
    same_gradients(body, body.to_logits(body(batch).sequence), right)


def theirs_of(decoder_width: int = 15, seed: int = 1, **more: Any) -> Any:
    vit = transformers.ViTConfig(
        hidden_size=12, num_hidden_layers=2, num_attention_heads=3, intermediate_size=20, image_size=32, patch_size=8,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    spoken = transformers.GPT2Config(
        n_embd=decoder_width, n_layer=2, n_head=3, vocab_size=23, n_positions=24, add_cross_attention=True, is_decoder=True,
        eos_token_id=2, bos_token_id=1, resid_pdrop=0.0, attn_pdrop=0.0, embd_pdrop=0.0, **more,
    )  # fmt: skip
    encoder, decoder = transformers.ViTModel(vit, add_pooling_layer=False), transformers.GPT2LMHeadModel(spoken)
    model = transformers.VisionEncoderDecoderModel(encoder=encoder, decoder=decoder)
    model.config.decoder_start_token_id, model.config.pad_token_id, model.config.eos_token_id = 1, 0, 2
    model.generation_config.decoder_start_token_id = 1
    return noisy(model, 0.4, seed)


@pytest.mark.parametrize("width", [12, 15])
def test_logits_gradients_and_checkpoints_are_those_of_the_vision_encoder_decoder(width: int, tmp_path: Path) -> None:
    theirs = theirs_of(width)
    model = load_peer(theirs, tmp_path / "peer")
    body, config = model.body, model.config
    assert (hasattr(theirs, "enc_to_dec_proj")) == isinstance(body.bridge, nn.Linear) == (width != 12)
    assert (config.bos_id, config.eos_id, config.pad_id, config.max_length, config.image_size) == (1, 2, 0, 24, 32)
    target, labels = captions()
    x = pictures(3)
    right = theirs(pixel_values=x, decoder_input_ids=target).logits
    ours = body.to_logits(body(Batch(x, decoder=DecoderInputs(target))).sequence)
    near(ours, right, 1e-12)
    (total, _), other = cross_entropy(ours, labels), cross_entropy(right, labels)[0]
    near(total, other, 1e-12)
    assert_gradients(model, theirs, total, other, tmp_path / "gradients")
    # another image shape: positions are interpolated on both sides
    wide = pictures(2, 32, 48)
    right = theirs(pixel_values=wide, decoder_input_ids=target[:2], interpolate_pos_encoding=True).logits
    near(body.to_logits(body(Batch(wide, decoder=DecoderInputs(target[:2]))).sequence), right, 1e-10)
    regard.save(model, tmp_path / "own", layout="huggingface")
    again = transformers.VisionEncoderDecoderModel.from_pretrained(tmp_path / "own", dtype=torch.float64)
    again.encoder.pooler = None  # not used, and created by transformers
    assert_same_weights(again, theirs)
    assert regard.load(tmp_path / "own").config == config


def test_unsupported_config_values_are_refused_by_name(tmp_path: Path) -> None:
    theirs_of().save_pretrained(tmp_path)
    published = json.loads((tmp_path / "config.json").read_text())

    def told(side: str, **changes: Any) -> dict[str, Any]:
        return {**published, side: {**published[side], **changes}}

    reads = vit_gpt2.PUBLISHED.read
    # keys of older versions
    old = {
        "pruned_heads": {}, "typical_p": 1.0, "sep_token_id": None, "suppress_tokens": None,
        "tie_encoder_decoder": False,
    }  # fmt: skip
    reads(told("encoder", **old, add_cross_attention=False, is_decoder=False))
    reads(told("decoder", **old, decoder_start_token_id=None))
    for side, key, value in (
        ("decoder", "model_type", "bert"), ("encoder", "model_type", "swin"), ("decoder", "activation_function", "relu"),
        ("decoder", "add_cross_attention", False), ("decoder", "tie_word_embeddings", False), ("encoder", "sliding", 3),
    ):  # fmt: skip
        with pytest.raises(WeightsError, match=rf"{side}\.{key}={value!r}" if key == "model_type" else key):
            reads(told(side, **{key: value}))
    fields = reads({key: value for key, value in published.items() if not key.endswith("token_id")})
    assert (fields["bos_id"], fields["eos_id"], fields["pad_id"]) == (1, 2, 2)
