"""Batches of images and captions, and the processor of the task caption."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

import regard
import tiny_caption_system as caption_system
from regard.data.batching.samplers import SortedUniform, Uniform
from regard.data.settings import DataSettings
from regard.errors import RegardError, SettingError
from regard.model import Model
from regard.processors.image import CaptionProcessor, ImageProcessor
from regard.processors.tokenizer.tokenizer import TextTokenizer
from regard.tasks import find_task
from regard.tasks.base import LossWeights
from regard.tasks.caption import Caption, caption_index
from regard.tasks.modality.image import prepare_images
from regard.types import IGNORE
from tiny_caption_system import TASK, album_in, captions, encoded, model, samples


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    caption_system.offer(monkeypatch)
    monkeypatch.setattr("regard.runs.trainer.draw_training_curves", lambda *_: None)


@pytest.fixture(scope="module")
def album(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In a folder with a space in its name."""
    return album_in(tmp_path_factory.mktemp("some") / "my album")


def train(album: Path, out: Path, *settings: str, **more: Any) -> Model:
    return regard.train(
        "caption", str(album), model=more.pop("model", "speaker-tiny"), out=out, settings=settings, **more
    )


# -- batches


def test_it_is_listed_and_checked() -> None:
    assert TASK is find_task("caption", "image") and isinstance(TASK.objective, Caption)


def test_a_row_is_an_image_with_one_of_its_captions(album: Path) -> None:
    made, some = model(album), samples(album)
    found = encoded(album, made)
    assert len(found) == found.num_samples == 30 and found.num_rows == sum(len(s.captions) for s in some) == 75
    told: list[tuple[float, str]] = []
    for batch in TASK.objective.eval_batches(found, made.config, 8):
        assert batch.inputs.dtype == torch.uint8 and batch.augmentation is None and batch.decoder is not None
        assert batch.decoder.image_index is not None and len(batch.inputs) == len(batch.decoder.image_index.unique()), (
            "each image once"
        )
        for x, target, labels in zip(
            batch.inputs[batch.decoder.image_index], batch.decoder.inputs, batch.labels, strict=True
        ):  # type: ignore[arg-type]
            n = int((labels != IGNORE).sum())
            assert target[0] == made.config.bos_id and labels[n - 1] == made.config.eos_id
            assert target[1:n].tolist() == labels[: n - 1].tolist() and (target[n:] == made.config.pad_id).all()
            told.append((float(x.float().mean()), made.processor.text.decode([labels[:n].tolist()])[0]))
    right = [caption for sample in some for caption in sample.captions]
    assert [text for _, text in told] == right
    mean = {"red": 85.0, "white": 255.0, "black": 0.0}
    assert all(x == pytest.approx(mean[c], abs=0.1) for x, text in told for c in mean if c in text)


def test_captions_that_are_too_long_are_skipped_and_their_images_stay(album: Path) -> None:
    made = model(album)
    whole, short = encoded(album, made), encoded(album, made, longest=4)
    assert short.num_rows < whole.num_rows and len(short) == 30 and short.too_long
    assert len(short.too_long) == whole.num_rows - short.num_rows
    assert caption_index(short).lengths.max() <= 5 and set(caption_index(short).sample_index) <= set(range(30))
    narrow = model(album, max_length=5)
    assert caption_index(encoded(album, narrow)).lengths.max() <= 5
    none = encoded(album, made, longest=1)
    assert none.num_rows == 0 and len(none) == 30


def test_micro_batches_have_similar_lengths_or_one_shape(album: Path) -> None:
    made = model(album)
    found = encoded(album, made)
    plan, steady = (TASK.objective.sampler(found, made.config, 8, 5, packed) for packed in (False, True))
    assert isinstance(plan, SortedUniform)
    assert not plan.static_shape
    assert isinstance(steady, Uniform)
    assert steady.static_shape
    for way in (plan, steady):
        epoch = list(way.epoch(0))
        assert {len(grain) for grain in epoch} == {8}
        assert {int(n) for grain in epoch for n in grain[:, 0]} == set(range(75))
    assert plan.padding_fraction() < 0.1
    shapes = {
        tuple(TASK.objective.collate(found, g, made.config, steady.shape).decoder.inputs.shape) for g in steady.epoch(1)
    }
    assert shapes == {(8, steady.shape.max_lengths[0])} and steady.shape.max_lengths[0] <= made.config.max_length
    plain = TASK.objective.collate(found, steady.epoch(1)[0], made.config)
    padded = TASK.objective.collate(found, steady.epoch(1)[0], made.config, steady.shape)
    with torch.no_grad():
        assert float(TASK.objective.loss(made, plain)[0]) == pytest.approx(
            float(TASK.objective.loss(made, padded)[0]), rel=1e-12
        )


def test_an_image_is_decoded_once_for_all_its_captions(album: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import regard.tasks.modality.image as pictured

    seen: list[Any] = []
    real = pictured.read_image
    monkeypatch.setattr(
        pictured, "read_image", lambda source, min_side=0: seen.append(source) or real(source, min_side)
    )
    made = model(album)
    found = encoded(album, made)
    plan = TASK.objective.sampler(found, made.config, 8, 5, False)
    for grain in (*plan.epoch(0), *plan.epoch(1)):
        TASK.objective.collate(found, grain, made.config)
    assert len(seen) == len(set(seen)) == 30


def test_images_are_augmented_in_training_and_captions_are_not(album: Path) -> None:
    made = model(album)
    found = encoded(album, made, data=DataSettings(flip=True, color_jitter=0.3))
    grain = TASK.objective.sampler(found, made.config, 8, 5, False).epoch(0)[0]
    batch, again = (TASK.objective.collate(found, grain, made.config) for _ in range(2))
    assert batch.augmentation is not None and torch.equal(batch.augmentation.params, again.augmentation.params)  # type: ignore[arg-type]
    assert prepare_images(made, batch).augmentation is None
    with pytest.raises(SettingError, match=r"data\.mixup"):
        TASK.objective.check_settings(made.config, 8, DataSettings(mixup=0.2))
    with pytest.raises(SettingError, match=r"data\.tokenizer_type=char"):
        TASK.objective.check_settings(made.config, 8, DataSettings(tokenizer_type="char"))


def test_the_penalty_counts_while_learning(album: Path) -> None:
    made, plain = model(album, penalty=0.5), model(album)
    plain.body.load_state_dict(made.body.state_dict())
    batch = next(TASK.objective.eval_batches(encoded(album, made), made.config, 8))
    with torch.no_grad():
        own = float(made.body(prepare_images(made, batch)).aux_losses["penalty"])
        without, count = TASK.objective.loss(plain, batch, LossWeights(smoothing=0.1))
        assert float(TASK.objective.loss(made, batch, LossWeights(smoothing=0.1))[0]) == pytest.approx(
            float(without), rel=1e-12
        )
        learns = float(TASK.objective.loss(made.train(), batch, LossWeights(smoothing=0.1))[0])
    assert own > 0 and learns == pytest.approx(float(without) + own, rel=1e-12)
    assert int(count) == int((batch.labels != IGNORE).sum())


# -- the processor


def test_the_reader_of_a_captioner_is_kept_and_found_again(album: Path, tmp_path: Path) -> None:
    made = model(album)
    made.save(tmp_path / "m")
    again = regard.load(tmp_path / "m")
    assert isinstance(again.processor, CaptionProcessor)
    assert replace(again.processor.pixels, edge=0) == made.processor.pixels
    assert again.processor.text.fingerprint() == made.require_tokenizer().fingerprint() and again.config == made.config
    assert isinstance(again.require_image_processor(), ImageProcessor) and again.require_processor() is again.processor
    picture = str(next((album / "images").iterdir()))
    assert again.predict(picture) == made.predict(picture)
    for name, missing in (("tokenizer.json", r"tokenizer\.json"), ("preprocessor_config.json", "preprocessor")):
        made.save(tmp_path / name)
        (tmp_path / name / name).unlink()
        half = regard.load(tmp_path / name)
        assert half.logits(torch.zeros(1, 3, 16, 16), torch.ones(1, 2, dtype=torch.long)).shape == (
            1,
            2,
            made.config.vocab_size,
        )
        with pytest.raises(RegardError, match=missing):
            half.predict(picture)
        with pytest.raises(RegardError, match=missing):
            half.require_processor()
    half.tokenizer = made.tokenizer
    half.save(tmp_path / "half")
    assert (tmp_path / "half/tokenizer.json").exists() and not (tmp_path / "half/preprocessor_config.json").exists()


def test_images_are_preprocessed_for_the_image_encoder(album: Path) -> None:
    @dataclass(frozen=True)
    class Through(caption_system.Config):
        said: ImageProcessor | None = None

        def image_processor(self) -> ImageProcessor | None:
            return self.said

    text, own = TextTokenizer.train_sentence_bpe(["a b"], 300), ImageProcessor((16, 16), mean=(0.1, 0.2, 0.3))
    assert TASK.modality.build_processor(text, Through(said=own), DataSettings()).pixels is own
    assert (
        TASK.modality.build_processor(text, Through(), DataSettings()).pixels
        == TASK.modality.build_processor(text, caption_system.Config(), DataSettings()).pixels
    )


def test_a_tokenizer_may_be_brought(album: Path, tmp_path: Path) -> None:
    TextTokenizer.train_wordpiece(captions(samples(album)), 120).save(tmp_path / "tokenizer.json")
    made = train(album, tmp_path / "run", f"data.tokenizer={tmp_path / 'tokenizer.json'}", "train.steps=2")
    text, config = made.require_tokenizer(), made.config
    assert (config.bos_id, config.eos_id, config.pad_id) == tuple(
        text.token_to_id(t) for t in ("[CLS]", "[SEP]", "[PAD]")
    )
    assert config.vocab_size == text.size
    TextTokenizer.train_lm_bpe(captions(samples(album)), 300).save(tmp_path / "other.json")
    adopted = TASK.modality.build_processor(TextTokenizer.load(tmp_path / "other.json"), config, DataSettings()).text
    assert adopted.special_id("pad") is not None
    assert adopted.special_id("start") == adopted.special_id("end") is not None
