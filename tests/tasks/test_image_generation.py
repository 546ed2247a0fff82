"""Task draw: training, sampling and completion of images, linear probes of each layer, contact sheets."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from objectives import scores_of
from PIL import Image

import regard
from data_files import refused
from regard.data.images.labeled import ImageSample
from regard.data.settings import DataSettings
from regard.decode.settings import DecodeSettings
from regard.draw.charts import draw_layer_scores
from regard.draw.colors import UNKNOWN_COLOR
from regard.draw.panels import blank_below, draw_contact_sheet, in_rows
from regard.errors import RegardError, SettingError
from regard.model import Model
from regard.processors.palette import Palette
from regard.runs.probe import (
    LayerFeatures,
    extract_features,
    fit_logistic_regression,
    fit_probes,
    linear_logits,
    probe_layers,
)
from regard.systems import imagegpt
from regard.tasks import find_task
from regard.tasks.base import Encoded, EncodingContext, LossSum
from regard.tasks.draw import draw_completions, shift_right
from regard.tasks.modality.base import reservoir_sample
from tiny import near, noise, noisy
from tiny_text_models import train as train_task

TINY = imagegpt.Config(image_size=8, num_colors=3, width=32, depth=2, heads=2, ffn_dim=64)
SETTINGS = (
    "model.image_size=8", "model.width=32", "model.depth=2", "model.heads=2", "model.ffn_dim=64", "model.dropout=0",
    "train.steps=100", "train.eval_every=100", "train.batch_size=32", "train.lr=1e-2", "train.warmup_steps=20",
    "train.lr_schedule=linear", "train.ema_decay=0", "train.precision=float32", "data.num_workers=0",
)  # fmt: skip
THREE = np.array([[10, 10, 10], [200, 30, 30], [240, 240, 240]], dtype=np.uint8)
TASK = find_task("draw")
OBJECTIVE: Any = TASK.objective
Rows = tuple[Encoded, Palette, Any]


def striped(count: int, seed: int) -> list[Any]:
    """Each column has one of three colors: the first row determines all other rows."""
    columns = np.random.default_rng(seed).integers(0, 3, (count, 8))
    return [np.ascontiguousarray(np.broadcast_to(THREE[row], (8, 8, 3))) for row in columns]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Image files with stripes."""
    place = tmp_path_factory.mktemp("stripes")
    for number, picture in enumerate(striped(96, 1)):
        Image.fromarray(picture).save(place / f"{number:03}.png")
    return place


@pytest.fixture(scope="module")
def encoded(folder: Path) -> Rows:
    samples = [sample for sample in TASK.reader.samples([str(folder)]) if isinstance(sample, ImageSample)]
    palette = TASK.modality.fit_processor(iter(samples), replace(TINY, num_colors=16), DataSettings())
    config = TASK.modality.fit_config(replace(TINY, num_colors=16), palette)
    return OBJECTIVE.encode(samples, config, EncodingContext(palette, 10**9)), palette, config


@pytest.fixture(scope="module")
def learnt(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A model trained on the stripes for some seconds."""
    out = tmp_path_factory.mktemp("runs") / "run"
    train_task("draw", folder, out, *SETTINGS, model="imagegpt-mini")
    return regard.load(out)


# -- task table, palette, rows


def test_a_palette_is_fitted_and_every_sample_is_measured_once(encoded: Rows) -> None:
    rows, palette, config = encoded
    assert len(palette) == config.num_colors == 3 and palette.side == 8 and TASK.modality.row_encoding(palette)[0] == 3
    assert np.allclose(127.5 * (palette.colors + 1), THREE) and "3 colors" in TASK.modality.describe_processor(palette)
    assert TASK.modality.default_processor(config, DataSettings()) is None and len(rows) == 96 and not rows.too_long
    measured = torch.cat([batch.labels for batch in OBJECTIVE.eval_batches(rows, config, 7 * 64)])  # type: ignore[misc]
    assert torch.equal(measured, OBJECTIVE.collate(rows, range(96), config).labels)


def test_few_samples_are_chosen_evenly() -> None:
    assert reservoir_sample(range(5), 9) == [0, 1, 2, 3, 4]
    counts = np.zeros(20)
    for seed in range(600):
        chosen = reservoir_sample(iter(range(20)), 5, seed)
        assert len(set(chosen)) == 5
        counts[chosen] += 1
    assert counts.min() > 100 and counts.max() < 200


# -- training and sampling


def test_the_lower_half_of_stripes_is_drawn_right(learnt: Model) -> None:
    model, fresh = learnt, striped(6, 99)
    answers = model.predict(fresh, do_sample=False)
    for answer, picture in zip(answers, fresh, strict=True):
        assert np.array_equal(answer.extra["images"][0], picture) and answer.extra["rows"] == 4
        assert answer.value == "lower 4 of 8 rows of an image"
        assert answer.extra["bits_per_pixel"] == pytest.approx([-answer.score[0] / math.log(2) / 32])
        assert answer.extra["bits_per_pixel"][0] < 0.2
    large = np.kron(fresh[0], np.ones((3, 3, 1), np.uint8))  # another size and other colors
    odd = np.clip(fresh[0].astype(int) + 3, 0, 255).astype(np.uint8)
    for other in ({"image": fresh[0], "rows": 1}, large, odd):
        assert np.array_equal(model.predict(other, do_sample=False).extra["images"][0], fresh[0])
    whole = model.predict({"image": fresh[0], "rows": 8})
    assert np.array_equal(whole.extra["images"][0], fresh[0]) and whole.score == (0.0,)


def test_images_are_generated_unconditionally_and_are_stripes(learnt: Model) -> None:
    model = learnt
    answer = model.predict(None, num_return_sequences=12, seed=3)  # type: ignore[call-overload]
    pictures = np.stack(answer.extra["images"])
    assert pictures.shape == (12, 8, 8, 3) and pictures.dtype == np.uint8 and len(answer.score) == 12
    assert answer.value == "image of 8 x 8 pixels" and answer.extra["given"] is None
    steady = (pictures == pictures[:, :1]).all(axis=(1, 2, 3)).mean()
    assert steady > 0.7 and len(np.unique(pictures[:, 0].reshape(12, -1), axis=0)) > 6
    assert list(answer.score) == sorted(answer.score, reverse=True)
    assert answer.extra["bits_per_pixel"] == pytest.approx([-score / math.log(2) / 64 for score in answer.score])


def test_a_generated_image_depends_on_its_seed_and_not_on_its_neighbors(learnt: Model) -> None:
    model, fresh = learnt, striped(3, 8)

    def drawn(inputs: list[Any], **settings: Any) -> list[Any]:
        return [answer.extra["images"][0] for answer in model.predict(inputs, **settings)]

    hot: dict[str, Any] = {"temperature": 3.0, "seed": 1}
    together = drawn([None, fresh[0], {"image": fresh[1], "rows": 2}], **hot)
    assert np.array_equal(drawn([None], **hot)[0], together[0])
    assert np.array_equal(drawn([None, fresh[0]], **hot)[1], together[1])
    assert not np.array_equal(drawn([None], **{**hot, "seed": 2})[0], together[0])
    assert np.array_equal(drawn([fresh[0]], temperature=3.0, top_k=1)[0], fresh[0])
    assert all(np.array_equal(new[:4], given[:4]) for new, given in zip(drawn(fresh, **hot), fresh, strict=True))


def test_the_score_is_bits_of_a_pixel(learnt: Model, encoded: Any, tmp_path: Path) -> None:
    model, rows = learnt, encoded[0]
    sums = LossSum(64 * math.log(2), 128)
    quick = replace(DecodeSettings(do_sample=True, num_return_sequences=3), **OBJECTIVE.validation_decode)
    scores, answers = scores_of(model, rows, decode=quick, loss=sums, most=10)
    assert scores == {"bits_per_pixel": 0.5} and OBJECTIVE.metrics[0] in scores and OBJECTIVE.lower_is_better
    assert len(answers) == 8
    assert "0.5" in OBJECTIVE.format_scores(scores) and all("whole" not in answer.extra for answer in answers)
    assert OBJECTIVE.save_figures(tmp_path, [], []) == []
    row = OBJECTIVE.example_row(rows.samples[0], answers[0])
    assert row["image"].endswith(".png") and float(row["bits_per_pixel"]) >= 0


# -- saving and loading


def test_a_model_without_its_palette_is_reported(learnt: Model, tmp_path: Path) -> None:
    learnt.save(tmp_path)
    (tmp_path / "preprocessor_config.json").unlink()
    refused("palette", regard.load(tmp_path).predict, striped(1, 4)[0], error=RegardError)


def test_unsupported_requests_are_refused(learnt: Model) -> None:
    model, picture = learnt, striped(1, 4)[0]
    for settings in ({"repetition_penalty": 1.2}, {"max_new_tokens": 4}, {"stop_strings": "x"}):
        refused("not used by task", model.predict, picture, **settings, error=SettingError)
    for asked in ({"image": picture, "rows": 9}, {"rows": 2}, {"image": picture, "row": 2}):
        refused("rows", model.predict, asked, error=RegardError)
    with pytest.raises(RegardError):
        model.predict(np.zeros((5, 5, 2)))
    with pytest.raises(RegardError, match="palette"):
        OBJECTIVE.encode([], model.config, EncodingContext(Palette(np.zeros((4, 3)), 8), 10))


# -- linear probes


def clouds(count: int, seed: int, apart: float = 1.0) -> tuple[Any, Any]:
    labels = torch.randint(4, (count,), generator=torch.Generator().manual_seed(seed))
    centres = noise(4, 6, seed=50) * apart
    return centres[labels] + noise(count, 6, seed=seed + 1), labels


def test_the_classifier_is_the_one_minimum() -> None:
    x, y = clouds(200, 1)
    for strength in (1e-3, 1.0):
        weights = fit_logistic_regression(x, y, strength, torch.zeros(4, 7, dtype=torch.float64)).requires_grad_()
        loss = torch.nn.functional.cross_entropy(linear_logits(x, weights), y)
        loss = loss + strength / 2 * weights[:, :-1].square().sum()
        (slope,) = torch.autograd.grad(loss, weights)
        assert float(slope.abs().max()) < 1e-5
        elsewhere = fit_logistic_regression(x, y, strength, noise(4, 7, seed=9))
        near(linear_logits(x, elsewhere).log_softmax(1), linear_logits(x, weights.detach()).log_softmax(1), 1e-2)


def test_probes_of_better_layers_score_more_and_the_penalty_is_chosen_without_the_test_split(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def part(count: int, seed: int) -> LayerFeatures:
        (blind, y), (clear, _) = clouds(count, seed, 0.0), clouds(count, seed, 3.0)
        far = clear * torch.tensor([1e4, 1, 1e-4, 1, 1, 1]) + 1e3  # any scale: features are normalized
        return LayerFeatures(torch.stack([blind, clear, far, torch.cat([clear[:, :5], torch.ones(count, 1)], 1)]), y)

    train, valid, test = part(400, 1), part(200, 11), part(300, 21)
    found = fit_probes(train, valid, test, "1234")
    assert [one.layer for one in found] == ["1", "2", "3", "4"]
    assert found[0].accuracy < 40 < 90 < found[1].accuracy and found[1].accuracy == found[2].accuracy
    assert found[3].accuracy > 80  # a constant feature is harmless
    spoiled = fit_probes(train, valid, replace(test, labels=(test.labels + 1) % 4), "1234")
    assert [one.penalty for one in spoiled] == [one.penalty for one in found] and spoiled[1].accuracy < 10
    refused("class", fit_probes, replace(train, labels=train.labels * 0), valid, test, "1234")
    monkeypatch.setattr("regard.runs.probe.PENALTIES", (1e3, 1e-3))
    assert fit_probes(train, valid, test, "1234")[1].penalty == 1e-3  # equal accuracy, higher confidence
    monkeypatch.setattr("regard.runs.probe.PENALTIES", (10.0, 1e-6))
    few = LayerFeatures([train.features[0][:30]], train.labels[:30])
    assert fit_probes(few, valid, test, "1")[0].penalty == 10.0  # noise has no signal


def test_features_are_means_of_states_of_one_size_after_every_layer() -> None:
    config = replace(TINY, width=12, depth=3, heads=3, ffn_dim=20)
    body = noisy(imagegpt.build(config)).eval()
    colours = torch.randint(3, (5, 64), generator=torch.Generator().manual_seed(1))
    batches = [replace(shift_right(colours[rows], config), labels=torch.tensor(rows)) for rows in ([0, 1, 2], [3, 4])]
    layers = probe_layers(config)
    part = extract_features(body, batches, layers)
    assert [layer.shape for layer in part.features] == [(5, 12)] * 3
    assert part.labels.tolist() == [0, 1, 2, 3, 4]
    taps = body(shift_right(colours, config), taps=(0, 1, 2)).hidden_states
    for ours, tap in zip(part.features, taps, strict=True):
        near(ours, (tap / (tap.square().mean(-1, keepdim=True) + 1e-5).sqrt()).mean(1))


# -- contact sheets


def sizes(path: Path) -> tuple[int, int]:
    with Image.open(path) as image:
        return image.size


def test_contact_sheets_show_every_pixel(tmp_path: Path) -> None:
    pictures = striped(11, 3)
    rows = in_rows(pictures, 4)
    assert [len(row) for row in rows] == [4, 4, 3]
    assert sizes(draw_contact_sheet(rows, tmp_path / "grid.png", "Eleven"))[0] > 500
    plain = draw_contact_sheet([[pictures[0]]], tmp_path / "one.png")
    drawn = np.asarray(Image.open(plain).convert("RGB")).reshape(-1, 3)
    inked = drawn[(drawn < 220).any(1)]  # without the frame
    assert np.mean([(inked == colour).all(1) for colour in THREE], axis=1).sum() > 0.95  # no interpolated colors
    wide = draw_contact_sheet([[np.zeros((2, 9), np.uint8)]], tmp_path / "wide.png")
    tall = draw_contact_sheet([[np.zeros((9, 2, 3), np.uint8)]], tmp_path / "tall.png")
    assert sizes(tall)[1] > 2 * sizes(wide)[1]
    many = draw_contact_sheet([pictures * 2], tmp_path / "many.svg")
    assert many.read_text().count("<image") == 22


def test_completions_are_between_the_prompt_and_the_reference(learnt: Model, tmp_path: Path) -> None:
    half = blank_below(striped(1, 3)[0], 3)
    assert np.array_equal(half[:3], striped(1, 3)[0][:3]) and (half[3:] == UNKNOWN_COLOR).all()
    answers = learnt.predict(striped(2, 3), num_return_sequences=3)
    path = draw_completions([*answers, *learnt.predict(striped(1, 4))], tmp_path / "it.svg")
    text = path.read_text()
    assert text.count("<image") == 15
    for head in ("prompt", "generated 1", "generated 3", "original"):
        assert head in text


def test_accuracy_is_drawn_against_layers(tmp_path: Path) -> None:
    rising, names = [50.0, 70.5, 82.25, 80.0], ["stage 1", "stage 2", "block 1", "block 2"]
    text = draw_layer_scores(rising, tmp_path / "it.svg", "Probe", "of four", names).read_text()
    assert "82.25 at block 1" in text and all(f">{name}</text>" in text for name in names)
    for count in (1, 2, 48):
        blocks = [f"block {n + 1}" for n in range(count)]
        text = draw_layer_scores([1.0] * count, tmp_path / "it.svg", "", "", blocks).read_text()
        assert "1.00 at block 1" in text and ">block</text>" in text
