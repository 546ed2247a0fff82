"""Point Transformer in plain numpy, one point at a time in float64: the reference for all faster implementations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Weights = Mapping[str, np.ndarray]


def squared(places: np.ndarray, query: np.ndarray) -> np.ndarray:
    x, y, z = ((places - query) ** 2).T
    return x + y + z


def nearest(places: np.ndarray, count: int, queries: np.ndarray) -> list[list[int]]:
    """Indices of the nearest points of each query; ties by lower index, all points if there are fewer than `count`."""
    return [squared(places, query).argsort(kind="stable")[:count].tolist() for query in queries]


def farthest(places: np.ndarray, count: int) -> list[int]:
    chosen, left = [0], np.full(len(places), np.inf)
    while len(chosen) < count:
        left = np.minimum(left, squared(places, places[chosen[-1]]))
        left[chosen] = -1
        chosen.append(int(left.argmax()))
    return chosen


def shares(places: np.ndarray, query: np.ndarray, count: int = 3) -> dict[int, float]:
    inverse = {j: 1 / (squared(places, query)[j] ** 0.5 + 1e-8) for j in nearest(places, count, query[None])[0]}
    return {j: value / sum(inverse.values()) for j, value in inverse.items()}


def relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0)


def linear(w: Weights, name: str, x: np.ndarray) -> np.ndarray:
    y = x @ w[f"{name}.weight"].T
    return y + w[f"{name}.bias"] if f"{name}.bias" in w else y


def norm(w: Weights, name: str, x: np.ndarray) -> np.ndarray:
    scaled = (x - w[f"{name}.running_mean"]) / np.sqrt(w[f"{name}.running_var"] + 1e-5)
    return scaled * w[f"{name}.weight"] + w[f"{name}.bias"]


def unit(w: Weights, name: str, x: np.ndarray) -> np.ndarray:
    return relu(norm(w, f"{name}.norm", linear(w, f"{name}.linear", x)))


def attend(w: Weights, name: str, x: np.ndarray, places: np.ndarray, count: int, form: str) -> np.ndarray:
    """Vector attention over the nearest neighbors; channel c uses the weight c mod H."""
    made = []
    for i, near in enumerate(nearest(places, count, places)):
        k, v = np.split(linear(w, f"{name}.kv", x[near]), 2, axis=1)
        q = linear(w, f"{name}.q", x[i])
        if form == "released":
            inner = relu(norm(w, f"{name}.place.1", linear(w, f"{name}.place.0", places[near] - places[i])))
            offset = linear(w, f"{name}.place.3", inner)
            inner = linear(w, f"{name}.score.2", relu(norm(w, f"{name}.score.0", k - q + offset)))
            scores = linear(w, f"{name}.score.5", relu(norm(w, f"{name}.score.3", inner)))
        else:
            offset = linear(w, f"{name}.place.2", relu(linear(w, f"{name}.place.0", places[i] - places[near])))
            scores = linear(w, f"{name}.score.2", relu(linear(w, f"{name}.score.0", q - k + offset)))
        powers = np.exp(scores - scores.max(0))
        weights = np.tile(powers / powers.sum(0), (1, len(q) // scores.shape[1]))
        made.append((weights * (v + offset)).sum(0))
    return np.array(made)


def block(w: Weights, name: str, x: np.ndarray, places: np.ndarray, count: int, form: str) -> np.ndarray:
    if form == "paper":
        inner = attend(w, f"{name}.attend", linear(w, f"{name}.enter.linear", x), places, count, form)
        return x + linear(w, f"{name}.leave.linear", inner)
    inner = attend(w, f"{name}.attend", unit(w, f"{name}.enter", x), places, count, form)
    inner = linear(w, f"{name}.leave.linear", relu(norm(w, f"{name}.norm", inner)))
    return relu(x + norm(w, f"{name}.leave.norm", inner))


def down(w: Weights, name: str, x: np.ndarray, places: np.ndarray, kept: Sequence[int], count: int) -> np.ndarray:
    made = []
    for i, near in zip(kept, nearest(places, count, places[list(kept)]), strict=True):
        made.append(unit(w, name, np.concatenate([places[near] - places[i], x[near]], axis=1)).max(0))
    return np.array(made).reshape(len(kept), -1)


def body(w: Weights, x: np.ndarray, config: Any) -> tuple[np.ndarray, np.ndarray, list[list[int]]]:
    """Point states, pooled state, and the point indices of each level for one point cloud; norms use running statistics."""
    order = sorted(range(len(x)), key=lambda i: tuple(x[i]) if config.point_order == "sorted" else i)
    places, rows, names = x[order, :3], unit(w, "down.0.step", x[order]), [order]
    levels: list[tuple[np.ndarray, np.ndarray]] = []
    for stage, count in enumerate(config.num_neighbors):
        if stage:
            kept = farthest(places, max(len(places) // config.downsample[stage], 1))
            rows, places = down(w, f"down.{stage}.step", rows, places, kept, count), places[kept]
            names.append([names[-1][i] for i in kept])
        for number in range(config.depths[stage]):
            rows = block(w, f"down.{stage}.blocks.{number}", rows, places, count, config.variant)
        levels.append((places, rows))
    summary = rows.mean(0)
    if not config.has_decoder:
        return rows, summary, names
    back = np.empty((len(x), config.widths[0]))
    back[order] = up(w, levels, config)
    return back, summary, names


def up(w: Weights, levels: list[tuple[np.ndarray, np.ndarray]], config: Any) -> np.ndarray:
    places, rows = levels[-1]
    if config.variant == "released":
        mean = relu(linear(w, "up.0.step.whole.linear", rows.mean(0)))
        rows = np.concatenate([rows, np.broadcast_to(mean, rows.shape)], axis=1)
    rows = unit(w, "up.0.step.join", rows)
    rows = block(w, "up.0.blocks.0", rows, places, config.num_neighbors[-1], config.variant)
    for number, level in enumerate(reversed(range(len(levels) - 1)), 1):
        fine, own = levels[level]
        coarse = unit(w, f"up.{number}.step.coarse", rows)
        raised = [sum(share * coarse[j] for j, share in shares(places, place).items()) for place in fine]
        rows = unit(w, f"up.{number}.step.fine", own) + np.array(raised)
        rows = block(w, f"up.{number}.blocks.0", rows, fine, config.num_neighbors[level], config.variant)
        places = fine
    return rows
