"""Train, run and explain Transformers on your own data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if TYPE_CHECKING:
    from regard.errors import RegardError
    from regard.model import Model, build, load, save
    from regard.nn.recording import record_attention
    from regard.runs.check import check
    from regard.runs.evaluate import evaluate
    from regard.runs.probe import probe
    from regard.runs.train import train
    from regard.types import Prediction

_HOMES = {
    "Model": "regard.model",
    "Prediction": "regard.types",
    "RegardError": "regard.errors",
    "build": "regard.model",
    "check": "regard.runs.check",
    "evaluate": "regard.runs.evaluate",
    "load": "regard.model",
    "probe": "regard.runs.probe",
    "record_attention": "regard.nn.recording",
    "save": "regard.model",
    "train": "regard.runs.train",
}
"""Module of each public name, imported at the first use of the name, so that `import regard` does not import torch."""

__all__ = [
    "Model", "Prediction", "RegardError", "__version__", "build", "check", "evaluate", "load", "probe", "record_attention",
    "save", "train",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'regard' has no attribute '{name}'")
    import importlib

    found = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    if name == "train":
        from regard.index import help_text

        found.__doc__ = f"{found.__doc__}\n{help_text()}"
    return found


def __dir__() -> list[str]:
    return __all__
