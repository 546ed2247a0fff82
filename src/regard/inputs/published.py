"""Tokenizers as they were published before tokenizer.json: a vocabulary and its merges, GPT-2's and GPT-1's.

GPT-2 reads bytes, GPT-1 lower-cased words whose last piece ends in `</w>`. The vocabulary shows which one it is.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from regard.errors import DataError

FILES = tuple(
    (vocabulary + zipped, merges + zipped)
    for zipped in ("", ".gz")
    for vocabulary, merges in (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe"))
)
"""Under which names the two lie in a folder; the second are those of OpenAI's own release."""

UNKNOWN, END_OF_WORD, SPACE = "<unk>", "</w>", "Ġ"
"""GPT-1's token for unknown characters, the ending of its words, and a space among GPT-2's bytes."""

NUMBERED = "added_tokens_decoder"
FLAGS = ("content", "single_word", "lstrip", "rstrip", "normalized", "special")
"""Where a configuration has the added tokens by their ids, and what it may say of each."""


def find(folder: Path) -> tuple[Path, Path] | None:
    """The vocabulary and the merges of a folder."""
    for names in FILES:
        vocabulary, merges = (folder / name for name in names)
        if vocabulary.is_file() and merges.is_file():
            return vocabulary, merges
    return None


def read(vocabulary: Path, merges: Path, end: str) -> Tokenizer:
    """The tokenizer that they describe; `end` is special wherever it is a token."""
    ids, pairs, settings = _vocabulary(vocabulary), _merges(merges), _settings(vocabulary.parent)
    try:
        added = _added(settings)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"the added tokens cannot be read ({error!r}).", vocabulary.parent) from error
    for token, number in added.values():  # those without a place in the vocabulary come after it
        place = ids.setdefault(token.content, len(ids) if number is None else number)
        if number not in (None, place):
            raise DataError(f"the id of '{token.content}' is {place}, and {number} among the added tokens.", vocabulary)
    if sorted(ids.values()) != list(range(len(ids))):
        raise DataError(f"its {len(ids):,} ids are not the numbers from 0 to {len(ids) - 1:,}.", vocabulary)
    words = _has_words(ids, vocabulary)
    unknown = _unknown(ids, words, _name(settings.get("unk_token")), end, vocabulary)
    parts = {"unk_token": unknown, "end_of_word_suffix": END_OF_WORD if words else None}
    try:
        model = models.BPE(ids, pairs, **{key: part for key, part in parts.items() if part is not None})
    except Exception as error:  # the library raises bare Exception, and names the token
        raise DataError(f"does not fit {vocabulary.name} ({error}).", merges) from error
    backend = Tokenizer(model)
    if words:
        backend.normalizer = normalizers.BertNormalizer(lowercase=True)
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        backend.decoder = decoders.BPEDecoder(suffix=END_OF_WORD)
    else:
        prefix = bool(settings.get("add_prefix_space", False))
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
        backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([token for token in (end, unknown) if token in ids])
    for token, _ in added.values():
        (backend.add_special_tokens if token.special else backend.add_tokens)([token])
    return backend


def _has_words(ids: dict[str, int], path: Path) -> bool:
    words, in_bytes = any(END_OF_WORD in token for token in ids), any(SPACE in token for token in ids)
    if words == in_bytes:
        raise DataError(
            "is neither a vocabulary of bytes as GPT-2's nor one of words as GPT-1's.", path,
            advice="Have the library that it comes from write a tokenizer.json.",
        )  # fmt: skip
    return words


def _unknown(ids: dict[str, int], words: bool, said: str | None, end: str, path: Path) -> str | None:
    """The token for what has none. All the bytes need no such thing; without it, text would be left out in silence."""
    missing = 0 if words else sum(byte not in ids for byte in pre_tokenizers.ByteLevel.alphabet())
    if not words and not missing:
        return None
    unknown = said or (UNKNOWN if words else end)
    if unknown not in ids:
        lack = f" and lacks {missing} of the 256 bytes" if missing else ""
        raise DataError(f"has no '{unknown}', the token for what it does not know{lack}.", path)
    return unknown


def _vocabulary(path: Path) -> dict[str, int]:
    ids = _json(path)
    for token, number in ids.items():
        if type(number) is not int:
            raise DataError(f"the id of '{token}' is {number!r}, not a number.", path)
    return ids


def _merges(path: Path) -> list[tuple[str, str]]:
    pairs = []
    for number, line in enumerate(_text(path).split("\n"), start=1):
        parts = line.removesuffix("\r").split(" ")
        if parts == [""] or (number == 1 and parts[0].startswith("#version")):
            continue
        if len(parts) != 2 or not all(parts):
            raise DataError("a merge is two tokens with one space between them.", path, number)
        pairs.append((parts[0], parts[1]))
    return pairs


def _settings(folder: Path) -> dict[str, Any]:
    """What the folder says of its special tokens. A configuration that numbers them is newer than the other files."""
    settings = _json(folder / "tokenizer_config.json", needed=False)
    if NUMBERED not in settings:
        settings |= _json(folder / "special_tokens_map.json", needed=False)
        older = _json(folder / "added_tokens.json", needed=False)
        settings[NUMBERED] = {number: {"content": token} for token, number in older.items()}
    return settings


def _added(settings: dict[str, Any]) -> dict[str, tuple[AddedToken, int | None]]:
    """Tokens beside the merges' own, in the order of their ids where those are said."""
    found: dict[str, tuple[AddedToken, int | None]] = {}
    for number, token in sorted(settings[NUMBERED].items(), key=lambda item: int(item[0])):
        found[token["content"]] = AddedToken(**{key: token[key] for key in FLAGS if key in token}), int(number)
    for name in _named(settings):
        number = found[name][1] if name in found else None
        found[name] = AddedToken(name, special=True, normalized=False), number
    return found


def _named(settings: dict[str, Any]) -> Iterator[str]:
    """Tokens with a part to play (`eos_token`, ...) and further ones are special."""
    for key, value in settings.items():
        if key in ("additional_special_tokens", "extra_special_tokens"):
            values = list(value.values()) if isinstance(value, dict) else list(value or ())
        else:
            values = [value] if key.endswith("_token") else []
        yield from (name for name in map(_name, values) if name is not None)


def _name(value: Any) -> str | None:
    """A token is written as its text, or as an object that has it."""
    value = value.get("content") if isinstance(value, dict) else value
    return value if isinstance(value, str) else None


def _json(path: Path, needed: bool = True) -> dict[str, Any]:
    if not needed and not path.exists():
        return {}
    try:
        found = json.loads(_text(path))
    except json.JSONDecodeError as error:
        raise DataError(f"is no JSON ({error.msg}).", path, error.lineno) from error
    if not isinstance(found, dict):
        raise DataError("is JSON, but not an object of names and values.", path)
    return found


def _text(path: Path) -> str:
    try:
        content = path.read_bytes()
        return (gzip.decompress(content) if path.suffix == ".gz" else content).decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError("is not UTF-8 text.", path) from error
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"cannot be read ({error}).", path) from error
