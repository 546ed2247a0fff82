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
from regard.data.document_checks import check_documents
from regard.data.findings import Report
from regard.data.pair_checks import check_pairs
from regard.data.settings import Data
from regard.data.span_checks import check_spans
from regard.data.spread import ClassReport
from regard.data.survey import Advance
from regard.data.table_checks import check_labelled, check_questions
from regard.data.tagged_checks import check_tagged
from regard.data.text_checks import check_texts
from regard.data.together_checks import check_together
from regard.errors import SettingError, UnknownName
from regard.runs.settings import gather

CHECKS: dict[str, Callable[..., Report]] = {
    "translate": check_pairs, "language": check_texts, "mask": check_documents, "classify": check_labelled,
    "choose": check_questions, "tag": check_tagged, "span": check_spans, "embed": check_together,
}  # fmt: skip
"""How the data of each task is checked."""

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def check(
    task: str, data: Paths, *, valid: Paths = (), columns: Mapping[str, str] | None = None,
    settings: Sequence[str] | Mapping[str, Any] = (), out: str | os.PathLike[str] | None = None,
) -> Report:  # fmt: skip
    """Look at data as `train` would read it. `print` the report, or read its findings; `out` is where the lengths are
    drawn, a folder or a .png or .svg file."""
    if task not in CHECKS:
        raise UnknownName("task", task, CHECKS, "See 'regard list tasks'.")
    if not data:
        raise SettingError("there is no data. Name files with --data.")
    said = gather(settings)
    for named in (f"{group}.{key}" for group, values in said.items() for key in values):
        if not named.startswith("data."):
            raise SettingError(f"{named} has nothing to do with a check, which takes data.* only.")
    made = override(Data(), said.get("data", {}), "data.")
    picture = None if out is None else _picture(Path(out))
    with _progress() as advance:
        report = CHECKS[task](data, valid, columns or None, made, advance)
    if picture is None or not len(report.lengths.words):
        return report
    from regard.draw.lengths import draw_lengths

    drawn = [draw_lengths(report.lengths, picture)]
    if isinstance(report, ClassReport) and report.spreads:
        from regard.draw.spread import draw_spread

        drawn.append(draw_spread(report.spreads, picture.with_name(f"classes{picture.suffix}")))
    return replace(report, pictures=tuple(map(str, drawn)))


def _picture(out: Path) -> Path:
    """Refused before the reading, not after it."""
    from regard.draw.paper import check_ending

    if not out.suffix or out.is_dir():
        return out / "lengths.png"
    check_ending(out, (".png", ".svg"))
    return out


@contextmanager
def _progress() -> Iterator[Advance]:
    """A line on standard error that says what is being read, where a person is looking on."""
    if not sys.stderr.isatty():
        yield lambda what, rows: None
        return
    from rich.console import Console

    with Console(stderr=True).status("reading") as status:
        yield lambda what, rows: status.update(f"{what}: {rows:,} rows")
