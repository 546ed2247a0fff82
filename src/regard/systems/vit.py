"""An Image is Worth 16x16 Words (Dosovitskiy et al. 2020): the Vision Transformer.

Differences from the Transformer: an encoder for images. Patches of 16×16 pixels are the tokens, embedded by one linear
layer, with a class token for classification. Blocks are pre-norm with a final norm; positions are learned, one per
patch, and interpolated for other image sizes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from regard.nn.vision.dense import FeatureTap, sequence_maps
from regard.nn.vision.patches import GridPosition, PatchEmbedding, Pool, VisionTransformer, quarter_blocks
from regard.systems.common import recipes, vision
from regard.systems.common.bert import ACTIVATIONS
from regard.systems.common.system import LARGE, System, presets, reject, sizes
from regard.weights.tables import NameTable, PublishedLayout, layer


@dataclass(frozen=True)
class Config(vision.ViTConfig):
    class_token: bool = True
    pool: Pool = "first"

    head_std = 0.0

    def check(self) -> None:
        reject(
            self.pool == "first" and not self.class_token,
            "model.pool=first requires model.class_token=true. Set model.class_token=true or model.pool=mean.",
        )
        vision.check_patch_size(self)

    def feature_maps(self) -> tuple[FeatureTap, ...]:
        return sequence_maps(quarter_blocks(self.depth), self.width, self.patch_size, self.class_token)


AUGMENT = {"shift": 0.1, "random_erasing": 0.3}
# selected on held-out training images of Fashion-MNIST; data.flip helps if flipped images are valid
TINY_RECIPE = recipes.get("imagenet", AUGMENT, **recipes.SMALL_IMAGES, epochs=80, batch_size=512, lr=1.5e-3)
# epochs of 300 million images, not of ImageNet
HUGE_RECIPE = recipes.get("imagenet", epochs=14, lr=3e-4, lr_schedule="linear", weight_decay=0.1)
PRESETS = presets(
    Config(),
    ("vit-tiny", 4_023_360, TINY_RECIPE, sizes(192, 9, 3) | {"image_size": 28, "patch_size": 4}),
    ("vit-small", 21_665_664, recipes.get("imagenet", grad_accum=4, lr=1e-3, weight_decay=0.1), sizes(384, 12, 6)),
    ("vit-base-32", 87_455_232, recipes.get("imagenet"), {"patch_size": 32, "dropout": 0.1}),
    ("vit-base-16", 85_798_656, recipes.get("imagenet"), {"dropout": 0.1}),
    ("vit-large-16", 303_301_632, recipes.get("imagenet"), LARGE | {"dropout": 0.1}),
    ("vit-huge-14", 630_764_800, HUGE_RECIPE, sizes(1280, 32, 16) | {"patch_size": 14, "dropout": 0.1}),
)


def build(config: Config) -> VisionTransformer:
    return vision.build_vit(
        config,
        PatchEmbedding(config.width, config.patch_size, config.in_channels),
        GridPosition(config.image_size // config.patch_size, config.width, num_prefix_tokens=int(config.class_token)),
        class_token=config.class_token,
        pool=config.pool,
    )


PUBLISHED = PublishedLayout(
    model_type="vit",
    architecture="ViTModel",
    keys=vision.KEYS,
    config=Config,
    defaults={"layer_norm_eps": 1e-12},
    fixed={"qkv_bias": True},
    ignored_keys=("initializer_range", "encoder_stride", "pooler_*"),
    value_maps={"activation": ACTIVATIONS},
    after_read=vision.require_square,
    head_architectures={"classify": "ViTForImageClassification"},
    # Names in checkpoint files; `transformers` 5 has other names in memory.
    names=NameTable(
        entries=(*vision.vit_entries("vit"), layer("head.classes", "classifier")),
        heads=("classifier.*", "vit.pooler.*", "decoder.*", "vit.embeddings.mask_token"),
        prefix="vit.",
    ),
    other_entries={"pos_embed": vision.TIMM_ENTRIES, "encoder.pos_embedding": vision.TORCHVISION_ENTRIES},
    # files without a class token
    adapt_checkpoint=lambda config, tensors: (
        config if "vit.embeddings.cls_token" in tensors else replace(config, class_token=False, pool="mean"),
        tensors,
    ),
    required={"class_token": True, "pool": "first"},
    requirement="ViT requires model.class_token=true and model.pool=first",
)


SYSTEM = System("vit", "Vision Transformer (ViT, 2020)", Config, PRESETS, build, recipes.VIT, PUBLISHED)
