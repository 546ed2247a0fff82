"""Point Transformer against a loop implementation; permutation, packing, gradients, heads, presets and settings."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import point_transformer_reference as reference
from data_files import refused
from regard.errors import RegardError
from regard.nn.points.body import PointTransformer, point_head
from regard.systems import point
from regard.systems.point import Config, build
from regard.types import Batch, Packing
from tiny import noisy

SMALL = Config(
    feature_dim=2,
    widths=(4, 8, 12),
    depths=(1, 1, 2),
    downsample=(1, 3, 2),
    num_neighbors=(4, 5, 6),
    share_planes=2,
    point_order="given",
)
FORMS = ["released", "paper"]
forms = pytest.mark.parametrize("form", FORMS)
orders = pytest.mark.parametrize("order", ["given", "sorted"])
COUNTS = [(23,), (9, 26, 1, 4), (12, 12)]


def body_of(**changes: Any) -> PointTransformer:
    return noisy(build(replace(SMALL, **changes)), 0.4)


def weights_of(module: nn.Module) -> dict[str, np.ndarray]:
    return {name: value.detach().numpy() for name, value in module.state_dict().items()}


def cloud(count: int, inputs: int = 2, seed: int = 0) -> Tensor:
    return torch.randn(count, 3 + inputs, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def packed(counts: tuple[int, ...], longest: int = 0) -> Batch:
    x = torch.cat([cloud(count, seed=number) for number, count in enumerate(counts)])
    starts = torch.tensor([0, *counts]).cumsum(0)
    return Batch(x[None], packing=Packing(starts, longest or max(counts)))


@forms
@orders
@pytest.mark.parametrize("decodes", [True, False])
@pytest.mark.parametrize("counts", COUNTS)
def test_the_body_equals_a_loop_over_points(form: Any, order: Any, decodes: bool, counts: Any) -> None:
    body, batch = body_of(variant=form, point_order=order, has_decoder=decodes), packed(counts)
    config, w = replace(SMALL, variant=form, point_order=order, has_decoder=decodes), weights_of(body)
    states = body(batch)
    alone = [reference.body(w, own.numpy(), config) for own in batch.inputs[0].split(counts)]
    sequence, summary = np.concatenate([said for said, _, _ in alone]), np.stack([mean for _, mean, _ in alone])
    assert states.sequence.shape == (1, *sequence.shape) and states.pooled is not None
    assert np.abs(states.sequence[0].detach().numpy() - sequence).max() < 1e-11 * np.abs(sequence).max()
    assert np.abs(states.pooled.detach().numpy() - summary).max() < 1e-11 * np.abs(summary).max()
    starts = [0, *np.cumsum(counts)[:-1].tolist()]
    for level in range(3):
        kept = [first + i for first, (_, _, names) in zip(starts, alone, strict=True) for i in names[level]]
        assert states.aux_losses[f"level{level}"].tolist() == kept


@forms
def test_point_clouds_of_one_batch_equal_each_alone_and_as_rows(form: Any) -> None:
    body, batch = body_of(variant=form), packed((12, 12))
    together = body(batch)
    rows = body(Batch(batch.inputs.view(2, 12, 5)))
    assert torch.equal(together.sequence, rows.sequence) and torch.equal(together.pooled, rows.pooled)  # type: ignore[arg-type]
    rounded = body(packed((12, 12), longest=16))  # equal sizes in a batch with padding
    assert torch.allclose(together.sequence, rounded.sequence, atol=1e-12)
    assert torch.equal(rounded.aux_losses["level2"], together.aux_losses["level2"])


@forms
def test_neighbor_lists_are_computed_once_for_each_level(form: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from regard.nn.points import body as point_body

    asked = []
    real = point_body.knn
    monkeypatch.setattr(point_body, "knn", lambda *args: asked.append(args[2]) or real(*args))  # type: ignore[func-returns-value]
    body_of(variant=form)(packed((23,)))
    assert sorted(asked) == [4, 5, 5, 6, 6]


@forms
@pytest.mark.parametrize("counts", [(30,), (9, 26, 4)])
def test_permuted_points_permute_the_output_and_keep_the_pooled_output(form: Any, counts: Any) -> None:
    """Includes grids and duplicate points: only coordinates may break ties."""
    body, batch = body_of(variant=form, point_order="sorted"), packed(counts)
    x = batch.inputs.clone()
    x[..., :3] = x[..., :3].round()
    x[0, 1] = x[0, 0]
    draw = torch.Generator().manual_seed(4)
    turned = torch.cat([
        first + torch.randperm(count, generator=draw)
        for first, count in zip(np.cumsum([0, *counts]).tolist(), counts, strict=False)
    ])  # fmt: skip
    a, b = body(replace(batch, inputs=x)), body(replace(batch, inputs=x[:, turned]))
    assert (a.sequence[:, turned] - b.sequence).abs().max() < 1e-12 * a.sequence.abs().max()
    assert a.pooled is not None and (a.pooled - b.pooled).abs().max() < 1e-12 * a.pooled.abs().max()
    same = x[0, a.aux_losses["level2"]] == x[:, turned][0, b.aux_losses["level2"]]
    assert bool(same.all())


@pytest.mark.every(4)
@forms
@orders
def test_gradients_of_the_body_are_those_of_small_differences(form: Any, order: Any) -> None:
    tiny = {"feature_dim": 1, "widths": (2, 4), "depths": (1, 1), "downsample": (1, 3), "num_neighbors": (3, 3)}
    x = cloud(9, 1)
    for decodes in (False, True):
        body = body_of(**tiny, variant=form, point_order=order, has_decoder=decodes).train()
        batch = Batch(x[None], packing=Packing(torch.tensor([0, 7, 9]), 8))

        def said(features: Tensor, body: PointTransformer = body, batch: Batch = batch) -> tuple[Tensor, ...]:
            states = body(replace(batch, inputs=torch.cat([x[None, :, :3], features], -1)))
            assert states.pooled is not None
            return states.sequence, states.pooled

        assert torch.autograd.gradcheck(said, (x[None, :, 3:].clone().requires_grad_(),))
    body = body_of(**tiny, variant=form, point_order=order, has_decoder=False).train()
    # without the decoder, whose interpolation weights are detached, gradients of the coordinates are complete
    assert torch.autograd.gradcheck(lambda x: body(Batch(x)).sequence, (x[None].clone().requires_grad_(),))


def test_invalid_inputs_are_reported() -> None:
    body = body_of()
    refused("Expected points with", body, Batch(torch.zeros(1, 9, 3).double()), error=RegardError)
    refused("without", body, Batch(torch.zeros(1, 0, 5).double()), error=RegardError)
    with pytest.raises(RegardError, match="points"):
        body(Batch(torch.zeros(1, 9, 5).double(), packing=Packing(torch.tensor([0, 4, 4, 9]), 9)))
    with pytest.raises(ValueError, match="Padding masks are not supported"):
        body(Batch(torch.zeros(2, 9, 5).double(), mask=torch.tensor([9, 3])))
    refused("more than one point", body.train(), Batch(torch.zeros(1, 1, 5).double()), error=RegardError)


def test_one_point_is_a_point_cloud_and_many_copies_are_too() -> None:
    for count in (1, 2, 40):
        states = body_of()(Batch(torch.ones(1, count, 5).double()))
        assert bool(states.sequence.isfinite().all()) and bool(states.pooled.isfinite().all())  # type: ignore[union-attr]
        assert (states.sequence - states.sequence[:, :1]).abs().max() < 1e-12


def test_sixteen_bits_are_close() -> None:
    torch.manual_seed(0)
    body = build(replace(SMALL, widths=(16, 32, 64), share_planes=8)).eval()
    x = cloud(200).float()[None]
    x[..., :3] += 100  # neighbors depend on the coordinates before rounding
    exact = body(Batch(x)).sequence
    with torch.autocast("cpu", torch.bfloat16):
        cast = body(Batch(x)).sequence.float()
    low = copy.deepcopy(body).bfloat16()(Batch(x)).sequence.float()
    for other in (cast, low):
        assert (other - exact).norm() < 3e-2 * exact.norm()


def count(module: nn.Module) -> int:
    return sum(part.numel() for part in module.parameters())


def test_the_released_segmentation_has_exactly_the_parameters_of_the_released_code() -> None:
    """S3DIS: colors and coordinates, 13 classes."""
    config = replace(point.PRESETS["point-base"].config, feature_dim=3)
    with torch.device("meta"):
        assert count(build(config)) + count(point_head(config, 13)) == 7_767_729
