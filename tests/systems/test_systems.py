"""Properties of every system: presets, gradients, precision, batches, packing, saving."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import regard
from regard.config import as_dict
from regard.decode.settings import DecodeSettings
from regard.errors import UnknownNameError, WeightsError
from regard.model import Model, ModelSpec, assemble
from regard.runs.info import info
from regard.runs.settings import GROUPS, resolve
from regard.systems import SYSTEMS, find_checkpoint_system, find_preset, find_system
from regard.systems.common.recipes import TaskRecipes
from regard.tasks import find_task
from regard.tasks.base import HeadOptions, LossWeights
from regard.types import IGNORE, Batch, DecoderInputs
from tiny import CASES, TINY, gradients, near, noisy, tiny
from tiny import collate as tiny_collate
from tiny_caption_models import KINDS, batch_of, captioner
from tiny_vision_models import ASKED, batch_for
from tiny_vision_models import made as vision_model

READING = [name for name, system in SYSTEMS.items() if system.modality == "text"]
PRESETS = [preset for system in SYSTEMS.values() for preset in system.presets]
systems = pytest.mark.parametrize("name", SYSTEMS)
reading = pytest.mark.parametrize("name", READING)
presets = pytest.mark.parametrize("preset", PRESETS)
cases = pytest.mark.parametrize(("name", "label"), CASES)
subjects = pytest.mark.parametrize(("name", "label"), [*CASES, *ASKED, *KINDS])
"""Text systems with their variants, image systems with their tasks, and captioners with their image encoders."""


def collate(model: Model, name: str, rows: Any = None, packed: bool = False) -> Batch:
    return tiny_collate(model, TINY[name].samples, rows, packed)


def subject(name: str, label: str) -> tuple[Model, Callable[..., Batch]]:
    """A model with random weights, and a function for batches of all rows or of the given rows."""
    if name in TINY:
        model = tiny(name, label)
        return model, partial(collate, model, name)
    model = captioner(name, label) if name.startswith("caption") else vision_model(name, label)
    whole = batch_of((6, 3, 5, 4)) if name.startswith("caption") else batch_for(model, 4)

    def select(rows: Sequence[int] = range(4)) -> Batch:
        batch = whole.select_rows(torch.tensor(rows))
        if batch.decoder is None or batch.labels is None:
            return batch
        length = int((batch.labels != IGNORE).sum(1).max())
        return replace(batch, labels=batch.labels[:, :length], decoder=DecoderInputs(batch.decoder.inputs[:, :length]))

    return model, select


def lengths_of(batch: Batch) -> Tensor:
    """Lengths (B,) or attention mask of the inputs; text rows need no mask because padding is at the end."""
    assert batch.labels is not None
    if batch.mask is not None:
        return batch.mask
    if batch.text.token_types is None:
        return (batch.labels != IGNORE).sum(1)
    return torch.full((len(batch.inputs),), batch.inputs.shape[1])


def asked(model: Model, batch: Batch) -> Tensor:
    """Logits at all labeled positions, row by row, or of all pixels."""
    assert batch.labels is not None
    logits = model.task.objective.logits(model, batch)
    return logits if model.task.name in ("segment", "depth") else logits[batch.labels != IGNORE]


# -- the table


def test_every_listed_system_is_tested_here() -> None:
    assert set(TINY) == set(READING) and len(PRESETS) == len(set(PRESETS))


@systems
def test_a_system_is_found_by_its_name_its_presets_and_its_published_type(name: str) -> None:
    system = SYSTEMS[name]
    assert system.name == name and find_system(name) is system and system.description and system.presets
    if system.published.model_type:
        assert find_checkpoint_system({"model_type": system.published.model_type}, {}) is system
    for preset in system.presets:
        assert find_preset(preset) == (system, system.presets[preset])
        assert isinstance(system.presets[preset].config, system.config)


def first_config(name: str) -> Any:
    return next(iter(SYSTEMS[name].presets.values())).config


@systems
def test_the_tasks_of_a_system_exist_and_no_other_is_accepted(name: str) -> None:
    system = SYSTEMS[name]
    tasks = [find_task(task, system.modality) for task in system.tasks]
    assert tasks and tuple(task.name for task in tasks) == tuple(system.tasks)
    other = replace(system, task_recipes=TaskRecipes(("nothing",)))
    with pytest.raises(UnknownNameError, match=f"task for {name}"):
        assemble(ModelSpec(other, first_config(name), tasks[0]), device="meta")


@systems
def test_the_published_layout_names_existing_fields_and_covers_every_field_of_the_config(name: str) -> None:
    published, fields = SYSTEMS[name].published, set(SYSTEMS[name].config.__dataclass_fields__)
    assert set(published.value_maps) <= set(published.keys) <= fields
    if name in TINY:
        keys = [key for keys in published.keys.values() for key in keys]
        assert len(keys) == len(set(keys)) and not set(keys) & set(published.fixed)
        read = published.read(published.write(as_dict(TINY[name].config)))
        assert set(read) >= set(published.keys) and read == {field: getattr(TINY[name].config, field) for field in read}


# -- presets


@pytest.mark.every(4)
@presets
def test_a_preset_has_exactly_the_stated_parameters_and_is_described(preset: str) -> None:
    told, model = info(preset), regard.build(preset, device="meta")
    assert told.parameters == find_preset(preset)[1].parameters == sum(layer.parameters for layer in told.layers)
    assert told.flops > 0 and next(iter(told.recipes.values())) and all(p.is_meta for p in model.parameters())


def test_the_sizes_of_presets_are_in_the_docs() -> None:
    lines = (Path(__file__).parents[2] / "docs/systems.md").read_text("utf-8").splitlines()
    rows = [line.split("|") for line in lines if line.startswith("| `")]
    told = {row[1].strip(" `"): row[-2].strip() for row in rows}
    listed = [preset for preset in PRESETS if not preset.startswith(("transformer-", "convs2s-"))]  # in the text
    assert {preset: f"{find_preset(preset)[1].parameters:,}" for preset in listed}.items() <= told.items()


@presets
def test_the_recipe_of_a_preset_names_only_settings_that_exist_and_all_take_effect(preset: str) -> None:
    system, found = find_preset(preset)
    recipes = [system.recipe(found, task) for task in (*system.tasks, "nothing")]
    for recipe in (found.recipe, *recipes, *system.task_recipes.finetuning.values()):
        assert set(recipe) <= set(GROUPS)
        made = resolve(recipe, {})
        for group, values in recipe.items():
            for key, value in values.items():
                wanted = tuple(float(v) for v in value.split(",")) if "," in str(value) else value
                assert getattr(getattr(made, group), key) == wanted
    if system.modality == "text":
        assert found.recipe.get("data", {}).get("vocab_size", found.config.vocab_size) == found.config.vocab_size
        assert regard.build(preset, device="meta").spec.decode == resolve(found.recipe, {}).decode


@pytest.mark.parametrize("preset", [preset for preset in PRESETS if find_preset(preset)[1].parameters < 2e7])
def test_a_small_preset_reads_and_generates_at_once(preset: str) -> None:
    model = regard.build(preset).eval()
    config, words = model.config, torch.arange(1, 7)[None]
    if model.spec.system.modality == "text":
        x = words
    elif model.spec.system.modality == "points":
        x = torch.rand(1, 64, 3 + config.feature_dim)
    elif config.traits.palette:
        x = torch.randint(0, config.num_colors, (1, config.max_length))
    else:
        x = torch.rand(1, config.in_channels, config.image_size, config.image_size)
    target = words if model.task.name in ("translate", "caption") else None
    with torch.no_grad():
        out = model.logits(x, target) if x is words else model.states(x, target).sequence
    assert bool(out.isfinite().all()) and (x is not words or out.shape == (1, 6, config.vocab_size))


# -- training

UNUSED = "body.encoder.blocks.2.attend.inner.far", "body.stages.3.position"
"""Parameters for the first token, which has no label in tagging, and positions in windows of one patch."""


@subjects
def test_the_loss_reaches_every_parameter(name: str, label: str) -> None:
    model, batch_of_rows = subject(name, label)
    model.train(name not in TINY)  # in training, segmentation has an auxiliary head
    total, count = model.task.objective.loss(model, batch_of_rows(), LossWeights(0.1))
    found = gradients(model, total)
    reached = {parameter for parameter, gradient in found.items() if bool(gradient.any())}
    learning = {parameter for parameter, tensor in model.named_parameters() if tensor.requires_grad}
    assert int(count) > 0 and bool(total.isfinite()) and all(bool(g.isfinite().all()) for g in found.values())
    assert all(parameter.startswith(UNUSED) for parameter in learning - reached)
    frozen = [parameter for parameter, _ in model.named_parameters() if parameter not in learning]
    assert all("norm." in parameter or ".skip." in parameter for parameter in frozen)


@pytest.mark.every(3)
@subjects
def test_bfloat16_is_near_to_float32(name: str, label: str) -> None:
    model, batch_of_rows = subject(name, label)
    model, batch = noisy(model, scale=0.1).float(), batch_of_rows()
    batch = replace(batch, inputs=batch.inputs.float() if batch.inputs.is_floating_point() else batch.inputs)
    with torch.no_grad():
        right = asked(model, batch)
        with torch.autocast("cpu", torch.bfloat16):
            ours = asked(model, batch)
        low = asked(model.bfloat16(), batch)  # pixels have the dtype of the weights
    for found in (ours, low):
        torch.testing.assert_close(found.float(), right, rtol=0.05, atol=0.02)


@pytest.mark.every(3)
@cases
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_packed_rows_train_as_padded_rows_do(name: str, label: str, smoothing: float) -> None:
    model = tiny(name, label)
    if not model.config.traits.packs:
        with pytest.raises(ValueError, match="padded"):
            model.body(collate(model, name, packed=True))
        return
    padded, packed = collate(model, name), collate(model, name, packed=True)
    assert packed.packing is not None and len(packed.inputs) == 1 and padded.packing is None and len(padded.inputs) > 1
    losses = [model.task.objective.loss(model, batch, LossWeights(smoothing)) for batch in (padded, packed)]
    (right, number), (ours, count) = losses
    near(ours, right)
    assert int(count) == int(number) == int((padded.labels != IGNORE).sum())  # type: ignore[operator]
    near(asked(model, packed), asked(model, padded))
    ours_pooled, pooled = (model.body(batch).pooled for batch in (packed, padded))
    if pooled is not None:
        near(ours_pooled[: len(pooled)], pooled)
    theirs = gradients(model.body, right)
    for parameter, gradient in gradients(model.body, ours).items():
        near(gradient, theirs[parameter], 1e-11)


# -- other rows and padding do not change outputs


@subjects
def test_a_batch_equals_its_rows_one_by_one(name: str, label: str) -> None:
    model, batch_of_rows = subject(name, label)
    alone = [asked(model, batch_of_rows([row])) for row in range(5 if name in TINY else 4)]
    near(asked(model, batch_of_rows()), torch.cat(alone), 1e-11)
    near(asked(model, batch_of_rows([3, 0, 3])), torch.cat([alone[3], alone[0], alone[3]]), 1e-11)


def wider(ids: Tensor, lengths: Tensor, more: int, vocabulary: int) -> tuple[Tensor, Tensor]:
    """Ids with additional columns and random tokens at all padded positions; and the attention mask."""
    marks = torch.arange(ids.shape[1] + more) < lengths[:, None]
    filled = torch.randint(vocabulary, marks.shape, generator=torch.Generator().manual_seed(more))
    filled[marks] = ids[marks[:, : ids.shape[1]]]
    return filled, marks


@pytest.mark.every(4)
@cases
@pytest.mark.parametrize("form", ["lengths", "marks"])
@pytest.mark.parametrize("more", [0, 3])
def test_tokens_in_padding_change_nothing(name: str, label: str, form: str, more: int) -> None:
    model = tiny(name, label)
    batch = collate(model, name)
    assert batch.labels is not None
    right, lengths = asked(model, batch), lengths_of(batch)
    x, marks = wider(batch.inputs, lengths, more, model.config.vocab_size)
    changed = replace(batch, inputs=x, mask=marks if form == "marks" else lengths)
    if batch.decoder is None:
        text = batch.text.map(lambda table: torch.nn.functional.pad(table, (0, more)))
        changed = replace(changed, labels=torch.nn.functional.pad(batch.labels, (0, more), value=IGNORE), text=text)
    near(asked(model, changed), right)
    if batch.decoder is not None:
        lengths = (batch.labels != IGNORE).sum(1)
        target, real = wider(batch.decoder.inputs, lengths, more, model.config.vocab_size)
        labels = torch.full(target.shape, IGNORE).masked_fill(real, 0)
        near(asked(model, replace(changed, labels=labels, decoder=DecoderInputs(target))), right)
        mask = real if form == "marks" else lengths
        near(asked(model, replace(changed, labels=labels, decoder=DecoderInputs(target, mask=mask))), right)


@cases
def test_a_hole_in_the_attention_mask_removes_its_token(name: str, label: str) -> None:
    model = tiny(name, label)
    batch = collate(model, name, [0, 2, 3])
    marks = torch.arange(batch.inputs.shape[1]) < lengths_of(batch)[:, None]
    marks[:, 1] = False
    if batch.decoder is None:  # masked positions have no label, since each position attends to itself
        batch = replace(batch, labels=batch.labels.masked_fill(~marks, IGNORE))  # type: ignore[union-attr]
    other = batch.inputs.clone()
    other[:, 1] = (other[:, 1] + 1) % model.config.vocab_size
    hidden, changed = (asked(model, replace(batch, inputs=x, mask=marks)) for x in (batch.inputs, other))
    near(changed, hidden)
    assert not torch.allclose(asked(model, replace(batch, inputs=other)), asked(model, batch))


@cases
def test_the_public_calls_equal_the_body(name: str, label: str) -> None:
    model = tiny(name, label)
    batch = collate(model, name)
    assert batch.labels is not None
    batch = replace(batch, mask=lengths_of(batch))
    if batch.decoder is not None:
        batch = replace(batch, decoder=replace(batch.decoder, mask=batch.labels != IGNORE))
    states, right = model.body(batch).sequence, model.task.objective.logits(model, batch)
    ids, mask = (None, None) if batch.decoder is None else (batch.decoder.inputs, batch.decoder.mask)
    given = {"mask": batch.mask, "decoder_mask": mask}
    given |= {"token_types": batch.text.token_types, "global_tokens": batch.text.global_tokens}
    assert torch.equal(model.logits(batch.inputs, ids, **given), right)
    assert torch.equal(model(batch.inputs, ids, **given), right)
    assert torch.equal(model.states(batch.inputs, ids, **given).sequence, states)
    assert torch.equal((model.head or model.body.to_logits)(states), right)


# -- saving and loading


def same_model(ours: Model, right: Model) -> None:
    theirs = right.body.state_dict()
    assert list(ours.body.state_dict()) == list(theirs)
    for name, tensor in ours.body.state_dict().items():
        assert tensor.dtype == theirs[name].dtype and torch.equal(tensor, theirs[name]), name
    assert ours.config == right.config and ours.spec.system is right.spec.system
    assert all(p.requires_grad and p.is_leaf and not p.is_meta for p in ours.parameters()) and not ours.training


@pytest.mark.every(4)
@cases
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_saved_model_comes_back_bit_for_bit(name: str, label: str, dtype: torch.dtype, tmp_path: Path) -> None:
    model = tiny(name, label).to(dtype)
    decode = DecodeSettings(num_beams=3, length_penalty=0.25, length_penalty_type="power")
    model.spec = replace(model.spec, decode=decode)
    assert model.save(tmp_path / "it") == tmp_path / "it"
    back = regard.load(tmp_path / "it", dtype="stored")
    same_model(back, model)
    assert back.spec.decode == model.spec.decode and back.task is model.task
    same_model(regard.load(tmp_path / "it", dtype=torch.float64), tiny(name, label).to(dtype).double())
    assert not [path for path in (tmp_path / "it").iterdir() if path.name.startswith(".")]


@cases
def test_the_hugging_face_format_is_restored_if_supported(name: str, label: str, tmp_path: Path) -> None:
    model = tiny(name, label)
    if not SYSTEMS[name].published.model_type:
        with pytest.raises(WeightsError, match="no Hugging Face equivalent"):
            regard.save(model, tmp_path / "it")
        return
    try:
        regard.save(model, tmp_path / "it")
    except WeightsError as refused:
        told = str(refused)
        assert any(key in told for key in TINY[name].variants[label]), told
        return
    same_model(regard.load(tmp_path / "it"), model)
    assert not (tmp_path / "it" / "regard.json").exists()


@reading
def test_every_entry_of_the_name_table_is_needed_by_some_variant(name: str) -> None:
    system, config = SYSTEMS[name], TINY[name].config
    models = [tiny(name, label) for label in ("as published", *TINY[name].variants)]
    for task in (find_task(task, "text") for task in system.tasks):
        adapted = task.objective.adapt_config(config)
        models.append(assemble(ModelSpec(system, adapted, task, options=HeadOptions(("a", "b")))))
    if config.traits.optional_pooler:
        models.append(assemble(ModelSpec(system, replace(config, pooler=True), find_task(system.tasks[0], "text"))))
    names = system.published.names
    keys = {key for model in models for key in model.weights() if names.published_names(key)}
    assert {names.find(key)[0].native for key in keys} == {entry.native for entry in names.entries}
