"""Metrics of dense prediction: IoU of segmentation, and depth errors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from regard.draw.text import markdown_table
from regard.nn.vision.dense import fit_scale_shift, inverse_depth
from regard.types import IGNORE

MIN_DEPTH = 1e-3  # minimum depth, because logarithms and ratios are undefined at 0


class SegmentationMetrics:
    """Confusion matrix of pixels or points: labels (rows), predictions (columns). `ignore_index` is excluded."""

    def __init__(self, classes: int, ignore_index: int = IGNORE) -> None:
        self.ignore_index = ignore_index
        self.counts = np.zeros((classes, classes), dtype=np.int64)

    def add(self, predicted: np.ndarray, target: np.ndarray) -> None:
        """Add predictions and targets of equal shape, of one or several images."""
        if predicted.shape != target.shape:
            raise ValueError(f"Prediction shape {predicted.shape} does not match target shape {target.shape}.")
        classes, asked = len(self.counts), target != self.ignore_index
        predicted, target = predicted[asked].astype(np.int64), target[asked].astype(np.int64)
        for name, values in (("Predicted", predicted), ("Target", target)):
            if values.size and not 0 <= values.min() <= values.max() < classes:
                raise ValueError(
                    f"{name} class ids must be in [0, {classes - 1}], got {values.min()} to {values.max()}."
                )
        self.counts += np.bincount(classes * target + predicted, minlength=classes**2).reshape(classes, classes)

    def class_iou(self) -> np.ndarray:
        """Intersection over union of each class; NaN for classes absent from labels and predictions."""
        both = np.diag(self.counts).astype(np.float64)
        union = self.counts.sum(0) + self.counts.sum(1) - both
        return np.divide(both, union, out=np.full(len(both), np.nan), where=union > 0)

    def accuracy(self) -> float:
        """Fraction of correct pixels."""
        return float(np.trace(self.counts) / max(self.counts.sum(), 1))

    def mean_iou(self) -> float:
        """Average IoU of the classes in labels or predictions."""
        each = self.class_iou()
        return float(np.nanmean(each)) if np.isfinite(each).any() else 0.0

    def table(self, labels: Sequence[str]) -> str:
        """Table with a row per class."""
        each = self.iou_by_name(labels).items()
        return markdown_table([{"class": n, "IoU": "" if v is None else f"{100 * v:.2f}"} for n, v in each])

    def iou_by_name(self, names: Sequence[str]) -> dict[str, float | None]:
        """IoU of each class by name."""
        return {
            name: None if np.isnan(value) else float(value) for name, value in zip(names, self.class_iou(), strict=True)
        }


def depth_scores(predicted: np.ndarray, target: np.ndarray) -> dict[str, float]:
    """Depth metrics of one image (H, W) over valid pixels; empty without valid pixels. `abs_rel`, `rmse` and `log10` are
    errors; `delta1` to `delta3` are fractions of pixels with ratio < 1.25ⁿ."""
    asked = valid_depth(target)
    if not asked.any():
        return {}
    depth, truth = np.maximum(predicted[asked].astype(np.float64), MIN_DEPTH), target[asked].astype(np.float64)
    ratio = np.maximum(depth / truth, truth / depth)
    return {
        "abs_rel": float(np.mean(np.abs(depth - truth) / truth)),
        "rmse": float(np.sqrt(np.mean((depth - truth) ** 2))),
        "log10": float(np.mean(np.abs(np.log10(depth) - np.log10(truth)))),
        **{f"delta{power}": float(np.mean(ratio < 1.25**power)) for power in (1, 2, 3)},
    }


def valid_depth(target: np.ndarray) -> np.ndarray:
    """True for pixels with a valid depth, which is positive."""
    return np.isfinite(target) & (target > 0)


def align_depth(prediction: np.ndarray, target_depth: np.ndarray, max_depth: float) -> np.ndarray:
    """Predicted inverse depth (H, W) of unknown scale → depth in the unit of the target, with the least-squares scale and
    shift, as usual for relative depth. The limit `max_depth` must not depend on this target, which would leak labels."""
    asked = torch.from_numpy(valid_depth(target_depth))[None]
    if not bool(asked.any()):
        return np.full(prediction.shape, np.nan)
    target, asked = inverse_depth(torch.from_numpy(target_depth.astype(np.float64))[None], asked)
    nearness = torch.from_numpy(prediction.astype(np.float64))[None]
    scale, shift = fit_scale_shift(nearness, target, asked)
    return (1 / (scale * nearness + shift).clamp(min=1 / max_depth))[0].numpy()
