"""The wheel: contents, and the commands of a first session with regard installed from the wheel in a new environment."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from dataclasses import dataclass
from email.parser import Parser
from pathlib import Path

import pytest

from regard import __version__

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src/regard"
SMALL = (
    "model.width=32", "model.depth=1", "model.decoder_depth=1", "model.ffn_dim=32", "train.steps=4", "train.warmup_steps=2",
    "train.eval_every=4", "data.vocab_size=300", "decode.max_extra_tokens=2",
)  # fmt: skip
WHERE = """
import importlib.metadata, json, sys
import regard
distribution = importlib.metadata.distribution("regard")
print(json.dumps({
    "file": regard.__file__, "version": regard.__version__, "path": sys.path, "metadata": str(distribution.locate_file("")),
}))
"""


def run(*command: str | Path, cwd: Path, env: dict[str, str] | None = None) -> str:
    done = subprocess.run([*map(str, command)], cwd=cwd, env=env, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of the sources. The build writes into the folder of the sources."""
    folder = tmp_path_factory.mktemp("sources")
    for name in ("src", "tests", "tools"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation")
    run(*pip, "--wheel-dir", folder / "dist", ".", cwd=folder)
    (built,) = (folder / "dist").iterdir()
    return built


def test_wheel_contains_the_files_of_the_package_its_metadata_and_no_paths_of_this_machine(wheel: Path) -> None:
    """Code, py.typed, index.json and the parts of the HTML pages, but no tests and no tools."""
    files = [path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    expected = {path.relative_to(ROOT / "src").as_posix() for path in files}
    assert {"regard/py.typed", "regard/index.json", "regard/draw/page.css", "regard/draw/page.js"} <= expected
    with zipfile.ZipFile(wheel) as archive:
        texts = {name: archive.read(name).decode("utf-8") for name in archive.namelist()}
    folder = f"regard-{__version__}.dist-info"
    assert {name for name in texts if not name.startswith(f"{folder}/")} == expected
    required = ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")
    assert {f"{folder}/{name}" for name in required} <= texts.keys()
    own = [str(path) for path in (ROOT, Path.home(), wheel.parents[1], Path(sys.prefix)) if len(path.parts) > 1]
    local = "|".join([*(rf"{re.escape(path)}\b" for path in own), r"(?<![\w.])/(?:home|Users)/\w", "file://"])
    assert {name: found[0] for name, text in texts.items() if (found := re.search(local, text))} == {}
    about = Parser().parsestr(texts[f"{folder}/METADATA"])
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert wheel.name == f"regard-{__version__}-py3-none-any.whl"
    found = [about[name] for name in ("Name", "Version", "License-Expression")]
    assert found == ["regard", __version__, declared["license"]]
    needed = {each for each in about.get_all("Requires-Dist", []) if "extra ==" not in each}
    assert needed == set(declared["dependencies"])
    assert "regard = regard.cli:main" in texts[f"{folder}/entry_points.txt"].splitlines()


@dataclass(frozen=True)
class Installed:
    """A virtual environment with the wheel, and an empty folder outside the repository."""

    environment: Path
    packages: Path
    folder: Path
    variables: dict[str, str]

    def python(self, program: str, *arguments: str) -> str:
        return run(self.environment / "bin/python", "-c", program, *arguments, cwd=self.folder, env=self.variables)

    def regard(self, *arguments: str) -> str:
        return run(self.environment / "bin/regard", *arguments, cwd=self.folder, env=self.variables)


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Dependencies come from the environment of the tests. A path in a .pth file is added to `sys.path` without the .pth
    files in that folder, so the editable installation of regard is not visible."""
    environment, folder = tmp_path_factory.mktemp("environment"), tmp_path_factory.mktemp("empty")
    venv.create(environment, with_pip=False)
    base = {"base": str(environment), "platbase": str(environment)}
    packages = Path(sysconfig.get_path("purelib", "venv", vars=base))
    current = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    (packages / "dependencies.pth").write_text("\n".join(current) + "\n", encoding="utf-8")
    python = environment / "bin/python"
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index")
    run(*pip, wheel, cwd=folder)
    dropped = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "COVERAGE_PROCESS_START")
    variables = {name: value for name, value in os.environ.items() if name not in dropped}
    (folder / "pairs.tsv").write_text("".join(f"text {i}\tText {i}\n" for i in range(20)), encoding="utf-8")
    variables["REGARD_CACHE"] = str(folder / "cache")
    variables["PATH"] = os.pathsep.join((str(environment / "bin"), os.defpath))
    return Installed(environment, packages, folder, variables)


def test_regard_is_imported_from_the_wheel_with_its_lists_and_checks(installed: Installed) -> None:
    found = json.loads(installed.python(WHERE))
    assert Path(found["file"]) == installed.packages / "regard/__init__.py"
    assert Path(found["metadata"]) == installed.packages
    assert found["version"] == __version__
    assert [path for path in found["path"] if Path(path, "regard").is_dir()] == [str(installed.packages)]
    assert installed.regard("--version").strip().endswith(__version__)
    # lists are read from index.json
    assert "transformer-tiny" in installed.regard("list", "presets")
    assert "translate" in installed.regard("list", "tasks")
    report = json.loads(installed.regard("check", "translate", "--data", "pairs.tsv", "--json"))
    assert (report["task"], report["errors"]) == ("translate", 0)


def test_training_prediction_and_page_with_the_installed_program(installed: Installed) -> None:
    installed.regard("train", "translate", "--data", "pairs.tsv", "--out", "runs/x", "--set", *SMALL)
    row = json.loads(installed.regard("predict", "runs/x", "text 3", "--json"))
    assert row["input"] == "text 3" and "value" in row
    installed.regard("explain", "runs/x", "text 3", "--out", "page.html")
    page = (installed.folder / "page.html").read_text(encoding="utf-8")
    for name in ("page.css", "page.js", "views.js"):
        assert (installed.packages / "regard/draw" / name).read_text(encoding="utf-8") in page
    assert str(ROOT) not in page
