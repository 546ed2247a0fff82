"""Small English–German grammar for the demo, which generates sentence pairs with exact translations.

A `Sentence` is a syntax tree; `to_english` and `to_german` render it. German moves the verb: second in a main clause, last
after a conjunction, with participle, infinitive or particle at the end of the clause. `generate_corpus` draws sentence pairs;
each held-out pair contains a combination of `UNSEEN_COMBINATIONS`, which no training pair contains.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Literal, NamedTuple, TypeVar

from regard.demos import lexicon as lex
from regard.demos.lexicon import Adjective, Adverb, Conjunction, Noun, Pronoun, Tense, Verb

Determiner = Literal["the", "a", "no"]
Case = Literal["nominative", "accusative"]
Item = TypeVar("Item")

MAX_WORDS = 16  # maximum length of an English sentence in the corpus


class SentencePair(NamedTuple):
    source: str
    target: str


class Combination(NamedTuple):
    """Two related words: subject and verb, verb and object, or adjective and noun."""

    relation: lex.Relation
    first: str
    second: str


@dataclass(frozen=True, slots=True)
class Corpus:
    train: list[SentencePair]
    valid: list[SentencePair]
    test: list[SentencePair]


@dataclass(frozen=True, slots=True)
class Phrase:
    """Noun with a determiner; an indefinite plural (`a` with `plural`) has no article in either language."""

    determiner: Determiner
    noun: Noun
    plural: bool = False
    adjective: Adjective | None = None


@dataclass(frozen=True, slots=True)
class Clause:
    subject: Phrase | Pronoun
    verb: Verb
    tense: Tense
    negated: bool = False
    object: Phrase | None = None
    adverb: Adverb | None = None
    adverb_first: bool = False  # the adverb starts the clause

    @property
    def is_negative(self) -> bool:
        return self.negated or (isinstance(self.subject, Phrase) and self.subject.determiner == "no")


@dataclass(frozen=True, slots=True)
class Sentence:
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


def _english_predicate(verb: Verb, tense: Tense, plural: bool, negated: bool) -> str:
    auxiliary = (tense.english_negative if negated else tense.english)[plural]
    if not auxiliary:
        return verb.past if tense.is_past else verb.base if plural else verb.third
    return f"{auxiliary} {verb.participle if tense is lex.PERFECT else verb.base}"


def _english_clause(clause: Clause) -> str:
    predicate = _english_predicate(clause.verb, clause.tense, clause.subject.plural, clause.negated)
    words = f"{_english_phrase(clause.subject)} {predicate}"
    if clause.object:
        words = f"{words} {_english_phrase(clause.object)}"
    if clause.adverb:
        words = f"{clause.adverb.english} {words}" if clause.adverb_first else f"{words} {clause.adverb.english}"
    return words


def to_english(sentence: Sentence) -> str:
    main = _english_clause(sentence.main)
    if not (sentence.conjunction and sentence.subordinate):
        return main
    side = f"{sentence.conjunction.english} {_english_clause(sentence.subordinate)}"
    return f"{side} , {main}" if sentence.subordinate_first else f"{main} {side}"


# German


def _german_phrase(phrase: Phrase | Pronoun, case: Case, negated: bool = False) -> str:
    """Noun phrase with article and inflection for case, gender and number; a negated indefinite phrase uses *kein*."""
    if isinstance(phrase, Pronoun):
        return phrase.german
    gender = "p" if phrase.plural else phrase.noun.gender
    if phrase.determiner == "the":
        article, ending = lex.DEFINITE_ARTICLES[case, gender], lex.WEAK_ENDINGS[case, gender]
    elif negated or phrase.determiner == "no":
        article = "keine" if phrase.plural else "k" + lex.INDEFINITE_ARTICLES[case, gender]
        ending = lex.MIXED_ENDINGS[case, gender]
    elif phrase.plural:
        article, ending = "", "e"
    else:
        article, ending = lex.INDEFINITE_ARTICLES[case, gender], lex.MIXED_ENDINGS[case, gender]
    noun = phrase.noun.german_plural if phrase.plural else phrase.noun.german
    words = f"{phrase.adjective.stem}{ending} {noun}" if phrase.adjective else noun
    return f"{article} {words}" if article else words


def _german_verb(verb: Verb, tense: Tense, plural: bool) -> tuple[str, str]:
    """Finite verb, and the particle, participle or infinitive at the end of the clause."""
    if tense is lex.PRESENT:
        return (verb.german_plural if plural else verb.german_third), verb.particle
    if tense is lex.PAST:
        return (verb.german_past_plural if plural else verb.german_past), verb.particle
    if tense is lex.PERFECT:
        auxiliary = ("ist", "sind") if verb.is_motion else tense.german
        return auxiliary[plural], verb.german_participle
    return tense.german[plural], verb.infinitive


def _german_midfield(clause: Clause) -> list[str]:
    """Words between the verb and the end of the clause. *nicht* follows a definite object and the time; an indefinite
    object uses *kein* instead."""
    time = clause.adverb.german if clause.adverb and not clause.adverb_first else ""
    if clause.object is None:
        return [time, "nicht" if clause.negated else ""]
    if clause.negated and clause.object.determiner == "the":
        return [_german_phrase(clause.object, "accusative"), time, "nicht"]
    return [time, _german_phrase(clause.object, "accusative", clause.negated)]


def _german_clause(clause: Clause, place: Literal["first", "after", "side"]) -> str:
    """Main clause in first position, main clause after a subordinate clause (verb first), or subordinate clause (verb last)."""
    subject = _german_phrase(clause.subject, "nominative")
    finite, close = _german_verb(clause.verb, clause.tense, clause.subject.plural)
    middle = _german_midfield(clause)
    if place == "side":
        joined = close == clause.verb.particle
        words = [subject, *middle, close + finite] if joined else [subject, *middle, close, finite]
    elif place == "after":
        words = [finite, subject, *middle, close]
    elif clause.adverb and clause.adverb_first:
        words = [clause.adverb.german, finite, subject, *middle, close]
    else:
        words = [subject, finite, *middle, close]
    return " ".join(word for word in words if word)


def to_german(sentence: Sentence) -> str:
    if not (sentence.conjunction and sentence.subordinate):
        return _german_clause(sentence.main, "first")
    side = f"{sentence.conjunction.german} {_german_clause(sentence.subordinate, 'side')}"
    if sentence.subordinate_first:
        return f"{side} , {_german_clause(sentence.main, 'after')}"
    return f"{_german_clause(sentence.main, 'first')} , {side}"


# Valid sentences


def _is_valid_clause(clause: Clause) -> bool:
    """True if verb, subject, object, tense and adverb are compatible."""
    subject, verb, target, adverb = clause.subject, clause.verb, clause.object, clause.adverb
    if isinstance(subject, Phrase):
        if subject.noun.kind not in verb.subjects or (subject.determiner == "no" and clause.negated):
            return False
        if target is not None and target.noun is subject.noun:
            return False
    if target is None and verb.objects:
        return False
    if target is not None and (target.noun.kind not in verb.objects or target.determiner == "no"):
        return False
    if verb.is_stative and clause.tense not in (lex.PRESENT, lex.PAST):
        return False
    return adverb is None or (not verb.is_stative and adverb in lex.adverbs(clause.tense.name, clause.is_negative))


def _can_join(link: Conjunction, main: Clause, side: Clause, side_leads: bool) -> bool:
    """True if verbs, tenses and adverbs of both clauses are compatible with the conjunction."""
    if side_leads and (main.adverb or not link.can_lead):
        return False  # the position of the adverb in German would depend on whether the subject is already known
    if side.adverb_first or side.verb.is_reporting or main.verb.is_reporting != (link is lex.THAT):
        return False
    if link is lex.WHEN and any(clause.adverb and clause.adverb.is_habitual for clause in (main, side)):
        return False
    return main.tense in lex.main_tenses(link) and side.tense in lex.subordinate_tenses(link, main.tense.is_past)


# Drawing a corpus


def _pick(rng: Random, items: Sequence[Item]) -> Item:
    # Python guarantees the same values of `random` in all versions, but not of `choice`.
    return items[int(rng.random() * len(items))]


def _draw_phrase(rng: Random, nouns: Sequence[Noun], plurals: float, adjectives: float, noes: float) -> Phrase:
    """Random noun phrase; `plurals`, `adjectives` and `noes` are the probabilities of a plural, an adjective and `no`."""
    noun = _pick(rng, nouns)
    plural = rng.random() < plurals
    determiner: Determiner = "the" if rng.random() < 0.5 else "a"
    if not plural and rng.random() < noes:
        determiner = "no"
    adjective = _pick(rng, lex.adjectives(noun.kind)) if rng.random() < adjectives else None
    return Phrase(determiner, noun, plural, adjective)


def _draw_clause(rng: Random, verbs: Sequence[Verb], tenses: Sequence[Tense], may_front: bool) -> Clause:
    while True:
        verb, negated = _pick(rng, verbs), rng.random() < 0.2
        subject: Phrase | Pronoun = _pick(rng, lex.PRONOUNS)
        if rng.random() < 0.8:
            subject = _draw_phrase(rng, lex.nouns(verb.subjects), 0.35, 0.45, 0.0 if negated else 0.08)
        target = _draw_phrase(rng, lex.nouns(verb.objects), 0.25, 0.6, 0.0) if verb.objects else None
        clause = Clause(subject, verb, _pick(rng, tenses), negated, target)
        if rng.random() < 0.4:
            adverb = _pick(rng, lex.ADVERBS)
            clause = replace(clause, adverb=adverb, adverb_first=may_front and rng.random() < 0.5)
        if _is_valid_clause(clause):
            return clause


def _draw_sentence(rng: Random) -> Sentence:
    if rng.random() < 0.6:
        return Sentence(_draw_clause(rng, lex.PLAIN_VERBS, lex.WEIGHTED_TENSES, may_front=True))
    link = _pick(rng, (lex.THAT, *lex.CONJUNCTIONS))
    leads = link.can_lead and rng.random() < 0.35
    verbs = lex.REPORTING_VERBS if link is lex.THAT else lex.PLAIN_VERBS
    while True:
        main = _draw_clause(rng, verbs, lex.main_tenses(link), may_front=True)
        side = _draw_clause(rng, lex.PLAIN_VERBS, lex.subordinate_tenses(link, main.tense.is_past), may_front=False)
        if _can_join(link, main, side, leads):
            return Sentence(main, link, side, leads)


def combinations(sentence: Sentence) -> Iterator[Combination]:
    for clause in (sentence.main, sentence.subordinate):
        if clause is None:
            continue
        verb, phrases = clause.verb.base, (clause.subject, clause.object)
        if isinstance(clause.subject, Phrase):
            yield Combination("subject", clause.subject.noun.english, verb)
        if clause.object is not None:
            yield Combination("object", verb, clause.object.noun.english)
        for phrase in phrases:
            if isinstance(phrase, Phrase) and phrase.adjective:
                yield Combination("adjective", phrase.adjective.english, phrase.noun.english)


UNSEEN_COMBINATIONS = frozenset(Combination(*combination) for combination in lex.UNSEEN_PAIRS)


def generate_corpus(count: int = 120_000, seed: int = 2017) -> Corpus:
    """Distinct pairs, identical on every machine; training pairs contain no combination of `UNSEEN_COMBINATIONS`."""
    rng = Random(seed)
    valid, test = min(1_000, count // 20), min(2_000, count // 10)
    train: list[SentencePair] = []
    held: list[SentencePair] = []
    said: set[str] = set()
    while len(train) + len(held) < count:
        sentence = _draw_sentence(rng)
        unseen = not UNSEEN_COMBINATIONS.isdisjoint(combinations(sentence))
        pool, size = (held, valid + test) if unseen else (train, count - valid - test)
        source = to_english(sentence)
        if len(pool) < size and source not in said and source.count(" ") < MAX_WORDS:
            said.add(source)
            pool.append(SentencePair(source, to_german(sentence)))
    return Corpus(train, held[:valid], held[valid:])
