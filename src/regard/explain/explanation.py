"""An explanation is maps with words around them; it knows how to save itself as a picture or a page."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from regard.draw.maps import AttentionMap


@dataclass(frozen=True)
class Explanation:
    title: str
    maps: tuple[AttentionMap, ...]
    facts: dict[str, str] = field(default_factory=dict)

    def save(self, path: str | Path, layer: int | None = None, head: int | None = None) -> Path:
        """PNG or SVG, or one self-contained HTML page, by the suffix. Layers and heads count from 1; None is all."""
        path = Path(path)
        if path.suffix.lower() in (".html", ".htm"):
            from regard.draw.page import page

            return page(self.maps, path, title="What the model looked at", note=self.title, facts=self.facts)
        from regard.draw.heat import heat

        return heat(self.maps, path, title=self.title, layer=layer, head=head)
