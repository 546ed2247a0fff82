"""Small stories and a question about each, with answers that need one, two or three of their sentences.

People walk from place to place, take things with them and leave them. Questions: where someone is (one sentence says it),
where a thing is (who took or left it, and where that was), where it was before it came where it is (and where from).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

PEOPLE = ("ada", "boris", "clara", "dmitri")
PLACES = ("kitchen", "garden", "cellar", "attic", "library", "stable")
THINGS = ("lamp", "apple", "rope")
"""As many as bAbI has (Weston et al. 2015). With six people a Transformer of four blocks needs several times as many stories
until it has found out who is where."""
WALKS, TAKES, LEAVES = ("walked to", "went to", "hurried to"), ("took", "grabbed"), ("left", "dropped")


@dataclass
class Thing:
    holder: str | None = None
    taken: int = -1
    """the sentence in which it was taken, or left"""
    stays: list[tuple[str, int]] = field(default_factory=list)
    """where it was, one place after another, and the sentence in which it came there"""


@dataclass
class World:
    """What is the case after some sentences."""

    random: Random
    people: dict[str, tuple[str, int]] = field(default_factory=dict)
    """where everybody is, and the sentence that says so"""
    things: dict[str, Thing] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)

    def walk(self, who: str, to: str) -> None:
        at = len(self.said)
        self.said.append(f"{who} {self.random.choice(WALKS)} the {to} .")
        self.people[who] = to, at
        for thing in self.things.values():
            if thing.holder == who:
                thing.stays.append((to, at))

    def take(self, who: str, what: str) -> None:
        place, since = self.people[who]
        thing = self.things.setdefault(what, Thing())
        thing.stays[-1:] = [(place, since)]  # who takes it says best where that was
        thing.holder, thing.taken = who, len(self.said)
        self.said.append(f"{who} {self.random.choice(TAKES)} the {what} .")

    def leave(self, who: str, what: str) -> None:
        self.things[what].holder, self.things[what].taken = None, len(self.said)
        self.said.append(f"{who} {self.random.choice(LEAVES)} the {what} .")

    def happen(self) -> None:
        """Somebody does something that can be done."""
        who = self.random.choice(PEOPLE)
        held = [name for name, thing in self.things.items() if thing.holder == who]
        here = self.people[who][0] if who in self.people else None
        free = [name for name in THINGS if here is not None and self._lies(name, here)]
        does = self.random.random()
        if free and not held and does < 0.5:
            self.take(who, self.random.choice(free))
        elif held and does < 0.25:
            self.leave(who, self.random.choice(held))
        else:
            self.walk(who, self.random.choice([place for place in PLACES if place != here]))

    def _lies(self, name: str, here: str) -> bool:
        """A thing that nobody has spoken of may be anywhere."""
        if name not in self.things:
            return True
        return self.things[name].holder is None and self.things[name].stays[-1][0] == here


def tell(random: Random, length: int, facts: int) -> tuple[str, str, tuple[int, ...]]:
    """A story of so many sentences with its question, the answer, and the sentences that decide it: as many as `facts`."""
    while True:
        world = World(random)
        for _ in range(length):
            world.happen()
        asked = list(_askable(world, facts))
        if asked:
            question, answer, support = random.choice(asked)
            return " ".join([*world.said, question]), answer, support


def _askable(world: World, facts: int) -> list[tuple[str, str, tuple[int, ...]]]:
    if facts == 1:
        return [(f"where is {who} ?", place, (at,)) for who, (place, at) in world.people.items()]
    found = []
    for name, thing in world.things.items():
        place, came = thing.stays[-1]
        if facts == 2:
            found.append((f"where is the {name} ?", place, tuple(sorted({thing.taken, came}))))
        elif len(thing.stays) > 1 and thing.holder is not None and thing.taken < came:
            before, since = thing.stays[-2]
            question = f"where was the {name} before the {place} ?"
            found.append((question, before, tuple(sorted({thing.taken, came, since}))))
    return [one for one in found if len(one[2]) == facts]
