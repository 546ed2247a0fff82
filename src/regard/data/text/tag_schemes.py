"""Tag schemes for entities: parsing, writing, conversion and detection.

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

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

from regard.errors import RegardError

TagScheme = Literal["IOB1", "IOB2", "BIOES", "BILOU", "plain"]
SCHEME_LETTERS: dict[TagScheme, str] = {"IOB2": "BIIB", "IOB1": "IIII", "BIOES": "BIES", "BILOU": "BILU"}
"""Letters of the first, inner, last and only word of an entity. The order breaks ties: the most common scheme is first."""

OUTSIDE = "O"
MIN_ERROR_RATIO = 10
"""minimum ratio of invalid tags in the second-best scheme to the best scheme, for an unambiguous choice"""
_EQUIVALENT_LETTERS = {"L": "E", "U": "S"}
_TAG = re.compile(r"([BIESLU])(?:-(\S+))?")
_UNSUPPORTED_TAG = re.compile(r".+[-_.][BIESLU]|[BIESLU][_.:].+|[a-z]-.+|M-.+")
"""tags that resemble entity tags in an unsupported format"""


class Entity(NamedTuple):
    type: str
    """empty if tags have only a letter"""
    first: int
    last: int
    """index of the last word (inclusive)"""


@lru_cache(maxsize=4096)
def parse_tag(tag: str) -> tuple[str, str] | None:
    """Letter and type of a tag; None if the tag is not an entity tag."""
    if tag == OUTSIDE:
        return OUTSIDE, ""
    found = _TAG.fullmatch(tag)
    return (found[1], found[2] or "") if found else None


def extract_entities(tags: Sequence[str]) -> list[Entity]:
    """Entities of one sentence, for tags of any scheme."""
    found: list[Entity] = []
    before, kind, first = OUTSIDE, "", -1
    for place, tag in enumerate(tags):
        parts = parse_tag(tag)
        if parts is None:
            raise RegardError(f"Invalid entity tag '{tag}': expected O, or a letter and a type such as B-PER.")
        letter, its = _EQUIVALENT_LETTERS.get(parts[0], parts[0]), parts[1]
        if first >= 0 and not (before in "BI" and letter in "IE" and its == kind):
            found.append(Entity(kind, first, place - 1))
            first = -1
        if letter != OUTSIDE and first < 0:
            first, kind = place, its
        before = letter
    return [*found, Entity(kind, first, len(tags) - 1)] if first >= 0 else found


def entities_to_tags(entities: Iterable[Entity], length: int, scheme: TagScheme) -> list[str]:
    """Tags of a sentence of `length` words; entities must be sorted and must not overlap."""
    tags, end = [OUTSIDE] * length, Entity("", -1, -2)
    for entity in entities:
        touches = end.last + 1 == entity.first and end.type == entity.type
        letters = _entity_letters(entity.last - entity.first + 1, touches, scheme)
        behind = f"-{entity.type}" if entity.type else ""
        tags[entity.first : entity.last + 1] = [letter + behind for letter in letters]
        end = entity
    return tags


def convert_tags(tags: Sequence[str], scheme: TagScheme) -> list[str]:
    """Tags of the same entities in another scheme, or repaired in the same scheme."""
    return entities_to_tags(extract_entities(tags), len(tags), scheme)


def scheme_tags(types: Iterable[str], scheme: TagScheme) -> list[str]:
    """All tags of a scheme: O first, then sorted by type."""
    letters = "".join(sorted({*SCHEME_LETTERS[scheme], *("B" if scheme == "IOB1" else "")}))
    return [OUTSIDE, *(f"{letter}-{kind}" if kind else letter for kind in sorted(set(types)) for letter in letters)]


def _entity_letters(length: int, touches: bool, scheme: TagScheme) -> str:
    first, inside, last, alone = list(SCHEME_LETTERS[scheme])
    if scheme == "IOB1" and touches:
        first = alone = "B"
    return alone if length == 1 else first + inside * (length - 2) + last


def _count_differences(ours: str, theirs: str) -> int:
    return sum(one != other for one, other in zip(ours, theirs, strict=True))


@lru_cache(maxsize=4096)
def _scheme_errors(letters: str, touches: bool) -> tuple[int, ...]:
    return tuple(
        _count_differences(letters, _entity_letters(len(letters), touches, scheme)) for scheme in SCHEME_LETTERS
    )


class SchemeDetector:
    """Detection of the tag scheme from counts of tags, entity types and invalid tags per scheme."""

    def __init__(self) -> None:
        self.tag_counts: Counter[str] = Counter()
        self.type_counts: Counter[str] = Counter()
        """number of entities per type"""
        self.scheme_errors: dict[TagScheme, int] = dict.fromkeys(SCHEME_LETTERS, 0)
        """number of tags that are invalid in each scheme"""

    def update(self, tags: Sequence[str]) -> set[TagScheme]:
        """Count the tags of a sentence; return the schemes in which a tag is invalid."""
        self.tag_counts.update(tags)
        if any(parse_tag(tag) is None for tag in tags):
            return set()
        end, wrong = Entity("", -1, -2), set()
        for entity in extract_entities(tags):
            letters = "".join(tag[0] for tag in tags[entity.first : entity.last + 1])
            touches = end.last + 1 == entity.first and end.type == entity.type
            for scheme, many in zip(SCHEME_LETTERS, _scheme_errors(letters, touches), strict=True):
                self.scheme_errors[scheme] += many
                wrong |= {scheme} if many else set()
            self.type_counts[entity.type] += 1
            end = entity
        return wrong

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
        scheme, flaws = self.scheme, self.scheme_errors
        if scheme == "plain":
            strange = [tag for tag in self.tag_counts if _UNSUPPORTED_TAG.fullmatch(tag)]
            spells = [tag for tag in self.tag_counts if len(tag) > 1 and parse_tag(tag) is not None]
            if spells:
                other = next(tag for tag in self.tag_counts if parse_tag(tag) is None)
                return f"'{spells[0]}' is an entity tag and '{other}' is not: all tags are treated as classes of words"
            if 2 * len(strange) > len(self.tag_counts):
                return f"'{strange[0]}' resembles an entity tag in an unsupported format: treated as a class of words"
            return ""
        if not self.type_counts:
            return "no word is part of an entity"
        other = min((name for name in SCHEME_LETTERS if name != scheme), key=lambda name: flaws[name])
        if flaws[other] == flaws[scheme]:
            return f"the tags match {other} equally well"
        if MIN_ERROR_RATIO * flaws[scheme] > flaws[other]:
            return f"the numbers of invalid tags are close ({scheme}: {flaws[scheme]:,}, {other}: {flaws[other]:,})"
        return ""
