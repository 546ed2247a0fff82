"""Clouds that are made by their name, the same for the same name: `solids`, or `rooms#part=test,samples=50,noise=0.03`.

A name ends in the version of what is made, `solids-1`; without it the newest is meant. One cloud of them is called by its
number: `solids-1#part=test,number=3`. Parts to learn from, to validate and to test by have nothing in common.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

from regard.config import override
from regard.data.points.cloud import PointCloud
from regard.data.synthetic.corruption import MAX_HOLES, RotationMode
from regard.data.synthetic.rooms import room_cloud
from regard.data.synthetic.solids import MESH_BUILDERS as SOLIDS
from regard.data.synthetic.solids import class_name, solid_cloud
from regard.errors import DataError, SettingError, UnknownNameError

SPLITS = ("train", "valid", "test")
LATEST_VERSIONS = {"solids": "solids-1", "rooms": "rooms-1"}
TASKS = {"solids-1": "classify", "rooms-1": "segment"}
"""What is learnt from each."""
DEFAULT_SAMPLES = {"solids-1": (2000, 500, 500), "rooms-1": (500, 50, 100)}
"""clouds of each part, where nobody says how many"""
DEFAULTS: dict[str, dict[str, Any]] = {
    "solids-1": {"points": 1024, "noise": 0.01, "holes": 1, "turn": "any"},
    "rooms-1": {"points": 8192, "noise": 0.01, "holes": 3, "turn": "up"},
}


@dataclass(frozen=True)
class CloudRecipe:
    """What is made, and how much of it."""

    kind: str
    part: str = "train"
    """train, valid or test"""
    samples: int = 0
    """clouds; 0: as many as is usual for the part"""
    points: int = 0
    """points of each; 0: 1,024 of a solid, 8,192 of a room"""
    noise: float = -1.0
    """the deviation of every point, in radii of a solid or metres of a room; -1: 0.01"""
    holes: int = -1
    """balls of points that are missing, each 3 to 12 % of a solid, to 3 % of a room; -1: one in a solid, three in a room"""
    turn: str = ""
    """none, up (about the axis upwards) or any; nothing: solids are turned any way, rooms about the axis upwards"""
    number: int = -1
    """one cloud alone, from 0; -1: all"""

    def __post_init__(self) -> None:
        for name, least in (("samples", 0), ("points", 0), ("number", -1), ("holes", -1)):
            if getattr(self, name) < least:
                raise SettingError(f"{self.kind}: {name} must be at least {least}, got {getattr(self, name)}.")
        if self.part not in SPLITS:
            raise SettingError(
                f"{self.kind}: part must be {', '.join(SPLITS[:-1])} or {SPLITS[-1]}, got '{self.part}'."
            )
        if self.turn not in ("", "none", "up", "any"):
            raise SettingError(f"{self.kind}: turn must be none, up or any, got '{self.turn}'.")
        if self.holes > MAX_HOLES:
            raise SettingError(f"{self.kind}: holes must be at most {MAX_HOLES}, got {self.holes}.")
        if self.noise < 0 and self.noise != -1:
            raise SettingError(f"{self.kind}: noise must be at least 0, got {self.noise}.")

    @property
    def count(self) -> int:
        return self.samples or DEFAULT_SAMPLES[self.kind][SPLITS.index(self.part)]

    @property
    def task(self) -> str:
        return TASKS[self.kind]

    def __str__(self) -> str:
        """As it is read again: what is not as usual stands behind the name."""
        usual = CloudRecipe(self.kind)
        said = [
            f"{item.name}={getattr(self, item.name)}"
            for item in fields(self)
            if getattr(self, item.name) != getattr(usual, item.name)
        ]
        return self.kind + (f"#{','.join(said)}" if said else "")

    def for_split(self, split: str) -> CloudRecipe:
        """The clouds to validate or to test by, of those that are learnt from."""
        return replace(self, part=split, samples=0, number=-1)

    def label(self, index: int) -> str:
        """The class of one of them; nothing where its points have classes."""
        return class_name(index) if self.task == "classify" else ""

    def indices(self) -> range:
        return range(self.count) if self.number < 0 else range(self.number, self.number + 1)

    def generate(self, index: int) -> PointCloud:
        usual = DEFAULTS[self.kind]
        points = self.points or usual["points"]
        noise = usual["noise"] if self.noise < 0 else self.noise
        holes = usual["holes"] if self.holes < 0 else self.holes
        turn: RotationMode = self.turn or usual["turn"]  # type: ignore[assignment]
        make = solid_cloud if self.task == "classify" else room_cloud
        return make(self.part, index, points, noise, holes, turn)


def parse_cloud_recipe(entry: str) -> CloudRecipe | None:
    """What a name stands for; None where it is no name but a file."""
    said_kind, sign, rest = entry.partition("#")
    kind = LATEST_VERSIONS.get(said_kind, said_kind)
    if kind not in TASKS:
        return None
    said: dict[str, Any] = {}
    for item in filter(None, (part.strip() for part in rest.split(","))) if sign else ():
        name, equals, value = item.partition("=")
        known = [field.name for field in fields(CloudRecipe) if field.name != "kind"]
        if name not in known:
            raise UnknownNameError(f"{said_kind} setting", name, known)
        if not equals:
            raise DataError(f"missing value for '{item}'.", entry, advice=f"Use {name}=VALUE.")
        said[name] = value
    return override(CloudRecipe(kind), said, f"{said_kind}#")


def iter_recipe_clouds(recipe: CloudRecipe) -> Iterator[tuple[int, str, str]]:
    """Of each cloud its number, a name that `read_cloud` makes it by, and its class."""
    for number in recipe.indices():
        yield number, str(replace(recipe, number=number, samples=0)), recipe.label(number)


def generate_cloud(name: str) -> PointCloud | None:
    """The one cloud that a name stands for; None where it stands for no clouds."""
    recipe = parse_cloud_recipe(name)
    if recipe is None:
        return None
    if recipe.number < 0:
        sign = "," if "#" in name else "#"
        raise DataError(
            "expected one point cloud, got a dataset.", name, advice=f"Select one point cloud: {name}{sign}number=0."
        )
    return recipe.generate(recipe.number)


def recipe_classes(recipe: CloudRecipe) -> tuple[str, ...]:
    """What is told apart: kinds of solids, or what stands in rooms."""
    from regard.data.synthetic.furniture import CLASSES

    return tuple(SOLIDS) if recipe.task == "classify" else CLASSES
