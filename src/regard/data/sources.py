"""Data arguments: a file, two parallel files 'SRC:TGT', or patterns, such as 'data/*.tsv'.

An existing path is used literally, even if the path contains wildcards; only other paths are expanded as patterns.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable

from regard.errors import DataError

_WILDCARD = re.compile(r"\*\*/|\*+|\?|\[!?\]?[^\]]*\]")  # any folders, any characters, one character, one of a set
_PATTERN_HINT = (
    "Patterns support * ? [abc] and **/ (folders at any depth). Quote patterns so that the shell does not expand them."
)

WildcardMatch = tuple[str, ...]  # Text matched by each wildcard of a pattern, for one file


def expand_patterns(entries: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> list[str]:
    """Entries with every pattern replaced by the matching files in sorted order; other entries are unchanged."""
    paths = [entries] if isinstance(entries, str | os.PathLike) else entries
    texts = [os.fspath(entry) for entry in paths]
    return [name for text in texts for name in (_expand_entry(text) if _WILDCARD.search(text) else [text])]


def split_parallel(entry: str) -> tuple[str, str] | None:
    """The two paths of 'SRC:TGT', or None for a single file. Among several colons, existing files decide."""
    if ":" not in entry or _find_matches(entry):
        return None
    places = [place for place, letter in enumerate(entry) if letter == ":"]
    splits = [(entry[:place], entry[place + 1 :]) for place in places]
    source, target = max(splits, key=lambda sides: sum(bool(_find_matches(side)) for side in sides))
    if not source or not target:
        raise DataError("one side of the colon is empty.", entry, advice="Pass two parallel files as SRC:TGT.")
    return source, target


def _expand_entry(entry: str) -> list[str]:
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
    """Files of a path or pattern, each with the text of the wildcards; raise `DataError` if a pattern matches no file."""
    if not _is_pattern(side):
        return {side: ()}
    matches = _find_matches(side)
    if not matches:
        raise DataError("no file matches this pattern.", side, advice=_PATTERN_HINT)
    return matches


def _is_pattern(side: str) -> bool:
    return bool(_WILDCARD.search(side)) and not os.path.lexists(os.path.expanduser(side))


def _find_matches(side: str) -> dict[str, WildcardMatch]:
    """Existing files of a path or pattern, possibly none. As in a shell, wildcards do not match hidden files."""
    side = os.path.expanduser(side)
    if not _is_pattern(side):
        return {side: ()} if os.path.lexists(side) else {}
    # the longest existing folder is literal: its name may contain brackets
    slashes = (place for place in range(len(side) - 1, -1, -1) if side[place] == "/")
    start = next((place + 1 for place in slashes if os.path.isdir(side[: place + 1])), 0)
    folder, pattern = side[:start], side[start:]
    form = re.compile(_pattern_to_regex(pattern), re.DOTALL)
    matches: dict[str, WildcardMatch] = {}
    for name in glob.iglob(pattern, root_dir=folder or None, recursive=True):
        path, match = os.path.join(folder, name), form.fullmatch(name)
        if match is not None and not os.path.isdir(path):
            matches[path] = match.groups(default="")
    return matches


def _pattern_to_regex(pattern: str) -> str:
    """Regular expression of the pattern, with one group per wildcard."""
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
            inside = f"^{inside[1:]}" if inside.startswith("!") else inside.replace("^", r"\^")
            parts.append(f"([{inside}])")
        else:
            parts.append("([^/])" if text == "?" else "([^/]*)")
    return "".join(parts) + re.escape(pattern[end:])
