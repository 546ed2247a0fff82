"""GPT-1 and GPT-2 against transformers; T-D against torch layers; GPT-3 against GPT-2 with bands and GPT-Neo."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import regard
from parity import load_peer, peer_of, text_inputs, torch_call, weighted_sum
from regard.processors.tokenizer.tokenizer import TextTokenizer
from regard.systems import gpt3
from tiny import near, same_gradients, tiny

systems = pytest.mark.parametrize("name", ["OpenAIGPTLMHeadModel", "GPT2LMHeadModel"])
X = text_inputs()[0]


def folder(peer: Any, path: Path, tensors: Mapping[str, Tensor] | None = None, **config: Any) -> Path:
    """Checkpoint saved by transformers, with other tensors or changed values of config.json."""
    peer.save_pretrained(path)
    if tensors is not None:
        copies = {key: tensor.clone().contiguous() for key, tensor in tensors.items()}
        save_file(copies, path / "model.safetensors", {"format": "pt"})
    values = json.loads((path / "config.json").read_text()) | config
    (path / "config.json").write_text(json.dumps(values))
    return path


@systems
def test_folders_as_they_were_published_are_read(name: str, tmp_path: Path) -> None:
    """Without the prefix, with old mask buffers, with other heads, with a copy of the tied embedding, without config values."""
    peer = peer_of(name, **({"n_inner": None} if name.startswith("GPT2") else {}))
    state = {key.removeprefix("transformer."): tensor for key, tensor in peer.state_dict().items()}
    bare = {key: tensor for key, tensor in state.items() if key != "lm_head.weight"}
    old = {f"h.{n}.attn.bias": torch.ones(1, 1, 16, 16).tril() for n in range(3)}
    more: dict[str, Any] = {"n_ctx": 19}
    if name.startswith("GPT2"):
        old |= {f"h.{n}.attn.masked_bias": torch.tensor(-1e4) for n in range(3)}
        more |= {"n_inner": None, "predict_special_tokens": True, "architectures": ["GPT2Model"]}
        old |= {"score.weight": torch.zeros(2, 12), "multiple_choice_head.summary.weight": torch.zeros(1, 12)}
        more |= {"task_specific_params": {"text-generation": {"max_length": 50}}}
    for number, tensors in enumerate((bare, bare | old, state)):
        model = regard.load(folder(peer, tmp_path / str(number), tensors, **more))
        near(model.logits(X), peer(input_ids=X).logits)


def test_gpt1_without_an_end_takes_unk_for_it(tmp_path: Path) -> None:
    peer = peer_of("OpenAIGPTLMHeadModel")
    config = load_peer(peer, tmp_path / "with").config
    without = regard.load(folder(peer, tmp_path, eos_token_id=None, bos_token_id=None)).config
    assert without == replace(config, eos_id=0) != config


def test_the_two_heads_of_gpt1_generate_as_the_one_does(tmp_path: Path) -> None:
    """The file contains the tied embedding under the name of the head only."""
    peer = peer_of("OpenAIGPTDoubleHeadsModel")
    model = load_peer(peer, tmp_path, task="lm")
    assert "lm_head.weight" in load_file(tmp_path / "model.safetensors")
    near(model.logits(X), peer(input_ids=X).logits)


def test_a_folder_with_a_tokenizer_is_read_there_too(tmp_path: Path) -> None:
    text = TextTokenizer.train_lm_bpe(["to be or not to be", "that is the question"] * 20, 270)
    model = tiny("gpt2", vocab_size=text.size, eos_id=text.backend.token_to_id("<|endoftext|>"))
    model.tokenizer = text
    regard.save(model, tmp_path)
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    auto = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for line in ("to be  or\n\nnot", " ünï🙂 ", "the question"):
        assert theirs.encode(line) == auto.encode(line) == text.encode([line])[0]
        assert theirs.decode(theirs.encode(line)) == line
    assert regard.load(tmp_path).tokenizer.encode(["to be"]) == text.encode(["to be"])


IDS = torch.randint(23, (4, 11), generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("positions", ["halves", "interleaved"])
def test_the_decoder_alone_is_torchs_encoder_under_a_causal_mask(positions: Any, activation: Any) -> None:
    model = tiny("decoder", depth=4, position_embedding=positions, activation=activation)
    layer = nn.TransformerEncoderLayer(12, 3, 20, 0.0, activation, batch_first=True, dtype=torch.float64)
    theirs = torch_call(nn.TransformerEncoder(layer, 4, enable_nested_tensor=False).eval(), model.body.decoder)
    table, at = model.body.tokens.table.weight, torch.arange(11)
    angles = at[:, None] / 10000 ** (torch.arange(6, dtype=torch.float64) / 6)
    waves = torch.stack([angles.sin(), angles.cos()], -1)
    places = waves.flatten(1) if positions == "interleaved" else waves.transpose(1, 2).flatten(1)
    right = theirs(table[IDS] * 12**0.5 + places, mask=~torch.ones(11, 11).tril().bool()) @ table.T
    same_gradients(model.body, model.logits(IDS), right, 2e-12)


def band_of(width: int) -> Tensor:
    """Mask (11, 11), True for each token and the width - 1 tokens before it."""
    rows = [[0 <= q - k < width for k in range(11)] for q in range(11)]
    return torch.tensor(rows)


@pytest.mark.parametrize("band", [0, 1, 3, 11, 40])
def test_gpt3_is_gpt2_with_every_other_layer_banded(band: int, tmp_path: Path) -> None:
    model, twin = tiny("gpt3", depth=4, local_window=band), tiny("gpt2", depth=4)
    twin.body.load_state_dict(model.body.state_dict())
    regard.save(twin, tmp_path)
    theirs = transformers.GPT2LMHeadModel.from_pretrained(tmp_path, dtype=torch.float64, attn_implementation="eager")
    written = torch.zeros(1, 1, 11, 11, dtype=torch.float64).masked_fill(~band_of(band), -torch.inf)

    def narrow(_: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        assert kwargs["attention_mask"].shape[-2:] == (11, 11)
        return args, {**kwargs, "attention_mask": written}

    if band:
        for number in (1, 3):
            theirs.transformer.h[number].attn.register_forward_pre_hook(narrow, with_kwargs=True)
    ours, right = model.logits(IDS), theirs(input_ids=IDS).logits
    near(ours, right)
    own, wanted = weighted_sum([ours]), weighted_sum([right])
    embedding = model.body.tokens.table.weight, theirs.transformer.wte.weight
    near(*(torch.autograd.grad(*pair)[0] for pair in zip((own, wanted), embedding, strict=True)), 2e-12)


def test_the_table_of_the_paper_is_resolved_as_documented() -> None:
    sizes = {name: preset.config for name, preset in gpt3.PRESETS.items() if name != "gpt3-mini"}
    assert len(sizes) == 8 and all(config.ffn_dim == 4 * config.width for config in sizes.values())
    heads = {name: config.width // config.heads for name, config in sizes.items()}
    assert list(heads.values()) == [64, 64, 96, 128, 80, 128, 128, 128]
    assert (sizes["gpt3-xl"].heads, sizes["gpt3-13b"].width) == (16, 5120)
    with torch.device("meta"):
        bands = gpt3.build(sizes["gpt3-small"]).window_sizes
    assert bands == (0, 256) * 6
