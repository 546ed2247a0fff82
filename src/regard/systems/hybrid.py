"""The hybrid of An Image is Worth 16x16 Words (Dosovitskiy et al. 2020): ViT on a convolutional feature map.

Differences from ViT: patches are cells of the feature map after three stages of a ResNet-50 (BiT: weight
standardization and GroupNorm), each for 16×16 pixels. Convolutions help on small datasets; on large datasets the
difference vanishes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from regard.nn.vision.dense import FeatureTap, sequence_maps
from regard.nn.vision.patches import GridPosition, PatchEmbedding, VisionTransformer, quarter_blocks
from regard.systems.common import recipes, vision
from regard.systems.common.bert import ACTIVATIONS
from regard.systems.common.system import System, presets, reject, sizes
from regard.weights.tables import NameTable, PublishedLayout, layer


@dataclass(frozen=True)
class Config(vision.BackboneConfig):
    patch_size: int = 1

    head_std = 0.0

    def check(self) -> None:
        reject(
            not 1 <= len(self.backbone_depths) <= MAX_STAGES or min(self.backbone_depths) < 1,
            f"model.backbone_depths must be 1 to {MAX_STAGES} numbers of at least 1, got {self.backbone_depths}.",
        )
        vision.check_backbone(self)
        reject(
            self.map_size % self.patch_size,
            f"model.image_size={self.image_size} gives a feature map of {self.map_size} x {self.map_size}, which is not "
            f"divisible by model.patch_size={self.patch_size}.",
        )

    @property
    def stride(self) -> int:
        """Pixels per cell of the last feature map."""
        return int(2 * 2 ** len(self.backbone_depths))

    @property
    def map_size(self) -> int:
        """Side of the last feature map, in cells."""
        return -(-self.image_size // self.stride)

    def feature_maps(self) -> tuple[FeatureTap, ...]:
        """Feature maps of the first two stages, and of the last two of four quarters of the blocks, as in DPT-Hybrid."""
        early = vision.backbone_maps(self)
        late = quarter_blocks(self.depth)[len(early) :]
        return early + sequence_maps(late, self.width, self.stride * self.patch_size)


MAX_STAGES = 4

TINY_RECIPE = recipes.get("imagenet", **recipes.SMALL_IMAGES, epochs=60, batch_size=256, lr=1e-3)
PRESETS = presets(
    Config(),
    ("hybrid-tiny", 2_883_648, TINY_RECIPE, sizes(192, 6, 3) | {"image_size": 28, "backbone_depths": (2,)}),
    ("hybrid-base", 97_890_112, recipes.get("imagenet", batch_size=128, grad_accum=32), {"dropout": 0.1}),
)


def build(config: Config) -> VisionTransformer:
    return vision.build_vit(
        config,
        PatchEmbedding(config.width, config.patch_size, config.widths[-1]),
        GridPosition(config.map_size // config.patch_size, config.width),
        backbone=True,
    )


TIMM = "patch_embed.backbone"
TIMM_ENTRIES = (
    *vision.stage_entries(
        "front.", (f"{TIMM}.stem.conv", f"{TIMM}.stem.norm"), f"{TIMM}.stages.{{stage}}.blocks.{{n}}"
    ),
    *vision.TIMM_ENTRIES,
)


def _before_write(fields: dict[str, Any]) -> dict[str, Any]:
    config = Config(**fields)
    return {**fields, **vision.write_backbone(config, (len(config.backbone_depths),), config.map_size)}


PUBLISHED = PublishedLayout(
    model_type="vit-hybrid",
    architecture="ViTHybridModel",
    keys={**vision.KEYS, "backbone_depths": ("backbone_config",)},
    config=Config,
    defaults={"layer_norm_eps": 1e-12, "backbone_config": None},
    fixed={"qkv_bias": True, **vision.BACKBONE_FIXED},
    ignored_keys=("initializer_range", "backbone_featmap_shape", "backbone_kwargs", "pooler_*"),
    copied_fields={"backbone_featmap_shape": "map"},
    value_maps={"activation": ACTIVATIONS},
    after_read=lambda fields: {
        **fields,
        **vision.read_backbone_config(fields["backbone_depths"], fields["in_channels"], all_stages=False),
    },
    before_write=_before_write,
    head_architectures={"classify": "ViTHybridForImageClassification"},
    # Names of `transformers` 4; version 5 has no such model, but its checkpoints are still available.
    names=NameTable(
        entries=(
            *vision.bit_entries("front.", "vit.embeddings.patch_embeddings.backbone.bit"),
            *vision.vit_entries("vit"),
            layer("head.classes", "classifier"),
        ),
        heads=("classifier.*", "vit.pooler.*"),
        prefix="vit.",
    ),
    other_entries={"pos_embed": TIMM_ENTRIES},
)


SYSTEM = System("hybrid", "ViT hybrid (2020): ResNet stem + ViT", Config, PRESETS, build, recipes.VIT, PUBLISHED)
