"""GPT-1 and GPT-2 against transformers: losses, attention, initialization, published folders, generation."""

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
from torch import Tensor

import regard
from parity import LENGTHS, REAL, SIZES, gpt2_name, load_peer, make_peer, text_inputs
from regard.decode.search import search
from regard.decode.settings import DecodeSettings
from regard.errors import WeightsError
from regard.nn.blocks.losses import cross_entropy
from regard.nn.recording import record_attention
from regard.processors.tokenizer.tokenizer import TextTokenizer
from regard.systems import SYSTEMS
from regard.types import IGNORE, Batch
from tiny import near, tiny

CLASSES = {"gpt1": ("OpenAIGPT", "OpenAIGPTLMHeadModel"), "gpt2": ("GPT2", "GPT2LMHeadModel")}
systems = pytest.mark.parametrize("name", CLASSES)
X = text_inputs()[0]


def peer_of(name: str, kind: str = "", **changes: Any) -> Any:
    family, model = CLASSES[name]
    return make_peer(f"{family}Config", kind or model, **{**SIZES[family], **changes})


@systems
def test_the_loss_equals_transformers(name: str, tmp_path: Path) -> None:
    peer = peer_of(name)
    model = load_peer(peer, tmp_path)
    labels = X.masked_fill(~REAL, IGNORE)
    shifted = torch.cat([labels[:, 1:], torch.full((3, 1), IGNORE)], 1)
    total, count = model.body.cross_entropy(model.states(X).sequence, shifted)
    near((total / count).float(), peer(input_ids=X, labels=labels).loss, 1e-6)  # transformers sums in 32 bits
    near(total, cross_entropy(model.logits(X), shifted)[0])


@systems
def test_attention_of_each_head_equals_transformers(name: str, tmp_path: Path) -> None:
    peer = peer_of(name)
    model = load_peer(peer, tmp_path)
    peer.set_attn_implementation("eager")
    with record_attention(model) as seen:
        model.logits(X)
    for number, weights in enumerate(peer(input_ids=X, output_attentions=True).attentions):
        near(seen.weights(f"decoder.blocks.{number}.attend"), weights)


@systems
def test_weights_are_initialized_as_in_transformers(name: str) -> None:
    sizes = {"width": 96, "depth": 8, "heads": 4, "ffn_dim": 384, "vocab_size": 300, "max_length": 64, "eos_id": 0}
    torch.manual_seed(3)
    system = SYSTEMS[name]
    body = system.build(system.config(**sizes))
    theirs = getattr(transformers, CLASSES[name][1])
    peer = theirs(theirs.config_class(n_embd=96, n_layer=8, n_head=4, vocab_size=300, n_positions=64))
    for key, right in system.names.read(dict(peer.state_dict()), body.state_dict())[0].items():
        parameter = body.state_dict()[key]
        if key == "position.table.weight" and name == "gpt2":  # transformers 0.02, the authors 0.01
            assert float(parameter.std()) == pytest.approx(0.01, rel=0.05)
        elif parameter.ndim == 2:
            assert float(parameter.std()) == pytest.approx(float(right.std()), rel=0.05)
        else:
            assert torch.equal(parameter, right), key


# -- checkpoints


def folder(peer: Any, path: Path, tensors: Mapping[str, Tensor] | None = None, **config: Any) -> Path:
    """Checkpoint saved by transformers, with other tensors or changed values of config.json."""
    peer.save_pretrained(path)
    if tensors is not None:
        save_file(
            {key: t.clone().contiguous() for key, t in tensors.items()}, path / "model.safetensors", {"format": "pt"}
        )
    values = json.loads((path / "config.json").read_text()) | config
    (path / "config.json").write_text(json.dumps(values))
    return path


@systems
def test_folders_as_they_were_published_are_read(name: str, tmp_path: Path) -> None:
    """Without the prefix, with old mask buffers, with a copy of the tied embedding, and with missing config values."""
    peer = peer_of(name, **({"n_inner": None} if name == "gpt2" else {}))
    state = {key.removeprefix("transformer."): tensor for key, tensor in peer.state_dict().items()}
    bare = {key: tensor for key, tensor in state.items() if key != "lm_head.weight"}
    old = {f"h.{n}.attn.bias": torch.ones(1, 1, 16, 16).tril() for n in range(3)}
    more: dict[str, Any] = {"n_ctx": 19}
    if name == "gpt2":
        old |= {f"h.{n}.attn.masked_bias": torch.tensor(-1e4) for n in range(3)}
        more |= {"n_inner": None, "predict_special_tokens": True, "architectures": ["GPT2Model"]}
        more |= {"task_specific_params": {"text-generation": {"max_length": 50}}}
    for number, tensors in enumerate((bare, bare | old, state)):
        model = regard.load(folder(peer, tmp_path / str(number), tensors, **more))
        near(model.logits(X), peer(input_ids=X).logits)


@systems
def test_a_table_that_is_not_tied_is_refused(name: str, tmp_path: Path) -> None:
    peer = peer_of(name)
    state = {key: tensor.clone() for key, tensor in peer.state_dict().items()}
    state["lm_head.weight"][3, 3] += 1
    with pytest.raises(WeightsError, match="tied"):
        regard.load(folder(peer, tmp_path, state))


def test_square_matrices_are_transposed_as_named_independently(tmp_path: Path) -> None:
    peer = peer_of("gpt2", n_inner=12)
    model, state = load_peer(peer, tmp_path), peer.state_dict()
    for name, tensor in model.body.state_dict().items():
        right = state[gpt2_name(name)]
        assert torch.equal(tensor, right.T if ".blocks." in name and right.ndim == 2 else right), name


def test_gpt1_without_an_end_takes_unk_for_it(tmp_path: Path) -> None:
    peer = peer_of("gpt1")
    config = load_peer(peer, tmp_path / "with").config
    without = regard.load(folder(peer, tmp_path, eos_token_id=None, bos_token_id=None)).config
    assert without == replace(config, eos_id=0) != config


def test_gpt1_of_another_inner_width_needs_the_native_format(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="ffn_dim=20"):
        regard.save(tiny("gpt1", "narrow"), tmp_path)


def test_the_two_heads_of_gpt1_generate_as_the_one_does(tmp_path: Path) -> None:
    """The file contains the tied embedding under the name of the head only."""
    peer = peer_of("gpt1", "OpenAIGPTDoubleHeadsModel")
    model = load_peer(peer, tmp_path, task="lm")
    assert "lm_head.weight" in load_file(tmp_path / "model.safetensors")
    near(model.logits(X), peer(input_ids=X).logits)


def test_heads_for_other_tasks_are_left_out(tmp_path: Path) -> None:
    peer = peer_of("gpt2")
    heads = {"score.weight": torch.zeros(2, 12), "multiple_choice_head.summary.weight": torch.zeros(1, 12)}
    model = regard.load(folder(peer, tmp_path, {**peer.transformer.state_dict(), **heads}))
    near(model.logits(X), peer(input_ids=X).logits)


def test_a_folder_with_a_tokenizer_is_read_there_too(tmp_path: Path) -> None:
    text = TextTokenizer.train_lm_bpe(["to be or not to be", "that is the question"] * 20, 270)
    model = tiny("gpt2", vocab_size=text.size, eos_id=text.token_to_id("<|endoftext|>"))
    model.tokenizer = text
    regard.save(model, tmp_path)
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    auto = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for line in ("to be  or\n\nnot", " ünï🙂 ", "the question"):
        assert theirs.encode(line) == auto.encode(line) == text.encode([line])[0]
        assert theirs.decode(theirs.encode(line)) == line
    assert regard.load(tmp_path).require_tokenizer().encode(["to be"]) == text.encode(["to be"])


# -- generation


@systems
@pytest.mark.parametrize("beams", [1, 3])
def test_outputs_equal_generate(name: str, beams: int, tmp_path: Path) -> None:
    """transformers with single prompts, ours with one batch."""
    peer = peer_of(name, n_positions=32)
    with torch.no_grad():
        for key, parameter in peer.named_parameters():  # else the bias of a norm makes every token the same
            norm = ".ln_" in key
            parameter.mul_(0.1 if norm and key.endswith("bias") else 1.0).add_(float(norm and key.endswith("weight")))
    model = load_peer(peer, tmp_path)
    settings = DecodeSettings(
        num_beams=beams, num_return_sequences=beams, length_penalty=1.0, length_penalty_type="power"
    )
    found = search(model.body, Batch(X, LENGTHS), model.config.eos_id, torch.full((3,), 8), settings)
    for row, length in enumerate(LENGTHS.tolist()):
        right = peer.generate(
            X[row : row + 1, :length], attention_mask=torch.ones(1, length), max_new_tokens=8, do_sample=False,
            num_beams=beams, num_return_sequences=beams, pad_token_id=0, length_penalty=1.0, early_stopping=False,
        )[:, length:].tolist()  # fmt: skip
        for answer, other in zip(found[row], right, strict=True):
            tokens = [*answer.tokens, *[model.config.eos_id] * answer.has_eos]
            assert tokens == other[: len(tokens)]
    assert len({answer.tokens for options in found for answer in options}) >= 2 * beams
