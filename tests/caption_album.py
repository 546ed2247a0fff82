"""A tiny captioner with a tokenizer, and a folder of single-color images with captions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from objectives import encode
from PIL import Image

from regard.data.images.captions import CaptionedImage
from regard.data.settings import DataSettings
from regard.model import Model, ModelSpec, assemble
from regard.processors.tokenizer.tokenizer import TextTokenizer
from regard.systems import SYSTEMS
from regard.tasks import find_task
from tiny_caption_models import config_of

TASK: Any = find_task("caption")
COLOURS = ("red", "green", "blue", "white", "black", "yellow")
PRESET = "caption-attend-tiny"
SIZES: dict[str, Any] = {
    "image_size": 16, "max_length": 16, "width": 16, "embedding_dim": 16, "attention_dim": 8, "dropout": 0.0,
}  # fmt: skip
SETTINGS = (
    *(f"model.{name}={value}" for name, value in SIZES.items()), "model.encoder=vit-tiny",
    "model.encoder_config=patch_size=8,width=12,depth=1,heads=3,ffn_dim=20,dropout=0", "model.attention_penalty=0",
    "train.steps=12", "train.eval_every=4", "train.log_every=2", "train.batch_size=8", "train.lr=5e-3",
    "train.warmup_steps=2", "train.precision=float32", "train.label_smoothing=0", "data.vocab_size=300",
    "data.eval_samples=4", "data.valid_fraction=0.2", "decode.num_beams=1",
)  # fmt: skip


def album_in(folder: Path) -> Path:
    """A folder with thirty single-color images, each with two or three captions."""
    (folder / "images").mkdir(parents=True)
    lines = []
    for number in range(30):
        colour, name = COLOURS[number % len(COLOURS)], f"n {number}.png"
        Image.new("RGB", (20 + number, 18), colour).save(folder / "images" / name)
        captions = [f"a {colour} thing", f"this is {colour}", f"everything here is {colour} , really"][: 2 + number % 2]
        lines.append(json.dumps({"image": name, "captions": captions}))
    (folder / "captions.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def captions(album: Any) -> Iterator[str]:
    return (caption for sample in album for caption in sample.captions)


def samples(album: Path) -> list[CaptionedImage]:
    return list(TASK.reader.samples([str(album)]))


def captioner(texts: Iterable[str], name: str = "caption-attend", eyes: str = "vit", **changes: Any) -> Model:
    """A captioner with initial weights and a tokenizer trained on the texts."""
    text, config = TextTokenizer.train_sentence_bpe(texts, 300), config_of(name, eyes, **changes)
    processor = TASK.modality.build_processor(text, config, DataSettings())
    torch.manual_seed(3)
    return assemble(ModelSpec(SYSTEMS[name], TASK.modality.fit_config(config, processor), TASK), processor)


def model(album: Path, **changes: Any) -> Model:
    return captioner(captions(samples(album)), **{**SIZES, **changes}).double().eval()


def encoded(album: Path, made: Model, longest: int = 99, data: DataSettings | None = None) -> Any:
    return encode(made, samples(album), longest, data or DataSettings())
