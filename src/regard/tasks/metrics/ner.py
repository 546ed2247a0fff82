"""How well words are tagged: precision, recall and F1 of entities, whole and by kind; of plain tags, of every tag.

An entity is right where its kind, its first and its last word are. The numbers are those of `seqeval` as it comes (CoNLL's
own `conlleval` gives them too): what no scheme allows is repaired before it is compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from regard.data.text.tag_schemes import Scheme, entities
from regard.draw.markdown_table import table
from regard.draw.per_class import Bar, draw_per_label
from regard.errors import RegardError

Tags = Sequence[Sequence[str]]
"""Of each sentence the tags of its words."""


@dataclass(frozen=True)
class Hits:
    """What there was, what was said, and what of that was right; all measures are shares of one."""

    right: int
    """how many there are"""
    said: int
    hit: int

    @property
    def precision(self) -> float:
        return self.hit / self.said if self.said else 0.0

    @property
    def recall(self) -> float:
        return self.hit / self.right if self.right else 0.0

    @property
    def f1(self) -> float:
        both = self.precision + self.recall
        return 2 * self.precision * self.recall / both if both else 0.0


@dataclass(frozen=True)
class Tagging:
    """The measures of some sentences."""

    each: dict[str, Hits]
    """by kind of entity, or by tag; in the order of the alphabet"""
    accuracy: float
    """share of words whose tag is right"""
    plain: bool
    """whether tags are classes of single words"""

    @property
    def whole(self) -> Hits:
        """Over all kinds together, every entity weighing alike (micro)."""
        sums = (sum(getattr(hits, name) for hits in self.each.values()) for name in ("right", "said", "hit"))
        return Hits(*sums)

    @property
    def macro_f1(self) -> float:
        """Every kind weighing alike."""
        return sum(hits.f1 for hits in self.each.values()) / len(self.each) if self.each else 0.0

    def scores(self) -> dict[str, float]:
        """Shares of 100. Of plain tags F1 over all words is the accuracy itself."""
        told = {"accuracy": self.accuracy, "macro_f1": self.macro_f1}
        if not self.plain:
            whole = self.whole
            told = {"f1": whole.f1, "precision": whole.precision, "recall": whole.recall, **told}
        return {name: round(100 * value, 2) for name, value in told.items()}

    def table(self) -> str:
        """A row for each kind or tag, the most frequent first, and one for all."""
        name = "tag" if self.plain else "kind"
        rows = [{name: label or "_", **_shares(hits)} for label, hits in self.ordered()]
        return table([*rows, {name: "all", **_shares(self.whole)}])

    def draw(self, path: Path) -> Path:
        """The same as a picture."""
        bars = [_bar(label or "_", hits) for label, hits in self.each.items()]
        return draw_per_label(bars, _bar("all", self.whole), "words" if self.plain else "entities", path)

    def ordered(self) -> list[tuple[str, Hits]]:
        """The most frequent first."""
        return sorted(self.each.items(), key=lambda item: (-item[1].right, item[0]))


def measure(right: Tags, said: Tags, scheme: Scheme) -> Tagging:
    """Compare what was said with what is right; both may be spelt in any scheme, unless it is `plain`."""
    for number, (ours, theirs) in enumerate(zip(right, said, strict=True)):
        if len(ours) != len(theirs):
            raise RegardError(f"sentence {number} has {len(ours)} tags, and {len(theirs)} were said of it.")
    if scheme == "plain":
        return _tagging(_places(right, single=True), _places(said, single=True), right, said, plain=True)
    return _tagging(_places(right, single=False), _places(said, single=False), right, said, plain=False)


def _places(tags: Tags, single: bool) -> Iterable[tuple[str, int, int, int]]:
    """All that can be hit: a kind or a tag, the sentence, the first word and the last."""
    for number, sentence in enumerate(tags):
        if single:
            yield from ((tag, number, place, place) for place, tag in enumerate(sentence))
        else:
            yield from ((entity.kind, number, entity.first, entity.last) for entity in entities(sentence))


def _tagging(
    right: Iterable[tuple[str, int, int, int]], said: Iterable[tuple[str, int, int, int]], ours: Tags, theirs: Tags, plain: bool
) -> Tagging:  # fmt: skip
    there, told = set(right), set(said)
    counts = [Counter(label for label, *_ in found) for found in (there, told, there & told)]
    labels = sorted(counts[0].keys() | counts[1].keys())
    words = list(zip(chain.from_iterable(ours), chain.from_iterable(theirs), strict=True))
    alike = sum(one == other for one, other in words)
    each = {label: Hits(*(count[label] for count in counts)) for label in labels}
    return Tagging(each, alike / len(words) if words else 0.0, plain)


def _bar(name: str, hits: Hits) -> Bar:
    return Bar(name, hits.f1, hits.precision, hits.recall, hits.right)


def _shares(hits: Hits) -> dict[str, object]:
    shares = {"F1": hits.f1, "precision": hits.precision, "recall": hits.recall}
    rounded = {name: round(100 * value, 2) for name, value in shares.items()}
    return {**rounded, "there are": hits.right, "said": hits.said}
