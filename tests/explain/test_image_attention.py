"""Attention maps of images and point clouds against transformers and dense matrices; attention in regions."""

from __future__ import annotations

import base64
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import regard
from conftest import Cli
from data_files import refused
from page_data import page_data
from regard.data.points.cloud import PointCloud
from regard.data.points.cloud_files import read_cloud, write_ply
from regard.errors import RegardError
from regard.explain.captioning import ALL_KINDS, PointingScore, cell_coverage, region_mask, score_by_kind
from regard.explain.images import METHODS, GridAttention, ImageAttention, TokenGrid, query_grid_size
from regard.explain.points import CloudExplanation, query_index
from regard.explain.rollout import logit_margin
from regard.model import Model
from regard.nn.recording import record_attention
from regard.processors.image import ImageProcessor
from regard.processors.palette import Palette
from regard.processors.points import PointProcessor
from regard.runs.explain import parse_position
from regard.systems import find_preset
from regard.tasks.modality.image import prepare_images, require_image_processor
from regard.tasks.modality.points import require_point_processor
from regard.types import Batch
from tiny import near, noisy
from tiny_point_models import LABELS, cloud
from tiny_point_models import made as made_points
from tiny_vision_models import made

transformers = pytest.importorskip("transformers")
transformers.utils.logging.set_verbosity_error()

RANDOM = np.random.default_rng(3)
HIGH, WIDE = 57, 43
PICTURE = RANDOM.integers(0, 256, (HIGH, WIDE, 3), dtype=np.uint8)
GRIDS = [(29, 22), (15, 11), (8, 6), (4, 3)]
SWIN: dict[str, Any] = {
    "image_size": 32, "patch_size": 2, "embed_dim": 8, "depths": [2, 3, 2, 2], "num_heads": [2, 1, 4, 8], "window_size": 3,
    "mlp_ratio": 1.5, "drop_path_rate": 0.0, "num_labels": 5,
}  # fmt: skip


def windows(grid: tuple[int, int], side: int, shift: int) -> np.ndarray:
    """Token indices of each window, (N, M), with -1 for padding."""
    down, across = (math.ceil(n / side) for n in grid)
    at = np.full((down * side, across * side), -1)
    at[: grid[0], : grid[1]] = np.arange(grid[0] * grid[1]).reshape(grid)
    at = np.roll(at, (-shift, -shift), (0, 1)).reshape(down, side, across, side)
    return at.swapaxes(1, 2).reshape(down * across, side**2)


def whole(weights: np.ndarray, queries: np.ndarray, keys: np.ndarray, count: int) -> np.ndarray:
    """Attention matrix (L, L) from weights of any shape with the index of each query and key, -1 for padding."""
    found, (queries, keys) = np.zeros((count, count)), np.broadcast_arrays(queries, keys)
    real = (queries >= 0) & (keys >= 0)
    np.add.at(found, (queries[real], keys[real]), weights[real])
    return found


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Model, list[np.ndarray], Tensor]:
    """Our Swin, the attention matrices of transformers for each block, and the logits of transformers."""
    folder = tmp_path_factory.mktemp("swin")
    config = transformers.SwinConfig(**SWIN, attn_implementation="eager")
    peer = noisy(transformers.SwinForImageClassification(config)).double().eval()
    peer.save_pretrained(folder)
    model = regard.load(folder)
    model.processor = ImageProcessor((HIGH, WIDE), "none")
    seen: list[Tensor] = []
    for part in peer.modules():
        if type(part).__name__ == "SwinAttention":
            part.register_forward_hook(lambda _, __, output: seen.append(output[1]))
    x = model.processor.normalize(torch.from_numpy(PICTURE).permute(2, 0, 1)[None]).double()
    with torch.no_grad(), pytest.MonkeyPatch.context() as patch:
        # transformers computes the softmax in float32
        patch.setattr(torch.nn.functional, "softmax", lambda x, dim, dtype=None: x.softmax(dim))
        said = peer(x, output_attentions=True)
    published = iter(said.attentions)
    found = []
    for stage, many in enumerate(SWIN["depths"]):
        for block in range(many):
            own = seen.pop(0)
            places = windows(GRIDS[stage], 3, (block % 2) if min(GRIDS[stage]) > 3 else 0)
            heads, count = own.transpose(0, 1).numpy(), GRIDS[stage][0] * GRIDS[stage][1]
            found.append(np.stack([whole(head, places[:, :, None], places[:, None], count) for head in heads]))
        assert torch.equal(own, next(published))  # transformers returns the last block of each stage
    return model, found, said.logits


def test_attention_maps_of_swin_equal_transformers(pair: Any) -> None:
    model, right, logits = pair
    near(model.logits(model.processor.normalize(_bytes(model))), logits, 1e-10)
    found = model.explain(PICTURE)
    assert [layer.shape[1:] for layer in found.attention] == [GRIDS[n] for n in (0, 0, 1, 1, 1, 2, 2, 3, 3)]
    for own, matrix in zip(found.attention, right, strict=True):
        near(torch.from_numpy(own).flatten(1), torch.from_numpy(matrix.mean(1)), 1e-10)
    assert found.query_grid == GRIDS[0]
    for number, matrix in ((0, right[0]), (1, right[1])):  # for every token
        each = torch.from_numpy(found.layers[number].weights_per_query).flatten(2).double()
        near(each, torch.from_numpy(matrix).transpose(0, 1), 1e-6)
    found = model.explain(PICTURE, at=(33, 20))
    for stage, own, matrix in zip((0, 0, 1, 1, 1, 2, 2, 3, 3), found.attention, right, strict=True):
        place = 33 // 2 ** (stage + 1) * GRIDS[stage][1] + 20 // 2 ** (stage + 1)
        near(torch.from_numpy(own).flatten(1), torch.from_numpy(matrix[:, place]), 1e-10)
    assert set(found.method_maps) == {"rollout"}  # the class is predicted from the average over tokens


def test_rollout_covers_windows_and_merging(pair: Any) -> None:
    """Product of full matrices: normalized (A + I) per block, and the average of four tokens per merge."""
    model, right, _ = pair
    state, layer = np.eye(GRIDS[0][0] * GRIDS[0][1]), iter(right)
    for stage, many in enumerate(SWIN["depths"]):
        if stage:
            state = merging(GRIDS[stage], GRIDS[stage - 1]) @ state
        for _ in range(many):
            matrix = next(layer).mean(0) + np.eye(len(state))
            state = matrix / matrix.sum(1, keepdims=True) @ state
    found = model.explain(PICTURE)
    assert found.method_maps["rollout"].shape == GRIDS[0]
    near(torch.from_numpy(found.method_maps["rollout"]).flatten(), torch.from_numpy(state.mean(0)), 1e-10)
    place = model.explain(PICTURE, at=(40, 9)).method_maps["rollout"]
    near(torch.from_numpy(place).flatten(), torch.from_numpy(state[2 * 3 + 0]), 1e-10)


def merging(coarse: tuple[int, int], fine: tuple[int, int]) -> np.ndarray:
    """The average of the fine tokens of each coarse token, as a matrix."""
    rows, columns = np.divmod(np.arange(fine[0] * fine[1]), fine[1])
    found = np.zeros((coarse[0] * coarse[1], fine[0] * fine[1]))
    found[rows // 2 * coarse[1] + columns // 2, rows * fine[1] + columns] = 1
    return found / found.sum(1, keepdims=True)


@pytest.mark.parametrize("task", ["classify", "segment"])
def test_relevance_covers_windows_and_merging(pair: Any, task: str) -> None:
    """R ← R + Ā R for a block, R ← M R for a merge; a head on feature maps reads each stage."""
    model, _, _ = pair if task == "classify" else (made("swin", "segment"), None, None)
    batch = prepare_images(model, Batch(_bytes(model)))
    high, wide = batch.inputs.shape[-2:]
    sides = [model.config.patch_size * 2**stage for stage in range(4)]
    floors = [(math.ceil(high / side), math.ceil(wide / side)) for side in sides]
    with record_attention(model.body, gradients=True) as seen, torch.enable_grad():
        logits = model.task.objective.logits(model, batch)[0]
    mean = logits if logits.ndim == 1 else logits.flatten(1).mean(1)
    best = int((logits if logits.ndim == 1 else logits.softmax(0).flatten(1).mean(1)).argmax())
    owed = torch.autograd.grad(logit_margin(mean, best), [look.weights for look in seen.records])
    state = np.eye(floors[0][0] * floors[0][1])
    parts, before, last = [], np.copy(state), 0
    for look, gradient in zip(seen.records, owed, strict=True):
        stage = int(look.name.split(".")[1])
        if stage != last:
            parts.append((state - before).mean(0))
            merge = merging(floors[stage], floors[stage - 1])
            state, before, last = merge @ state, merge @ before, stage
        matrix = (look.weights * gradient).clamp(min=0).detach().mean(1)[0].numpy()
        queries, keys = look.query_index[0][:, None].numpy(), look.key_index[0, 0].numpy()
        state = state + whole(matrix, queries, keys, len(state)) @ state
    parts.append((state - before).mean(0))
    right = parts[-1] if task == "classify" else sum(parts) / len(parts)
    found = model.explain(PICTURE).method_maps["gradient × attention"]
    near(torch.from_numpy(found).flatten(), torch.from_numpy(right / right.sum()), 1e-9)


def _bytes(model: Model) -> Tensor:
    return torch.from_numpy(require_image_processor(model).prepare(PICTURE).copy()).permute(2, 0, 1)[None]


# -- ImageGPT


@pytest.mark.parametrize("task", ["draw", "classify"])
def test_attention_maps_of_imagegpt_equal_transformers(tmp_path: Path, task: str) -> None:
    """The pixel token at position n is predicted at position n - 1; the classifier averages over all positions."""
    config = transformers.ImageGPTConfig(
        n_positions=25, vocab_size=12, n_embd=12, n_layer=3, n_head=3, n_inner=20, num_labels=3, resid_pdrop=0.0,
        attn_pdrop=0.0, embd_pdrop=0.0, attn_implementation="eager",
    )  # fmt: skip
    kind = "ImageGPTForCausalImageModeling" if task == "draw" else "ImageGPTForImageClassification"
    peer = noisy(getattr(transformers, kind)(config)).double().eval()
    peer.save_pretrained(tmp_path)
    palette = Palette(RANDOM.uniform(-1, 1, (11, 3)), 5)
    palette.save(tmp_path)
    model = regard.load(tmp_path, task=task)
    ids = torch.from_numpy(palette.encode(PICTURE))[None]
    read = torch.cat([torch.tensor([[11]]), ids[:, :-1]], 1) if task == "draw" else ids
    with torch.no_grad():
        said = peer(read, output_attentions=True)
    found = model.explain(PICTURE, at=(3, 1)) if task == "draw" else model.explain(PICTURE)
    assert set(found.method_maps) == {"rollout", "gradient × attention"}
    assert found.position_similarity.shape == (25, 25)
    for own, right in zip(found.attention, said.attentions, strict=True):
        if task == "draw":  # keys of the 16th pixel: the start token, which has no position in the image, and 15 pixels
            near(torch.from_numpy(own).flatten(1)[:, :16], right[0, :, 16, 1:17])
            assert not own.reshape(3, -1)[:, 16:].any()
            near(torch.from_numpy(own.sum((1, 2))) + right[0, :, 16, 0], torch.ones(3, dtype=torch.float64))
        else:
            near(torch.from_numpy(own).flatten(1), right[0].mean(1))
            assert np.allclose(own.sum((1, 2)), 1)
    if task == "draw":
        logs = said.logits[0, 16, :11].log_softmax(-1)
        assert found.facts["pixel color"].startswith(f"probability {100 * float(logs[ids[0, 16]].exp()):.1f} %")
        middle = model.explain(PICTURE)
        assert middle.query_pixel == (2, 2) and middle.method_maps["rollout"].ravel()[12:].sum() == 0


def test_attributions_of_a_color_do_not_depend_on_later_pixels() -> None:
    """The gradient is computed on the prefix of the pixel only, compared here with the full sequence."""
    model = made("imagegpt", "draw")
    found = model.explain(PICTURE, at=(2, 3)).method_maps["gradient × attention"]
    ids = torch.from_numpy(model.processor.encode(PICTURE))[None]
    x = torch.cat([torch.full((1, 1), 11), ids[:, :-1]], 1)
    with torch.enable_grad(), record_attention(model.body, gradients=True) as seen:
        logs = model.logits(x)[0, 13].log_softmax(-1)
    owed = torch.autograd.grad(logs[ids[0, 13]], [look.weights for look in seen.records])
    state = torch.eye(25, dtype=torch.float64)
    for look, gradient in zip(seen.records, owed, strict=True):
        state = state + (look.weights * gradient)[0].clamp(min=0).mean(0).detach() @ state
    right = (state - torch.eye(25, dtype=torch.float64))[13, 1:]
    near(torch.from_numpy(found).flatten()[:24], right / right.sum())


# -- all systems


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("system", "task"),
    [("vit", "classify"), ("hybrid", "depth"), ("dpt", "depth"), ("swin", "classify"), ("imagegpt", "draw")],
)
def test_every_system_with_attention_is_drawn_over_the_image(system: str, task: str, tmp_path: Path) -> None:
    model = made(system, task)
    found = model.explain(PICTURE)
    assert set(found.method_maps) == {"rollout", "gradient × attention"}
    for grid in found.method_maps.values():
        assert grid.min() >= 0 and grid.sum() == pytest.approx(1)
    assert found.save(tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    layers = len(found.attention)
    assert found.save(tmp_path / "b.svg", layer=layers, head=1).read_text().count(f"layer {layers}") >= 1
    data = json.loads(found.save(tmp_path / "a.json").read_text())
    assert np.allclose(data["attention"][-1], found.attention[-1]) and len(data["layers"]) == layers
    data = page_data(found.save(tmp_path / "a.html"))
    assert len(data["attention"]) == len(data["each"]) == layers and data["lattice"] == list(found.query_grid)
    assert set(data["about"]) == {*(METHODS[name][0] for name in found.method_maps), "attention"}
    assert all(data["about"].values()), "each map has a description"
    assert data["unit"] == ("pixel" if system == "imagegpt" else "patch")
    each = found.layers[-1].weights_per_query
    read = np.frombuffer(base64.b64decode(data["each"][-1]["bytes"]), np.uint8).reshape(each.shape) / 255
    most = np.array(data["each"][-1]["most"]).reshape(*each.shape[:2], 1, 1)
    assert np.allclose(read * most, each, atol=each.max() / 255)
    refused(f"{layers + 1}", found.save, tmp_path / "a.png", layer=layers + 1, error=RegardError)
    refused("Head", found.save, tmp_path / "a.png", head=9, error=RegardError)


def test_dense_predictions_can_be_explained_for_one_pixel() -> None:
    model = made("swin", "segment")
    one, other = (model.explain(PICTURE, at=at).method_maps for at in ((1, 1), (14, 14)))
    assert set(one) == {"rollout", "gradient × attention"}
    assert one["rollout"].argmax() != other["rollout"].argmax()
    assert not np.allclose(one["gradient × attention"], other["gradient × attention"])


def test_convolutions_have_no_heads_and_are_explained_by_their_last_map() -> None:
    for task in ("classify", "segment", "depth"):
        model = made("resnet", task)
        found = model.requires_grad_(False).explain(PICTURE)
        assert set(found.method_maps) == {"grad-cam"} and not found.attention
        refused("attention", found.save, "a.png", layer=1, error=RegardError)
        refused("attention", model.explain, PICTURE, at=(1, 1), error=RegardError)


# -- parts


def test_a_pixel_is_found_on_every_grid() -> None:
    grid = TokenGrid((4, 3), 12, extent=(64 / 57, 48 / 43))  # 57 × 43 pixels with a patch size of 16
    assert grid.token_at((47.5 / 57, 32.5 / 43)) == 2 * 3 + 2 and grid.token_at((48.5 / 57, 31.5 / 43)) == 3 * 3 + 1
    shifted = TokenGrid((5, 5), 25, prefix_tokens=1, shift=1)
    assert shifted.token_at((0.5, 0.5)) == 12
    assert shifted.to_grid(torch.arange(25)).flatten().tolist() == [*range(1, 25), 0]
    patches = TokenGrid((2, 3), 7, prefix_tokens=1)
    assert patches.token_at((0.9, 0.1)) == 4 and patches.to_grid(torch.arange(7)).tolist() == [[1, 2, 3], [4, 5, 6]]


def test_gradients_of_usual_sizes_fit_into_memory_and_of_the_largest_do_not() -> None:
    presets = {name: find_preset(name) for name in ("vit-base-16", "vit-large-16", "imagegpt-large")}
    with torch.device("meta"):
        bodies = {name: system.build(preset.config) for name, (system, preset) in presets.items()}
    for name, grid, fits in (
        ("vit-base-16", TokenGrid((14, 14), 197, 1), True), ("vit-large-16", TokenGrid((24, 24), 577, 1), True),
        ("imagegpt-large", TokenGrid((32, 32), 1024, 1, 1), False), ("imagegpt-large", TokenGrid((32, 32), 400, 1, 1), True),
    ):  # fmt: skip
        assert ImageAttention((GridAttention(grid, (0,)),), (1.0,)).fits_memory(bodies[name]) == fits, name
    assert query_grid_size(bodies["vit-base-16"], (TokenGrid((14, 14), 197, 1),)) == (14, 14)
    assert query_grid_size(bodies["imagegpt-large"], (TokenGrid((32, 32), 1024, 1, 1),)) == (2, 3)


def test_unsupported_requests_are_reported() -> None:
    model = made("swin", "classify")
    refused(str(HIGH), model.explain, PICTURE, at=(HIGH, 0), error=RegardError)
    refused("classifier", made("imagegpt", "draw").explain, PICTURE, "cat", error=RegardError)
    refused("--at", parse_position, "5", error=RegardError)
    assert parse_position("5, 12") == (5, 12)


# -- attention inside annotated regions

BOX = (0, 0, 4, 2)
"""A quarter of an image of 4 × 8 pixels."""


def test_cells_count_by_how_much_of_them_the_region_covers() -> None:
    cover = cell_coverage(region_mask([BOX], (4, 8)), (2, 2))
    assert cover.tolist() == [[1, 0], [0, 0]]
    cover = cell_coverage(region_mask([(1, 1, 5, 3)], (4, 8)), (2, 2))
    assert cover.tolist() == [[3 / 8, 1 / 8], [3 / 8, 1 / 8]]
    cover = cell_coverage(region_mask([BOX], (4, 8)), (1, 1))
    assert cover.tolist() == [[0.25]]


def test_borders_of_cells_may_be_within_pixels() -> None:
    """Three cells over eight pixels: the second extends from 2 2/3 to 5 1/3."""
    cover = cell_coverage(region_mask([(0, 0, 4, 1)], (1, 8)), (1, 3))
    assert cover[0] == pytest.approx([1, 0.5, 0])
    fine = cell_coverage(region_mask([(1, 0, 2, 1)], (1, 3)), (1, 6))  # cells smaller than pixels
    assert fine[0] == pytest.approx([0, 0, 1, 1, 0, 0])
    mask = np.random.default_rng(0).random((29, 31)) < 0.3
    for grid in ((7, 5), (29, 31), (40, 3)):
        assert cell_coverage(mask, grid).mean() == pytest.approx(mask.mean())  # cells have equal areas


def test_boxes_are_joined_and_cut_at_the_border() -> None:
    mask = region_mask([(0, 0, 2, 2), (1, 1, 3, 3), (-2, 3, 1, 9)], (4, 4))
    assert mask.astype(int).tolist() == [[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 0], [1, 0, 0, 0]]
    assert not region_mask([(-3, 0, -1, 4)], (4, 4)).any()


@pytest.mark.parametrize(
    "weights, inside, hits",
    [
        ([[0.4, 0.2], [0.3, 0.1]], 0.5, 1),
        ([[2.8, 1.4], [2.1, 0.7]], 0.5, 1),  # relative to the total attention
        ([[0.1, 0.3], [0.5, 0.1]], 0.25, 0),
        ([[1, 1], [1, 1]], 0.375, 0.5),  # uniform attention; ties count as chance
        ([[0, 0], [0, 0]], 0, 0.5),
    ],
)
def test_attention_inside_a_region_and_hits(weights: list[list[float]], inside: float, hits: float) -> None:
    """The cells are covered by 1, 0.5 and 0: cells with at least half of the largest coverage are in the region."""
    score = score_by_kind([("shape", np.array(weights), region_mask([(0, 0, 6, 2)], (4, 8)))])["shape"]
    assert (score.inside_fraction, score.hit_rate) == (pytest.approx(inside), hits)
    assert (score.uniform_fraction, score.uniform_hit_rate) == (0.375, 0.5)


def test_scores_are_means_by_kind_next_to_chance() -> None:
    on, off = np.array([[0.7, 0.1], [0.1, 0.1]]), np.array([[0.1, 0.1], [0.2, 0.6]])
    words = [("color", on, [BOX]), ("color", off, [BOX]), ("shape", on, [(0, 0, 8, 2)]), ("shape", on, [])]
    found = score_by_kind((kind, weights, region_mask(boxes, (4, 8))) for kind, weights, boxes in words)
    assert list(found) == [ALL_KINDS, "color", "shape"]
    assert found["color"] == PointingScore(2, pytest.approx(0.4), 0.25, 0.5, 0.25)  # type: ignore[arg-type]
    assert found["shape"] == PointingScore(1, pytest.approx(0.8), 0.5, 1.0, 0.5)  # type: ignore[arg-type]
    assert found[ALL_KINDS].num_words == 3 and found[ALL_KINDS].inside_fraction == pytest.approx((0.7 + 0.1 + 0.8) / 3)
    assert score_by_kind([]) == {}


# -- point clouds


def explained(model: Any, item: Any, at: Any = None) -> CloudExplanation:
    found = model.explain(item, at=at)
    assert isinstance(found, CloudExplanation)
    return found


@pytest.mark.parametrize("task", ["classify", "segment"])
def test_fractions_are_attention_weights_averaged_over_channels(task: str) -> None:
    model, whole = made_points(task), cloud(70)
    found = explained(model, whole, at=11)
    points: PointProcessor = require_point_processor(model)
    with torch.no_grad(), record_attention(model.body) as seen:
        states = model.body(Batch(torch.from_numpy(points.prepare(whole)[0])[None]))
    levels = [states.aux_losses[f"level{n}"].numpy() for n in range(3)]
    assert len(found.attention.layers) == len(seen.records) == (4 if task == "classify" else 7)
    for look, layer in zip(seen.records, found.attention.layers, strict=True):
        level = levels[layer.level]
        assert look.weights.shape[2] == len(level), look.name
        point = int(((whole.coordinates[level] - whole.coordinates[11]) ** 2).sum(1).argmin())
        right = np.zeros(70)
        assert look.key_index is not None
        np.add.at(right, level[look.key_index[0, 0, point].numpy()], look.weights[0, :, point].mean(0).float().numpy())
        assert np.allclose(found.attention.point_weights(layer), right, atol=1e-6) and abs(right.sum() - 1) < 1e-5


def test_a_point_is_chosen_by_number_or_by_position() -> None:
    whole = PointCloud(np.array([[0, 0, 0], [1, 0, 0], [0, 2, 0]], np.float32), origin=np.array([100.0, 0, 0]))
    assert query_index(whole, 2) == query_index(whole, np.int64(2)) == 2 and query_index(whole, (101.2, 0.1, 0)) == 1
    assert query_index(whole, None) == 0, "the point in the center"
    for at, said in ((3, "between 0 and 2, got 3"), ((1, 2), "got \\(1, 2\\)")):
        refused(said, query_index, whole, at, error=RegardError)
    assert parse_position("512", "points") == 512 and parse_position("1.5,-2,3e-1", "points") == (1.5, -2.0, 0.3)
    for wrong in ("1,2", "a", "nan,0,0", ""):
        refused("--at", parse_position, wrong, "points", error=RegardError)


def test_only_requested_rows_of_a_large_level_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("regard.explain.points.MAX_STORED_QUERIES", 30)
    model, whole = made_points("segment"), cloud(90)
    found = explained(model, whole, at=5)
    kept = [layer.queries is None for layer in found.attention.layers]
    assert kept == [layer.level > 0 for layer in found.attention.layers] and len(found.attention.layers[0].keys) == 1
    assert found.attention.nearest_query(found.attention.layers[0]) == int(found.attention.layers[0].queries[0])
    assert found.save(tmp_path / "it.html").exists()


def test_an_explanation_is_saved_as_page_image_or_numbers(tmp_path: Path) -> None:
    found = explained(made_points("classify", PointProcessor(40, "unit_sphere")), cloud(80), at=3)
    assert len(found.attention.coordinates) == 40
    for ending in ("html", "png", "svg"):
        assert found.save(tmp_path / f"it.{ending}").stat().st_size > 1000
    said = json.loads(found.save(tmp_path / "it.json").read_text())
    assert len(said["layers"]) == 4 and abs(sum(row["weight"] for row in said["layers"][0]["attention"]) - 1) < 1e-4
    for wrong, words in (({"layer": 9}, "Layer.*got 9"), ({"head": 1}, "--head")):
        refused(words, found.save, tmp_path / "no.png", **wrong, error=RegardError)
    refused("'ball'", made_points("classify").explain, cloud(), "ball", error=RegardError)


# -- point clouds: commands


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    """A checkpoint of each task, and point cloud files."""
    for task in ("classify", "segment"):
        made_points(task, PointProcessor(64, "unit_sphere")).float().save(tmp_path / task)
    (tmp_path / "scans").mkdir()
    for number in range(2):
        write_ply(tmp_path / "scans" / f"room{number}.ply", read_cloud(f"rooms#part=test,points=150,number={number}"))
    return tmp_path


def test_the_page_of_a_scene_has_a_plain_name_and_tables_list_point_clouds(folders: Path, cli: Cli) -> None:
    answer = json.loads(cli("predict", folders / "segment", "rooms#part=test,points=90,number=4", "--json").out)
    page = answer["files"]["page"]
    assert "#" not in page and Path(page).exists() and abs(sum(answer["value"].values()) - 1) < 0.01
    (folders / "table.csv").write_text("cloud,other\nscans/room1.ply,x\n")
    assert cli("predict", folders / "classify", folders / "table.csv").out.split("\t")[1] in LABELS["classify"]
    assert "point cloud of 1,024 points" in cli("info", "point-tiny").out


@pytest.mark.parametrize(
    "words, said",
    [
        ("predict classify scans/rom0.ply", "file not found. Did you mean 'room0.ply'"),
        ("predict classify a.png", "not a point cloud: the file is an image"),
        ("predict classify scans/room0.ply --out x", ".csv"),
        ("explain classify scans/room0.ply box", "--class"),
        ("train depth --data scans --model point-tiny --out r", "'point-tiny' does not support task 'depth'"),
        ("train classify --data rooms --out r", "for task 'segment', not for 'classify'"),
        ("train segment --data solids#many=3 --out r", "Unknown solids setting 'many'"),
        ("train classify --data scans --out r", "no class folders"),
        ("train classify --data solids --model vit-tiny --out r", "solids"),
    ],
)
def test_invalid_uses_are_reported_in_one_paragraph(
    words: str, said: str, folders: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folders)
    Path("a.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(40))
    done = cli(*words.split())
    assert done.code == 2 and said in done.err and "Traceback" not in done.err, done.err
