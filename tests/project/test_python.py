"""The Python interface: copies of models, texts of help() and repr(), documented keys of predictions, recipes."""

from __future__ import annotations

import copy
import functools
import io
import pickle
import pydoc
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from test_card import MADE
from test_outside import EXPLAINED, INPUTS
from torch import Tensor

import regard
from encoders import encoder
from regard import errors
from regard.index import load_index
from regard.model import Model
from regard.nn.recording import record_attention
from regard.systems import SYSTEMS
from regard.tasks import TASKS
from tiny import TINY, collate, gradients, near, tiny
from tiny_caption_models import USUAL, captioner
from tiny_point_models import cloud
from tiny_text_models import translator
from tiny_vision_models import ASKED, made
from tokenizer_files import STORY

DOCS = Path(__file__).parents[2] / "docs"
CLOUD = cloud()
PICTURE = Image.linear_gradient("L").convert("RGB").resize((40, 30))
MODELS: dict[str, Callable[[], Model]] = {**MADE, "translate": lambda: translator("transformer")}


def asked(name: str, model: Model) -> Any:
    one = INPUTS.get(name, CLOUD if model.task.input == "points" else PICTURE)
    return {"algorithmic": "31415", "translate": "the cat"}.get(name, one)


# -- copies


def saved_and_loaded(model: Model) -> Model:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


WAYS: dict[str, Callable[[Model], Model]] = {
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "torch": saved_and_loaded,
    "deepcopy": copy.deepcopy,
}


@pytest.mark.parametrize("name", MODELS)
def test_a_copied_model_predicts_the_same(name: str) -> None:
    model = MODELS[name]().float().eval()
    short: dict[str, Any] = {"max_new_tokens": 4} if "decode.max_new_tokens" in model.objective.settings_used else {}
    right = model.predict(asked(name, model), **short)
    model.explain(*EXPLAINED.get(name, (asked(name, model), *(["2"] if short and name != "lm" else []))))
    for way, make in WAYS.items():
        other = make(model)
        found = other.predict(asked(name, model), **short)
        assert found.score == right.score and found.tokens == right.tokens, way
        assert other.task is model.task and other.spec.system is model.spec.system
        assert other.objective is model.objective and other.config == model.config
        assert not {*map(id, other.parameters())} & {*map(id, model.parameters())}


@pytest.mark.parametrize("name", SYSTEMS)
def test_models_of_every_system_are_pickled(name: str) -> None:
    if name in TINY:
        model = tiny(name)
    elif name == "point":
        model = MADE["discern"]()
    else:
        images = {system: functools.partial(made, system, task) for system, task in ASKED}
        model = images[name]() if name in images else captioner(name, dict(USUAL)[name])
    other = pickle.loads(pickle.dumps(model))
    assert {*other.state_dict()} == {*model.state_dict()} and str(other) == str(model)
    for key, tensor in model.state_dict().items():
        assert tensor.equal(other.state_dict()[key])


def test_a_copy_has_its_own_mode_and_a_stream_in_progress_stays_with_the_original() -> None:
    model = MADE["lm"]().float().train()
    stream = model.stream("the cat", max_new_tokens=4)
    next(stream)
    other = copy.deepcopy(model)
    assert not model.training and not other.training  # the stream is in progress
    list(stream)
    other.predict("a", max_new_tokens=2)
    assert model.training and not other.training
    trained = pickle.loads(pickle.dumps(model))
    trained.predict("a", max_new_tokens=2)
    assert trained.training


def test_a_frozen_part_stays_frozen_in_a_copy() -> None:
    model = MADE["segment"]().float()
    frozen = [name for name, parameter in model.named_parameters() if not parameter.requires_grad]
    assert frozen
    for make in WAYS.values():
        assert [name for name, parameter in make(model).named_parameters() if not parameter.requires_grad] == frozen


# -- texts


def test_help_of_train_lists_tasks_columns_settings_and_errors() -> None:
    text = re.sub(r".\x08", "", pydoc.render_doc(regard.train))
    for row in load_index()["tasks"]:
        assert row["task"] in text and row["about"] in text
        assert all(column in text for column in row["columns"])
    for row in load_index()["settings"]:
        assert row["system"] != "all" or row["setting"] in text
    for name in (
        "DataError",
        "SettingError",
        "UnknownNameError",
        "RunError",
        "InputTypeError",
        "WeightsError",
        "Interrupted",
    ):
        assert name in text and issubclass(getattr(errors, name), regard.RegardError)


def test_public_functions_and_methods_name_their_arguments_and_errors() -> None:
    objects = [getattr(regard, name) for name in regard.__all__ if name != "__version__"]
    methods = [
        getattr(regard.Model, name) for name in ("predict", "stream", "rank", "explain", "states", "logits", "save")
    ]
    for item in (*objects, *methods):
        assert item.__doc__ and item.__doc__.strip().endswith((".", ")")), item
    for function in (regard.train, regard.load, regard.evaluate, regard.check, regard.build, regard.probe, regard.save):
        names = [name for name in function.__annotations__ if name not in ("return", "overrides")]
        assert [name for name in names if name not in (function.__doc__ or "")] == [], function
        assert "Error" in (function.__doc__ or ""), function


@pytest.mark.parametrize("name", MODELS)
def test_representations_are_short(name: str) -> None:
    model = MODELS[name]().float().eval()
    prediction = model.predict(asked(name, model))
    pair = ("the cat", "a") if name == "translate" else ("31415", "2") if name == "algorithmic" else None
    explanation = model.explain(*(pair or EXPLAINED.get(name, (asked(name, model),))))
    for item in (prediction, explanation):
        text = repr(item)
        assert text.startswith(type(item).__name__) and len(text) < 400 and "\n" not in text, text
        assert "array(" not in text and "tensor(" not in text
    assert all(key in repr(prediction) for key in prediction.extra)
    head = repr(model).splitlines()[1]
    assert model.spec.system.name in head and model.task.name in head and "parameters" in head
    with record_attention(model) as records:
        model.predict(asked(name, model))
    assert len(repr(records)) < 200 and all(len(repr(record)) < 200 for record in records.records)


def test_other_results_are_short(few: Path, whole: Path) -> None:
    found = regard.evaluate(whole, few)
    assert len(repr(found)) < 600 and "bleu" in repr(found)


# -- keys of predictions


def documented(task: str) -> set[str]:
    """Keys in the table of a task page, without the keys of nested objects."""
    page = (DOCS / "tasks" / f"{task}.md").read_text("utf-8")
    table = page.partition("### Prediction in Python and JSON")[2].partition("\n#")[0]
    return set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE))


LONG: dict[str, Any] = {
    "classify": "cat " * 99, "choose": {"context": "cat " * 99, "choices": ["a", "b"]}, "embed": "cat " * 99,
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_every_key_of_a_prediction_is_documented(name: str) -> None:
    model = MODELS[name]().float().eval()
    found = [model.predict(asked(name, model))]
    found += [model.predict(LONG[name])] if name in LONG else []
    found += [model.rank("a", ["b", "c"])] if model.objective.ranks else []
    keys = {key for one in found for key in one.extra}
    assert keys <= documented(model.task.name) and (name not in LONG or "truncated" in keys)
    assert {"value", "score"} <= documented(model.task.name)
    assert all(key in (regard.Prediction.__doc__ or "") for key in keys), keys
    page = (DOCS / "tasks" / f"{model.task.name}.md").read_text("utf-8")
    nested = [item for one in found for value in one.extra.values() if isinstance(value, list) for item in value]
    assert [key for item in nested if isinstance(item, dict) for key in item if f"`{key}`" not in page] == []


def test_steps_of_adaptive_computation_time_are_documented() -> None:
    model = encoder("classify", [STORY], ("a", "b"), "universal-encoder", act=True, act_max_steps=3)
    assert {"act_steps"} <= {*model.predict("the cat").extra} <= documented("classify")
    assert {*encoder("mlm", [STORY], (), "universal-encoder", act=True).predict("the [MASK]").extra} <= documented(
        "mlm"
    )


def test_keys_of_evaluated_predictions_are_documented() -> None:
    """As recorded by the runs of all tasks in test_every_task.py."""
    evaluated = {
        "embed": {"rank", "cosine"}, "mlm": {"masked_text", "references"}, "depth": {"meters", "reference"},
        "segment": {"reference"}, "draw": {"source", "unconditional"},
    }  # fmt: skip
    for task, keys in evaluated.items():
        assert keys <= documented(task), task
    assert {task.name for task in TASKS} == {path.stem for path in (DOCS / "tasks").glob("*.md")}


# -- recipes


def loss_and_saved_values(model: Model, batch: Any) -> tuple[Tensor, int]:
    """Loss of a forward pass, and the number of values saved for the backward pass."""
    saved: dict[int, int] = {}

    def save(tensor: Tensor) -> Tensor:
        saved[tensor.data_ptr()] = tensor.numel()
        return tensor

    torch.manual_seed(2)  # for dropout
    with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
        return model.objective.loss(model, batch)[0], sum(saved.values())


@pytest.mark.parametrize("name", ["gpt2", "bert", "transformer"])
def test_the_recipe_for_gradient_checkpointing_saves_memory_and_keeps_gradients(name: str) -> None:
    parts = re.findall(r"```python\n(.*?)```", (DOCS / "runs.md").read_text("utf-8"), re.DOTALL)
    (code,) = (part for part in parts if "checkpoint" in part)
    model = tiny(name).train()
    batch = collate(model, TINY[name].samples)
    right, saved = loss_and_saved_values(model, batch)
    expected = gradients(model, right)
    exec(code, {"model": model})
    found, saved_after = loss_and_saved_values(model, batch)
    near(found, right)
    for key, gradient in gradients(model, found).items():
        near(gradient, expected[key], 1e-9)
    assert saved_after < 0.7 * saved
    with torch.no_grad():
        near(model.eval().body(batch).sequence, tiny(name).body(batch).sequence)
