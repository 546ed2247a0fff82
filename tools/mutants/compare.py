"""Compare the outcomes of mutants with the outcomes of the untrimmed suite: `python -m mutants.compare NEW.json [OLD.json]`.

Every deliberate fault that was killed must be killed again. Drawn mutants change with the source: only the kill rate is
compared, on the common mutants if at least half are common. Test names are not compared.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

UNTRIMMED = Path(__file__).with_name("untrimmed.json")
LEAST = 57
"""Minimum number of killed deliberate faults, of 60."""
POINTS = 5.0
"""Maximum drop of the kill rate of drawn mutants, in percentage points."""

Table = dict[str, Any]


def parts(table: Table) -> tuple[dict[str, str], dict[str, str]]:
    """Outcomes of the deliberate faults and of the drawn mutants."""
    outcomes = {name: row["outcome"] for name, row in table["mutants"].items()}
    drawn = {name: outcome for name, outcome in outcomes.items() if name.startswith("drawn-")}
    return {name: outcome for name, outcome in outcomes.items() if name not in drawn}, drawn


def summary(table: Table) -> str:
    lines = []
    for name, outcomes in zip(("deliberate", "drawn"), parts(table), strict=True):
        counts = Counter(outcomes.values())
        others = ", ".join(f"{counts[kind]} {kind}" for kind in ("alive", "time", "unreached") if counts[kind])
        lines.append(f"{name}: {counts['killed']} of {len(outcomes)} killed" + (f" ({others})" if others else ""))
        lines += [f"  {name}: {outcome}" for name, outcome in outcomes.items() if outcome != "killed"]
    return "\n".join(lines)


def rate(outcomes: dict[str, str]) -> float:
    """Percentage of killed mutants."""
    return 100 * sum(outcome == "killed" for outcome in outcomes.values()) / len(outcomes) if outcomes else 100.0


def compared(old: Table, new: Table) -> int:
    """0 if the new suite is as strong, else 1 with printed reasons. In a sample, only deliberate faults are compared."""
    (before, drawn_before), (after, drawn_after) = parts(old), parts(new)
    whole = before.keys() <= after.keys() and len(drawn_after) >= len(drawn_before)
    problems = [
        f"lost: {name} was killed and is {after[name]} now"
        for name, outcome in before.items()
        if outcome == "killed" and after.get(name, "killed") != "killed"
    ]
    if whole:
        killed = sum(outcome == "killed" for outcome in after.values())
        if killed < LEAST:
            problems.append(f"expected {LEAST} deliberate faults killed, got {killed} of {len(after)}")
        both = drawn_before.keys() & drawn_after.keys()
        if 2 * len(both) >= len(drawn_before):
            drawn_before, drawn_after = ({name: part[name] for name in both} for part in (drawn_before, drawn_after))
        rates = f"{rate(drawn_before):.1f} % before, {rate(drawn_after):.1f} % now"
        print(f"drawn mutants that both tables have: {len(both)}, killed {rates}")
        lower = rate(drawn_before) - rate(drawn_after)
        if lower > POINTS:
            problems.append(f"expected the drawn rate at most {POINTS:g} points lower, got {lower:.1f}")
    print("\n".join(problems) if problems else f"as strong as {UNTRIMMED.name}" + ("" if whole else ", in this sample"))
    return 1 if problems else 0


if __name__ == "__main__":
    tables = [json.loads(Path(path).read_text()) for path in sys.argv[1:]]
    print(summary(tables[0]))
    sys.exit(compared(tables[1] if len(tables) > 1 else json.loads(UNTRIMMED.read_text()), tables[0]))
