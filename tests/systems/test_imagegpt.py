"""ImageGPT against transformers: attention, states, loss, sampling; presets, initialization, checkpoints, palettes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import regard
from data_files import refused
from parity import color_rows, load_peer, peer_of
from regard.errors import WeightsError
from regard.nn.recording import record_attention
from regard.processors import palette as palettes
from regard.processors.palette import Palette
from regard.tasks import find_task
from regard.tasks.draw import shift_right
from regard.types import Batch
from tiny import near

KIND = {"draw": "ImageGPTForCausalImageModeling", "classify": "ImageGPTForImageClassification"}


# -- outputs and gradients


def test_attention_and_states_of_each_layer_equal_transformers(tmp_path: Path) -> None:
    peer, x = peer_of(KIND["draw"]), color_rows()
    model = load_peer(peer, tmp_path)
    right = peer(input_ids=x, output_attentions=True, output_hidden_states=True)
    with record_attention(model) as seen:
        states = model.body(Batch(x), taps=range(3))
    for number, weights in enumerate(right.attentions):
        near(seen.weights(f"decoder.blocks.{number}.attend"), weights)
    for ours, wanted in zip(states.hidden_states[:-1], right.hidden_states[1:-1], strict=True):
        near(ours, wanted)
    near(states.sequence, right.hidden_states[-1])
    near(states.pooled, right.hidden_states[-1].mean(1))


def test_an_image_is_pooled_over_its_real_pixels(tmp_path: Path) -> None:
    model, x, lengths = load_peer(peer_of(KIND["classify"]), tmp_path), color_rows(), torch.tensor([16, 3, 9, 1])
    alone = [model.body(Batch(x[i : i + 1, :n])).pooled for i, n in enumerate(lengths.tolist())]
    near(model.body(Batch(x, lengths)).pooled, torch.cat(alone))


def test_the_loss_equals_transformers_without_its_second_shift(tmp_path: Path) -> None:
    """transformers shifts the labels by one position: its input must be one token longer."""
    peer = peer_of(KIND["draw"])
    model = load_peer(peer, tmp_path)
    colors = torch.randint(11, (3, 16), generator=torch.Generator().manual_seed(4))
    batch = shift_right(colors, model.config)
    assert bool((batch.inputs[:, 0] == 11).all()) and torch.equal(batch.inputs[:, 1:], colors[:, :-1])
    total, count = find_task("draw").objective.loss(model, batch)
    logits = peer(input_ids=batch.inputs).logits
    near(total, torch.nn.functional.cross_entropy(logits.flatten(0, 1), colors.flatten(), reduction="sum"))
    assert int(count) == 48
    twice = peer(input_ids=batch.inputs, labels=batch.inputs).loss  # positions 1 … of the input
    short, some = model.body.cross_entropy(model.states(batch.inputs).sequence[:, :-1], colors[:, :-1].contiguous())
    near((short / some).float(), twice.float(), 1e-6)


# -- checkpoints


def test_old_files_with_masks_and_bare_bodies_are_read(tmp_path: Path) -> None:
    peer, x = peer_of(KIND["draw"]), color_rows()
    peer.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    masks = {f"transformer.h.{n}.attn.{name}": torch.ones(1) for n in range(3) for name in ("bias", "masked_bias")}
    save_file({**tensors, **masks}, tmp_path / "model.safetensors")
    near(regard.load(tmp_path).logits(x), peer(input_ids=x).logits)
    bare = load_peer(peer.transformer, tmp_path / "bare")
    near(bare.states(x).sequence, peer.transformer(input_ids=x).last_hidden_state)
    assert any("Random weights" in note for note in bare.notes)  # the output layer


def test_weights_of_the_other_task_are_dropped_and_reported(tmp_path: Path) -> None:
    model = load_peer(peer_of(KIND["draw"]), tmp_path / "draw", task="classify")
    assert not model.config.lm_head and any("lm_head.weight" in note for note in model.notes) and model.has_new_head
    model = load_peer(peer_of(KIND["classify"]), tmp_path / "classify", task="draw")
    assert model.config.lm_head and any("score.weight" in note for note in model.notes)
    assert model.logits(color_rows()).shape == (4, 16, 11)


# -- palettes


def random_pictures(count: int = 6, seed: int = 0) -> list[Any]:
    random = np.random.default_rng(seed)
    shapes = [(9, 9), (5, 8), (12, 4), (1, 1), (30, 31)]
    return [random.integers(0, 256, (*shapes[i % 5], 3), dtype=np.uint8) for i in range(count)]


@pytest.mark.parametrize("resample", [0, 2, 3])
def test_color_indices_equal_the_processor_in_both_directions(resample: int, tmp_path: Path) -> None:
    colours = np.random.default_rng(1).uniform(-1, 1, (37, 3))
    ours = Palette(colours, 9, resample)
    theirs = transformers.ImageGPTImageProcessorPil(clusters=colours, size={"height": 9, "width": 9}, resample=resample)
    (tmp_path / "ours").mkdir()
    ours.save(tmp_path / "ours")
    again = transformers.ImageGPTImageProcessorPil.from_pretrained(tmp_path / "ours")
    theirs.save_pretrained(tmp_path / "theirs")
    back = Palette.load(tmp_path / "theirs")
    assert back is not None and back.fingerprint() == ours.fingerprint()
    for picture in random_pictures():
        right, once_more = (it(picture, input_data_format="channels_last")["input_ids"][0] for it in (theirs, again))
        for found in (ours.encode(picture), back.encode(picture), once_more):
            assert np.array_equal(found, right)
        pixels = np.rint(127.5 * (colours[right] + 1)).reshape(9, 9, 3).astype(np.uint8)
        assert np.array_equal(ours.decode(right), pixels)


def test_batches_of_bytes_and_of_floats_are_read_like_single_images(monkeypatch: pytest.MonkeyPatch) -> None:
    palette = Palette(np.random.default_rng(1).uniform(-1, 1, (13, 3)), 6)
    made = np.stack([palette.prepare(picture) for picture in random_pictures()])
    right = np.stack([palette.encode(picture) for picture in random_pictures()])
    x = torch.from_numpy(made).permute(0, 3, 1, 2)
    monkeypatch.setattr(palettes, "MAX_DISTANCES", 100)  # several chunks
    assert np.array_equal(palette.normalize(x).numpy(), right)
    assert np.array_equal(palette.normalize(x / 255).numpy(), right)


def test_of_equally_near_colors_the_first_is_taken() -> None:
    palette = Palette(np.array([[0.5] * 3, [-0.5] * 3, [0.5] * 3]), 1)
    assert palette.nearest(torch.tensor([[0.0] * 3, [0.1] * 3, [-0.1] * 3])).tolist() == [0, 0, 1]


def test_a_palette_of_few_colors_has_exactly_those() -> None:
    random = np.random.default_rng(2)
    three = np.array([[0, 0, 0], [255, 0, 0], [255, 255, 255]], dtype=np.uint8)
    pictures = [three[random.integers(0, 3, (4, 4))] for _ in range(5)]
    palette = Palette.fit(pictures, 16, 4)
    assert len(palette) == 3
    for picture in pictures:
        assert np.array_equal(palette.decode(palette.encode(picture)), picture)


@pytest.mark.every(2)
@pytest.mark.parametrize("batch", [2**14, 256])
def test_k_means_is_near_the_best_for_grays(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """For 256 equally frequent grays, 16 runs of 16 grays are optimal. A small batch leaves few samples per round."""
    monkeypatch.setattr(palettes, "KMEANS_BATCH", batch)
    greys = np.repeat(np.arange(256, dtype=np.uint8)[:, None], 3, 1)
    palette = Palette.fit([greys.reshape(16, 16, 3)] * 3, 16, 16)
    assert len(palette) == 16 and np.ptp(palette.colors, axis=1).max() < 1e-12
    pixels = torch.from_numpy(greys / 127.5 - 1)
    error = (pixels - torch.from_numpy(palette.colors)[palette.nearest(pixels)]).square().sum(1).mean()
    assert float(error) < 1.25 * 3 * (16**2 - 1) / 12 / 127.5**2


def test_memory_is_bounded_and_all_images_may_be_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(palettes, "MAX_PIXELS", 64)
    parts = (np.full((16, 3), number, dtype=np.uint8) for number in range(200))
    kept = palettes._sample_pixels(parts, np.random.default_rng(0))
    assert kept.shape == (64, 3) and kept[:, 0].min() < 60 and kept[:, 0].max() > 140


def test_an_empty_center_moves_where_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    points = np.array([[-1.0, 0, 0], [-0.9, 0, 0], [0.9, 0, 0], [1.0, 0, 0], [0.0, 1, 0]])
    monkeypatch.setattr(palettes, "_kmeans_init", lambda points, *rest: points[[0, 0, 0]].copy())
    found = palettes.kmeans(points, np.ones(5), 3, np.random.default_rng(0))
    assert np.allclose(found, [[-0.95, 0, 0], [0, 1, 0], [0.95, 0, 0]])


def test_invalid_images_and_palettes_are_refused(tmp_path: Path) -> None:
    palette = Palette(np.zeros((2, 3)), 4)
    for broken in (np.zeros((4, 4), np.uint8), np.zeros((4, 4, 3)), np.zeros((0, 4, 3), np.uint8)):
        refused("uint8", palette.encode, broken)
    refused("palette", Palette, np.zeros((2, 4)), 4)
    refused("images", Palette.fit, [], 4, 4)
    assert Palette.load(tmp_path) is None
    palette.save(tmp_path)
    said = json.loads((tmp_path / "preprocessor_config.json").read_text())
    changes = {"image_mean": [0.4] * 3}, {"do_normalize": False}, {"clusters": "blue"}, {"size": 0}, {"resample": 9}
    for change in (*changes, {"size": {"height": 4, "width": 5}}):
        (tmp_path / "preprocessor_config.json").write_text(json.dumps({**said, **change}))
        refused("preprocessor_config", Palette.load, tmp_path, error=WeightsError)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"size": 32, "resample": 2, "clusters": [[0, 0, 1]]}))
    first = Palette.load(tmp_path)  # the layout of the first published palettes
    assert first is not None and first.size == (32, 32) and len(first) == 1
