"""Transformer captioners against torch.nn stacks and against `VisionEncoderDecoderModel` with its checkpoints."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from regard.config import as_dict, from_dict
from regard.decode.search import search
from regard.decode.settings import DecodeSettings
from regard.errors import WeightsError
from regard.nn.blocks.losses import cross_entropy
from regard.systems import find_by_model_type
from regard.systems.captioners import vit_gpt2
from regard.types import Batch
from tiny import gradients, near, noise
from tiny_caption_models import batch_of, captions, config_of, made, noisy, pictures

# -- convolutions and a Transformer


def block_names(theirs: str, cross: bool) -> dict[str, str]:
    """Names of a block's parameters in torch → ours."""
    found = {
        "self_attn.in_proj_": "attend.inner.qkv.",
        "self_attn.out_proj.": "attend.inner.out.",
        "norm1.": "attend.norm.",
    }
    if cross:
        found |= {"multihead_attn.out_proj.": "cross.inner.out.", "norm2.": "cross.norm."}
    found |= {"linear1.": "feed.inner.up.", "linear2.": "feed.inner.down.", f"norm{2 + cross}.": "feed.norm."}
    return {f"{theirs}{name}": ours for name, ours in found.items()}


def torchs(body: Any, norm: str) -> tuple[nn.Module, nn.Module]:
    """Encoder and decoder of torch with our weights."""
    sizes: dict[str, Any] = {"dropout": 0.0, "batch_first": True, "norm_first": norm == "pre", "dtype": torch.float64}
    made_of = []
    for cross, stack in ((False, body.encoder), (True, body.decoder)):
        layer = (nn.TransformerDecoderLayer if cross else nn.TransformerEncoderLayer)(16, 4, 20, **sizes)
        last = nn.LayerNorm(16, dtype=torch.float64) if norm == "pre" else None
        whole: Any = nn.TransformerDecoder(layer, 2, last) if cross else nn.TransformerEncoder(layer, 2, last, False)
        weights = {}
        for number, block in enumerate(stack.blocks):
            own = block.state_dict()
            for theirs, ours in block_names(f"layers.{number}.", cross).items():
                weights |= {f"{theirs}{part}": own[f"{ours}{part}"] for part in ("weight", "bias")}
            if cross:
                for part in ("weight", "bias"):
                    joined = torch.cat([own[f"cross.inner.q.{part}"], own[f"cross.inner.kv.{part}"]])
                    weights[f"layers.{number}.multihead_attn.in_proj_{part}"] = joined
        if last is not None:
            weights |= {f"norm.{part}": tensor for part, tensor in stack.norm.state_dict().items()}
        whole.load_state_dict(weights)
        made_of.append(whole.eval())
    return made_of[0], made_of[1]


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize(("places", "height", "width"), [("learned", 32, 32), ("sines", 32, 48), ("none", 48, 32)])
def test_a_captioner_is_torchs_encoder_and_decoder_on_a_feature_map(
    norm: str, places: str, height: int, width: int
) -> None:
    body, batch = (
        made("caption-transformer", norm_position=norm, image_positions=places),
        batch_of((6, 3, 5), height, width),
    )
    assert batch.decoder_inputs is not None
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
    words = body.tokens.table.weight[batch.decoder_inputs] * 4.0
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
    theirs = dict(decoder.named_parameters())
    wanted = torch.autograd.grad((right * weigh).sum(), list(theirs.values()), retain_graph=True)
    for (name, _), gradient in zip(theirs.items(), wanted, strict=True):
        for there, here in block_names("layers.1.", True).items():
            if name.startswith(there):
                near(found[f"decoder.blocks.1.{here}{name.removeprefix(there)}"], gradient, 1e-10)


# -- ViT and GPT-2

transformers = pytest.importorskip("transformers")
transformers.utils.logging.disable_progress_bar()


def theirs_of(decoder_width: int = 15, seed: int = 1, **more: Any) -> Any:
    vit = transformers.ViTConfig(
        hidden_size=12, num_hidden_layers=2, num_attention_heads=3, intermediate_size=20, image_size=32, patch_size=8,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    spoken = transformers.GPT2Config(
        n_embd=decoder_width, n_layer=2, n_head=3, vocab_size=23, n_positions=24, add_cross_attention=True, is_decoder=True,
        eos_token_id=2, bos_token_id=1, resid_pdrop=0.0, attn_pdrop=0.0, embd_pdrop=0.0, **more,
    )  # fmt: skip
    model = transformers.VisionEncoderDecoderModel(
        encoder=transformers.ViTModel(vit), decoder=transformers.GPT2LMHeadModel(spoken)
    )
    model.config.decoder_start_token_id, model.config.pad_token_id, model.config.eos_token_id = 1, 0, 2
    model.generation_config.decoder_start_token_id = 1
    return noisy(model, seed)


def read(folder: Path) -> Any:
    """Load a Hugging Face checkpoint without a task."""
    published = json.loads((folder / "config.json").read_text())
    system = find_by_model_type(published["model_type"])
    config = from_dict(system.config, system.published.read(published), "model.")
    config, tensors = system.published.from_published(config, load_file(folder / "model.safetensors"))
    body = system.build(config).double().eval()
    found, foreign = system.names.read(tensors, body.state_dict())
    assert system is vit_gpt2.SYSTEM and not foreign
    body.load_state_dict(found)
    return body, config


@pytest.mark.parametrize("width", [12, 15])
def test_logits_and_gradients_are_those_of_the_vision_encoder_decoder(width: int, tmp_path: Path) -> None:
    theirs = theirs_of(width)
    theirs.save_pretrained(tmp_path)
    body, config = read(tmp_path)
    assert (hasattr(theirs, "enc_to_dec_proj")) == isinstance(body.bridge, nn.Linear) == (width != 12)
    assert (config.bos_id, config.eos_id, config.pad_id, config.max_length, config.image_size) == (1, 2, 0, 24, 32)
    target, labels = captions()
    x = pictures(3)
    right = theirs(pixel_values=x, decoder_input_ids=target).logits
    ours = body.to_logits(body(Batch(x, decoder_inputs=target)).sequence)
    near(ours, right, 1e-12)
    (total, _), other = cross_entropy(ours, labels), cross_entropy(right, labels)[0]
    near(total, other, 1e-12)
    other.backward()
    found = gradients(body, total)
    for name, part in places_of(theirs).items():
        near(found[name], grad_of(part, name), 1e-10)
    # another image shape: positions are interpolated on both sides
    wide = pictures(2, 32, 48)
    right = theirs(pixel_values=wide, decoder_input_ids=target[:2], interpolate_pos_encoding=True).logits
    near(body.to_logits(body(Batch(wide, decoder_inputs=target[:2])).sequence), right, 1e-10)


def places_of(theirs: Any) -> dict[str, Any]:
    """Some parameters of transformers under our names, independent of the tested table."""
    found: dict[str, Any] = {
        "eyes.body.patches.weight": theirs.encoder.embeddings.patch_embeddings.projection.weight,
        "eyes.body.first": theirs.encoder.embeddings.cls_token,
        "eyes.body.position.table": theirs.encoder.embeddings.position_embeddings,
        "eyes.body.encoder.norm.weight": theirs.encoder.layernorm.weight,
        "tokens.table.weight": theirs.decoder.transformer.wte.weight,
        "position.table.weight": theirs.decoder.transformer.wpe.weight,
        "decoder.norm.bias": theirs.decoder.transformer.ln_f.bias,
    }
    for number, block in enumerate(theirs.decoder.transformer.h):
        parts = {
            "attend.norm": block.ln_1, "attend.inner.qkv": block.attn.c_attn, "attend.inner.out": block.attn.c_proj,
            "cross.norm": block.ln_cross_attn, "cross.inner.q": block.crossattention.q_attn,
            "cross.inner.kv": block.crossattention.c_attn, "cross.inner.out": block.crossattention.c_proj,
            "feed.norm": block.ln_2, "feed.inner.up": block.mlp.c_fc, "feed.inner.down": block.mlp.c_proj,
        }  # fmt: skip
        for ours, module in parts.items():
            found |= {f"decoder.blocks.{number}.{ours}.{kind}": getattr(module, kind) for kind in ("weight", "bias")}
    if hasattr(theirs, "enc_to_dec_proj"):
        found |= {f"bridge.{kind}": getattr(theirs.enc_to_dec_proj, kind) for kind in ("weight", "bias")}
    return found


def grad_of(part: nn.Parameter, ours: str) -> Tensor:
    """Gradient with our layout; matrices of GPT-2 blocks are (in, out)."""
    assert part.grad is not None
    return part.grad.T if ours.startswith("decoder.blocks.") and part.ndim == 2 else part.grad


@pytest.mark.parametrize("width", [12, 15])
def test_a_saved_checkpoint_is_read_by_transformers(width: int, tmp_path: Path) -> None:
    body = made("caption-vit", width=width)
    config = config_of("caption-vit", width=width)
    tensors = vit_gpt2.NAMES.write(body.state_dict())
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    written = vit_gpt2.PUBLISHED.write(as_dict(config), "caption")
    (tmp_path / "config.json").write_text(json.dumps(written))
    theirs = transformers.VisionEncoderDecoderModel.from_pretrained(tmp_path, dtype=torch.float64).eval()
    target, _ = captions()
    right = theirs(pixel_values=pictures(3), decoder_input_ids=target).logits
    near(body.to_logits(body(Batch(pictures(3), decoder_inputs=target)).sequence), right, 1e-11)
    back, again = read(tmp_path)
    assert all(torch.equal(part, back.state_dict()[name]) for name, part in body.state_dict().items())
    assert (again.bos_id, again.eos_id, again.pad_id, again.width, again.ffn_dim) == (1, 2, 0, width, 20)


def test_unsupported_config_values_are_refused_by_name(tmp_path: Path) -> None:
    theirs_of().save_pretrained(tmp_path)
    published = json.loads((tmp_path / "config.json").read_text())

    def told(side: str, **changes: Any) -> dict[str, Any]:
        return {**published, side: {**published[side], **changes}}

    reads = vit_gpt2.PUBLISHED.read
    # keys of older versions
    old = {
        "pruned_heads": {},
        "typical_p": 1.0,
        "sep_token_id": None,
        "tie_encoder_decoder": False,
        "suppress_tokens": None,
    }
    reads(told("encoder", **old, add_cross_attention=False, is_decoder=False))
    reads(told("decoder", **old, decoder_start_token_id=None))
    with pytest.raises(WeightsError, match=r"decoder\.model_type='bert'"):
        reads(told("decoder", model_type="bert"))
    with pytest.raises(WeightsError, match=r"encoder\.model_type='swin'"):
        reads(told("encoder", model_type="swin"))
    with pytest.raises(WeightsError, match="activation_function"):
        reads(told("decoder", activation_function="relu"))
    with pytest.raises(WeightsError, match="add_cross_attention"):
        reads(told("decoder", add_cross_attention=False))
    with pytest.raises(WeightsError, match="tie_word_embeddings"):
        reads(told("decoder", tie_word_embeddings=False))
    with pytest.raises(WeightsError, match="sliding"):
        reads(told("encoder", sliding=3))
    fields = reads({key: value for key, value in published.items() if not key.endswith("token_id")})
    assert (fields["bos_id"], fields["eos_id"], fields["pad_id"]) == (1, 2, 2)


def test_the_published_count_includes_the_pooler_of_vit() -> None:
    with torch.device("meta"):
        theirs = transformers.VisionEncoderDecoderModel(
            encoder=transformers.ViTModel(transformers.ViTConfig()),
            decoder=transformers.GPT2LMHeadModel(transformers.GPT2Config(add_cross_attention=True, is_decoder=True)),
        )
    pooler = sum(part.numel() for part in theirs.encoder.pooler.parameters())
    count = sum(part.numel() for part in theirs.parameters())
    assert (count, pooler) == (239_195_904, 590_592)
    assert vit_gpt2.PRESETS["caption-vit-base"].parameters == count - pooler


def test_it_writes_the_captions_that_they_write(tmp_path: Path) -> None:
    theirs, body = theirs_of(seed=6, n_inner=20), made("caption-vit")
    theirs.save_pretrained(tmp_path)
    body.load_state_dict(vit_gpt2.NAMES.read(load_file(tmp_path / "model.safetensors"), body.state_dict())[0])
    x = pictures(3)
    for beam in (1, 3):
        right = theirs.generate(pixel_values=x, num_beams=beam, max_new_tokens=8, do_sample=False, length_penalty=0.0)
        found = search(
            body,
            Batch(x, decoder_inputs=torch.ones(3, 1, dtype=torch.long)),
            2,
            torch.tensor([8] * 3),
            DecodeSettings(num_beams=beam, length_penalty=0.0),
        )
        for row, options in enumerate(found):
            wanted = right[row, 1:].tolist()
            assert list(options[0].tokens) == (wanted[: wanted.index(2)] if 2 in wanted else wanted)
