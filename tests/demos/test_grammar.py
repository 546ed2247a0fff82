"""Language of the demo: correct German for English sentences, and held-out pairs that are new."""

from __future__ import annotations

import hashlib

from regard.demos.grammar import generate_corpus

CHECKSUM = "5cff9eaf42cd0a82dbc73cc61d9e9e94b2b1e1b7ef718c4e495642885c602207"

KNOWN = {
    # articles, case and gender
    "the man sees the chair now": "der Mann sieht jetzt den Stuhl",
    "a child found an apple": "ein Kind fand einen Apfel",
    # adjective inflection
    "a small doctor bought a blue chair": "ein kleiner Arzt kaufte einen blauen Stuhl",
    "the man sees the hungry girl": "der Mann sieht das hungrige Mädchen",
    # tenses, with the participle, infinitive or particle last
    "he has drawn a coat": "er hat einen Mantel gezeichnet",
    "she wants to buy the cat": "sie will die Katze kaufen",
    "they could not see the big apple": "sie konnten den großen Apfel nicht sehen",
    "he invited the men": "er lud die Männer ein",
    # negation
    "the doctor does not work": "der Arzt arbeitet nicht",
    "a man did not buy a fresh roll yesterday": "ein Mann kaufte gestern kein frisches Brötchen",
    "no old woman danced": "keine alte Frau tanzte",
    "he did not invite the child": "er lud das Kind nicht ein",
    # the verb keeps second place when an adverb leads
    "yesterday the man swam": "gestern schwamm der Mann",
    # the verb goes last after a conjunction
    "an uncle said that the teacher bought the flowers": "ein Onkel sagte , dass der Lehrer die Blumen kaufte",
    "when the old dog danced , he laughed": "als der alte Hund tanzte , lachte er",
}


def test_the_corpus_is_always_the_same_without_duplicates_and_correct() -> None:
    pairs = generate_corpus()
    small, again, other = (generate_corpus(400, seed=seed) for seed in (1, 1, 2))
    assert [len(part) for part in small] == [340, 20, 40] and small == again != other
    everything = [pair for part in pairs for pair in part]
    assert [len(part) for part in pairs] == [117_000, 1_000, 2_000]
    assert len({pair.source for pair in everything}) == 120_000
    text = "\n".join(f"{pair.source}\t{pair.target}" for pair in everything)
    assert hashlib.sha256(text.encode()).hexdigest() == CHECKSUM
    found = dict(everything)
    assert {source: found.get(source) for source in KNOWN} == KNOWN
