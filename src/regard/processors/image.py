"""Image preprocessing (resize, crop and normalize images to the input size of the model) and augmentation for training.

`ImageProcessor` is saved as `preprocessor_config.json` in the format of `transformers`. The pixels are identical to the output
of the Pillow-based image processors of `transformers`.

Random parameters of the augmentation (crop, flip, color jitter, erasing, mixup) are sampled with the batch plan on the CPU, one
row per image; the pixels are changed on the device. So a batch depends only on its index, and the work on pixels has fixed
shapes and no branches: CUDA graphs can capture it.

Crops are resized by Pillow's bilinear filter, a triangle as wide as the step between output pixels, to avoid aliasing. The
filter is two products with sparse matrices, for rows and for columns: on a GPU faster than gathering pixels, and an exact
identity for unchanged images.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from regard.config import check_settings
from regard.data.images.image_io import MAX_PIXELS
from regard.errors import DataError, SettingError
from regard.files import write_json
from regard.processors import read_processor_file

if TYPE_CHECKING:
    from regard.processors.tokenizer.tokenizer import TextTokenizer

FILE = "preprocessor_config.json"
Resize = Literal["exact", "shortest", "ratio", "none"]
Size = tuple[int, int]
RGB = tuple[float, float, float]
S = TypeVar("S", bound=np.generic)

RGB_HALF: RGB = (0.5, 0.5, 0.5)
MAX_WHOLE_PIXELS = 2**24  # Maximum pixels of a resized image. Larger images: only the cropped part is computed.
_MIN_UNCROPPED_SIDE = 384  # Shortest edge from which ConvNeXT's processor resizes the whole image without cropping.

_CLASS_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "ViT": {"resample": 2, "size": {"height": 224, "width": 224}},
    "Bit": {
        "resample": 3, "size": {"shortest_edge": 224}, "crop_size": {"height": 224, "width": 224}, "do_center_crop": True,
        "default_to_square": False, "image_mean": (0.48145466, 0.4578275, 0.40821073),
        "image_std": (0.26862954, 0.26130258, 0.27577711),
    },
    "ConvNext": {"resample": 3, "size": {"shortest_edge": 384}, "crop_pct": 224 / 256, "default_to_square": False},
    "DPT": {"resample": 3, "size": {"height": 384, "width": 384}},
}  # fmt: skip
"""Defaults of each image processor class of `transformers`, for keys missing in the file."""
_REQUIRED_KEYS = ("size", "image_mean", "image_std", "resample")  # Keys required in the file of any other class.
_SUPPORTED_KEYS = {
    "size", "crop_size", "crop_pct", "do_resize", "do_center_crop", "do_rescale", "do_normalize", "resample", "rescale_factor",
    "image_mean", "image_std", "keep_aspect_ratio", "ensure_multiple_of", "default_to_square",
}  # fmt: skip
_IGNORED_KEYS = {
    "image_processor_type", "feature_extractor_type", "processor_class", "do_convert_rgb", "data_format", "input_data_format",
    "return_tensors", "device", "disable_grouping", "do_reduce_labels", "reduce_labels", "size_divisor", "pad_size",
}  # fmt: skip
"""Keys without effect on RGB images, or with an effect only together with `do_pad`, which is not supported."""


Box = tuple[float, float, float, float]  # top, left, bottom and right, as fractions of an image


@dataclass(frozen=True)
class ImageProcessor:
    size: Size = (224, 224)  # output height and width; approximate if the aspect ratio is kept
    resize: Resize = "exact"
    """exact: both sides, ignoring the aspect ratio; shortest: the shorter side; ratio: both sides by the factor nearer to 1,
    as in DPT; none: no resizing"""
    edge: int = 0  # side to resize to before the center crop; 0: the side of `size`
    crop: bool = False  # center crop to `size`; smaller images are padded with black
    multiple: int = 1  # round both sides to a multiple of this value (exact and ratio)
    resample: int = int(Image.Resampling.BILINEAR)  # filter id of Pillow
    rescale_factor: float = 1 / 255  # factor for pixel values before the normalization
    mean: RGB = RGB_HALF
    std: RGB = RGB_HALF

    def __post_init__(self) -> None:
        if min(self.size) < 1 or self.edge < 0 or self.multiple < 1:
            sizes = f"{self.size[0]} × {self.size[1]} (edge {self.edge}, multiple {self.multiple})"
            expected = "height, width and multiple must be at least 1, edge at least 0"
            raise SettingError(f"Invalid image size {sizes}: {expected}.")
        if self.resample not in [int(known) for known in Image.Resampling]:
            raise SettingError(f"resample={self.resample} is not a resampling filter of Pillow.")
        if not all(self.std):
            raise SettingError("The standard deviation of the pixel normalization must not be 0.")

    # -- files

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> ImageProcessor | None:
        """Read the file of a folder; None if there is no file. Preprocessing that is not supported raises DataError with the
        name of the key."""
        path = Path(folder) / FILE
        settings = read_processor_file(path)
        try:
            return None if settings is None else _from_published(settings)
        except DataError as error:
            advice = "regard does not guess preprocessing, because different preprocessing changes the model inputs."
            raise DataError(error.problem, path, advice=advice) from error
        except (TypeError, ValueError, KeyError, SettingError, ZeroDivisionError) as error:
            raise DataError(f"invalid values ({str(error).rstrip('.')}).", path) from error

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the settings as the simplest image processor of `transformers` with the same output."""
        kind, output_size = "ViT", dict(zip(("height", "width"), self.size, strict=True))
        size = {"height": self.edge, "width": self.edge} if self.crop and self.edge else output_size
        if self.resize == "shortest":
            size = {"shortest_edge": self._shortest_edge}
        settings: dict[str, Any] = {"do_resize": self.resize != "none", "size": size, "resample": self.resample}
        if self.crop or self.resize == "shortest":
            kind = "Bit"
            settings |= {"do_center_crop": self.crop, "crop_size": output_size, "do_convert_rgb": True}
        elif self.resize == "ratio" or self.multiple > 1:
            kind, keeps_ratio = "DPT", self.resize == "ratio"
            settings |= {"keep_aspect_ratio": keeps_ratio, "ensure_multiple_of": self.multiple, "do_pad": False}
        settings |= {"do_rescale": True, "rescale_factor": self.rescale_factor}
        settings |= {"do_normalize": True, "image_mean": list(self.mean), "image_std": list(self.std)}
        write_json(Path(folder) / FILE, {"image_processor_type": f"{kind}ImageProcessor", **settings})

    # -- images

    def with_size(self, height: int, width: int) -> ImageProcessor:
        """Copy for another output size; the center crop keeps the same fraction."""
        edge = round(self.edge * min(height, width) / min(self.size)) if self.edge else 0
        return replace(self, size=(height, width), edge=edge)

    def scaled(self, scale: float) -> ImageProcessor:
        """Copy for larger outputs, from which random crops are taken. The whole shorter side is kept (edge=0)."""
        return replace(self, size=(round(scale * self.size[0]), round(scale * self.size[1])), edge=0)

    @property
    def has_variable_size(self) -> bool:
        """True if the output size depends on the input size, so images cannot be batched."""
        return self.resize != "exact" and not self.crop

    def with_fixed_size(self, side: int) -> ImageProcessor:
        """Copy with one output size for training batches: a center crop for resize=shortest, else resizing without the aspect
        ratio. resize=none gets a size of `side`."""
        if self.crop:
            return self
        if self.resize == "shortest":
            return replace(self, crop=True, multiple=1)
        made = replace(self, resize="exact", size=(side, side) if self.resize == "none" else self.size)
        return replace(made, size=made._resized_size(*made.size), multiple=1)

    @property
    def min_side(self) -> int:
        """Shorter side in pixels below which a JPEG must not be downscaled while decoding (see `read_image`)."""
        return 0 if self.resize == "none" else max(*self.size, self.edge)

    def visible_box(self, height: int, width: int) -> Box:
        """Top, left, bottom and right of the part of an image of this height and width that the model reads, as fractions of
        the image; outside of [0, 1] if the image is padded."""
        edges = []
        for resized, wanted in zip(self._resized_size(height, width), self.size, strict=True):
            used = wanted if self.crop else resized
            first = (resized - used) // 2 if resized >= used else -math.ceil((used - resized) / 2)
            edges.append((first / resized, (first + used) / resized))
        (top, bottom), (left, right) = edges
        return top, left, bottom, right

    def prepare(self, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Resized and cropped image: (H, W, 3) uint8 -> (h, w, 3) uint8 at the input size of the model."""
        old, size = image.shape[:2], self._resized_size(*image.shape[:2])
        kept = self._kept(size)
        down, across = (length for _, length in kept)
        if down * across > MAX_PIXELS:
            sides = f"{old[0]} × {old[1]} pixels would give {down} × {across} pixels"
            problem = f"Resizing an image of {sides}, more than the maximum of {MAX_PIXELS:,} pixels."
            raise DataError(problem, advice="Split or remove the image.")
        if (down, across) != size:  # the whole resized image may not fit into memory
            (y, height), (x, width) = (
                (start * had / new, length * had / new)
                for (start, length), had, new in zip(kept, old, size, strict=True)
            )
            box, form = (x, y, x + width, y + height), Image.Resampling(self.resample)
            image = np.array(Image.fromarray(image).resize((across, down), form, box))
        elif size != old:
            image = np.array(Image.fromarray(image).resize(size[::-1], Image.Resampling(self.resample)))
        return self._center_crop(image, 0)

    def prepare_map(self, values: NDArray[S], fill: float = 0) -> NDArray[S]:
        """(H, W) class ids or depths, resized and cropped like the image in `prepare`; nearest neighbor, no interpolation."""
        size = self._resized_size(*values.shape)
        rows, columns = (
            (np.arange(start, start + length) * 2 + 1) * old // (2 * new)
            for (start, length), new, old in zip(self._kept(size), size, values.shape, strict=True)
        )
        return self._center_crop(values[rows[:, None], columns[None]], fill)

    def normalize(self, x: Tensor) -> Tensor:
        """Normalized pixels (B, 3, H, W) from uint8, or from floats in [0, 1] (output of the augmentation)."""
        mean, std = _mean_std_tensors(self.mean, self.std, x.device)
        return (x * (self.rescale_factor if not x.is_floating_point() else 255 * self.rescale_factor) - mean) / std

    @property
    def _shortest_edge(self) -> int:
        return self.edge or min(self.size)

    def _resized_size(self, height: int, width: int) -> Size:
        if self.resize == "none":
            return height, width
        if self.resize == "shortest":
            longer = int(self._shortest_edge * max(height, width) / min(height, width))
            return (longer, self._shortest_edge) if width <= height else (self._shortest_edge, longer)
        if self.crop and self.edge:
            return self.edge, self.edge
        down, across = self.size[0] / height, self.size[1] / width
        if self.resize == "ratio":
            down = across = across if abs(1 - across) < abs(1 - down) else down
        # at least one multiple: otherwise a side of a very long image would become 0
        rounded = (max(round(side / self.multiple), 1) * self.multiple for side in (down * height, across * width))
        return next(rounded), next(rounded)

    def _kept(self, size: Size) -> tuple[tuple[int, int], tuple[int, int]]:
        """First row and number of rows, and first column and number of columns, to compute of an image resized to `size`: all,
        or of a very large one the part that the center crop keeps."""
        cuts = self.crop and math.prod(size) > MAX_WHOLE_PIXELS
        lengths = [min(new, out) if cuts else new for new, out in zip(size, self.size, strict=True)]
        rows, columns = (((new - length) // 2, length) for new, length in zip(size, lengths, strict=True))
        return rows, columns

    def _center_crop(self, picture: NDArray[S], fill: float) -> NDArray[S]:
        if not self.crop:
            return picture
        for axis, wanted in enumerate(self.size):
            had = picture.shape[axis]
            if had < wanted:
                before = math.ceil((wanted - had) / 2)
                around = [(before, wanted - had - before) if at == axis else (0, 0) for at in range(picture.ndim)]
                picture = np.pad(picture, around, constant_values=fill)
            else:
                first = (had - wanted) // 2
                picture = picture[first : first + wanted] if axis == 0 else picture[:, first : first + wanted]
        return np.ascontiguousarray(picture)


@lru_cache(maxsize=64)
def _mean_std_tensors(mean: RGB, std: RGB, device: torch.device) -> tuple[Tensor, Tensor]:
    """(3, 1, 1) mean and std, cached on the device because CUDA graph capture forbids copies from the host."""
    with torch.inference_mode(False):
        made = (torch.tensor(three, dtype=torch.float32, device=device).view(3, 1, 1) for three in (mean, std))
        return next(made), next(made)


# -- preprocessor_config.json of transformers


def _from_published(file: Mapping[str, Any]) -> ImageProcessor:
    # class name without suffixes; the first ViT files have no class name
    kind = str(file.get("image_processor_type") or file.get("feature_extractor_type") or "ViTImageProcessor")
    for ending in ("Fast", "Pil", "ImageProcessor", "FeatureExtractor"):
        kind = kind.removesuffix(ending)
    if kind == "ImageGPT" or "clusters" in file:
        raise DataError("expected pixel values as model inputs, got palette colors (ImageGPT).")
    for name, value in file.items():
        if name not in _SUPPORTED_KEYS | _IGNORED_KEYS and value not in (None, False):
            raise DataError(f"{name}={json.dumps(value)[:60]} is not supported.")
    missing = ", ".join(name for name in _REQUIRED_KEYS if file.get(name) is None)
    if kind not in _CLASS_DEFAULTS and missing:
        raise DataError(f"image processor '{kind}' is not supported without explicit values for {missing}.")
    settings = {**_CLASS_DEFAULTS.get(kind, {}), **{name: value for name, value in file.items() if value is not None}}
    if "crop_pct" in settings and kind != "ConvNext":
        reason = "because crop_pct depends on the processor class"
        raise DataError(f"crop_pct is not supported for image processor '{kind}', {reason}.")
    normalized, resized = bool(settings.get("do_normalize", True)), bool(settings.get("do_resize", True))
    made = ImageProcessor(
        resize="exact" if resized else "none",
        resample=int(settings.get("resample", 2)),
        rescale_factor=float(settings.get("rescale_factor", 1 / 255)) if settings.get("do_rescale", True) else 1.0,
        mean=_rgb_values(settings.get("image_mean", 0.5)) if normalized else (0.0, 0.0, 0.0),
        std=_rgb_values(settings.get("image_std", 0.5)) if normalized else (1.0, 1.0, 1.0),
        multiple=int(settings.get("ensure_multiple_of", 1)) if resized else 1,
    )
    made = _with_published_size(made, kind, settings) if resized else made
    if not settings.get("do_center_crop", False):
        return made
    if made.crop or made.resize == "ratio" or made.multiple > 1:
        raise DataError("do_center_crop combined with another resize mode is not supported.")
    size = _size_pair(settings.get("crop_size", made.size))
    if made.resize == "exact" and made.size == size:
        return made
    if made.resize == "exact" and made.size[0] != made.size[1]:
        raise DataError("do_center_crop after resizing to a non-square size is not supported.")
    return replace(made, size=size, edge=0 if made.resize == "none" else made.edge or made.size[0], crop=True)


def _with_published_size(made: ImageProcessor, kind: str, settings: Mapping[str, Any]) -> ImageProcessor:
    size = settings["size"]
    if isinstance(size, int):
        size = {"height": size, "width": size} if settings.get("default_to_square", True) else {"shortest_edge": size}
    if not isinstance(size, Mapping) or set(size) not in ({"height", "width"}, {"shortest_edge"}):
        raise DataError(f"size={json.dumps(size)[:60]} is not supported.")
    if "height" in size:
        return replace(made, size=_size_pair(size), resize="ratio" if settings.get("keep_aspect_ratio") else "exact")
    edge = int(size["shortest_edge"])
    made = replace(made, size=(edge, edge), resize="shortest")
    if kind != "ConvNext":
        return made
    if edge >= _MIN_UNCROPPED_SIDE:
        return replace(made, resize="exact")
    return replace(made, edge=int(edge / float(settings["crop_pct"])), crop=True)


def _size_pair(size: Any) -> Size:
    if isinstance(size, int):
        return size, size
    return (int(size["height"]), int(size["width"])) if isinstance(size, Mapping) else (int(size[0]), int(size[1]))


def _rgb_values(value: Any) -> RGB:
    values = [float(value)] * 3 if isinstance(value, int | float) else [float(one) for one in value]
    if len(values) != 3:
        raise DataError(f"expected 3 values, one per color channel, got {len(values)}.")
    return values[0], values[1], values[2]


# -- captioning


@dataclass(frozen=True)
class CaptionProcessor:
    """Image processor for the inputs, and tokenizer for the captions."""

    pixels: ImageProcessor
    text: TextTokenizer

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> CaptionProcessor | ImageProcessor | TextTokenizer | None:
        """Both processors of a folder, or the only one found, or None; tasks report a missing processor when needed."""
        from regard.processors.tokenizer.tokenizer import TextTokenizer

        pixels, text = ImageProcessor.load(folder), TextTokenizer.find(Path(folder))
        return pixels or text if pixels is None or text is None else cls(pixels, text)

    def with_fixed_size(self, side: int) -> CaptionProcessor:
        """Copy with one image size for training batches."""
        return replace(self, pixels=self.pixels.with_fixed_size(side))


# -- augmentation

COLUMNS = (
    "left", "top", "width", "height", "mirrored", "brightness", "contrast", "saturation", "weight", "partner",
    "right", "down", "across", "along", "wide", "high", "grey",
)  # fmt: skip
"""Columns of a parameter row: crop box (fractions of the image), flip (1: yes), color factors, mixup weight
and index of the mixup partner in the batch, shift (fractions of the sides), and center, sides (0: no erasing) and gray value
of the erased rectangle."""
MAX_CROP_RATIO = 4 / 3  # maximum change of the aspect ratio of a random crop, as a factor
MIN_ERASE_AREA, MAX_ERASE_RATIO = 0.02, 3.3
"""Erased rectangles: minimum area as a fraction of the image, and maximum ratio of the longer to the shorter side."""
LUMA_WEIGHTS = (0.299, 0.587, 0.114)


@dataclass(frozen=True)
class Augment:
    """Maximum strength of each augmentation; the defaults leave images unchanged."""

    crop: float = 1.0  # minimum area of a random crop as a fraction of the image; 1: no crop
    flip: bool = False  # horizontal flip with probability 0.5
    color_jitter: float = 0.0  # maximum relative change of brightness, contrast and saturation
    mixup: float = 0.0  # parameter of the Beta distribution of mixup weights; 0: no mixup
    shift: float = 0.0  # maximum shift as a fraction of the sides, rounded to pixels
    erase: float = 0.0  # maximum area fraction of a gray rectangle, drawn with probability 0.5 (random erasing)

    def __post_init__(self) -> None:
        scale = "data.crop_scale (minimum fraction of the image area)"
        erasing = f"0, or at least {MIN_ERASE_AREA} and below 1"
        check_settings(
            (0 < self.crop <= 1, scale, "above 0 and at most 1", self.crop),
            (0 <= self.color_jitter < 1, "data.color_jitter", "at least 0 and below 1", self.color_jitter),
            (self.mixup >= 0, "data.mixup", "at least 0", self.mixup),
            (0 <= self.shift < 1, "data.shift", "at least 0 and below 1", self.shift),
            (not self.erase or MIN_ERASE_AREA <= self.erase < 1, "data.random_erasing", erasing, self.erase),
        )


def sample_params(rng: np.random.Generator, count: int, augment: Augment) -> NDArray[np.float32]:
    """(count, 17) parameters with the columns `COLUMNS`. Disabling an augmentation other than mixup leaves the random values of
    the others unchanged."""
    share = 1 - (1 - augment.crop) * rng.random(count)
    widest = np.minimum(math.log(MAX_CROP_RATIO), -np.log(share))  # a larger ratio would exceed the image
    apart = np.exp(widest * (2 * rng.random(count) - 1))
    width, height = np.sqrt(share * apart), np.sqrt(share / apart)
    left, top = rng.random(count) * (1 - width), rng.random(count) * (1 - height)
    mirrored = (rng.random(count) < 0.5) & augment.flip
    rng.random(count)  # unused: a seed keeps its other numbers
    color_factors = 1 + augment.color_jitter * (2 * rng.random((3, count)) - 1)
    weight, partner = np.ones(count), rng.permutation(count)
    if augment.mixup:
        weight = rng.beta(augment.mixup, augment.mixup, count)
    moved = augment.shift * (2 * rng.random((2, count)) - 1)
    # center, sides and gray value of the erased rectangles, which may extend beyond the image
    across, along, drawn, apart, chance, gray = rng.random((6, count))
    share = (chance < 0.5) * (MIN_ERASE_AREA + (augment.erase - MIN_ERASE_AREA) * drawn) * (augment.erase > 0)
    apart = np.exp(math.log(MAX_ERASE_RATIO) * (2 * apart - 1))
    covered = across, along, np.sqrt(share * apart), np.sqrt(share / apart), gray
    rows = np.stack([left, top, width, height, mirrored, *color_factors, weight, partner, *moved, *covered], axis=1)
    return rows.astype(np.float32)


def mixup_weights(augment_params: Tensor) -> tuple[Tensor, Tensor]:
    """(B,) weight of each image and (B,) index of the image with the remaining weight, to mix labels in the same way."""
    return augment_params[:, 8], augment_params[:, 9].long()


def augment_images(x: Tensor, augment_params: Tensor, size: Size, augment: Augment | None = None) -> Tensor:
    """Augmented images: (B, 3, H, W) uint8 -> (B, 3, *size) floats in [0, 1], without gradients.

    Augmentations disabled in `augment` are skipped; None computes all of them."""
    with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
        augment_params = augment_params.float()
        x = _crop_resize(x.float(), augment_params, size) / 255
        if augment is None or augment.color_jitter:
            # brightness, then contrast around the mean gray value, then saturation around the gray value of each pixel
            brightness, contrast, saturation = (augment_params[:, at].view(-1, 1, 1, 1) for at in (5, 6, 7))
            x = x * brightness
            x = x + (contrast - 1) * (x - _grayscale(x).mean((2, 3), keepdim=True))
            x = (x + (saturation - 1) * (x - _grayscale(x))).clamp(0, 1)
        if augment is None or augment.erase:
            across, along, wide, high, gray = augment_params[:, 12:17].T
            columns, rows = (
                ((torch.arange(side, device=x.device) + 0.5) / side - middle[:, None]).abs() < extent[:, None] / 2
                for side, middle, extent in ((size[1], across, wide), (size[0], along, high))
            )
            x = torch.where((rows[:, :, None] & columns[:, None, :])[:, None], gray.view(-1, 1, 1, 1), x)
        if augment is None or augment.mixup:
            weight, partner = mixup_weights(augment_params)
            x = torch.lerp(x[partner], x, weight.view(-1, 1, 1, 1))
        return x


def augment_maps(values: Tensor, augment_params: Tensor, size: Size) -> Tensor:
    """(B, H, W) class ids or depths -> (B, *size), cropped and flipped like the images. Nearest neighbor, so
    class ids and unknown depths are not interpolated."""
    batch, height, width = values.shape
    augment_params = augment_params.float()
    down, across = _source_positions(augment_params, height, width, size)
    # rounded about the middle, so that a position between two pixels falls into the same one in every version
    rows, columns = (down - height / 2 + height / 2).long(), (across - width / 2 + width / 2).long()
    index = rows[:, :, None] * width + columns[:, None, :]
    return values.flatten(1).gather(1, index.flatten(1)).view(batch, *size)


# -- geometry


def _source_positions(changes: Tensor, height: int, width: int, new: Size) -> tuple[Tensor, Tensor]:
    """(B, new height) and (B, new width) centers of the new pixels in coordinates of the old image, whose first pixel has its
    center at 0.5. Shifts repeat the edge pixels.

    The unit is pixels, so a whole image at the original size has a step of exactly 1, without rounding errors."""
    places = torch.arange(max(new), device=changes.device, dtype=torch.float32) + 0.5
    down = changes[:, 1, None] * height + places[: new[0]] * (changes[:, 3, None] * (height / new[0]))
    across = changes[:, 0, None] * width + places[: new[1]] * (changes[:, 2, None] * (width / new[1]))
    across = torch.where(changes[:, 4, None] > 0, across.flip(1), across)
    right, below = ((changes[:, place] * side).round()[:, None] for place, side in ((10, width), (11, height)))
    return (down - below).clamp(0.5, height - 0.5), (across - right).clamp(0.5, width - 0.5)


def _crop_resize(x: Tensor, changes: Tensor, new: Size) -> Tensor:
    batch, channels, height, width = x.shape
    matrices = []  # (B, new, old) weights of the old pixels in each new pixel, for rows and for columns
    for side, centers in enumerate(_source_positions(changes, height, width, new)):
        old = x.shape[2 + side]
        reach = (changes[:, 3 - side] * (old / new[side])).clamp(min=1).view(-1, 1, 1)
        middles = torch.arange(old, device=x.device, dtype=torch.float32) + 0.5
        weights = (1 - (middles - centers[:, :, None]).abs() / reach).clamp(min=0)
        matrices.append(weights / weights.sum(2, keepdim=True))
    rows, columns = matrices
    narrow = torch.bmm(x.reshape(batch, channels * height, width), columns.mT).view(batch, channels, height, new[1])
    # per channel: a single product for all channels would copy the row matrices three times
    return torch.stack([torch.bmm(rows, narrow[:, channel]) for channel in range(channels)], 1)


def _grayscale(x: Tensor) -> Tensor:
    red, green, blue = (weight * x[:, place : place + 1] for place, weight in enumerate(LUMA_WEIGHTS))
    return red + green + blue
