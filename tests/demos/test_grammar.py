"""Language of the demo: the corpus is the checked one, and held-out pairs are new."""

from __future__ import annotations

import hashlib

from regard.demos.grammar import generate_corpus

CHECKSUM = "5cff9eaf42cd0a82dbc73cc61d9e9e94b2b1e1b7ef718c4e495642885c602207"


def test_the_corpus_is_always_the_same_without_duplicates() -> None:
    pairs = generate_corpus()
    small, again, other = (generate_corpus(400, seed=seed) for seed in (1, 1, 2))
    assert [len(part) for part in small] == [340, 20, 40] and small == again != other
    everything = [pair for part in pairs for pair in part]
    assert [len(part) for part in pairs] == [117_000, 1_000, 2_000]
    assert len({pair.source for pair in everything}) == 120_000
    text = "\n".join(f"{pair.source}\t{pair.target}" for pair in everything)
    assert hashlib.sha256(text.encode()).hexdigest() == CHECKSUM
