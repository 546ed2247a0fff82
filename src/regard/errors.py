"""Errors for users: each message states the problem, the place and the fix.

A `RegardError` is printed as one paragraph, with exit code 2. Other exceptions are bugs and keep their traceback."""

from __future__ import annotations

import copyreg
import difflib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

PLACES: dict[str, tuple[str, str]] = {}
"""Names in messages of saved tables, by path: the argument with the rows (empty for standard input), and the table."""


def name_places(text: str) -> str:
    """The text with names of saved tables, their rows and their files in place of paths and lines."""
    for path, (argument, table) in list(PLACES.items()):
        folder = str(Path(path).parent)
        if folder in text:
            if argument:
                text = re.sub(rf"{re.escape(path)}(?:, (?:line|row) |:)(\d+)", rf"row \1 of {argument}", text)
            text = re.sub(rf"{re.escape(folder)}\W[0-9a-f]{{32}}(\.\w+)?", "embedded file", text.replace(path, table))
    return text


class RegardError(Exception):
    """An error caused by input, settings or environment, which the user can fix."""

    def __init__(self, message: str = "") -> None:
        super().__init__(name_places(message))

    def __reduce__(self) -> tuple[Any, ...]:
        # a copy skips __init__, because the message is already complete
        return copyreg.__newobj__, (type(self), *self.args), vars(self)  # type: ignore[attr-defined]


class InputError(RegardError, ValueError):
    """An invalid value of an input or of an argument in Python."""


class InputTypeError(InputError, TypeError):
    """An input or an argument of a type that is not supported."""


class DataError(RegardError, ValueError):
    """An invalid file, line or value in the data."""

    def __init__(
        self,
        problem: str,
        path: str | Path | None = None,
        line: int | None = None,
        advice: str = "",
        kind: str = "format",
    ) -> None:
        """`kind` is the finding of `regard check` for a row with this error."""
        place = "" if path is None else f"{path}" + ("" if line is None else f", line {line}") + ": "
        super().__init__(f"{place}{problem}" + (f" {advice}" if advice else ""))
        self.path, self.line, self.problem, self.advice, self.kind = path, line, problem, advice, kind


class SettingError(RegardError, ValueError):
    """An unknown setting or an invalid value."""


class UnknownNameError(RegardError, ValueError):
    """An unknown name; the message suggests the nearest names."""

    def __init__(self, kind: str, name: str, known: Iterable[str], advice: str = "") -> None:
        super().__init__(f"Unknown {kind} '{name}'. {suggest(name, known)}" + (f" {advice}" if advice else ""))


class UnknownColumnError(UnknownNameError):
    """An unknown column. The message suggests near names only, because `available` lists all columns."""

    def __init__(self, name: str, known: Iterable[str], available: str) -> None:
        RegardError.__init__(
            self, " ".join(filter(None, (f"Unknown column '{name}'.", suggest_nearest(name, known), available)))
        )


class UnknownFolderError(UnknownNameError):
    """A missing folder. Only names are compared: common parent folders would make all paths similar."""

    def __init__(self, kind: str, folder: Path, candidates: Iterable[Path], advice: str = "") -> None:
        prefix = "" if folder.parent == Path() else f"{folder.parent}/"
        names = sorted(path.name for path in candidates)
        near = suggest_nearest(folder.name, names, prefix) or ("" if names else "No folder is there.")
        RegardError.__init__(self, " ".join(filter(None, (f"Unknown {kind} '{folder}'.", near, advice))))


class WeightsError(RegardError):
    """Weights that do not match the model (missing, unexpected, other shape), or a file type that is refused."""


class RunError(RegardError):
    """A run folder that is missing, invalid, or protected from overwriting."""


def suggest(name: str, known: Iterable[str], prefix: str = "") -> str:
    """'Did you mean …?' with the nearest names, or the list of all names if no name is near."""
    names = sorted(set(known))
    everything = f"Available: {', '.join(names)}." if names else "None available."
    return suggest_nearest(name, names, prefix) or everything


def suggest_nearest(name: str, known: Iterable[str], prefix: str = "") -> str:
    """'Did you mean …?' with the nearest names; empty if no name is near."""
    near = difflib.get_close_matches(name, sorted(set(known)), n=3, cutoff=0.5)
    return "Did you mean " + " or ".join(f"'{prefix}{n}'" for n in near) + "?" if near else ""


class Interrupted(RegardError):
    """A run stopped by a signal after saving; the message describes how to resume."""

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal_number
