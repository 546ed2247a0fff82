"""English and German words of the demo, with the allowed combinations.

Every English form is unambiguous, so that a sentence has exactly one translation: there is no *you*, no *read*,
no *must* (the negation needs another German verb), and animals never eat (German uses *fressen* for animals).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal

Gender = Literal["m", "f", "n"]
Kind = Literal["adult", "child", "animal", "thing", "large", "food"]
Kinds = frozenset[Kind]
Relation = Literal["subject", "object", "adjective"]

PERSONS: Kinds = frozenset({"adult", "child"})
LIVING: Kinds = PERSONS | {"animal"}
PORTABLE: Kinds = frozenset({"thing", "food"})
GOODS: Kinds = PORTABLE | {"large"}
ALL_KINDS: Kinds = GOODS | LIVING


@dataclass(frozen=True, slots=True)
class Noun:
    english: str
    english_plural: str
    german: str
    german_plural: str
    gender: Gender
    kind: Kind


@dataclass(frozen=True, slots=True)
class Pronoun:
    english: str
    german: str
    plural: bool


@dataclass(frozen=True, slots=True)
class Adjective:
    english: str
    stem: str
    kinds: Kinds


@dataclass(frozen=True, slots=True)
class Verb:
    """Principal parts; `particle` is the separable prefix, placed at the end of a main clause."""

    base: str
    third: str
    past: str
    participle: str
    infinitive: str
    german_third: str
    german_past: str
    german_participle: str
    subjects: Kinds
    objects: Kinds
    particle: str = ""
    is_motion: bool = False  # verbs of motion form the perfect with *sein*
    is_stative: bool = False  # no adverb of time and no modal: "needs a lamp every evening" is unnatural
    is_reporting: bool = False  # takes a that-clause

    @property
    def german_plural(self) -> str:
        return self.infinitive.removeprefix(self.particle)

    @property
    def german_past_plural(self) -> str:
        return self.german_past + ("n" if self.german_past.endswith("e") else "en")


@dataclass(frozen=True, slots=True)
class Tense:
    """Auxiliaries of a tense as (singular, plural); empty if the verb itself is finite."""

    name: str
    english: tuple[str, str]
    english_negative: tuple[str, str]
    german: tuple[str, str]
    is_past: bool = False


@dataclass(frozen=True, slots=True)
class Adverb:
    english: str
    german: str
    tenses: frozenset[str]
    is_negatable: bool = True  # *not every day* would move the German negation
    is_habitual: bool = False  # with a habitual adverb, *when* is not translated as *als*


@dataclass(frozen=True, slots=True)
class Conjunction:
    """Conjunction; with `can_lead`, the subordinate clause may precede the main clause."""

    english: str
    german: str
    can_lead: bool = True


def _verb(
    english: str,
    german: str,
    subjects: Kinds,
    objects: Kinds = frozenset(),
    *,
    particle: str = "",
    moves: bool = False,
    stative: bool = False,
    reports: bool = False,
) -> Verb:
    base, third, past, participle = english.split()
    infinitive, german_third, german_past, german_participle = german.split()
    german_forms = (infinitive, german_third, german_past, german_participle)
    return Verb(base, third, past, participle, *german_forms, subjects, objects, particle, moves, stative, reports)


def _split_pair(entry: str) -> tuple[str, str]:
    first, second = entry.split()
    return first, second


NOUNS: tuple[Noun, ...] = (
    Noun("man", "men", "Mann", "Männer", "m", "adult"),
    Noun("woman", "women", "Frau", "Frauen", "f", "adult"),
    Noun("child", "children", "Kind", "Kinder", "n", "child"),
    Noun("girl", "girls", "Mädchen", "Mädchen", "n", "child"),
    Noun("teacher", "teachers", "Lehrer", "Lehrer", "m", "adult"),
    Noun("doctor", "doctors", "Arzt", "Ärzte", "m", "adult"),
    Noun("king", "kings", "König", "Könige", "m", "adult"),
    Noun("queen", "queens", "Königin", "Königinnen", "f", "adult"),
    Noun("aunt", "aunts", "Tante", "Tanten", "f", "adult"),
    Noun("uncle", "uncles", "Onkel", "Onkel", "m", "adult"),
    Noun("dog", "dogs", "Hund", "Hunde", "m", "animal"),
    Noun("cat", "cats", "Katze", "Katzen", "f", "animal"),
    Noun("horse", "horses", "Pferd", "Pferde", "n", "animal"),
    Noun("mouse", "mice", "Maus", "Mäuse", "f", "animal"),
    Noun("bird", "birds", "Vogel", "Vögel", "m", "animal"),
    Noun("book", "books", "Buch", "Bücher", "n", "thing"),
    Noun("picture", "pictures", "Bild", "Bilder", "n", "thing"),
    Noun("table", "tables", "Tisch", "Tische", "m", "thing"),
    Noun("chair", "chairs", "Stuhl", "Stühle", "m", "thing"),
    Noun("coat", "coats", "Mantel", "Mäntel", "m", "thing"),
    Noun("lamp", "lamps", "Lampe", "Lampen", "f", "thing"),
    Noun("flower", "flowers", "Blume", "Blumen", "f", "thing"),
    Noun("bag", "bags", "Tasche", "Taschen", "f", "thing"),
    Noun("house", "houses", "Haus", "Häuser", "n", "large"),
    Noun("car", "cars", "Auto", "Autos", "n", "large"),
    Noun("bicycle", "bicycles", "Fahrrad", "Fahrräder", "n", "large"),
    Noun("apple", "apples", "Apfel", "Äpfel", "m", "food"),
    Noun("cake", "cakes", "Kuchen", "Kuchen", "m", "food"),
    Noun("pear", "pears", "Birne", "Birnen", "f", "food"),
    Noun("potato", "potatoes", "Kartoffel", "Kartoffeln", "f", "food"),
    Noun("roll", "rolls", "Brötchen", "Brötchen", "n", "food"),
    Noun("egg", "eggs", "Ei", "Eier", "n", "food"),
)

PRONOUNS: tuple[Pronoun, ...] = (
    Pronoun("he", "er", False),
    Pronoun("she", "sie", False),
    Pronoun("we", "wir", True),
    Pronoun("they", "sie", True),
)

ADJECTIVES: tuple[Adjective, ...] = (
    Adjective("old", "alt", frozenset({"adult", "animal", "thing", "large"})),
    Adjective("small", "klein", ALL_KINDS),
    Adjective("big", "groß", ALL_KINDS),
    Adjective("beautiful", "schön", LIVING | {"thing", "large"}),
    Adjective("young", "jung", LIVING),
    Adjective("tired", "müd", LIVING),
    Adjective("clever", "klug", LIVING),
    Adjective("hungry", "hungrig", LIVING),
    Adjective("new", "neu", frozenset({"thing", "large"})),
    Adjective("red", "rot", frozenset({"thing", "large"})),
    Adjective("blue", "blau", frozenset({"thing", "large"})),
    Adjective("expensive", "teur", GOODS),
    Adjective("fresh", "frisch", frozenset({"food"})),
)

VERBS: tuple[Verb, ...] = (
    _verb("dance dances danced danced", "tanzen tanzt tanzte getanzt", LIVING),
    _verb("sleep sleeps slept slept", "schlafen schläft schlief geschlafen", LIVING),
    _verb("sing sings sang sung", "singen singt sang gesungen", PERSONS),
    _verb("laugh laughs laughed laughed", "lachen lacht lachte gelacht", PERSONS),
    _verb("work works worked worked", "arbeiten arbeitet arbeitete gearbeitet", PERSONS),
    _verb("wait waits waited waited", "warten wartet wartete gewartet", LIVING),
    _verb("come comes came come", "kommen kommt kam gekommen", LIVING, moves=True),
    _verb("run runs ran run", "laufen läuft lief gelaufen", LIVING, moves=True),
    _verb("swim swims swam swum", "schwimmen schwimmt schwamm geschwommen", LIVING, moves=True),
    _verb("buy buys bought bought", "kaufen kauft kaufte gekauft", PERSONS, GOODS | {"animal"}),
    _verb("sell sells sold sold", "verkaufen verkauft verkaufte verkauft", PERSONS, GOODS | {"animal"}),
    _verb("see sees saw seen", "sehen sieht sah gesehen", LIVING, ALL_KINDS),
    _verb("hear hears heard heard", "hören hört hörte gehört", LIVING, LIVING),
    _verb("find finds found found", "finden findet fand gefunden", LIVING, GOODS | {"animal"}),
    _verb("eat eats ate eaten", "essen isst aß gegessen", PERSONS, frozenset({"food"})),
    _verb("carry carries carried carried", "tragen trägt trug getragen", PERSONS, PORTABLE),
    _verb("bring brings brought brought", "bringen bringt brachte gebracht", PERSONS, PORTABLE),
    _verb("draw draws drew drawn", "zeichnen zeichnet zeichnete gezeichnet", PERSONS, ALL_KINDS),
    _verb("visit visits visited visited", "besuchen besucht besuchte besucht", PERSONS, PERSONS),
    _verb("invite invites invited invited", "einladen lädt lud eingeladen", PERSONS, PERSONS, particle="ein"),
    _verb("phone phones phoned phoned", "anrufen ruft rief angerufen", PERSONS, PERSONS, particle="an"),
    _verb("need needs needed needed", "brauchen braucht brauchte gebraucht", PERSONS, GOODS, stative=True),
    _verb("love loves loved loved", "lieben liebt liebte geliebt", PERSONS, LIVING, stative=True),
    _verb("say says said said", "sagen sagt sagte gesagt", PERSONS, reports=True),
    _verb("know knows knew known", "wissen weiß wusste gewusst", PERSONS, stative=True, reports=True),
    _verb("think thinks thought thought", "denken denkt dachte gedacht", PERSONS, stative=True, reports=True),
    _verb("believe believes believed believed", "glauben glaubt glaubte geglaubt", PERSONS, stative=True, reports=True),
)
PLAIN_VERBS = tuple(verb for verb in VERBS if not verb.is_reporting)
REPORTING_VERBS = tuple(verb for verb in VERBS if verb.is_reporting)

PRESENT = Tense("present", ("", ""), ("does not", "do not"), ("", ""))
PAST = Tense("past", ("", ""), ("did not", "did not"), ("", ""), is_past=True)
PERFECT = Tense("perfect", ("has", "have"), ("has not", "have not"), ("hat", "haben"))
FUTURE = Tense("future", ("will", "will"), ("will not", "will not"), ("wird", "werden"))
CAN = Tense("can", ("can", "can"), ("cannot", "cannot"), ("kann", "können"))
WANT = Tense("want", ("wants to", "want to"), ("does not want to", "do not want to"), ("will", "wollen"))
COULD = Tense("could", ("could", "could"), ("could not", "could not"), ("konnte", "konnten"), is_past=True)
WANTED = Tense("wanted", ("wanted to",) * 2, ("did not want to",) * 2, ("wollte", "wollten"), is_past=True)
TENSES: tuple[Tense, ...] = (PRESENT, PAST, PERFECT, FUTURE, CAN, WANT, COULD, WANTED)
# Repeated by their sampling weight.
WEIGHTED_TENSES = (PRESENT,) * 3 + (PAST,) * 4 + (PERFECT, FUTURE) * 2 + (CAN, WANT, COULD, WANTED)
_WEIGHTED_PAST_TENSES = tuple(tense for tense in WEIGHTED_TENSES if tense.is_past)

_MODAL = frozenset({"can", "want"})
_MODAL_PAST = frozenset({"could", "wanted"})

ADVERBS: tuple[Adverb, ...] = (
    Adverb("today", "heute", _MODAL | {"present", "past", "perfect", "future"}),
    Adverb("now", "jetzt", _MODAL | {"present"}),
    Adverb("yesterday", "gestern", _MODAL_PAST | {"past"}),
    Adverb("tomorrow", "morgen", _MODAL | {"future"}),
    Adverb("soon", "bald", frozenset({"future"}), is_negatable=False),
    Adverb("every day", "jeden Tag", _MODAL | _MODAL_PAST | {"present", "past"}, is_negatable=False, is_habitual=True),
    Adverb("in the evening", "am Abend", _MODAL | _MODAL_PAST | {"present", "past", "future"}),
    Adverb("in summer", "im Sommer", _MODAL | _MODAL_PAST | {"present", "past", "future"}),
)

THAT = Conjunction("that", "dass", can_lead=False)
BECAUSE = Conjunction("because", "weil")
ALTHOUGH = Conjunction("although", "obwohl")
IF = Conjunction("if", "wenn")
WHEN = Conjunction("when", "als")
CONJUNCTIONS: tuple[Conjunction, ...] = (THAT, BECAUSE, ALTHOUGH, IF, WHEN)

# Pairs absent from the training data: each word is frequent, but these two never occur together in any form.
_UNSEEN_WORDS: dict[Relation, str] = {
    "subject": "cat dance, dog sleep, king laugh, queen work, aunt sing, man come, bird swim, girl buy, uncle eat, "
    "teacher visit, doctor invite, child say, woman draw, horse see",
    "object": "sell horse, see mouse, find bag, hear bird, eat pear, carry lamp, bring cake, draw house, need coat, "
    "visit queen, phone aunt, love dog",
    "adjective": "old picture, small table, big flower, beautiful bicycle, young king, tired woman, clever girl, "
    "hungry man, new chair, red coat, blue lamp, expensive apple, fresh potato",
}
UNSEEN_PAIRS: tuple[tuple[Relation, str, str], ...] = tuple(
    (relation, *_split_pair(entry)) for relation, entries in _UNSEEN_WORDS.items() for entry in entries.split(", ")
)

# Keys: (case, gender). Plural forms have the key "p" and are the same in both cases.
DEFINITE_ARTICLES: dict[tuple[str, str], str] = {
    ("nominative", "m"): "der", ("nominative", "f"): "die", ("nominative", "n"): "das", ("nominative", "p"): "die",
    ("accusative", "m"): "den", ("accusative", "f"): "die", ("accusative", "n"): "das", ("accusative", "p"): "die",
}  # fmt: skip
INDEFINITE_ARTICLES: dict[tuple[str, str], str] = {
    ("nominative", "m"): "ein", ("nominative", "f"): "eine", ("nominative", "n"): "ein",
    ("accusative", "m"): "einen", ("accusative", "f"): "eine", ("accusative", "n"): "ein",
}  # fmt: skip
# Adjective inflection after a definite article (weak), and after *ein* or *kein* (mixed), which do not mark the gender.
WEAK_ENDINGS: dict[tuple[str, str], str] = {
    ("nominative", "m"): "e", ("nominative", "f"): "e", ("nominative", "n"): "e", ("nominative", "p"): "en",
    ("accusative", "m"): "en", ("accusative", "f"): "e", ("accusative", "n"): "e", ("accusative", "p"): "en",
}  # fmt: skip
MIXED_ENDINGS: dict[tuple[str, str], str] = {
    ("nominative", "m"): "er", ("nominative", "f"): "e", ("nominative", "n"): "es", ("nominative", "p"): "en",
    ("accusative", "m"): "en", ("accusative", "f"): "e", ("accusative", "n"): "es", ("accusative", "p"): "en",
}  # fmt: skip


def main_tenses(conjunction: Conjunction) -> tuple[Tense, ...]:
    if conjunction is WHEN:
        return _WEIGHTED_PAST_TENSES
    return (PRESENT, FUTURE, CAN, WANT) if conjunction is IF else WEIGHTED_TENSES


def subordinate_tenses(conjunction: Conjunction, after_past: bool) -> tuple[Tense, ...]:
    """Tenses of the subordinate clause: past after *when* (*als*), present after *if*, and past after a past main clause."""
    if conjunction is WHEN:
        return (PAST,)
    if conjunction is IF:
        return (PRESENT,)
    return _WEIGHTED_PAST_TENSES if after_past else WEIGHTED_TENSES


@cache
def adverbs(tense: str, negative: bool) -> tuple[Adverb, ...]:
    return tuple(a for a in ADVERBS if tense in a.tenses and (a.is_negatable or not negative))


@cache
def adjectives(kind: Kind) -> tuple[Adjective, ...]:
    return tuple(a for a in ADJECTIVES if kind in a.kinds)


@cache
def nouns(kinds: Kinds) -> tuple[Noun, ...]:
    return tuple(noun for noun in NOUNS if noun.kind in kinds)
