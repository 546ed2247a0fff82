"""Generated algorithmic datasets: copying, reversing, adding, sorting, and stories with a question.

Samples are generated when a dataset is read, and are identical for the same name: `copy`, or
`copy#longest=40,samples=20000,seed=3`. A hash of the question assigns the split, so splits do not overlap. Training questions
have a length of at most `longest`; every second validation and test question is longer, up to twice `longest`. The length is
the number of digits, or of sentences in a story.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import partial
from hashlib import blake2b
from random import Random
from typing import Any

from regard.config import override
from regard.data.synthetic.facts import generate_story
from regard.data.text.pairs import Pair
from regard.errors import DataError, SettingError, UnknownNameError

SPLITS = ("train", "valid", "test")
MAX_TRIES = 100
"""draws of one length before another length is drawn, because there are only a few short questions"""

GeneratedSample = tuple[str, str, tuple[int, ...]]
"""Question, answer, and indices of the supporting sentences of a story."""


@dataclass(frozen=True, slots=True)
class AlgorithmicQuestion(Pair):
    """Question (`source`) and answer (`target`)."""

    supporting_facts: tuple[int, ...] = ()
    """indices of the sentences of a story that determine the answer"""
    is_longer: bool | None = None
    """the question is longer than all training questions; None: unknown"""


@dataclass(frozen=True)
class AlgorithmicRecipe:
    """Settings of a generated dataset."""

    kind: str
    longest: int = 20
    """maximum length of training questions"""
    samples: int = 0
    """number of questions; 0: 20,000 for training, 1,000 for validation and test"""
    seed: int = 1
    part: str = "train"
    """train, valid or test"""
    forwards: bool = False
    """numbers of an addition start with the highest digit, as usual; otherwise with the lowest digit"""

    def __post_init__(self) -> None:
        for name, least in (("longest", 2), ("samples", 0)):
            if getattr(self, name) < least:
                raise SettingError(f"{self.kind}: {name} must be at least {least}, got {getattr(self, name)}.")
        if self.part not in SPLITS:
            raise SettingError(
                f"{self.kind}: part must be {', '.join(SPLITS[:-1])} or {SPLITS[-1]}, got '{self.part}'."
            )

    @property
    def count(self) -> int:
        return self.samples or (20_000 if self.part == "train" else 1000)

    def __str__(self) -> str:
        """Name for `parse_recipe`, with all settings that differ from the defaults."""
        usual = AlgorithmicRecipe(self.kind)
        said = [
            f"{item.name}={str(getattr(self, item.name)).lower()}"
            for item in fields(self)
            if getattr(self, item.name) != getattr(usual, item.name)
        ]
        return self.kind + (f"#{','.join(said)}" if said else "")

    def for_split(self, split: str) -> AlgorithmicRecipe:
        """Recipe of the validation or test split of this dataset."""
        return replace(self, part=split, samples=0)


def parse_recipe(entry: str) -> AlgorithmicRecipe | None:
    """Recipe of a name such as `copy#longest=40`; None if the entry is a file."""
    kind, sign, rest = entry.partition("#")
    if kind not in GENERATORS:
        return None
    said: dict[str, Any] = {}
    for item in filter(None, (part.strip() for part in rest.split(","))) if sign else ():
        name, equals, value = item.partition("=")
        known = [field.name for field in fields(AlgorithmicRecipe) if field.name != "kind"]
        if name not in known:
            raise UnknownNameError(f"{kind} setting", name, known)
        if not equals:
            raise DataError(f"missing value for '{item}'.", entry, advice=f"Use {name}=VALUE.")
        said[name] = value
    return override(AlgorithmicRecipe(kind), said, f"{kind}#")


def generate_questions(entry: str) -> Iterator[AlgorithmicQuestion]:
    """Distinct questions of a dataset name."""
    recipe = parse_recipe(entry)
    if recipe is None:
        raise UnknownNameError("algorithmic dataset", entry, GENERATORS)
    make = GENERATORS[recipe.kind]
    random = Random(f"{recipe.kind} {recipe.longest} {recipe.seed} {recipe.part} {recipe.forwards}")
    made: set[str] = set()
    full: set[int] = set()
    """lengths without new questions"""
    while len(made) < recipe.count:
        beyond = recipe.part != "train" and len(made) % 2 == 1
        lengths = range(recipe.longest + 1, 2 * recipe.longest + 1) if beyond else range(1, recipe.longest + 1)
        left = [length for length in lengths if length not in full]
        if not left:
            raise DataError(
                f"only {len(made):,} different questions exist, but {recipe.count:,} were requested.", entry,
                advice="Lower 'samples', or raise 'longest'.",
            )  # fmt: skip
        length = random.choice(left)
        found = _draw_new(partial(make, random, length, recipe), made, recipe)
        if found is None:
            full.add(length)
            continue
        made.add(found[0])
        yield AlgorithmicQuestion(*found[:2], entry, len(made), found[2], beyond)


def _draw_new(make: Callable[[], GeneratedSample], made: set[str], recipe: AlgorithmicRecipe) -> GeneratedSample | None:
    for _ in range(MAX_TRIES):
        found = make()
        if found[0] not in made and _split_of(found[0], recipe.seed) == recipe.part:
            return found
    return None


def _split_of(question: str, seed: int) -> str:
    """Split by a hash of the question: 80 % train, 10 % valid, 10 % test."""
    number = int.from_bytes(blake2b(f"{seed} {question}".encode(), digest_size=4).digest()) % 10
    return SPLITS[max(0, number - 7)]


def _random_digits(random: Random, length: int) -> str:
    return "".join(random.choices("0123456789", k=length))


def _copy(random: Random, length: int, recipe: AlgorithmicRecipe) -> GeneratedSample:
    text = _random_digits(random, length)
    return text, text, ()


def _reverse(random: Random, length: int, recipe: AlgorithmicRecipe) -> GeneratedSample:
    text = _random_digits(random, length)
    return text, text[::-1], ()


def _sort(random: Random, length: int, recipe: AlgorithmicRecipe) -> GeneratedSample:
    text = _random_digits(random, length)
    return text, "".join(sorted(text)), ()


def _add(random: Random, length: int, recipe: AlgorithmicRecipe) -> GeneratedSample:
    """Two numbers with `length` digits in total, at least one digit each."""
    first = random.randint(1, max(length - 1, 1))
    one, other = (_random_number(random, digits) for digits in (first, max(length - first, 1)))
    numbers = [str(number) for number in (one, other, one + other)]
    one_said, other_said, sum_said = numbers if recipe.forwards else [number[::-1] for number in numbers]
    return f"{one_said}+{other_said}", sum_said, ()


def _random_number(random: Random, digits: int) -> int:
    return random.randrange(10 ** (digits - 1) if digits > 1 else 0, 10**digits)


def _story_generator(facts: int) -> Callable[[Random, int, AlgorithmicRecipe], GeneratedSample]:
    return lambda random, length, recipe: generate_story(random, max(length, facts + 1), facts)


GENERATORS: dict[str, Callable[[Random, int, AlgorithmicRecipe], GeneratedSample]] = {
    "copy": _copy, "reverse": _reverse, "addition": _add, "sorting": _sort,
    "facts-1": _story_generator(1), "facts-2": _story_generator(2), "facts-3": _story_generator(3),
}  # fmt: skip
"""Generators of the datasets, by name."""
