"""Exported image models: the image processor and the model of transformers, chosen from the folder, give the pixels and logits
of regard from the same files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from test_image import photograph
from transformers import AutoImageProcessor, AutoTokenizer
from transformers.image_utils import load_image

import parity  # also lets Swin of transformers read windows smaller than its bias table
import regard
from regard.data.settings import DataSettings
from regard.processors.image import CaptionProcessor, ImageProcessor
from regard.processors.tokenizer.tokenizer import TextTokenizer
from regard.systems import SYSTEMS
from regard.tasks.modality.image import load_image as own_image
from regard.tasks.modality.image import prepare_images, stack_images
from regard.types import Batch
from tiny import near
from tiny_caption_models import captioner
from tiny_vision_models import SIZES, made
from tokenizer_files import STORY

CASES = [
    (name, task)
    for name in SIZES
    for task in SYSTEMS[name].tasks
    if task in SYSTEMS[name].published.head_architectures and name != "hybrid"  # removed from transformers 5
]
CHANGES = {"resnet": {"stem_kernel": 7, "stem_stride": 2}, "dpt": {"image_size": 64, "patch_size": 16}}
SINGLE = 2e-6
"""Tolerance: pixels are in float32 in both libraries."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Image files that both libraries decode to the same pixels: the differences are in docs/design/checkpoints.md."""
    folder, turned = tmp_path_factory.mktemp("images"), Image.Exif()
    turned[0x0112] = 6

    def picture(height: int, width: int) -> Image.Image:
        return Image.fromarray(photograph(height, width, height))

    saved: dict[str, tuple[Image.Image, dict[str, Any]]] = {
        "rgb.png": (picture(45, 70), {}), "large.jpg": (picture(300, 217), {}), "small.png": (picture(9, 13), {}),
        "turned.jpg": (picture(80, 50), {"exif": turned}), "gray.png": (picture(60, 61).convert("L"), {}),
        "palette.png": (picture(62, 40).quantize(64), {}), "bits.png": (picture(40, 41).convert("1"), {}),
        "cmyk.jpg": (picture(50, 60).convert("CMYK"), {}), "exact.png": (picture(16, 16), {}),
        "lossless.webp": (picture(33, 44), {"lossless": True}), "wide.png": (picture(20, 900), {}),
        "high.png": (picture(1501, 31), {}),
    }  # fmt: skip
    for name, (image, how) in saved.items():
        image.save(folder / name, **how)
    return [folder / name for name in saved]


def own_inputs(model: Any, path: Path) -> torch.Tensor:
    pixels = model.require_image_processor()
    return prepare_images(model, Batch(stack_images([pixels.prepare(own_image(str(path)))]))).inputs


@pytest.mark.parametrize(("system", "task"), CASES)
def test_files_have_the_same_pixels_and_logits_in_transformers(
    system: str, task: str, files: list[Path], tmp_path: Path
) -> None:
    model = made(system, task, **CHANGES.get(system, {}))
    if system != "imagegpt":
        model.processor = model.objective.modality.default_processor(model.config, DataSettings())
    regard.save(model, tmp_path, layout="huggingface")
    assert parity.SIZES
    theirs, config = AutoImageProcessor.from_pretrained(tmp_path), transformers.AutoConfig.from_pretrained(tmp_path)
    peer = getattr(transformers, config.architectures[0]).from_pretrained(tmp_path, dtype=torch.float64).eval()
    for path in files:
        inputs, own = theirs(load_image(str(path)), return_tensors="pt"), own_inputs(model, path)
        if system == "imagegpt":
            assert torch.equal(own, inputs["input_ids"]), path.name
        else:
            torch.testing.assert_close(own, inputs["pixel_values"], rtol=0, atol=1e-6, msg=path.name)
        inputs = {name: value.double() if value.is_floating_point() else value for name, value in inputs.items()}
        found = peer(**inputs)
        right = found.predicted_depth if task == "depth" else found.logits
        near(model.logits(own if own.dtype == torch.long else own.double()).detach(), right.detach(), SINGLE)


def test_captions_of_files_have_the_same_logits_in_transformers(files: list[Path], tmp_path: Path) -> None:
    text = TextTokenizer.train_sentence_bpe([STORY], 320)
    model = captioner("caption-vit", vocab_size=text.size, pad_id=0, bos_id=1, eos_id=2)
    model.processor = CaptionProcessor(ImageProcessor((32, 32)), text)
    regard.save(model, tmp_path, layout="huggingface")
    pixels, tokens = AutoImageProcessor.from_pretrained(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    peer = transformers.AutoModelForImageTextToText.from_pretrained(tmp_path, dtype=torch.float64).eval()
    captions = ["the cat sat", "the dog's mat on the cat", "cat"]
    labels = tokens(captions, padding=True, truncation=True, return_tensors="pt")["input_ids"]
    assert tokens.model_max_length == model.config.max_length
    assert [row[row != 0].tolist() for row in labels] == [[*row, 2] for row in text.encode(captions)]
    decoder = torch.cat([torch.full((len(labels), 1), peer.config.decoder_start_token_id), labels[:, :-1]], 1)
    for path in files:
        own = own_inputs(model, path)
        right = pixels(load_image(str(path)), return_tensors="pt")["pixel_values"]
        torch.testing.assert_close(own, right, rtol=0, atol=1e-6)
        own, right = (values.double().expand(len(labels), -1, -1, -1) for values in (own, right))
        found = peer(pixel_values=right, decoder_input_ids=decoder).logits.detach()
        near(model.logits(own, decoder).detach()[labels != 0], found[labels != 0], SINGLE)


@pytest.mark.parametrize("processor", [
    ImageProcessor((16, 16), "shortest", crop=True, resample=3), ImageProcessor((224, 224), "shortest", 256, True, resample=3),
    ImageProcessor((40, 24), "shortest", 48, True),
], ids=["16", "224", "40 x 24"])  # fmt: skip
def test_the_middle_of_very_long_images_is_resized_as_the_whole(
    processor: ImageProcessor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exactly, or without the rest of the image almost exactly: Pillow rounds the sides of the middle to float32."""
    processor.save(tmp_path)
    theirs = AutoImageProcessor.from_pretrained(tmp_path)
    for height, width in ((33, 800), (32, 513), (37, 1001), (100, 3333), (1, 90), (3333, 100)):
        picture = photograph(height, width)
        plain = theirs(Image.fromarray(picture), do_rescale=False, do_normalize=False, return_tensors="np")
        right = plain["pixel_values"][0].transpose(1, 2, 0)
        assert np.array_equal(processor.prepare(picture), right), (height, width)
        with monkeypatch.context() as patch:
            patch.setattr("regard.processors.image.MAX_WHOLE_PIXELS", 0)
            middle = processor.prepare(picture)
            assert np.abs(middle.astype(int) - right).max() <= 2, (height, width)
            found = processor.prepare_map(np.arange(height * width).reshape(height, width), fill=-1)
        places = np.arange(height * width, dtype=np.int64).reshape(height, width)
        size = processor._resized_size(height, width)
        rows, columns = (
            (2 * np.arange(new) + 1) * old // (2 * new) for new, old in zip(size, (height, width), strict=True)
        )
        expected = processor._center_crop(places[rows[:, None], columns[None]], -1)
        assert np.array_equal(found, expected) and np.array_equal(processor.prepare_map(places, fill=-1), expected)
