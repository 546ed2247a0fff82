"""GPT models against transformers: logits, gradients, losses, checkpoints in both directions, generation."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import regard
from regard.decode.search import search
from regard.decode.settings import DecodeSettings
from regard.errors import WeightsError
from regard.model import Model, ModelSpec, assemble
from regard.nn.blocks.losses import cross_entropy
from regard.processors.tokenizer.tokenizer import TextTokenizer
from regard.systems import SYSTEMS, gpt1, gpt2
from regard.tasks import TEXT_TASKS
from regard.types import IGNORE, Batch
from tiny import gradients, near, noise, noisy

transformers = pytest.importorskip("transformers")
transformers.utils.logging.disable_progress_bar()

SIZES: dict[str, Any] = {
    "width": 12,
    "depth": 3,
    "heads": 3,
    "ffn_dim": 20,
    "vocab_size": 23,
    "max_length": 16,
    "eos_id": 22,
}
CONFIGS: dict[str, Any] = {"gpt1": gpt1.Config(**{**SIZES, "ffn_dim": 48}), "gpt2": gpt2.Config(**SIZES)}
systems = pytest.mark.parametrize("name", CONFIGS)
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])

BLOCK = {
    "attend.norm": "ln_1", "attend.inner.qkv": "attn.c_attn", "attend.inner.out": "attn.c_proj", "feed.norm": "ln_2",
    "feed.inner.up": "mlp.c_fc", "feed.inner.down": "mlp.c_proj",
}  # fmt: skip
REST = {
    "gpt1": {"tokens.table": "tokens_embed", "position.table": "positions_embed"},
    "gpt2": {"tokens.table": "wte", "position.table": "wpe", "decoder.norm": "ln_f"},
}


def place(name: str, system: str) -> str:
    """Name of a parameter in transformers, independent of the tested table."""
    part, kind = name.rsplit(".", 1)
    if part in REST[system]:
        return f"transformer.{REST[system][part]}.{kind}"
    _, _, number, rest = part.split(".", 3)
    return f"transformer.h.{number}.{BLOCK[rest]}.{kind}"


def in_our_places(theirs: Mapping[str, Tensor], names: Any, system: str) -> dict[str, Tensor]:
    """State dict of transformers with our names; the matrices of their blocks are (in, out)."""
    found = {name: theirs[place(name, system)] for name in names}
    return {name: t.T if t.ndim == 2 and ".blocks." in name else t for name, t in found.items()}


def model_of(name: str, **changes: Any) -> Model:
    system = SYSTEMS[name]
    identity = ModelSpec(system, replace(CONFIGS[name], **changes), TEXT_TASKS[system.tasks[0]])
    model: Model = noisy(assemble(identity))
    return model


def their_config(config: Any, name: str) -> Any:
    kind = transformers.OpenAIGPTConfig if name == "gpt1" else transformers.GPT2Config
    inner = {} if name == "gpt1" else {"n_inner": config.ffn_dim}
    return kind(
        vocab_size=config.vocab_size, n_positions=config.max_length, n_embd=config.width, n_layer=config.depth,
        n_head=config.heads, layer_norm_epsilon=config.norm_eps, bos_token_id=config.eos_id, eos_token_id=config.eos_id,
        resid_pdrop=config.dropout, embd_pdrop=config.embedding_dropout, attn_pdrop=config.attention_dropout, **inner,
    )  # fmt: skip


LM = {"gpt1": "OpenAIGPTLMHeadModel", "gpt2": "GPT2LMHeadModel"}


def their(model: Model) -> Any:
    """Model of transformers with our weights."""
    name = model.spec.system.name
    theirs = getattr(transformers, LM[name])(their_config(model.config, name)).to(next(model.parameters()).dtype).eval()
    ours, state = model.body.state_dict(), theirs.state_dict()
    with torch.no_grad():
        for key, tensor in in_our_places(state, ours, name).items():
            tensor.copy_(ours[key])
    assert {*(place(key, name) for key in ours), "lm_head.weight"} == set(state)
    return theirs


def rows(vocabulary: int = 23) -> tuple[Tensor, Tensor]:
    """Right-padded rows, and their lengths."""
    x = torch.randint(vocabulary, (4, 9), generator=torch.Generator().manual_seed(2))
    return x, torch.tensor([9, 1, 4, 7])


# -- outputs and gradients


@systems
@pytest.mark.parametrize("changes", [{}, {"norm_eps": 1e-2}, {"ffn_dim": 48, "heads": 2}, {"max_length": 9}])
def test_logits_and_gradients_equal_transformers(name: str, changes: dict[str, Any]) -> None:
    model = model_of(name, **changes)
    theirs, (x, lengths) = their(model), rows()
    real = torch.arange(9) < lengths[:, None]
    ours = model.logits(x, mask=lengths)
    right = theirs(input_ids=x, attention_mask=real.long()).logits
    near(ours[real], right[real])
    pull = noise(*ours.shape, seed=8) * real[..., None]
    mine, other = gradients(model.body, (ours * pull).sum()), gradients(theirs, (right * pull).sum())
    assert set(mine) == set(model.body.state_dict()) and all(bool(g.any()) for g in mine.values())
    for key, gradient in in_our_places(other, mine, name).items():
        near(mine[key], gradient)


@systems
def test_the_loss_equals_transformers(name: str) -> None:
    model = model_of(name)
    x, lengths = rows()
    labels = x.masked_fill(torch.arange(9) >= lengths[:, None], IGNORE)
    right = their(model)(input_ids=x, labels=labels).loss
    shifted = torch.cat([labels[:, 1:], torch.full((4, 1), IGNORE)], 1)
    total, count = model.body.cross_entropy(model.states(x).sequence, shifted)
    near((total / count).float(), right, 1e-6)  # transformers sums in 32 bits
    near(total, cross_entropy(model.logits(x), shifted)[0])


@systems
def test_single_precision_equals_transformers_up_to_rounding(name: str) -> None:
    model, (x, _) = model_of(name).float(), rows()
    near(model.logits(x), their(model)(input_ids=x).logits, 1e-5)


@systems
def test_attention_of_each_head_equals_transformers(name: str) -> None:
    from regard.nn.recording import record_attention

    model, (x, _) = model_of(name), rows()
    theirs = their(model)
    theirs.set_attn_implementation("eager")
    right = theirs(input_ids=x, output_attentions=True).attentions
    with record_attention(model) as seen:
        model.logits(x)
    for number, weights in enumerate(right):
        near(seen.weights(f"decoder.blocks.{number}.attend"), weights)


# -- weight initialization


@systems
def test_weights_are_initialized_as_in_transformers(name: str) -> None:
    sizes = {"width": 96, "depth": 8, "heads": 4, "ffn_dim": 384, "vocab_size": 300, "max_length": 64, "eos_id": 0}
    torch.manual_seed(3)
    body = SYSTEMS[name].build(replace(CONFIGS[name], **sizes))
    theirs = getattr(transformers, LM[name])(their_config(replace(CONFIGS[name], **sizes), name))
    right = in_our_places(theirs.state_dict(), body.state_dict(), name)
    for key, parameter in body.state_dict().items():
        if key == "position.table.weight" and name == "gpt2":  # transformers 0.02, the authors 0.01
            assert float(parameter.std()) == pytest.approx(0.01, rel=0.05)
        elif parameter.ndim == 2:
            assert float(parameter.std()) == pytest.approx(float(right[key].std()), rel=0.05)
        else:
            assert torch.equal(parameter, right[key]), key


# -- checkpoints


TOLERANCE = {torch.bfloat16: 0.1, torch.float32: 1e-5, torch.float64: 1e-12}


def same_weights(model: Model, theirs: Mapping[str, Tensor]) -> None:
    state = model.body.state_dict()
    for key, tensor in in_our_places(theirs, state, model.spec.system.name).items():
        assert tensor.dtype == state[key].dtype and torch.equal(state[key], tensor), key
    assert all(tensor.is_contiguous() for tensor in state.values())


@systems
@dtypes
@pytest.mark.parametrize("sharded", [False, True])
def test_load_reads_save_pretrained(name: str, dtype: torch.dtype, sharded: bool, tmp_path: Path) -> None:
    wanted = model_of(name).to(dtype)
    theirs = their(wanted)
    theirs.save_pretrained(tmp_path, max_shard_size="3KB" if sharded else "1GB")
    assert sharded == (len(list(tmp_path.glob("*.safetensors"))) > 1)
    model = regard.load(tmp_path, dtype="stored")
    assert model.config == wanted.config and model.task.name == "lm" and not model.training
    same_weights(model, theirs.state_dict())
    x, _ = rows()
    near(model.logits(x), theirs(input_ids=x).logits, TOLERANCE[dtype])


@systems
@dtypes
def test_from_pretrained_reads_save(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    model = model_of(name, dropout=0.3, norm_eps=1e-4).to(dtype)
    regard.save(model, tmp_path, layout="huggingface")
    theirs, told = getattr(transformers, LM[name]).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(told.values()), told
    assert theirs.dtype == dtype and theirs.config.resid_pdrop == 0.3 and theirs.config.layer_norm_epsilon == 1e-4
    same_weights(model, theirs.state_dict())
    x, _ = rows()
    near(model.logits(x), theirs.eval()(input_ids=x).logits, TOLERANCE[dtype])
    auto = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(auto) is type(theirs)


@systems
def test_there_and_back_is_the_same_folder(name: str, tmp_path: Path) -> None:
    model = model_of(name)
    their(model).save_pretrained(tmp_path / "theirs")
    regard.save(regard.load(tmp_path / "theirs"), tmp_path / "ours")
    theirs, ours = (load_file(tmp_path / who / "model.safetensors") for who in ("theirs", "ours"))
    assert sorted(ours) == sorted(theirs) and all(torch.equal(ours[key], theirs[key]) for key in theirs)
    said, meant = (json.loads((tmp_path / who / "config.json").read_text()) for who in ("ours", "theirs"))
    assert {key: said[key] for key in said if key in meant} == {key: meant[key] for key in meant if key in said}
    assert {"vocab_size", "n_embd", "dtype", "architectures"} <= set(said)


def folder(model: Model, path: Path, tensors: Mapping[str, Tensor] | None = None, **config: Any) -> Path:
    """Checkpoint of this model saved by transformers, with changed tensors or config values."""
    theirs = their(model)
    theirs.save_pretrained(path)
    if tensors is not None:
        save_file(
            {key: tensor.contiguous() for key, tensor in tensors.items()}, path / "model.safetensors", {"format": "pt"}
        )
    said = json.loads((path / "config.json").read_text()) | config
    (path / "config.json").write_text(json.dumps({key: value for key, value in said.items() if value != "absent"}))
    return path


@systems
def test_folders_as_they_were_published_are_read(name: str, tmp_path: Path) -> None:
    """Without the prefix, with old mask buffers, with a copy of the tied embedding, and with missing config values."""
    model = model_of(name, ffn_dim=48)
    state = {key.removeprefix("transformer."): tensor for key, tensor in their(model).state_dict().items()}
    bare = {key: tensor.clone() for key, tensor in state.items() if key != "lm_head.weight"}
    old = {f"h.{n}.attn.bias": torch.ones(1, 1, 16, 16).tril() for n in range(3)}
    if name == "gpt2":
        old |= {f"h.{n}.attn.masked_bias": torch.tensor(-1e4) for n in range(3)}
    copied = {**bare, "lm_head.weight": bare[REST[name]["tokens.table"] + ".weight"].clone()}
    for number, tensors in enumerate((bare, bare | old, copied)):
        path = folder(
            model, tmp_path / str(number), tensors, n_inner=None, n_ctx=16, predict_special_tokens=True,
            architectures=["GPT2Model"], task_specific_params={"text-generation": {"max_length": 50}},
        ) if name == "gpt2" else folder(model, tmp_path / str(number), tensors, n_ctx=16)  # fmt: skip
        same_weights(regard.load(path), {"transformer." + key: tensor for key, tensor in state.items()})


@systems
def test_a_table_that_is_not_tied_is_refused(name: str, tmp_path: Path) -> None:
    model = model_of(name)
    state = their(model).state_dict()
    state = {key: tensor.clone() for key, tensor in state.items()}
    state["lm_head.weight"][3, 3] += 1
    with pytest.raises(WeightsError, match="tied"):
        regard.load(folder(model, tmp_path, state))


@systems
@pytest.mark.parametrize("change", ["missing", "strange", "shape"])
def test_tensors_that_do_not_fit_are_named(name: str, change: str, tmp_path: Path) -> None:
    model = model_of(name)
    state = {key: tensor.clone() for key, tensor in their(model).state_dict().items() if key != "lm_head.weight"}
    key = "transformer.h.1.mlp.c_fc.weight"
    if change == "missing":
        state.pop(key)
    elif change == "strange":
        state["transformer.h.1.mlp.c_gate.weight"] = state[key].clone()
    else:
        state[key] = state[key].T.clone()  # stored as (out, in): not detectable for a square matrix
    with pytest.raises(WeightsError, match=r"blocks\.1\.feed\.inner\.up\.weight|c_gate"):
        regard.load(folder(model, tmp_path, state))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("scale_attn_by_inverse_layer_idx", True), ("reorder_and_upcast_attn", True), ("add_cross_attention", True),
        ("scale_attn_weights", False), ("activation_function", "relu"), ("tie_word_embeddings", False),
        ("rotary_dim", 4),
    ],
)  # fmt: skip
def test_words_that_would_change_the_computation_are_refused(key: str, value: Any, tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=key):
        regard.load(folder(model_of("gpt2"), tmp_path, **{key: value}))


def test_gpt1_without_an_end_takes_unk_for_it(tmp_path: Path) -> None:
    model = model_of("gpt1")
    assert regard.load(folder(model, tmp_path, eos_token_id=None, bos_token_id=None)).config == replace(
        model.config, eos_id=0
    )


def test_gpt1_of_another_inner_width_is_saved_under_our_own_names(tmp_path: Path) -> None:
    model = model_of("gpt1", ffn_dim=20)
    with pytest.raises(WeightsError, match="ffn_dim=20"):
        regard.save(model, tmp_path)
    x, _ = rows()
    assert torch.equal(regard.load(model.save(tmp_path)).logits(x), model.logits(x))


def test_the_two_heads_of_gpt1_generate_as_the_one_does(tmp_path: Path) -> None:
    """The file contains the tied embedding under the name of the head only."""
    model, (x, _) = model_of("gpt1"), rows()
    theirs = transformers.OpenAIGPTDoubleHeadsModel(their_config(model.config, "gpt1")).double().eval()
    theirs.load_state_dict(their(model).state_dict(), strict=False)
    near(model.logits(x), theirs(input_ids=x).logits)
    theirs.save_pretrained(tmp_path)
    assert "lm_head.weight" in load_file(tmp_path / "model.safetensors")
    assert torch.equal(regard.load(tmp_path, task="lm").logits(x), model.logits(x))


def test_heads_for_other_tasks_are_left_out(tmp_path: Path) -> None:
    model = model_of("gpt2")
    state = {key: tensor.clone() for key, tensor in their(model).state_dict().items() if key != "lm_head.weight"}
    heads = {"score.weight": torch.zeros(2, 12), "multiple_choice_head.summary.weight": torch.zeros(1, 12)}
    same_weights(regard.load(folder(model, tmp_path, state | heads)), state)


def test_a_folder_with_a_tokenizer_is_read_there_too(tmp_path: Path) -> None:
    text = TextTokenizer.train_lm_bpe(["to be or not to be", "that is the question"] * 20, 270)
    model = model_of("gpt2", vocab_size=text.size, eos_id=text.token_to_id("<|endoftext|>"))
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
def test_outputs_equal_generate(name: str, beams: int) -> None:
    """transformers with single prompts, ours with one batch."""
    model = model_of(name, max_length=24)
    with torch.no_grad():
        for key, parameter in model.body.named_parameters():  # else the bias of a norm makes every token the same
            parameter.mul_(0.1 if key.endswith("norm.bias") else 1.0).add_(float(key.endswith("norm.weight")))
    theirs, (x, lengths) = their(model), rows()
    settings = DecodeSettings(
        num_beams=beams, num_return_sequences=beams, length_penalty=1.0, length_penalty_type="power"
    )
    found = search(model.body, Batch(x, lengths), model.config.eos_id, torch.full((4,), 8), settings)
    for row, length in enumerate(lengths.tolist()):
        right = theirs.generate(
            x[row : row + 1, :length], attention_mask=torch.ones(1, length), max_new_tokens=8, do_sample=False,
            num_beams=beams, num_return_sequences=beams, pad_token_id=0, length_penalty=1.0, early_stopping=False,
        )[:, length:].tolist()  # fmt: skip
        for answer, other in zip(found[row], right, strict=True):
            said = [*answer.tokens, *[model.config.eos_id] * answer.has_eos]
            assert said == other[: len(said)]
    assert len({answer.tokens for options in found for answer in options}) >= 3 * beams
