"""pytest plugin of a recorded run: records the test or fixture that executes each line, and the CPU seconds of both.

Fixtures with a wider scope than a function have separate contexts, because every test with such a fixture depends on its lines,
not only the first. Subprocesses of a test inherit the context through the environment.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import coverage
import pytest

from mutants.chosen import cpu_seconds

FIXTURE = "fixture "
"""Prefix of the context of a fixture; the context of a test is its node id."""


class Recording:
    def __init__(self, folder: Path) -> None:
        self.file = (folder / f"times-{os.getpid()}.jsonl").open("a", encoding="utf-8")
        self.contexts = [""]
        self.inner = [0.0]
        """CPU seconds of the fixtures within each of the contexts."""
        self.passed = True
        self.known: set[str] = set()
        """Wider-scope fixtures set up by this process."""

    def write(self, **row: Any) -> None:
        self.file.write(json.dumps(row) + "\n")
        self.file.flush()

    @contextmanager
    def context(self, name: str) -> Iterator[list[float]]:
        """Record lines for this context; the list receives the CPU seconds of the block without inner contexts."""
        self._switch([*self.contexts, name])
        self.inner.append(0.0)
        own: list[float] = []
        before = cpu_seconds()
        try:
            yield own
        finally:
            spent = cpu_seconds() - before
            own.append(spent - self.inner.pop())
            self.inner[-1] += spent
            self._switch(self.contexts[:-1])

    def _switch(self, contexts: list[str]) -> None:
        self.contexts = contexts
        os.environ["MUTANTS_CONTEXT"] = contexts[-1]
        current = coverage.Coverage.current()
        if current is not None:
            current.switch_context(contexts[-1])

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.passed = True
        with self.context(item.nodeid) as own:
            result = yield
        used = [self._fixture(item, name) for name in getattr(item, "fixturenames", ())]
        self.write(test=item.nodeid, seconds=own[0], fixtures=sorted(filter(None, used)), passed=self.passed)
        return result

    def _fixture(self, item: pytest.Item, name: str) -> str:
        """Context of the wider-scope fixture with this name that is defined nearest to the test; empty if none."""
        names = (f"{FIXTURE}{node.nodeid}::{name}" for node in reversed(item.listchain()))
        return next((found for found in names if found in self.known), "")

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Iterator[None]:
        if fixturedef.scope == "function":
            return (yield)
        name = f"{FIXTURE}{fixturedef.baseid}::{fixturedef.argname}"
        with self.context(name) as own:
            result = yield
        self.known.add(name)
        self.write(fixture=name, seconds=own[0])
        return result

    def pytest_unconfigure(self) -> None:
        self.file.close()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.passed = self.passed and report.passed


def pytest_configure(config: pytest.Config) -> None:
    # the controller process of pytest-xdist runs no tests
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        config.pluginmanager.register(Recording(Path(os.environ["MUTANTS_FOLDER"])))
