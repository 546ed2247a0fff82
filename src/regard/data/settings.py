"""User settings `data.*`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from regard.config import check_settings

PairOrder = Literal["ordered", "symmetric"]


@dataclass(frozen=True)
class DataSettings:
    tokenizer_type: Literal["byte_bpe", "char", "wordpiece"] = "byte_bpe"
    """Tokenizer to train: byte_bpe, char or wordpiece. translate always trains byte_bpe."""
    vocab_size: int = 10_000
    """Vocabulary size of the tokenizer to train."""
    tokenizer: str = ""
    """Existing tokenizer: tokenizer.json or a folder with vocabulary files. Empty: train one."""
    split_special_tokens: bool | None = None
    """true: special tokens in texts are plain text (untrusted input). none: as the checkpoint, else false."""
    max_length: int = 256
    """Maximum tokens per sample and side. Longer pairs are skipped, longer texts are truncated."""
    pair_order: PairOrder = "ordered"
    """Encoding of two texts in classify: ordered (A then B) or symmetric (both orders, states summed)."""
    tag_scheme: Literal["auto", "IOB1", "IOB2", "BIOES", "BILOU", "plain"] = "auto"
    """Tag scheme to train on: auto (IOB2), IOB1, IOB2, BIOES, BILOU or plain (one class per word)."""
    image_size: tuple[int, ...] = ()
    """Input height,width for segment and depth. Empty: square of model.image_size."""
    metric_depth: bool = True
    """Train depth in meters. false: scale- and shift-invariant depth, for mixed datasets."""
    depth_scale: float = 0.0
    """Meters per unit in depth maps. 0: integers are millimeters, floats are meters."""
    crop_scale: float = 1.0
    """Random resized crop: minimum area fraction. 1: off."""
    shift: float = 0.0
    """Random translation: images by up to this fraction of a side, point clouds by this distance."""
    flip: bool = False
    """Random flip with p = 0.5: images left-right, point clouds along a horizontal axis."""
    color_jitter: float = 0.0
    """Maximum relative change of brightness, contrast and saturation."""
    random_erasing: float = 0.0
    """Random erasing with p = 0.5: maximum area fraction of a gray rectangle. 0: off."""
    mixup: float = 0.0
    """Mixup alpha (parameter of the Beta distribution). 0: off."""
    num_points: int = -1
    """Points sampled per cloud. 0: all; -1: 1,024 for classify, 4,096 for segment."""
    point_norm: Literal["auto", "unit_sphere", "center", "floor"] = "auto"
    """Coordinate normalization: unit_sphere, center, floor, or auto (chosen by the task)."""
    voxel_size: float = -1.0
    """Voxel size of grid subsampling, in file units. 0: off; -1: as in the checkpoint, else off."""
    block_size: float = -1.0
    """Side of the vertical blocks of a scene, in file units. 0: off; -1: as in the checkpoint."""
    up_axis: Literal["auto", "x", "y", "z"] = "auto"
    """Vertical axis: x, y, z, or auto (as in the checkpoint, z for a new model)."""
    point_features: tuple[str, ...] = ("auto",)
    """Extra input features per point: colors, normals, none, or auto (features of every cloud)."""
    rotate: Literal["none", "up", "any"] = "none"
    """Random rotation of point clouds: none, up (about the vertical axis) or any (uniform in 3D)."""
    scale: tuple[float, ...] = (1.0, 1.0)
    """Random scaling of point clouds: minimum,maximum factor."""
    jitter: float = 0.0
    """Standard deviation of Gaussian noise added to each point, after normalization."""
    point_dropout: float = 0.0
    """Maximum fraction of points dropped at random."""
    tilt: float = 0.0
    """Standard deviation, in degrees, of a small random rotation about a random axis."""
    stretch: float = 0.0
    """Maximum relative random scaling of each axis (anisotropic)."""
    mask_prob: float = 0.15
    """Fraction of tokens to mask in task mlm."""
    whole_word_mask: bool = False
    """Mask all pieces of a word together."""
    valid_fraction: float = 0.02
    """Fraction held out for validation without --valid (at most 2,000 samples)."""
    pretokenized: bool = False
    """The text is split into tokens by spaces: compute BLEU and CIDEr on the text unchanged."""
    num_workers: int = -1
    """Data-loader processes. -1: 2 with CUDA, otherwise 0."""
    eval_samples: int = 500
    """Validation samples decoded at each evaluation during training."""
    detokenize: Literal["none", "wikitext", "ptb"] = "none"
    """Undo the tokenization of a dataset before training (lm, mlm): none, wikitext or ptb."""
    stride: int = 0
    """Tokens between windows: for perplexity (0: no overlap), long texts in tag and qa (0: overlap 128)."""

    def __post_init__(self) -> None:
        minimums = {"vocab_size": 1, "max_length": 1, "eval_samples": 1, "stride": 0}
        defaults = ("num_points", "voxel_size", "block_size", "num_workers")
        own = vars(self)
        check_settings(
            *((own[name] >= least, f"data.{name}", f"at least {least}", own[name]) for name, least in minimums.items()),
            *(
                (own[name] >= 0 or own[name] == -1, f"data.{name}", "at least 0, or -1 for the default", own[name])
                for name in defaults
            ),
            (0 < self.mask_prob < 1, "data.mask_prob", "between 0 and 1", self.mask_prob),
            (0 < self.valid_fraction < 1, "data.valid_fraction", "between 0 and 1", self.valid_fraction),
        )
