"""The embedded rooms: a Point Transformer that tells floor, wall, table, chair and lamp apart, point by point."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from regard.data.points.cloud_files import read_cloud
from regard.data.points.ply import write_ply
from regard.data.synthetic.point_clouds import cloud_recipe_of
from regard.demos.demo import Demo, Rows, Say, quoted
from regard.errors import RegardError
from regard.model import Model
from regard.tasks.metrics.segmentation_depth import said_of

ROOMS = {"train": 160, "valid": 16, "test": 32}
"""rooms of each part"""
ASKED = 3
"""rooms that are left as files for a person to see"""


class Rooms(Demo):
    name = "clouds"
    task = "segment"
    out = "runs/demo-clouds"
    metric = "miou"
    settings = (
        "data.features=none", "data.points=2048", "data.turn=up", "data.jitter=0.005", "train.passes=0", "train.steps=300",
        "train.clouds=4", "train.rate=4e-3", "train.every=100", "train.log=10", "data.score=16",
    )  # fmt: skip
    given = "cloud"
    titles = {  # noqa: RUF012
        "corpus": "The clouds: rooms made by regard, of 8,192 points each, with noise and holes",
        "train": "Training a Point Transformer on them: every point looks at its nearest neighbours",
        "score": f"Scoring it on all points of {ROOMS['test']} rooms it has never seen",
        "answer": "Asking it",
        "explain": "What a point looked at",
    }

    def write(self, folder: Path) -> dict[str, str]:
        """As PLY files whose points have a property `label`, so that a person can see what their own should look like."""
        paths = {}
        for part, many in ROOMS.items():
            recipe = cloud_recipe_of(f"rooms#part={part}")
            assert recipe is not None
            paths[part] = str(folder / part)
            (folder / part).mkdir(parents=True, exist_ok=True)
            for number in range(many):
                if not sound(path := folder / part / f"room-{number:03}.ply"):
                    write_ply(path, recipe.made(number))
        return paths

    def ask(self, model: Model, rows: Rows, say: Say) -> None:
        """Files that a person opens: the page turns under the mouse."""
        for path in [row["cloud"] for row in rows[:: max(len(rows) // ASKED, 1)]][:ASKED]:
            answer = model.answer(path)
            folder = Path(model.identity.source) / "answers"
            folder.mkdir(exist_ok=True)
            left = model.task.leave(Path(path).stem, answer, folder)
            say(said_of(path, answer).replace("\t", "  "))
            say(f"  {left['page']}")

    def explain(self, model: Model, run: Path, data: Mapping[str, str], rows: Rows, say: Say) -> dict[str, Any]:
        path = rows[0]["cloud"]
        cloud = read_cloud(path)
        chairs = np.flatnonzero(cloud.labels == cloud.classes.index("chair"))
        at = int(chairs[cloud.places[chairs, 2].argmax()])  # at the top of a back
        found = model.explain(path, at=at)
        say(f"point {at} of {path}: {found.title}")
        for suffix in ("html", "png"):
            say(f"{found.save(run / f'attention.{suffix}')}")
        return {}

    def further(self, regard: str, run: Path, data: Path) -> str:
        return f"""
Your own clouds: PLY files whose points have a property 'label' (or .npz, .xyz, .txt with a column of labels), then

  {regard} train segment --data scans/ --model point-tiny --set data.voxel=0.04 data.block=4 --out runs/mine
  {regard} evaluate runs/mine
  {regard} run runs/mine office.ply --out seen/
  {regard} explain runs/mine office.ply --at 1.2,0.5,0.8 --out looked.html

Or a folder of clouds or meshes for each class: {regard} train classify --data parts/ --model point-tiny --out runs/parts

What the demo made is in {run}. Ask it more:

  {regard} run {quoted(run)} {quoted(data / "test")} --out seen/
"""


def sound(path: Path) -> bool:
    """Whether an earlier demo left it whole."""
    try:
        return path.exists() and len(read_cloud(str(path))) > 0
    except RegardError:
        return False
