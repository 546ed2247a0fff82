"""Tutorials, followed step by step in a copy of the repository: code, tables and commands."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = {
    "text.txt": "".join(f"the cat danced {n} times and the dog slept\n\n" for n in range(60)),
    "pairs.psv": "".join(f"w{n} x|u{n} y\n" for n in range(80)),
    "reviews.tsv": "text\tlabel\n" + "".join(f"w{n} x\t{n % 6}\n" for n in range(140)),
}
STEP = re.compile(
    r"^\*\*(?P<file>[^*\n]+)\*\*(?:, (?P<where>after|before|in place of) `(?P<anchor>[^`\n]+)`)?:\n\n"
    r"```python\n(?P<code>.*?)```",
    re.M | re.S,
)
RUN = """
import shlex, subprocess, sys
for line in sys.argv[1:]:
    program, *words = shlex.split(line)
    if program == "python":
        subprocess.run([sys.executable, *words], check=True)
        continue
    from regard.cli import main
    sys.argv = ["regard", *words]
    try:
        main()
    except SystemExit as end:
        assert not end.code, (line, end.code)
"""
"""Runs all commands of a tutorial in one process, because importing torch takes longer than a command."""
COMMANDS = re.compile(r"^```bash\n(.*?)```", re.M | re.S)


def follow(text: str, copy: Path) -> int:
    """Create and edit files as the tutorial describes; returns the number of steps."""
    steps = list(STEP.finditer(text))
    for step in steps:
        path, code = copy / step["file"], step["code"]
        if step["anchor"] is None:
            assert not path.exists(), path
            path.write_text(code, encoding="utf-8")
            continue
        before, found, after = path.read_text(encoding="utf-8").partition(step["anchor"])
        assert found, (path, step["anchor"])
        placed = {"after": f"{found}\n{code.rstrip()}", "before": f"{code}{found}", "in place of": code.rstrip("\n")}
        path.write_text(f"{before}{placed[step['where']]}{after}", encoding="utf-8")
    return len(steps)


@pytest.mark.parametrize(
    ("name", "steps", "harness"),
    [("add_a_system", 3, "tests/systems/test_systems.py"), ("add_a_task", 3, ""), ("add_a_data_format", 2, "")],
)
def test_tutorial_leads_to_a_working_product(name: str, steps: int, harness: str, folder: Path) -> None:
    copy = folder / "copy"
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "tests", copy / "tests", ignore=shutil.ignore_patterns("__pycache__", "golden"))
    shutil.copy(ROOT / "pyproject.toml", copy)
    (folder / "tools").mkdir()
    shutil.copy(ROOT / "tools/write_index.py", folder / "tools")
    for file, content in FILES.items():
        (folder / file).write_text(content)
    text = (ROOT / f"docs/tutorials/{name}.md").read_text(encoding="utf-8")
    assert follow(text, copy) == steps
    environment = {**os.environ, "PYTHONPATH": str(copy / "src")}
    words = [shlex.split(line) for line in "".join(COMMANDS.findall(text)).splitlines()]
    commands = [(folder, ["-c", RUN, *map(shlex.join, words)])]
    if harness:
        commands.append(
            (copy, ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", harness, "-k", "nope"])
        )
    for place, command in commands:
        done = subprocess.run([sys.executable, *command], cwd=place, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, (done.stdout[-2000:], done.stderr[-2000:])
