"""A folder of Marian as published: predictions, training, explanation and export with its own tokenizer."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

import regard
from conftest import Cli, write_pairs
from parity import peer_of
from regard.index import CONFIG_FILES
from regard.processors.tokenizer.tokenizer import TextTokenizer
from sentence_piece_files import sentences, write_marian
from tiny_text_models import train

pytestmark = pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses:UserWarning")
ASKED = ["the cat sat", "быстрая лиса ☃☃", ">>fra<< नमस्ते दुनिया</s> क", "", "ガラス " * 12]


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_marian(tmp_path_factory.mktemp("marian"))
    size = len(json.loads((folder / "vocab.json").read_text()))
    ids = {"pad_token_id": size - 1, "decoder_start_token_id": size - 1, "eos_token_id": 0, "bos_token_id": 0}
    peer_of("MarianMTModel", vocab_size=size, decoder_vocab_size=size, scale=0.3, **ids).float().save_pretrained(folder)
    return folder


def assert_same_translations(folder: Path, model: regard.Model) -> None:
    peer, tokens = AutoModelForSeq2SeqLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    real = [text for text in ASKED if text]
    inputs = tokens(real, return_tensors="pt", padding=True)
    pad, limit = peer.config.pad_token_id, 12
    right = peer.generate(**inputs, max_new_tokens=limit, do_sample=False, num_beams=1, bad_words_ids=[[pad]])
    found = model.predict(ASKED, max_new_tokens=limit, num_beams=1)
    rows = [[token for token in row[1:] if token not in (0, pad)] for row in right.tolist()]
    assert [one.extra["token_ids"] for one, text in zip(found, ASKED, strict=True) if text] == rows
    texts = tokens.batch_decode(right, skip_special_tokens=True)
    assert [one.value for one, text in zip(found, ASKED, strict=True) if text] == texts and found[3].value == ""
    with torch.no_grad():
        theirs = peer(**inputs, decoder_input_ids=right[:, :-1]).logits
        ours = model.logits(inputs["input_ids"], right[:, :-1], mask=inputs["attention_mask"].bool())
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


def test_a_published_folder_translates_as_transformers(published: Path) -> None:
    assert_same_translations(published, regard.load(published))


def test_a_published_folder_is_explained(published: Path) -> None:
    model = regard.load(published)
    text = model.require_tokenizer()
    target = next(one for one in sentences(99) if text.encode([one]) != text.encode([one], target=True))
    found = model.explain("the cat sat", target)
    keys = text.display_tokens([*text.encode(["the cat sat"])[0], 0])
    rows = text.display_tokens([*text.encode([target], target=True)[0], 0])
    assert (list(found.maps[0].keys), list(found.maps[0].queries)) == (keys, rows)
    assert model.explain("the cat").maps


def test_a_published_folder_is_exported_and_loaded_again(published: Path, tmp_path: Path, cli: Cli) -> None:
    out = tmp_path / "out"
    assert cli("export", published, out).code == 0
    files = {"source.spm", "target.spm", "vocab.json", "tokenizer_config.json"}
    assert files <= {path.name for path in out.iterdir()} and files <= {*CONFIG_FILES}  # downloaded from the Hub, too
    model = regard.load(out)
    assert_same_translations(out, model)
    assert [one.value for one in model.predict(ASKED)] == [one.value for one in regard.load(published).predict(ASKED)]


def test_tokenizer_files_that_are_not_supported_are_named(published: Path, tmp_path: Path, cli: Cli) -> None:
    shutil.copytree(published, folder := tmp_path / "other", ignore=shutil.ignore_patterns("vocab.json", "target.spm"))
    (folder / "spiece.model").write_bytes(b"")
    done = cli("predict", folder, "the cat")
    assert done.code == 2 and "source.spm, spiece.model" in done.err
    done = cli("export", folder, tmp_path / "out")
    assert done.code == 0 and "source.spm, spiece.model" in done.err and "note" in done.err
    for path in folder.glob("s*"):
        path.unlink()
    done = cli("export", folder, tmp_path / "weights")
    assert done.code == 0 and not done.err


def test_a_published_folder_is_trained_further_and_lends_its_tokenizer(
    published: Path, tmp_path: Path, cli: Cli
) -> None:
    texts = sentences(120, seed=4)
    data = write_pairs(
        tmp_path / "pairs.tsv", [(a.strip(), b.strip()) for a, b in zip(texts[::2], texts[1::2], strict=True)]
    )
    quick = (
        "train.steps=2",
        "train.batch_tokens=256",
        "train.eval_every=2",
        "data.eval_samples=2",
        "train.precision=float32",
    )
    said = train("translate", data, run := tmp_path / "run", *quick, model=str(published))
    model, text = regard.load(run), TextTokenizer.load(published)
    assert model.require_tokenizer().fingerprint() == text.fingerprint() and "skipped" not in said
    assert (run / "source.spm").read_bytes() == (published / "source.spm").read_bytes()
    assert_same_translations(run, model)
    pair = model.objective.encode(
        [sample := regard.data.text.samples.Pair("the cat", "the cat", "", 0)], model.config,
        regard.tasks.base.EncodingContext(text, 99),
    )  # fmt: skip
    assert pair.fields["source"][0].tolist() == [*text.encode([sample.source])[0], 0]
    assert pair.fields["target"][0].tolist() == [text.size - 1, *text.encode([sample.target], target=True)[0], 0]
    assert cli("predict", run, "the cat").code == 0 and cli("export", run, tmp_path / "out").code == 0
    assert_same_translations(tmp_path / "out", regard.load(tmp_path / "out"))
    small = ("model.width=16", "model.depth=1", "model.decoder_depth=1", "model.heads=2", "model.ffn_dim=32")
    train("translate", data, own := tmp_path / "own", *quick, *small, f"data.tokenizer={published}")
    made = regard.load(own)
    assert made.require_tokenizer().fingerprint() == text.fingerprint() and made.config.bos_id == made.config.pad_id
    assert cli("export", own, tmp_path / "own-hf").code == 0
    assert_same_translations(tmp_path / "own-hf", made)
