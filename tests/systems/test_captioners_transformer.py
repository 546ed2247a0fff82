"""Transformer captioners against torch.nn stacks and against `VisionEncoderDecoderModel` with its checkpoints."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn

import regard
from parity import assert_gradients, assert_same_weights, load_peer, torch_stack_weights
from regard.decode.search import search
from regard.decode.settings import DecodeSettings
from regard.errors import WeightsError
from regard.nn.kernels.losses import cross_entropy
from regard.systems.captioners import vit_gpt2
from regard.types import Batch, DecoderInputs
from tiny import gradients, near, noise, noisy
from tiny_caption_models import batch_of, captions, made, pictures

# -- convolutions and a Transformer


def torchs(body: Any, norm: str) -> tuple[nn.Module, nn.Module]:
    """Encoder and decoder of torch with our weights."""
    sizes: dict[str, Any] = {"dropout": 0.0, "batch_first": True, "norm_first": norm == "pre", "dtype": torch.float64}
    last = [nn.LayerNorm(16, dtype=torch.float64) if norm == "pre" else None for _ in range(2)]
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 20, **sizes), 2, last[0], False).eval()
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(16, 4, 20, **sizes), 2, last[1]).eval()
    for theirs, ours in ((encoder, body.encoder), (decoder, body.decoder)):
        theirs.load_state_dict(torch_stack_weights(ours.state_dict()))
    return encoder, decoder


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize(("places", "height", "width"), [("learned", 32, 32), ("sines", 32, 48), ("none", 48, 32)])
def test_a_captioner_is_torchs_encoder_and_decoder_on_a_feature_map(
    norm: str, places: str, height: int, width: int
) -> None:
    body, batch = (
        made("caption-transformer", norm_position=norm, image_positions=places),
        batch_of((6, 3, 5), height, width),
    )
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
    ours = body.to_logits(body(batch).sequence)
    near(ours, right, 1e-11)
    weigh = noise(*ours.shape, seed=6)
    found, shared = gradients(body, (ours * weigh).sum()), gradients(body, (right * weigh).sum())
    for name, gradient in shared.items():  # layers before both stacks
        near(found[name], gradient, 1e-10)
    assert {"eyes.body.stem.conv.weight", "project.weight", "tokens.table.weight"} <= set(shared)
    for side, theirs in (("encoder.", encoder), ("decoder.", decoder)):
        own = {name.removeprefix(side): gradient for name, gradient in found.items() if name.startswith(side)}
        wanted = gradients(theirs, (right * weigh).sum())
        for name, gradient in torch_stack_weights(own).items():
            near(gradient, wanted[name], 1e-10)


# -- ViT and GPT-2


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


def test_it_writes_the_captions_that_they_write(tmp_path: Path) -> None:
    theirs = theirs_of(seed=6, n_inner=20)
    body, x = load_peer(theirs, tmp_path).body, pictures(3)
    start = Batch(x, decoder=DecoderInputs(torch.ones(3, 1, dtype=torch.long)))
    for beams in (1, 3):
        right = theirs.generate(pixel_values=x, num_beams=beams, max_new_tokens=8, do_sample=False, length_penalty=0.0)
        settings = DecodeSettings(num_beams=beams, length_penalty=0.0)
        for row, options in enumerate(search(body, start, 2, torch.tensor([8] * 3), settings)):
            wanted = right[row, 1:].tolist()
            assert list(options[0].tokens) == (wanted[: wanted.index(2)] if 2 in wanted else wanted)
