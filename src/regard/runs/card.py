"""The model card (README.md) of a run."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from regard.draw.text import markdown_table
from regard.errors import name_places
from regard.files import write_file
from regard.index import display_name
from regard.runs.evaluate import small_sample_warning
from regard.runs.progress import shorten_lines
from regard.tasks import Task, uses_setting

MAX_EXAMPLES = 8  # Maximum number of examples.

TABLE_TITLES = {
    "confusion_matrix": "Confusion matrix",
    "per_class": "Per class",
    "most_confused": "Most confused classes",
}
"""Titles of the tables among the scores."""


def write_card(
    folder: Path,
    task: Task,
    facts: dict[str, Any],
    samples: Sequence[Any],
    examples: Sequence[dict[str, str]],
    figures: Sequence[str],
) -> None:
    """Write README.md of a run: metadata of the Hugging Face Hub, scores, data, examples, usage and settings.

    `facts`: contents of regard.json; `examples`: samples with their predictions as table rows."""
    name = shlex.quote(folder.name if folder.is_absolute() else str(folder))

    def relative(value: Any) -> Any:
        """A path, or the sides of parallel files (SRC:TGT), without the absolute path of the author's machine."""
        if not isinstance(value, str):
            return value
        if (name := name_places(value)) != value:  # a table in memory
            return name
        parts = value.split(":") if all(map(os.path.isabs, value.split(":"))) else [value]
        here = folder.absolute()
        return ":".join(os.path.relpath(part, here) if os.path.isabs(part) else part for part in parts)

    settings = [
        {"setting": f"{group}.{key}", "value": relative(value)}
        for group, values in facts["settings"].items()
        for key, value in values.items()
        if uses_setting(task, f"{group}.{key}")
    ]
    numbers = [name for name, value in facts["scores"].items() if isinstance(value, float)]
    front_matter = [
        "library_name: regard",
        *([f"pipeline_tag: {task.pipeline_tag}"] if task.pipeline_tag else []),
        f"tags:\n- {facts['system']}",
        *(["metrics:\n" + "\n".join(f"- {name}" for name in numbers)] if numbers else []),
    ]
    found, unit, commands = facts["data_stats"], task.reader.unit, usage(name, task, samples)
    fraction = found["valid"] / max(found["train"] + found["valid"], 1)
    train, valid = (", ".join(f"`{relative(path)}`" for path in facts["sources"][part]) for part in ("data", "valid"))
    valid = valid or f"{100 * fraction:.3g} % of the training data, held out by a content hash"
    data = (
        f"- Training: {train} ({found['train']:,} {unit}, fingerprint `{found['fingerprint']}`)\n"
        f"- Validation: {valid} ({found['valid']:,} {unit})"
    )
    if task.input == "text":
        rows = facts.get("rows") or ("packed rows" if facts.get("packed") else "padded rows of similar length")
        padding = f", {100 * facts['padding']:.1f} % padding" if "padding" in facts else ""
        data += f"\n- Batches: {rows}{padding}"
    evaluation = _scores(facts, small_sample_warning(task, found["valid"]))
    preset, origin = facts["preset"], "trained from random weights"
    if os.path.isabs(preset):
        preset = display_name(preset)
        origin = f"fine-tuned from `{preset if '/' in preset else relative(facts['preset'])}`"
    for row in examples:
        for key, value in row.items():
            if isinstance(value, str):
                row[key] = shorten_lines(relative(value).replace("\n", " "))
    parts = [
        "---\n" + "\n".join(front_matter) + "\n---",
        f"# {folder.name}\n\nA `{preset}` model for the task `{facts['task']}`, "
        f"{origin} with regard {facts['regard_version']}.",
        f"## Evaluation\n\n{evaluation}",
        "## Training curves\n\n![Training curves](curves.png)",
        *(f"![{Path(name).stem}]({name})" for name in figures),
        f"## Data\n\n{data}",
        "## Examples\n\n" + markdown_table(examples),
        f"## Usage\n\n{commands}",
        "## Settings\n\n" + markdown_table(settings),
    ]
    write_file(folder / "README.md", "\n\n".join(parts) + "\n")


def _scores(facts: dict[str, Any], few: str) -> str:
    scores = dict(facts["scores"])
    signature = scores.pop("signature", "")
    tables = {name: scores.pop(name) for name, value in list(scores.items()) if "\n" in str(value)}
    rows = [{"metric": name, "value": value} for name, value in scores.items()]
    rows.append({"metric": f"loss (step {facts['best']['step']})", "value": round(facts["best"]["loss"], 4)})
    return (
        "Scores of the best checkpoint on the validation data:\n\n"
        + markdown_table(rows)
        + (f"\n\n{few[0].upper()}{few[1:]}." if few else "")
        + (f"\n\nsacreBLEU signature: `{signature}`" if signature else "")
        + "".join(f"\n\n{TABLE_TITLES.get(name, name)}:\n\n{value}" for name, value in tables.items())
    )


def usage(name: str, task: Task, samples: Sequence[Any]) -> str:
    """Commands for a run, with an example input."""
    example = task.usage
    if task.objective.example_from and samples:  # other words may be missing in the vocabulary
        example = shlex.quote(getattr(samples[0], task.objective.example_from))
    lines = [f"predict {name} {example}", f"explain {name} {example} --out explanation.html", f"evaluate {name}"]
    return "```\n" + "".join(f"regard {line}\n" for line in lines) + "```"
