"""The linter of texts (tools/prose): rules, exceptions, names in backticks, readers."""

from __future__ import annotations

from pathlib import Path

import pytest

from prose.blocks import FIELD as FIELD_OF_STRING
from prose.blocks import Block, join
from prose.names import Names, configured_names, find_names, is_code
from prose.readers import read_markdown, read_page, read_python, read_script
from prose.rules import MAX_ALLOWED, density, find_dialect, load_allowed, load_rules, unused, without_allowed
from prose.scopes import read_corpus, scope_of

RULES = load_rules()
BY_NAME = {rule.name: rule for rule in RULES}
LINES = (Path(__file__).parents[1] / "fixtures/prose_sentences.tsv").read_text("utf-8").splitlines()[1:]
SENTENCES = [line.split("\t") for line in LINES]
"""Sentences with a finding of a rule, and ordinary sentences of the field, close to the patterns of the rules."""


def block(text: str, path: str = "README.md", kind: str = "markdown") -> Block:
    return join(path, kind, [(1, text)])


def rules_hit(text: str) -> list[str]:
    """Names of the error rules with a finding in the text."""
    return [finding.rule for finding in find_dialect(RULES, [block(text)]) if finding.level == "E"]


@pytest.mark.parametrize(("name", "text"), SENTENCES)
def test_dialect_is_found_and_field_terms_are_allowed(name: str, text: str) -> None:
    if name == "field":
        assert rules_hit(text) == []
    else:
        assert find_dialect([BY_NAME[name]], [block(text)])


def test_rules_have_unique_names_advice_and_a_finding_in_their_example() -> None:
    assert len(BY_NAME) == len(RULES)
    assert [rule.name for rule in RULES if not find_dialect([rule], [block(rule.example)])] == []
    assert all(rule.level in ("E", "W") and rule.advice for rule in RULES)


def test_phrases_are_one_finding_across_lines_and_code_is_not_prose() -> None:
    assert rules_hit("The folder is runs/demo if not said.") == ["if-not-said"]
    found = find_dialect(RULES, [join("a.py", "doc", [(7, "Training goes"), (8, "on here.")])])
    assert [str(finding) for finding in found] == ["a.py:7: goes-on: goes on -> continue(s), resume(s)"]
    assert find_dialect(RULES, [block("The run goes"), block("on a GPU.")]) == []
    assert rules_hit("See `the picture`, [this](docs/picture.md) and benchmarks/pictures.py.") == []
    words, pronouns = density([block("It is that model, `it` is fast.")])
    assert (words, pronouns) == (6, pytest.approx(100 * 2 / 6))


def test_exceptions_cover_only_findings_at_their_pattern_have_a_reason_and_are_few(tmp_path: Path) -> None:
    file = tmp_path / "allow.tsv"
    file.write_text("# comment\ndocs/*\tpicture\tpicture element\tterm of a quoted title\n")
    allowed, problems = load_allowed(file)
    found = find_dialect(RULES, [block("A picture element of a picture.", "docs/a.md")])
    assert problems == [] and unused(allowed) == ["allow.tsv: no finding for docs/* picture picture element"]
    assert [finding.start for finding in without_allowed(found, allowed)] == [23] and unused(allowed) == []
    for lines, count in ((MAX_ALLOWED, 0), (MAX_ALLOWED + 1, 1)):
        file.write_text("README.md\tpicture\tpicture\treason\n" * lines)
        assert len(load_allowed(file)[1]) == count
    file.write_text("README.md\tpicture\tpicture\t\n")
    assert load_allowed(file)[1]


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Names:
    root = tmp_path_factory.mktemp("repository")
    (root / "docs").mkdir()
    (root / "docs/guide.md").touch()
    (root / "Makefile").write_text(".venv/ready: .cache\n\ttouch $@\n")
    (root / "pyproject.toml").write_text('dependencies = ["some_package>=1"]\n')
    return Names(
        root,
        code=frozenset({"KVCache", "max_length", "self", "mask", "load", "regard", "--data", "--out", "load_model",
                        "tokens", ".conllu", *configured_names(root)}),
        settings=frozenset({"data.max_length", "train.lr"}),
        tasks=frozenset({"lm", "classify"}),
        models=frozenset({"gpt2", "bert-base"}),
        commands=frozenset({"train", "predict", "list"}),
        formatted=frozenset({f"{FIELD_OF_STRING}_per_s", f"part_{FIELD_OF_STRING}"}),
    )  # fmt: skip


CODE = [
    "max_length", "KVCache", "load()", "regard.load", "torch.nn.Linear", "train.lr", "lr", "lm", "bert-base", "--data",
    "config.json", ".jsonl", "guide.md", "docs/guide.md", "docs/*.md", "[CLS]", "-100", "B", "FOLDER", "resnet18",
    "x = 1", "(B, L, D)", "f(query, key, value, mask)", "regard train lm", "make test", "--data FILE", "not mask",
    "import regard", "a -> b", "[CLS] text [SEP]", ".conllu", ".venv", "some_package", "huggingface_hub",
    "docs/NAME.md", "tokens_per_s", "part_mask", "transformers.GenerationConfig",
]  # fmt: skip
PROSE = [
    "picture", "micro-batch", "old_name", "regard.old_name", "docs/missing.md", "the cat danced", "what it is",
    "with what it reads", "goes on with 3 more words", "import everything", ".unread", ".hidden", "other_package",
    "docs/NAME.txt", "docs/tasks/NAME.md", "pictures_per_s", "_per_s", "part_picture",
]  # fmt: skip


def test_code_and_prose_in_backticks(names: Names) -> None:
    assert [content for content in CODE if not is_code(names, content)] == []
    assert [content for content in PROSE if is_code(names, content)] == []
    for content in PROSE:
        found = [*find_names(names, block(f"Read `{content}` here."))]
        assert [finding.rule for finding in found] == ["backtick-prose"]


UNKNOWN = {
    "Set data.max_length=64.": [], "Set data.longest=64.": ["data.longest"], "Set `train.rate` first.": ["train.rate"],
    "Files are train.tsv and model.safetensors.": [], "Call `model.load` or model.load().": [],
    "Run 'regard train lm'.": [], "Run 'regard train language'.": ["language"],
    "Run `regard convert` first.": ["convert"], "Run `regard train lm --data FILE --again`.": ["--again"],
    "Then regard reads the file.": [],
}  # fmt: skip


def test_names_that_do_not_exist_are_found_in_texts_and_commands(names: Names) -> None:
    for text, expected in UNKNOWN.items():
        found = [finding for finding in find_names(names, block(text)) if finding.rule == "unknown-name"]
        assert [finding.block.text[finding.start : finding.end] for finding in found] == expected, text
    source = "```\n$ regard train language --data a  # a comment here\nregard list\n```\n"
    blocks = read_markdown("README.md", source).blocks
    assert [str(finding) for each in blocks for finding in find_names(names, each)] == [
        "README.md:2: unknown-name: language -> the name of a task that exists"
    ]
    # old names are allowed in code of the section "Renamed"
    source = "## 0.2.0\n### Renamed\n- `data.longest`, `grain`\n- data.longest\n### Added\n- `data.longest`\n"
    for file, lines in (("CHANGELOG.md", [4, 6]), ("README.md", [3, 3, 4, 6])):
        found = [finding for each in read_markdown(file, source).blocks for finding in find_names(names, each)]
        assert [finding.block.line_at(finding.start) for finding in found] == lines


SOURCE = '''"""Module text
on two lines.

    python run.py picture  # comment of a command
"""
import typer  # noqa: F401
# first line
# second line
x = 1  # same line

class Config:
    size: int = 1
    """help of a field"""

@app.command()
def run(name: str = typer.Option(help="help of an option")) -> None:
    """Help of a command."""
    raise ValueError(f"message with {name} and "
                     "more text")
'''


def test_texts_of_python_have_kinds_and_lines() -> None:
    read = read_python("src/a.py", SOURCE, help_fields=True)
    texts = {each.text: (each.kind, each.lines[0]) for each in read.blocks}
    assert texts == {
        "Module text on two lines.": ("doc", 1), "    python run.py picture  # comment of a command": ("code", 4),
        "comment of a command": ("doc", 4), "first line second line": ("comment", 7), "same line": ("comment", 9),
        "help of a field": ("help", 13), "help of an option": ("help", 16), "Help of a command.": ("help", 17),
        "message with ‹› and more text": ("message", 18),
    }  # fmt: skip
    assert {"typer", "Config", "size", "name"} <= read.names and "picture" not in read.names
    kinds = {each.text: each.kind for each in read_python("src/a.py", SOURCE, help_fields=False).blocks}
    assert kinds["help of a field"] == "doc"
    code = 'x = f"{unit}_per_s", f"part_{n}", f"{a}{b}_c", f"{x} and y"\n'
    formatted = read_python("src/a.py", code, help_fields=False).formatted
    assert formatted == {f"{FIELD_OF_STRING}_per_s", f"part_{FIELD_OF_STRING}"}


def test_texts_of_markdown_without_words_to_avoid_in_the_column_not_of_the_glossary() -> None:
    read = read_markdown("a.md", "# Title\nOne\ntwo.\n- item\n  more\n\n| a b | c |\n|---|---|\n| d | e |\n")
    texts = [(each.text, each.lines[0]) for each in read.blocks]
    assert texts == [("Title", 1), ("One two.", 2), ("item more", 4), ("a b", 7), ("c", 7), ("d", 9), ("e", 9)]
    tables = "| Write | Not |\n|---|---|\n| image | a picture |\n\n| Write | Other |\n|---|---|\n| b | c |\n"
    source = f"## Glossary\n\n{tables}"
    found = [each.text for each in read_markdown("CONTRIBUTING.md", source).blocks]
    assert found == ["Glossary", "Write", "image", "Write", "Other", "b", "c"]
    for file, text in (("README.md", source), ("CONTRIBUTING.md", tables)):
        assert "a picture" in [each.text for each in read_markdown(file, text).blocks]


def test_texts_of_pages() -> None:
    script = 'say("two words");\n// a comment\n// goes here\nconst t = `${n ? `${n} more words` : ""} at the end`;\n'
    texts = {each.text: (each.kind, each.lines[0]) for each in read_script("a.js", script).blocks}
    assert texts == {
        "two words": ("page", 1), "a comment goes here": ("comment", 2), "‹› more words": ("page", 4),
        "‹› at the end": ("page", 4),
    }  # fmt: skip
    page = '<style>a b c {}</style>\n<p title="text of a title">text of\n a page</p><!-- not a text -->'
    assert [each.text for each in read_page("a.html", page).blocks] == ["text of a title", "text of a page"]


def test_scopes_of_files(tmp_path: Path) -> None:
    for path in ("tests/a.py", "benchmarks/a.py", "src/regard/demos/grammar.py"):
        assert scope_of(path, "message") == ""
    for name in ("src/regard/a.py", "tests/b.py", "docs/deep/c.md", "src/regard/d.js", "other/e.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text('"""Text of a file."""\nx = "two words"\n', encoding="utf-8")
    corpus = read_corpus(tmp_path)
    paths = {scope: [each.path for each in blocks] for scope, blocks in corpus.blocks.items()}
    assert paths == {
        "messages": ["src/regard/a.py", "src/regard/d.js", "src/regard/d.js"], "help": [], "docs": ["docs/deep/c.md"],
        "code": ["src/regard/a.py"], "tests": ["tests/b.py"],
    }  # fmt: skip
