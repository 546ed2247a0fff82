"""Interface of a model for tasks and explanations, without an import of the model class."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from regard.processors.tokenizer.tokenizer import TextTokenizer
from regard.types import Prediction


class ModelProtocol(Protocol):
    body: Any
    head: Any
    spec: Any
    training: bool

    @property
    def config(self) -> Any: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def task(self) -> Any: ...
    def require_tokenizer(self) -> TextTokenizer: ...
    def require_image_processor(self) -> Any: ...
    def require_point_processor(self) -> Any: ...
    def predict(self, inputs: str, **settings: Any) -> Prediction: ...
    def eval(self) -> Any: ...
    def train(self, mode: bool = True) -> Any: ...
