"""A command imports only what it uses: the modules that each command may load, and the CPU time until it answers."""

from __future__ import annotations

import fnmatch
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conftest import TINY, TWELVE
from regard.cli import app
from regard.data.check.engine import Survey
from regard.data.reader import Reader
from regard.index import INDEX_PATH, list_rows, load_index
from regard.systems import SYSTEMS
from regard.tasks import TASKS, find_task
from regard.tasks.base import Objective
from write_index import build_index

PROGRAM = """
import contextlib, io, json, sys, time

commands = json.loads(sys.argv[1])
report = []
for words in commands:
    begun, out, err, code = time.process_time(), io.StringIO(), io.StringIO(), 0
    if words == ["torch"]:
        import torch
    else:
        from regard.cli import main
        sys.argv = ["regard", *words]
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                main()
        except SystemExit as left:
            code = left.code or 0
    seconds = time.process_time() - begun
    row = {"code": code, "out": out.getvalue(), "err": err.getvalue(), "seconds": seconds}
    report.append({**row, "modules": list(sys.modules)})
print(json.dumps(report))
"""


def start(*commands: list[str]) -> list[dict[str, Any]]:
    """Run commands sequentially in one new process; modules are all that are loaded after each command."""
    command = [sys.executable, "-c", PROGRAM, json.dumps(commands)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def foreign(report: dict[str, Any], allowed: tuple[str, ...]) -> list[str]:
    """Modules of the package that are loaded and match no pattern."""
    own = [name for name in report["modules"] if name.partition(".")[0] == "regard"]
    literal = [name.partition(".*")[0].split(".") for name in allowed]
    packages = tuple(".".join(parts[:end]) for parts in literal for end in range(1, len(parts) + 1))
    return [name for name in own if not any(fnmatch.fnmatchcase(name, pattern) for pattern in (*allowed, *packages))]


def loaded(report: dict[str, Any], forbidden: tuple[str, ...]) -> list[str]:
    return [name for name in forbidden if name in report["modules"]]


def within(package: str, names: str) -> list[str]:
    """Full names of modules of a package."""
    return [f"{package}.{name}" for name in names.split()]


LISTS = ("regard", "regard.cli", "regard.errors", "regard.index")
CHECKED = (
    *LISTS, "regard.config", "regard.files", "regard.runs",
    "regard.runs.settings", "regard.demos", "regard.*.settings", "regard.data", "regard.decode", "regard.training",
)  # fmt: skip
"""Modules that check the names on a command line."""

NEVER = (
    "torch", "numpy", "rich", "yaml", "tokenizers", "safetensors", "PIL", "matplotlib", "jaxtyping", "huggingface_hub",
)  # fmt: skip

ANSWERS: dict[str, tuple[tuple[str, ...], str]] = {
    "--help": (LISTS, "Usage:"),
    "train --help": (LISTS, "--model"),
    "list tasks": (LISTS, "translate"),
    "list models": (LISTS, "transformer"),
    "list presets": (LISTS, "gpt2-small"),
    "list settings": (LISTS, "train.steps"),
    "lst": (LISTS, "No such command 'lst'. Did you mean 'list'?"),
    "list taks": (LISTS, "Unknown list 'taks'. Did you mean 'tasks'?"),
    "info gpt2-smal": (CHECKED, "Unknown preset 'gpt2-smal'. Did you mean 'gpt2-small'"),
    "info runs/none": (CHECKED, "Unknown folder 'runs/none'."),
    "demo translat": (CHECKED, "Unknown demo 'translat'. Did you mean 'translate'?"),
    "train translat --out x": (CHECKED, "Unknown task 'translat'. Did you mean 'translate'?"),
    "train translate --out x --model gpt3-smal": (CHECKED, "Unknown preset 'gpt3-smal'. Did you mean 'gpt3-small'"),
    "train translate --out x --set train.packin=1": (CHECKED, "Unknown setting 'train.packin'. Did you mean 'train.packing'"),
    "train translate --out x --set train.steps=x": (CHECKED, "Setting 'train.steps' must be an integer"),
    "train translate --out x --set model.widht=8": (CHECKED, "Unknown setting 'model.widht'. Did you mean 'model.width'?"),
    "train language --out x --model gpt2-small --set model.hed=8": (CHECKED, "Unknown task 'language'."),
    "train lm --out x --model gpt2-small --set model.hed=8": (CHECKED, "Unknown setting 'model.hed'."),
    "train translate --out x --resume --set decode.bem=8": (CHECKED, "Unknown setting 'decode.bem'."),
    "check translat --data x": (CHECKED, "Unknown task 'translat'. Did you mean 'translate'?"),
    "check translate --data x --set data.shar=1": (CHECKED, "Unknown setting 'data.shar'."),
    "predict none a": (CHECKED, "Unknown folder 'none'."),
    "predict gpt2-small a": (CHECKED, "gpt2-small is a preset"),
    "predict none a --set decode.bem=2": (CHECKED, "Unknown setting 'decode.bem'. Did you mean 'decode.num_beams'"),
    "evaluate none": (CHECKED, "Unknown folder 'none'."),
    "explain none a": (CHECKED, "Unknown folder 'none'."),
    "probe none": (CHECKED, "Unknown folder 'none'."),
    "export none there --to hugingface": (CHECKED, "Unknown layout 'hugingface'. Did you mean 'huggingface'?"),
    "export none there": (CHECKED, "Unknown folder 'none'."),
}  # fmt: skip
"""Modules that each command may load, and a part of its output."""


def test_lists_help_and_typos_need_no_torch(folder: Path) -> None:
    for allowed in (LISTS, CHECKED):
        commands = [words for words, (known, _) in ANSWERS.items() if known == allowed]
        for words, report in zip(commands, start(*map(str.split, commands)), strict=True):
            assert ANSWERS[words][1] in report["out"] + report["err"], words
            fails = "--help" not in words and (not words.startswith("list ") or "taks" in words)
            assert report["code"] == (2 if fails else 0)
            assert not foreign(report, allowed) and not loaded(report, NEVER), words
    named = {words.split()[0] for words in ANSWERS}
    assert {command.name or command.callback.__name__ for command in app.registered_commands} <= named


QUICK = ("list tasks", "list settings", "info gpt2-smal", "train translate --out x --set train.packin=1")


@pytest.mark.parametrize("words", QUICK)
def test_a_list_or_a_typo_takes_half_a_second(words: str) -> None:
    """CPU time, the best of a few runs, as other processes share the caches of the machine."""
    assert any(start(words.split())[0]["seconds"] < 0.5 for _ in range(3))


SLOW = (
    "torch._dynamo", "torch._inductor", "triton", "sympy", "torch.distributed.fsdp", "torch.utils.tensorboard", "tensorboard",
    "matplotlib", "PIL", "rich", "yaml", "pyarrow", "transformers", "huggingface_hub", "sacrebleu",
)  # fmt: skip
"""Modules that take long to import, and that a prediction of a text model does not use."""

RUN = (
    *CHECKED, "regard.model", "regard.types", "regard.threads", "regard.weights.*", "regard.capabilities",
    "regard.explain", "regard.systems.transformer", "regard.decode.*", "regard.nn.*", "regard.training.distributed",
    *within("regard.systems.common", "checkpoint marian recipes system"),
    *within("regard.tasks", "base modality translate"), *within("regard.tasks.modality", "base text"),
    *within("regard.processors.tokenizer", "segmenters token_text tokenizer vocabulary"),
    *within("regard.data.batching", "padding samplers"),
    *within("regard.data", "file_discovery memory_tables reader standard_input store"),
    *within("regard.data.text", "files formats own_columns samples tables"),
    *within("regard.runs", "inputs predict predictions"),
)  # fmt: skip
"""One system, one task, the search and the tokenizer; no explainer, no other system or task, nothing of images or points."""

IN_NN = (
    "points.body", "points.vector_attention", "recurrent.rnn", "vision.convnet", "vision.dense",
    "vision.encoder", "vision.patches", "vision.swin",
)  # fmt: skip
"""Modules of regard.nn that a translation does not use, among others."""

EVALUATE = (
    *RUN, "regard.training.*", "regard.data.training_files", "regard.tasks.preparation",
    *within("regard.data.check", "engine findings pairs report"), *within("regard.data", "samples"),
    *within("regard.data.text", "table_writer"),
    *within("regard.draw", "charts colors figure text"),
    *within("regard.runs", "check evaluate folder spec"),
)  # fmt: skip
TRAIN = (
    *EVALUATE, "regard.data.batching.loader",
    *within("regard.runs", "card progress train trainer"),
)  # fmt: skip
EXPLAIN = (
    *TRAIN, "regard.runs.explain", *within("regard.explain", "text_generation"), *within("regard.draw", "token_data"),
)  # fmt: skip
"""Each also contains the modules of the commands before it in the same process."""


def test_a_command_loads_only_what_it_uses_and_a_prediction_starts_fast(whole: Path, few: Path, folder: Path) -> None:
    settings = [word for value in (*TINY, *TWELVE, "train.steps=2") for word in ("--set", value)]
    commands: dict[str, tuple[list[str], tuple[str, ...], tuple[str, ...]]] = {
        "predict": ([str(whole), "the cat danced"], RUN, SLOW),
        "export": ([str(whole), "converted"], RUN, SLOW),
        "check": (["translate", "--data", str(few)], EVALUATE, SLOW),
        "evaluate": ([str(whole), "--data", str(few), "--set", "data.eval_samples=2"], EVALUATE, SLOW[:-1]),
        # torch.optim imports torch._dynamo, and torch.utils.flop_counter, by which info counts operations, imports triton
        "train": (["translate", "--data", str(few), "--out", "new", *settings], TRAIN, ()),
        "explain": ([str(whole), "a cat", "--out", "map.json"], EXPLAIN, ()),
        "info": (["transformer-tiny"], (*EXPLAIN, "regard.runs.info", "regard.tasks.tensor_inputs"), ()),
    }  # fmt: skip
    torch, *reports = start(["torch"], *([name, *words] for name, (words, _, _) in commands.items()))
    assert not foreign(torch, ())
    for (name, (_, allowed, slow)), report in zip(commands.items(), reports, strict=True):
        assert report["code"] == 0, (name, report["err"])
        assert foreign(report, allowed) == [] and loaded(report, slow) == [], name
    assert loaded(reports[0], tuple(f"regard.nn.{name}" for name in IN_NN)) == []
    # at most one second if torch takes two; half of it is tolerance for a busy machine
    assert reports[0]["seconds"] < 0.5 + 0.5 * torch["seconds"], (reports[0]["seconds"], torch["seconds"])


def test_the_index_equals_the_tables_and_every_path_is_an_object_of_that_name() -> None:
    assert json.loads(json.dumps(build_index())) == load_index(), "run: python tools/write_index.py"
    assert INDEX_PATH.read_text("utf-8") == json.dumps(build_index(), ensure_ascii=False, indent=1) + "\n"
    assert [row["model"] for row in list_rows("models")] == list(SYSTEMS)
    assert [row["preset"] for row in list_rows("presets")] == [name for one in SYSTEMS.values() for name in one.presets]
    assert {row["task"] for row in list_rows("tasks")} == {task.name for task in TASKS}
    assert all(system.name == name for name, system in SYSTEMS.items())
    for task in TASKS:
        assert isinstance(task.objective, Objective) and task.objective.modality.name == task.input
        assert isinstance(task.reader, Reader) and issubclass(task.checker, Survey) and callable(task.explainer)
        assert task.checker.task == task.name and find_task(task.name, task.input) is task
