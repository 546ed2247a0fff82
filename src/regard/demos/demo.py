"""What one demo has of its own: its embedded data, its recipe, what it is asked, and what is shown of its attention."""

from __future__ import annotations

import shlex
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from regard.model import Model

LogFn = Callable[[str], None]
ResultRows = Sequence[Mapping[str, str]]
"""Test samples with their answers."""


class Demo(ABC):
    name: ClassVar[str]
    """by which it is asked for"""
    task: ClassVar[str]
    metric: ClassVar[str] = "exact_match"
    """the score of the test that it is judged by"""
    out: ClassVar[str]
    """the folder of the run, where none is named"""
    settings: ClassVar[tuple[str, ...]]
    input_key: ClassVar[str]
    """what a test sample calls that which is asked"""
    titles: ClassVar[Mapping[str, str]]
    """of the stages, in their order: corpus, train, score, answer, explain"""

    @abstractmethod
    def write_data(self, folder: Path) -> dict[str, str]:
        """The data as files of the kind that a person would have; those of its parts train, valid and test are named."""

    @abstractmethod
    def show_predictions(self, model: Model, rows: ResultRows, log: LogFn) -> None: ...

    @abstractmethod
    def explain(self, model: Model, run: Path, data: Mapping[str, str], rows: ResultRows, log: LogFn) -> dict[str, Any]:
        """Pictures and pages into the run. What was measured is kept with the scores."""

    @abstractmethod
    def next_steps(self, program: str, run: Path, data: Path) -> str:
        """What to type next, of the run and the folder of its data."""


def quote_path(path: Path) -> str:
    """As a shell takes it."""
    return shlex.quote(str(path))
