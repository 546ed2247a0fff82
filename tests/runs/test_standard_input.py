"""Standard input (-) in every command: lines, tables, images and point clouds."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from test_card import MADE, captioner
from test_predict_files import FILES, KINDS, SQUAD, TEXTS, made, rows

import regard
from conftest import TINY, Cli, Done, Pairs, Trained, facts
from data_files import parquet
from regard.data.points.cloud_files import write_ply
from tiny_point_models import cloud
from tokenizer_files import STORY

LINES = "".join(f"{text}\n" for text in TEXTS)


def saved(name: str) -> str:
    MADE[name]().float().save(name)
    return name


# -- texts


FORMS: dict[str, bytes] = {
    "plain": LINES.encode(), "byte order mark": LINES.encode("utf-8-sig"), "gzip": gzip.compress(LINES.encode()),
    "carriage returns": LINES.replace("\n", "\r\n").encode(), "no last line break": LINES[:-1].encode(),
}  # fmt: skip
OTHERS: dict[str, tuple[bytes, str]] = {
    "latin": ("a\tb\nc\tcafé\n".encode("latin-1"), "UTF-8"), "UTF-16": ("a b".encode("utf-16"), "UTF-16"),
    "NUL": (b"a\tb\nb\tc\0\n", "NUL"), "PDF": (b"%PDF-1.4 \xff", "PDF"),
    "half": (gzip.compress(b"a\tb\n" * 9)[:-9], "gzip"), "image": (b"\x89PNG\r\n\x1a\n\0", "image"),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_lines_of_standard_input_are_those_of_a_file(form: str, cli: Cli, tmp_path: Path) -> None:
    content = FORMS[form]
    folder, _ = made("classify", tmp_path, ("bad", "good"))
    Path("a.txt").write_bytes(content)
    right = cli("predict", folder, "a.txt")
    assert right.code == 0 and len(right.out.splitlines()) == 3
    assert cli("predict", folder, stdin=content) == cli("predict", folder, "-", stdin=content) == right
    mixed = cli("predict", folder, "a dog", "-", "a.txt", stdin=content)
    first = cli("predict", folder, "a dog")
    assert mixed == Done(0, first.out + right.out + right.out, "")


@pytest.mark.parametrize("task", ["translate", "lm", "mlm", "tag", "embed", "algorithmic"])
def test_a_dash_is_no_text(task: str, cli: Cli, trained: Trained) -> None:
    folder, text = (trained.path, "the cat") if task == "translate" else (saved(task), "the [MASK] sat")
    text = "2" if task == "algorithmic" else text
    right = cli("predict", folder, text)
    assert right.code == 0 and cli("predict", folder, "-", stdin=f"{text}\n").out.strip() == right.out.strip()
    assert cli("predict", folder, "-", stdin=b"") == (0, "", "")
    done = cli("predict", folder, "-", "-", stdin=text)
    assert done.code == 2 and "only once" in done.err


@pytest.mark.parametrize("kind", OTHERS)
def test_other_content_than_text_is_named(kind: str, cli: Cli, tmp_path: Path) -> None:
    content, key = OTHERS[kind]
    folder, _ = made("classify", tmp_path, ("bad", "good"))
    for words in (["predict", folder, "-"], ["explain", folder, "-"], ["check", "classify", "--data", "-"]):
        done = cli(*words, stdin=content)
        assert done.code in (1, 2) and "Traceback" not in done.err
        assert key in done.err + done.out and "standard input" in (done.err + done.out).lower(), words
        assert str(tmp_path.parent) not in done.err


SHAPES = {(kind, Path(name).suffix, columns): (kind, name, content, columns) for kind, name, content, columns in FILES}
"""One file of each kind and format."""


@pytest.mark.every(3)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_tables_of_standard_input_are_those_of_a_file(shape: Any, cli: Cli, tmp_path: Path) -> None:
    """Objects are rows; other tables are named by an option."""
    kind, name, content, columns = SHAPES[shape]
    task, labels, pair, _ = KINDS[kind]
    folder, _ = made(task, tmp_path, labels, pair)
    Path(name).write_text(content)
    chosen = ("--columns", *columns.split()) if columns else ()
    right, form = rows(cli("predict", folder, name, "--json", *chosen).out), Path(name).suffix[1:]
    for more in (("--format", form), ()):
        if more or columns or form.startswith("json"):
            done = cli("predict", folder, "-", "--json", *chosen, *more, stdin=content)
            assert done.code == 0 and rows(done.out) == right, done.err


def test_objects_are_rows_unless_the_format_is_text(cli: Cli, tmp_path: Path) -> None:
    folder, _ = made("classify", tmp_path, ("bad", "good"))
    done = cli("predict", folder, "-", "--json", "--format", "txt", stdin='{"text": "a"}\n')
    assert rows(done.out)[0]["input"] == '{"text": "a"}' and done.err == ""
    done = cli("predict", folder, "-", "--json", stdin='{"text": "a"}\n')
    assert rows(done.out)[0]["input"] == "a" and "rows" in done.err
    for words in (["a.txt", "--format", "csv"], ["-", "--format", "doc"]):
        done = cli("predict", folder, *words, stdin="a")
        assert done.code == 2 and "--format" in done.err


def test_texts_to_search_and_to_explain_come_from_standard_input(cli: Cli, tmp_path: Path) -> None:
    folder, _ = made("embed", tmp_path)
    Path("a.txt").write_text(LINES)
    right = cli("predict", folder, "the cat", "--search", "a.txt")
    assert right.code == 0 and cli("predict", folder, "the cat", "--search", "-", stdin=LINES).out == right.out
    found = cli("predict", folder, "-", "--search", "a.txt", stdin="the cat\n")
    assert right.out in found.out
    for content, more in (('{"text": "the cat"}\n', ()), ("text,x\nthe cat,1\n", ("--format", "csv"))):
        done = cli("predict", folder, "the cat", "--search", "-", *more, stdin=content)
        assert done.code == 0 and done.out.split() == ["1.0000", "the", "cat"]
    assert "only once" in cli("predict", folder, "-", "--search", "-", stdin=LINES).err


# -- images and point clouds

FORMATS = ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF", "PPM", "TGA")


def image_bytes(form: str) -> bytes:
    to = io.BytesIO()
    pixels = np.random.default_rng(4).integers(0, 256, (9, 12, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(to, form)
    return to.getvalue()


@pytest.mark.parametrize("form", FORMATS)
def test_the_bytes_of_an_image_are_one_image(form: str, cli: Cli) -> None:
    folder, content = saved("recognise"), image_bytes(form)
    Path("a.img").write_bytes(content)
    (right,) = rows(cli("predict", folder, "a.img", "--json").out)
    for words in (["-"], []):
        done = cli("predict", folder, *words, "--json", stdin=content)
        (found,) = rows(done.out)
        assert done.code == 0 and found == {**right, "input": "stdin"}, done.err
    assert cli("predict", folder, "-", stdin=content).out.startswith("stdin\t")
    for task in ("segment", "depth"):
        done = cli("predict", saved(task), "-", "--out", f"{task}-files", stdin=content)
        assert done.code == 0 and all(path.name.startswith("stdin.") for path in Path(f"{task}-files").iterdir())
        if form != FORMATS[0]:
            return
    done = cli("explain", folder, "-", "--out", "a.json", stdin=content)
    values = json.loads(Path("a.json").read_text())
    cli("explain", folder, "a.img", "--out", "b.json")
    assert done.code == 0 and values["rollout"] == json.loads(Path("b.json").read_text())["rollout"]


def test_captions_and_drawings_read_the_bytes_of_an_image(cli: Cli) -> None:
    captioner([STORY], "caption-fixed", "", max_length=6).float().save("caption")
    content = image_bytes("PNG")
    Path("a.png").write_bytes(content)
    right = cli("predict", "caption", "a.png")
    done = cli("predict", "caption", "-", stdin=content)
    assert right.code == 0 and done.out == right.out.replace("a.png", "stdin")
    done = cli("explain", "caption", "a.png", "-", "--out", "a.json", stdin="the cat\n")
    assert done.code == 0 and "the cat" in done.out
    done = cli("predict", saved("draw"), "-", "--out", "drawn", stdin=content)
    assert done.code == 0 and [path.name for path in Path("drawn").glob("stdin*")]


def test_paths_on_standard_input_stay_paths(cli: Cli) -> None:
    folder = saved("recognise")
    for name in ("a b.png", "P6 c.png"):
        Path(name).write_bytes(image_bytes("PNG"))
    right = cli("predict", folder, "a b.png", "P6 c.png", "a b.png")
    for words in ([], ["-"]):
        done = cli("predict", folder, *words, stdin="a b.png\nP6 c.png\r\n\na b.png")
        assert done.code == 0 and done.out.replace("\n\n", "\n") == right.out
    done = cli("explain", folder, "-", "--out", "a.json", stdin="a b.png\n")
    assert done.code == 0 and "a b.png" in done.out
    assert "one" in cli("explain", folder, "-", "--out", "a.json", stdin="a b.png\nb.png\n").err
    done = cli("predict", folder, "-", stdin="a b.png\nnone.png\n")
    assert done.code == 2 and "none.png: file not found" in done.err
    for content, key in ((b"<html>\xff", "HTML"), (b"\x89PNG\r\n\x1a\n\0\0", "PNG"), (b"%PDF-\xff", "PDF")):
        for command in ("predict", "explain"):
            done = cli(command, folder, "-", stdin=content)
            assert done.code == 2 and key in done.err and not done.out.strip(), command


def ascii_stl(corners: Any) -> bytes:
    vertices = "".join("  vertex {:f} {:f} {:f}\n".format(*corner) for corner in corners[:3])
    return f"solid of text\nfacet normal 0 0 1\n outer loop\n{vertices} endloop\nendfacet\nendsolid\n".encode()


def cloud_files(folder: Path) -> dict[str, bytes]:
    points = cloud(40)
    write_ply(folder / "a.ply", points)
    text = "".join(" ".join(f"{value:.6f}" for value in row) + "\n" for row in points.coordinates)
    array, arrays = io.BytesIO(), io.BytesIO()
    np.save(array, points.coordinates)
    np.savez(arrays, points=points.coordinates)
    vertices = "".join(f"v {line}\n" for line in text.splitlines())
    stl = b"solid of bytes".ljust(80, b"\0") + (2).to_bytes(4, "little")
    for at in range(2):
        stl += (
            np.concatenate([np.zeros((1, 3)), points.coordinates[3 * at : 3 * at + 3]]).astype("<f4").tobytes()
            + b"\0\0"
        )
    return {
        "ply": (folder / "a.ply").read_bytes(), "xyz": text.encode(), "npy": array.getvalue(), "npz": arrays.getvalue(),
        "obj": f"# points\n{vertices}".encode(), "off": f"OFF\n40 0 0\n{text}".encode(), "stl": stl,
        "text stl": ascii_stl(points.coordinates),
        "text ply": f"ply\nformat ascii 1.0\nelement vertex 40\nproperty float x\nproperty float y\nproperty float z\n"
        f"end_header\n{text}".encode(),
    }  # fmt: skip


def test_the_bytes_of_a_point_cloud_are_one_point_cloud(cli: Cli, tmp_path: Path) -> None:
    folder, segment = saved("discern"), saved("partition")
    for form, content in cloud_files(tmp_path).items():
        path = Path(f"b.{form.split()[-1]}")
        path.write_bytes(content)
        (right,) = rows(cli("predict", folder, path, "--json").out)
        done = cli("predict", folder, "-", "--json", stdin=content)
        assert done.code == 0 and rows(done.out) == [{**right, "input": "stdin"}], (form, done.err)
    done = cli("predict", segment, "-", "--out", "parts", stdin=content)
    assert done.code == 0 and {path.name for path in Path("parts").iterdir()} == {"stdin.labeled.ply", "stdin.html"}
    done = cli("explain", folder, "-", "--out", "a.json", stdin=content)
    assert done.code == 0 and json.loads(Path("a.json").read_text())["layers"]


# -- training, checks, evaluation and probes

LABELED = [("the cat sat", "good"), ("a dog", "bad"), ("cats, on the mat", "good"), ("a dog, too", "bad")] * 5
TABLES: dict[str, tuple[str, str, str]] = {
    "tsv": ("classify", "".join(f"{text}\t{label}\n" for text, label in LABELED), "tsv"),
    "csv": ("classify", "text,label\n" + "".join(f'"{text}",{label}\n' for text, label in LABELED), "csv"),
    "jsonl": ("classify", "".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in LABELED), "jsonl"),
    "squad": ("qa", json.dumps(SQUAD, indent=1), "json"),
    "conll": ("tag", "Rome B-LOC\nis O\n\nParis B-LOC\nis O\n\n", "conll"),
    "conll with tabs": ("tag", "Rome\tB-LOC\nis\tO\n\nParis\tB-LOC\nis\tO\n\n", "tsv"),
    "text": ("lm", "Once upon a time,\tthere was a cat.\nA dog came, too.\n" * 9, "txt"),
    "objects of text": ("mlm", "".join(json.dumps({"text": text}) + "\n" for text in TEXTS * 3), "jsonl"),
    "pairs": ("translate", "a\tb\nc, d\te\nf\tg\n", "tsv"),
    "pairs with commas": ("translate", "source,target\na,b\nc,d\n", "csv"),
}  # fmt: skip


def report(done: Done, name: str = "") -> dict[str, Any]:
    """Findings without the name of the file."""
    return json.loads(done.out.replace(name or "standard input", "FILE"))


@pytest.mark.parametrize("form", TABLES)
def test_a_format_is_detected_in_the_first_line(form: str, cli: Cli) -> None:
    task, content, suffix = TABLES[form]
    Path(f"a.{suffix}").write_text(content)
    right = report(cli("check", task, "--data", f"a.{suffix}", "--json"), f"a.{suffix}")
    assert right["counts"]
    for stdin in (content.encode(), gzip.compress(content.encode()), content.encode("utf-8-sig")):
        for more in ((), ("--format", suffix)):
            done = cli("check", task, "--data", "-", "--json", *more, stdin=stdin)
            assert report(done) == right, (form, more, done.err)


def test_parquet_images_and_several_files_are_read_too(cli: Cli, folder: Path) -> None:
    content = Path(
        parquet("a.parquet", {"text": [text for text, _ in LABELED], "label": [x for _, x in LABELED]})
    ).read_bytes()
    right = report(cli("check", "classify", "--data", str(folder / "a.parquet"), "--json"), str(folder / "a.parquet"))
    assert report(cli("check", "classify", "--data", "-", "--json", stdin=content)) == right
    Path("b.tsv").write_text(TABLES["tsv"][1])
    done = cli("check", "classify", "--data", "b.tsv", "-", "--valid", "b.tsv", "--json", stdin=TABLES["csv"][1])
    assert json.loads(done.out)["counts"]["texts"] == 40
    for number in range(4):
        Image.new("RGB", (9, 8), (20 * number, 99, 255 * (number % 2))).save(f"{number}.png")
    table = "image,label\n" + "".join(f"{n}.png,{'ab'[n % 2]}\n" for n in range(4))  # paths start here
    done = cli("check", "classify", "--data", "-", "--json", stdin=table)
    assert json.loads(done.out)["counts"]["images"] == 4


@pytest.mark.parametrize(
    ("words", "content", "key"),
    [
        ("--data - --valid -", "a\tb\n", "only once"), ("--data - -", "a\tb\n", "only once"),
        ("--data -", "", "empty"), ("--data - --format xlsx", "a\tb\n", "--format"), ("--data -", "one column\n", "--format"),
        ("--data a.tsv --format csv", "a\tb\n", "--format"), ("--data -", b"\x89PNG\r\n\x1a\n\0", "image"),
        ("--data -", "text\tlabel\na\tb\tc\n", "standard input:2"),
    ],
)  # fmt: skip
def test_invalid_streams_are_reported(words: str, content: Any, key: str, cli: Cli, tmp_path: Path) -> None:
    done = cli("check", "classify", *words.split(), stdin=content)
    assert done.code in (1, 2) and key in done.err + done.out and str(tmp_path.parent) not in done.out, done


def test_a_run_keeps_its_stream(cli: Cli, pairs: Pairs) -> None:
    content = "".join(f"{a}\t{b}\n" for a, b in pairs[:40])
    settings = ("--device", "cpu", "--set", *TINY, "train.steps=2", "data.valid_fraction=0.1")
    done = cli("train", "translate", "--data", "-", "--out", "run", *settings, stdin=content)
    assert done.code == 0 and "standard input" in done.out, done.err
    card = Path("run/README.md").read_text("utf-8")
    assert "standard input" in card and facts(Path("run"))["data_stats"]["train"] == 36
    done = cli("evaluate", "run", "--json")
    scores = json.loads(done.out)
    assert done.code == 0 and scores["samples"] == 4
    assert cli("train", "translate", "--out", "run", "--resume").code == 0
    assert cli("train", "translate", "--data", "-", "--out", "run", "--resume", stdin=content).code == 0
    done = cli("train", "translate", "--data", "-", "--out", "run", "--resume", stdin=content * 2)
    assert done.code == 2 and "data" in done.err
    Path("a.tsv").write_text(content)
    right = cli("evaluate", "run", "--data", "a.tsv", "--json")
    assert cli("evaluate", "run", "--data", "-", "--json", stdin=content).out == right.out


def test_a_probe_reads_a_table_of_images(cli: Cli) -> None:
    folder = saved("recognise")
    for number in range(12):
        Image.new("RGB", (9, 8), (20 * number, 99, 255 * (number % 2))).save(f"{number}.png")
    table = "image\tlabel\n" + "".join(f"{n}.png\t{'ab'[n % 2]}\n" for n in range(12))
    Path("a.tsv").write_text(table)
    right = cli("probe", folder, "--data", "a.tsv", "--json", "--out", "p.png")
    assert right.code == 0, right.err
    assert cli("probe", folder, "--data", "-", "--json", "--out", "p.png", stdin=table).out == right.out


def test_a_model_without_a_run_folder_is_evaluated_on_a_stream(cli: Cli) -> None:
    """The task of the model decides between text and tables."""
    folder, content = saved("lm"), "Once upon a time, there was a cat.\n" * 40
    Path("a.txt").write_text(content)
    right = cli("evaluate", folder, "--data", "a.txt", "--json")
    assert cli("evaluate", folder, "--data", "-", "--json", stdin=content).out == right.out and right.code == 0
    regard.save(regard.load(folder), "exported")
    assert cli("evaluate", "exported", "--data", "-", "--json", stdin=content).code == 0
