"""Systems on a CUDA device: captured training equals plain training, and outputs and decoding equal the CPU."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from test_generating_systems import GENERATING, body_and_batch, with_prompt

import regard
from regard.data.settings import DataSettings
from regard.decode.search import search
from regard.decode.searches import SearchInputs, plain_search
from regard.decode.settings import DecodeSettings
from regard.model import Model, assemble
from regard.nn.attention.positions import PositionIds, Shaw
from regard.processors.image import Augment, augment_images, sample_params
from regard.tasks import find_task
from regard.tasks.base import EncodingContext, HeadOptions, LossWeights
from regard.tasks.modality.image import require_image_processor
from regard.training.distributed import ProcessGroup
from regard.training.loop import ForwardBackward, LossModule
from regard.training.settings import TrainSettings
from regard.types import Augmentation, Batch
from tiny import CASES, TINY, Numbers, collate, gradients, noisy, tiny
from tiny_caption_models import USUAL, batch_of, captioner, fresh

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

UNIVERSAL = [case for case in CASES if case[0] in ("universal", "universal-encoder")]
RECURRENT = [case for case in CASES if case[0] in ("rnn", "rnnsearch", "convs2s")]
RELATIVE = [
    ("transformer", "rotary beside sines"),
    ("transformer", "buckets"),
    ("gpt2", "rotary in halves"),
    ("gpt3", "shaw"),
]
SEARCHED = [
    *((*case, torch.float64) for case in (*GENERATING, *USUAL)),
    *((*case, torch.float32) for case in (*RECURRENT, *RELATIVE, *UNIVERSAL) if case[0] != "universal-encoder"),
]
SEARCHES: list[dict[str, Any]] = [
    {}, {"num_beams": 3, "num_return_sequences": 2}, {"do_sample": True, "num_return_sequences": 2},
]  # fmt: skip
IMAGES = [
    *(("classify", name) for name in ("vit-tiny", "hybrid-tiny", "resnet-tiny", "swin-mini")),
    *(("segment", name) for name in ("vit-tiny", "hybrid-tiny", "resnet-tiny", "swin-mini", "dpt-small")),
    *(("depth", name) for name in ("vit-tiny", "resnet-tiny", "swin-mini", "dpt-hybrid-small")),
]
precisions = pytest.mark.parametrize("precision", ["float32", "bfloat16"])


def without_chance(model: Any) -> Any:
    """The model without dropout: random numbers differ in a CUDA graph."""
    for part in model.modules():
        if hasattr(part, "drop_prob"):
            part.drop_prob = 0.0
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    return model


def computing(model: Any, way: Any, smoothing: float = 0.1, **more: Any) -> ForwardBackward:
    """Forward and backward pass of a model in a mode on the device."""
    settings = TrainSettings(precision=more.pop("precision", "auto"))
    loss, device = LossModule(model, LossWeights(smoothing)), torch.device("cuda")
    compute = ForwardBackward(loss, settings, device, ProcessGroup(), **{"static_shape": True, **more})
    compute.set_mode(way)
    return compute


def learnt(compute: ForwardBackward, batches: Sequence[Batch]) -> list[list[torch.Tensor]]:
    """Loss, count and gradients of each batch."""
    way, found = compute.mode, []
    for parameter in compute.parameters:
        parameter.grad = None
    for batch in batches:
        compute.zero_grad()
        total, count = compute(batch)
        grads = [p.grad.clone() for p in compute.parameters if p.grad is not None]
        found.append([total.clone(), count.clone(), *grads])
    assert compute.mode == way and (compute.graphed is not None) == (way == "graph")
    return found


def apart(ours: Sequence[Any], right: Sequence[Any]) -> float:
    """Relative L2 distance between two lists of tensors."""
    whole = sum(float(g.double().square().sum()) for g in right) ** 0.5
    return sum(float((a.double() - b.double()).square().sum()) for a, b in zip(ours, right, strict=True)) ** 0.5 / whole


def distance(model: Any, batch: Batch, **more: Any) -> float:
    """Relative distance of the loss and gradients of a captured step, replayed once, to a plain step."""
    plain, graph = (learnt(computing(model, way, **more), [batch, batch])[-1] for way in ("plain", "graph"))
    return apart(graph, plain)


# -- captured steps

STEPS = [*((*case, packed) for case in UNIVERSAL for packed in (False, True)), *((*case, False) for case in USUAL)]


@precisions
@pytest.mark.parametrize(("name", "label", "packed"), STEPS)
def test_captured_steps_equal_plain_steps(name: str, label: str, packed: bool, precision: str) -> None:
    captions, still = name.startswith("caption"), {"max_position_offset": 0} if name == "universal" else {}
    model = without_chance(captioner(name, label) if captions else tiny(name, label, **still)).float().cuda().train()
    batch = captioned() if captions else collate(model, TINY[name].samples, packed=packed)
    limits = {"float32": 1e-3, "bfloat16": 3e-2} if captions else {"float32": 1e-4, "bfloat16": 2e-2}
    assert distance(model, batch, precision=precision) < limits[precision]


def captioned() -> Batch:
    return batch_of().map(lambda part: part.float() if part.is_floating_point() else part)


@precisions
@pytest.mark.parametrize(("name", "label"), RECURRENT)
def test_captured_micro_batches_of_several_shapes_equal_plain_ones(name: str, label: str, precision: str) -> None:
    model = without_chance(tiny(name, label).float()).cuda().train()
    objective = find_task("translate").objective
    found = objective.encode(TINY[name].samples, model.config, EncodingContext(Numbers(), 100))  # type: ignore[arg-type]
    plan: Any = objective.sampler(found, model.config, 40, 0, packed=True)
    grains = [grain for number in range(4) for grain in plan.epoch(number)]
    batches = [objective.collate(found, grain, model.config, plan.shape_of(grain)) for grain in grains]
    ways = ("plain", "graph")
    plain, graph = (computing(model, way, precision=precision, static_shape=False, bucketed=True) for way in ways)
    right, ours = ([part for found in learnt(one, batches) for part in found] for one in (plain, graph))
    assert graph.graphed is not None and len(graph.graphed.graphs) == len(plan.bucket_shapes)
    assert apart(ours, right) < (1e-4 if precision == "float32" else 2e-2)


@pytest.mark.parametrize("name", ["transformer", "universal"])
def test_position_offsets_change_in_each_replay_of_a_graph(name: str) -> None:
    """Packed rows in a CUDA graph and in plain steps have equal losses on average."""
    model = without_chance(tiny(name, max_position_offset=40).float()).cuda().train()
    batch = collate(model, TINY[name].samples, packed=True)
    means = {}
    for way in ("plain", "graph"):
        told = [float(found[0] / found[1]) for found in learnt(computing(model, way, smoothing=0.0), [batch] * 200)]
        assert len(set(told)) > 50
        means[way] = torch.tensor(told)
    gap = abs(float(means["plain"].mean() - means["graph"].mean()))
    assert gap < 5 * float(means["plain"].std()) / 10


# -- states and decoding


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("name", "label"), UNIVERSAL)
def test_ponder_steps_and_states_on_the_device_equal_the_cpu(name: str, label: str, packed: bool) -> None:
    model = tiny(name, label).float().eval()
    batch = collate(model, TINY[name].samples, packed=packed)
    there = copy.deepcopy(model).cuda()
    with torch.no_grad():
        right, ours = model.body(batch), there.body(batch.to("cuda"))
    pairs = [(ours.sequence, right.sequence)]
    if right.act_steps is not None:
        pairs.append((ours.act_steps, right.act_steps))
    if "target_ponder" in right.aux_losses:
        pairs.append((ours.aux_losses["target_ponder"], right.aux_losses["target_ponder"]))
    for mine, wanted in pairs:
        assert torch.allclose(mine.cpu().double(), wanted.double(), atol=1e-4 * float(wanted.abs().max() + 1))


@pytest.mark.parametrize("changes", SEARCHES)
@pytest.mark.parametrize(("name", "label", "dtype"), SEARCHED)
def test_a_captured_search_equals_a_plain_search_on_the_cpu(
    name: str, label: str, dtype: torch.dtype, changes: dict[str, Any]
) -> None:
    body, batch, end = body_and_batch(name, label)
    prompt, lengths, limits = torch.tensor([[4, 5], [6, 7], [8, 9]]), torch.tensor([1, 2, 2]), torch.tensor([9, 1, 8])
    batch = Batch(prompt, lengths) if batch.decoder is None else with_prompt(batch, prompt)
    body, settings = body.to(dtype), DecodeSettings(**changes)
    plain = SearchInputs(body, batch, end, limits, settings, np.arange(3))
    there = copy.deepcopy(body).cuda()
    with torch.inference_mode(), torch.backends.cudnn.flags(allow_tf32=False):
        right = plain_search(plain)
        for _ in range(2):  # captured, then replayed
            ours = search(there, batch.to("cuda"), end, limits, settings)
            assert [[f.tokens for f in row] for row in ours] == [[f.tokens for f in row] for row in right]
            for mine, theirs in zip(ours, right, strict=True):
                assert [f.score for f in mine] == pytest.approx(
                    [f.score for f in theirs], rel=1e-9 if dtype == torch.float64 else 1e-3
                )


@pytest.mark.parametrize(("name", "label"), RELATIVE)
@pytest.mark.parametrize("packed", [False, True])
def test_relative_positions_learn_about_the_same_in_sixteen_bits(name: str, label: str, packed: bool) -> None:
    model = noisy(tiny(name, label, width=48, heads=6 if name.startswith("gpt") else 3), 0.18)
    batch = collate(model, TINY[name].samples, packed=packed)
    right = model.task.objective.loss(model, batch, LossWeights())[0]
    theirs = gradients(model.body, right)
    model = model.float().cuda()
    with torch.autocast("cuda", torch.bfloat16):
        ours = model.task.objective.loss(model, batch.to("cuda"), LossWeights())[0]
    assert float(ours.detach()) == pytest.approx(float(right.detach()), rel=1e-2)
    found = {name: gradient.double().cpu() for name, gradient in gradients(model.body, ours).items()}
    for key, gradient in theirs.items():  # in 16 bits, rounding may activate a ReLU of a few tokens
        assert float((found[key] - gradient).norm()) < 0.2 * float(gradient.norm()) + 1e-3, key
    assert apart([found[key] for key in theirs], list(theirs.values())) < 0.02


def test_weights_of_many_keys_are_summed_without_being_lost() -> None:
    """A 16-bit sum of thousands of weights would stop growing; CPUs accumulate in float32."""
    shaw, far = Shaw(8).bfloat16().cuda(), torch.arange(4000).cuda()
    torch.nn.init.ones_(shaw.values.weight)
    weights = torch.full((1, 1, 1, 4000), 1 / 4000, dtype=torch.bfloat16).cuda()
    said = shaw.add_values(weights, PositionIds(torch.tensor([5000]).cuda(), far))
    assert torch.allclose(said, torch.ones_like(said), atol=0.01)


@pytest.mark.parametrize("name", ["rnn", "caption-fixed"])
def test_large_gradients_do_not_overflow(name: str) -> None:
    """Under autocast the recurrent kernels of cuDNN compute in float16, whose maximum is 65,504."""
    model = tiny("rnn").float()
    body, batch = (model.body, collate(model, TINY["rnn"].samples)) if name == "rnn" else (fresh(name), captioned())
    body = body.cuda().train()
    with torch.autocast("cuda", torch.bfloat16):
        states = body(batch.to("cuda")).sequence
    (1e7 * states.float().square().sum()).backward()
    norms = [float(p.grad.norm()) for p in body.parameters() if p.grad is not None]
    assert max(norms) > 1e6 and all(norm < float("inf") for norm in norms)


# -- images


def made(task: str, name: str, **changes: Any) -> Model:
    torch.manual_seed(1)
    model = regard.build(name, task=task, device="meta", **changes)
    spec = replace(model.spec, options=HeadOptions(() if task == "depth" else tuple("abcde")))
    model = assemble(spec, model.task.modality.default_processor(model.config, DataSettings()))
    for parameter in model.parameters():
        if float(parameter.detach().abs().sum()) == 0:  # gates initialized to 0 would block all gradients
            torch.nn.init.normal_(parameter, std=0.02)
    return without_chance(model).cuda().train()


def batch_for(model: Model, count: int = 4) -> Batch:
    how = Augment(crop=0.6, flip=True, color_jitter=0.2, mixup=0.2 if model.task.name == "classify" else 0.0)
    random = np.random.default_rng(3)
    height, width = require_image_processor(model).size
    shape = (count, height + 8, width + 8)
    x = torch.from_numpy(random.integers(0, 256, (count, 3, *shape[1:]), dtype=np.uint8))
    labels: Any = random.integers(0, 5, shape if model.task.name == "segment" else count)
    if model.task.name == "depth":
        labels = random.random(shape).astype(np.float32) * 4 + 0.5
    params = torch.from_numpy(sample_params(random, count, how))
    return Batch(x, labels=torch.from_numpy(labels), augmentation=Augmentation(params, settings=how))


@pytest.mark.parametrize(("task", "name"), IMAGES)
def test_a_captured_step_of_images_equals_a_plain_step(task: str, name: str) -> None:
    model = made(task, name)
    steps = [batch_for(model)] * 2  # the second call replays the graph
    plain, graph = (learnt(computing(model, way, precision="float32"), steps)[-1] for way in ("plain", "graph"))
    assert len(plain) > 12 and float(graph[0]) == pytest.approx(float(plain[0]), rel=1e-3)
    assert apart(graph[2:], plain[2:]) <= 2e-2  # convolution kernels are selected again and sum in any order


@pytest.mark.parametrize(("task", "name"), IMAGES)
def test_image_features_on_the_device_equal_the_cpu(task: str, name: str) -> None:
    model = made(task, name).eval()
    pixels = torch.rand(2, 3, *require_image_processor(model).size)
    with torch.no_grad():
        wanted = copy.deepcopy(model).cpu().states(pixels).sequence
        got = model.states(pixels.cuda()).sequence.cpu()
        low = model.bfloat16().states(pixels.cuda().bfloat16()).sequence.cpu().float()
    assert (got - wanted).norm() <= 5e-3 * wanted.norm()
    assert (low - wanted).norm() <= 6e-2 * wanted.norm()


def test_gradients_of_small_patches_in_sixteen_bits_are_close_to_float32() -> None:
    """197 tokens use the cuDNN kernel."""
    model = made("classify", "vit-tiny", patch_size=2, depth=4)
    ways = {"plain": "float32", "graph": "bfloat16"}
    steps = [batch_for(model, 16)] * 2
    right, ours = (learnt(computing(model, way, precision=kind), steps)[-1] for way, kind in ways.items())
    assert apart(ours[2:], right[2:]) <= 5e-2


def test_images_are_augmented_on_the_device_as_on_the_cpu() -> None:
    how = Augment(crop=0.3, flip=True, color_jitter=0.3, mixup=0.4)
    random = np.random.default_rng(0)
    x = torch.from_numpy(random.integers(0, 256, (5, 3, 40, 52), dtype=np.uint8))
    changes = torch.from_numpy(sample_params(random, 5, how))
    wanted = augment_images(x, changes, (32, 30), how)
    assert (augment_images(x.cuda(), changes.cuda(), (32, 30), how).cpu() - wanted).abs().max() < 2e-3
