"""Tokenizers of checkpoints without tokenizer.json, and settings of tokenizer_config.json.

A vocabulary with merges is byte-level (GPT-2, RoBERTa) or has lowercased words whose last token ends in `</w>` (GPT-1): the
tokens show which. A vocabulary without merges, one token per line, is BERT's WordPiece.
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
from regard.processors.tokenizer.token_text import component_state
from regard.processors.tokenizer.vocabulary import BERT_UNKNOWN, build_wordpiece

VOCABULARY_FILES = tuple(
    tuple(name + zipped for name in names)
    for names in (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe"), ("vocab.txt",))
    for zipped in ("", ".gz")
)
"""File names in a folder; the second pair is used in OpenAI's release of GPT-2."""

GPT1_UNKNOWN, END_OF_WORD, BYTE_SPACE = "<unk>", "</w>", "Ġ"
"""GPT-1's unknown token, the suffix of its words, and the space in GPT-2's byte alphabet."""

ADDED_TOKENS_KEY = "added_tokens_decoder"
ADDED_TOKEN_FIELDS = ("content", "single_word", "lstrip", "rstrip", "normalized", "special")
"""Key of the added tokens by id in tokenizer_config.json, and the fields of an added token."""

ROBERTA_MASK = "<mask>"
ROBERTA_SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", ROBERTA_MASK)
"""Special in byte-level vocabularies even if undeclared: the merges of GPT-2 cannot produce these tokens."""

SPECIAL_TOKEN_KEYS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
"""Keys of special tokens in `transformers`."""

STRIP_ACCENTS = "strip_accents"
BERT_NORMALIZER_KEYS = {
    "do_lower_case": "lowercase",
    STRIP_ACCENTS: STRIP_ACCENTS,
    "tokenize_chinese_chars": "handle_chinese_chars",
}
"""Settings of tokenizer_config.json, and the arguments of `BertNormalizer`."""

BASIC_SETTINGS = {"do_basic_tokenize": True, "word_tokenizer_type": "basic", "subword_tokenizer_type": "wordpiece"}
"""Supported values of settings that otherwise require more than a vocabulary."""

JIEBA_NOTE = (
    "warning: the original tokenizer splits Chinese text into words with jieba, but regard splits Chinese text into "
    "characters; token ids of Chinese text differ from training."
)

CONVERT_ADVICE = "Save the tokenizer as tokenizer.json with the library that created the tokenizer."


def find_files(path: Path) -> tuple[Path, ...] | None:
    """Files of a folder that together define a tokenizer; `path` may also be a vocab.txt."""
    if (path.name,) in VOCABULARY_FILES and path.is_file():
        return (path,)
    found = (tuple(path / name for name in names) for names in VOCABULARY_FILES)
    return next((files for files in found if all(file.is_file() for file in files)), None)


def read_tokenizer(files: tuple[Path, ...], end: str) -> Tokenizer:
    """Build the tokenizer of these files; `end` becomes a special token if a BPE vocabulary contains it."""
    vocabulary, settings = files[0], read_tokenizer_settings(files[0].parent)
    ids = _read_vocabulary(vocabulary) if len(files) > 1 else _read_vocab_txt(vocabulary)
    try:
        added = _added_tokens(settings)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"the added tokens cannot be read ({error!r}).", vocabulary.parent) from error
    for token, number in added.values():  # tokens without an id are appended to the vocabulary
        place = ids.setdefault(token.content, len(ids) if number is None else number)
        if number not in (None, place):
            raise DataError(
                f"the id of '{token.content}' is {place} in the vocabulary, but {number} in the added tokens.",
                vocabulary,
            )
    if sorted(ids.values()) != list(range(len(ids))):
        raise DataError(f"the {len(ids):,} token ids must be the integers from 0 to {len(ids) - 1:,}.", vocabulary)
    backend = (
        _build_bpe(ids, files[0], files[1], settings, end)
        if len(files) > 1
        else _build_wordpiece(ids, vocabulary, settings)
    )
    for token, _ in added.values():
        (backend.add_special_tokens if token.special else backend.add_tokens)([token])
    return backend


def apply_settings(backend: Tokenizer, settings: dict[str, Any], folder: Path) -> None:
    """Apply the settings of tokenizer_config.json to a loaded tokenizer.json, as `transformers` does."""
    now, jieba = component_state(backend.normalizer), needs_jieba(settings)
    if now.get("type") == "BertNormalizer" and (jieba or _tokenizer_class(settings).startswith("BertTokenizer")):
        # jieba is not in the file, and without it Chinese text would be one long word
        said = _bert_normalizer_args(settings, folder) | ({"handle_chinese_chars": True} if jieba else {})
        parts = {name: value for name, value in now.items() if name != "type"}
        backend.normalizer = normalizers.BertNormalizer(**parts | said)
    special = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
    for token in special_tokens(settings).values():
        if token not in special and backend.token_to_id(token) is not None:
            backend.add_special_tokens([_special_token(token)])


def needs_jieba(settings: dict[str, Any]) -> bool:
    return _tokenizer_class(settings).startswith("RoFormerTokenizer")


def _tokenizer_class(settings: dict[str, Any]) -> str:
    return str(settings.get("tokenizer_class", ""))


def special_tokens(settings: dict[str, Any]) -> dict[str, str]:
    """Special tokens by their `transformers` keys."""
    found = ((name, _token_content(settings.get(name))) for name in SPECIAL_TOKEN_KEYS)
    return {name: token for name, token in found if token is not None}


def _build_wordpiece(ids: dict[str, int], path: Path, settings: dict[str, Any]) -> Tokenizer:
    for key, plain in BASIC_SETTINGS.items():
        if settings.get(key, plain) != plain:
            raise DataError(f"{key}={settings[key]!r} is not supported.", path, advice=CONVERT_ADVICE)
    unknown = _token_content(settings.get("unk_token")) or BERT_UNKNOWN
    if unknown not in ids:
        raise DataError(f"the vocabulary has no '{unknown}' (the unknown token).", path)
    return build_wordpiece(ids, normalizers.BertNormalizer(**_bert_normalizer_args(settings, path.parent)), unknown)


def _bert_normalizer_args(settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Arguments of `BertNormalizer` from the settings; strip_accents=None follows `lowercase`."""
    said = {name: settings[key] for key, name in BERT_NORMALIZER_KEYS.items() if key in settings}
    if wrong := [key for key, name in BERT_NORMALIZER_KEYS.items() if not isinstance(said.get(name), bool | None)]:
        raise DataError(f"{wrong[0]} must be true or false, got {settings[wrong[0]]!r}.", folder)
    return {name: value for name, value in said.items() if value is not None or name == STRIP_ACCENTS}


def _build_bpe(ids: dict[str, int], vocabulary: Path, merges: Path, settings: dict[str, Any], end: str) -> Tokenizer:
    pairs, words = _read_merges(merges), _is_word_level(ids, vocabulary)
    unknown = _unknown_token(ids, words, _token_content(settings.get("unk_token")), end, vocabulary)
    parts = {"unk_token": unknown, "end_of_word_suffix": END_OF_WORD if words else None}
    try:
        model = models.BPE(ids, pairs, **{key: part for key, part in parts.items() if part is not None})
    except Exception as error:  # the library raises bare Exception, and names the token
        raise DataError(f"the merges do not match {vocabulary.name} ({error}).", merges) from error
    backend = Tokenizer(model)
    if words:
        backend.normalizer = normalizers.BertNormalizer(lowercase=True)
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        backend.decoder = decoders.BPEDecoder(suffix=END_OF_WORD)
    else:
        prefix = bool(settings.get("add_prefix_space", False))
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
        backend.decoder = decoders.ByteLevel()
    special = (end, unknown) if words else (end, unknown, *ROBERTA_SPECIAL)
    backend.add_special_tokens([_special_token(token) for token in special if token in ids])
    return backend


def _is_word_level(ids: dict[str, int], path: Path) -> bool:
    words, in_bytes = any(END_OF_WORD in token for token in ids), any(BYTE_SPACE in token for token in ids)
    if words == in_bytes:
        raise DataError(
            "expected a byte-level vocabulary (as GPT-2) or a word vocabulary (as GPT-1).", path, advice=CONVERT_ADVICE
        )
    return words


def _unknown_token(ids: dict[str, int], words: bool, said: str | None, end: str, path: Path) -> str | None:
    """Unknown token, or None if the vocabulary has all bytes. Without it, the library would silently drop text."""
    missing = 0 if words else sum(byte not in ids for byte in pre_tokenizers.ByteLevel.alphabet())
    if not words and not missing:
        return None
    unknown = said or (GPT1_UNKNOWN if words else end)
    if unknown not in ids:
        lack = f", and {missing} of the 256 bytes {'is' if missing == 1 else 'are'} missing" if missing else ""
        raise DataError(f"the vocabulary has no '{unknown}' (the unknown token){lack}.", path)
    return unknown


def _read_vocabulary(path: Path) -> dict[str, int]:
    ids = _read_json(path)
    for token, number in ids.items():
        if type(number) is not int:
            raise DataError(f"the id of '{token}' must be an integer, got {number!r}.", path)
    return ids


def _read_vocab_txt(path: Path) -> dict[str, int]:
    """Ids by token, from a file with one token per line in the order of ids."""
    lines = _read_text(path).replace("\r\n", "\n").rstrip("\n").split("\n")
    ids: dict[str, int] = {}
    for number, token in enumerate(lines):
        if ids.setdefault(token, number) != number:
            raise DataError(f"duplicate token '{token}' (first on line {ids[token] + 1}).", path, number + 1)
    return ids


def _read_merges(path: Path) -> list[tuple[str, str]]:
    pairs = []
    for number, line in enumerate(_read_text(path).split("\n"), start=1):
        parts = line.removesuffix("\r").split(" ")
        if parts == [""] or (number == 1 and parts[0].startswith("#version")):
            continue
        if len(parts) != 2 or not all(parts):
            raise DataError("expected two tokens separated by one space.", path, number)
        pairs.append((parts[0], parts[1]))
    return pairs


def read_tokenizer_settings(folder: Path) -> dict[str, Any]:
    """Settings of the folder's tokenizer. If tokenizer_config.json lists the added tokens, older files are ignored."""
    settings = _read_json(folder / "tokenizer_config.json", needed=False)
    if ADDED_TOKENS_KEY not in settings:
        settings |= _read_json(folder / "special_tokens_map.json", needed=False)
        older = _read_json(folder / "added_tokens.json", needed=False)
        settings[ADDED_TOKENS_KEY] = {number: {"content": token} for token, number in older.items()}
    return settings


def _added_tokens(settings: dict[str, Any]) -> dict[str, tuple[AddedToken, int | None]]:
    """Added and special tokens with their ids, sorted by id; None for tokens without an id."""
    found: dict[str, tuple[AddedToken, int | None]] = {}
    for number, token in sorted(settings[ADDED_TOKENS_KEY].items(), key=lambda item: int(item[0])):
        found[token["content"]] = (
            AddedToken(**{key: token[key] for key in ADDED_TOKEN_FIELDS if key in token}),
            int(number),
        )
    for value in _special_values(settings):
        token = _special_token(value)
        number = found[token.content][1] if token.content in found else None
        found[token.content] = token, number
    return found


def _special_token(value: str | dict[str, Any]) -> AddedToken:
    """Special token. `<mask>` includes the preceding space, as in RoBERTa, because tokens of words start with a space."""
    said: dict[str, Any] = value if isinstance(value, dict) else {"content": value, "lstrip": value == ROBERTA_MASK}
    return AddedToken(
        **{key: said[key] for key in ADDED_TOKEN_FIELDS if key in said} | {"special": True, "normalized": False}
    )


def _special_values(settings: dict[str, Any]) -> Iterator[str | dict[str, Any]]:
    """Values of all special tokens: keys such as `eos_token`, and additional special tokens."""
    for key, value in settings.items():
        if key in ("additional_special_tokens", "extra_special_tokens"):
            values = list(value.values()) if isinstance(value, dict) else list(value or ())
        else:
            values = [value] if key.endswith("_token") else []
        yield from (value for value in values if _token_content(value) is not None)


def _token_content(value: Any) -> str | None:
    """Text of a token, given as a string or as an object with `content`."""
    value = value.get("content") if isinstance(value, dict) else value
    return value if isinstance(value, str) else None


def _read_json(path: Path, needed: bool = True) -> dict[str, Any]:
    if not needed and not path.exists():
        return {}
    try:
        found = json.loads(_read_text(path))
    except json.JSONDecodeError as error:
        raise DataError(f"invalid JSON ({error.msg}).", path, error.lineno) from error
    if not isinstance(found, dict):
        raise DataError("expected a JSON object.", path)
    return found


def _read_text(path: Path) -> str:
    try:
        content = path.read_bytes()
        return (gzip.decompress(content) if path.suffix == ".gz" else content).decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError("not UTF-8 text.", path) from error
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"cannot be read ({error}).", path) from error
