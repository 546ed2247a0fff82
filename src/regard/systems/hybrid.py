"""The hybrid of An Image is Worth 16x16 Words (Dosovitskiy et al. 2020): ViT on a map of convolutions.

What is new against ViT: not pixels are cut into patches but what the first three stages of a ResNet-50 make of them (BiT's
kind: standardised convolutions, group norms). A patch is one place of that map, which stands for 16 x 16 pixels. With few
pictures to learn from convolutions know more from the start; with many the difference vanishes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from regard.errors import SettingError, WeightsError
from regard.nn.block import Stack
from regard.nn.convolution import bit, convolutional_weights
from regard.nn.dense import Tap
from regard.nn.norm import Norm
from regard.nn.patches import Grid, PatchEncoder, Patches, check_patches, patch_blocks, patch_weights, quarters
from regard.systems.encoding import ACTIVATIONS
from regard.systems.preset import Preset, System
from regard.weights import Entry, Names, Published, Tensors, entry, under


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
        if self.start < 1 or self.groups < 1 or self.start % self.groups:
            raise SettingError(f"model.start {self.start} cannot be divided among model.groups {self.groups}.")
        if self.last % self.patch:
            raise SettingError(
                f"model.size {self.size} gives a map of {self.last} x {self.last}, which cannot be cut into patches of "
                f"model.patch {self.patch}."
            )

    @property
    def widths(self) -> tuple[int, ...]:
        """Channels after each stage."""
        return tuple(self.start * 4 * 2**stage for stage in range(len(self.stages)))

    @property
    def stride(self) -> int:
        """Pixels from one place of the last map to the next."""
        return int(2 * 2 ** len(self.stages))

    @property
    def last(self) -> int:
        """Side of the last map."""
        return -(-self.size // self.stride)

    def maps(self) -> tuple[Tap, ...]:
        """The first two stages, and the last two of four quarters of the blocks, as DPT-Hybrid takes them."""
        early = [Tap(-1 - stage, self.widths[stage], 4 * 2**stage, flat=False) for stage in range(len(self.stages))][:2]
        side = self.stride * self.patch
        return (*early, *(Tap(block, self.width, side, flat=True) for block in quarters(self.depth)[len(early) :]))


STAGES = 4
"""ResNets have no more."""


def _recipe(**train: Any) -> dict[str, dict[str, Any]]:
    """ViT's on ImageNet."""
    usual = {
        "passes": 300, "images": 128, "accumulate": 32, "rate": 3e-3, "warmup": 10_000, "schedule": "cosine", "decay": 0.3,
        "betas": "0.9,0.999", "eps": 1e-8, "clip": 1.0, "smoothing": 0.0,
    }  # fmt: skip
    return {"train": {**usual, **train}}


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
    front = bit(
        config.channels, config.start, config.widths, config.stages, before=False, same=True, fits=True,
        groups=config.groups,
    )  # fmt: skip
    convolutional_weights(front)
    body = PatchEncoder(
        Patches(config.width, config.patch, config.widths[-1]),
        Grid(config.last // config.patch, config.width),
        Stack(patch_blocks(config), norm=Norm(config.width, config.eps)),
        dropout=config.dropout,
        front=front,
    )
    return patch_weights(body)


def _front(conv: str, norm: str, block: str) -> list[Entry]:
    """Of the convolutions; `block` has a place for the number of its stage, and `{n}` for its own."""
    found = [entry("front.stem.conv.weight", f"{conv}.weight"), entry("front.stem.norm.{part}", f"{norm}.{{part}}")]
    for stage in range(STAGES):
        ours, theirs = f"front.stages.{stage}.{{n}}", block.replace("{stage}", str(stage))
        for unit in range(3):
            found.append(entry(f"{ours}.units.{unit}.conv.weight", f"{theirs}.conv{unit + 1}.weight"))
            found.append(entry(f"{ours}.units.{unit}.norm.{{part}}", f"{theirs}.norm{unit + 1}.{{part}}"))
        found.append(entry(f"{ours}.shortcut.conv.weight", f"{theirs}.downsample.conv.weight"))
        found.append(entry(f"{ours}.shortcut.norm.{{part}}", f"{theirs}.downsample.norm.{{part}}"))
    return found


_LOOK = ("query", "key", "value")
_BLOCK = (
    # ours, timm's, and those of files for `transformers`
    ("attend.norm", "norm1", ("layernorm_before",)),
    ("attend.inner.qkv", "attn.qkv", tuple(f"attention.attention.{name}" for name in _LOOK)),
    ("attend.inner.out", "attn.proj", ("attention.output.dense",)),
    ("feed.norm", "norm2", ("layernorm_after",)),
    ("feed.inner.up", "mlp.fc1", ("intermediate.dense",)),
    ("feed.inner.down", "mlp.fc2", ("output.dense",)),
)
_OURS = "encoder.blocks.{n}"
_BIT = "vit.embeddings.patch_embeddings.backbone.bit"

NAMES = Names(
    entries=(
        *_front(
            f"{_BIT}.embedder.convolution", f"{_BIT}.embedder.norm", f"{_BIT}.encoder.stages.{{stage}}.layers.{{n}}"
        ),
        entry("first", "vit.embeddings.cls_token"),
        entry("position.table", "vit.embeddings.position_embeddings"),
        entry("patches.{part}", "vit.embeddings.patch_embeddings.projection.{part}"),
        *(
            entry(f"{_OURS}.{ours}.{{part}}", *(f"vit.encoder.layer.{{n}}.{name}.{{part}}" for name in theirs))
            for ours, _, theirs in _BLOCK
        ),
        entry("encoder.norm.{part}", "vit.layernorm.{part}"),
        entry("head.classes.{part}", "classifier.{part}"),
    ),
    heads=("classifier.*", "vit.pooler.*"),
)
"""As `transformers` 4 called them; version 5 has no such model any more, and its files are still about."""

_TIMM = "patch_embed.backbone"
TIMM = (
    *_front(f"{_TIMM}.stem.conv", f"{_TIMM}.stem.norm", f"{_TIMM}.stages.{{stage}}.blocks.{{n}}"),
    entry("first", "cls_token"),
    entry("position.table", "pos_embed"),
    entry("patches.{part}", "patch_embed.proj.{part}"),
    *(entry(f"{_OURS}.{ours}.{{part}}", f"blocks.{{n}}.{theirs}.{{part}}") for ours, theirs, _ in _BLOCK),
    entry("encoder.norm.{part}", "norm.{part}"),
    entry("head.classes.{part}", "head.{part}"),
)


def _backbone(channels: int, stages: tuple[int, ...], start: int, groups: int) -> dict[str, Any]:
    """How the published config tells of the convolutions."""
    return {
        "model_type": "bit", "layer_type": "bottleneck", "global_padding": "SAME", "embedding_dynamic_padding": True,
        "hidden_act": "relu", "output_stride": 32, "width_factor": 1, "drop_path_rate": 0.0, "num_channels": channels,
        "depths": list(stages), "embedding_size": start, "num_groups": groups,
        "hidden_sizes": [start * 4 * 2**stage for stage in range(len(stages))], "out_features": [f"stage{len(stages)}"],
    }  # fmt: skip


_ABSENT: dict[str, Any] = {
    "model_type": "bit", "layer_type": "preactivation", "global_padding": None, "embedding_dynamic_padding": False,
    "hidden_act": "relu", "output_stride": 32, "width_factor": 1, "drop_path_rate": 0.0, "num_channels": 3,
    "depths": [3, 4, 6, 3], "embedding_size": 64, "num_groups": 32, "hidden_sizes": [256, 512, 1024, 2048],
}  # fmt: skip
"""What it means where one of these is left out."""


def _filled(fields: dict[str, Any]) -> dict[str, Any]:
    """Our fields of what is published as one; a config that says nothing of convolutions means those of the paper."""
    told = {**_ABSENT, **(fields["stages"] or _backbone(fields["channels"], BASE.stages, BASE.start, BASE.groups))}
    stages, start, groups = tuple(told["depths"]), told["embedding_size"], told["num_groups"]
    right = _backbone(fields["channels"], stages, start, groups)
    told["global_padding"] = str(told["global_padding"]).upper()
    told["hidden_sizes"] = list(told["hidden_sizes"])[: len(stages)]
    told["out_features"] = told.get("out_features") or right["out_features"]
    for key, value in right.items():
        if told[key] != value:
            raise WeightsError(f"config.json: backbone_config.{key}={told[key]!r} is not supported; only {value!r} is.")
    return {**fields, "stages": stages, "start": start, "groups": groups}


def _written(fields: dict[str, Any]) -> dict[str, Any]:
    config = Config(**fields)
    told = _backbone(config.channels, config.stages, config.start, config.groups)
    return {**fields, "stages": told, "map": [1, config.widths[-1], config.last, config.last]}


PUBLISHED = Published(
    model_type="vit-hybrid",
    architecture="ViTHybridModel",
    keys={
        "size": ("image_size",), "patch": ("patch_size",), "channels": ("num_channels",), "width": ("hidden_size",),
        "depth": ("num_hidden_layers",), "heads": ("num_attention_heads",), "hidden": ("intermediate_size",),
        "dropout": ("hidden_dropout_prob",), "attention_dropout": ("attention_probs_dropout_prob",),
        "activation": ("hidden_act",), "eps": ("layer_norm_eps",), "stages": ("backbone_config",),
    },
    defaults={
        "image_size": 224, "patch_size": 1, "num_channels": 3, "hidden_size": 768, "num_hidden_layers": 12,
        "num_attention_heads": 12, "intermediate_size": 3072, "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0, "hidden_act": "gelu", "layer_norm_eps": 1e-12,
    },
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
        places = [
            {"n": n, "part": part} for n in range(max(config.depth, *config.stages)) for part in ("weight", "bias")
        ]
        known = {item.theirs[0].format(**place): item.ours.format(**place) for item in TIMM for place in places}
        ours = {known[name]: tensor for name, tensor in tensors.items() if name in known}
        tensors = {**NAMES.write(ours), **{name: tensor for name, tensor in tensors.items() if name not in known}}
    return config, under(tensors, "vit.", ("classifier.*",))


def _tuned(passes: int, images: int, rate: float, decay: float) -> dict[str, dict[str, Any]]:
    return _recipe(passes=passes, images=images, accumulate=1, rate=rate, warmup=0.1, decay=decay)


RECIPES = {"segment": _tuned(100, 16, 1e-4, 0.05), "depth": _tuned(50, 16, 1e-4, 0.05)}

FURTHER = {"classify": _tuned(5, 128, 5e-5, 0.0), **RECIPES}
"""For weights that have learnt already."""

SYSTEM = System(
    name="hybrid", about="ViT that reads a map of convolutions", config=Config, presets=PRESETS, build=build,
    tasks=("classify", "segment", "depth"), reads="pictures", names=NAMES, published=PUBLISHED, adapt=adapt,
    recipes=RECIPES, further=FURTHER,
)  # fmt: skip
