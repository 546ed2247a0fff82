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
    part: EncoderPart | None = None  # Part that may come from another folder: the image encoder of captioning models.

    @property
    def tasks(self) -> tuple[str, ...]:
        return self.task_recipes.tasks

    @property
    def modality(self) -> str:
        """Input of the body: text, image or points."""
        return str(self.config.modality)

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
        if size and end is not None:
            reject(
                not 0 <= end < size, f"model.eos_id must be between 0 and model.vocab_size - 1 ({size - 1}), got {end}."
            )
        width, heads = values.get("width", 0), values.get("heads", 1)
        reject(
            isinstance(heads, int) and width % heads, f"model.width={width} is not divisible by model.heads={heads}."
        )
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
