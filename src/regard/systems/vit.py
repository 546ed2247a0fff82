"""An Image is Worth 16x16 Words (Dosovitskiy et al. 2020): the Vision Transformer.

What is new against the Transformer: its encoder reads a picture. Patches of 16 x 16 pixels are the tokens, one matrix is their
embedding, one more token in front is asked what is seen. Norms stand before the sub-layers and one at the end; positions are
learned, counted through the patches, and stretched where a picture has another size.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from regard.errors import SettingError, WeightsError
from regard.nn.block import Stack
from regard.nn.dense import Tap
from regard.nn.norm import Norm
from regard.nn.patches import (
    Grid,
    PatchEncoder,
    Patches,
    Pool,
    check_patches,
    patch_blocks,
    patch_weights,
    quarters,
)
from regard.systems.encoding import ACTIVATIONS
from regard.systems.preset import Preset, System
from regard.weights import Entry, Names, Published, Tensors, entry, under


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

    def maps(self) -> tuple[Tap, ...]:
        return tuple(Tap(block, self.width, self.patch, flat=True, token=self.token) for block in quarters(self.depth))


def _paper(**train: Any) -> dict[str, dict[str, Any]]:
    """4096 pictures a step: on ImageNet 300 passes at 3e-3, the rate falling as a cosine after 10,000 steps."""
    usual = {
        "passes": 300, "images": 256, "accumulate": 16, "rate": 3e-3, "warmup": 10_000, "schedule": "cosine", "decay": 0.3,
        "betas": "0.9,0.999", "eps": 1e-8, "clip": 1.0, "smoothing": 0.0,
    }  # fmt: skip
    return {"train": {**usual, **train}}


BASE = Config()

PRESETS = {
    "vit-tiny": Preset(
        replace(BASE, size=28, patch=4, width=192, depth=9, heads=3, hidden=768),
        4_023_360,
        _paper(passes=60, accumulate=1, rate=1e-3, warmup=0.1, decay=0.05, smoothing=0.1),
    ),
    "vit-small": Preset(
        replace(BASE, width=384, heads=6, hidden=1536), 21_665_664, _paper(accumulate=4, rate=1e-3, decay=0.1)
    ),
    "vit-base-32": Preset(replace(BASE, patch=32, dropout=0.1), 87_455_232, _paper()),
    "vit-base-16": Preset(replace(BASE, dropout=0.1), 85_798_656, _paper()),
    "vit-large-16": Preset(
        replace(BASE, width=1024, depth=24, heads=16, hidden=4096, dropout=0.1), 303_301_632, _paper()
    ),
    "vit-huge-14": Preset(
        replace(BASE, patch=14, width=1280, depth=32, heads=16, hidden=5120, dropout=0.1),
        630_764_800,
        _paper(passes=14, rate=3e-4, schedule="linear", decay=0.1),  # of 300 million pictures: never on ImageNet alone
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


_LOOK = ("query", "key", "value")
_BLOCK = (
    # ours, timm's, torchvision's, and those of files for `transformers`
    ("attend.norm", "norm1.", "ln_1.", ("layernorm_before",)),
    ("attend.inner.qkv", "attn.qkv.", "self_attention.in_proj_", tuple(f"attention.attention.{x}" for x in _LOOK)),
    ("attend.inner.out", "attn.proj.", "self_attention.out_proj.", ("attention.output.dense",)),
    ("feed.norm", "norm2.", "ln_2.", ("layernorm_after",)),
    ("feed.inner.up", "mlp.fc1.", "mlp.0.", ("intermediate.dense",)),
    ("feed.inner.down", "mlp.fc2.", "mlp.3.", ("output.dense",)),
)
_OURS = "encoder.blocks.{n}"

NAMES = Names(
    entries=(
        entry("first", "vit.embeddings.cls_token"),
        entry("position.table", "vit.embeddings.position_embeddings"),
        entry("patches.{part}", "vit.embeddings.patch_embeddings.projection.{part}"),
        *(
            entry(f"{_OURS}.{ours}.{{part}}", *(f"vit.encoder.layer.{{n}}.{name}.{{part}}" for name in theirs))
            for ours, _, _, theirs in _BLOCK
        ),
        entry("encoder.norm.{part}", "vit.layernorm.{part}"),
        entry("head.classes.{part}", "classifier.{part}"),
    ),
    heads=("classifier.*", "vit.pooler.*", "decoder.*", "vit.embeddings.mask_token"),
)
"""The models of `transformers` 5 have other names in memory, and these on the disk."""

TIMM = (
    entry("first", "cls_token"),
    entry("position.table", "pos_embed"),
    entry("patches.{part}", "patch_embed.proj.{part}"),
    *(entry(f"{_OURS}.{ours}.{{part}}", f"blocks.{{n}}.{theirs}{{part}}") for ours, theirs, _, _ in _BLOCK),
    entry("encoder.norm.{part}", "norm.{part}"),
    entry("head.classes.{part}", "head.{part}"),
)

TORCHVISION = (
    entry("first", "class_token"),
    entry("position.table", "encoder.pos_embedding"),
    entry("patches.{part}", "conv_proj.{part}"),
    *(
        entry(f"{_OURS}.{ours}.{{part}}", f"encoder.layers.encoder_layer_{{n}}.{theirs}{{part}}")
        for ours, _, theirs, _ in _BLOCK
    ),
    entry("encoder.norm.{part}", "encoder.ln.{part}"),
    entry("head.classes.{part}", "heads.head.{part}"),
)


def square(fields: dict[str, Any]) -> dict[str, Any]:
    """Sides that a config gives as two numbers."""
    found = dict(fields)
    for name, key in (("size", "image_size"), ("patch", "patch_size")):
        if isinstance(fields[name], list | tuple):
            if len(set(fields[name])) != 1:
                raise WeightsError(f"config.json: {key}={fields[name]} is not supported; both sides must be equal.")
            found[name] = fields[name][0]
    return found


PUBLISHED = Published(
    model_type="vit",
    architecture="ViTModel",
    keys={
        "size": ("image_size",), "patch": ("patch_size",), "channels": ("num_channels",), "width": ("hidden_size",),
        "depth": ("num_hidden_layers",), "heads": ("num_attention_heads",), "hidden": ("intermediate_size",),
        "dropout": ("hidden_dropout_prob",), "attention_dropout": ("attention_probs_dropout_prob",),
        "activation": ("hidden_act",), "eps": ("layer_norm_eps",),
    },
    defaults={
        "image_size": 224, "patch_size": 16, "num_channels": 3, "hidden_size": 768, "num_hidden_layers": 12,
        "num_attention_heads": 12, "intermediate_size": 3072, "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0, "hidden_act": "gelu", "layer_norm_eps": 1e-12,
    },
    fixed={"qkv_bias": True},
    harmless=("initializer_range", "encoder_stride", "pooler_*"),
    values={"activation": ACTIVATIONS},
    filled=square,
    heads={"classify": "ViTForImageClassification"},
)  # fmt: skip


def adapt(config: Config, tensors: Tensors) -> tuple[Config, Tensors]:
    """Files of the bare body have no prefix; those of timm and torchvision have names of their own, and q, k, v in one."""
    for sign, entries in (("pos_embed", TIMM), ("encoder.pos_embedding", TORCHVISION)):
        if sign in tensors:
            tensors = translated(entries, tensors, config.depth)
    tensors = under(tensors, "vit.", ("classifier.*", "decoder.*"))
    if "vit.embeddings.cls_token" in tensors:
        return config, tensors
    return replace(config, token=False, pool="mean"), tensors


def translated(entries: tuple[Entry, ...], tensors: Tensors, depth: int) -> Tensors:
    """Names of another layout -> those of the published one; what it does not know keeps its name, and is refused by it."""
    places = [{"n": number, "part": part} for number in range(depth) for part in ("weight", "bias")]
    known = {item.theirs[0].format(**place): item.ours.format(**place) for item in entries for place in places}
    ours = {known[name]: tensor for name, tensor in tensors.items() if name in known}
    return {**NAMES.write(ours), **{name: tensor for name, tensor in tensors.items() if name not in known}}


def unsayable(config: Config) -> str:
    if config.token and config.pool == "first":
        return ""
    return (
        f"the published layout reads the class token only; this model has token={config.token} and pool={config.pool}."
    )


def _tuned(passes: int, images: int, rate: float, decay: float) -> dict[str, dict[str, Any]]:
    return _paper(passes=passes, images=images, accumulate=1, rate=rate, warmup=0.1, decay=decay)


RECIPES = {"segment": _tuned(100, 16, 1e-4, 0.05), "depth": _tuned(50, 16, 1e-4, 0.05)}

FURTHER = {"classify": _tuned(5, 128, 5e-5, 0.0), **RECIPES}
"""For weights that have learnt already. The paper takes SGD with 512 pictures a step, a cosine and no decay; Adam wants a rate
of this size."""

SYSTEM = System(
    name="vit", about="encoder of 2020 that reads pictures as patches", config=Config, presets=PRESETS, build=build,
    tasks=("classify", "segment", "depth"), reads="pictures", names=NAMES, published=PUBLISHED, adapt=adapt,
    unsayable=unsayable, recipes=RECIPES, further=FURTHER,
)  # fmt: skip
