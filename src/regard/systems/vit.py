"""An Image is Worth 16x16 Words (Dosovitskiy et al. 2020): the Vision Transformer.

What is new against the Transformer: its encoder reads a picture. Patches of 16 x 16 pixels are the tokens, one matrix is their
embedding, one more token in front is asked what is seen. Norms stand before the sub-layers and one at the end; positions are
learned, counted through the patches, and stretched where a picture has another size.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from regard.errors import SettingError
from regard.nn.blocks.block import Stack
from regard.nn.blocks.norm import Norm
from regard.nn.vision.dense import Tap
from regard.nn.vision.patches import (
    Grid,
    PatchEncoder,
    Patches,
    Pool,
    check_patches,
    patch_blocks,
    patch_weights,
    quarters,
)
from regard.systems.common import vision
from regard.systems.common.bert import ACTIVATIONS
from regard.systems.common.system import Preset, System
from regard.weights.tables import Names, Published, Tensors, entry, under


@dataclass(frozen=True)
class Config:
    size: int = 224
    """side of the pictures it was made for; others are read too, with positions stretched to them"""
    patch: int = 16
    """side of a patch"""
    channels: int = 3
    """of a picture: 3 are red, green and blue"""
    width: int = 768
    """width of the states"""
    depth: int = 12
    """blocks"""
    heads: int = 12
    """attention heads"""
    hidden: int = 3072
    """inner width of the feed-forward layers"""
    token: bool = True
    """a class token stands before the patches"""
    pool: Pool = "first"
    """what a whole picture is told by: first, the class token, or mean, of all patches"""
    dropout: float = 0.0
    """share dropped of each sub-layer's output and of the embeddings"""
    attention_dropout: float = 0.0
    """share dropped of the attention weights"""
    head_dropout: float = 0.0
    """share dropped of what a task's head reads"""
    activation: Literal["gelu", "gelu_tanh", "relu"] = "gelu"
    """non-linearity of the feed-forward layers"""
    eps: float = 1e-6
    """small number in the layer norms"""

    def __post_init__(self) -> None:
        check_patches(self)
        if self.pool == "first" and not self.token:
            raise SettingError("model.pool=first reads the class token, and model.token is off: set model.pool=mean.")
        if self.size % self.patch:
            raise SettingError(f"model.size {self.size} is no multiple of model.patch {self.patch}.")

    @property
    def head_std(self) -> float:
        """How a new matrix for classes begins: at 0, so that none is likelier at first."""
        return 0.0

    def maps(self) -> tuple[Tap, ...]:
        return tuple(Tap(block, self.width, self.patch, flat=True, token=self.token) for block in quarters(self.depth))


BASE = Config()

PRESETS = {
    "vit-tiny": Preset(
        replace(BASE, size=28, patch=4, width=192, depth=9, heads=3, hidden=768),
        4_023_360,
        # chosen on a part of Fashion-MNIST's training pictures; those who may be mirrored gain by data.flip
        vision.imagenet(passes=80, images=512, accumulate=1, rate=1.5e-3, warmup=0.1, decay=0.05, smoothing=0.1)
        | {"data": {"shift": 0.1, "erase": 0.3}},
    ),
    "vit-small": Preset(
        replace(BASE, width=384, heads=6, hidden=1536), 21_665_664, vision.imagenet(accumulate=4, rate=1e-3, decay=0.1)
    ),
    "vit-base-32": Preset(replace(BASE, patch=32, dropout=0.1), 87_455_232, vision.imagenet()),
    "vit-base-16": Preset(replace(BASE, dropout=0.1), 85_798_656, vision.imagenet()),
    "vit-large-16": Preset(
        replace(BASE, width=1024, depth=24, heads=16, hidden=4096, dropout=0.1), 303_301_632, vision.imagenet()
    ),
    "vit-huge-14": Preset(
        replace(BASE, patch=14, width=1280, depth=32, heads=16, hidden=5120, dropout=0.1),
        630_764_800,
        vision.imagenet(
            passes=14, rate=3e-4, schedule="linear", decay=0.1
        ),  # of 300 million pictures: never on ImageNet alone
    ),
}


def build(config: Config) -> PatchEncoder:
    """The whole machine."""
    body = PatchEncoder(
        Patches(config.width, config.patch, config.channels),
        Grid(config.size // config.patch, config.width, before=int(config.token)),
        Stack(patch_blocks(config), norm=Norm(config.width, config.eps)),
        token=config.token,
        pool=config.pool,
        dropout=config.dropout,
    )
    return patch_weights(body)


NAMES = Names(
    entries=(*vision.names("vit"), entry("head.classes.{part}", "classifier.{part}")),
    heads=("classifier.*", "vit.pooler.*", "decoder.*", "vit.embeddings.mask_token"),
)
"""The models of `transformers` 5 have other names in memory, and these on the disk."""

PUBLISHED = Published(
    model_type="vit",
    architecture="ViTModel",
    keys=vision.KEYS,
    defaults=vision.DEFAULTS,
    fixed={"qkv_bias": True},
    harmless=("initializer_range", "encoder_stride", "pooler_*"),
    values={"activation": ACTIVATIONS},
    filled=vision.square,
    heads={"classify": "ViTForImageClassification"},
)  # fmt: skip


def adapt(config: Config, tensors: Tensors) -> tuple[Config, Tensors]:
    """Files of the bare body have no prefix; those of timm and torchvision have names of their own, and q, k, v in one."""
    for sign, entries in (("pos_embed", vision.TIMM), ("encoder.pos_embedding", vision.TORCHVISION)):
        if sign in tensors:
            tensors = vision.translated(NAMES, entries, tensors, config.depth)
    tensors = under(tensors, "vit.", ("classifier.*", "decoder.*"))
    if "vit.embeddings.cls_token" in tensors:
        return config, tensors
    return replace(config, token=False, pool="mean"), tensors


def unsayable(config: Config) -> str:
    if config.token and config.pool == "first":
        return ""
    return (
        f"the published layout reads the class token only; this model has token={config.token} and pool={config.pool}."
    )


SYSTEM = System(
    name="vit", about="encoder of 2020 that reads pictures as patches", config=Config, presets=PRESETS, build=build,
    tasks=("classify", "segment", "depth"), reads="pictures", names=NAMES, published=PUBLISHED, adapt=adapt,
    unsayable=unsayable, recipes=vision.DENSE, further=vision.FURTHER,
)  # fmt: skip
