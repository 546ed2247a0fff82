"""Attention of a captioner over the image grid for each word; occlusion sensitivity for models without such attention.

Grounding compares the attention of a word with the objects named by the word. Coverage of a grid cell by a region is exact for
any grid and image size. A region is the union of boxes (left, top, right, bottom) in pixels; right and bottom are exclusive."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from regard.draw.page import write_caption_page
from regard.draw.panels import CaptionAttention, CaptionLayer, CaptionWord, draw_caption_attention
from regard.errors import RegardError
from regard.explain import Explanation
from regard.explain.images import Pixel, Shape, View, image_batch, source_name
from regard.explain.text_generation import record_forward, token_log_probs
from regard.nn.attention.attention import Attention
from regard.nn.recording import named_attentions
from regard.nn.recurrent.score_attention import ScoreAttention
from regard.tasks.base import Model, require_tokenizer
from regard.tasks.modality.image import require_image_processor
from regard.types import AttentionRecords, Batch, DecoderInputs

TOP_K = 5  # Alternatives listed per word.
OCCLUSION_GRID = 8  # rows and columns of occluded regions; a region is two cells high and wide
OCCLUSION_BATCH = 16  # Occluded images per forward pass.

WordRanges = list[range]  # Token indices of each word.


@dataclass(frozen=True, kw_only=True, repr=False)
class CaptionExplanation(Explanation):
    """Explanation of the caption of one image."""

    attention: CaptionAttention

    @property
    def values(self) -> dict[str, Any]:
        words = [
            {"word": word.word, "probability": word.probability, "top_k": [list(one) for one in word.top_k]}
            for word in self.attention.words
        ]
        layers = {layer.name: layer.weights for layer in self.attention.layers}
        about = {"grid": self.attention.grid, "method": self.attention.method, "region": self.attention.region}
        return {"title": self.title, "facts": self.facts, "words": words, **about, "weights": layers}

    def save(self, path: str | Path, layer: int | None = None, head: int | None = None) -> Path:
        self.attention.maps(layer, head)  # raises an error for an invalid layer or head
        return super().save(path, layer, head)

    def _write_page(self, path: Path) -> Path:
        return write_caption_page(self.attention, path, self.heading, self.title, self.facts)

    def _draw(self, path: Path, layer: int | None, head: int | None) -> Path:
        about = "; ".join(f"{name}: {value}" for name, value in self.facts.items())
        return draw_caption_attention(self.attention, path, f"{self.heading}: {self.title}", about, layer, head)

    @property
    def heading(self) -> str:
        """Name of the method, for titles."""
        return "Attention per word" if self.attention.method == BY_ATTENTION else "Occlusion sensitivity per word"


BY_ATTENTION = "attention"
BY_OCCLUSION = "occlusion sensitivity"
OCCLUSION_NOTE = "Decrease of each word's probability when a region is hidden (Zeiler & Fergus 2014)."


def explain_caption(model: Model, source: Any, target: str | None, at: Pixel | None) -> CaptionExplanation:
    """Generate a caption (unless `target` is given), then run the model on image and caption with attention recording."""
    if at is not None:
        raise RegardError("A position (--at) is not supported for captions. Caption explanations show every word.")
    pixels, text, config = require_image_processor(model), require_tokenizer(model), model.config
    view = View.open(source, pixels)
    image = pixels.prepare(view.picture)
    ids = _caption_ids(model, source, target)
    # a caption truncated at the maximum length has no end token
    inputs, targets = [config.bos_id, *ids][: config.max_length], [*ids, config.eos_id][: config.max_length]
    batch = Batch(image_batch(model, image).inputs, decoder=DecoderInputs(torch.tensor([inputs], device=model.device)))
    records, logs = record_forward(model, batch)
    own = logs[torch.arange(len(targets)), torch.tensor(targets)]
    ranges: WordRanges = []  # a token that contains only a space belongs to the following word
    for first, last in pairwise([*np.flatnonzero(text.starts_word(ids)).tolist(), len(ids)]):
        blank = ranges and not text.decode([ids[ranges[-1].start : first]])[0].strip()
        ranges.append(range(ranges.pop().start if blank else first, last))
    words = []
    for group in ranges:
        word_ids, best = [ids[number] for number in group], logs[group[0]].topk(min(TOP_K, logs.shape[1]))
        word = text.decode([word_ids])[0].strip() or "".join(text.display_tokens(word_ids))
        # the most likely alternatives to the first token of the word
        names = [text.display_tokens([token])[0] for token in best.indices.tolist()]
        top_k = tuple(zip(names, best.values.exp().tolist(), strict=True))
        words.append(CaptionWord(word, float(own[list(group)].double().sum().exp()), top_k))
    no_end = "none: the caption was truncated at the maximum length"
    facts = {
        "caption probability": f"{float(own.double().sum().exp()):.3g}",
        "end token probability": f"{float(own[-1].exp()):.3g}" if len(targets) > len(ids) else no_end,
    }
    facts |= view.crop_fact()
    layers, method = grid_layers(model.body, batch, records, ranges), BY_ATTENTION
    if layers:
        outside = 1 - float(np.mean([layer.weights.sum((2, 3)).mean() for layer in layers]))
        if outside > 1e-3:  # a class token has no position in the image
            facts["attention outside the image grid"] = f"{100 * outside:.1f} %"
    else:
        layers, method = (CaptionLayer("hidden", _occlusion_maps(model, batch, ids, ranges)),), BY_OCCLUSION
        facts["occlusion sensitivity"] = OCCLUSION_NOTE
    title = f"{source_name(source)} → {text.decode([ids])[0]}"
    attention = CaptionAttention(view.picture, tuple(words), layers, method, view.region)
    return CaptionExplanation(title, (), facts, attention=attention)


def _caption_ids(model: Model, source: Any, target: str | None) -> list[int]:
    """Token ids of the caption. Generated ids are kept, because the tokenization of the generated text may differ."""
    if target is None:
        ids = [int(token) for token in model.predict(source, num_return_sequences=1).extra["token_ids"]]
        if not ids:
            raise RegardError("The model generated an empty caption for this image. Pass a caption to explain.")
        return ids
    ids = require_tokenizer(model).encode([target.strip()])[0]
    if not ids:
        raise RegardError("Nothing to explain: the caption is empty.")
    if len(ids) >= model.config.max_length:
        raise RegardError(
            f"The caption has {len(ids)} tokens, but the maximum of this model is {model.config.max_length - 1}."
        )
    return ids


def grid_layers(body: Any, batch: Batch, records: AttentionRecords, groups: WordRanges) -> tuple[CaptionLayer, ...]:
    """Attention over the image grid per layer, averaged over the tokens of each word; empty without such attention."""
    grid = body.grid(batch)
    if grid is None:
        return ()
    (rows, columns), first = grid, body.first_image_position
    places, found = named_attentions(body), list[CaptionLayer]()
    for name in records.names():
        place = places[name]
        over = isinstance(place, ScoreAttention) or (isinstance(place, Attention) and place.is_cross)
        if over and records.weights(name).shape[-1] == first + rows * columns:
            weights = records.weights(name)[0].double().cpu().numpy()[..., first:]
            words = np.stack([weights[:, list(group)].mean(1) for group in groups], axis=1)
            found.append(CaptionLayer(f"layer {len(found) + 1}", words.reshape(*words.shape[:2], rows, columns)))
    return tuple(found)


def _occlusion_maps(model: Model, batch: Batch, ids: list[int], groups: WordRanges) -> NDArray[np.float64]:
    """Occlusion sensitivity (1, words, n, n): decrease of the log-probability of each word if a region is set to the mean color
    of the image (Zeiler and Fergus 2014). An increase counts as 0; the map of a word sums to 1."""
    high, wide = batch.inputs.shape[-2:]
    down, across = min(OCCLUSION_GRID, high), min(OCCLUSION_GRID, wide)
    mean = batch.inputs.mean((2, 3), keepdim=True)
    images = [batch.inputs]
    for row, column in np.ndindex(down, across):
        top, bottom = ((row + side) * high / down for side in (-0.5, 1.5))
        left, right = ((column + side) * wide / across for side in (-0.5, 1.5))
        x = batch.inputs.clone()
        x[..., max(round(top), 0) : round(bottom), max(round(left), 0) : round(right)] = mean
        images.append(x)
    targets = torch.tensor(ids, device=batch.inputs.device)
    logs = []  # log-probabilities (B, T) of the caption tokens
    with torch.inference_mode():
        for first in range(0, len(images), OCCLUSION_BATCH):
            x = torch.cat(images[first : first + OCCLUSION_BATCH])
            own = Batch(x, decoder=DecoderInputs(batch.require_decoder().inputs[:, : len(ids)].expand(len(x), -1)))
            logs.append(token_log_probs(model, own).gather(-1, targets.expand(len(x), -1)[..., None])[..., 0].cpu())
    values = torch.cat(logs)
    falls = (values[:1] - values[1:]).clamp(min=0)
    words = torch.stack([falls[:, list(group)].sum(1) for group in groups]).double()
    words = words / words.sum(1, keepdim=True).clamp(min=1e-12)
    return words.cpu().numpy().reshape(1, len(groups), down, across)


# -- grounding

Box = Sequence[int]

ALL_KINDS = "all"
MIN_RELATIVE_COVERAGE = 0.5  # minimum coverage of a cell in a region, as a fraction of the largest coverage of any cell


WordAttention = tuple[str, NDArray[np.floating], NDArray[np.bool_]]
"""Kind of a word that names objects (color, shape, …), attention (rows, columns), and the pixels of the objects."""


@dataclass(frozen=True)
class PointingScore:
    """Averages over words: fraction of attention and of attention maxima inside the region, also for uniform attention."""

    num_words: int
    inside_fraction: float
    uniform_fraction: float
    hit_rate: float
    uniform_hit_rate: float


def word_attentions(
    maps: NDArray[np.floating], words: Sequence[Sequence[Any]], boxes: Sequence[Box], image_size: Shape
) -> list[WordAttention]:
    """Attention of the words that name objects, from maps (words, rows, columns). `words`: text, kind (empty if the word names
    no objects) and object indices of each word."""
    return [
        (kind, weights, region_mask([boxes[number] for number in things], image_size))
        for weights, (_, kind, things) in zip(maps, words, strict=True)
        if kind
    ]


def region_mask(boxes: Iterable[Box], image_size: Shape) -> NDArray[np.bool_]:
    """Mask (height, width) of the pixels in the region."""
    mask = np.zeros(image_size, dtype=bool)
    for left, top, right, bottom in boxes:
        mask[max(top, 0) : max(bottom, 0), max(left, 0) : max(right, 0)] = True
    return mask


def cell_coverage(mask: NDArray[np.bool_], grid: Shape) -> NDArray[np.float64]:
    """Fraction of each grid cell inside the region, (rows, columns). Cell borders may be inside a pixel."""
    overlaps = []  # fraction of each cell covered by each pixel along one axis, (cells, pixels)
    for cells, pixels in zip(grid, mask.shape, strict=True):
        edges, at = np.arange(cells + 1) * (pixels / cells), np.arange(pixels)
        ends, starts = np.minimum(edges[1:, None], at + 1), np.maximum(edges[:-1, None], at)
        overlaps.append((ends - starts).clip(0) * (cells / pixels))
    down, across = overlaps
    return down @ mask @ across.T


def score_by_kind(attentions: Iterable[WordAttention]) -> dict[str, PointingScore]:
    """Average scores for each kind of word and for all words. Words without objects in the image are skipped. If several cells
    have the largest weight, the hit rate is the fraction of these cells in the region."""
    rows: dict[str, list[tuple[float, ...]]] = {}
    for kind, weights, mask in attentions:
        if not mask.any():
            continue
        coverage = cell_coverage(mask, (weights.shape[0], weights.shape[1]))
        # the threshold is relative, because a small region may fill no cell
        cells = (coverage > 0) & (coverage >= MIN_RELATIVE_COVERAGE * coverage.max())
        total = float(weights.sum())
        inside = float((weights * coverage).sum()) / total if total > 0 else 0.0
        hits = float(cells[weights == weights.max()].mean())
        for name in (kind, ALL_KINDS):
            rows.setdefault(name, []).append((inside, float(coverage.mean()), hits, float(cells.mean())))
    return {
        name: PointingScore(len(scores), *(float(value) for value in np.mean(scores, axis=0)))
        for name, scores in sorted(rows.items())
    }
