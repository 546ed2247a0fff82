"""Images, segmentation masks and depth maps as arrays, read with Pillow.

Errors contain the file name; warnings of Pillow are suppressed. Only raster formats are opened, because Pillow starts an
external program for some other formats (EPS).
"""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock
from typing import IO, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray
from PIL import Image, JpegImagePlugin, UnidentifiedImageError

from regard.data.file_discovery import COPY_AGAIN, FileFormatError, Location, library_errors, open_source, sniff_format
from regard.errors import InputError
from regard.threads import suppress_warnings

MAX_PIXELS = 100_000_000  # maximum number of decoded pixels: 300 MB as RGB
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "DIB", "WEBP", "TIFF", "PPM", "AVIF", "JPEG2000", "TGA")

Color = tuple[int, int, int]

_EXIF_TRANSPOSE = {
    2: Image.Transpose.FLIP_LEFT_RIGHT, 3: Image.Transpose.ROTATE_180, 4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE, 6: Image.Transpose.ROTATE_270, 7: Image.Transpose.TRANSVERSE, 8: Image.Transpose.ROTATE_90,
}  # fmt: skip
"""EXIF orientation, and the operation that makes the image upright."""
_SWAPS_AXES = tuple(_EXIF_TRANSPOSE[number] for number in (5, 6, 7, 8))

_IMAGE_MAGIC = {
    b"\x89PNG": "PNG", b"\xff\xd8\xff": "JPEG", b"GIF8": "GIF", b"RIFF": "WebP", b"BM": "BMP", b"II*\0": "TIFF",
    b"MM\0*": "TIFF",
}  # fmt: skip
"""First bytes of image formats, to report images that Pillow cannot identify as damaged."""
_TOO_LARGE = f"the image has {{:,.0f}} megapixels; the maximum is {MAX_PIXELS / 1e6:,.0f}."
_RESIZE = "Resize the image, or save it as JPEG, which can be decoded at a reduced size."


_pillow_lock = (
    Lock()
)  # Pillow reads the pixels of an opened file at the first use, without protection from other threads.


@dataclass(frozen=True)
class ImageInfo:
    """Properties of an image file."""

    height: int
    width: int  # size of the upright image, before downscaling
    mode: str  # Pillow mode, such as RGB, L or CMYK
    format: str
    animated: bool
    rotated: bool  # True if the EXIF orientation is not upright
    downscaled: bool  # True if the image was decoded at a reduced size
    transparent: bool  # True if a pixel is not opaque


def read_image(source: str | bytes, min_side: int = 0, location: Location | None = None) -> NDArray[np.uint8]:
    """RGB image as uint8, (H, W, 3), upright.

    Transparent images are composed on white; animations yield the first frame; 16 bits are rounded to 8. JPEG images of
    more than `MAX_PIXELS` pixels are decoded at 1/2, 1/4 or 1/8 of the size; other formats raise `DataError`. With
    `min_side`, JPEG images are decoded at the smallest such size with this shorter side, which is much faster.
    """
    with _open_image(source, location, min_side) as (image, _):
        return _to_rgb(image)


def image_to_array(image: Image.Image) -> NDArray[np.uint8]:
    """RGB array, (H, W, 3), of an open Pillow image, as in `read_image`."""
    try:
        with _decoding_errors(), _pillow_lock:
            image.load()
            turn = _orientation(image)
        return _to_rgb(image if turn is None else image.transpose(turn))
    except FileFormatError as error:
        raise error.to_data_error(getattr(image, "filename", None) or "image") from error


def pixels_to_rgb(pixels: NDArray[Any], channels_first: bool = False) -> NDArray[np.uint8]:
    """RGB array, (H, W, 3), of gray, RGB or RGBA pixels: (H, W), (H, W, C) or (C, H, W) of bool, 8-bit or 16-bit integers, or
    floats from 0 to 1, as in `read_image`. `channels_first`: (C, H, W), if the shape may have both orders."""
    numbers = (1, 3, 4)
    places = [at for at in ((0, 2) if channels_first else (2, 0)) if pixels.ndim == 3 and pixels.shape[at] in numbers]
    if not pixels.size or (pixels.ndim != 2 and not places):
        raise InputError(
            f"Expected an image of shape (H, W), (H, W, C) or (C, H, W) with 1, 3 or 4 channels, got {pixels.shape}."
        )
    pixels = np.moveaxis(pixels, places[0], 2) if places else pixels[:, :, None]
    kind = pixels.dtype.kind
    most = {"b": 1.0, "u": 65535.0 if pixels.dtype == np.uint16 else 255.0, "i": 255.0}.get(kind, 1.0)
    low, high = (float(pixels.min()), float(pixels.max())) if kind in "biuf" else (np.nan, np.nan)
    if kind == "f" and high > 1:
        most = 255.0
    if not (low >= 0 and high <= most):  # also true for NaN
        values = f" from {low:g} to {high:g}" if kind in "biuf" else ""
        raise InputError(
            f"Expected pixels from 0 to 255, 16-bit integers, or floats from 0 to 1, got {pixels.dtype}{values}. For "
            "normalized pixels, use logits(pixels) or states(pixels)."
        )
    if pixels.dtype != np.uint8:
        pixels = np.rint(pixels.astype(np.float64) * (255.0 / most)).astype(np.uint8)
    pixels = np.ascontiguousarray(pixels)
    if pixels.shape[2] == 4:
        return _to_rgb(Image.fromarray(pixels, "RGBA"))
    return pixels if pixels.shape[2] == 3 else np.repeat(pixels, 3, axis=2)


def inspect_image(
    source: str | bytes, location: Location | None = None, full: bool = True
) -> tuple[NDArray[np.uint8], ImageInfo]:
    """RGB array, (H, W, 3), and properties of the file; `full=False` skips the slow checks (animated, transparent)."""
    with _open_image(source, location, 0, full) as (image, facts):
        return _to_rgb(image), facts


def read_mask(
    source: str | bytes, colors: Mapping[Color, int] | None = None, location: Location | None = None
) -> NDArray[np.uint8] | NDArray[np.uint16]:
    """Class ids, (H, W): gray values, palette indices, or the ids that `colors` assigns to RGB colors."""
    with _open_image(source, location, 0) as (image, facts):
        if facts.format == "JPEG":
            problem = "JPEG masks are not supported: compression changes class ids."
            raise FileFormatError(problem, "Save the mask as PNG.")
        if image.mode in ("L", "P", "1", "LA", "PA") and not colors:
            # drops the alpha channel; 1-bit masks become 0 and 1
            return np.array(image.getchannel(0) if len(image.getbands()) > 1 else image).astype(np.uint8)
        if image.mode.startswith("I"):
            return _to_smallest_uint(np.array(image))
        if image.mode in ("F", "CMYK", "YCbCr", "LAB", "HSV"):
            problem = f"unsupported pixel mode {image.mode} for a mask."
            raise FileFormatError(problem, "Save the mask as 8- or 16-bit PNG.")
        return _colors_to_classes(np.array(image.convert("RGB")), colors)


def read_depth(source: str | bytes, unit: float | None = None, location: Location | None = None) -> NDArray[np.float32]:
    """Depth in meters, (H, W), 0 for missing values: from 16-bit PNG, float TIFF or PFM, or a NumPy array (.npy).

    `unit` is the number of meters per unit; default: integers are millimeters, floats are meters."""
    values: NDArray[Any] | None = None
    with open_source(source, "image", location) as stream:
        if stream.read(6) == b"\x93NUMPY":
            stream.seek(0)
            with library_errors("damaged NumPy array ({}).", "Save the array again."):
                values = np.asarray(np.load(stream, allow_pickle=False))
            values = values.squeeze() if values.ndim == 3 else values
            if values.ndim != 2 or values.dtype.kind not in "fiu" or not values.size:
                problem = f"expected one depth value per pixel, got shape {values.shape} and type {values.dtype}."
                raise FileFormatError(problem, "Save the array with shape (height, width).")
    if values is None:
        with _open_image(source, location, 0) as (image, _):
            if image.mode != "F" and not image.mode.startswith("I") and (image.mode != "L" or unit is None):
                kind = "8 bits per pixel" if image.mode == "L" else f"pixel mode {image.mode}"
                scale = " For 8 bits, set data.depth_scale=METERS (meters per unit)." if image.mode == "L" else ""
                problem = f"expected a depth map with 16 bits per pixel or floats, got {kind}."
                raise FileFormatError(problem, f"Save depth as 16-bit PNG or as floats.{scale}")
            values = np.array(image)
    step = unit if unit is not None else 0.001 if np.issubdtype(values.dtype, np.integer) else 1.0
    meters = values.astype(np.float32) * np.float32(step)
    with np.errstate(invalid="ignore"):
        return np.where(np.isfinite(meters) & (meters > 0), meters, np.float32(0))


# -- opening


_suppress_warnings = partial(suppress_warnings, module=r"PIL\b|regard\.data\.images\.image_io")


_decoding_errors = partial(library_errors, "damaged image: cannot be decoded ({}).", truncated="truncated file: {}.")


@contextmanager
def _open_image(
    source: str | bytes, place: Location | None, least: int, curious: bool = False
) -> Iterator[tuple[Image.Image, ImageInfo]]:
    """Decoded upright image and its properties; errors inside the context become `DataError` with the file name."""
    with (
        open_source(source, "image", place) as stream,
        _suppress_warnings(),
        _decoding_errors(),
        _identify(stream) as image,
    ):
        yield _decode(image, least, curious)


def _identify(stream: IO[bytes]) -> Image.Image:
    """Opened image, not decoded yet. The first bytes of other files determine the error."""
    Image.init()  # older Pillow versions raise for unknown formats
    try:
        return Image.open(stream, formats=[name for name in FORMATS if name in Image.OPEN])
    except Image.DecompressionBombError as error:
        stream.seek(0)
        if stream.read(3) == b"\xff\xd8\xff":  # JPEG can be decoded at a reduced size
            stream.seek(0)
            return JpegImagePlugin.JpegImageFile(stream)
        pixels = re.search(r"(\d+) pixels", str(error))
        raise FileFormatError(_TOO_LARGE.format(int(pixels[1]) / 1e6 if pixels else 0), _RESIZE) from error
    except UnidentifiedImageError as error:
        stream.seek(0)
        first = stream.read(64)
        if not first:
            raise FileFormatError("the file is empty.", COPY_AGAIN) from error
        if damaged := next((kind for magic, kind in _IMAGE_MAGIC.items() if first.startswith(magic)), ""):
            raise FileFormatError(f"damaged {damaged} image.", COPY_AGAIN) from error
        if first[4:8] == b"ftyp" and first[8:12] in (b"heic", b"heix", b"mif1", b"msf1"):
            raise FileFormatError("HEIC images are not supported.", "Convert the image to JPEG.") from error
        kind = sniff_format(first)
        problem = f"expected an image, got {kind}." if kind else "unknown image format."
        advice = "Supported: JPEG, PNG, WebP, TIFF, GIF, BMP, PPM, AVIF and JPEG 2000."
        raise FileFormatError(problem, advice) from error


def _decode(image: Image.Image, least: int, curious: bool) -> tuple[Image.Image, ImageInfo]:
    width, height = image.size
    scale = 1
    if isinstance(image, JpegImagePlugin.JpegImageFile):
        while scale < 8 and -(-width // scale) * -(-height // scale) > MAX_PIXELS:
            scale *= 2
        while scale < 8 and least and min(width, height) // (2 * scale) >= least:
            scale *= 2
        if scale > 1:
            image.draft(None, (max(width // scale, 1), max(height // scale, 1)))
    elif width * height > MAX_PIXELS:
        raise FileFormatError(_TOO_LARGE.format(width * height / 1e6), _RESIZE)
    moves = curious and image.format in ("GIF", "PNG", "WEBP", "AVIF") and bool(getattr(image, "is_animated", False))
    form = "JPEG" if scale > 1 or image.format == "MPO" else image.format or ""
    image.load()
    turn = _orientation(image)
    upright = image if turn is None else image.transpose(turn)
    sides = (height, width) if turn in _SWAPS_AXES else (width, height)
    clear = False
    if curious and _has_alpha(upright) and not upright.mode.startswith("I"):
        alpha = upright.convert("LA" if upright.mode == "La" else "RGBA").getchannel("A")
        clear = int(np.array(alpha).min()) < 255
    return upright, ImageInfo(sides[1], sides[0], image.mode, form, moves, turn is not None, scale > 1, clear)


def _orientation(image: Image.Image) -> Image.Transpose | None:
    try:
        return _EXIF_TRANSPOSE.get(image.getexif().get(0x0112, 1))
    except Exception:  # EXIF data can be damaged in a valid image
        return None


# -- pixel formats


def _to_rgb(image: Image.Image) -> NDArray[np.uint8]:
    if image.mode.startswith("I") or image.mode == "F":
        values = np.array(image)
        low, high = float(values.min()), float(values.max())
        # integers have a range of 16 bits, floats a range of 0 to 1 or 0 to 255
        limit = 65535.0 if np.issubdtype(values.dtype, np.integer) else 1.0 if high <= 1 else 255.0
        if not (low >= 0 and high <= limit):  # also raises for NaN
            problem = f"gray values from {low:g} to {high:g} are not supported: the brightness range is unknown."
            raise FileFormatError(problem, "Save the image with 8 or 16 bits per pixel, or as floats from 0 to 1.")
        gray = np.rint(values.astype(np.float64) * (255.0 / limit)).astype(np.uint8)
        return np.repeat(gray[:, :, None], 3, axis=2)
    if _has_alpha(image):
        clear = image.convert("LA" if image.mode == "La" else "RGBA").convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", clear.size, (255, 255, 255, 255)), clear)
    if image.mode == "LAB":
        from PIL import ImageCms

        lab, srgb = ImageCms.createProfile("LAB"), ImageCms.createProfile("sRGB")
        return np.array(ImageCms.profileToProfile(image, lab, srgb, outputMode="RGB"))
    return np.array(image.convert("RGB"))


def _has_alpha(image: Image.Image) -> bool:
    return image.mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in image.info


def _to_smallest_uint(values: NDArray[Any]) -> NDArray[np.uint8] | NDArray[np.uint16]:
    low, high = int(values.min()), int(values.max())
    if low < 0 or high > 65535:
        problem = f"invalid class ids: values range from {low} to {high}."
        raise FileFormatError(problem, "Use class ids from 0 to 65,535.")
    return values.astype(np.uint8) if high < 256 else values.astype(np.uint16)


def _colors_to_classes(
    pixels: NDArray[np.uint8], colors: Mapping[Color, int] | None
) -> NDArray[np.uint8] | NDArray[np.uint16]:
    if not colors:
        if (pixels == pixels[:, :, :1]).all():
            return np.ascontiguousarray(pixels[:, :, 0])
        advice = 'Add classes.json to the mask folder: {"classes": ["road", …], "colors": [[128, 64, 128], …]}.'
        raise FileFormatError("the mask is a color image, but no file assigns colors to classes.", advice)
    codes = pixels.astype(np.uint32) @ np.array([1 << 16, 1 << 8, 1], dtype=np.uint32)
    known = sorted((r << 16 | g << 8 | b, value) for (r, g, b), value in colors.items())
    keys, values = (np.array(side, dtype=np.uint32) for side in zip(*known, strict=True))
    at = np.minimum(np.searchsorted(keys, codes), len(keys) - 1)
    strange = keys[at] != codes
    if strange.any():
        example = f"{pixels[strange][0].tolist()} ({100 * float(strange.mean()):.2g} % of the pixels)"
        advice = "Add the colors to classes.json or classes.txt. JPEG compression and smooth resizing add such colors."
        raise FileFormatError(f"the mask contains colors of no class, such as {example}.", advice)
    return _to_smallest_uint(values[at].astype(np.int64))


# -- cache of decoded images

DECODE_THREADS = min(os.cpu_count() or 1, 16)  # Threads for decoding; Pillow releases the GIL.

MEMORY_FRACTION = 0.25  # Maximum fraction of free memory used by the cache.


CGROUP_FILES = tuple(
    tuple(f"/sys/fs/cgroup/{name}" for name in names.split())
    for names in (
        "memory.max memory.current memory.stat",
        "memory/memory.limit_in_bytes memory/memory.usage_in_bytes memory/memory.stat",
    )
)
"""Memory limit, memory usage and statistics (including file cache) of a container, for cgroup v2 and v1."""


def free_memory() -> int:
    """Free memory of the machine, limited by the container, in bytes; 1 GiB if the free memory of the machine is unknown."""
    from regard import capabilities  # imports torch, which reading images does not need

    machine = capabilities.free_memory()
    free = 2**30 if machine is None else machine
    for limit, usage, statistics in CGROUP_FILES:
        # without a container the files do not exist; without a limit the file contains "max"
        with suppress(OSError, ValueError):
            most, used, details = (Path(file).read_text(encoding="ascii") for file in (limit, usage, statistics))
            cached = re.search(r"^inactive_file (\d+)$", details, re.MULTILINE)
            free = min(free, int(most) - int(used) + (int(cached[1]) if cached else 0))
    return max(0, free)


def cache_bytes() -> int:
    """Memory for a cache of this process: a fraction of the free memory, divided by the processes that torchrun started on
    this machine."""
    processes = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return int(MEMORY_FRACTION * free_memory() / (max(1, int(processes)) if processes.isdigit() else 1))


class ImageCache:
    """`cache(i, read)` returns the image of sample i; `read` is called only on the first access.

    The memory is anonymous and shared between processes forked after the creation of the cache; the operating system
    allocates pages only when they are written."""

    def __init__(
        self, count: int, shape: tuple[int, ...], max_bytes: int | None = None, dtype: DTypeLike = np.uint8
    ) -> None:
        """The cache is disabled if all images need more than `max_bytes`; then every access calls `read`."""
        size = count * int(np.prod(shape)) * np.dtype(dtype).itemsize
        max_bytes = cache_bytes() if max_bytes is None else max_bytes
        self.count, self.shape, self.enabled = count, shape, 0 < size + count <= max_bytes
        if self.enabled:
            room = mmap.mmap(-1, size + count)
            whole = np.frombuffer(room, dtype=np.uint8)
            self.images, self.filled = whole[:size].view(dtype).reshape(count, *shape), whole[size:]

    def __call__(self, index: int, read: Callable[[], NDArray[Any]]) -> NDArray[Any]:
        if not self.enabled:
            return read()
        if not self.filled[index]:
            picture = read()
            if picture.shape != self.shape:  # images of other sizes are not cached
                return picture
            self.images[index] = picture
            self.filled[index] = 1  # set last, so that other processes only use complete images
        return self.images[index]

    def get_many(
        self, indices: Sequence[int], read: Callable[[int], NDArray[Any]], threads: int = 1
    ) -> list[NDArray[Any]]:
        """Images of several samples; `threads` > 1 decodes in parallel, for callers without worker processes."""

        def one(number: int) -> NDArray[Any]:
            return self(number, lambda: read(number))

        if threads == 1 or len(indices) < threads or (self.enabled and all(self.filled[number] for number in indices)):
            return [one(number) for number in indices]
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(one, indices))
