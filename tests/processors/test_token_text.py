"""Character offsets of tokens, word indices and special tokens."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, normalizers, processors

from regard.errors import DataError
from regard.processors.tokenizer.token_text import to_bytes
from regard.processors.tokenizer.tokenizer import TextTokenizer, TokenTemplate
from regard.processors.tokenizer.vocabulary import build_wordpiece
from tokenizer_files import TEXTS, check_places, make, theirs_of, write_roberta, write_vocabulary
from tokenizer_texts import STORY, random_texts, train_words


@pytest.fixture(scope="module")
def trained() -> TextTokenizer:
    return make()


@pytest.fixture(scope="module")
def cased() -> TextTokenizer:
    return make(lower=False)


@pytest.fixture(scope="module")
def roberta(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_roberta(tmp_path_factory.mktemp("roberta"))


# -- character offsets


def test_pieces_have_the_offsets_of_their_characters(trained: TextTokenizer, cased: TextTokenizer) -> None:
    texts = [*TEXTS, *random_texts(500, seed=5)]
    check_places(trained, texts)
    check_places(cased, texts)
    ((_, spans),) = trained.encode_offsets(["  re\u0301sume\u0301 ❤️."])
    assert (spans[0][0], spans[-2], spans[-1]) == (2, (11, 13), (13, 14)) and max(b for _, b in spans[:-2]) == 10


def places_by_bytes(text: TextTokenizer, given: str, ids: Sequence[int]) -> list[tuple[int, int]]:
    """Character offsets computed from byte lengths; a tokenizer may add a space before the text."""
    owner = [at for at, letter in enumerate(given) for _ in letter.encode()]
    parts = [to_bytes(text.id_to_token(token)) for token in ids]
    added = sum(map(len, parts)) - len(owner)
    assert added in (0, 1)
    owner = [-1] * added + owner
    found, at = [], 0
    for part in parts:
        own = [place for place in owner[at : at + len(part)] if place >= 0]
        at += len(part)
        real = [place for place in own if not given[place].isspace()]
        found.append((min(real), max(real) + 1) if real else (-1, -1))
    return found


def test_bytes_have_the_offsets_of_their_characters(roberta: Path) -> None:
    texts = [*TEXTS, *random_texts(500, seed=6)]
    spaced = TextTokenizer.train_sentence_bpe([STORY], 400)
    trimming = TextTokenizer.load(roberta)
    trimming.backend.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=True)
    for made in (TextTokenizer.load(roberta), spaced, trimming):
        for given, (ids, spans) in zip(texts, made.encode_offsets(texts), strict=True):
            assert [ids] == made.encode([given])
            expected = places_by_bytes(made, given, ids)
            for one, other in zip(spans, expected, strict=True):
                assert one == other or (other == (-1, -1) and one[0] == one[1]), (given, one, other)
    places = [spans for _, spans in spaced.encode_offsets(["鳥 cat", "\n mat"])]
    assert places == [[(0, 0), (0, 1), (0, 1), (0, 1), (2, 5)], [(1, 1), (1, 1), (2, 5)]]


def test_characters_have_consecutive_offsets() -> None:
    made = TextTokenizer.from_characters([STORY])
    assert made.encode_offsets(["猫a ", ""]) == [(made.encode(["猫a "])[0], [(0, 1), (1, 2), (2, 3)]), ([], [])]


# -- pretokenized words

SENTENCES = [
    ["The", "cats'", "naïve", "façade", "-", "(猫が)", "don't", "U.S.", "1,000"], [], ["x"], ["a b", " c", "d "],
    [*STORY.split()[:40]], ["e\u0301", "❤️", "x" * 101, "[MASK]", "</s>", "<mask>"],
]  # fmt: skip


def check_words(made: TextTokenizer, theirs: Any, sentences: list[list[str]]) -> None:
    for sentence, (ids, numbers) in zip(sentences, made.encode_words(sentences), strict=True):
        expected = theirs(sentence, is_split_into_words=True, add_special_tokens=False) if sentence else None
        assert ids == (expected["input_ids"] if expected else [])
        assert numbers == (expected.word_ids() if expected else [])


def test_words_apart_are_split_as_transformers_splits_them(
    trained: TextTokenizer, roberta: Path, tmp_path: Path
) -> None:
    draw = [text.split() for text in random_texts(300, seed=7)]
    folder = write_vocabulary(trained, tmp_path)
    left = [[word for word in words if trained.encode([word])[0]] for words in draw]
    check_words(TextTokenizer.load(folder), theirs_of(folder), [*SENTENCES, *left])
    check_words(
        TextTokenizer.load(roberta), theirs_of(roberta, "RobertaTokenizer", add_prefix_space=True), [*SENTENCES, *draw]
    )


def test_every_word_has_a_token(trained: TextTokenizer, roberta: Path) -> None:
    words = ["the", "\x00", "cat", "", "\u200d\u200b"]
    ids, numbers = trained.encode_words([words])[0]
    the, cat = trained.token_to_id("the"), trained.token_to_id("cat")
    assert ids == [the, 1, cat, 1, 1] and numbers == [0, 1, 2, 3, 4]
    made = TextTokenizer.load(roberta)
    ids, numbers = made.encode_words([words])[0]
    assert sorted(set(numbers)) == [0, 1, 2, 3, 4] and made.decode([ids]) == [" the \x00 cat  \u200d\u200b"]
    with pytest.raises(DataError, match="no token for the word ''"):
        TextTokenizer.from_characters([STORY]).encode_words([["a", ""]])


# -- starts of words


def test_words_begin_where_no_piece_continues(trained: TextTokenizer) -> None:
    ids, numbers = trained.encode_words([["catmats", ",", "猫", "sats"]])[0]
    starts = trained.starts_word([2, *ids, 3])
    assert starts.dtype == bool and starts[[0, -1]].all()
    assert starts[1:-1].tolist() == [at == 0 or numbers[at] != numbers[at - 1] for at in range(len(ids))]
    assert 1 < len(ids) - 3 < len(ids) and trained.starts_word([]).tolist() == []


def test_words_of_bytes_begin_with_a_space(roberta: Path) -> None:
    made = TextTokenizer.load(roberta)
    text = "the catmats, wasn't\nOnce\tmore 猫"
    ids, spans = made.encode_offsets([text])[0]
    starts = made.starts_word([0, *ids, 2])[1:-1]
    words = {text[spans[at][0] :].split()[0] for at in np.flatnonzero(starts) if spans[at][0] < spans[at][1]}
    assert words == {"the", "catmats,", "wasn't", "Once", "more", "猫"}
    assert starts.sum() < len(ids) and made.starts_word(made.encode(["catmats"])[0]).tolist()[0]


def test_words_with_an_end_marker_begin_after_one() -> None:
    made = TextTokenizer(train_words())
    ids = [made.token_to_id(name) for name in ("cat</w>", "m", "a", "t</w>", "<unk>", "the</w>")]
    assert made.starts_word([i for i in ids if i is not None]).tolist() == [True, True, False, False, True, True]
    letters = TextTokenizer.from_characters([STORY])
    assert letters.starts_word(letters.encode(["a cat"])[0]).tolist() == [True, True, True, False, False]


# -- special tokens


def test_special_tokens_are_found_by_the_names_in_a_checkpoint(trained: TextTokenizer, tmp_path: Path) -> None:
    other = {"[CLS]": "<first>", "[SEP]": "<last>", "[MASK]": "<gap>", "[PAD]": "<void>", "[UNK]": "<what>"}
    settings = {
        "cls_token": "<first>", "sep_token": {"content": "<last>"}, "mask_token": "<gap>", "pad_token": "<void>",
        "unk_token": "<what>", "bos_token": None, "eos_token": "<never>",
    }  # fmt: skip
    names = sorted(trained.backend.get_vocab().items(), key=lambda item: item[1])
    ids = {other.get(name, name): number for name, number in names}
    backend = build_wordpiece(ids, normalizers.BertNormalizer(), unknown="<what>")
    folders = [
        write_vocabulary(
            TextTokenizer(backend), tmp_path / "old", {k: v for k, v in settings.items() if v != "<never>"}
        )
    ]
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        folders.append(tmp_path / name)
        folders[-1].mkdir()
        TextTokenizer(backend).save(folders[-1] / "tokenizer.json")
        (folders[-1] / name).write_text(json.dumps(settings))
    for folder in folders:
        text = TextTokenizer.load(folder)
        for made in (text, text.with_special_tokens(["<new>"]), text.with_template()):
            roles = ("pad", "unknown", "start", "end", "mask")
            assert [made.special_id(role) for role in roles] == [0, 1, 2, 3, 4], folder
            assert made.special_ids >= {0, 1, 2, 3, 4} and made.template == TokenTemplate((2,), (3,), (3,), 1)
            assert made.special_tokens_map() == {
                key: other[value] for key, value in trained.special_tokens_map().items()
            }
            assert made.encode([STORY]) == trained.encode([STORY])


def test_a_part_that_nothing_plays_has_no_id() -> None:
    for made in (
        TextTokenizer.train_lm_bpe([STORY], 300),
        TextTokenizer.train_sentence_bpe([STORY], 300),
        TextTokenizer.from_characters([STORY]),
    ):
        assert made.special_id("mask") is None
    assert TextTokenizer.train_sentence_bpe([STORY], 300).special_id("start") == 1 and TextTokenizer.train_sentence_bpe(
        [STORY], 300
    ).special_tokens_map() == {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    assert TextTokenizer.from_characters([STORY]).special_id("pad") is None
    assert TextTokenizer.train_lm_bpe([STORY], 300).special_id("end") == 299


def test_the_mask_may_be_written_in_a_text(trained: TextTokenizer, roberta: Path, tmp_path: Path) -> None:
    from transformers import BertTokenizer, RobertaTokenizer

    texts = ["the [MASK] sat", "[MASK]", "a[MASK][MASK] b [MASK]", "no gap", "", "[MASK]. the \n[MASK] [SEP]"]
    folder = write_vocabulary(trained, tmp_path)
    theirs = BertTokenizer.from_pretrained(folder)
    expected = theirs(texts[:-1], add_special_tokens=False)["input_ids"]
    assert trained.encode_masked(texts)[:-1] == expected
    assert trained.encode_masked(texts)[-1].count(4) == 2 and 3 not in trained.encode_masked(texts)[-1]
    made = TextTokenizer.load(roberta)
    gaps = [text.replace("[MASK]", "<mask>") for text in texts]
    other = RobertaTokenizer.from_pretrained(roberta, mask_token=AddedToken("<mask>", lstrip=True, special=True))
    assert made.encode_masked(gaps) == other(gaps, add_special_tokens=False)["input_ids"]
    assert TextTokenizer.train_sentence_bpe([STORY], 300).encode_masked(["a"]) == TextTokenizer.train_sentence_bpe(
        [STORY], 300
    ).encode(["a"])
