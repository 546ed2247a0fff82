"""Language of the demo: correct German for every English sentence, and held-out pairs that are new."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from itertools import pairwise

import pytest

from grammar_parser import parse, translate
from regard.demos import grammar
from regard.demos.grammar import (
    UNSEEN_COMBINATIONS,
    Combination,
    Corpus,
    Sentence,
    SentencePair,
    combinations,
    generate_corpus,
    to_german,
)

CHECKSUM = "5cff9eaf42cd0a82dbc73cc61d9e9e94b2b1e1b7ef718c4e495642885c602207"

KNOWN = {
    # articles, case and gender
    "the cat danced": "die Katze tanzte",
    "the man sees the dog": "der Mann sieht den Hund",
    "the dog sees the man": "der Hund sieht den Mann",
    "a child found an apple": "ein Kind fand einen Apfel",
    "an aunt buys a lamp": "eine Tante kauft eine Lampe",
    "the girls sing": "die Mädchen singen",
    "horses run": "Pferde laufen",
    # adjective inflection
    "an old man bought a red car": "ein alter Mann kaufte ein rotes Auto",
    "the old man bought the red car": "der alte Mann kaufte das rote Auto",
    "the hungry queen ate the fresh rolls": "die hungrige Königin aß die frischen Brötchen",
    "tired children carried an expensive coat": "müde Kinder trugen einen teuren Mantel",
    "a clever bird heard a young cat": "ein kluger Vogel hörte eine junge Katze",
    # tenses, with the participle, infinitive or particle last
    "the teacher has drawn a big house": "der Lehrer hat ein großes Haus gezeichnet",
    "the birds have come today": "die Vögel sind heute gekommen",
    "the king will visit the doctors": "der König wird die Ärzte besuchen",
    "she wants to buy the blue bicycle": "sie will das blaue Fahrrad kaufen",
    "they could not see the picture": "sie konnten das Bild nicht sehen",
    "the woman invited the uncle": "die Frau lud den Onkel ein",
    "we phone the old teacher": "wir rufen den alten Lehrer an",
    "he has phoned the aunt": "er hat die Tante angerufen",
    # negation
    "the doctor does not work": "der Arzt arbeitet nicht",
    "he did not buy the red table yesterday": "er kaufte den roten Tisch gestern nicht",
    "he did not buy a red table yesterday": "er kaufte gestern keinen roten Tisch",
    "we do not need new chairs": "wir brauchen keine neuen Stühle",
    "no old woman danced": "keine alte Frau tanzte",
    "she cannot find a flower": "sie kann keine Blume finden",
    "the man did not invite the children": "der Mann lud die Kinder nicht ein",
    # the verb keeps second place when an adverb leads
    "yesterday the man bought a book": "gestern kaufte der Mann ein Buch",
    "every day the aunts swim": "jeden Tag schwimmen die Tanten",
    "the girl will draw the horse tomorrow": "das Mädchen wird morgen das Pferd zeichnen",
    "in the evening he sings": "am Abend singt er",
    # the verb goes last after a conjunction
    "the man said that the woman bought the red book": "der Mann sagte , dass die Frau das rote Buch kaufte",
    "he knows that the old man bought a red car": "er weiß , dass der alte Mann ein rotes Auto kaufte",
    "we do not believe that she can swim": "wir glauben nicht , dass sie schwimmen kann",
    "the child laughs because the dog has danced": "das Kind lacht , weil der Hund getanzt hat",
    "they slept although the king phoned the queen": "sie schliefen , obwohl der König die Königin anrief",
    "she will come if he invites the teacher": "sie wird kommen , wenn er den Lehrer einlädt",
    "he laughed when the mouse ran": "er lachte , als die Maus lief",
    "when the mouse ran , he laughed": "als die Maus lief , lachte er",
    "because she did not eat the cake today , we eat the cake": "weil sie den Kuchen heute nicht aß , essen wir den Kuchen",
}  # fmt: skip

NOT_SAID = (
    "",
    "the cat",
    "the cat dance",
    "the cats dances",
    "a apple",
    "he eats an pear",
    "the man bought",
    "the man slept the dog",
    "the dog eats an apple",  # German has another verb for animals
    "she will dance yesterday",
    "he does not sleep every day",
    "no man did not sleep",
    "he laughed that she danced",
    "he said because she danced",
    "every day he laughed when she danced",  # German uses "wenn", not "als"
    "that she danced , he said",
    "when she danced , he laughed yesterday",
)


@pytest.fixture(scope="module")
def pairs() -> Corpus:
    return generate_corpus()


@pytest.fixture(scope="module")
def meanings(pairs: Corpus) -> dict[SentencePair, list[Sentence]]:
    return {pair: list(parse(pair.source)) for pair in everything(pairs)}


def everything(pairs: Corpus) -> list[SentencePair]:
    return pairs.train + pairs.valid + pairs.test


def clauses(target: str) -> list[list[str]]:
    return [clause.split() for clause in target.split(" , ")]


def test_the_corpus_has_its_sizes() -> None:
    small, again, other = (generate_corpus(400, seed=seed) for seed in (1, 1, 2))
    assert [len(part) for part in (small.train, small.valid, small.test)] == [340, 20, 40]
    assert small == again != other


@pytest.mark.slow
def test_the_corpus_is_always_the_same_without_duplicates(pairs: Corpus) -> None:
    assert [len(part) for part in (pairs.train, pairs.valid, pairs.test)] == [117_000, 1_000, 2_000]
    assert len({pair.source for pair in everything(pairs)}) == 120_000
    text = "\n".join(f"{pair.source}\t{pair.target}" for pair in everything(pairs))
    assert hashlib.sha256(text.encode()).hexdigest() == CHECKSUM


@pytest.mark.slow
def test_every_english_sentence_has_one_translation(meanings: dict[SentencePair, list[Sentence]]) -> None:
    for pair, sentences in meanings.items():
        assert [to_german(sentence) for sentence in sentences] == [pair.target], pair


def test_sentences_are_short_enough_and_often_have_two_clauses(pairs: Corpus) -> None:
    lengths = [len(pair.source.split()) for pair in everything(pairs)]
    assert min(lengths) >= 2 and max(lengths) <= 16
    assert sum("," in pair.target for pair in pairs.train) > len(pairs.train) / 3


def test_unseen_combinations_are_possible_ones() -> None:
    subjects = {("subject", n.english, v.base) for v in grammar.VERBS for n in grammar.nouns(v.subjects)}
    objects = {("object", v.base, n.english) for v in grammar.VERBS for n in grammar.nouns(v.objects)}
    adjectives = {("adjective", a.english, n.english) for a in grammar.ADJECTIVES for n in grammar.nouns(a.kinds)}
    assert subjects | objects | adjectives >= UNSEEN_COMBINATIONS
    assert Combination("subject", "cat", "dance") in UNSEEN_COMBINATIONS


@pytest.mark.slow
def test_unseen_combinations_are_in_all_held_out_sentences_and_in_no_training_sentence(
    pairs: Corpus, meanings: dict[SentencePair, list[Sentence]]
) -> None:
    for pair in pairs.valid + pairs.test:
        assert not UNSEEN_COMBINATIONS.isdisjoint(combinations(meanings[pair][0])), pair
    for pair in pairs.train:
        assert UNSEEN_COMBINATIONS.isdisjoint(combinations(meanings[pair][0])), pair
    assert {found for pair in pairs.test for found in combinations(meanings[pair][0])} >= UNSEEN_COMBINATIONS


def test_cats_never_dance_in_training(pairs: Corpus) -> None:
    with_cats = [pair.source for pair in pairs.train if "cat" in pair.source]
    assert any("dance" in source for source in with_cats), "the words occur together, in different clauses"
    predicate = re.compile(r"\bcats? (?:(?:do|does|did|has|have|will|can|cannot|could|not|wants?|wanted|to) )*dance")
    assert not any(predicate.search(source) for source in with_cats)


def test_every_word_is_met_often_in_training(pairs: Corpus) -> None:
    for side in (0, 1):
        often = Counter(word for pair in pairs.train for word in pair[side].split())
        assert min(often.values()) >= 200
        assert len(often) <= 300
        assert {word for pair in pairs.valid + pairs.test for word in pair[side].split()} <= often.keys()


@pytest.mark.parametrize(("source", "target"), KNOWN.items())
def test_example_sentences_are_translated_correctly(source: str, target: str) -> None:
    assert translate(source) == target


@pytest.mark.parametrize("source", NOT_SAID)
def test_sentences_outside_the_grammar_have_no_translation(source: str) -> None:
    assert translate(source) is None


def test_clauses_after_a_conjunction_end_in_the_finite_verb(pairs: Corpus) -> None:
    finite = {form for tense in grammar.TENSES for form in tense.german if form} | {"ist", "sind"}
    for verb in grammar.VERBS:
        for form in (verb.german_third, verb.german_plural, verb.german_past, verb.german_past_plural):
            finite.add(verb.particle + form)
    links = {link.german for link in grammar.CONJUNCTIONS}
    side_clauses = [words for pair in everything(pairs) for words in clauses(pair.target) if words[0] in links]
    assert len(side_clauses) > 40_000
    assert all(words[-1] in finite for words in side_clauses)


def test_kein_occurs_with_no_other_article_and_never_with_nicht(pairs: Corpus) -> None:
    articles = set(grammar.DEFINITE_ARTICLES.values()) | set(grammar.INDEFINITE_ARTICLES.values())
    for words in (words for pair in everything(pairs) for words in clauses(pair.target)):
        for place, word in enumerate(words):
            if word.startswith("kein"):
                assert words[place + 1] not in articles
                assert "nicht" not in words


def test_nouns_alone_are_capital_in_german_and_nothing_is_in_english(pairs: Corpus) -> None:
    nouns = {form for noun in grammar.NOUNS for form in (noun.german, noun.german_plural)} | {"Tag", "Abend", "Sommer"}
    words = {word for pair in everything(pairs) for word in pair.target.split()}
    assert {word for word in words if word[0].isupper()} == nouns
    assert all(pair.source == pair.source.lower() for pair in everything(pairs))


def test_an_precedes_vowels_and_a_the_rest(pairs: Corpus) -> None:
    for words in (pair.source.split() for pair in everything(pairs)):
        for article, word in pairwise(words):
            if article in ("a", "an"):
                assert (article == "an") == (word[0] in "aeiou")
