"""Input saliency by gradients, for models without attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.tasks.protocol import ModelProtocol
from regard.types import Batch


def input_gradient_map(model: ModelProtocol, batch: Batch, target_ids: Sequence[int]) -> NDArray[np.float32]:
    """Saliency (output tokens, input tokens) of one sequence: norm of the gradient of the log-probability of each target token
    with respect to each embedding of `batch.inputs`; rows sum to 1."""
    embedded: list[Tensor] = []

    def catch(_: nn.Module, args: Any, out: Tensor) -> Tensor | None:
        if args[0] is not batch.inputs:  # decoder inputs may share the embedding
            return None
        embedded.append(out.detach().requires_grad_())
        return embedded[-1]

    tables = [module for module in model.body.modules() if isinstance(module, nn.Embedding)]
    handles = [table.register_forward_hook(catch) for table in tables]
    training = model.training
    model.eval()
    try:
        # cuDNN does not support the backward pass of RNNs in eval mode
        with torch.enable_grad(), torch.backends.cudnn.flags(enabled=False):
            logits = model.body.to_logits(model.body(batch).sequence)[0]
            logs = (logits if logits.dtype == torch.float64 else logits.float()).log_softmax(-1)
            rows = [
                torch.autograd.grad(logs[at, token], embedded, retain_graph=True) for at, token in enumerate(target_ids)
            ]
    finally:
        model.train(training)
        for handle in handles:
            handle.remove()
    sizes = torch.stack([sum((part[0].norm(dim=-1) for part in row), torch.zeros(())) for row in rows])
    return (sizes / sizes.sum(-1, keepdim=True).clamp(min=1e-30)).float().cpu().numpy()
