"""`check`: find problems in data before training."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from regard.config import override
from regard.data.check.engine import Paths, ProgressCallback, Survey
from regard.data.check.report import Report
from regard.data.settings import DataSettings
from regard.errors import SettingError, UnknownNameError
from regard.foreign_names import resolve_task_name
from regard.index import TASK_ADVICE
from regard.lazy import LazyTable
from regard.runs.modality import resolve_task
from regard.runs.settings import collect_overrides

TEXT_CHECKS: LazyTable[type[Survey]] = LazyTable({
    "translate": "regard.data.check.pairs:PairSurvey",
    "lm": "regard.data.check.texts:TextSurvey",
    "mlm": "regard.data.check.texts:DocumentSurvey",
    "classify": "regard.data.check.texts:LabeledSurvey",
    "choose": "regard.data.check.texts:ChoiceSurvey",
    "tag": "regard.data.check.texts:TagSurvey",
    "qa": "regard.data.check.texts:QASurvey",
    "embed": "regard.data.check.pairs:ContrastivePairSurvey",
    "algorithmic": "regard.data.check.pairs:AlgorithmicSurvey",
})  # fmt: skip
"""Data checks of text tasks."""

IMAGE_CHECKS: LazyTable[type[Survey]] = LazyTable({
    "classify": "regard.data.check.files:ImageSurvey",
    "segment": "regard.data.check.files:MaskSurvey",
    "depth": "regard.data.check.files:DepthSurvey",
    "draw": "regard.data.check.files:UnlabeledImageSurvey",
    "caption": "regard.data.check.files:CaptionSurvey",
})  # fmt: skip
"""Data checks of image tasks."""

POINT_CHECKS: LazyTable[type[Survey]] = LazyTable({
    "classify": "regard.data.check.point_clouds:CloudSurvey",
    "segment": "regard.data.check.point_clouds:LabeledCloudSurvey",
})  # fmt: skip
"""Data checks of point cloud tasks."""

CHECKS_BY_MODALITY = {"text": TEXT_CHECKS, "image": IMAGE_CHECKS, "points": POINT_CHECKS}


def check(
    task: str,
    data: Paths,
    *,
    valid: Paths = (),
    columns: Mapping[str, str] | None = None,
    settings: Sequence[str] | Mapping[str, Any] = (),
    out: str | os.PathLike[str] | None = None,
) -> Report:
    """Check data in the same way as `train` reads it. Print the report or use its findings; `out` is a folder or a .png or
    .svg file for the chart of lengths."""
    task = resolve_task_name(task)
    if task not in TEXT_CHECKS and task not in IMAGE_CHECKS:
        raise UnknownNameError("task", task, [*TEXT_CHECKS, *IMAGE_CHECKS], TASK_ADVICE)
    if not data:
        raise SettingError("No data given. Pass files with --data.")
    overrides = collect_overrides(settings)
    for name in (f"{group}.{key}" for group, values in overrides.items() for key in values):
        if not name.startswith("data."):
            raise SettingError(f"'regard check' only accepts data.* settings, not {name}.")
    data_settings = override(DataSettings(), overrides.get("data", {}), "data.")
    figure_path = None if out is None else _figure_path(Path(out))
    with _progress() as progress:
        paths = [data] if isinstance(data, str | os.PathLike) else data
        modality = resolve_task(task, None, [os.fspath(path) for path in paths], columns).modality
        report = CHECKS_BY_MODALITY[modality][task].check(data, valid, columns or None, data_settings, progress)
    if figure_path is None:
        return report
    figures = []
    if len(report.lengths.words):
        from regard.draw.charts import draw_lengths

        figures.append(draw_lengths(report.lengths, figure_path))
    if report.class_counts:
        from regard.draw.charts import draw_class_counts

        if figures or figure_path != Path(out or ""):
            stem = "classes" if figure_path.stem == "lengths" else f"{figure_path.stem}-classes"
            figure_path = figure_path.with_name(f"{stem}{figure_path.suffix}")
        figures.append(draw_class_counts(report.class_counts, figure_path))
    if not figures:
        print(f"note: no chart written to {out}: this data has no lengths or classes to plot.", file=sys.stderr)
    return replace(report, figures=tuple(map(str, figures)))


def _figure_path(out: Path) -> Path:
    """Path of the chart. An invalid suffix is an error before the data is read."""
    from regard.draw.figure import check_suffix

    if not out.suffix or out.is_dir():
        return out / "lengths.png"
    check_suffix(out, (".png", ".svg"))
    return out


@contextmanager
def _progress() -> Iterator[ProgressCallback]:
    """Status line on standard error, only in a terminal."""
    if not sys.stderr.isatty():
        yield lambda what, rows: None
        return
    from rich.console import Console

    with Console(stderr=True).status("reading data") as status:
        yield lambda what, rows: status.update(f"{what}: {rows:,} samples")
