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
from regard.data.findings import Report
from regard.data.settings import Data
from regard.data.spread import ClassReport
from regard.data.survey import Advance
from regard.errors import SettingError, UnknownName
from regard.index import TASK_ADVICE
from regard.lazy import LazyTable
from regard.runs.kinds import task_for
from regard.runs.settings import gather

CHECKS: LazyTable[Callable[..., Report]] = LazyTable({
    "translate": "regard.data.pair_checks:check_pairs",
    "language": "regard.data.text_checks:check_texts",
    "mask": "regard.data.document_checks:check_documents",
    "classify": "regard.data.table_checks:check_labelled",
    "choose": "regard.data.table_checks:check_questions",
    "tag": "regard.data.tagged_checks:check_tagged",
    "span": "regard.data.span_checks:check_spans",
    "embed": "regard.data.together_checks:check_together",
    "recall": "regard.data.recall_checks:check_recall",
})  # fmt: skip
"""How the data of each task is checked."""

LOOKS: LazyTable[Callable[..., Report]] = LazyTable({
    "classify": "regard.data.picture_checks:check_pictures",
    "segment": "regard.data.picture_checks:check_masked",
    "depth": "regard.data.picture_checks:check_depths",
    "draw": "regard.data.picture_checks:check_plain",
    "caption": "regard.data.caption_checks:check_captions",
})  # fmt: skip
"""The same of tasks whose samples are pictures."""

SHAPES: LazyTable[Callable[..., Report]] = LazyTable({
    "classify": "regard.data.cloud_checks:check_clouds",
    "segment": "regard.data.cloud_checks:check_labelled_clouds",
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
        from regard.draw.spread import draw_spread

        alone = not drawn and picture == Path(out or "")
        drawn.append(draw_spread(report.spreads, picture if alone else picture.with_name(_beside(picture))))
    if not drawn:
        print(f"{out}: nothing is drawn, as there are neither lengths nor classes to compare", file=sys.stderr)
    return replace(report, pictures=tuple(map(str, drawn)))


def _picture(out: Path) -> Path:
    """Refused before the reading, not after it."""
    from regard.draw.paper import check_ending

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
