"""Detokenization of WikiText and Penn Treebank text."""

from __future__ import annotations

import gzip
import random
import re
from pathlib import Path

import pytest

from regard.config import from_dict
from regard.data.settings import DataSettings
from regard.data.text.documents import DETOKENIZERS, count_words
from regard.errors import RegardError

SHARED = Path(__file__).parents[3] / "shared/data/wikitext-2"


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        (" A well @-@ known castle ( of 1 @,@ 200 ) , 3 @.@ 5 km away . ", "A well-known castle (of 1,200), 3.5 km away."),
        (" = Castle = ", "= Castle ="),
        (" = = = Early days = = = ", "=== Early days ==="),
        (" x = 5 = y ", "x = 5 = y"),
        (" = = only on one side ", "= = only on one side"),
        (' " It is " , she said , " a <unk> [ fine ] day ! " ', '"It is", she said, "a <unk> [fine] day!"'),
        (' He said : " the so @-@ called \' cat \' " ; no ? ', "He said: \"the so-called 'cat'\"; no?"),
        (" It 's O 'Brien 's , don 't touch . ", "It's O'Brien's, don't touch."),
        (" the sisters ' house and the ' big ' one ", "the sisters' house and the 'big' one"),
        (" in the ' 80s ", "in the '80s"),
        (" people ’ s “ own ” dogs ’ tails ", "people’s “own” dogs’ tails"),
        (" It cost $ 5 million , US $ 7 or £ 3 ( 8 % ) . ", "It cost $5 million, US$7 or £3 (8%)."),
        (" won 3 – 1 at 10 : 30 – a record ; note : 5 ", "won 3–1 at 10:30 – a record; note: 5"),
        (" 84 ° F ( − 2 ° C ) , at 35 ° and 5 − 3 ", "84 °F (−2 °C), at 35° and 5 − 3"),
        (" 93 km / h and / or issue # 4 — so it was ", "93 km/h and/or issue #4—so it was"),
        (" he waited ... and  waited . . . ", "he waited ... and  waited..."),
        (" ", ""),
    ],
)  # fmt: skip
def test_wikitext_reads_as_it_was_written(line: str, wanted: str) -> None:
    assert DETOKENIZERS["wikitext"](line) == wanted


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        (" the company does n't say it 's <unk> ", "the company doesn't say it's <unk>"),
        (" companies ' profits rose $ N million or N N % ", "companies' profits rose $N million or N N%"),
        (" c$ N and # N to standard & poor 's ", "c$N and #N to standard & poor's"),
        (" `` We 'll see , '' said Mr. Vinken -LRB- 61 -RRB- . ", '"We\'ll see," said Mr. Vinken (61).'),
    ],
)
def test_the_treebank_reads_as_it_was_written(line: str, wanted: str) -> None:
    assert DETOKENIZERS["ptb"](line) == wanted


def test_words_are_counted_by_the_rule_of_wikitext() -> None:
    assert count_words(" \n = A = \n some text . \n") == 3 + 3 + 3
    assert count_words("") == 0 and count_words("no end of line") == 4
    text = " one two \n \n three . \n"
    assert all(count_words(text[:cut]) + count_words(text[cut:]) == count_words(text) for cut in (5, 10, 12, len(text)))


@pytest.mark.parametrize("name", ["wikitext", "ptb"])
def test_only_spaces_and_markers_are_removed(name: str) -> None:
    clean, draw = DETOKENIZERS[name], random.Random(4)
    tokens = [*"aT5,.;:()[]\"'$%=#−–—/°C’‘“”…Né\n", "The", "'s", "n't", "@-@", "@,@", "@.@", "<unk>", ""]
    for _ in range(500):
        line = " ".join(draw.choices(tokens, k=30))
        marked = re.sub("@([-,.])@", r"\1", line) if name == "wikitext" else line
        assert clean(line).replace(" ", "") == marked.replace(" ", "")
        first, last = line[: len(line) // 2] + "\n", line[len(line) // 2 :]
        assert clean(first) + clean(last) == clean(first + last)
        assert clean(line).count("\n") == line.count("\n")


def test_none_changes_nothing_and_settings_accept_the_names() -> None:
    text = " as @-@ is \n\n"
    assert DETOKENIZERS["none"](text) == text
    for name in DETOKENIZERS:
        assert from_dict(DataSettings, {"detokenize": name}, "data.").detokenize == name
    with pytest.raises(RegardError):
        from_dict(DataSettings, {"detokenize": "wikitxt"}, "data.")


@pytest.mark.parametrize(("name", "count"), [("valid", 217_646), ("test", 245_569)])
def test_the_published_text_has_its_published_size_and_stays_apart(name: str, count: int) -> None:
    path = SHARED / f"wiki.{name}.raw.gz"
    if not path.exists():
        pytest.skip(f"the data set is not there: {path}")
    text = gzip.decompress(path.read_bytes()).decode()
    assert count_words(text) == count
    lines = {line.strip(" ") for line in text.split("\n")}
    repaired = {DETOKENIZERS["wikitext"](line) for line in lines}
    assert len(repaired) == len(lines)
    assert not [line for line in repaired if re.search(r" [,.;!?)] | @.@ |\( ", line)]
