"""Generated stories with a question whose answer requires one, two or three sentences.

People move between places, and take and leave objects. The question is where someone is (one fact), where an object is
(a sentence about the object and one about the place), or where an object was before (three facts).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

PEOPLE = ("ada", "boris", "clara", "dmitri")
PLACES = ("kitchen", "garden", "cellar", "attic", "library", "stable")
OBJECTS = ("lamp", "apple", "rope")
"""Similar numbers as in bAbI (Weston et al. 2015). With six people, a Transformer with four layers needs several times as many
stories to track the places."""
WALKS, TAKES, LEAVES = ("walked to", "went to", "hurried to"), ("took", "grabbed"), ("left", "dropped")


@dataclass
class StoryObject:
    holder: str | None = None
    moved_at: int = -1
    """index of the sentence in which the object was taken or left"""
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
        free = [name for name in OBJECTS if here is not None and self._is_available(name, here)]
        does = self.random.random()
        if free and not held and does < 0.5:
            self.take(who, self.random.choice(free))
        elif held and does < 0.25:
            self.leave(who, self.random.choice(held))
        else:
            self.walk(who, self.random.choice([place for place in PLACES if place != here]))

    def _is_available(self, name: str, here: str) -> bool:
        """True if an object can be taken here; objects not mentioned before may be anywhere."""
        if name not in self.objects:
            return True
        return self.objects[name].holder is None and self.objects[name].location_history[-1][0] == here


def generate_story(random: Random, length: int, num_facts: int) -> tuple[str, str, tuple[int, ...]]:
    """Story of `length` sentences with a question, the answer, and the indices of the `num_facts` supporting sentences."""
    while True:
        world = StoryState(random)
        for _ in range(length):
            world.step()
        asked = list(_candidate_questions(world, num_facts))
        if asked:
            question, answer, support = random.choice(asked)
            return " ".join([*world.sentences, question]), answer, support


def _candidate_questions(world: StoryState, facts: int) -> list[tuple[str, str, tuple[int, ...]]]:
    if facts == 1:
        return [(f"where is {who} ?", place, (at,)) for who, (place, at) in world.people.items()]
    found = []
    for name, thing in world.objects.items():
        place, came = thing.location_history[-1]
        if facts == 2:
            found.append((f"where is the {name} ?", place, tuple(sorted({thing.moved_at, came}))))
        elif len(thing.location_history) > 1 and thing.holder is not None and thing.moved_at < came:
            before, since = thing.location_history[-2]
            question = f"where was the {name} before the {place} ?"
            found.append((question, before, tuple(sorted({thing.moved_at, came, since}))))
    return [one for one in found if len(one[2]) == facts]
