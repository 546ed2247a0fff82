"""Training runs: files of a run folder, stopping, and exact resume."""

from __future__ import annotations

import itertools
import math
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import conftest
import regard
from conftest import TWELVE, Pairs, Trained, checkpoints, facts, rows, same_tensors, stopped_in, train_tiny
from data_files import refused
from regard.data.text.samples import Pair
from regard.decode.settings import DecodeSettings
from regard.errors import RegardError, RunError
from regard.runs.progress import program_command
from regard.systems.transformer import PRESETS, Config
from regard.tasks import find_task
from regard.tasks.base import EncodingContext
from regard.tasks.translate import Translate
from regard.training.optimizer import lr_at
from regard.training.settings import TrainSettings


def test_a_finished_run_holds_all_that_it_takes_to_use_and_to_judge_it(trained: Trained) -> None:
    assert checkpoints(trained.path) == ["step-00000060", "step-00000120"]
    assert (trained.path / "curves.png").read_bytes().startswith(b"\x89PNG")
    samples = (trained.path / "samples.txt").read_text("utf-8")
    assert "step 60\n" in samples and "step 120\n" in samples and samples.count("  → ") == 10
    assert [row["step"] for row in rows(trained.path, "train")] == [1, 30, 60, 90, 120]
    assert [row["step"] for row in rows(trained.path, "valid")] == [60, 120]
    assert all(row["loss"] < 7 and row["grad_norm"] > 0 for row in rows(trained.path, "train"))
    modes = {path.name: path.stat().st_mode & 0o777 for path in trained.path.iterdir() if path.is_file()}
    assert modes["model.safetensors"] == modes["README.md"], {name: oct(mode) for name, mode in modes.items()}
    assert "no --valid given; 6 pairs held out for validation" in trained.said
    assert "54 training pairs, 6 validation pairs" in trained.said
    found = facts(trained.path)["data_stats"]
    assert (found["train"], found["valid"]) == (54, 6)


def test_the_card_contains_scores_data_settings_padding_and_commands(trained: Trained) -> None:
    card, known = (trained.path / "README.md").read_text("utf-8"), facts(trained.path)
    lines = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in card.splitlines()]
    for name in ("bleu", "chrf", "exact_match", "samples"):
        assert [name, f"{known['scores'][name]:.4g}"] in lines
    assert known["scores"]["signature"] in card and known["data_stats"]["fingerprint"] in card
    assert os.path.relpath(trained.data, trained.path) in card and str(trained.path.parent) not in card
    assert "54 pairs" in card and "6 pairs" in card
    assert ["train.lr", "0.01"] in lines and ["model.width", "32"] in lines and "curves.png" in card
    assert f"step {known['best']['step']}" in card

    (plan,) = rows(trained.path, "plan")
    padding = re.search(r"([\d.]+) % padding", trained.said)
    assert padding is not None and plan["step"] == 0 and f"{100 * plan['padding']:.1f}" == padding[1]
    assert 0 < plan["padding"] < 1 and known["padding"] == plan["padding"] and f"{padding[1]} % padding" in card


def test_the_best_model_is_kept(trained: Trained, few: Path, tmp_path: Path) -> None:
    assert conftest.keeps_best(trained.path, "model:")
    valid = conftest.write_pairs(tmp_path / "v.tsv", [("a horse ran", "☃ ☃ ☃ ☃")])
    train_tiny(few, tmp_path / "wild", *TWELVE, "train.lr=1", "train.keep_checkpoints=3", valid=valid)
    assert facts(tmp_path / "wild")["best"]["step"] < 12 and conftest.keeps_best(tmp_path / "wild", "model:")


def test_pairs_that_are_too_long_are_counted_and_the_first_is_named_at_its_current_path(
    pairs: Pairs, trained: Trained, tmp_path: Path
) -> None:
    long = " ".join(["horse"] * 40)
    many = [*pairs[:9], (long, "x"), ("x", long), *pairs[9:30]]
    valid = conftest.write_pairs(tmp_path / "v.tsv", pairs[28:30])
    for name, blank in (("a.tsv", 0), ("b.tsv", 3)):  # the second run reads the tokens of the first
        data = conftest.write_pairs(tmp_path / name, [("", "z")] * blank + many)
        out = tmp_path / f"run {name}"
        said = train_tiny(data, out, *TWELVE, "train.steps=1", "data.max_length=39", valid=valid)
        assert "2 training pairs" in said and f"first: {data}, line {10 + blank}" in said
        assert "2 training pairs are also in the validation data" in said and facts(out)["data_stats"]["train"] == 30
        assert ("3 rows with an empty field skipped" in said) == ("tokens from the cache" in said) == bool(blank)
    text, pair = (regard.load(trained.path).tokenizer, Pair("the women wanted to say that we swam", "wir", "", 1))
    most, encode = len(text.encode([pair.source])[0]), find_task("translate").objective.encode
    assert [bool(encode([pair], Config(), EncodingContext(text, n)).samples) for n in (most - 1, most)] == [False, True]


BOTH = ("train.grad_accum=2", "train.ema_decay=0.5", "model.dropout=0.2", "train.lr_schedule=cosine")
FROZEN = ("train.freeze=encoder.*", "train.lr_overrides=decoder.*=1e-3,tokens.*=2e-3", "train.ema_decay=0.9")
VARIANTS: dict[str, tuple[str, ...]] = {
    "plain": (), "averaged": ("train.ema_decay=0.9",), "accumulated": BOTH, "frozen": FROZEN,
    "packed": ("train.packing=on", "train.grad_accum=2"), "deterministic": ("train.deterministic=true",),
    "patience": ("train.patience=2", "train.steps=40", "train.eval_every=2", "train.lr=1e-30", "model.dropout=0",
                 "train.keep_checkpoints=9"),
}  # fmt: skip


@pytest.mark.every(3)
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(variant: str, few: Path, tmp_path: Path) -> None:
    more = VARIANTS[variant]
    train_tiny(few, tmp_path / "whole", *TWELVE, *more)
    with stopped_in(5):
        train_tiny(few, tmp_path / "run", *TWELVE, *more)
    assert checkpoints(tmp_path / "run")[-1] == "step-00000005"
    said = train_tiny((), tmp_path / "run", *TWELVE, *more, resume=True)
    assert "Resuming after step 5" in said
    last = f"checkpoints/step-000000{'06' if variant == 'patience' else 12}/state.safetensors"
    same_tensors(tmp_path / "run" / last, tmp_path / "whole" / last)
    same_tensors(tmp_path / "run/model.safetensors", tmp_path / "whole/model.safetensors")
    assert rows(tmp_path / "run") == rows(tmp_path / "whole")
    assert facts(tmp_path / "run")["scores"] == facts(tmp_path / "whole")["scores"]
    assert conftest.keeps_best(tmp_path / "run", "ema:body." if "ema" in "".join(more) else "model:")


def test_events_and_samples_contain_each_step_once_after_resuming(whole: Path, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = shutil.copytree(whole, tmp_path / "run")
    (run / "checkpoints/step-00000012/state.json").write_text("{")
    said = train_tiny((), run, *TWELVE, resume=True)
    assert "step-00000012 is damaged" in said and "Resuming after step 8" in said
    events = EventAccumulator(str(run / "events")).Reload()
    assert [event.step for event in events.Scalars("train/loss")] == [row["step"] for row in rows(whole, "train")]
    assert (run / "samples.txt").read_text("utf-8") == (whole / "samples.txt").read_text("utf-8")


def test_resuming_a_finished_run_does_nothing_and_without_a_run_it_starts(
    whole: Path, few: Path, tmp_path: Path
) -> None:
    run = shutil.copytree(whole, tmp_path / "run")
    output = train_tiny((), run, *TWELVE, resume=True)
    assert "The run is finished after step 12" in output and "scoring" not in output
    assert (rows(run), facts(run)) == (rows(whole), facts(whole))
    said = train_tiny(few, tmp_path / "new", *TWELVE, "train.steps=1", resume=True)
    assert "no run to resume; starting at step 0" in said and checkpoints(tmp_path / "new") == ["step-00000001"]


def test_a_run_is_never_overwritten(few: Path, trained: Trained, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in trained.path.rglob("*") if path.is_file()}
    refused(r"already.*--resume", train_tiny, few, trained.path, "train.steps=1", error=RunError)
    assert {path: path.read_bytes() for path in trained.path.rglob("*") if path.is_file()} == before
    (tmp_path / "mine").write_text("thesis")
    refused("empty", train_tiny, few, tmp_path, "train.steps=1", error=RunError)


CHANGES: dict[str, tuple[tuple[str, ...], dict[str, Any], str]] = {
    "data": ((), {"data": "/other.tsv"}, r"data:.*few\.tsv.*other\.tsv"),
    "setting": (("train.lr=0.5",), {}, r"train\.lr: 0\.003 -> 0\.5"),
    "model setting": (("model.width=64",), {}, r"model\.width: 32 -> 64"),
    "more steps": (("train.steps=13",), {}, r"train\.steps: 12 -> 13"),
    "model": ((), {"model": "transformer-small"}, "model: transformer-tiny -> transformer-small"),
    "columns": ((), {"columns": {"source": "1", "target": "0"}}, "columns"),
    "validation": ((), {"valid": "other.tsv"}, r"valid.*other\.tsv"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_settings_that_differ_from_the_run_are_refused_by_name(change: str, whole: Path) -> None:
    more, arguments, message = CHANGES[change]
    with pytest.raises(RunError, match=message):
        train_tiny(arguments.pop("data", ()), whole, *TWELVE, *more, resume=True, **arguments)


@pytest.mark.parametrize(("called", "printed"), [("/x/regard/__main__.py", "python -m regard"), ("pytest", "regard")])
def test_commands_are_printed_as_the_program_was_started(
    called: str, printed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", [called])
    assert program_command() == printed


def test_a_nan_loss_stops_the_run_which_resumes_from_before(
    few: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, number, real = tmp_path / "run", itertools.count(), Translate.loss
    settings = (*TWELVE, "train.grad_accum=2", "train.log_every=3")

    def loss(self: Any, model: Any, batch: Any, *terms: Any) -> Any:
        total, count = real(self, model, batch, *terms)
        return (total * math.nan if model.training and next(number) == 13 else total), count

    monkeypatch.setattr(Translate, "loss", loss)
    refused(r"step 7, micro-batch 2 of 2.*step(-0000000| )4", train_tiny, few, out, *settings, error=RunError)
    assert checkpoints(out) == ["step-00000004"] and "NaN" not in (out / "log.jsonl").read_text()
    assert [row["step"] for row in rows(out)] == [0, 1, 3, 4, 6]
    output = train_tiny((), out, *settings, resume=True)
    assert "Resuming after step 4" in output and rows(out)[-1]["step"] == 12


SCHEDULES = {
    "linear": {1: 0.2, 10: 2.0, 35: 1.5, 60: 1.0, 110: 0.0},
    "cosine": {1: 0.2, 10: 2.0, 35: 1 + 0.5**0.5, 60: 1.0, 85: 1 - 0.5**0.5, 110: 0.0},
    "constant": {1: 0.2, 5: 1.0, 10: 2.0, 11: 2.0, 110: 2.0},
    "inverse_sqrt": {1: 0.2, 10: 2.0, 40: 1.0, 90: 2 / 3},
}


def test_the_learning_rate_is_that_of_the_schedule_computed_by_hand_and_of_equation_3_of_the_paper() -> None:
    for schedule, rates in SCHEDULES.items():
        for warmup in (10, 10 / 110):  # below 1: a fraction of all steps
            settings = TrainSettings(lr=2.0, warmup_steps=warmup, steps=110, lr_schedule=schedule)
            assert {step: lr_at(step, settings) for step in rates} == pytest.approx(rates, abs=1e-12), schedule
        assert lr_at(1, TrainSettings(steps=100, lr=1.0, lr_schedule=schedule, warmup_steps=0.002)) == 1.0
    for name, d_model, warmup_steps in (("base", 512, 4000), ("big", 1024, 4000)):
        recipe = PRESETS[f"transformer-{name}"].recipe["train"]
        settings = TrainSettings(**{key: recipe[key] for key in ("lr", "warmup_steps", "lr_schedule")})
        for step_num in (1, 7, 3999, 4000, 4001, 100_000):
            lrate = d_model**-0.5 * min(step_num**-0.5, step_num * warmup_steps**-1.5)
            assert lr_at(step_num, settings) == pytest.approx(lrate, rel=1e-12)


def test_fine_tuning_starts_from_weights_tokenizer_and_decoding(trained: Trained, few: Path, tmp_path: Path) -> None:
    settings, model = (*TWELVE, "train.steps=1", "train.lr=1e-12"), regard.load(trained.path)
    model.spec = replace(model.spec, decode=DecodeSettings(num_beams=3, max_extra_tokens=7))
    folder = str(model.save(tmp_path / "three"))
    train_tiny(few, tmp_path / "fresh", *settings)
    said = train_tiny(few, tmp_path / "fine", *settings, model=folder, tiny=False)
    assert "Training a tokenizer" not in said and facts(tmp_path / "fine")["decode"]["num_beams"] == 3
    assert (tmp_path / "fine/tokenizer.json").read_bytes() == (trained.path / "tokenizer.json").read_bytes()
    ours, theirs = (load_file(path / "model.safetensors") for path in (tmp_path / "fine", trained.path))
    assert all(torch.allclose(ours[name], theirs[name], atol=1e-9) for name in theirs)
    assert rows(tmp_path / "fine", "train")[0]["loss"] < rows(tmp_path / "fresh", "train")[0]["loss"] - 1
    with pytest.raises(RegardError, match="width"):
        train_tiny(few, tmp_path / "wide", "train.steps=1", "model.width=64", model=folder, tiny=False)
    assert not (tmp_path / "wide").exists()
