"""Sentences with one tag per word: CoNLL format, or one sentence per row of tables, JSONL and Parquet; and tag schemes.

In CoNLL format, columns are separated by tabs if the first line contains a tab, else by spaces. Lines `-DOCSTART- …` and
comments `# …` before the first word of a sentence are skipped, but not the word "#" with a known tag. In CoNLL-U, multiword
tokens (1-2) and empty nodes (1.1) are skipped.

Tag schemes for entities:

| scheme | In | New   | York  | , | Rome  | Paris | … |                 two adjacent entities of one type
|--------|----|-------|-------|---|-------|-------|---|
| IOB1   | O  | I-LOC | I-LOC | O | I-LOC | B-LOC | O |                 B only between adjacent entities of one type
| IOB2   | O  | B-LOC | I-LOC | O | B-LOC | B-LOC | O |
| BIOES  | O  | B-LOC | E-LOC | O | S-LOC | S-LOC | O |
| BILOU  | O  | B-LOC | L-LOC | O | U-LOC | U-LOC | O |                 BIOES with other letters
| plain  | IN | NNP   | NNP   | , | NNP   | NNP   | : |                 no entities: one class per word

One rule parses all schemes and repairs invalid sequences, as `seqeval` does in its default mode: a word continues the
previous entity if the previous tag is B or I, the tag of the word is I or E, and the types are equal. Every other word with
a tag except O begins a new entity.
"""

from __future__ import annotations

import operator
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

from regard.data.reader import Reader, with_target
from regard.data.text import formats, tables
from regard.data.text.files import Columns, existing_file, read_lines
from regard.data.text.own_columns import read_own_rows
from regard.errors import DataError, RegardError

TagScheme = Literal["IOB1", "IOB2", "BIOES", "BILOU", "plain"]
SCHEME_LETTERS: dict[TagScheme, str] = {"IOB2": "BIIB", "IOB1": "IIII", "BIOES": "BIES", "BILOU": "BILU"}
"""Letters of the first, inner, last and only word of an entity. The order breaks ties: the most common scheme is first."""

OUTSIDE = "O"
MIN_ERROR_RATIO = 10  # of invalid tags in the second-best scheme to the best scheme, for an unambiguous choice
_EQUIVALENT_LETTERS = {"L": "E", "U": "S"}
_TAG = re.compile(r"([BIESLU])(?:-(\S+))?")
_UNSUPPORTED_TAG = re.compile(r".+[-_.][BIESLU]|[BIESLU][_.:].+|[a-z]-.+|M-.+")  # similar to entity tags

COLUMNS = ("words", "tags")  # Column names accepted by --columns

CONLL_SUFFIXES = (".conll", ".conllu", ".iob", ".iob2", ".bio", ".bioes")
_PROBE_LINES = 50  # lines examined to distinguish a table from CoNLL format
WORD_COLUMNS = ("words", "tokens", "word", "token", "form", "sentence", "text")
TAG_COLUMNS = ("tags", "ner_tags", "labels", "tag", "ner_tag", "ner", "label", "pos_tags", "pos", "upos")
COLUMN_ALIASES = {"words": WORD_COLUMNS, "tags": TAG_COLUMNS}  # usual names, in order of preference

CONLLU_COLUMNS = (1, 3)  # Positions of the word and the universal part of speech in CoNLL-U

_DOCSTART = "-DOCSTART-"
_SEPARATOR = re.compile(r"[ \t]+")
_MULTIWORD_ID = re.compile(r"\d+[-.]\d+")
_METADATA_COMMENT = re.compile(r"#\s*[\w.:]+\s*=")


@dataclass(frozen=True, slots=True)
class TaggedSentence:
    """Words and tags of a sentence, with file and line."""

    words: tuple[str, ...]
    tags: tuple[str, ...]  # empty for unlabeled inputs
    path: str = ""
    line: int = 0  # line of the first word
    text: str = ""  # text that was split into the words; empty: the words separated by spaces


def read_tagged(entry: str, columns: Columns = None, inputs_only: bool = False) -> tables.Samples[TaggedSentence]:
    """Yield the sentences of one file.

    In CoNLL format the word is the first column and the tag the last, unless `columns` gives other positions. Tables, JSON
    and Parquet have columns `words` (or `tokens`) and `tags` (or `ner_tags`, `labels`): lists, or texts split at spaces.
    With `inputs_only`, tags are not read and may be missing."""
    tables.ColumnSpec(COLUMNS, columns)  # raises for an unknown column choice
    path = existing_file(entry)
    kind = formats.file_format(path)
    if kind in (*CONLL_SUFFIXES, *formats.TAB_SUFFIXES):
        sentence_cell, has_sentence_rows = _find_sentences(path, columns)
        is_table = has_sentence_rows or (sentence_cell is not None and inputs_only)
        if kind in CONLL_SUFFIXES or not is_table:
            if sentence_cell is not None:
                raise DataError(
                    f"not CoNLL format: expected one word per line, found '{sentence_cell[1][:60].strip()}'.",
                    path,
                    sentence_cell[0],
                    "CoNLL files have one word and its tag per line, and an empty line between sentences. "
                    "Tables with one sentence per row need the columns words and tags, with one tag per word.",
                )
            return _read_conll(entry, path, columns, inputs_only)
    elif kind not in formats.ALL_TABLE_SUFFIXES:
        others = ".txt .tsv (one word per line), .csv .tsv .jsonl (one sentence per line), .parquet"
        advice = f"Supported: {' '.join(CONLL_SUFFIXES)} {others}; text files also with .gz."
        raise formats.unsupported_type(path, advice)
    return _read_table(entry, path, columns, inputs_only)


def _own_rows(entry: str, columns: Columns) -> Iterator[formats.Row] | None:
    """Rows of a table of sentences; None in CoNLL format."""
    path = existing_file(entry)
    if formats.file_format(path) in formats.TAB_SUFFIXES and _find_sentences(path, columns) == (None, False):
        return None
    return None if formats.file_format(path) in CONLL_SUFFIXES else read_own_rows(entry)


def _find_sentences(path: Path, columns: Columns) -> tuple[tuple[int, str] | None, bool]:
    """Examine the first lines with tabs: the first cell with several words and its line number, if most lines have such a
    cell in the word column; and True if a tag cell has several tags, which cannot belong to one word."""
    ignored: list[DataError] = []  # reading the sentences reports the errors
    lines = (
        (line, text, _split_columns(text, tab_separated=True))
        for line, text in read_lines(path, ignored.append)
        if "\t" in text and not text.startswith("# ")
    )
    rows = list(islice(lines, _PROBE_LINES))
    word_choice, tag_choice = (columns or {}).get("words", "0"), (columns or {}).get("tags", "")
    position = int(word_choice) if tables.is_position(word_choice) else 0
    cells_of_words = [(line, cells[position]) for line, text, cells in rows if position < len(cells) and text[0] != "#"]
    sentences = [(line, cell) for line, cell in cells_of_words if " " in cell]
    first = sentences[0] if 2 * len(sentences) > len(cells_of_words) else None
    names = [cell.lower() for cell in rows[0][2]] if rows else []
    position = next((names.index(name) for name in (tag_choice.lower(), *TAG_COLUMNS) if name in names), -1)
    position = int(tag_choice) if tables.is_position(tag_choice) else position
    return first, any(" " in cells[position] for _, _, cells in rows if position < len(cells))


def _check_tags(path: str, first_seen: dict[bool, tuple[int, str]], tags: Iterable[tuple[int, str]]) -> None:
    """Raise `DataError` at the first (line, tag) that mixes entity tags with other tags in one file.

    `first_seen` collects the first entity tag (True) and the first other tag (False)."""
    for line, tag in tags:
        is_entity = parse_tag(tag) is not None
        if is_entity and len(tag) == 1:
            continue  # O, or a single letter, which is valid in both cases
        if (not is_entity) in first_seen:
            first_line, other = first_seen[not is_entity]
            entity, single = (tag, other) if is_entity else (other, tag)
            raise DataError(
                f"inconsistent tag schemes: '{tag[:40]}' here, '{other[:40]}' on line {first_line}.",
                path,
                line,
                f"'{entity[:40]}' is an entity tag, '{single[:40]}' is not. "
                "Entity tags are O, B-PER, I-PER (also E-, S-, L-, U-).",
            )
        first_seen.setdefault(is_entity, (line, tag))


# -- one sentence per row


def _read_table(entry: str, path: Path, columns: Columns, inputs_only: bool) -> tables.Samples[TaggedSentence]:
    required = ("words",) if inputs_only else COLUMNS
    chosen = tables.find_columns(path, COLUMN_ALIASES, required, columns, by_order=True)
    names: Sequence[str] = ()
    if inputs_only and chosen is None and len(formats.read_header(path)) == len(COLUMNS):
        required = COLUMNS
    elif chosen is not None:
        chosen = {name: column for name, column in chosen.items() if name in required}
    if not inputs_only:
        tag_column = (chosen or {}).get("tags", "tags")
        names = formats.read_class_names(path, tag_column)
        if not names:
            _reject_numeric_tags(path, tag_column)
    first_seen: dict[bool, tuple[int, str]] = {}

    def make_sentence(line: int, row: dict[str, Any]) -> TaggedSentence | tables.SkippedRow:
        words = _split_items(row["words"])
        if inputs_only:
            words = [word for word in words if word.strip()]
            return TaggedSentence(tuple(words), (), entry, line) if words else tables.SkippedRow(entry, line)
        tags = _split_items(row["tags"])
        if not words or not tags:
            skipped = tables.find_missing(entry, line, {"words": " ".join(words), "tags": " ".join(tags)})
            return skipped or tables.SkippedRow(entry, line)
        if len(words) != len(tags):
            counts = f"{len(words)} word{'s'[: len(words) > 1]} and {len(tags)} tag{'s'[: len(tags) > 1]}"
            raise DataError(f"expected one tag per word, got {counts}: {' '.join(words)[:40]} …", entry, line)
        for name, items in (("word", words), ("tag", tags)):
            empty = next((place for place, item in enumerate(items) if not item.strip()), None)
            if empty is not None:
                raise DataError(f"{name} {empty} is empty (counting from 0).", entry, line)
        for place, tag in enumerate(tags if names else ()):
            if tag.isdigit():
                if int(tag) >= len(names):
                    problem = f"tag number must be between 0 and {len(names) - 1}, got {tag}."
                    raise DataError(problem, entry, line, f"Tag names: {tables.format_list(names)}.")
                tags[place] = names[int(tag)]
        _check_tags(entry, first_seen, ((line, tag) for tag in tags))
        return TaggedSentence(tuple(words), tuple(tags), entry, line)

    rows = tables.iterate_rows(entry, required, chosen, numeric=("tags",) if names else ())
    return tables.make_samples(rows, make_sentence)


def _split_items(value: Any) -> list[str]:
    if isinstance(value, str):
        return _split_columns(value, tab_separated=False) if value.strip() else []
    return [item.strip(" \t") for item in value]


def _reject_numeric_tags(path: Path, column: str) -> None:
    """Raise `DataError` if tags are numbers without names."""
    if not formats.has_column_names(path):
        return
    number: str | int | None
    schema = formats.read_schema(path)
    if schema is not None:
        kinds = {field.name: str(getattr(field.type, "value_type", field.type)) for field in schema}
        number, line = kinds[column] if "int" in kinds.get(column, "") else None, None
    else:
        ignored: list[DataError] = []  # reading the sentences reports the errors
        records = formats.find_format(path).read(path, ignored.append, ())
        line, tags = next(((line, row.get(column)) for line, row in records if isinstance(row, dict)), (0, None))
        number = next((tag for tag in tags if isinstance(tag, int)), None) if isinstance(tags, list) else None
    if number is not None:
        problem = f"expected tag names in '{column}', got numbers ({number})."
        raise DataError(problem, path, line, "Write tags as names, such as B-PER.")


# -- CoNLL format


class ConllLayout(NamedTuple):
    """Column layout, detected from the first line of a file."""

    tab_separated: bool
    num_columns: int  # columns of every line; 0: only the chosen positions must exist
    word_column: int
    tag_column: int
    has_header: bool


def _split_columns(text: str, tab_separated: bool) -> list[str]:
    """Columns of a line. No-break spaces such as U+00A0 are not separators."""
    return [cell.strip(" ") for cell in text.split("\t")] if tab_separated else _SEPARATOR.split(text.strip(" \t"))


def _read_conll(entry: str, path: Path, columns: Columns, inputs_only: bool) -> Iterator[TaggedSentence | DataError]:
    """Yield the sentences, or the errors of a sentence with invalid lines or tags."""
    layout: ConllLayout | None = None
    words: list[tuple[int, str, str]] = []  # line, word and tag
    errors: list[DataError] = []
    tags: set[str] = {OUTSIDE}
    first_seen: dict[bool, tuple[int, str]] = {}
    for line, text in chain(read_lines(path, errors.append), [(0, "")]):
        if not text.strip() or text.split(maxsplit=1)[0] == _DOCSTART:
            try:
                _check_tags(entry, first_seen, ((line, tag) for line, _, tag in words if not (errors or inputs_only)))
            except DataError as error:
                errors.append(error)
            if words and not errors:
                lines, texts, sentence_tags = zip(*words, strict=True)
                yield TaggedSentence(texts, () if inputs_only else sentence_tags, entry, lines[0])
            yield from errors
            words = []
            errors.clear()
            continue
        if not words and _is_comment(text, layout, tags):
            continue
        if layout is None and not errors:
            layout = _detect_layout(path, line, text, columns, inputs_only)
            if layout.has_header:
                continue
        try:
            word = None if layout is None else _parse_word(path, line, text, layout, inputs_only)
        except DataError as error:
            errors.append(error)
            continue
        if word is not None:
            words.append((line, *word))
            tags.add(word[1])


def _is_comment(text: str, layout: ConllLayout | None, tags: set[str]) -> bool:
    """True if this line, before the first word of a sentence, is a comment. The word "#" has a known tag."""
    if text != "#" and not text.startswith("# "):
        return False
    if _METADATA_COMMENT.match(text) and "\t" not in text:
        return True
    if layout is None:
        cells = _split_columns(text, "\t" in text)
        return len(cells) < 2 or parse_tag(cells[-1]) is None
    cells = _split_columns(text, layout.tab_separated)
    is_irregular = len(cells) <= layout.tag_column or (layout.num_columns > 0 and len(cells) != layout.num_columns)
    return is_irregular or cells[layout.tag_column] not in tags


def _detect_layout(path: Path, line: int, text: str, columns: Columns, words_only: bool) -> ConllLayout:
    tabs, chosen = "\t" in text, dict(columns or {})
    cells = _split_columns(text, tabs)
    if len(cells) == 1 and words_only:
        return ConllLayout(False, 1, 0, 0, cells[0].lower() in WORD_COLUMNS)
    if len(cells) < 2:
        advice = "Each line needs a word and a tag, separated by a tab or spaces; an empty line ends a sentence."
        raise DataError(tables.count_columns(2, 1, at_least=True), path, line, advice)
    lowered = [cell.lower() for cell in cells]
    chosen_names = [name for name in chosen.values() if not tables.is_position(name)]
    usual = [
        next((lowered.index(name) for name in names if name in lowered), None) for names in COLUMN_ALIASES.values()
    ]
    header = bool(chosen_names) or None not in usual
    advice = " Positions start at 0: words=0 tags=1."
    tables.require_columns(chosen_names, cells, f"Columns in {path}, line {line}", advice)
    is_conllu = formats.file_format(path) == ".conllu" and len(cells) > max(CONLLU_COLUMNS)
    word, tag = CONLLU_COLUMNS if is_conllu else (0, len(cells) - 1)
    if header:
        word, tag = usual[0] or 0, tag if usual[1] is None else usual[1]
    places = {
        name: (cells.index(choice) if choice in chosen_names else int(choice))
        if (choice := chosen.get(name))
        else place
        for name, place in (("words", word), ("tags", tag))
    }
    tables.check_positions(path, line, places.values(), len(cells))
    return ConllLayout(tabs, 0 if "tags" in chosen else len(cells), places["words"], places["tags"], header)


def _parse_word(path: Path, line: int, text: str, layout: ConllLayout, words_only: bool) -> tuple[str, str] | None:
    cells = _split_columns(text, layout.tab_separated)
    if layout.word_column and _MULTIWORD_ID.fullmatch(cells[0]):
        return None
    expected = layout.num_columns or max(layout.word_column, layout.tag_column) + 1
    if len(cells) != expected and (layout.num_columns or len(cells) < expected):
        separator = "tabs" if layout.tab_separated else "spaces"
        advice = f"In the first line, {separator} separate the columns. Check for a missing or an extra separator."
        raise DataError(tables.count_columns(expected, len(cells), at_least=not layout.num_columns), path, line, advice)
    word, tag = cells[layout.word_column], cells[layout.tag_column]
    if not word.strip() or not (tag.strip() or words_only):
        present, missing = ("word", "tag") if word.strip() else ("tag", "word")
        raise DataError(f"{present} '{(word.strip() or tag.strip())[:40]}' has no {missing}.", path, line)
    return word, tag


# -- tag schemes


class Entity(NamedTuple):
    type: str  # empty if tags have only a letter
    first: int
    last: int  # index of the last word (inclusive)


@lru_cache(maxsize=4096)
def parse_tag(tag: str) -> tuple[str, str] | None:
    """Letter and type of a tag; None if the tag is not an entity tag."""
    if tag == OUTSIDE:
        return OUTSIDE, ""
    match = _TAG.fullmatch(tag)
    return (match[1], match[2] or "") if match else None


def extract_entities(tags: Sequence[str]) -> list[Entity]:
    """Entities of one sentence, for tags of any scheme."""
    entities: list[Entity] = []
    previous, entity_type, first = OUTSIDE, "", -1
    for place, tag in enumerate((*tags, OUTSIDE)):
        parts = parse_tag(tag)
        if parts is None:
            raise RegardError(f"Invalid entity tag '{tag}': expected O, or a letter and a type such as B-PER.")
        letter, tag_type = _EQUIVALENT_LETTERS.get(parts[0], parts[0]), parts[1]
        if first >= 0 and not (previous in "BI" and letter in "IE" and tag_type == entity_type):
            entities.append(Entity(entity_type, first, place - 1))
            first = -1
        if letter != OUTSIDE and first < 0:
            first, entity_type = place, tag_type
        previous = letter
    return entities


def _with_adjacency(entities: Iterable[Entity]) -> Iterator[tuple[Entity, bool]]:
    """Entities, each with True if it directly follows an entity of the same type."""
    previous = Entity("", -1, -2)
    for entity in entities:
        yield entity, previous.last + 1 == entity.first and previous.type == entity.type
        previous = entity


def entities_to_tags(entities: Iterable[Entity], length: int, scheme: TagScheme) -> list[str]:
    """Tags of a sentence of `length` words; entities must be sorted and must not overlap."""
    tags = [OUTSIDE] * length
    for entity, is_adjacent in _with_adjacency(entities):
        letters = _entity_letters(entity.last - entity.first + 1, is_adjacent, scheme)
        suffix = f"-{entity.type}" if entity.type else ""
        tags[entity.first : entity.last + 1] = [letter + suffix for letter in letters]
    return tags


def convert_tags(tags: Sequence[str], scheme: TagScheme) -> list[str]:
    """Tags of the same entities in another scheme, or repaired in the same scheme."""
    return entities_to_tags(extract_entities(tags), len(tags), scheme)


def scheme_tags(types: Iterable[str], scheme: TagScheme) -> list[str]:
    """All tags of a scheme: O first, then sorted by type."""
    letters = "".join(sorted({*SCHEME_LETTERS[scheme], *("B" if scheme == "IOB1" else "")}))
    return [OUTSIDE, *(f"{letter}-{kind}" if kind else letter for kind in sorted(set(types)) for letter in letters)]


def _entity_letters(length: int, is_adjacent: bool, scheme: TagScheme) -> str:
    first, inside, last, alone = list(SCHEME_LETTERS[scheme])
    if scheme == "IOB1" and is_adjacent:
        first = alone = "B"
    return alone if length == 1 else first + inside * (length - 2) + last


@lru_cache(maxsize=4096)
def _scheme_errors(letters: str, is_adjacent: bool) -> tuple[int, ...]:
    """Number of wrong letters of an entity in each scheme."""
    expected = (_entity_letters(len(letters), is_adjacent, scheme) for scheme in SCHEME_LETTERS)
    return tuple(sum(map(operator.ne, letters, correct)) for correct in expected)


class SchemeDetector:
    """Detection of the tag scheme from counts of tags, entity types and invalid tags per scheme."""

    def __init__(self) -> None:
        self.tag_counts: Counter[str] = Counter()
        self.type_counts: Counter[str] = Counter()  # number of entities per type
        self.scheme_errors: dict[TagScheme, int] = dict.fromkeys(SCHEME_LETTERS, 0)  # invalid tags per scheme

    def update(self, tags: Sequence[str]) -> set[TagScheme]:
        """Count the tags of a sentence; return the schemes in which a tag is invalid."""
        self.tag_counts.update(tags)
        if any(parse_tag(tag) is None for tag in tags):
            return set()
        invalid: set[TagScheme] = set()
        for entity, is_adjacent in _with_adjacency(extract_entities(tags)):
            letters = "".join(tag[0] for tag in tags[entity.first : entity.last + 1])
            for scheme, count in zip(SCHEME_LETTERS, _scheme_errors(letters, is_adjacent), strict=True):
                self.scheme_errors[scheme] += count
                invalid |= {scheme} if count else set()
            self.type_counts[entity.type] += 1
        return invalid

    @property
    def scheme(self) -> TagScheme:
        """Scheme with the fewest invalid tags."""
        if any(parse_tag(tag) is None for tag in self.tag_counts):
            return "plain"
        return min(self.scheme_errors, key=lambda name: self.scheme_errors[name])

    @property
    def num_invalid(self) -> int:
        """Number of tags that are invalid in the detected scheme."""
        return 0 if self.scheme == "plain" else self.scheme_errors[self.scheme]

    @property
    def ambiguity(self) -> str:
        """Reason why the detected scheme is uncertain; empty if it is certain."""
        scheme, errors = self.scheme, self.scheme_errors
        if scheme == "plain":
            unsupported = [tag for tag in self.tag_counts if _UNSUPPORTED_TAG.fullmatch(tag)]
            entity_tags = [tag for tag in self.tag_counts if len(tag) > 1 and parse_tag(tag) is not None]
            if entity_tags:
                other = next(tag for tag in self.tag_counts if parse_tag(tag) is None)
                return f"'{entity_tags[0]}' is an entity tag and '{other}' is not: all tags are treated as classes of words"
            if 2 * len(unsupported) > len(self.tag_counts):
                return (
                    f"'{unsupported[0]}' resembles an entity tag in an unsupported format: treated as a class of words"
                )
            return ""
        if not self.type_counts:
            return "no word is part of an entity"
        other = min((name for name in SCHEME_LETTERS if name != scheme), key=lambda name: errors[name])
        if errors[other] == errors[scheme]:
            return f"the tags match {other} equally well"
        if MIN_ERROR_RATIO * errors[scheme] > errors[other]:
            return f"the numbers of invalid tags are close ({scheme}: {errors[scheme]:,}, {other}: {errors[other]:,})"
        return ""


TAGGED = Reader(
    unit="sentences",
    columns=COLUMNS,
    sample_type=TaggedSentence,
    samples=partial(tables.iterate_all, read_tagged, "sentences", "Each sentence needs words, and one tag per word."),
    inputs=partial(tables.sample_inputs, read_tagged, lambda item: list(item.words)),
    split_key=lambda sentence: "\0".join(sentence.words),
    contents=lambda sentence: with_target((" ".join(sentence.words),), " ".join(sentence.tags)),
    texts=lambda sentence: (" ".join(sentence.words),),
    labels=lambda sentence: sentence.tags,
    table_suffixes=(*CONLL_SUFFIXES, *formats.TABLE_SUFFIXES),
    own_rows=_own_rows,
    plain_suffix=".conll",
)
