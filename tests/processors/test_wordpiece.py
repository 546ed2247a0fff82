"""WordPiece of BERT and byte-level BPE of RoBERTa: ids as in transformers, offsets, word indices and special tokens."""

from __future__ import annotations

import gzip
import json
import unicodedata
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, models, normalizers, processors

from data_files import refused
from regard.errors import DataError, SettingError
from regard.processors.tokenizer.token_text import TokenFormat, to_bytes
from regard.processors.tokenizer.tokenizer import TextTokenizer, TokenTemplate
from regard.processors.tokenizer.vocabulary import BERT_TOKENS, WORD_START, build_wordpiece
from tokenizer_files import (
    MARKED,
    PROSE,
    SHARED,
    STORY,
    TEXTS,
    check_places,
    make,
    plain,
    random_texts,
    same,
    theirs_of,
    train_words,
    write_folder,
    write_roberta,
    write_vocabulary,
)

TRAINED, CASED = make(), make(lower=False)
PUBLISHED = SHARED / "vocab/bert-base-uncased"
MASK: Any = {"mask_token": AddedToken("<mask>", lstrip=True, special=True)}
"""RoBERTa's mask token as in the published tokenizer.json; the class of transformers 5 has another default."""


def framed(template: TokenTemplate, first: Sequence[int], second: Sequence[int] | None = None) -> tuple[list[int], ...]:
    """Token ids of a text or a pair with the special tokens of the template, and the token types."""
    if second is None:
        ids = [*template.start, *first, *template.end]
        return ids, [0] * len(ids)
    before, after = [*template.start, *first, *template.separator], [*second, *template.end]
    return [*before, *after], [0] * len(before) + [template.second_type] * len(after)


def unknowns(text: TextTokenizer, texts: Sequence[str]) -> Counter[str]:
    """Substrings that become the unknown token, with counts."""
    token, rows = text.special_id("unknown"), zip(texts, text.encode_offsets(texts), strict=True)
    return Counter(one[a:b] for one, row in rows for i, (a, b) in zip(*row, strict=True) if i == token)


@pytest.fixture(scope="module")
def roberta(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_roberta(tmp_path_factory.mktemp("roberta"))


def as_letters_say(folder: Path, texts: Sequence[str], lower: bool) -> list[list[int]]:
    """Ids of the legacy Python tokenizer of BERT, which shares no code with tokenizers."""
    from transformers.models.bert.tokenization_bert_legacy import BertTokenizerLegacy

    other = BertTokenizerLegacy.from_pretrained(folder, do_lower_case=lower, split_special_tokens=True)
    return [other.convert_tokens_to_ids(other._tokenize(text, split_special_tokens=True)) for text in texts]


def settled(points: range) -> list[str]:
    """Characters whose Unicode category has not changed since version 3.2 (2002)."""
    old = unicodedata.ucd_3_2_0
    letters = [chr(point) for point in points]
    return [c for c in letters if (kind := old.category(c)) == unicodedata.category(c) and kind not in ("Cn", "Cs")]


@pytest.mark.every(2)
@pytest.mark.parametrize("settings", [
    {}, {"do_lower_case": False}, {"do_lower_case": True, "strip_accents": False}, {"tokenize_chinese_chars": False},
    {"do_lower_case": False, "strip_accents": True}, {"do_lower_case": None, "strip_accents": None},
])  # fmt: skip
def test_a_vocabulary_is_read_as_transformers_reads_it(tmp_path: Path, settings: dict[str, Any]) -> None:
    text = TRAINED if settings.get("do_lower_case", True) else CASED
    folder = write_vocabulary(text, tmp_path, settings)
    made = TextTokenizer.load(folder)
    texts = [*TEXTS, *random_texts(1000, seed=1)]
    theirs = theirs_of(folder, **({} if settings.get("do_lower_case", True) is not None else {"do_lower_case": True}))
    same(texts, made.encode(texts), theirs(texts, add_special_tokens=False)["input_ids"])
    assert made.size == len(theirs) == text.size and made.special_ids == {0, 1, 2, 3, 4}
    if len(settings) < 2 and "tokenize_chinese_chars" not in settings:
        assert made.encode(texts) == text.encode(texts)
        texts = [*(f"a{c}b 1{c} {c}" for c in settled(range(0x3400))), *PROSE[:4], STORY]
        if text is CASED:  # the legacy tokenizer composes accents first if it keeps them
            texts = [unicodedata.normalize("NFC", item) for item in texts]
        same(texts, made.encode(texts), as_letters_say(folder, texts, settings.get("do_lower_case", True)))


def test_the_published_vocabulary_of_bert_gives_the_published_ids(tmp_path: Path) -> None:
    if not PUBLISHED.is_dir():
        pytest.skip(f"the published vocabulary is not there: {PUBLISHED}")
    made = TextTokenizer.load(PUBLISHED)
    (tmp_path / "vocab.txt").write_bytes(gzip.decompress((PUBLISHED / "vocab.txt.gz").read_bytes()))
    theirs = theirs_of(tmp_path)
    assert made.size == len(theirs) == 30522
    assert made.encode(["Hello, World! Résumé"]) == [[7592, 1010, 2088, 999, 13746]]
    roles = ("pad", "unknown", "start", "end", "mask")
    assert [made.special_id(role) for role in roles] == [0, 100, 101, 102, 103]
    points = [f"a{chr(p)}b 1{chr(p)} {chr(p)}" for p in range(0x20000) if not 0xD800 <= p < 0xE000][::5]
    texts = [*TEXTS, *random_texts(3000, seed=2), *points, STORY]
    same(texts, made.encode(texts), theirs(texts, add_special_tokens=False)["input_ids"])
    texts = [*(f"a{c}b 1{c} {c}" for c in settled(range(0x2000, 0xA000))[::3]), *PROSE[:4]]
    same(texts, made.encode(texts), as_letters_say(tmp_path, texts, lower=True))
    check_places(plain(made), [*TEXTS, *random_texts(500, seed=3)])


def test_roberta_is_read_as_transformers_reads_it(roberta: Path) -> None:
    made, theirs = TextTokenizer.load(roberta), theirs_of(roberta, "RobertaTokenizer", **MASK)
    texts = [*TEXTS, *random_texts(500, seed=4)]
    same(texts, made.encode(texts), theirs(texts, add_special_tokens=False)["input_ids"])
    made = plain(made)
    assert made.decode(made.encode(texts)) == texts and made.size == len(theirs)
    last = made.size - 1
    assert made.special_ids == {0, 1, 2, 3, last} and made.token_format is TokenFormat.BYTES
    assert [made.special_id(role) for role in ("start", "pad", "end", "unknown", "mask")] == [0, 1, 2, 3, last]
    assert made.decode([[0, *made.encode(["the cat"])[0], last, 2]]) == ["the cat"]
    # so that other libraries tokenize "the <mask>" as in training
    assert made.backend.get_added_tokens_decoder()[last].lstrip


def test_training_gives_one_vocabulary_of_frequent_words_and_possible_pieces(roberta: Path) -> None:
    texts = [STORY, *PROSE, *MARKED]
    one = TextTokenizer.train_wordpiece(texts, 200)
    for _ in range(3):
        assert TextTokenizer.train_wordpiece(iter(texts), 200).backend.to_str() == one.backend.to_str()
    assert one.size == 200 < TRAINED.size and TextTokenizer.train_wordpiece(iter(texts), 90).size == 90
    for made in (one, TRAINED):
        assert [made.backend.token_to_id(name) for name in BERT_TOKENS] == [0, 1, 2, 3, 4]
    ids = TRAINED.encode(["The CAT sat"])[0]
    assert [TRAINED.id_to_token(i) for i in ids] == ["the", "cat", "sat"]
    assert TRAINED.decode([ids]) == ["the cat sat"]
    assert CASED.decode(CASED.encode(["The Katze saß"])) == ["The Katze saß"]
    rare = TRAINED.encode(["catmats"])[0]
    assert len(rare) > 1 and TRAINED.decode([[2, *rare, 3]]) == ["catmats"]
    assert TRAINED.decode(TRAINED.encode(["Once more: the cat, 4 mats!"])) == ["once more : the cat, 4 mats!"]
    names = set(TRAINED.backend.get_vocab())
    assert {"猫", ".", ",", "a", "##a"} <= names
    assert not {"##猫", "##.", "##,", "##", "", WORD_START} & names
    letters = {c for name in names - {*BERT_TOKENS} for c in name.removeprefix("##")}
    assert letters <= {c for text in (STORY, *PROSE, *MARKED) for c in TRAINED.backend.normalizer.normalize_str(text)}
    ids = [2, *TRAINED.encode(["the cats 猫 ☃"])[0], 4, 3]
    assert TRAINED.display_tokens(ids) == ["[CLS]", "the", "cat", "·s", "猫", "[UNK]", "[MASK]", "[SEP]"]
    made = TextTokenizer.load(roberta)
    assert made.display_tokens([0, *made.encode(["the cat"])[0], 2]) == ["<s>", "the", "␣cat", "</s>"]


def test_letters_that_never_occurred_are_unknown_and_nothing_to_learn_from_is_refused() -> None:
    assert unknowns(TRAINED, [STORY]).total() == 0
    found = unknowns(TRAINED, ["the Ⴀcat", "a ☃ and ☃☃", "x" * 101])
    assert found == {"Ⴀcat": 1, "☃": 1, "☃☃": 1, "x" * 101: 1} and found.total() == 4
    rare = [chr(0x4E00 + number) for number in range(300)]
    small = TextTokenizer.train_wordpiece([" ".join(rare), "the cat sat on the mat " * 20], 50)
    assert small.size <= 50 and unknowns(small, ["the cat sat"]).total() == 0
    assert small.backend.token_to_id("cat") is not None
    assert unknowns(small, rare).total() > 280
    # the most frequent ones
    assert unknowns(TextTokenizer.train_wordpiece(["0123456789 abcdefghijk", "猫 鳥 " * 20], 20), ["猫鳥"]).total() == 0
    refused("character", TextTokenizer.train_wordpiece, ["", " \n", "\x00"], 100)
    refused("small", TextTokenizer.train_wordpiece, [STORY], 6, error=SettingError)
    refused("character", TextTokenizer.train_wordpiece, ["caf\udce9"], 100)
    for call in ("encode", "encode_offsets"):
        refused("character", getattr(TextTokenizer.train_wordpiece([STORY], 100), call), ["caf\udce9"])


@pytest.mark.parametrize("kind", ["bert", "roformer", "longformer", "roberta", "BertTokenizer", "RobertaTokenizer"])
def test_rows_equal_transformers_saved_by_either_library(roberta: Path, tmp_path: Path, kind: str) -> None:
    from transformers import AutoTokenizer

    made = TextTokenizer.load(roberta) if kind in ("longformer", "roberta", "RobertaTokenizer") else TRAINED
    folder, ours, texts = tmp_path / "saved", kind.islower(), [text for text in TEXTS if text]
    if ours:
        theirs = AutoTokenizer.from_pretrained(write_folder(made.with_template(), folder, kind))
        texts = [text for text in texts if "[" not in text and "<" not in text]
    else:
        place, more = (write_vocabulary(TRAINED, tmp_path), {}) if made is TRAINED else (roberta, MASK)
        theirs = theirs_of(place, kind, **more)
        theirs.save_pretrained(folder)
    again, ids = TextTokenizer.load(folder), made.encode(texts)
    for second, others in ((None, [None] * len(ids)), (texts[::-1], ids[::-1])):
        found = theirs(texts, second, return_token_type_ids=True)
        rows = [framed(made.template, *pair) for pair in zip(ids, others, strict=True)]
        same(texts, list(zip(found["input_ids"], found["token_type_ids"], strict=True)), rows)
    names = {"mask": "mask", "pad": "pad", "cls": "start", "sep": "end"}
    assert all(getattr(theirs, f"{name}_token_id") == made.special_id(role) for name, role in names.items())  # type: ignore[arg-type]
    assert again.encode(texts) == ids and again.encode_offsets(texts) == made.encode_offsets(texts)
    assert again.template == made.template and again.special_tokens_map() == made.special_tokens_map()
    assert again.special_ids == made.special_ids and again.decode(ids) == made.decode(ids)
    assert again.with_template() is again and (not ours or again.fingerprint() == made.fingerprint())


def test_a_published_frame_is_kept(roberta: Path) -> None:
    odd = "[CLS]:0 [CLS]:0 $A:0 [SEP]:0 $B:1 [MASK]:1"
    made = TRAINED.with_special_tokens(())
    known = [(token, made.backend.token_to_id(token)) for token in ("[CLS]", "[SEP]", "[MASK]")]
    made.backend.post_processor = processors.TemplateProcessing("[CLS] [CLS] $A [MASK]", odd, known)
    assert made.template == TokenTemplate((2, 2), (3,), (4,), 1) and made.with_template() is made
    assert framed(made.template, [9], [8]) == ([2, 2, 9, 3, 8, 4], [0, 0, 0, 0, 1, 1])
    plain, trims = TextTokenizer.load(roberta), TextTokenizer.load(roberta)
    trims.backend.post_processor = processors.ByteLevel()  # adds no special tokens
    assert plain.template == trims.template == TokenTemplate((0,), (2, 2), (2,), 0)
    assert trims.with_template() is not trims
    longformer = TokenTemplate((2,), (3, 3), (3,), 0)  # the template of the model may differ from the tokenizer
    for text in (TRAINED, TRAINED.with_template(), made):
        again = text.with_template(longformer)
        assert again.template == longformer and again.with_template() is again
        assert again.backend.encode("the", "cat").ids == framed(again.template, *again.encode(["the", "cat"]))[0]
    bare = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    assert framed(TextTokenizer(bare).template, [0], [0]) == ([0, 0], [0, 0])


def test_settings_of_a_tokenizer_apply_as_in_transformers(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    for number, kind in enumerate(("BertTokenizer", "BertTokenizerFast", "PreTrainedTokenizerFast")):
        folder = write_folder(CASED.with_template(), tmp_path / str(number), "bert")
        settings = {"tokenizer_class": kind, "do_lower_case": True, "strip_accents": None, **CASED.special_tokens_map()}
        file = json.loads((folder / "tokenizer.json").read_text("utf-8"))
        file["normalizer"]["strip_accents"] = False
        (folder / "tokenizer.json").write_text(json.dumps(file))
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
        right = AutoTokenizer.from_pretrained(folder)(["The Éclair CAT"], add_special_tokens=False)["input_ids"]
        assert TextTokenizer.load(folder).encode(["The Éclair CAT"]) == right
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer", "do_lower_case": "yes"}')
    refused("'yes'", TextTokenizer.load, folder)


def test_roformer_is_read_by_characters_and_that_is_noted(tmp_path: Path) -> None:
    settings = {"tokenizer_class": "RoFormerTokenizer", "do_lower_case": True, **TRAINED.special_tokens_map()}
    old = write_vocabulary(TRAINED, tmp_path / "old", settings)
    new = write_folder(TRAINED, tmp_path / "new", "roformer")
    file = json.loads((new / "tokenizer.json").read_text())
    file["normalizer"]["handle_chinese_chars"] = False  # as saved, without the word segmentation
    (new / "tokenizer.json").write_text(json.dumps(file))
    (new / "tokenizer_config.json").write_text(json.dumps(settings))
    for folder in (old, new):
        made = TextTokenizer.load(folder)
        assert "jieba" in made.notes[0] and made.encode(["猫猫"]) == [[TRAINED.backend.token_to_id("猫")] * 2]
    assert TRAINED.notes == TextTokenizer.load(write_folder(made, tmp_path / "ours", "roformer")).notes == []


BROKEN = {
    "vocab.txt": (
        ("[PAD]\n[UNK]\na\nb\na\n", "duplicate token 'a' .first on line 3", 5), ("", "has no '\\[UNK\\]'", None),
        ("a\nb\n", "has no '\\[UNK\\]'", None), (b"\xff\xfe", "not UTF-8", None),
    ),
    "tokenizer_config.json": (
        ('{"do_basic_tokenize": false}', "do_basic_tokenize=False", None), ("{", "invalid JSON", 1),
        ('{"word_tokenizer_type": "mecab"}', "word_tokenizer_type='mecab'", None),
        ('{"strip_accents": 3}', "strip_accents must be true or false, got 3", None),
        ('{"added_tokens_decoder": 4}', "added tokens", None),
    ),
    "added_tokens.json": (('{"<d>": 3}', "must be the integers|'<d>' is", None), ('{"a": 1}', "the id of 'a' is", None)),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_folder_is_named(tmp_path: Path, name: str) -> None:
    for number, (content, problem, line) in enumerate(BROKEN[name]):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "vocab.txt").write_text("[PAD]\n[UNK]\na\nb\n##b\n")
        assert TextTokenizer.load(folder).encode(["ab c"]) == [[2, 4, 1]]
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        with pytest.raises(DataError, match=problem) as caught:
            TextTokenizer.load(folder)
        assert str(folder) in str(caught.value) and caught.value.line == line


def test_a_vocabulary_may_be_zipped_or_named_itself_and_added_tokens_follow_it(tmp_path: Path) -> None:
    content = b"[PAD]\r\n[UNK]\r\na\r\n##b\r\n\r\n"
    (tmp_path / "vocab.txt").write_bytes(content)
    made = TextTokenizer.load(tmp_path / "vocab.txt")
    assert made.size == 4 and made.encode(["ab"]) == [[2, 3]] and TextTokenizer.find(tmp_path) is not None
    (tmp_path / "vocab.txt.gz").write_bytes(gzip.compress(content))
    (tmp_path / "vocab.txt").unlink()
    assert TextTokenizer.load(tmp_path).backend.to_str() == made.backend.to_str()
    (tmp_path / "vocab.txt.gz").unlink()
    assert TextTokenizer.find(tmp_path) is None
    refused(r"merges\.txt", TextTokenizer.load, tmp_path)
    folder = write_vocabulary(TRAINED, tmp_path, {"additional_special_tokens": ["<x>"]})
    (folder / "added_tokens.json").write_text(json.dumps({"<y>": TRAINED.size}))
    made, theirs = TextTokenizer.load(folder), theirs_of(folder)
    assert [made.backend.token_to_id("<y>"), made.backend.token_to_id("<x>")] == [TRAINED.size, TRAINED.size + 1]
    assert made.size == len(theirs)
    assert made.encode(["the <y> cat <x>"]) == theirs(["the <y> cat <x>"], add_special_tokens=False)["input_ids"]


def test_pieces_and_characters_have_the_offsets_of_their_characters() -> None:
    texts = [*TEXTS, *random_texts(500, seed=5)]
    check_places(plain(TRAINED), texts)
    check_places(plain(CASED), texts)
    ((_, spans),) = TRAINED.encode_offsets(["  re\u0301sume\u0301 ❤️."])
    assert (spans[0][0], spans[-2], spans[-1]) == (2, (11, 13), (13, 14)) and max(b for _, b in spans[:-2]) == 10
    made = TextTokenizer.from_characters([STORY])
    assert made.encode_offsets(["猫a ", ""]) == [(made.encode(["猫a "])[0], [(0, 1), (1, 2), (2, 3)]), ([], [])]


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
    for made in map(plain, (TextTokenizer.load(roberta), spaced, trimming)):
        for given, (ids, spans) in zip(texts, made.encode_offsets(texts), strict=True):
            assert [ids] == made.encode([given])
            expected = places_by_bytes(made, given, ids)
            for one, other in zip(spans, expected, strict=True):
                assert one == other or (other == (-1, -1) and one[0] == one[1]), (given, one, other)
    places = [spans for _, spans in spaced.encode_offsets(["鳥 cat", "\n mat"])]
    assert places == [[(0, 0), (0, 1), (0, 1), (0, 1), (2, 5)], [(1, 1), (1, 1), (2, 5)]]


SENTENCES = [
    ["The", "cats'", "naïve", "façade", "-", "(猫が)", "don't", "U.S.", "1,000"], [], ["x"], ["a b", " c", "d "],
    [*STORY.split()[:40]], ["e\u0301", "❤️", "x" * 101, "[MASK]", "</s>", "<mask>"],
]  # fmt: skip


def check_words(made: TextTokenizer, theirs: Any, sentences: list[list[str]]) -> None:
    for sentence, (ids, numbers) in zip(sentences, made.encode_words(sentences), strict=True):
        expected = theirs(sentence, is_split_into_words=True, add_special_tokens=False) if sentence else None
        assert ids == (expected["input_ids"] if expected else [])
        assert numbers == (expected.word_ids() if expected else [])


def test_separate_words_are_split_as_in_transformers_and_every_word_has_a_token(roberta: Path, tmp_path: Path) -> None:
    draw = [text.split() for text in random_texts(300, seed=7)]
    folder = write_vocabulary(TRAINED, tmp_path)
    left = [[word for word in words if TRAINED.encode([word])[0]] for words in draw]
    check_words(TextTokenizer.load(folder), theirs_of(folder), [*SENTENCES, *left])
    theirs = theirs_of(roberta, "RobertaTokenizer", add_prefix_space=True)
    check_words(TextTokenizer.load(roberta), theirs, [*SENTENCES, *draw])
    words = ["the", "\x00", "cat", "", "\u200d\u200b"]
    ids, numbers = TRAINED.encode_words([words])[0]
    the, cat = TRAINED.backend.token_to_id("the"), TRAINED.backend.token_to_id("cat")
    assert ids == [the, 1, cat, 1, 1] and numbers == [0, 1, 2, 3, 4]
    made = TextTokenizer.load(roberta)
    ids, numbers = made.encode_words([words])[0]
    assert sorted(set(numbers)) == [0, 1, 2, 3, 4] and made.decode([ids]) == [" the \x00 cat  \u200d\u200b"]
    refused("no token for the word ''", TextTokenizer.from_characters([STORY]).encode_words, [["a", ""]])


def test_words_begin_where_no_piece_continues_at_a_space_or_after_a_marker(roberta: Path) -> None:
    ids, numbers = TRAINED.encode_words([["catmats", ",", "猫", "sats"]])[0]
    starts = TRAINED.starts_word([2, *ids, 3])
    assert starts.dtype == bool and starts[[0, -1]].all()
    assert starts[1:-1].tolist() == [at == 0 or numbers[at] != numbers[at - 1] for at in range(len(ids))]
    assert 1 < len(ids) - 3 < len(ids) and TRAINED.starts_word([]).tolist() == []
    made = TextTokenizer.load(roberta)
    text = "the catmats, wasn't\nOnce\tmore 猫"
    ids, spans = made.encode_offsets([text])[0]
    starts = made.starts_word([0, *ids, 2])[1:-1]
    words = {text[spans[at][0] :].split()[0] for at in np.flatnonzero(starts) if spans[at][0] < spans[at][1]}
    assert words == {"the", "catmats,", "wasn't", "Once", "more", "猫"}
    assert starts.sum() < len(ids) and made.starts_word(made.encode(["catmats"])[0]).tolist()[0]
    made = TextTokenizer(train_words())
    ids = [made.backend.token_to_id(name) for name in ("cat</w>", "m", "a", "t</w>", "<unk>", "the</w>")]
    assert made.starts_word([i for i in ids if i is not None]).tolist() == [True, True, False, False, True, True]
    letters = TextTokenizer.from_characters([STORY])
    assert letters.starts_word(letters.encode(["a cat"])[0]).tolist() == [True, True, True, False, False]


def test_special_tokens_are_found_by_the_names_in_a_checkpoint(tmp_path: Path) -> None:
    other = {"[CLS]": "<first>", "[SEP]": "<last>", "[MASK]": "<gap>", "[PAD]": "<void>", "[UNK]": "<what>"}
    settings = {
        "cls_token": "<first>", "sep_token": {"content": "<last>"}, "mask_token": "<gap>", "pad_token": "<void>",
        "unk_token": "<what>", "bos_token": None, "eos_token": "<never>",
    }  # fmt: skip
    ids = {other.get(name, name): number for name, number in TRAINED.backend.get_vocab().items()}
    backend = build_wordpiece(ids, normalizers.BertNormalizer(), unknown="<what>")
    known = {key: value for key, value in settings.items() if value != "<never>"}
    folders = [write_vocabulary(TextTokenizer(backend), tmp_path / "old", known)]
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
            names = TRAINED.special_tokens_map()
            assert made.special_tokens_map() == {key: other[value] for key, value in names.items()}
            assert made.encode([STORY]) == TRAINED.encode([STORY])


def test_a_part_that_nothing_plays_has_no_id() -> None:
    language, characters = TextTokenizer.train_lm_bpe([STORY], 340), TextTokenizer.from_characters([STORY])
    sentences = TextTokenizer.train_sentence_bpe([STORY], 300)
    assert not any(made.special_id("mask") for made in (language, sentences, characters))
    names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    assert sentences.special_id("start") == 1 and sentences.special_tokens_map() == names
    assert characters.special_id("pad") is None and language.special_id("end") == 339


def test_the_mask_may_be_written_in_a_text(roberta: Path, tmp_path: Path) -> None:
    language = TextTokenizer.train_lm_bpe([STORY], 340)
    from transformers import BertTokenizer, RobertaTokenizer

    texts = ["the [MASK] sat", "[MASK]", "a[MASK][MASK] b [MASK]", "no gap", "", "[MASK]. the \n[MASK] [SEP]"]
    folder = write_vocabulary(TRAINED, tmp_path)
    theirs = BertTokenizer.from_pretrained(folder)
    expected = theirs(texts[:-1], add_special_tokens=False)["input_ids"]
    made = plain(TextTokenizer.load(folder))
    assert TRAINED.encode_masked(texts) == theirs(texts, add_special_tokens=False)["input_ids"]
    assert made.encode_masked(texts)[:-1] == expected
    assert made.encode_masked(texts)[-1].count(4) == 2 and 3 not in made.encode_masked(texts)[-1]
    made = plain(TextTokenizer.load(roberta))
    gaps = [text.replace("[MASK]", "<mask>") for text in texts]
    other = RobertaTokenizer.from_pretrained(roberta, **MASK)
    right = other(gaps, add_special_tokens=False)["input_ids"]
    assert made.encode_masked(gaps) == right == TextTokenizer.load(roberta).encode_masked(gaps)
    assert language.encode_masked(["a"]) == language.encode(["a"])
