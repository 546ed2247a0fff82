"""Types shared by all parts.

Batch       input of a body            BodyOutput         output of a body, input of a head
Prediction  output of a task           AttentionRecords   recorded attention weights
Traits      properties of a config     Body               base class of all networks, with their properties"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar, Self

import torch
from torch import Tensor, nn

from regard.errors import UnknownNameError

if TYPE_CHECKING:
    import os

    from PIL.Image import Image

    from regard.data.points.cloud import PointCloud

    SingleInput = (
        str
        | bytes
        | bytearray
        | memoryview
        | os.PathLike[str]
        | BinaryIO
        | Mapping[str, Any]
        | Image
        | PointCloud
        | None
    )
    """One input of `Model.predict`; arrays and tuples may also be several inputs."""


class TensorFields:
    """Base of frozen dataclasses with tensors: functions of all tensors, those of nested dataclasses included."""

    def map(self, function: Callable[[Tensor], Tensor]) -> Self:
        """Copy with a function applied to all tensors."""
        changed: dict[str, Any] = {}
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                changed[name] = function(value)
            elif isinstance(value, TensorFields):
                changed[name] = value.map(function)
        return replace(self, **changed)  # type: ignore[type-var]

    def tensors(self) -> list[Tensor]:
        found: list[Tensor] = []
        self.map(lambda tensor: found.append(tensor) or tensor)  # type: ignore[func-returns-value]
        return found


@dataclass(frozen=True)
class Packing(TensorFields):
    """Boundaries of packed documents: document i is `[starts[i], starts[i + 1])`.

    `max_length` is at least the length of the longest document, rounded, so that compiled code is specialized to few
    values."""

    starts: Tensor
    max_length: int

    def document_ids(self, positions: Tensor) -> Tensor:
        """Document index of each position; empty documents have no positions."""
        return torch.searchsorted(self.starts, positions.contiguous(), right=True) - 1

    def positions(self, length: int, most: int | None = None) -> Tensor:
        """(1, length): positions, counted from the start of each document, below `most`: padding after the last document
        may be longer than any document."""
        at = torch.arange(length, device=self.starts.device)[None]
        positions = at - self.starts[self.document_ids(at)]
        return positions if most is None else positions.clamp(0, most - 1)


@dataclass(frozen=True)
class DecoderInputs(TensorFields):
    """Inputs of a decoder with cross-attention, or the second texts of a batch of text pairs."""

    inputs: Tensor  # token ids (B, T)
    mask: Tensor | None = None  # real positions of `inputs`: lengths (B,) or bool (B, T); None: all
    packing: Packing | None = None
    image_index: Tensor | None = None
    """(B,) image of each row, if several captions share an image; None: row n has image n"""


@dataclass(frozen=True)
class TextFields(TensorFields):
    """Inputs and labels of text encoders."""

    token_types: Tensor | None = None  # (B, L) segment ids, for rows with two texts
    global_tokens: Tensor | None = None  # (B, L) True for tokens with global attention (Longformer); None: none
    max_global_tokens: int | None = None
    """maximum number of global tokens per row; None: counted, with a GPU synchronization"""
    label_positions: Tensor | None = None
    """(M,) positions of the labels in the flattened inputs; None: one label per position or per row"""
    nsp_labels: Tensor | None = None
    """(S,) next-sentence labels: 0 if the second text follows the first, else 1; `IGNORE` without a label"""


@dataclass(frozen=True)
class Augmentation(TensorFields):
    """Random changes of images, computed on the device."""

    params: Tensor  # (B, n) parameters of crop, flip and color changes for each image
    settings: Any  # `Augment` settings of the processor


@dataclass(frozen=True)
class Batch(TensorFields):
    """Inputs of a forward pass and labels of its loss. B rows, L positions; a packed batch has one row of many documents."""

    inputs: Tensor  # ids (B, L), pixels (B, 3, H, W) or points; uint8 pixels need preprocessing first
    mask: Tensor | None = None  # real positions of `inputs`: lengths (B,) or bool (B, L); None: all
    positions: Tensor | None = None  # positions of `inputs` if different from 0, 1, 2, …
    labels: Tensor | None = None  # target of the head; `IGNORE` for positions without a label
    packing: Packing | None = None  # boundaries of the documents in a packed row
    decoder: DecoderInputs | None = None
    text: TextFields = TextFields()
    augmentation: Augmentation | None = None

    @property
    def prompt(self) -> Tensor:
        """(B, P) prompt of generation: decoder inputs, or `inputs` of decoder-only models."""
        return self.inputs if self.decoder is None else self.decoder.inputs

    @property
    def prompt_lengths(self) -> Tensor | None:
        """(B,) number of real tokens at the start of each prompt; None: all."""
        mask = self.mask if self.decoder is None else self.decoder.mask
        return mask if mask is None or mask.ndim == 1 else mask.sum(1)

    def require_decoder(self) -> DecoderInputs:
        """Decoder inputs; a batch without them is an error."""
        if self.decoder is None:
            raise ValueError("The decoder requires batch.decoder.")
        return self.decoder

    def require_labels(self) -> Tensor:
        """Labels; a batch without them is an error."""
        if self.labels is None:
            raise ValueError("The loss requires batch.labels.")
        return self.labels

    def select_rows(self, rows: Tensor) -> Batch:
        """The batch with these rows, in this order; packed batches are not supported."""
        if self.packing is not None or (self.decoder is not None and self.decoder.packing is not None):
            raise ValueError("a packed batch has one row")
        if self.text.label_positions is not None:
            raise ValueError("rows of a batch with label_positions cannot be selected: positions count across all rows")
        if self.decoder is not None and self.decoder.image_index is not None:
            raise ValueError("rows of a batch with image_index cannot be selected: rows share images")
        taken = self.map(lambda tensor: tensor[rows])
        # positions shared by all rows have no batch dimension
        return taken if self.positions is None or self.positions.ndim > 1 else replace(taken, positions=self.positions)

    def to(self, device: torch.device | str) -> Batch:
        return self.map(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> Batch:
        """Copy to pinned memory, for asynchronous transfers to a GPU. The pin-memory thread of a DataLoader calls this
        method."""
        return self.map(lambda tensor: tensor.pin_memory())


@dataclass(frozen=True)
class StateSizes:
    """Numbers of values in the decoding state of a body, known before decoding starts."""

    vocab_size: int  # size of the output vocabulary
    per_row: int = 0  # values shared by all beams of a row, for example keys and values of the prompt
    per_beam: int = 0  # values of each beam, for example a recurrent state
    per_token: int = 0  # values added for each generated token of a beam, for example keys and values


IGNORE = -100  # Label of positions without a target.


@dataclass(frozen=True)
class BodyOutput:
    """Output of a body."""

    sequence: Tensor  # (B, L, D) final hidden states
    pooled: Tensor | None = None  # (B, D) pooled output, if the system has a pooler
    hidden_states: tuple[Tensor, ...] = ()
    """hidden states of the requested layers; if all layers are requested, the embeddings are first"""
    encoder_hidden_states: tuple[Tensor, ...] = ()
    """hidden states of all layers of the encoder, if `hidden_states` are states of a decoder"""
    attentions: AttentionRecords | None = None  # attention weights of all layers, if requested
    cross_states: Tensor | None = None  # (B, S, D) keys and values of cross-attention
    act_steps: Tensor | None = None
    aux_losses: dict[str, Tensor] = field(default_factory=dict)


class Body(nn.Module):
    """Base class of all networks without their head, with what search, training and explanations need to know."""

    compiles: ClassVar[bool] = True
    """False: torch.compile has no benefit, for example because each layer is one call of a fused kernel"""
    compiles_dynamic: ClassVar[bool] = True  # False: torch.compile only for micro-batches of one shape
    shares_layers: ClassVar[bool] = False  # True: the layers are steps of one block with shared weights
    has_pooler: bool = False  # True: `pooled` is the output of a trained layer
    pool: str = "mean"  # representation of an image: `first` (class token) or `mean`
    windows: Any = ()  # `SlidingWindow` of each block with local attention; empty: full attention
    first_image_position: int = 0  # index of the first image position in the cross-attention keys

    @property
    def repeats(self) -> int:
        """Maximum number of calls of each attention layer per forward pass."""
        return 1

    def grid(self, batch: Batch) -> tuple[int, int] | None:
        """Rows and columns of the image features for cross-attention; None without such a grid."""
        return None

    def position_embeddings(self) -> Tensor | None:
        """(positions, D) learned embeddings of the image positions; None without such embeddings."""
        return None


@dataclass(frozen=True)
class Traits:
    """Properties of a config that tasks, training and explanations need to know; returned by `config.traits`."""

    vocab_size: int = 0  # number of tokens; 0 for inputs other than text
    pad_id: int | None = None
    bos_id: int | None = None
    eos_id: int | None = None
    mask_id: int | None = None  # id of the mask token; None for systems other than text encoders
    is_encoder: bool = False  # text encoder: bidirectional attention and a mask token
    token_types: int = 1  # number of segment embeddings
    separators: int = 1  # number of end tokens between two texts
    global_tokens: bool = False  # attention is local, except for selected tokens (`Batch.text.global_tokens`)
    optional_pooler: bool = False  # the config has the field `pooler`
    nsp: bool = False  # next-sentence prediction is trained together with masked language modeling
    head_activation: str | None = None
    """activation of the dense layer in the head for classes; None: the head is one linear layer"""
    head_norm_eps: float | None = None
    """heads of all tasks have a dense layer without bias, and a norm without bias with this epsilon"""
    embedding_dim: int | None = None  # size of the token embeddings, if different from the hidden size
    packs: bool = True  # False: recurrence or convolutions would mix the documents of a packed row
    packs_efficiently: bool = True  # False: kernels for packed rows do not support the attention bias of this model
    act: bool = False  # adaptive computation time: each position halts separately
    palette: bool = False  # an image is a sequence of palette colors
    optional_lm_head: bool = False  # the config has the field `lm_head`


def shorten(value: Any, width: int = 100) -> str:
    """`repr` of a value in one line, at most `width` characters."""
    text = " ".join(repr(value).split())
    return text if len(text) <= width else f"{text[: width - 1]}…"


@dataclass(frozen=True, repr=False)
class Prediction:
    """Prediction of a task; `value` is plain Python, so that JSON, pages and the terminal show the same content.

    value   output: text, class, list of labels or tags, embedding, fractions of classes, …
    score   log-probabilities of generated outputs, else probabilities or cosines, best first
    tokens  generated tokens, predicted words, or the words of a sentence
    extra   further results by name:

    translate, algorithmic, caption  token_ids, logprobs, finish_reason, alternatives
    lm                               token_ids, logprobs, finish_reason, alternatives, prompt; of `rank`: prompt, choices
    mlm                              masks
    classify                         probabilities, truncated
    tag                              text, words, offsets, entities, scheme
    qa                               question, answers, start, null_score_diff
    choose                           prompt, choices, index, truncated
    embed                            hits, truncated
    segment                          labels, class_values; images: mask, image; points: classes, probabilities, cloud, file, up
    depth                            depth, image, unit
    draw                             images, given, rows, bits_per_pixel

    Models with adaptive computation time add act_steps. The guides in docs/tasks describe each key, also of evaluations."""

    value: Any
    score: tuple[float, ...] = ()
    tokens: tuple[str, ...] = ()
    extra: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        score = ", ".join(f"{number:.4g}" for number in self.score[:4]) + ", …" * (len(self.score) > 4)
        return f"Prediction(value={shorten(self.value)}, score=({score}), extra: {', '.join(self.extra) or 'none'})"


@dataclass(frozen=True, repr=False)
class AttentionRecord:
    """Attention weights (B, H, Q, K) of one call, with key indices of the columns (None: column k is key k)."""

    name: str
    weights: Tensor
    key_index: Tensor | None = None  # (B or 1, H or 1, Q, K); -1 for columns without a key
    query_index: Tensor | None = None
    """(B, Q) query index of each row, -1 for rows without a query; None: row q is query q"""

    def __repr__(self) -> str:
        return f"AttentionRecord({self.name!r}, weights of shape {tuple(self.weights.shape)})"


@dataclass(repr=False)
class AttentionRecords:
    """Recorded attention weights, in call order."""

    records: list[AttentionRecord] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"AttentionRecords({len(self.records)} records of {len(self.names())} modules: {shorten(self.names())})"

    def names(self) -> list[str]:
        return list(dict.fromkeys(look.name for look in self.records))

    def weights(self, name: str) -> Tensor:
        """Weights of one attention module; decoding steps are concatenated along the queries and padded with 0."""
        parts = [look.weights for look in self.records if look.name == name]
        if not parts:
            raise UnknownNameError("attention module", name, self.names())
        widest = max(part.shape[-1] for part in parts)
        return torch.cat([torch.nn.functional.pad(part, (0, widest - part.shape[-1])) for part in parts], dim=-2)
