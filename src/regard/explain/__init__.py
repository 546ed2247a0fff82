"""Explanations of predictions by task: attention maps, attention rollout and gradient attribution."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from regard.config import checked
from regard.errors import InputError, UnknownNameError
from regard.tasks.base import is_file, require_text
from regard.tasks.modality.base import file_content
from regard.types import shorten

if TYPE_CHECKING:
    from regard.draw.token_data import ActSteps, AttentionMap, DecisionAttribution, TextLikelihood
    from regard.tasks.base import Model


@dataclass(frozen=True, repr=False)
class Explanation:
    """The explanation of one input, saved as a figure, an HTML page or JSON."""

    title: str
    maps: tuple[AttentionMap, ...]
    facts: dict[str, str] = field(default_factory=dict)
    likelihood: TextLikelihood | None = None
    decision: DecisionAttribution | None = None
    act_steps: tuple[ActSteps, ...] = ()  # computation steps per token, for models with adaptive computation time (ACT)

    def __repr__(self) -> str:
        facts = ", ".join(f"{name}: {value}" for name, value in self.facts.items())
        return f"{type(self).__name__}({shorten(self.title)}, {shorten(facts)}; save(path) writes .html, .png, .svg or .json)"

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

    @checked
    def save(self, path: str | Path, layer: int | None = None, head: int | None = None) -> Path:
        """Save as PNG, SVG, HTML page or JSON, by file extension. `layer` and `head` of a figure count from 1; None: all."""
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
        return write_attention_page(
            self.maps, path, title, self.title, self.facts, self.likelihood, self.decision, self.act_steps
        )

    def _draw(self, path: Path, layer: int | None, head: int | None) -> Path:
        from regard.draw.attention import draw_heatmaps

        return draw_heatmaps(self.maps, path, self.title, layer, head, self.likelihood, self.decision, self.act_steps)


def explain(
    model: Model, source: Any, target: str | None = None, at: Any = None, class_name: str | None = None
) -> Explanation:
    """Explain one input with a model in evaluation mode. `at`: the query, a pixel (row, column) of an image or a point of a
    point cloud. `class_name`: class to explain in place of the predicted one."""
    if at is not None and model.task.input == "text":
        raise InputError(
            "A position (--at) is supported only for images and point clouds. Text explanations show every token."
        )
    if target is not None:
        require_text(target, "a text as target")
    at = at.tolist() if isinstance(at, np.ndarray | Tensor) else at
    if is_file(source):
        source = file_content(source)  # some explanations read the input twice
    if class_name is not None:
        check_class(model, class_name)
    named = {} if class_name is None else {"class_name": class_name}
    made: Explanation = model.task.explainer(model, source, target, at, **named)
    return made


def check_class(model: Model, name: str) -> None:
    """Raise an error if the model has no class of this name."""
    if not model.objective.has_labels:
        raise InputError(f"Models of task '{model.task.name}' have no classes. Remove --class (class_name).")
    if name not in (labels := model.spec.options.labels):
        raise UnknownNameError("class", name, labels)


def chosen_class(target: str | None, class_name: str | None) -> str | None:
    """The class to explain, from one of two arguments."""
    if target is not None and class_name is not None:
        raise InputError(f"Expected one class, got '{target}' and '{class_name}'.")
    return class_name if target is None else target
