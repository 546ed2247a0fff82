"""generation_config.json of Hugging Face as decode.* settings: generated tokens equal transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import regard
from data_files import refused
from regard.decode.settings import TRANSFORMERS_DEFAULTS, DecodeSettings, apply_overrides, translate_generation_config
from regard.errors import RunError, SettingError
from regard.index import print_note
from regard.processors.tokenizer.tokenizer import TextTokenizer
from regard.systems.common.system import TargetTokens
from tiny import tiny
from toy_language_models import lively

HUGGING_FACE = DecodeSettings(length_penalty=1.0, length_penalty_type="power", top_k=50)
"""Defaults of transformers, apart from the length limit."""

CONFIG = TargetTokens(vocab_size=30)

TRANSLATED: list[tuple[dict[str, Any], dict[str, Any], list[str]]] = [
    ({}, {}, []),
    ({"_from_model_config": True, "eos_token_id": 2, "bos_token_id": 7, "transformers_version": "5"}, {}, []),
    ({"length_penalty": 0.6}, {"length_penalty": 0.6}, []),
    ({"num_beams": 4, "early_stopping": True}, {"num_beams": 4, "early_stopping": "always"}, []),
    ({"num_beams": 4, "early_stopping": "never"}, {"num_beams": 4, "early_stopping": "never"}, []),
    ({"num_beams": 4, "early_stopping": False}, {"num_beams": 4}, []),
    ({"max_length": 512}, {"max_length": 512}, []),
    ({"max_new_tokens": 9, "max_length": 512}, {"max_new_tokens": 9, "max_length": 512}, []),
    ({"do_sample": True, "temperature": 0.7}, {"do_sample": True, "temperature": 0.7}, []),
    ({"do_sample": True, "top_k": 0, "top_p": 0.9}, {"do_sample": True, "top_k": 0, "top_p": 0.9}, []),
    ({"temperature": 0.7}, {"temperature": 0.7}, []),  # no effect without do_sample, as in transformers
    ({"repetition_penalty": 1.2, "min_p": 0.1}, {"repetition_penalty": 1.2, "min_p": 0.1}, []),
    ({"stop_strings": "END"}, {"stop_strings": ("END",)}, []),
    ({"stop_strings": ["a", "b,c"]}, {"stop_strings": ("a", "b,c")}, []),
    ({"forced_eos_token_id": 2}, {"forced_eos": True}, []),
    ({"forced_eos_token_id": [2]}, {"forced_eos": True}, []),
    ({"forced_eos_token_id": 3}, {}, ["forced_eos_token_id=3"]),
    ({"forced_bos_token_id": 5}, {}, ["forced_bos_token_id=5"]),
    ({"bad_words_ids": [[0]]}, {}, []),  # padding is never generated
    ({"bad_words_ids": [[0], [4, 5]]}, {}, ["bad_words_ids=[[0], [4, 5]]"]),
    ({"renormalize_logits": True}, {}, []),
    ({"renormalize_logits": True, "repetition_penalty": 2.0}, {"repetition_penalty": 2.0}, ["renormalize_logits=True"]),
    ({"no_repeat_ngram_size": 3, "min_length": 10}, {}, ["no_repeat_ngram_size=3", "min_length=10"]),
    ({"no_repeat_ngram_size": 0, "min_length": 0, "typical_p": 1.0, "use_cache": False}, {}, []),
    ({"eos_token_id": [2, 9]}, {}, ["eos_token_id=[2, 9]"]),
    ({"eos_token_id": 50_256}, {}, []),
    ({"decoder_start_token_id": 1}, {}, []),
    ({"decoder_start_token_id": 4}, {}, ["decoder_start_token_id=4"]),
    ({"do_sample": True, "num_beams": 3}, {"num_beams": 3}, ["do_sample=True"]),
    ({"num_return_sequences": 3}, {}, ["num_return_sequences=3"]),
    ({"num_return_sequences": 3, "num_beams": 3}, {"num_return_sequences": 3, "num_beams": 3}, []),
    ({"language": "en"}, {}, ["language=en"]),
]  # fmt: skip


@pytest.mark.parametrize(("given", "changes", "unsupported"), TRANSLATED)
def test_values_are_translated_and_others_are_listed(
    given: dict[str, Any], changes: dict[str, Any], unsupported: list[str]
) -> None:
    found, left = translate_generation_config({**given, "top_h": None}, CONFIG, {0})
    expected = DecodeSettings(**{**HUGGING_FACE.__dict__, **changes})
    assert apply_overrides(HUGGING_FACE, {**found, "do_sample": found.get("do_sample", False)}) == expected
    assert left == unsupported


def test_defaults_are_those_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.GenerationConfig._get_default_generation_params()
    for key, value in TRANSFORMERS_DEFAULTS.items():
        assert theirs.get(key) in (None, value), key


# -- the same checkpoint in both libraries

LINES = ["the cat danced on the mat", "a dog slept", "the dog and the cat", "one bird sang"]
BEAMS: dict[str, Any] = {"num_beams": 3, "max_new_tokens": 12}
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"max_new_tokens": 12},
    "maximum length": {"max_length": 14},
    "penalized": {"max_new_tokens": 12, "repetition_penalty": 1.4},
    "beams": BEAMS,
    "long beams": {**BEAMS, "length_penalty": 3.0},
    "short beams": {**BEAMS, "length_penalty": -2.0},
    "beams, first": {**BEAMS, "early_stopping": True},
    "beams, never": {**BEAMS, "early_stopping": "never", "length_penalty": 2.0},
    "beams, penalized": {**BEAMS, "repetition_penalty": 1.3},
    "beams, maximum length": {"num_beams": 2, "max_length": 9},
    "forced end": {"max_new_tokens": 6, "forced_eos_token_id": "END"},
    "beams, forced end": {"num_beams": 3, "max_new_tokens": 5, "forced_eos_token_id": "END"},
}


def write_folder(name: str, path: Path) -> Path:
    """Hugging Face checkpoint of a tiny model with a tokenizer that both libraries read."""
    train = TextTokenizer.train_lm_bpe if name == "gpt2" else TextTokenizer.train_sentence_bpe
    text = train(LINES * 5, 290)
    model = tiny(name, vocab_size=text.size, **({"max_length": 64} if name == "gpt2" else {"depth": 1}))
    model.config = model.spec.__dict__["config"] = model.task.modality.fit_config(model.config, text)
    lively(model.body)
    with torch.no_grad():  # outputs of several lengths: the end token is often among the best
        model.body.tokens.table.weight[model.config.eos_id] *= 2.2
    model.tokenizer = text
    return regard.save(model, path)


def compare(folder: Path, name: str, way: dict[str, Any]) -> set[tuple[int, ...]]:
    """Outputs for all lines, after a comparison with transformers on the same checkpoint."""
    transformers = pytest.importorskip("transformers")
    ours = regard.load(folder)
    end, text = ours.config.eos_id, ours.tokenizer
    begin: dict[str, Any] = {}
    if name != "gpt2":  # as in published Marian checkpoints; a penalty after normalization is another computation
        begin = {"decoder_start_token_id": ours.config.bos_id, "bad_words_ids": [[0]]}
        begin |= {} if "repetition_penalty" in way else {"renormalize_logits": True}
    way = {key: end if value == "END" else value for key, value in way.items()}
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": end, "pad_token_id": 0, **begin, **way}))
    kind = transformers.GPT2LMHeadModel if name == "gpt2" else transformers.MarianMTModel
    theirs = kind.from_pretrained(folder, dtype=torch.float64).eval()
    if name != "gpt2":  # the stored sines have 32 bits
        for side in (theirs.model.encoder, theirs.model.decoder):
            side.embed_positions.weight.data.copy_(ours.body.position(torch.arange(len(side.embed_positions.weight))))
    ours, outputs = regard.load(folder), set()
    for line, found in zip(LINES, ours.predict(LINES), strict=True):
        ids = text.encode([line])[0] + ([] if name == "gpt2" else [end])
        x = torch.tensor([ids])
        right = theirs.generate(x, attention_mask=torch.ones_like(x))[0, len(ids) if name == "gpt2" else 1 :].tolist()
        right = right[: right.index(end)] if end in right else right
        assert found.extra["token_ids"] == right, line
        outputs.add(tuple(right))
    return outputs


@pytest.mark.parametrize("name", ["gpt2", "transformer"])
def test_tokens_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    folder, found = write_folder(name, tmp_path / "model"), dict[str, set[tuple[int, ...]]]()
    for label, way in WAYS.items():
        found[label] = compare(folder, name, way)
        assert len(found[label]) > 1, label
    apart = [("greedy", "penalized"), ("beams", "long beams"), ("greedy", "forced end"), ("beams", "beams, never")]
    for one, other in apart + [("beams", "beams, first"), ("greedy", "beams")] * (name == "gpt2"):
        assert found[one] != found[other], (one, other)
    assert {len(output) for output in found["forced end"]} <= set(range(6))


def with_generation(folder: Path, **values: Any) -> Path:
    (folder / "generation_config.json").write_text(json.dumps(values))
    return folder


@pytest.fixture
def gpt2(tmp_path: Path) -> Path:
    return write_folder("gpt2", tmp_path)


def test_marian_as_published_is_read_without_a_note(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_folder("transformer", tmp_path)
    config = regard.load(folder).config
    with_generation(
        folder, bad_words_ids=[[config.pad_id]], bos_token_id=0, decoder_start_token_id=config.bos_id, max_length=512,
        eos_token_id=config.eos_id, forced_eos_token_id=config.eos_id, num_beams=4, renormalize_logits=True,
        pad_token_id=config.pad_id, transformers_version="4.32.0",
    )  # fmt: skip
    found = regard.load(folder).spec.decode
    assert (found.num_beams, found.max_length, found.forced_eos, found.length_penalty) == (4, 512, True, 1.0)
    assert found.length_penalty_type == "power" and capsys.readouterr().err == ""
    (folder / "generation_config.json").unlink()  # an older folder has the settings in its config
    config = json.loads((folder / "config.json").read_text())
    config |= {"num_beams": 6, "max_length": 512, "do_sample": False, "top_k": 50, "bad_words_ids": [[0]]}
    (folder / "config.json").write_text(json.dumps(config))
    found = regard.load(folder).spec.decode
    assert (found.num_beams, found.max_length, found.length_penalty_type) == (6, 512, "power")


def test_settings_of_the_user_go_before_those_of_the_folder(gpt2: Path) -> None:
    model = regard.load(with_generation(gpt2, max_length=12, num_beams=2, max_new_tokens=3))
    assert len(model.predict(LINES[0]).extra["token_ids"]) <= 3
    given = len(model.tokenizer.encode([LINES[0]])[0])
    assert len(model.predict(LINES[0], max_length=given + 1).extra["token_ids"]) == 1
    assert len(model.predict(LINES[0], max_length=given, num_beams=1).extra["token_ids"]) == 0
    assert not apply_overrides(model.spec.decode, {"num_beams": 1}).do_sample


def test_settings_without_effect_are_one_note_if_the_task_generates(
    gpt2: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with_generation(gpt2, no_repeat_ngram_size=2, min_length=4, num_beams=2)
    assert regard.load(gpt2, task="classify").spec.decode == DecodeSettings() and capsys.readouterr().err == ""
    for _ in range(2):
        assert regard.load(gpt2).spec.decode.num_beams == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1 and "no_repeat_ngram_size=2, min_length=4" in told and "num_beams" not in told


def test_a_run_keeps_its_own_settings(gpt2: Path) -> None:
    model = regard.load(gpt2)
    model.save(gpt2)
    assert regard.load(with_generation(gpt2, num_beams=2)).spec.decode == model.spec.decode


def test_a_file_that_cannot_be_used_is_named(gpt2: Path) -> None:
    for content in ("{", "[]", '{"num_beams": "many"}', '{"top_p": 3}', '{"num_beams": 0}'):
        (gpt2 / "generation_config.json").write_text(content)
        refused(r"generation_config\.json", regard.load, gpt2, error=RunError)


# -- settings of the user


def test_a_length_penalty_alone_selects_the_formula_of_hugging_face(capsys: pytest.CaptureFixture[str]) -> None:
    print_note.cache_clear()
    wu = DecodeSettings(num_beams=4)
    found = apply_overrides(wu, {"length_penalty": "0.8"})
    assert (found.length_penalty, found.length_penalty_type) == (0.8, "power")
    assert apply_overrides(wu, {"lenpen": 0.9}).length_penalty_type == "power"
    told = capsys.readouterr().err.splitlines()
    assert sum("length_penalty_type=power" in line for line in told) == 1, told
    print_note.cache_clear()
    assert apply_overrides(wu, {"length_penalty": 0.8, "length_penalty_type": "wu"}).length_penalty_type == "wu"
    assert apply_overrides(HUGGING_FACE, {"length_penalty": 2.0}).length_penalty_type == "power"
    assert apply_overrides(wu, {"num_beams": 5}) == DecodeSettings(num_beams=5)
    assert capsys.readouterr().err == ""


def test_presets_name_their_formula() -> None:
    from regard.systems import SYSTEMS

    for system in SYSTEMS.values():
        for name, preset in system.presets.items():
            decode = preset.recipe.get("decode", {})
            if decode.get("length_penalty"):
                assert "length_penalty_type" in decode, name


def test_names_of_other_tools_work_in_python(gpt2: Path, capsys: pytest.CaptureFixture[str]) -> None:
    print_note.cache_clear()
    model = regard.load(gpt2)
    right = model.predict(LINES[0], num_beams=3, max_new_tokens=4, early_stopping="always")
    assert capsys.readouterr().err == ""
    found = model.predict(LINES[0], beam_size=3, max_tokens=4, early_stopping=True)
    assert found == right
    told = capsys.readouterr().err
    assert told.count("\n") == 2 and "decode.num_beams" in told and "decode.max_new_tokens" in told
    assert "".join(model.stream(LINES[0], max_tokens=4, temperature=0)) is not None
    refused(r"decode\.max_new_tokens", model.predict, LINES[0], max_new_token=4, error=SettingError)
    refused(r"decode\.temperature", model.predict, LINES[0], greedy=True, error=SettingError)
