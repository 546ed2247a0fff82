"""What all captioners share: the body that they see through, and how a config remembers it.

`model.encoder` names a preset of a system that sees, which is made anew and learns with the rest, or a folder with one that has
learnt already. `model.seeing` then says in full what that body is, so that a saved captioner is loaded by itself, wherever that
folder has gone.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from jaxtyping import Float
from torch import Tensor

from regard import index
from regard.config import as_dict, from_dict, override
from regard.errors import SettingError, UnknownName
from regard.lazy import LazyTable
from regard.nn.attention.masks import Causal, Real, join
from regard.nn.blocks.cross_decoder import CrossDecoder
from regard.nn.blocks.decoding_state import DecoderState
from regard.nn.vision.dense import Tap
from regard.nn.vision.encoder import Eyes
from regard.processors.image import Pixels
from regard.systems import SYSTEMS
from regard.systems.common.seq2seq_inputs import prompt_of, target_of
from regard.systems.common.system import System, check_sizes
from regard.types import Batch, States

SEEING: LazyTable[System] = LazyTable(
    {name: SYSTEMS.paths[name] for name in ("resnet", "bit", "vit", "hybrid", "swin")}
)
"""Systems that captioners can see through."""


@dataclass(frozen=True)
class Captioner:
    """Fields of every captioner."""

    encoder: str = "resnet-18"
    """what it sees through: a preset that reads pictures, made anew, or a folder of one, whose weights are taken"""
    seeing: dict[str, Any] = field(default_factory=dict)
    """changes of that preset, for example stride=2; then all that is known of it, which follows from model.encoder"""
    frozen: bool = False
    """what it sees through does not learn"""
    size: int = 224
    """side of the pictures; of a folder that of its own, where nothing else is said"""
    vocabulary: int = 10_000
    """tokens"""
    length: int = 64
    """longest caption, in tokens"""
    pad: int = 0
    """id of the padding token"""
    start: int = 1
    """id of the token that a caption starts from"""
    end: int = 2
    """id of the token that ends a caption"""

    sees: ClassVar[tuple[str, ...]] = tuple(SEEING)
    """systems that it can see through"""
    sizes: ClassVar[tuple[str, ...]] = ()
    """further fields that are sizes"""
    shares: ClassVar[tuple[str, ...]] = ("dropout",)
    """fields that are shares of something dropped"""

    def __post_init__(self) -> None:
        if os.sep in self.encoder:
            object.__setattr__(self, "encoder", os.path.abspath(os.path.expanduser(self.encoder)))
        check_sizes(self, ("size", "vocabulary", "length", *self.sizes), self.shares)
        object.__setattr__(self, "seeing", self._seen())
        self.looked_at()

    def _seen(self) -> dict[str, Any]:
        """All that is known of the body that it sees through. What was made for another `encoder` is forgotten."""
        known = self.seeing if self.seeing.get("name") == self.encoder or "name" not in self.seeing else {}
        if not {"name", "system", "config"} <= known.keys():
            known = _of_preset(self.encoder, {**known, "size": self.size})
        system = known.get("system")
        if system not in self.sees:
            raise SettingError(
                f"model.encoder={self.encoder} is of the system '{system}', and this captioner sees through "
                f"{' or '.join(self.sees)}.{_others(str(system), self.sees)}"
            )
        config = dict(known["config"])
        if os.sep not in self.encoder and self.encoder not in SEEING:  # of a preset, which is made for these pictures
            config["size"] = self.size
        made = from_dict(SEEING[system].config, config, "model.seeing.")
        return {"name": self.encoder, "system": system, "config": _plain(as_dict(made))}

    def body(self) -> tuple[System, Any]:
        """The system that it sees through, and its config."""
        system = SEEING[self.seeing["system"]]
        return system, from_dict(system.config, self.seeing["config"], "model.seeing.")

    @property
    def channels(self) -> int:
        """Of a picture."""
        return int(self.seeing["config"]["channels"])

    @property
    def folder(self) -> Path | None:
        """Where the weights of the body that it sees through come from, where it does not begin anew."""
        return Path(self.encoder) if os.sep in self.encoder else None

    def looked_at(self) -> tuple[Tap, bool]:
        """The map of that body that is looked at, and whether it is its last states."""
        taps = self.body()[1].maps()
        number = getattr(self, "tap", None)
        if number is None:
            return taps[-1], True
        if not 0 <= number < len(taps) or taps[number].at < 0:
            able = [str(n) for n, tap in enumerate(taps) if tap.at >= 0]
            raise SettingError(
                f"model.tap={number}: {self.encoder} offers {', '.join(able)}, from fine to coarse, or none."
            )
        return taps[number], False

    def eyes(self) -> Eyes:
        """The body that it sees through, made anew."""
        system, config = self.body()
        return Eyes(system.build(config), *self.looked_at(), frozen=self.frozen)

    def pixels(self) -> Pixels | None:
        """How pictures are made ready for a folder that says so, at the size of this captioner; None: nobody says it."""
        if self.folder is None or not Pixels.exists(self.folder):
            return None
        said = Pixels.load(self.folder).steady(self.size)
        return said if said.size == (self.size, self.size) else said.at(self.size, self.size)


def _of_preset(name: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    if os.sep in name:
        raise SettingError(f"model.encoder={name} is a folder, which 'regard train' and regard.build read.")
    owner = index.presets().get(name, "")
    for system in (SEEING[owner],) if owner in SEEING else SEEING.values():
        if name in system.presets:
            config = override(system.presets[name].config, changes, "model.seeing.")
            return {"name": name, "system": system.name, "config": as_dict(config)}
    known = [preset for system in SEEING.values() for preset in system.presets]
    raise UnknownName("encoder", name, known, "Name one of these presets, or a folder of such a model.")


def _others(system: str, sees: Sequence[str]) -> str:
    """Which captioners could."""
    able = "caption-fixed, caption-attend and caption-transformer"
    return f" With it: {able}." if system in SEEING and system not in sees else ""


def _plain(value: Any) -> Any:
    """As a file of JSON gives it back."""
    if isinstance(value, Mapping):
        return {key: _plain(part) for key, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, list | tuple) else value


class Looking:
    """What the bodies of captioners offer beside what they compute."""

    eyes: Eyes
    first_place = 0
    """of what is regarded, the first that lies in the picture"""

    def grid(self, batch: Batch) -> tuple[int, int]:
        """How the places lie in the picture: so many down and across, row by row."""
        return self.eyes.grid(batch.x)


def beside(seen: Tensor, batch: Batch) -> Tensor:
    """What was seen of each picture, beside every caption of it: a picture is looked at once, however many it has."""
    return seen if batch.owners is None else seen.index_select(0, batch.owners)


class Telling(Looking, CrossDecoder):
    """Captioners that speak as the Transformer does: every word looks at all words before it, and at the picture."""

    def encode(self, batch: Batch) -> Float[Tensor, "B K D"]:
        """What of the picture is looked at."""
        raise NotImplementedError

    def forward(self, batch: Batch) -> States:
        context, target = self.encode(batch), target_of(batch)
        rule = join(Causal(), None if batch.target_mask is None else Real(batch.target_mask))
        return States(self.tell(target, context, rule=rule), context=context)

    def start(self, batch: Batch, room: int | None = None) -> DecoderState:
        """Read the picture, and all but the last token of the prompt. With `room`, memory is made for that many positions."""
        return self.begin(self.encode(batch), None, prompt_of(batch), room)


def recipe(vocabulary: int, **train: Any) -> dict[str, dict[str, Any]]:
    """For some thousand pictures with a few captions each, all of it from nothing."""
    usual = {
        "steps": 4000, "images": 64, "accumulate": 1, "rate": 1e-3, "warmup": 0.05, "schedule": "cosine", "decay": 0.05,
        "betas": "0.9,0.98", "eps": 1e-8, "clip": 1.0, "smoothing": 0.1, "every": 500,
    }  # fmt: skip
    return {
        "train": {**usual, **train}, "data": {"vocabulary": vocabulary}, "decode": {"beam": 3, "penalty": 0.6},
    }  # fmt: skip


FURTHER = {"caption": {"train": {**recipe(1)["train"], "rate": 1e-4}}}
"""For weights that have learnt already."""
