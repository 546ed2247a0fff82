"""Vision Transformers for Dense Prediction (Ranftl, Bochkovskiy, Koltun 2021): DPT, an answer for each pixel.

What is new against ViT: not its last states are read but those of four blocks, each before any last norm. They are laid out
as maps of four sizes again and fused from the coarsest to the finest (nn/vision/dense.py), so that what is far apart
is seen together at every size. The hybrid takes its two finest maps from the convolutions that make its patches.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from regard.errors import SettingError, WeightsError
from regard.nn.blocks.block import Stack
from regard.nn.blocks.norm import Norm
from regard.nn.vision.dense import Neck, Readout, Tap
from regard.nn.vision.patches import Grid, PatchEncoder, Patches, check_patches, patch_blocks, patch_weights
from regard.systems.common import vision
from regard.systems.common.bert import ACTIVATIONS
from regard.systems.common.system import Preset, System
from regard.weights.tables import Entry, Names, Published, Tensors, entry, under


@dataclass(frozen=True)
class Config:
    size: int = 384
    """side of the pictures it was made for; others are read too, with positions stretched to them"""
    patch: int = 16
    """side of a patch, in pixels"""
    channels: int = 3
    """of a picture: 3 are red, green and blue"""
    hybrid: bool = False
    """patches are places of a map of convolutions, not squares of pixels"""
    stages: tuple[int, ...] = (3, 4, 9)
    """blocks of each stage of these convolutions, where there are some"""
    start: int = 64
    """channels of the first convolution; stages have 4, 8 and 16 times as many"""
    groups: int = 32
    """groups of channels that are normalised together there"""
    width: int = 768
    """width of the states"""
    depth: int = 12
    """blocks"""
    heads: int = 12
    """attention heads"""
    hidden: int = 3072
    """inner width of the feed-forward layers"""
    dropout: float = 0.0
    """share dropped of each sub-layer's output and of the embeddings"""
    attention_dropout: float = 0.0
    """share dropped of the attention weights"""
    activation: Literal["gelu", "gelu_tanh", "relu"] = "gelu"
    """non-linearity of the feed-forward layers, and behind the class token's projection"""
    eps: float = 1e-12
    """small number in the layer norms"""
    taps: tuple[int, ...] = (2, 5, 8, 11)
    """blocks whose states are laid out as maps, the finest first; a hybrid has two stages in place of the first two"""
    laid: tuple[int, ...] = (96, 192, 384, 768)
    """channels of the maps that are laid out"""
    factors: tuple[float, ...] = (4, 2, 1, 0.5)
    """how much finer than the patches they are"""
    readout: Readout = "project"
    """what becomes of the class token: projected into each place with its state, added to each, or ignored"""
    fusion: int = 256
    """channels of the fused maps"""
    fusion_norm: bool | None = None
    """batch norms in the fusion; none: where classes are told, and not for depth"""
    fusion_bias: bool | None = None
    """biases in the fusion; none: where there are no batch norms"""
    head_dropout: float = 0.1
    """share dropped of what classes are told from"""
    auxiliary: bool = True
    """classes are told by a second head too while it learns"""

    def __post_init__(self) -> None:
        check_patches(self)
        if self.fusion < 2:
            raise SettingError(f"model.fusion must be at least 2, not {self.fusion}.")
        if self.size % self.patch:
            raise SettingError(f"model.size {self.size} is no multiple of model.patch {self.patch}.")
        self._check_maps()
        if self.hybrid:
            self._check_stages()

    def _check_maps(self) -> None:
        if not len(self.taps) == len(self.laid) == len(self.factors) == 4:
            raise SettingError("model.taps, model.laid and model.factors are four numbers each, one for each map.")
        read = self.taps[2:] if self.hybrid else self.taps
        if list(read) != sorted(set(read)) or not 0 <= read[0] <= read[-1] < self.depth:
            spread = ",".join(str(self.depth * part // 4 - 1) for part in range(1, 5))
            advice = f" For model.depth={self.depth} set model.taps={spread}." if self.depth >= 4 else ""
            raise SettingError(f"model.taps {read} must rise, and lie among the blocks 0 to {self.depth - 1}.{advice}")
        if min(self.laid) < 1 or min(self.factors) <= 0:
            raise SettingError("model.laid and model.factors must be above 0.")
        for factor in self.factors:
            if (factor if factor > 1 else 1 / factor) % 1:
                raise SettingError(f"model.factors: {factor} is neither a whole number nor one part of one.")

    def _check_stages(self) -> None:
        if len(self.stages) != 3 or min(self.stages) < 1 or self.patch != 16:
            raise SettingError(
                f"model.stages {self.stages}: a hybrid has three stages, whose last map has a place for each 16 x 16 pixels; "
                "give three numbers, and model.patch=16."
            )
        vision.check_front(self)
        if self.readout != "project":
            raise SettingError(f"model.readout={self.readout}: a hybrid projects the class token.")

    @property
    def widths(self) -> tuple[int, ...]:
        """Channels after each stage of convolutions."""
        return vision.widths(self.start, self.stages)

    def maps(self) -> tuple[Tap, ...]:
        taps = [Tap(block, self.width, self.patch, flat=True) for block in self.taps]
        if not self.hybrid:
            return tuple(taps)
        return (*(Tap(~stage, self.widths[stage], 4 * 2**stage, flat=False) for stage in (0, 1)), *taps[2:])

    def neck(self) -> Neck:
        return Neck(
            self.laid, self.fusion, self.factors, self.readout, self.activation, self.fusion_norm, self.fusion_bias,
            spare=True,
        )  # fmt: skip


def _recipe(**train: Any) -> dict[str, dict[str, Any]]:
    """The paper's for depth: 16 pictures a step at 1e-5, and 1e-4 for what is not yet trained; 60 passes."""
    usual = {
        "passes": 60, "images": 16, "accumulate": 1, "rate": 1e-5, "rates": {"head.*": 1e-4}, "warmup": 0.0,
        "schedule": "constant", "betas": "0.9,0.999", "eps": 1e-8, "decay": 0.0, "clip": 1.0,
        "smoothing": 0.0,
    }  # fmt: skip
    return {"train": {**usual, **train}}


def _small(**train: Any) -> dict[str, dict[str, Any]]:
    """From nothing, on a few thousand pictures at most."""
    return _recipe(passes=100, rate=3e-4, rates={}, warmup=0.05, schedule="cosine", decay=0.05, **train)


BASE = Config()
LARGE = replace(BASE, width=1024, depth=24, heads=16, hidden=4096, taps=(5, 11, 17, 23), laid=(256, 512, 1024, 1024))
HYBRID = replace(BASE, hybrid=True, laid=(256, 512, 768, 768))
SMALL = replace(
    BASE, size=192, width=256, depth=8, heads=4, hidden=1024, taps=(1, 3, 5, 7), laid=(64, 128, 256, 256), fusion=64,
    dropout=0.1,
)  # fmt: skip
SMALL_HYBRID = replace(SMALL, hybrid=True, stages=(2, 2, 2), start=16, groups=8, depth=6, taps=(1, 2, 3, 5))

PRESETS = {
    "dpt-small": Preset(SMALL, 9_021_153, _small()),
    "dpt-hybrid-small": Preset(SMALL_HYBRID, 7_087_025, _small()),
    "dpt-base": Preset(BASE, 110_878_081, _recipe()),
    "dpt-large": Preset(LARGE, 343_030_465, _recipe()),
    "dpt-hybrid": Preset(HYBRID, 122_377_985, _recipe()),
}
"""Parameters are those of the model for depth. With 150 classes dpt-large has 343,960,364 and dpt-hybrid 123,307,884."""


def build(config: Config) -> PatchEncoder:
    """The whole machine but its head, which is `Depth` or `Segment` of nn/vision/dense.py."""
    body = PatchEncoder(
        Patches(config.width, *((1, config.widths[-1]) if config.hybrid else (config.patch, config.channels))),
        Grid(config.size // config.patch, config.width, resize="bilinear"),
        Stack(patch_blocks(config), norm=Norm(config.width, config.eps)),
        dropout=config.dropout,
        front=vision.front(config) if config.hybrid else None,
    )
    body.encoder.norm.requires_grad_(False)  # in every file, and behind all that is read
    return patch_weights(body)


def _same(ours: str, theirs: str) -> Entry:
    return entry(f"{ours}.{{part}}", f"{theirs}.{{part}}")


def _norm(ours: str, theirs: str) -> tuple[Entry, ...]:
    """A batch norm with what it has gathered."""
    return (
        _same(ours, theirs),
        *(entry(f"{ours}.{name}", f"{theirs}.{name}") for name in vision.GATHERED),
    )


def _unit(ours: str, theirs: str) -> tuple[Entry, ...]:
    return (
        _same(f"head.fusion.{{n}}.{ours}.first", f"neck.fusion_stage.layers.{{n}}.{theirs}.convolution1"),
        _same(f"head.fusion.{{n}}.{ours}.second", f"neck.fusion_stage.layers.{{n}}.{theirs}.convolution2"),
        *_norm(f"head.fusion.{{n}}.{ours}.first_norm", f"neck.fusion_stage.layers.{{n}}.{theirs}.batch_norm1"),
        *_norm(f"head.fusion.{{n}}.{ours}.second_norm", f"neck.fusion_stage.layers.{{n}}.{theirs}.batch_norm2"),
    )


PIXELS, PLACES = "dpt.embeddings.patch_embeddings.projection.", "dpt.embeddings.projection."
"""The matrix of patches of pixels, and of places of a map."""

NAMES = Names(
    entries=(
        *vision.bit_stages("front.", "dpt.embeddings.backbone.bit", 3),
        *vision.names("dpt"),
        _same("head.reassemble.{n}.read", "neck.reassemble_stage.readout_projects.{n}.0"),
        _same("head.reassemble.{n}.project", "neck.reassemble_stage.layers.{n}.projection"),
        _same("head.reassemble.{n}.resize", "neck.reassemble_stage.layers.{n}.resize"),
        _same("head.levels.{n}", "neck.convs.{n}"),
        *_unit("skip", "residual_layer1"),
        *_unit("unit", "residual_layer2"),
        _same("head.fusion.{n}.out", "neck.fusion_stage.layers.{n}.projection"),
        *(_same(f"head.{ours}", f"head.head.{n}") for ours, n in (("first", 0), ("second", 2), ("last", 4))),
        _same("head.before.dense", "head.head.0"),
        *_norm("head.before.norm", "head.head.1"),
        _same("head.classes", "head.head.4"),
        _same("head.beside_before.dense", "auxiliary_head.head.0"),
        *_norm("head.beside_before.norm", "auxiliary_head.head.1"),
        _same("head.beside", "auxiliary_head.head.4"),
    ),
    heads=("neck.*", "head.*", "auxiliary_head.*", "dpt.pooler.*"),
)


def _filled(fields: dict[str, Any]) -> dict[str, Any]:
    """Our fields of what is published as one."""
    told, found = fields["stages"], {**vision.square(fields), "stages": BASE.stages}
    found["fusion_norm"] = bool(fields["fusion_norm"])
    if found["hybrid"]:
        return {**found, **vision.read_backbone(told, found["channels"], every=True)}
    if told:
        raise WeightsError(f"config.json: a backbone of the kind '{told.get('model_type')}' is not supported for DPT.")
    return found


def _written(fields: dict[str, Any]) -> dict[str, Any]:
    config, side = Config(**fields), fields["size"] // fields["patch"]
    # a transposed convolution cannot be 4.0 wide
    fields = {**fields, "factors": [int(factor) if factor % 1 == 0 else factor for factor in config.factors]}
    if not config.hybrid:
        return {**fields, "stages": None, "map": None, "early": []}
    told = vision.backbone(config.channels, config.stages, config.start, config.groups, (1, 2, 3))
    return {**fields, "stages": told, "map": [1, config.widths[-1], side, side], "early": [0, 1]}


PUBLISHED = Published(
    model_type="dpt",
    architecture="DPTForDepthEstimation",
    keys={
        **vision.KEYS, "taps": ("backbone_out_indices",),
        "laid": ("neck_hidden_sizes",), "factors": ("reassemble_factors",), "readout": ("readout_type",),
        "fusion": ("fusion_hidden_size",), "fusion_norm": ("use_batch_norm_in_fusion_residual",),
        "fusion_bias": ("use_bias_in_fusion_residual",), "head_dropout": ("semantic_classifier_dropout",),
        "auxiliary": ("use_auxiliary_head",), "stages": ("backbone_config",), "hybrid": ("is_hybrid",),
    },
    defaults={
        **vision.DEFAULTS, "image_size": 384,
        "backbone_out_indices": (2, 5, 8, 11), "neck_hidden_sizes": (96, 192, 384, 768),
        "reassemble_factors": (4, 2, 1, 0.5), "readout_type": "project", "fusion_hidden_size": 256,
        "use_batch_norm_in_fusion_residual": False, "semantic_classifier_dropout": 0.1, "use_auxiliary_head": True,
        "is_hybrid": False,
    },
    fixed={
        "qkv_bias": True, "add_projection": False, "head_in_index": -1, "backbone": None, "use_timm_backbone": False,
        "use_pretrained_backbone": False,
    },
    harmless=(
        "initializer_range", "auxiliary_loss_weight", "semantic_loss_ignore_index", "backbone_featmap_shape",
        "neck_ignore_stages", "backbone_kwargs", "pooler_*", "is_encoder_decoder",
    ),
    copied={"backbone_featmap_shape": "map", "neck_ignore_stages": "early"},
    values={"activation": ACTIVATIONS},
    filled=_filled,
    written_as=_written,
    heads={"depth": "DPTForDepthEstimation", "segment": "DPTForSemanticSegmentation"},
)  # fmt: skip


def adapt(config: Config, tensors: Tensors) -> tuple[Config, Tensors]:
    """Files of the bare body have no prefix; batch norms have a count that nobody reads; whether there is an auxiliary head is
    said by what is there."""
    tensors = under(vision.uncounted(tensors), "dpt.", ("neck.*", "head.*", "auxiliary_head.*"))
    if "head.head.1.weight" in tensors:
        config = replace(config, auxiliary="auxiliary_head.head.4.weight" in tensors)
    return config, {name.replace(PLACES, PIXELS): tensor for name, tensor in tensors.items()}


def dress(config: Config, tensors: Tensors) -> Tensors:
    """Patches of a map go by another name than those of pixels, and others want the count of a batch norm."""
    if config.hybrid:
        tensors = {name.replace(PIXELS, PLACES): tensor for name, tensor in tensors.items()}
    return vision.counted(tensors)


FURTHER = {
    "depth": _recipe(passes=10, schedule="cosine", warmup=0.05),
    "segment": _recipe(passes=50, schedule="cosine", warmup=0.05, rate=3e-5, rates={"head.*": 3e-4}),
}
"""For weights that have learnt already. Classes were taught by SGD in the paper: 48 pictures a step, 240 passes at a rate of
0.002 that falls to 0; Adam wants a smaller one."""

SYSTEM = System(
    name="dpt", about="ViT of 2021 that tells depth or class of every pixel", config=Config, presets=PRESETS, build=build,
    tasks=("depth", "segment"), reads="pictures", names=NAMES, published=PUBLISHED, adapt=adapt, dress=dress,
    further=FURTHER,
)  # fmt: skip
