"""All calls from the golden record into the product; `compute.py` computes the values from these calls."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from rich.console import Console
from torch import Tensor, nn

import regard
from golden import names
from regard.errors import Interrupted
from regard.systems import SYSTEMS
from regard.tasks import TASKS

__all__ = ["Interrupted"]


def systems() -> dict[str, tuple[str, str, tuple[str, ...], tuple[str, ...]]]:
    """Architecture name -> (modality, model type of its Hugging Face format, tasks, presets)."""
    return {
        name: (system.modality, system.published.model_type, system.tasks, tuple(system.presets))
        for name, system in SYSTEMS.items()
    }


def train(task: str, data: str, out: Path, preset: str, settings: Mapping[str, Any]) -> nn.Module:
    """Train in folder `out` and return the best model."""
    return regard.train(task, data, model=preset, out=out, settings=settings, device="cpu", console=silent())


def resume(task: str, out: Path) -> nn.Module:
    return regard.train(task, out=out, resume=True, device="cpu", console=silent())


@contextmanager
def without_charts() -> Iterator[None]:
    """Disable curves and figures, because drawing takes longer than four steps of a tiny model."""
    with ExitStack() as stack:
        stack.enter_context(mock.patch("regard.runs.trainer.draw_training_curves"))
        for kind in {type(task.objective) for task in TASKS}:
            stack.enter_context(mock.patch.object(kind, "save_figures", lambda *_: []))
        yield


def silent() -> Console:
    return Console(file=io.StringIO(), width=200)


def log(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / names.LOG["file"]).read_text("utf-8").splitlines()]


def scores(run: Path) -> dict[str, Any]:
    file, key = names.SCORES
    return json.loads((run / file).read_text("utf-8"))[key]


def build(preset: str, task: str, changes: Mapping[str, Any], device: str = "cpu") -> nn.Module:
    return regard.build(preset, task=task, device=device, **changes)


def export(model: nn.Module, folder: Path) -> Path:
    return regard.save(model, folder)


def predict(model: nn.Module, given: Any, settings: Mapping[str, Any]) -> Any:
    return model.predict(given, **settings)


def choose(model: nn.Module, prompt: str, choices: tuple[str, ...]) -> Any:
    return model.rank(prompt, list(choices))


def logits(model: nn.Module, x: Tensor, target: Tensor | None, mask: Tensor | None) -> Tensor:
    return model.logits(x, target, mask=mask)


def image_size(model: nn.Module) -> int:
    return model.config.image_size
