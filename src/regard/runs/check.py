"""`check`: find problems in data before training."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from regard import index
from regard.config import checked, override
from regard.data.check.engine import ProgressCallback
from regard.data.check.report import Report
from regard.data.memory_tables import Data, data_entries
from regard.data.settings import DataSettings
from regard.errors import SettingError
from regard.runs.settings import collect_overrides
from regard.runs.spec import resolve_task


@checked
def check(
    task: str,
    data: Data,
    *,
    valid: Data = (),
    columns: Mapping[str, str] | None = None,
    settings: Sequence[str] | Mapping[str, Any] = (),
    out: str | os.PathLike[str] | None = None,
) -> Report:
    """Report of problems in data, which is read as by `train`. Print the report, or use its findings.

    task      name of a task
    data      path of a file or folder, several paths, or a table; `valid`: validation data
    columns   names or indices of the columns in the files, such as {"text": "review"}
    settings  data.* settings: {"data.max_length": 100} or ["data.max_length=100"]
    out       folder, or .png or .svg file, for charts of lengths and classes

    Raises DataError, SettingError, UnknownNameError or InputTypeError, subclasses of `regard.RegardError`."""
    index.check_task(task)
    entries, valid_entries = data_entries(data), data_entries(valid, "valid")
    if not entries:
        raise SettingError("No data given. Pass files with --data.")
    overrides = collect_overrides(settings)
    for name in (f"{group}.{key}" for group, values in overrides.items() for key in values):
        if not name.startswith("data."):
            raise SettingError(f"'regard check' only accepts data.* settings, not {name}.")
    data_settings = override(DataSettings(), overrides.get("data", {}), "data.")
    is_folder = out is not None and (not Path(out).suffix or Path(out).is_dir())
    if out is not None and not is_folder:  # an invalid suffix is an error before the data is read
        from regard.draw.figure import check_suffix

        check_suffix(Path(out), (".png", ".svg"))
    with _progress() as progress:
        row = resolve_task(task, None, entries, columns)
        report: Report = row.checker.check(entries, valid_entries, columns or None, data_settings, progress)
    if out is None:
        return report
    from regard.draw.charts import draw_class_counts, draw_lengths

    figures, path = list[Path](), Path(out)
    if len(report.lengths.words):
        figures.append(draw_lengths(report.lengths, path / "lengths.png" if is_folder else path))
    if report.class_counts:
        beside = path.with_name(f"{path.stem}-classes{path.suffix}") if figures else path
        figures.append(draw_class_counts(report.class_counts, path / "classes.png" if is_folder else beside))
    if not figures:
        print(f"note: no chart written to {out}: this data has no lengths or classes to plot.", file=sys.stderr)
    return replace(report, figures=tuple(map(str, figures)))


@contextmanager
def _progress() -> Iterator[ProgressCallback]:
    """Status line on standard error, only in a terminal."""
    if not sys.stderr.isatty():
        yield lambda what, rows: None
        return
    from rich.console import Console

    with Console(stderr=True).status("reading data") as status:
        yield lambda what, rows: status.update(f"{what}: {rows:,} samples")
