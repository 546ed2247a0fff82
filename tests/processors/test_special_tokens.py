"""Special tokens inside texts: their ids as in transformers, or plain text with `split_special_tokens`."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
from test_tokenizer import train_pieces
from transformers import AutoModelForCausalLM, AutoTokenizer

import regard
from conftest import Cli
from regard.processors.tokenizer.tokenizer import END_OF_TEXT, TextTokenizer
from regard.tasks.modality.text import Text
from tiny import tiny
from tiny_text_models import QUICK, SMALL, train
from tokenizer_files import HARD, MARKED, PROSE, STORY, make, same, train_words, write_roberta

CHAT = ["<|user|>", "<|assistant|>", "<|user|>x"]


def chat_tokens(text: TextTokenizer) -> TextTokenizer:
    return text.with_special_tokens(CHAT)


MAKERS: dict[str, Callable[[Path], TextTokenizer]] = {
    "bytes": lambda _: TextTokenizer.train_lm_bpe([STORY], 340),
    "sentences": lambda _: TextTokenizer.train_sentence_bpe([STORY], 320),
    "words with suffix": lambda _: TextTokenizer(train_words()),
    "pieces": lambda _: train_pieces(),
    "wordpiece": lambda _: make(),
    "roberta": lambda folder: TextTokenizer.load(write_roberta(folder)),
    "characters": lambda _: TextTokenizer.from_characters([STORY, *PROSE, *HARD, *MARKED, *CHAT]),
    "words": lambda _: TextTokenizer.from_words([*SPLIT_WORDS, "sat"]),
}
CHATS = [
    f"<|user|>the cat <|assistant|> sat<|user|>x{END_OF_TEXT}", "<|user|>", " <|user|> a<|user|><|user|>xx", "<|use r|> the",
    "the cat [SEP] [MASK]the </s> <mask> sat<s>.", "[MASK]", "</s>",
]  # fmt: skip
TEXTS = [*CHATS, *PROSE, "the cat", ""]
SPLIT_WORDS = ["<|user|>the cat the sat</s>the", "the cat", ""]
"""Texts of the word tokenizer, whose vocabulary contains these words: unknown words are errors."""


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("kind", MAKERS)
def test_special_tokens_in_a_text_have_the_ids_of_transformers(kind: str, split: bool, tmp_path: Path) -> None:
    (tmp_path / "roberta").mkdir()
    made = chat_tokens(MAKERS[kind](tmp_path / "roberta"))
    if split:
        made.split_special_tokens = True
    Text().save_processor(made, tiny("gpt2").config, tmp_path)
    theirs, again = AutoTokenizer.from_pretrained(tmp_path), TextTokenizer.load(tmp_path)
    texts = SPLIT_WORDS if kind == "words" else [*TEXTS, *HARD, *MARKED]
    right = theirs(texts, add_special_tokens=False)["input_ids"]
    for text in (made, again, copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert text.split_special_tokens is split
        same(texts, text.encode(texts), right)
        same(texts, [ids for ids, _ in text.encode_offsets(texts)], right)
    user = made.backend.token_to_id("<|user|>")
    assert (user in made.encode(["<|user|>the"])[0]) is not split
    if not split:
        ((ids, spans),) = made.encode_offsets([" <|user|> the <|user|>"])
        assert [span for token, span in zip(ids, spans, strict=True) if token == user] == [(1, 9), (14, 22)]


@pytest.mark.parametrize("kind", ["wordpiece", "roberta", "bytes"])
def test_special_tokens_among_words_and_masks(kind: str, tmp_path: Path) -> None:
    made = chat_tokens(MAKERS[kind](tmp_path))
    words = ("the", "<|user|>", "cat", "<|user|>x", "a<|user|>b")
    ids, owners = made.encode_words([words])[0]
    assert [ids[owners.index(number)] for number in (1, 3)] == made.encode(["<|user|><|user|>x"])[0]
    assert owners.count(1) == owners.count(3) == 1
    made.split_special_tokens = True
    split = made.encode_words([words])[0][0]
    chats = {made.backend.token_to_id(token) for token in CHAT}
    assert not chats.intersection(split) and len(chats.intersection(ids)) == 2
    if kind != "bytes":
        mask = made.id_to_token(made.special_id("mask") or -1)
        found = made.encode_masked([f"the {mask} cat <|user|>"])[0]
        assert found.count(made.special_id("mask")) == 1 and not chats.intersection(found)
        made.split_special_tokens = False
        both = f"the {mask} cat <|user|> {mask}"
        assert made.encode_masked([both]) == made.encode([both])


def test_a_fingerprint_depends_on_the_choice(tmp_path: Path) -> None:
    made = chat_tokens(TextTokenizer.train_lm_bpe([STORY], 340))
    before = made.fingerprint()
    made.split_special_tokens = True
    assert made.fingerprint() != before and made.with_special_tokens(["<z>"]).split_special_tokens
    made.split_special_tokens = False
    assert made.fingerprint() == before


def test_a_chat_prompt_is_continued_as_in_transformers(tmp_path: Path) -> None:
    text = chat_tokens(TextTokenizer.train_lm_bpe([STORY], 340))
    model = tiny("gpt2", vocab_size=text.size, eos_id=text.backend.token_to_id(END_OF_TEXT), max_length=40)
    model.tokenizer = text
    regard.save(model, tmp_path)
    theirs, tokens = AutoModelForCausalLM.from_pretrained(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    chats = ["<|user|>the cat sat<|assistant|>", f"the mat{END_OF_TEXT}<|user|>x"]
    for chat in chats:
        inputs = tokens(chat, return_tensors="pt")
        right = theirs.generate(**inputs, max_new_tokens=9, do_sample=False, pad_token_id=0)[
            0, inputs["input_ids"].shape[1] :
        ]
        for loaded in (model, regard.load(tmp_path)):
            found = loaded.predict(chat, max_new_tokens=9, temperature=0)
            assert [*found.extra["token_ids"], model.config.eos_id][: len(right)] == right.tolist()
            assert "".join(loaded.stream(chat, max_new_tokens=9, temperature=0)) == found.value
    plain = model.predict(chats, max_new_tokens=9, temperature=0)
    text.split_special_tokens = True
    assert [one.extra["token_ids"] for one in model.predict(chats, max_new_tokens=9, temperature=0)] != [
        one.extra["token_ids"] for one in plain
    ]


def test_a_run_keeps_the_choice_and_encodes_its_data_again(tmp_path: Path, cli: Cli) -> None:
    """A text with the end token: one token of the stored data, or several."""
    data = tmp_path / "a.txt"
    data.write_text(f"the cat {END_OF_TEXT} sat on the mat\n\n" * 60)
    settings = (*SMALL, *QUICK, "train.steps=2", "data.tokenizer_type=byte_bpe")
    tokens = []
    for number, more in enumerate(((), ("data.split_special_tokens=true",))):
        train("lm", data, out := tmp_path / str(number), *settings, *more, model="gpt2-mini")
        model = regard.load(out)
        assert model.require_tokenizer().split_special_tokens is bool(more)
        assert json.loads((out / "tokenizer_config.json").read_text()).get("split_special_tokens", False) is bool(more)
        tokens.append(len(model.require_tokenizer().encode([data.read_text()])[0]))
        words = (
            "predict",
            out,
            f"the{END_OF_TEXT}",
            "--json",
            "--set",
            "decode.max_new_tokens=2",
            "decode.temperature=0",
        )
        said = [json.loads(cli(*words, *own).out)["token_ids"] for own in ((), ("data.split_special_tokens=true",))]
        assert said[0] == model.predict(f"the{END_OF_TEXT}", max_new_tokens=2, temperature=0).extra["token_ids"]
        model.require_tokenizer().split_special_tokens = True
        assert said[1] == model.predict(f"the{END_OF_TEXT}", max_new_tokens=2, temperature=0).extra["token_ids"]
    assert tokens[0] < tokens[1]
    for setting, word in (("max_length=2", "decode"), ("split_special_tokens=maybe", "true or false or none")):
        done = cli("predict", out, "the", "--set", f"data.{setting}")
        assert done.code == 2 and word in done.err
