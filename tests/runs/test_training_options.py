"""Training options: averaged checkpoints, early stopping, frozen parameters, learning rates by name, packing."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import regard
from conftest import TINY, TWELVE, Trained, checkpoints, facts, rows, same_tensors, stopped_in, train_tiny
from regard.errors import SettingError
from regard.runs.settings import collect_overrides, resolve
from regard.runs.trainer import Trainer
from regard.tasks.base import LossSum
from regard.tasks.translate import Translate
from regard.training import loop
from regard.training.optimizer import make_optimizer
from regard.training.settings import TrainSettings
from tiny import tiny


def ranked(monkeypatch: pytest.MonkeyPatch, *losses: float) -> None:
    """Make successive validations return these losses and equal scores, so that the loss decides."""
    found, real = iter(losses), Translate.evaluate

    def score(*args: Any) -> Any:
        scores, answers = real(*args)
        return {**scores, "bleu": 1.0}, answers

    monkeypatch.setattr("regard.runs.trainer.validation_loss", lambda *_: LossSum(next(found, 0.0), 1.0))
    monkeypatch.setattr(Translate, "evaluate", score)


LAST = ("train.average_checkpoints=3", "train.keep_checkpoints=1", "train.steps=14")
"""Averages of the checkpoints after steps 4, 8, 12 and 14."""


def mean_of(run: Path, group: str, *steps: int) -> dict[str, torch.Tensor]:
    states = [load_file(run / f"checkpoints/step-{step:08d}/state.safetensors") for step in steps]
    names = [name for name in states[0] if name.startswith(group)]
    return {name.removeprefix(group): torch.stack([s[name].double() for s in states]).mean(0) for name in names}


@pytest.mark.every(2)
@pytest.mark.parametrize("more", [(), ("train.ema_decay=0.9",)], ids=["weights", "their averages"])
def test_the_average_of_the_last_checkpoints_is_saved_only_if_it_is_better(
    more: tuple[str, ...], few: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranked(monkeypatch, 4, 3, 2, 1, 0.5)
    run = tmp_path / "run"
    said = train_tiny(few, run, *TWELVE, *LAST, *more)
    assert "Average of the last 3 checkpoints" in said and "(kept)" in said
    assert checkpoints(run) == ["step-00000008", "step-00000012", "step-00000014"]
    kept, mean = regard.load(run).body.state_dict(), mean_of(run, "ema:body." if more else "model:", 8, 12, 14)
    assert kept.keys() == mean.keys()
    assert all(torch.allclose(kept[name].double(), mean[name], rtol=1e-6, atol=1e-9) for name in mean)
    assert facts(run)["best"]["averaged_checkpoints"] == 3
    assert [row["step"] for row in rows(run, "valid")] == [4, 8, 12, 14]
    ranked(monkeypatch, 4, 3, 1, 2, 1.5)
    run = tmp_path / "other"
    assert "not kept" in train_tiny(few, run, *TWELVE, *LAST)
    best = load_file(run / "checkpoints/step-00000012/state.safetensors")
    assert all(torch.equal(best[f"model:{name}"], held) for name, held in regard.load(run).body.state_dict().items())
    assert facts(run)["best"]["step"] == 12 and "averaged_checkpoints" not in facts(run)["best"]


@pytest.mark.slow
def test_checkpoints_of_a_signal_are_not_averaged(few: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranked(monkeypatch, 4, 3, 2, 1, 0.5)
    train_tiny(few, tmp_path / "whole", *TWELVE, *LAST)
    ranked(monkeypatch, 4, 3, 2, 1, 0.5)
    with stopped_in(10):
        train_tiny(few, tmp_path / "run", *TWELVE, *LAST)
    assert checkpoints(tmp_path / "run") == ["step-00000004", "step-00000008", "step-00000010"]
    train_tiny((), tmp_path / "run", *TWELVE, *LAST, resume=True)
    same_tensors(tmp_path / "run/model.safetensors", tmp_path / "whole/model.safetensors")
    assert checkpoints(tmp_path / "run") == checkpoints(tmp_path / "whole")
    assert facts(tmp_path / "run") == facts(tmp_path / "whole")


PATIENT = ("train.patience=2", "train.steps=40", "train.eval_every=2", "train.lr=1e-30", "model.dropout=0")
"""Constant weights have constant scores: the second and the third validation bring no improvement."""


@pytest.fixture(scope="module")
def tired(few: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    out = tmp_path_factory.mktemp("tired") / "run"
    return out, train_tiny(few, out, *TWELVE, *PATIENT)


def test_patience_ends_the_run_and_a_resumed_one_has_nothing_left_to_do(tired: tuple[Path, str]) -> None:
    run, said = tired
    assert "No improvement in 2 validations (train.patience): stopped after step 6" in said
    assert [row["step"] for row in rows(run, "valid")] == [2, 4, 6] and facts(run)["best"]["step"] == 2
    before = rows(run), facts(run)
    assert "The run is finished after step 6" in train_tiny((), run, tiny=False, resume=True)
    assert (rows(run), facts(run)) == before and checkpoints(run)[-1] == "step-00000006"


def weights(run: Path) -> dict[str, torch.Tensor]:
    return regard.load(run).body.state_dict()


def moved(run: Path, start: Path) -> set[str]:
    before, now = weights(start), weights(run)
    return {name for name in now if not torch.equal(now[name], before[name])}


@pytest.mark.parametrize("setting", ["train.freeze=encoder.*,tokens.*", "train.lr_overrides=encoder.*=0,tokens.*=0"])
def test_frozen_parameters_stay_bit_for_bit(setting: str, trained: Trained, few: Path, tmp_path: Path) -> None:
    more = ("train.ema_decay=0.5", "train.weight_decay=0.1", "train.warmup_steps=0", "train.lr=1e-2")
    said = train_tiny(few, tmp_path / "run", *TWELVE, *more, setting, model=str(trained.path), tiny=False)
    changed = moved(tmp_path / "run", trained.path)
    assert changed == {name for name in weights(trained.path) if name.startswith("decoder.")}
    state = load_file(tmp_path / "run/checkpoints/step-00000012/state.safetensors")
    learnt = {name.split(":body.")[1].split("/")[0] for name in state if name.startswith("optimizer:")}
    frozen = "freeze" in setting
    assert (learnt == changed) == frozen and (" frozen), " in said) == frozen


def lr_by_name(model: Any, overrides: dict[str, float]) -> dict[str, float]:
    """Learning rate of each parameter of the body for train.lr=0.2."""
    optimizer = make_optimizer(model, TrainSettings(lr=0.2, lr_overrides=overrides))
    found = {id(p): 0.2 * group["share"] for group in optimizer.param_groups for p in group["params"]}
    return {name: found[id(parameter)] for name, parameter in model.body.named_parameters()}


def test_a_parameter_has_the_learning_rate_of_its_first_matching_pattern() -> None:
    rates = {"encoder.blocks.0.*": 0.1, "encoder.*": 0.4, "*.bias": 0.8}
    found = lr_by_name(tiny("transformer"), rates)
    for name, rate in found.items():
        assert rate == pytest.approx(next((r for p, r in rates.items() if Path(name).match(p)), 0.2)), name
    assert len(set(found.values())) == 4
    for rates, gate in (({}, 0.01), ({"*.gate.*": 0.1}, 0.1)):  # halting gates have a lower learning rate
        for name, rate in lr_by_name(tiny("universal", "halting"), rates).items():
            assert rate == pytest.approx(gate if ".gate." in name else 0.2), name


NEAR, NEAREST = "encoder.blocks.0.attend.norm.wieght", r"encoder\.blocks\.0\.attend\.norm\.weight"
UNMATCHED = {
    "train.freeze=*": "train", "train.freeze=nothing.*": "train", "train.lr_overrides=nothing.*=1": "train",
    f"train.freeze={NEAR}": rf"train\.freeze.*{NEAREST}", f"train.lr_overrides={NEAR}=0.1": rf"train\.lr_overrides.*{NEAREST}",
}  # fmt: skip


@pytest.mark.parametrize("setting", UNMATCHED)
def test_patterns_without_parameters_are_refused_at_the_start(setting: str, few: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=UNMATCHED[setting]):
        train_tiny(few, tmp_path / "run", *TWELVE, setting)
    assert not (tmp_path / "run").exists()


def test_learning_rates_and_frozen_parts_may_be_set_in_a_file_or_in_python(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(
        "train:\n  lr_overrides:\n    encoder.*: 1e-5\n    tokens.*: 0.5\n  freeze: [decoder.*, '*.bias']\n"
    )
    said = ["train.lr_overrides=encoder.*=1e-5,tokens.*=0.5", "train.freeze=decoder.*,*.bias"]
    mapping = {"train.lr_overrides": {"encoder.*": 1e-5, "tokens.*": 0.5}, "train.freeze": ("decoder.*", "*.bias")}
    given = (collect_overrides((), file), collect_overrides(said), collect_overrides(mapping))
    settings = [resolve({}, overrides) for overrides in given]
    assert settings[0] == settings[1] == settings[2]
    assert list(settings[0].train.lr_overrides.items()) == [("encoder.*", 1e-5), ("tokens.*", 0.5)]
    assert settings[0].train.freeze == ("decoder.*", "*.bias")


def test_a_deterministic_run_is_the_same_on_the_cpu_and_leaves_the_process_as_it_was(
    few: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    enabled, real, mode = [], loop.lr_at, torch.are_deterministic_algorithms_enabled
    monkeypatch.setattr(loop, "lr_at", lambda *args: enabled.append(mode()) or real(*args))
    train_tiny(few, tmp_path / "run", *TWELVE, "train.deterministic=true")
    assert enabled and all(enabled) and not torch.are_deterministic_algorithms_enabled()
    assert rows(tmp_path / "run") == rows(whole)
    same_tensors(tmp_path / "run/model.safetensors", whole / "model.safetensors")


def test_a_save_survives_a_second_sigterm(few: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, restarted = Trainer._save, []

    def save(self: Any, step: int) -> None:
        before = self.save_time
        if self.signal:
            os.kill(os.getpid(), signal.SIGTERM)  # schedulers signal all processes, and then once more
        real(self, step)
        restarted.append(self.save_time > before)

    monkeypatch.setattr(Trainer, "_save", save)
    with stopped_in(6):
        train_tiny(few, tmp_path / "run", *TWELVE)
    assert "step-00000006" in checkpoints(tmp_path / "run") and restarted == [True, True]


@pytest.mark.slow
def test_a_checkpoint_is_saved_when_the_last_one_is_old(few: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with stopped_in(4):
        train_tiny(few, out, *TWELVE, "train.eval_every=100", "train.save_minutes=0", "train.keep_checkpoints=9")
    assert checkpoints(out)[-1] == "step-00000004"
    shutil.rmtree(out / "checkpoints/step-00000004")  # as if the run had been killed
    assert checkpoints(out), "none was saved before"
    train_tiny((), out, tiny=False, resume=True)
    train_tiny(few, tmp_path / "whole", *TWELVE, "train.eval_every=100")
    assert rows(out, "train") == rows(tmp_path / "whole", "train")


@pytest.mark.slow
def test_a_closed_pipe_loses_the_words_and_not_the_run(few: Path, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "regard", "train", "translate", "--data", str(few), "--out", str(tmp_path / "run")]
    process = subprocess.Popen(
        [*words, "--set", *TINY, *TWELVE], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(120) == 0, process.stderr.read()
    assert process.stderr.read() == "" and rows(tmp_path / "run", "train")[-1]["step"] == 12
    process.stderr.close()
