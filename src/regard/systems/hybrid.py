"""The hybrid of An Image is Worth 16x16 Words (Dosovitskiy et al. 2020): ViT on a map of convolutions.

What is new against ViT: not pixels are cut into patches but what the first three stages of a ResNet-50 make of them (BiT's
kind: standardised convolutions, group norms). A patch is one place of that map, which stands for 16 x 16 pixels. With few
pictures to learn from convolutions know more from the start; with many the difference vanishes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from regard.errors import SettingError
from regard.nn.blocks.block import Stack
from regard.nn.blocks.norm import Norm
from regard.nn.vision.dense import Tap
from regard.nn.vision.patches import Grid, PatchEncoder, Patches, check_patches, patch_blocks, patch_weights, quarters
from regard.systems.common import vision
from regard.systems.common.bert import ACTIVATIONS
from regard.systems.common.system import Preset, System
from regard.weights.tables import Names, Published, Tensors, entry, under


@dataclass(frozen=True)
class Config:
    size: int = 224
    """side of the pictures it was made for; others are read too, with positions stretched to them"""
    channels: int = 3
    """of a picture: 3 are red, green and blue"""
    stages: tuple[int, ...] = (3, 4, 9)
    """blocks of each stage of convolutions; the first map has a place for 4 x 4 pixels, each later one for twice as many"""
    start: int = 64
    """channels of the first convolution; stages have 4, 8, 16, … times as many"""
    groups: int = 32
    """groups of channels that are normalised together"""
    patch: int = 1
    """side of a patch of the last map"""
    width: int = 768
    """width of the states"""
    depth: int = 12
    """blocks of attention"""
    heads: int = 12
    """attention heads"""
    hidden: int = 3072
    """inner width of the feed-forward layers"""
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
        if not 1 <= len(self.stages) <= STAGES or min(self.stages) < 1:
            raise SettingError(f"model.stages must be 1 to {STAGES} numbers of at least 1, not {self.stages}.")
        vision.check_front(self)
        if self.last % self.patch:
            raise SettingError(
                f"model.size {self.size} gives a map of {self.last} x {self.last}, which cannot be cut into patches of "
                f"model.patch {self.patch}."
            )

    @property
    def widths(self) -> tuple[int, ...]:
        """Channels after each stage."""
        return vision.widths(self.start, self.stages)

    @property
    def stride(self) -> int:
        """Pixels from one place of the last map to the next."""
        return int(2 * 2 ** len(self.stages))

    @property
    def last(self) -> int:
        """Side of the last map."""
        return -(-self.size // self.stride)

    @property
    def head_std(self) -> float:
        """How a new matrix for classes begins: at 0, so that none is likelier at first."""
        return 0.0

    def maps(self) -> tuple[Tap, ...]:
        """The first two stages, and the last two of four quarters of the blocks, as DPT-Hybrid takes them."""
        early = [Tap(-1 - stage, self.widths[stage], 4 * 2**stage, flat=False) for stage in range(len(self.stages))][:2]
        side = self.stride * self.patch
        return (*early, *(Tap(block, self.width, side, flat=True) for block in quarters(self.depth)[len(early) :]))


STAGES = 4
"""ResNets have no more."""


def _recipe(**train: Any) -> dict[str, dict[str, Any]]:
    """ViT's; its convolutions leave room for half as many pictures at once."""
    return vision.imagenet(**{"images": 128, "accumulate": 32, **train})


BASE = Config()

PRESETS = {
    "hybrid-tiny": Preset(
        replace(BASE, size=28, stages=(2,), width=192, depth=6, heads=3, hidden=768),
        2_883_648,
        _recipe(passes=60, images=256, accumulate=1, rate=1e-3, warmup=0.1, decay=0.05, smoothing=0.1),
    ),
    "hybrid-base": Preset(replace(BASE, dropout=0.1), 97_890_112, _recipe()),
}


def build(config: Config) -> PatchEncoder:
    """The whole machine."""
    body = PatchEncoder(
        Patches(config.width, config.patch, config.widths[-1]),
        Grid(config.last // config.patch, config.width),
        Stack(patch_blocks(config), norm=Norm(config.width, config.eps)),
        dropout=config.dropout,
        front=vision.front(config),
    )
    return patch_weights(body)


_BIT = "vit.embeddings.patch_embeddings.backbone.bit"

NAMES = Names(
    entries=(
        *vision.bit_stages("front.", _BIT, STAGES), *vision.names("vit"), entry("head.classes.{part}", "classifier.{part}"),
    ),
    heads=("classifier.*", "vit.pooler.*"),
)  # fmt: skip
"""As `transformers` 4 called them; version 5 has no such model any more, and its files are still about."""

_TIMM = "patch_embed.backbone"
TIMM = (
    *vision.stages(
        "front.", (f"{_TIMM}.stem.conv", f"{_TIMM}.stem.norm"), f"{_TIMM}.stages.{{stage}}.blocks.{{n}}", STAGES
    ),
    *vision.TIMM,
)


def _filled(fields: dict[str, Any]) -> dict[str, Any]:
    """Our fields of what is published as one."""
    return {**fields, **vision.read_backbone(fields["stages"], fields["channels"], every=False)}


def _written(fields: dict[str, Any]) -> dict[str, Any]:
    config = Config(**fields)
    told = vision.backbone(config.channels, config.stages, config.start, config.groups, (len(config.stages),))
    return {**fields, "stages": told, "map": [1, config.widths[-1], config.last, config.last]}


PUBLISHED = Published(
    model_type="vit-hybrid",
    architecture="ViTHybridModel",
    keys={**vision.KEYS, "stages": ("backbone_config",)},
    defaults={**vision.DEFAULTS, "patch_size": 1},
    fixed={"qkv_bias": True, "backbone": None, "use_timm_backbone": False, "use_pretrained_backbone": False},
    harmless=("initializer_range", "backbone_featmap_shape", "backbone_kwargs", "pooler_*"),
    copied={"backbone_featmap_shape": "map"},
    values={"activation": ACTIVATIONS},
    filled=_filled,
    written_as=_written,
    heads={"classify": "ViTHybridForImageClassification"},
)  # fmt: skip


def adapt(config: Config, tensors: Tensors) -> tuple[Config, Tensors]:
    """Files of the bare body have no prefix; timm's have names of their own, and q, k, v in one."""
    if "pos_embed" in tensors:
        tensors = vision.translated(NAMES, TIMM, tensors, max(config.depth, *config.stages))
    return config, under(tensors, "vit.", ("classifier.*",))


SYSTEM = System(
    name="hybrid", about="ViT that reads a map of convolutions", config=Config, presets=PRESETS, build=build,
    tasks=("classify", "segment", "depth"), reads="pictures", names=NAMES, published=PUBLISHED, adapt=adapt,
    recipes=vision.DENSE, further=vision.FURTHER,
)  # fmt: skip
