"""Point Transformer in plain numpy, one point at a time in float64: the reference for all faster implementations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Weights = Mapping[str, np.ndarray]


def distance(a: np.ndarray, b: np.ndarray) -> float:
    return float(((a - b) ** 2).sum() ** 0.5)


def nearest(places: np.ndarray, count: int, queries: np.ndarray) -> list[list[int]]:
    """Indices of the nearest points of each query; ties by lower index, all points if there are fewer than `count`."""
    found = []
    for query in queries:
        squares = [sum((float(a) - float(b)) ** 2 for a, b in zip(place, query, strict=True)) for place in places]
        found.append(sorted(range(len(places)), key=lambda j: (squares[j], j))[:count])
    return found


def farthest(places: np.ndarray, count: int) -> list[int]:
    chosen, left = [0], [float("inf")] * len(places)
    while len(chosen) < count:
        for j, place in enumerate(places):
            left[j] = min(
                left[j], sum((float(a) - float(b)) ** 2 for a, b in zip(place, places[chosen[-1]], strict=True))
            )
        chosen.append(max((j for j in range(len(places)) if j not in chosen), key=lambda j: (left[j], -j)))
    return chosen


def shares(places: np.ndarray, query: np.ndarray, count: int = 3) -> dict[int, float]:
    inverse = {j: 1 / (distance(places[j], query) + 1e-8) for j in nearest(places, count, query[None])[0]}
    return {j: value / sum(inverse.values()) for j, value in inverse.items()}


def relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0)


def linear(w: Weights, name: str, x: np.ndarray) -> np.ndarray:
    y = w[f"{name}.weight"] @ x
    return y + w[f"{name}.bias"] if f"{name}.bias" in w else y


def norm(w: Weights, name: str, x: np.ndarray) -> np.ndarray:
    scaled = (x - w[f"{name}.running_mean"]) / np.sqrt(w[f"{name}.running_var"] + 1e-5)
    return scaled * w[f"{name}.weight"] + w[f"{name}.bias"]


def unit(w: Weights, name: str, x: np.ndarray) -> np.ndarray:
    return relu(norm(w, f"{name}.norm", linear(w, f"{name}.linear", x)))


def softmax(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores - scores.max(0))
    return powers / powers.sum(0)


def attend(w: Weights, name: str, x: list[np.ndarray], places: np.ndarray, count: int, form: str) -> list[np.ndarray]:
    """Vector attention over the nearest neighbors; channel c uses the weight c mod H."""
    made = []
    for i, near in enumerate(nearest(places, count, places)):
        scores, values = [], []
        for j in near:
            kv = linear(w, f"{name}.kv", x[j])
            k, v = kv[: len(x[j])], kv[len(x[j]) :]
            q = linear(w, f"{name}.q", x[i])
            if form == "released":
                inner = relu(norm(w, f"{name}.place.1", linear(w, f"{name}.place.0", places[j] - places[i])))
                offset = linear(w, f"{name}.place.3", inner)
                inner = linear(w, f"{name}.score.2", relu(norm(w, f"{name}.score.0", k - q + offset)))
                scores.append(linear(w, f"{name}.score.5", relu(norm(w, f"{name}.score.3", inner))))
            else:
                offset = linear(w, f"{name}.place.2", relu(linear(w, f"{name}.place.0", places[i] - places[j])))
                scores.append(linear(w, f"{name}.score.2", relu(linear(w, f"{name}.score.0", q - k + offset))))
            values.append(v + offset)
        weights, y = softmax(np.array(scores)), np.zeros_like(x[i])
        for n, value in enumerate(values):
            for c in range(len(y)):
                y[c] += weights[n, c % weights.shape[1]] * value[c]
        made.append(y)
    return made


def block(w: Weights, name: str, x: list[np.ndarray], places: np.ndarray, count: int, form: str) -> list[np.ndarray]:
    if form == "paper":
        inner = attend(w, f"{name}.attend", [linear(w, f"{name}.enter.linear", row) for row in x], places, count, form)
        return [row + linear(w, f"{name}.leave.linear", y) for row, y in zip(x, inner, strict=True)]
    inner = attend(w, f"{name}.attend", [unit(w, f"{name}.enter", row) for row in x], places, count, form)
    inner = [relu(norm(w, f"{name}.norm", y)) for y in inner]
    left = [norm(w, f"{name}.leave.norm", linear(w, f"{name}.leave.linear", y)) for y in inner]
    return [relu(row + y) for row, y in zip(x, left, strict=True)]


def down(
    w: Weights, name: str, x: list[np.ndarray], places: np.ndarray, kept: Sequence[int], count: int
) -> list[np.ndarray]:
    made = []
    for i, near in zip(kept, nearest(places, count, places[list(kept)]), strict=True):
        rows = [linear(w, f"{name}.linear", np.concatenate([places[j] - places[i], x[j]])) for j in near]
        made.append(np.max([relu(norm(w, f"{name}.norm", row)) for row in rows], axis=0))
    return made


def body(w: Weights, x: np.ndarray, config: Any) -> tuple[np.ndarray, np.ndarray, list[list[int]]]:
    """Point states, pooled state, and the point indices of each level for one point cloud; norms use running statistics."""
    order = list(range(len(x)))
    if config.point_order == "sorted":
        order.sort(key=lambda i: tuple(x[i]))
    places, rows = x[order, :3], [unit(w, "down.0.step", x[i]) for i in order]
    levels: list[tuple[np.ndarray, list[np.ndarray]]] = []
    names = [order]
    for stage, count in enumerate(config.num_neighbors):
        if stage:
            kept = farthest(places, max(len(places) // config.downsample[stage], 1))
            rows = down(w, f"down.{stage}.step", rows, places, kept, count)
            places = places[kept]
            names.append([names[-1][i] for i in kept])
        for number in range(config.depths[stage]):
            rows = block(w, f"down.{stage}.blocks.{number}", rows, places, count, config.variant)
        levels.append((places, rows))
    summary = np.mean(rows, axis=0)
    if not config.has_decoder:
        return np.array(rows), summary, names
    rows = up(w, levels, config)
    back = np.empty((len(x), len(rows[0])))
    back[order] = rows
    return back, summary, names


def up(w: Weights, levels: list[tuple[np.ndarray, list[np.ndarray]]], config: Any) -> list[np.ndarray]:
    places, rows = levels[-1]
    if config.variant == "released":
        mean = relu(linear(w, "up.0.step.whole.linear", np.mean(rows, axis=0)))
        rows = [unit(w, "up.0.step.join", np.concatenate([row, mean])) for row in rows]
    else:
        rows = [unit(w, "up.0.step.join", row) for row in rows]
    rows = block(w, "up.0.blocks.0", rows, places, config.num_neighbors[-1], config.variant)
    for number, level in enumerate(reversed(range(len(levels) - 1)), 1):
        fine, own = levels[level]
        coarse = [unit(w, f"up.{number}.step.coarse", row) for row in rows]
        raised = [sum(share * coarse[j] for j, share in shares(places, place).items()) for place in fine]
        rows = [unit(w, f"up.{number}.step.fine", row) + more for row, more in zip(own, raised, strict=True)]
        rows = block(w, f"up.{number}.blocks.0", rows, fine, config.num_neighbors[level], config.variant)
        places = fine
    return rows
