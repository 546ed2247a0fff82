"""Training settings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from regard.config import check_settings

COUNTS = (
    "steps",
    "batch_tokens",
    "grad_accum",
    "eval_every",
    "log_every",
    "keep_checkpoints",
)  # Settings of at least 1.
FRACTIONS = ("label_smoothing", "ema_decay")  # Settings below 1.


@dataclass(frozen=True)
class TrainSettings:
    steps: int = 10_000
    """Number of optimizer steps."""
    epochs: float = 0.0
    """Number of epochs, instead of train.steps. 0: use train.steps."""
    batch_tokens: int = 8192
    """Tokens per micro-batch, including padding, source and target together."""
    batch_size: int = -1
    """Samples per micro-batch for images and point clouds. -1: 128 images or 16 point clouds."""
    grad_accum: int = 1
    """Micro-batches per optimizer step (gradient accumulation)."""
    lr: float = 1e-3
    """Peak learning rate, reached after warmup."""
    warmup_steps: int | float = 1000
    """Linear warmup steps; a value below 1 is a fraction of train.steps."""
    lr_schedule: Literal["inverse_sqrt", "linear", "cosine", "constant"] = "inverse_sqrt"
    """Schedule after warmup: inverse_sqrt, linear, cosine or constant."""
    label_smoothing: float = 0.1
    """Probability mass that label smoothing moves to the other classes or tokens."""
    lm_loss_weight: float = 0.0
    """Weight of the auxiliary language-modeling loss in classify and choose (GPT-1: 0.5)."""
    betas: tuple[float, ...] = (0.9, 0.98)
    """Adam betas."""
    eps: float = 1e-9
    """Adam epsilon."""
    weight_decay: float = 0.0
    """Decoupled weight decay (AdamW), on weight matrices only."""
    grad_clip: float = 1.0
    """Maximum gradient norm. 0: no clipping."""
    ema_decay: float = 0.0
    """Decay of the exponential moving average of the weights, which is evaluated and saved. 0: off."""
    average_checkpoints: int = 0
    """Average the last N checkpoints at the end; kept if the score is better. 0: off."""
    patience: int = 0
    """Early stopping: stop after N evaluations without improvement. 0: off."""
    freeze: tuple[str, ...] = ()
    """Parameters to freeze, as name patterns: encoder.* (list names with regard info)."""
    lr_overrides: dict[str, float] = field(default_factory=dict)
    """Peak learning rate for matching parameters: encoder.*=1e-5,tokens.*=1e-4."""
    seed: int = 1
    """Random seed for initialization, data order and dropout."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """float32, bfloat16 (autocast), or auto: bfloat16 if the hardware is fast at bfloat16."""
    packing: Literal["auto", "on", "off"] = "auto"
    """Pack samples into fixed-size rows without padding: on, off, or auto (on for bfloat16 on CUDA)."""
    compile: Literal["auto", "off", "graph", "on"] = "auto"
    """off, graph (CUDA graphs), on (torch.compile), or auto: time both and keep the faster."""
    deterministic: bool = False
    """Deterministic CUDA kernels, slightly slower. The CPU is always deterministic."""
    eval_every: int = 1000
    """Steps between evaluations; each evaluation also saves a checkpoint."""
    log_every: int = 50
    """Steps between log entries."""
    keep_checkpoints: int = 2
    """Number of checkpoints to keep."""
    save_minutes: float = 5.0
    """Also save a checkpoint if the last one is older than this many minutes."""

    @property
    def num_warmup_steps(self) -> float:
        """Number of warmup steps."""
        return self.warmup_steps * self.steps if self.warmup_steps < 1 else self.warmup_steps

    def __post_init__(self) -> None:
        values, betas = dict(vars(self)), self.betas
        size = values.pop("batch_size")
        check_settings(
            (size >= 1 or size == -1, "train.batch_size", "at least 1, or -1 for the default", size),
            (len(betas) == 2 and all(0 <= b < 1 for b in betas), "train.betas", "two numbers in [0, 1)", betas),
            (self.lr > 0, "train.lr", "above 0", self.lr),
            *((values[name] >= 1, f"train.{name}", "at least 1", values[name]) for name in COUNTS),
            *((0 <= values[name] < 1, f"train.{name}", "in [0, 1)", values[name]) for name in FRACTIONS),
            *(
                (value >= 0, f"train.{name}", "at least 0", value)
                for name, value in values.items()
                if isinstance(value, int | float)
            ),
            *(
                (rate >= 0, f"train.lr_overrides: the learning rate of {pattern}", "at least 0", rate)
                for pattern, rate in self.lr_overrides.items()
            ),
        )
