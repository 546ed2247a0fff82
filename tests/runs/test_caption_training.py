"""Training of captioners with a new or pretrained image encoder, frozen or trained."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from test_captioners import learnt

import regard
from caption_album import album_in
from regard.errors import SettingError
from regard.systems import find_preset
from tiny_caption_models import EYES, SIZES

NAMES = list(SIZES)
SMALL = (
    "train.steps=6", "train.eval_every=3", "train.log_every=1", "train.batch_size=8", "train.warmup_steps=2",
    "train.precision=float32", "data.vocab_size=300", "data.eval_samples=4", "data.valid_fraction=0.2",
    "model.image_size=32", "decode.max_new_tokens=6",
)  # fmt: skip


@pytest.fixture(scope="module")
def album(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return album_in(tmp_path_factory.mktemp("album"))


def train(name: str, album: Path, out: Path, *settings: str, **more: Any) -> Any:
    sizes = [f"model.{key}={value}" for key, value in SIZES[name].items()]
    if not any(setting.startswith("model.encoder=") for setting in settings):
        seeing = ",".join(f"{k}={v}" for k, v in EYES["vit"][1].items())  # lists do not fit into one argument
        sizes += [f"model.encoder={EYES['vit'][0]}", f"model.encoder_config={seeing}"]
    given = [*SMALL, *sizes, *settings]
    return regard.train("caption", str(album), model=f"{name}-tiny", out=out, settings=given, **more)


@pytest.mark.every(4)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("frozen", ["true", "false"])
def test_an_encoder_checkpoint_is_used_and_then_copied(name: str, frozen: str, album: Path, tmp_path: Path) -> None:
    theirs = learnt("vit" if name == "caption-vit" else "resnet", tmp_path / "eyes")
    settings = f"model.encoder={tmp_path / 'eyes'}", f"model.freeze_encoder={frozen}"
    model = train(name, album, tmp_path / "run", *settings)
    assert model.config.encoder == str(tmp_path / "eyes") and model.processor.pixels.mean == (0.1, 0.2, 0.3)
    seen, right = model.body.eyes.body.state_dict(), theirs.body.state_dict()
    assert all(torch.equal(part, right[key]) for key, part in seen.items()) == (frozen == "true")
    shutil.rmtree(tmp_path / "eyes")
    back = regard.load(tmp_path / "run")
    picture = str(album / "images" / "n 3.png")
    assert back.predict(picture) == model.predict(picture)
    assert all(part.requires_grad == (frozen == "false") for part in back.body.eyes.parameters())
    train(name, album, tmp_path / "run", *settings, resume=True)  # the run is complete
    more: dict[str, Any] = {"model": str(tmp_path / "run"), "out": tmp_path / "more"}
    again = regard.train("caption", str(album), **more, settings=["train.steps=2"])
    assert again.config.encoder_config == model.config.encoder_config


def test_the_folder_of_the_encoder_is_read_and_needed_by_a_run_without_checkpoint(album: Path, tmp_path: Path) -> None:
    theirs = learnt("resnet", tmp_path / "eyes")
    model = regard.build("caption-attend-tiny", encoder=str(tmp_path / "eyes"), freeze_encoder=True)
    for key, part in model.body.eyes.body.state_dict().items():
        assert torch.equal(part, theirs.body.state_dict()[key])
    assert regard.build("caption-attend-tiny", encoder=str(tmp_path / "eyes"), device="meta").config.image_size == 16
    settings = f"model.encoder={tmp_path / 'eyes'}", "train.steps=2"
    train("caption-fixed", album, tmp_path / "run", *settings)
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    shutil.rmtree(tmp_path / "eyes")
    with pytest.raises(regard.errors.RegardError, match="folder"):
        train("caption-fixed", album, tmp_path / "run", *settings, resume=True)


@pytest.mark.slow
def test_a_run_resumes_with_the_same_arguments(album: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learnt("resnet", tmp_path / "eyes")
    monkeypatch.chdir(tmp_path)
    for resume in (False, True):  # a name without a slash may be a local folder
        model = train("caption-fixed", album, tmp_path / "run", "model.encoder=eyes", "train.steps=2", resume=resume)
        assert model.config.encoder == str(tmp_path / "eyes")


@pytest.mark.slow
def test_untrained_encoders_are_not_frozen(album: Path, tmp_path: Path) -> None:
    assert find_preset("caption-attend-base")[1].config.freeze_encoder
    with pytest.raises(SettingError, match="50"):
        regard.train("caption", str(album), model="caption-attend-base", out=tmp_path / "run")
    train("caption-fixed", album, tmp_path / "first", "train.steps=1")
    first: dict[str, Any] = {"model": str(tmp_path / "first"), "out": tmp_path / "more"}
    with pytest.raises(SettingError, match="contains its own image encoder"):
        regard.train("caption", str(album), **first, settings=["model.encoder=resnet-18"])
    more = regard.train("caption", str(album), **first, settings=["model.freeze_encoder=true", "train.steps=1"])
    assert not any(part.requires_grad for part in more.body.eyes.parameters())
