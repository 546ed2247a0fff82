"""pytest plugin of both kinds of runs.

With MUTANTS_FOLDER, a recorded run: the test or fixture that executes each line, and the CPU seconds of both. Fixtures with a
wider scope than a function have separate contexts, because every test with such a fixture depends on its lines, not only the
first. Subprocesses of a test inherit the context through the environment.

With MUTANTS_CHOSEN, the run of a mutant: only the chosen tests, in the given order, up to a limit of CPU seconds.
"""

from __future__ import annotations

import json
import os
import resource
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import coverage
import pytest

FIXTURE = "fixture "
"""Prefix of the context of a fixture; the context of a test is its node id."""
GRACE = 30.0
"""CPU seconds beyond the limit after which a running test is aborted."""
RESULT = {"killer": "", "cut": "", "over": False, "current": "", "ran": 0, "cpu": 0.0}
"""Outcome of the run of a mutant: "killer" is the first failed test, "cut" an aborted test."""


def cpu_seconds() -> float:
    """CPU seconds of this process and of its finished children."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def fixture_context(fixture: Any) -> str:
    return f"{FIXTURE}{fixture.baseid}::{fixture.argname}"


class Recording:
    def __init__(self, folder: Path) -> None:
        self.path = folder / f"times-{os.getpid()}.jsonl"
        self.inner = 0.0
        """CPU seconds of the fixtures within the current context."""
        self.passed = True

    @contextmanager
    def context(self, name: str, **row: Any) -> Iterator[None]:
        """Record lines for this context, and write the row with the CPU seconds of the block without inner contexts."""
        outer, inner, began = os.environ.get("MUTANTS_CONTEXT", ""), self.inner, cpu_seconds()
        self.inner = 0.0
        self._switch(name)
        try:
            yield
        finally:
            spent = cpu_seconds() - began
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({**row, "seconds": spent - self.inner, "passed": self.passed}) + "\n")
            self.inner = inner + spent
            self._switch(outer)

    def _switch(self, context: str) -> None:
        os.environ["MUTANTS_CONTEXT"] = context
        if (current := coverage.Coverage.current()) is not None:
            current.switch_context(context)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.passed = True
        known = item._fixtureinfo.name2fixturedefs.values()  # type: ignore[attr-defined]
        used = {fixture_context(one) for each in known for one in each if one.scope != "function"}
        with self.context(item.nodeid, test=item.nodeid, fixtures=sorted(used)):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Iterator[None]:
        if fixturedef.scope == "function":
            return (yield)
        name = fixture_context(fixturedef)
        with self.context(name, fixture=name):
            return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.passed = self.passed and report.passed


class Chosen:
    def __init__(self, asked: dict[str, Any], result: Path) -> None:
        self.order = {test: place for place, test in enumerate(asked["tests"])}
        self.seconds: float = asked["seconds"]
        self.path, self.result = result, dict(RESULT)
        self.begun: float | None = None

    def save(self, **changes: Any) -> None:
        self.result |= changes
        self.result["cpu"] = 0.0 if self.begun is None else cpu_seconds() - self.begun
        self.path.write_text(json.dumps(self.result), encoding="utf-8")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.save(killer=self.result["killer"] or f"{report.nodeid} (collection)")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in self.order])
        items[:] = sorted((item for item in items if item.nodeid in self.order), key=lambda i: self.order[i.nodeid])

    def pytest_runtestloop(self) -> None:
        self.begun = cpu_seconds()
        threading.Thread(target=self._watch, args=(self.begun,), daemon=True).start()

    def _watch(self, begun: float) -> None:
        """Exit the process if a test exceeds the limit by `GRACE`."""
        while cpu_seconds() - begun < self.seconds + GRACE:
            time.sleep(0.5)
        self.save(cut=self.result["current"])
        os._exit(1)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.save(current=nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.save(killer=self.result["killer"] or report.nodeid)

    def pytest_runtest_logfinish(self) -> None:
        self.save(current="", ran=self.result["ran"] + 1)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        done = yield
        if self.result["cpu"] > self.seconds:
            self.save(over=True)
            item.session.shouldstop = "the CPU seconds of the mutant are over"
        return done


def pytest_configure(config: pytest.Config) -> None:
    if asked := os.environ.get("MUTANTS_CHOSEN"):
        path = Path(asked)
        config.pluginmanager.register(Chosen(json.loads(path.read_text("utf-8")), path.with_name("result.json")))
    # the controller process of pytest-xdist runs no tests
    elif hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        config.pluginmanager.register(Recording(Path(os.environ["MUTANTS_FOLDER"])))
