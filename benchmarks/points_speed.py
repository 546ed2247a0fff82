"""Time and memory of point clouds of growing size: Point Transformer compared with dense 3-D convolutions.

    python benchmarks/points_speed.py [--device cpu|cuda] [--points 1024 4096 …] [--out FILE.json] [--draw FILE.png]

The point clouds are rooms: six walls of 6 x 5 x 3 meters with slight roughness, one color per point, and 13 classes. `point` is
point-base for segment, one point cloud, forward and backward; `search` is its neighbor and farthest-point search alone;
`voxels` is a U-Net of dense 3-D convolutions with about as many parameters, on a grid with as many wall voxels as points (two
thirds are occupied, because points are random). float32 on the CPU, bfloat16 autocast on CUDA. A case stops at the first size
that takes longer than --seconds or exceeds --memory GiB or the available memory. On the CPU each case runs in its own process,
and memory is the increase of peak resident memory; on CUDA it is the peak of allocated memory. graph_ms is the time of the
same step as a CUDA graph. Results are merged into an existing --out file.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import harness
import torch
from clock import Clock
from torch import Tensor, nn
from torch.nn import functional as F

from regard.nn.kernels.cuda_graph import capture
from regard.nn.points.body import build_hierarchy, point_head
from regard.systems.point import PRESETS, build
from regard.types import Batch, Packing

SIDES = torch.tensor([6.0, 5.0, 3.0])
CLASSES = 13
CASES = ("point", "search", "voxels")
SIZES = [1024, 4096, 16_384, 65_536, 200_000]


def room(count: int) -> Tensor:
    """Coordinates and colors, (count, 6); points per wall are proportional to its area."""
    draw = torch.Generator().manual_seed(count)
    areas = torch.stack([SIDES.prod() / side for side in SIDES])
    axis = torch.multinomial(areas, count, replacement=True, generator=draw)
    places = torch.rand(count, 3, generator=draw) * SIDES
    behind = torch.randint(2, (count,), generator=draw)
    rows = torch.arange(count)
    places[rows, axis] = SIDES[axis] * behind + 0.005 * torch.randn(count, generator=draw)
    return torch.cat([places, torch.rand(count, 3, generator=draw)], 1)


class Voxels(nn.Module):
    """U-Net of four levels with two convolutions per level, on a dense grid."""

    def __init__(self, inputs: int, widths: tuple[int, ...] = (38, 76, 152, 304)) -> None:
        super().__init__()

        def pair(before: int, after: int) -> nn.Sequential:
            parts: list[nn.Module] = []
            for size in (before, after):
                parts += [nn.Conv3d(size, after, 3, padding=1, bias=False), nn.BatchNorm3d(after), nn.ReLU()]
            return nn.Sequential(*parts)

        self.down = nn.ModuleList(pair(*sizes) for sizes in zip((inputs, *widths), widths, strict=False))
        steps = list(pairwise(widths))
        self.rise = nn.ModuleList(nn.ConvTranspose3d(coarse, fine, 2, 2) for fine, coarse in steps)
        self.up = nn.ModuleList(pair(2 * fine, fine) for fine, _ in steps)
        self.classes = nn.Conv3d(widths[0], CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for number, level in enumerate(self.down):
            x = level(F.max_pool3d(x, 2) if number else x)
            kept.append(x)
        for number in reversed(range(len(self.up))):
            x = self.up[number](torch.cat([self.rise[number](x), kept[number]], 1))
        return self.classes(x)


def gridded(x: Tensor) -> tuple[Tensor, Tensor]:
    """Occupancy and color of each voxel, (1, 4, X, Y, Z), and the flat voxel index of each point."""
    surface = 2 * float(sum(SIDES.prod() / side for side in SIDES))
    edge = (surface / len(x)) ** 0.5
    shape = [-(-int(float(side) / edge + 3) // 8) * 8 for side in SIDES]  # divisible by 8 for three poolings
    cells = ((x[:, :3] - x[:, :3].amin(0)) / edge).long()
    at = (cells[:, 0] * shape[1] + cells[:, 1]) * shape[2] + cells[:, 2]
    grid = torch.zeros(4, shape[0] * shape[1] * shape[2])
    grid[0, at] = 1.0
    grid[1:, at] = x[:, 3:].T
    return grid.view(1, 4, *shape), at


def work(case: str, count: int, device: str) -> tuple[Callable[[], Any], dict[str, Any]]:
    torch.manual_seed(0)
    x, labels = room(count), torch.randint(0, CLASSES, (count,)).to(device)
    tiny = (
        {"widths": (8, 16), "depths": (1, 1), "downsample": (1, 4), "num_neighbors": (4, 4)}
        if harness.is_smoke()
        else {}
    )
    config = PRESETS["point-base"].config.__class__(feature_dim=3, point_order="sorted", **tiny)
    low = torch.autocast(device, torch.bfloat16, enabled=device == "cuda")
    if case == "search":
        rows, offsets = x.to(device), Packing(torch.tensor([0, count], device=device), count)
        return lambda: build_hierarchy(rows, offsets, config.downsample[1:], config.num_neighbors, True, True), {}
    if case == "point":
        body, head = build(config).to(device), point_head(config, CLASSES).to(device)
        batch = Batch(x[None].to(device))

        def said() -> Tensor:
            return head(body(batch).sequence)[0]

        parts = [*body.parameters(), *head.parameters()]
        facts: dict[str, Any] = {}
    else:
        net = (Voxels(4, (4, 8)) if harness.is_smoke() else Voxels(4)).to(device)
        grid, at = (part.to(device) for part in gridded(x))

        def said() -> Tensor:
            return net(grid).flatten(2)[0].T[at]

        parts = list(net.parameters())
        facts = {"grid": list(grid.shape[2:]), "occupied": len(at.unique())}

    def step() -> None:
        for part in parts:
            part.grad = None
        with low:
            logits = said()
        F.cross_entropy(logits.float(), labels).backward()

    return step, {**facts, "parameters": sum(part.numel() for part in parts)}


def peak() -> int:
    """Peak resident memory of this process in bytes."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def measured(case: str, count: int, asked: argparse.Namespace) -> dict[str, Any]:
    """Time and memory of one case, measured in this process."""
    clock, cuda = Clock(asked.device, asked.steps), asked.device == "cuda"
    action, facts = work(case, count, asked.device)
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    elif asked.memory:
        limit = int(asked.memory * 2**30)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    before = 0 if cuda else peak()
    begun = clock.now()
    action()
    first = clock.now() - begun
    slow = first > asked.seconds
    seconds = first if slow else clock.median(action, warm=1)
    most = torch.cuda.max_memory_allocated() if cuda else peak() - before
    if cuda and not slow:
        facts |= recorded(action, clock)
    found = {"ms": round(1000 * seconds, 2), "GiB": round(most / 2**30, 3), **facts}
    return {**found, "stopped": f"a step takes longer than {asked.seconds:g} s"} if slow else found


def recorded(action: Callable[[], Any], clock: Clock) -> dict[str, Any]:
    """Time of the same step as one CUDA graph, as `regard train` runs it if all point clouds have the same size."""
    try:
        return {"graph_ms": round(1000 * clock.median(capture(action, torch.device("cuda"))[0].replay, warm=1), 2)}
    except RuntimeError as error:
        return {"graph": str(error).splitlines()[0][:200]}


def alone(case: str, count: int, asked: argparse.Namespace) -> dict[str, Any]:
    """Measurement in a separate process, because the process may run out of memory or time."""
    words = [sys.executable, __file__, "--one", case, "--points", str(count), "--device", asked.device]
    words += ["--steps", str(asked.steps), "--seconds", str(asked.seconds), "--memory", str(asked.memory)]
    words += ["--threads", str(asked.threads)]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=20 + (2 + asked.steps) * asked.seconds)
    except subprocess.TimeoutExpired:
        return {"stopped": f"a step takes longer than {asked.seconds:g} s"}
    if done.returncode:
        short = "memory" in done.stderr or "alloc" in done.stderr or done.returncode < 0
        return {"stopped": "out of memory" if short else done.stderr[-500:]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def tried(case: str, count: int, asked: argparse.Namespace) -> dict[str, Any]:
    if asked.device != "cuda" and not harness.is_smoke():
        return alone(case, count, asked)
    try:
        return measured(case, count, asked)
    except torch.OutOfMemoryError:
        return {"stopped": "out of memory"}


def draw(found: dict[str, Any], picture: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    shown, places = plt.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
    names = {"point": "Point Transformer", "search": "neighbor search only", "voxels": "dense convolutions"}
    colours = {"point": "#1f6f8b", "search": "#7fb3c4", "voxels": "#c2571a"}
    for device, cases in found.items():
        for case, rows in cases.items():
            for axes, key, unit in zip(places, ("ms", "GiB"), (1000, 1), strict=True):
                best = "graph_ms" if key == "ms" else key
                got = [(int(n), row.get(best, row[key]) / unit) for n, row in rows.items() if row.get(key, 0) > 0]
                if got and (key == "ms" or case != "search"):
                    style = "-o" if device == "cuda" else "--s"
                    label = f"{names[case]}, {'GPU' if device == 'cuda' else 'CPU'}"
                    axes.plot(*zip(*got, strict=True), style, color=colours[case], label=label, markersize=4)
    for axes, title in zip(places, ("time, forward and backward, s", "memory, GiB"), strict=True):
        axes.set(xscale="log", yscale="log", xlabel="points", title=title)
        axes.grid(alpha=0.25)
    places[0].legend(frameon=False, fontsize=8)
    shown.savefig(picture, dpi=130)


def main(argv: Sequence[str] | None = None) -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--device", default=harness.device())
    parser.add_argument("--points", type=int, nargs="+", default=SIZES)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--memory", type=float, default=0.0, help="Memory limit in GiB on the CPU; 0: no limit.")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads; 0: all.")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--draw", type=Path)
    parser.add_argument("--one", choices=CASES, help=argparse.SUPPRESS)
    asked = parser.parse_args(argv)
    if asked.threads:
        torch.set_num_threads(asked.threads)
    if asked.one:
        print(json.dumps(measured(asked.one, asked.points[0], asked)))
        return
    known = json.loads(asked.out.read_text()) if asked.out and asked.out.exists() else {}
    for case in asked.cases:
        for count in sorted(asked.points):
            row = tried(case, count, asked)
            known.setdefault(asked.device, {}).setdefault(case, {})[str(count)] = row
            print(asked.device, case, f"{count:,}", json.dumps(row), flush=True)
            if asked.out:
                asked.out.write_text(json.dumps(known, indent=1))
            if "stopped" in row:
                break
    if asked.draw:
        draw(known, asked.draw)


def smoke(folder: Path) -> None:
    out, picture = folder / "points.json", folder / "points.png"
    main(["--points", "64", "128", "--steps", "1", "--out", str(out), "--draw", str(picture)])
    harness.left_out("graph_ms")


if __name__ == "__main__":
    harness.run(main, smoke)
