"""Pictures and what is said of them: JSON lines, COCO's JSON, tables and Parquet.

| what is named         | what it is                                                                                |
|-----------------------|-------------------------------------------------------------------------------------------|
| captions.jsonl        | an object a line: {"image": "a.jpg", "captions": ["…", "…"]}, or "caption": "…"           |
| captions.json         | COCO's (images, annotations), Karpathy's (images with sentences), or a list of such objects |
| captions.csv, .tsv    | columns image and caption; rows of one picture are gathered, as are Flickr's a.jpg#0, a.jpg#1 |
| captions.parquet      | the same, or the bytes of pictures in place of their paths                                |
| a folder              | that holds one of these, called captions or metadata                                      |
| FILE#train            | of any of these what the column `split` calls train; FILE#train+restval of two parts      |

Paths begin where the file lies, in a folder `images` beside it, or where COCO has its pictures. Nothing is decoded here.
Blanks in captions are made single ones.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.data.file_discovery import subfolder
from regard.data.images.labeled import IMAGES, SPLITS, Picture, found_file
from regard.data.images.tables import CALLED, Inside, value_in
from regard.data.samples import everything, settled
from regard.data.text.columns import Wanted, listed
from regard.data.text.files import Complain, existing, refuse
from regard.data.text.records import document, picked, records, wanted_of
from regard.data.text.tables import OBJECTS, PARQUET, TABS, Empty, format_of, heading, iterate_rows, value_of
from regard.errors import DataError

USUAL: dict[str, tuple[str, ...]] = {
    "image": CALLED["image"],
    "captions": ("captions", "caption", "sentences", "sentence", "text", "description"),
    "split": ("split",),
}
"""What columns are usually called, the surest first."""
ADVICE = 'Each row needs a picture and a caption: {"image": "a.jpg", "captions": ["…"]} a line, or a table of image, caption.'
FILES = ("captions", "metadata")
"""What the file is called that speaks of the pictures of a folder."""
SUFFIXES = (*OBJECTS, ".csv", *TABS, *PARQUET)

BOTH = ("image", "captions")
"""What is wanted of a row; of one that is only asked, the picture."""

_PART = re.compile(r"(.+)#([\w+-]+)")
_NUMBERED = re.compile(r"(.*\.\w+)#\d+")

Names = tuple[str, ...]
Row = dict[str, Any]
Rows = Iterator[tuple[int, Row]]
Stream = Iterator["Captioned | Empty"]


@dataclass(frozen=True, slots=True)
class Captioned(Picture):
    """A picture and all that is said of it; its line is that of the first caption, or its number in a JSON document."""

    captions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "captions", tuple(self.captions))  # what was kept as JSON comes back as a list


@dataclass
class _Told:
    """What the rows of one picture have said so far."""

    image: str | Inside
    line: int
    where: int | None
    """the same, where it is a line"""
    captions: list[str]


def iterate_captioned(data: Sequence[str], columns: Mapping[str, str] | None = None) -> Stream:
    """Those of every file, in the order given."""
    return everything(data, lambda entry: captioned_of(entry, columns), "captions", ADVICE)


def captioned_of(entry: str, columns: Mapping[str, str] | None = None, complain: Complain = refuse) -> Stream:
    """Pictures with their captions of one file, in the order in which they are first named."""
    return _read(entry, columns, complain, BOTH)


def asked_of(entry: str, columns: Mapping[str, str] | None, complain: Complain) -> Stream:
    """Every picture that a file names, once, whatever is said of it: a column of captions need not be there."""
    return _read(entry, columns, complain, ("image",))


def _read(entry: str, columns: Mapping[str, str] | None, complain: Complain, wanted: Names) -> Stream:
    Wanted(BOTH, columns, ("split",))  # a wrong choice is refused before anything is read
    path, parts = file_of(entry)
    rows = _rows(path, columns, complain, wanted)
    return settled(str(path), _gathered(path, rows, parts, complain, wanted))


def part_of(entry: str) -> tuple[str, tuple[str, ...]]:
    """The name of a file or a folder, and the parts of it that are meant; none: all of it."""
    said = None if os.path.exists(os.path.expanduser(entry)) else _PART.fullmatch(entry)
    return (said[1], tuple(filter(None, said[2].split("+")))) if said else (entry, ())


def file_of(entry: str) -> tuple[Path, tuple[str, ...]]:
    """The file with the captions, and the parts of it that are meant."""
    name, parts = part_of(entry)
    folder = Path(os.path.expanduser(name))
    if not folder.is_dir():
        return existing(name), parts
    files = [file for file in sorted(folder.iterdir()) if format_of(file) in SUFFIXES and file.is_file()]
    for stem in FILES:
        found = [file for file in files if file.name.lower().startswith(f"{stem}.")]
        if len(found) == 1:
            return found[0], parts
        files = found or files
    advice = f"It holds: {listed(file.name for file in files)}. Name the one that has them."
    if not files:
        advice = f"None of its files ends in {', '.join(SUFFIXES)}: name the file that has them."
    raise DataError("is a folder without a file of captions, such as captions.jsonl.", folder, advice=advice)


# -- files -> rows


def _rows(path: Path, columns: Mapping[str, str] | None, complain: Complain, wanted: Names) -> Rows:
    kind = format_of(path)
    whole = document(path, ("images", "annotations")) if kind == ".json" else None
    if isinstance(whole, dict):
        return _coco(path, whole, complain, wanted)
    if isinstance(whole, list):
        return wanted_of(path, enumerate(whole, start=1), USUAL, wanted, columns, complain)
    if kind in (*OBJECTS, *PARQUET):
        return wanted_of(path, records(path, complain), USUAL, wanted, columns, complain)
    return _table(path, columns, complain, wanted)


def _coco(path: Path, whole: Mapping[str, Any], complain: Complain, wanted: Names) -> Rows:
    """Captions in the order of the annotations, counted from 1, and then pictures that have none; these alone are asked."""
    form = '{"images": [{"id": 1, "file_name": "a.jpg"}], "annotations": [{"image_id": 1, "caption": "…"}]}'
    images, said = whole.get("images"), whole.get("annotations", [])
    if not isinstance(images, list) or not isinstance(said, list):
        raise DataError("has no list of images.", path, advice=f"COCO's form is {form}.")
    said = said if wanted == BOTH else []
    known: dict[Any, Row] = {}
    told: set[Any] = set()
    for number, image in enumerate(images, start=1):
        name = picked(path, number, image, {"image": ("file_name", "filename")}, {}) if isinstance(image, dict) else {}
        if not isinstance(name.get("image"), str):
            complain("format", DataError(f"image {number} has no file_name.", path, advice=f"COCO's form is {form}."))
            continue
        key = image.get("id", image.get("imgid", number))
        if not isinstance(key, str | int | float) or key in known:
            problem = f"image {number} has no id of its own ({key!r:.40})."
            complain("format", DataError(problem, path, advice=f"COCO's form is {form}."))
            continue
        row = {"image": os.path.join(str(image.get("filepath") or ""), name["image"]), "split": image.get("split", "")}
        known[key] = {**row, "captions": image.get("sentences", "")}
    for number, one in enumerate(said, start=1):
        key = one.get("image_id") if isinstance(one, dict) else None
        if not isinstance(key, str | int | float) or key not in known or "caption" not in one:
            problem = f"annotation {number} has no caption, or is of no image that is listed (image_id {key!r:.40})."
            complain("format", DataError(problem, path, advice=f"COCO's form is {form}."))
            continue
        told.add(key)
        yield number, {**known[key], "captions": one["caption"], "whole": True}
    for number, (key, row) in enumerate(known.items(), start=len(said) + 1):
        if key not in told:
            yield number, {**row, "whole": True}


def _table(path: Path, columns: Mapping[str, str] | None, complain: Complain, wanted: Names) -> Rows:
    if format_of(path) not in SUFFIXES:
        return iterate_rows(str(path), wanted, columns, complain)  # it says which are known
    names, chosen = heading(str(path)), dict(columns or {})
    small = {name.lower(): name for name in reversed(names)}
    if not any(name not in names and name.isdigit() for name in chosen.values()):
        for meant, usual in USUAL.items():
            found = next((small[name] for name in usual if name in small), None)
            if meant not in chosen and found is not None and found not in chosen.values():
                chosen[meant] = found
        if not chosen and len(names) == len(BOTH):
            wanted = BOTH  # it has no header
        missing = [name for name in wanted if name not in chosen]
        if len(missing) == 1 or (missing and len(names) != 2):
            commas = (
                " Name it .csv if commas separate its columns." if len(names) == 1 and "," in next(iter(names)) else ""
            )
            advice = f"Say which it is: --columns {missing[0]}=NAME, of: {listed(names)}.{commas}"
            raise DataError(f"no column is named '{missing[0]}'.", path, 1, advice)
    chosen = {name: column for name, column in chosen.items() if name in (*wanted, "split")}
    return iterate_rows(str(path), wanted, chosen or None, complain, optional=("split",))


# -- rows -> samples


def _gathered(
    path: Path, rows: Rows, parts: Sequence[str], complain: Complain, wanted: Names
) -> Iterator[tuple[int, Captioned | Empty | None]]:
    """Pictures that lie in the table are given on as they come; of others all rows are read first, for several may speak of
    one."""
    folders, splits, asked = _folders(path), dict[str, int](), wanted != BOTH
    order: list[tuple[int, Empty | _Told | None]] = []
    known: dict[str, _Told] = {}
    inside: _Told | None = None
    for line, row in rows:
        where = None if row.get("whole") else line
        try:
            image, captions, blank = _values(path, where, line, {**row, "captions": "?"} if asked else row)
        except DataError as error:
            complain("format", error)
            continue
        split = str(row.get("split") or "")
        splits[split] = splits.get(split, 0) + bool(image)
        if parts and split not in parts:
            continue
        if blank is not None or not image:
            order.append((line, blank))
        if not captions or not image:
            continue
        if isinstance(image, Inside):
            if inside is not None and inside.image.content == image.content:  # type: ignore[union-attr]
                inside.captions += captions
                continue
            if inside is not None:
                yield inside.line, _sample(path, inside, folders)
            inside = _Told(image, line, where, captions)
        elif image in known:
            known[image].captions += captions
        else:
            known[image] = _Told(image, line, where, captions)
            order.append((line, known[image]))
    _check_parts(path, parts, splits)
    if not parts and not asked:
        _refuse_parts(path, splits)
    if inside is not None:
        yield inside.line, _sample(path, inside, folders)
    for line, item in order:
        if not isinstance(item, _Told):
            yield line, item
            continue
        try:
            yield line, _sample(path, item, folders)
        except DataError as error:
            complain("missing", error)


def _values(path: Path, where: int | None, line: int, row: Row) -> tuple[str | Inside, list[str], Empty | None]:
    """The picture, its captions, and what is said where one of them is blank."""
    image = value_in(path, line, row.get("image"), "image")
    if isinstance(image, str):
        numbered = _NUMBERED.fullmatch(image)
        image = numbered[1] if numbered else image
    told = row.get("captions")
    several = told if isinstance(told, list) else [told]
    several = [one.get("raw", one.get("caption")) if isinstance(one, dict) else one for one in several]
    texts = [value_of(path, where or line, "captions", one, number=False, several=False) for one in several]
    captions = [" ".join(text.split()) for text in texts]
    kept = [text for text in captions if text]
    shown = image if isinstance(image, str) else image.name or f"row {line}"
    if not image:
        return "", kept, Empty(str(path), line, f"no image beside: {kept[0][:60]}") if kept else None
    if kept and len(kept) == len(captions):
        return image, kept, None
    return image, kept, Empty(str(path), line, f"no caption beside: {shown[:60]}")


def _sample(path: Path, told: _Told, folders: Sequence[str]) -> Captioned:
    source, content = found_file(str(path), told.where, told.image, "picture", folders)
    return Captioned(source, path=str(path), line=told.line, content=content, captions=tuple(told.captions))


def _folders(path: Path) -> list[str]:
    """Where pictures may lie: COCO has those of annotations/captions_val2017.json in val2017."""
    here, part = path.parent, path.stem.rpartition("_")[2]
    own = subfolder(str(here), IMAGES)
    near = [here / part, here.parent / part, here.parent / "images" / part, here.parent / "images"]
    return [str(here), *([own] if own else []), *(str(folder) for folder in near if folder.is_dir())]


def _check_parts(path: Path, parts: Sequence[str], splits: Mapping[str, int]) -> None:
    there = {name: many for name, many in splits.items() if name}
    for part in parts:
        if part not in there:
            has = f"It has: {listed(there)}." if there else "No row says what part it belongs to, in a column 'split'."
            raise DataError(f"has no part '{part}'.", path, advice=has)


def _refuse_parts(path: Path, splits: Mapping[str, int]) -> None:
    """What is learnt from is one of them."""
    there = {name: many for name, many in splits.items() if name}
    if len(there) > 1 and all(name.lower() in (*SPLITS, "restval") for name in there):
        told = ", ".join(f"{name} {many:,}" for name, many in there.items())
        first = next((name for name in there if name.startswith("train")), next(iter(there)))
        other = next(name for name in there if name != first)
        problem = f"holds parts of the data ({told}), which are named each by itself: '{path}#{first}'."
        raise DataError(problem, path, advice=f"Say --data '{path}#{first}' --valid '{path}#{other}'.")
