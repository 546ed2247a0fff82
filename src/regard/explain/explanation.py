"""An explanation is maps with words around them, and of a text also what was expected; it saves itself as picture or page."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from regard.draw.guesses import Reading
from regard.draw.maps import AttentionMap


@dataclass(frozen=True)
class Explanation:
    title: str
    maps: tuple[AttentionMap, ...]
    facts: dict[str, str] = field(default_factory=dict)
    reading: Reading | None = None

    def save(self, path: str | Path, layer: int | None = None, head: int | None = None) -> Path:
        """PNG or SVG, or one self-contained HTML page, by the suffix. Layers and heads count from 1; None is all."""
        path = Path(path)
        if path.suffix.lower() in (".html", ".htm"):
            from regard.draw.page import page

            title = "What the model looked at"
            return page(self.maps, path, title=title, note=self.title, facts=self.facts, reading=self.reading)
        from regard.draw.heat import heat

        return heat(self.maps, path, title=self.title, layer=layer, head=head, reading=self.reading)
