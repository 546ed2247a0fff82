"""Existing names, and two rules: `backtick-prose` for inline code, `unknown-name` for settings and commands."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from keyword import iskeyword
from pathlib import Path

from prose.blocks import FIELD, Block
from prose.rules import Finding
from prose.scopes import ROOT, Corpus

GROUPS = ("data", "train", "decode", "model")
SETTING = re.compile(rf"(?<![\w./-])({'|'.join(GROUPS)})\.([a-z_]\w*)(?![\w(/-]|\.\w)")
COMMAND = re.compile(r"(?:[`'\"‘“]|\b[Rr]un:? )regard ([a-z][a-z-]*)(?: ([a-z][\w-]*))?")
COMMAND_LINE = re.compile(r"^\s*(?:\$ )?(?:\S*/)?regard ([a-z][a-z-]*)(?: ([a-z][\w-]*))?")
OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*")
TASK_COMMANDS = ("train", "check")

SHELL = ("regard", "make", "python", "python3", "pip", "git", "hf", "pytest", "ruff", "mypy", "torchrun", "cd", "$")
STATEMENT = ("import", "from", "return", "raise", "not", "lambda", "class", "def", "del", "assert", "yield", "with")
CODE_SIGNS = re.compile(r"""[=(\[{/<_\d|*+@"']|\.\w|->|(?:^|\s)--?\w|\b[A-Z]{2,}\b""")
SENTENCE = re.compile(r"(?:\b[a-z]{2,},? ){2}[a-z]{2,}\b")
PLAIN_WORD = re.compile(r"[A-Za-z_][A-Za-z_.-]*")
"""Words with digits or other characters are code."""
CONFIGURED = re.compile(r"^([A-Za-z][\w-]*)\s*[:=?]|\"([A-Za-z][\w-]*)[><=;\[]", re.MULTILINE)
"""Keys and packages of pyproject.toml, targets and variables of the Makefile."""
HIDDEN_NAME = re.compile(r"(?<![\w/.$)])(\.[a-z]\w+)")
"""Hidden folders in the Makefile, for example .venv."""
PLACEHOLDER = re.compile(r"(?<![A-Za-z])[A-Z]{2,}(?:_[A-Z]+)*(?![A-Za-z])")
"""A part of a path that stands for several names: NAME in `docs/tasks/NAME.md`."""
FOLDERS = ("src/", "docs/", "tests/", "tools/", "benchmarks/", "examples/")
LIBRARIES = ("torch", "transformers", "numpy", "safetensors", "tokenizers", "matplotlib", "timm", "triton", "datasets",
             "huggingface_hub")  # fmt: skip
EXTENSIONS = frozenset((
    "bin", "bmp", "conll", "csv", "css", "cu", "gif", "gz", "html", "ini", "jpeg", "jpg", "js", "json", "jsonl", "lock", "md",
    "model", "npy", "npz", "obj", "off", "onnx", "parquet", "pcd", "pdf", "pkl", "ply", "png", "pt", "pth", "pts", "py", "pyi",
    "safetensors", "sh", "spm", "stl", "svg", "tar", "tgz", "tif", "tiff", "toml", "tsv", "txt", "vocab", "webp", "xyz", "yaml",
    "yml", "zip",
))  # fmt: skip
RENAMED = ("CHANGELOG.md", "Renamed")
"""File and section for old names, in backticks."""


@dataclass(frozen=True)
class Names:
    """All names for inline code."""

    root: Path
    code: frozenset[str]
    """Identifiers and options of the Python and JavaScript files, single words in string literals of src."""
    settings: frozenset[str]
    """All settings as `group.name`."""
    tasks: frozenset[str]
    models: frozenset[str]
    """Systems and presets."""
    commands: frozenset[str]
    formatted: frozenset[str] = frozenset()
    """Formatted strings of src with a single field, for example `‹›_per_s` for keys of logs."""

    @cached_property
    def files(self) -> frozenset[str]:
        """Names of files and folders of the repository."""
        found: set[str] = set()
        for _, folders, files in os.walk(self.root):
            hidden = {"__pycache__", "build", "dist", "runs", *(name for name in folders if name.startswith("."))}
            folders[:] = [name for name in folders if name not in hidden]
            found.update(folders, files, (Path(name).stem for name in files))
        return frozenset(found)

    @cached_property
    def words(self) -> frozenset[str]:
        bare = (name.partition(".")[2] for name in self.settings)
        sets = (self.code, self.settings, self.tasks, self.models, self.commands, self.files, EXTENSIONS)
        return frozenset().union(*sets, bare, SHELL, LIBRARIES)

    def is_formatted(self, word: str) -> bool:
        """True if the word is a formatted string with an existing name in the field."""
        parts = [text.split(FIELD) for text in self.formatted]
        return any(
            word.startswith(before)
            and word.endswith(after)
            and word[len(before) : len(word) - len(after)] in self.words
            for before, after in parts
        )


def collect(corpus: Corpus, root: Path = ROOT) -> Names:
    index = json.loads((root / "src/regard/index.json").read_text(encoding="utf-8"))
    settings = {entry["setting"] for entry in index["settings"]}
    accepted = {value for value in corpus.values if SETTING.fullmatch(value)}
    foreign = tomllib.loads((root / "src/regard/names.toml").read_text(encoding="utf-8"))["synonyms"]
    for setting, names in foreign.items():
        accepted |= {f"{setting.partition('.')[0]}.{name}" for name in names.split()}
    tasks = {entry["task"] for entry in index["tasks"]} | {value for value in corpus.values if "-" in value}
    models = {*index["systems"], *(name for entry in index["systems"].values() for name in entry["presets"])}
    source = "".join(path.read_text(encoding="utf-8") for path in sorted((root / "src/regard").glob("cli*.py")))
    decorated = re.findall(r'^@\w+\.command\((?:"([\w-]+)")?[^\n]*\)\ndef (\w+)', source, re.MULTILINE)
    commands = {name or function.replace("_", "-") for name, function in decorated}
    sets = (corpus.names | corpus.values | {*configured_names(root)}, settings | accepted, tasks, models, commands)
    return Names(root, *map(frozenset, sets), formatted=frozenset(corpus.formatted))


def configured_names(root: Path) -> Iterator[str]:
    for name in ("pyproject.toml", "Makefile"):
        for match in CONFIGURED.finditer((root / name).read_text(encoding="utf-8")):
            yield match[1] or match[2]
    yield from HIDDEN_NAME.findall((root / "Makefile").read_text(encoding="utf-8"))


def find_names(names: Names, block: Block) -> Iterator[Finding]:
    """Findings of both rules in one block."""
    renamed = block.path == RENAMED[0] and RENAMED[1] in block.section
    for start, end, advice in _unknown(names, block, block.prose if renamed else block.text):
        yield Finding(block, start, end, "unknown-name", advice)
    for start, content in [] if renamed else block.code_spans:
        if "‹" not in content and not is_code(names, content.strip()):
            advice = "a name that exists, or plain text without backticks"
            yield Finding(block, start, start + len(content), "backtick-prose", advice)


def _unknown(names: Names, block: Block, text: str) -> Iterator[tuple[int, int, str]]:
    for match in SETTING.finditer(text):
        group, name = match.groups()
        attribute = group == "model" and name in names.code and text[match.end() : match.end() + 1] != "="
        if match[0] not in names.settings and name not in EXTENSIONS and not attribute and block.kind != "page":
            yield match.start(), match.end(), "the name of a setting that exists"
    pattern = COMMAND_LINE if block.kind == "code" else COMMAND
    for match in pattern.finditer(text):
        command, task = match.groups()
        if command not in names.commands:
            yield match.start(1), match.end(1), "the name of a command that exists"
        elif command in TASK_COMMANDS and task and task not in names.tasks:
            yield match.start(2), match.end(2), "the name of a task that exists"
    lines = [(0, text)] if block.kind == "code" and pattern.match(text) else []
    spans = [(start, span) for start, span in block.code_spans if span.startswith(("regard ", "--"))]
    for start, line in lines + (spans if text is block.text else []):
        for match in OPTION.finditer(line):
            if match[0] not in names.code and match[0] != "--help":
                yield start + match.start(), start + match.end(), "an option that exists"


def is_code(names: Names, content: str) -> bool:
    """True if the content of backticks is code: an existing name, or several words with symbols of code."""
    words = content.split()
    if len(words) == 1:
        return _is_name(names, content)
    if not words or words[0] in SHELL:
        return True
    if words[0] in STATEMENT and all(word in names.words or iskeyword(word) for word in words):
        return True
    if not re.search(r"[A-Za-z]", content):
        return True
    outside = re.sub(r"\([^)]*\)|\[[^]]*\]|\{[^}]*\}|\"[^\"]*\"|'[^']*'", "()", content)
    return bool(CODE_SIGNS.search(content)) and not SENTENCE.search(outside)


def _is_name(names: Names, word: str) -> bool:
    if word in names.words or names.is_formatted(word):
        return True
    word = word.removesuffix("()").removesuffix(".").lstrip(".@*")
    if "/" in word:
        return _path_exists(names, word)
    if not PLAIN_WORD.fullmatch(word) or len(word) == 1 or word.isupper() or word in names.words:
        return True
    first, *rest = word.split(".")
    if not rest or first in LIBRARIES or rest[-1] in EXTENSIONS or SETTING.fullmatch(word):
        return bool(rest)
    return all(not part or part in names.words for part in (first, *rest))


def _path_exists(names: Names, word: str) -> bool:
    """True if a path of this repository exists; patterns and other paths count as existing."""
    if not word.startswith(FOLDERS) or re.search(r"[*<>{}…]", word):
        return True
    path = word.partition("#")[0].partition(":")[0]
    return (names.root / path).exists() or (
        PLACEHOLDER.search(path) is not None and any(names.root.glob(PLACEHOLDER.sub("*", path)))
    )
