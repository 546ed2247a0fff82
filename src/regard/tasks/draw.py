"""Objective `draw`: autoregressive image generation and completion.

An image is a row of palette color ids in raster order. The inputs are the start token and all colors except the last; the
labels are the colors, so the loss must not shift labels again."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import NoneType
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from regard.data.batching.padding import pad
from regard.data.batching.samplers import BatchSampler, BatchShape, Uniform
from regard.data.images.image_io import DECODE_THREADS
from regard.data.images.labeled import ImageSample
from regard.data.settings import DataSettings
from regard.data.store import RaggedRows
from regard.decode.search import search
from regard.decode.settings import DecodeSettings
from regard.draw.panels import blank_below, draw_contact_sheet, in_rows, save_image
from regard.errors import InputError, RegardError, SettingError
from regard.processors.palette import FILE, Palette
from regard.tasks import base
from regard.tasks.modality.base import sample_location
from regard.tasks.modality.image import Image, check_image_processor, load_image, prepare_images, read_sample_image
from regard.types import Batch, Prediction

QUANTIZE_BATCH = 64  # images per batch of color quantization
MAX_FIGURE_SAMPLES = 8  # number of samples completed in an evaluation


class ImageColors(Image):
    """Images as rows of color ids."""

    def load_processor(self, folder: Path) -> Any:
        return Palette.load(folder)

    def row_encoding(self, processor: Any) -> tuple[int, str]:
        return len(processor), processor.fingerprint()


class Draw(base.Objective):
    metrics = ("bits_per_pixel",)
    lower_is_better = generates = has_file_output = allows_empty_prompt = True
    has_length_limit = False
    modality_class = ImageColors
    fields = ("colors",)
    single_types = (Mapping, NoneType)
    validation_decode: ClassVar[Any] = {"num_beams": 1, "num_return_sequences": 1}
    settings = ("train.label_smoothing", *base.SEARCH_SETTINGS)

    def check_settings(self, config: Any, tokens: int, data: DataSettings) -> None:
        for name in ("crop_scale", "shift", "flip", "color_jitter", "random_erasing", "mixup"):
            if getattr(data, name) != getattr(DataSettings(), name):
                raise SettingError(
                    f"data.{name} is not used by task 'draw': images are not augmented. Remove data.{name}."
                )

    def adapt_config(self, config: Any) -> Any:
        return replace(config, lm_head=True)

    # -- images as rows of color ids

    def encode(self, samples: Sequence[ImageSample], config: Any, context: base.EncodingContext) -> base.Encoded:
        palette = context.processor
        check_image_processor(palette, config)
        values = np.zeros(config.max_length * len(samples), np.uint16 if len(palette) <= 2**16 else np.int32)

        def read(sample: ImageSample) -> np.ndarray:
            return palette.prepare(read_sample_image(sample, palette.min_side))

        with ThreadPoolExecutor(DECODE_THREADS) as pool:
            for first in range(0, len(samples), QUANTIZE_BATCH):
                images = np.stack(list(pool.map(read, samples[first : first + QUANTIZE_BATCH])))
                ids = palette.normalize(torch.from_numpy(images).permute(0, 3, 1, 2))
                values[config.max_length * first :][: ids.numel()] = ids.flatten().numpy()
        starts = config.max_length * np.arange(len(samples) + 1, dtype=np.int64)
        return base.Encoded(list(samples), {"colors": RaggedRows(values, starts)}, [], context)

    def sampler(self, encoded: base.Encoded, config: Any, tokens: int, seed: int, packed: bool) -> BatchSampler:
        return Uniform(len(encoded), tokens, seed)

    def collate(self, encoded: base.Encoded, rows: Any, config: Any, shape: BatchShape | None = None) -> Batch:
        """`rows`: sample indices (B,), or (B, 2) with a random seed."""
        numbers = np.asarray(rows).reshape(len(rows), -1)[:, 0]
        side = encoded.fields["colors"]
        colors = np.stack([np.asarray(side[int(i)], dtype=np.int64) for i in numbers])
        return shift_right(torch.from_numpy(colors), config)

    def eval_batches(self, encoded: base.Encoded, config: Any, tokens: int) -> Iterator[Batch]:
        for rows in Uniform(len(encoded), max(tokens // config.max_length, 1), 0).sequential():
            yield self.collate(encoded, rows, config)

    # -- predictions

    def predict(self, model: base.Model, inputs: list[Any], decode: DecodeSettings, first: int = 0) -> list[Prediction]:
        """Complete or generate images. An input is an image (an array, a Pillow image or a path) whose upper half is given,
        {"image": …, "rows": 20} with another number of rows, or None for unconditional generation.

        `extra["images"]` are arrays (size, size, 3), most likely first."""
        for name in base.TOKEN_SETTINGS:
            if getattr(decode, name) != getattr(DecodeSettings(), name):
                raise SettingError(
                    f"decode.{name} is not used by task 'draw': every image has the same number of pixels. "
                    f"Remove decode.{name}."
                )
        palette, config = require_palette(model), model.config
        prompts = [_parse_prompt(item, palette) for item in inputs]
        if not prompts:
            return []
        rows = [[config.bos_id] for _ in prompts]
        for row, (image, given) in zip(rows, prompts, strict=True):
            row += [] if image is None else palette.encode(image)[: given * palette.side].tolist()
        x, mask = pad(rows, config.bos_id)
        limits = torch.tensor([config.max_length + 1 - len(row) for row in rows])
        requests = first + np.arange(len(prompts))
        # The start token is passed as end token, but is never generated: all images have the same number of pixels.
        found = search(model.body, Batch(x, mask), config.bos_id, limits, decode, requests=requests)
        predictions, size = [], config.image_size
        for (image, given), row, hypotheses in zip(prompts, rows, found, strict=True):
            pictures = [palette.decode([*row[1:], *option.tokens]) for option in hypotheses]
            count = max(config.max_length + 1 - len(row), 1)
            bits = [-option.score / math.log(2) / count for option in hypotheses]
            value = f"image of {size} x {size} pixels"
            if image is not None:
                value = f"lower {size - given} of {size} rows of an image"
            extra = {"images": pictures, "given": image, "rows": given, "bits_per_pixel": bits}
            predictions.append(Prediction(value, tuple(option.score for option in hypotheses), (), extra))
        return predictions

    def evaluate(self, model: base.Model, encoded: base.Encoded, spec: base.EvalSpec) -> base.EvalResult:
        """Bits per pixel, and completions of some images; a full evaluation also generates as many images unconditionally
        (`extra["unconditional"]`)."""
        palette, colors = require_palette(model), encoded.fields["colors"]
        # evenly spaced, because image folders are sorted by class
        count = min(MAX_FIGURE_SAMPLES, len(encoded))
        chosen = [number * len(encoded) // count for number in range(count)]
        predictions = self.predict(model, [palette.decode(colors[number]) for number in chosen], spec.decode)
        for one, number in zip(predictions, chosen, strict=True):
            one.extra["source"] = sample_location(encoded.samples[number]) if encoded.samples else ""
        if spec.complete:
            single = replace(spec.decode, num_return_sequences=1)
            for one, new in zip(predictions, self.predict(model, [None] * count, single, first=count), strict=True):
                one.extra["unconditional"] = new.extra["images"][0]
        return {"bits_per_pixel": round(spec.loss.total / spec.loss.count / math.log(2), 4)}, predictions

    def format_scores(self, scores: Mapping[str, Any]) -> str:
        return f"bits/pixel {scores['bits_per_pixel']:6.3f}"

    def save_figures(self, folder: Path, samples: Sequence[Any], predictions: Sequence[Prediction]) -> list[str]:
        files = []
        completed = [one for one in predictions if one.extra["given"] is not None]
        if completed:
            files.append(draw_completions(completed, folder / "completions.png"))
        new = [one.extra["unconditional"] for one in predictions if "unconditional" in one.extra]
        if new:
            files.append(draw_contact_sheet(in_rows(new, 8), folder / "drawn.png", "Unconditional samples"))
        return [path.name for path in files]

    def write_files(self, name: str, prediction: Prediction, folder: Path) -> dict[str, str]:
        """Each generated image, and for completions a contact sheet with the prompt."""
        images = prediction.extra["images"]
        numbers = [""] if len(images) == 1 else [str(n) for n in range(1, len(images) + 1)]
        files = {
            f"image {n}".rstrip(): str(save_image(picture, folder / f"{name}.generated{'-' * bool(n)}{n}.png"))
            for n, picture in zip(numbers, images, strict=True)
        }
        if prediction.extra["given"] is not None:
            files["sheet"] = str(draw_completions([prediction], folder / f"{name}.completed.png"))
        return files

    def format_prediction(self, source: Any, prediction: Prediction) -> str:
        bits = ", ".join(f"{value:.3f}" for value in prediction.extra["bits_per_pixel"])
        return f"{source or 'unconditional'}\t{prediction.value}, {bits} bits/pixel"

    def example_row(self, sample: ImageSample, prediction: Prediction) -> dict[str, str]:
        bits = prediction.extra["bits_per_pixel"][0]
        where = prediction.extra.get("source") or sample_location(sample)
        return {"image": where, "prediction": str(prediction.value), "bits_per_pixel": f"{bits:.3f}"}


def prepare_colors(model: base.Model, batch: Batch) -> Batch:
    """Convert uint8 images to the inputs of training: start token and all colors except the last."""
    if batch.inputs.dtype != torch.uint8:
        return batch
    return replace(batch, inputs=shift_right(prepare_images(model, batch).inputs, model.config).inputs)


def draw_completions(predictions: Sequence[Prediction], path: Path) -> Path:
    """Contact sheet with a row per prediction: prompt, generated images and original."""
    most = max(len(one.extra["images"]) for one in predictions)
    lines = []
    for one in predictions:
        original, rows, generated = one.extra["given"], one.extra["rows"], one.extra["images"]
        blank = [np.full_like(original, 255)] * (most - len(generated))
        lines.append([blank_below(original, rows), *generated, *blank, original])
    heads = ["prompt", *(["generated"] if most == 1 else [f"generated {i + 1}" for i in range(most)]), "original"]
    return draw_contact_sheet(lines, path, "Completions (lower part generated)", heads)


def shift_right(colors: Tensor, config: Any) -> Batch:
    """Batch from color ids (B, L): inputs shifted right by a start token, labels unshifted."""
    return Batch(torch.cat([torch.full_like(colors[:, :1], config.bos_id), colors[:, :-1]], 1), labels=colors)


def require_palette(model: Any) -> Palette:
    """Color palette of the model. A missing palette is an error."""
    if not isinstance(model.processor, Palette):
        raise RegardError(
            f"{model.spec.source or 'This model'} has no color palette, so images cannot be converted to color ids. Add a "
            f"{FILE} with the key 'clusters' to the model folder, or pass color ids to logits() or states()."
        )
    check_image_processor(model.processor, model.config)
    return model.processor


def _parse_prompt(item: Any, palette: Palette) -> tuple[np.ndarray | None, int]:
    """An image (uint8, at the image size of the model) and the number of given rows; no image for unconditional generation."""
    if item is None or (isinstance(item, str) and not item):
        return None, 0
    size = palette.side
    rows = size // 2
    if isinstance(item, Mapping):
        if strange := set(item) - {"image", "rows"}:
            raise InputError(f"Unknown key '{strange.pop()}' in an image prompt. Available: image, rows.")
        rows, item = item.get("rows", rows), item.get("image")
        if item is None or not isinstance(rows, int) or not 0 <= rows <= size:
            raise InputError(
                f"An image prompt requires an image and 0 to {size} rows, e.g. {{'image': …, 'rows': {size // 2}}}."
            )
    return palette.prepare(load_image(item)), rows
