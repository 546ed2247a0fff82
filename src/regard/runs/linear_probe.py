"""Linear probes: logistic regression on the pooled features of each layer of a frozen image encoder.

Features of a block are the RMS-normalized hidden states, averaged over patches and concatenated with the class token if
there is one; features of a CNN or Swin stage are the averaged feature map. Features are standardized. The L2 penalty is
selected on the validation split, and the accuracy is measured on the test split."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.errors import DataError
from regard.types import Batch

PENALTIES = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
"""L2 penalties in decreasing order; each fit starts from the previous solution."""
MAX_STEPS = 200
"""maximum L-BFGS iterations"""


@dataclass(frozen=True)
class ProbeLayer:
    """A layer of the encoder."""

    name: str
    """displayed name: block 1, stage 2"""
    tap: int
    """index for the argument `taps` of the body"""
    width: int
    """number of features per image"""
    stride: int
    """pixels between adjacent positions"""
    has_class_token: bool = False
    """True if the first position is a class token"""


def probe_layers(config: Any) -> tuple[ProbeLayer, ...]:
    """All layers of an encoder with this config, in order."""
    maps = config.feature_maps()
    flat = [tap for tap in maps if tap.is_sequence]
    if not flat:
        return tuple(
            ProbeLayer(f"stage {number}", tap.index, tap.channels, tap.stride) for number, tap in enumerate(maps, 1)
        )
    early: Sequence[int] = config.widths if any(tap.index < 0 for tap in maps) else ()
    stages = [ProbeLayer(f"stage {n + 1}", -1 - n, width, 4 * 2**n) for n, width in enumerate(early)]
    token, width, stride = flat[-1].has_class_token, (1 + flat[-1].has_class_token) * flat[-1].channels, flat[-1].stride
    return (*stages, *(ProbeLayer(f"block {n + 1}", n, width, stride, token) for n in range(config.depth)))


@dataclass(frozen=True)
class LayerFeatures:
    """Features and labels of a dataset."""

    features: Sequence[Tensor]
    """(N, D) per layer"""
    labels: Tensor
    """(N,) class indices"""

    def layer(self, number: int, device: torch.device) -> tuple[Tensor, Tensor]:
        return self.features[number].to(device), self.labels.to(device)


@dataclass(frozen=True)
class ProbeResult:
    """Accuracies in percent, and the penalty with the best validation accuracy, of one layer."""

    layer: int
    """layer number from 1"""
    accuracy: float
    """test accuracy, or validation accuracy without a test split"""
    valid_accuracy: float
    penalty: float


def extract_features(body: Any, batches: Iterable[Batch], layers: Sequence[ProbeLayer]) -> LayerFeatures:
    """Features of the layers for batches with `labels` (B,). The training mode of the body is restored."""
    found: list[list[Tensor]] = [[] for _ in layers]
    labels: list[Tensor] = []
    training, device = body.training, next(body.parameters()).device
    body.eval()
    try:
        with torch.inference_mode():
            for batch in batches:
                assert batch.labels is not None
                taps = body(batch.to(device), taps=[layer.tap for layer in layers]).hidden_states
                for kept, layer, tap in zip(found, layers, taps, strict=True):
                    kept.append(_pool_states(tap, layer.has_class_token).cpu())
                labels.append(batch.labels.cpu())
    finally:
        body.train(training)
    if not labels:
        raise DataError("No labeled images found.")
    joined = []
    for parts in found:  # layer by layer, so that only one layer is in memory twice
        joined.append(torch.cat(parts))
        parts.clear()
    return LayerFeatures(joined, torch.cat(labels))


def _pool_states(states: Tensor, token: bool) -> Tensor:
    """(B, D) average of a feature map (B, D, h, w), or of hidden states (B, L, D) after RMS normalization as in the next
    block; (B, 2 D) with a class token. The gain of the norm has no effect, because features are standardized later."""
    wide = states if states.dtype == torch.float64 else states.float()
    if wide.ndim == 4:
        return wide.mean((2, 3))
    wide = F.rms_norm(wide, wide.shape[-1:], eps=1e-5)
    return torch.cat([wide[:, 0], wide[:, 1:].mean(1)], 1) if token else wide.mean(1)


def probe(
    train: LayerFeatures,
    valid: LayerFeatures,
    test: LayerFeatures | None = None,
    device: torch.device | str = "cpu",
    penalties: Sequence[float] = PENALTIES,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[ProbeResult]:
    """Fit a classifier per layer. The test split is evaluated once per layer, with the selected penalty. `on_progress`
    receives the number of finished layers and of all layers."""
    if bool((train.labels == train.labels[0]).all()):
        raise DataError("Only one class found. A linear probe needs at least two.")
    # classes may be absent from the training split
    count = max(int(part.labels.max()) for part in (train, valid, test) if part is not None) + 1
    found: list[ProbeResult] = []
    for layer in range(len(train.features)):
        found.append(_probe_layer(layer, count, (train, valid, test), torch.device(device), penalties))
        on_progress(len(found), len(train.features))
    return found


def _probe_layer(
    layer: int,
    classes: int,
    parts: tuple[LayerFeatures, LayerFeatures, LayerFeatures | None],
    device: torch.device,
    strengths: Sequence[float],
) -> ProbeResult:
    (x, y), (xv, yv) = (part.layer(layer, device) for part in parts[:2] if part is not None)
    middle, spread = x.mean(0), x.std(0, correction=0)
    spread = torch.where(spread > 0, spread, 1.0)
    x, xv = (x - middle) / spread, (xv - middle) / spread
    weights, best = x.new_zeros(classes, x.shape[1] + 1), (-1.0, float("inf"))
    kept, chosen = weights, strengths[0]
    for strength in strengths:
        weights = fit_logistic_regression(x, y, strength, weights)
        logits = linear_logits(xv, weights)
        # equal accuracy: lower loss; equal loss: stronger penalty
        score = _accuracy(logits, yv), float(F.cross_entropy(logits, yv))
        if (score[0], -score[1]) > (best[0], -best[1]):
            kept, chosen, best = weights, strength, score
    if parts[2] is None:
        return ProbeResult(layer + 1, best[0], best[0], chosen)
    xt, yt = parts[2].layer(layer, device)
    return ProbeResult(layer + 1, _accuracy(linear_logits((xt - middle) / spread, kept), yt), best[0], chosen)


def fit_logistic_regression(x: Tensor, y: Tensor, penalty: float, initial: Tensor) -> Tensor:
    """(classes, D + 1) weights of multinomial logistic regression with the bias in the last column: minimum of mean
    cross-entropy + penalty / 2 × squared norm without bias. The problem is convex; `initial` only saves steps."""
    weights = initial.detach().clone().requires_grad_()
    search = torch.optim.LBFGS(
        [weights],
        max_iter=MAX_STEPS,
        history_size=20,
        tolerance_grad=1e-6,
        tolerance_change=1e-12,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        search.zero_grad()
        loss = F.cross_entropy(linear_logits(x, weights), y) + penalty / 2 * weights[:, :-1].square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    with torch.enable_grad():
        search.step(closure)  # type: ignore[no-untyped-call]
    return weights.detach()


def linear_logits(x: Tensor, weights: Tensor) -> Tensor:
    return x @ weights[:, :-1].T + weights[:, -1]


def _accuracy(logits: Tensor, labels: Tensor) -> float:
    return 100 * float((logits.argmax(1) == labels).double().mean())
