"""The model card: what the run is, what it reached, on what, and how to use it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from regard.draw.markdown_table import markdown_table
from regard.explain import is_explainable
from regard.files import write_text
from regard.runs.folder import RunFolder
from regard.runs.progress import MAX_LINE_CHARS, shorten_lines
from regard.runs.scoring import small_sample_warning
from regard.systems import find_system
from regard.tasks import Task, find_task, uses_setting
from regard.types import Prediction


def write_card(
    folder: RunFolder, samples: Sequence[Any], predictions: Sequence[Prediction], figures: Sequence[str] = ()
) -> None:
    facts = folder.read_metadata()
    task = find_task(facts["task"], find_system(facts["system"]).modality)
    parts = [
        f"# {folder.path.name}\n\nA `{Path(facts['preset']).name}` "
        f"trained by `regard` {facts['regard']} for the task `{facts['task']}`.",
        "## Scores on the validation data\n\n" + _scores(facts, small_sample_warning(task, facts["found"]["valid"])),
        "![training curves](curves.png)",
        *(f"![{Path(name).stem}]({name})" for name in figures),
        "## Data\n\n" + _data(facts, task),
        "## Examples\n\n" + _examples(task, samples, predictions),
        "## Use\n\n" + _usage(shlex.quote(str(folder.path)), task, samples),
        "## Settings\n\n" + _settings(facts["settings"], task),
    ]
    write_text(folder.path / "README.md", "\n\n".join(parts) + "\n")


TABLE_TITLES = {
    "confusion": "How often each class was taken for each",
    "each": "One by one",
    "confused": "Most often taken for another",
}
"""What stands above tables among the scores."""


def _scores(facts: dict[str, Any], few: str) -> str:
    scores = dict(facts["scores"])
    signature = scores.pop("signature", "")
    tables = {name: scores.pop(name) for name, value in list(scores.items()) if "\n" in str(value)}
    rows = [{"measure": name, "value": value} for name, value in scores.items()]
    rows.append({"measure": f"loss (step {facts['best']['step']})", "value": round(facts["best"]["loss"], 4)})
    return (
        markdown_table(rows)
        + (f"\n\n{few[0].upper()}{few[1:]}." if few else "")
        + (f"\n\nsacreBLEU signature: `{signature}`" if signature else "")
        + "".join(f"\n\n{TABLE_TITLES.get(name, name)}:\n\n{value}" for name, value in tables.items())
    )


def _data(facts: dict[str, Any], task: Task) -> str:
    sources, found, unit = facts["sources"], facts["found"], task.unit
    valid = ", ".join(f"`{p}`" for p in sources["valid"]) or "a share of the training files, held out by content"
    told = (
        f"- training: {', '.join(f'`{p}`' for p in sources['data'])}: {found['train']:,} {unit} "
        f"(fingerprint `{found['fingerprint']}`)\n- validation: {valid}: {found['valid']:,} {unit}"
    )
    if task.modality != "text":
        return told
    return (
        f"{told}\n- batches: "
        + (facts.get("rows") or ("packed rows" if facts.get("packed") else "rows of similar length, padded"))
        + (f", {100 * facts['padding']:.1f} % of them padding" if "padding" in facts else "")
    )


def _examples(task: Task, samples: Sequence[Any], answers: Sequence[Prediction]) -> str:
    shown = [task.example_row(sample, answer) for sample, answer in list(zip(samples, answers, strict=False))[:8]]
    rows = [
        {n: shorten_lines(v.replace("\n", " "), MAX_LINE_CHARS) if isinstance(v, str) else v for n, v in row.items()}
        for row in shown
    ]
    return markdown_table(rows)


def _usage(name: str, task: Task, samples: Sequence[Any]) -> str:
    asked = task.usage_for(samples)
    lines = [f"predict {name} {asked}", f"evaluate {name}"]
    lines[1:1] = [f"explain {name} {asked} --out map.html"] * is_explainable(task)
    return "```\n" + "".join(f"regard {line}\n" for line in lines) + "```"


def _settings(settings: dict[str, Any], task: Task) -> str:
    """Those that mean something to the task: a run of pictures has no vocabulary."""
    rows = [
        {"setting": f"{group}.{name}", "value": value}
        for group, values in settings.items()
        for name, value in values.items()
        if uses_setting(task, f"{group}.{name}")
    ]
    return markdown_table(rows)
