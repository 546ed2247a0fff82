"""What each layer knows: a linear classifier on the states of each, averaged over the places of a picture.

The body itself learns nothing here. Of each block the states are taken as the next one reads them, at the same size
everywhere, and beside their mean stands the class token, where there is one; of each stage of convolutions or of Swin the map
is taken as it is. Every number is brought to mean 0 and spread 1. How strongly the classifier is held back is chosen on a
validation part; what it reaches on others is told.
"""

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
"""Of the penalty that are tried, strong ones first: each begins where the one before ended."""
MAX_STEPS = 200
"""of L-BFGS at most"""


@dataclass(frozen=True)
class ProbeLayer:
    """One that a body can be asked for."""

    name: str
    """a person's: block 1, stage 2"""
    tap: int
    """the number to ask for in `taps`"""
    width: int
    """numbers that are kept of a picture"""
    stride: int
    """pixels from one place to the next"""
    has_class_token: bool = False
    """a class token stands before the places"""


def probe_layers(config: Any) -> tuple[ProbeLayer, ...]:
    """All that a body of this config has, from its first to its last."""
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
    """Labelled samples as each layer sees them."""

    features: Sequence[Tensor]
    """of each layer (N, D)"""
    labels: Tensor
    """(N,) numbers of classes"""

    def layer(self, number: int, device: torch.device) -> tuple[Tensor, Tensor]:
        return self.features[number].to(device), self.labels.to(device)


@dataclass(frozen=True)
class ProbeResult:
    """Of one layer: shares of 100, and the penalty that did best on the validation part."""

    layer: int
    """1 is the first"""
    accuracy: float
    """on the test part, or on the validation part where there is no other"""
    valid_accuracy: float
    penalty: float


def extract_features(body: Any, batches: Iterable[Batch], layers: Sequence[ProbeLayer]) -> LayerFeatures:
    """What each of these layers makes of batches whose `labels` (B,) are classes; the body is left as it was."""
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
    for parts in found:  # one layer at a time, so that no more than one is there twice
        joined.append(torch.cat(parts))
        parts.clear()
    return LayerFeatures(joined, torch.cat(labels))


def _pool_states(states: Tensor, token: bool) -> Tensor:
    """(B, D) over the places of a map (B, D, h, w), or of states (B, L, D), each brought to size 1 first, as the next block
    would do it; (B, 2 D) with a class token in front. Gains do not matter: every number is brought to spread 1 later."""
    wide = states if states.dtype == torch.float64 else states.float()
    if wide.ndim == 4:
        return wide.mean((2, 3))
    wide = F.rms_norm(wide, wide.shape[-1:], eps=1e-5)
    return torch.cat([wide[:, 0], wide[:, 1:].mean(1)], 1) if token else wide.mean(1)


def probe(
    train: LayerFeatures, valid: LayerFeatures, test: LayerFeatures | None = None, device: torch.device | str = "cpu",
    penalties: Sequence[float] = PENALTIES, on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[ProbeResult]:  # fmt: skip
    """A classifier for each layer. The test part is looked at once a layer, by the one that was chosen. `told` hears how many
    layers of all are done."""
    if bool((train.labels == train.labels[0]).all()):
        raise DataError("Only one class found. A linear probe needs at least two.")
    # one that nothing is learnt of may be asked for
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
        # of equally many right answers the surer ones, and of equally sure ones the stronger penalty
        score = _accuracy(logits, yv), float(F.cross_entropy(logits, yv))
        if (score[0], -score[1]) > (best[0], -best[1]):
            kept, chosen, best = weights, strength, score
    if parts[2] is None:
        return ProbeResult(layer + 1, best[0], best[0], chosen)
    xt, yt = parts[2].layer(layer, device)
    return ProbeResult(layer + 1, _accuracy(linear_logits((xt - middle) / spread, kept), yt), best[0], chosen)


def fit_logistic_regression(x: Tensor, y: Tensor, penalty: float, initial: Tensor) -> Tensor:
    """(classes, D + 1) the weights of multinomial logistic regression, the bias last: the least mean cross-entropy +
    strength / 2 x sum of squares of all but the bias. It has one minimum; `begin` only saves steps."""
    weights = initial.detach().clone().requires_grad_()
    search = torch.optim.LBFGS(
        [weights], max_iter=MAX_STEPS, history_size=20, tolerance_grad=1e-6, tolerance_change=1e-12,
        line_search_fn="strong_wolfe",
    )  # fmt: skip

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
