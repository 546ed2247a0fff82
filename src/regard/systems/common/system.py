"""Systems: model families with config, presets, builder, tasks and weight formats.

Configs share fields, help texts and range checks."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from torch import nn

from regard.errors import SettingError
from regard.nn.attention.positions import RelativeKind
from regard.systems.common.recipes import Recipe, TaskRecipes
from regard.types import Traits
from regard.weights.tables import PublishedLayout

if TYPE_CHECKING:
    from regard.processors.image import ImageProcessor
    from regard.systems.common.captions import EncoderPart

NO_LAYOUT = PublishedLayout(model_type="", architecture="", keys={})
"""For systems without Hugging Face equivalent, saved in the native format."""


@dataclass(frozen=True)
class Preset:
    """A model size of a system, with its exact parameter count and the recipe of the paper as default settings."""

    config: Any
    parameters: int
    recipe: Recipe = field(default_factory=dict)


def presets(base: Any, *rows: tuple[str, int, Recipe, Mapping[str, Any]]) -> dict[str, Preset]:
    """Presets by name. A row: name, parameter count, recipe, and the fields that differ from the config `base`."""
    return {name: Preset(replace(base, **changes), count, recipe) for name, count, recipe, changes in rows}


@dataclass(frozen=True)
class System:
    name: str
    description: str
    config: type[Any]
    presets: dict[str, Preset]
    build: Callable[[Any], nn.Module]
    task_recipes: TaskRecipes
    published: PublishedLayout = NO_LAYOUT
    part: EncoderPart | None = None
    """Part that may come from another folder: the image encoder of captioning models."""

    @property
    def tasks(self) -> tuple[str, ...]:
        return self.task_recipes.tasks

    @property
    def modality(self) -> str:
        """Input of the body: text, image or points."""
        return str(self.config.modality)

    def unsupported_by_layout(self, config: Any) -> str:
        """Reason why the config cannot be saved in Hugging Face format; empty if supported."""
        layout = self.published
        if layout.model_type:
            found = {name: getattr(config, name) for name in layout.required}
            if (reason := layout.check_layout(config)) or found == layout.required:
                return reason
            *others, last = (f"model.{name}={value}" for name, value in found.items())
            listed = f"{', '.join(others)} and {last}" if others else last
            return f"Hugging Face format for {layout.requirement}; this model has {listed}."
        return (
            "This system has no Hugging Face equivalent. Save the model in regard's native format with "
            "model.save(folder), as 'regard train' does; regard.load() reads that format."
        )

    def recipe(self, preset: Preset, task: str) -> Recipe:
        """Default settings of a preset for a task."""
        more = self.task_recipes.recipes.get(task, {})
        return {group: {**preset.recipe.get(group, {}), **more.get(group, {})} for group in (*preset.recipe, *more)}


@dataclass(eq=False, repr=False)
class LazyTable(UserDict[str, System]):
    """Systems by name, given as paths `package.module:name`, each imported at its first access."""

    data: dict[str, Any]

    def __getitem__(self, name: str) -> System:
        if isinstance(self.data[name], str):
            self.data[name] = resolve_name(self.data[name])
        found: System = self.data[name]
        return found


# -- configs

FIELD_HELP: dict[str, str] = {
    "width": "Hidden size (d_model, hidden_size, n_embd).",
    "depth": "Number of layers (encoder layers in an encoder–decoder).",
    "heads": "Number of attention heads.",
    "ffn_dim": "Feed-forward size (d_ff, intermediate_size).",
    "vocab_size": "Vocabulary size; set by the tokenizer.",
    "max_length": "Maximum sequence length (max_position_embeddings).",
    "position_embedding": "Absolute positions: learned, sinusoidal (halves or interleaved), or none.",
    "relative_position": "Positions inside attention: none, rotary, rotary-halves (LLaMA layout), t5 or shaw.",
    "type_vocab_size": "Number of segment (token type) embeddings.",
    "dropout": "Dropout on sub-layer outputs and embeddings.",
    "attention_dropout": "Dropout on attention weights.",
    "head_dropout": "Dropout before the task head (classifier_dropout).",
    "activation": "Activation function of the feed-forward layers.",
    "norm_eps": "LayerNorm epsilon.",
    "pooler": "Add a pooling layer on the first token.",
    "pad_id": "Id of the padding token.",
    "bos_id": "Id of the start token (bos_token_id).",
    "eos_id": "Id of the end token.",
    "mask_id": "Id of the mask token.",
    "image_size": "Image side in pixels (square). Other sizes work with interpolated positions.",
    "in_channels": "Input channels. 3: RGB.",
    "stem_channels": "Output channels of the first convolution.",
    "widths": "Channels per stage.",
    "depths": "Encoder blocks per stage; the decoder has one per stage.",
    "norm_groups": "Groups of GroupNorm.",
    "feature_level": "Feature map to attend to, 0 (fine) to 3 (coarse). none: the final one.",
    "decoder_depth": "Number of decoder layers.",
    "norm_position": "LayerNorm placement: post (original) or pre, with a final norm.",
    "encoder": "Image encoder: a preset (random weights) or a checkpoint folder (pretrained).",
    "embedding_dim": "Embedding size, if different from the hidden size.",
    "attention_dim": "Hidden size of the additive attention scorer. 0: feature size.",
    "embedding_dropout": "Dropout on embeddings.",
    "patch_size": "Patch side in pixels (hybrid: in feature-map cells).",
    "backbone_depths": "Blocks per stage of the convolutional backbone.",
    "ffn_dropout": "Dropout inside the feed-forward layers.",
    "max_position_offset": "Training: random start of the positions, up to this value, for length generalization.",
    "scale_embedding": "Multiply embeddings by √width.",
    "num_steps": "Number of times the block is applied (without ACT).",
    "step_embedding": "Step embedding: sinusoid or learned.",
    "act": "Adaptive computation time (ACT): each position halts separately.",
    "act_max_steps": "Maximum steps with ACT. 0: 2 × num_steps.",
    "act_epsilon": "Halt when the cumulative probability exceeds 1 − this value.",
    "act_mixing": "How ACT combines step states: convex or accumulated.",
    "ponder_cost": "Weight of the ponder cost in the loss.",
    "nsp": "Train next-sentence prediction as well.",
    "pre_activation": "Pre-activation blocks: norm and ReLU before each convolution.",
    "padding": "Padding of strided convolutions: even, or same (TensorFlow).",
    "stem_same_padding": "TensorFlow SAME padding in the stem pooling.",
    "output_stride": "Total stride of the last feature map.",
    "image_positions": "Position embedding of image features: learned, sines or none.",
    "encoder_config": "Overrides for the encoder preset, e.g. stem_stride=2; after loading, its full config.",
    "freeze_encoder": "Freeze the image encoder.",
    "project_features": "Extra tanh layer on the image features before scoring, as in the authors' code.",
    "attention_penalty": "Weight λ of the doubly stochastic attention regularization. 0: off.",
    "init_std": "Standard deviation of weight initialization. 0: scale by fan-in.",
    "tie_embeddings": "Shared embeddings: none, source_target, or all (also the output layer).",
    "source_vocab_size": "Source vocabulary size, if larger than the target's. 0: the same.",
    "encoder_stages": "Encoder blocks as width x kernel x count.",
    "decoder_stages": "Decoder blocks as width x kernel x count. Empty: as in the encoder.",
    "output_dim": "Size of the last decoder state.",
    "pos_att_type": "Terms of the scores besides content–content: content-to-position (c2p), position-to-content (p2c).",
    "position_buckets": "Distances per side with a vector, half of them logarithmic buckets. 0: one per distance.",
    "max_relative_positions": "Distances beyond this one have the last vector. 0: max_length.",
    "share_att_key": "Project the vectors of distances with the matrices of queries and keys, not with separate ones.",
    "norm_rel_ebd": "LayerNorm on the vectors of distances.",
    "conv_kernel_size": "Kernel size of the convolution added to the first layer. 0: none.",
    "conv_act": "Activation of the convolution.",
    "legacy": "Names of the masked-language-modeling head in Hugging Face format as in BERT.",
    "hybrid": "Use a convolutional backbone before the ViT.",
    "out_layers": "Layers whose features feed the decoder.",
    "neck_dims": "Channels of the four reassembled feature maps.",
    "reassemble_factors": "Resolution of each feature map relative to the patch grid.",
    "readout": "Use of the class token: project, add or ignore.",
    "fusion_dim": "Channels of the fusion blocks.",
    "fusion_batch_norm": "BatchNorm in the fusion blocks. none: on for segmentation, off for depth.",
    "fusion_bias": "Bias in the fusion blocks. none: on without BatchNorm.",
    "auxiliary_head": "Train an auxiliary segmentation head.",
    "local_window": "Window of the banded layers (every second layer). 0: all layers dense.",
    "num_colors": "Number of palette colors.",
    "lm_head": "Output layer over colors; false for classifiers.",
    "attention_window": "Attention window in tokens, both sides together; one value, or one per layer.",
    "dilation": "Window dilation per head. Empty: 1.",
    "undilated_layers": "Number of lowest layers without dilation.",
    "local_attention": "Window of the local layers in tokens, both sides together.",
    "global_every": "Every n-th layer, from the first, attends to all tokens.",
    "global_rope_base": "Rotary base of the global layers.",
    "local_rope_base": "Rotary base of the local layers.",
    "classifier_pooling": "State for classification: first token (cls), or mean of all tokens.",
    "classifier_activation": "Activation in the heads.",
    "feature_dim": "Extra features per point: 3 for color, 3 for normals.",
    "downsample": "Downsampling factor per stage; the first is 1.",
    "num_neighbors": "Neighbors per point (k), per stage.",
    "variant": "released (authors' code) or paper (equations).",
    "share_planes": "Channels that share one attention weight (released variant).",
    "point_order": "sorted: order-invariant sampling; given: start from the first point (authors' code).",
    "has_decoder": "Include the decoder (segmentation); classification needs the encoder only.",
    "block_type": "Residual block: basic or bottleneck.",
    "stem_kernel": "Kernel size of the first convolution.",
    "stem_stride": "Stride of the first convolution.",
    "stem_pool": "3×3 max-pooling after the first convolution.",
    "downsample_first_stage": "Downsample in the first stage too.",
    "downsample_in_bottleneck": "Stride on the first 1×1 convolution of a bottleneck (paper), not on the 3×3.",
    "cell": "Recurrent cell: rnn, gru or lstm.",
    "bidirectional": "Bidirectional encoder; each direction has half the width.",
    "reverse_source": "Feed the source in reverse order.",
    "feed_context": "Feed the encoder's final state to every decoder step.",
    "init_range": "Uniform initialization in ±this value. 0: scale by fan-in.",
    "encoder_width": "Encoder hidden size per direction.",
    "maxout_dim": "Size of the maxout layer before the output.",
    "attention_score": "Attention score: additive, dot or general.",
    "bias": "Use bias terms.",
    "rotary_value": "Apply rotary positions to the values too.",
    "window_size": "Window side, in patches.",
    "mlp_ratio": "Feed-forward size as a multiple of the hidden size.",
    "drop_path": "Stochastic depth rate of the last block; grows linearly from 0.",
    "output_bias": "Add a bias to the output logits.",
    "class_token": "Prepend a class token.",
    "pool": "Image representation: first (class token) or mean.",
}
"""Help text by field. The string under a field of a config replaces the text of this table."""

SIZE_FIELDS = (
    "width", "depth", "decoder_depth", "num_steps", "heads", "ffn_dim", "encoder_width", "embedding_dim", "output_dim",
    "maxout_dim", "vocab_size", "max_length", "image_size", "patch_size", "in_channels", "num_colors",
    "stem_kernel", "stem_stride", "window_size", "stem_channels", "norm_groups", "type_vocab_size", "attention_dim",
    "global_every",
)  # fmt: skip

NON_NEGATIVE_FIELDS = (
    "max_position_offset", "local_window", "feature_dim", "init_range", "init_std", "act_max_steps", "ponder_cost",
    "attention_penalty", "position_buckets", "max_relative_positions", "conv_kernel_size",
)  # fmt: skip

FRACTION_FIELDS = ("dropout", "attention_dropout", "embedding_dropout", "ffn_dropout", "head_dropout", "drop_path")

TRAIT_FIELDS = ("vocab_size", "pad_id", "bos_id", "eos_id", "mask_id", "nsp", "act")


@dataclass(frozen=True)
class ModelConfig:
    """Base of the configs of all systems."""

    modality: ClassVar[str] = "text"
    """Input of the body: text, image or points."""
    help_texts: ClassVar[Mapping[str, str]] = FIELD_HELP
    optional_sizes: ClassVar[tuple[str, ...]] = ()
    """Fields of SIZE_FIELDS that may be 0."""
    head_std: ClassVar[float] = 0.02
    """Standard deviation of a new matrix for image classes. 0: equal probabilities at the start."""
    head_bias: ClassVar[bool] = True

    base_traits: ClassVar[Traits] = Traits()
    """Traits of a system that do not depend on fields."""

    @cached_property
    def traits(self) -> Traits:
        """Properties that tasks, training and explanations need to know; some are fields with the same name."""
        traits = {name: getattr(self, name) for name in TRAIT_FIELDS if hasattr(self, name)}
        traits["is_encoder"] = traits.get("mask_id") is not None
        if hasattr(self, "type_vocab_size"):
            traits["token_types"] = self.type_vocab_size
        if hasattr(self, "relative_position"):
            traits["packs_efficiently"] = self.relative_position not in ("t5", "shaw")
        return replace(self.base_traits, **traits)

    def image_processor(self) -> ImageProcessor | None:
        """Image processor that the weights of a pretrained part require; None: the default of the task."""
        return None

    def check(self) -> None:
        """Raise an error for invalid combinations of the fields of a system."""

    def __post_init__(self) -> None:
        """Raise an error for sizes, numbers of heads, end tokens and probabilities out of range."""
        values: dict[str, Any] = {item.name: getattr(self, item.name) for item in fields(self)}
        for name, value in values.items():
            minimum = int(name not in (*NON_NEGATIVE_FIELDS, *self.optional_sizes))
            if name in (*SIZE_FIELDS, *NON_NEGATIVE_FIELDS) and isinstance(value, int | float):
                reject(value < minimum, f"model.{name} must be at least {minimum}, got {value}.")
        epsilon, relative = values.get("act_epsilon", 0.5), values.get("relative_position", "none")
        reject(not 0 < epsilon < 1, f"model.act_epsilon must be between 0 and 1, got {epsilon}.")
        reject(
            values.get("max_position_offset") and values.get("position_embedding") == "none",
            "model.max_position_offset requires absolute positions; model.position_embedding is none.",
        )
        size, end = self.traits.vocab_size, self.traits.eos_id
        if size and end is not None and not 0 <= end < size:
            raise SettingError(f"model.eos_id must be between 0 and model.vocab_size - 1 ({size - 1}), got {end}.")
        width, heads = values.get("width", 0), values.get("heads", 1)
        if isinstance(heads, int) and width % heads:
            raise SettingError(f"model.width={width} is not divisible by model.heads={heads}.")
        for name in FRACTION_FIELDS:
            reject(not 0 <= values.get(name, 0) < 1, f"model.{name} must be in [0, 1), got {values.get(name)}.")
        if relative.startswith("rotary"):
            check_rotary_width(self, f"model.relative_position={relative} requires")
        self.check()


def reject(condition: object, message: str) -> None:
    """Raise a SettingError with this message if the condition is true."""
    if condition:
        raise SettingError(message)


def check_stages(config: Any, names: Sequence[str], count: int, minimum: int = 1) -> None:
    """Raise an error unless each of these fields has `count` values of at least `minimum`."""
    for name in names:
        found = getattr(config, name)
        reject(
            len(found) != count or min(found) < minimum,
            f"model.{name} must be {count} numbers of at least {minimum}, one per stage, got {found}.",
        )


def check_rotary_width(config: Any, subject: str = "Rotary positions require") -> None:
    """Raise an error for an odd head size: rotary positions rotate pairs of channels."""
    reject(
        config.width // config.heads % 2,
        f"{subject} an even number of channels per head; model.width={config.width} / model.heads={config.heads} is "
        f"{config.width // config.heads}.",
    )


@dataclass(frozen=True)
class Sizes(ModelConfig):
    """Sizes of a Transformer, with the defaults of GPT-1, BERT-Base and ViT-Base."""

    width: int = 768
    depth: int = 12
    heads: int = 12
    ffn_dim: int = 3072


def sizes(width: int, depth: int, heads: int, ffn_dim: int = 0) -> dict[str, Any]:
    """Fields of `Sizes`; the default of `ffn_dim` is 4 × `width`."""
    return {"width": width, "depth": depth, "heads": heads, "ffn_dim": ffn_dim or 4 * width}


LARGE: dict[str, Any] = {"width": 1024, "depth": 24, "heads": 16, "ffn_dim": 4096}
"""Sizes of GPT-2 medium, BERT-Large and ViT-Large."""


@dataclass(frozen=True)
class RelativePosition(ModelConfig):
    """Positions inside attention."""

    relative_position: RelativeKind = "none"


@dataclass(frozen=True)
class DecoderConfig(RelativePosition, Sizes):
    """Fields of decoder-only language models, with the defaults of GPT-2 small."""

    vocab_size: int = 50_257
    max_length: int = 1024
    position_embedding: Literal["learned", "none"] = "learned"
    dropout: float = 0.1
    attention_dropout: float = 0.1
    embedding_dropout: float = 0.1
    norm_eps: float = 1e-5
    eos_id: int = 50_256


@dataclass(frozen=True)
class EncoderConfig(ModelConfig):
    """Fields of bidirectional text encoders, with the defaults of BERT-Base."""

    vocab_size: int = 30_522
    max_length: int = 512
    dropout: float = 0.1
    attention_dropout: float = 0.1
    head_dropout: float = 0.1
    pad_id: int = 0
    bos_id: int = 101
    eos_id: int = 102
    mask_id: int = 103


@dataclass(frozen=True)
class TokenTypes(ModelConfig):
    """Embeddings of the segments of a text pair."""

    type_vocab_size: int = 2


@dataclass(frozen=True)
class BertConfig(TokenTypes, EncoderConfig, Sizes):
    """Fields of encoders with the blocks of BERT."""

    activation: Literal["gelu", "gelu_tanh", "relu"] = "gelu"
    norm_eps: float = 1e-12


@dataclass(frozen=True)
class TargetTokens(ModelConfig):
    """Vocabulary and special tokens of encoder–decoder models."""

    vocab_size: int = 37_000
    pad_id: int = 0
    bos_id: int = 1
    eos_id: int = 2
