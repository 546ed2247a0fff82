"""Small data files for tests, and the findings of a data check in short form."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from regard.data.check.report import Report
from regard.errors import DataError


def write(path: Path | str, content: str | bytes) -> str:
    """Write a file, gzipped if its name ends in .gz; returns the path."""
    data = content.encode() if isinstance(content, str) else content
    Path(path).write_bytes(gzip.compress(data) if str(path).endswith(".gz") else data)
    return str(path)


def jsonl(path: Path | str, *rows: Any) -> str:
    return write(path, "".join(json.dumps(row) + "\n" for row in rows))


def parquet(path: Path | str, columns: dict[str, Any], metadata: Any = None, **options: Any) -> str:
    arrow = pytest.importorskip("pyarrow", reason="Parquet is read by pyarrow")
    from pyarrow import parquet as files

    table = arrow.table(columns)
    files.write_table(table.replace_schema_metadata(metadata) if metadata else table, path, **options)
    return str(path)


def refused(
    problem: str, call: Callable[..., Any], *given: Any, error: type[Exception] = DataError, **more: Any
) -> None:
    """Assert that a call raises an error of this class whose message matches `problem`."""
    with pytest.raises(error, match=problem):
        call(*given, **more)


def kinds(report: Report) -> dict[str, tuple[str, int]]:
    """Severity and count of each finding by id."""
    return {finding.id: (finding.severity, finding.count) for finding in report.findings}


def found(report: Report) -> dict[str, tuple[str, int]]:
    """Findings except statistics."""
    names = "classes", "correct_choice_positions", "outside_words", "tag_scheme", "captions_per_image", "vocabulary"
    return {name: value for name, value in kinds(report).items() if name not in names or value[0] != "note"}
