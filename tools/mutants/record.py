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
from pathlib import Path

import coverage
import pytest

from mutants.mutant import ROOT, SOURCE, Function, Mutant, opened

HERE = Path(__file__).parent
IMPORT = "import"
"""Context of lines that run when all modules are imported, including functions called during import."""
MAIN = "regard.__main__"
"""Excluded from the import context, because importing this module starts the command line."""
OWN = "tests/project/test_mutants.py"
"""Excluded test file: checks the fault patterns, and therefore fails for every fault without testing the product."""


def digest() -> str:
    """Digest of the source, the tests and pyproject.toml."""
    found = hashlib.blake2b(digest_size=8)
    files = [*SOURCE.glob("regard/**/*"), *(ROOT / "tests").glob("**/*"), ROOT / "pyproject.toml"]
    for path in sorted(files):
        if path.is_file() and path.suffix != ".pyc":
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
        "PYTHONPATH": os.pathsep.join(map(str, (HERE / "site", HERE.parent, SOURCE))),
    }
    command = [sys.executable, "-m", "pytest", "-p", "mutants.plugin", "-n", str(processes), "--dist", "loadfile"]
    began = time.monotonic()
    with (folder / "output.txt").open("w") as output:
        done = subprocess.run(command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT, check=False)
    if done.returncode not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise RuntimeError(f"pytest did not run the tests (exit code {done.returncode}): see {folder / 'output.txt'}")
    imports = [f"try: import {name}\nexcept ImportError: pass" for name in package_imports() if name != MAIN]
    environment["MUTANTS_CONTEXT"] = IMPORT
    subprocess.run([sys.executable, "-c", "\n".join(imports)], env=environment, check=True)
    collect(folder)
    (folder / "key").write_text(digest())
    print(f"recorded {len(Record(folder).tests):,} tests that pass in {time.monotonic() - began:.0f} s: {folder}")


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


class Record:
    def __init__(self, folder: Path) -> None:
        self.tests: dict[str, tuple[float, list[str]]]
        """Seconds and wider-scope fixtures of each test."""
        self.fixtures: dict[str, float]
        self.tests, self.fixtures = json.loads((folder / "times.json").read_text())
        self.tests = {test: item for test, item in self.tests.items() if not test.startswith(OWN)}
        self.users: dict[str, set[str]] = {}
        """Tests of each context. The tests of a fixture are all its users."""
        for test, (_, names) in self.tests.items():
            for name in (test, *names):
                self.users.setdefault(name, set()).add(test)
        self.data = coverage.CoverageData(str(folder / "lines.db"))
        self.data.read()
        self.files = {name.replace(os.sep, "/").rpartition("/src/")[2]: name for name in self.data.measured_files()}

    def reaching(self, mutant: Mutant) -> list[str]:
        """Tests that execute the changed lines, fastest first.

        Lines that run at import are reached by the test files that execute a function of the file or of its importers."""
        lines, at_import = mutant.lines()
        held = self.data.contexts_by_lineno(self.files[mutant.path]) if mutant.path in self.files else {}
        contexts = {context for line in lines for context in held.get(line, ())}
        found = self._tests(contexts)
        if at_import or IMPORT in contexts:
            importing = {test.partition("::")[0] for path in importers(mutant.path) for test in self._executing(path)}
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
            ready = {name for name in ready if "/test_" not in name or module in name} | set(self.tests[best][1])
        return found

    def cost(self, test: str, ready: Iterable[str] = ()) -> float:
        seconds, names = self.tests[test]
        return seconds + sum(self.fixtures.get(name, 0.0) for name in names if name not in ready)

    def _tests(self, contexts: Iterable[str]) -> set[str]:
        return set().union(*(self.users.get(context, set()) for context in contexts))

    def _executing(self, path: str) -> set[str]:
        """Tests that execute a function of a file."""
        held = self.data.contexts_by_lineno(self.files[path]) if path in self.files else {}
        functions = [node for node in ast.walk(opened(path).tree) if isinstance(node, Function)]
        lines = {line for node in functions for line in range(node.body[0].lineno, (node.end_lineno or 0) + 1)}
        return self._tests(context for line in lines for context in held.get(line, ()))


@functools.cache
def package_imports() -> dict[str, set[str]]:
    """Names imported at module level by each module of the package."""
    found: dict[str, set[str]] = {}
    for path in SOURCE.glob("regard/**/*.py"):
        names = found[".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")] = set()
        for node in ast.parse(path.read_bytes()).body:
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def importers(path: str) -> set[str]:
    """A file of the package, and all direct and indirect importers."""
    start = path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
    found, waiting = {start}, [start]
    while waiting:
        name = waiting.pop()
        more = {other for other, names in package_imports().items() if name in names} - found
        found |= more
        waiting += more
    files = [name.replace(".", "/") for name in found]
    return {file for name in files for file in (f"{name}.py", f"{name}/__init__.py") if (SOURCE / file).exists()}
