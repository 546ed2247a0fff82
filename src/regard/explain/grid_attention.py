"""Attention over grids: what was seen of one picture, layer by layer, and what its answer is made of through all of them.

A body has one grid, or several that grow coarser (Swin's stages). On each of them states are rolled out as of texts. Where
four neighbours were merged into one, that one is made of those that lie in the picture in equal parts, as a state is taken to
be half itself and half what it looked at.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from regard.explain.attribution import ROOM, Layers, by_layer, owing
from regard.explain.rollout import Layer, relevance, rollout
from regard.explain.text_attention import parted
from regard.nn.blocks.decoder import DecoderOnly
from regard.nn.recording import attention_names, watch
from regard.nn.vision.patches import PatchEncoder
from regard.nn.vision.swin import Pyramid
from regard.tasks.protocol import Asked
from regard.types import Batch, Look

Grid = NDArray[np.float64]
Shape = tuple[int, int]

KEPT = 6_000_000
"""Weights that are kept of single places: so many that ViT-B's are, of all its patches."""

COPIES = 8
"""How many times as much as the weights themselves their gradients need, at worst: of ImageGPT it was six times."""


@dataclass(frozen=True)
class Floor:
    """One grid of places as a row of `length` tokens."""

    grid: Shape
    length: int
    before: int = 0
    """tokens that have no place in the picture: they stand first"""
    ahead: int = 0
    """how many tokens before its own a place is told: 1 where each token says the next"""
    columns: int | None = None
    """tokens that one looks at, where it is not all"""
    covers: tuple[float, float] = (1.0, 1.0)
    """height and width of the grid, as multiples of the picture's: it may end below and to the right of it"""

    def token(self, place: tuple[float, float]) -> int:
        """By which a place of the picture, shares of its height and width, is told."""
        down, across = (
            min(int(share / covers * count), count - 1)
            for share, covers, count in zip(place, self.covers, self.grid, strict=True)
        )
        return down * self.grid[1] + across + self.before - self.ahead

    @property
    def tokens(self) -> tuple[int, ...]:
        """By which the places of the picture are told."""
        first = self.before - self.ahead
        return tuple(range(first, min(first + self.grid[0] * self.grid[1], self.length)))

    def laid(self, row: Tensor) -> Tensor:
        """(…, length) -> (…, h, w): 0 where nobody looks."""
        own = row[..., self.before :]
        return F.pad(own, (0, self.grid[0] * self.grid[1] - own.shape[-1])).view(*row.shape[:-1], *self.grid)


def floors_of(model: Asked, batch: Batch) -> tuple[Floor, ...]:
    """The grids that a body looks over; none where it has no attention."""
    body, x = model.body, batch.x
    if isinstance(body, PatchEncoder):
        with torch.inference_mode():
            grid = body.patches.grid(body.front.maps(x)[-1] if body.fronted else x)
        return (Floor(grid, int(body.token) + grid[0] * grid[1], int(body.token)),)
    if isinstance(body, Pyramid):
        high, wide = x.shape[-2:]
        found = []
        for stage in range(len(body.stages)):
            side = body.patches.patch * 2**stage
            grid = -(-high // side), -(-wide // side)
            covers = grid[0] * side / high, grid[1] * side / wide
            found.append(Floor(grid, grid[0] * grid[1], columns=model.config.window**2, covers=covers))
        return tuple(found)
    if isinstance(body, DecoderOnly):
        side, told = model.config.size, int(model.task.name == "draw")
        return (Floor((side, side), side**2, before=told, ahead=told),)
    return ()


@dataclass
class Sight:
    """What was seen on one floor: of the tokens that are asked in equal parts, and of each of some places."""

    floor: Floor
    asks: tuple[int, ...]
    places: tuple[int, ...] = ()
    layers: list[Layer] = field(default_factory=list)
    asked: list[Grid] = field(default_factory=list)
    """(heads, h, w) a layer"""
    each: list[NDArray[np.float32]] = field(default_factory=list)
    """(places, heads, h, w) a layer"""

    def add(self, looks: Sequence[Look]) -> None:
        floor, length = self.floor, self.floor.length
        parts = parted(looks, 0, length)
        self.layers.append(Layer(length, tuple(part.links() for part in parts)))
        given = sum((part.given(self.start) for part in parts[1:]), parts[0].given(self.start))
        self.asked.append(floor.laid(given).double().cpu().numpy())
        if self.places:
            rows = [
                sum((part.looked(at, length) for part in parts[1:]), parts[0].looked(at, length)) for at in self.places
            ]
            self.each.append(floor.laid(torch.stack(rows)).float().cpu().numpy())

    @property
    def start(self) -> Tensor:
        """(length,) equal parts of 1 at the tokens that are asked."""
        row = torch.zeros(self.floor.length, dtype=torch.float64)
        row[list(self.asks)] = 1 / len(self.asks)
        return row


@dataclass(frozen=True)
class Scene:
    """One picture. The answer is read from the sights where `read` is above 0, in these parts of 1."""

    sights: tuple[Sight, ...]
    read: tuple[float, ...]

    def add(self, looks: Sequence[Look]) -> None:
        self.sights[stage_of(looks[0].name)].add(looks)

    def look(self, model: Asked, batch: Batch, number: Callable[[Tensor], Tensor] | None = None) -> Grid | None:
        """Read the picture once, watched. With the number that was come to, of all that the task reads, it is told how much
        each place counted for it; None where gradients would not fit into memory."""
        if number is None or not self.fits(model.body):
            with torch.no_grad(), Layers([self]) as layers, watch(model.body, each=layers):
                model.task.logits(model, batch)
            return None
        with torch.enable_grad(), watch(model.body, gradients=True) as seen:
            logits = model.task.logits(model, batch)
        looks = by_layer(seen.looks)
        for group in looks:
            self.add(group)
        return self._counted(number(logits), looks)

    def fits(self, body: Any) -> bool:
        """Whether all weights do, with what their gradients need."""
        weights = 0
        for name, place in attention_names(body).items():
            floor = self.sights[stage_of(name)].floor
            weights += place.heads * floor.length * (floor.columns or floor.length)
        return COPIES * 4 * weights <= ROOM

    def rolled(self) -> Grid:
        """(h, w) of the finest floor: what is read is made of these parts of 1."""
        row = self._through(lambda sight, row: rollout(sight.layers, row))
        return self.sights[0].floor.laid(row).numpy()

    def _counted(self, value: Tensor, looks: Sequence[Sequence[Look]]) -> Grid:
        layers: dict[int, list[Layer]] = {number: [] for number in range(len(self.sights))}
        for group, owed in owing(value, looks):
            number = stage_of(group[0].name)
            length = self.sights[number].floor.length
            layers[number].append(Layer(length, tuple(part.links() for part in parted(group, 0, length, owed))))
        own = self._through(lambda sight, row: row)
        found = iter(reversed(layers.values()))
        whole = self._through(lambda sight, row: row + relevance(next(found), row))
        return self.sights[0].floor.laid(whole - own).numpy()

    def _through(self, step: Callable[[Sight, Tensor], Tensor]) -> Tensor:
        """What is read, taken from the coarsest floor to the finest."""
        row = torch.zeros(self.sights[-1].floor.length, dtype=torch.float64)
        for number in reversed(range(len(self.sights))):
            sight = self.sights[number]
            row = step(sight, row + self.read[number] * sight.start)
            if number:
                row = unmerged(row, sight.floor.grid, self.sights[number - 1].floor.grid)
        return row


def unmerged(row: Tensor, coarse: Shape, fine: Shape) -> Tensor:
    """(h·w,) -> (H·W,): each place in equal parts to the 2 x 2 places that were merged into it and lie in the picture."""
    down, across = (torch.arange(count) // 2 for count in fine)
    many = down.bincount(minlength=coarse[0])[:, None] * across.bincount(minlength=coarse[1])
    return (row.view(coarse) / many)[down][:, across].flatten()


def stage_of(name: str) -> int:
    """The floor of an attention, by its name."""
    found = re.match(r"stages\.(\d+)\.", name)
    return int(found[1]) if found else 0


def lattice_of(body: Any, floors: Sequence[Floor]) -> Shape:
    """How many places are kept, down and across: all of the finest grid, or as many as there is room for."""
    weights = 0
    for name, place in attention_names(body).items():
        grid = floors[stage_of(name)].grid
        weights += place.heads * grid[0] * grid[1]
    (high, wide), most = floors[0].grid, max(KEPT // weights, 1)
    while high * wide > most:
        high, wide = (high - 1, wide) if high >= wide else (high, wide - 1)
    return high, wide


def centres(lattice: Shape) -> list[tuple[float, float]]:
    """The places of a lattice over a picture, row by row, as shares of its height and width."""
    down, across = lattice
    return [((row + 0.5) / down, (column + 0.5) / across) for row in range(down) for column in range(across)]
