"""Which neighbours each point of a cloud looked at, layer by layer, on every level of points."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from regard.data.points.cloud import Cloud
from regard.draw.point_attention import Gazing, Looked
from regard.errors import RegardError
from regard.explain.explanation import Explanation
from regard.nn.recording import watch
from regard.processors.point_blocks import parts
from regard.processors.points import Points
from regard.tasks.file_task import tell
from regard.tasks.point_task import packed
from regard.tasks.protocol import Asked
from regard.types import Batch, Look, States

EACH = 4096
"""Points of a level up to which it is kept what each of them looked at; of larger ones that of the one that is asked."""

FAR = 0.1
"""A point that is farther than this share of the cloud from where it was asked for is told."""

Place = int | tuple[float, ...]
"""A point by its number in the file, or the nearest to a place."""

NOTE = (
    "In colour are the points that the chosen one, in the ring, looked at; the colours end at the largest share. "
    "Shares are the mean of all channels of the attention."
)


@dataclass(frozen=True)
class Gathered(Explanation):
    """Of one cloud."""

    gazing: Gazing | None = None

    @property
    def values(self) -> dict[str, Any]:
        """Of the point that is asked, in each layer: what it looked at, by the numbers of points in the file, with shares."""
        found: dict[str, Any] = {"title": self.title, "facts": self.facts}
        assert self.gazing is not None
        origins = self.gazing.origins if self.gazing.origins is not None else np.arange(len(self.gazing.places))
        found["asked"] = int(origins[self.gazing.asked])
        found["layers"] = []
        for layer in self.gazing.layers:
            shares = self.gazing.shares(layer)
            best = [int(n) for n in np.argsort(-shares, kind="stable") if shares[n] > 0]
            here = self.gazing.levels[layer.level][self.gazing.nearest(layer)]
            looked = [{"point": int(origins[n]), "share": round(float(shares[n]), 6)} for n in best]
            found["layers"].append({"layer": layer.name, "from": int(origins[here]), "looked": looked})
        return found

    def save(self, path: str | Path, layer: int | None = None, head: int | None = None) -> Path:
        from regard.draw.point_attention import draw_neighbours, neighbours_page

        path = Path(path)
        assert self.gazing is not None
        if path.suffix.lower() == ".json":
            return super().save(path)
        if path.suffix.lower() in (".html", ".htm"):
            return neighbours_page(self.gazing, path, self.title, NOTE, self.facts)
        if head is not None:
            raise RegardError("what points looked at is the mean of all channels: there are no heads to choose from.")
        if layer is not None and not 1 <= layer <= len(self.gazing.layers):
            raise RegardError(f"there is no layer {layer}: there are {len(self.gazing.layers)}, counted from 1.")
        about = "; ".join(f"{name}: {value}" for name, value in self.facts.items())
        return draw_neighbours(self.gazing, path, self.title, about, layer)


def explain_cloud(model: Asked, source: Any, target: str | None = None, at: Place | None = None) -> Gathered:
    """`at`: the point of which it is asked what it looked at, by its number or where it is; None: the one in the middle."""
    if target is not None:
        raise RegardError(
            f"of a cloud a point is asked, --at NUMBER or --at X,Y,Z, and no class: leave '{target}' out."
        )
    points: Points = model.points_or_refuse()
    cloud: Cloud = model.task.asked(source, points)
    number = asked_point(cloud, at)
    chosen = _read(model, cloud, points, number)
    x, offsets = packed([points.framed(points.rows(cloud, chosen))])
    asked = int(((cloud.places[chosen] - cloud.places[number]) ** 2).sum(1).argmin())
    training = model.training
    model.eval()
    try:
        with torch.no_grad(), watch(model.body) as seen:
            batch = Batch(x, offsets=offsets).to(model.device)
            states: States = model.body(batch)
            logits = model.task.read(model, states).float().softmax(-1)
    finally:
        model.train(training)
    levels = levels_of(states, len(chosen))
    labels, chances = model.identity.labels, logits.reshape(-1, logits.shape[-1]).cpu().numpy()
    each = model.task.name == "segment"
    best = int((chances[asked] if each else chances[0]).argmax())
    sure = float((chances[asked] if each else chances[0])[best])
    name = Path(source).name if isinstance(source, str) else "a cloud"
    layers = layers_of(seen.looks, levels, _rows_of(levels, cloud.places[chosen], asked))
    where = ", ".join(f"{value:.4g}" for value in cloud.places[number].astype(np.float64) + cloud.origin)
    if isinstance(at, tuple) and (far := _away(cloud, number, at)) > FAR * float(np.ptp(cloud.places, axis=0).max()):
        tell(f"{name}: nothing is there: point {number}, {far:.3g} away, is the nearest")
    instead = f", for which point {chosen[asked]} was read" if chosen[asked] != number else ""
    facts = {
        "asked": f"point {number} at {where}{instead}",
        "taken for" if each else "the cloud is": f"{labels[best]}, {100 * sure:.1f} %",
        "points": f"{len(chosen):,} of {len(cloud):,} were read" if len(chosen) < len(cloud) else f"{len(cloud):,}",
    }
    gazing = Gazing(
        cloud.places[chosen], levels, layers, asked, chosen, chances.argmax(1) if each else None, labels if each else (),
        points.up, tuple(map(float, cloud.origin)),
    )  # fmt: skip
    return Gathered(f"{name} → {labels[best]}", (), facts, gazing=gazing)


def asked_point(cloud: Cloud, at: Place | None) -> int:
    """The number of the point that is meant."""
    if isinstance(at, int | np.integer):
        if not 0 <= at < len(cloud):
            raise RegardError(f"there is no point {at}: the cloud has {len(cloud):,}, counted from 0.")
        return int(at)
    if at is not None and len(at) != 3:
        raise RegardError(f"a point is its number, or where it is (x, y, z), not {at}.")
    wanted = cloud.places.mean(0) if at is None else np.asarray(at, dtype=np.float64) - cloud.origin
    return int(((cloud.places - wanted) ** 2).sum(1).argmin())


def _away(cloud: Cloud, number: int, at: tuple[float, ...]) -> float:
    return float(np.linalg.norm(cloud.places[number] + cloud.origin - np.asarray(at, dtype=np.float64)))


def _read(model: Asked, cloud: Cloud, points: Points, number: int) -> np.ndarray:
    """(n,) the points that are read together with the one that is asked, or with the one that speaks for its cell."""
    if model.task.name != "segment":
        return points.prepare(cloud)[1]
    found = parts(cloud, points)
    cell = found.cell[number]
    with_it = [chosen for chosen in found.chosen if (chosen == cell).any()]
    return found.kept[max(with_it, key=len)]


def levels_of(states: States, many: int) -> tuple[np.ndarray, ...]:
    """Of each level the points of the input that it has."""
    names = sorted((name for name in states.side if re.fullmatch(r"level\d+", name)), key=lambda name: int(name[5:]))
    found = tuple(states.side[name].cpu().numpy().astype(np.int64) for name in names)
    return found or (np.arange(many),)


def _rows_of(levels: tuple[np.ndarray, ...], places: np.ndarray, asked: int) -> list[np.ndarray | None]:
    """The queries that are kept of each level; None: all."""
    kept: list[np.ndarray | None] = []
    for level in levels:
        near = ((places[level] - places[asked]) ** 2).sum(1).argmin()
        kept.append(None if len(level) <= EACH else np.array([near]))
    return kept


def layers_of(
    looks: list[Look], levels: tuple[np.ndarray, ...], rows: list[np.ndarray | None]
) -> tuple[Looked, ...]:  # fmt: skip
    """What was seen of each attention, on its level."""
    found = []
    for look in looks:
        level, brief = place_of(look.name, len(levels))
        weights, keys, chosen = look.weights[0].float().mean(0).cpu().numpy(), look.keys, rows[level]
        assert keys is not None
        columns = keys[0, 0].cpu().numpy().astype(np.int64)
        if chosen is not None:
            weights, columns = weights[chosen], columns[chosen]
        found.append(Looked(f"level {level + 1}, {brief}", brief, level, columns, weights, chosen))
    return tuple(found)


def place_of(name: str, levels: int) -> tuple[int, str]:
    """The level of an attention by its name, and which block it is there: `down.2.blocks.0` or, on the way back,
    `up.0.blocks.0`, which is the coarsest."""
    way, stage, block = re.fullmatch(r"(down|up)\.(\d+)\.blocks\.(\d+)\b.*", name).groups()  # type: ignore[union-attr]
    if way == "down":
        return int(stage), f"block {int(block) + 1}"
    return levels - 1 - int(stage), "on the way back" if block == "0" else f"on the way back, {int(block) + 1}"
