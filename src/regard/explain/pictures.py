"""What a body looked at in a picture: attention of every layer and head over its patches, their roll-out, and what counted for
the answer, laid over the picture; and how alike its learned positions are."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.errors import RegardError
from regard.explain.attribution import Score, ahead, study
from regard.explain.blocks import Blocks
from regard.explain.explanation import Explanation
from regard.explain.seeing import View
from regard.nn.causal import DecoderOnly
from regard.nn.patches import PatchEncoder
from regard.tasks.asked import Asked
from regard.tasks.pictured import picture_of
from regard.waists import Batch

Grid = NDArray[np.float64]


@dataclass(frozen=True)
class Gaze(Explanation):
    """Of one picture of h x w patches."""

    picture: Any = None
    """(H, W, 3) bytes, as it was looked at"""
    attention: Any = None
    """(layers, heads, h, w) what the asking tokens looked at; nothing where the body has no attention"""
    ways: dict[str, Grid] = field(default_factory=dict)
    """roll-out and what counted, each a share of 1 over the places of a grid"""
    positions: Any = None
    """(h·w, h·w) how alike the learned positions are, where there are such"""

    @property
    def values(self) -> dict[str, Any]:
        found: dict[str, Any] = {"title": self.title, "facts": self.facts}
        found |= self.ways
        return found | ({} if self.attention is None else {"attention": self.attention})

    def beside(self, path: Path) -> tuple[Path, ...]:
        drawn = self.positions is not None and path.suffix.lower() in (".png", ".svg")
        return (path.with_name(f"{path.stem}-positions{path.suffix}"),) if drawn else ()

    def save(self, path: str | Path, layer: int | None = None, head: int | None = None) -> Path:
        path = Path(path)
        if path.suffix.lower() == ".json":
            return super().save(path)
        if path.suffix.lower() in (".html", ".htm"):
            from regard.draw.gaze import gaze_page

            return gaze_page(self.picture, self.attention, self.ways, path, self.title, self.facts, self.positions)
        from regard.draw.gaze import draw_positions
        from regard.draw.overlay import draw_heats

        for place in self.beside(path):
            draw_positions(self.positions, place)
        return draw_heats(
            self._panels(layer, head), path, self.title, "; ".join(f"{k}: {v}" for k, v in self.facts.items())
        )

    def _panels(self, layer: int | None, head: int | None) -> list[Any]:
        from regard.draw.overlay import Regarded

        panels = [Regarded(self.picture, grid, name) for name, grid in self.ways.items()]
        if self.attention is None:
            return panels
        many, heads = self.attention.shape[:2]
        for name, asked, most in (("layer", layer, many), ("head", head, heads)):
            if asked is not None and not 1 <= asked <= most:
                raise RegardError(f"there is no {name} {asked}: there are {most}, counted from 1.")
        if layer is None:
            rows = self.attention.mean(1) if head is None else self.attention[:, head - 1]
            of = "mean of the heads" if head is None else f"head {head}"
            return panels + [Regarded(self.picture, grid, f"layer {n}, {of}") for n, grid in enumerate(rows, 1)]
        if head is None:
            return panels + [
                Regarded(self.picture, grid, f"layer {layer}, head {n}")
                for n, grid in enumerate(self.attention[layer - 1], 1)
            ]
        return [*panels, Regarded(self.picture, self.attention[layer - 1, head - 1], f"layer {layer}, head {head}")]


def explain_picture(model: Asked, source: Any, target: str | None = None) -> Gaze:
    """`target`: the class that is asked about; None: the one that was said."""
    training = model.training
    model.eval()
    try:
        return _explained(
            model, picture_of(source), target, Path(source).name if isinstance(source, str) else "a picture"
        )
    finally:
        model.train(training)


def _explained(model: Asked, picture: np.ndarray, target: str | None, name: str) -> Gaze:
    pixels = model.pixels_or_refuse()
    seen = pixels.prepare(picture)
    x = torch.from_numpy(seen.copy()).permute(2, 0, 1)[None].contiguous().to(model.device)
    batch = model.task.looked_at(model, Batch(x))
    with torch.inference_mode():
        logits = model.task.logits(model, batch).float()
    which, said, facts = _asked(model, logits, target)
    body = model.body
    title = f"{name} → {said}"
    if isinstance(body, DecoderOnly):  # a row of colours, each of one pixel
        ways, attention = _looked(model, batch, which, pixels.size, 0)
        return Gaze(title, (), facts, picture=seen, attention=attention, ways=ways)
    if not isinstance(body, PatchEncoder):
        return Gaze(title, (), facts, picture=seen, ways={"what counted": _owed(model, batch, which)})
    ways, attention = _looked(model, batch, which, _grid(body, batch), int(body.token))
    return Gaze(title, (), facts, picture=seen, attention=attention, ways=ways, positions=_alike(body))


def _asked(model: Asked, logits: Tensor, target: str | None) -> tuple[int, str, dict[str, str]]:
    """The number of the class, what was said, and facts about it; of maps of depth there are no classes."""
    labels = model.identity.labels
    if model.task.name == "depth":
        return 0, "depth", {"asked": "the mean of the map"}
    chances = logits.softmax(1)[0]
    chances = chances if chances.ndim == 1 else chances.flatten(1).mean(1)
    best = int(chances.argmax())
    if target is not None and target not in labels:
        raise RegardError(f"'{target}' is none of its classes: {', '.join(labels)}.")
    which = labels.index(target) if target is not None else best
    facts = {labels[n]: f"{100 * float(chances[n]):.1f} %" for n in chances.argsort(descending=True)[:3].tolist()}
    return which, labels[best] + (f" (asked about {target})" if which != best else ""), facts


def _number(which: int) -> Any:
    """What is asked for, of all that the task reads: a class against the others, or the mean of a map."""

    def of(logits: Tensor) -> Tensor:
        own = logits[0]
        if own.ndim == 1:
            return ahead(own, which)
        return own.float().mean() if own.ndim == 2 else ahead(own.flatten(1).mean(1), which)

    return of


def _grid(body: PatchEncoder, batch: Batch) -> tuple[int, int]:
    with torch.inference_mode():
        maps = body.front.maps(batch.x) if body.fronted else [batch.x]
        return body.patches.grid(maps[-1])


def _looked(model: Asked, batch: Batch, which: int, grid: tuple[int, int], before: int) -> tuple[dict[str, Grid], Grid]:
    """`before`: tokens that stand before the places of the grid."""
    length = before + grid[0] * grid[1]
    single = model.task.name == "classify" and getattr(model.body, "pool", "mean") == "first"
    at = (0,) if single else tuple(range(before, length))
    view = View(0, length, Blocks.of(length, length, set()), at)
    (owed,) = study(model, batch, [view], [Score("", 0, at, _number(which))])

    def laid(row: Any) -> Grid:
        own = np.asarray(row, dtype=np.float64)[..., before:].reshape(*np.shape(row)[:-1], *grid)
        return own

    ways = {"roll-out": _shared(laid(view.rolled(at)))}
    if owed is not None:
        ways["gradient × attention"] = _shared(laid(owed))
    return ways, np.stack([laid(layer) for layer in view.asked])


def _shared(grid: Grid) -> Grid:
    total = float(grid.sum())
    return grid / total if total > 0 else grid


def _owed(model: Asked, batch: Batch, which: int) -> Grid:
    """Without attention over the whole picture: the last map times the gradient of the answer, where that is above 0
    (Grad-CAM, Selvaraju et al. 2017)."""
    last = model.config.maps()[-1].at
    with torch.enable_grad():
        kept: list[Tensor] = []
        states = model.body(batch, taps=(last,))
        kept.append(states.taps[0])
        value = _number(which)(
            model.head(states.summary) if model.task.name == "classify" else model.task.logits(model, batch)
        )
        found = torch.autograd.grad(value, kept, allow_unused=True)[0]
    if found is None:
        raise RegardError("this model's answer cannot be traced back to its last map.")
    grid = (found.mean((2, 3), keepdim=True) * kept[0]).sum(1).clamp(min=0)[0]
    return _shared(grid.detach().double().cpu().numpy())


def _alike(body: PatchEncoder) -> Grid:
    """(h·w, h·w) cosines of the learned positions of its own grid."""
    table = body.position.table[0, body.position.before :].detach().double()
    table = torch.nn.functional.normalize(table, dim=1)
    return (table @ table.T).cpu().numpy()
