"""Explanation of an image as heatmaps over the image: a figure, an HTML page or JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from regard.errors import RegardError
from regard.explain.explanation import Explanation
from regard.explain.grid_attention import GridArray, ImageAttention

METHOD_TITLES = {
    "rollout": "Attention rollout",
    "gradient × attention": "Attribution (gradient × attention)",
    "grad-cam": "Grad-CAM",
}
METHOD_DESCRIPTIONS = {
    "Attention rollout": "Attention multiplied through all layers, with residual connections counted as one half "
    "(Abnar & Zuidema 2020).",
    "Attribution (gradient × attention)": "Regions that increase the predicted score: attention weighted by its gradient "
    "(Chefer et al. 2021).",
    "Grad-CAM": "Last feature map weighted by the gradient of the predicted score (Selvaraju et al. 2017).",
    "attention": "Attention of one layer over the image, per head or averaged.",
}
"""One sentence per method; `attention` is the attention map."""
PANEL_TITLES = METHOD_TITLES | {"gradient × attention": "Gradient × attention"}
"""Titles short enough for the width of a panel."""
PAPERS = {
    "rollout": "attention rollout: Abnar & Zuidema 2020",
    "gradient × attention": "gradient × attention: Chefer et al. 2021",
    "grad-cam": "Grad-CAM: Selvaraju et al. 2017",
}


@dataclass(frozen=True)
class ImageExplanation(Explanation):
    """Explanation of one image. Maps may have any grid size; heatmaps show fractions of the total attention."""

    image: Any = None
    """(H, W, 3) bytes after preprocessing"""
    query_name: str = ""
    """class token, average over all positions, or row and column of a pixel"""
    query_pixel: tuple[int, int] | None = None
    """row and column of the query pixel, if given"""
    method_maps: dict[str, GridArray] = field(default_factory=dict)
    """rollout and attribution (h, w), each summing to 1"""
    image_attention: ImageAttention | None = None
    """attention by layer; None for models without attention"""
    query_grid: tuple[int, int] = (0, 0)
    """rows and columns of the stored queries"""
    position_similarity: Any = None
    """cosine similarity (n, n) of learned position embeddings, if any"""

    @property
    def attention(self) -> tuple[GridArray, ...]:
        """Attention of the query in each layer, (heads, h, w)."""
        return (
            ()
            if self.image_attention is None
            else tuple(layer for sight in self.image_attention.stages for layer in sight.query_maps)
        )

    @property
    def layer_names(self) -> tuple[str, ...]:
        """Names of all layers, counted over all stages."""
        sights = () if self.image_attention is None else self.image_attention.stages
        stages = [stage for stage, sight in enumerate(sights, 1) for _ in sight.query_maps]
        told = [f" (stage {stage})" if len(sights) > 1 else "" for stage in stages]
        return tuple(f"layer {number}{stage}" for number, stage in enumerate(told, 1))

    @property
    def extents(self) -> tuple[tuple[float, float], ...]:
        """Height and width of the grid of each layer, relative to the image."""
        sights = () if self.image_attention is None else self.image_attention.stages
        return tuple(sight.token_grid.extent for sight in sights for _ in sight.query_maps)

    @property
    def values(self) -> dict[str, Any]:
        found: dict[str, Any] = {"title": self.title, "facts": self.facts}
        found |= self.method_maps
        if self.image_attention is not None:
            found |= {
                "query": self.query_name,
                "at": self.query_pixel,
                "layers": self.layer_names,
                "attention": self.attention,
            }
        return found

    def extra_paths(self, path: Path) -> tuple[Path, ...]:
        drawn = self.position_similarity is not None and path.suffix.lower() in (".png", ".svg")
        return (path.with_name(f"{path.stem}-positions{path.suffix}"),) if drawn else ()

    def save(self, path: str | Path, layer: int | None = None, head: int | None = None) -> Path:
        path = Path(path)
        if path.suffix.lower() == ".json":
            return super().save(path)
        if path.suffix.lower() in (".html", ".htm"):
            return self._write_page(path)
        from regard.draw.image_attention import draw_position_similarity
        from regard.draw.overlay import draw_heatmap_overlays

        panels = self._panels(layer, head)
        for place in self.extra_paths(path):
            draw_position_similarity(self.position_similarity, place)
        about = "; ".join(f"{k}: {v}" for k, v in self.facts.items())
        if self.attention:
            about += f"; query: {self.query_name}" + ("; average over heads" if layer is head is None else "")
        about = "; ".join([about, *(PAPERS[name] for name in self.method_maps)])
        return draw_heatmap_overlays(panels, path, self.title, about, unit=None, mark=self._relative_query)

    @property
    def _relative_query(self) -> tuple[float, float] | None:
        """Query pixel as fractions of image height and width."""
        if self.query_pixel is None:
            return None
        return (self.query_pixel[0] + 0.5) / self.image.shape[0], (self.query_pixel[1] + 0.5) / self.image.shape[1]

    def _write_page(self, path: Path) -> Path:
        from regard.draw.image_attention import OverlayMap, write_image_page

        first = self.extents[0] if self.extents else (1.0, 1.0)
        each = (
            []
            if self.image_attention is None
            else [layer for sight in self.image_attention.stages for layer in sight.stored_maps]
        )
        layers = [
            OverlayMap(name, own, covers, each[number] if each else None)
            for number, (name, own, covers) in enumerate(
                zip(self.layer_names, self.attention, self.extents, strict=True)
            )
        ]
        ways = {METHOD_TITLES[name]: OverlayMap(name, grid, first) for name, grid in self.method_maps.items()}
        return write_image_page(
            self.image, layers, ways, path, self.title, self.facts, query=(self.query_name, self._relative_query),
            query_grid=self.query_grid, positions=self.position_similarity, descriptions=METHOD_DESCRIPTIONS,
        )  # fmt: skip

    def _panels(self, layer: int | None, head: int | None) -> list[Any]:
        from regard.draw.overlay import AttentionOverlay

        def panel(name: str, grid: GridArray, covers: tuple[float, float]) -> AttentionOverlay:
            return AttentionOverlay(self.image, grid, name, covers)

        first = self.extents[0] if self.extents else (1.0, 1.0)
        panels = [panel(PANEL_TITLES[name], grid, first) for name, grid in self.method_maps.items()]
        self._check_layer_head(layer, head)
        for number, (name, own, covers) in enumerate(
            zip(self.layer_names, self.attention, self.extents, strict=True), 1
        ):
            if layer is None:
                if head is None:
                    panels.append(panel(name, own.mean(0), covers))
                elif head <= len(own):
                    panels.append(panel(f"{name}, head {head}", own[head - 1], covers))
            elif layer == number:
                heads = range(1, len(own) + 1) if head is None else (head,)
                panels += [panel(f"{name}, head {n}", own[n - 1], covers) for n in heads]
        return panels

    def _check_layer_head(self, layer: int | None, head: int | None) -> None:
        if not self.attention:
            if layer is not None or head is not None:
                raise RegardError("This model has no attention, so layers and heads cannot be selected.")
            return
        many = len(self.attention)
        if layer is not None and not 1 <= layer <= many:
            raise RegardError(f"Layer must be between 1 and {many}, got {layer}.")
        heads = len(self.attention[layer - 1]) if layer is not None else max(map(len, self.attention))
        if head is not None and not 1 <= head <= heads:
            raise RegardError(f"Head must be between 1 and {heads}, got {head}.")
