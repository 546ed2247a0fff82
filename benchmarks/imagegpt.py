"""ImageGPT on Fashion-MNIST: bits per pixel, samples, completions, and linear probes of all layers.

    python benchmarks/imagegpt.py DATA OUT [--model imagegpt-mini] [--set model.width=256 …]

DATA is the output of `benchmarks/fashion.py tables`. The checkpoint is selected on the validation split, which also selects the
regularization of the probes. The test images are evaluated once with the selected checkpoint: bits per pixel, completions of
lower halves, and probe accuracy per layer. Writes run/, probe.png, drawn.png and completions.png to OUT.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

import fashion
import harness
import synthetic

import regard
from regard.runs.evaluate import evaluate
from regard.runs.info import info


def main(argv: Sequence[str] | None = None) -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--model", default="imagegpt-mini")
    parser.add_argument("--set", nargs="*", default=[])
    parser.add_argument("--max-images", type=int, default=20_000, help="Maximum training images of the probes.")
    asked = parser.parse_args(argv)
    run, begun = asked.out / "run", time.perf_counter()
    train, valid, test = (str(asked.data / f"{part}.parquet") for part in ("train", "valid", "test"))
    harness.train(
        "draw",
        [train],
        out=run,
        model=asked.model,
        valid=[valid],
        settings=asked.set,
        resume=(run / "checkpoints").exists(),
    )
    told = {"seconds": round(time.perf_counter() - begun, 1), "parameters": info(str(run)).parameters}
    told["test"] = evaluate(run, [test]).scores
    print(json.dumps(told), flush=True)
    probed = regard.probe(
        run, [train], valid=[valid], test=[test], max_images=asked.max_images, out=asked.out / "probe.png"
    )
    print(probed, flush=True)
    for name in ("drawn.png", "completions.png"):
        if (run / name).exists():
            shutil.copy(run / name, asked.out / name)


def smoke(folder: Path) -> None:
    data = folder / "data"
    fashion.tables(synthetic.fashion(folder / "source"), data)
    tiny = ("model.image_size=8", *harness.TINY["encoder"], "train.batch_size=8")
    main([str(data), str(folder / "out"), "--max-images", "16", "--set", *tiny, *harness.SHORT])


if __name__ == "__main__":
    harness.run(main, smoke)
