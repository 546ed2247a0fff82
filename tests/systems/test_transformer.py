"""The Transformer against Marian of transformers, torch.nn, and the formulas of the paper."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import regard
from regard.decode.search import search
from regard.decode.settings import DecodeSettings
from regard.model import Model
from regard.processors.padding import pad
from regard.types import IGNORE, Batch
from tiny import TINY, Numbers, collate, gradients, near, noise, pairs, tiny

transformers = pytest.importorskip("transformers")
transformers.utils.logging.disable_progress_bar()

SAMPLES = TINY["transformer"].samples
START, END = 1, 2
VARIANTS: list[dict[str, Any]] = [
    {},
    {"activation": "swish"},
    {"activation": "gelu", "scale_embedding": False},
    {"output_bias": True},
    {"output_bias": True, "activation": "swish", "pad_id": 22, "bos_id": 22, "eos_id": 0},  # as published
]


def places(name: str) -> list[str]:
    """Names of our parameter in Marian, several for stacked parameters, independent of the tested table."""
    if name.startswith("tokens."):
        return ["model.shared.weight" if name == "tokens.table.weight" else "final_logits_bias"]
    side, _, number, part, *rest, kind = name.split(".")
    layer = f"model.{side}.layers.{number}"
    theirs = {"attend": "self_attn", "cross": "encoder_attn", "feed": "final"}[part]
    if rest == ["norm"]:
        return [f"{layer}.{theirs}_layer_norm.{kind}"]
    if part == "feed":
        return [f"{layer}.{ {'up': 'fc1', 'down': 'fc2'}[rest[-1]] }.{kind}"]
    letters = ["out"] if rest[-1] == "out" else list(rest[-1])
    return [f"{layer}.{theirs}.{letter}_proj.{kind}" for letter in letters]


def in_our_places(theirs: Mapping[str, Tensor], names: Any) -> dict[str, Tensor]:
    found = {name: [theirs[place] for place in places(name)] for name in names}
    return {name: parts[0].flatten() if name == "tokens.bias" else torch.cat(parts) for name, parts in found.items()}


def marian(model: Model, table: bool = True) -> Any:
    """Marian with our weights and, unless its own float32 table is requested, our position table."""
    config = model.config
    said = {f"{side}_{key}": value for side in ("encoder", "decoder") for key, value in
            (("attention_heads", config.heads), ("ffn_dim", config.ffn_dim))}  # fmt: skip
    theirs = transformers.MarianMTModel(
        transformers.MarianConfig(
            vocab_size=config.vocab_size,
            d_model=config.width,
            encoder_layers=config.depth,
            decoder_layers=config.decoder_depth,
            activation_function=config.activation,
            scale_embedding=config.scale_embedding,
            max_position_embeddings=config.max_length,
            pad_token_id=config.pad_id,
            eos_token_id=config.eos_id,
            bos_token_id=None,
            decoder_start_token_id=config.bos_id,
            forced_eos_token_id=None,
            **said,
        )
    )
    theirs = theirs.to(next(model.parameters()).dtype).eval()
    sides = [theirs.model.encoder.embed_positions, theirs.model.decoder.embed_positions] if table else []
    with torch.no_grad():
        state = theirs.state_dict()
        for name, tensor in model.body.state_dict().items():
            for place, part in zip(places(name), tensor.chunk(len(places(name))), strict=True):
                state[place].copy_(part.view_as(state[place]))
        for side in sides:
            side.weight.copy_(model.body.position(torch.arange(config.max_length)))
    theirs.generation_config.forced_eos_token_id = None
    return theirs


def padded(model: Model) -> tuple[Batch, dict[str, Tensor], Tensor]:
    """Our batch with padding, the same inputs for Marian, and the mask of real target positions."""
    batch = collate(model, SAMPLES)
    assert batch.mask is not None and batch.labels is not None and batch.decoder_inputs is not None
    marks = (torch.arange(batch.inputs.shape[1]) < batch.mask[:, None]).long()
    return (
        batch,
        {"input_ids": batch.inputs, "attention_mask": marks, "decoder_input_ids": batch.decoder_inputs},
        batch.labels != IGNORE,
    )


@pytest.mark.parametrize("changes", VARIANTS)
def test_logits_and_gradients_are_marians(changes: dict[str, Any]) -> None:
    model = tiny("transformer", **changes)
    theirs = marian(model)
    batch, given, real = padded(model)
    ours, right = model.body.to_logits(model.body(batch).sequence), theirs(**given).logits
    near(ours[real], right[real])
    pull = noise(*ours.shape, seed=8) * real[..., None]
    mine = gradients(model.body, (ours * pull).sum())
    other = gradients(theirs, (right * pull).sum())
    names = [name for name in mine if name != "tokens.bias"]  # a buffer in Marian
    assert len(names) == len(model.body.state_dict()) - ("output_bias" in changes)
    if model.config.bos_id == model.config.pad_id:  # Marian does not train the embedding of the padding token
        mine["tokens.table.weight"][model.config.pad_id] = other["model.shared.weight"][model.config.pad_id]
    for name, gradient in in_our_places(other, names).items():
        near(mine[name], gradient, 2e-12)


def test_logits_are_marians_with_its_own_table_of_positions_to_the_rounding_of_that() -> None:
    model = tiny("transformer")
    batch, given, real = padded(model)
    ours, right = model.body.to_logits(model.body(batch).sequence), marian(model, table=False)(**given).logits
    near(ours[real], right[real], 1e-6)


def test_teacher_forcing_and_its_loss_are_marians() -> None:
    model = tiny("transformer", output_bias=True)
    total, count = model.task.loss(model, padded(model)[0])
    x, lengths = pad([[*row, END] for row in Numbers().encode([pair.source for pair in SAMPLES])], 9)
    labels, _ = pad([[*row, END] for row in Numbers().encode([pair.target for pair in SAMPLES])], IGNORE)
    right = marian(model)(
        input_ids=x, attention_mask=(torch.arange(x.shape[1]) < lengths[:, None]).long(), labels=labels
    )
    near(total / count, right.loss)


def test_single_precision_is_marians_to_its_rounding() -> None:
    model = tiny("transformer").float()
    batch, given, real = padded(model)
    near(model.body.to_logits(model.body(batch).sequence)[real], marian(model)(**given).logits[real], 1e-5)


# -- torch.nn


TORCHS = {
    "attend.inner.qkv.": "self_attn.in_proj_",
    "attend.inner.out.": "self_attn.out_proj.",
    "attend.norm.": "norm1.",
    "cross.inner.out.": "multihead_attn.out_proj.",
    "feed.inner.up.": "linear1.",
    "feed.inner.down.": "linear2.",
}


def torchs(names: Any, pre: bool) -> dict[str, list[str]]:
    """Names of torch → our names; torch also stacks q, k and v of cross-attention."""
    found: dict[str, list[str]] = {}
    for name in names:
        side, _, rest = name.partition(".blocks.")
        if not rest:
            assert pre and name.partition(".")[0] in ("encoder", "decoder")
            found[name] = [name]
            continue
        number, _, part = rest.partition(".")
        last, kind = part.rpartition(".")[0] + ".", name.rpartition(".")[2]
        table = {**TORCHS, "cross.norm.": "norm2.", "feed.norm.": "norm3." if side == "decoder" else "norm2."}
        table |= dict.fromkeys(("cross.inner.q.", "cross.inner.kv."), "multihead_attn.in_proj_")
        found.setdefault(f"{side}.layers.{number}.{table[last]}{kind}", []).append(name)
    return found


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
    ours = {name: p for name, p in body.named_parameters() if not name.startswith("tokens.")}
    names = torchs(ours, norm == "pre")
    theirs.load_state_dict({name: torch.cat([ours[n] for n in stacked]) for name, stacked in names.items()})
    batch, given, real = padded(model)
    assert batch.decoder_inputs is not None
    hidden = given["attention_mask"] == 0
    x, y = (body.embed(ids, torch.arange(ids.shape[1])) for ids in (batch.inputs, batch.decoder_inputs))
    future = ~torch.ones(y.shape[1], y.shape[1]).tril().bool()
    right = theirs(x, y, tgt_mask=future, src_key_padding_mask=hidden, memory_key_padding_mask=hidden)
    out = body(batch).sequence
    near(out[real], right[real])
    pull = noise(*out.shape, seed=8) * real[..., None]
    mine, other = gradients(body, (out * pull).sum()), gradients(theirs, (right * pull).sum())
    near(mine["tokens.table.weight"], gradients(body, (right * pull).sum())["tokens.table.weight"])
    for name, stacked in names.items():
        near(torch.cat([mine[n] for n in stacked]), other[name], 2e-12)


# -- positions


def test_embeddings_are_the_papers_formula() -> None:
    body = tiny("transformer", position_embedding="interleaved").body
    ids = torch.tensor([[5, 9, 5, 22]])
    right = torch.empty(1, 4, 12, dtype=torch.float64)
    for at, token in enumerate(ids[0].tolist()):
        for i in range(6):
            angle = at / 10000 ** (2 * i / 12)
            for channel, wave in ((2 * i, math.sin(angle)), (2 * i + 1, math.cos(angle))):
                right[0, at, channel] = body.tokens.table.weight[token, channel].item() * math.sqrt(12) + wave
    near(body.embed(ids, torch.arange(4)), right, 1e-14)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_interleaved_positions_are_the_halves_with_channels_permuted(norm: str) -> None:
    halves, interleaved = (
        tiny("transformer", norm_position=norm, position_embedding=layout, output_bias=True, seed=seed)
        for layout, seed in (("halves", 1), ("interleaved", 2))
    )
    order = [channel for i in range(6) for channel in (i, i + 6)]  # index of channels 2i and 2i + 1 in the half layout
    permuted = {}
    for name, tensor in halves.body.state_dict().items():
        part, kind = name.split(".")[-2:]
        if part in ("norm", "out", "down"):  # layers that write the hidden states
            permuted[name] = tensor[order]
        elif kind == "weight":  # layers that read the hidden states: table, qkv, q, kv, up
            permuted[name] = tensor[:, order]
        else:
            permuted[name] = tensor
    interleaved.body.load_state_dict(permuted)
    batch, _, _ = padded(halves)
    near(interleaved.body(batch).sequence, halves.body(batch).sequence[..., order])
    near(
        interleaved.body.to_logits(interleaved.body(batch).sequence), halves.body.to_logits(halves.body(batch).sequence)
    )


def test_interleaved_positions_are_marian_with_the_papers_table() -> None:
    model = tiny("transformer", position_embedding="interleaved")
    batch, given, real = padded(model)
    near(model.body.to_logits(model.body(batch).sequence)[real], marian(model)(**given).logits[real])


# -- checkpoints


def same_weights(model: Model, theirs: Mapping[str, Tensor]) -> None:
    state = model.body.state_dict()
    for name, tensor in in_our_places(theirs, state).items():
        assert tensor.dtype == state[name].dtype and torch.equal(state[name], tensor), name


@pytest.mark.every(3)
@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("changes", VARIANTS)
def test_load_reads_save_pretrained(changes: dict[str, Any], dtype: torch.dtype, sharded: bool, tmp_path: Path) -> None:
    wanted = tiny("transformer", **changes).to(dtype)
    theirs = marian(wanted, table=False)
    theirs.save_pretrained(tmp_path, max_shard_size="3KB" if sharded else "1GB")
    assert sharded == (len(list(tmp_path.glob("*.safetensors"))) > 1)
    model = regard.load(tmp_path, dtype="stored")
    assert model.config == wanted.config and model.task.name == "translate" and not model.training
    same_weights(model, theirs.state_dict())
    batch, given, real = padded(model)
    ours, right = model.logits(batch.inputs, batch.decoder_inputs, mask=batch.mask), theirs(**given).logits
    near(ours[real], right[real], {torch.bfloat16: 0.1, torch.float32: 1e-5, torch.float64: 1e-6}[dtype])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("changes", VARIANTS)
def test_from_pretrained_reads_save(changes: dict[str, Any], dtype: torch.dtype, tmp_path: Path) -> None:
    model = tiny("transformer", **changes).to(dtype)
    regard.save(model, tmp_path, layout="huggingface")
    theirs, told = transformers.MarianMTModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(told.values()), told
    assert theirs.dtype == dtype and theirs.config.dtype == dtype
    same_weights(model, theirs.state_dict())
    if not changes.get("output_bias"):
        assert not theirs.final_logits_bias.any()
    # transformers would not report a missing bias
    assert "final_logits_bias" in load_file(tmp_path / "model.safetensors")
    batch, given, real = padded(model)
    ours, right = model.logits(batch.inputs, batch.decoder_inputs, mask=batch.mask), theirs.eval()(**given).logits
    near(ours[real], right[real], {torch.bfloat16: 0.1, torch.float32: 1e-5, torch.float64: 1e-6}[dtype])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("changes", VARIANTS)
def test_there_and_back_is_the_same_folder(changes: dict[str, Any], dtype: torch.dtype, tmp_path: Path) -> None:
    model = tiny("transformer", **changes).to(dtype)
    marian(model).save_pretrained(tmp_path / "theirs")
    regard.save(regard.load(tmp_path / "theirs", dtype="stored"), tmp_path / "ours")
    theirs, ours = (load_file(tmp_path / who / "model.safetensors") for who in ("theirs", "ours"))
    assert sorted(ours) == sorted(theirs)
    for name, tensor in theirs.items():
        assert ours[name].dtype == tensor.dtype and torch.equal(ours[name], tensor), name
    said, meant = (json.loads((tmp_path / who / "config.json").read_text()) for who in ("ours", "theirs"))
    if model.config.activation == "swish":
        assert said.pop("activation_function") in ("swish", "silu") and meant.pop("activation_function") == "swish"
    assert {key: said[key] for key in said if key in meant} == {key: meant[key] for key in meant if key in said}
    assert {"vocab_size", "d_model", "decoder_start_token_id", "dtype", "architectures"} <= set(said)


# -- decoding


@pytest.fixture(scope="module")
def taught() -> tuple[Model, Any, Batch, Tensor]:
    """Model trained briefly to reverse its source: outputs depend on the source, differ, and end."""
    model = tiny("transformer", depth=1, decoder_depth=2, output_bias=True)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.mul_(0.5).add_(float(name.endswith("norm.weight")))
    random, optimiser = np.random.default_rng(0), torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(120):
        source = [random.integers(3, 23, random.integers(1, 7)) for _ in range(32)]
        total, count = model.task.loss(model, collate(model, pairs((row, row[::-1]) for row in source)))
        optimiser.zero_grad()
        (total / count).backward()
        optimiser.step()
    rows = [np.append(random.integers(3, 23, length), END) for length in (4, 2, 6, 1, 5, 9)]
    x, lengths = pad(rows, 0)
    assert lengths is not None
    batch = Batch(x, lengths, torch.full((6, 1), START))
    return model, marian(model), batch, (torch.arange(x.shape[1]) < lengths[:, None]).long()


Said = list[tuple[tuple[int, ...], bool]]


def generate(taught: Any, batch: Batch, limit: int, **settings: Any) -> tuple[Said, list[float]]:
    _, theirs, _, marks = taught
    out = theirs.generate(
        batch.inputs, attention_mask=marks, decoder_input_ids=batch.decoder_inputs, max_new_tokens=limit, do_sample=False,
        return_dict_in_generate=True, output_scores=True, **settings,
    )  # fmt: skip
    rows = out.sequences[:, batch.decoder_inputs.shape[1] :].tolist()  # type: ignore[union-attr]
    said = [(tuple(row[: row.index(END)]), True) if END in row else (tuple(row), False) for row in rows]
    return said, out.sequences_scores.tolist() if settings.get("num_beams", 1) > 1 else []


@pytest.mark.parametrize("limit", [1, 5, 12])
def test_greedy_outputs_equal_generate(taught: Any, limit: int) -> None:
    model, _, batch, _ = taught
    found = search(model.body, batch, END, torch.full((6,), limit), DecodeSettings())
    ours = [(answers[0].tokens, answers[0].has_eos) for answers in found]
    right = generate(taught, batch, limit)[0]
    assert ours == right
    limits = torch.arange(1, 7)  # a maximum length per row
    found = search(model.body, batch, END, limits, DecodeSettings())
    cut = [
        (tokens[:most], ended and len(tokens) < most)
        for (tokens, ended), most in zip(right, [*range(1, 7)], strict=True)
    ]
    assert limit < 12 or [(answers[0].tokens, answers[0].has_eos) for answers in found] == cut
    if limit == 12:
        assert len(set(ours)) == 6 and sum(ended for _, ended in ours) >= 4
        assert len({len(tokens) for tokens, _ in ours}) >= 3


@pytest.mark.every(5)
@pytest.mark.parametrize("limit", [4, 12])
@pytest.mark.parametrize("prompt", [1, 3])
@pytest.mark.parametrize("stop", ["heuristic", "never"])
@pytest.mark.parametrize("penalty", [0.0, 0.6, 1.0, 2.0, -0.7])
def test_beams_are_those_of_generate(taught: Any, penalty: float, stop: str, prompt: int, limit: int) -> None:
    model, _, batch, _ = taught
    if prompt > 1:
        batch = replace(batch, decoder_inputs=torch.cat([batch.decoder_inputs, batch.inputs[:, : prompt - 1]], 1))
    for width in (2, 3, 5):
        settings = DecodeSettings(
            num_beams=width,
            num_return_sequences=width,
            length_penalty=penalty,
            length_penalty_type="power",
            early_stopping=stop,
        )  # type: ignore[arg-type]
        found = search(model.body, batch, END, torch.full((6,), limit), settings)
        right, scores = generate(
            taught, batch, limit, num_beams=width, num_return_sequences=width, length_penalty=penalty,
            early_stopping={"heuristic": False, "never": "never"}[stop],
        )  # fmt: skip
        ours = [answer for answers in found for answer in answers]
        assert [(answer.tokens, answer.has_eos) for answer in ours] == right
        assert [answer.score for answer in ours] == pytest.approx(scores, rel=1e-4)
        assert limit < 12 or sum(answer.has_eos for answer in ours) > len(ours) / 2


def test_the_two_ways_to_stop_differ_on_these_sources(taught: Any) -> None:
    model, _, batch, _ = taught
    soon, sure = (
        search(
            model.body,
            batch,
            END,
            torch.full((6,), 12),
            DecodeSettings(
                num_beams=2,
                num_return_sequences=2,
                length_penalty=2.0,
                length_penalty_type="power",
                early_stopping=stop,
            ),
        )
        for stop in ("heuristic", "never")
    )
    assert soon != sure


def test_a_checkpoint_of_ours_generates_the_same_in_transformers(taught: Any, tmp_path: Path) -> None:
    model, _, batch, marks = taught
    regard.save(model, tmp_path)
    theirs = transformers.MarianMTModel.from_pretrained(tmp_path).eval()
    out = theirs.generate(batch.inputs, attention_mask=marks, max_new_tokens=3)[:, 1:]
    found = search(model.body, batch, END, torch.full((6,), 3), DecodeSettings())
    assert [[*f.tokens, *[END] * f.has_eos] for (f,) in found] == [row[row != 0].tolist() for row in out]
