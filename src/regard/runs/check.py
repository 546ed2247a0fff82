"""`check`: find problems in data before training."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from regard.config import override
from regard.data.check.pair_survey import ProgressCallback
from regard.data.check.report import Report
from regard.data.settings import DataSettings
from regard.errors import SettingError, UnknownNameError
from regard.foreign_names import resolve_task_name
from regard.index import TASK_ADVICE
from regard.lazy import LazyTable
from regard.runs.modality import resolve_task
from regard.runs.settings import collect_overrides

TEXT_CHECKS: LazyTable[Callable[..., Report]] = LazyTable({
    "translate": "regard.data.check.pairs:check_pairs",
    "lm": "regard.data.check.text:check_texts",
    "mlm": "regard.data.check.documents:check_documents",
    "classify": "regard.data.check.labeled:check_labeled",
    "choose": "regard.data.check.labeled:check_multiple_choice",
    "tag": "regard.data.check.tagged:check_tags",
    "qa": "regard.data.check.qa:check_qa",
    "embed": "regard.data.check.contrastive_pairs:check_contrastive_pairs",
    "algorithmic": "regard.data.check.algorithmic:check_algorithmic",
})  # fmt: skip
"""Data checks of text tasks."""

IMAGE_CHECKS: LazyTable[Callable[..., Report]] = LazyTable({
    "classify": "regard.data.check.images:ImageSurvey",
    "segment": "regard.data.check.images:MaskSurvey",
    "depth": "regard.data.check.images:DepthSurvey",
    "draw": "regard.data.check.images:UnlabeledImageSurvey",
    "caption": "regard.data.check.images:CaptionSurvey",
})  # fmt: skip
"""Data checks of image tasks."""

POINT_CHECKS: LazyTable[Callable[..., Report]] = LazyTable({
    "classify": "regard.data.check.point_clouds:CloudSurvey",
    "segment": "regard.data.check.point_clouds:LabeledCloudSurvey",
})  # fmt: skip
"""Data checks of point cloud tasks."""

CHECKS_BY_MODALITY = {"text": TEXT_CHECKS, "image": IMAGE_CHECKS, "points": POINT_CHECKS}

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def check(
    task: str, data: Paths, *, valid: Paths = (), columns: Mapping[str, str] | None = None,
    settings: Sequence[str] | Mapping[str, Any] = (), out: str | os.PathLike[str] | None = None,
) -> Report:  # fmt: skip
    """Check data in the same way as `train` reads it. Print the report or use its findings; `out` is a folder or a .png or
    .svg file for the chart of lengths."""
    task = resolve_task_name(task)
    if task not in TEXT_CHECKS and task not in IMAGE_CHECKS:
        raise UnknownNameError("task", task, [*TEXT_CHECKS, *IMAGE_CHECKS], TASK_ADVICE)
    if not data:
        raise SettingError("No data given. Pass files with --data.")
    said = collect_overrides(settings)
    for named in (f"{group}.{key}" for group, values in said.items() for key in values):
        if not named.startswith("data."):
            raise SettingError(f"'regard check' only accepts data.* settings, not {named}.")
    made = override(DataSettings(), said.get("data", {}), "data.")
    picture = None if out is None else _figure_path(Path(out))
    with _progress() as advance:
        paths = [data] if isinstance(data, str | os.PathLike) else data
        form = CHECKS_BY_MODALITY[resolve_task(task, None, [os.fspath(path) for path in paths], columns).modality]
        report = getattr(form[task], "check", form[task])(data, valid, columns or None, made, advance)
    if picture is None:
        return report
    drawn = []
    if len(report.lengths.words):
        from regard.draw.curves import draw_lengths

        drawn.append(draw_lengths(report.lengths, picture))
    if report.class_counts:
        from regard.draw.class_charts import draw_class_counts

        alone = not drawn and picture == Path(out or "")
        drawn.append(
            draw_class_counts(
                report.class_counts, picture if alone else picture.with_name(_classes_figure_name(picture))
            )
        )
    if not drawn:
        print(f"note: no chart written to {out}: this data has no lengths or classes to plot.", file=sys.stderr)
    return replace(report, figures=tuple(map(str, drawn)))


def _figure_path(out: Path) -> Path:
    """Path of the chart. An invalid suffix is an error before the data is read."""
    from regard.draw.figure import check_suffix

    if not out.suffix or out.is_dir():
        return out / "lengths.png"
    check_suffix(out, (".png", ".svg"))
    return out


def _classes_figure_name(picture: Path) -> str:
    """File name of the class chart, derived from the name of the length chart."""
    return f"classes{picture.suffix}" if picture.stem == "lengths" else f"{picture.stem}-classes{picture.suffix}"


@contextmanager
def _progress() -> Iterator[ProgressCallback]:
    """Status line on standard error, only in a terminal."""
    if not sys.stderr.isatty():
        yield lambda what, rows: None
        return
    from rich.console import Console

    with Console(stderr=True).status("reading data") as status:
        yield lambda what, rows: status.update(f"{what}: {rows:,} samples")
