"""Recurrent translators, ConvS2S and captioners on a CUDA device: captured training and decoding."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from regard.decode.search import search
from regard.decode.settings import DecodeSettings
from regard.tasks import find_task
from regard.tasks.base import LossWeights
from regard.training.distributed import ProcessGroup
from regard.training.loop import ForwardBackward, GraphedForwardBackward, LossModule
from regard.training.settings import TrainSettings
from regard.types import Batch, DecoderInputs
from tiny import CASES, TINY, Numbers, collate, tiny
from tiny_caption_models import SIZES, batch_of, fresh

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

cases = pytest.mark.parametrize(("name", "label"), [c for c in CASES if c[0] in ("rnn", "rnnsearch", "convs2s")])
TASK = find_task("translate")


def apart(ours: list[torch.Tensor], right: list[torch.Tensor]) -> float:
    whole = sum(float(g.double().square().sum()) for g in right) ** 0.5
    return sum(float((a.double() - b.double()).square().sum()) for a, b in zip(ours, right, strict=True)) ** 0.5 / whole


def without_chance(body: Any) -> Any:
    for part in body.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    return body


@cases
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_captured_micro_batches_of_several_shapes_equal_plain_ones(name: str, label: str, precision: str) -> None:
    model = without_chance(tiny(name, label).float()).cuda().train()
    found = TASK.objective.encode(TINY[name].samples, Numbers(), model.config, 100)  # type: ignore[arg-type]
    plan = TASK.objective.sampler(found, model.config, 40, 0, packed=True)
    grains = [grain for number in range(4) for grain in plan.epoch(number)]
    settings = TrainSettings(precision=precision)  # type: ignore[arg-type]
    results = []
    for way in ("plain", "graph"):
        model.zero_grad(set_to_none=True)
        compute = ForwardBackward(
            LossModule(model, TASK.objective, LossWeights(0.1)),
            settings,
            torch.device("cuda"),
            ProcessGroup(),
            False,
            bucketed=True,
        )
        compute.set_mode(way)  # type: ignore[arg-type]
        told = []
        for grain in grains:
            compute.zero_grad()
            total, count = compute(TASK.objective.collate(found, grain, model.config, plan.shape_of(grain)))
            told += [total.clone(), count.clone(), *(p.grad.clone() for p in compute.parameters if p.grad is not None)]
        assert compute.mode == way
        if way == "graph":
            assert isinstance(compute.run, GraphedForwardBackward) and len(compute.run.graphs) == len(
                plan.bucket_shapes
            )  # type: ignore[attr-defined]
        results.append(told)
    assert apart(results[1], results[0]) < (1e-4 if precision == "float32" else 2e-2)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", SIZES)
def test_captured_steps_of_captioners_equal_plain_steps(name: str, precision: str) -> None:
    class Whole(torch.nn.Module):
        def __init__(self, body: Any) -> None:
            super().__init__()
            self.body = body

    torch.manual_seed(1)
    model: Any = Whole(without_chance(fresh(name))).cuda().train()
    batch = batch_of().map(lambda part: part.float() if part.is_floating_point() else part)
    results = []
    for way in ("plain", "graph"):
        model.zero_grad(set_to_none=True)
        settings = TrainSettings(precision=precision)  # type: ignore[arg-type]
        compute = ForwardBackward(
            LossModule(model, find_task("caption").objective, LossWeights(0.1)),
            settings,
            torch.device("cuda"),
            ProcessGroup(),
            static_shape=True,
        )
        compute.set_mode(way)  # type: ignore[arg-type]
        for _ in range(2):
            compute.zero_grad()
            total, count = compute(batch)
        assert compute.mode == way
        results.append(
            [total.clone(), count.clone(), *(p.grad.clone() for p in compute.parameters if p.grad is not None)]
        )
    assert apart(results[1], results[0]) < (1e-3 if precision == "float32" else 3e-2)


@cases
def test_the_device_equals_the_cpu(name: str, label: str) -> None:
    model = tiny(name, label).float().eval()
    batch = collate(model, TINY[name].samples)
    prompt = Batch(
        batch.inputs, batch.mask, decoder=DecoderInputs(torch.full((len(batch.inputs), 1), model.config.bos_id))
    )
    limits = torch.full((len(batch.inputs),), 8)
    for decode in (DecodeSettings(num_beams=1), DecodeSettings(num_beams=3)):
        there = copy.deepcopy(model.body).cuda()
        with torch.no_grad(), torch.backends.cudnn.flags(allow_tf32=False):
            right = search(model.body, prompt, model.config.eos_id, limits, decode)
            ours = search(there, prompt.to("cuda"), model.config.eos_id, limits, decode)
        assert [[found.tokens for found in row] for row in ours] == [[found.tokens for found in row] for row in right]


@pytest.mark.parametrize("name", SIZES)
def test_captioners_on_the_device_equal_the_cpu(name: str) -> None:
    torch.manual_seed(2)
    body = fresh(name).eval()
    x = batch_of().inputs.float()
    prompt = Batch(x, decoder=DecoderInputs(torch.ones(len(x), 1, dtype=torch.long)))
    limits = torch.full((len(x),), 8)
    there = copy.deepcopy(body).cuda()
    with torch.no_grad():
        right = search(body, prompt, 2, limits, DecodeSettings(num_beams=2))
        ours = search(there, prompt.to("cuda"), 2, limits, DecodeSettings(num_beams=2))
    for mine, wanted in zip(ours, right, strict=True):
        assert mine[0].score == pytest.approx(wanted[0].score, abs=2e-2)


@pytest.mark.parametrize("name", ["rnn", "caption-fixed"])
def test_large_gradients_do_not_overflow(name: str) -> None:
    """Under autocast the recurrent kernels of cuDNN compute in float16, whose maximum is 65,504."""
    if name == "rnn":
        model = tiny("rnn").float()
        body, batch = model.body, collate(model, TINY["rnn"].samples)
    else:
        body, batch = fresh(name), batch_of().map(lambda part: part.float() if part.is_floating_point() else part)
    body = body.cuda().train()
    with torch.autocast("cuda", torch.bfloat16):
        states = body(batch.to("cuda")).sequence
    (1e7 * states.float().square().sum()).backward()
    norms = [float(p.grad.norm()) for p in body.parameters() if p.grad is not None]
    assert max(norms) > 1e6 and all(norm < float("inf") for norm in norms)
