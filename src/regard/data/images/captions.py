"""Images with captions: JSONL, COCO JSON, tables and Parquet.

| entry                 | content                                                                                   |
|-----------------------|-------------------------------------------------------------------------------------------|
| captions.jsonl        | one object per line: {"image": "a.jpg", "captions": ["…", "…"]}, or "caption": "…"        |
| captions.json         | COCO (images, annotations), Karpathy split (images with sentences), or a list of objects  |
| captions.csv, .tsv    | columns image and caption; rows of one image are merged, also a.jpg#0, a.jpg#1 (Flickr)   |
| captions.parquet      | columns as above; images as paths or bytes                                                |
| a folder              | folder with one of these files, named captions or metadata                                |
| FILE#train            | rows with `split` train; FILE#train+restval selects two splits                            |

Paths are relative to the folder of the file, a subfolder `images`, or the image folder of COCO. Images are not decoded.
Whitespace in captions is normalized to single spaces.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.data.file_discovery import find_subfolder
from regard.data.images.labeled import IMAGE_FOLDERS, SPLIT_FOLDERS, ImageSample, resolve_file
from regard.data.images.tables import COLUMN_ALIASES, EmbeddedFile, cell_value
from regard.data.text.files import ErrorHandler, existing_file, raise_error
from regard.data.text.formats import ALL_TABLE_SUFFIXES, file_format, has_column_names, read_header
from regard.data.text.tables import (
    ColumnSpec,
    SkippedRow,
    drop_trailing_blanks,
    format_list,
    iterate_all,
    iterate_rows,
    match_columns,
    read_json_document,
    read_records,
    select_columns,
    text_value,
    uses_positions,
)
from regard.errors import DataError

CAPTION_COLUMNS: dict[str, tuple[str, ...]] = {
    "image": COLUMN_ALIASES["image"],
    "captions": ("captions", "caption", "sentences", "sentence", "text", "description"),
    "split": ("split",),
}
"""Usual column names, in order of preference."""
ADVICE = (
    'Each row needs an image and a caption: one object {"image": "a.jpg", "captions": ["…"]} per line, '
    "or a table with the columns image and caption."
)
CAPTION_FILE_STEMS = ("captions", "metadata")
"""Names of the caption file in a folder of images, without extension."""
CAPTION_SUFFIXES = ALL_TABLE_SUFFIXES

REQUIRED_COLUMNS = ("image", "captions")
"""Required columns of training data; inputs need only the image."""

_SPLIT_SUFFIX = re.compile(r"(.+)#([\w+-]+)")
_CAPTION_NUMBER = re.compile(r"(.*\.\w+)#\d+")

ColumnNames = tuple[str, ...]
RawRow = dict[str, Any]
RowIterator = Iterator[tuple[int, RawRow]]
CaptionIterator = Iterator["CaptionedImage | SkippedRow"]


@dataclass(frozen=True, slots=True)
class CaptionedImage(ImageSample):
    """An image with all captions; `line` is the line of the first caption, or a number in a JSON document."""

    captions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "captions", tuple(self.captions))  # a list if loaded from JSON


@dataclass
class _ImageCaptions:
    """Captions of one image, merged from the rows read so far."""

    image: str | EmbeddedFile
    line: int
    error_line: int | None
    """`line` for messages; None in a JSON document"""
    captions: list[str]


def iterate_captions(data: Sequence[str], columns: Mapping[str, str] | None = None) -> CaptionIterator:
    """Yield the captioned images of all files in input order."""
    return iterate_all(data, lambda entry: read_captions(entry, columns), "captions", ADVICE)


def read_captions(
    entry: str, columns: Mapping[str, str] | None = None, on_error: ErrorHandler = raise_error
) -> CaptionIterator:
    """Yield the captioned images of one file, in order of first occurrence."""
    return _read_samples(entry, columns, on_error, REQUIRED_COLUMNS)


def read_uncaptioned(entry: str, columns: Mapping[str, str] | None, on_error: ErrorHandler) -> CaptionIterator:
    """Yield each image of a file once; captions are not read and may be missing."""
    return _read_samples(entry, columns, on_error, ("image",))


def _read_samples(
    entry: str, columns: Mapping[str, str] | None, complain: ErrorHandler, wanted: ColumnNames
) -> CaptionIterator:
    ColumnSpec(REQUIRED_COLUMNS, columns, ("split",))  # raises for an unknown column choice
    path, parts = find_caption_file(entry)
    rows = _read_rows(path, columns, complain, wanted)
    return drop_trailing_blanks(str(path), _group_by_image(path, rows, parts, complain, wanted))


def parse_splits(entry: str) -> tuple[str, tuple[str, ...]]:
    """Path and selected splits of an entry FILE#SPLIT+SPLIT; no splits: all rows."""
    said = None if os.path.exists(os.path.expanduser(entry)) else _SPLIT_SUFFIX.fullmatch(entry)
    return (said[1], tuple(filter(None, said[2].split("+")))) if said else (entry, ())


def find_caption_file(entry: str) -> tuple[Path, tuple[str, ...]]:
    """Path of the caption file, and the selected splits."""
    name, parts = parse_splits(entry)
    folder = Path(os.path.expanduser(name))
    if not folder.is_dir():
        return existing_file(name), parts
    files = [file for file in sorted(folder.iterdir()) if file_format(file) in CAPTION_SUFFIXES and file.is_file()]
    for stem in CAPTION_FILE_STEMS:
        found = [file for file in files if file.name.lower().startswith(f"{stem}.")]
        if len(found) == 1:
            return found[0], parts
        files = found or files
    found_names = f"Found: {format_list(file.name for file in files)}."
    if not files:
        found_names = f"No file has one of the extensions {', '.join(CAPTION_SUFFIXES)}."
    problem = "expected one caption file in this folder, such as captions.jsonl."
    raise DataError(problem, folder, advice=f"{found_names} Pass the caption file by name.")


# -- files -> rows


def _read_rows(
    path: Path, columns: Mapping[str, str] | None, complain: ErrorHandler, wanted: ColumnNames
) -> RowIterator:
    kind = file_format(path)
    whole = read_json_document(path, ("images", "annotations")) if kind == ".json" else None
    if isinstance(whole, dict):
        return _coco_rows(path, whole, complain, wanted)
    if isinstance(whole, list):
        return select_columns(path, enumerate(whole, start=1), CAPTION_COLUMNS, wanted, columns, complain)
    if has_column_names(path):
        return select_columns(path, read_records(path, complain), CAPTION_COLUMNS, wanted, columns, complain)
    return _table_rows(path, columns, complain, wanted)


def _coco_rows(path: Path, whole: Mapping[str, Any], complain: ErrorHandler, wanted: ColumnNames) -> RowIterator:
    """Yield numbered captions in annotation order, then images without annotations; for inputs, all images."""
    form = '{"images": [{"id": 1, "file_name": "a.jpg"}], "annotations": [{"image_id": 1, "caption": "…"}]}'
    hint = f"Expected COCO format: {form}."
    images, said = whole.get("images"), whole.get("annotations", [])
    if not isinstance(images, list) or not isinstance(said, list):
        raise DataError("missing or invalid list 'images' or 'annotations'.", path, advice=hint)
    said = said if wanted == REQUIRED_COLUMNS else []
    known: dict[Any, RawRow] = {}
    told: set[Any] = set()
    for number, image in enumerate(images, start=1):
        columns = match_columns(image, {"name": ("file_name", "filename")}, None) if isinstance(image, dict) else {}
        name = image[columns["name"]] if columns else None
        if not isinstance(name, str):
            complain("format", DataError(f"image {number} has no file_name.", path, advice=hint))
            continue
        key = image.get("id", image.get("imgid", number))
        if not isinstance(key, str | int | float) or key in known:
            problem = f"image {number} has an invalid or duplicate id ({key!r:.40})."
            complain("format", DataError(problem, path, advice=hint))
            continue
        row = {"image": os.path.join(str(image.get("filepath") or ""), name), "split": image.get("split", "")}
        known[key] = {**row, "captions": image.get("sentences", "")}
    for number, one in enumerate(said, start=1):
        key = one.get("image_id") if isinstance(one, dict) else None
        if not isinstance(key, str | int | float) or key not in known or "caption" not in one:
            problem = f"annotation {number} has no caption or an unknown image_id ({key!r:.40})."
            complain("format", DataError(problem, path, advice=hint))
            continue
        told.add(key)
        yield number, {**known[key], "captions": one["caption"], "whole": True}
    for number, (key, row) in enumerate(known.items(), start=len(said) + 1):
        if key not in told:
            yield number, {**row, "whole": True}


def _table_rows(
    path: Path, columns: Mapping[str, str] | None, complain: ErrorHandler, wanted: ColumnNames
) -> RowIterator:
    if file_format(path) not in CAPTION_SUFFIXES:
        return iterate_rows(str(path), wanted, columns, complain)  # raises with the supported file types
    names = read_header(path)
    chosen = match_columns(names, CAPTION_COLUMNS, columns)
    if not uses_positions(chosen, names):
        if not chosen and len(names) == len(REQUIRED_COLUMNS):
            wanted = REQUIRED_COLUMNS  # no header
        missing = [name for name in wanted if name not in chosen]
        if len(missing) == 1 or (missing and len(names) != 2):
            commas = (
                " If commas separate the columns, rename the file to .csv."
                if len(names) == 1 and "," in next(iter(names))
                else ""
            )
            advice = f"Pass --columns {missing[0]}=NAME (available: {format_list(names)}).{commas}"
            raise DataError(f"no column is named '{missing[0]}'.", path, 1, advice)
    chosen = {name: column for name, column in chosen.items() if name in (*wanted, "split")}
    return iterate_rows(str(path), wanted, chosen or None, complain, optional=("split",))


# -- rows -> samples


def _group_by_image(
    path: Path, rows: RowIterator, parts: Sequence[str], complain: ErrorHandler, wanted: ColumnNames
) -> Iterator[tuple[int, CaptionedImage | SkippedRow | None]]:
    """Merge the captions of each image. Embedded images are yielded during reading, images with paths after all rows,
    because later rows may have more captions of an image."""
    folders, splits, asked = _image_folders(path), dict[str, int](), wanted != REQUIRED_COLUMNS
    order: list[tuple[int, SkippedRow | _ImageCaptions | None]] = []
    known: dict[str, _ImageCaptions] = {}
    inside: _ImageCaptions | None = None
    for line, row in rows:
        where = None if row.get("whole") else line
        try:
            image, captions, blank = _parse_row(path, where, line, {**row, "captions": "?"} if asked else row)
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
        if isinstance(image, EmbeddedFile):
            if inside is not None and inside.image.content == image.content:  # type: ignore[union-attr]
                inside.captions += captions
                continue
            if inside is not None:
                yield inside.line, _make_sample(path, inside, folders)
            inside = _ImageCaptions(image, line, where, captions)
        elif image in known:
            known[image].captions += captions
        else:
            known[image] = _ImageCaptions(image, line, where, captions)
            order.append((line, known[image]))
    _check_splits(path, parts, splits)
    if not parts and not asked:
        _require_split(path, splits)
    if inside is not None:
        yield inside.line, _make_sample(path, inside, folders)
    for line, item in order:
        if not isinstance(item, _ImageCaptions):
            yield line, item
            continue
        try:
            yield line, _make_sample(path, item, folders)
        except DataError as error:
            complain("missing", error)


def _parse_row(
    path: Path, where: int | None, line: int, row: RawRow
) -> tuple[str | EmbeddedFile, list[str], SkippedRow | None]:
    """Image, non-empty captions, and a `SkippedRow` if the image or a caption is missing."""
    image = cell_value(path, line, row.get("image"), "image")
    if isinstance(image, str):
        numbered = _CAPTION_NUMBER.fullmatch(image)
        image = numbered[1] if numbered else image
    told = row.get("captions")
    several = told if isinstance(told, list) else [told]
    several = [one.get("raw", one.get("caption")) if isinstance(one, dict) else one for one in several]
    texts = [
        text_value(path, where or line, "captions", one, allow_numbers=False, allow_lists=False) for one in several
    ]
    captions = [" ".join(text.split()) for text in texts]
    kept = [text for text in captions if text]
    shown = image if isinstance(image, str) else image.name or f"row {line}"
    if not image:
        return "", kept, SkippedRow(str(path), line, f"missing image for: {kept[0][:60]}") if kept else None
    if kept and len(kept) == len(captions):
        return image, kept, None
    return image, kept, SkippedRow(str(path), line, f"missing caption for: {shown[:60]}")


def _make_sample(path: Path, told: _ImageCaptions, folders: Sequence[str]) -> CaptionedImage:
    source, content = resolve_file(str(path), told.error_line, told.image, "image", folders)
    return CaptionedImage(source, path=str(path), line=told.line, content=content, captions=tuple(told.captions))


def _image_folders(path: Path) -> list[str]:
    """Folders to search for images; in COCO, annotations/captions_val2017.json refers to val2017."""
    here, part = path.parent, path.stem.rpartition("_")[2]
    own = find_subfolder(str(here), IMAGE_FOLDERS)
    near = [here / part, here.parent / part, here.parent / "images" / part, here.parent / "images"]
    return [str(here), *([own] if own else []), *(str(folder) for folder in near if folder.is_dir())]


def _check_splits(path: Path, parts: Sequence[str], splits: Mapping[str, int]) -> None:
    there = {name: many for name, many in splits.items() if name}
    for part in parts:
        if part not in there:
            splits_found = (
                f"Available splits: {format_list(there)}." if there else "No row has a value in the column 'split'."
            )
            raise DataError(f"unknown split '{part}'.", path, advice=splits_found)


def _require_split(path: Path, splits: Mapping[str, int]) -> None:
    """Raise `DataError` if the file contains several splits, because training uses one split."""
    there = {name: many for name, many in splits.items() if name}
    if len(there) > 1 and all(name.lower() in (*SPLIT_FOLDERS, "restval") for name in there):
        told = ", ".join(f"{name} {many:,}" for name, many in there.items())
        first = next((name for name in there if name.startswith("train")), next(iter(there)))
        other = next(name for name in there if name != first)
        advice = f"Select one split for each option: --data '{path}#{first}' --valid '{path}#{other}'."
        raise DataError(f"the file contains several splits ({told}).", path, advice=advice)
