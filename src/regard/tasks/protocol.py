"""What a task or an explanation may ask of a model, so that it need not know how a model is put together."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from regard.processors.tokenizer.tokenizer import Text
from regard.types import Answer


class Asked(Protocol):
    body: Any
    head: Any
    identity: Any
    training: bool

    @property
    def config(self) -> Any: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def task(self) -> Any: ...
    def text_or_refuse(self) -> Text: ...
    def pixels_or_refuse(self) -> Any: ...
    def points_or_refuse(self) -> Any: ...
    def answer(self, inputs: str, **settings: Any) -> Answer: ...
    def eval(self) -> Any: ...
    def train(self, mode: bool = True) -> Any: ...
