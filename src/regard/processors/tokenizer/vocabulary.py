"""Tokenizers from a vocabulary of characters, words or word pieces, and from the files of checkpoints.

With one token per character or per whitespace-separated word, units outside the vocabulary are errors. WordPiece, as in BERT,
splits a word into the longest tokens of the vocabulary; tokens after the first start with ##. A word with a character outside
the vocabulary, or with more than 100 characters, becomes `[UNK]`.

Checkpoints without tokenizer.json have vocabulary files. A vocabulary with merges is byte-level (GPT-2, RoBERTa) or has
lowercased words whose last token ends in `</w>` (GPT-1): the tokens show which. A vocabulary without merges, one token per
line, is BERT's WordPiece. SentencePiece models are Marian's (two models with vocab.json), DeBERTa's (spm.model) or
XLM-RoBERTa's (sentencepiece.bpe.model).
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from regard.errors import DataError, SettingError
from regard.processors.tokenizer.segmenters import LONE_SURROGATE, MARIAN_FILES, MarianPieces, import_sentencepiece

CONTINUATION_PREFIX = "\ue000"
"""Continuation prefix of the decoder: a private-use character in no token, because words are not split."""


def build_word_level(units: Collection[str], words: bool) -> Tokenizer:
    """Tokenizer with these characters or words, sorted by code point."""
    if not units:
        raise DataError("Cannot build a vocabulary: the texts contain no characters.")
    if any("\ud800" <= letter <= "\udfff" for unit in units for letter in unit):
        raise DataError(LONE_SURROGATE)
    # WordLevel raises an error for unknown units; BPE without merges would silently drop them
    backend = Tokenizer(models.WordLevel({unit: i for i, unit in enumerate(sorted(units))}, unk_token="<unk>"))
    backend.pre_tokenizer = split_units(words)
    backend.decoder = decoders.WordPiece(CONTINUATION_PREFIX, cleanup=False) if words else decoders.Fuse()
    return backend


def split_units(words: bool) -> pre_tokenizers.PreTokenizer:
    """Pre-tokenizer that splits a text into words or characters."""
    return pre_tokenizers.WhitespaceSplit() if words else pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")


PREFIX = "##"
BERT_PAD, BERT_UNKNOWN, BERT_START, BERT_END, BERT_MASK = BERT_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
"""The first five ids of WordPiece tokenizers trained by regard."""

WORD_START = "\ue000"
"""Marks the start of each word during training. Absent from all texts: BERT's normalizer removes private-use characters."""


def build_wordpiece(
    ids: Mapping[str, int], normalizer: normalizers.BertNormalizer, unknown: str = BERT_UNKNOWN
) -> Tokenizer:
    """BERT's tokenizer with this vocabulary; tokens of BERT_TOKENS in the vocabulary become special."""
    backend = Tokenizer(models.WordPiece(dict(ids), unk_token=unknown))
    backend.normalizer = normalizer
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix=PREFIX)
    backend.add_special_tokens([token for token in dict.fromkeys((*BERT_TOKENS, unknown)) if token in ids])
    return backend


def train_bpe(
    texts: Iterable[str],
    size: int,
    pre_tokenizer: pre_tokenizers.PreTokenizer,
    special: Sequence[str] = (),
    normalizer: normalizers.Normalizer | None = None,
) -> Tokenizer:
    """Tokenizer with trained merges, without a decoder; the vocabulary of a byte-level tokenizer has all 256 bytes."""
    backend = Tokenizer(models.BPE())
    backend.normalizer, backend.pre_tokenizer = normalizer, pre_tokenizer
    in_bytes = isinstance(pre_tokenizer, pre_tokenizers.ByteLevel)
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(special),
        show_progress=False,
        min_frequency=2,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if in_bytes else [],
    )
    try:
        backend.train_from_iterator(texts, trainer)
    except UnicodeEncodeError as error:
        raise DataError(LONE_SURROGATE) from error
    return backend


def train_wordpiece(texts: Iterable[str], vocabulary: int, lowercase: bool) -> Tokenizer:
    """Train a vocabulary by merging the most frequent pairs.

    The WordPiece trainer of `tokenizers` numbers characters inside words in arbitrary order and breaks ties by these
    numbers, so each training differs. With a start mark on each word, BPE training gives the same vocabulary every time."""
    room = vocabulary - len(BERT_TOKENS)
    if room < 2:
        reason = f"{len(BERT_TOKENS)} tokens are special tokens"
        raise SettingError(f"A vocabulary of {vocabulary} tokens is too small: {reason}.")
    normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    words = pre_tokenizers.BertPreTokenizer()
    mark_starts = pre_tokenizers.Metaspace(replacement=WORD_START, prepend_scheme="always", split=False)
    seen: Counter[str] = Counter()

    def counted() -> Iterator[str]:
        for text in texts:
            seen.update(text)
            yield text

    # more tokens than needed, because the number of characters, which also need ids, is not known in advance
    split = pre_tokenizers.Sequence([words, mark_starts])
    marked = train_bpe(counted(), 2 * vocabulary + 4000, split, normalizer=normalizer)
    letters: Counter[str] = Counter()  # occurrences after normalization, which maps É to e, for example
    for raw, count in seen.items():
        for letter in normalizer.normalize_str(raw).strip():
            letters[letter] += count
    if not letters:
        raise DataError("Cannot build a vocabulary: the texts contain no characters.")
    inner = {x for x in letters if len(words.pre_tokenize_str(normalizer.normalize_str("a" + x))) == 1}
    ids = marked.get_vocab()
    merged = [name for name in sorted(ids, key=ids.__getitem__) if len(name) > 1]
    names = _make_vocabulary(letters, inner, merged, room // 2)
    if len(names) < vocabulary:  # ids not used by merges are used for more characters
        names = _make_vocabulary(letters, inner, merged, room // 2 + vocabulary - len(names))
    return build_wordpiece({name: number for number, name in enumerate(names[:vocabulary])}, normalizer)


def _make_vocabulary(letters: Counter[str], inner: set[str], merged: Iterable[str], room: int) -> list[str]:
    """All tokens: special tokens, the most frequent characters within `room` ids, and the merges of these characters.

    A character has one token for word starts and, if in `inner`, another for positions inside words."""
    kept: list[str] = []
    for letter in sorted(letters, key=lambda letter: (-letters[letter], letter)):
        room -= 2 if letter in inner else 1
        if room < 0 and kept:
            break
        kept.append(letter)
    known = {*kept, WORD_START}
    pieces = (_to_wordpiece(name) for name in merged if known.issuperset(name))
    inside = (PREFIX + letter for letter in sorted(inner.intersection(kept)))
    return list(dict.fromkeys((*BERT_TOKENS, *sorted(kept), *inside, *pieces)))


def _to_wordpiece(name: str) -> str:
    return name.removeprefix(WORD_START) if name.startswith(WORD_START) else PREFIX + name


# -- files of checkpoints

MARIAN_VOCABULARY = ("vocab.json", *MARIAN_FILES)
DEBERTA_MODEL, FAIRSEQ_MODEL = "spm.model", "sentencepiece.bpe.model"
VOCABULARY_FILES = (
    *(
        tuple(name + zipped for name in names)
        for names in (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe"), ("vocab.txt",))
        for zipped in ("", ".gz")
    ),
    MARIAN_VOCABULARY,
    (DEBERTA_MODEL,),
    (FAIRSEQ_MODEL,),
)
"""File names in a folder; `encoder.json` and `vocab.bpe` are OpenAI's release of GPT-2, `sentencepiece.bpe.model` has the ids
of fairseq, as in XLM-RoBERTa."""

_KEYS = ("bos_token", "pad_token", "eos_token", "unk_token", "mask_token")
FAIRSEQ_TOKENS = dict(zip(_KEYS, ("<s>", "<pad>", "</s>", "<unk>", "<mask>"), strict=True))
DEBERTA_TOKENS = dict(zip(_KEYS, ("[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]"), strict=True))
"""Default special tokens of XLM-RoBERTa and DeBERTa."""
UNIGRAM, CONTROL, USER_DEFINED = 1, 3, 4
MARIAN_TOKENS = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
"""Numbers of SentencePiece: the model type, and the types of special pieces and of pieces that are never split."""

GPT1_UNKNOWN, END_OF_WORD, BYTE_SPACE = "<unk>", "</w>", "Ġ"
"""GPT-1's unknown token, the suffix of its words, and the space in GPT-2's byte alphabet."""

ADDED_TOKENS_KEY = "added_tokens_decoder"
ADDED_TOKEN_FIELDS = ("content", "single_word", "lstrip", "rstrip", "normalized", "special")
"""Key of the added tokens by id in tokenizer_config.json, and the fields of an added token."""

ROBERTA_MASK = "<mask>"
ROBERTA_SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", ROBERTA_MASK)
"""Special in byte-level vocabularies even if undeclared: the merges of GPT-2 cannot produce these tokens."""

SPLIT_KEY = "split_special_tokens"
"""Key of tokenizer_config.json: true if special tokens in texts are plain text."""

SPECIAL_TOKEN_KEYS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")

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


def component_state(component: Any) -> dict[str, Any]:
    """JSON state of a tokenizer component, as in tokenizer.json."""
    return {} if component is None else json.loads(component.__getstate__())


def find_files(path: Path) -> tuple[Path, ...] | None:
    """Files of a folder that together define a tokenizer; `path` may also be a vocab.txt."""
    if (path.name,) in VOCABULARY_FILES and path.is_file():
        return (path,)
    choices = (tuple(path / name for name in names) for names in VOCABULARY_FILES)
    return next((files for files in choices if all(file.is_file() for file in files)), None)


class TokenizerParts(NamedTuple):
    """Arguments of `TextTokenizer`."""

    backend: Tokenizer
    declared_tokens: dict[str, str]  # special tokens by their `transformers` keys
    notes: list[str]
    split_special_tokens: bool
    pieces: MarianPieces | None = None


def unread_files(folder: str) -> str:
    """Names of the tokenizer files in a folder without a supported tokenizer; none for an empty name."""
    patterns = ("*.spm", "*.model", "vocab*", "merges*", "tokenizer.*") if folder else ()
    return ", ".join(sorted({path.name for pattern in patterns for path in Path(folder).glob(pattern)}))


def read_tokenizer(path: Path, end: str) -> TokenizerParts:
    """Tokenizer of tokenizer.json or of the vocabulary files of a folder.

    The settings of tokenizer_config.json apply to a tokenizer.json as in `transformers`. `end` becomes a special token if a
    BPE vocabulary contains it."""
    file = path / "tokenizer.json" if path.is_dir() else path
    files = None if file.name == "tokenizer.json" and file.exists() else find_files(path)
    marian = tuple(path / name for name in MARIAN_VOCABULARY)
    if path.is_dir() and all(part.is_file() for part in marian):  # `transformers` ignores a tokenizer.json of Marian
        kind = _read_json(path / "tokenizer_config.json", needed=False).get("tokenizer_class", "Marian")
        files = marian if str(kind).startswith("Marian") else files
    if not files and not file.exists():
        known = "tokenizer.json, vocab.txt, vocab.json and merges.txt, or SentencePiece models"
        raise DataError("tokenizer not found.", file, advice=f"Pass tokenizer.json, or a folder with {known}.")
    # tokenizer_config.json in the same folder applies only to a file named tokenizer.json
    settings: dict[str, Any] = {}
    if files or file.name == "tokenizer.json":
        settings = _read_json(file.parent / "tokenizer_config.json", needed=False)
        if ADDED_TOKENS_KEY not in settings:  # otherwise older files are ignored
            settings |= _read_json(file.parent / "special_tokens_map.json", needed=False)
            older = _read_json(file.parent / "added_tokens.json", needed=False)
            settings[ADDED_TOKENS_KEY] = {number: {"content": token} for token, number in older.items()}
    tokens = {name: token for name in SPECIAL_TOKEN_KEYS if (token := _token_content(settings.get(name))) is not None}
    kind = str(settings.get("tokenizer_class", ""))
    jieba = kind.startswith("RoFormerTokenizer")
    notes, split = [JIEBA_NOTE] if jieba else [], bool(settings.get(SPLIT_KEY))
    if files:
        backend, pieces = _build_tokenizer(files, settings, end)
        return TokenizerParts(backend, tokens, notes, split, pieces)
    try:
        backend = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare Exception for any file it cannot read
        raise DataError(f"cannot be read as a tokenizer.json ({error}).", file) from error
    state = component_state(backend.normalizer)
    if state.pop("type", "") == "BertNormalizer" and (jieba or kind.startswith("BertTokenizer")):
        # jieba is not in the file, and without it Chinese text would be one long word
        chosen = _bert_normalizer_args(settings, file.parent) | ({"handle_chinese_chars": True} if jieba else {})
        backend.normalizer = normalizers.BertNormalizer(**state | chosen)
    special = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
    for token in tokens.values():
        if token not in special and backend.token_to_id(token) is not None:
            backend.add_special_tokens([_special_token(token)])
    return TokenizerParts(backend, tokens, notes, split)


def _build_tokenizer(
    files: tuple[Path, ...], settings: dict[str, Any], end: str
) -> tuple[Tokenizer, MarianPieces | None]:
    """Tokenizer of vocabulary files, and the SentencePiece models of Marian."""
    path, ids, pieces = files[0], dict[str, int](), None
    if is_marian := files[1:] == tuple(path.with_name(name) for name in MARIAN_FILES):
        settings = {**MARIAN_TOKENS, **settings}
    if path.suffix == ".model":
        return _build_unigram(path, settings), None
    if len(files) > 1:
        ids = _read_json(path)
        for token, number in ids.items():
            if type(number) is not int:
                raise DataError(f"the id of '{token}' must be an integer, got {number!r}.", path)
    else:  # one token per line in the order of ids
        for number, token in enumerate(_read_text(path).replace("\r\n", "\n").rstrip("\n").split("\n")):
            if ids.setdefault(token, number) != number:
                raise DataError(f"duplicate token '{token}' (first on line {ids[token] + 1}).", path, number + 1)
    added, own = _added_tokens(settings, path.parent), dict(ids)
    for content, (_, added_id) in added.items():  # tokens without an id are appended to the vocabulary
        known_id = ids.setdefault(content, len(ids) if added_id is None else added_id)
        if added_id not in (None, known_id):
            problem = f"the id of '{content}' is {known_id} in the vocabulary, but {added_id} in the added tokens."
            raise DataError(problem, path)
    if sorted(ids.values()) != list(range(len(ids))):
        raise DataError(f"the {len(ids):,} token ids must be the integers from 0 to {len(ids) - 1:,}.", path)
    if is_marian:
        unknown = str(_token_content(settings["unk_token"]))
        if unknown not in own:
            raise DataError(f"the vocabulary has no '{unknown}' (the unknown token).", path)
        pieces = MarianPieces.load(path.parent, own, ids[unknown], settings)
        backend = Tokenizer(models.WordLevel(own, unk_token=unknown))
        backend.decoder = decoders.Metaspace()
    elif len(files) > 1:
        backend = _build_bpe(ids, path, files[1], settings, end)
    else:
        for key, plain in BASIC_SETTINGS.items():
            if settings.get(key, plain) != plain:
                raise DataError(f"{key}={settings[key]!r} is not supported.", path, advice=CONVERT_ADVICE)
        unknown = _token_content(settings.get("unk_token")) or BERT_UNKNOWN
        if unknown not in ids:
            raise DataError(f"the vocabulary has no '{unknown}' (the unknown token).", path)
        normalizer = normalizers.BertNormalizer(**_bert_normalizer_args(settings, path.parent))
        backend = build_wordpiece(ids, normalizer, unknown)
    for added_token, _ in added.values():
        (backend.add_special_tokens if added_token.special else backend.add_tokens)([added_token])
    return backend, pieces


def _build_unigram(path: Path, settings: dict[str, Any]) -> Tokenizer:
    """Tokenizer of a unigram model of SentencePiece with the steps of `transformers`: XLM-RoBERTa, whose first ids are those
    of fairseq, or DeBERTa."""
    proto = import_sentencepiece(path).sentencepiece_model_pb2.ModelProto()
    try:
        proto.ParseFromString(path.read_bytes())
    except Exception as error:  # the class of the error depends on the version of protobuf
        raise DataError("cannot be read as a SentencePiece model.", path) from error
    if proto.trainer_spec.model_type != UNIGRAM or not proto.pieces:
        raise DataError("expected a SentencePiece model of the type unigram.", path, advice=CONVERT_ADVICE)
    in_fairseq = path.name == FAIRSEQ_MODEL
    defaults = FAIRSEQ_TOKENS if in_fairseq else DEBERTA_TOKENS
    start, pad, end, unknown, mask = (_token_content(settings.get(key)) or name for key, name in defaults.items())
    pieces = [(piece.piece, piece.score) for piece in proto.pieces]
    prefix = pre_tokenizers.Metaspace(prepend_scheme="always")
    if in_fairseq:
        pieces, unknown_id = [*((name, 0.0) for name in (start, pad, end, unknown)), *pieces[3:], (mask, 0.0)], 3
        steps: list[Any] = [normalizers.Precompiled(proto.normalizer_spec.precompiled_charsmap)]
        splits, separator = [pre_tokenizers.WhitespaceSplit(), prefix], f"{end}:0 {end}:0 $B:0 {end}:0"
    else:
        names = [name for name, _ in pieces]
        unknown_id = names.index(unknown) if unknown in names else proto.trainer_spec.unk_id
        steps = [normalizers.Lowercase()] * bool(settings.get("do_lower_case"))
        steps += [normalizers.Replace(Regex(r"\s{2,}|[\n\r\t]"), " "), normalizers.NFC()]
        steps += [normalizers.Strip(left=False, right=True)]
        splits = [pre_tokenizers.Punctuation("isolated")] * bool(settings.get("split_by_punct")) + [prefix]
        separator = f"{end}:0 $B:1 {end}:1"
    backend = Tokenizer(models.Unigram(pieces, unknown_id, False))
    backend.normalizer, backend.pre_tokenizer = normalizers.Sequence(steps), pre_tokenizers.Sequence(splits)
    backend.decoder = decoders.Metaspace(prepend_scheme="always")
    backend.add_special_tokens([_special_token(token) for token in (start, end, unknown, pad, mask)])
    added = {
        piece.piece: (AddedToken(piece.piece, normalized=False, special=piece.type == CONTROL), None)
        for piece in proto.pieces
        if piece.type in (CONTROL, USER_DEFINED)
    }
    for content, (token, number) in {**added, **_added_tokens(settings, path.parent)}.items():
        (backend.add_special_tokens if token.special else backend.add_tokens)([token])
        if number not in (None, backend.token_to_id(content)):
            problem = f"the id of '{content}' is {backend.token_to_id(content)}, but {number} in the added tokens."
            raise DataError(problem, path)
    known = [(token, backend.token_to_id(token)) for token in (start, end)]
    pair = f"{start}:0 $A:0 {separator}"
    backend.post_processor = processors.TemplateProcessing(f"{start}:0 $A:0 {end}:0", pair, known)
    return backend


def _bert_normalizer_args(settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Arguments of `BertNormalizer` from the settings; strip_accents=None follows `lowercase`."""
    for key in BERT_NORMALIZER_KEYS:
        if not isinstance(settings.get(key), bool | None):
            raise DataError(f"{key} must be true or false, got {settings[key]!r}.", folder)
    chosen = {name: settings[key] for key, name in BERT_NORMALIZER_KEYS.items() if key in settings}
    return {name: value for name, value in chosen.items() if value is not None or name == STRIP_ACCENTS}


def _build_bpe(ids: dict[str, int], vocabulary: Path, merges: Path, settings: dict[str, Any], end: str) -> Tokenizer:
    pairs = []
    for number, line in enumerate(_read_text(merges).split("\n"), start=1):
        tokens = line.removesuffix("\r").split(" ")
        if tokens == [""] or (number == 1 and tokens[0].startswith("#version")):
            continue
        if len(tokens) != 2 or not all(tokens):
            raise DataError("expected two tokens separated by one space.", merges, number)
        pairs.append((tokens[0], tokens[1]))
    words, in_bytes = any(END_OF_WORD in token for token in ids), any(BYTE_SPACE in token for token in ids)
    if words == in_bytes:
        problem = "expected a byte-level vocabulary (as GPT-2) or a word vocabulary (as GPT-1)."
        raise DataError(problem, vocabulary, advice=CONVERT_ADVICE)
    # without an unknown token, the library would silently drop text outside a vocabulary without all bytes
    missing = 0 if words else sum(byte not in ids for byte in pre_tokenizers.ByteLevel.alphabet())
    unknown: str | None = None
    if words or missing:
        unknown = _token_content(settings.get("unk_token")) or (GPT1_UNKNOWN if words else end)
        if unknown not in ids:
            lack = f", and {missing} of the 256 bytes {'is' if missing == 1 else 'are'} missing" if missing else ""
            raise DataError(f"the vocabulary has no '{unknown}' (the unknown token){lack}.", vocabulary)
    options = {"unk_token": unknown, "end_of_word_suffix": END_OF_WORD if words else None}
    try:
        model = models.BPE(ids, pairs, **{key: value for key, value in options.items() if value is not None})
    except Exception as error:  # the library raises bare Exception, and names the token
        raise DataError(f"the merges do not match {vocabulary.name} ({error}).", merges) from error
    backend = Tokenizer(model)
    if words:
        backend.normalizer = normalizers.BertNormalizer(lowercase=True)
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        backend.decoder = decoders.BPEDecoder(suffix=END_OF_WORD)
    else:
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(bool(settings.get("add_prefix_space", False)))
        backend.decoder = decoders.ByteLevel()
    special = (end, unknown) if words else (end, unknown, *ROBERTA_SPECIAL)
    backend.add_special_tokens([_special_token(token) for token in special if token in ids])
    return backend


def _added_tokens(settings: dict[str, Any], folder: Path) -> dict[str, tuple[AddedToken, int | None]]:
    """Added and special tokens by content with their ids, sorted by id; None for tokens without an id."""
    added: dict[str, tuple[AddedToken, int | None]] = {}
    try:
        for number, token in sorted(settings[ADDED_TOKENS_KEY].items(), key=lambda item: int(item[0])):
            options = {key: token[key] for key in ADDED_TOKEN_FIELDS if key in token}
            added[token["content"]] = AddedToken(**options), int(number)
        for key, value in settings.items():  # keys such as `eos_token`, and additional special tokens
            values = [value] if key.endswith("_token") else []
            if key in ("additional_special_tokens", "extra_special_tokens"):
                values = list(value.values()) if isinstance(value, dict) else list(value or ())
            for item in values:
                if (content := _token_content(item)) is not None:
                    added[content] = _special_token(item), added[content][1] if content in added else None
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"the added tokens cannot be read ({error!r}).", folder) from error
    return added


def _special_token(value: str | dict[str, Any]) -> AddedToken:
    """Special token. `<mask>` includes the preceding space, as in RoBERTa, because tokens of words start with a space."""
    token: dict[str, Any] = value if isinstance(value, dict) else {"content": value, "lstrip": value == ROBERTA_MASK}
    options = {key: token[key] for key in ADDED_TOKEN_FIELDS if key in token}
    return AddedToken(**options | {"special": True, "normalized": False})


def _token_content(value: Any) -> str | None:
    """Text of a token, given as a string or as an object with `content`."""
    value = value.get("content") if isinstance(value, dict) else value
    return value if isinstance(value, str) else None


def _read_json(path: Path, needed: bool = True) -> dict[str, Any]:
    if not needed and not path.exists():
        return {}
    try:
        content = json.loads(_read_text(path))
    except json.JSONDecodeError as error:
        raise DataError(f"invalid JSON ({error.msg}).", path, error.lineno) from error
    if not isinstance(content, dict):
        raise DataError("expected a JSON object.", path)
    return content


def _read_text(path: Path) -> str:
    try:
        content = path.read_bytes()
        return (gzip.decompress(content) if path.suffix == ".gz" else content).decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError("not UTF-8 text.", path) from error
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"cannot be read ({error}).", path) from error
