"""What holds for every system that is listed and reads pictures, whatever it is."""

from __future__ import annotations

import pytest
import torch

import regard
from regard.config import field_types
from regard.runs.info import info
from regard.runs.settings import GROUPS, resolve
from regard.systems import SYSTEMS, find_preset, find_published
from regard.tasks import SEEING, find_task

NAMES = [name for name, system in SYSTEMS.items() if system.reads == "pictures"]
PRESETS = [preset for name in NAMES for preset in SYSTEMS[name].presets]
systems = pytest.mark.parametrize("name", NAMES)
presets = pytest.mark.parametrize("preset", PRESETS)


def test_the_systems_of_the_lectures_that_see_are_there() -> None:
    assert {"vit", "hybrid", "resnet", "imagegpt", "swin", "dpt"} <= set(NAMES)


@systems
def test_the_tasks_of_a_system_exist_in_a_form_for_pictures(name: str) -> None:
    system = SYSTEMS[name]
    assert system.tasks and set(system.tasks) <= set(SEEING) and system.about
    assert all(find_task(task, "pictures").name == task for task in system.tasks)
    assert find_published(system.published.model_type) is system
    assert set(system.published.keys) <= set(field_types(system.config))


@presets
def test_a_preset_has_exactly_the_parameters_it_says_and_is_told_about(preset: str) -> None:
    told = info(preset)
    assert told.parameters == find_preset(preset)[1].parameters == sum(layer.parameters for layer in told.layers)
    assert told.flops > 0


@presets
def test_the_recipe_of_a_preset_names_only_settings_that_exist(preset: str) -> None:
    recipe = find_preset(preset)[1].recipe
    assert set(recipe) <= set(GROUPS) and recipe["train"]["images"] > 0
    resolve(recipe, {})


@presets
def test_dense_heads_find_four_maps(preset: str) -> None:
    config = find_preset(preset)[1].config
    if "segment" not in find_preset(preset)[0].tasks:
        return
    maps = config.maps()
    assert len(maps) == 4 and [tap.stride for tap in maps] == sorted(tap.stride for tap in maps)


SMALL = [preset for preset in PRESETS if find_preset(preset)[1].parameters < 1.3e7]


@pytest.mark.parametrize("preset", SMALL)
def test_a_small_preset_sees_something_at_once(preset: str) -> None:
    model = regard.build(preset).eval()
    config = model.config
    if hasattr(config, "colours"):
        x = torch.randint(0, config.colours, (1, config.length))
    else:
        x = torch.rand(1, config.channels, config.size, config.size)
    with torch.no_grad():
        states = model.states(x)
    assert bool(states.sequence.isfinite().all()) and states.summary is not None
