"""What a person may set about training."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from regard.errors import SettingError


@dataclass(frozen=True)
class TrainSettings:
    steps: int = 10_000
    """updates of the weights"""
    epochs: float = 0.0
    """passes over the data, instead of train.steps; 0: as many steps as train.steps says"""
    batch_tokens: int = 8192
    """padded tokens of a grain (micro-batch), all sides together"""
    batch_size: int = -1
    """Samples per micro-batch for images and point clouds. -1: 128 images or 16 point clouds."""
    grad_accum: int = 1
    """grains in a step: their gradients are added before the weights change"""
    lr: float = 1e-3
    """highest learning rate, reached after the warm-up"""
    warmup_steps: int | float = 1000
    """steps over which the rate rises from 0; below 1 it is a share of all steps"""
    lr_schedule: Literal["inverse_sqrt", "linear", "cosine", "constant"] = "inverse_sqrt"
    """how the rate falls afterwards; linear and cosine reach 0 at the last step"""
    label_smoothing: float = 0.1
    """label smoothing: this share of probability goes to the other tokens"""
    lm_loss_weight: float = 0.0
    """weight of the language-model loss beside that of classify and choose (GPT-1: 0.5)"""
    betas: tuple[float, ...] = (0.9, 0.98)
    """Adam's decay rates of its two averages"""
    eps: float = 1e-9
    """Adam's small number"""
    weight_decay: float = 0.0
    """decoupled weight decay, of matrices only"""
    grad_clip: float = 1.0
    """largest norm of the gradient; 0 is no limit"""
    ema_decay: float = 0.0
    """keep an exponential average of the weights with this decay, and use it for scores and the saved model; 0 is none"""
    average_checkpoints: int = 0
    """average the weights of this many last checkpoints at the end, and keep that if it scores better; 0 is none"""
    patience: int = 0
    """stop after this many validations without a better one (by score, then by loss); 0 is never"""
    freeze: tuple[str, ...] = ()
    """parameters that do not learn, by patterns of their names: encoder.* (names: regard info)"""
    lr_overrides: dict[str, float] = field(default_factory=dict)
    """other highest rates for some parameters, by patterns of their names: encoder.*=1e-5,tokens.*=1e-4"""
    seed: int = 1
    """of initial weights, batches and dropout"""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """auto is bfloat16 autocast where the hardware multiplies it fast, else float32"""
    packing: Literal["auto", "on", "off"] = "auto"
    """samples one after another in a row of constant size, without padding; auto is on with bfloat16 on CUDA, where
    systems that go from token to token read rows filled up to few sizes instead"""
    compile: Literal["auto", "off", "graph", "on"] = "auto"
    """graph records the launches of a grain once (CUDA, rows of one size or few), on compiles too; auto times them and keeps
    the faster"""
    deterministic: bool = False
    """the same numbers each time on CUDA too, somewhat slower; the CPU always does"""
    eval_every: int = 1000
    """steps between validations, which also save"""
    log_every: int = 50
    """steps between lines of the log; where it is not set, a run of few steps has more"""
    keep_checkpoints: int = 2
    """checkpoints kept for resuming"""
    save_minutes: float = 5.0
    """a checkpoint is also saved when the last one is this old"""

    @property
    def num_warmup_steps(self) -> float:
        """Steps of the warm-up."""
        return self.warmup_steps * self.steps if self.warmup_steps < 1 else self.warmup_steps

    def __post_init__(self) -> None:
        positive = {
            "steps": self.steps,
            "batch_tokens": self.batch_tokens,
            "grad_accum": self.grad_accum,
            "eval_every": self.eval_every,
        }
        positive |= {"log_every": self.log_every, "keep_checkpoints": self.keep_checkpoints}
        for name, value in positive.items():
            if value < 1:
                raise SettingError(f"train.{name} must be at least 1, not {value}.")
        if self.batch_size < 1 and self.batch_size != -1:
            raise SettingError(f"train.batch_size must be at least 1, or -1 for the default, got {self.batch_size}.")
        if self.seed < 0:
            raise SettingError(f"train.seed must be at least 0, not {self.seed}.")
        if len(self.betas) != 2 or not all(0 <= b < 1 for b in self.betas):
            raise SettingError(f"train.betas must be two numbers in [0, 1), not {self.betas}.")
        for name, part in {"label_smoothing": self.label_smoothing, "ema_decay": self.ema_decay}.items():
            if not 0 <= part < 1:
                raise SettingError(f"train.{name} must be in [0, 1), not {part}.")
        if self.lr <= 0 or self.warmup_steps < 0 or self.grad_clip < 0 or self.weight_decay < 0:
            raise SettingError(
                "train.lr must be above 0; train.warmup_steps, train.grad_clip and train.weight_decay at least 0."
            )
        if min(self.average_checkpoints, self.patience, self.save_minutes, self.epochs, self.lm_loss_weight) < 0:
            raise SettingError(
                "train.average_checkpoints, train.patience, train.save_minutes, train.epochs and train.lm_loss_weight must be at least 0."
            )
        for pattern, rate in self.lr_overrides.items():
            if rate < 0:
                raise SettingError(f"train.lr_overrides: the rate of {pattern} must be at least 0, not {rate}.")
