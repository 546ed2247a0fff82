"""What a person names as data: a file, two parallel files 'SRC:TGT', or patterns of either, such as 'data/*.tsv'.

A name that exists is itself, whatever signs it holds; only what does not exist can be a pattern.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable

from regard.errors import DataError

_WILDCARD = re.compile(r"\*\*/|\*+|\?|\[!?\]?[^\]]*\]")
"""The signs of a pattern: any folders, any letters, one letter, one letter of a set."""
_PATTERN_HINT = (
    "Patterns support * ? [abc] and **/ (folders at any depth). Quote patterns so that the shell does not expand them."
)

WildcardMatch = tuple[str, ...]
"""What the signs of a pattern stood for in one file."""


def expand_patterns(entries: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> list[str]:
    """Every pattern replaced by the files that it matches, in sorted order; other entries stay as they are."""
    given = [entries] if isinstance(entries, str | os.PathLike) else entries
    return [name for entry in given for name in _expand_entry(os.fspath(entry))]


def split_parallel(entry: str) -> tuple[str, str] | None:
    """The two files of 'SRC:TGT'. A file whose own name has a colon is itself; among several colons, files decide."""
    if ":" not in entry or _find_matches(entry):
        return None
    places = [place for place, letter in enumerate(entry) if letter == ":"]
    splits = [(entry[:place], entry[place + 1 :]) for place in places]
    source, target = max(splits, key=lambda sides: sum(bool(_find_matches(side)) for side in sides))
    if not source or not target:
        raise DataError("one side of the colon is empty.", entry, advice="Pass two parallel files as SRC:TGT.")
    return source, target


def absolute_entry(entry: str) -> str:
    """The same file or pair of files, wherever one stands."""
    return ":".join(os.path.abspath(os.path.expanduser(side)) for side in split_parallel(entry) or (entry,))


def _expand_entry(entry: str) -> list[str]:
    if not _WILDCARD.search(entry):
        return [entry]
    sides = split_parallel(entry)
    if sides is None:
        return sorted(_require_matches(entry))
    if not any(map(_is_pattern, sides)):
        return [entry]
    source, target = ({match: name for name, match in _require_matches(side).items()} for side in sides)
    if len(source) == len(target) == 1 and not all(map(_is_pattern, sides)):
        return [f"{next(iter(source.values()))}:{next(iter(target.values()))}"]
    for these, those, other in ((source, target, sides[1]), (target, source, sides[0])):
        for match, name in sorted(these.items()):
            if match not in those:
                matched = f" with {', '.join(map(repr, match))} for the wildcards" if match else ""
                raise DataError(
                    f"no matching file: '{other}' matches no file{matched}. "
                    f"Files left of the colon: {len(source)}, right of the colon: {len(target)}.",
                    name,
                    advice="Wildcards must match the same text on both sides of the colon.",
                )
    return [f"{name}:{target[match]}" for match, name in sorted(source.items(), key=lambda item: item[1])]


def _require_matches(side: str) -> dict[str, WildcardMatch]:
    """The files that a name or a pattern stands for, each with what its signs stand for."""
    if not _is_pattern(side):
        return {side: ()}
    found = _find_matches(side)
    if not found:
        raise DataError("no file matches this pattern.", side, advice=_PATTERN_HINT)
    return found


def _is_pattern(side: str) -> bool:
    return bool(_WILDCARD.search(side)) and not os.path.lexists(os.path.expanduser(side))


def _find_matches(side: str) -> dict[str, WildcardMatch]:
    """The same, and nothing where there is no such file. As in a shell, signs do not match names with a dot in front."""
    side = os.path.expanduser(side)
    if not _is_pattern(side):
        return {side: ()} if os.path.lexists(side) else {}
    folder, pattern = _split_literal_prefix(side)
    form = re.compile(_pattern_to_regex(pattern), re.DOTALL)
    found: dict[str, WildcardMatch] = {}
    for name in glob.iglob(pattern, root_dir=folder or None, recursive=True):
        path, match = os.path.join(folder, name), form.fullmatch(name)
        if match is not None and not os.path.isdir(path):
            found[path] = match.groups(default="")
    return found


def _split_literal_prefix(side: str) -> tuple[str, str]:
    """The folder in front, as far as it exists by name (it too may hold brackets), and the pattern inside it."""
    for place in (place for place in range(len(side) - 1, -1, -1) if side[place] == "/"):
        if os.path.isdir(side[: place + 1]):
            return side[: place + 1], side[place + 1 :]
    return "", side


def _pattern_to_regex(pattern: str) -> str:
    """The pattern as a regular expression with a group for each sign."""
    parts, end = [], 0
    for sign in _WILDCARD.finditer(pattern):
        parts.append(re.escape(pattern[end : sign.start()]))
        text, end = sign.group(), sign.end()
        if text == "**/":
            parts.append("((?:.*/)?)")
        elif text == "**":
            parts.append("(.*)")
        elif text.startswith("["):
            inside = text[1:-1].replace("\\", r"\\").replace("[", r"\[")
            parts.append(f"([{'^' + inside[1:] if inside.startswith('!') else inside.replace('^', chr(92) + '^')}])")
        else:
            parts.append("([^/])" if text == "?" else "([^/]*)")
    return "".join(parts) + re.escape(pattern[end:])
