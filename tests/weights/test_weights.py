"""Checkpoints that do not match are refused by name, in one sentence, before any computation."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import regard
from regard.decode.search import search
from regard.errors import DataError, RegardError, RunError, SettingError, UnknownNameError, WeightsError
from regard.processors.tokenizer.tokenizer import TextTokenizer
from regard.systems.transformer import PUBLISHED
from regard.types import Batch
from regard.weights.tables import NameTable, entry, read_checkpoint, read_safetensors, write_safetensors
from tiny import TINY, tiny

TABLE, KEYS = "model.shared.weight", "model.encoder.layers.1.self_attn.k_proj.weight"
VALUES = KEYS.replace("k_proj", "v_proj")


def published(folder: Path, **changes: Any) -> Path:
    return regard.save(tiny("transformer", **changes), folder)


def with_tensors(folder: Path, **tensors: Tensor | None) -> Path:
    """Replace or add tensors of a file, or (None) remove tensors."""
    found = {**load_file(folder / "model.safetensors"), **tensors}
    save_file({name: tensor for name, tensor in found.items() if tensor is not None}, folder / "model.safetensors")
    return folder


def with_config(folder: Path, file: str = "config.json", without: tuple[str, ...] = (), **values: Any) -> Path:
    found = json.loads((folder / file).read_text())
    found = {**{key: value for key, value in found.items() if key not in without}, **values}
    (folder / file).write_text(json.dumps(found))
    return folder


def zeros(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.float64)


MISFITS: dict[str, tuple[dict[str, Tensor | None], tuple[str, ...]]] = {
    "one is missing": ({TABLE: None}, ("missing", "tokens.table.weight", TABLE)),
    "a part of a stacked one is missing": ({KEYS: None}, ("missing", "encoder.blocks.1.attend.inner.qkv.weight", KEYS)),
    "one too many": ({"model.encoder.layers.2.fc1.bias": zeros(20)}, ("not expected", "model.encoder.layers.2.fc1.bias")),
    "a strange name": ({"adapter": zeros(1)}, ("not expected", "adapter")),
    "too few rows": ({TABLE: zeros(22, 12)}, ("tokens.table.weight", "22, 12", "23, 12")),
    "turned": ({"model.encoder.layers.0.fc1.weight": zeros(12, 20)}, ("encoder.blocks.0.feed.inner.up", "12, 20", "20, 12")),
    "a part too narrow": ({KEYS: zeros(12, 11)}, ("qkv.weight", "12, 11")),
    "parts that only fit together": ({KEYS: zeros(11, 12), VALUES: zeros(13, 12)}, ("qkv.weight", "11, 12")),
    "a bias of another vocabulary": ({"final_logits_bias": zeros(1, 22) + 1}, ("tokens.bias", "22", "23")),
    "a bias of another vocabulary, all zero": ({"final_logits_bias": zeros(1, 22)}, ("22", "23")),
    "whole numbers": ({TABLE: zeros(23, 12).long()}, ("tokens.table.weight", "int64")),
    "an output matrix of its own": ({"lm_head.weight": zeros(23, 12)}, ("lm_head.weight",)),
    "a target table of its own": ({"model.decoder.embed_tokens.weight": zeros(23, 12)}, ("embed_tokens",)),
    "positions that are no sines": ({"model.encoder.embed_positions.weight": zeros(40, 12)}, ("embed_positions",)),
}  # fmt: skip


NATIVE: dict[str, tuple[dict[str, Tensor | None], tuple[str, ...]]] = {
    "ours: missing": ({"encoder.norm.weight": None}, ("encoder.norm.weight",)),
    "ours: unexpected": ({"adapter": zeros(1)}, ("adapter",)),
    "ours: shape": ({"encoder.norm.weight": zeros(11)}, ("encoder.norm.weight",)),
}
"""The same for regard's native format."""


@pytest.mark.parametrize("case", [*MISFITS, *NATIVE])
def test_weights_that_do_not_fit_are_refused_by_name(case: str, tmp_path: Path) -> None:
    changes, words = {**MISFITS, **NATIVE}[case]
    folder = tiny("transformer", norm_position="pre").save(tmp_path) if case in NATIVE else published(tmp_path)
    with pytest.raises(WeightsError) as refused:
        regard.load(with_tensors(folder, **changes))
    assert all(word in str(refused.value) for word in words), refused.value


def test_tied_copies_and_constants_that_agree_are_read_past(tmp_path: Path) -> None:
    model = tiny("transformer")
    table, places = model.body.tokens.table.weight.detach(), model.body.position(torch.arange(40))
    copies = {name: table.clone() for name in ("lm_head.weight", "model.encoder.embed_tokens.weight")}
    rounded = {f"model.{side}.embed_positions.weight": places.float().double() for side in ("encoder", "decoder")}
    folder = with_tensors(published(tmp_path), **copies, **rounded)
    assert torch.equal(regard.load(folder).body.tokens.table.weight, table)
    folder = with_tensors(folder, final_logits_bias=None)
    assert regard.load(folder).config == TINY["transformer"].config


def test_heads_of_other_tasks_are_dropped_and_reported_and_names_match_exactly() -> None:
    names = NameTable((entry("w", "w"),), tied={"lm.{n}.w": "w"}, drop=("*.mask",), heads=("classifier.*",))
    given = dict.fromkeys(["w", "classifier.out.bias", "lm.3.w", "h.0.mask"], zeros(1))
    assert names.read(given, ["w"]) == ({"w": given["w"]}, ["classifier.out.bias"])
    for name in ("lm.x.w", "classifier", "h.0.masks", "wx"):
        with pytest.raises(WeightsError, match=re.escape(name)):
            names.read({**given, name: zeros(1)}, ["w"])
    # a dot in the table is a dot and a number a number
    names = NameTable((entry("a.{n}.w", "theirs.{n}.w"),))
    assert names.published_names("a.12.w") == ["theirs.12.w"]
    assert [names.published_names(name) for name in ("aX1.w", "a.x.w", "a.1.w.more", "a.-1.w")] == [[]] * 4
    with pytest.raises(WeightsError, match=r"'a\.x\.w'"):
        names.write({"a.x.w": zeros(1)})
    with pytest.raises(WeightsError, match="expected") as refused:  # a long list of missing tensors is truncated
        names.read({"other": zeros(1)}, [f"a.{n}.w" for n in range(8)])
    assert str(refused.value).count("theirs") == 5


def split(folder: Path, file: str, shards: int, dtype: Any = torch.float64, **options: Any) -> dict[str, Tensor]:
    """Weights of a new folder in one file of this name, or in several with an index."""
    whole = {name: tensor.to(dtype) for name, tensor in load_file(published(folder) / "model.safetensors").items()}
    (folder / "model.safetensors").unlink()
    stem, suffix = file.split(".")
    places = {name: f"{stem}-{number % shards}.{suffix}" if shards > 1 else file for number, name in enumerate(whole)}
    for shard in set(places.values()):
        tensors = {name: whole[name] for name in whole if places[name] == shard}
        torch.save(tensors, folder / shard, **options) if suffix == "bin" else save_file(tensors, folder / shard)
    if shards > 1:
        (folder / f"{file}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return whole


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("file", ["pytorch_model.bin", "model.safetensors"])
def test_pickles_shards_and_half_precision_are_read(
    file: str, shards: int, dtype: torch.dtype, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, right = split(tmp_path, file, shards, dtype), tiny("transformer").weights()
    found = read_checkpoint(tmp_path)
    assert set(found) == set(whole) and all(torch.equal(found[name], whole[name]) for name in whole)
    stored, wide = (regard.load(tmp_path, dtype=kind).weights() for kind in ("stored", "float32"))
    for name, value in right.items():
        assert stored[name].dtype == dtype and torch.equal(stored[name], value.to(dtype))
        assert wide[name].dtype == torch.float32 and torch.equal(wide[name], value.to(dtype).float())
    assert {p.dtype for p in regard.load(tmp_path, dtype=torch.bfloat16).parameters()} == {torch.bfloat16}
    note = capsys.readouterr().err
    assert note.count("\n") == (file == "pytorch_model.bin")
    assert not note or (note.startswith("note: ") and "pytorch_model.bin" in note)


def test_an_old_pickle_is_read_and_none_beside_safetensors_or_of_something_else(tmp_path: Path) -> None:
    split(tmp_path / "old", "pytorch_model.bin", 1, _use_new_zipfile_serialization=False)
    (published(tmp_path / "both") / "pytorch_model.bin").write_bytes(b"\x80")
    for name in ("old", "both"):
        assert regard.load(tmp_path / name).config == TINY["transformer"].config
    for content in ({"a": 3}, [1, 2], {"model": {"a": zeros(1)}}, {3: zeros(1)}):
        torch.save(content, tmp_path / "old" / "pytorch_model.bin")
        with pytest.raises(WeightsError, match="dictionary of tensors"):
            regard.load(tmp_path / "old")


@pytest.mark.parametrize("file", ["pytorch_model.bin", "model.safetensors"])
@pytest.mark.parametrize("left", [0, 4, 100, 9000, -1, None])
def test_a_truncated_or_missing_file_is_refused_by_its_path(left: int | None, file: str, tmp_path: Path) -> None:
    split(tmp_path, file, 1)
    content = (tmp_path / file).read_bytes()
    (tmp_path / file).unlink() if left is None else (tmp_path / file).write_bytes(content[:left])
    name = "model.safetensors" if left is None else file
    with pytest.raises(WeightsError, match=re.escape(name)) as refused:
        regard.load(tmp_path)
    assert len(content) > 10_000 and "\n" not in str(refused.value)


INDEXES = ["{", "[]", "{}", '{"weight_map": []}', '{"weight_map": {"a": 3}}', "\x00"]
SHARDS = ["../one.safetensors", "{}/one.safetensors", "deeper/one.safetensors", "x/../../it/y", "two.safetensors"]


@pytest.mark.parametrize("index", [*INDEXES, *SHARDS])
def test_an_invalid_index_and_a_missing_or_outside_shard_are_refused(index: str, tmp_path: Path) -> None:
    """A shard outside of the folder is refused even if it fits."""
    folder, shard = tmp_path / "it", index.format(tmp_path) if index in SHARDS else ""
    split(folder, "model.safetensors", 1)
    (folder / "model.safetensors").rename(folder / "one.safetensors")
    (folder / "deeper").mkdir()
    for place in (tmp_path, folder / "deeper"):
        (place / "one.safetensors").write_bytes((folder / "one.safetensors").read_bytes())
    text = json.dumps({"weight_map": {TABLE: shard}}) if shard else index
    (folder / "model.safetensors.index.json").write_text(text)
    with pytest.raises(WeightsError, match=re.escape(shard or "model.safetensors.index.json")):
        regard.load(folder)


def test_an_end_token_outside_the_vocabulary_is_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for end in (23, 50_256, -1, None):
        model = regard.load(with_config(regard.save(tiny("gpt2"), tmp_path), eos_token_id=end))
        last = model.config.eos_id
        told = capsys.readouterr().err
        assert last == model.config.vocab_size - 1
        assert told.count("\n") == 1 and "eos_token_id" in told and str(last) in told
        found = search(model.body, Batch(torch.tensor([[3, 4]])), last, torch.tensor([5]), model.spec.decode)
        assert len(found[0][0].log_probs) <= 5
    text = TextTokenizer.train_lm_bpe(["the cat danced and the dog slept"] * 9, 300)  # the tokenizer has an end token
    model = tiny("gpt2", vocab_size=text.size + 5, eos_id=1)
    model.tokenizer = text
    loaded = regard.load(with_config(regard.save(model, tmp_path), eos_token_id=50_256))
    assert loaded.config.eos_id == text.backend.token_to_id("<|endoftext|>") != loaded.config.vocab_size - 1
    assert all(len(one.extra["token_ids"]) <= 4 for one in loaded.predict(["", "the cat", "a"], max_new_tokens=4))


def test_a_written_file_keeps_tensors_also_if_its_header_length_starts_like_a_pickle(tmp_path: Path) -> None:
    """The first bytes of a safetensors file are the length of its header: 640 is 80 02."""
    given = {"a": torch.arange(6.0).view(2, 3).T, "b": torch.ones(2).bfloat16(), "c": torch.nn.Parameter(zeros(1))}
    write_safetensors(tmp_path / "x.safetensors", given, {"about": "it"})
    found = read_safetensors(tmp_path / "x.safetensors")
    assert all(torch.equal(found[name], tensor) and found[name].dtype == tensor.dtype for name, tensor in given.items())
    path, starts = tmp_path / "a.safetensors", set()
    for padding in range(0, 600, 8):
        write_safetensors(path, {"weight": torch.zeros(1)}, {"about": "x" * padding})
        starts.add(path.read_bytes()[:2])
        assert read_safetensors(path).keys() == {"weight"}
    assert b"\x80\x02" in starts


REFUSED: dict[str, Any] = {
    "share_encoder_decoder_embeddings": False, "tie_word_embeddings": False, "normalize_before": True,
    "normalize_embedding": True, "add_final_layer_norm": True, "static_position_embeddings": False,
    "encoder_layerdrop": 0.1, "decoder_layerdrop": 0.1, "is_encoder_decoder": False, "is_decoder": True,
    "activation_function": "tanh", "encoder_attention_heads": 4, "decoder_attention_heads": 1, "encoder_ffn_dim": 24,
    "decoder_vocab_size": 24, "layer_norm_eps": 1e-6, "rope_theta": 1.0, "d_model": "wide",
    "eos_token_id": [2, 3],
}  # fmt: skip


@pytest.mark.parametrize("key", REFUSED)
def test_a_config_that_would_compute_otherwise_is_refused_by_the_name_of_its_key(key: str, tmp_path: Path) -> None:
    folder = with_config(published(tmp_path), **{key: REFUSED[key]})
    with pytest.raises((WeightsError, SettingError)) as refused:
        regard.load(folder)
    assert {"d_model": "model.width", "eos_token_id": "model.eos_id"}.get(key, key) in str(refused.value)


HARMLESS = {
    "num_beams": 6, "max_length": 512, "bad_words_ids": [[0]], "forced_eos_token_id": 2, "use_cache": False,
    "id2label": {"0": "LABEL_0"}, "classif_dropout": 0.5, "num_hidden_layers": 2, "torch_dtype": "float16",
    "_name_or_path": "x", "transformers_version": "4.9.0",
}  # fmt: skip
PUBLISHED_FORMS: list[tuple[tuple[str, ...], dict[str, Any]]] = [
    ((), HARMLESS), ((), {"extra_pos_embeddings": 23}), ((), {"_num_labels": 3}), ((), {"decoder_vocab_size": None}),
    (("decoder_vocab_size",), {}),
    (("share_encoder_decoder_embeddings", "tie_word_embeddings", "decoder_vocab_size"), {"_num_labels": 3}),
]  # fmt: skip
"""Removed and changed keys; `extra_pos_embeddings` is pad + 1 in checkpoints until 2020, and not used."""


@pytest.mark.parametrize(("without", "changes"), PUBLISHED_FORMS)
def test_published_configs_and_keys_without_effect_are_read(without: Any, changes: Any, tmp_path: Path) -> None:
    model = regard.load(with_config(published(tmp_path), without=without, **changes))
    assert model.config == TINY["transformer"].config and next(model.parameters()).dtype == torch.float64


def test_absent_keys_have_the_defaults_of_transformers() -> None:
    marian = pytest.importorskip("transformers").MarianConfig()
    assert {key: getattr(marian, key) for key in PUBLISHED.defaults} == PUBLISHED.defaults
    assert {key: getattr(marian, key, value) for key, value in PUBLISHED.fixed.items()} == PUBLISHED.fixed
    said = PUBLISHED.read(marian.to_dict())
    assert said == PUBLISHED.read({"model_type": "marian", "decoder_vocab_size": 58101})
    assert said["vocab_size"] == 58101 and said["scale_embedding"] is False and said["activation"] == "gelu"


@pytest.mark.parametrize("file", ["config.json", "regard.json"])
def test_a_broken_json_file_is_refused_by_its_name(file: str, tmp_path: Path) -> None:
    published(tmp_path)
    for text in ("{", "[]", "3", "", "\x00"):
        (tmp_path / file).write_text(text)
        with pytest.raises(RunError, match=file.replace(".", r"\.")):
            regard.load(tmp_path)


INVALID: list[dict[str, Any]] = [
    {"system": None}, {"model": None}, {"model": 3}, {"model": {"widht": 12}}, {"system": "transfomer"}, {"task": "translat"},
    {"decode": {"beem": 2}}, {"decode": 2},
]  # fmt: skip
"""Values of regard.json; None: the key is missing."""
HEADS = {"encoder_attention_heads": 5, "decoder_attention_heads": 5}


@pytest.mark.parametrize("changes", [*INVALID, HEADS, {"d_model": 0}, {"activation_function": []}])
def test_invalid_configs_are_not_internal_errors(changes: dict[str, Any], tmp_path: Path) -> None:
    native = changes in INVALID
    folder = tiny("transformer").save(tmp_path) if native else published(tmp_path)
    kept = {key: value for key, value in changes.items() if value is not None}
    without = tuple(key for key, value in changes.items() if value is None)
    with pytest.raises(RegardError):
        regard.load(with_config(folder, "regard.json" if native else "config.json", without, **kept))


def test_an_unknown_name_or_folder_is_refused_with_the_nearest_there_is(tmp_path: Path) -> None:
    folder, model = published(tmp_path / "model"), tiny("transformer")
    (tmp_path / "ende" / "checkpoints").mkdir(parents=True)
    attempts: list[tuple[type[RegardError], str, Any]] = [
        (UnknownNameError, "'translate'", lambda: regard.load(folder, task="translat")),
        (UnknownNameError, "'huggingface'", lambda: regard.save(model, tmp_path / "x", layout="hugingface")),
        (UnknownNameError, "'transformer-tiny'", lambda: regard.build("transformer-tny")),
        (UnknownNameError, "Unknown", lambda: regard.load(tmp_path / "edne")),
        (UnknownNameError, "No folder", lambda: regard.load(tmp_path / "nowhere" / "at all")),
        (RegardError, "--resume", lambda: regard.load(tmp_path / "ende")),
        (UnknownNameError, "'marian'", lambda: regard.load(with_config(folder, model_type="marion"))),
        (UnknownNameError, "'llama'", lambda: regard.load(with_config(folder, model_type="llama"))),
    ]
    for name, value in (("widht", 3), ("heads", 3), ("heads", 0), ("width", 0)):
        setting = {name: value}
        attempts.append((SettingError, name, lambda s=setting: regard.build("transformer-tiny", device="meta", **s)))
    for kind, words, attempt in attempts:
        with pytest.raises(kind, match=words):
            attempt()
    assert not (tmp_path / "x").exists()
    (folder / "config.json").unlink()
    for what in (folder, folder / "model.safetensors"):
        with pytest.raises(RunError, match=r"config\.json"):
            regard.load(what)


def test_a_folder_without_tokenizer_loads_and_only_prediction_fails(tmp_path: Path) -> None:
    model = regard.load(published(tmp_path))
    assert model.tokenizer is None
    assert model.logits(torch.tensor([[3, 4, 2]]), torch.tensor([[1, 5]])).shape == (1, 2, 23)
    for call in (model.predict, model.explain):
        with pytest.raises(RegardError, match=r"tokenizer\.json"):
            call("anything")


def test_a_tokenizer_travels_with_the_model_and_a_broken_one_is_refused(tmp_path: Path) -> None:
    model = tiny("transformer", vocab_size=259, output_bias=True)
    model.tokenizer = TextTokenizer.train_sentence_bpe(["a b"], 259)
    back = regard.load(model.save(tmp_path))
    assert back.tokenizer is not None and back.tokenizer.encode(["a b"]) == model.tokenizer.encode(["a b"])
    ours, right = back.predict("a b", max_extra_tokens=2), model.predict("a b", max_extra_tokens=2)
    assert ours.tokens == right.tokens and ours.score == pytest.approx(right.score, rel=1e-12)
    assert back.predict(["", "a"], max_extra_tokens=1)[0].value == ""
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(DataError, match=r"tokenizer\.json"):
        regard.load(tmp_path)
