"""Properties of every captioner, with every image encoder and decoder, and with pretrained image encoders."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import regard
from regard.config import as_dict, from_dict, override
from regard.errors import RegardError, SettingError, UnknownNameError, WeightsError
from regard.nn.kernels.losses import cross_entropy
from regard.nn.recording import named_attentions, record_attention
from regard.processors.image import ImageProcessor
from regard.systems import SYSTEMS
from regard.systems.common.captions import ENCODER
from regard.training.optimizer import make_optimizer
from regard.training.settings import TrainSettings
from regard.types import Batch
from tiny import gradients, near, noisy
from tiny_caption_models import EYES, KINDS, batch_of, config_of, made, pictures
from tiny_vision_models import fresh as encoder_model

kinds = pytest.mark.parametrize(("name", "eyes"), KINDS)


def logits_of(body: Any, batch: Batch) -> torch.Tensor:
    return body.to_logits(body(batch).sequence)


@kinds
def test_an_image_with_several_captions_is_encoded_once(name: str, eyes: str) -> None:
    body, batch, owners = made(name, eyes), batch_of((6, 3, 5, 4)), torch.tensor([0, 0, 0, 1])
    looked: list[int] = []
    body.eyes.body.register_forward_pre_hook(lambda _, given: looked.append(len(given[0].inputs)))
    repeated = logits_of(body, replace(batch, inputs=batch.inputs[owners]))
    once = replace(batch, inputs=batch.inputs[:2], decoder=replace(batch.decoder, image_index=owners))
    near(logits_of(body, once), repeated, 1e-11)
    assert looked == [4, 2]
    with pytest.raises(ValueError, match="image_index"):
        once.select_rows(torch.tensor([0]))


def test_a_caption_of_a_vit_ends_where_its_positions_do() -> None:
    body = made("caption-vit", max_length=5)
    with pytest.raises(RegardError, match="positions"):
        body(batch_of((6,)))
    state = body.start(batch_of((5,)))
    body.step(torch.tensor([4]), state)
    with pytest.raises(RegardError, match="positions"):
        body.step(torch.tensor([4]), state)
    state = body.start(batch_of((5,)), max_positions=16)  # finished rows are stepped with the others
    for _ in range(3):
        assert bool(body.step(torch.tensor([4]), state).isfinite().all())


@kinds
def test_attention_positions_are_on_the_grid(name: str, eyes: str) -> None:
    body = made(name, eyes)
    for height, width in ((32, 32), (32, 48)):
        batch = batch_of((4, 2), height, width)
        rows, columns = body.grid(batch)
        context = body(batch).cross_states
        if name == "caption-fixed":
            assert context is None
            continue
        assert context.shape[1] == rows * columns + body.first_image_position
        assert body.first_image_position == int(name == "caption-vit")
        looked = [place for place in named_attentions(body) if place == "align" or place.endswith(".cross")]
        crossing = [f"decoder.blocks.{number}.cross" for number in range(2)]
        assert looked == (["align"] if name == "caption-attend" else crossing)
        with record_attention(body, looked) as seen:
            plain = logits_of(body, batch)
        for place in looked:
            weights = seen.weights(place)
            assert weights.shape[::3] == (2, rows * columns + body.first_image_position) and weights.shape[2] == 4
            near(weights.sum(-1), torch.ones_like(weights[..., 0]))
        near(plain, logits_of(body, batch), 1e-11)


@pytest.mark.parametrize("name", ["caption-attend", "caption-transformer"])
@pytest.mark.parametrize(
    ("eyes", "tap", "places"), [("resnet", 1, 64), ("resnet", 2, 16), ("bit", 0, 64), ("vit", 0, 16), ("swin", 1, 64)]
)
def test_a_lower_feature_map_is_used_and_later_layers_are_dropped(name: str, eyes: str, tap: int, places: int) -> None:
    body, whole, batch = made(name, eyes, feature_level=tap), made(name, eyes), batch_of()
    states = body(batch)
    assert states.cross_states.shape[1] == places == body.grid(batch)[0] * body.grid(batch)[1]
    kept = dict(body.eyes.body.state_dict())
    assert kept.keys() < whole.eyes.body.state_dict().keys()
    whole.eyes.body.load_state_dict({**whole.eyes.body.state_dict(), **kept})
    right = whole.eyes.body(Batch(batch.inputs), taps=(body.eyes.tap.index,)).hidden_states[0]
    right = right[:, 1:] if right.ndim == 3 else right.flatten(2).mT
    near(body.eyes.patch_features(batch.inputs), right)
    assert set(gradients(body, logits_of(body, batch).square().sum())) == {key for key, _ in body.named_parameters()}


def loss_of(body: Any, batch: Batch) -> torch.Tensor:
    states = body(batch)
    total = cross_entropy(body.to_logits(states.sequence), batch.labels, 0.1)[0]
    return total + states.aux_losses.get("penalty", 0.0)


@kinds
def test_frozen_encoders_keep_weights_and_statistics(name: str, eyes: str) -> None:
    body = made(name, eyes, freeze_encoder=True).train()
    before = {key: tensor.clone() for key, tensor in body.eyes.state_dict().items()}
    assert body.training and body.eyes.training and not any(part.training for part in body.eyes.body.modules())
    batch = batch_of()
    near(body.eyes.pooled(batch.inputs), body.eyes.pooled(batch.inputs))
    loss_of(body, batch).backward()
    assert all(part.grad is None for part in body.eyes.parameters())
    learnt = {id(part) for group in make_optimizer(body, TrainSettings()).param_groups for part in group["params"]}
    assert learnt == {id(part) for key, part in body.named_parameters() if not key.startswith("eyes.")}
    assert all(torch.equal(before[key], tensor) for key, tensor in body.eyes.state_dict().items())


@kinds
def test_a_config_stores_its_encoder(name: str, eyes: str) -> None:
    config = config_of(name, eyes)
    kept = json.loads(json.dumps(as_dict(config)))
    back = from_dict(type(config), kept, "model.")
    assert back == config and back.encoder_config == config.encoder_config and back.encoder_config["system"] == eyes
    assert back.encoder_config["config"]["image_size"] == 32 and back.in_channels == 3
    theirs, ours = (SYSTEMS[name].build(c).state_dict() for c in (config, back))
    assert {key: part.shape for key, part in ours.items()} == {key: part.shape for key, part in theirs.items()}
    with pytest.raises(SettingError, match=r"model\.encoder_config\.wdith"):
        replace(config, encoder_config={"wdith": 3})
    with pytest.raises(SettingError, match=r"model\.encoder_config\.name"):  # an incomplete file
        replace(config, encoder_config={"name": config.encoder, "system": eyes})


def test_another_encoder_is_chosen_by_name() -> None:
    config = config_of("caption-attend")
    other = override(config, {"encoder": "resnet-18", "image_size": "64"}, "model.")
    assert other.encoder_config["config"]["widths"] == [64, 128, 256, 512]
    assert other.encoder_config["config"]["image_size"] == 64
    changed = override(config, {"encoder": "vit-tiny", "encoder_config": "patch_size=8,depth=3"}, "model.")
    assert changed.encoder_config["system"] == "vit" and changed.encoder_config["config"]["depth"] == 3
    resized = override(changed, {"image_size": 48}, "model.").encoder_config["config"]
    assert resized == {**changed.encoder_config["config"], "image_size": 48}
    refused: list[tuple[dict[str, Any], str]] = [
        ({"encoder": "resnet18"}, "resnet-18"), ({"encoder": "gpt2-small"}, "presets"),
        ({"feature_level": 4}, "model.feature_level"),
        ({"encoder": "vit-base-16", "image_size": 40}, "model.patch_size"), ({"width": 0}, "model.width"),
        ({"vocab_size": 0}, "model.vocab_size"), ({"dropout": 1.0}, "model.dropout"), ({"eos_id": 23}, "model.eos_id"),
    ]  # fmt: skip
    for changes, word in refused:
        with pytest.raises((SettingError, UnknownNameError), match=re.escape(word)):
            override(config, changes, "model.")
    with pytest.raises(SettingError, match="'resnet'"):
        override(config_of("caption-vit"), {"encoder": "resnet-18"}, "model.")
    with pytest.raises(SettingError, match=r"model\.feature_level"):
        config_of("caption-attend", "hybrid", feature_level=0)


@pytest.mark.parametrize("eyes", EYES)
def test_the_grid_matches_the_body_for_every_image_size(eyes: str) -> None:
    body = made("caption-transformer", eyes, image_positions="none")
    side = 8 if eyes in ("vit", "hybrid") else 1
    for height, width in ((24, 40), (32 + 5 // side, 17 * side if side == 1 else 48)):
        pixels = pictures(1, height - height % side, width)
        rows, columns = body.eyes.grid(pixels)
        assert body.eyes.patch_features(pixels).shape[1] == rows * columns


SEEN = ("resnet", "bit", "vit", "hybrid", "swin")
CHANGES: dict[str, dict[str, Any]] = {
    "resnet": {"stem_kernel": 7, "stem_stride": 2, "stem_pool": True}, "bit": {}, "vit": {}, "hybrid": {}, "swin": {},
}  # fmt: skip
"""Changes of presets that can be saved in Hugging Face format."""


def learnt(system: str, folder: Path, published: bool = True, **changes: Any) -> Any:
    """Checkpoint of an encoder with random parameters and the head of another task."""
    model = encoder_model(system, "classify", **{**CHANGES[system], "image_size": 16, **changes})
    noisy(model.body, 0.4)
    model.float()
    model.processor = replace(model.processor, mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6))
    if published:
        regard.save(model, folder)
    else:
        model.save(folder)
    return model.eval()


def captioner(name: str, **changes: Any) -> Any:
    """A new captioner with these settings, built as in training and `build`."""
    plain = config_of(name)
    config = override(plain, ENCODER.resolve(plain, changes), "model.")
    torch.manual_seed(0)
    model = SimpleNamespace(config=config, body=SYSTEMS[name].build(config))
    return model, ENCODER.load(model.body, model.config)


@pytest.mark.every(4)
@pytest.mark.parametrize("system", SEEN)
@pytest.mark.parametrize("name", ["caption-fixed", "caption-attend", "caption-transformer", "caption-vit"])
def test_encoder_features_equal_the_loaded_checkpoint(name: str, system: str, tmp_path: Path) -> None:
    if name == "caption-vit" and system != "vit":
        return
    theirs = learnt(system, tmp_path / "it")
    model, said = captioner(name, encoder=str(tmp_path / "it"), freeze_encoder="true")
    assert said == [f"Image encoder: {tmp_path / 'it'}, frozen."]
    assert model.config.image_size == 16 and model.config.encoder_config["system"] == system
    x = pictures(2, 32, 32).float()
    right = theirs.body(Batch(x))
    model.body.eval()
    near(model.body.eyes.features(x), right.sequence, 1e-5)  # trainable encoders may use other kernels
    near(model.body.eyes.pooled(x), right.pooled, 1e-5)
    # a saved captioner does not need the checkpoint of the encoder
    shutil.rmtree(tmp_path / "it")
    kept = from_dict(type(model.config), json.loads(json.dumps(as_dict(model.config))), "model.")
    assert kept == model.config
    SYSTEMS[name].build(kept).load_state_dict(model.body.state_dict())
    assert override(kept, ENCODER.resolve(kept, {"encoder": str(tmp_path / "it")}), "model.") == kept


def test_a_run_of_regard_can_be_the_image_encoder_too(tmp_path: Path) -> None:
    """Saved in the native format, as no Hugging Face format describes its first convolution."""
    theirs = learnt("resnet", tmp_path, False, stem_kernel=3, stem_stride=1)
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "regard"
    model, _ = captioner("caption-attend", encoder=str(tmp_path), feature_level="2")
    x = pictures(2, 16, 16).float()
    right = theirs.body(Batch(x), taps=(2,)).hidden_states[0].flatten(2).mT
    assert torch.equal(model.body.eval().eyes.patch_features(x), right)
    assert all(p.requires_grad for p in model.body.parameters())


def test_the_image_size_comes_from_the_checkpoint_unless_set(tmp_path: Path) -> None:
    learnt("vit", tmp_path)
    config = captioner("caption-vit", encoder=str(tmp_path))[0].config
    assert config.image_size == 16 and config.image_processor().mean == (0.1, 0.2, 0.3)
    assert config.image_processor().size == (16, 16)
    model, _ = captioner("caption-vit", encoder=str(tmp_path), image_size="32")
    assert model.config.image_size == 32 and model.config.encoder_config["config"]["image_size"] == 16
    assert model.config.image_processor().size == (32, 32) and model.config.image_processor().std == (0.4, 0.5, 0.6)
    assert model.body.grid(Batch(pictures(1, 32, 32))) == (8, 8)
    replace(ImageProcessor.load(tmp_path), size=(24, 24)).save(tmp_path)
    assert captioner("caption-vit", encoder=str(tmp_path))[0].config.image_size == 24
    assert config_of("caption-fixed").image_processor() is None


def test_a_folder_is_resolved_from_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learnt("resnet", tmp_path / "seen")
    monkeypatch.chdir(tmp_path)
    for name in ("seen", "./seen", str(tmp_path / "seen")):
        assert captioner("caption-fixed", encoder=name)[0].config.encoder == str(tmp_path / "seen")


def test_unsupported_image_encoders_are_refused(tmp_path: Path) -> None:
    def refused(**changes: Any) -> str:
        with pytest.raises((SettingError, WeightsError)) as error:
            captioner(changes.pop("name", "caption-fixed"), **changes)
        return str(error.value)

    assert "Unknown folder" in refused(encoder=str(tmp_path / "nowhere"))
    (tmp_path / "empty").mkdir()
    assert "no config.json" in refused(encoder=str(tmp_path / "empty"))
    encoder_model("imagegpt", "draw").save(tmp_path / "painter")
    told = refused(encoder=str(tmp_path / "painter"))
    assert "system 'imagegpt'" in told and "resnet or bit or vit or hybrid or swin" in told
    learnt("resnet", tmp_path / "seen")
    assert "supports vit" in refused(encoder=str(tmp_path / "seen"), name="caption-vit")
    assert "contains its own config" in refused(encoder=str(tmp_path / "seen"), encoder_config="stem_stride=1")
    (tmp_path / "seen" / "model.safetensors").unlink()
    assert "model.safetensors" in refused(encoder=str(tmp_path / "seen"))
    with pytest.raises(SettingError, match="regard"):
        config_of("caption-fixed", encoder=str(tmp_path / "seen"))
    learnt("resnet", tmp_path / "other")
    model, _ = captioner("caption-fixed", encoder=str(tmp_path / "other"))
    learnt("resnet", tmp_path / "other", widths=(4, 8, 8, 16))  # weights of other sizes than in the config
    with pytest.raises(WeightsError, match="config"):
        ENCODER.load(model.body, model.config)
