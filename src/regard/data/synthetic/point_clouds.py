"""Generated point cloud datasets by name, identical for the same name: `solids`, or `rooms#part=test,samples=50,noise=0.03`.

A name ends in a version, as in `solids-1`; without a version the newest is used. A number selects a single point cloud:
`solids-1#part=test,number=3`. The splits do not overlap.
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
"""Task of each dataset."""
DEFAULT_SAMPLES = {"solids-1": (2000, 500, 500), "rooms-1": (500, 50, 100)}
"""number of point clouds in train, valid and test, if `samples` is 0"""
DEFAULTS: dict[str, dict[str, Any]] = {
    "solids-1": {"points": 1024, "noise": 0.01, "holes": 1, "turn": "any"},
    "rooms-1": {"points": 8192, "noise": 0.01, "holes": 3, "turn": "up"},
}


@dataclass(frozen=True)
class CloudRecipe:
    """Settings of a generated dataset."""

    kind: str
    part: str = "train"
    """train, valid or test"""
    samples: int = 0
    """number of point clouds; 0: the default of the split"""
    points: int = 0
    """points per point cloud; 0: 1,024 for solids, 8,192 for rooms"""
    noise: float = -1.0
    """standard deviation of the noise, relative to the radius of a solid or in meters for rooms; -1: 0.01"""
    holes: int = -1
    """number of holes; each removes 3 to 12 % of the points of a solid, 0.5 to 3 % of a room; -1: 1 for solids, 3 for rooms"""
    turn: str = ""
    """none, up (about the vertical axis) or any; empty: any for solids, up for rooms"""
    number: int = -1
    """index of a single point cloud; -1: all"""

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
        """Name for `parse_cloud_recipe`, with all settings that differ from the defaults."""
        usual = CloudRecipe(self.kind)
        said = [
            f"{item.name}={getattr(self, item.name)}"
            for item in fields(self)
            if getattr(self, item.name) != getattr(usual, item.name)
        ]
        return self.kind + (f"#{','.join(said)}" if said else "")

    def for_split(self, split: str) -> CloudRecipe:
        """Recipe of the validation or test split of this dataset."""
        return replace(self, part=split, samples=0, number=-1)

    def label(self, index: int) -> str:
        """Class of a point cloud; empty if the points have labels."""
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
    """Recipe of a name such as `rooms#part=test`; None if the entry is a file."""
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
    """Index, name for `read_cloud`, and class of each point cloud."""
    for number in recipe.indices():
        yield number, str(replace(recipe, number=number, samples=0)), recipe.label(number)


def generate_cloud(name: str) -> PointCloud | None:
    """Point cloud of a name with `number`; None if the name is not a generated dataset."""
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
    """Classes of solids, or of the objects in rooms."""
    from regard.data.synthetic.furniture import CLASSES

    return tuple(SOLIDS) if recipe.task == "classify" else CLASSES
