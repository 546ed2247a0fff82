"""Difficult texts for tokenizers."""

from __future__ import annotations

import random

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from regard.processors.tokenizer.tokenizer import END_OF_TEXT

STORY = (
    "The cat sat on the mat, and the cat's mat wasn't the dog's mat.\n\n  Once more: the cat sat!\n"
    "Die Katze saß auf der Matte; l'été où naïve façade. 猫はマットの上に座った。 def f(x):\n\treturn x ** 2  # ok\n"
) * 20


HARD = (
    "", " ", "  ", "\n", "\n\n", " a", "a ", "  a  b  ", "\ta\r\n\r\nb\n ", "\x00\x1f\x7f\x85\xa0", "a\u2028b\u3000c",
    "👩‍👩‍👧‍👦🇩🇪❤️", "e\u0301 é ﬁ ẞ İ", "\ufeff\u200b\u202e\ufffd", "don't can't I'LL we've 'tis ''s", "a\x1c b\x1e\x1fc", 
    "𐍈" * 9, "0123456789 1.5e-3", f"a {END_OF_TEXT} b", END_OF_TEXT,
)  # fmt: skip


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
