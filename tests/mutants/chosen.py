"""pytest plugin for the run of a mutant: only the chosen tests, in the given order, up to a limit of CPU seconds."""

from __future__ import annotations

import json
import os
import resource
import threading
import time
from pathlib import Path
from typing import Any

import pytest

GRACE = 30.0
"""CPU seconds beyond the limit after which a running test is aborted."""


def cpu_seconds() -> float:
    """CPU seconds of this process and of its finished children."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


class Chosen:
    """Writes the outcome to `result`, with the first failed test as "killer" and an aborted test as "cut"."""

    def __init__(self, asked: dict[str, Any], result: Path) -> None:
        self.order = {test: place for place, test in enumerate(asked["tests"])}
        self.seconds: float = asked["seconds"]
        self.path = result
        self.result: dict[str, Any] = {
            "killer": "", "cut": "", "over": False, "current": "", "ran": 0, "cpu": 0.0,
        }  # fmt: skip
        self.begun: float | None = None

    def save(self) -> None:
        self.result["cpu"] = 0.0 if self.begun is None else cpu_seconds() - self.begun
        self.path.write_text(json.dumps(self.result), encoding="utf-8")

    def kill(self, test: str) -> None:
        self.result["killer"] = self.result["killer"] or test
        self.save()

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.kill(f"{report.nodeid} (collection)")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        left = [item for item in items if item.nodeid not in self.order]
        config.hook.pytest_deselected(items=left)
        items[:] = sorted((item for item in items if item.nodeid in self.order), key=lambda i: self.order[i.nodeid])

    def pytest_runtestloop(self) -> None:
        self.begun = cpu_seconds()
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        """Exit the process if a test exceeds the limit by `GRACE`."""
        assert self.begun is not None
        while cpu_seconds() - self.begun < self.seconds + GRACE:
            time.sleep(0.5)
        self.result["cut"] = self.result["current"]
        self.save()
        os._exit(1)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.result["current"] = nodeid
        self.save()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.kill(report.nodeid)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        done = yield
        self.result["current"] = ""
        self.result["ran"] += 1
        self.save()
        if self.result["cpu"] > self.seconds:
            self.result["over"] = True
            self.save()
            item.session.shouldstop = "the CPU seconds of the mutant are over"
        return done


def pytest_configure(config: pytest.Config) -> None:
    asked = os.environ.get("MUTANTS_CHOSEN")
    if asked:
        path = Path(asked)
        config.pluginmanager.register(Chosen(json.loads(path.read_text("utf-8")), path.with_name("result.json")))
