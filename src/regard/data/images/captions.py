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
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from regard.data.file_discovery import IMAGE_SUFFIXES, find_subfolder
from regard.data.file_samples import COLUMN_ALIASES, SPLIT_FOLDERS, EmbeddedFile, cell_value, resolve_file
from regard.data.images.labeled import IMAGE, ImageSample
from regard.data.memory_tables import is_memory_table, table_folders
from regard.data.reader import Reader, file_contents, file_key
from regard.data.text import tables
from regard.data.text.files import Columns, existing_file
from regard.data.text.formats import ALL_TABLE_SUFFIXES, Row, file_format, find_format
from regard.data.text.own_columns import read_own_rows
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
CAPTION_FILE_STEMS = ("captions", "metadata")  # Names of the caption file in a folder of images, without extension.
REQUIRED_COLUMNS = ("image", "captions")  # Required columns of training data; inputs need only the image.

_SPLIT_SUFFIX = re.compile(r"(.+)#([\w+-]+)")
_CAPTION_NUMBER = re.compile(r"(.*\.\w+)#\d+")

_Group = tuple[int, int | None, str | EmbeddedFile, list[str]]
"""line, line for error messages (None in a JSON document), image and captions, merged from the rows read so far"""


@dataclass(frozen=True, slots=True)
class CaptionedImage(ImageSample):
    """An image with all captions; `line` is the line of the first caption, or a number in a JSON document."""

    captions: tuple[str, ...] = ()


def read_captions(entry: str, columns: Columns = None, inputs_only: bool = False) -> tables.Samples[CaptionedImage]:
    """Yield the captioned images of one file, in order of first occurrence. With `inputs_only`, captions are not read and may
    be missing."""
    tables.ColumnSpec(REQUIRED_COLUMNS, columns, ("split",))  # raises for an unknown column choice
    path, splits = find_caption_file(entry)
    required = ("image",) if inputs_only else REQUIRED_COLUMNS
    document = tables.read_json_document(path, ("images", "annotations")) if file_format(path) == ".json" else None
    if isinstance(document, dict):
        rows = _coco_rows(path, document, inputs_only)
    elif find_format(path).is_named:
        rows = tables.read_records(path, document, CAPTION_COLUMNS, required, columns)
    else:
        chosen = tables.find_columns(path, CAPTION_COLUMNS, required, columns, by_order=True)
        required = REQUIRED_COLUMNS if chosen is None else required
        chosen = chosen and {name: column for name, column in chosen.items() if name in (*required, "split")}
        rows = tables.iterate_rows(str(path), required, chosen, optional=("split",))
    return tables.drop_trailing_blanks(_group_by_image(path, rows, splits, inputs_only))


def parse_splits(entry: str) -> tuple[str, tuple[str, ...]]:
    """Path and selected splits of an entry FILE#SPLIT+SPLIT; no splits: all rows."""
    match = None if os.path.exists(os.path.expanduser(entry)) else _SPLIT_SUFFIX.fullmatch(entry)
    return (match[1], tuple(filter(None, match[2].split("+")))) if match else (entry, ())


def find_caption_file(entry: str) -> tuple[Path, tuple[str, ...]]:
    """Path of the caption file, and the selected splits."""
    name, splits = parse_splits(entry)
    folder = Path(os.path.expanduser(name))
    if not folder.is_dir():
        return existing_file(name), splits
    files = [file for file in sorted(folder.iterdir()) if file_format(file) in ALL_TABLE_SUFFIXES and file.is_file()]
    for stem in CAPTION_FILE_STEMS:
        candidates = [file for file in files if file.name.lower().startswith(f"{stem}.")]
        if len(candidates) == 1:
            return candidates[0], splits
        files = candidates or files
    names = f"Found: {tables.format_list(file.name for file in files)}."
    if not files:
        names = f"No file has one of the extensions {', '.join(ALL_TABLE_SUFFIXES)}."
    problem = "expected one caption file in this folder, such as captions.jsonl."
    raise DataError(problem, folder, advice=f"{names} Pass the caption file by name.")


def _own_rows(entry: str, columns: Columns) -> Iterator[Row]:
    """Rows of a caption file; for a COCO document, the values of its images without nested values."""
    path, _ = find_caption_file(entry)
    document = tables.read_json_document(path, ("images", "annotations")) if file_format(path) == ".json" else None
    if isinstance(document, dict):
        document = [
            {name: value for name, value in image.items() if not isinstance(value, dict | list)}
            for image in document.get("images", [])
        ]
    return read_own_rows(str(path)) if document is None else enumerate(document, start=1)


# -- files -> rows


def _coco_rows(path: Path, document: Mapping[str, Any], inputs_only: bool) -> Iterator[Row]:
    """Yield numbered captions in annotation order, then images without annotations; for inputs, all images. Invalid images
    and annotations are errors."""
    form = '{"images": [{"id": 1, "file_name": "a.jpg"}], "annotations": [{"image_id": 1, "caption": "…"}]}'
    hint = f"Expected COCO format: {form}."
    images, annotations = document.get("images"), document.get("annotations", [])
    if not isinstance(images, list) or not isinstance(annotations, list):
        keys = tables.format_list(document)
        raise DataError(f"missing or invalid list 'images' or 'annotations' (keys: {keys}).", path, advice=hint)
    annotations = [] if inputs_only else annotations
    images_by_id: dict[Any, dict[str, Any]] = {}
    captioned: set[Any] = set()
    for number, image in enumerate(images, start=1):
        columns = (
            tables.match_columns(image, {"name": ("file_name", "filename")}, None) if isinstance(image, dict) else {}
        )
        name = image[columns["name"]] if columns else None
        if not isinstance(name, str):
            yield number, DataError(f"image {number} has no file_name.", path, advice=hint)
            continue
        key = image.get("id", image.get("imgid", number))
        if not isinstance(key, str | int | float) or key in images_by_id:
            problem = f"image {number} has an invalid or duplicate id ({key!r:.40})."
            yield number, DataError(problem, path, advice=hint)
            continue
        row = {"image": os.path.join(str(image.get("filepath") or ""), name), "split": image.get("split", "")}
        images_by_id[key] = {**row, "captions": image.get("sentences", "")}
    for number, annotation in enumerate(annotations, start=1):
        key = annotation.get("image_id") if isinstance(annotation, dict) else None
        if not isinstance(key, str | int | float) or key not in images_by_id or "caption" not in annotation:
            problem = f"annotation {number} has no caption or an unknown image_id ({key!r:.40})."
            yield number, DataError(problem, path, advice=hint)
            continue
        captioned.add(key)
        yield number, {**images_by_id[key], "captions": annotation["caption"], "whole": True}
    for number, (key, row) in enumerate(images_by_id.items(), start=len(annotations) + 1):
        if key not in captioned:
            yield number, {**row, "whole": True}


# -- rows -> samples


def _group_by_image(
    path: Path, rows: Iterator[Row], selected: Sequence[str], inputs_only: bool
) -> tables.Samples[CaptionedImage]:
    """Merge the captions of each image. Embedded images are yielded during reading, images with paths after all rows,
    because later rows may have more captions of an image."""
    # folders with the images; in COCO, annotations/captions_val2017.json refers to val2017
    own, split = table_folders(str(path)), path.stem.rpartition("_")[2]
    parent, above = Path(own[-1]), Path(own[-1]).parent
    siblings = (parent / split, above / split, above / "images" / split, above / "images")
    subfolder = find_subfolder(str(parent), IMAGE.folders)
    folders = [*own, *filter(None, [subfolder]), *(str(folder) for folder in siblings if folder.is_dir())]
    counts = Counter[str]()
    order: list[tables.SkippedRow | _Group] = []
    by_path: dict[str, _Group] = {}
    embedded: _Group | None = None
    rows_stay = inputs_only and is_memory_table(path)  # one prediction per row

    def make_sample(
        line: int, error_line: int | None, image: str | EmbeddedFile, captions: list[str]
    ) -> CaptionedImage:
        source, content = resolve_file(IMAGE, str(path), error_line, image, folders=folders)
        return CaptionedImage(source, path=str(path), line=line, content=content, captions=tuple(captions))

    for line, parsed in tables.convert_rows(rows, partial(_parse_row, path, inputs_only)):
        if isinstance(parsed, DataError):
            yield parsed
            continue
        image, captions, missing, split, error_line = parsed
        counts[split] += bool(image)
        if selected and split not in selected:
            continue
        if missing is not None:
            order.append(tables.SkippedRow(str(path), line, missing))
        if not captions or not image:
            continue
        group = (line, error_line, image, captions)
        if isinstance(image, str):
            if rows_stay or by_path.setdefault(image, group) is group:
                order.append(group)
            else:
                by_path[image][-1].extend(captions)
        elif embedded is not None and embedded[2] == image:
            embedded[-1].extend(captions)
        else:
            if embedded is not None:
                yield make_sample(*embedded)
            embedded = group
    _check_splits(path, selected, {name: count for name, count in counts.items() if name}, inputs_only)
    if embedded is not None:
        yield make_sample(*embedded)
    for item in order:
        try:
            yield item if isinstance(item, tables.SkippedRow) else make_sample(*item)
        except DataError as error:
            yield error


def _parse_row(
    path: Path, inputs_only: bool, line: int, row: dict[str, Any]
) -> tuple[str | EmbeddedFile, list[str], str | None, str, int | None]:
    """Image, non-empty captions, the missing part if the image or a caption is missing (empty for an empty row), split,
    and line for error messages."""
    error_line = None if row.get("whole") else line
    split = str(row.get("split") or "")
    image = cell_value(path, line, row.get("image"), "image")
    if isinstance(image, str):
        numbered = _CAPTION_NUMBER.fullmatch(image)
        image = numbered[1] if numbered else image
    value = "?" if inputs_only else row.get("captions")
    items = value if isinstance(value, list) else [value]
    items = [item.get("raw", item.get("caption")) if isinstance(item, dict) else item for item in items]
    read_text = partial(tables.text_value, path, error_line or line, "captions", allow_numbers=False, allow_lists=False)
    captions = [" ".join(read_text(item).split()) for item in items]
    nonempty = [text for text in captions if text]
    if not image:
        missing: str | None = f"missing image for: {nonempty[0][:60]}" if nonempty else ""
    elif nonempty and len(nonempty) == len(captions):
        missing = None
    else:
        name = image if isinstance(image, str) else image.name or f"row {line}"
        missing = f"missing caption for: {name[:60]}"
    return image, nonempty, missing, split, error_line


def _check_splits(path: Path, selected: Sequence[str], counts: Mapping[str, int], inputs_only: bool) -> None:
    """Raise `DataError` if the file lacks a selected split, or if it has several splits and training selects none."""
    for split in selected:
        if split not in counts:
            available = f"Available splits: {tables.format_list(counts)}."
            advice = available if counts else "No row has a value in the column 'split'."
            raise DataError(f"unknown split '{split}'.", path, advice=advice)
    known = all(name.lower() in (*SPLIT_FOLDERS, "restval") for name in counts)
    if not selected and not inputs_only and len(counts) > 1 and known:
        listed = ", ".join(f"{name} {count:,}" for name, count in counts.items())
        first = next((name for name in counts if name.startswith("train")), next(iter(counts)))
        other = next(name for name in counts if name != first)
        advice = f"Select one split for each option: --data '{path}#{first}' --valid '{path}#{other}'."
        raise DataError(f"the file contains several splits ({listed}).", path, advice=advice)


CAPTIONED = Reader(
    unit="images",
    columns=("image", "captions"),
    sample_type=CaptionedImage,
    samples=partial(tables.iterate_all, read_captions, "captions", ADVICE),
    inputs=partial(read_captions, inputs_only=True),
    own_rows=_own_rows,
    split_key=file_key,
    contents=lambda sample: (*file_contents(sample), *sample.captions),
    texts=lambda sample: sample.captions,
    suffixes=IMAGE_SUFFIXES,
    table_suffixes=ALL_TABLE_SUFFIXES,
    file_paths=lambda entry: (parse_splits(entry)[0],),
)
