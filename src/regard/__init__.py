"""The transformer family, whole: train on your own files, load what is published, answer, and see what it looked at."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from regard.model import Model, build, load, save
    from regard.nn.recording import record_attention
    from regard.runs.check import check
    from regard.runs.evaluate import evaluate
    from regard.runs.probe import probe
    from regard.runs.train import train
    from regard.types import Prediction

_HOMES = {
    "Answer": "regard.types",
    "Model": "regard.model",
    "build": "regard.model",
    "check": "regard.runs.check",
    "evaluate": "regard.runs.evaluate",
    "load": "regard.model",
    "probe": "regard.runs.probe",
    "save": "regard.model",
    "train": "regard.runs.train",
    "watch": "regard.nn.recording",
}
"""Where the public names live; they are fetched when first used, so that `import regard` does not wait for torch."""

__all__ = ["Answer", "Model", "__version__", "build", "check", "evaluate", "load", "probe", "save", "train", "watch"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'regard' has no attribute '{name}'")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
