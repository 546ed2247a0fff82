"""Tables of the findings of `regard check`: id, severity, message and advice, one table per kind of data; and the detection of
damaged text: lost characters, wrong encodings, control characters and markup."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from regard.data.check.report import Severity

HIGH_FRACTION = 0.1
MIN_CLASS_SAMPLES = 5
MAX_ANSWER_WORDS = 30
MIN_LINE_LENGTH = 40  # minimum number of letters and spaces of a line to compare: short lines often repeat by chance
MAX_UNBROKEN_LENGTH = 100_000  # characters without a space above which a section is hardly text
MAX_LENGTH_RATIO = 3.0  # factor between the length ratio of a pair and the median ratio, in words and in characters
MAX_CAPTION_RATIO = 4  # caption length as a multiple of the median, in words
MAX_SCALE_RATIO = 30.0  # ratio to the median size above which a point cloud probably has another unit

LEAK_ADVICE = "Remove the duplicates from one of the two sets; otherwise, validation scores are too high."
TEXT_LEAK_ADVICE = "Remove the duplicates from one of the two sets; otherwise, the validation loss is too low."
NEAR_LEAK_ADVICE = "Consider removing the duplicates from the training data."
SPLIT_ADVICE = "Keep all questions about an article in one set, so that scores measure performance on new texts."


class Spec(NamedTuple):
    """Row of a table of findings. The key is the finding id; a colon in the key separates variants of one id."""

    severity: Severity
    message: str  # template; `{unit}` is the plural noun for the samples
    advice: str = ""
    frequent: Severity | None = None  # severity above `high`
    drops: bool = False  # whether training rejects or skips the whole row
    per: str = "rows"  # population for the fraction; the fraction of findings per "files" is 0
    high: float = HIGH_FRACTION  # fraction of the population


FindingTable = Mapping[str, Spec]


def select(table: FindingTable, *keys: str) -> dict[str, Spec]:
    return {key: table[key] for key in keys}


# fmt: off
FILES: FindingTable = {
    "unreadable": Spec("error", "files with a read error", "Training would stop at the same error.", per="files"),
    "encoding": Spec("error", "lines with invalid UTF-8",
        "Convert the file from its encoding to UTF-8 with iconv, or remove the lines.", drops=True),
    "format": Spec("error", "invalid rows", "Fix or remove the rows: training rejects the file.", drops=True),
    "header": Spec("error", "files with a probable header", "Name the columns with --columns, or remove the header.",
        per="files"),
}
QUALITY: FindingTable = {
    "mojibake": Spec("warning", "rows with UTF-8 decoded as another encoding, such as Ã¼ for ü",
        "Recreate the file, or repair the text, for example with the Python package ftfy.", "error"),
    "replacement_character": Spec("warning", "rows with U+FFFD, which replaces lost characters",
        "Recreate the file from its source.", "error"),
    "control_character": Spec("warning", "rows with control characters",
        "Remove the control characters, unless intended."),
    "markup": Spec("note", "rows with HTML entities or tags, such as &amp;",
        "Unescape the entities, unless the text is tokenizer output to be detokenized later."),
}
COUNTS: FindingTable = {
    "few:none": Spec("error", "no usable {unit}", "Pass files with {unit}. Skipped files and rows are listed above."),
    "few:split": Spec("error", "{unit} with identical content, so no validation split is possible",
        "Add data, or pass separate validation data with --valid."),
    "few:small": Spec("warning", "small dataset, number of {unit}",
        "Aim for several hundred {unit}, better several thousand."),
    "duplicates": Spec("warning", "duplicate {unit}", "Remove the duplicates, unless a higher weight is intended."),
    "leak": Spec("error", "{unit} also present in the training data", LEAK_ADVICE),
}
CLASSES: FindingTable = {
    "classes": Spec("note", "classes ({classes})"),
    "multiple_labels": Spec("note", "labels, {mean:.2f} per row on average ({unlabeled:,} rows without a label)"),
    "single_class": Spec("error", "too few classes", "Classification needs at least two classes."),
    "too_many_classes": Spec("error", "too many classes (more than half the number of samples)",
        "Is the label column correct? Select the label column with --columns label=NAME."),
    "imbalance": Spec("warning", "class imbalance, samples of class '{name}'",
        "Predicting only '{name}' scores {percent:.0f} % accuracy. Check macro-F1."),
    "rare": Spec("warning", f"classes with fewer than {MIN_CLASS_SAMPLES} samples ({{classes}})",
        "Add samples, or merge rare classes with other classes."),
    "unseen_classes": Spec("error", "classes absent from the training data ({classes})",
        "Add samples of these classes to the training data, or remove these classes from the validation data."),
    "conflicting_labels": Spec("warning", "identical {unit} with different labels",
        "Correct the wrong labels, or merge overlapping classes.", "error"),
}
PAIRS: FindingTable = {
    **FILES,
    "line_count_mismatch": Spec("error", "pairs of parallel files with different numbers of lines",
        "Find the first misaligned line. Lines after the end of the shorter file were not checked.", per="files"),
    "empty": Spec("warning", "rows with an empty side", "Training skips these rows.", "error", drops=True),
    **QUALITY,
    "identical_sides": Spec("note", "targets identical to the source",
        "Identical names and numbers are normal; identical sentences train the model to copy instead of translate.",
        "warning", high=0.01),
    **COUNTS,
    "few:none": Spec("error", "no usable pairs", "Each row needs two texts."),
    "few:split": Spec("error", "pairs with one common source, so no validation split is possible",
        "Add data, or pass separate validation data with --valid."),
    "few:small": Spec("warning", "small dataset, number of pairs",
        "The model will memorize the pairs. Aim for several thousand pairs or more."),
    "multiple_targets": Spec("note", "sources with several different targets",
        "Several targets per source are normal in some data; the model is trained on all targets."),
    "long": Spec("warning", "pairs with a side longer than {limit}",
        "Training skips these pairs. Split the texts, or raise data.max_length."),
    "length_ratio": Spec("warning",
        f"pairs with a length mismatch (source/target ratio more than {MAX_LENGTH_RATIO:g}× off the median)",
        "Check whether the pairs are aligned."),
    "swapped_file": Spec("error", "pairs in a file with source and target swapped relative to {reference}",
        "Swap the columns of the file, or name the columns with --columns."),
    "indistinguishable_languages": Spec("note",
        "source and target language cannot be distinguished by characters, so swapped rows are not detected"),
    "swapped": Spec("warning", "rows with source and target probably swapped", "Swap the sides, or remove the rows.",
        "error"),
    "same_language": Spec("warning", "rows with probably the same language on both sides",
        "Check whether the rows are translated."),
    "leak_source": Spec("warning", "sources also present in the training data, with another target", NEAR_LEAK_ADVICE),
    "leak_near_duplicate": Spec("warning", "sources also present in the training data, ignoring case and punctuation",
        NEAR_LEAK_ADVICE),
}
_TRANSLATION_ONLY = ("identical_sides", "multiple_targets", "length_ratio", "swapped_file", "indistinguishable_languages",
    "swapped", "same_language")
CONTRASTIVE_PAIRS: FindingTable = {
    **select(PAIRS, *(key for key in PAIRS if key not in _TRANSLATION_ONLY)),
    "identical_sides": Spec("warning", "pairs of two identical texts",
        "Remove the pairs: identical texts give no training signal.", "error"),
    "long": Spec("warning", "pairs with a text longer than {limit}",
        "Texts are truncated at the end, to data.max_length and to the model's maximum length. "
        "Split the texts, or raise data.max_length."),
    "leak_anchor": Spec("warning", "first texts also present in the training data", NEAR_LEAK_ADVICE),
    "leak_near_duplicate": Spec("warning",
        "first texts also present in the training data, ignoring case and punctuation", NEAR_LEAK_ADVICE),
}
QUESTIONS: FindingTable = {
    **select(PAIRS, *(key for key in PAIRS if key not in _TRANSLATION_ONLY or key == "multiple_targets")),
    "long:generated": Spec("warning", "questions with a side longer than data.max_length={max_length:,} tokens",
        "Training skips these questions. Generate shorter questions, or raise data.max_length."),
    "leak:generated": Spec("error", "questions also present in the training data",
        "Use the training seed and part=valid for validation: splits with the same seed do not overlap."),
}
TEXT: FindingTable = {
    "unreadable": FILES["unreadable"],
    "format": FILES["format"],
    "empty": Spec("warning", "empty documents", "Training skips these documents.", "error", drops=True),
    "encoding": FILES["encoding"]._replace(drops=False, per="lines"),
    **{
        key: spec._replace(message=spec.message.replace("rows with", "lines with"), per="lines")
        for key, spec in QUALITY.items()
    },
    "markup": Spec("note", "lines with HTML entities or tags, such as &amp;",
        "Unescape the entities, unless the model should generate HTML.", per="lines"),
    "no_whitespace": Spec("warning", f"sections of more than {MAX_UNBROKEN_LENGTH:,} characters without a space",
        "Check whether these sections are text: encoded images and programs look similar.", per="samples"),
    "few:none": Spec("error", "no text found", "A document must contain more than whitespace."),
    "few:split": Spec("error", "characters in a single passage, so no validation split is possible",
        "Add text, or pass separate validation data with --valid."),
    "few:small": Spec("warning", "small dataset, number of characters",
        "The model will memorize the text. Aim for several million characters or more."),
    "duplicates": COUNTS["duplicates"],
    "duplicate_lines": Spec("note",
        f"duplicate lines of at least {MIN_LINE_LENGTH} characters{{sampling}}, with percentage of all text",
        "Consider removing repeated headers and notices.", "warning"),
    "leak": Spec("error", "documents also present in the training data", TEXT_LEAK_ADVICE),
    "leak_near_duplicate": Spec("warning",
        "documents also present in the training data, ignoring case, whitespace and punctuation", TEXT_LEAK_ADVICE),
    "leak_lines": Spec("warning",
        f"lines of at least {MIN_LINE_LENGTH} characters also present in the training data{{sampling}}, "
        "with percentage of all text",
        "A few identical lines are coincidence. If there are many, validate on text outside the training data.",
        "error"),
}
DOCUMENTS: FindingTable = {
    **TEXT,
    "single_document": Spec("warning", "too few documents for next-sentence prediction (BERT), at least two required",
        "Save each document in a separate file, or in a separate row of JSONL or Parquet; "
        "or train with --set model.nsp=false."),
}
LABELED: FindingTable = {
    **FILES,
    "empty": Spec("warning", "rows with an empty field", "Training skips these rows.", "error", drops=True),
    **QUALITY,
    **COUNTS,
    **CLASSES,
    "long": Spec("warning", "{unit} longer than {limit}",
        "Training truncates long {unit} at the end. If the model's context is longer, raise data.max_length."),
    "leak": Spec("error", "rows also present in the training data", LEAK_ADVICE),
    "leak_conflicting_labels": Spec("warning", "rows also present in the training data, with another label",
        "Check which label is correct."),
    "leak_near_duplicate": Spec("warning", "rows also present in the training data, ignoring case and punctuation",
        NEAR_LEAK_ADVICE),
}
CHOICES: FindingTable = {
    **select(LABELED, *(key for key in LABELED if key != "unseen_classes")),
    "correct_choice_positions": Spec("note", "positions of the correct choice, counted from 0 ({classes})"),
    "imbalance": Spec("warning",
        "the correct choice is unevenly distributed: questions with the correct choice at position '{name}'",
        "Predicting only '{name}' scores {percent:.0f} % accuracy."),
}
TAGS: FindingTable = {
    **FILES,
    "empty": Spec("warning", "rows without words or without tags", "Training skips these rows.", "error", drops=True),
    **select(QUALITY, "mojibake", "replacement_character", "control_character"),
    **COUNTS,
    "tag_scheme:entities": Spec("note", "tags use the {scheme} scheme"),
    "tag_scheme:words": Spec("note", "tags are classes of single words"),
    "tag_scheme:entities_ambiguous": Spec("warning", "tags use the {scheme} scheme, but {ambiguity}",
        "Entities are parsed the same way in every scheme."),
    "tag_scheme:words_ambiguous": Spec("warning", "tags are classes of single words, but {ambiguity}",
        "Check whether the tags should mark entities."),
    "invalid_tags": Spec("warning", "sentences with invalid {scheme} tags ({num_invalid:,} tags)",
        "Invalid tags are repaired: a tag without an entity to continue starts a new entity.", "error"),
    "outside_words": Spec("note", "words tagged O (outside of entities)"),
    "imbalance:outside": Spec("warning", "class imbalance, words inside of entities",
        "A model predicting only O is nearly always correct. Check for untagged entities."),
    "no_entities": Spec("error", "no entities", "Training needs at least one entity."),
    "single_class": Spec("error", "only one tag", "Training needs at least two different tags."),
    "classes": Spec("note", "{types} ({classes})"),
    "too_many_classes": Spec("error", "too many {types} (more than half the number of {counted})",
        "Is the tag column correct? Select the tag column with --columns tags=NAME, or by index from 0."),
    "imbalance": Spec("warning", "class imbalance, {counted} {relation} '{name}'",
        "Check the score of each class: the overall score hides rare classes."),
    "rare": Spec("warning", f"{{types}} with fewer than {MIN_CLASS_SAMPLES} {{counted}} ({{classes}})",
        "Add {counted}, or merge rare {types} with other {types}."),
    "conflicting_labels": Spec("warning", "identical {unit} with different tags",
        "Correct the wrong labels, or merge overlapping classes.", "error"),
    "long": Spec("warning", "sentences longer than {limit}",
        "Is a blank line between two sentences missing? Long sentences are split into overlapping windows, "
        "unless data.max_length is raised."),
    "unseen_classes": Spec("error", "{types} absent from the training data ({classes})",
        "Add sentences with these {types} to the training data, or remove these {types} from the validation data."),
    "leak": Spec("warning", "sentences also present in the training data",
        "Consider removing all but the short duplicates from the training data.", "error"),
    "leak_conflicting_labels": Spec("warning", "sentences also present in the training data, with different tags",
        "Check which tags are correct."),
    "leak_near_duplicate": Spec("warning", "sentences also present in the training data, ignoring case and punctuation",
        NEAR_LEAK_ADVICE),
}
QA: FindingTable = {
    **FILES,
    "answer_not_in_context": Spec("error", "questions with an answer missing from the context",
        "Answers must be spans of the context. Fix or remove the questions: training rejects the file.", drops=True),
    "empty": Spec("warning", "rows without a question or a context", "Training skips these rows.", "error", drops=True),
    **QUALITY,
    **COUNTS,
    "wrong_answer_offsets": Spec("warning", "questions with wrong answer offsets ({num_answers:,} answers)",
        "The nearest occurrence of the answer is used. Offsets must count characters (not bytes) from 0 "
        "in the unmodified context.", "error"),
    "unanswerable": Spec("note", "questions without an answer"),
    "no_answers": Spec("error", "no question has an answer",
        "Is the answer column correct? Select the answer column with --columns answer=NAME."),
    "imbalance": Spec("warning", "imbalance, questions {relation} an answer",
        "Check the scores of answerable and unanswerable questions separately: the overall score hides the smaller group."),
    "conflicting_labels": Spec("warning", "identical {unit} with different answers",
        "Remove the wrong answers, or list all answers under one question.", "error"),
    "long": Spec("note", "contexts longer than {limit}",
        "Long contexts are split into overlapping windows. If the model's context is longer, raise data.max_length."),
    "long_answer": Spec("warning", f"questions with an answer of more than {MAX_ANSWER_WORDS} words",
        "Check that the answers are not whole sentences."),
    "leak_question": Spec("error", "questions also present in the training data, with different answers", LEAK_ADVICE),
    "leak_context": Spec("warning", "questions about contexts also present in the training data", SPLIT_ADVICE),
    "leak_article": Spec("note", "questions about articles also present in the training data", SPLIT_ADVICE),
}
FILE_SAMPLES: FindingTable = {
    **FILES,
    "missing": Spec("error", "rows with a missing file", "Fix the paths: training rejects the table.", drops=True),
    **COUNTS,
    **CLASSES,
    "leak_conflicting_labels": Spec("warning", "{unit} also present in the training data, with different labels",
        "Check which labels are correct."),
}
PARTS: FindingTable = {
    "single_class": Spec("error", "too few classes in the {parts}", "Segmentation needs at least two classes."),
    "classes_without_samples": Spec("warning", "classes without samples: no {part} contains {classes}",
        "These classes cannot be {used}."),
    "void": Spec("note", "{void}: {percent:.1f} %"),
    "void:large": Spec("warning", "{void}: {percent:.1f} %", "Training ignores this part of the data."),
}
IMAGES: FindingTable = {
    **FILE_SAMPLES,
    "unmatched_files": Spec("error", "files without a matching image, mask or depth map",
        "Add the missing files, or remove the unmatched files: training stops at unmatched files.", drops=True),
    "decode_error": Spec("error", "files with a decoding error",
        "Training stops at these files.", drops=True),
    "empty": Spec("warning", "images or rows with missing data", "Training skips these images and rows.", "error",
        drops=True),
    "skipped": Spec("note", "hidden files, and files without an image extension", "Training ignores these files."),
    "mask_size_mismatch": Spec("error", "masks with a different size than the image",
        "Recreate the masks from the image."),
    "unknown_values": Spec("error", "masks with values not assigned to a class",
        "Add the values to classes.txt next to the masks, for example as void."),
    "depth_aspect_ratio_mismatch": Spec("error", "depth maps with a different aspect ratio than the image",
        "The depth maps would be misaligned."),
    "depth_size_mismatch": Spec("note", "depth maps with a different size than the image",
        "Image and depth map are resized to the model's input size."),
    "empty_depth_map": Spec("warning", "depth maps without a known depth",
        "Remove the depth maps: training ignores unknown pixels.", "error"),
    "small_image": Spec("warning", "images with a side below 8 pixels", "Remove the images: the resolution is too low.",
        "error"),
    "aspect_ratio": Spec("warning", "images with an aspect ratio above 10:1", "Cropping keeps only a small part."),
    "large_image": Spec("warning", "images above 25 megapixels",
        "Decoding is slow in every epoch: downscale the files."),
    "single_color": Spec("warning", "images with a single color", "Check whether the files are damaged.", "error"),
    "animated": Spec("note", "animated images", "Only the first frame is used."),
    "exif_rotation": Spec("note", "images with EXIF rotation", "The images are rotated automatically."),
    "transparent": Spec("note", "images with transparency", "The images are composited on white."),
    "color_modes": Spec("note", "color modes ({modes})"),
}
UNLABELED_IMAGES: FindingTable = select(IMAGES, *(key for key in IMAGES if key != "classes"))
MASKS: FindingTable = {
    **IMAGES,
    **PARTS,
    "too_many_classes": Spec("error", "different mask values, too many for classes",
        "Are these files masks, and not photographs or depth maps?"),
    "unseen_classes": Spec("error", "mask values absent from the training data (pixels: {classes})",
        "Add images with these values to the training data, or name the classes in classes.txt."),
}
DEPTH: FindingTable = {
    **UNLABELED_IMAGES,
    "known_depth": Spec("note", "pixels with known depth: {percent:.1f} %"),
    "known_depth:low": Spec("warning", "pixels with known depth: {percent:.1f} %",
        "Training ignores all other pixels."),
    "depth_range": Spec("note", "depths from {near:.3g} to {far:.3g} meters, median {median:.3g}"),
    "depth_range:odd": Spec("warning", "depths from {near:.3g} to {far:.3g} meters, median {median:.3g}",
        "Is the unit correct? Integers are read as millimeters, floats as meters. Set data.depth_scale."),
}
CAPTIONS: FindingTable = {
    **select(IMAGES, "unreadable", "encoding", "format", "header", "missing", "decode_error"),
    "empty": Spec("warning", "rows without an image, or with an empty caption", "Training skips these rows.", "error",
        drops=True),
    **select(
        IMAGES, "small_image", "aspect_ratio", "large_image", "single_color", "animated", "exif_rotation",
        "transparent",
    ),
    **QUALITY,
    "repeated_caption": Spec("warning", "images with the same caption twice",
        "Remove the duplicate, unless a higher weight is intended."),
    "color_modes": IMAGES["color_modes"],
    **COUNTS,
    "repeated_image": Spec("warning", "images repeated under another name, with other captions",
        "Collect all captions under one name: the validation split is made by image."),
    "captions_per_image": Spec("note", "captions (number of images with {numbers})"),
    "vocabulary": Spec("note", "different words ({rare:,} of the words occur once)"),
    "shared_caption": Spec("note", "captions shared by several images, ignoring case and punctuation",
        "Shared captions are not specific to an image. Short captions are often shared, long captions rarely.",
        "warning"),
    "single_word": Spec("warning", "captions of one word",
        "Captions should be sentences. If the words are class names, use 'regard train classify'.", "error"),
    "length_outliers": Spec("warning",
        f"captions longer than {MAX_CAPTION_RATIO} times the median ({{median:.0f}} words)",
        "Check whether the captions are correct."),
    "long": Spec("warning", "captions longer than {limit}",
        "Training skips these captions, and captions longer than model.max_length."),
    "leak:captions": Spec("error", "images also present in the training data, with other captions", LEAK_ADVICE),
    "leak_caption": Spec("note", "captions also present in the training data, ignoring case and punctuation",
        "Short captions may repeat by chance. Are validation images modified copies of training images?", "warning"),
}
CLOUDS: FindingTable = {
    **FILE_SAMPLES,
    "decode_error": Spec("error", "unreadable files", "Training stops at these files.",
        drops=True),
    "unlabeled": Spec("error", "point clouds without point labels",
        "Select the label column with --columns label=NAME, or remove the files."),
    "unknown_values": Spec("error", "point clouds with labels not assigned to a class",
        "Add the labels to classes.txt next to the point clouds, for example as void."),
    "empty": Spec("warning", "point clouds or rows with missing data", "Training skips these files and rows.", "error",
        drops=True),
    "skipped": Spec("note", "hidden files, and files without a point cloud extension", "Training ignores these files."),
    "few_points": Spec("warning", "point clouds with fewer than 64 points",
        "Remove the files: few points do not show a shape.", "error"),
    "many_points": Spec("warning", "point clouds with more than 5 million points",
        "Reading takes seconds per file in every epoch: downsample the files once."),
    "non_finite": Spec("warning", "point clouds with NaN or infinite coordinates", "Training ignores these points."),
    "outliers": Spec("warning", "point clouds with outliers",
        "Check whether the outliers are intended: with data.point_norm=unit_sphere, outliers shrink all other points."),
    "single_location": Spec("warning", "point clouds with all points at one position",
        "Remove the files: a position has no shape.", "error"),
    "collinear": Spec("warning", "point clouds with all points on one line", "Are the coordinate columns correct?",
        "error"),
    "coplanar": Spec("warning", "point clouds with all points in one plane", "Are the coordinate columns correct?"),
    "scale_outliers": Spec("warning",
        f"point clouds {MAX_SCALE_RATIO:g} times larger or smaller than the median size {{median:.4g}}",
        "Do all files use the same unit, such as meters or millimeters? "
        "data.point_norm=unit_sphere scales all point clouds to one size."),
    "partial_colors": Spec("warning", "only some point clouds have colors",
        "For a model with colors as input, the colors of all other point clouds are zero (black)."),
    "partial_normals": Spec("warning", "only some point clouds have normals",
        "For a model with normals as input, the normals of all other point clouds are zero."),
}
POINT_LABELS: FindingTable = {
    **CLOUDS,
    **PARTS,
    "too_many_classes": Spec("error", "different label values, too many for classes",
        "Is the label column correct? Select the label column with --columns label=NAME."),
    "unseen_classes": Spec("error", "labels absent from the training data (points: {classes})",
        "Add point clouds with these labels to the training data, or name the classes in classes.txt."),
}
# fmt: on

# -- damaged text

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ufeff]")
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_MARKUP = re.compile(r"&(?:[a-zA-Z]{2,8}|#\d{1,6}|#[xX][0-9a-fA-F]{1,5});|</?(?:br|p|b|i|a|div|span)\b[^<>]{0,40}>")

_CONTINUATION_CHARS = "\x80-\xbf€‚ƒ„…†‡ˆ‰Š‹ŒŽ‘’“”•–—˜™š›œžŸ"  # of UTF-8 decoded as Latin-1 or Windows-1252
_MOJIBAKE = re.compile(f"[ÂÃÄÅÎÏÐÑâ][{_CONTINUATION_CHARS}]{{1,2}}")


def find_quality_issues(text: str) -> Iterator[tuple[str, int]]:
    """Finding id of each kind of damage in the text, and the position of the first occurrence."""
    if not text.isprintable() and (match := _CONTROL.search(text)):
        yield "control_character", match.start()
    if not text.isascii():
        if (at := text.find(_REPLACEMENT)) >= 0:
            yield "replacement_character", at
        if (at := find_mojibake(text)) >= 0:
            yield "mojibake", at
    if ("&" in text or "<" in text) and (match := _MARKUP.search(text)):
        yield "markup", match.start()


def find_mojibake(text: str) -> int:
    """Position of the first UTF-8 character decoded as Windows-1252 ("Ã¼" for "ü"), or −1."""
    for match in _MOJIBAKE.finditer(text):
        for encoding in ("cp1252", "latin-1"):
            try:
                once = match.group().encode(encoding).decode("utf-8", "ignore")
            except UnicodeEncodeError:
                continue
            # a quotation mark after a capital umlaut can be decoded too, but to a rare letter
            if once and (once[0] in _COMMON_LETTERS or unicodedata.category(once[0])[0] in "PSZ"):
                return match.start()
    return -1


_COMMON_LETTERS = set(
    "äöüÄÖÜßáàâãåæçéèêëíìîïñóòôõøœúùûýÿÁÀÂÃÅÆÇÉÈÊËÍÌÎÏÑÓÒÔÕØŒÚÙÛÝąćęłńśźżĄĆĘŁŃŚŹŻčďěňřšťůžČĎŘŠŤŮŽőűğışİŞăâîșțȘȚ"
) | {chr(code) for code in (*range(0x3B1, 0x3CA), *range(0x391, 0x3AA), *range(0x410, 0x450))}
