"""Nearest texts of a query: in Python, on the command line, and as a metric."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from objectives import encode, scores_of
from test_cli import Cli
from test_cli import cli as cli

from encoders import encoder
from regard.data.text.samples import Pair
from regard.errors import RegardError
from regard.model import Model
from regard.tasks import embed
from regard.tasks.base import EncodingContext, LossSum
from regard.tasks.embed import TextIndex
from tokenizer_texts import STORY

TEXTS = [f"{a} {b} on the {c}" for a in ("cats", "the dog") for b in ("sat", "is") for c in ("mat", "été", "façade")]


@pytest.fixture(scope="module")
def model() -> Model:
    return encoder("embed", [STORY, *TEXTS, "abcdefghijklm"], vocab_size=200)


# -- nearest


def test_the_nearest_are_those_of_the_largest_cosines(model: Model) -> None:
    texts = [*TEXTS, TEXTS[3], TEXTS[0]]  # some duplicates
    query = "a cat on a mat"
    answer = model.predict({"query": query, "corpus": texts, "top_k": 4})
    cosines = np.array([a.value for a in model.predict(TEXTS)]) @ np.array(model.predict(query).value)
    order = np.argsort(-cosines, kind="stable")[:4]
    assert [(hit["value"], hit["index"]) for hit in answer.extra["hits"]] == [(TEXTS[i], i) for i in order]
    assert answer.score == pytest.approx(cosines[order], abs=1e-12) and answer.value == TEXTS[order[0]]
    assert len(model.predict({"query": query, "corpus": texts}).score) == 5
    assert len(model.predict({"query": query, "corpus": texts, "top_k": 999}).score) == len(set(texts))


def test_texts_that_are_searched_are_read_once(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    real = embed.embed_texts
    monkeypatch.setattr(embed, "embed_texts", lambda m, texts, *more: read.append(len(texts)) or real(m, texts, *more))
    texts = ["one", "two", "two"]
    answers = model.predict([{"query": query, "corpus": texts} for query in ("x", "y", "two")])
    assert read == [3, 2] and answers[2].value == "two" and answers[2].score[0] == pytest.approx(1)


def test_ties_keep_input_order_and_vector_length_has_no_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.tasks.embed.MAX_COSINES", 4)  # one query at a time
    vectors = np.array([[1.0, 0.0], [0.0, 5.0], [0.0, 1.0], [3.0, 3.0]])
    hits = TextIndex(["east", "north", "up", "both"], vectors).search(np.array([[0.0, 2.0], [9.0, 0.1]]), 3)
    assert [[hit.value for hit in some] for some in hits] == [["north", "up", "both"], ["east", "both", "north"]]
    assert hits[0][0].cosine == pytest.approx(1) and hits[0][2].cosine == pytest.approx(0.5**0.5)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ([3], "Expected a text"), ({"query": "a"}, '"corpus"'), ({"query": "a", "corpus": []}, "non-empty list of texts"),
        ({"query": "a", "corpus": "b"}, "texts"), ({"query": "a", "corpus": ["b"], "top_k": 0}, "at least 1, got 0"),
        ({"query": "a", "corpus": ["b", 2]}, "got 2"), ({"query": "a", "corpus": ["b"], "k": 1}, '"top_k"'),
    ],
)  # fmt: skip
def test_unsupported_requests_are_reported(model: Model, asked: Any, words: str) -> None:
    with pytest.raises(RegardError, match=words):
        model.predict(asked)


def test_no_query_gives_no_result(model: Model) -> None:
    assert model.predict([]) == []


# -- metrics


def score(model: Model, pairs: list[Pair], most: int | None = None) -> tuple[dict[str, Any], list[int]]:
    scores, answers = scores_of(model, encode(model, pairs, 99), loss=LossSum(1.0, 1.0), most=most)
    return scores, [answer.extra["rank"] for answer in answers]


def placed(model: Model, monkeypatch: pytest.MonkeyPatch, table: dict[str, float]) -> None:
    """Substitute embeddings: the vector of each text is a given angle."""
    name = {
        tuple(embed._encode_texts([text], model.config, EncodingContext(model.tokenizer))[0][0].tolist()): at
        for text, at in table.items()
    }
    angles = lambda rows: np.array([name[tuple(np.asarray(row).tolist())] for row in rows])  # noqa: E731
    monkeypatch.setattr(
        embed, "_embed_rows", lambda model, rows, tell=None: np.stack([np.cos(angles(rows)), np.sin(angles(rows))], 1)
    )


def test_ranks_count_nearer_texts_and_any_correct_text_is_accepted(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    placed(model, monkeypatch, {"the cat": 0.0, "sat": 0.3, "is": 0.2, "mat": 0.1, "a dog": 1.0, "on": 1.4, "b": 0.25})
    pairs = [("the cat", "sat"), ("the cat", "is"), ("a dog", "on"), ("b", "mat"), ("mat", "the cat"), ("on", "on")]
    scores, ranks = score(model, [Pair(a, b, "", 1) for a, b in pairs])
    # 'mat' is nearer to 'the cat' than both of its correct texts; 'mat' itself is excluded from its own ranking
    assert ranks == [2, 2, 1, 3, 2, 1]
    assert scores == {"mrr": round(100 * (0.5 + 0.5 + 1 + 1 / 3 + 0.5 + 1) / 6, 2), "accuracy": 33.33, "samples": 6}
    assert score(model, [Pair(a, b, "", 1) for a, b in pairs], 3)[1] == ranks[:3]


def test_vectors_that_are_all_the_same_find_nothing(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    words = "abcdefghijklm"
    placed(model, monkeypatch, dict.fromkeys(words, 0.5))
    scores, ranks = score(model, [Pair(a, b, "", 1) for a, b in zip(words, words[1:] + "a", strict=True)])
    assert set(ranks) == {12} and scores["mrr"] == scores["accuracy"] == 0


# -- the command


@pytest.fixture
def saved(model: Model, tmp_path: Path) -> Path:
    return model.save(tmp_path / "my encoder")


def test_a_file_is_searched_for_the_nearest_texts(cli: Cli, saved: Path, model: Model, tmp_path: Path) -> None:
    (tmp_path / "my texts.txt").write_text("\n\n".join([*TEXTS, TEXTS[0]]) + "\n")
    right = model.predict({"query": "the mat", "corpus": TEXTS, "top_k": 2})
    told = "".join(
        f"{score:7.4f}  {hit['value']}\n" for score, hit in zip(right.score, right.extra["hits"], strict=True)
    )
    done = cli("predict", saved, "the mat", "--search", "my texts.txt", "--top-k", 2)
    assert (done.code, done.out) == (0, told) and "Searching 13 texts in my texts.txt" in done.err
    several = cli("predict", saved, "--search", "my texts.txt", "--top-k", 2, stdin="the mat\nthe cat\n")
    assert several.out.startswith(f"the mat\n{told}\nthe cat\n")
    row = json.loads(cli("predict", saved, "the mat", "--search", "my texts.txt", "--json").out)
    assert row["input"] == "the mat" and row["value"] == right.value and len(row["hits"]) == 5
    assert [hit["line"] for hit in row["hits"]][:2] == [1 + 2 * hit["index"] for hit in right.extra["hits"]]


def test_a_table_is_searched_by_its_column(cli: Cli, saved: Path, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,text,more\n1,the cat,x\n2,a dog,the mat\n")
    (tmp_path / "a.jsonl").write_text('{"text": "the cat"}\n{"text": "a dog"}\n')
    for file in ("a.csv", "a.jsonl"):
        row = json.loads(cli("predict", saved, "the cat", "--search", file, "--json").out)
        assert row["value"] == "the cat" and row["score"][0] == pytest.approx(1)
    other = cli("predict", saved, "the mat", "--search", "a.csv", "--columns", "text=more", "--top-k", 1)
    assert other.out == " 1.0000  the mat\n"


def test_vectors_are_printed_one_a_line(cli: Cli, saved: Path, model: Model) -> None:
    done = cli("predict", saved, stdin="the cat\na dog\n")
    rows = [[float(number) for number in line.split()] for line in done.out.splitlines()]
    assert np.allclose(rows, [a.value for a in model.predict(["the cat", "a dog"])], atol=1e-6)
    assert json.loads(cli("predict", saved, "the cat", "--json").out)["value"] == model.predict("the cat").value


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--search", "none.txt"), "file not found"), (("--search", "empty.txt"), "is empty"),
        (("--search", "blank.txt"), "contains no text"), (("--search", "."), "got a folder"), (("--top-k", "2"), "--search"),
        (("--search", "a.csv"), "no column is named 'text'"), (("--choices", "a|b"), "--search"),
        (("--search", "a.txt", "--columns", "text=a"), "no columns"), (("--search", "a.txt", "--choices", "a|b"), "--top-k"),
    ],
)  # fmt: skip
def test_errors_of_a_search_are_reported(
    cli: Cli, saved: Path, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    for name, text in (("empty.txt", ""), ("blank.txt", "\n \n"), ("a.csv", "x,y\n1,2\n"), ("a.txt", "a\n")):
        (tmp_path / name).write_text(text)
    done = cli("predict", saved, "the cat", *words)
    assert done.code == 2 and done.err.startswith("regard: ") and said in done.err and not done.out


def test_long_searches_report_progress(cli: Cli, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.runs.terminal.PRINT_INTERVAL", -1.0)
    monkeypatch.setattr("regard.tasks.embed.BUDGET", 24)
    (tmp_path / "a.txt").write_text("\n".join(TEXTS))
    err = cli("predict", saved, "the cat", "--search", "a.txt").err
    assert "of 12 texts," in err and "12 of 12" not in err
