"""Task `draw`: autoregressive image generation and completion.

An image is a row of palette color ids in raster order. The inputs are the start token and all colors except the last; the
labels are the colors, so the loss must not shift labels again."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.data.batching.samplers import BatchSampler, BatchShape, Uniform
from regard.data.images.image_io import DECODE_THREADS
from regard.data.images.labeled import ImageSample, iterate_unlabeled
from regard.data.settings import DataSettings
from regard.data.store.token_store import RaggedRows
from regard.data.text.tables import SkippedRow
from regard.decode.search import Hypothesis, search
from regard.decode.settings import DecodeSettings
from regard.draw.panels import blank_below, draw_contact_sheet, in_rows, save_image
from regard.errors import RegardError, SettingError
from regard.processors.padding import pad
from regard.processors.palette import FILE, Palette
from regard.tasks.base import SEARCH_SETTINGS, Encoded, EvalResult, LossSum, LossWeights
from regard.tasks.file_task import sample_location
from regard.tasks.image_task import ImageTask, check_image_processor, load_image, read_sample_image
from regard.tasks.protocol import ModelProtocol
from regard.types import Batch, Prediction

QUANTIZE_BATCH = 64
"""Images per batch of color quantization."""

MAX_FIGURE_SAMPLES = 8
"""Number of samples completed in an evaluation."""


@dataclass(frozen=True)
class ImagePrompt:
    """Prompt: an image whose first rows are given, or no image for unconditional generation."""

    image: np.ndarray | None = None
    """uint8 (H, W, 3) at the image size of the model"""
    rows: int = 0


class ImageGeneration(ImageTask):
    name = "draw"
    description = "Image generation and completion: images."
    columns = ("image",)
    metric = "bits_per_pixel"
    lower_is_better = True
    fields = ("colors",)
    default_model = "imagegpt-mini"
    generates = True
    has_file_output = True
    allows_empty_prompt = True
    settings_used = (*ImageTask.settings_used, "train.label_smoothing", *SEARCH_SETTINGS)

    def iter_samples(
        self, data: Sequence[str], columns: Mapping[str, str] | None = None
    ) -> Iterator[ImageSample | SkippedRow]:
        return iterate_unlabeled(data, columns)

    # -- palette

    def load_processor(self, folder: Path) -> Any:
        return Palette.load(folder)

    def row_encoding(self, processor: Any) -> tuple[int, str]:
        return len(processor), processor.fingerprint()

    def adapt_config(self, config: Any) -> Any:
        return replace(config, lm_head=True)

    def check_settings(self, config: Any, tokens: int, data: DataSettings) -> None:
        usual = DataSettings()
        for name in ("crop_scale", "shift", "flip", "color_jitter", "random_erasing", "mixup"):
            if getattr(data, name) != getattr(usual, name):
                raise SettingError(
                    f"data.{name} is not used by task 'draw': images are not augmented. Remove data.{name}."
                )

    # -- images as rows of color ids

    def batch_context(
        self, processor: Any, config: Any, max_length: int, data: DataSettings | None, labels: Sequence[str] = ()
    ) -> Any:
        return None

    def encode(
        self, samples: Sequence[ImageSample], processor: Any, config: Any, max_length: int, data: DataSettings | None = None,
        labels: Sequence[str] = (),
    ) -> Encoded:  # fmt: skip
        check_image_processor(processor, config)
        kind = np.uint16 if len(processor) <= 2**16 else np.int32
        values = np.zeros(config.max_length * len(samples), kind)

        def made(sample: ImageSample) -> np.ndarray:
            return processor.prepare(read_sample_image(sample, processor.min_side))

        with ThreadPoolExecutor(DECODE_THREADS) as pool:
            for first in range(0, len(samples), QUANTIZE_BATCH):
                some = np.stack(list(pool.map(made, samples[first : first + QUANTIZE_BATCH])))
                ids = processor.normalize(torch.from_numpy(some).permute(0, 3, 1, 2))
                values[config.max_length * first :][: ids.numel()] = ids.flatten().numpy()
        starts = config.max_length * np.arange(len(samples) + 1, dtype=np.int64)
        return Encoded(list(samples), {"colors": RaggedRows(values, starts)}, [])

    def sampler(self, encoded: Encoded, config: Any, tokens: int, seed: int, packed: bool) -> BatchSampler:
        return Uniform(len(encoded), tokens, seed)

    def collate(self, encoded: Encoded, rows: Any, config: Any, shape: BatchShape | None = None) -> Batch:
        """`rows`: sample indices (B,), or (B, 2) with a random seed."""
        numbers = np.asarray(rows).reshape(len(rows), -1)[:, 0]
        side = encoded.fields["colors"]
        colours = np.stack([np.asarray(side[int(i)], dtype=np.int64) for i in numbers])
        return shift_right(torch.from_numpy(colours), config)

    def eval_batches(
        self, encoded: Encoded, config: Any, tokens: int, data: DataSettings | None = None
    ) -> Iterator[Batch]:
        for rows in Uniform(len(encoded), max(tokens // config.max_length, 1), 0).sequential():
            yield self.collate(encoded, rows, config)

    def prepare_inputs(self, model: ModelProtocol, batch: Batch) -> Batch:
        """Convert uint8 images to the inputs of training: start token and all colors except the last."""
        if batch.inputs.dtype != torch.uint8:
            return batch
        return replace(batch, inputs=shift_right(super().prepare_inputs(model, batch).inputs, model.config).inputs)

    def loss(self, model: ModelProtocol, batch: Batch, terms: LossWeights = LossWeights()) -> tuple[Tensor, Tensor]:  # noqa: B008
        assert batch.labels is not None
        return model.body.cross_entropy(model.body(batch).sequence, batch.labels, terms.smoothing)

    # -- inference

    def is_single(self, inputs: Any) -> bool:
        return inputs is None or isinstance(inputs, Mapping) or super().is_single(inputs)

    def predict(
        self, model: ModelProtocol, inputs: Sequence[Any], decode: DecodeSettings, first: int = 0
    ) -> list[Prediction]:
        """Complete or generate images. An input is an image (an array, a Pillow image or a path) whose upper half is given,
        {"image": …, "rows": 20} with another number of rows, or None for unconditional generation.

        `extra["images"]` are arrays (size, size, 3), most likely first."""
        _check_decode(decode)
        palette, config = require_palette(model), model.config
        begun = [_parse_prompt(item, palette) for item in inputs]
        if not begun:
            return []
        prompts = [[config.bos_id, *_prompt_ids(item, palette)] for item in begun]
        x, mask = pad(prompts, config.bos_id)
        limits = torch.tensor([config.max_length + 1 - len(prompt) for prompt in prompts])
        # The start token is passed as end token, but is never generated: all images have the same number of pixels.
        found = search(
            model.body, Batch(x, mask).to(model.device), config.bos_id, limits, decode,
            requests=first + np.arange(len(begun)),
        )  # fmt: skip
        return [
            self._make_prediction(palette, config, item, prompt[1:], options)
            for item, prompt, options in zip(begun, prompts, found, strict=True)
        ]

    def _make_prediction(
        self, palette: Palette, config: Any, begun: ImagePrompt, given: Sequence[int], options: Sequence[Hypothesis]
    ) -> Prediction:
        size = config.image_size
        pictures = [palette.decode([*given, *option.tokens]) for option in options]
        said = max(config.max_length - len(given), 1)
        bits = [-option.score / math.log(2) / said for option in options]
        value = f"image of {size} x {size} pixels"
        if begun.image is not None:
            value = f"lower {size - begun.rows} of {size} rows of an image"
        extra = {"images": pictures, "given": begun.image, "rows": begun.rows, "bits_per_pixel": bits}
        return Prediction(value, tuple(option.score for option in options), (), extra)

    def fast_decode(self, decode: DecodeSettings) -> DecodeSettings:
        return replace(decode, num_beams=1, num_return_sequences=1)

    def evaluate(
        self,
        model: ModelProtocol,
        encoded: Encoded,
        decode: DecodeSettings,
        data: DataSettings,
        sums: LossSum,
        max_samples: int | None = None,
    ) -> EvalResult:
        """Bits per pixel, and completions of some images; a full evaluation also generates as many images unconditionally
        (`extra["unconditional"]`)."""
        palette, colours = require_palette(model), encoded.fields["colors"]
        # evenly spaced, because image folders are sorted by class
        count = min(MAX_FIGURE_SAMPLES, len(encoded))
        chosen = [number * len(encoded) // count for number in range(count)]
        shown = [palette.decode(colours[number]) for number in chosen]
        answers = self.predict(model, shown, decode)
        for answer, number in zip(answers, chosen, strict=True):
            answer.extra["source"] = sample_location(encoded.samples[number]) if encoded.samples else ""
        if max_samples is None:
            whole = self.predict(model, [None] * len(shown), replace(decode, num_return_sequences=1), first=len(shown))
            for answer, drawn in zip(answers, whole, strict=True):
                answer.extra["unconditional"] = drawn.extra["images"][0]
        return {"bits_per_pixel": round(sums.mean / math.log(2), 4)}, answers

    def format_scores(self, scores: Mapping[str, Any]) -> str:
        return f"bits/pixel {scores['bits_per_pixel']:6.3f}"

    def save_figures(
        self, folder: Path, samples: Sequence[ImageSample], predictions: Sequence[Prediction]
    ) -> list[str]:
        made = []
        halves = [answer for answer in predictions if answer.extra["given"] is not None]
        if halves:
            made.append(draw_completions(halves, folder / "completions.png").name)
        whole = [answer.extra["unconditional"] for answer in predictions if "unconditional" in answer.extra]
        if whole:
            title = "Unconditional samples"
            made.append(draw_contact_sheet(in_rows(whole, 8), folder / "drawn.png", title).name)
        return made

    def write_files(self, name: str, prediction: Prediction, folder: Path) -> dict[str, str]:
        """Each generated image, and for completions a contact sheet with the prompt."""
        many = len(prediction.extra["images"])
        names = [f"{name}.generated.png" if many == 1 else f"{name}.generated-{n}.png" for n in range(1, many + 1)]
        found = {
            f"image {n}" if many > 1 else "image": str(save_image(picture, folder / file))
            for n, (picture, file) in enumerate(zip(prediction.extra["images"], names, strict=True), 1)
        }
        if prediction.extra["given"] is not None:
            found["sheet"] = str(draw_completions([prediction], folder / f"{name}.completed.png"))
        return found

    def format_prediction(self, source: Any, prediction: Prediction) -> str:
        bits = ", ".join(f"{value:.3f}" for value in prediction.extra["bits_per_pixel"])
        return f"{source or 'unconditional'}\t{prediction.value}, {bits} bits/pixel"

    def example_row(self, sample: ImageSample, prediction: Prediction) -> dict[str, str]:
        bits = prediction.extra["bits_per_pixel"][0]
        where = prediction.extra.get("source") or sample_location(sample)
        return {"image": where, "prediction": str(prediction.value), "bits_per_pixel": f"{bits:.3f}"}


def draw_completions(
    predictions: Sequence[Prediction], path: Path, title: str = "Completions (lower part generated)"
) -> Path:
    """Contact sheet with a row per prediction: prompt, generated images and original."""
    most = max(len(answer.extra["images"]) for answer in predictions)
    lines = []
    for answer in predictions:
        truth, rows, drawn = answer.extra["given"], answer.extra["rows"], answer.extra["images"]
        blank = [np.full_like(truth, 255)] * (most - len(drawn))
        lines.append([blank_below(truth, rows), *drawn, *blank, truth])
    heads = ["prompt", *(["generated"] if most == 1 else [f"generated {i + 1}" for i in range(most)]), "original"]
    return draw_contact_sheet(lines, path, title, heads)


def shift_right(colors: Tensor, config: Any) -> Batch:
    """Batch from color ids (B, L): inputs shifted right by a start token, labels unshifted."""
    x = torch.cat([torch.full_like(colors[:, :1], config.bos_id), colors[:, :-1]], 1)
    return Batch(x, labels=colors)


def require_palette(model: Any) -> Palette:
    """Color palette of the model. A missing palette is an error."""
    if not isinstance(model.processor, Palette):
        raise RegardError(
            f"{model.spec.source or 'This model'} has no color palette, so images cannot be converted to color ids. Add a "
            f"{FILE} with the key 'clusters' to the model folder, or pass color ids to logits() or states()."
        )
    check_image_processor(model.processor, model.config)
    return model.processor


def _parse_prompt(item: Any, palette: Palette) -> ImagePrompt:
    if item is None or (isinstance(item, str) and not item):
        return ImagePrompt()
    size = palette.side
    rows = size // 2
    if isinstance(item, Mapping):
        if strange := set(item) - {"image", "rows"}:
            raise RegardError(f"Unknown key '{strange.pop()}' in an image prompt. Available: image, rows.")
        rows, item = item.get("rows", rows), item.get("image")
        if item is None or not isinstance(rows, int) or not 0 <= rows <= size:
            raise RegardError(
                f"An image prompt requires an image and 0 to {size} rows, e.g. {{'image': …, 'rows': {size // 2}}}."
            )
    return ImagePrompt(palette.prepare(load_image(item)), rows)


def _prompt_ids(begun: ImagePrompt, palette: Palette) -> list[int]:
    if begun.image is None:
        return []
    return palette.encode(begun.image)[: begun.rows * palette.side].tolist()


def _check_decode(decode: DecodeSettings) -> None:
    usual = DecodeSettings()
    for name in ("repetition_penalty", "max_new_tokens", "max_length", "forced_eos", "stop_strings"):
        if getattr(decode, name) != getattr(usual, name):
            raise SettingError(
                f"decode.{name} is not used by task 'draw': every image has the same number of pixels. "
                f"Remove decode.{name}."
            )
