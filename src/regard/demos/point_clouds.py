"""Point cloud demo: a Point Transformer segments generated rooms into floor, wall, table, chair and lamp."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from regard.data.points.cloud_files import read_cloud, write_ply
from regard.data.synthetic.point_clouds import parse_cloud_recipe
from regard.demos.run import Demo, LogFn, ResultRows, quote_path
from regard.errors import RegardError
from regard.model import Model
from regard.tasks.metrics.segmentation_depth import format_fractions

ROOM_COUNTS = {"train": 160, "valid": 16, "test": 32}
"""number of rooms per split"""
NUM_EXAMPLES = 3
"""rooms with predictions written to files"""


class PointCloudDemo(Demo):
    name = "clouds"
    task = "segment"
    out = "runs/demo-clouds"
    metric = "miou"
    settings = (
        "data.point_features=none",
        "data.num_points=2048",
        "data.rotate=up",
        "data.jitter=0.005",
        "train.epochs=0",
        "train.steps=300",
        "train.batch_size=4",
        "train.lr=4e-3",
        "train.eval_every=100",
        "train.log_every=10",
        "data.eval_samples=16",
    )
    input_key = "cloud"
    titles = {  # noqa: RUF012
        "corpus": "Data: generated point clouds of rooms, 8,192 points each, with noise and holes",
        "train": "Training: a Point Transformer, in which each point attends to the nearest neighbors",
        "score": f"Evaluation: all points of {ROOM_COUNTS['test']} unseen rooms",
        "predict": "Predictions",
        "explain": "Attention of a point",
    }

    def write_data(self, folder: Path) -> dict[str, str]:
        """Write PLY files with a property `label` per point, as an example of the format for users' own data."""
        paths = {}
        for part, many in ROOM_COUNTS.items():
            recipe = parse_cloud_recipe(f"rooms#part={part}")
            assert recipe is not None
            paths[part] = str(folder / part)
            (folder / part).mkdir(parents=True, exist_ok=True)
            for number in range(many):
                if not is_valid_cloud(path := folder / part / f"room-{number:03}.ply"):
                    write_ply(path, recipe.generate(number))
        return paths

    def show_predictions(self, model: Model, rows: ResultRows, log: LogFn) -> None:
        """Write predictions of some rooms, with an interactive page for each."""
        for path in [row["cloud"] for row in rows[:: max(len(rows) // NUM_EXAMPLES, 1)]][:NUM_EXAMPLES]:
            answer = model.predict(path)
            folder = Path(model.spec.source) / "answers"
            folder.mkdir(exist_ok=True)
            left = model.task.write_files(Path(path).stem, answer, folder)
            log(format_fractions(path, answer).replace("\t", "  "))
            log(f"  {left['page']}")

    def explain(self, model: Model, run: Path, data: Mapping[str, str], rows: ResultRows, log: LogFn) -> dict[str, Any]:
        path = rows[0]["cloud"]
        cloud = read_cloud(path)
        chairs = np.flatnonzero(cloud.labels == cloud.classes.index("chair"))
        at = int(chairs[cloud.coordinates[chairs, 2].argmax()])  # highest point of a backrest
        found = model.explain(path, at=at)
        log(f"Point {at} of {path}: {found.title}")
        for suffix in ("html", "png"):
            log(f"{found.save(run / f'attention.{suffix}')}")
        return {}

    def next_steps(self, program: str, run: Path, data: Path) -> str:
        return f"""
To train on your own point clouds, use PLY files whose points have a property 'label' (or .npz, .xyz, .txt with a label
column):

  {program} train segment --data scans/ --model point-tiny --set data.voxel_size=0.04 data.block_size=4 --out runs/mine
  {program} evaluate runs/mine
  {program} predict runs/mine office.ply --out predictions/
  {program} explain runs/mine office.ply --at 1.2,0.5,0.8 --out attention.html

To classify point clouds or meshes, with one folder per class:

  {program} train classify --data parts/ --model point-tiny --out runs/parts

The results of the demo are in {run}. To segment more rooms:

  {program} predict {quote_path(run)} {quote_path(data / "test")} --out predictions/
"""


def is_valid_cloud(path: Path) -> bool:
    """True if an earlier demo wrote the file completely."""
    try:
        return path.exists() and len(read_cloud(str(path))) > 0
    except RegardError:
        return False
