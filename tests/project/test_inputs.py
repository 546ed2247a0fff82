"""Inputs from Python: all accepted forms give equal predictions, and all other values give a clear error."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from test_card import MADE
from torch import Tensor

import regard
from regard import RegardError
from regard.data.images.image_io import pixels_to_rgb
from regard.data.points.cloud import PointCloud
from regard.data.points.cloud_files import write_ply
from regard.errors import InputError, InputTypeError, SettingError
from regard.model import Model
from regard.tasks.modality.image import load_image
from tiny_text_models import headed, translator

MODELS = {**MADE, "translate": lambda: translator("transformer")}
PIXELS = np.random.default_rng(3).integers(0, 256, (20, 30, 3), dtype=np.uint8)


def clear(call: Callable[..., Any], *given: Any, key: str = "", **more: Any) -> None:
    """The call raises a `RegardError` of a single paragraph, and a TypeError or a ValueError as well."""
    with pytest.raises(RegardError) as caught:
        call(*given, **more)
    assert isinstance(caught.value, TypeError | ValueError), repr(caught.value)
    assert key in str(caught.value) and "\n" not in str(caught.value)


class Unknown:
    """An object of no known type."""


WRONG: dict[str, Any] = {
    "None": None, "int": 3, "float": 3.5, "bool": True, "object": Unknown(), "type": str, "function": len, "set": {"a"},
    "dict": {"x": 1}, "empty dict": {}, "empty array": np.zeros(0), "array of rank 0": np.array(1.0),
    "empty tensor": torch.zeros(0), "tensor of rank 0": torch.tensor(1), "objects": np.array([None, 1]),
    "list of None": [None], "list of numbers": [3], "list of lists": [[]], "list of lists of None": [[None]],
    "list of objects": [Unknown()], "pair of None": (None, None), "text file": io.StringIO("a"), "empty file": io.BytesIO(),
    "empty bytes": b"", "NaN": np.full((8, 8, 3), np.nan), "complex": np.zeros((8, 8, 3), complex),
}  # fmt: skip
"""Values refused by every task, except None for drawing."""


@pytest.mark.parametrize("name", MODELS)
def test_other_values_are_refused_by_predict_and_explain(name: str) -> None:
    model: Model = MODELS[name]().float().eval()
    for kind, value in WRONG.items():
        if model.task.name == "draw" and (kind.endswith("None") or kind == "empty dict"):
            continue
        if model.task.input == "points" and kind == "NaN":  # a batch of rank 3 for points
            value = value[0]
        for call in (model.predict, model.explain):
            try:
                clear(call, value)
            except BaseException as error:
                raise AssertionError(f"{call.__name__}({kind})") from error
    assert model.predict([]) == [] and model.predict(iter([])) == []


def test_texts_are_read_from_any_sequence_and_iterator() -> None:
    model = MODELS["classify"]().float().eval()
    texts = ["a fine day", "the cat"]
    right = model.predict(texts)
    for form in (iter(texts), (text for text in texts), np.array(texts), dict.fromkeys(texts).keys()):
        assert [one.score for one in model.predict(form)] == [one.score for one in right]
    clear(model.predict, b"a text", key="bytes")
    clear(model.predict, Path("a text"), key="Path")


# -- images


def png(pixels: NDArray[Any]) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


CHANNELS_FIRST = np.ascontiguousarray(PIXELS.transpose(2, 0, 1))
OPAQUE = np.dstack([PIXELS, np.full((20, 30), 255, np.uint8)])
FORMS: dict[str, Any] = {
    "array": PIXELS, "channels first": CHANNELS_FIRST, "tensor": torch.from_numpy(CHANNELS_FIRST),
    "tensor, channels last": torch.from_numpy(PIXELS), "strided tensor": torch.from_numpy(PIXELS).permute(2, 0, 1),
    "float": PIXELS / 255, "float32": (PIXELS / 255).astype(np.float32), "float tensor": torch.from_numpy(CHANNELS_FIRST) / 255,
    "tensor with gradient": (torch.from_numpy(CHANNELS_FIRST) / 255).requires_grad_(),
    "16 bits": PIXELS.astype(np.uint16) * 257, "16-bit tensor": torch.from_numpy(CHANNELS_FIRST.astype(np.uint16) * 257),
    "int64": PIXELS.astype(np.int64), "int64 tensor": torch.from_numpy(CHANNELS_FIRST).long(),
    "transparency": OPAQUE, "transparency, channels first": torch.from_numpy(OPAQUE).permute(2, 0, 1),
    "Pillow": Image.fromarray(PIXELS), "Pillow with transparency": Image.fromarray(OPAQUE), "bytes": png(PIXELS),
    "bytearray": bytearray(png(PIXELS)), "memoryview": memoryview(png(PIXELS)), "file": io.BytesIO(png(PIXELS)),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_an_image_may_have_any_form(form: str) -> None:
    for _ in range(2):  # each call reads a file from the beginning
        assert np.array_equal(load_image(FORMS[form]), PIXELS)


def test_images_with_few_levels() -> None:
    half = torch.from_numpy(CHANNELS_FIRST).half() / 255
    assert np.abs(load_image(half).astype(int) - PIXELS).max() <= 1  # float16 has 11 bits
    assert np.abs(load_image(half.bfloat16()).astype(int) - PIXELS).max() <= 1
    gray, stacked = PIXELS[..., 0], np.repeat(PIXELS[..., :1], 3, axis=2)
    for form in (gray, gray[None], gray[..., None], torch.from_numpy(gray), torch.from_numpy(gray)[None], gray / 255):
        assert np.array_equal(load_image(form), stacked)
    mask = gray > 99
    assert np.array_equal(load_image(mask), np.repeat(255 * mask[..., None].astype(np.uint8), 3, axis=2))


def test_transparent_pixels_of_arrays_are_white_as_in_files() -> None:
    pixels = OPAQUE.copy()
    pixels[:5, :, 3], pixels[5:9, :, 3] = 0, 100
    right = load_image(png(pixels))
    assert (right[:5] == 255).all()
    for form in (pixels, pixels / 255, pixels.astype(np.uint16) * 257, torch.from_numpy(pixels).permute(2, 0, 1)):
        assert np.abs(load_image(form).astype(int) - right).max() <= 1


MODES = (
    "1",
    "L",
    "P",
    "RGB",
    "RGBA",
    "RGBX",
    "CMYK",
    "YCbCr",
    "LAB",
    "HSV",
    "LA",
    "PA",
    "La",
    "RGBa",
    "I",
    "F",
    "I;16",
)


@pytest.mark.parametrize("mode", MODES)
def test_pillow_images_of_every_mode(mode: str) -> None:
    source = Image.fromarray(PIXELS)
    through = {"La": ("LA",), "RGBa": ("RGBA",), "PA": ("P",), "LAB": (), "I;16": ("I",)}.get(mode, ())
    for step in through:
        source = source.convert(step)
    image = Image.new("LAB", source.size, (90, 20, 30)) if mode == "LAB" else source.convert(mode)
    found = load_image(image)
    assert found.shape == PIXELS.shape and found.dtype == np.uint8


def test_a_batch_of_images_gives_a_list(tmp_path: Path) -> None:
    model = MODELS["recognise"]().float().eval()
    Image.fromarray(PIXELS).save(tmp_path / "image.png")
    right, turned = model.predict(PIXELS), model.predict(PIXELS[::-1])
    several = np.stack([PIXELS, PIXELS[::-1]])
    for batch in (
        several,
        torch.from_numpy(several.copy()),
        torch.from_numpy(several.transpose(0, 3, 1, 2).copy()) / 255,
    ):
        assert [one.score for one in model.predict(batch)] == [right.score, turned.score]
    assert [one.score for one in model.predict(several[:1])] == [right.score]
    with open(tmp_path / "image.png", "rb") as file:
        for form in (file, tmp_path / "image.png", str(tmp_path / "image.png"), FORMS["tensor"], FORMS["file"]):
            assert model.predict(form).score == right.score
            assert model.explain(form).facts == model.explain(PIXELS).facts
    with pytest.raises(InputTypeError, match="several"):
        model.explain(several)


def test_arrays_that_are_no_image_are_refused() -> None:
    for wrong in (
        PIXELS.astype(float) * 2, -(PIXELS / 255), PIXELS / 255 * np.nan, PIXELS.astype(int) * 2, PIXELS.astype(np.int8),
        PIXELS[:, :, :2], np.zeros((5, 6, 5), np.uint8), np.zeros((0, 4, 3), np.uint8), np.zeros((4, 0, 3)),
        PIXELS[None, None], PIXELS.astype(complex), PIXELS.astype(str), torch.zeros(3, 4, 4, dtype=torch.complex64),
    ):  # fmt: skip
        with pytest.raises(InputError):
            load_image(wrong)
    assert pixels_to_rgb(np.full((2, 2), 254.5)).max() == 254  # floats up to 255, as in TIFF files


def test_damaged_images_are_refused(tmp_path: Path) -> None:
    (tmp_path / "cut.png").write_bytes(png(PIXELS)[:700])
    with Image.open(tmp_path / "cut.png") as damaged:
        clear(load_image, damaged)
    closed = io.BytesIO(png(PIXELS))
    closed.close()
    clear(load_image, closed, key="file")
    clear(load_image, png(PIXELS)[:700])
    clear(load_image, tmp_path / "none.png", key="not found")


# -- point clouds

PLACES = np.random.default_rng(5).normal(size=(90, 3)).astype(np.float32)


def test_a_point_cloud_may_have_any_form(tmp_path: Path) -> None:
    model = MODELS["discern"]()
    write_ply(tmp_path / "cloud.ply", PointCloud(PLACES))
    content, right = (tmp_path / "cloud.ply").read_bytes(), model.predict(PLACES)
    forms = (
        torch.from_numpy(PLACES), torch.from_numpy(PLACES).requires_grad_(), PLACES.astype(np.float64), PointCloud(PLACES),
        tmp_path / "cloud.ply", str(tmp_path / "cloud.ply"), content, bytearray(content), io.BytesIO(content),
    )  # fmt: skip
    for form in forms:
        assert model.predict(form).score == pytest.approx(right.score, abs=1e-6)
        assert model.explain(form).facts["points"] == "90"
    several = np.stack([PLACES, -PLACES])
    for batch in (several, torch.from_numpy(several)):
        assert [one.score for one in model.predict(batch)] == [model.predict(one).score for one in several]
    for wrong in (
        PLACES[:, :2], PLACES[0], np.full((9, 3), np.nan), np.zeros((0, 3)), PLACES.astype(str), PLACES.tolist(), several[None]
    ):  # fmt: skip
        clear(model.predict, wrong)


# -- tensors


def ids(*rows: list[int]) -> Tensor:
    return torch.tensor(rows)


def test_wrong_ids_are_refused_by_logits_and_states() -> None:
    lm, bert, pair = (MODELS[name]().float().eval() for name in ("lm", "classify", "translate"))
    long = torch.ones(1, 99, dtype=torch.long)
    for wrong in (
        ids([5, 9999]), ids([5, -1]), ids([5, 6]).float(), ids([5, 6]).bool(), ids([5, 6])[0], torch.tensor(5), [[5, 6]],
        np.array([[5, 6]]), None, "a text", torch.zeros(1, 0, dtype=torch.long),
    ):  # fmt: skip
        for model in (lm, bert):
            clear(model.logits, wrong)
            clear(model.states, wrong)
        clear(pair.logits, wrong, ids([1, 5]))
        clear(pair.logits, ids([5, 6]), wrong)
    for model in (lm, bert):
        clear(model.logits, long, key="99")
    clear(pair.states, ids([5, 6]), key="decoder_inputs")
    clear(lm.logits, ids([5, 6]), ids([5, 6]), key="decoder_inputs")
    clear(bert.logits, ids([5, 6]), token_types=ids([0, 9]), key="token_types")
    clear(bert.logits, ids([5, 6]), token_types=ids([0]), key="token_types")
    clear(lm.logits, ids([5, 6]), positions=ids([0, 99]), key="positions")
    clear(lm.logits, ids([5, 6]).to("meta"), key="meta")
    assert lm.logits(ids([5, 6]).int()).equal(lm.logits(ids([5, 6])))
    assert lm.logits(ids([5, 6]).byte()).equal(lm.logits(ids([5, 6])))


def test_wrong_masks_are_refused_and_integers_are_marks() -> None:
    model, x = MODELS["classify"]().float().eval(), ids([5, 6, 7], [8, 9, 5])
    right = model.logits(x, mask=ids([1, 1, 0], [1, 1, 1]).bool())
    assert not right.equal(model.logits(x))
    for mask in (ids([1, 1, 0], [1, 1, 1]), ids([1, 1, 0], [1, 1, 1]).float(), torch.tensor([2, 3])):
        assert model.logits(x, mask=mask).equal(right)  # also as `attention_mask` of transformers
    for wrong in (
        ids([1, 1], [1, 1]),
        torch.tensor([4, 3]),
        torch.tensor([-1, 3]),
        torch.tensor([2]),
        [[1, 1, 1]],
        "a",
    ):
        clear(model.logits, x, mask=wrong, key="mask")
    left = ids([0, 1, 1], [1, 0, 1]).bool()  # padding on any side
    assert torch.allclose(model.logits(x, mask=left), model.head(model.states(x, mask=left).pooled))
    assert not torch.allclose(model.logits(x, mask=left), model.logits(x, mask=torch.tensor([2, 2])))


def test_padding_on_the_left_does_not_change_the_class_of_a_decoder() -> None:
    model = headed("classify", labels=("no", "yes"))
    x, positions = ids([5, 6, 7, 8]), torch.tensor([[0, 0, 1, 2]])
    marks = ids([0, 1, 1, 1]).bool()
    assert torch.allclose(model.logits(x[:, 1:]), model.logits(x, mask=marks, positions=positions), atol=1e-12)


def test_wrong_pixels_and_points_are_refused() -> None:
    images, points = MODELS["recognise"]().float().eval(), MODELS["discern"]().float()
    right = torch.zeros(1, 3, 16, 16)
    for wrong in (
        right[0],
        right[:, :1],
        right.permute(0, 2, 3, 1),
        torch.zeros(1, 3, 17, 17),
        ids([5, 6]),
        None,
        right.int(),
    ):
        clear(images.logits, wrong)
        clear(images.states, wrong)
    pixels = torch.randint(0, 256, (1, 3, 16, 16), dtype=torch.uint8)
    normalized = images.require_image_processor().normalize(pixels)
    assert images.states(pixels).sequence.equal(images.states(normalized).sequence)  # as logits(pixels)
    assert images.logits(pixels).equal(images.logits(normalized))
    for wrong in (torch.zeros(8, 3), torch.zeros(1, 8, 6), torch.zeros(1, 0, 3), ids([5, 6]), None):
        clear(points.logits, wrong)


# -- arguments of the other functions


def test_wrong_arguments_of_streams_ranks_and_explanations(tmp_path: Path) -> None:
    model, images, points = (MODELS[name]().float().eval() for name in ("lm", "recognise", "discern"))
    for wrong in (3, None, ["a"], b"a"):
        clear(model.stream, wrong)
        clear(model.rank, wrong, ["a", "b"])
        clear(model.explain, wrong)
    for choices in (None, 3, "ab", ["a"], ["a", ""], [1, 2], ["a", None]):
        clear(model.rank, "a", choices)
        clear(MODELS["choose"]().float().rank, "a", choices)
    clear(model.explain, "a", 3, key="target")
    clear(model.explain, "a", at=3)
    for at in (3, "a", (1,), (1.5, 2), (99, 0), (1, 2, 3), [None, 1]):
        clear(images.explain, PIXELS, at=at)
    for at in ("a", 1.5, (1, 2), (1, 2, "c"), (np.nan, 0, 0), 90, -1):
        clear(points.explain, PLACES, at=at)
    assert points.explain(PLACES, at=[*PLACES[7].tolist()]).attention.query_point == 7  # type: ignore[attr-defined]
    made = model.explain("a b")
    for path in (None, 3, "map.xyz", tmp_path, tmp_path / "map"):
        clear(made.save, path)
    (tmp_path / "folder.html").mkdir()
    with pytest.raises(RegardError, match="folder"):
        made.save(tmp_path / "folder.html")
    for layer in (99, 0, "a", 1.5):
        clear(made.save, tmp_path / "map.png", layer=layer)
    for settings in (
        {"num_beams": "many"},
        {"num_beams": None},
        {"stop_strings": 3},
        {"temperature": []},
        {"nothing": 1},
    ):
        clear(model.predict, "a", **settings)
    found = model.predict("a", max_new_tokens=np.int64(2), temperature=np.float32(0.5))
    assert len(found.extra["token_ids"]) <= 2


@pytest.fixture
def saved(folder: Path) -> Path:
    return MODELS["lm"]().float().save(folder / "model")


def test_wrong_arguments_of_public_functions(saved: Path) -> None:
    Path("pairs.tsv").write_text("a\tb\n" * 9)
    for wrong in (None, 3, ["model"], b"model"):
        clear(regard.load, wrong)
        clear(regard.evaluate, wrong)
        clear(regard.probe, wrong)
        clear(regard.build, wrong)
        clear(regard.train, wrong, "pairs.tsv", out="run")
        clear(regard.check, wrong, "pairs.tsv")
        clear(regard.save, wrong, "new")
        clear(regard.save, regard.load(saved), wrong, key="folder")
        clear(regard.load(saved).save, wrong, key="folder")
        clear(regard.train, "translate", "pairs.tsv", out=wrong, key="out")
    for more in ({"data": 3}, {"data": [3]}, {"data": {1, 2}}, {"model": 3}, {"valid": 3}, {"columns": 3}, {"settings": 3},
                 {"settings": [3]}, {"settings": {3: 1}}, {"config": 3}, {"device": 3}, {"resume": "yes"}):  # fmt: skip
        clear(regard.train, "translate", **{"data": "pairs.tsv", "out": "run", **more})
    for more in (
        {"dtype": 3},
        {"dtype": torch.int64},
        {"dtype": "int8"},
        {"device": 3},
        {"task": 3},
        {"task": "translat"},
    ):
        clear(regard.load, saved, **more)
    clear(regard.build, "gpt2-mini", task=3)
    clear(regard.build, "gpt2-mini", depth="many")
    clear(regard.save, regard.load(saved), "new", layout=3)
    clear(regard.check, "translate", "pairs.tsv", settings=3)
    clear(regard.probe, saved, max_images="many")
    clear(regard.evaluate, saved, 3)
    with pytest.raises(InputError):
        regard.record_attention(regard.load(saved), ["nothing"]).__enter__()
    with pytest.raises(InputError):
        regard.record_attention(regard.load(saved), "decoder.blocks.0.attend").__enter__()  # type: ignore[arg-type]
    with pytest.raises(InputError):
        regard.record_attention(3).__enter__()  # type: ignore[arg-type]


@pytest.mark.parametrize("device", ["cuda", "cuda:0", torch.device("cuda"), "mps", "gpu", ""])
def test_a_missing_device_is_one_error_everywhere(device: Any, saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    Path("pairs.tsv").write_text("a\tb\n" * 9)
    calls: list[Callable[[], Any]] = [
        lambda: regard.load(saved, device=device), lambda: regard.build("transformer-tiny", device=device),
        lambda: regard.evaluate(saved, ["pairs.tsv"], device=device), lambda: regard.probe(saved, device=device),
        lambda: regard.train("translate", "pairs.tsv", out="run", device=device),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(SettingError, match="device"):
            call()
    assert regard.load(saved, device="auto").device.type == "cpu"


def test_a_model_is_saved_into_a_new_folder_or_replaces_a_model(saved: Path) -> None:
    model = regard.load(saved)
    Path("file").write_text("x")
    Path("other").mkdir()
    (Path("other") / "notes.txt").write_text("x")
    for call in (model.save, lambda path: regard.save(model, path)):
        for target in ("file", "file/inside", "other", ""):
            with pytest.raises(RegardError, match=r"file|other|folder|empty"):
                call(target)
        call("new/inside")
        call("new/inside")
    assert Path("other/notes.txt").exists() and not Path("other/config.json").exists()


def test_a_folder_in_use_is_not_overwritten(saved: Path) -> None:
    from regard.runs.folder import RunFolder

    model = regard.load(saved)
    with RunFolder("run").lock(), pytest.raises(RegardError, match="in use"):
        model.save("run")
    with RunFolder("run").lock(), pytest.raises(RegardError, match="in use"):
        regard.save(model, "run")
    os.chmod(Path("run"), 0o500)
    try:
        if not os.access("run", os.W_OK):  # root may write everywhere
            with pytest.raises(RegardError, match="run"):
                model.save("run/new")
    finally:
        os.chmod(Path("run"), 0o700)


def test_the_script_of_a_user_runs(saved: Path) -> None:
    """mypy checks the types of the script in `make check`."""
    import user_script

    found = user_script.generate(saved)
    assert len(found) > 5 and found[-1] == "decoder.blocks.1.attend"
    model = MODELS["recognise"]().float()
    model.save("images")
    Path("image.png").write_bytes(png(PIXELS))
    predictions = user_script.classify_images("images", Path("image.png"))
    assert len({one.score for one in predictions}) == 1 and len(predictions) == 11
    Path("pairs.tsv").write_text("".join(f"a {n}\tb {n}\n" for n in range(40)))
    scores = user_script.train(Path("pairs.tsv"), Path("run"))
    assert scores["errors"] == [] and scores["samples"] == 40 and scores["task"] == "translate"
