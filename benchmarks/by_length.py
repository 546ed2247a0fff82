"""Log-log plots of measurements by sequence length: a line of slope 1 is linear."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from regard.draw.colors import ACCENT, INK, LINE, MUTED, WARM

Rows = Sequence[Mapping[str, Any]]
COLOURS = (ACCENT, MUTED, WARM, INK)


def draw(
    rows: Rows, fields: Mapping[str, str], title: str, target: Path, colours: Mapping[str, str] | None = None
) -> None:
    """One panel per field ({"ms": "time, ms"}), one line per variant; lines that may overlap are dashed."""
    import matplotlib.pyplot as plt
    from matplotlib.ticker import LogLocator

    ways = list(dict.fromkeys(row["way"] for row in rows))
    colours = colours or dict(zip(ways, COLOURS, strict=False))
    shown = {key: name for key, name in fields.items() if any(key in row for row in rows)}
    figure, axes = plt.subplots(1, len(shown), figsize=(5.5 * len(shown), 4.2), constrained_layout=True, squeeze=False)
    for panel, (key, name) in zip(axes[0], shown.items(), strict=True):
        for way in ways:
            points = [(row["length"], row[key]) for row in rows if row["way"] == way and key in row]
            line = "--" if way in ("window", "linear") else "-"
            panel.plot(*zip(*points, strict=True), line, marker="o", ms=4, color=colours[way], label=way)
        lengths = sorted({row["length"] for row in rows})
        panel.set(xscale="log", yscale="log", title=name, xlabel="sequence length (tokens)")
        panel.set_xticks(lengths, [str(n) if n < 1024 else f"{n // 1024}k" for n in lengths], minor=False)
        panel.minorticks_off()
        panel.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        panel.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}")
        panel.grid(color=LINE, lw=0.5)
        panel.spines[["top", "right"]].set_visible(False)
    axes[0][0].legend(frameon=False)
    figure.suptitle(title, x=0.01, ha="left", weight="bold")
    figure.savefig(target, dpi=130)
