"""Every error a person can meet says what is wrong, where, and what to do.

A `RegardError` reaches the terminal as one readable paragraph and exit code 2. Anything else is a defect of ours
and keeps its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path


class RegardError(Exception):
    """Something that the person who called us can put right."""


class DataError(RegardError):
    """A file, a line or a value of the person's data."""

    def __init__(self, problem: str, path: str | Path | None = None, line: int | None = None, advice: str = "") -> None:
        place = "" if path is None else f"{path}" + ("" if line is None else f", line {line}") + ": "
        super().__init__(f"{place}{problem}" + (f" {advice}" if advice else ""))
        self.path, self.line, self.problem, self.advice = path, line, problem, advice


class SettingError(RegardError):
    """A setting that does not exist or has no meaning."""


class UnknownNameError(RegardError):
    """A name that is not in a table; the nearest right ones are offered."""

    def __init__(self, kind: str, name: str, known: Iterable[str], advice: str = "") -> None:
        super().__init__(f"Unknown {kind} '{name}'. {suggest(name, known)}" + (f" {advice}" if advice else ""))


class UnknownColumnError(UnknownNameError):
    """A column that a file does not have; `has` lists those that it has, so that only near ones are offered besides."""

    def __init__(self, name: str, known: Iterable[str], available: str) -> None:
        RegardError.__init__(
            self, " ".join(filter(None, (f"Unknown column '{name}'.", suggest_nearest(name, known), available)))
        )


class UnknownFolderError(UnknownNameError):
    """A folder that is not there. Names are compared, not paths: what all of them lie in makes none of them near."""

    def __init__(self, kind: str, folder: Path, candidates: Iterable[Path], advice: str = "") -> None:
        prefix = "" if folder.parent == Path() else f"{folder.parent}/"
        names = sorted(path.name for path in candidates)
        near = suggest_nearest(folder.name, names, prefix) or ("" if names else "No folder is there.")
        RegardError.__init__(self, " ".join(filter(None, (f"Unknown {kind} '{folder}'.", near, advice))))


class WeightsError(RegardError):
    """Weights that do not fit the model: missing, unexpected, of another shape, or in a form we refuse to open."""


class RunError(RegardError):
    """A run folder that is missing, is none, or may not be overwritten."""


def suggest(name: str, known: Iterable[str], prefix: str = "") -> str:
    """'Did you mean …?' with the nearest names, or the whole (short) list when nothing is near."""
    names = sorted(set(known))
    everything = f"Available: {', '.join(names)}." if names else "None available."
    return suggest_nearest(name, names, prefix) or everything


def suggest_nearest(name: str, known: Iterable[str], prefix: str = "") -> str:
    """'Did you mean …?' with the nearest names; nothing when none is near."""
    near = difflib.get_close_matches(name, sorted(set(known)), n=3, cutoff=0.5)
    return "Did you mean " + " or ".join(f"'{prefix}{n}'" for n in near) + "?" if near else ""


class Interrupted(RegardError):
    """A run that was asked to stop, has saved, and says how to go on."""

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal_number
