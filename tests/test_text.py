"""Texts as tokens and back: trained here by bytes or by characters, and read from published folders."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from regard.errors import DataError, SettingError
from regard.inputs import text as text_module
from regard.inputs.text import END_OF_TEXT, Text

STORY = (
    "The cat sat on the mat, and the cat's mat wasn't the dog's mat.\n\n  Once more: the cat sat!\n"
    "Die Katze saß auf der Matte; l'été où naïve façade. 猫はマットの上に座った。 def f(x):\n\treturn x ** 2  # ok\n"
) * 20


@pytest.fixture(scope="session")
def language() -> Text:
    return Text.language([STORY], 340)


@pytest.fixture(scope="session")
def characters() -> Text:
    return Text.characters([STORY])


HARD = (
    "", " ", "  ", "\n", "\n\n", " a", "a ", "  a  b  ", "\ta\r\n\r\nb\n ", "\x00\x1f\x7f\x85\xa0", "a\u2028b\u3000c",
    "👩‍👩‍👧‍👦🇩🇪❤️", "e\u0301 é ﬁ ẞ İ", "\ufeff\u200b\u202e\ufffd", "don't can't I'LL we've 'tis ''s", "a\x1c b\x1e\x1fc", "𐍈" * 9,
    "0123456789 1.5e-3",
    f"a {END_OF_TEXT} b", END_OF_TEXT,
)  # fmt: skip


def random_texts(count: int, seed: int) -> list[str]:
    """All of Unicode that can be written, and blanks, marks and letters far more often than that."""
    draw = random.Random(seed)
    ranges = (
        (0, 0x20),
        (0x20, 0x7F),
        (0x20, 0x7F),
        (0x80, 0x600),
        (0x2000, 0x2070),
        (0x1F300, 0x1FA00),
        (0xE000, 0x110000),
    )

    def letter() -> str:
        return chr(draw.randrange(*draw.choice(ranges))) if draw.random() < 0.7 else draw.choice(" \n\t'se")

    return ["".join(letter() for _ in range(draw.randrange(60))) for _ in range(count)]


def test_any_text_comes_back_from_bytes_exactly(language: Text) -> None:
    texts = [*HARD, *random_texts(2000, seed=1)]
    assert language.decode(language.encode(texts)) == texts


def test_any_text_of_its_alphabet_comes_back_from_characters_exactly() -> None:
    texts = [*HARD, *random_texts(500, seed=2)]
    made = Text.characters(iter(texts))
    ids = made.encode(texts)
    assert made.decode(ids) == texts and [len(row) for row in ids] == [len(text) for text in texts]
    assert made.size == len(set("".join(texts))) + 1


def test_the_end_of_text_has_the_last_id_and_is_never_found_in_a_text(language: Text, characters: Text) -> None:
    everything = Text.characters([END_OF_TEXT, STORY])
    for made in (language, everything, characters):
        end = made.id_of(END_OF_TEXT)
        assert end == made.size - 1 and made.decode([[end]]) == [""]
    for made in (language, everything):
        assert made.size - 1 not in made.encode([f"a{END_OF_TEXT}a"])[0]
    assert language.size == 340
    assert characters.id_of("\t") == 0 and characters.id_of("\n") == 1


def test_a_character_that_never_occurred_is_named(characters: Text) -> None:
    with pytest.raises(DataError, match=r"character '€' \(U\+20AC\) is not among"):
        characters.encode(["a", "the € cat €"])
    with pytest.raises(DataError, match=r"character '€' \(U\+20AC\) and 2 others are not among"):
        characters.encode(["€ ₤ ☃ €"])


def test_half_a_character_is_refused(language: Text, characters: Text) -> None:
    for made in (language, characters):
        with pytest.raises(DataError):
            made.encode(["fine", "caf\udce9"])


def test_nothing_to_make_a_vocabulary_of_is_refused() -> None:
    with pytest.raises(DataError, match="no character"):
        Text.characters(["", ""])
    with pytest.raises(SettingError, match="257"):
        Text.language([STORY], 256)
    for make in (Text.characters, lambda texts: Text.language(texts, 300)):
        with pytest.raises(DataError, match="half of a character"):
            make(["caf\udce9"])
    assert Text.language([], 300).size == 257


def test_a_saved_one_is_what_it_was(language: Text, characters: Text, tmp_path: Path) -> None:
    assert not Text.exists(tmp_path)
    for made in (language, characters):
        made.save(tmp_path / "tokenizer.json")
        assert Text.exists(tmp_path)
        again = Text.load(tmp_path)
        assert again.encode([STORY]) == made.encode([STORY]) and again.decode(again.encode([STORY])) == [STORY]
        assert again.fingerprint() == made.fingerprint() and again.size == made.size
    with pytest.raises(DataError, match="☃"):
        Text.load(tmp_path).encode(["☃"])


def test_the_library_gives_the_characters_that_we_give(characters: Text) -> None:
    assert characters.backend.encode(STORY, add_special_tokens=False).ids == characters.encode([STORY])[0]
    with pytest.raises(Exception, match="UNK"):  # it has no token for what is unknown either
        characters.backend.encode("☃")


def test_a_long_text_in_parts_has_the_tokens_of_the_whole(language: Text, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [*HARD, *random_texts(500, seed=3), STORY]
    whole = [language.backend.encode(text, add_special_tokens=False).ids for text in texts]
    vocabulary = language.backend.get_vocab()
    monkeypatch.setattr(text_module, "LONG", 3)
    monkeypatch.setattr(text_module, "LOAD", 50)
    assert len(list(text_module._cut(STORY))) > len(STORY) / 20
    assert language.encode(texts) == whole
    assert Text.language([STORY], 340).backend.get_vocab() == vocabulary
