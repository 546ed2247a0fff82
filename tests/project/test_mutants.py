"""The deliberate faults of `tools/mutants` match the code, so that `make mutants` can apply them."""

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
        assert ast.dump(ast.parse(fault.source())) != ast.dump(mutant.opened(fault.path).tree), fault.id


@pytest.mark.parametrize(
    ("name", "pattern"),
    [("__call__", "k <= query"), ("__call__", "Tensor"), ("called", "k <= q")],
    ids=["no longer there", "several times", "function renamed"],
)
def test_a_pattern_that_no_longer_fits_is_an_error_that_names_the_fault(name: str, pattern: str) -> None:
    with pytest.raises(LookupError, match="fault"):
        mutant.deliberate("x", f"regard.nn.attention.masks:Causal.{name}", pattern, "0", "")


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


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package of one file as a substitute for regard."""
    (tmp_path / "regard").mkdir()
    (tmp_path / "regard" / "one.py").write_text(SOURCE, encoding="utf-8")
    for module in (mutant, drawn):
        monkeypatch.setattr(module, "SOURCE", tmp_path)
    mutant.opened.cache_clear()
    yield
    mutant.opened.cache_clear()


@pytest.mark.usefixtures("package")
def test_drawn_changes_leave_out_messages_asserts_and_annotations() -> None:
    found = drawn.sites("regard/one.py")
    assert [(SOURCE.encode()[one.start : one.end].decode(), one.replacement, one.note) for one in found] == [
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
    # the changed lines are those of the statement or of its header
    assert [one.lines() for one in found if one.note == "constant"] == [({2}, True), ({7, 8, 9}, False), ({11}, False)]
    assert [one.lines() for one in found if one.note == "boolean operator"] == [({6}, False)]


@pytest.mark.usefixtures("package")
def test_a_draw_is_the_same_each_time_and_another_with_another_seed() -> None:
    first = drawn.draw(5, seed=1)
    assert first == drawn.draw(5, seed=1) != drawn.draw(5, seed=2)
    assert len({(each.start, each.end) for each in first}) == 5


def table(**outcomes: str) -> compare.Table:
    return {"mutants": {name.replace("_", "-"): {"outcome": outcome} for name, outcome in outcomes.items()}}


def whole(killed: int = 60, drawn_killed: int = 30) -> dict[str, str]:
    faults = {f"fault_{n}": "killed" if n < killed else "alive" for n in range(60)}
    return {**faults, **{f"drawn_{n}": "killed" if n < drawn_killed else "alive" for n in range(60)}}


COMPARED = [
    (whole(), whole(), ""), (whole(58), whole(57), "lost: fault-57"), (whole(57), whole(60), ""),
    (whole(56), whole(56), "expected 57 deliberate faults killed, got 56"), (whole(), whole(drawn_killed=27), ""),
    (whole(), whole(drawn_killed=26), "at most 5 points lower, got 6.7"), (whole(), {"fault_3": "killed"}, ""),
    (whole(), {"fault_3": "time"}, "lost: fault-3"),
]  # fmt: skip


def test_a_suite_is_as_strong_if_no_fault_is_lost_and_the_drawn_rate_holds(capsys: pytest.CaptureFixture[str]) -> None:
    for old, new, expected in COMPARED:
        assert compare.compared(table(**old), table(**new)) == bool(expected)
        assert expected in capsys.readouterr().out
