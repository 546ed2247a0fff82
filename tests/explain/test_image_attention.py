"""Attention maps of images for every system with attention, against transformers and dense attention matrices."""

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
from page_data import page_data
from regard.errors import RegardError
from regard.explain.images import METHODS, GridAttention, ImageAttention, TokenGrid, query_grid_size
from regard.explain.rollout import logit_margin
from regard.model import Model
from regard.nn.recording import record_attention
from regard.processors.image import ImageProcessor
from regard.processors.palette import Palette
from regard.runs.explain import parse_position
from regard.systems import find_preset
from regard.tasks.modality.image import prepare_images, require_image_processor
from regard.types import Batch
from tiny import near, noisy
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
    with pytest.raises(RegardError, match=f"{layers + 1}"):
        found.save(tmp_path / "a.png", layer=layers + 1)
    with pytest.raises(RegardError, match="Head"):
        found.save(tmp_path / "a.png", head=9)


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
        with pytest.raises(RegardError, match="attention"):
            found.save("a.png", layer=1)
        with pytest.raises(RegardError, match="attention"):
            model.explain(PICTURE, at=(1, 1))


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
    with pytest.raises(RegardError, match="16"):
        model.explain(PICTURE, at=(16, 0))
    with pytest.raises(RegardError, match="classifier"):
        made("imagegpt", "draw").explain(PICTURE, "cat")
    with pytest.raises(RegardError, match="--at"):
        parse_position("5")
    assert parse_position("5, 12") == (5, 12)
