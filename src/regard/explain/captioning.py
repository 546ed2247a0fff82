"""What a captioner looked at while it said each word: the weights of its attentions over the grid of the picture, word by word.
Of one that has no attention, how much less likely each word becomes where a part of the picture is hidden."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.draw.caption_attention import Layer, Said, Saying
from regard.errors import RegardError
from regard.explain.explanation import Explanation
from regard.explain.images import Pixel, batch_of
from regard.explain.recorded_pass import look
from regard.nn.recording import attention_names
from regard.nn.recurrent.score_attention import Align
from regard.processors.tokenizer.tokenizer import Text
from regard.tasks.image_task import picture_of
from regard.tasks.protocol import Asked
from regard.types import Batch, Seen

LIKELY = 5
"""Words that are told in the place of each."""
HIDDEN = 8
"""Parts down and across that a picture is hidden in, where there is no attention; what is hidden is twice as wide."""
TOGETHER = 16
"""Pictures with a hidden part that are looked at together."""
WHOLE = 0.99
"""From this share on it is not worth a word that the edges of a picture were cut off."""

Groups = list[range]
"""The tokens of each word."""


@dataclass(frozen=True)
class Wordwise(Explanation):
    """Of one picture and its caption."""

    saying: Saying | None = None

    @property
    def told(self) -> Saying:
        assert self.saying is not None
        return self.saying

    @property
    def values(self) -> dict[str, Any]:
        words = [
            {"word": said.word, "probability": said.chance, "likely": [list(one) for one in said.likely]}
            for said in self.told.words
        ]
        layers = {layer.name: layer.weights for layer in self.told.layers}
        return {
            "title": self.title,
            "facts": self.facts,
            "words": words,
            "grid": self.told.grid,
            "way": self.told.how,
            "weights": layers,
        }

    def save(self, path: str | Path, layer: int | None = None, head: int | None = None) -> Path:
        path = Path(path)
        self.told.maps(layer, head)  # what is not there is refused
        if path.suffix.lower() == ".json":
            return super().save(path)
        from regard.draw.caption_attention import draw_wordwise, wordwise_page

        if path.suffix.lower() in (".html", ".htm"):
            title = (
                "What the model looked at, word by word" if self.told.how == LOOKED else "What counted, word by word"
            )
            return wordwise_page(self.told, path, title, self.title, self.facts)
        about = "; ".join(f"{name}: {value}" for name, value in self.facts.items())
        return draw_wordwise(self.told, path, self.title, about, layer, head)


LOOKED = "was looked at"
COUNTED = "counted"


def explain_caption(model: Asked, source: Any, target: str | None = None, at: Pixel | None = None) -> Wordwise:
    """Caption the picture (unless `target` is given), then read the caption once more with all attentions watched."""
    if at is not None:
        raise RegardError("a caption shows what each of its words looked at: no place can be asked.")
    pixels, text, config = model.pixels_or_refuse(), model.text_or_refuse(), model.config
    whole = picture_of(source)
    seen, kept = pixels.prepare(whole), pixels.kept(*whole.shape[:2])
    said = _tokens(model, source, target)
    # what was broken off is as long as can be read, and its end was not said
    read, says = [config.start, *said][: config.length], [*said, config.end][: config.length]
    batch = Batch(batch_of(model, seen).x, target=torch.tensor([read], device=model.device))
    looks, logs = look(model, batch)
    own = logs[torch.arange(len(says)), torch.tensor(says)]
    groups = _groups(text, said)
    words = tuple(_word(text, said, group, own, logs) for group in groups)
    facts = {"probability of the whole caption": f"{float(own.double().sum().exp()):.3g}"}
    facts["of its end"] = f"{float(own[-1].exp()):.3g}" if len(says) > len(said) else "it was broken off"
    if kept < WHOLE:
        facts["seen of the picture"] = f"its middle, {100 * kept:.0f} %"
    layers, how = grid_layers(model.body, batch, looks, groups), LOOKED
    if layers:
        aside = 1 - float(np.mean([layer.weights.sum((2, 3)).mean() for layer in layers]))
        if aside > 1e-3:  # a class token has no place in the picture
            facts["looked at, but no place"] = f"{100 * aside:.1f} %"
    else:
        layers, how = (Layer("hidden", _hidden(model, batch, said, groups)),), COUNTED
        facts["without attention"] = "what counted is how much less likely each word is where that place is hidden"
    name = Path(source).name if isinstance(source, str | Path) else "a picture"
    title = f"{name} → {text.decode([said])[0]}"
    return Wordwise(title, (), facts, saying=Saying(seen, words, layers, how))


def _tokens(model: Asked, source: Any, target: str | None) -> list[int]:
    """What is said, which need not be what the text would be split into."""
    if target is None:
        said = [int(token) for token in model.answer(source, best=1).extra["ids"]]
        if not said:
            raise RegardError(
                "the model says nothing of this picture, so that no word can be explained. Give it a caption."
            )
        return said
    said = model.text_or_refuse().encode([target.strip()])[0]
    if not said:
        raise RegardError("there is nothing to explain: the caption is empty.")
    if len(said) >= model.config.length:
        raise RegardError(f"the caption has {len(said)} tokens, and this model says at most {model.config.length - 1}.")
    return said


def _groups(text: Text, said: list[int]) -> Groups:
    """A blank that is a token of its own belongs to the word behind it."""
    groups: Groups = []
    for first, last in pairwise([*np.flatnonzero(text.starts_word(said)).tolist(), len(said)]):
        blank = groups and not text.decode([said[groups[-1].start : first]])[0].strip()
        groups.append(range(groups.pop().start if blank else first, last))
    return groups


def _word(text: Text, said: list[int], group: range, own: Tensor, logs: Tensor) -> Said:
    """The likeliest in its place are those of its first token."""
    ids = [said[number] for number in group]
    word = text.decode([ids])[0].strip() or "".join(text.pieces(ids))
    found = logs[group[0]].topk(min(LIKELY, logs.shape[1]))
    chances, names = found.values.exp().tolist(), [text.pieces([token])[0] for token in found.indices.tolist()]
    return Said(word, float(own[list(group)].double().sum().exp()), tuple(zip(names, chances, strict=True)))


def grid_layers(body: Any, batch: Batch, looks: Seen, groups: Groups) -> tuple[Layer, ...]:
    """Of every attention that looks over the picture from the side of the words; of each word the mean of its tokens."""
    if not hasattr(body, "grid"):
        return ()
    (rows, columns), first = body.grid(batch), int(getattr(body, "first_place", 0))
    places, modules = attention_names(body), []
    for name in looks.names():
        over = isinstance(places[name], Align) or getattr(places[name], "crossing", False)
        if over and looks.weights(name).shape[-1] == first + rows * columns:
            modules.append(name)
    found = []
    for number, name in enumerate(modules, 1):
        weights = looks.weights(name)[0].double().cpu().numpy()[..., first:]
        words = np.stack([weights[:, list(group)].mean(1) for group in groups], axis=1)
        found.append(Layer(f"layer {number}", words.reshape(*words.shape[:2], rows, columns)))
    return tuple(found)


def _hidden(model: Asked, batch: Batch, said: list[int], groups: Groups) -> NDArray[np.float64]:
    """(1, words, n, n) how far the log-probability of each word falls where a part of the picture is its mean colour (Zeiler
    and Fergus 2014), as shares of 1; nothing where it does not fall."""
    high, wide = batch.x.shape[-2:]
    down, across = min(HIDDEN, high), min(HIDDEN, wide)
    mean = batch.x.mean((2, 3), keepdim=True)
    changed = []
    for place in range(down * across):
        row, column = divmod(place, across)
        top, bottom = ((row + side) * high / down for side in (-0.5, 1.5))
        left, right = ((column + side) * wide / across for side in (-0.5, 1.5))
        x = batch.x.clone()
        part = slice(max(round(top), 0), round(bottom)), slice(max(round(left), 0), round(right))
        x[..., part[0], part[1]] = mean
        changed.append(x)
    asked = torch.tensor(said, device=batch.x.device)
    logs = torch.cat([_logs(model, batch, torch.cat(part), asked) for part in _parts([batch.x, *changed])])
    falls = (logs[:1] - logs[1:]).clamp(min=0)
    words = torch.stack([falls[:, list(group)].sum(1) for group in groups]).double()
    words = words / words.sum(1, keepdim=True).clamp(min=1e-12)
    return words.cpu().numpy().reshape(1, len(groups), down, across)


def _parts(pictures: list[Tensor]) -> list[list[Tensor]]:
    return [pictures[first : first + TOGETHER] for first in range(0, len(pictures), TOGETHER)]


def _logs(model: Asked, batch: Batch, x: Tensor, asked: Tensor) -> Tensor:
    """(B, T) the log-probability of each token that was said, of so many pictures."""
    assert batch.target is not None
    training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            read = batch.target[:, : len(asked)].expand(len(x), -1)
            logits = model.body.read(model.body(Batch(x, target=read)).sequence)
    finally:
        model.train(training)
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return wide.log_softmax(-1).gather(-1, asked.expand(len(x), -1)[..., None])[..., 0].cpu()
