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
from regard.data.caption_checks import check_captions
from regard.data.cloud_checks import check_clouds, check_labelled_clouds
from regard.data.document_checks import check_documents
from regard.data.findings import Report
from regard.data.pair_checks import check_pairs
from regard.data.picture_checks import check_depths, check_masked, check_pictures, check_plain
from regard.data.recall_checks import check_recall
from regard.data.settings import Data
from regard.data.span_checks import check_spans
from regard.data.spread import ClassReport
from regard.data.survey import Advance
from regard.data.table_checks import check_labelled, check_questions
from regard.data.tagged_checks import check_tagged
from regard.data.text_checks import check_texts
from regard.data.together_checks import check_together
from regard.errors import SettingError, UnknownName
from regard.runs.kinds import task_for
from regard.runs.settings import gather

CHECKS: dict[str, Callable[..., Report]] = {
    "translate": check_pairs, "language": check_texts, "mask": check_documents, "classify": check_labelled,
    "choose": check_questions, "tag": check_tagged, "span": check_spans, "embed": check_together,
    "recall": check_recall,
}  # fmt: skip
"""How the data of each task is checked."""

LOOKS: dict[str, Callable[..., Report]] = {
    "classify": check_pictures, "segment": check_masked, "depth": check_depths, "draw": check_plain,
    "caption": check_captions,
}  # fmt: skip
"""The same of tasks whose samples are pictures."""

SHAPES: dict[str, Callable[..., Report]] = {"classify": check_clouds, "segment": check_labelled_clouds}
"""The same of tasks whose samples are clouds."""

FORMS = {"text": CHECKS, "pictures": LOOKS, "points": SHAPES}

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def check(
    task: str, data: Paths, *, valid: Paths = (), columns: Mapping[str, str] | None = None,
    settings: Sequence[str] | Mapping[str, Any] = (), out: str | os.PathLike[str] | None = None,
) -> Report:  # fmt: skip
    """Look at data as `train` would read it. `print` the report, or read its findings; `out` is where the lengths are
    drawn, a folder or a .png or .svg file."""
    if task not in {**CHECKS, **LOOKS}:
        raise UnknownName("task", task, {**CHECKS, **LOOKS}, "See 'regard list tasks'.")
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
