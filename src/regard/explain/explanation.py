"""An explanation is maps with words around them, of a text also what was expected, of a decision also what counted for it;
it saves itself as picture, page or numbers."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from regard.draw.act_steps import Thought
from regard.draw.attention_maps import AttentionMap
from regard.draw.attribution import Decided
from regard.draw.surprisal import Reading


@dataclass(frozen=True)
class Explanation:
    title: str
    maps: tuple[AttentionMap, ...]
    facts: dict[str, str] = field(default_factory=dict)
    reading: Reading | None = None
    decided: Decided | None = None
    thoughts: tuple[Thought, ...] = ()
    """how long the tokens of each text were thought about, where that differs"""

    @property
    def values(self) -> dict[str, Any]:
        """All numbers that are drawn: attention as arrays (layers, heads, queries, keys), tokens, and what counted."""
        found: dict[str, Any] = {"title": self.title, "facts": self.facts}
        found["attention"] = {
            item.name: {"queries": item.queries, "keys": item.keys, "weights": item.weights} for item in self.maps
        }
        if self.reading is not None:
            found["tokens"] = [
                {"piece": guess.piece, "log": guess.log, "rank": guess.rank} for guess in self.reading.guesses
            ]
        if self.decided is not None:
            chances = [{"value": value, "probability": chance} for value, chance in self.decided.chances]
            found |= {"answer": self.decided.said, "probabilities": chances}
            found["counted"] = [
                {"for": one.title, "by": one.way, "asked": one.at, "tokens": one.pieces, "shares": one.shares}
                for one in self.decided.counted
            ]
        if self.thoughts:
            found["steps"] = [{"of": one.title, "tokens": one.pieces, "steps": one.steps} for one in self.thoughts]
        return found

    def beside(self, path: Path) -> tuple[Path, ...]:
        """What was written beside the file that was asked for."""
        return ()

    def save(self, path: str | Path, layer: int | None = None, head: int | None = None) -> Path:
        """PNG or SVG, one self-contained HTML page, or the numbers as JSON, by the suffix. Layers and heads count from 1;
        None is all."""
        path = Path(path)
        if path.suffix.lower() == ".json":
            from regard.draw.figure import write_whole

            text = json.dumps(self.values, ensure_ascii=False, default=lambda array: array.tolist())
            return write_whole(path, lambda to: to.write_text(text + "\n", "utf-8", "replace"))
        if path.suffix.lower() in (".html", ".htm"):
            from regard.draw.page import page

            title = "What the model looked at" if self.decided is None else "What counted for the answer"
            if any(item.depends for item in self.maps):
                title = "What the words depended on"
            return page(
                self.maps, path, title=title, note=self.title, facts=self.facts, reading=self.reading,
                decided=self.decided, thoughts=self.thoughts,
            )  # fmt: skip
        from regard.draw.attention import heat

        return heat(
            self.maps, path, title=self.title, layer=layer, head=head, reading=self.reading, decided=self.decided,
            thoughts=self.thoughts,
        )  # fmt: skip
