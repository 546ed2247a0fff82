"""Translation with the grammar of the demo: parses an English sentence and generates its German counterpart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import product

from regard.demos import grammar as lex
from regard.demos.grammar import (
    Clause,
    Determiner,
    Phrase,
    Pronoun,
    Sentence,
    Tense,
    Verb,
    _can_join,
    _english_phrase,
    _english_predicate,
    _is_valid_clause,
    to_german,
)


def translate(source: str) -> str | None:
    """German translation of an English sentence, or None if the grammar does not generate the sentence."""
    return next((to_german(sentence) for sentence in parse(source)), None)


def parse(source: str) -> Iterator[Sentence]:
    """All grammar sentences with this English text; the lexicon allows at most one."""
    words = source.split()
    links = [(place, link) for place, word in enumerate(words) for link in lex.CONJUNCTIONS if link.english == word]
    if not links:
        yield from (Sentence(clause) for clause in _parse_clauses(words))
    if len(links) != 1:
        return
    place, link = links[0]
    if leads := place == 0 and "," in words:
        comma = words.index(",")
        main_words, side_words = words[comma + 1 :], words[1:comma]
    else:
        main_words, side_words = words[:place], words[place + 1 :]
    for main, side in product(_parse_clauses(main_words), _parse_clauses(side_words)):
        if _can_join(link, main, side, leads):
            yield Sentence(main, link, side, leads)


def _parse_clauses(words: Sequence[str]) -> Iterator[Clause]:
    text = " ".join(words)
    for adverb, fronted in ((None, False), *product(lex.ADVERBS, (False, True))):
        core = text
        if adverb is not None:
            core = text.removeprefix(f"{adverb.english} ") if fronted else text.removesuffix(f" {adverb.english}")
            if core == text:
                continue
        for subject, verb, tense, negated, target in _split_clause(core.split()):
            clause = Clause(subject, verb, tense, negated, target, adverb, fronted)
            if _is_valid_clause(clause):
                yield clause


def _split_clause(words: list[str]) -> Iterator[tuple[Phrase | Pronoun, Verb, Tense, bool, Phrase | None]]:
    """All splits of the words into subject, predicate and object."""
    phrases, predicates = _phrase_table(), _predicate_table()
    for start, stop in product(range(1, 4), range(2, len(words) + 1)):
        subject = phrases.get(" ".join(words[:start]))
        target = phrases.get(" ".join(words[stop:]))
        if subject is None or isinstance(target, Pronoun) or (target is None and stop < len(words)):
            continue
        for verb, tense, negated in predicates.get((" ".join(words[start:stop]), subject.plural), ()):
            yield subject, verb, tense, negated, target


@cache
def _phrase_table() -> dict[str, Phrase | Pronoun]:
    phrases: dict[str, Phrase | Pronoun] = {pronoun.english: pronoun for pronoun in lex.PRONOUNS}
    determiners: tuple[tuple[Determiner, bool], ...] = (
        ("the", False), ("the", True), ("a", False), ("a", True), ("no", False),
    )  # fmt: skip
    for noun, (determiner, plural) in product(lex.NOUNS, determiners):
        for adjective in (None, *lex.adjectives(noun.kind)):
            phrase = Phrase(determiner, noun, plural, adjective)
            phrases[_english_phrase(phrase)] = phrase
    return phrases


@cache
def _predicate_table() -> dict[tuple[str, bool], list[tuple[Verb, Tense, bool]]]:
    predicates: dict[tuple[str, bool], list[tuple[Verb, Tense, bool]]] = {}
    for verb, tense, plural, negated in product(lex.VERBS, lex.TENSES, (False, True), (False, True)):
        words = _english_predicate(verb, tense, plural, negated)
        predicates.setdefault((words, plural), []).append((verb, tense, negated))
    return predicates
