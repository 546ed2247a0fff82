"""Tokenizers of bytes and characters, trained here and loaded from Hugging Face checkpoints; streamed text."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import pytest
import tiktoken
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from data_files import refused
from regard.errors import DataError, SettingError
from regard.processors.tokenizer import tokenizer as text_module
from regard.processors.tokenizer.token_text import StreamDecoder, to_bytes
from regard.processors.tokenizer.tokenizer import END_OF_TEXT, TextTokenizer
from tokenizer_files import HARD, PROSE, SHARED, STORY, plain, publish, random_texts, train_words

LANGUAGE = plain(TextTokenizer.train_lm_bpe([STORY], 340))
CHARACTERS, WORDS = plain(TextTokenizer.from_characters([STORY])), plain(TextTokenizer(train_words()))
SPLIT = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
"""Regular expression of GPT-2, for an independent tokenizer."""


def other_hands(ids: dict[str, int]) -> tiktoken.Encoding:
    """tiktoken with the vocabulary of a checkpoint, without network access."""
    ranks = {to_bytes(name): number for name, number in ids.items() if name != END_OF_TEXT}
    return tiktoken.Encoding("ours", pat_str=SPLIT, mergeable_ranks=ranks, special_tokens={END_OF_TEXT: len(ranks)})


def same_as_tiktoken(made: TextTokenizer, other: tiktoken.Encoding, texts: Sequence[str]) -> None:
    found, expected = made.encode(texts), [other.encode_ordinary(text) for text in texts]
    assert [pair for pair in zip(texts, found, expected, strict=True) if pair[1] != pair[2]] == []
    assert made.decode(found) == list(texts)


def test_any_text_comes_back_exactly_from_bytes_and_from_characters_of_its_alphabet() -> None:
    texts = [*HARD, *random_texts(2000, seed=1)]
    assert LANGUAGE.decode(LANGUAGE.encode(texts)) == texts
    texts = [*HARD, *random_texts(500, seed=2)]
    made = plain(TextTokenizer.from_characters(iter(texts)))
    ids = made.encode(texts)
    assert made.decode(ids) == texts and [len(row) for row in ids] == [len(text) for text in texts]
    assert made.size == len(set("".join(texts))) + 1


def test_the_end_of_text_has_the_last_id_and_is_not_found_in_plain_text() -> None:
    everything = plain(TextTokenizer.from_characters([END_OF_TEXT, STORY]))
    for made in (LANGUAGE, everything, CHARACTERS):
        end = made.backend.token_to_id(END_OF_TEXT)
        assert end == made.size - 1 and made.decode([[end]]) == [""]
    for made in (LANGUAGE, everything):
        assert made.size - 1 not in made.encode([f"a{END_OF_TEXT}a"])[0]
    assert LANGUAGE.size == 340
    assert CHARACTERS.backend.token_to_id("\t") == 0 and CHARACTERS.backend.token_to_id("\n") == 1


def test_characters_that_never_occurred_and_halves_of_characters_are_refused() -> None:
    for texts in (["a", "the € cat €"], ["€ ₤ ☃ €"]):
        refused("character", CHARACTERS.encode, texts)
    for made in (LANGUAGE, CHARACTERS):
        with pytest.raises(DataError):
            made.encode(["fine", "caf\udce9"])
    assert CHARACTERS.backend.encode(STORY, add_special_tokens=False).ids == CHARACTERS.encode([STORY])[0]
    with pytest.raises(Exception, match="UNK"):  # without an unknown token in both libraries
        CHARACTERS.backend.encode("☃")


def test_nothing_to_make_a_vocabulary_of_is_refused() -> None:
    refused("character", TextTokenizer.from_characters, ["", ""])
    refused("257", TextTokenizer.train_lm_bpe, [STORY], 256, error=SettingError)
    for name, *size in (("from_characters",), ("train_lm_bpe", 300), ("train_sentence_bpe", 300)):
        refused("character", getattr(TextTokenizer, name), ["caf\udce9"], *size)
    assert TextTokenizer.train_lm_bpe([], 300).size == 257


def test_a_load_is_bounded_by_texts_and_by_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [*HARD, *random_texts(100, seed=3)]
    whole = LANGUAGE.encode(texts)
    monkeypatch.setattr(text_module, "ENCODE_BATCH", 7)
    monkeypatch.setattr(text_module, "MAX_BATCH_CHARS", 90)
    assert LANGUAGE.encode(texts) == whole and LANGUAGE.encode([]) == []
    sizes: list[int] = []
    texts = ["a" * 50] * 5 + ["b"] * 20
    assert not list(LANGUAGE._encode_batches(texts, lambda load, add_special_tokens: sizes.append(len(load)) or []))
    assert sizes == [2, 2, 7, 7, 7]


def test_a_published_vocabulary_splits_as_tiktoken_and_transformers_do(tmp_path: Path) -> None:
    from transformers import GPT2Tokenizer

    folder = publish(LANGUAGE, tmp_path / "gpt2")
    made = plain(TextTokenizer.load(folder))
    texts = [*PROSE, *HARD, *random_texts(1000, seed=4), STORY]
    same_as_tiktoken(made, other_hands(json.loads((folder / "vocab.json").read_text())), texts)
    theirs = GPT2Tokenizer.from_pretrained(folder)
    theirs.split_special_tokens = theirs._tokenizer.encode_special_tokens = True
    assert theirs(texts)["input_ids"] == made.encode(texts) == LANGUAGE.encode(texts)
    assert made.size == LANGUAGE.size == len(theirs) and made.backend.token_to_id(END_OF_TEXT) == theirs.eos_token_id
    ids = made.encode(["the cat"])[0]
    assert made.decode([[made.size - 1, *ids]]) == ["the cat"] == [theirs.decode(ids)]


def test_the_published_vocabulary_of_gpt2_splits_as_tiktoken_does() -> None:
    folder = SHARED / "vocab/gpt2"
    if not folder.is_dir():
        pytest.skip(f"the published vocabulary is not there: {folder}")
    made = plain(TextTokenizer.load(folder))
    other = other_hands(json.loads(gzip.decompress((folder / "encoder.json.gz").read_bytes())))
    assert made.size == other.n_vocab == 50257 and made.backend.token_to_id(END_OF_TEXT) == other.eot_token == 50256
    assert made.encode(["Hello world"]) == [[15496, 995]]
    files = [SHARED / "shakespeare/input.txt.gz", SHARED / "wikitext-2/wiki.valid.raw.gz"]
    long = [gzip.decompress(file.read_bytes()).decode()[:200_000] for file in files]
    points = ["a" + chr(point) + "b 1" + chr(point) for point in range(0x3400) if not 0xD800 <= point < 0xE000]
    same_as_tiktoken(made, other, [*PROSE, *HARD, *random_texts(2000, seed=5), *points, STORY, *long])


def test_words_are_split_as_transformers_does(tmp_path: Path) -> None:
    from transformers import OpenAIGPTTokenizer

    folder = publish(WORDS, tmp_path / "gpt1")
    made, theirs = plain(TextTokenizer.load(folder)), OpenAIGPTTokenizer.from_pretrained(folder)
    theirs.split_special_tokens = theirs._tokenizer.encode_special_tokens = True
    texts = [*PROSE, *HARD, *random_texts(500, seed=6), STORY, "The <unk> CAT"]
    ids = made.encode(texts)
    assert ids == theirs(texts)["input_ids"] and made.size == len(theirs) == WORDS.size
    assert made.decode(ids) == theirs.batch_decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    assert made.backend.token_to_id("<unk>") in made.encode(["☃"])[0]
    assert made.decode(made.encode(["The CAT's mat"])) == ["the cat ' s mat"]


def test_a_saved_tokenizer_is_the_same_in_transformers(tmp_path: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    assert TextTokenizer.find(tmp_path) is None
    published, sentences = TextTokenizer.load(publish(WORDS, tmp_path)), TextTokenizer.train_sentence_bpe([STORY], 300)
    for made in (LANGUAGE, CHARACTERS, published, sentences):
        made.save(tmp_path / "tokenizer.json")
        theirs = PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
        lines = STORY.split("\n")[:5]
        assert theirs(lines, add_special_tokens=False)["input_ids"] == made.encode(lines)
        again = TextTokenizer.find(tmp_path)
        assert again is not None
        again = plain(again) if made.split_special_tokens else again  # saved in tokenizer_config.json, not in this file
        assert again.encode(lines) == made.encode(lines)
        assert again.fingerprint() == made.fingerprint() and again.size == made.size
        if made is CHARACTERS:
            refused("☃", again.encode, ["☃"])


@pytest.mark.parametrize("names", [("encoder.json", "vocab.bpe"), ("vocab.json", "merges.txt")])
@pytest.mark.parametrize("zipped", [False, True])
def test_releases_have_other_file_names_or_are_damaged(tmp_path: Path, names: tuple[str, str], zipped: bool) -> None:
    publish(LANGUAGE, tmp_path, *names)
    if zipped:
        for name in names:
            (tmp_path / f"{name}.gz").write_bytes(whole := gzip.compress((tmp_path / name).read_bytes()))
            (tmp_path / name).unlink()
        for content in (b"none", whole[:-20], whole[:60] + b"xx" + whole[62:], whole):
            with pytest.raises(DataError, match=names[1]) if content != whole else nullcontext():
                (tmp_path / f"{names[1]}.gz").write_bytes(content)
                TextTokenizer.load(tmp_path)
    found = TextTokenizer.find(tmp_path)
    assert found is not None and found.encode([STORY]) == LANGUAGE.encode([STORY])
    next(tmp_path.iterdir()).unlink()
    assert TextTokenizer.find(tmp_path) is None
    refused(r"merges\.txt", TextTokenizer.load, tmp_path)


NEWER = {
    "special_tokens_map.json": {"bos_token": "<never>"}, "added_tokens.json": {"<never>": 342},
    "tokenizer_config.json": {
        "add_prefix_space": True, "unk_token": {"__type": "AddedToken", "content": END_OF_TEXT},
        "additional_special_tokens": ["<c>"], "added_tokens_decoder": {
            f"{340 + n}": {"content": name, "special": name != "<d>"} for n, name in ((1, "<b>"), (0, "<a>"), (2, "<d>"))
        },
    },
}  # fmt: skip
OLDER = {
    "special_tokens_map.json": {
        "bos_token": "<a>", "eos_token": {"content": END_OF_TEXT}, "cls_token": "<b>", "additional_special_tokens": ["<c>"],
    },
    "tokenizer_config.json": {"add_prefix_space": True, "bos_token": "<never>"},
    "added_tokens.json": {"<d>": 342, "<b>": 341, "<a>": 340},
}  # fmt: skip


@pytest.mark.parametrize("files", [NEWER, OLDER])
def test_special_tokens_are_read_from_where_they_are_written(tmp_path: Path, files: dict[str, object]) -> None:
    from transformers import GPT2Tokenizer

    publish(LANGUAGE, tmp_path)
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    made, theirs = TextTokenizer.load(tmp_path), GPT2Tokenizer.from_pretrained(tmp_path)
    names = ["<a>", "<b>", "<d>", "<c>"]
    assert [made.backend.token_to_id(name) for name in names] == [340, 341, 342, 343]
    assert made.size == len(theirs) == 344
    assert theirs.convert_tokens_to_ids(names) == [340, 341, 342, 343]
    assert made.special_ids == TextTokenizer(theirs.backend_tokenizer).special_ids == {339, 340, 341, 343}
    assert made.encode(["the <d> cat"]) == theirs(["the <d> cat"])["input_ids"]
    assert made.encode(["the"]) == LANGUAGE.encode([" the"])


def test_text_that_has_no_token_is_not_left_out_in_silence(tmp_path: Path) -> None:
    ids = {"l": 0, "o": 1, "w": 2, "Ġ": 3, "lo": 4}
    (tmp_path / "merges.txt").write_text("#version: 0.2\nl o\n")
    (tmp_path / "vocab.json").write_text(json.dumps(ids))
    refused(r"endoftext", TextTokenizer.load, tmp_path)
    (tmp_path / "vocab.json").write_text(json.dumps({**ids, "<unk>": 5}))
    (tmp_path / "special_tokens_map.json").write_text('{"unk_token": "<unk>"}')
    assert TextTokenizer.load(tmp_path).encode(["low x"]) == [[4, 2, 3, 5]]


BROKEN = {
    "vocab.json": (
        "", "[]", '{"a": ', '{"a": "0"}', '{"a": 0, "b": 0, "Ġ": 1}', '{"Ġ": 7}', '{"a": 0}', '{"Ġ": 0, "a</w>": 1}', b"\xff",
    ),
    "merges.txt": ("a\n", "#version: 0.2\nt h e\n", "t  h\n", "☃ ☃\n", b"\xff\xfe"),
    "tokenizer_config.json": ("{", '{"added_tokens_decoder": 3}', '{"added_tokens_decoder": {"x": {"content": "y"}}}'),
    "special_tokens_map.json": ("[1]",),
    "added_tokens.json": ('{"<d>": "x"}', '{"<d>": 5}', '{"<d>": 1000}', '{"Ġ": 2}'),
    "tokenizer.json": ("", "{}", '{"version": "1.0"}'),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_or_archive_is_named(tmp_path: Path, name: str) -> None:
    for number, content in enumerate(BROKEN[name]):
        folder = publish(LANGUAGE, tmp_path / str(number))
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        where = {"added_tokens.json": "", "tokenizer_config.json": ""}.get(name, name)
        with pytest.raises(DataError) as caught:
            TextTokenizer.load(folder)
        assert f"{folder}" in str(caught.value) and where in str(caught.value)


def test_added_tokens_are_special_and_come_last(tmp_path: Path) -> None:
    new = ["_start_", "_delimiter_", "_classify_"]
    for made in (LANGUAGE, CHARACTERS, WORDS, TextTokenizer.train_sentence_bpe([STORY], 300)):
        more = made.with_special_tokens([*new, "_start_"])
        assert [more.backend.token_to_id(token) for token in new] == [made.size, made.size + 1, made.size + 2]
        assert more.size == made.size + 3 and made.backend.token_to_id("_start_") is None
        assert more.encode([STORY]) == made.encode([STORY])
        more.save(tmp_path / "tokenizer.json")
        again = TextTokenizer.load(tmp_path).with_special_tokens(new)
        assert again.size == more.size and again.special_ids == more.special_ids
        assert again.decode([[more.size - 1]]) == [""] and again.display_tokens([more.size - 1]) == ["_classify_"]
    ids = LANGUAGE.with_special_tokens(new).encode(["a _start_ b"])[0]
    assert max(ids) < LANGUAGE.size and LANGUAGE.decode([ids]) == ["a _start_ b"]
    for token in ("the", ""):
        refused("special", LANGUAGE.with_special_tokens, [token])


def test_tokens_are_shown_with_marks_for_spaces_parts_of_characters_and_continued_words() -> None:
    def shown(made: TextTokenizer, text: str) -> str:
        return "|".join(made.display_tokens(made.encode([text])[0]))

    assert shown(LANGUAGE, " the cat\n\n\t") == "␣the|␣cat|⏎⏎|⇥"
    assert shown(LANGUAGE, "€\x00\r") == "‹e2›|‹82›|‹ac›|‹U+0000›|␍"
    assert shown(CHARACTERS, "a\n猫 ") == "a|⏎|猫|␣"
    assert LANGUAGE.display_tokens([LANGUAGE.size - 1, 10**6]) == [END_OF_TEXT, "?"]
    ids = [WORDS.backend.token_to_id(name) for name in ("cat</w>", "m", "a", "t</w>", "<unk>", "the</w>")]
    assert WORDS.display_tokens([i for i in ids if i is not None]) == ["cat", "m", "·a", "·t", "<unk>", "the"]
    made = TextTokenizer.train_sentence_bpe(["the cat sat"] * 3, 270)
    ids = made.encode(["the cats sat"])[0]
    assert made.display_tokens([1, *ids, 2]) == ["<s>", "the", "cat", "·s", "sat", "</s>"]


def train_pieces() -> TextTokenizer:
    """Tokenizer with an external decoder: words marked as in SentencePiece."""
    names = {"▁the": 0, "▁cat": 1, "s": 2, "▁": 3, "▁é": 4, "é": 5, ".": 6}
    backend = Tokenizer(models.WordLevel(names, unk_token="."))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    return TextTokenizer(backend)


MAKERS = {
    "bytes": lambda: TextTokenizer.train_lm_bpe([STORY], 340).with_special_tokens(["_start_"]),
    "characters": lambda: TextTokenizer.from_characters([STORY, *HARD]),
    "words": lambda: TextTokenizer(train_words()),
    "sentences": lambda: TextTokenizer.train_sentence_bpe([STORY], 320),
    "pieces": train_pieces,
}


@pytest.fixture(scope="module", params=MAKERS)
def made(request: pytest.FixtureRequest) -> TextTokenizer:
    return MAKERS[request.param]()


def flow(made: TextTokenizer, ids: list[int], until: tuple[str, ...], draw: random.Random) -> tuple[str, bool]:
    """Text streamed in random groups of tokens; emitted text never changes."""
    running, said, first = StreamDecoder(made, until), "", 0
    while first < len(ids):
        last = first + draw.choice((0, 1, 1, 1, 2, 5))
        said += running.add(ids[first:last])
        first = last
    return said + running.end(), running.stopped


def cut(whole: str, until: tuple[str, ...]) -> tuple[str, bool]:
    places = [whole.find(stop) for stop in until if stop in whole]
    return whole[: min(places, default=len(whole))], bool(places)


def random_stops(whole: str, draw: random.Random) -> tuple[str, ...]:
    """Random substrings of the text as stop strings, some of them altered or overlapping."""
    stops = []
    for _ in range(draw.choice((0, 1, 1, 2, 4))):
        first = draw.randrange(len(whole) + 1)
        stop = whole[first : first + draw.randrange(1, 6)] + draw.choice(("", "", "x", "�"))
        stops += [stop, stop[1:]][: draw.choice((1, 2))]
    return tuple(filter(None, stops))


def test_any_tokens_flow_as_they_are_decoded(made: TextTokenizer) -> None:
    """Also special tokens and an id without a token, which emit nothing."""
    if END_OF_TEXT not in made.backend.get_vocab():
        made = made.with_special_tokens([END_OF_TEXT])
    draw, stopped, every = random.Random(1), 0, [*range(made.size), made.size + 5]
    for _ in range(1500):
        few = draw.sample(every[:-2], 6) + every[-2:]  # few distinct tokens, so that texts repeat
        ids = draw.choices(draw.choice((few, every)), k=draw.randrange(30))
        whole = made.decode([ids])[0]
        until = random_stops(whole, draw)
        found = flow(made, ids, until, draw)
        assert found == cut(whole, until), (ids, until)
        stopped += found[1]
    assert 300 < stopped < 1300


def test_any_bytes_flow_as_they_are_decoded() -> None:
    """Partial characters in any order: invalid bytes become U+FFFD, as many as in the decoded whole."""
    made, draw = TextTokenizer.train_lm_bpe([], 257), random.Random(2)
    letters = [made.encode([letter])[0] for letter in "aé€😀\ufffd\u07ff\uffff\U0010ffff"]
    parts = [*range(256), *(i for letter in letters for i in letter * 40)]
    for _ in range(4000):
        ids = draw.choices(parts, k=draw.randrange(12))
        whole = made.decode([ids])[0]
        until = random_stops(whole, draw)
        assert flow(made, ids, until, draw) == cut(whole, until), (ids, until)


def test_certain_text_is_emitted_at_once_and_the_first_stop_string_counts() -> None:
    made = TextTokenizer.train_lm_bpe([], 257)
    running = StreamDecoder(made, ["stop", "\n\n"])
    said = [running.add([i]) for i in made.encode(["sé\nsto!\nst\n\nmore"])[0]]
    assert [part or "-" for part in said] == [
        "-", "-", "sé", "-", "\n", "-", "-", "sto!", "-", "\n", "-", "st", *"-----",
    ]  # fmt: skip
    assert running.stopped and running.end() == "" and running.add([65]) == ""
    made = TextTokenizer.from_characters(["abcdx"])
    for text, expected in (("xabc", "x"), ("xabd", "xa"), ("xab", "xa"), ("xa", "xa")):
        running = StreamDecoder(made, ["b", "abc"])
        said = "".join(running.add([i]) for i in made.encode([text])[0])
        assert said + running.end() == expected and running.stopped == ("b" in text)


def test_bytes_among_the_pieces_of_any_other_tokenizer_wait_for_each_other() -> None:
    names = {"▁the": 0, "▁": 1, "<0xE2>": 2, "<0x82>": 3, "<0xAC>": 4, "s": 5}
    backend = Tokenizer(models.WordLevel(names, unk_token="s"))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence(steps)
    running = StreamDecoder(TextTokenizer(backend))
    assert [running.add([i]) for i in (0, 1, 2, 3, 4, 5, 0)] == ["the", " ", "", "", "€", "s", " the"]
    assert [running.add([2]), running.end()] == ["", "\ufffd"]
    assert "".join(running.add([2]) for _ in range(40)).count("\ufffd") >= 32


@pytest.mark.parametrize("until", ["stop", ["a", ""]])
def test_invalid_stop_strings_are_refused(until: str | list[str]) -> None:
    refused("strings", StreamDecoder, TextTokenizer.from_characters(["a"]), until, error=SettingError)


def test_a_token_costs_the_same_after_many_as_after_few(made: TextTokenizer) -> None:
    """Counts decoded tokens instead of time."""
    running = StreamDecoder(made, ["\x07never"])
    ids = list(range(min(made.size, 200))) * 50
    held = 0
    for i in ids:
        running.add([i])
        held = max(held, len(running._pending), len(getattr(running._detokenizer, "_context", [])))
    assert held <= 20
