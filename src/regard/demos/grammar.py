"""Small English–German grammar for the demo, which generates sentence pairs with exact translations.

A `Sentence` is a syntax tree; `to_english` and `to_german` render it. German moves the verb: second in a main clause, last
after a conjunction, with participle, infinitive or particle at the end of the clause. `generate_corpus` draws sentence pairs;
each held-out pair contains a combination of `UNSEEN_COMBINATIONS`, which no training pair contains.

Every English form is unambiguous, so that a sentence has exactly one translation: there is no *you*, no *read*,
no *must* (the negation needs another German verb), and animals never eat (German uses *fressen* for animals).
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, TypeVar

Item = TypeVar("Item")
Kinds = frozenset[str]  # Kinds of nouns that a verb or an adjective may have.


class Noun(NamedTuple):
    english: str
    english_plural: str
    german: str
    german_plural: str
    gender: str  # m, f or n
    kind: str  # adult, child, animal, thing, large or food


class Pronoun(NamedTuple):
    english: str
    german: str
    plural: bool


class Adjective(NamedTuple):
    english: str
    stem: str
    kinds: Kinds


class Verb(NamedTuple):
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


class Tense(NamedTuple):
    """Auxiliaries of a tense as (singular, plural); empty if the verb itself is finite."""

    name: str
    english: tuple[str, str]
    english_negative: tuple[str, str]
    german: tuple[str, str]
    is_past: bool = False


class Adverb(NamedTuple):
    english: str
    german: str
    tenses: frozenset[str]
    is_negatable: bool = True  # *not every day* would move the German negation
    is_habitual: bool = False  # with a habitual adverb, *when* is not translated as *als*


class Conjunction(NamedTuple):
    """Conjunction; with `can_lead`, the subordinate clause may precede the main clause."""

    english: str
    german: str
    main_tenses: Sequence[Tense]
    side_tenses: Sequence[Tense] = ()  # empty: all tenses, but past tenses after a past main clause
    can_lead: bool = True


_LEXICON = tomllib.loads(Path(__file__).with_name("lexicon.toml").read_text(encoding="utf-8"))
_GROUPS = {name: frozenset(kinds.split()) for name, kinds in _LEXICON["groups"].items()}


def _kinds(names: str) -> Kinds:
    """Kinds of nouns by name or by the name of a group."""
    return frozenset[str]().union(*(_GROUPS.get(name, {name}) for name in names.split()))


NOUNS = tuple(Noun(*row.split()) for row in _LEXICON["words"]["nouns"])

PRONOUNS = (
    Pronoun("he", "er", False),
    Pronoun("she", "sie", False),
    Pronoun("we", "wir", True),
    Pronoun("they", "sie", True),
)

ADJECTIVES = tuple(Adjective(english, stem, _kinds(names)) for english, stem, names in _LEXICON["words"]["adjectives"])


def _verb(parts: str, subjects: str, objects: str = "", **options: Any) -> Verb:
    arguments: list[Any] = [*parts.split(), _kinds(subjects), _kinds(objects)]
    return Verb(*arguments, **options)


VERBS = tuple(_verb(**row) for row in _LEXICON["words"]["verbs"])
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
# Repeated by their sampling weight.
WEIGHTED_TENSES = (PRESENT,) * 3 + (PAST,) * 4 + (PERFECT, FUTURE) * 2 + (CAN, WANT, COULD, WANTED)
_WEIGHTED_PAST_TENSES = tuple(tense for tense in WEIGHTED_TENSES if tense.is_past)

_MODAL = frozenset({"can", "want"})
_MODAL_PAST = frozenset({"could", "wanted"})

ADVERBS = (
    Adverb("today", "heute", _MODAL | {"present", "past", "perfect", "future"}),
    Adverb("now", "jetzt", _MODAL | {"present"}),
    Adverb("yesterday", "gestern", _MODAL_PAST | {"past"}),
    Adverb("tomorrow", "morgen", _MODAL | {"future"}),
    Adverb("soon", "bald", frozenset({"future"}), is_negatable=False),
    Adverb("every day", "jeden Tag", _MODAL | _MODAL_PAST | {"present", "past"}, is_negatable=False, is_habitual=True),
    Adverb("in the evening", "am Abend", _MODAL | _MODAL_PAST | {"present", "past", "future"}),
    Adverb("in summer", "im Sommer", _MODAL | _MODAL_PAST | {"present", "past", "future"}),
)

THAT = Conjunction("that", "dass", WEIGHTED_TENSES, can_lead=False)
WHEN = Conjunction("when", "als", _WEIGHTED_PAST_TENSES, (PAST,))
CONJUNCTIONS = (
    THAT,
    Conjunction("because", "weil", WEIGHTED_TENSES),
    Conjunction("although", "obwohl", WEIGHTED_TENSES),
    Conjunction("if", "wenn", (PRESENT, FUTURE, CAN, WANT), (PRESENT,)),
    WHEN,
)

UNSEEN_COMBINATIONS = frozenset((kind, *pair.split()) for kind, pairs in _LEXICON["unseen"].items() for pair in pairs)
"""Pairs absent from the training data: each word is frequent, but these two never occur together in any form."""


def _declension(nominative: str, accusative: str) -> dict[tuple[str, str], str]:
    """Forms by case and gender from the forms for m, f, n and p (plural)."""
    cases = {"nominative": nominative.split(), "accusative": accusative.split()}
    return {(case, gender): form for case, forms in cases.items() for gender, form in zip("mfnp", forms, strict=False)}


DEFINITE_ARTICLES = _declension("der die das die", "den die das die")
INDEFINITE_ARTICLES = _declension("ein eine ein", "einen eine ein")
# Adjective inflection after a definite article (weak), and after *ein* or *kein* (mixed), which do not mark the gender.
WEAK_ENDINGS = _declension("e e e en", "en e e en")
MIXED_ENDINGS = _declension("er e es en", "en e es en")


@cache
def adjectives(kind: str) -> tuple[Adjective, ...]:
    return tuple(a for a in ADJECTIVES if kind in a.kinds)


@cache
def nouns(kinds: Kinds) -> tuple[Noun, ...]:
    return tuple(noun for noun in NOUNS if noun.kind in kinds)


MAX_WORDS = 16  # maximum length of an English sentence in the corpus


class SentencePair(NamedTuple):
    source: str
    target: str


class Corpus(NamedTuple):
    train: list[SentencePair]
    valid: list[SentencePair]
    test: list[SentencePair]


class Phrase(NamedTuple):
    """Noun with a determiner; an indefinite plural (`a` with `plural`) has no article in either language."""

    determiner: str  # the, a or no
    noun: Noun
    plural: bool = False
    adjective: Adjective | None = None


class Clause(NamedTuple):
    subject: Phrase | Pronoun
    verb: Verb
    tense: Tense
    negated: bool = False
    object: Phrase | None = None
    adverb: Adverb | None = None
    adverb_first: bool = False  # the adverb starts the clause


class Sentence(NamedTuple):
    main: Clause
    conjunction: Conjunction | None = None
    subordinate: Clause | None = None
    subordinate_first: bool = False


# English


def _english_phrase(phrase: Phrase | Pronoun) -> str:
    if isinstance(phrase, Pronoun):
        return phrase.english
    noun = phrase.noun.english_plural if phrase.plural else phrase.noun.english
    words = f"{phrase.adjective.english} {noun}" if phrase.adjective else noun
    if phrase.determiner != "a":
        return f"{phrase.determiner} {words}"
    if phrase.plural:
        return words
    return f"an {words}" if words[0] in "aeiou" else f"a {words}"


def _english_clause(clause: Clause) -> str:
    verb, tense, plural = clause.verb, clause.tense, clause.subject.plural
    auxiliary = (tense.english_negative if clause.negated else tense.english)[plural]
    predicate = verb.past if tense.is_past else verb.base if plural else verb.third
    if auxiliary:
        predicate = f"{auxiliary} {verb.participle if tense is PERFECT else verb.base}"
    words = f"{_english_phrase(clause.subject)} {predicate}"
    if clause.object:
        words = f"{words} {_english_phrase(clause.object)}"
    if clause.adverb:
        words = f"{clause.adverb.english} {words}" if clause.adverb_first else f"{words} {clause.adverb.english}"
    return words


def to_english(sentence: Sentence) -> str:
    main = _english_clause(sentence.main)
    if sentence.conjunction is None or sentence.subordinate is None:
        return main
    side = f"{sentence.conjunction.english} {_english_clause(sentence.subordinate)}"
    return f"{side} , {main}" if sentence.subordinate_first else f"{main} {side}"


# German


def _german_phrase(phrase: Phrase | Pronoun, case: str, negated: bool = False) -> str:
    """Noun phrase with article and inflection for case, gender and number; a negated indefinite phrase uses *kein*."""
    if isinstance(phrase, Pronoun):
        return phrase.german
    gender = "p" if phrase.plural else phrase.noun.gender
    if phrase.determiner == "the":
        article, ending = DEFINITE_ARTICLES[case, gender], WEAK_ENDINGS[case, gender]
    elif negated or phrase.determiner == "no":
        article = "keine" if phrase.plural else "k" + INDEFINITE_ARTICLES[case, gender]
        ending = MIXED_ENDINGS[case, gender]
    elif phrase.plural:
        article, ending = "", "e"
    else:
        article, ending = INDEFINITE_ARTICLES[case, gender], MIXED_ENDINGS[case, gender]
    noun = phrase.noun.german_plural if phrase.plural else phrase.noun.german
    words = f"{phrase.adjective.stem}{ending} {noun}" if phrase.adjective else noun
    return f"{article} {words}" if article else words


def _german_clause(clause: Clause, place: str) -> str:
    """Main clause in first position, main clause after a subordinate clause (verb first), or subordinate clause (verb last):
    `place` is first, after or side."""
    subject, plural = _german_phrase(clause.subject, "nominative"), clause.subject.plural
    verb, tense, target = clause.verb, clause.tense, clause.object
    # finite verb, and the particle, participle or infinitive at the end of the clause
    finite, close = tense.german[plural], verb.infinitive
    if tense is PRESENT:
        finite, close = verb.german_plural if plural else verb.german_third, verb.particle
    elif tense is PAST:
        ending = ("n" if verb.german_past.endswith("e") else "en") if plural else ""
        finite, close = verb.german_past + ending, verb.particle
    elif tense is PERFECT:
        finite, close = (("ist", "sind") if verb.is_motion else tense.german)[plural], verb.german_participle
    # *nicht* follows a definite object and the time; an indefinite object uses *kein* instead
    time = clause.adverb.german if clause.adverb and not clause.adverb_first else ""
    if target is None:
        middle = [time, "nicht" if clause.negated else ""]
    elif clause.negated and target.determiner == "the":
        middle = [_german_phrase(target, "accusative"), time, "nicht"]
    else:
        middle = [time, _german_phrase(target, "accusative", clause.negated)]
    if place == "side":
        words = [subject, *middle, *([close + finite] if close == verb.particle else [close, finite])]
    elif place == "after":
        words = [finite, subject, *middle, close]
    elif clause.adverb and clause.adverb_first:
        words = [clause.adverb.german, finite, subject, *middle, close]
    else:
        words = [subject, finite, *middle, close]
    return " ".join(word for word in words if word)


def to_german(sentence: Sentence) -> str:
    if sentence.conjunction is None or sentence.subordinate is None:
        return _german_clause(sentence.main, "first")
    side = f"{sentence.conjunction.german} {_german_clause(sentence.subordinate, 'side')}"
    if sentence.subordinate_first:
        return f"{side} , {_german_clause(sentence.main, 'after')}"
    return f"{_german_clause(sentence.main, 'first')} , {side}"


# Drawing a corpus


def pick(rng: Random, items: Sequence[Item]) -> Item:
    # Python guarantees the same values of `random` in all versions, but not of `choice`.
    return items[int(rng.random() * len(items))]


def _draw_phrase(
    rng: Random, candidates: Sequence[Noun], plural_prob: float, adjective_prob: float, no_prob: float
) -> Phrase:
    """Random noun phrase, with the probabilities of a plural, of an adjective and of the determiner `no`."""
    noun = pick(rng, candidates)
    plural = rng.random() < plural_prob
    determiner = "the" if rng.random() < 0.5 else "a"
    if not plural and rng.random() < no_prob:
        determiner = "no"
    adjective = pick(rng, adjectives(noun.kind)) if rng.random() < adjective_prob else None
    return Phrase(determiner, noun, plural, adjective)


def _is_compatible(clause: Clause) -> bool:
    """True if subject and object differ, and tense and adverb are compatible with the verb and the negation."""
    subject, verb, target, adverb = clause.subject, clause.verb, clause.object, clause.adverb
    is_negative = clause.negated
    if isinstance(subject, Phrase):
        if target is not None and target.noun is subject.noun:
            return False
        is_negative |= subject.determiner == "no"
    if verb.is_stative:
        return clause.tense in (PRESENT, PAST) and adverb is None
    return adverb is None or (clause.tense.name in adverb.tenses and (adverb.is_negatable or not is_negative))


def _draw_clause(rng: Random, verbs: Sequence[Verb], tenses: Sequence[Tense], may_front: bool) -> Clause:
    while True:
        verb, negated = pick(rng, verbs), rng.random() < 0.2
        subject: Phrase | Pronoun = pick(rng, PRONOUNS)
        if rng.random() < 0.8:
            subject = _draw_phrase(rng, nouns(verb.subjects), 0.35, 0.45, 0.0 if negated else 0.08)
        target = _draw_phrase(rng, nouns(verb.objects), 0.25, 0.6, 0.0) if verb.objects else None
        clause = Clause(subject, verb, pick(rng, tenses), negated, target)
        if rng.random() < 0.4:
            adverb = pick(rng, ADVERBS)
            clause = clause._replace(adverb=adverb, adverb_first=may_front and rng.random() < 0.5)
        if _is_compatible(clause):
            return clause


def _draw_sentence(rng: Random) -> Sentence:
    if rng.random() < 0.6:
        return Sentence(_draw_clause(rng, PLAIN_VERBS, WEIGHTED_TENSES, may_front=True))
    link = pick(rng, (THAT, *CONJUNCTIONS))
    leads = link.can_lead and rng.random() < 0.35
    verbs = REPORTING_VERBS if link is THAT else PLAIN_VERBS
    while True:
        main = _draw_clause(rng, verbs, link.main_tenses, may_front=True)
        side_tenses = link.side_tenses or (_WEIGHTED_PAST_TENSES if main.tense.is_past else WEIGHTED_TENSES)
        side = _draw_clause(rng, PLAIN_VERBS, side_tenses, may_front=False)
        if leads and main.adverb:
            continue  # the position of the adverb in German would depend on whether the subject is already known
        if link is WHEN and any(clause.adverb and clause.adverb.is_habitual for clause in (main, side)):
            continue
        return Sentence(main, link, side, leads)


def combinations(sentence: Sentence) -> Iterator[tuple[str, ...]]:
    """Kind and two related words: subject and verb, verb and object, or adjective and noun."""
    for clause in (sentence.main, sentence.subordinate):
        if clause is None:
            continue
        verb = clause.verb.base
        if isinstance(clause.subject, Phrase):
            yield "subject", clause.subject.noun.english, verb
        if clause.object is not None:
            yield "object", verb, clause.object.noun.english
        for phrase in (clause.subject, clause.object):
            if isinstance(phrase, Phrase) and phrase.adjective:
                yield "adjective", phrase.adjective.english, phrase.noun.english


def generate_corpus(count: int = 120_000, seed: int = 2017) -> Corpus:
    """Distinct pairs, identical on every machine; training pairs contain no combination of `UNSEEN_COMBINATIONS`."""
    rng = Random(seed)
    valid, test = min(1_000, count // 20), min(2_000, count // 10)
    train: list[SentencePair] = []
    held: list[SentencePair] = []
    sources: set[str] = set()
    while len(train) + len(held) < count:
        sentence = _draw_sentence(rng)
        unseen = not UNSEEN_COMBINATIONS.isdisjoint(combinations(sentence))
        pool, size = (held, valid + test) if unseen else (train, count - valid - test)
        source = to_english(sentence)
        if len(pool) < size and source not in sources and source.count(" ") < MAX_WORDS:
            sources.add(source)
            pool.append(SentencePair(source, to_german(sentence)))
    return Corpus(train, held[:valid], held[valid:])
