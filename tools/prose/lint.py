"""Command line of the linter: see the docstring of `tools/prose/__init__.py`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from prose.blocks import Block
from prose.names import collect, find_names
from prose.rules import Finding, density, find_dialect, load_allowed, load_rules, unused, without_allowed
from prose.scopes import ROOT, SCOPES, Corpus, read_corpus

MAX_DENSITY = 3.0
"""Pronouns per 100 words; texts of PyTorch and Hugging Face have 1 to 3."""


def find_all(corpus: Corpus) -> dict[str, list[Finding]]:
    """Findings by scope, without the exceptions of allow.tsv."""
    rules, names = load_rules(), collect(corpus)
    found = {}
    for scope, blocks in corpus.blocks.items():
        found[scope] = find_dialect(rules, blocks)
        found[scope] += [finding for block in blocks for finding in find_names(names, block)]
        found[scope].sort(key=lambda finding: (finding.block.path, finding.block.line_at(finding.start)))
    return found


def select(corpus: Corpus, paths: list[str]) -> None:
    """Keep the blocks of these files and folders."""
    chosen = [Path(path).resolve().relative_to(ROOT).as_posix() for path in paths]

    def inside(block: Block) -> bool:
        return any(path == "." or block.path == path or block.path.startswith(f"{path}/") for path in chosen)

    corpus.blocks = {scope: [*filter(inside, blocks)] for scope, blocks in corpus.blocks.items()}


def check(corpus: Corpus, found: dict[str, list[Finding]], given: argparse.Namespace) -> list[str]:
    """Print a line per scope and return the exceeded limits. Density limits apply to whole scopes only."""
    problems = []
    for scope in SCOPES:
        words, pronouns = density(corpus.blocks[scope])
        errors = [finding for finding in found[scope] if finding.level == "E"]
        print(f"{scope:9} {words:7,} words  {len(errors):5,} errors  {pronouns:5.2f} pronouns per 100 words")
        if errors:
            problems.append(f"{scope}: {len(errors):,} errors, none are allowed")
        if pronouns > MAX_DENSITY and not given.paths:
            problems.append(f"{scope}: {pronouns:.2f} pronouns per 100 words, at most {MAX_DENSITY} are allowed")
    return problems


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Check the English of messages, documents, docstrings and comments.")
    parser.add_argument("paths", nargs="*", help="Files or folders to check. Default: the repository.")
    parser.add_argument("--list", action="store_true", help="Print every finding.")
    parser.add_argument("--rule", help="With --list: print only the findings of this rule.")
    parser.add_argument("--scope", choices=SCOPES, help="With --list: print only the findings of this scope.")
    return parser.parse_args()


def main() -> int:
    given = arguments()
    corpus = read_corpus()
    allowed, problems = load_allowed()
    if given.paths:
        select(corpus, given.paths)
    found = {scope: without_allowed(findings, allowed) for scope, findings in find_all(corpus).items()}
    for scope in SCOPES if given.list else ():
        for finding in found[scope] if given.scope in (None, scope) else ():
            if given.rule in (None, finding.rule):
                print(finding)
    problems += check(corpus, found, given)
    if not given.paths:
        problems += unused(allowed)
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
