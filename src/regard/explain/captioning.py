"""Attention of a captioner over the image grid for each word; occlusion sensitivity for models without such attention."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.draw.panels import CaptionAttention, CaptionLayer, CaptionWord
from regard.errors import RegardError
from regard.explain.explanation import Explanation
from regard.explain.images import Pixel, image_batch
from regard.explain.text_generation import record_forward, token_log_probs
from regard.nn.attention.attention import Attention
from regard.nn.recording import named_attentions
from regard.nn.recurrent.score_attention import ScoreAttention
from regard.processors.tokenizer.tokenizer import TextTokenizer
from regard.tasks.image_task import load_image
from regard.tasks.protocol import ModelProtocol
from regard.types import AttentionRecords, Batch

TOP_K = 5
"""Alternatives listed per word."""
OCCLUSION_GRID = 8
"""Rows and columns of occluded regions, for models without attention; a region is two cells high and wide."""
OCCLUSION_BATCH = 16
"""Occluded images per forward pass."""
CROP_NOTE_THRESHOLD = 0.99
"""The center crop is reported if less than this fraction of the image is kept."""

WordRanges = list[range]
"""Token indices of each word."""


@dataclass(frozen=True)
class CaptionExplanation(Explanation):
    """Explanation of the caption of one image."""

    caption_attention: CaptionAttention | None = None

    @property
    def attention(self) -> CaptionAttention:
        assert self.caption_attention is not None
        return self.caption_attention

    @property
    def values(self) -> dict[str, Any]:
        words = [
            {"word": said.word, "probability": said.probability, "top_k": [list(one) for one in said.top_k]}
            for said in self.attention.words
        ]
        layers = {layer.name: layer.weights for layer in self.attention.layers}
        return {
            "title": self.title,
            "facts": self.facts,
            "words": words,
            "grid": self.attention.grid,
            "method": self.attention.method,
            "weights": layers,
        }

    def save(self, path: str | Path, layer: int | None = None, head: int | None = None) -> Path:
        path = Path(path)
        self.attention.maps(layer, head)  # raises an error for an invalid layer or head
        if path.suffix.lower() == ".json":
            return super().save(path)
        from regard.draw.page import write_caption_page
        from regard.draw.panels import draw_caption_attention

        if path.suffix.lower() in (".html", ".htm"):
            return write_caption_page(self.attention, path, self.heading, self.title, self.facts)
        about = "; ".join(f"{name}: {value}" for name, value in self.facts.items())
        return draw_caption_attention(self.attention, path, f"{self.heading}: {self.title}", about, layer, head)

    @property
    def heading(self) -> str:
        """Name of the method, for titles."""
        return "Attention per word" if self.attention.method == BY_ATTENTION else "Occlusion sensitivity per word"


BY_ATTENTION = "attention"
BY_OCCLUSION = "occlusion sensitivity"
OCCLUSION_NOTE = "Decrease of each word's probability when a region is hidden (Zeiler & Fergus 2014)."


def explain_caption(
    model: ModelProtocol, source: Any, target: str | None = None, at: Pixel | None = None
) -> CaptionExplanation:
    """Generate a caption (unless `target` is given), then run the model on image and caption with attention recording."""
    if at is not None:
        raise RegardError("A position (--at) is not supported for captions. Caption explanations show every word.")
    pixels, text, config = model.require_image_processor(), model.require_tokenizer(), model.config
    whole = load_image(source)
    seen, kept = pixels.prepare(whole), pixels.crop_fraction(*whole.shape[:2])
    said = _caption_ids(model, source, target)
    # a caption truncated at the maximum length has no end token
    read, says = [config.bos_id, *said][: config.max_length], [*said, config.eos_id][: config.max_length]
    batch = Batch(image_batch(model, seen).inputs, decoder_inputs=torch.tensor([read], device=model.device))
    looks, logs = record_forward(model, batch)
    own = logs[torch.arange(len(says)), torch.tensor(says)]
    groups = _word_ranges(text, said)
    words = tuple(_caption_word(text, said, group, own, logs) for group in groups)
    facts = {"caption probability": f"{float(own.double().sum().exp()):.3g}"}
    facts["end token probability"] = (
        f"{float(own[-1].exp()):.3g}"
        if len(says) > len(said)
        else "none: the caption was truncated at the maximum length"
    )
    if kept < CROP_NOTE_THRESHOLD:
        facts["center crop"] = f"{100 * kept:.0f} % of the image"
    layers, how = grid_layers(model.body, batch, looks, groups), BY_ATTENTION
    if layers:
        aside = 1 - float(np.mean([layer.weights.sum((2, 3)).mean() for layer in layers]))
        if aside > 1e-3:  # a class token has no position in the image
            facts["attention outside the image grid"] = f"{100 * aside:.1f} %"
    else:
        layers, how = (CaptionLayer("hidden", _occlusion_maps(model, batch, said, groups)),), BY_OCCLUSION
        facts["occlusion sensitivity"] = OCCLUSION_NOTE
    name = Path(source).name if isinstance(source, str | Path) else "image"
    title = f"{name} → {text.decode([said])[0]}"
    return CaptionExplanation(title, (), facts, caption_attention=CaptionAttention(seen, words, layers, how))


def _caption_ids(model: ModelProtocol, source: Any, target: str | None) -> list[int]:
    """Token ids of the caption. Generated ids are kept, because the tokenization of the generated text may differ."""
    if target is None:
        said = [int(token) for token in model.predict(source, num_return_sequences=1).extra["token_ids"]]
        if not said:
            raise RegardError("The model generated an empty caption for this image. Pass a caption to explain.")
        return said
    said = model.require_tokenizer().encode([target.strip()])[0]
    if not said:
        raise RegardError("Nothing to explain: the caption is empty.")
    if len(said) >= model.config.max_length:
        raise RegardError(
            f"The caption has {len(said)} tokens, but the maximum of this model is {model.config.max_length - 1}."
        )
    return said


def _word_ranges(text: TextTokenizer, said: list[int]) -> WordRanges:
    """Token indices of each word. A token that contains only a space belongs to the following word."""
    groups: WordRanges = []
    for first, last in pairwise([*np.flatnonzero(text.starts_word(said)).tolist(), len(said)]):
        blank = groups and not text.decode([said[groups[-1].start : first]])[0].strip()
        groups.append(range(groups.pop().start if blank else first, last))
    return groups


def _caption_word(text: TextTokenizer, said: list[int], group: range, own: Tensor, logs: Tensor) -> CaptionWord:
    """A word with probability, and the most likely alternatives to the first token of the word."""
    ids = [said[number] for number in group]
    word = text.decode([ids])[0].strip() or "".join(text.display_tokens(ids))
    found = logs[group[0]].topk(min(TOP_K, logs.shape[1]))
    chances, names = found.values.exp().tolist(), [text.display_tokens([token])[0] for token in found.indices.tolist()]
    return CaptionWord(word, float(own[list(group)].double().sum().exp()), tuple(zip(names, chances, strict=True)))


def grid_layers(
    body: Any, batch: Batch, records: AttentionRecords, word_ranges: WordRanges
) -> tuple[CaptionLayer, ...]:
    """Attention over the image grid per layer, averaged over the tokens of each word; empty without such attention."""
    grid = body.grid(batch)
    if grid is None:
        return ()
    (rows, columns), first = grid, body.first_image_position
    places, modules = named_attentions(body), []
    for name in records.names():
        place = places[name]
        over = isinstance(place, ScoreAttention) or (isinstance(place, Attention) and place.is_cross)
        if over and records.weights(name).shape[-1] == first + rows * columns:
            modules.append(name)
    found = []
    for number, name in enumerate(modules, 1):
        weights = records.weights(name)[0].double().cpu().numpy()[..., first:]
        words = np.stack([weights[:, list(group)].mean(1) for group in word_ranges], axis=1)
        found.append(CaptionLayer(f"layer {number}", words.reshape(*words.shape[:2], rows, columns)))
    return tuple(found)


def _occlusion_maps(model: ModelProtocol, batch: Batch, said: list[int], groups: WordRanges) -> NDArray[np.float64]:
    """Occlusion sensitivity (1, words, n, n): decrease of the log-probability of each word if a region is set to the mean color
    of the image (Zeiler and Fergus 2014). An increase counts as 0; the map of a word sums to 1."""
    high, wide = batch.inputs.shape[-2:]
    down, across = min(OCCLUSION_GRID, high), min(OCCLUSION_GRID, wide)
    mean = batch.inputs.mean((2, 3), keepdim=True)
    changed = []
    for place in range(down * across):
        row, column = divmod(place, across)
        top, bottom = ((row + side) * high / down for side in (-0.5, 1.5))
        left, right = ((column + side) * wide / across for side in (-0.5, 1.5))
        x = batch.inputs.clone()
        part = slice(max(round(top), 0), round(bottom)), slice(max(round(left), 0), round(right))
        x[..., part[0], part[1]] = mean
        changed.append(x)
    asked = torch.tensor(said, device=batch.inputs.device)
    logs = torch.cat([_log_probs(model, batch, torch.cat(part), asked) for part in _batches([batch.inputs, *changed])])
    falls = (logs[:1] - logs[1:]).clamp(min=0)
    words = torch.stack([falls[:, list(group)].sum(1) for group in groups]).double()
    words = words / words.sum(1, keepdim=True).clamp(min=1e-12)
    return words.cpu().numpy().reshape(1, len(groups), down, across)


def _batches(pictures: list[Tensor]) -> list[list[Tensor]]:
    return [pictures[first : first + OCCLUSION_BATCH] for first in range(0, len(pictures), OCCLUSION_BATCH)]


def _log_probs(model: ModelProtocol, batch: Batch, x: Tensor, asked: Tensor) -> Tensor:
    """Log-probabilities (B, T) of the caption tokens `asked`, for images `x` (B, C, H, W)."""
    assert batch.decoder_inputs is not None
    with torch.inference_mode():
        read = batch.decoder_inputs[:, : len(asked)].expand(len(x), -1)
        logs = token_log_probs(model, Batch(x, decoder_inputs=read))
    return logs.gather(-1, asked.expand(len(x), -1)[..., None])[..., 0].cpu()
