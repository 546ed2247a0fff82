"""`predict`: predictions for the inputs of a command, in input order."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from regard.data.text.files import chunked
from regard.decode.settings import DecodeSettings
from regard.errors import RegardError
from regard.model import Model, stored_task
from regard.runs.inputs import Columns, PredictInput, read_inputs
from regard.runs.predictions import PredictionWriter, is_terminal
from regard.types import Prediction


def predict(
    model: Model,
    inputs: Sequence[str],
    decode: DecodeSettings,
    output: PredictionWriter,
    chunk_size: int,
    columns: Columns = None,
    form: str | None = None,
) -> int:
    """Write predictions in chunks of `chunk_size` inputs, or one at a time for a user in a terminal.

    Returns the number of failed inputs."""
    asked = read_inputs(model.task, inputs, columns, form, output.own)
    if (
        not (output.as_json or output.own)
        and is_terminal("stdout")
        and model.objective.streams
        and decode.num_beams == decode.num_return_sequences == 1
        and (output.interactive or output.single_input)
    ):
        return _stream(model, asked, decode)
    with output:
        _predict_all(model, asked, decode, output, chunk_size)
    return output.close()


def _predict_all(
    model: Model, asked: Iterator[PredictInput], decode: DecodeSettings, output: PredictionWriter, chunk_size: int
) -> None:
    task, done, mask = model.task, 0, None
    if model.config.traits.is_encoder and task.name != "mlm" and model.processor is not None:
        mask = model.processor.special_tokens_map().get("mask_token")
    size = 1 if output.interactive else min(chunk_size, model.objective.modality.max_inputs)
    while some := list(islice(asked, size)):
        real = [one for one in some if one.value is not None]
        if mask is not None and any(isinstance(one.value, str) and mask in one.value for one in real):
            print(
                f"warning: {mask} is not predicted: this model has the task '{task.name}'. "
                "Filling masks needs a model trained for the task 'mlm'.",
                file=sys.stderr,
            )
            mask = None  # warn once
        answers = iter(_predict_or_errors(model, [one.value for one in real], decode, done))
        done += len(real)
        for one in some:
            answer = None if one.value is None else next(answers)
            if isinstance(answer, Prediction):
                output.write(one, answer, len(some) > 1)
            else:
                output.write_missing(one, one.error if answer is None else answer)


def _stream(model: Model, asked: Iterator[PredictInput], decode: DecodeSettings) -> int:
    objective: Any = model.objective
    for number, one in enumerate(asked):
        if one.error is not None:
            raise one.error
        print(one.value or "", end="", flush=True)
        for part in objective.stream(model, one.value or "", decode, number):
            print(part, end="", flush=True)
        print(flush=True)
    return 0


def _predict_or_errors(
    model: Model, values: list[Any], decode: DecodeSettings, first: int
) -> list[Prediction | RegardError]:
    """Prediction or error for each value; a failing batch is split in halves until the failing inputs are isolated."""
    if not values:
        return []
    try:
        return list(model.objective.predict(model, values, decode, first))
    except RegardError as error:
        if len(values) == 1:
            return [error]
    half = len(values) // 2
    return _predict_or_errors(model, values[:half], decode, first) + _predict_or_errors(
        model, values[half:], decode, first + half
    )


def choose(
    model: Model, inputs: Sequence[str], choices: Sequence[str], output: PredictionWriter, form: str | None = None
) -> int:
    """Write the choices for each input, ranked by probability."""
    with output:
        for one in read_inputs(model.task, inputs, form=form, own=output.own):
            if one.value is not None and not isinstance(one.value, str):
                raise RegardError(f"{one.location}: the row already has choices. Remove --choices.")
            try:
                if one.error is not None:
                    raise one.error
                output.write(one, model.rank(one.value or "", choices), False, ranked=True)
            except RegardError as error:
                output.write_missing(one, error)
    return output.close()


def search(
    model: Model,
    inputs: Sequence[str],
    texts: Mapping[int, str],
    top_k: int | None,
    output: PredictionWriter,
    chunk_size: int,
    form: str | None = None,
) -> int:
    """Write the `top_k` texts most similar to each input; the texts are embedded once."""
    from regard.runs.progress import ProgressPrinter
    from regard.tasks import embed

    task, source = model.task, model.spec.source
    trained = stored_task(source).name
    if trained != task.name:
        print(
            f"warning: {source} has the task '{trained}', not 'embed': its similarities are not meaningful. "
            f"Train an embedding model: regard train embed --data PAIRS --model {source} --out RUN",
            file=sys.stderr,
        )
    among, numbers = embed.build_index(model, list(texts.values()), ProgressPrinter("texts")), list(texts)
    headed = not (output.interactive or output.single_input or output.as_json or output.own)
    asked = read_inputs(task, inputs, form=form, own=output.own)
    with output:
        for some in chunked(asked, 1 if output.interactive else chunk_size):
            real = [one.value for one in some if one.value is not None]
            answers = iter(embed.search(model, real, among, top_k or embed.TOP_K) if real else [])
            for one in some:
                if one.value is None:
                    output.write_missing(one, one.error)
                    continue
                answer = next(answers)
                for hit in answer.extra["hits"]:
                    hit["line"] = numbers[hit.pop("index")]
                if headed:
                    print(one.value)
                output.write(one, answer, False)
                if headed:
                    print(flush=True)
    return output.close()
