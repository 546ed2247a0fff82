"""Command line of regard.

Each command checks all names on the command line before importing torch, so that a typo is reported at once."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Sequence
from json import dumps
from pathlib import Path
from typing import Annotated, Any

import typer

from regard import __version__
from regard.errors import Interrupted, RegardError, RunError, UnknownNameError
from regard.index import LAYOUTS, check_model, check_preset, check_task, is_folder_path, list_rows, read_config_files

app = typer.Typer(
    name="regard", add_completion=False, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False,
    help="Train, run and explain Transformers on your own data.",
)  # fmt: skip

EXPLANATION_FORMATS = (".png", ".svg", ".html", ".htm", ".json")

PREDICT_CHUNK = 512  # Lines of standard input per batch of predictions.

DataOption = Annotated[
    list[str] | None,
    typer.Option(
        "--data",
        help="Data: files, folders, a quoted glob, or - (standard input). Parallel text: SRC:TGT.",
        show_default=False,
    ),
]
FormatOption = Annotated[
    str | None,
    typer.Option("--format", help="Format of standard input (-), such as csv, tsv, jsonl or txt. Default: detected."),
]
ColumnsOption = Annotated[
    list[str] | None, typer.Option("--columns", help="Map columns: text=NAME, source=NAME target=NAME.")
]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", help="Override settings: GROUP.NAME=VALUE …, see 'regard list settings'.")
]
DeviceOption = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or mps.")]
DtypeOption = Annotated[
    str | None,
    typer.Option(
        "--dtype", help="float32, bfloat16, float16 or float64. Default: dtype of the file, if fast on this device."
    ),
]
TaskArgument = Annotated[str, typer.Argument(help="Task, see 'regard list tasks'.", show_default=False)]
ModelArgument = Annotated[
    Path,
    typer.Argument(metavar="MODEL", help="Run folder, Hugging Face checkpoint or hf:ORG/NAME.", show_default=False),
]


def print_stderr(line: str) -> None:
    """Print a line to standard error, unless empty."""
    if line:
        print(line, file=sys.stderr)


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show full tracebacks.")] = False,
) -> None:
    if version:
        typer.echo(f"regard {__version__}")
        raise typer.Exit


@app.command()
def demo(
    name: Annotated[
        str,
        typer.Argument(help="Demo: translate (text), caption (image captions) or clouds (point-cloud segmentation)."),
    ] = "translate",
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Output folder. Default: runs/demo or runs/demo-NAME.", show_default=False),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing demo run.")] = False,
) -> None:
    """Train a small demo model (2 minutes on a CPU)."""
    from regard.demos import DEMOS

    if name not in DEMOS:
        raise UnknownNameError("demo", name, DEMOS)
    from regard.demos.run import demo as run_demo

    run_demo(name, out, overwrite)


@app.command()
def train(
    task: TaskArgument,
    out: Annotated[
        Path, typer.Option("--out", help="Output folder for checkpoints, logs and plots.", show_default=False)
    ],
    data: DataOption = None,
    valid: Annotated[
        list[str] | None,
        typer.Option("--valid", help="Validation data. Default: hold out a fraction (data.valid_fraction)."),
    ] = None,
    form: FormatOption = None,
    columns: ColumnsOption = None,
    model: Annotated[
        str | None,
        typer.Option("--model", help="Preset (random weights), checkpoint folder or hf:ORG/NAME (pretrained weights)."),
    ] = None,
    overrides: SetOption = None,
    config: Annotated[Path | None, typer.Option("--config", help="YAML or JSON file with settings.")] = None,
    device: DeviceOption = "auto",
    resume: Annotated[bool, typer.Option("--resume", help="Resume the run in --out.")] = False,
) -> None:
    """Train a model on your data."""
    from regard.runs.settings import check_names

    renamed = parse_columns(columns)
    check_names(task, model, overrides or (), config, resume)
    entries, valid_entries = read_stdin(task, form, data, valid)
    from regard.runs.train import train as run_train

    run_train(
        task,
        entries,
        out=out,
        model=model,
        valid=valid_entries,
        columns=renamed,
        settings=overrides or (),
        config=config,
        device=device,
        resume=resume,
    )


@app.command()
def check(
    task: TaskArgument,
    data: DataOption = None,
    valid: Annotated[list[str] | None, typer.Option("--valid", help="Validation data, checked for leaks.")] = None,
    form: FormatOption = None,
    columns: ColumnsOption = None,
    overrides: SetOption = None,
    json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
    out: Annotated[Path | None, typer.Option("--out", help="Write a length chart: a folder, .png or .svg.")] = None,
) -> None:
    """Check data for problems before training.

    Exit code 1: errors were found."""
    from regard.runs.settings import collect_overrides

    check_task(task)
    collect_overrides(overrides or ())
    entries, valid_entries = read_stdin(task, form, data, valid)
    from regard.runs.check import check as run_check

    report = run_check(
        task, entries, valid=valid_entries, columns=parse_columns(columns), settings=overrides or (), out=out
    )
    print(dumps(report.as_dict(), ensure_ascii=False) if json else report)
    raise typer.Exit(1 if report.errors else 0)


@app.command()
def evaluate(
    folder: ModelArgument,
    data: DataOption = None,
    form: FormatOption = None,
    columns: ColumnsOption = None,
    overrides: SetOption = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = None,
    predictions: Annotated[
        Path | None,
        typer.Option("--predictions", help="Write inputs, predictions and references: .csv, .tsv, .jsonl or .parquet."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the scores as JSON.")] = False,
) -> None:
    """Evaluate a model on validation or test data."""
    from regard.runs.settings import collect_overrides

    check_model(folder, dtype)
    collect_overrides(overrides or ())
    if predictions is not None:
        from regard.data.text.table_writer import check_output

        check_output(predictions)
    (entries,) = read_stdin(folder, form, data)
    from regard.runs import evaluate

    result = evaluate.evaluate(
        folder,
        entries,
        columns=parse_columns(columns),
        settings=overrides or (),
        device=device,
        dtype=dtype,
        log=print_stderr,
    )
    if predictions is not None:
        evaluate.write_predictions(result, predictions)
    if json:
        print(dumps(result.scores, ensure_ascii=False))
    else:
        wide = max(map(len, result.scores))
        for name, value in result.scores.items():
            apart = "\n" if "\n" in str(value) else ""  # a table starts on a new line
            print(f"{name:{wide}} {apart}{value}")


@app.command()
def predict(
    folder: ModelArgument,
    inputs: Annotated[
        list[str] | None,
        typer.Argument(help="Texts, text files, tables, images or point clouds. Default: - (standard input)."),
    ] = None,
    form: FormatOption = None,
    overrides: SetOption = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = None,
    choices: Annotated[
        str | None, typer.Option("--choices", help="Candidate texts to rank, separated by |. Leading spaces matter.")
    ] = None,
    search: Annotated[
        str | None,
        typer.Option("--search", help="Find the most similar texts in this file (one per line, or column text)."),
    ] = None,
    top_k: Annotated[
        int | None,
        typer.Option(
            "--top-k", min=1, help="Number of classes, or of results of --search. Default: 5.", show_default=False
        ),
    ] = None,
    columns: ColumnsOption = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="New table (.csv, .tsv, .jsonl, .parquet), or folder for images, masks and point clouds."
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object per input.")] = False,
) -> None:
    """Run a model on text, files or standard input.

    Exit code 2: some inputs failed."""
    from regard.config import coerce
    from regard.decode.settings import apply_overrides
    from regard.runs.settings import collect_overrides

    renamed = parse_columns(columns)
    said = collect_overrides(overrides or ())
    asked, split = said.pop("decode", {}), said.get("data", {}).pop("split_special_tokens", None)
    if others := [f"{group}.{name}" for group, values in said.items() for name in values]:
        supported = "decode.* settings and data.split_special_tokens"
        raise RegardError(f"'regard predict' only accepts {supported}, not {', '.join(others)}.")
    if choices is not None and (columns or top_k is not None):
        raise RegardError("--choices cannot be combined with --columns or --top-k: all choices are ranked.")
    if search is not None and (choices is not None or asked):
        raise RegardError("--search cannot be combined with --choices or --set decode.*. Allowed: --top-k, --columns.")
    check_model(folder, dtype)
    from regard.data.standard_input import uses_stdin
    from regard.model import load
    from regard.runs import predict
    from regard.runs.inputs import read_search_texts
    from regard.runs.predictions import open_output
    from regard.training.distributed import pick_device

    uses_stdin(form, *(inputs or ["-"]), *filter(None, [search]))
    found = None if search is None else read_search_texts(search, renamed, form)
    form = None if search == "-" else form
    model = load(folder, task=None if found is None else "embed", device=pick_device(device), dtype=dtype)
    print_stderr(model.dtype_note)
    if split is not None and not model.objective.modality.has_text:
        raise RegardError(f"data.split_special_tokens has no effect on task '{model.task.name}' without texts.")
    if split is not None:
        model.require_tokenizer().split_special_tokens = coerce(split, bool, "data.split_special_tokens")
    output = open_output(model, inputs or [], json, out, top_k if search is None else None)
    if found is not None:
        failed = predict.search(model, inputs or [], found, top_k, output, PREDICT_CHUNK, form)
    elif choices is not None:
        failed = predict.choose(model, inputs or [], choices.split("|"), output, form)
    else:
        decode = apply_overrides(model.spec.decode, asked)
        failed = predict.predict(model, inputs or [], decode, output, PREDICT_CHUNK, renamed or None, form)
    raise typer.Exit(2 if failed else 0)


@app.command()
def explain(
    folder: ModelArgument,
    inputs: Annotated[
        list[str],
        typer.Argument(
            help="Text, file or - (standard input), then optionally a translation, a second text, a class or a word."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="Output file: .png, .svg, .html or .json.")] = Path(
        "explanation.html"
    ),
    choices: Annotated[
        str | None, typer.Option("--choices", help="Choices of a multiple-choice model, separated by |.")
    ] = None,
    layer: Annotated[int | None, typer.Option("--layer", help="Show only this layer (starting at 1).")] = None,
    head: Annotated[int | None, typer.Option("--head", help="Show only this head (starting at 1).")] = None,
    at: Annotated[
        str | None, typer.Option("--at", help="Query position: ROW,COLUMN of a pixel, INDEX or X,Y,Z of a point.")
    ] = None,
    class_name: Annotated[
        str | None, typer.Option("--class", help="Class or tag to explain. Default: the predicted one.")
    ] = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = None,
) -> None:
    """Visualize attention and attributions."""
    if out.suffix.lower() not in EXPLANATION_FORMATS:
        raise RegardError(f"{out}: unsupported file type. Supported: {', '.join(EXPLANATION_FORMATS)}.")
    check_model(folder, dtype)
    from regard.model import load
    from regard.runs.explain import parse_position, read_texts
    from regard.training.distributed import pick_device

    model = load(folder, device=pick_device(device), dtype=dtype)
    print_stderr(model.dtype_note)
    given = read_texts(model.task, inputs)
    if choices is not None:
        if model.task.name != "choose" or len(given) > 1:
            raise RegardError("--choices requires a multiple-choice model and one context.")
        given.append(choices)
    found = model.explain(*given, at=parse_position(at, model.task.input), class_name=class_name)
    path = found.save(out, layer, head)
    print(found.title, path, *found.extra_paths(path), sep="\n")


@app.command()
def probe(
    folder: ModelArgument,
    data: Annotated[
        list[str] | None,
        typer.Option(
            "--data",
            help="Images: one folder per class, or a table (image, label). Default: data of the run.",
            show_default=False,
        ),
    ] = None,
    valid: Annotated[
        list[str] | None,
        typer.Option("--valid", help="Images that select the regularization. Default: hold out a fraction."),
    ] = None,
    test: Annotated[
        list[str] | None, typer.Option("--test", help="Images that measure the accuracy. Default: hold out a fraction.")
    ] = None,
    form: FormatOption = None,
    columns: ColumnsOption = None,
    max_images: Annotated[int, typer.Option("--max-images", help="Maximum number of training images.")] = 60_000,
    out: Annotated[Path, typer.Option("--out", help="Chart of the accuracy by layer: .png or .svg.")] = Path(
        "probe.png"
    ),
    device: DeviceOption = "auto",
    dtype: DtypeOption = None,
    json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Train linear probes on the layers of an image model."""
    check_model(folder, dtype)
    entries, valid_entries, test_entries = read_stdin("classify", form, data, valid, test)
    from regard.runs.probe import probe as run_probe

    found = run_probe(
        folder,
        entries,
        valid=valid_entries,
        test=test_entries,
        columns=parse_columns(columns),
        max_images=max_images,
        out=out,
        device=device,
        dtype=dtype,
        log=print_stderr,
    )
    if json:
        print(dumps(found.as_dict(), ensure_ascii=False))
        return
    rows = [
        {"layer": x.layer, "accuracy": f"{x.accuracy:.2f}", "validation": f"{x.valid:.2f}", "penalty": f"{x.penalty:g}"}
        for x in found.layers
    ]
    print_table(rows, right_aligned=("accuracy", "validation", "penalty"))
    print(f"{found.best.accuracy:.2f} % at {found.best.layer}\n{found.figure}")


@app.command()
def info(
    name: Annotated[
        str, typer.Argument(help="Preset, run folder, Hugging Face checkpoint or hf:ORG/NAME.", show_default=False)
    ],
    all_layers: Annotated[bool, typer.Option("--all", help="List every layer of repeated blocks.")] = False,
) -> None:
    """Show layers, parameters, memory and FLOPs of a model."""
    if is_folder_path(name):
        read_config_files(Path(name))
    else:
        check_preset(name)
    from regard.runs import info

    found = info.info(name)
    print(f"{found.title}\n  {found.weights}")
    print("  " + ", ".join(f"{key} {value}" for key, value in found.config.items()))
    layers = found.layers if all_layers else info.merge_blocks(found.layers)
    print_table(
        [{"layer": x.name, "type": x.kind, "shape": x.shape, "parameters": f"{x.parameters:,}"} for x in layers],
        right_aligned=("parameters",),
    )
    for number, (task, recipe) in enumerate(found.recipes.items()):
        said = [f"{group}.{key}={value}" for group, values in recipe.items() for key, value in values.items()]
        if said:
            print(f"Default settings for {task}{' (in addition)' if number else ''}: {' '.join(said)}")
    print(f"{found.parameters:,} parameters, {found.bytes / 2**20:,.1f} MiB of weights")
    print(f"{found.flops / 1e9:,.2f} GFLOPs per forward pass ({found.flops_input})")


@app.command("list")
def list_(
    kind: Annotated[str, typer.Argument(help="models, presets, tasks or settings.")] = "presets",
    group: Annotated[str | None, typer.Argument(help="Group of settings: data, train, decode or model.")] = None,
    model: Annotated[str | None, typer.Option("--model", help="Only rows of this preset, with its defaults.")] = None,
    task: Annotated[str | None, typer.Option("--task", help="Only rows of this task.")] = None,
    search: Annotated[str | None, typer.Option("--search", help="Only rows that contain this word.")] = None,
) -> None:
    """List models, presets, tasks or settings."""
    rows = list_rows(kind, group, model, task, search)
    if not rows:
        raise RegardError(f"No {kind} match these filters.")
    print_table(rows, right_aligned=("parameters",))
    if kind == "settings" and model is None:
        print("\nPresets override these defaults. Defaults of a preset: 'regard list settings --model PRESET'.")


@app.command()
def export(
    source: Annotated[
        Path, typer.Argument(help="Run folder, Hugging Face checkpoint or hf:ORG/NAME.", show_default=False)
    ],
    target: Annotated[Path, typer.Argument(help="Output folder.", show_default=False)],
    to: Annotated[str, typer.Option("--to", help="Output format: huggingface.")] = "huggingface",
) -> None:
    """Export a model to Hugging Face format."""
    if to not in LAYOUTS:
        raise UnknownNameError("layout", to, LAYOUTS)
    if target.exists() and (target.is_file() or any(target.iterdir())):
        raise RunError(f"{target} exists and is not empty. Choose another folder.")
    read_config_files(source)
    from regard.model import load, save

    save(load(source, dtype="stored"), target, to)
    print(target)


def main() -> None:
    words = sys.argv[1:]
    debug = "--debug" in words
    try:
        app(expand_options([word for word in words if word != "--debug"]))
    except Interrupted as stop:
        if str(stop):  # only the main process has a message
            print(stop, file=sys.stderr)
        sys.exit(stop.exit_code)
    except RegardError as error:
        if debug:
            raise
        print(f"regard: error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(141)


PATH_OPTIONS = ("--data", "--valid", "--test")
MULTI_VALUE_OPTIONS = (*PATH_OPTIONS, "--columns", "--set")  # Options with several values after one name.


MIN_WRAP_WIDTH = 20  # Minimum terminal columns for wrapping the last column of a table.


def parse_columns(columns: Sequence[str] | None) -> dict[str, str]:
    """`["source=en", "target=de"]` as a dictionary."""
    found = {}
    for text in columns or ():
        name, sign, value = text.partition("=")
        if not (sign and name and value):
            raise RegardError(f"'{text}' names no column. Write --columns source=NAME target=NAME.")
        found[name] = value
    return found


def read_stdin(task: str | Path, form: str | None, *groups: list[str] | None) -> list[list[str]]:
    """Data entries with the saved file of standard input in place of `-`. `task`: a name, or a model folder."""
    given = [group or [] for group in groups]
    if form is None and not any("-" in group for group in given):
        return given
    from regard.data.standard_input import save_stdin
    from regard.model import stored_task
    from regard.tasks import find_task

    reader = (stored_task(task) if isinstance(task, Path) else find_task(task)).reader
    return save_stdin(reader, form, *given)


def print_table(rows: list[dict[str, Any]], right_aligned: tuple[str, ...] = ()) -> None:
    """Print aligned columns. In a terminal, the last column is wrapped; in a pipe, lines are not wrapped."""
    if not rows:
        return
    names = list(rows[0])
    widths = {n: max(len(n), *(len(str(row[n])) for row in rows)) for n in names}
    before = sum(widths[n] + 2 for n in names[:-1])
    room = shutil.get_terminal_size().columns - before if sys.stdout.isatty() else 0
    for row in [{n: n for n in names}, *rows]:
        cells = [f"{row[n]!s:>{widths[n]}}" if n in right_aligned else f"{row[n]!s:<{widths[n]}}" for n in names]
        lines = textwrap.wrap(cells[-1].rstrip(), room) if room >= MIN_WRAP_WIDTH else []
        print("  ".join([*cells[:-1], lines[0] if lines else cells[-1]]).rstrip())
        for line in lines[1:]:
            print(" " * before + line)


def expand_options(args: Sequence[str]) -> list[str]:
    """`--data a b` -> `--data a --data b`: all words until the next option are values of a multi-value option.

    `--set` and `--columns` accept only words with a `=`; words after `--` are unchanged."""
    result: list[str] = []
    current, first = "", True
    for number, word in enumerate(args):
        if word == "--":
            return [*result, *args[number:]]
        if word.startswith("-") and word != "-":
            current, first = (word if word in MULTI_VALUE_OPTIONS else ""), True
            result.append(word)
        elif current and not first and (current in PATH_OPTIONS or "=" in word):
            result += [current, word]
        else:
            result.append(word)
            first = False
            if current not in PATH_OPTIONS and "=" not in word:
                current = ""
    return result
