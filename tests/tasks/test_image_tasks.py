"""Image tasks: training, preprocessing, predictions and their memory, on generated files."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from objectives import encode
from PIL import Image
from torch.nn import functional as F

import regard
from data_files import refused
from regard.data.images import image_io
from regard.data.images.image_io import ImageCache, read_mask
from regard.data.images.labeled import ImageSample, folder_classes, iterate_depth_images
from regard.data.settings import DataSettings
from regard.data.training_files import DataSources
from regard.decode.settings import DecodeSettings
from regard.errors import RegardError, SettingError
from regard.processors.image import COLUMNS, Augment, ImageProcessor
from regard.runs.spec import new_spec
from regard.systems import SYSTEMS
from regard.tasks import dense, find_task, segment
from regard.tasks.base import EncodingContext, EvalSpec, HeadOptions, LossSum, LossWeights
from regard.tasks.depth import METERS_LABEL
from regard.tasks.modality.base import decode_source, encode_source
from regard.tasks.modality.image import load_image, stack_images
from regard.types import Augmentation, Batch, Prediction
from tiny_text_models import train
from tiny_vision_models import fresh, made


def paint(folder: Path, count: int, side: int = 16, seed: int = 0) -> Path:
    """Images of squares on the left or on the right, in random colors."""
    random = np.random.default_rng(seed)
    for number in range(count):
        name = ("left", "right")[number % 2]
        picture = np.full((side, side, 3), random.integers(0, 60, 3), dtype=np.uint8)
        across = side // 4 + (side // 2) * (number % 2)
        top = random.integers(2, side - 6)
        picture[top : top + 4, across - 2 : across + 2] = random.integers(150, 255, 3)
        (folder / name).mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(folder / name / f"{number:03d}.png")
    return folder


def test_a_saved_model_is_a_published_folder(tmp_path: Path) -> None:
    from transformers import AutoImageProcessor, ViTForImageClassification

    path, own = next(paint(tmp_path / "some pictures", 2).rglob("*.png")), made("vit", "classify").float()
    ours = own.predict(str(path))
    own.save(tmp_path / "model")
    model = ViTForImageClassification.from_pretrained(tmp_path / "model")
    processor = AutoImageProcessor.from_pretrained(tmp_path / "model", use_fast=False)
    pixels = processor(Image.open(path), return_tensors="pt")
    chances = model(**pixels, interpolate_pos_encoding=True).logits.softmax(-1)[0]
    assert model.config.id2label[int(chances.argmax())] == ours.value
    assert torch.allclose(chances, torch.tensor(ours.score), atol=1e-5)


def test_mixed_images_have_the_mixture_of_their_losses() -> None:
    model, share = made("vit", "classify"), torch.tensor([0.3, 1.0, 0.6])
    labels, others = torch.tensor([0, 1, 2]), torch.tensor([2, 0, 1])
    x = torch.randint(0, 255, (3, 3, 16, 16), dtype=torch.uint8)
    changes = torch.zeros(3, len(COLUMNS))
    changes[:, [2, 3, 5, 6, 7]] = 1
    changes[:, 8], changes[:, 9] = share, others
    batch = Batch(x, labels=labels, augmentation=Augmentation(changes, settings=Augment(mixup=0.5)))
    total, count = model.objective.loss(model, batch, LossWeights(smoothing=0.1))
    mixed = torch.lerp(x[others].double(), x.double(), share.double().view(3, 1, 1, 1))
    logits = model.logits(model.processor.normalize(mixed / 255))
    each = [F.cross_entropy(logits, one, reduction="none", label_smoothing=0.15) for one in (labels, others)]
    right = (share * each[0] + (1 - share) * each[1]).sum()  # torch gives a third of 0.15 to the label too
    assert int(count) == 3 and float(total.detach()) == pytest.approx(float(right.detach()), rel=1e-5)


def test_images_are_read_once_if_all_fit_and_other_sizes_are_not_cached() -> None:
    read: list[int] = []

    def picture(number: int) -> np.ndarray:
        read.append(number)
        return np.full((2, 3 if number == 4 else 2), number, dtype=np.uint8)

    album = ImageCache(6, (2, 2))
    for _ in range(2):
        found = album.get_many([5, 4, 1, 0], picture, threads=3)
        assert [int(one[0, 0]) for one in found] == [5, 4, 1, 0] and found[1].shape == (2, 3)
    assert sorted(read) == [0, 1, 4, 4, 5]
    small = ImageCache(6, (2, 2), max_bytes=8)  # too little memory: nothing is cached
    assert [int(small(1, lambda: picture(1))[0, 0]) for _ in range(2)] == [1, 1] and read.count(1) == 3


# -- the same pixels in training, prediction and evaluation


def noise(shape: tuple[int, ...], kind: Any = np.uint8, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(0, np.iinfo(kind).max, shape, dtype=kind, endpoint=True)


def file_of(image: Image.Image, form: str = "PNG", **more: Any) -> bytes:
    kept = io.BytesIO()
    image.save(kept, form, **more)
    return kept.getvalue()


def turned() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return file_of(Image.fromarray(noise((20, 30, 3))), exif=exif)


@pytest.mark.parametrize(
    "content",
    [
        file_of(Image.fromarray(noise((20, 30, 4)))),
        file_of(Image.fromarray(noise((20, 30), np.uint16))),
        file_of(Image.fromarray(noise((20, 30, 4)), "CMYK"), "TIFF"),
        turned(),
    ],
    ids=["clear", "16 bits", "CMYK", "turned"],
)
def test_images_opened_by_pillow_equal_the_file(content: bytes) -> None:
    assert np.array_equal(load_image(Image.open(io.BytesIO(content))), load_image(content))
    refused("bright", load_image, Image.fromarray(np.full((4, 4), 1e9, np.float32)))  # ambiguous gray values
    refused("pixels", load_image, np.full((4, 4), 256), error=RegardError)


def test_bytes_of_a_table_take_two_bytes_each_and_come_back() -> None:
    for sample in (ImageSample("", content=bytes(range(256))), ImageSample("/a/ü.png")):
        row = encode_source(sample.source, sample.content)
        assert row.dtype == np.uint16 and decode_source(row) == (sample.content or sample.source)


def test_evaluation_and_prediction_decode_images_equally(tmp_path: Path) -> None:
    path = tmp_path / "a/large.jpg"
    path.parent.mkdir()
    path.write_bytes(file_of(Image.fromarray(noise((600, 800, 3))), "JPEG", quality=90))
    task = find_task("classify", "image")
    config = SYSTEMS["vit"].presets["vit-tiny"].config
    pixels = ImageProcessor((32, 32), "shortest", 36, crop=True, resample=3)
    context = EncodingContext(pixels, 0, None, HeadOptions(("a", "b")))
    encoded = task.objective.encode([ImageSample(str(path), "a")], config, context)
    scored = task.objective.collate(encoded, np.arange(1), config).inputs
    assert torch.equal(scored, stack_images([pixels.prepare(load_image(str(path)))]))


@pytest.mark.parametrize("task", ["segment", "depth"])
def test_maps_are_never_mixed(task: str) -> None:
    """Pretraining recipes mix images and their class labels."""
    for system in SYSTEMS.values():
        if task in system.tasks and system.modality == "image":
            for name in system.presets:
                order = new_spec(find_task(task, "image"), name, DataSources(("x",)), {})
                assert order.settings.data.mixup == 0, name
                order.identity.task.objective.check_settings(order.identity.config, 1, order.settings.data)
    order = new_spec(find_task(task, "image"), "swin-mini", DataSources(("x",)), {"data": {"mixup": 0.5}})
    with pytest.raises(SettingError, match=r"data\.mixup"):
        order.identity.task.objective.check_settings(order.identity.config, 1, order.settings.data)


# -- masks and depth maps


def scenes(folder: Path, task: str, count: int = 8) -> Path:
    """Image files with masks or depth maps, alternating between portrait and landscape."""
    beside = "masks" if task == "segment" else "depth"
    for name in ("images", beside):
        (folder / name).mkdir(parents=True)
    for number in range(count):
        shape = (40, 64) if number % 2 else (64, 40)
        Image.fromarray(noise((*shape, 3), seed=number)).save(folder / "images" / f"{number}.png")
        if task == "segment":
            Image.fromarray(noise(shape, seed=number) % 3).save(folder / beside / f"{number}.png")
        else:
            np.save(folder / beside / f"{number}.npy", 1 + noise(shape, seed=number).astype(np.float32) / 255)
    return folder


@pytest.mark.slow
@pytest.mark.every(2)
@pytest.mark.parametrize("task", ["segment", "depth"])
def test_images_with_kept_aspect_ratio_are_predicted_scored_and_trained_on(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hugging Face checkpoints of DPT keep the aspect ratio, so that image sizes differ."""
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    data, short = str(scenes(tmp_path / "data", task)), ["train.steps=1", "train.batch_size=4", "data.num_workers=0"]
    train(task, data, tmp_path / "run", "model.image_size=32", *short, model="dpt-small")
    ImageProcessor((32, 32), "ratio", multiple=16).save(tmp_path / "run")
    model = regard.load(tmp_path / "run")
    names = [f"{data}/images/{number}.png" for number in range(4)]
    key = "mask" if task == "segment" else "depth"
    found = [answer.extra[key] for answer in model.task.objective.predict(model, names, model.spec.decode)]
    assert [one.shape for one in found] == [(64, 40), (40, 64)] * 2
    for name, one in zip(names, found, strict=True):
        (alone,) = model.task.objective.predict(model, [name], model.spec.decode)
        assert np.array_equal(alone.extra[key], one)
    scores = regard.evaluate(tmp_path / "run").scores
    if task == "depth":  # other data settings than in training
        halved = regard.evaluate(tmp_path / "run", settings=["data.depth_scale=0.5"]).scores
        assert halved["rmse"] != scores["rmse"]
    short += ["data.image_size=150,160", "data.crop_scale=0.5"]
    train(task, data, tmp_path / "tuned", *short, model=str(tmp_path / "run"))
    assert ImageProcessor.load(tmp_path / "tuned") == ImageProcessor((144, 160), "exact")


@pytest.mark.parametrize("task", ["segment", "depth"])
def test_a_downscaled_image_is_reported_and_its_map_has_full_size(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = fresh("dpt", task, ("a", "b"))
    Image.fromarray(noise((120, 200, 3))).save(tmp_path / "large.jpg")
    Image.fromarray(noise((60, 80, 3))).save(tmp_path / "small.jpg")
    monkeypatch.setattr(image_io, "MAX_PIXELS", 10_000)
    for _ in range(2):
        large, small = model.predict([str(tmp_path / "large.jpg"), str(tmp_path / "small.jpg")])
    told = "large.jpg: 120 x 200 pixels exceed the limit of 0 million pixels; decoded at 60 x 100.\n"
    said = capsys.readouterr().err
    assert said.endswith(told) and said.count("\n") == 1, "once"
    key = "mask" if task == "segment" else "depth"
    assert large.extra[key].shape == (120, 200) and large.extra["image"].shape == (60, 100, 3)
    assert small.extra[key].shape == small.extra["image"].shape[:2] == (60, 80)
    left = model.task.objective.write_files("large", large, tmp_path / "out")
    if task == "segment":
        with Image.open(left["mask"]) as written:
            assert written.size == (200, 120)
    else:
        assert np.load(left["array"]).shape == (120, 200)
    assert Path(left["image"]).exists()
    monkeypatch.setattr(dense, "free_memory", lambda: 16 * 120 * 200 - 1)
    assert model.predict(str(tmp_path / "small.jpg")).extra[key].shape == (60, 80)
    refused("120", model.predict, str(tmp_path / "large.jpg"))


def test_a_depth_map_may_be_smaller_than_its_image_and_is_scored_at_its_own_size(tmp_path: Path) -> None:
    """The data check reports the smaller size."""
    data = scenes(tmp_path / "data", "depth", 3)
    model = fresh("dpt", "depth", (METERS_LABEL,))
    task, samples = model.task, [item for item in iterate_depth_images([str(data)]) if isinstance(item, ImageSample)]
    np.save(samples[1].target, np.ones((20, 32), np.float32))
    encoded = encode(model, samples, 0)
    objective: Any = task.objective
    maps = objective._predict_maps(model, encoded, 3)
    found = [(said.shape, right.shape) for _, said, right in maps]
    assert found == [((64, 40),) * 2, ((20, 32),) * 2, ((64, 40),) * 2]
    np.save(samples[1].target, np.ones((32, 32), np.float32))
    refused(r"1\.npy", list, objective._predict_maps(model, encoded, 3))


@pytest.mark.parametrize(
    ("reader", "wanted"),
    [
        (ImageProcessor((384, 384), "ratio", multiple=32), ImageProcessor((384, 384), "exact")),
        (ImageProcessor((100, 130), "exact", multiple=16), ImageProcessor((96, 128), "exact")),
        (ImageProcessor((224, 224), "none"), ImageProcessor((32, 32), "exact")),
        (ImageProcessor((224, 224), "shortest", 256), ImageProcessor((224, 224), "shortest", 256, crop=True)),
    ],
)
def test_all_training_images_have_one_size(reader: ImageProcessor, wanted: ImageProcessor) -> None:
    assert reader.with_fixed_size(32) == wanted
    for pixels in (wanted, wanted.scaled(8 / 7)):
        assert pixels.prepare(noise((50, 70, 3))).shape[:2] == pixels.size
    palette = fresh("imagegpt", "classify").processor  # read-only arrays would cause a PyTorch warning in explanations
    assert all(palette.prepare(noise((*shape, 3))).flags.writeable for shape in ((5, 5), (9, 7)))


def test_a_score_of_relative_depth_does_not_use_the_range_of_the_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clipping predictions at the maximum depth of the same image would leak the reference."""
    task = find_task("depth", "image")
    near, far = np.linspace(1, 2, 2000).reshape(40, 50), np.linspace(3, 9, 2000).reshape(40, 50)
    for name, values in (("near", near), ("far", far)):
        np.save(tmp_path / f"{name}.npy", values)
    files = [ImageSample("", target=str(tmp_path / f"{name}.npy")) for name in ("near", "far")]
    reader, config = ImageProcessor((8, 8)), SYSTEMS["vit"].presets["vit-tiny"].config
    encoded = task.objective.encode(files, config, EncodingContext(reader, 0, None))
    said = 1 / near
    said[3, 4] = -1.0  # negative inverse depth: farther than any reference
    both = [(noise((40, 50, 3)), said, near), (noise((40, 50, 3)), 1 / far, far)]
    monkeypatch.setattr(dense.MapObjective, "_predict_maps", lambda *asked: iter(both))
    spec = EvalSpec(DecodeSettings(), DataSettings(), LossSum(0.0, 1.0))
    model = cast(Any, SimpleNamespace(spec=SimpleNamespace(options=HeadOptions())))
    scores, answers = task.objective.evaluate(model, encoded, spec)
    metres = answers[0].extra["meters"]
    assert metres[3, 4] == pytest.approx(9.0) and (metres < 2.5).sum() == metres.size - 1
    assert np.allclose(answers[1].extra["meters"], far) and answers[1].value["unit"] == "inverse depth"
    expected = (np.abs(metres - near) / near).mean() / 2
    assert scores["abs_rel"] == pytest.approx(float(expected), abs=1e-4)
    metric = cast(Any, SimpleNamespace(spec=SimpleNamespace(options=HeadOptions((METERS_LABEL,)))))
    _, answers = task.objective.evaluate(metric, encoded, spec)
    assert np.array_equal(answers[0].extra["meters"], said), "meters are not rescaled"
    assert answers[0].value["unit"] == "meters"


def test_classes_of_a_large_image_are_predicted_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    said = torch.randn(5, 7, 9)
    for size in ((50, 31), (3, 4), (7, 9)):
        whole = F.interpolate(said[None], size, mode="bilinear", align_corners=False)[0].argmax(0)
        for room in (2**25, 5 * size[1] * 2, 1):
            monkeypatch.setattr(segment, "MAX_LOGITS", room)
            assert np.array_equal(find_task("segment", "image").objective._resize(said, size), whole.numpy())


def test_a_class_unknown_to_the_model_is_named_and_not_void(tmp_path: Path) -> None:
    folder = scenes(tmp_path, "segment", 1)
    (folder / "masks/classes.txt").write_text("road\nsky\ntram\n", encoding="utf-8")
    task, config = find_task("segment", "image"), SYSTEMS["dpt"].presets["dpt-small"].config
    sample = ImageSample(str(folder / "images/0.png"), target=str(folder / "masks/0.png"))
    known, unknown = (
        EncodingContext(ImageProcessor((32, 32)), 0, None, HeadOptions(labels))
        for labels in (("tram", "road", "sky"), ("road", "sky"))
    )
    task.objective.encode([sample], config, known)
    refused("'tram'", task.objective.encode, [sample], config, unknown)


@pytest.mark.parametrize(
    ("labels", "told", "wanted"),
    [
        (("road", "sky"), (), [0, 1]),
        (("road", "sky"), (7, 3), [7, 3]),
        (("0", "255"), (), [0, 255]),
        (("7", "3000"), (), [7, 3000]),
    ],
)
def test_masks_are_written_in_the_ids_of_training(
    labels: Any, told: tuple[int, ...], wanted: list[int], tmp_path: Path
) -> None:
    mask = np.array([[0, 1, 1], [1, 0, 0]], np.uint8)
    numbers = segment.class_values(HeadOptions(labels, class_ids=told))
    extra = {"mask": mask, "image": noise((2, 3, 3)), "labels": labels, "class_values": numbers}
    answer = Prediction({}, (), (), extra)
    left = find_task("segment", "image").objective.write_files("a", answer, tmp_path)
    assert np.array_equal(read_mask(left["mask"]), np.array(wanted)[mask])


def test_a_model_remembers_which_numbers_its_classes_have_in_masks(tmp_path: Path) -> None:
    folder = scenes(tmp_path, "segment", 1)
    sample = ImageSample(str(folder / "images/0.png"), target=str(folder / "masks/0.png"))
    options = find_task("segment", "image").objective.options
    for text, told in (("0 road\n1 sky\n", ()), ("1 road\n3 sky\n", (1, 3))):
        (folder / "masks/classes.txt").write_text(text, encoding="utf-8")
        folder_classes.cache_clear()
        assert options.fit(HeadOptions(("road", "sky")), [sample], DataSettings()).class_ids == told


# -- memory


def test_the_limit_of_a_container_is_free_memory_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [tmp_path / name for name in ("max", "current", "stat")]
    for file, text in zip(files, ("1000000\n", "900000\n", "anon 5\ninactive_file 50000\n"), strict=True):
        file.write_text(text, encoding="ascii")
    monkeypatch.setattr(image_io, "CGROUP_FILES", (tuple(map(str, files)),))
    assert image_io.free_memory() == 150_000
    files[0].write_text("max\n", encoding="ascii")
    assert image_io.free_memory() > 150_000


def test_processes_on_one_machine_divide_the_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_io, "free_memory", lambda: 1000)
    assert image_io.ImageCache(10, (10,)).enabled
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert not image_io.ImageCache(10, (10,)).enabled
