"""Explanations of predictions by task: attention maps, attention rollout and gradient attribution."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.errors import RegardError
from regard.lazy import LazyTable

if TYPE_CHECKING:
    from regard.draw.token_data import ActSteps, AttentionMap, DecisionAttribution, TextLikelihood
    from regard.tasks import Task
    from regard.tasks.protocol import ModelProtocol


@dataclass(frozen=True)
class Explanation:
    """The explanation of one input, saved as a figure, an HTML page or JSON."""

    title: str
    maps: tuple[AttentionMap, ...]
    facts: dict[str, str] = field(default_factory=dict)
    likelihood: TextLikelihood | None = None
    decision: DecisionAttribution | None = None
    act_steps: tuple[ActSteps, ...] = ()  # computation steps per token, for models with adaptive computation time (ACT)

    @property
    def values(self) -> dict[str, Any]:
        """Values for JSON: attention weights (layers, heads, queries, keys), tokens, probabilities and attributions."""
        values: dict[str, Any] = {"title": self.title, "facts": self.facts}
        values["attention"] = {
            item.name: {"queries": item.queries, "keys": item.keys, "weights": item.weights} for item in self.maps
        }
        if self.likelihood is not None:
            values["tokens"] = [
                {"token": token.piece, "logprob": token.log_prob, "rank": token.rank}
                for token in self.likelihood.tokens
            ]
        if self.decision is not None:
            values["prediction"] = self.decision.prediction
            values["probabilities"] = [
                {"value": value, "probability": probability} for value, probability in self.decision.probabilities
            ]
            values["attributions"] = [
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
            values["act_steps"] = [
                {"title": one.title, "tokens": one.pieces, "steps": one.steps} for one in self.act_steps
            ]
        return values

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
        return self._write_page(path) if path.suffix.lower() in (".html", ".htm") else self._draw(path, layer, head)

    def _write_page(self, path: Path) -> Path:
        from regard.draw.page import write_attention_page

        title = "Attention" if self.decision is None else "Attribution"
        if any(item.is_gradient for item in self.maps):
            title = "Input saliency (gradient norm)"
        parts: dict[str, Any] = {"likelihood": self.likelihood, "decision": self.decision, "act_steps": self.act_steps}
        return write_attention_page(self.maps, path, title=title, note=self.title, facts=self.facts, **parts)

    def _draw(self, path: Path, layer: int | None, head: int | None) -> Path:
        from regard.draw.attention import draw_heatmaps

        parts: dict[str, Any] = {"likelihood": self.likelihood, "decision": self.decision, "act_steps": self.act_steps}
        return draw_heatmaps(self.maps, path, title=self.title, layer=layer, head=head, **parts)


Explainer = Callable[..., Explanation]
"""Called with model, source, target and position; `target` and position may be None."""

EXPLAINERS: dict[str, LazyTable[Explainer]] = {
    "text": LazyTable(
        {
            "translate": "regard.explain.text_generation:explain_translation",
            "algorithmic": "regard.explain.text_generation:explain_translation",
            "lm": "regard.explain.text_generation:explain_lm",
            "classify": "regard.explain.text_decisions:explain_classify",
            "tag": "regard.explain.text_decisions:explain_tag",
            "qa": "regard.explain.text_decisions:explain_qa",
            "choose": "regard.explain.text_decisions:explain_choice",
            "mlm": "regard.explain.text_decisions:explain_mlm",
            "embed": "regard.explain.text_decisions:explain_embed",
        }
    ),
    "image": LazyTable(
        {
            "classify": "regard.explain.images:explain_image",
            "segment": "regard.explain.images:explain_image",
            "depth": "regard.explain.images:explain_image",
            "draw": "regard.explain.images:explain_generation",
            "caption": "regard.explain.captioning:explain_caption",
        }
    ),
    "points": LazyTable(
        {"classify": "regard.explain.points:explain_cloud", "segment": "regard.explain.points:explain_cloud"}
    ),
}
"""Explainers by modality and task name."""


def is_explainable(task: Task) -> bool:
    """True if `explain` supports the task."""
    return task.name in EXPLAINERS[task.modality]


def explain(model: ModelProtocol, source: Any, target: str | None = None, at: Any = None) -> Explanation:
    """Explain one input in evaluation mode. `at`: the query, a pixel (row, column) of an image or a point of a point cloud."""
    task = model.task
    if at is not None and task.modality == "text":
        raise RegardError(
            "A position (--at) is supported only for images and point clouds. Text explanations show every token."
        )
    if not is_explainable(task):
        supported = ", ".join(EXPLAINERS[task.modality])
        raise RegardError(f"Task '{task.name}' does not support explanations. Supported: {supported}.")
    training = model.training
    model.eval()
    try:
        return EXPLAINERS[task.modality][task.name](model, source, target, at)
    finally:
        model.train(training)
