"""Commands with valid and invalid arguments, in a pipe, and in the wrong folder."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import typer.main

import regard
from conftest import TINY, TWELVE, Cli, Done, Pairs, Trained, facts, write_pairs
from regard.cli import app, expand_options

ROOT = Path(__file__).parents[2]
COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]


def promised() -> Iterator[list[str]]:
    """Commands in the code blocks of README.md, including commands after a pipe."""
    fenced = re.findall(r"^```[^\n]*\n(.*?)^```", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE | re.DOTALL)
    for line in "\n".join(fenced).replace("\\\n", " ").splitlines():
        if not re.match(r"\s*(\$ )?(regard|make) ", line):
            continue
        words = shlex.split(line.strip().removeprefix("$ "), comments=True)
        while "|" in words:
            yield words[: words.index("|")]
            words = words[words.index("|") + 1 :]
        yield words


def test_every_command_of_the_readme_exists_with_its_options(cli: Cli) -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    seen = 0
    for program, *words in promised():
        seen += program in ("regard", "make")
        if program == "make":
            assert [word for word in words if "=" not in word and word not in targets] == []
        if program == "regard":
            name = words[0].strip("[]")
            assert name in COMMANDS or name in ("--help", "--version"), name
            known = {opt for p in COMMANDS[name].params for opt in p.opts} if name in COMMANDS else {name}
            given = {word.strip("[]").partition("=")[0] for word in words if word.lstrip("[").startswith("--")}
            assert given - known <= {"--help", "--"}, (name, given - known)
    assert seen >= 5 and cli("--version") == (0, f"regard {regard.__version__}\n", "")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("--data a b --out c", "--data a --data b --out c"),
        ("--data a --valid b c --data d", "--data a --valid b --valid c --data d"),
        ("--set a.b=1 c.d=2 -- hello world", "--set a.b=1 --set c.d=2 -- hello world"),
        ("--set a.b=-1 c.d=-2", "--set a.b=-1 --set c.d=-2"),
        ("--columns source=a target=b --json x", "--columns source=a --columns target=b --json x"),
        ("--data=-a.tsv b", "--data=-a.tsv b"),
        ("predict 'my run' --set 'a.b=x y'", "predict 'my run' --set 'a.b=x y'"),
        ("-- --data a b", "-- --data a b"),
        ("--data --valid x", "--data --valid x"),
        ("predict r --set a.b=1 hello", "predict r --set a.b=1 hello"),
        ("", ""),
    ],
)
def test_arguments_after_an_option_of_many_values_belong_to_it(typed: str, meant: str) -> None:
    assert expand_options(shlex.split(typed)) == shlex.split(meant)


def test_names_with_spaces_columns_and_a_settings_file(cli: Cli, pairs: Pairs, monkeypatch: pytest.MonkeyPatch) -> None:
    quoted = [f'"{a}","{b}"\n' for a, b in pairs[:40]]
    for name, some in (("my first.csv", quoted[:20]), ("my second.csv", quoted[20:])):
        Path(name).write_text("en,de\n" + "".join(some), encoding="utf-8")
    Path("my settings.yaml").write_text("train: {steps: 99, log_every: 1}\ndata:\n  valid_fraction: 0.1\n")
    done = cli(
        "train", "translate", "--data", "my first.csv", "my second.csv", "--columns", "source=en", "target=de",
        "--config", "my settings.yaml", "--out", "my runs/one", "--device", "cpu", "--set", *TINY, "train.steps=2",
    )  # fmt: skip
    assert done.code == 0 and done.err == "" and "my runs/one" in done.out
    known = facts(Path("my runs/one"))
    assert known["data_stats"]["train"] == 36 and known["sources"]["columns"] == {"source": "en", "target": "de"}
    assert known["settings"]["train"]["steps"] == 2 and known["settings"]["train"]["log_every"] == 1
    monkeypatch.chdir("my runs")  # a run finds its data from any folder
    done = cli("evaluate", "one")
    assert done.code == 0, done.err


def test_the_demo_runs_to_its_figures_and_replaces_only_its_own(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from regard.demos.grammar import generate_corpus

    monkeypatch.setattr("regard.demos.run.generate_corpus", lambda: generate_corpus(count=300))
    monkeypatch.setattr("regard.demos.run.TranslateDemo.settings", (*TINY, *TWELVE, "train.steps=2"))
    done = cli("demo", "--out", "d")
    assert done.code == 0 and "exact_match" in done.out and "the cat danced  →" in done.out
    assert "regard train" in done.out
    assert {"attention-cat.html", "attention-cat.png", "attention-moved.html"} <= {p.name for p in Path("d").iterdir()}
    assert len(Path("d-data/test.tsv").read_text("utf-8").splitlines()) == 30
    weights = Path("d/model.safetensors").read_bytes()
    shown = cli("demo", "--out", "d")
    assert shown.code == 0 and "--overwrite" in shown.out and "step " not in shown.out
    assert "the cat danced  →" in shown.out
    assert "step " in cli("demo", "--out", "d", "--overwrite").out
    assert Path("d/model.safetensors").read_bytes() == weights  # the same demo gives the same model
    Path("mine").mkdir()
    Path("mine/thesis.txt").write_text("years")
    assert cli("demo", "--out", "mine", "--overwrite").code == 2 and Path("mine/thesis.txt").exists()
    assert "Unknown demo 'paint'. Available: caption, clouds, translate." in cli("demo", "paint").err


def test_arguments_files_and_pipes_are_predicted_in_order_with_empty_lines_kept(
    cli: Cli, trained: Trained, pairs: Pairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts, model = [pairs[0][0], "", pairs[1][0], pairs[3][0], "", pairs[5][0]], regard.load(trained.path)
    answers = [model.predict(text).value if text else "" for text in texts]
    assert len(set(answers)) == 5, "the order is only visible if the predictions differ"
    Path("my lines.txt").write_text("\r\n".join(texts) + "\n", encoding="utf-8")
    wanted = Done(0, "".join(f"{answer}\n" for answer in answers), "")
    assert cli("predict", trained.path, *texts) == wanted
    assert cli("predict", trained.path, "my lines.txt") == wanted
    assert cli("predict", trained.path, stdin="\n".join(texts)) == wanted
    assert cli("predict", trained.path, texts[2], "my lines.txt").out == f"{answers[2]}\n{wanted.out}"
    assert cli("predict", trained.path, stdin="") == (0, "", "")
    text = f"  {texts[0]} \n   \n"  # spaces are stripped as in training
    assert cli("predict", trained.path, stdin=text).out == f"{answers[0]}\n\n"
    done = cli("predict", trained.path, stdin="a horse ran\ncaf\udce9\n")
    assert done.code == 2 and "line 2" in done.err and "UTF-8" in done.err
    done = cli("predict", trained.path, "--json", stdin="\n".join(texts))
    rows = [json.loads(line) for line in done.out.splitlines()]
    assert [row["input"] for row in rows] == texts and [row["value"] for row in rows] == answers
    full = rows[0]
    assert full.keys() == rows[1].keys() and sum(full["logprobs"]) == pytest.approx(full["score"][0], abs=1e-4)
    assert len(full["logprobs"]) == len(full["tokens"]) + (full["finish_reason"] == "eos")
    monkeypatch.setattr("regard.cli.PREDICT_CHUNK", 4)
    assert cli("predict", trained.path, stdin="\n".join(texts * 2)).out.splitlines() == answers * 2


def test_several_predictions_come_best_first_with_their_scores(cli: Cli, trained: Trained, pairs: Pairs) -> None:
    words = (
        "predict", trained.path, pairs[0][0], pairs[1][0], "--set", "decode.num_beams=3",
        "decode.num_return_sequences=2",
    )  # fmt: skip
    printed = cli(*words).out.splitlines()
    assert printed[0] == pairs[0][0] and printed[3] == pairs[1][0]  # each input precedes its predictions
    lines = [line.split("\t") for line in printed if "\t" in line]
    rows = [json.loads(line) for line in cli(*words, "--json").out.splitlines()]
    options = [option for row in rows for option in row["alternatives"]]
    assert [value for _, value in lines] == [option["value"] for option in options] and len(options) == 4
    assert [float(score) for score, _ in lines] == pytest.approx([option["score"] for option in options], abs=1e-4)
    assert all(row["score"] == sorted(row["score"], reverse=True) for row in rows)


def test_a_run_is_scored_on_its_stored_data_and_on_other_files(cli: Cli, trained: Trained, pairs: Pairs) -> None:
    done = cli("evaluate", trained.path, "--json")
    scores = json.loads(done.out)
    assert done.code == 0 and scores["loss"] == pytest.approx(facts(trained.path)["best"]["loss"], abs=1e-4)
    assert {k: v for k, v in scores.items() if k != "loss"} == facts(trained.path)["scores"]
    write_pairs(Path("mine.tsv"), pairs[:3])
    done = cli("evaluate", trained.path, "--data", "mine.tsv", "--predictions", "new/answers.jsonl")
    assert done.code == 0 and re.search(r"^samples +3$", done.out, re.MULTILINE)
    rows = [json.loads(line) for line in Path("new/answers.jsonl").read_text("utf-8").splitlines()]
    model = regard.load(trained.path)
    assert [(row["source"], row["reference"]) for row in rows] == pairs[:3]
    assert [row["prediction"] for row in rows] == [model.predict(source).value for source, _ in pairs[:3]]


def test_info_reports_parameter_counts(cli: Cli, trained: Trained) -> None:
    shown = cli("info", trained.path).out
    count = sum(p.numel() for p in regard.load(trained.path).parameters())
    assert f"{count:,} parameters" in shown and f"{count * 4 / 2**20:,.1f} MiB" in shown and "width 32" in shown
    assert "63,082,496 parameters" in cli("info", "transformer-base").out and "GFLOP" in shown
    layers = re.findall(r"^\w+\.\S+ .* ([\d,]+)$", shown, re.MULTILINE)
    assert sum(int(number.replace(",", "")) for number in layers) == count


@pytest.mark.parametrize(("name", "begins"), [("a b.png", b"\x89PNG"), ("a.svg", b"<?xml"), ("new/a.html", b"<!")])
def test_an_explanation_is_an_image_or_a_page(cli: Cli, trained: Trained, name: str, begins: bytes) -> None:
    done = cli("explain", trained.path, "a horse ran", "ein Pferd lief", "--out", name)
    assert done == (0, f"a horse ran → ein Pferd lief\n{name}\n", "")
    assert Path(name).read_bytes().lower().startswith(begins.lower())


def test_a_file_is_explained_whole_and_so_is_standard_input(cli: Cli, trained: Trained) -> None:
    Path("doc.txt").write_text("a horse\nran\n")
    Path("letter").write_text("a horse ran")
    Path("blank.txt").write_text(" \n")
    whole = cli("explain", trained.path, "a horse\nran", "ein Pferd lief", "--out", "a.json")
    assert whole.code == 0
    wanted = Path("a.json").read_text()
    for words in (("doc.txt", "ein Pferd lief"), ("-", "ein Pferd lief")):
        assert cli("explain", trained.path, *words, "--out", "b.json", stdin="a horse\nran\n").code == 0
        assert Path("b.json").read_text() == wanted
    done = cli("explain", trained.path, "letter", "--out", "b.json")
    assert done.out.startswith("a horse ran → ") and done.err == "Reading file letter\n"
    for words, said in ((("-", "-"), "only once"), (("blank.txt",), "blank.txt: is empty")):
        done = cli("explain", trained.path, *words, "--out", "c.json")
        assert done.code == 2 and said in done.err and not Path("c.json").exists()


def test_an_exported_model_is_smaller_with_the_same_predictions(cli: Cli, trained: Trained, pairs: Pairs) -> None:
    assert cli("export", trained.path, "to/there").code == 0
    wanted = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert {path.name for path in Path("to/there").iterdir()} == wanted
    assert cli("predict", "to/there", pairs[0][0]) == cli("predict", trained.path, pairs[0][0])
    assert cli("export", trained.path, "to").code == 2


TRAIN = "train translate --data good.tsv --out new"
WRONG = {
    "missing file": ("train translate --data goo.tsv --out new", "goo.tsv", "'good.tsv'"),
    "missing validation": (f"{TRAIN} --valid vald.tsv", "vald.tsv", "file not found"),
    "one pair": ("train translate --data one.tsv --out new", "at least 2", "--valid"),
    "folder as data": ("train translate --data norun --out new", "norun", "letter.txt"),
    "folder to start from": (f"{TRAIN} --model norun", "norun", "neither a run"),
    "heads": (f"{TRAIN} --set train.steps=1 model.heads=3", "heads", "128"),
    "score": (f"{TRAIN} --set train.steps=1 data.eval_samples=0", "data.eval_samples", "at least"),
    "seed": (f"{TRAIN} --set train.steps=1 train.seed=-1", "train.seed", "-1"),
    "budget": (f"{TRAIN} --set train.steps=1 train.batch_tokens=4", "train.batch_tokens", "Raise"),
    "device": (f"{TRAIN} --device gpu", "'gpu'", "cuda"),
    "no data": ("train translate --out new", "No training data", "--data"),
    "out is a file": ("train translate --data good.tsv --out good.tsv", "good.tsv", "--out"),
    "out below a file": ("train translate --data good.tsv --out good.tsv/new --set train.steps=1", "good.tsv", "--out"),
    "out of another": ("train translate --data good.tsv --out norun", "norun", "not empty"),
    "run of no run": ("predict norun hello", "norun", "neither a run"),
    "evaluate no run": ("evaluate norun", "norun", "neither a run"),
    "evaluate missing": ("evaluate RUN --data goo.tsv", "goo.tsv", "'good.tsv'"),
    "data unnamed": ("evaluate RUN --data", "--data", "requires an argument"),
    "best": ("predict RUN hello --set decode.num_return_sequences=3", "decode.num_return_sequences=3", "decode.num_beams"),
    "setting of another command": ("predict RUN hello --set train.steps=5", "train", "decode"),
    "run device": ("predict RUN hello --device gpu", "'gpu'", "cuda"),
    **({} if torch.cuda.is_available() else {"GPU": ("predict RUN hello --device cuda", "No cuda device", "cpu")}),
    "suffix": ("explain RUN hello --out map.pdf", "map.pdf", ".png"),
    "no file to explain": ("explain RUN document.txt --out map.png", "document.txt", "file not found"),
    "nothing to explain": ("explain RUN '  ' --out map.png", "Nothing to explain", "empty"),
    "layer": ("explain RUN hello --out map.png --layer 7", "got 7", "between 1 and 1"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_invalid_input_is_reported_in_one_paragraph(what: str, cli: Cli, trained: Trained, pairs: Pairs) -> None:
    line, *wanted = WRONG[what]
    write_pairs(Path("good.tsv"), pairs[:20])
    Path("one.tsv").write_text("a\tb\n")
    Path("norun").mkdir()
    Path("norun/letter.txt").write_text("mine")
    before = sorted(Path().rglob("*"))
    done = cli(*[str(trained.path) if word == "RUN" else word for word in shlex.split(line)])
    assert done.code == 2 and "Traceback" not in done.err
    assert all(part in done.err for part in wanted), done.err
    assert done.err.startswith(("regard: ", "Error: ")) and "\n" not in done.err.strip()
    assert sorted(Path().rglob("*")) == before


@pytest.mark.every(2)
@pytest.mark.parametrize("words", [("--debug", "predict", "norun", "x"), ("predict", "norun", "x", "--debug")])
def test_debug_shows_the_traceback_at_every_position(words: tuple[str, ...], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "regard", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode != 0 and "Traceback" in done.stderr and "UnknownFolder" in done.stderr
