"""What a person may set about training."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from regard.errors import SettingError


@dataclass(frozen=True)
class Train:
    steps: int = 10_000
    """updates of the weights"""
    passes: float = 0.0
    """passes over the data, instead of train.steps; 0: as many steps as train.steps says"""
    tokens: int = 8192
    """padded tokens of a grain (micro-batch), all sides together"""
    images: int = 128
    """pictures of a grain, where pictures are learnt from"""
    clouds: int = 16
    """point clouds of a grain, where clouds are learnt from"""
    accumulate: int = 1
    """grains in a step: their gradients are added before the weights change"""
    rate: float = 1e-3
    """highest learning rate, reached after the warm-up"""
    warmup: int | float = 1000
    """steps over which the rate rises from 0; below 1 it is a share of all steps"""
    schedule: Literal["inverse_sqrt", "linear", "cosine", "constant"] = "inverse_sqrt"
    """how the rate falls afterwards; linear and cosine reach 0 at the last step"""
    smoothing: float = 0.1
    """label smoothing: this share of probability goes to the other tokens"""
    auxiliary: float = 0.0
    """weight of the language-model loss beside that of classify and choose (GPT-1: 0.5)"""
    betas: tuple[float, ...] = (0.9, 0.98)
    """Adam's decay rates of its two averages"""
    eps: float = 1e-9
    """Adam's small number"""
    decay: float = 0.0
    """decoupled weight decay, of matrices only"""
    clip: float = 1.0
    """largest norm of the gradient; 0 is no limit"""
    average: float = 0.0
    """keep an exponential average of the weights with this decay, and use it for scores and the saved model; 0 is none"""
    last: int = 0
    """average the weights of this many last checkpoints at the end, and keep that if it scores better; 0 is none"""
    patience: int = 0
    """stop after this many validations without a better one (by score, then by loss); 0 is never"""
    freeze: tuple[str, ...] = ()
    """parameters that do not learn, by patterns of their names: encoder.* (names: regard info)"""
    rates: dict[str, float] = field(default_factory=dict)
    """other highest rates for some parameters, by patterns of their names: encoder.*=1e-5,tokens.*=1e-4"""
    seed: int = 1
    """of initial weights, batches and dropout"""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """auto is bfloat16 autocast where the hardware multiplies it fast, else float32"""
    packed: Literal["auto", "on", "off"] = "auto"
    """samples one after another in a row of constant size, without padding; auto is on with bfloat16 on CUDA, where
    systems that go from token to token read rows filled up to few sizes instead"""
    compile: Literal["auto", "off", "graph", "on"] = "auto"
    """graph records the launches of a grain once (CUDA, rows of one size or few), on compiles too; auto times them and keeps
    the faster"""
    deterministic: bool = False
    """the same numbers each time on CUDA too, somewhat slower; the CPU always does"""
    every: int = 1000
    """steps between validations, which also save"""
    log: int = 50
    """steps between lines of the log; where it is not set, a run of few steps has more"""
    keep: int = 2
    """checkpoints kept for resuming"""
    minutes: float = 5.0
    """a checkpoint is also saved when the last one is this old"""

    @property
    def warm(self) -> float:
        """Steps of the warm-up."""
        return self.warmup * self.steps if self.warmup < 1 else self.warmup

    def __post_init__(self) -> None:
        positive = {"steps": self.steps, "tokens": self.tokens, "accumulate": self.accumulate, "every": self.every}
        positive |= {"images": self.images, "clouds": self.clouds}
        positive |= {"log": self.log, "keep": self.keep}
        for name, value in positive.items():
            if value < 1:
                raise SettingError(f"train.{name} must be at least 1, not {value}.")
        if self.seed < 0:
            raise SettingError(f"train.seed must be at least 0, not {self.seed}.")
        if len(self.betas) != 2 or not all(0 <= b < 1 for b in self.betas):
            raise SettingError(f"train.betas must be two numbers in [0, 1), not {self.betas}.")
        for name, part in {"smoothing": self.smoothing, "average": self.average}.items():
            if not 0 <= part < 1:
                raise SettingError(f"train.{name} must be in [0, 1), not {part}.")
        if self.rate <= 0 or self.warmup < 0 or self.clip < 0 or self.decay < 0:
            raise SettingError("train.rate must be above 0; train.warmup, train.clip and train.decay at least 0.")
        if min(self.last, self.patience, self.minutes, self.passes, self.auxiliary) < 0:
            raise SettingError(
                "train.last, train.patience, train.minutes, train.passes and train.auxiliary must be at least 0."
            )
        for pattern, rate in self.rates.items():
            if rate < 0:
                raise SettingError(f"train.rates: the rate of {pattern} must be at least 0, not {rate}.")
