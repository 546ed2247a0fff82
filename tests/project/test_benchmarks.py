"""Every script in benchmarks/ runs from end to end at its `--smoke` size and prints figures."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
HELPERS = {
    "by_length", "clock", "harness", "league_entries", "marian", "paths", "side_by_side", "synthetic", "turns",
    "universal_figure",
}  # fmt: skip
"""Modules that scripts import and that are not run."""
SCRIPTS = sorted(path.stem for path in BENCHMARKS.glob("*.py") if path.stem not in HELPERS)
FIGURE = re.compile(r"(?<![\w.+-])-?\d[\d,]*(\.\d+)?(e-?\d+)?(?![\w.+])")
"""A separate number: "1,024", "0.5", and not the parts of a version such as "2.13.0"."""
NO_FIGURE = ("left out: ", "not installed: ")


@pytest.fixture(scope="module", autouse=True)
def importable() -> Iterator[None]:
    """Put the benchmarks on `sys.path`: scripts import each other by plain names."""
    sys.path.insert(0, str(BENCHMARKS))
    yield
    sys.path.remove(str(BENCHMARKS))
    for name in {*SCRIPTS, *HELPERS} & sys.modules.keys():
        del sys.modules[name]


def smoke_of(name: str, script: ModuleType, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Lines printed by `NAME.py --smoke`, without the prefix."""
    import harness

    for function in ("main", "smoke"):
        assert callable(getattr(script, function, None)), f"benchmarks/{name}.py defines no {function}()"
    harness.run(script.main, script.smoke, ["--smoke"])
    lines = capsys.readouterr().out.splitlines()
    unmarked = [line for line in lines if not line.startswith(harness.MARK)]
    assert not unmarked, f"benchmarks/{name}.py --smoke prints lines without the mark '{harness.MARK}': {unmarked[:3]}"
    return [line.removeprefix(harness.MARK) for line in lines]


def has_figure(lines: list[str]) -> bool:
    return any(FIGURE.search(line) for line in lines if not line.startswith(NO_FIGURE))


@pytest.mark.every(3)
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_runs_from_end_to_end(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    lines = smoke_of(name, importlib.import_module(name), capsys)
    assert has_figure(lines), f"benchmarks/{name}.py --smoke prints no figure: {lines}"


def test_a_script_without_smoke_or_figures_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    script = ModuleType("new")
    script.main = print  # type: ignore[attr-defined]
    with pytest.raises(AssertionError, match=r"new\.py"):
        smoke_of("new", script, capsys)
    script.smoke = lambda folder: print("2.13.0+cpu CPU\nnot installed: timm 1\nleft out: 2 cases")  # type: ignore[attr-defined]
    assert not has_figure(smoke_of("new", script, capsys))
    script.smoke = lambda folder: print('{"ms": 1.25}')  # type: ignore[attr-defined]
    assert has_figure(smoke_of("new", script, capsys))


@pytest.mark.parametrize("name", sorted(HELPERS))
def test_a_helper_is_not_run_but_imported(name: str) -> None:
    assert "__main__" not in (BENCHMARKS / f"{name}.py").read_text("utf-8")
    imported = re.compile(rf"^\s*(import|from) {name}\b", re.MULTILINE)
    assert any(imported.search((BENCHMARKS / f"{script}.py").read_text("utf-8")) for script in SCRIPTS)


def test_smoke_takes_no_other_arguments() -> None:
    import harness

    with pytest.raises(SystemExit, match="--smoke"):
        harness.run(print, print, ["--smoke", "--steps", "3"])


def test_the_smoke_mode_leaves_the_process_as_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    import harness
    import torch

    torch.manual_seed(1)
    before = (torch.get_num_threads(), torch.get_float32_matmul_precision(), torch.get_rng_state().tolist())

    def smoke(folder: Path) -> None:
        assert folder.is_dir() and not any(folder.iterdir())
        assert (harness.mode(), harness.device(), harness.pick(cuda=1, cpu=2, smoke=3)) == ("smoke", "cpu", 3)
        torch.set_float32_matmul_precision("medium")
        print(torch.rand(1), end=" 1\n2\n")

    harness.run(print, smoke, ["--smoke"])
    assert capsys.readouterr().out.splitlines()[1] == "smoke: 2"
    assert before == (torch.get_num_threads(), torch.get_float32_matmul_precision(), torch.get_rng_state().tolist())
    assert not harness.is_smoke()
