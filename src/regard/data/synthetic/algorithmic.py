"""Generated algorithmic datasets: copying, reversing, adding, sorting, and stories with a question.

Samples are generated when a dataset is read, and are identical for the same name: `copy`, or
`copy#longest=40,samples=20000,seed=3`. A hash of the question assigns the split, so splits do not overlap. Training questions
have a length of at most `longest`; every second validation and test question is longer, up to twice `longest`. The length is
the number of digits, or of sentences in a story.

In a story, people move between places, and take and leave objects. The question is where someone is (one fact), where an object
is (a sentence about the object and one about the place), or where an object was before (three facts).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from random import Random

from regard.data.synthetic import SPLITS, Recipe
from regard.data.text.files import Columns
from regard.data.text.samples import PAIRS, Pair
from regard.data.text.tables import SkippedRow
from regard.errors import DataError, UnknownNameError

PEOPLE = ("ada", "boris", "clara", "dmitri")
PLACES = ("kitchen", "garden", "cellar", "attic", "library", "stable")
OBJECTS = ("lamp", "apple", "rope")
"""Similar numbers as in bAbI (Weston et al. 2015). With six people, a Transformer with four layers needs several times as many
stories to track the places."""
WALKS, TAKES, LEAVES = ("walked to", "went to", "hurried to"), ("took", "grabbed"), ("left", "dropped")


@dataclass
class StoryObject:
    holder: str | None = None
    moved_at: int = -1  # index of the sentence in which the object was taken or left
    location_history: list[tuple[str, int]] = field(default_factory=list)
    """places of the object in order, each with the index of the sentence that determines it"""


@dataclass
class StoryState:
    """State of people and objects after some sentences."""

    random: Random
    people: dict[str, tuple[str, int]] = field(default_factory=dict)
    """place of each person, and the index of the sentence with this place"""
    objects: dict[str, StoryObject] = field(default_factory=dict)
    sentences: list[str] = field(default_factory=list)

    def walk(self, person: str, destination: str) -> None:
        at = len(self.sentences)
        self.sentences.append(f"{person} {self.random.choice(WALKS)} the {destination} .")
        self.people[person] = destination, at
        for thing in self.objects.values():
            if thing.holder == person:
                thing.location_history.append((destination, at))

    def take(self, person: str, item: str) -> None:
        place, since = self.people[person]
        thing = self.objects.setdefault(item, StoryObject())
        thing.location_history[-1:] = [(place, since)]  # the last walk of the taker becomes the supporting fact
        thing.holder, thing.moved_at = person, len(self.sentences)
        self.sentences.append(f"{person} {self.random.choice(TAKES)} the {item} .")

    def leave(self, person: str, item: str) -> None:
        self.objects[item].holder, self.objects[item].moved_at = None, len(self.sentences)
        self.sentences.append(f"{person} {self.random.choice(LEAVES)} the {item} .")

    def step(self) -> None:
        """Add a random action that is possible in this state."""
        who = self.random.choice(PEOPLE)
        held = [name for name, thing in self.objects.items() if thing.holder == who]
        here = self.people[who][0] if who in self.people else None
        # objects not mentioned before may be anywhere
        lying = {name: thing.location_history[-1][0] for name, thing in self.objects.items() if thing.holder is None}
        free = [name for name in OBJECTS if here and (name not in self.objects or lying.get(name) == here)]
        does = self.random.random()
        if free and not held and does < 0.5:
            self.take(who, self.random.choice(free))
        elif held and does < 0.25:
            self.leave(who, self.random.choice(held))
        else:
            self.walk(who, self.random.choice([place for place in PLACES if place != here]))


def generate_story(num_facts: int, random: Random, length: int, recipe: AlgorithmicRecipe) -> GeneratedSample:
    """Story of `length` sentences with a question, the answer, and the indices of the `num_facts` supporting sentences."""
    questions: list[GeneratedSample] = []
    while not questions:
        world = StoryState(random)
        for _ in range(max(length, num_facts + 1)):
            world.step()
        if num_facts == 1:
            questions = [(f"where is {who} ?", place, (at,)) for who, (place, at) in world.people.items()]
            continue
        for name, thing in world.objects.items():
            place, came = thing.location_history[-1]
            question, answer, facts = f"where is the {name} ?", place, {thing.moved_at, came}
            if num_facts == 3:
                if len(thing.location_history) < 2 or thing.holder is None or thing.moved_at >= came:
                    continue
                answer, since = thing.location_history[-2]
                question, facts = f"where was the {name} before the {place} ?", {*facts, since}
            if len(facts) == num_facts:
                questions.append((question, answer, tuple(sorted(facts))))
    question, answer, support = random.choice(questions)
    return " ".join([*world.sentences, question]), answer, support


MAX_TRIES = 100  # draws of one length before another length is drawn, because there are only a few short questions

GeneratedSample = tuple[str, str, tuple[int, ...]]
"""Question, answer, and indices of the supporting sentences of a story."""


@dataclass(frozen=True, slots=True)
class AlgorithmicQuestion(Pair):
    """Question (`source`) and answer (`target`)."""

    supporting_facts: tuple[int, ...] = ()  # indices of the sentences of a story that determine the answer
    is_longer: bool | None = None  # the question is longer than all training questions; None: unknown


@dataclass(frozen=True)
class AlgorithmicRecipe(Recipe):
    """Settings of a generated dataset."""

    longest: int = 20  # maximum length of training questions
    samples: int = 0  # number of questions; 0: 20,000 for training, 1,000 for validation and test
    seed: int = 1
    part: str = "train"
    forwards: bool = False
    """numbers of an addition start with the highest digit, as usual; otherwise with the lowest digit"""

    def __post_init__(self) -> None:
        self.check({"longest": 2, "samples": 0})

    @property
    def count(self) -> int:
        return self.samples or (20_000 if self.part == "train" else 1000)


def parse_recipe(entry: str) -> AlgorithmicRecipe | None:
    """Recipe of a name such as `copy#longest=40`; None if the entry is a file."""
    kind = entry.partition("#")[0]
    return AlgorithmicRecipe(kind).with_settings(entry) if kind in GENERATORS else None


def generate_questions(entry: str) -> Iterator[AlgorithmicQuestion]:
    """Distinct questions of a dataset name."""
    recipe = parse_recipe(entry)
    if recipe is None:
        raise UnknownNameError("algorithmic dataset", entry, GENERATORS)
    random = Random(f"{recipe.kind} {recipe.longest} {recipe.seed} {recipe.part} {recipe.forwards}")
    made: set[str] = set()
    full: set[int] = set()  # lengths without new questions
    while len(made) < recipe.count:
        beyond = recipe.part != "train" and len(made) % 2 == 1
        lengths = range(recipe.longest + 1, 2 * recipe.longest + 1) if beyond else range(1, recipe.longest + 1)
        left = [length for length in lengths if length not in full]
        if not left:
            problem = f"only {len(made):,} different questions exist, but {recipe.count:,} were requested."
            raise DataError(problem, entry, advice="Lower 'samples', or raise 'longest'.")
        length = random.choice(left)
        for _ in range(MAX_TRIES):
            question, answer, support = GENERATORS[recipe.kind](random, length, recipe)
            digest = blake2b(f"{recipe.seed} {question}".encode(), digest_size=4).digest()
            split = SPLITS[max(0, int.from_bytes(digest) % 10 - 7)]  # 80 % train, 10 % valid, 10 % test
            if question not in made and split == recipe.part:
                made.add(question)
                yield AlgorithmicQuestion(question, answer, entry, len(made), support, beyond)
                break
        else:
            full.add(length)


def _digits(answer: Callable[[str], str], random: Random, length: int, recipe: AlgorithmicRecipe) -> GeneratedSample:
    text = "".join(random.choices("0123456789", k=length))
    return text, answer(text), ()


def _addition(random: Random, length: int, recipe: AlgorithmicRecipe) -> GeneratedSample:
    """Two numbers with `length` digits in total, at least one digit each."""
    first = random.randint(1, max(length - 1, 1))
    sizes = first, max(length - first, 1)
    one, other = (random.randrange(10 ** (digits - 1) if digits > 1 else 0, 10**digits) for digits in sizes)
    numbers = [str(number) for number in (one, other, one + other)]
    left, right, total = numbers if recipe.forwards else [number[::-1] for number in numbers]
    return f"{left}+{right}", total, ()


GENERATORS: dict[str, Callable[[Random, int, AlgorithmicRecipe], GeneratedSample]] = {
    "copy": partial(_digits, str),
    "reverse": partial(_digits, lambda text: text[::-1]),
    "addition": _addition,
    "sorting": partial(_digits, lambda text: "".join(sorted(text))),
    **{f"facts-{number}": partial(generate_story, number) for number in (1, 2, 3)},
}


def iterate_questions(data: Sequence[str], columns: Columns = None) -> Iterator[AlgorithmicQuestion | SkippedRow]:
    """Questions of synthetic datasets, or of files with pairs."""
    for entry in QUESTIONS.expand(data):
        if parse_recipe(entry):
            yield from generate_questions(entry)
            continue
        for item in PAIRS.samples([entry], columns):
            if isinstance(item, SkippedRow):
                yield item
            else:
                yield AlgorithmicQuestion(item.source, item.target, item.path, item.line)


QUESTIONS = replace(
    PAIRS, unit="questions", sample_type=AlgorithmicQuestion, samples=iterate_questions, recipe=parse_recipe
)
