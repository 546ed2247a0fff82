"""Generated point cloud datasets by name, identical for the same name: `solids`, or `rooms#part=test,samples=50,noise=0.03`.

A name ends in a version, as in `solids-1`; without a version the newest is used. A number selects a single point cloud:
`solids-1#part=test,number=3`. The splits do not overlap.

`solids`, for classification, is in solids.py, and `rooms`, for segmentation, in rooms.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from regard.data.points.cloud import PointCloud
from regard.data.synthetic import SPLITS, Recipe
from regard.data.synthetic.rooms import CLASSES, room_cloud
from regard.data.synthetic.solids import MAX_HOLES, SOLIDS, class_name, solid_cloud
from regard.errors import DataError

TASKS = {"solids-1": "classify", "rooms-1": "segment"}
DEFAULT_SAMPLES = {"solids-1": (2000, 500, 500), "rooms-1": (500, 50, 100)}
"""number of point clouds in train, valid and test, if `samples` is 0"""
UNSET = {"points": 0, "noise": -1.0, "holes": -1, "turn": ""}
"""values of settings for the defaults of `solid_cloud` and `room_cloud`"""


@dataclass(frozen=True)
class CloudRecipe(Recipe):
    """Settings of a generated dataset."""

    part: str = "train"
    samples: int = 0  # number of point clouds; 0: the default of the split
    points: int = 0  # points per point cloud; 0: 1,024 for solids, 8,192 for rooms
    noise: float = -1.0
    """standard deviation of the noise, relative to the radius of a solid or in meters for rooms; -1: 0.01"""
    holes: int = -1
    """number of holes; each removes 3 to 12 % of the points of a solid, 0.5 to 3 % of a room; -1: 1 for solids, 3 for rooms"""
    turn: str = ""  # none, up (about the vertical axis) or any; empty: any for solids, up for rooms
    number: int = -1  # index of a single point cloud; -1: all

    def __post_init__(self) -> None:
        self.check(
            {"samples": 0, "points": 0, "number": -1, "holes": -1},
            (self.turn in ("", "none", "up", "any"), "turn", "none, up or any", f"'{self.turn}'"),
            (self.holes <= MAX_HOLES, "holes", f"at most {MAX_HOLES}", self.holes),
            (self.noise >= 0 or self.noise == -1, "noise", "at least 0", self.noise),
        )

    @property
    def count(self) -> int:
        return self.samples or DEFAULT_SAMPLES[self.kind][SPLITS.index(self.part)]

    @property
    def task(self) -> str:
        return TASKS[self.kind]

    def for_split(self, split: str) -> CloudRecipe:
        return replace(super().for_split(split), number=-1)

    @property
    def classes(self) -> tuple[str, ...]:
        """Classes of solids, or of the objects in rooms."""
        return SOLIDS if self.task == "classify" else CLASSES

    def clouds(self) -> Iterator[tuple[int, str, str]]:
        """Index, name for `read_cloud`, and class of each point cloud; no class if the points have labels."""
        for index in range(self.count) if self.number < 0 else (self.number,):
            name = str(replace(self, number=index, samples=0))
            yield index, name, class_name(index) if self.task == "classify" else ""

    def generate(self, index: int) -> PointCloud:
        make: Callable[..., PointCloud] = solid_cloud if self.task == "classify" else room_cloud
        return make(self.part, index, **{name: vars(self)[name] for name in UNSET if vars(self)[name] != UNSET[name]})


def parse_cloud_recipe(entry: str) -> CloudRecipe | None:
    """Recipe of a name such as `rooms#part=test`; None if the entry is a file."""
    name = entry.partition("#")[0]
    kind = {"solids": "solids-1", "rooms": "rooms-1"}.get(name, name)  # the newest version
    return CloudRecipe(kind).with_settings(entry) if kind in TASKS else None


def generate_cloud(name: str) -> PointCloud | None:
    """Point cloud of a name with `number`; None if the name is not a generated dataset."""
    if (recipe := parse_cloud_recipe(name)) is None:
        return None
    if recipe.number < 0:
        sign = "," if "#" in name else "#"
        advice = f"Select one point cloud: {name}{sign}number=0."
        raise DataError("expected one point cloud, got a dataset.", name, advice=advice)
    return recipe.generate(recipe.number)
