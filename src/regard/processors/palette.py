"""Images as sequences of color ids: each pixel is encoded as the id of the nearest palette color, and decoded again.

A palette is computed from images by k-means, or read from the `clusters` of a Hugging Face checkpoint (ImageGPT). Colors are
RGB in [-1, 1]; a gray color has three equal values.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from regard.errors import DataError, WeightsError
from regard.files import write_json
from regard.processors import read_processor_file

ImageArray = npt.NDArray[np.uint8]  # (H, W, 3)
Colors = npt.NDArray[np.float64]  # (N, 3) in [-1, 1]
Ids = npt.NDArray[np.int64]

FILE = "preprocessor_config.json"
BILINEAR = int(Image.Resampling.BILINEAR)

MAX_PIXELS = 2**18  # Pixels for the k-means of a palette, sampled from all images.
KMEANS_BATCH = 2**14  # Distinct colors per k-means iteration; smaller sets are used completely.
KMEANS_ITERATIONS = 100  # iterations of mini-batch k-means; three times as many if an iteration uses all colors
MAX_DISTANCES = 2**20  # Distances held in memory at once.


@dataclass(frozen=True, eq=False)
class Palette:
    """Processor with the interface of `ImageProcessor`, but with color ids (B, side²) as model inputs."""

    colors: Colors
    side: int  # height and width of the model inputs in pixels
    resample: int = BILINEAR  # filter id of Pillow for resizing

    def __post_init__(self) -> None:
        table = np.asarray(self.colors, dtype=np.float64)
        if table.ndim != 2 or table.shape[1] != 3 or not len(table) or not np.isfinite(table).all():
            raise DataError(
                "A palette needs at least one color, and each color three finite numbers (red, green and blue)."
            )
        if self.side < 1 or self.resample not in [int(known) for known in Image.Resampling]:
            raise DataError(f"Cannot resize images to {self.side} pixels with resampling filter {self.resample}.")
        object.__setattr__(self, "colors", table)

    def __len__(self) -> int:
        return len(self.colors)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the model inputs."""
        return self.side, self.side

    @property
    def min_side(self) -> int:
        """Shorter side in pixels below which a JPEG must not be downscaled while decoding (see `read_image`)."""
        return self.side

    def scaled(self, scale: float) -> Palette:
        """Copy for larger images, from which random crops are taken."""
        return replace(self, side=round(scale * self.side))

    def fingerprint(self) -> str:
        """Hash of colors, side and filter, to recognize data encoded by another palette."""
        content = self.colors.astype("<f8").tobytes() + f"{self.side} {self.resample}".encode()
        return hashlib.blake2b(content, digest_size=16).hexdigest()

    # -- pixels and ids

    def prepare(self, image: ImageArray) -> ImageArray:
        """(side, side, 3) uint8 image, resized without keeping the aspect ratio, as in `transformers`."""
        return resize_square(image, self.side, self.resample)

    def visible_box(self, height: int, width: int) -> tuple[float, float, float, float]:
        """Top, left, bottom and right of the part of an image that the model reads, as fractions: the whole image."""
        return 0.0, 0.0, 1.0, 1.0

    def normalize(self, x: Tensor) -> Tensor:
        """(B, H·W) color ids in row-major order from (B, 3, H, W) uint8 or floats in [0, 1] (output of the augmentation)."""
        flat = x.permute(0, 2, 3, 1).flatten(0, 2)
        halves = 0.5 if x.is_floating_point() else 127.5
        return self.nearest(flat.to(_color_table(self, x.device).dtype) / halves - 1).view(len(x), -1)

    def encode(self, image: ImageArray) -> Ids:
        """(side²,) color ids of an image of any size."""
        return self.normalize(torch.from_numpy(self.prepare(image).copy()).permute(2, 0, 1)[None])[0].numpy()

    def nearest(self, pixels: Tensor) -> Tensor:
        """(N, 3) pixels in [-1, 1] -> (N,) ids of the nearest colors by squared distance; ties go to the lowest id."""
        colors, step = _color_table(self, pixels.device), max(MAX_DISTANCES // len(self), 1)
        nearest = []
        for part in torch.split(pixels.to(colors.dtype), step):
            # from differences, not by a matrix product, so that equal distances compare equal
            distances = (part[:, :1] - colors[:, 0]) ** 2
            for channel in (1, 2):
                distances += (part[:, channel : channel + 1] - colors[:, channel]) ** 2
            nearest.append(distances.argmin(1))
        return torch.cat(nearest)

    def decode(self, ids: npt.ArrayLike) -> ImageArray:
        """(side, side, 3) uint8 image from color ids in row-major order."""
        table = np.clip(np.rint(127.5 * (self.colors + 1)), 0, 255).astype(np.uint8)
        return table[np.asarray(ids)].reshape(self.side, self.side, 3)

    # -- fitting and files

    @classmethod
    def fit(cls, images: Iterable[ImageArray], count: int, side: int, seed: int = 0) -> Palette:
        """Palette of `count` colors by k-means over the pixels of the resized images; all colors if there are fewer."""
        random = np.random.default_rng(seed)
        kept = _sample_pixels((resize_square(picture, side).reshape(-1, 3) for picture in images), random)
        if not len(kept):
            raise DataError("No images to compute a palette from.")
        different, weights = np.unique(kept, axis=0, return_counts=True)
        colors = kmeans(different / 127.5 - 1, weights.astype(np.float64), count, random)
        bright = colors @ np.array([0.299, 0.587, 0.114])
        return cls(colors[np.lexsort((*colors.T, bright))], side)  # sorted by brightness, for readability

    @classmethod
    def load(cls, folder: Path) -> Palette | None:
        """Palette of a checkpoint folder; None if the folder has no `clusters`."""
        path = folder / FILE
        settings = read_processor_file(path)
        if settings is None or settings.get("clusters") is None:
            return None
        for key, usual in REQUIRED_SETTINGS.items():
            if settings.get(key, usual) != usual:
                raise WeightsError(f"{path}: {key}={settings[key]!r} is not supported, expected {usual!r}.")
        try:
            size = settings["size"]  # an integer in older files
            height, width = (size, size) if isinstance(size, int) else (size["height"], size["width"])
            if height != width:
                raise ValueError(f"{height} × {width} is not square")
            return cls(np.array(settings["clusters"], np.float64), int(height), int(settings.get("resample", BILINEAR)))
        except (TypeError, ValueError, KeyError, DataError) as error:
            raise WeightsError(f"{path}: invalid size, resample or clusters ({str(error).rstrip('.')}).") from error

    def save(self, folder: Path) -> None:
        settings: dict[str, Any] = {"image_processor_type": "ImageGPTImageProcessor", **REQUIRED_SETTINGS}
        settings |= {"size": {"height": self.side, "width": self.side}, "resample": self.resample}
        write_json(folder / FILE, {**settings, "clusters": self.colors.tolist()})


REQUIRED_SETTINGS: dict[str, Any] = {
    "do_resize": True, "do_color_quantize": True, "do_normalize": True, "do_rescale": True, "rescale_factor": 1 / 255,
    "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5],
}  # fmt: skip
"""Required values of the normalization to [-1, 1]: other values would change the colors of the clusters."""


@lru_cache(maxsize=16)
def _color_table(palette: Palette, device: torch.device) -> Tensor:
    """(C, 3) colors of the palette, cached on the device because CUDA graph capture forbids copies from the host."""
    with torch.inference_mode(False):
        return torch.from_numpy(palette.colors).to(device, torch.float32 if device.type == "mps" else torch.float64)


def resize_square(image: ImageArray, side: int, resample: int = BILINEAR) -> ImageArray:
    if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8 or not image.size:
        raise DataError(
            "Expected an image of shape (height, width, 3) and dtype uint8, "
            f"got shape {image.shape} and dtype {image.dtype}."
        )
    if image.shape[:2] == (side, side):
        return image
    # a copy, because arrays that share memory with a Pillow image are read-only
    return np.array(Image.fromarray(image).resize((side, side), Image.Resampling(resample)))


def _sample_pixels(parts: Iterator[npt.NDArray[np.uint8]], random: np.random.Generator) -> npt.NDArray[np.uint8]:
    """At most MAX_PIXELS uniformly sampled pixels of all parts, in constant memory (reservoir sampling, algorithm R)."""
    kept, seen = np.zeros((0, 3), dtype=np.uint8), 0
    for part in parts:
        first = part[: MAX_PIXELS - len(kept)]
        if len(first):
            kept = np.concatenate([kept, first])
        rest = part[len(first) :]
        places = (random.random(len(rest)) * np.arange(seen + len(first) + 1, seen + len(part) + 1)).astype(np.int64)
        taken = places < MAX_PIXELS
        kept[places[taken]] = rest[taken]
        seen += len(part)
    return kept


# -- k-means


def kmeans(points: Colors, weights: npt.NDArray[np.float64], count: int, rng: np.random.Generator) -> Colors:
    """At most `count` cluster centers of distinct points, weighted by the number of pixels with each color.

    Up to KMEANS_BATCH points, every iteration uses all points (Lloyd's algorithm, until the assignment is stable). For more
    points, an iteration uses a random batch, and a center is the mean of all points assigned so far (Sculley 2010)."""
    if len(points) <= count:
        return points
    centers = _kmeans_init(points, weights, count, rng)
    whole, chances = len(points) <= KMEANS_BATCH, weights / weights.sum()
    seen, before = np.zeros(count), None
    for _ in range(3 * KMEANS_ITERATIONS if whole else KMEANS_ITERATIONS):
        rows = np.arange(len(points)) if whole else rng.choice(len(points), KMEANS_BATCH, p=chances)
        own = weights if whole else np.ones(KMEANS_BATCH)
        # ties are irrelevant here, so a faster matrix product is used
        step, sizes = max(MAX_DISTANCES // len(centers), 1), (centers**2).sum(1)
        used, starts = points[rows], range(0, len(rows), step)
        nearest = np.concatenate([(sizes - 2 * used[at : at + step] @ centers.T).argmin(1) for at in starts])
        far = ((used - centers[nearest]) ** 2).sum(1)
        if whole and before is not None and np.array_equal(nearest, before):
            break
        before, seen = nearest, np.zeros(count) if whole else seen
        mass = np.bincount(nearest, own, count)
        seen = seen + mass
        sums = np.stack([np.bincount(nearest, own * used[:, c], count) for c in range(3)], 1)
        here = mass > 0
        centers[here] += (sums[here] - mass[here, None] * centers[here]) / seen[here, None]
        if whole and not here.all():  # one empty cluster per iteration moves to the point with the largest error
            centers[np.argmin(here)] = points[np.argmax(far * own)]
    return np.unique(centers, axis=0)


def _kmeans_init(points: Colors, weights: npt.NDArray[np.float64], count: int, random: np.random.Generator) -> Colors:
    """Initial centers by k-means++ (Arthur and Vassilvitskii 2007): distant points are more likely, and none is chosen twice.
    Large inputs are subsampled."""
    if len(points) > max(KMEANS_BATCH, 4 * count):
        some = random.choice(len(points), max(KMEANS_BATCH, 4 * count), replace=False, p=weights / weights.sum())
        points, weights = points[some], np.ones(len(some))
    chosen = [int(random.choice(len(points), p=weights / weights.sum()))]
    far = np.full(len(points), np.inf)
    for _ in range(count - 1):
        far = np.minimum(far, ((points - points[chosen[-1]]) ** 2).sum(1))
        chances = far * weights
        chosen.append(int(random.choice(len(points), p=chances / chances.sum())))
    return points[chosen].copy()
