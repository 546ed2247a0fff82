"""SentencePiece models trained on words of five scripts, and folders in the published formats of Marian."""

from __future__ import annotations

import io
import json
import random
import unicodedata
from functools import cache
from pathlib import Path
from typing import Any

import sentencepiece

WORDS = {
    "Latin": "the cat sat on mat étude naïve façade über straße hello world l'été don't 3.14 İstanbul ﬁnal",
    "Cyrillic": "быстрая лиса прыгает через ленивую собаку который привет мир ёлка щедрый объём",
    "Arabic": "الثعلب البني السريع يقفز فوق الكلب الكسول مرحبا بالعالم كِتَابٌ مدرسة",
    "Devanagari": "तेज़ भूरी लोमड़ी आलसी कुत्ते के ऊपर कूदती है नमस्ते दुनिया क्षत्रिय हिन्दी",
    "CJK": "敏捷的 棕色 狐狸 跳过了 懒狗 你好 世界 すばやい ガラス ﾊﾝｶｸ ﾊﾞﾅﾅ 한국어",
}
ENDS = ("", ".", " !", "。", "?", "...", "  ", "\n", " ☃", "، ")
LANGUAGES = (">>fra<<", ">>rus<<", ">>xyz<<")
"""Codes of target languages; the last one is not in the vocabulary."""
RARE = ("☃☃", "e\u0301\u0323", "㍿", "𐍈", "क\u093c", "か\u3099", "hahahaha")
CORPUS = 900


def sentences(count: int, seed: int = 0) -> list[str]:
    """Sentences of all scripts in turn; some decomposed, with a language code, or with characters of no vocabulary."""
    draw, made = random.Random(seed), []
    for number in range(count):
        script = list(WORDS)[number % len(WORDS)]
        words = [draw.choice(WORDS[script].split()) for _ in range(draw.randrange(1, 12))]
        if not draw.randrange(4):
            words[draw.randrange(len(words))] = draw.choice(RARE)
        text = ("" if script == "CJK" else " ").join(words) + draw.choice(ENDS)
        text = unicodedata.normalize(draw.choice(("NFC", "NFC", "NFD", "NFKC")), text)
        made.append(draw.choice(LANGUAGES) + draw.choice((" ", "")) + text if not draw.randrange(6) else text)
    return made


@cache
def piece_model(kind: str, first: int = 0, **options: Any) -> bytes:
    """A model of this kind (unigram or bpe), trained on every second sentence from `first`."""
    stream = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences(CORPUS, seed=1)[first::2]), model_writer=stream, model_type=kind, vocab_size=260,
        normalization_rule_name="nmt_nfkc", hard_vocab_limit=False, minloglevel=2, num_threads=1, **options,
    )  # fmt: skip
    return stream.getvalue()


def write_marian(folder: Path, kind: str = "unigram", **settings: Any) -> Path:
    """Write the tokenizer files of Marian: two models and one vocabulary, in which some of their pieces are missing."""
    folder.mkdir(parents=True, exist_ok=True)
    names = ["</s>", "<unk>", *LANGUAGES[:2]]
    for side, first in (("source", 0), ("target", 1)):
        (folder / f"{side}.spm").write_bytes(content := piece_model(kind, first))
        model = sentencepiece.SentencePieceProcessor(model_proto=content)
        names += [model.id_to_piece(number) for number in range(3, model.get_piece_size()) if number % 9]
    names = [*dict.fromkeys([*names, "☃☃"]), "<pad>"]  # a piece of neither model
    (folder / "vocab.json").write_text(json.dumps({name: number for number, name in enumerate(names)}))
    settings = {"source_lang": "en", "target_lang": "fr", **settings}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder
