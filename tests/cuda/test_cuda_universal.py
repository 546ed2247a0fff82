"""Universal Transformer and random position offsets on a CUDA device: captured training and decoding."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from test_cuda_recurrent import apart, without_chance

from regard.decode.search import search
from regard.decode.settings import DecodeSettings
from regard.tasks.base import LossWeights
from regard.training.distributed import ProcessGroup
from regard.training.loop import ForwardBackward, GraphedForwardBackward, LossModule
from regard.training.settings import TrainSettings
from regard.types import Batch, DecoderInputs
from tiny import CASES, TINY, collate, tiny

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

universal = [case for case in CASES if case[0] in ("universal", "universal-encoder")]
cases = pytest.mark.parametrize(("name", "label"), universal)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("packed", [False, True])
@cases
def test_captured_steps_equal_plain_steps(name: str, label: str, packed: bool, precision: str) -> None:
    still = {"max_position_offset": 0} if name == "universal" else {}
    model = without_chance(tiny(name, label, **still).float()).cuda().train()
    batch = collate(model, TINY[name].samples, packed=packed)
    settings, results = TrainSettings(precision=precision), []  # type: ignore[arg-type]
    for way in ("plain", "graph"):
        model.zero_grad(set_to_none=True)
        compute = ForwardBackward(
            LossModule(model, model.objective, LossWeights(0.1)),
            settings,
            torch.device("cuda"),
            ProcessGroup(),
            static_shape=True,
        )
        compute.set_mode(way)  # type: ignore[arg-type]
        for _ in range(2):
            compute.zero_grad()
            total, count = compute(batch)
        assert compute.mode == way and isinstance(compute.run, GraphedForwardBackward) == (way == "graph")
        grown = [p.grad.clone() for p in compute.parameters if p.grad is not None]
        results.append([total.clone(), count.clone(), *grown])
    assert apart(results[1], results[0]) < (1e-4 if precision == "float32" else 2e-2)


@pytest.mark.parametrize("packed", [False, True])
@cases
def test_ponder_steps_and_states_on_the_device_equal_the_cpu(name: str, label: str, packed: bool) -> None:
    model = tiny(name, label).float().eval()
    batch = collate(model, TINY[name].samples, packed=packed)
    there = copy.deepcopy(model).cuda()
    with torch.no_grad():
        right, ours = model.body(batch), there.body(batch.to("cuda"))
    for mine, wanted in ((ours.sequence, right.sequence), *pondered(ours, right)):
        assert mine is not None
        assert torch.allclose(mine.cpu().double(), wanted.double(), atol=1e-4 * float(wanted.abs().max() + 1))


def pondered(ours: Any, right: Any) -> list[tuple[Any, Any]]:
    found = [(ours.act_steps, right.act_steps)] if right.act_steps is not None else []
    return found + [(ours.aux_losses[key], right.aux_losses[key]) for key in right.aux_losses if key == "target_ponder"]


@pytest.mark.parametrize("label", [label for name, label in universal if name == "universal"])
def test_the_device_equals_the_cpu(label: str) -> None:
    model = tiny("universal", label).float().eval()
    batch = collate(model, TINY["universal"].samples)
    prompt = Batch(
        batch.inputs, batch.mask, decoder=DecoderInputs(torch.full((len(batch.inputs), 1), model.config.bos_id))
    )
    limits = torch.full((len(batch.inputs),), 8)
    there = copy.deepcopy(model.body).cuda()
    for decode in (DecodeSettings(num_beams=1), DecodeSettings(num_beams=3)):
        with torch.no_grad():
            right = search(model.body, prompt, model.config.eos_id, limits, decode)
            ours = search(there, prompt.to("cuda"), model.config.eos_id, limits, decode)
        assert [[found.tokens for found in row] for row in ours] == [[found.tokens for found in row] for row in right]


@pytest.mark.parametrize("name", ["transformer", "universal"])
def test_position_offsets_change_in_each_replay_of_a_graph(name: str) -> None:
    """Packed rows in a CUDA graph and in plain steps have equal losses on average."""
    model = without_chance(tiny(name, max_position_offset=40).float()).cuda().train()
    batch = collate(model, TINY[name].samples, packed=True)
    compute = ForwardBackward(
        LossModule(model, model.objective, LossWeights(0.0)),
        TrainSettings(),
        torch.device("cuda"),
        ProcessGroup(),
        static_shape=True,
    )
    means = {}
    for way in ("plain", "graph"):
        compute.set_mode(way)  # type: ignore[arg-type]
        told = []
        for _ in range(200):
            compute.zero_grad()
            total, count = compute(batch)
            told.append(float(total) / float(count))
        assert compute.mode == way and len(set(told)) > 50
        means[way] = torch.tensor(told)
    gap = abs(float(means["plain"].mean() - means["graph"].mean()))
    assert gap < 5 * float(means["plain"].std()) / 10
