"""Interface of a demo: generated data, settings, printed predictions and attention."""

from __future__ import annotations

import shlex
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from regard.model import Model

LogFn = Callable[[str], None]
ResultRows = Sequence[Mapping[str, str]]
"""Test samples with predictions and references."""


class Demo(ABC):
    name: ClassVar[str]
    """argument of `regard demo`"""
    task: ClassVar[str]
    metric: ClassVar[str] = "exact_match"
    """test score that `demo` returns"""
    out: ClassVar[str]
    """default run folder"""
    settings: ClassVar[tuple[str, ...]]
    input_key: ClassVar[str]
    """key of the input in a test sample"""
    titles: ClassVar[Mapping[str, str]]
    """titles of the stages: corpus, train, score, predict, explain"""

    @abstractmethod
    def write_data(self, folder: Path) -> dict[str, str]:
        """Write the data in a file format for users' own data; return the paths of train, valid and test."""

    @abstractmethod
    def show_predictions(self, model: Model, rows: ResultRows, log: LogFn) -> None: ...

    @abstractmethod
    def explain(self, model: Model, run: Path, data: Mapping[str, str], rows: ResultRows, log: LogFn) -> dict[str, Any]:
        """Save figures and pages in the run folder; return measurements for demo.json."""

    @abstractmethod
    def next_steps(self, program: str, run: Path, data: Path) -> str:
        """Text with commands to try next, for the run folder and the data folder."""


def quote_path(path: Path) -> str:
    """Path quoted for a shell."""
    return shlex.quote(str(path))
