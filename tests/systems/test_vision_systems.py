"""Properties of every listed system that reads images."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import regard
from regard.config import field_types
from regard.runs.info import info
from regard.runs.settings import GROUPS, resolve
from regard.systems import SYSTEMS, find_by_model_type, find_preset
from regard.tasks import find_task
from regard.training.optimizer import make_optimizer
from regard.training.settings import TrainSettings
from regard.types import Batch
from tiny import near
from tiny_vision_models import ASKED, batch_for, fresh, made

ROOT = Path(__file__).parents[2]
NAMES = [name for name, system in SYSTEMS.items() if system.modality == "image"]
PRESETS = [preset for name in NAMES for preset in SYSTEMS[name].presets]
systems = pytest.mark.parametrize("name", NAMES)
presets = pytest.mark.parametrize("preset", PRESETS)


def test_the_image_systems_of_the_lectures_exist() -> None:
    assert {"vit", "hybrid", "resnet", "imagegpt", "swin", "dpt"} <= set(NAMES)


@systems
def test_the_tasks_of_a_system_exist_for_images(name: str) -> None:
    system = SYSTEMS[name]
    assert system.tasks and all(find_task(task, "image") for task in system.tasks) and system.description
    assert all(find_task(task, "image").name == task for task in system.tasks)
    assert not system.published.model_type or find_by_model_type(system.published.model_type) is system
    assert set(system.published.keys) <= set(field_types(system.config))


@pytest.mark.every(4)
@presets
def test_a_preset_has_exactly_the_stated_parameters_and_is_described(preset: str) -> None:
    told = info(preset)
    assert told.parameters == find_preset(preset)[1].parameters == sum(layer.parameters for layer in told.layers)
    assert told.flops > 0


def test_the_sizes_of_all_presets_are_in_the_docs() -> None:
    rows = [
        line.split("|")
        for line in (ROOT / "docs" / "systems.md").read_text("utf-8").splitlines()
        if line.startswith("| `")
    ]
    told = {row[1].strip(" `"): row[-2].strip() for row in rows}
    assert {preset: f"{find_preset(preset)[1].parameters:,}" for preset in PRESETS}.items() <= told.items()


@presets
def test_the_recipe_of_a_preset_names_only_settings_that_exist(preset: str) -> None:
    system, found = find_preset(preset)
    assert found.recipe["train"]["batch_size"] > 0
    recipes = [system.recipe(found, task) for task in (*system.tasks, "nothing")]
    for recipe in (*recipes, *system.task_recipes.finetuning.values()):
        assert set(recipe) <= set(GROUPS)
        resolve(recipe, {})


@presets
def test_dense_heads_find_four_maps(preset: str) -> None:
    config = find_preset(preset)[1].config
    if "segment" not in find_preset(preset)[0].tasks:
        return
    maps = config.feature_maps()
    assert len(maps) == 4 and [tap.stride for tap in maps] == sorted(tap.stride for tap in maps)


SMALL = [preset for preset in PRESETS if find_preset(preset)[1].parameters < 1.3e7]


@pytest.mark.parametrize("preset", SMALL)
def test_a_small_preset_reads_an_image_at_once(preset: str) -> None:
    model = regard.build(preset).eval()
    config = model.config
    if config.traits.palette:
        x = torch.randint(0, config.num_colors, (1, config.max_length))
    else:
        x = torch.rand(1, config.in_channels, config.image_size, config.image_size)
    speaks = model.task.name == "caption"
    with torch.no_grad():
        states = model.states(x, torch.ones(1, 4, dtype=torch.long) if speaks else None)
    assert bool(states.sequence.isfinite().all()) and (speaks or states.pooled is not None)


@pytest.mark.parametrize(("name", "task"), ASKED)
def test_every_parameter_that_may_learn_does_learn(name: str, task: str) -> None:
    """Otherwise distributed training would wait for missing gradients."""
    model = fresh(name, task).train()
    model.task.objective.loss(model, batch_for(model))[0].backward()
    unread = [place for place, part in model.named_parameters() if part.requires_grad and part.grad is None]
    assert not unread
    frozen = [place for place, part in model.named_parameters() if not part.requires_grad]
    assert all("norm." in place or ".skip." in place for place in frozen)


@pytest.mark.parametrize(("name", "task"), ASKED)
def test_an_image_alone_equals_the_same_image_in_a_batch(name: str, task: str) -> None:
    model = made(name, task)
    batch = batch_for(model, 3)
    together = model.task.objective.logits(model, batch)
    alone = [model.task.objective.logits(model, Batch(batch.inputs[row : row + 1])) for row in range(3)]
    near(torch.cat(alone), together, 1e-11)


@pytest.mark.parametrize(("name", "task"), ASKED)
def test_bfloat16_is_near_to_float32(name: str, task: str) -> None:
    model = fresh(name, task).eval()
    batch = batch_for(model)
    with torch.no_grad():
        right = model.task.objective.logits(model, batch)
        with torch.autocast("cpu", torch.bfloat16):
            ours = model.task.objective.logits(model, batch)
    torch.testing.assert_close(ours.float(), right, rtol=0.05, atol=0.05)


def test_unused_last_layers_are_frozen(tmp_path: Path) -> None:
    """Includes a checkpoint of another task, and blocks after the last feature tap."""
    fresh("vit", "classify").save(tmp_path)
    model = regard.load(tmp_path, task="depth")
    assert [place for place, part in model.named_parameters() if not part.requires_grad] == [
        "body.encoder.norm.weight", "body.encoder.norm.bias"
    ]  # fmt: skip
    assert all(part.requires_grad for part in regard.load(tmp_path).parameters())
    model = fresh("dpt", "depth", depth=6)
    frozen = {
        place.split(".")[3]
        for place, part in model.body.encoder.blocks.named_parameters("x.y.z")
        if not part.requires_grad
    }
    assert frozen == {"4", "5"}


# -- training


@pytest.mark.parametrize(("name", "spared"), [
    ("vit", {"body.first", "body.position.table"}), ("dpt", {"body.first", "body.position.table"}), ("resnet", set()),
    ("swin", {f"body.stages.{s}.position.{b}.table.weight" for s, many in enumerate((2, 2, 1, 1)) for b in range(many)}),
])  # fmt: skip
def test_neither_positions_nor_class_tokens_have_weight_decay(name: str, spared: set[str]) -> None:
    model = fresh(name, SYSTEMS[name].tasks[0])
    names = {part: place for place, part in model.named_parameters()}
    groups = make_optimizer(model, TrainSettings(weight_decay=0.1)).param_groups
    decayed, left = (
        [names[part] for group in groups if bool(group["weight_decay"]) == decays for part in group["params"]]
        for decays in (True, False)
    )
    assert {place for place in left if model.get_parameter(place).ndim > 1} == spared
    assert all(model.get_parameter(place).ndim > 1 for place in decayed)


@pytest.mark.parametrize(
    ("name", "zero"), [("vit", True), ("hybrid", True), ("bit", True), ("swin", False), ("resnet", False)]
)
def test_a_new_classification_head_is_initialized_as_in_its_paper(name: str, zero: bool) -> None:
    """Zero initialization (ViT, BiT): all classes are equally likely before training."""
    model = fresh(name, "classify").requires_grad_(False).eval()
    weight = model.head.classes.weight
    assert bool(weight.any()) != zero and not bool(model.head.classes.bias.any())
    if zero:
        assert bool((model.task.objective.logits(model, batch_for(model)) == 0).all())
    else:
        assert 0.01 < float(weight.std()) < 0.03
