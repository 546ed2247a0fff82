"""Cross-attention of rnnsearch and of the Transformer on the same translation of a sentence that is reordered.

    python benchmarks/alignment.py RNNSEARCH TRANSFORMER "a sentence" --out alignment.png [--target "its translation"]

RNNSEARCH and TRANSFORMER are run folders, for example from `benchmarks/ancestors.py`. Both models are explained with the same
target: `--target`, or the prediction of rnnsearch. For the Transformer, the figure has the average over all heads of all
layers and the most concentrated head (the largest average of the maximum weight per target token).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import harness
import numpy as np
import synthetic

import regard


def regarded(run: Path, source: str, target: str | None) -> tuple[str, Any]:
    """The target (given or predicted) and its cross-attention map; the last map if no map is named cross."""
    model = regard.load(run)
    said = str(model.predict(source).value) if target is None else target
    looks = model.explain(source, said).maps
    return said, next((item for item in looks if "cross" in item.name), looks[-1])


def panel(axes: Any, weights: Any, item: Any, title: str) -> None:
    axes.imshow(weights, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    axes.set_xticks(range(len(item.keys)), item.keys, rotation=60, ha="left", fontsize=9)
    axes.set_yticks(range(len(item.queries)), item.queries, fontsize=9)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_title(title, fontsize=10, y=-0.08)


def main(argv: Sequence[str] | None = None) -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("rnnsearch", type=Path)
    parser.add_argument("transformer", type=Path)
    parser.add_argument("source")
    parser.add_argument("--target")
    parser.add_argument("--out", type=Path, default=Path("alignment.png"))
    asked = parser.parse_args(argv)
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    said, first = regarded(asked.rnnsearch, asked.source, asked.target)
    print(said)
    print(regard.load(asked.transformer).predict(asked.source).value)
    _, second = regarded(asked.transformer, asked.source, said)
    sharp = second.weights.max(-1).mean(-1)  # (layers, heads)
    layer, head = np.unravel_index(int(sharp.argmax()), sharp.shape)
    print(f"most concentrated head: layer {layer + 1}, head {head + 1}, average maximum weight {sharp.max():.3f}")
    shown, axes = plt.subplots(1, 3, figsize=(15, 5), layout="constrained")
    panel(axes[0], first.weights[0, 0], first, "rnnsearch: attention")
    panel(axes[1], second.weights.mean((0, 1)), second, "Transformer: average over layers and heads")
    title = f"Transformer: layer {layer + 1}, head {head + 1} (most concentrated)"
    panel(axes[2], second.weights[layer, head], second, title)
    shown.savefig(asked.out, dpi=110)


def smoke(folder: Path) -> None:
    data = synthetic.parallel(folder / "data", ("train",))
    short = [
        *harness.SHORT,
        "train.batch_tokens=256",
        "data.vocab_size=300",
        "decode.num_beams=1",
        "decode.max_extra_tokens=4",
    ]
    for system in ("rnnsearch", "transformer"):
        files = f"{data / 'train.en.gz'}:{data / 'train.de.gz'}"
        settings = [*short, *harness.TINY[system]]
        harness.train("translate", files, model=f"{system}-tiny", out=folder / system, settings=settings)
    runs = [str(folder / "rnnsearch"), str(folder / "transformer")]
    main([*runs, "the cat sees the house .", "--out", str(folder / "alignment.png")])
    main([*runs, "the cat sees .", "--target", ". sees cat the", "--out", str(folder / "given.png")])


if __name__ == "__main__":
    harness.run(main, smoke)
