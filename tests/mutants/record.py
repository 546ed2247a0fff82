"""Record of a test suite: the lines executed by each test, and the times of tests and fixtures.

A record is a folder with `lines.db` (data of coverage.py with one context per test and fixture), `times.json`, and `key`, a
digest of the recorded source and tests.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import coverage
import pytest

from mutants.mutant import ROOT, SOURCE, Mutant, parsed
from mutants.recording import FIXTURE

HERE = Path(__file__).parent
IMPORT = "import"
"""Context of lines that run when all modules are imported, including functions called during import."""
MAIN = "regard/__main__"
"""Excluded from the import context, because importing this module starts the command line."""
OWN = "tests/mutants/test_mutants.py"
"""Excluded test file: checks the fault patterns, and therefore fails for every fault without testing the product."""


def digest() -> str:
    """Digest of the source, the tests and pyproject.toml."""
    found = hashlib.blake2b(digest_size=8)
    files = [*SOURCE.glob("regard/**/*"), *(ROOT / "tests").glob("**/*"), ROOT / "pyproject.toml"]
    for path in sorted(files):
        if path.is_file() and path.suffix not in (".pyc",) and HERE not in path.parents:
            found.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return found.hexdigest()


def make(folder: Path, processes: int, files: Iterable[str] = ("regard/**/*.py",)) -> None:
    """Run the tests of `make test` under coverage of these files of `src`; coverage of all files takes 50 % more time."""
    folder.mkdir(parents=True)
    environment = {
        **os.environ,
        "MUTANTS_FILES": ",".join(str(SOURCE / name) for name in files),
        "MUTANTS_FOLDER": str(folder.absolute()),
        "COVERAGE_PROCESS_START": str(HERE / "coveragerc"),
        "PYTHONPATH": os.pathsep.join(map(str, (HERE / "site", ROOT / "tests", SOURCE))),
    }
    command = [sys.executable, "-m", "pytest", "-p", "mutants.recording", "-n", str(processes), "--dist", "loadfile"]
    began = time.monotonic()
    with (folder / "output.txt").open("w") as output:
        done = subprocess.run(command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT, check=False)
    if done.returncode not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise RuntimeError(f"pytest did not run the tests (exit code {done.returncode}): see {folder / 'output.txt'}")
    names = [path.relative_to(SOURCE).with_suffix("").as_posix() for path in sorted(SOURCE.glob("regard/**/*.py"))]
    imports = [f"try: import {name.replace('/', '.')}\nexcept ImportError: pass" for name in names if name != MAIN]
    subprocess.run(
        [sys.executable, "-c", "\n".join(imports)], env={**environment, "MUTANTS_CONTEXT": IMPORT}, check=True
    )
    collect(folder)
    (folder / "key").write_text(digest())
    print(f"recorded {len(times(folder)[0]):,} tests that pass in {time.monotonic() - began:.0f} s: {folder}")


def collect(folder: Path) -> None:
    """Merge the files written by the processes of a recorded run into times.json and lines.db."""
    tests, fixtures = dict[str, tuple[float, list[str]]](), dict[str, float]()
    for path in sorted(folder.glob("times-*.jsonl")):
        for row in map(json.loads, path.read_text("utf-8").splitlines()):
            if "fixture" in row:
                fixtures[row["fixture"]] = max(fixtures.get(row["fixture"], 0.0), row["seconds"])
            elif row["passed"]:
                tests[row["test"]] = row["seconds"], row["fixtures"]
        path.unlink()
    (folder / "times.json").write_text(json.dumps([tests, fixtures]))
    data = coverage.CoverageData(str(folder / "lines.db"))
    for path in sorted(folder.glob("data.*")):
        part = coverage.CoverageData(str(path))
        part.read()
        data.update(part)
        path.unlink()
    data.write()


Times = tuple[dict[str, tuple[float, list[str]]], dict[str, float]]
"""Seconds and wider-scope fixtures of each test, and seconds of each fixture."""


def times(folder: Path) -> Times:
    tests, fixtures = json.loads((folder / "times.json").read_text())
    return {test: (seconds, names) for test, (seconds, names) in tests.items()}, fixtures


@dataclass
class Record:
    folder: Path

    def __post_init__(self) -> None:
        self.tests, self.fixtures = times(self.folder)
        self.tests = {test: item for test, item in self.tests.items() if not test.startswith(OWN)}
        self.users: dict[str, set[str]] = {}
        for test, (_, names) in self.tests.items():
            for name in names:
                self.users.setdefault(name, set()).add(test)
        data = coverage.CoverageData(str(self.folder / "lines.db"))
        data.read()
        self.files = {name.replace(os.sep, "/").rpartition("/src/")[2]: name for name in data.measured_files()}
        self.data = data
        self.known: dict[str, dict[int, list[str]]] = {}

    def reaching(self, mutant: Mutant) -> list[str]:
        """Tests that execute the changed lines, fastest first."""
        lines, at_import = mutant.lines()
        contexts = self._contexts(mutant.path, lines)
        found = self._tests(contexts)
        if at_import or IMPORT in contexts:
            importing = self._importing(mutant.path)
            found |= {test for test in self.tests if test.partition("::")[0] in importing}
        return self.ordered(found)

    def ordered(self, tests: Iterable[str]) -> list[str]:
        """Fastest first: always the test with the lowest cost next, including the fixtures that are not set up yet.

        Module fixtures are torn down when a test of another module follows; session fixtures stay."""
        left = sorted(tests, key=lambda test: (self.cost(test), test))
        found, ready = list[str](), set[str]()
        while left:
            best = min(left[:200], key=lambda test: self.cost(test, ready))
            left.remove(best)
            found.append(best)
            module = best.partition("::")[0]
            ready = {
                name
                for name in ready
                if not name.startswith(f"{FIXTURE}tests/") or "/test_" not in name or module in name
            }
            ready |= set(self.tests[best][1])
        return found

    def cost(self, test: str, ready: Iterable[str] = ()) -> float:
        seconds, names = self.tests[test]
        return seconds + sum(self.fixtures[name] for name in names if name not in ready)

    def _tests(self, contexts: Iterable[str]) -> set[str]:
        """Tests of the given contexts; for a fixture, all tests that use the fixture."""
        found: set[str] = set()
        for context in contexts:
            found |= self.users.get(context, set()) if context.startswith(FIXTURE) else {context} & self.tests.keys()
        return found

    def _contexts(self, path: str, lines: set[int]) -> set[str]:
        held = self._lines(path)
        return {context for line in lines for context in held.get(line, ())}

    def _lines(self, path: str) -> dict[int, list[str]]:
        """Contexts of each line."""
        if path not in self.known:
            self.known[path] = self.data.contexts_by_lineno(self.files[path]) if path in self.files else {}
        return self.known[path]

    def _importing(self, path: str) -> set[str]:
        """Test files that import a file in their source, or that execute or import one of its importers."""
        files = importers(path)
        contexts = (self._contexts(name, body_lines(name)) for name in files)
        executing = {test.partition("::")[0] for found in contexts for test in self._tests(found)}
        return executing | {test for test, names in test_imports().items() if names & files}


# -- imports in the source


def importers(path: str) -> set[str]:
    """A file of the package, and all direct and indirect importers."""
    found, waiting = {path}, [path]
    while waiting:
        name = waiting.pop()
        more = {other for other, names in package_imports().items() if name in names} - found
        found |= more
        waiting += more
    return found


@functools.cache
def package_imports() -> dict[str, set[str]]:
    """Files imported at module level by each file of the package."""
    paths = [path.relative_to(SOURCE).as_posix() for path in SOURCE.glob("regard/**/*.py")]
    return {path: imported(parsed(path).body) for path in paths}


@functools.cache
def test_imports() -> dict[str, set[str]]:
    """Files of the package imported by each test file, including imports in functions and through helper files of `tests`."""
    paths = {path.stem: path for path in (ROOT / "tests").rglob("*.py")}
    trees = {name: ast.parse(path.read_bytes()) for name, path in paths.items()}
    shared = {name: imported(tree.body) for name, tree in trees.items()}
    found: dict[str, set[str]] = {}
    for name, tree in trees.items():
        helpers = {node.module for node in tree.body if isinstance(node, ast.ImportFrom) and node.module in trees}
        own = imported([node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)])
        found[paths[name].relative_to(ROOT).as_posix()] = own.union(*(shared[str(helper)] for helper in helpers))
    return found


def imported(nodes: Iterable[ast.AST]) -> set[str]:
    """Files of the package imported by these statements, excluding blocks for type checkers and functions."""
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Try):
            names |= {path.removesuffix(".py").replace("/", ".") for path in imported(node.body)}
    bases = [name.replace(".", "/") for name in names]
    return {path for base in bases for path in (f"{base}.py", f"{base}/__init__.py") if (SOURCE / path).exists()}


@functools.cache
def body_lines(path: str) -> set[int]:
    """Lines that run when a function is called, not at import."""
    functions = [node for node in ast.walk(parsed(path)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {
        line for node in functions for line in range(node.body[0].lineno, (node.end_lineno or node.body[0].lineno) + 1)
    }
