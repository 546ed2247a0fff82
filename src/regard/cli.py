"""The command line: thin words around plain functions.

A command checks all names that it was given first, and imports torch and the modules that it uses then: a typo is answered
at once."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard import __version__
from regard.cli_args import expand_options, parse_columns, print_table, to_json
from regard.errors import Interrupted, RegardError

if TYPE_CHECKING:
    from rich.console import Console

app = typer.Typer(
    name="regard", add_completion=False, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False,
    help="The transformer family: train on your own files, load what is published, answer, and see what it looked at.",
)  # fmt: skip

EXPLANATION_FORMATS = (".png", ".svg", ".html", ".htm", ".json")

PREDICT_CHUNK = 512
"""Lines of standard input that are answered together."""

DataOption = Annotated[
    list[str] | None,
    typer.Option("--data", help="Files, folders, or a quoted pattern; parallel files are SRC:TGT.", show_default=False),
]
ColumnsOption = Annotated[
    list[str] | None, typer.Option("--columns", help="Columns by name: text=NAME, source=NAME target=NAME.")
]
SetOption = Annotated[list[str] | None, typer.Option("--set", help="A setting: train.steps=5000 model.depth=2 …")]
DeviceOption = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or mps.")]
DtypeOption = Annotated[
    str | None,
    typer.Option("--dtype", help="float32, bfloat16, float16 or float64; default: that of the file, where fast."),
]
ModelArgument = Annotated[Path, typer.Argument(help="A run, or a published folder.", show_default=False)]


def make_console() -> Console:
    from regard.runs.progress import PipeSafeConsole

    return PipeSafeConsole()


def print_stderr(line: str) -> None:
    """Prints a line to standard error, unless it is empty."""
    if line:
        print(line, file=sys.stderr)


def check_dtype(name: str | None) -> None:
    from regard.errors import UnknownNameError
    from regard.folders import DTYPES

    if name is not None and name not in DTYPES:
        raise UnknownNameError("dtype", name, DTYPES)


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    if version:
        typer.echo(f"regard {__version__}")
        raise typer.Exit


@app.command()
def demo(
    name: Annotated[
        str, typer.Argument(help="translate: sentences; caption: pictures; clouds: rooms of points.")
    ] = "translate",
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="The folder of the run; runs/demo or runs/demo-WHAT if not said.", show_default=False
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--again", help="Replace the run that an earlier demo left there.")
    ] = False,
) -> None:
    """Train a small model on embedded data, score it, ask it, draw its attention."""
    from regard.demos import DEMOS
    from regard.errors import UnknownNameError

    if name not in DEMOS:
        raise UnknownNameError("demo", name, DEMOS)
    from regard.demos.run import demo as run_demo

    run_demo(name, out, overwrite, make_console())


@app.command()
def train(
    task: Annotated[str, typer.Argument(help="What the model shall do: see 'regard list tasks'.", show_default=False)],
    out: Annotated[Path, typer.Option("--out", help="The folder of the run.", show_default=False)],
    data: DataOption = None,
    valid: Annotated[
        list[str] | None, typer.Option("--valid", help="Validation files; else a share is held out.")
    ] = None,
    columns: ColumnsOption = None,
    model: Annotated[str | None, typer.Option("--model", help="A preset, or a folder to start from.")] = None,
    overrides: SetOption = None,
    config: Annotated[Path | None, typer.Option("--config", help="A YAML or JSON file of settings.")] = None,
    device: DeviceOption = "auto",
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
) -> None:
    """Train a model on your own files. Settings: 'regard list settings'."""
    from regard.runs.settings import check_names, collect_overrides

    check_names(task, model, collect_overrides(overrides or (), config), resume)
    from regard.runs.train import train as run_train

    run_train(
        task, data or (), out=out, model=model, valid=valid or (), columns=parse_columns(columns), settings=overrides or (),
        config=config, device=device, resume=resume, console=make_console(),
    )  # fmt: skip


@app.command()
def check(
    task: Annotated[str, typer.Argument(help="What a model shall do: see 'regard list tasks'.", show_default=False)],
    data: DataOption = None,
    valid: Annotated[list[str] | None, typer.Option("--valid", help="Validation files, checked for leaks.")] = None,
    columns: ColumnsOption = None,
    overrides: SetOption = None,
    json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
    out: Annotated[Path | None, typer.Option("--out", help="Draw the lengths: a folder, .png or .svg.")] = None,
) -> None:
    """Find what is wrong with data before training. Exit code 1: something must be fixed."""
    from regard.index import check_task
    from regard.runs.settings import check_groups, collect_overrides

    check_task(task)
    check_groups(collect_overrides(overrides or ()))
    from regard.runs.check import check as run_check

    report = run_check(
        task, data or (), valid=valid or (), columns=parse_columns(columns), settings=overrides or (), out=out
    )
    print(to_json(report.as_dict()) if json else report)
    raise typer.Exit(1 if report.errors else 0)


@app.command()
def evaluate(
    folder: ModelArgument,
    data: DataOption = None,
    columns: ColumnsOption = None,
    overrides: SetOption = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = None,
    predictions: Annotated[
        Path | None, typer.Option("--answers", help="Write source, answer, reference as JSONL.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the scores as JSON.")] = False,
) -> None:
    """Score a run on the data it remembers, or on other files."""
    check_dtype(dtype)
    from regard.folders import read_config_files
    from regard.runs.settings import check_groups, collect_overrides

    read_config_files(folder)
    check_groups(collect_overrides(overrides or ()))
    from regard.runs.evaluate import evaluate as run_evaluate
    from regard.runs.evaluate import write_predictions

    def say(line: str) -> None:
        print(line, file=sys.stderr)

    result = run_evaluate(
        folder,
        data or (),
        columns=parse_columns(columns),
        settings=overrides or (),
        device=device,
        dtype=dtype,
        log=say,
    )
    if predictions is not None:
        predictions.parent.mkdir(parents=True, exist_ok=True)
        write_predictions(result, predictions)
    if json:
        print(to_json(result.scores))
    else:
        wide = max(map(len, result.scores))
        for name, value in result.scores.items():
            apart = "\n" if "\n" in str(value) else ""  # a table begins on a line of its own
            print(f"{name:{wide}} {apart}{value}")


@app.command()
def predict(
    folder: ModelArgument,
    inputs: Annotated[
        list[str] | None,
        typer.Argument(
            help="Texts, files of lines or of rows as for training, pictures, clouds. Without: standard input."
        ),
    ] = None,
    overrides: SetOption = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = None,
    choices: Annotated[
        str | None, typer.Option("--choices", help='" a| b| c": which follows best? Blanks count.')
    ] = None,
    search: Annotated[
        str | None,
        typer.Option("--among", help="A file of texts: which are nearest? One a line, or a table's column text."),
    ] = None,
    top_k: Annotated[
        int | None, typer.Option("--best", min=1, help="How many of them; 5 if not said.", show_default=False)
    ] = None,
    columns: ColumnsOption = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="The folder for answers that are files; 'answers' if not said.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object for each input.")] = False,
) -> None:
    """Answer texts, lines or rows of files, or standard input, in their order. Exit code 2: some were not answered."""
    check_dtype(dtype)
    from regard.decode.settings import apply_overrides
    from regard.folders import read_config_files
    from regard.runs.settings import check_groups, collect_overrides

    said = collect_overrides(overrides or ())
    if said.keys() - {"decode"}:
        raise RegardError(f"'regard run' takes settings of decode only, not of {', '.join(said.keys() - {'decode'})}.")
    if search is None and top_k is not None:
        raise RegardError("--best belongs to --among, which names a file of texts to search.")
    if choices is not None and columns:
        raise RegardError("--choices goes with texts: a table of questions has choices of its own.")
    if search is not None and (choices is not None or said):
        raise RegardError("--among searches a file: it goes with --best and --columns, not with --choices or --set.")
    check_groups(said)
    read_config_files(folder)
    from regard.model import load
    from regard.runs import predict
    from regard.runs.devices import pick_device

    found = None if search is None else predict.read_search_texts(search, parse_columns(columns))
    model = load(folder, task=None if found is None else "embed", device=pick_device(device), dtype=dtype)
    print_stderr(model.dtype_note)
    if found is not None:
        failed = predict.search(model, inputs or [], found, top_k, json, PREDICT_CHUNK)
    elif choices is not None:
        failed = predict.choose(model, inputs or [], choices.split("|"), json)
    else:
        decode = apply_overrides(model.spec.decode, said.get("decode", {}))
        failed = predict.predict(model, inputs or [], decode, json, PREDICT_CHUNK, parse_columns(columns) or None, out)
    raise typer.Exit(2 if failed else 0)


@app.command()
def explain(
    folder: ModelArgument,
    inputs: Annotated[
        list[str],
        typer.Argument(help="A text, a file or - ; perhaps its translation, its pair, or a class or word of it."),
    ],
    out: Annotated[Path, typer.Option("--out", help="A .png, .svg, .html or .json file.")] = Path("explanation.html"),
    choices: Annotated[
        str | None, typer.Option("--choices", help='"a|b|c": what a model that chooses is to choose from.')
    ] = None,
    layer: Annotated[int | None, typer.Option("--layer", help="Only this layer, from 1 (pictures).")] = None,
    head: Annotated[int | None, typer.Option("--head", help="Only this head, from 1 (pictures).")] = None,
    at: Annotated[
        str | None, typer.Option("--at", help="ROW,COLUMN of a picture, NUMBER or X,Y,Z of a cloud: what it looked at.")
    ] = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = None,
) -> None:
    """Draw what each layer and head looked at, and what counted for a decision. A file is read whole."""
    check_dtype(dtype)
    from regard.folders import read_config_files

    if out.suffix.lower() not in EXPLANATION_FORMATS:
        raise RegardError(f"{out}: an explanation is written as {', '.join(EXPLANATION_FORMATS)}.")
    read_config_files(folder)
    from regard.model import load
    from regard.runs.devices import pick_device
    from regard.runs.explain import parse_position, read_texts

    model = load(folder, device=pick_device(device), dtype=dtype)
    print_stderr(model.dtype_note)
    given = read_texts(model.task, inputs)
    if choices is not None:
        if model.task.name != "choose" or len(given) > 1:
            raise RegardError("--choices is for a model that chooses, and for one context.")
        given.append(choices)
    found = model.explain(*given, at=parse_position(at, model.task.modality))
    path = found.save(out, layer, head)
    print(found.title, path, *found.extra_paths(path), sep="\n")


@app.command()
def probe(
    folder: ModelArgument,
    data: Annotated[
        list[str] | None,
        typer.Option(
            "--data",
            help="Pictures: a folder for each class, or a table of image and label. Without: those of the run.",
            show_default=False,
        ),
    ] = None,
    valid: Annotated[
        list[str] | None,
        typer.Option("--valid", help="Pictures that the penalty is chosen by; else a share is held out."),
    ] = None,
    test: Annotated[
        list[str] | None,
        typer.Option("--test", help="Pictures that the accuracy is told of; else a share is held out."),
    ] = None,
    columns: ColumnsOption = None,
    max_images: Annotated[int, typer.Option("--most", help="Learn from no more pictures than these.")] = 60_000,
    out: Annotated[Path, typer.Option("--out", help="Draw accuracy by layer: a .png or .svg file.")] = Path(
        "probe.png"
    ),
    device: DeviceOption = "auto",
    dtype: DtypeOption = None,
    json: Annotated[bool, typer.Option("--json", help="Print what was found as JSON.")] = False,
) -> None:
    """Tell what each layer knows: a linear classifier of pictures on its states, which stay as they are."""
    check_dtype(dtype)
    from regard.folders import read_config_files

    read_config_files(folder)
    from regard.runs.probe import probe as run_probe

    def say(line: str) -> None:
        print(line, file=sys.stderr)

    found = run_probe(
        folder, data or (), valid=valid or (), test=test or (), columns=parse_columns(columns), max_images=max_images, out=out, device=device,
        dtype=dtype, log=say,
    )  # fmt: skip
    if json:
        print(to_json(found.as_dict()))
        return
    rows = [
        {"layer": x.layer, "accuracy": f"{x.accuracy:.2f}", "validation": f"{x.valid:.2f}", "penalty": f"{x.penalty:g}"}
        for x in found.layers
    ]
    print_table(rows, right_aligned=("accuracy", "validation", "penalty"))
    print(f"{found.best.accuracy:.2f} % at {found.best.layer}\n{found.figure}")


@app.command()
def info(
    name: Annotated[str, typer.Argument(help="A preset, a run or a published folder.", show_default=False)],
) -> None:
    """Layer by layer: shapes, parameters, memory, operations."""
    from regard.folders import is_folder_path, read_config_files
    from regard.index import check_preset

    if is_folder_path(name):
        read_config_files(Path(name))
    else:
        check_preset(name)
    from regard.runs.info import info as look

    found = look(name)
    print(found.title)
    print("  " + ", ".join(f"{key} {value}" for key, value in found.config.items()))
    print_table(
        [{"layer": x.name, "kind": x.kind, "shape": x.shape, "parameters": f"{x.parameters:,}"} for x in found.layers],
        right_aligned=("parameters",),
    )
    for number, (task, recipe) in enumerate(found.recipes.items()):
        said = [f"{group}.{key}={value}" for group, values in recipe.items() for key, value in values.items()]
        if said:
            print(f"settings of this preset to {task}{', beyond those' if number else ''}: {' '.join(said)}")
    print(f"{found.parameters:,} parameters, {found.bytes / 2**20:,.1f} MiB of weights")
    print(f"{found.flops / 1e6:,.1f} MFLOP forward for {found.flops_input}")


@app.command("list")
def list_(
    kind: Annotated[str, typer.Argument(help="systems, presets, tasks or settings.")] = "presets",
) -> None:
    """What there is."""
    from regard.index import list_rows

    print_table(list_rows(kind), right_aligned=("parameters",))
    if kind == "settings":
        print("\nA preset brings settings of its own, which go before these defaults: 'regard info PRESET' shows them.")


@app.command()
def export(
    source: Annotated[Path, typer.Argument(help="A run or a published folder.", show_default=False)],
    target: Annotated[Path, typer.Argument(help="The folder to write.", show_default=False)],
    to: Annotated[str, typer.Option("--to", help="The layout to write: huggingface.")] = "huggingface",
) -> None:
    """Write a model in a published layout."""
    from regard.errors import RunError, UnknownNameError
    from regard.folders import LAYOUTS, read_config_files

    if to not in LAYOUTS:
        raise UnknownNameError("layout", to, LAYOUTS)
    if target.exists() and (target.is_file() or any(target.iterdir())):
        raise RunError(f"{target}: exists and is not empty. Choose another folder.")
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
        if str(stop):  # of several processes the first speaks
            print(stop, file=sys.stderr)
        sys.exit(stop.exit_code)
    except RegardError as error:
        if debug:
            raise
        print(f"regard: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(141)
