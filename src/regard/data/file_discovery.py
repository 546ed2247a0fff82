"""Files of a folder and of all folders inside it, in the order of their names; files of two folders that belong together."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from regard.errors import DataError

IMAGE_SUFFIXES = (
    ".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".gif", ".bmp", ".dib", ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm",
    ".avif", ".jp2", ".tga",
)  # fmt: skip
DEPTH_SUFFIXES = (".png", ".npy", ".tif", ".tiff", ".pfm", ".pgm")
CLASS_FILES = ("classes.txt", "classes.json")
"""Files that say something about the others."""
README_FILES = ("readme.txt", "license.txt", "licence.txt")
"""Files for people, whose ending may be that of numbers."""
SYSTEM_FILES = ("__MACOSX", "@eaDir", "Thumbs.db", "desktop.ini")
"""What systems leave in folders under a name without a dot in front."""


@dataclass(frozen=True, slots=True)
class FoundFile:
    path: str
    parts: tuple[str, ...]
    """the names of the folders on the way, and its own"""
    matches: bool
    """whether it may be what is looked for, by its name"""
    reason: str = ""
    """why not"""

    @property
    def name(self) -> str:
        return "/".join(self.parts)

    @property
    def stem(self) -> str:
        """Its name without the ending."""
        return os.path.splitext(self.name)[0]


def walk_files(folder: str, suffixes: Sequence[str], what: str = "image") -> Iterator[FoundFile]:
    """Every file, those that do not fit too; of a hidden folder only itself. Links to folders are followed, never upwards."""
    yield from _walk_folder(folder, (), suffixes, what, ())


def _walk_folder(
    folder: str, parts: tuple[str, ...], endings: Sequence[str], what: str, above: tuple[tuple[int, int], ...]
) -> Iterator[FoundFile]:
    try:
        own = os.stat(folder)
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise DataError(f"cannot read the folder: {error.strerror or error}.", folder) from error
    here = (own.st_dev, own.st_ino)
    if here in above:
        return
    for name in names:
        path, way = os.path.join(folder, name), (*parts, name)
        if name.startswith(".") or name in SYSTEM_FILES:
            yield FoundFile(path, way, False, f"hidden: {'/'.join(way)}")
        elif os.path.isdir(path):
            yield from _walk_folder(path, way, endings, what, (*above, here))
        elif name in CLASS_FILES:
            continue
        elif name.lower().endswith(tuple(endings)) and name.lower() not in README_FILES:
            yield FoundFile(path, way, True)
        else:
            article = "an" if what[0] in "aeiou" else "a"
            yield FoundFile(path, way, False, f"not {article} {what}: {'/'.join(way)}")


def find_subfolder(folder: str, names: Sequence[str]) -> str | None:
    """The folder inside this one that has the first of these names that there is."""
    there = {name.lower(): name for name in sorted(os.listdir(folder)) if os.path.isdir(os.path.join(folder, name))}
    return next((os.path.join(folder, there[name]) for name in names if name in there), None)


FilePairs = list[tuple[FoundFile, str | None]]


def match_files(images: str, targets: str, suffixes: Sequence[str]) -> tuple[FilePairs, int, list[str]]:
    """Every file of `images` with the file of the other folder that has its name but for the ending; how many have none; and
    those of the other folder that nothing belongs to.

    Where no name is the same, the others may all have one more word at their end, such as 0001_mask beside 0001."""
    files = list(walk_files(images, IMAGE_SUFFIXES))
    there: dict[str, str] = {}
    for found in walk_files(targets, suffixes):
        if found.matches and there.setdefault(found.stem, found.path) != found.path:
            problem = f"same file name as '{there[found.stem]}' except for the extension."
            raise DataError(problem, found.path, advice="Remove one of the two files.")
    stems = [found.stem for found in files if found.matches]
    more = "" if any(stem in there for stem in stems) else _common_suffix(stems, there)
    pairs: FilePairs = [(found, there.pop(found.stem + more, None) if found.matches else None) for found in files]
    left = sum(found.matches and other is None for found, other in pairs)
    return pairs, left, sorted(there.values())


def _common_suffix(stems: Sequence[str], there: dict[str, str]) -> str:
    """What the names of all others have at their end beyond those of the pictures; nothing where that is not so."""
    for stem in stems[:1]:
        words = [name[len(stem) :] for name in there if name.startswith(stem)]
        if len(words) == 1 and all(name.endswith(words[0]) for name in there):
            return words[0]
    return ""
