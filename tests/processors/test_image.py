"""Image files: every format is read or refused by name; preprocessing equals the processors of transformers."""

from __future__ import annotations

import io
import json
import os
import struct
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from data_files import refused, write
from regard.data.images import image_io
from regard.data.images.image_io import read_depth, read_image, read_mask
from regard.errors import DataError, SettingError
from regard.processors.image import FILE, ImageProcessor


def photograph(height: int = 45, width: int = 70, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width] / max(height, width)
    waves = [127 + 100 * np.sin(9 * x * a + 7 * y * b + c) for a, b, c in random.random((3, 3)) * 3]
    return (np.stack(waves, axis=2) + random.normal(0, 9, (height, width, 3))).clip(0, 255).astype(np.uint8)


def encoded(image: Image.Image | np.ndarray, form: str, **how: Any) -> bytes:
    stream = io.BytesIO()
    (Image.fromarray(image) if isinstance(image, np.ndarray) else image).save(stream, form, **how)
    return stream.getvalue()


@pytest.mark.parametrize("form", ["PNG", "BMP", "TIFF", "PPM", "WEBP"])
def test_lossless_formats_are_read_exactly(form: str) -> None:
    picture = photograph()
    how = {"lossless": True} if form == "WEBP" else {}
    assert np.array_equal(read_image(encoded(picture, form, **how)), picture)


def test_a_path_and_its_bytes_are_one_image_and_broken_exif_data_is_ignored(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jpg", content := encoded(photograph(), "JPEG", quality=95))
    found = read_image(path)
    assert found.dtype == np.uint8 and found.flags.writeable and found.shape == (45, 70, 3)
    assert np.array_equal(found, read_image(content)) and np.array_equal(found, np.array(Image.open(path)))
    content = encoded(photograph(), "JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\x7f")
    assert read_image(content).shape == (45, 70, 3)


def test_grayscale_palettes_bits_and_cmyk_become_colors_and_16_bits_are_rounded() -> None:
    picture = Image.fromarray(photograph())
    grey = np.array(picture.convert("L"))
    assert np.array_equal(read_image(encoded(grey, "PNG")), np.repeat(grey[:, :, None], 3, 2))
    coloured = picture.quantize(200)
    assert np.array_equal(read_image(encoded(coloured, "PNG")), np.array(coloured.convert("RGB")))
    bits = picture.convert("1")
    assert np.array_equal(read_image(encoded(bits, "PNG"))[:, :, 0], np.array(bits).astype(np.uint8) * 255)
    values = np.linspace(0, 65535, 60 * 40).reshape(40, 60).astype(np.uint16)
    found = read_image(encoded(values, "PNG"))
    assert np.array_equal(found[:, :, 1], np.rint(values / 257).astype(np.uint8))
    shares = (values / 65535).astype(np.float32)
    assert np.array_equal(read_image(encoded(shares, "TIFF"))[:, :, 0], np.rint(shares * 255).astype(np.uint8))
    refused("values", read_image, encoded(shares - 3, "TIFF"))
    image = Image.fromarray(photograph()).convert("CMYK")
    found = read_image(encoded(image, "JPEG", quality=98))
    assert np.abs(found.astype(int) - np.array(image.convert("RGB"))).mean() < 6


@pytest.mark.parametrize("form", ["PNG", "WEBP"])
def test_transparent_pixels_become_white(form: str) -> None:
    picture = photograph(20, 20)
    alpha = np.full((20, 20, 1), 255, np.uint8)
    alpha[:10], alpha[10:12] = 0, 128
    image = Image.fromarray(np.concatenate([picture, alpha], 2))
    found = read_image(encoded(image, form, **({"lossless": True, "exact": True} if form == "WEBP" else {})))
    assert (found[:10] == 255).all() and np.array_equal(found[12:], picture[12:])
    half = picture[10:12] * (128 / 255) + 255 * (127 / 255)
    assert np.abs(found[10:12] - half).max() <= 1.5
    palette = Image.fromarray(picture).quantize(16)
    clear = read_image(encoded(palette, "PNG", transparency=3))
    assert (clear[np.array(palette) == 3] == 255).all()
    grey = Image.merge("LA", [Image.fromarray(picture[:, :, 0]), Image.fromarray(alpha[:, :, 0])])
    assert (read_image(encoded(grey, "PNG"))[:10] == 255).all()


@pytest.mark.parametrize("orientation", range(1, 9))
def test_images_are_rotated_by_their_exif_orientation(orientation: int) -> None:
    picture = photograph()
    image, exif = Image.fromarray(picture), Image.Exif()
    exif[0x0112] = orientation
    turned = {
        1: picture, 2: picture[:, ::-1], 3: picture[::-1, ::-1], 4: picture[::-1], 5: picture.transpose(1, 0, 2),
        6: np.rot90(picture, -1), 7: picture[::-1, ::-1].transpose(1, 0, 2), 8: np.rot90(picture, 1),
    }[orientation]  # fmt: skip
    assert np.array_equal(read_image(encoded(image, "PNG", exif=exif)), turned)
    _, facts = image_io.inspect_image(encoded(image, "JPEG", exif=exif))
    assert (facts.height, facts.width) == turned.shape[:2] and facts.rotated == (orientation > 1)


@pytest.mark.parametrize("form", ["GIF", "WEBP", "PNG"])
def test_the_first_frame_of_animations_is_taken(form: str) -> None:
    frames = [Image.fromarray(np.full((9, 12, 3), shade, np.uint8)) for shade in (40, 120, 250)]
    content = encoded(frames[0], form, save_all=True, append_images=frames[1:])
    pixels, facts = image_io.inspect_image(content)
    assert np.abs(pixels.astype(int) - 40).max() <= 3 and facts.animated
    assert not image_io.inspect_image(encoded(frames[0], form))[1].animated


def test_a_file_that_is_cut_off_or_missing_is_named(tmp_path: Path) -> None:
    for form in ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"):
        content = encoded(photograph(90, 90), form)
        path = tmp_path / f"cut.{form.lower()}"
        path.write_bytes(content[: len(content) // 2])
        with pytest.raises(DataError, match=rf"cut\.{form.lower()}") as error:
            read_image(str(path))
        assert "again" in str(error.value)
    refused(r"none\.png", read_image, str(tmp_path / "none.png"))
    refused("folder", read_image, str(tmp_path))
    os.mkfifo(tmp_path / "pipe.png")
    refused("file", read_image, str(tmp_path / "pipe.png"))


@pytest.mark.parametrize(("content", "said"), [
    (b"", "is empty"), (b"%PDF-1.7 ...", "got a PDF"), (b"<!DOCTYPE html><title>404</title>", "an HTML page"),
    (b"\n <svg xmlns='x'></svg>", "an SVG drawing"),
    (b"version https://git-lfs.github.com/spec/v1\noid", "Git LFS"),
    (b"\0\0\0\x20ftypheic\0\0\0\0", "HEIC.*Convert the image to JPEG"), (b"\x89PNG\r\n\x1a\nnothing", "PNG"),
    (b"\0\1\2\3 some bytes", "supported|known"),
    (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "PostScript"),
])  # fmt: skip
def test_non_images_are_named_by_their_type(content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(content)
    refused(rf"a\.jpg: .*{said}", read_image, str(tmp_path / "a.jpg"))
    refused(rf"table\.parquet, line 7: .*{said}", read_image, content, location=("table.parquet", 7))


def bomb(side: int) -> bytes:
    """PNG that declares side × side pixels and contains none."""
    import zlib

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    head = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


@pytest.mark.parametrize(("side", "megapixels"), [(10_001, 100), (12_000, 144), (20_000, 400)])
def test_more_than_a_hundred_megapixels_are_refused(side: int, megapixels: int) -> None:
    refused(f"{megapixels} megapixels", read_image, bomb(side))
    with pytest.raises(DataError, match=r"cut off|damaged|truncated"):  # within the limit: decoding is tried
        read_image(bomb(9_500))


def test_a_jpeg_is_decoded_at_the_needed_resolution(monkeypatch: pytest.MonkeyPatch) -> None:
    content = encoded(photograph(400, 600), "JPEG")
    sizes = {least: read_image(content, least).shape[:2] for least in (0, 300, 200, 120, 100, 40, 1)}
    assert sizes == {
        0: (400, 600), 300: (400, 600), 200: (200, 300), 120: (200, 300), 100: (100, 150), 40: (50, 75), 1: (50, 75),
    }  # fmt: skip
    content = encoded(photograph(120, 200), "JPEG", quality=95)
    monkeypatch.setattr(image_io, "MAX_PIXELS", 10_000)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 8_000)  # beyond twice this limit, Pillow raises an error on opening
    pixels, facts = image_io.inspect_image(content)
    assert pixels.shape == (60, 100, 3) and facts.downscaled and (facts.height, facts.width) == (120, 200)
    small = np.array(Image.fromarray(photograph(120, 200)).resize((100, 60), Image.Resampling.BOX))
    assert np.abs(pixels.astype(int) - small).mean() < 4
    refused("megapixels", read_image, encoded(photograph(120, 200), "PNG"))


def test_damaged_bytes_give_an_image_or_an_error_and_nothing_else() -> None:
    random = np.random.default_rng(0)
    for form in ("JPEG", "PNG", "GIF", "TIFF", "WEBP", "BMP", "PPM"):
        whole = encoded(photograph(24, 24), form)
        for _ in range(25):
            content = bytearray(whole)
            for place in random.integers(0, len(content), 4):
                content[place] = random.integers(0, 256)
            for read in (read_image, read_mask, read_depth):
                try:
                    found = read(bytes(content))
                except DataError:
                    continue
                assert found.ndim == (3 if read is read_image else 2)


def test_no_thread_prints_a_warning_of_pillow(monkeypatch: Any, recwarn: pytest.WarningsRecorder) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 2_000)  # Pillow warns above this limit, and warnings are errors here
    content = encoded(photograph(), "JPEG", exif=b"Exif\0\0MM\0*\0\0\0\x08\0\x05\x01\x12")
    before = list(warnings.filters)
    heard: list[Exception] = []

    def read() -> None:
        for _ in range(40):
            try:
                read_image(content)
            except Exception as error:
                heard.append(error)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not heard and not recwarn.list and list(warnings.filters) == before
    with image_io._suppress_warnings():
        read_image(content)
        assert warnings.filters[0][0] == "ignore"  # a finished thread does not restore the warnings of the others
    assert list(warnings.filters) == before


def test_masks_hold_numbers_of_classes_or_colors_of_a_table() -> None:
    values = np.random.default_rng(0).integers(0, 12, (30, 40)).astype(np.uint8)
    assert np.array_equal(read_mask(encoded(values, "PNG")), values)
    palette = Image.fromarray(values).convert("P")
    palette.putpalette(np.random.default_rng(1).integers(0, 256, 768).tolist())
    assert np.array_equal(read_mask(encoded(palette, "PNG")), values)
    wide = values.astype(np.uint16) * 900
    found = read_mask(encoded(wide, "PNG"))
    assert found.dtype == np.uint16 and np.array_equal(found, wide)
    bits = Image.fromarray(values > 5)
    assert np.array_equal(read_mask(encoded(bits, "PNG")), values > 5)
    grey = Image.fromarray(np.repeat(values[:, :, None], 3, 2))
    assert np.array_equal(read_mask(encoded(grey, "PNG")), values)
    table = {(128, 64, 128): 0, (0, 0, 0): 7, (255, 255, 0): 300}
    numbers = np.random.default_rng(0).integers(0, 3, (10, 12))
    image = Image.fromarray(np.array(list(table), dtype=np.uint8)[numbers])
    content = encoded(image, "PNG")
    assert np.array_equal(read_mask(content, table), np.array([0, 7, 300])[numbers])
    assert np.array_equal(read_mask(encoded(image.quantize(3), "PNG"), table), np.array([0, 7, 300])[numbers])
    refused(r"classes\.json", read_mask, content)
    refused("255", read_mask, content, {colour: value for colour, value in table.items() if value < 100})
    refused("JPEG masks", read_mask, encoded(image, "JPEG"))


def test_depth_is_in_meters_and_0_where_unknown(tmp_path: Path) -> None:
    millimetres = np.random.default_rng(0).integers(0, 9000, (20, 30)).astype(np.uint16)
    millimetres[:3] = 0
    found = read_depth(encoded(millimetres, "PNG"))
    assert found.dtype == np.float32 and np.allclose(found, millimetres / 1000) and (found[:3] == 0).all()
    assert np.allclose(read_depth(encoded(millimetres, "PNG"), 1 / 5000), millimetres / 5000)
    metres = (millimetres / 1000).astype(np.float32)
    metres[0, :4] = [np.nan, np.inf, -1, 0]
    wanted = np.where(np.isfinite(metres) & (metres > 0), metres, 0)
    assert np.array_equal(read_depth(encoded(metres, "TIFF")), wanted)
    for array in (metres, metres[None], metres[:, :, None].astype(np.float64)):
        np.save(tmp_path / "a.npy", array)
        assert np.allclose(read_depth(str(tmp_path / "a.npy")), wanted)
    refused(r"data\.depth_scale", read_depth, encoded(photograph()[:, :, 0], "PNG"))
    assert read_depth(encoded(photograph()[:, :, 0], "PNG"), 0.1).max() <= 25.5
    refused("pixel mode RGB", read_depth, encoded(photograph(), "PNG"), 1.0)
    np.save(tmp_path / "a.npy", np.zeros((2, 3, 4)))
    refused(r"a\.npy", read_depth, str(tmp_path / "a.npy"))
    np.save(tmp_path / "b.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    refused(r"b\.npy", read_depth, str(tmp_path / "b.npy"))


def processor(name: str, **values: Any) -> Any:
    library = pytest.importorskip("transformers", reason="the reference for parity")
    assert library
    from importlib import import_module

    module = import_module(f"transformers.models.{name.lower()}.image_processing_pil_{name.lower()}")
    return getattr(module, f"{name}ImageProcessorPil")(**values)


THEIRS: list[tuple[str, dict[str, Any]]] = [
    ("ViT", {}), ("ViT", {"size": {"height": 48, "width": 64}, "resample": 3}),
    ("ViT", {"do_resize": False, "do_normalize": False}),
    ("ViT", {"size": {"height": 32, "width": 32}, "resample": 0, "do_rescale": False, "do_normalize": False}),
    ("Bit", {}), ("Bit", {"size": {"shortest_edge": 51}, "crop_size": {"height": 33, "width": 40}, "resample": 1}),
    ("Bit", {"size": {"shortest_edge": 30}, "crop_size": {"height": 37, "width": 52}}),
    ("Bit", {"size": {"shortest_edge": 44}, "do_center_crop": False}),
    ("Bit", {"size": {"height": 64, "width": 64}, "crop_size": {"height": 56, "width": 56}}),
    ("Bit", {"do_resize": False, "crop_size": {"height": 50, "width": 55}}),
    ("ConvNext", {"size": {"shortest_edge": 64}}), ("ConvNext", {"size": {"shortest_edge": 100}, "crop_pct": 0.9}),
    ("ConvNext", {"size": {"shortest_edge": 384}}), ("DPT", {"size": {"height": 64, "width": 64}}),
    ("DPT", {"size": {"height": 70, "width": 90}, "ensure_multiple_of": 32}),
    ("DPT", {"size": {"height": 96, "width": 96}, "keep_aspect_ratio": True, "ensure_multiple_of": 32}),
    ("DPT", {"size": {"height": 50, "width": 120}, "keep_aspect_ratio": True, "ensure_multiple_of": 14}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "values"), THEIRS, ids=[f"{name}-{at}" for at, (name, _) in enumerate(THEIRS)])
def test_pixels_are_those_of_published_processors(name: str, values: dict[str, Any], tmp_path: Path) -> None:
    theirs = processor(name, **values)
    theirs.save_pretrained(tmp_path / "theirs")
    ours = ImageProcessor.load(tmp_path / "theirs")
    (tmp_path / "ours").mkdir()
    ours.save(tmp_path / "ours")
    assert ImageProcessor.load(tmp_path / "ours") == ours
    kind = json.loads((tmp_path / "ours" / FILE).read_text())["image_processor_type"].removesuffix("ImageProcessor")
    again = type(processor(kind)).from_pretrained(tmp_path / "ours")  # transformers reads our processor configuration
    for number, (height, width) in enumerate([(45, 70), (120, 61), (33, 33), (300, 217)]):
        picture = photograph(height, width, number)
        made = ours.prepare(picture)
        assert made.dtype == np.uint8
        plain = theirs(picture, do_rescale=False, do_normalize=False, return_tensors="np")["pixel_values"][0]
        assert np.array_equal(made, plain.transpose(1, 2, 0))
        batch = torch.from_numpy(made).permute(2, 0, 1)[None]
        normal = ours.normalize(batch)
        for other in (theirs, again):
            wanted = torch.from_numpy(np.array(other(picture, return_tensors="np")["pixel_values"]))
            torch.testing.assert_close(normal, wanted.float(), rtol=0, atol=1e-6)
        if "do_rescale" not in values:
            torch.testing.assert_close(ours.normalize(batch / 255), normal, rtol=0, atol=1e-6)


def folder(path: Path, **said: Any) -> Path:
    (path / FILE).write_text(json.dumps(said))
    return path


def test_old_files_are_read(tmp_path: Path) -> None:
    half = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}

    def read(**said: Any) -> ImageProcessor:
        return ImageProcessor.load(folder(tmp_path, **said))

    assert read(do_resize=True, do_normalize=True, size=224, **half) == ImageProcessor()
    found = read(feature_extractor_type="ConvNextFeatureExtractor", size=224, resample=3, crop_pct=0.875)
    assert (found.size, found.edge, found.crop, found.resize) == ((224, 224), 256, True, "shortest")
    found = read(feature_extractor_type="DPTFeatureExtractor", size=384, keep_aspect_ratio=True, **half)
    assert (found.size, found.resize) == ((384, 384), "ratio")
    found = read(image_processor_type="ViTImageProcessorFast", size={"height": 32, "width": 48}, device=None)
    assert found.size == (32, 48)


def test_other_processors_are_read_by_their_fields_or_refused(tmp_path: Path) -> None:
    whole = {"size": {"shortest_edge": 224}, "crop_size": 200, "do_center_crop": True, "resample": 3,
             "image_mean": [0.4, 0.5, 0.6], "image_std": [0.2, 0.2, 0.2]}  # fmt: skip
    found = ImageProcessor.load(folder(tmp_path, image_processor_type="CLIPImageProcessor", **whole))
    assert found == ImageProcessor((200, 200), "shortest", 224, True, 1, 3, 1 / 255, (0.4, 0.5, 0.6), (0.2, 0.2, 0.2))
    cases: list[tuple[dict[str, Any], str]] = [
        ({"image_processor_type": "NewImageProcessor", "size": 224}, "'New' .*not supported.*image_mean, image_std, resample"),
        ({"image_processor_type": "ImageGPTImageProcessor", "clusters": [[0, 0, 0]]}, "palette colors"),
        ({"do_pad": True, "size_divisor": 32}, "do_pad=true is not supported"),
        ({"do_flip_channel_order": True}, "do_flip_channel_order=true"),
        ({"size": {"shortest_edge": 800, "longest_edge": 1333}}, "size=.*1333.* is not supported"),
        ({"image_processor_type": "PoolFormerImageProcessor", **whole, "crop_pct": 0.9}, "crop_pct"),
        ({"image_mean": [0.5]}, "3 values, one per color channel, got 1"),
        ({"image_std": [0, 0, 0]}, "invalid values"),
        ({"size": {"height": "x", "width": 3}}, "invalid values"),
        ({"resample": 99}, "invalid values"),
    ]  # fmt: skip
    for said, why in cases:
        refused(rf"{FILE}: .*{why}", ImageProcessor.load, folder(tmp_path, **said))
    (tmp_path / FILE).write_text("{")
    refused("read", ImageProcessor.load, tmp_path)
    (tmp_path / FILE).unlink()
    assert ImageProcessor.load(tmp_path) is None
    with pytest.raises(SettingError):
        ImageProcessor((0, 224))


def test_masks_are_resized_as_their_images_and_stripes_are_cropped_first() -> None:
    """Each pixel's red value is its class, at sizes without interpolation."""
    blocks = np.random.default_rng(0).integers(0, 200, (6, 9)).astype(np.uint8)
    mask = blocks.repeat(20, 0).repeat(20, 1)
    picture = np.repeat(mask[:, :, None], 3, 2)
    resized = ImageProcessor((60, 90), resample=0), ImageProcessor((50, 50), "shortest", 60, True, resample=0)
    for pixels in (*resized, ImageProcessor((130, 200), "none", crop=True)):
        assert np.array_equal(pixels.prepare_map(mask), pixels.prepare(picture)[:, :, 0])
    places = np.arange(120 * 180, dtype=np.int32).reshape(120, 180)
    for height, width in ((37, 53), (130, 301)):
        nearest = np.array(Image.fromarray(places).resize((width, height), Image.Resampling.NEAREST))
        # if the center of a pixel is between two pixels, the rounding in Pillow decides
        rows, columns = (
            [at for at in range(new) if (2 * at + 1) * old % (2 * new)] for new, old in ((height, 120), (width, 180))
        )
        found = ImageProcessor((height, width)).prepare_map(places)
        assert np.array_equal(found[rows][:, columns], nearest[rows][:, columns]) and len(rows) > 30 < len(columns)
    floats = ImageProcessor((30, 30)).prepare_map(mask.astype(np.float32))
    assert floats.dtype == np.float32 and np.isin(floats, mask).all()
    assert ImageProcessor((200, 200), "none", crop=True).prepare_map(mask, fill=255)[0, 0] == 255
    pixels = ImageProcessor((224, 224), "shortest", 256, True)
    stripe = np.random.default_rng(0).integers(0, 256, (20_000, 1, 3)).astype(np.uint8)
    assert pixels.prepare(stripe).shape == (224, 224, 3)
    assert pixels.prepare(stripe.transpose(1, 0, 2)).shape == (224, 224, 3)
    assert pixels.prepare_map(stripe[:, :, 0]).shape == (224, 224)
    assert ImageProcessor((384, 384), "ratio", multiple=32).prepare(stripe).shape[1] == 32
    refused("20000", ImageProcessor((224, 224), "shortest").prepare, stripe)


def test_another_size_cuts_off_as_much() -> None:
    assert ImageProcessor((224, 224), "shortest", 256, True).with_size(112, 112).edge == 128
    assert ImageProcessor().with_size(32, 48).size == (32, 48)
    cut = ImageProcessor((48, 48), "shortest", crop=True)
    assert cut.visible_box(120, 160) == (0, 0.125, 1, 0.875) and cut.visible_box(160, 120) == (0.125, 0, 0.875, 1)
    assert cut.visible_box(90, 90) == (0, 0, 1, 1) == ImageProcessor((48, 48)).visible_box(120, 160)
    assert ImageProcessor((224, 224), "shortest", 256, True).visible_box(300, 300) == (0.0625, 0.0625, 0.9375, 0.9375)
    assert ImageProcessor((224, 224), "shortest", 256, True).min_side == 256 and ImageProcessor((32, 48)).min_side == 48
