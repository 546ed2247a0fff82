"""Synthetic questions: tokens, scores and training."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import regard
from data_files import refused
from regard.data.settings import DataSettings
from regard.data.synthetic.algorithmic import GENERATORS, OBJECTS, PEOPLE, PLACES, parse_recipe
from regard.data.synthetic.algorithmic import AlgorithmicQuestion as Question
from regard.data.synthetic.algorithmic import generate_questions as generate
from regard.decode.settings import DecodeSettings
from regard.errors import DataError, SettingError, UnknownNameError
from regard.model import ModelSpec, assemble
from regard.processors.tokenizer.tokenizer import TextTokenizer
from regard.runs.check import check
from regard.runs.evaluate import evaluate
from regard.systems import SYSTEMS
from regard.systems.universal import Config
from regard.tasks import find_task
from regard.tasks.base import EncodingContext, EvalSpec, HeadOptions, LossSum
from regard.types import Prediction

RECALL: Any = find_task("algorithmic", "text")


def some(kind: str, **settings: Any) -> list[Question]:
    said = ",".join(f"{name}={value}" for name, value in {"longest": 6, "samples": 120, **settings}.items())
    return list(generate(f"{kind}#{said}"))


def lived(sentences: Sequence[str], asked: str) -> str:
    """Answer to a question by a simulation of the story."""
    where: dict[str, str] = {}
    holds: dict[str, str] = {}
    been: dict[str, list[str]] = {}
    for sentence in sentences:
        who, *_, what, _ = sentence.split()
        if what in PLACES:
            where[who] = what
            for thing in (thing for thing, holder in holds.items() if holder == who):
                been[thing].append(what)
        elif re.search("took|grabbed", sentence):
            assert what not in holds and been.get(what, [where.get(who)])[-1] == where.get(who)
            holds[what] = who
            been.setdefault(what, [where.get(who, "")])
        else:
            assert holds.pop(what, who) == who
            been.setdefault(what, [where[who]])
    words = asked.split()
    if words[2] in PEOPLE:
        return where[words[2]]
    assert words[3] in OBJECTS
    return been[words[3]][-2 if "before" in words else -1]


RIGHT = {
    "copy": lambda q: q,
    "reverse": lambda q: q[::-1],
    "sorting": lambda q: "".join(sorted(q)),
    "addition": lambda q: str(sum(int(part[::-1]) for part in q.split("+")))[::-1],
}


@pytest.mark.parametrize("kind", GENERATORS)
def test_answers_are_correct_and_questions_are_the_same_for_the_same_name(kind: str) -> None:
    made = some(kind, longest=20, samples=600)
    assert made == some(kind, longest=20, samples=600) != some(kind, longest=20, samples=600, seed=2)
    assert len({one.source for one in made}) == len(made) == 600
    for one in made:
        if kind in RIGHT:
            assert one.target == RIGHT[kind](one.source)
            continue
        *sentences, asked = re.split(r"(?<=\.) ", one.source)
        assert one.target == lived(sentences, asked)
        assert len(one.supporting_facts) == int(kind[-1]) and max(one.supporting_facts) < len(sentences)
        assert lived([sentences[at] for at in one.supporting_facts], asked) == one.target, "these sentences are enough"


@pytest.mark.parametrize("kind", GENERATORS)
def test_splits_share_no_question_and_validate_on_longer_ones_too(kind: str) -> None:
    train, valid, test = ([*some(kind, part=part)] for part in ("train", "valid", "test"))
    sources = [{one.source for one in part} for part in (train, valid, test)]
    assert not (sources[0] & sources[1] or sources[0] & sources[2] or sources[1] & sources[2])
    assert not any(one.is_longer for one in train)

    def length(one: Question) -> int:
        return one.source.count(" .") or sum(letter.isdigit() for letter in one.source)

    assert max(map(length, train)) <= 6
    for part in (valid, test):
        assert [one.is_longer for one in part] == [False, True] * 60
        assert all(6 < length(one) <= 12 if one.is_longer else length(one) <= 6 for one in part)


def test_names_are_understood_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse_recipe("data.tsv") is None and parse_recipe("./copy") is None
    assert str(parse_recipe("copy#seed=1,longest=20")) == "copy" and str(parse_recipe("copy#seed=3")) == "copy#seed=3"
    for entry, error, problem in (
        ("copy#longst=3", UnknownNameError, "longest"),
        ("copy#longest", DataError, "missing value"),
        ("copy#longest=0", SettingError, "longest"),
        ("copy#longest=2,samples=500", DataError, "only"),
    ):
        refused(problem, list, generate(entry), error=error)
    refused("cannot be combined", RECALL.reader.expand, ["copy", "a.tsv"])
    with pytest.raises(SettingError, match="words"):
        RECALL.objective.check_settings(SimpleNamespace(), 1, DataSettings(tokenizer_type="wordpiece"))
    monkeypatch.chdir(tmp_path)
    assert RECALL.reader.expand(["copy"])
    (tmp_path / "copy").mkdir()
    refused(r"\./copy", RECALL.reader.expand, ["copy"])
    one = some("addition", forwards="true")[0]
    assert eval(re.sub(r"\b0+(?=\d)", "", one.source)) == int(one.target)


def test_tokens_are_words_if_there_are_spaces_and_characters_otherwise() -> None:
    words, letters = TextTokenizer.from_words(["b a .", "</x> b"]), TextTokenizer.from_words(["31+2"])
    assert words.encode(["a  b </x>"]) == [[words.backend.token_to_id(word) for word in ("a", "b", "</x>")]]
    assert words.decode(words.encode(["a b . b"])) == ["a b . b"]
    assert words.display_tokens(words.encode(["a b"])[0]) == ["a", "b"]
    assert letters.encode(["2+1"]) == [[letters.backend.token_to_id(letter) for letter in "2+1"]]
    assert letters.size == 4 + 3
    assert letters.decode(letters.encode(["2+1"])) == ["2+1"]
    assert words.encode_offsets(["a  b"])[0][1] == [(0, 1), (3, 4)]
    assert TextTokenizer.from_words(["a b"], words=False).size == 3 + 3
    refused("does not contain the word 'c' and 1 other", words.encode, ["c a d"])


def test_scores_separate_trained_lengths_from_longer_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    text = TextTokenizer.from_words(["0123"])
    config = RECALL.modality.fit_config(Config(width=8, heads=2, ffn_dim=8), text)
    model = assemble(ModelSpec(SYSTEMS["universal"], config, RECALL, options=HeadOptions(max_train_length=2)), text)
    rows = [("12", "12"), ("10", "10"), ("123", "123"), ("1230", "1230")]
    samples = [Question(*row, "", 0) for row in rows]
    encoded = RECALL.objective.encode(samples, config, EncodingContext(text, 99))
    said = ["12", "11", "123", "12"]

    def answer(model: Any, inputs: Sequence[str], decode: DecodeSettings, **_: Any) -> list[Prediction]:
        return [Prediction(one, extra={"token_ids": text.encode([one])[0]}) for one in said]

    monkeypatch.setattr(RECALL.objective, "predict", answer)
    scores, _ = RECALL.objective.evaluate(model, encoded, EvalSpec(DecodeSettings(), DataSettings(), LossSum(1.0, 1.0)))
    assert scores == {
        "exact_match": 50.0, "token_accuracy": round(100 * 8 / 11, 2), "exact_match_in_range": 50.0,
        "token_accuracy_in_range": 75.0,
        "exact_match_longer": 50.0, "token_accuracy_longer": round(100 * 5 / 7, 2), "samples": 4,
    }  # fmt: skip
    encoded = RECALL.objective.encode([*samples[:2]], config, EncodingContext(text, 99))
    said = said[:2]
    scores, _ = RECALL.objective.evaluate(model, encoded, EvalSpec(DecodeSettings(), DataSettings(), LossSum(1.0, 1.0)))
    assert "exact_match_longer" not in scores


SETTINGS = (
    "model.width=16", "model.heads=2", "model.ffn_dim=16", "model.num_steps=2", "train.steps=4", "train.batch_tokens=256",
    "train.eval_every=2", "data.eval_samples=4", "train.warmup_steps=1", "train.precision=float32",
)  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("recall") / "run"
    data, valid = "facts-1#longest=3,samples=60", "facts-1#longest=3,part=valid,samples=12"
    regard.train("algorithmic", data, model="universal-tiny-halting", out=out, valid=valid, settings=SETTINGS)
    return out


def test_a_run_stores_its_data_settings_and_resumes_where_it_stopped(run: Path, tmp_path: Path) -> None:
    facts = json.loads((run / "regard.json").read_text())
    assert facts["sources"]["data"] == ["facts-1#longest=3,samples=60"]
    assert facts["sources"]["valid"] == ["facts-1#longest=3,samples=12,part=valid"]
    assert RECALL.reader.validation_entries(["facts-1#longest=3,samples=60"]) == ["facts-1#longest=3,part=valid"]
    assert facts["head_options"]["max_train_length"] > 0
    result = evaluate(run, ["facts-1#longest=3,part=test,samples=12"])
    names = {f"{score}_{part}" for score in ("exact_match", "token_accuracy") for part in ("in_range", "longer")}
    assert names <= result.scores.keys()
    assert len(result.rows) == 12 and set(result.rows[0]) == {"question", "prediction", "reference"}
    again = tmp_path / "again"
    shutil.copytree(run, again)
    model = regard.train("algorithmic", out=again, resume=True)
    assert model.task.name == "algorithmic"


def test_ponder_steps_are_drawn(run: Path, tmp_path: Path) -> None:
    model = regard.load(run)
    told = model.explain("ada went to the garden . where is ada ?")
    source, answer = told.act_steps
    assert source.pieces == ("ada", "went", "to", "the", "garden", ".", "where", "is", "ada", "?", "</s>")
    assert list(source.steps) == model.predict("ada went to the garden . where is ada ?").extra["act_steps"]
    assert source.max_steps == 4 and answer.pieces[-1] == "</s>"
    maps = {item.name: item for item in told.maps}
    assert maps["encoder"].layers == max(source.steps) and maps["cross"].layers == max(answer.steps)
    assert "question" in maps["cross"].title
    page, facts = (told.save(tmp_path / f"map.{ending}").read_text() for ending in ("html", "json"))
    assert '"thoughts":[{' in page and json.loads(facts)["act_steps"][0]["steps"] == list(source.steps)


def test_data_is_checked_by_name_and_in_files(tmp_path: Path) -> None:
    report = check("algorithmic", ["copy#longest=5,samples=50"])
    assert (report.counts["questions"], report.counts["validation_longer_questions"]) == (50, 500)
    assert not report.findings
    leaking = check("algorithmic", ["copy#longest=5,samples=50"], valid=["copy#longest=5,samples=40"])
    assert [finding.id for finding in leaking.errors] == ["leak"]
    long = check("algorithmic", ["copy#longest=5,samples=50"], settings=["data.max_length=4"])
    assert [finding.id for finding in long.findings] == ["long"]
    file = tmp_path / "same.tsv"
    file.write_text("".join(f"{n} a\t{n} a\n" for n in range(20)))
    assert {finding.id for finding in check("algorithmic", [str(file)]).findings} == {"few"}
    first = next(RECALL.reader.samples([str(file)]))
    assert first == Question("0 a", "0 a", str(file), 1) and first.is_longer is None
