"""What was looked at in a picture, which lays itself over it: as a sheet, a page or numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from regard.errors import RegardError
from regard.explain.explanation import Explanation
from regard.explain.grid_attention import Grid, Scene

ABOUT = {
    "roll-out": "What the answer is made of: attention followed back through all layers. A state is taken to be half what it "
    "was, half what it looked at.",
    "gradient × attention": "What counted for the answer: attention, weighed by how much the answer would change with it.",
    "what counted": "What counted for the answer: the last map of the body, weighed by how much the answer would change with "
    "it (Grad-CAM).",
    "attention": "What one layer looked at: how its attention was spread over the picture, by each head or in the mean.",
}
"""What each way of looking means, for those who see it for the first time."""


@dataclass(frozen=True)
class Gaze(Explanation):
    """Of one picture. A grid may be of any size; what is laid over the picture are shares of all that was looked at."""

    picture: Any = None
    """(H, W, 3) bytes, as it was looked at"""
    asked: str = ""
    """who looked, in words: the class token, the mean of all places, or one place"""
    at: tuple[int, int] | None = None
    """row and column of the pixel that was asked, where one was"""
    ways: dict[str, Grid] = field(default_factory=dict)
    """roll-out and what counted, each a share of 1 over the places of a grid"""
    scene: Scene | None = None
    """what was seen, layer by layer; nothing where the body has no attention"""
    lattice: tuple[int, int] = (0, 0)
    """places down and across of which it is known what each of them looked at"""
    positions: Any = None
    """(n, n) how alike the learned positions are, where there are such"""

    @property
    def attention(self) -> tuple[Grid, ...]:
        """(heads, h, w) of each layer: what was looked at by who was asked."""
        return () if self.scene is None else tuple(layer for sight in self.scene.sights for layer in sight.asked)

    @property
    def names(self) -> tuple[str, ...]:
        """Of the layers, which are counted through."""
        sights = () if self.scene is None else self.scene.sights
        stages = [stage for stage, sight in enumerate(sights, 1) for _ in sight.asked]
        told = [f" (stage {stage})" if len(sights) > 1 else "" for stage in stages]
        return tuple(f"layer {number}{stage}" for number, stage in enumerate(told, 1))

    @property
    def covers(self) -> tuple[tuple[float, float], ...]:
        """How far the grid of each layer reaches, in heights and widths of the picture."""
        sights = () if self.scene is None else self.scene.sights
        return tuple(sight.floor.covers for sight in sights for _ in sight.asked)

    @property
    def values(self) -> dict[str, Any]:
        found: dict[str, Any] = {"title": self.title, "facts": self.facts}
        found |= self.ways
        if self.scene is not None:
            found |= {"asked": self.asked, "at": self.at, "layers": self.names, "attention": self.attention}
        return found

    def beside(self, path: Path) -> tuple[Path, ...]:
        drawn = self.positions is not None and path.suffix.lower() in (".png", ".svg")
        return (path.with_name(f"{path.stem}-positions{path.suffix}"),) if drawn else ()

    def save(self, path: str | Path, layer: int | None = None, head: int | None = None) -> Path:
        path = Path(path)
        if path.suffix.lower() == ".json":
            return super().save(path)
        if path.suffix.lower() in (".html", ".htm"):
            return self._page(path)
        from regard.draw.image_attention import draw_positions
        from regard.draw.overlay import draw_heats

        panels = self._panels(layer, head)
        for place in self.beside(path):
            draw_positions(self.positions, place)
        about = "; ".join(f"{k}: {v}" for k, v in self.facts.items())
        if self.attention:
            about += f"; looked from: {self.asked}" + ("; mean of the heads" if layer is head is None else "")
        return draw_heats(panels, path, self.title, about, unit=None, mark=self._mark)

    @property
    def _mark(self) -> tuple[float, float] | None:
        """The pixel that was asked, in heights and widths of the picture."""
        if self.at is None:
            return None
        return (self.at[0] + 0.5) / self.picture.shape[0], (self.at[1] + 0.5) / self.picture.shape[1]

    def _page(self, path: Path) -> Path:
        from regard.draw.image_attention import Looked, gaze_page

        first = self.covers[0] if self.covers else (1.0, 1.0)
        each = [] if self.scene is None else [layer for sight in self.scene.sights for layer in sight.each]
        layers = [
            Looked(name, own, covers, each[number] if each else None)
            for number, (name, own, covers) in enumerate(zip(self.names, self.attention, self.covers, strict=True))
        ]
        ways = {name: Looked(name, grid, first) for name, grid in self.ways.items()}
        return gaze_page(
            self.picture, layers, ways, path, self.title, self.facts, asked=(self.asked, self._mark),
            lattice=self.lattice, positions=self.positions, about=ABOUT,
        )  # fmt: skip

    def _panels(self, layer: int | None, head: int | None) -> list[Any]:
        from regard.draw.overlay import Regarded

        def panel(name: str, grid: Grid, covers: tuple[float, float]) -> Regarded:
            return Regarded(self.picture, grid, name, covers)

        first = self.covers[0] if self.covers else (1.0, 1.0)
        panels = [panel(name, grid, first) for name, grid in self.ways.items()]
        self._check(layer, head)
        for number, (name, own, covers) in enumerate(zip(self.names, self.attention, self.covers, strict=True), 1):
            if layer is None:
                if head is None:
                    panels.append(panel(name, own.mean(0), covers))
                elif head <= len(own):
                    panels.append(panel(f"{name}, head {head}", own[head - 1], covers))
            elif layer == number:
                heads = range(1, len(own) + 1) if head is None else (head,)
                panels += [panel(f"{name}, head {n}", own[n - 1], covers) for n in heads]
        return panels

    def _check(self, layer: int | None, head: int | None) -> None:
        if not self.attention:
            if layer is not None or head is not None:
                raise RegardError("this model has no attention: there are no layers and heads to choose from.")
            return
        many = len(self.attention)
        if layer is not None and not 1 <= layer <= many:
            raise RegardError(f"there is no layer {layer}: there are {many}, counted from 1.")
        heads = len(self.attention[layer - 1]) if layer is not None else max(map(len, self.attention))
        if head is not None and not 1 <= head <= heads:
            raise RegardError(f"there is no head {head}: there are {heads}, counted from 1.")
