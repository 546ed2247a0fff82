"""The explanation of one input, saved as a figure, an HTML page or JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from regard.draw.token_data import ActSteps, AttentionMap, DecisionAttribution, TextLikelihood


@dataclass(frozen=True)
class Explanation:
    title: str
    maps: tuple[AttentionMap, ...]
    facts: dict[str, str] = field(default_factory=dict)
    likelihood: TextLikelihood | None = None
    decision: DecisionAttribution | None = None
    act_steps: tuple[ActSteps, ...] = ()
    """computation steps per token, for models with adaptive computation time (ACT)"""

    @property
    def values(self) -> dict[str, Any]:
        """Values for JSON: attention weights (layers, heads, queries, keys), tokens, probabilities and attributions."""
        found: dict[str, Any] = {"title": self.title, "facts": self.facts}
        found["attention"] = {
            item.name: {"queries": item.queries, "keys": item.keys, "weights": item.weights} for item in self.maps
        }
        if self.likelihood is not None:
            found["tokens"] = [
                {"token": guess.piece, "logprob": guess.log_prob, "rank": guess.rank}
                for guess in self.likelihood.tokens
            ]
        if self.decision is not None:
            chances = [{"value": value, "probability": chance} for value, chance in self.decision.probabilities]
            found |= {"prediction": self.decision.prediction, "probabilities": chances}
            found["attributions"] = [
                {
                    "target": one.title,
                    "method": one.method,
                    "positions": one.output_positions,
                    "tokens": one.pieces,
                    "weights": one.fractions,
                }
                for one in self.decision.attributions
            ]
        if self.act_steps:
            found["act_steps"] = [
                {"title": one.title, "tokens": one.pieces, "steps": one.steps} for one in self.act_steps
            ]
        return found

    def extra_paths(self, path: Path) -> tuple[Path, ...]:
        """Files written by `save` in addition to `path`."""
        return ()

    def save(self, path: str | Path, layer: int | None = None, head: int | None = None) -> Path:
        """Save as PNG, SVG, self-contained HTML page or JSON, by file extension. `layer` and `head` select maps of a figure and
        count from 1; None: all."""
        path = Path(path)
        if path.suffix.lower() == ".json":
            from regard.draw.figure import write_atomic

            text = json.dumps(self.values, ensure_ascii=False, default=lambda array: array.tolist())
            return write_atomic(path, lambda to: to.write_text(text + "\n", "utf-8", "replace"))
        if path.suffix.lower() in (".html", ".htm"):
            from regard.draw.page import write_attention_page

            title = "Attention" if self.decision is None else "Attribution"
            if any(item.is_gradient for item in self.maps):
                title = "Input saliency (gradient norm)"
            return write_attention_page(
                self.maps, path, title=title, note=self.title, facts=self.facts, likelihood=self.likelihood,
                decision=self.decision, act_steps=self.act_steps,
            )  # fmt: skip
        from regard.draw.attention import draw_heatmaps

        return draw_heatmaps(
            self.maps, path, title=self.title, layer=layer, head=head, likelihood=self.likelihood, decision=self.decision,
            act_steps=self.act_steps,
        )  # fmt: skip
