"""How the tags of words spell entities.

| scheme | In | New   | York  | , | Rome  | Paris | … |                 two entities of a kind that touch
|--------|----|-------|-------|---|-------|-------|---|
| IOB1   | O  | I-LOC | I-LOC | O | I-LOC | B-LOC | O |                 B only where two of a kind touch
| IOB2   | O  | B-LOC | I-LOC | O | B-LOC | B-LOC | O |
| BIOES  | O  | B-LOC | E-LOC | O | S-LOC | S-LOC | O |
| BILOU  | O  | B-LOC | L-LOC | O | U-LOC | U-LOC | O |                 the same in other letters
| plain  | IN | NNP   | NNP   | , | NNP   | NNP   | : |                 no entities: every word has a class of its own

One rule reads them all, and repairs what no scheme allows, as `seqeval` does unless it is told to be strict: a word goes on
with the entity before it where that may go on (B, I), the word goes on or ends (I, E), and the kind is the same. Every other
word with a tag but O begins a new entity.
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
"""The letters of the first word of an entity, one inside, the last, and one alone. The first two come first: where nothing
tells schemes apart, the most usual is taken."""

OUTSIDE = "O"
MIN_ERROR_RATIO = 10
"""times as many tags must be wrong in another scheme before one is sure"""
_EQUIVALENT_LETTERS = {"L": "E", "U": "S"}
_TAG = re.compile(r"([BIESLU])(?:-(\S+))?")
_UNSUPPORTED_TAG = re.compile(r".+[-_.][BIESLU]|[BIESLU][_.:].+|[a-z]-.+|M-.+")
"""tags that seem to spell entities in a way that is not read"""


class Entity(NamedTuple):
    type: str
    """nothing where tags are mere letters"""
    first: int
    last: int
    """the number of its last word, not the one behind it"""


@lru_cache(maxsize=4096)
def parse_tag(tag: str) -> tuple[str, str] | None:
    """The letter and the kind of a tag; None of one that spells no entity."""
    if tag == OUTSIDE:
        return OUTSIDE, ""
    found = _TAG.fullmatch(tag)
    return (found[1], found[2] or "") if found else None


def extract_entities(tags: Sequence[str]) -> list[Entity]:
    """Those of one sentence, in any scheme."""
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
    """The tags of a sentence of so many words; entities stand in their order and do not overlap."""
    tags, end = [OUTSIDE] * length, Entity("", -1, -2)
    for entity in entities:
        touches = end.last + 1 == entity.first and end.type == entity.type
        letters = _entity_letters(entity.last - entity.first + 1, touches, scheme)
        behind = f"-{entity.type}" if entity.type else ""
        tags[entity.first : entity.last + 1] = [letter + behind for letter in letters]
        end = entity
    return tags


def convert_tags(tags: Sequence[str], scheme: TagScheme) -> list[str]:
    """The same entities in another scheme, or repaired in the same."""
    return entities_to_tags(extract_entities(tags), len(tags), scheme)


def scheme_tags(types: Iterable[str], scheme: TagScheme) -> list[str]:
    """All tags that a scheme can write: O first, then by kind."""
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
    """By what a scheme is known: how often tags and kinds of entities occur, and how many tags are as it writes them."""

    def __init__(self) -> None:
        self.tag_counts: Counter[str] = Counter()
        self.type_counts: Counter[str] = Counter()
        """entities of each kind"""
        self.scheme_errors: dict[TagScheme, int] = dict.fromkeys(SCHEME_LETTERS, 0)
        """how many tags each scheme would write otherwise"""

    def update(self, tags: Sequence[str]) -> set[TagScheme]:
        """Count those of a sentence; the schemes that would write some of them otherwise."""
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
        """The one that would write the fewest tags otherwise."""
        if any(parse_tag(tag) is None for tag in self.tag_counts):
            return "plain"
        return min(self.scheme_errors, key=lambda name: self.scheme_errors[name])

    @property
    def num_invalid(self) -> int:
        """Tags that no sequence of the scheme has in this place."""
        return 0 if self.scheme == "plain" else self.scheme_errors[self.scheme]

    @property
    def ambiguity(self) -> str:
        """Why the scheme might be another; nothing where it cannot."""
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
