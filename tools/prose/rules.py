"""Rules of dialect.tsv, exceptions of allow.tsv, and the findings in blocks of text."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from prose.blocks import Block

HERE = Path(__file__).parent
MAX_ALLOWED = 60

PRONOUN = re.compile(
    r"\b(it|its|they|them|their|those|that|what|which|who|whose|one|ones|nobody|nothing)\b", re.IGNORECASE
)
WORD = re.compile(r"[A-Za-z’']+")

SEPARATOR = "\n¶\n"
"""Between blocks in a joint search: not a space, so no phrase continues in the next block."""


@dataclass(frozen=True)
class Rule:
    level: str
    """E for error, W for warning."""
    name: str
    pattern: re.Pattern[str]
    advice: str
    example: str
    """A sentence with a finding of the rule."""


@dataclass(frozen=True)
class Finding:
    block: Block
    start: int
    end: int
    rule: str
    advice: str
    level: str = "E"

    def __str__(self) -> str:
        text = self.block.text[self.start : self.end].strip()
        warning = "warning: " if self.level == "W" else ""
        return f"{self.block.path}:{self.block.line_at(self.start)}: {warning}{self.rule}: {text} -> {self.advice}"


def load_rules(path: Path = HERE / "dialect.tsv") -> list[Rule]:
    rows = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines() if line and line[0] != "#"]
    return [
        Rule(level, name, re.compile(pattern, re.IGNORECASE | re.MULTILINE), advice, example)
        for level, name, pattern, advice, example in rows
    ]


def find_dialect(rules: list[Rule], blocks: list[Block]) -> list[Finding]:
    """Findings of all rules. A single search in the joined text is faster than many short searches."""
    if not blocks:
        return []
    text = SEPARATOR.join(block.prose for block in blocks)
    starts = [0]
    for block in blocks[:-1]:
        starts.append(starts[-1] + len(block.prose) + len(SEPARATOR))
    found = []
    for rule in rules:
        for match in rule.pattern.finditer(text):
            index = bisect_right(starts, match.end() - 1) - 1
            start = max(match.start() - starts[index], 0)
            found.append(Finding(blocks[index], start, match.end() - starts[index], rule.name, rule.advice, rule.level))
    return _longest(found)


def _longest(found: list[Finding]) -> list[Finding]:
    """Drop findings inside longer findings, to count a phrase once, with the advice for the phrase."""
    kept: list[Finding] = []
    last: dict[str, Finding] = {}
    for one in sorted(found, key=lambda one: (one.block.path, one.block.lines[0], id(one.block), one.start, -one.end)):
        before = last.get(one.level)
        if before is None or before.block is not one.block or one.end > before.end:
            kept.append(one)
            last[one.level] = one
    return kept


@dataclass
class Allowance:
    """One line of allow.tsv: allows the findings of a rule in some files, if the pattern matches at the finding."""

    files: str
    rule: str
    pattern: re.Pattern[str]
    reason: str
    used: bool = False

    def covers(self, finding: Finding) -> bool:
        if finding.rule != self.rule or not fnmatch(finding.block.path, self.files):
            return False
        matches = self.pattern.finditer(finding.block.text)
        return any(match.start() < finding.end and finding.start < match.end() for match in matches)


def load_allowed(path: Path = HERE / "allow.tsv") -> tuple[list[Allowance], list[str]]:
    """The exceptions, and problems of the file: too many lines, or a line without four columns."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    allowed, problems = [], []
    if len(lines) > MAX_ALLOWED:
        problems.append(f"{path.name}: {len(lines)} lines, at most {MAX_ALLOWED} are allowed")
    for number, line in enumerate(lines, 1):
        if line and not line.startswith("#"):
            columns = [column.strip() for column in line.split("\t")]
            if len(columns) != 4 or not all(columns):
                problems.append(
                    f"{path.name}:{number}: expected file, rule, pattern, reason, got {len(columns)} columns"
                )
                continue
            files, rule, pattern, reason = columns
            allowed.append(Allowance(files, rule, re.compile(pattern), reason))
    return allowed, problems


def without_allowed(found: Iterable[Finding], allowed: list[Allowance]) -> list[Finding]:
    """Findings without an exception. Exceptions with a finding are marked as used."""
    kept = []
    for finding in found:
        covering = [entry for entry in allowed if entry.covers(finding)]
        for entry in covering:
            entry.used = True
        if not covering:
            kept.append(finding)
    return kept


def unused(allowed: list[Allowance]) -> list[str]:
    """One problem for every exception without a finding."""
    idle = [entry for entry in allowed if not entry.used]
    return [f"allow.tsv: no finding for {entry.files} {entry.rule} {entry.pattern.pattern}" for entry in idle]


def density(blocks: Iterable[Block]) -> tuple[int, float]:
    """Number of words, and pronouns per 100 words."""
    text = "\n".join(block.prose for block in blocks)
    words = len(WORD.findall(text))
    return words, 100 * len(PRONOUN.findall(text)) / max(words, 1)
