"""The deliberate faults of `tests/mutants` match the code, so that `make mutants` can apply them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from mutants import compare, drawn, mutant
from mutants.faults import faults


def test_every_fault_names_code_that_is_there_and_changes_it_into_other_code() -> None:
    found = faults()
    assert len(found) == len({fault.id for fault in found}) == 60
    for fault in found:
        assert not fault.id.startswith("drawn-")  # the prefix distinguishes both kinds in a table
        changed = ast.parse(fault.source())
        assert ast.dump(changed) != ast.dump(mutant.parsed(fault.path)), fault.id


@pytest.mark.parametrize(
    ("where", "pattern"),
    [
        ("regard.nn.attention.masks:Causal.__call__", "k <= query"),
        ("regard.nn.attention.masks:Causal.__call__", "Tensor"),
        ("regard.nn.attention.masks:Causal.called", "k <= q"),
    ],
    ids=["no longer there", "several times", "function renamed"],
)
def test_a_pattern_that_no_longer_fits_is_an_error_that_names_the_fault(where: str, pattern: str) -> None:
    with pytest.raises(LookupError, match="fault"):
        mutant.deliberate("x", where, pattern, "0", "")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package of one file as a substitute for regard."""
    folder = tmp_path / "regard"
    folder.mkdir()
    for module in (mutant, drawn):
        monkeypatch.setattr(module, "SOURCE", tmp_path)
    caches = (mutant.parsed, mutant.line_starts)
    for cache in caches:
        cache.cache_clear()
    yield folder
    for cache in caches:
        cache.cache_clear()


SOURCE = '''
LIMIT = 3

def grow(x: "1 + 1", more: int | None = None) -> int:
    """Of 1 to 2."""
    if x > LIMIT and more is not None:  # ä
        print(
            x - 1,
        )
    assert x != 7
    if x < 0:
        raise ValueError(f"{x + 5} is {3}")
    return x
'''


def test_drawn_changes_leave_out_messages_asserts_and_annotations(package: Path) -> None:
    (package / "one.py").write_text(SOURCE, encoding="utf-8")
    text = SOURCE.encode()
    found = [(text[start:end].decode(), new, kind) for _, start, end, new, kind in drawn.sites("regard/one.py")]
    assert found == [
        ("3", "4", "constant"),
        ("x > LIMIT and more is not None", "(not ((x > LIMIT and more is not None)))", "negated condition"),
        (">", ">=", "comparison"),
        ("and", "or", "boolean operator"),
        ("is not", "is", "comparison"),
        ("print(\n            x - 1,\n        )", "pass", "removed call"),
        ("-", "+", "operator"),
        ("1", "2", "constant"),
        ("x < 0", "(not ((x < 0)))", "negated condition"),
        ("<", "<=", "comparison"),
        ("0", "1", "constant"),
    ]


def test_the_changed_lines_are_those_of_the_statement_or_of_its_header(package: Path) -> None:
    (package / "one.py").write_text(SOURCE, encoding="utf-8")
    lines = {}
    for path, start, end, new, kind in drawn.sites("regard/one.py"):
        lines[SOURCE.encode()[start:end].decode(), kind] = mutant.Mutant("x", path, start, end, new, kind).lines()
    assert lines["3", "constant"] == ({2}, True)
    assert lines["and", "boolean operator"] == ({6}, False)
    assert lines["-", "operator"] == ({7, 8, 9}, False)


def test_a_draw_is_the_same_each_time_and_another_with_another_seed(package: Path) -> None:
    (package / "one.py").write_text(SOURCE, encoding="utf-8")
    first = drawn.draw(5, seed=1)
    assert first == drawn.draw(5, seed=1) != drawn.draw(5, seed=2)
    assert len({(each.start, each.end) for each in first}) == 5


def table(**outcomes: str) -> compare.Table:
    return {"mutants": {name.replace("_", "-"): {"outcome": outcome} for name, outcome in outcomes.items()}}


def whole(killed: int = 60, drawn_killed: int = 30) -> dict[str, str]:
    faults = {f"fault_{n}": "killed" if n < killed else "alive" for n in range(60)}
    return {**faults, **{f"drawn_{n}": "killed" if n < drawn_killed else "alive" for n in range(60)}}


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (whole(), whole(), ""),
        (whole(58), whole(57), "lost: fault-57"),
        (whole(56), whole(56), "expected 57 deliberate faults killed, got 56"),
        (whole(57), whole(60), ""),
        (whole(), whole(drawn_killed=27), ""),
        (whole(), whole(drawn_killed=26), "at most 5 points lower, got 6.7"),
        (whole(), {"fault_3": "killed"}, ""),
        (whole(), {"fault_3": "time"}, "lost: fault-3"),
    ],
)
def test_a_suite_is_as_strong_only_if_no_fault_is_lost_and_the_drawn_rate_holds(
    old: dict[str, str], new: dict[str, str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare.compared(table(**old), table(**new)) == bool(expected)
    assert expected in capsys.readouterr().out
