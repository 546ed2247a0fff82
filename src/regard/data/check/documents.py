"""What is wrong with documents to pre-train an encoder on: all that may be wrong with text, and too few of them.

| finding         | what it is                                                           | warning |
|-----------------|----------------------------------------------------------------------|---------|
| single_document | one document: no text of another can stand where one does not follow | always  |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from regard.data.check.pair_survey import ProgressCallback, no_progress
from regard.data.check.report import Finding, Report
from regard.data.check.text import check_texts
from regard.data.settings import DataSettings


def check_documents(
    data: Sequence[str], valid: Sequence[str], columns: Mapping[str, str] | None, settings: DataSettings,
    progress: ProgressCallback = no_progress,
) -> Report:  # fmt: skip
    report = check_texts(data, valid, columns, settings, progress)
    if report.counts["documents"] != 1:
        return replace(report, task="mlm")
    what = "too few documents for next-sentence prediction (BERT), at least two required"
    advice = (
        "Save each document in a separate file, or in a separate row of JSONL or Parquet; "
        "or train with --set model.nsp=false."
    )
    single = Finding("warning", "single_document", what, 1, 0.0, (), advice)
    return replace(report, task="mlm", findings=(*report.findings, single))
