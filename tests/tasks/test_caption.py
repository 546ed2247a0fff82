"""Task caption from files to scores, with a tiny captioner; CIDEr-D against pycocoevalcap and calculations by hand."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import regard
from caption_album import PRESET, SETTINGS, TASK, album_in, captions, encoded, model, samples
from conftest import facts, stopped_in
from data_files import refused
from regard.data.batching.samplers import SortedUniform, Uniform
from regard.data.settings import DataSettings
from regard.decode.settings import DecodeSettings
from regard.errors import RegardError, SettingError
from regard.processors.image import CaptionProcessor, ImageProcessor
from regard.processors.tokenizer.tokenizer import TextTokenizer
from regard.runs.evaluate import evaluate
from regard.tasks.base import LossWeights
from regard.tasks.caption import caption_index, caption_scores
from regard.tasks.metrics.cider import cider, tokenize_words
from regard.tasks.modality import image as image_modality
from regard.tasks.modality.image import prepare_images, require_image_processor
from regard.types import IGNORE
from tiny import near
from tiny_text_models import train

OBJECTIVE: Any = TASK.objective


@pytest.fixture(scope="session")
def album(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In a folder with a space in its name."""
    return album_in(tmp_path_factory.mktemp("some") / "my album")


@pytest.fixture(scope="session")
def run(album: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "a run"
    more = ("train.steps=200", "train.eval_every=100", "train.lr=1e-2", "train.batch_size=24", "model.width=32")
    train("caption", album, out, *SETTINGS, *more, model=PRESET)
    return out


# -- predictions


def test_a_caption_has_its_tokens_and_log_probabilities(run: Path, album: Path) -> None:
    answer = regard.load(run).predict(str(album / "images" / "n 0.png"))
    assert "red" in answer.value and answer.extra["finish_reason"] == "eos" and answer.tokens
    assert len(answer.extra["token_ids"]) + 1 == len(answer.extra["logprobs"])


def test_a_sampled_caption_depends_on_its_number_and_not_on_its_batch(album: Path) -> None:
    made = model(album)
    some = [str(album / "images" / f"n {number}.png") for number in range(5)]
    decode = DecodeSettings(do_sample=True, seed=4, num_return_sequences=2)
    whole = OBJECTIVE.predict(made, some, decode)
    for number, path in enumerate(some):
        (alone,) = OBJECTIVE.predict(made, [path], decode, first=number)
        assert alone.value == whole[number].value and alone.score == pytest.approx(whole[number].score, rel=1e-9)
    assert len(whole[0].extra["alternatives"]) == 2


def test_captions_end_at_the_end_token_or_a_given_limit(album: Path) -> None:
    made = model(album, max_length=7)
    path = str(album / "images" / "n 1.png")
    made.body.words.bias.data[made.config.eos_id] = -99
    assert len(made.predict(path).extra["token_ids"]) == 7
    assert len(made.predict(path, max_new_tokens=3).extra["token_ids"]) == 3
    assert len(made.predict(path, max_new_tokens=50).extra["token_ids"]) == 7
    assert made.predict(path).extra["finish_reason"] == "length"
    made.body.words.bias.data[[made.config.pad_id, made.config.bos_id]] = 99
    assert not {made.config.pad_id, made.config.bos_id} & set(made.predict(path).extra["token_ids"]), "never generated"


# -- runs


def test_a_run_learns_and_lists_captions(run: Path, album: Path) -> None:
    found = facts(run)
    assert found["scores"]["exact_match"] == 100.0 and found["scores"]["cider"] > 100
    assert found["scores"]["samples"] == found["data_stats"]["valid"] == 30 - found["data_stats"]["train"]
    assert set(found["best"]) >= {"cider", "bleu4", "loss"}
    card = (run / "README.md").read_text("utf-8")
    assert "sacreBLEU signature" in card
    assert f"| {os.path.relpath(album, run)}/images/n " in card
    told = (run / "samples.txt").read_text("utf-8")
    assert "    → " in told and "    = " in told


def test_images_are_split_not_captions(run: Path, album: Path) -> None:
    assert len({TASK.reader.split_key(sample) for sample in samples(album)}) == 30
    held = {row["image"] for row in evaluate(run).rows}
    assert len(held) == facts(run)["data_stats"]["valid"]
    rest = (sample for sample in samples(album) if sample.source not in held)
    learnt = TextTokenizer.train_sentence_bpe(captions(rest), 300)  # trained on captions, not on file names
    assert regard.load(run).tokenizer.fingerprint() == learnt.fingerprint()


def test_a_run_is_evaluated_on_other_files_too(run: Path, album: Path, tmp_path: Path) -> None:
    other = tmp_path / "two.csv"
    other.write_text(f"image,caption\n{album}/images/n 0.png,a red thing\n{album}/images/n 0.png,this is red\n")
    scores = evaluate(run, [str(other)]).scores
    assert scores["samples"] == 1 and scores["exact_match"] == 100.0 and "cider" not in scores
    assert next(name for name in OBJECTIVE.metrics if name in scores) == "bleu4"
    long = tmp_path / "long.csv"
    long.write_text(f"image,caption\n{album}/images/n 0.png,{'red ' * 40}\n{album}/images/n 1.png,a green thing\n")
    said: list[str] = []
    assert evaluate(run, [str(long)], log=said.append).scores["samples"] == 2
    assert any("1 captions have more than 16 tokens and are excluded from the loss" in line for line in said)


def test_a_caption_that_was_changed_is_noticed(album: Path, tmp_path: Path) -> None:
    mine = Path(shutil.copytree(album, tmp_path / "mine"))
    text = (mine / "captions.jsonl").read_text().replace('"captions"', '"split": "train", "captions"')
    (mine / "captions.jsonl").write_text(text)
    with stopped_in(6):
        train("caption", f"{mine}/captions.jsonl#train", tmp_path / "run", *SETTINGS, model=PRESET)
    (mine / "captions.jsonl").write_text(text.replace("a white thing", "a white one"))
    refused("started", regard.train, "caption", out=tmp_path / "run", resume=True, error=RegardError)


# -- batches


def test_captions_that_are_too_long_are_skipped_and_their_images_stay(album: Path) -> None:
    made = model(album)
    whole, short = encoded(album, made), encoded(album, made, longest=4)
    assert short.num_rows < whole.num_rows and len(short) == 30 and short.too_long
    assert len(short.too_long) == whole.num_rows - short.num_rows
    owners, first, last = caption_index(short)
    assert (last - first).max() <= 6 and set(owners) <= set(range(30))
    narrow = model(album, max_length=5)
    _, first, last = caption_index(encoded(album, narrow))
    assert (last - first).max() <= 6
    none = encoded(album, made, longest=1)
    assert none.num_rows == 0 and len(none) == 30


def test_micro_batches_have_similar_lengths_or_one_shape(album: Path) -> None:
    made = model(album)
    found = encoded(album, made)
    plan, steady = (OBJECTIVE.sampler(found, made.config, 8, 5, packed) for packed in (False, True))
    assert isinstance(plan, SortedUniform) and not plan.static_shape
    assert isinstance(steady, Uniform) and steady.static_shape
    for way in (plan, steady):
        epoch = list(way.epoch(0))
        assert {len(grain) for grain in epoch} == {8}
        assert {int(n) for grain in epoch for n in grain[:, 0]} == set(range(75))
        assert len({int(seed) for grain in epoch for seed in grain[:, 1]}) == 8 * len(epoch)
    assert OBJECTIVE.sampler(found, made.config, 99, 5, True).epoch(0)[0].shape == (75, 2)
    assert plan.padding_fraction() < 0.1
    batches = [OBJECTIVE.collate(found, grain, made.config, steady.shape) for grain in steady.epoch(1)]
    length = steady.shape.max_lengths[0]
    assert {batch.decoder.inputs.shape for batch in batches} == {(8, length)} and length <= made.config.max_length
    plain = OBJECTIVE.collate(found, steady.epoch(1)[0], made.config)
    near(*(OBJECTIVE.loss(made, batch)[0] for batch in (plain, batches[0])))


def test_an_image_is_decoded_once_for_all_its_captions(album: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    real = image_modality.image_io.read_image
    read = lambda source, min_side=0: seen.append(source) or real(source, min_side)  # noqa: E731
    monkeypatch.setattr(image_modality.image_io, "read_image", read)
    made = model(album)
    found = encoded(album, made)
    plan = OBJECTIVE.sampler(found, made.config, 8, 5, False)
    for grain in (*plan.epoch(0), *plan.epoch(1)):
        OBJECTIVE.collate(found, grain, made.config)
    assert len(seen) == len(set(seen)) == 30


def test_images_are_augmented_in_training_and_captions_are_not(album: Path) -> None:
    made = model(album)
    found = encoded(album, made, data=DataSettings(flip=True, color_jitter=0.3))
    grain = OBJECTIVE.sampler(found, made.config, 8, 5, False).epoch(0)[0]
    batch, again = (OBJECTIVE.collate(found, grain, made.config) for _ in range(2))
    assert batch.augmentation is not None and torch.equal(batch.augmentation.params, again.augmentation.params)  # type: ignore[arg-type]
    assert prepare_images(made, batch).augmentation is None
    refused(r"data\.mixup", OBJECTIVE.check_settings, made.config, 8, DataSettings(mixup=0.2), error=SettingError)
    with pytest.raises(SettingError, match=r"data\.tokenizer_type=char"):
        OBJECTIVE.check_settings(made.config, 8, DataSettings(tokenizer_type="char"))


def test_the_penalty_counts_while_learning(album: Path) -> None:
    made, plain = model(album, attention_penalty=0.5), model(album, attention_penalty=0.0)
    plain.body.load_state_dict(made.body.state_dict())
    batch, terms = next(OBJECTIVE.eval_batches(encoded(album, made), made.config, 8)), LossWeights(smoothing=0.1)
    without, count = OBJECTIVE.loss(plain, batch, terms)
    near(OBJECTIVE.loss(made, batch, terms)[0], without)
    own = made.train().body(prepare_images(made, batch)).aux_losses["penalty"]
    near(OBJECTIVE.loss(made, batch, terms)[0], without + own)
    assert own > 0 and int(count) == int((batch.labels != IGNORE).sum())


# -- the processor


def test_the_reader_of_a_captioner_is_kept_and_found_again(album: Path, tmp_path: Path) -> None:
    made = model(album)
    made.save(tmp_path / "m")
    again = regard.load(tmp_path / "m")
    assert isinstance(again.processor, CaptionProcessor) and again.require_processor() is again.processor
    assert replace(again.processor.pixels, edge=0) == made.processor.pixels
    assert isinstance(require_image_processor(again), ImageProcessor)
    picture = str(next((album / "images").iterdir()))
    for name, missing in (("tokenizer.json", r"tokenizer\.json"), ("preprocessor_config.json", "preprocessor")):
        made.save(tmp_path / name)
        (tmp_path / name / name).unlink()
        half = regard.load(tmp_path / name)
        logits = half.logits(torch.zeros(1, 3, 16, 16), torch.ones(1, 2, dtype=torch.long))
        assert logits.shape == (1, 2, made.config.vocab_size)
        refused(missing, half.predict, picture, error=RegardError)
        refused(missing, half.require_processor, error=RegardError)
    half.tokenizer = made.tokenizer
    half.save(tmp_path / "half")
    assert (tmp_path / "half/tokenizer.json").exists() and not (tmp_path / "half/preprocessor_config.json").exists()


def test_a_tokenizer_may_be_brought(album: Path, tmp_path: Path) -> None:
    TextTokenizer.train_wordpiece(captions(samples(album)), 120).save(tmp_path / "tokenizer.json")
    brought = (f"data.tokenizer={tmp_path / 'tokenizer.json'}", "train.steps=2")
    train("caption", album, tmp_path / "run", *SETTINGS, *brought, model=PRESET)
    made = regard.load(tmp_path / "run")
    text, config = made.tokenizer, made.config
    special = [text.backend.token_to_id(token) for token in ("[CLS]", "[SEP]", "[PAD]")]
    assert [config.bos_id, config.eos_id, config.pad_id] == special and config.vocab_size == text.size
    TextTokenizer.train_lm_bpe(captions(samples(album)), 300).save(tmp_path / "other.json")
    adopted = TASK.modality.build_processor(TextTokenizer.load(tmp_path / "other.json"), config, DataSettings()).text
    assert adopted.special_id("pad") is not None
    assert adopted.special_id("start") == adopted.special_id("end") is not None


WRITTEN = ["a brown dog runs on the beach", "two children play in the snow", "a man", "the the the the dog dog"]
MEANT = [
    ["a brown dog is running on the beach", "the dog runs along the sand", "a dog on a beach"],
    ["two children are playing in the snow"],
    ["a man rides a red bicycle down the street", "a man on a bicycle"],
    ["the dog sleeps", "a black dog sleeps on the sofa in the house"],
]
RIGHT = [2.248870229938892, 3.422065396748824, 1.8947884562531119, 0.4405575650663055]
"""Scores of pycocoevalcap 1.2."""


def of(said: list[str], meant: list[list[str]]) -> list[float]:
    return cider([text.split() for text in said], [[text.split() for text in texts] for texts in meant]).tolist()


def test_scores_equal_pycocoevalcap_in_any_order() -> None:
    assert of(WRITTEN, MEANT) == pytest.approx(RIGHT, rel=1e-12)
    turned = of(WRITTEN[::-1], [texts[::-1] for texts in MEANT[::-1]])
    assert turned[::-1] == pytest.approx(RIGHT, rel=1e-12)
    refused("reference", cider, [["a"]], [[]], error=ValueError)
    assert of(["", "a b"], [["a b"], ["c"]]) == [0.0, 0.0], "no common word"
    assert of(["a b", "a b"], [["a b"], ["a b"]]) == [0.0, 0.0], "words of all images have weight 0"
    scores = caption_scores(WRITTEN, MEANT, DataSettings(pretokenized=True))
    assert scores["cider"] == round(100 * float(np.mean(RIGHT)), 2)


@pytest.mark.slow
def test_five_thousand_images_take_seconds() -> None:
    texts = [[f"w{number}" for number in row] for row in np.random.default_rng(0).integers(3000, size=(30_000, 11))]
    said, meant = texts[:5000], [texts[first : first + 5] for first in range(5000, 30_000, 5)]
    begun = time.perf_counter()
    assert cider(said, meant).shape == (5000,)
    assert time.perf_counter() - begun < 20


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("A man doesn't like the dog's toy .", "a man does n't like the dog 's toy"),
        ("It's 3.5 meters, or 1,000 feet & 50% off!", "it 's 3.5 meters or 1,000 feet & 50 % off"),
        ('"Hello," she said -- a well-known T-shirt costs $5.', "hello she said a well-known t-shirt costs $ 5"),
        ("They can't; we'll go... isn't it?", "they ca n't we 'll go is n't it"),
        ("at 5:30 two/three dogs' bowls", "at 5:30 two/three dogs bowls"),
        ("Ein Mädchen läuft – schnell", "ein mädchen läuft schnell"),
        (" . ", ""),
    ],
)
def test_words_are_those_of_penns_treebank_without_punctuation(text: str, found: str) -> None:
    assert " ".join(tokenize_words(text)) == found


def test_scores_are_of_all_references_and_of_plain_words() -> None:
    meant = [["a cat", "the dog", "a dog"], ["two cats sit"]]
    scores = caption_scores(["A dog !", "Two cats sit ."], meant, DataSettings())
    assert scores["exact_match"] == 100.0 and scores["bleu1"] == scores["bleu4"] == 100.0 and scores["samples"] == 2
    assert str(scores["signature"]).startswith("nrefs:var|case:mixed|eff:yes|tok:none")
    assert caption_scores(["A dog !"], [["a dog"]], DataSettings(pretokenized=True))["exact_match"] == 0.0
    assert "cider" not in caption_scores(["a"], [["a"]], DataSettings())
