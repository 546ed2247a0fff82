"""Captioners with a pretrained image encoder: loaded weights and settings, and refused checkpoints."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import regard
from regard.config import as_dict, from_dict, override
from regard.errors import SettingError, WeightsError
from regard.processors.image import ImageProcessor
from regard.systems import SYSTEMS
from regard.systems.captioners.common import ENCODER
from regard.types import Batch
from tiny import near, noisy
from tiny_caption_models import config_of, pictures
from tiny_vision_models import fresh

SEEN = ("resnet", "bit", "vit", "hybrid", "swin")
CHANGES: dict[str, dict[str, Any]] = {
    "resnet": {"stem_kernel": 7, "stem_stride": 2, "stem_pool": True}, "bit": {}, "vit": {}, "hybrid": {}, "swin": {},
}  # fmt: skip
"""Changes of presets that can be saved in Hugging Face format."""


def learnt(system: str, folder: Path, published: bool = True, **changes: Any) -> Any:
    """Checkpoint of an encoder with random parameters and the head of another task."""
    model = fresh(system, "classify", **{**CHANGES[system], "image_size": 16, **changes})
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
    fresh("imagegpt", "draw").save(tmp_path / "painter")
    told = refused(encoder=str(tmp_path / "painter"))
    assert "system 'imagegpt'" in told and "resnet or bit or vit or hybrid or swin" in told
    learnt("resnet", tmp_path / "seen")
    assert "supports vit" in refused(encoder=str(tmp_path / "seen"), name="caption-vit")
    assert "contains its own config" in refused(encoder=str(tmp_path / "seen"), encoder_config="stem_stride=1")
    (tmp_path / "seen" / "model.safetensors").unlink()
    assert "model.safetensors" in refused(encoder=str(tmp_path / "seen"))
    with pytest.raises(SettingError, match="regard"):
        config_of("caption-fixed", encoder=str(tmp_path / "seen"))


def test_weights_of_other_sizes_than_configured_are_refused(tmp_path: Path) -> None:
    learnt("resnet", tmp_path)
    model, _ = captioner("caption-fixed", encoder=str(tmp_path))
    learnt("resnet", tmp_path, widths=(4, 8, 8, 16))
    with pytest.raises(WeightsError, match="config"):
        ENCODER.load(model.body, model.config)
