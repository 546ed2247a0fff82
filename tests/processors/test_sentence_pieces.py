"""SentencePiece models: ids, texts and files as in transformers."""

from __future__ import annotations

import copy
import json
import pickle
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from sentencepiece import SentencePieceProcessor
from transformers import AutoTokenizer, DebertaV2Tokenizer, MarianTokenizer, XLMRobertaTokenizer

from data_files import refused
from regard.errors import RegardError
from regard.processors.tokenizer.tokenizer import TextTokenizer
from regard.tasks.modality.base import Export
from regard.tasks.modality.text import Text
from sentence_piece_files import piece_model, sentences, write_marian
from tiny import tiny
from tokenizer_files import HARD, MARKED, PROSE, plain, random_texts, same

TEXTS = [
    *sentences(2000, seed=2),
    *HARD,
    *PROSE,
    *MARKED,
    *random_texts(300, seed=3),
    "a </s> b<pad></s>>>fra<< c",
    ">>fra",
]
pytestmark = pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses:UserWarning")


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_ids_and_texts_of_marian_equal_transformers_in_five_scripts(kind: str, split: bool, tmp_path: Path) -> None:
    made = TextTokenizer.load(write_marian(tmp_path, kind, split_special_tokens=split))
    theirs = MarianTokenizer.from_pretrained(tmp_path)
    source, target = theirs(TEXTS)["input_ids"], theirs(text_target=TEXTS)["input_ids"]
    assert made.split_special_tokens is split and source != target
    same(TEXTS, [[*row, 0] for row in made.encode(TEXTS)], source)
    same(TEXTS, [[*row, 0] for row in made.encode(TEXTS, target=True)], target)
    same(TEXTS, made.decode(target), theirs.batch_decode(target, skip_special_tokens=True))
    assert made.size == len(theirs)
    codes = theirs.convert_tokens_to_ids([">>fra<<", ">>rus<<"])
    assert [made.encode([f">>{name}<< the"])[0][0] for name in ("fra", "rus", "xyz")] == [
        *codes,
        made.special_id("unknown"),
    ]
    roles = made.special_id("end"), made.special_id("unknown"), made.special_id("pad")
    assert roles == (theirs.eos_token_id, theirs.unk_token_id, theirs.pad_token_id) and made.special_id("start") is None


def test_copies_threads_and_shown_tokens_of_marian(tmp_path: Path) -> None:
    made = TextTokenizer.load(write_marian(tmp_path))
    right = made.encode(TEXTS)
    for text in (copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert text.encode(TEXTS) == right and text.fingerprint() == made.fingerprint()
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(made.encode(TEXTS))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [right] * 4
    other = TextTokenizer.load(write_marian(tmp_path / "bpe", "bpe"))
    assert len({made.fingerprint(), other.fingerprint(), plain(made).fingerprint()}) == 3
    for text, (ids, spans) in zip(TEXTS, made.encode_offsets(TEXTS), strict=True):
        assert [ids] == made.encode([text]) and all(0 <= a <= b <= len(text) for a, b in spans)
    ((_, spans),) = made.encode_offsets([">>fra<< ☃☃ the </s>e\u0301"])
    assert {(0, 7), (8, 10), (15, 19), (19, 21)} <= set(spans)


def test_marian_is_saved_and_read_by_both_libraries(tmp_path: Path) -> None:
    made = TextTokenizer.load(write_marian(tmp_path / "published"))
    for number, text in enumerate((made, made.with_special_tokens(["<z>", "<y>"]), plain(made))):
        (folder := tmp_path / str(number)).mkdir()
        Text(tokenizer="sentence").save_processor(text, tiny("transformer").config, folder, Export())
        texts = [*TEXTS[:200], "the <z>cat<y> </s>"]
        theirs, again = AutoTokenizer.from_pretrained(folder), TextTokenizer.load(folder)
        assert type(theirs) is MarianTokenizer and (theirs.source_lang, theirs.target_lang) == ("en", "fr")
        same(texts, text.encode(texts), theirs(texts, add_special_tokens=False)["input_ids"])
        same(texts, text.encode(texts, target=True), again.encode(texts, target=True))
        assert again.encode(texts) == text.encode(texts) and again.size == text.size == len(theirs)
        assert again.fingerprint() == text.fingerprint() and again.special_ids == text.special_ids


BROKEN: dict[str, Any] = {
    "source.spm": b"nothing", "target.spm": b"", "vocab.json": b'{"</s>": 0, "a": 1}',
    "tokenizer_config.json": b'{"separate_vocabs": true}', "special_tokens_map.json": b"[",
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_of_marian_is_named(name: str, tmp_path: Path) -> None:
    (write_marian(tmp_path) / name).write_bytes(BROKEN[name])
    refused(f"{tmp_path}.*({name}|separate)", TextTokenizer.load, tmp_path)


def test_sampled_pieces_are_refused(tmp_path: Path) -> None:
    write_marian(tmp_path, sp_model_kwargs={"enable_sampling": True})
    refused("sp_model_kwargs", TextTokenizer.load, tmp_path)


def test_a_missing_library_is_named_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    refused(r"regard\[sentencepiece\]", TextTokenizer.load, write_marian(tmp_path), error=RegardError)


def test_another_class_of_tokenizer_does_not_use_the_files_of_marian(tmp_path: Path) -> None:
    """A model saved into a folder of Marian replaces the tokenizer, and other files remain."""
    text = TextTokenizer.train_sentence_bpe(sentences(50), 320)
    Text(tokenizer="sentence").save_processor(text, tiny("transformer").config, write_marian(tmp_path), Export())
    assert TextTokenizer.load(tmp_path).encode(TEXTS) == text.encode(TEXTS)
    write_marian(tmp_path, tokenizer_class="MarianTokenizer")
    assert TextTokenizer.load(tmp_path).encode(["the cat"]) != text.encode(["the cat"])


def write_model(folder: Path, name: str, content: bytes, **settings: Any) -> Path:
    folder.mkdir()
    (folder / name).write_bytes(content)
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def test_one_vocabulary_with_the_ids_of_fairseq_equals_xlm_roberta(tmp_path: Path) -> None:
    content = piece_model("unigram")
    folder = write_model(tmp_path / "xlmr", "sentencepiece.bpe.model", content, tokenizer_class="XLMRobertaTokenizer")
    made, theirs = TextTokenizer.load(folder), XLMRobertaTokenizer.from_pretrained(folder)
    same(TEXTS, made.encode(TEXTS), theirs(TEXTS, add_special_tokens=False)["input_ids"])
    pairs = theirs(["the cat"], ["a dog"])["input_ids"][0]
    first, second = made.encode(["the cat", "a dog"])
    assert [*made.template.start, *first, *made.template.separator, *second, *made.template.end] == pairs
    model = SentencePieceProcessor(model_proto=content)
    cat = model.piece_to_id("▁cat")
    assert made.backend.token_to_id("▁cat") == cat + 1 > 1 and made.size == model.get_piece_size() + 2 == len(theirs)
    roles = [made.special_id(role) for role in ("start", "pad", "end", "unknown", "mask")]
    assert roles == [0, 1, 2, 3, made.size - 1] and made.decode(made.encode(["the cat"])) == ["the cat"]
    check_saved(made, tmp_path / "saved")


@pytest.mark.parametrize("settings", [{}, {"do_lower_case": True, "split_by_punct": True}])
def test_one_vocabulary_with_its_own_ids_equals_deberta(settings: dict[str, Any], tmp_path: Path) -> None:
    tokens = {"pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3, "pad_piece": "[PAD]", "bos_piece": "[CLS]"}
    content = piece_model("unigram", eos_piece="[SEP]", unk_piece="[UNK]", **tokens)
    settings = {"vocab_type": "spm", **settings}
    folder = write_model(tmp_path / "deberta", "spm.model", content, **settings)
    made, theirs = TextTokenizer.load(folder), DebertaV2Tokenizer.from_pretrained(folder)
    same(TEXTS, made.encode(TEXTS), theirs(TEXTS, add_special_tokens=False)["input_ids"])
    row = theirs(["the cat"], ["a dog"])
    first, second = made.encode(["the cat", "a dog"])
    assert [*made.template.start, *first, *made.template.separator, *second, *made.template.end] == row["input_ids"][0]
    assert made.template.second_type == row["token_type_ids"][0][-1] == 1 and made.size == len(theirs)
    assert [made.special_id(role) for role in ("pad", "start", "end", "unknown", "mask")] == [0, 1, 2, 3, made.size - 1]
    check_saved(made, tmp_path / "saved")


def check_saved(made: TextTokenizer, folder: Path) -> None:
    folder.mkdir()
    Text().save_processor(made, tiny("bert").config, folder)
    theirs, again = AutoTokenizer.from_pretrained(folder), TextTokenizer.load(folder)
    assert theirs(TEXTS, add_special_tokens=False)["input_ids"] == again.encode(TEXTS) == made.encode(TEXTS)
    assert again.fingerprint() == made.fingerprint()
