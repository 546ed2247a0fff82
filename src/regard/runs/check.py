"""`check`: what is wrong with data, before an hour is lost on it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from regard.config import override
from regard.data.check.class_counts import ClassReport
from regard.data.check.findings import Report
from regard.data.check.pair_survey import Advance
from regard.data.settings import Data
from regard.errors import SettingError, UnknownName
from regard.index import TASK_ADVICE
from regard.lazy import LazyTable
from regard.runs.modality import task_for
from regard.runs.settings import gather

CHECKS: LazyTable[Callable[..., Report]] = LazyTable({
    "translate": "regard.data.check.pairs:check_pairs",
    "language": "regard.data.check.text:check_texts",
    "mask": "regard.data.check.documents:check_documents",
    "classify": "regard.data.check.labeled:check_labelled",
    "choose": "regard.data.check.labeled:check_questions",
    "tag": "regard.data.check.tagged:check_tagged",
    "span": "regard.data.check.qa:check_spans",
    "embed": "regard.data.check.contrastive_pairs:check_together",
    "recall": "regard.data.check.algorithmic:check_recall",
})  # fmt: skip
"""How the data of each task is checked."""

LOOKS: LazyTable[Callable[..., Report]] = LazyTable({
    "classify": "regard.data.check.images:check_pictures",
    "segment": "regard.data.check.images:check_masked",
    "depth": "regard.data.check.images:check_depths",
    "draw": "regard.data.check.images:check_plain",
    "caption": "regard.data.check.captions:check_captions",
})  # fmt: skip
"""The same of tasks whose samples are pictures."""

SHAPES: LazyTable[Callable[..., Report]] = LazyTable({
    "classify": "regard.data.check.point_clouds:check_clouds",
    "segment": "regard.data.check.point_clouds:check_labelled_clouds",
})  # fmt: skip
"""The same of tasks whose samples are clouds."""

FORMS = {"text": CHECKS, "pictures": LOOKS, "points": SHAPES}

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def check(
    task: str, data: Paths, *, valid: Paths = (), columns: Mapping[str, str] | None = None,
    settings: Sequence[str] | Mapping[str, Any] = (), out: str | os.PathLike[str] | None = None,
) -> Report:  # fmt: skip
    """Look at data as `train` would read it. `print` the report, or read its findings; `out` is where the lengths are
    drawn, a folder or a .png or .svg file."""
    if task not in CHECKS and task not in LOOKS:
        raise UnknownName("task", task, [*CHECKS, *LOOKS], TASK_ADVICE)
    if not data:
        raise SettingError("there is no data. Name files with --data.")
    said = gather(settings)
    for named in (f"{group}.{key}" for group, values in said.items() for key in values):
        if not named.startswith("data."):
            raise SettingError(f"{named} has nothing to do with a check, which takes data.* only.")
    made = override(Data(), said.get("data", {}), "data.")
    picture = None if out is None else _picture(Path(out))
    with _progress() as advance:
        paths = [data] if isinstance(data, str | os.PathLike) else data
        form = FORMS[task_for(task, None, [os.fspath(path) for path in paths], columns).reads]
        report = form[task](data, valid, columns or None, made, advance)
    if picture is None:
        return report
    drawn = []
    if len(report.lengths.words):
        from regard.draw.lengths import draw_lengths

        drawn.append(draw_lengths(report.lengths, picture))
    if isinstance(report, ClassReport) and report.spreads:
        from regard.draw.class_distribution import draw_spread

        alone = not drawn and picture == Path(out or "")
        drawn.append(draw_spread(report.spreads, picture if alone else picture.with_name(_beside(picture))))
    if not drawn:
        print(f"{out}: nothing is drawn, as there are neither lengths nor classes to compare", file=sys.stderr)
    return replace(report, pictures=tuple(map(str, drawn)))


def _picture(out: Path) -> Path:
    """Refused before the reading, not after it."""
    from regard.draw.figure import check_ending

    if not out.suffix or out.is_dir():
        return out / "lengths.png"
    check_ending(out, (".png", ".svg"))
    return out


def _beside(picture: Path) -> str:
    """The name of the picture of classes, which belongs to that of lengths."""
    return f"classes{picture.suffix}" if picture.stem == "lengths" else f"{picture.stem}-classes{picture.suffix}"


@contextmanager
def _progress() -> Iterator[Advance]:
    """A line on standard error that says what is being read, where a person is looking on."""
    if not sys.stderr.isatty():
        yield lambda what, rows: None
        return
    from rich.console import Console

    with Console(stderr=True).status("reading") as status:
        yield lambda what, rows: status.update(f"{what}: {rows:,} rows")
