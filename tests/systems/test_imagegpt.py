"""ImageGPT against transformers: logits, classes, gradients, checkpoints in both directions, palettes, sampling."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import regard
from regard.decode.search import search
from regard.decode.settings import DecodeSettings
from regard.errors import DataError, SettingError, WeightsError
from regard.model import Model, ModelSpec, assemble
from regard.nn.blocks.heads import ClassifierHead
from regard.processors import palette as palettes
from regard.processors.palette import Palette
from regard.systems import SYSTEMS, find_preset, imagegpt
from regard.tasks.image_generation import ImageGeneration, shift_right
from regard.types import Batch
from tiny import gradients, near, noise, noisy

transformers = pytest.importorskip("transformers")
transformers.utils.logging.disable_progress_bar()
transformers.utils.logging.set_verbosity_error()

SMALL = imagegpt.Config(image_size=4, num_colors=11, width=12, depth=3, heads=3, ffn_dim=20)
BLOCK = {
    "attend.norm": "ln_1", "attend.inner.qkv": "attn.c_attn", "attend.inner.out": "attn.c_proj", "feed.norm": "ln_2",
    "feed.inner.up": "mlp.c_fc", "feed.inner.down": "mlp.c_proj",
}  # fmt: skip
REST = {"tokens.table": "transformer.wte", "position.table": "transformer.wpe", "decoder.norm": "transformer.ln_f"}
REST |= {"colours": "lm_head", "head.classes": "score"}


def place(name: str) -> str:
    """Name of a parameter in transformers, independent of the tested table."""
    part, kind = name.rsplit(".", 1)
    if part in REST:
        return f"{REST[part]}.{kind}"
    _, _, number, rest = part.split(".", 3)
    return f"transformer.h.{number}.{BLOCK[rest]}.{kind}"


def in_our_places(theirs: Mapping[str, Tensor], names: Any) -> dict[str, Tensor]:
    """State dict of transformers with our names; the matrices of their blocks are (in, out)."""
    found = {name: theirs[place(name)] for name in names}
    return {name: t.T if t.ndim == 2 and ".blocks." in name else t for name, t in found.items()}


class Sorting(ImageGeneration):
    """Image classification with a head on the pooled hidden state."""

    name = "classify"
    has_labels = True

    def adapt_config(self, config: Any) -> Any:
        return replace(config, lm_head=False)

    def head(self, config: Any, labels: Any) -> Any:
        return (
            ClassifierHead(
                "classes", config.feature_maps()[-1].channels, len(labels), config.head_dropout, config.head_bias
            )
            if labels
            else None
        )

    def logits(self, model: Any, batch: Batch) -> Tensor:
        return model.head(model.body(batch).pooled)


TASK = {"draw": ImageGeneration(), "classify": Sorting()}
KIND = {"draw": "ImageGPTForCausalImageModeling", "classify": "ImageGPTForImageClassification"}
tasks = pytest.mark.parametrize("task", TASK)


@pytest.fixture(autouse=True)
def both_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    import regard.tasks

    monkeypatch.setattr(regard.tasks, "IMAGE_TASKS", {**regard.tasks.IMAGE_TASKS, **TASK})


def model_of(task: str = "draw", **changes: Any) -> Model:
    config = TASK[task].adapt_config(replace(SMALL, **changes))
    labels = tuple("abcde") if task == "classify" else ()
    model: Model = noisy(assemble(ModelSpec(SYSTEMS["imagegpt"], config, TASK[task], labels=labels)))
    return model


def their(model: Model) -> Any:
    """Model of transformers with our weights."""
    config = model.config
    theirs = getattr(transformers, KIND[model.task.name])(
        transformers.ImageGPTConfig(
            vocab_size=config.num_colors + 1, n_positions=config.image_size**2, n_embd=config.width, n_layer=config.depth,
            n_head=config.heads, n_inner=config.ffn_dim, layer_norm_epsilon=config.norm_eps, resid_pdrop=config.dropout,
            embd_pdrop=config.embedding_dropout, attn_pdrop=config.attention_dropout,
            id2label=dict(enumerate("abcde")), label2id={name: number for number, name in enumerate("abcde")},
        )
    ).to(next(model.parameters()).dtype).eval()  # fmt: skip
    ours, state = model.weights(), theirs.state_dict()
    if "lm_head.weight" in state:  # the output layer of transformers has a row per color, and none for the start token
        assert state["lm_head.weight"].shape == (config.num_colors, config.width)
    assert {place(name) for name in ours} == set(state)
    with torch.no_grad():
        for name, tensor in in_our_places(state, ours).items():
            tensor.copy_(ours[name])
    return theirs


def rows(length: int = 16, colours: int = 11) -> Tensor:
    """Color indices; each row begins with the start token."""
    x = torch.randint(colours, (4, length), generator=torch.Generator().manual_seed(2))
    x[:, 0] = colours
    return x


# -- outputs and gradients


@tasks
@pytest.mark.parametrize("length", [16, 7])
@pytest.mark.parametrize(
    "changes", [{}, {"norm_eps": 1e-2}, {"ffn_dim": 48, "heads": 2}, {"image_size": 5, "num_colors": 12}]
)
def test_logits_and_gradients_equal_transformers(task: str, changes: dict[str, Any], length: int) -> None:
    model, x = model_of(task, **changes), rows(length)
    theirs = their(model)
    ours, right = model.logits(x), theirs(input_ids=x).logits
    assert ours.shape[-1] == (model.config.num_colors if task == "draw" else 5)
    near(ours, right)
    pull = noise(*ours.shape, seed=8)
    named = {f"body.{name}" if not name.startswith("head.") else name: name for name in model.weights()}
    mine = {named[name]: g for name, g in gradients(model, (ours * pull).sum()).items()}
    assert set(mine) == set(model.weights()) and all(bool(g.any()) for g in mine.values())
    for name, gradient in in_our_places(gradients(theirs, (right * pull).sum()), mine).items():
        near(mine[name], gradient, 1e-11)


def test_single_precision_equals_transformers_up_to_rounding() -> None:
    model = model_of().float()
    near(model.logits(rows()), their(model)(input_ids=rows()).logits, 1e-5)


def test_attention_of_each_head_equals_transformers() -> None:
    from regard.nn.recording import record_attention

    model = model_of()
    theirs = their(model)
    right = theirs(input_ids=rows(), output_attentions=True).attentions
    with record_attention(model) as seen:
        model.logits(rows())
    for number, weights in enumerate(right):
        near(seen.weights(f"decoder.blocks.{number}.attend"), weights)


def test_states_after_each_layer_equal_transformers() -> None:
    model = model_of()
    right = their(model)(input_ids=rows(), output_hidden_states=True).hidden_states
    states = model.body(Batch(rows()), taps=range(3))
    for ours, wanted in zip(states.hidden_states[:-1], right[1:-1], strict=True):
        near(ours, wanted)
    near(states.sequence, right[-1])
    near(states.pooled, right[-1].mean(1))


def test_an_image_is_pooled_over_its_real_pixels() -> None:
    model, lengths = model_of("classify"), torch.tensor([16, 3, 9, 1])
    padded = model.body(Batch(rows(), lengths)).pooled
    alone = [model.body(Batch(rows()[i : i + 1, :n])).pooled for i, n in enumerate(lengths.tolist())]
    near(padded, torch.cat(alone))


def test_the_loss_equals_transformers_without_its_second_shift() -> None:
    """transformers shifts the labels by one position: its input must be one token longer."""
    model = model_of()
    colours = torch.randint(11, (3, 16), generator=torch.Generator().manual_seed(4))
    batch = shift_right(colours, model.config)
    assert bool((batch.inputs[:, 0] == 11).all()) and torch.equal(batch.inputs[:, 1:], colours[:, :-1])
    total, count = ImageGeneration().loss(model, batch)
    logits = their(model)(input_ids=batch.inputs).logits
    right = torch.nn.functional.cross_entropy(logits.flatten(0, 1), colours.flatten(), reduction="sum")
    near(total, right)
    assert int(count) == 48
    twice = their(model)(input_ids=batch.inputs, labels=batch.inputs[:, :]).loss  # positions 1 … of the input
    short, some = model.body.cross_entropy(model.states(batch.inputs).sequence[:, :-1], colours[:, :-1].contiguous())
    near((short / some).float(), twice.float(), 1e-6)


# -- presets and weight initialization


def test_presets_have_the_parameters_that_were_published() -> None:
    counts = {"imagegpt-small": 76_682_240, "imagegpt-medium": 455_489_536, "imagegpt-large": 1_362_914_304}
    assert counts.items() <= {name: preset.parameters for name, preset in imagegpt.PRESETS.items()}.items()
    for name, preset in imagegpt.PRESETS.items():
        model = regard.build(name, device="meta")
        assert sum(p.numel() for p in model.parameters()) == preset.parameters, name
        with torch.device("meta"):
            trunk = imagegpt.build(replace(preset.config, lm_head=False))
        spoken = preset.config.num_colors * preset.config.width
        assert sum(p.numel() for p in trunk.parameters()) == preset.parameters - spoken
    with torch.device("meta"):
        theirs = transformers.ImageGPTForCausalImageModeling(transformers.ImageGPTConfig())
    assert sum(p.numel() for p in theirs.parameters()) == 76_682_240
    assert find_preset("imagegpt-mini")[1].config.max_length == 784


def test_weights_are_initialized_as_in_the_code_of_the_paper() -> None:
    torch.manual_seed(3)
    config = replace(SMALL, width=96, depth=8, heads=4, ffn_dim=384, num_colors=300, image_size=16)
    body = imagegpt.build(config)
    stds = {
        "tokens.table.weight": 0.02, "position.table.weight": 0.01, "qkv.weight": 96**-0.5,
        "out.weight": (96 * 8) ** -0.5, "up.weight": 0.02, "down.weight": 0.02,
    }  # fmt: skip
    for name, parameter in body.named_parameters():
        if name == "colours.weight" or name.endswith("bias"):
            assert not bool(parameter.any())
        elif "norm" in name:
            assert bool((parameter == 1).all())
        else:
            std = next(std for ending, std in stds.items() if name.endswith(ending))
            assert float(parameter.detach().std()) == pytest.approx(std, rel=0.05), name
    batch = shift_right(torch.randint(300, (2, 256)), config)
    total, count = body.cross_entropy(body(batch).sequence, batch.labels)
    assert float(total.detach() / count) == pytest.approx(math.log(300))  # all colors are equally likely


# -- checkpoints


dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
TOLERANCE = {torch.bfloat16: 0.1, torch.float32: 1e-5, torch.float64: 1e-12}


def same_weights(model: Model, theirs: Mapping[str, Tensor]) -> None:
    state = model.weights()
    for name, tensor in in_our_places(theirs, state).items():
        assert tensor.dtype == state[name].dtype and torch.equal(state[name], tensor), name
    assert all(tensor.is_contiguous() for tensor in state.values())


@tasks
@dtypes
def test_load_reads_save_pretrained(task: str, dtype: torch.dtype, tmp_path: Path) -> None:
    wanted = model_of(task).to(dtype)
    theirs = their(wanted)
    theirs.save_pretrained(tmp_path)
    model = regard.load(tmp_path, dtype="stored")
    assert model.config == wanted.config and model.task.name == task and not model.notes
    assert model.spec.labels == wanted.spec.labels
    same_weights(model, theirs.state_dict())
    near(model.logits(rows()), theirs(input_ids=rows()).logits, TOLERANCE[dtype])


@tasks
@dtypes
def test_from_pretrained_reads_save(task: str, dtype: torch.dtype, tmp_path: Path) -> None:
    model = model_of(task, dropout=0.3, norm_eps=1e-4).to(dtype)
    model.processor = Palette(np.linspace(-1, 1, 33).reshape(11, 3), 4)
    regard.save(model, tmp_path)
    assert {t.dtype for t in load_file(tmp_path / "model.safetensors").values()} == {dtype}
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architectures"] == [KIND[task]] and config["n_positions"] == 16 and config["vocab_size"] == 12
    theirs, told = getattr(transformers, KIND[task]).from_pretrained(tmp_path, dtype=dtype, output_loading_info=True)
    assert not any(told[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert theirs.config.resid_pdrop == 0.3
    same_weights(model, theirs.state_dict())
    near(model.logits(rows()), theirs.eval()(input_ids=rows()).logits, TOLERANCE[dtype])
    back = regard.load(tmp_path, dtype="stored")
    assert back.config == model.config and np.array_equal(back.processor.colors, model.processor.colors)
    assert torch.equal(back.logits(rows()), model.logits(rows()))


def test_old_files_with_masks_and_bare_bodies_are_read(tmp_path: Path) -> None:
    theirs = their(model_of())
    theirs.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    masks = {f"transformer.h.{n}.attn.{name}": torch.ones(1) for n in range(3) for name in ("bias", "masked_bias")}
    save_file({**tensors, **masks}, tmp_path / "model.safetensors")
    near(regard.load(tmp_path).logits(rows()), theirs(input_ids=rows()).logits)
    theirs.transformer.save_pretrained(tmp_path / "bare")
    bare = regard.load(tmp_path / "bare")
    near(bare.states(rows()).sequence, theirs.transformer(input_ids=rows()).last_hidden_state)
    assert any("Random weights" in note for note in bare.notes)  # the output layer


def test_weights_of_the_other_task_are_dropped_and_reported(tmp_path: Path) -> None:
    their(model_of("draw")).save_pretrained(tmp_path / "draw")
    sorts = regard.load(tmp_path / "draw", task="classify")
    assert not sorts.config.lm_head and any("lm_head.weight" in note for note in sorts.notes) and sorts.has_new_head
    their(model_of("classify")).save_pretrained(tmp_path / "classify")
    draws = regard.load(tmp_path / "classify", task="draw")
    assert draws.config.lm_head and any("score.weight" in note for note in draws.notes)
    assert draws.logits(rows()).shape == (4, 16, 11)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("activation_function", "gelu"), ("scale_attn_weights", False), ("scale_attn_by_inverse_layer_idx", True),
        ("add_cross_attention", True), ("tie_word_embeddings", True), ("n_positions", 15), ("surprise", 1),
    ],
)  # fmt: skip
def test_a_config_that_would_compute_something_else_is_refused(key: str, value: Any, tmp_path: Path) -> None:
    their(model_of()).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, key: value}))
    with pytest.raises(WeightsError, match=key):
        regard.load(tmp_path)


def test_sizes_that_cannot_be_are_refused() -> None:
    for name in ("image_size", "num_colors", "depth"):
        with pytest.raises(SettingError, match=name):
            replace(SMALL, **{name: 0})
    with pytest.raises(SettingError, match="not divisible"):
        replace(SMALL, heads=5)


# -- sampling


def test_cached_steps_equal_one_pass() -> None:
    model, x = model_of(), rows()
    whole = model.logits(x)
    state = model.body.start(Batch(x[:, :3]))
    for place_ in range(2, 16):
        near(model.body.step(x[:, place_], state), whole[:, place_])
    fixed = model.body.start(Batch(x[:, :5]), max_positions=16)
    for place_ in range(4, 16):
        near(model.body.step(x[:, place_], fixed), whole[:, place_])


def test_greedy_and_beam_search_equal_transformers() -> None:
    model = model_of()
    theirs, prompt = their(model), rows()[:, :4]
    for beam in (1, 3):
        found = search(
            model.body, Batch(prompt), 11, torch.full((4,), 13), DecodeSettings(num_beams=beam, length_penalty=0.0)
        )
        right = theirs.generate(
            input_ids=prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=13, do_sample=False, num_beams=beam,
            length_penalty=0.0, pad_token_id=11,
        )  # fmt: skip
        assert [list(options[0].tokens) for options in found] == right[:, 4:].tolist()


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


def wrong(palette: Palette, points: np.ndarray) -> float:
    pixels = torch.from_numpy(points / 127.5 - 1)
    return float(((pixels - torch.from_numpy(palette.colors)[palette.nearest(pixels)]) ** 2).sum(1).mean())


def test_k_means_finds_groups_and_is_the_same_for_the_same_seed() -> None:
    random = np.random.default_rng(3)
    centres = np.array([[20, 20, 20], [220, 30, 30], [30, 220, 30], [30, 30, 220], [230, 230, 230]])
    pixels = np.clip(centres[random.integers(0, 5, 4096)] + random.normal(0, 4, (4096, 3)), 0, 255).astype(np.uint8)
    pictures = list(pixels.reshape(16, 16, 16, 3))
    palette = Palette.fit(pictures, 5, 16)
    found = np.sort(127.5 * (palette.colors + 1), axis=0)
    assert np.abs(found - np.sort(centres, axis=0)).max() < 1
    assert palette.fingerprint() == Palette.fit(pictures, 5, 16).fingerprint()
    bright = palette.colors @ [0.299, 0.587, 0.114]
    assert (np.diff(bright) > 0).all()


@pytest.mark.every(2)
@pytest.mark.parametrize("batch", [2**14, 256])
def test_k_means_is_near_the_best_for_grays_and_colors(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """For 256 equally frequent grays, 16 runs of 16 grays are optimal. A small batch leaves few samples per round."""
    monkeypatch.setattr(palettes, "KMEANS_BATCH", batch)
    greys = np.repeat(np.arange(256, dtype=np.uint8)[:, None], 3, 1)
    palette = Palette.fit([greys.reshape(16, 16, 3)] * 3, 16, 16)
    assert len(palette) == 16 and np.ptp(palette.colors, axis=1).max() < 1e-12
    best = 3 * (16**2 - 1) / 12 / 127.5**2
    assert wrong(palette, greys) < 1.25 * best
    colours = np.random.default_rng(4).integers(0, 256, (4096, 3)).astype(np.uint8)
    palette = Palette.fit([colours.reshape(64, 64, 3)], 32, 64)
    assert len(palette) == 32 and wrong(palette, colours) < 1.05 * min(plain_k_means(colours, 32, s) for s in range(3))


def plain_k_means(points: np.ndarray, count: int, seed: int) -> float:
    """Error of textbook k-means with random initialization."""
    pixels = points / 127.5 - 1
    centres = np.random.default_rng(seed).permutation(pixels)[:count]
    for _ in range(60):
        own = ((pixels[:, None] - centres) ** 2).sum(-1).argmin(1)
        centres = np.stack([pixels[own == k].mean(0) if (own == k).any() else centres[k] for k in range(count)])
    return wrong(Palette(centres, 64), points)


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
        with pytest.raises(DataError, match="uint8"):
            palette.encode(broken)
    with pytest.raises(DataError, match="palette"):
        Palette(np.zeros((2, 4)), 4)
    with pytest.raises(DataError, match="images"):
        Palette.fit([], 4, 4)
    assert Palette.load(tmp_path) is None
    palette.save(tmp_path)
    said = json.loads((tmp_path / "preprocessor_config.json").read_text())
    changes = (
        {"image_mean": [0.4] * 3},
        {"do_normalize": False},
        {"clusters": "blue"},
        {"size": {"height": 4, "width": 5}},
    )
    for change in (*changes, {"size": 0}, {"resample": 9}):
        (tmp_path / "preprocessor_config.json").write_text(json.dumps({**said, **change}))
        with pytest.raises(WeightsError, match="preprocessor_config"):
            Palette.load(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"size": 32, "resample": 2, "clusters": [[0, 0, 1]]}))
    first = Palette.load(tmp_path)  # the layout of the first published palettes
    assert first is not None and first.size == (32, 32) and len(first) == 1
