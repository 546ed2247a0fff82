"""Point clouds on a CUDA device: kernels, outputs and gradients equal the results of the CPU."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from test_cuda_systems import apart
from test_knn import points
from torch import Tensor
from torch.nn import functional as F

from regard import capabilities
from regard.nn.kernels.cuda_graph import capture
from regard.nn.points import knn as knn_module
from regard.nn.points.body import PointTransformer, point_head
from regard.nn.points.knn import knn, knn_grid
from regard.nn.points.packing import CloudSizes, farthest_point_sampling
from regard.systems.point import PRESETS, Config, build
from regard.types import Batch, Packing

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

KINDS = ("spread", "grid", "far", "line", "clusters", "copies", "one place", "sorted")
kinds = pytest.mark.parametrize("kind", KINDS)
COUNTS = [(1000,), (1,), (7, 300, 2, 1, 250), (64,) * 8, (3000, 20, 5000)]


def places_of(counts: tuple[int, ...], kind: str, seed: int = 0) -> Tensor:
    x = points(sum(counts), "spread" if kind == "sorted" else kind, seed).float()
    return x[x[:, 0].argsort()] if kind == "sorted" else x


# -- kernels


@kinds
@pytest.mark.parametrize("counts", COUNTS)
def test_neighbors_equal_the_cpu(kind: str, counts: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    x, packing = places_of(counts, kind), CloudSizes(counts)
    kept = packing.downsampled(4)
    few = x[:: max(len(x) // sum(kept.counts), 1)][: sum(kept.counts)]
    for count in (3, 8, 16, 20):
        wanted, down = knn(x, packing, count), knn(x, packing, count, few, kept)
        up = knn(few, kept, count, x, packing)
        for plain in (False, True):
            with monkeypatch.context() as patch:
                if plain:
                    patch.setitem(capabilities._results, "triton", False)
                assert torch.equal(knn(x.cuda(), packing, count).cpu(), wanted)
                assert torch.equal(knn(x.cuda(), packing, count, few.cuda(), kept).cpu(), down)
                assert torch.equal(knn(few.cuda(), kept, count, x.cuda(), packing).cpu(), up)


def test_a_large_point_cloud_has_the_neighbors_of_cell_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = torch.Generator().manual_seed(0)
    for x in (torch.rand(40_000, 3, generator=draw), torch.randn(40_000, 3, generator=draw).round()):
        wanted = knn_grid(x, x, 16, 2**21)
        assert torch.equal(knn(x.cuda(), CloudSizes((40_000,)), 16).cpu(), wanted)
        with monkeypatch.context() as patch:  # cell lists on the device, too
            patch.setattr(knn_module, "GRID_MIN_POINTS_CUDA", 30_000)
            assert torch.equal(knn(x.cuda(), CloudSizes((40_000,)), 16).cpu(), wanted)


@kinds
@pytest.mark.parametrize("counts", [*COUNTS, (8192, 8193), (20_000,), (9000, 40, 30_000)])
def test_farthest_points_are_those_of_the_cpu(
    kind: str, counts: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Includes point clouds that are split over several programs of the kernel."""
    x, packing = places_of(counts, kind), CloudSizes(counts)
    for rate in (4,) if sum(counts) > 10_000 else (1, 4):
        kept = packing.downsampled(rate)
        wanted = farthest_point_sampling(x, packing, kept)
        assert torch.equal(farthest_point_sampling(x.cuda(), packing, kept).cpu(), wanted)
    if sum(counts) < 2000:
        monkeypatch.setitem(capabilities._results, "triton", False)
        assert torch.equal(farthest_point_sampling(x.cuda(), packing, kept).cpu(), wanted)


def test_float64_is_searched_without_the_kernels() -> None:
    x, packing = points(300, "grid"), CloudSizes((100, 200))
    assert torch.equal(knn(x.cuda(), packing, 8).cpu(), knn(x, packing, 8))
    assert torch.equal(
        farthest_point_sampling(x.cuda(), packing, packing.downsampled(4)).cpu(),
        farthest_point_sampling(x, packing, packing.downsampled(4)),
    )


# -- the model

SMALL = Config(feature_dim=3, widths=(32, 64, 128), depths=(1, 2, 1), downsample=(1, 4, 4), num_neighbors=(8, 16, 16))


def made(**changes: Any) -> PointTransformer:
    torch.manual_seed(1)
    return build(replace(SMALL, **changes))


def even(clouds: int = 4, count: int = 512, first: int = 0) -> Batch:
    return Batch(torch.stack([cloud(count, number) for number in range(first, first + clouds)]))


def uneven(counts: tuple[int, ...] = (500, 9, 911)) -> Batch:
    x = torch.cat([cloud(count, number) for number, count in enumerate(counts)])
    return Batch(x[None], packing=Packing(torch.tensor([0, *counts]).cumsum(0), 1024))


def cloud(count: int, number: int) -> Tensor:
    """Point clouds of different extents, because batch norm would amplify rounding in similar point clouds."""
    x = torch.rand(count, 6, generator=torch.Generator().manual_seed(number))
    return x * torch.tensor([1.0 + number, 1.0, 0.2 * number, 1.0, 0.3 * number, 1.0])


def way_of(x: Tensor) -> Tensor:
    """Random direction: gradients of a sum of squares after a norm would nearly cancel."""
    return torch.randn(x.shape, generator=torch.Generator().manual_seed(9), dtype=torch.float64).to(x.device)


def towards(x: Tensor) -> Tensor:
    """Projection of x onto a random direction."""
    return (x.double() * way_of(x)).sum()


def learnt(body: PointTransformer, batch: Batch, low: bool = False) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Outputs, pooled outputs and gradients."""
    for part in body.parameters():
        part.grad = None
    with torch.autocast(batch.inputs.device.type, torch.bfloat16, enabled=low):
        states = body(batch)
        assert states.pooled is not None
        loss = towards(states.sequence) + towards(states.pooled)
    loss.backward()
    grads = [part.grad.cpu() for part in body.parameters() if part.grad is not None]
    return states.sequence.detach().float().cpu(), states.pooled.detach().float().cpu(), grads


@pytest.mark.parametrize("form", ["released", "paper"])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("given", [even, uneven])
def test_outputs_and_gradients_on_the_device_equal_the_cpu(form: Any, training: bool, given: Any) -> None:
    body, batch = made(variant=form).train(training), given()
    wanted, whole, grads = learnt(body, batch)
    # in training, rounding sometimes decides which neighbor is the maximum, and moves the gradient to another neighbor
    near, far = (1e-3, 0.1) if training else (1e-4, 1e-3)
    got, summary, ours = learnt(copy.deepcopy(body).cuda(), batch.to("cuda"))
    assert apart([got, summary], [wanted, whole]) < near and apart(ours, grads) < far
    near, far = (0.1, 0.7) if training else (2e-2, 0.15)
    low, summary, ours = learnt(copy.deepcopy(body).cuda(), batch.to("cuda"), low=True)
    assert apart([low, summary], [wanted, whole]) < near and apart(ours, grads) < far


def compiled_is_plain(name: str) -> None:
    given = {"even": even, "uneven": uneven}[name]
    body, batch = made().cuda().eval(), given().to("cuda")
    wanted, whole, grads = learnt(body, batch)
    compiled: Any = torch.compile(body, fullgraph=given is even)
    got, summary, ours = learnt(compiled, batch)
    assert apart([got, summary], [wanted, whole]) < 1e-4 and apart(ours, grads) < 1e-2


def compiled_learns_in_sixteen_bits() -> None:
    """With different rounding, the maximum over neighbors is still the value of one neighbor."""
    body, batch = made().cuda().train(), even().to("cuda")
    wanted, whole, _grads = learnt(body, batch, low=True)
    compiled: Any = torch.compile(body, fullgraph=True)
    got, summary, ours = learnt(compiled, batch, low=True)
    assert all(bool(part.isfinite().all()) for part in ours)
    assert apart([got, summary], [wanted, whole]) < 0.2


@pytest.mark.parametrize(
    "work", ["compiled_is_plain('even')", "compiled_is_plain('uneven')", "compiled_learns_in_sixteen_bits()"]
)
def test_compiled_outputs_and_gradients_are_equal(work: str) -> None:
    """Runs in a subprocess: the shape checks around functions in tests cannot be compiled."""
    words = [sys.executable, "-c", f"import test_cuda_points; test_cuda_points.{work}"]
    done = subprocess.run(
        words, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_a_captured_step_equals_a_plain_step() -> None:
    """Point clouds of one size need no synchronization; the graph keeps nothing of the captured batch."""
    body, batch, other = made().cuda().train(), even().to("cuda"), even(first=4).to("cuda")
    plain = copy.deepcopy(body)
    ways: list[Tensor] = []

    def work() -> Tensor:
        for part in body.parameters():
            part.grad = None
        states = body(batch)
        assert states.pooled is not None
        said = (states.sequence.double(), states.pooled.double())
        if not ways:  # drawn before the capture, which allows no copies from the host
            ways.extend(way_of(x) for x in said)
        loss = torch.stack([(x * way).sum() for x, way in zip(said, ways, strict=True)]).sum()
        loss.backward()
        return loss

    graph, _ = capture(work, torch.device("cuda"))
    plain.load_state_dict(body.state_dict())  # including the batch norm statistics
    batch.inputs.copy_(other.inputs)
    graph.replay()
    torch.cuda.synchronize()
    _, _, grads = learnt(plain, other)
    for (name, kept), right in zip(body.named_buffers(), plain.buffers(), strict=True):
        assert torch.allclose(kept, right, rtol=1e-2, atol=1e-3), name
    assert apart([part.grad.cpu() for part in body.parameters() if part.grad is not None], grads) < 0.1


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_learns_in_sixteen_bits(name: str) -> None:
    config = PRESETS[name].config
    torch.manual_seed(0)
    body, head = build(config).cuda(), point_head(config, 13).cuda()
    x, labels = torch.rand(2, 1024, 3, device="cuda"), torch.randint(0, 13, (2048,), device="cuda")
    parts = [*body.parameters(), *head.parameters()]
    optimiser, losses = torch.optim.AdamW(parts, 1e-3), []
    for _ in range(12):
        with torch.autocast("cuda", torch.bfloat16):
            loss = F.cross_entropy(head(body(Batch(x)).sequence)[0].float(), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]
