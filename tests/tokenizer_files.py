"""Tokenizers, trained by regard and in published formats, and difficult texts."""

from __future__ import annotations

import copy
import json
import random
import unicodedata
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from regard.processors.tokenizer.tokenizer import END_OF_TEXT, TextTokenizer

SHARED = Path(__file__).parents[2] / "shared/data"

STORY = (
    "The cat sat on the mat, and the cat's mat wasn't the dog's mat.\n\n  Once more: the cat sat!\n"
    "Die Katze saß auf der Matte; l'été où naïve façade. 猫はマットの上に座った。 def f(x):\n\treturn x ** 2  # ok\n"
) * 20

HARD = (
    "", " ", "  ", "\n", "\n\n", " a", "a ", "  a  b  ", "\ta\r\n\r\nb\n ", "\x00\x1f\x7f\x85\xa0", "a\u2028b\u3000c",
    "👩‍👩‍👧‍👦🇩🇪❤️", "e\u0301 é ﬁ ẞ İ", "\ufeff\u200b\u202e\ufffd", "don't can't I'LL we've 'tis ''s", "a\x1c b\x1e\x1fc", 
    "𐍈" * 9, "0123456789 1.5e-3", f"a {END_OF_TEXT} b", END_OF_TEXT,
)  # fmt: skip

PROSE = (
    "I'll say we've done it, don't you? 'tis they're'S IT'S", "Ünïcödé naïve façade — “quotes” … € £",
    "Быстрая лиса; Η γρήγορη αλεπού; הַשּׁוּעָל; الثعلب السريع; तेज़ लोमड़ी; 敏捷的狐狸; すばやい狐; 빠른 여우",
    "👩‍👩‍👧‍👦 🇩🇪 ❤️‍🔥 🤷🏽‍♀️", "for (int i = 0; i < n; ++i) {\n\t\treturn x[i] ** 2; // ok\r\n\t}\n\n\n",
    "   three   spaces    and\t\ttabs \n \n  end   ", "3.14159, 1e-10, ½ ² Ⅷ ٣٤٥ 0xFF", "a" * 300,
    "\u00a0\u2003\u3000 x\u00a0y",
)  # fmt: skip

MARKED = (
    "e\u0301tude re\u0301sume\u0301, naïve", "❤️\u200d🔥 a ❤️", "👩\u200d👩\u200d👧 x🤷🏽\u200d♀️y", "猫の\u0301 猫猫a猫",
    "ﬁ ẞ İstanbul ΣΊΣΥΦΟΣ", "a\x00b c\u200dd \ufffd", "x" * 100, "x" * 101, "é" * 100 + " end", "don't ##ing # #",
    "the [MASK] sat [SEP] <mask> </s>", "한국어 हिन्दी ไทย עִבְרִית",
)  # fmt: skip

TEXTS = [*PROSE, *HARD, *MARKED, *STORY.split("\n")[:4]]


def plain(text: TextTokenizer) -> TextTokenizer:
    """Copy of a tokenizer that reads special tokens in texts as plain text."""
    made = copy.deepcopy(text)
    made.split_special_tokens = True
    return made


def random_texts(count: int, seed: int) -> list[str]:
    """Random Unicode texts, with frequent spaces, punctuation and ASCII letters."""
    draw = random.Random(seed)
    ranges = (
        (0, 0x20), (0x20, 0x7F), (0x20, 0x7F), (0x80, 0x600), (0x2000, 0x2070), (0x1F300, 0x1FA00), (0xE000, 0x110000),
    )  # fmt: skip

    def letter() -> str:
        return chr(draw.randrange(*draw.choice(ranges))) if draw.random() < 0.7 else draw.choice(" \n\t'se")

    return ["".join(letter() for _ in range(draw.randrange(60))) for _ in range(count)]


def train_words() -> Tokenizer:
    """A tokenizer like GPT-1's, trained with the tokenizers library."""
    backend = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.BPEDecoder(suffix="</w>")
    trainer = trainers.BpeTrainer(
        vocab_size=200, special_tokens=["<unk>"], end_of_word_suffix="</w>", show_progress=False
    )
    backend.train_from_iterator([STORY], trainer)
    return backend


def publish(made: TextTokenizer, folder: Path, vocabulary: str = "vocab.json", merges: str = "merges.txt") -> Path:
    """Save the vocabulary and merges."""
    model = json.loads(made.backend.to_str())["model"]
    folder.mkdir(parents=True, exist_ok=True)
    ids = model["vocab"] | {made.id_to_token(number): number for number in made.special_ids}
    (folder / vocabulary).write_text(json.dumps(ids, ensure_ascii=False), encoding="utf-8")
    lines = ["#version: 0.2", *(" ".join(pair) for pair in model["merges"])]
    (folder / merges).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


@cache
def make(lower: bool = True) -> TextTokenizer:
    return TextTokenizer.train_wordpiece([STORY, *PROSE, *MARKED], 400, lower)


def write_roberta(folder: Path) -> Path:
    """Write a byte-level vocabulary like RoBERTa's: `<s> <pad> </s> <unk>` first and `<mask>` after the merges."""
    made = TextTokenizer.train_lm_bpe([STORY], 340)
    model = json.loads(made.backend.to_str())["model"]
    names = ["<s>", "<pad>", "</s>", "<unk>", *sorted(model["vocab"], key=model["vocab"].__getitem__), "<mask>"]
    publish(made, folder)
    (folder / "vocab.json").write_text(json.dumps({name: number for number, name in enumerate(names)}))
    return folder


def write_vocabulary(text: TextTokenizer, folder: Path, settings: dict[str, Any] | None = None) -> Path:
    """Write vocab.txt and, if given, tokenizer_config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    ids = text.backend.get_vocab()
    (folder / "vocab.txt").write_text("".join(f"{name}\n" for name in sorted(ids, key=ids.__getitem__)), "utf-8")
    if settings is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def same(texts: Sequence[str], found: Sequence[Any], expected: Sequence[Any]) -> None:
    assert [item for item in zip(texts, found, expected, strict=True) if item[1] != item[2]] == []


def theirs_of(folder: Path, kind: str = "BertTokenizer", **settings: Any) -> Any:
    import transformers

    return getattr(transformers, kind).from_pretrained(folder, **settings)


def write_folder(text: TextTokenizer, folder: Path, kind: str) -> Path:
    """Write the tokenizer files of a saved model."""
    folder.mkdir()
    text.save(folder / "tokenizer.json")
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **text.special_tokens_map()}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "config.json").write_text(json.dumps({"model_type": kind}))
    return folder


def check_places(text: TextTokenizer, texts: Sequence[str]) -> None:
    """Check the offsets: the text span of a word encodes to its tokens, and the span of a token normalizes to its name."""
    normaliser = text.backend.normalizer
    strips = normaliser.normalize_str("e\u0301") == "e"
    for given, (ids, spans) in zip(texts, text.encode_offsets(texts), strict=True):
        assert [ids] == text.encode([given]) and len(spans) == len(ids)
        assert all(a < b for a, b in spans) and all(one[0] <= two[0] for one, two in pairwise(spans))
        for token, (a, b) in zip(ids, spans, strict=True):
            name = text.id_to_token(token).removeprefix("##")
            assert token == text.special_id("unknown") or _named(
                normaliser.normalize_str(given[a:b]).strip(), name, b - a
            )
            assert not strips or unicodedata.category((given + " ")[b]) != "Mn" or normaliser.normalize_str(given[b])
        first = [*np.flatnonzero(text.starts_word(ids)), len(ids)]
        for one, two in pairwise(first):
            assert text.encode([given[spans[one][0] : spans[two - 1][1]]]) == [ids[one:two]]


def _named(normalised: str, name: str, length: int) -> bool:
    """True if the names match; a Hangul syllable is decomposed into letters that all have the offset of the syllable."""
    return normalised == name or (length == 1 and name in normalised)
