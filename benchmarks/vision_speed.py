"""Training and inference of vision systems, compared with torchvision, timm and transformers in the same run.

    python benchmarks/vision_speed.py [case ...] [--steps 20] [--batch 256] [--device cuda] [--rounds 3]

Cases are SYSTEM:WORK:SIDE or a prefix: vit, swin, dpt; train, infer; regard, torchvision, timm, transformers. All sides are
compiled, with random weights and random pixels in device memory, 224 x 224 (DPT: 384, batch 32, inference only). The sides of a
case are timed in turn; the median over the rounds is reported. Training: bfloat16 autocast, cross-entropy over 1,000 classes,
fused AdamW, dropout 0; inference: bfloat16 weights. `regard` is also captured as a CUDA graph, as in `regard train`. On a CPU:
no compilation, DPT-Base instead of DPT-Large, and small batches.
"""

from __future__ import annotations

import gc
import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import harness
import torch
from clock import Clock, Step, ceiling
from torch import Tensor, nn
from torch.nn import functional as F

from regard import build
from regard.model import Model, assemble
from regard.nn.kernels.cuda_graph import capture
from regard.tasks.base import HeadOptions

GFLOP = {"vit": 17.58, "swin": 4.5, "dpt": 258.0}
"""Multiply-adds of one forward pass per image, in units of 10⁹; training has three times as many."""
CLASSES = 1000

Side = tuple[nn.Module, Callable[[Any, Tensor], Tensor]]


@dataclass(frozen=True)
class Size:
    """Preset with configuration overrides, and batch size."""

    model: str
    batch: int
    changes: dict[str, Any] = field(default_factory=dict)

    @property
    def config(self) -> Any:
        return build(self.model, device="meta", **self.changes).config


TINY: dict[str, Any] = {"image_size": 32, "width": 16, "depth": 4, "heads": 2, "ffn_dim": 32}
SIZES = {
    "cuda": {"vit": Size("vit-base-16", 256), "swin": Size("swin-tiny", 256), "dpt": Size("dpt-large", 32)},
    "cpu": {"vit": Size("vit-base-16", 4), "swin": Size("swin-tiny", 4), "dpt": Size("dpt-base", 1)},
    "smoke": {
        "vit": Size("vit-base-16", 2, TINY),
        "swin": Size("swin-mini", 2, {"width": 8, "depths": (1, 1, 1, 1), "heads": (1, 1, 2, 2)}),
        "dpt": Size("dpt-small", 2, {**TINY, "out_layers": (0, 1, 2, 3), "neck_dims": (8, 8, 16, 16), "fusion_dim": 8}),
    },
}
"""Sizes by mode (`harness.mode`) and system."""


def ours(system: str, size: Size) -> Side:
    model = build(size.model, task="depth" if system == "dpt" else "classify", device="meta", **size.changes)
    labels = () if system == "dpt" else tuple(map(str, range(CLASSES)))
    made: Model = assemble(replace(model.spec, options=HeadOptions(tuple(labels))), model.processor)
    for module in made.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if hasattr(module, "drop_prob") and type(module).__name__ == "DropPath":
            module.drop_prob = 0.0
    return made, lambda called, x: called(x)


def torchvision_side(system: str, size: Size) -> Side:
    import torchvision

    c = size.config
    if system == "swin":
        model = torchvision.models.SwinTransformer(
            [c.patch_size, c.patch_size], c.width, list(c.depths), list(c.heads), [c.window_size, c.window_size], c.mlp_ratio,
            stochastic_depth_prob=0.0, num_classes=CLASSES,
        )  # fmt: skip
    else:
        model = torchvision.models.VisionTransformer(
            c.image_size, c.patch_size, c.depth, c.heads, c.width, c.ffn_dim, num_classes=CLASSES
        )
    return model, lambda called, x: called(x)


def timm_side(system: str, size: Size) -> Side:
    import timm

    c = size.config
    if system == "swin":
        model = timm.create_model(
            "swin_tiny_patch4_window7_224", img_size=c.image_size, patch_size=c.patch_size, window_size=c.window_size,
            embed_dim=c.width,
            depths=c.depths, num_heads=c.heads, drop_path_rate=0.0,
        )  # fmt: skip
    else:
        model = timm.create_model(
            "vit_base_patch16_224", img_size=c.image_size, patch_size=c.patch_size, embed_dim=c.width, depth=c.depth,
            num_heads=c.heads,
            mlp_ratio=c.ffn_dim / c.width,
        )  # fmt: skip
    return model, lambda called, x: called(x)


def transformers_side(system: str, size: Size) -> Side:
    import transformers as t

    c = size.config
    sides = {"image_size": c.image_size, "patch_size": c.patch_size}
    if system == "swin":
        model: Any = t.SwinForImageClassification(
            t.SwinConfig(
                **sides, embed_dim=c.width, depths=list(c.depths), num_heads=list(c.heads), window_size=c.window_size,
                drop_path_rate=0.0, num_labels=CLASSES,
            )
        )  # fmt: skip
        return model, lambda called, x: called(pixel_values=x).logits
    sides |= {"hidden_size": c.width, "num_hidden_layers": c.depth, "num_attention_heads": c.heads}
    sides |= {"intermediate_size": c.ffn_dim}
    if system == "dpt":
        config = t.DPTConfig(
            **sides, backbone_out_indices=list(c.out_layers), neck_hidden_sizes=list(c.neck_dims),
            fusion_hidden_size=c.fusion_dim,
        )  # fmt: skip
        return t.DPTForDepthEstimation(config), lambda called, x: called(pixel_values=x).predicted_depth
    model = t.ViTForImageClassification(t.ViTConfig(**sides, num_labels=CLASSES, attn_implementation="sdpa"))
    return model, lambda called, x: called(pixel_values=x).logits


SIDES: dict[str, Callable[[str, Size], Side]] = {
    "regard": ours, "torchvision": torchvision_side, "timm": timm_side, "transformers": transformers_side,
}  # fmt: skip
PEERS = {"vit": tuple(SIDES), "swin": ("regard", "torchvision"), "dpt": ("regard", "transformers")}


def train(side: str, system: str, device: str, size: Size) -> Step:
    """A training step that returns its number of images."""
    model, call = SIDES[side](system, size)
    model = model.to(device).train()
    x = torch.randn(size.batch, 3, size.config.image_size, size.config.image_size, device=device)
    y = torch.randint(0, CLASSES, (size.batch,), device=device)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device == "cuda")
    called: Any = torch.compile(model) if device == "cuda" else model

    def learn() -> None:
        optimiser.zero_grad(set_to_none=True)
        with torch.autocast(device, torch.bfloat16):
            logits = call(called, x)
        F.cross_entropy(logits.float(), y).backward()

    again = capture(learn, torch.device(device))[0].replay if side == "regard" and device == "cuda" else learn

    def step(kept: Any = (x, y)) -> float:  # a CUDA graph holds no references to its inputs
        again()
        optimiser.step()
        return size.batch

    return step


def infer(side: str, system: str, device: str, size: Size) -> Step:
    """Inference on one batch in bfloat16, as a step that returns the number of images."""
    model, call = SIDES[side](system, size)
    model = model.to(device, torch.bfloat16).eval()
    x = torch.randn(size.batch, 3, size.config.image_size, size.config.image_size, device=device, dtype=torch.bfloat16)
    called: Any = torch.compile(model) if device == "cuda" else model
    with torch.inference_mode():
        work: Callable[[], Any] = lambda: call(called, x)  # noqa: E731
        if side == "regard" and device == "cuda":
            work = capture(work, torch.device(device))[0].replay

    def looked(kept: Any = (model, x)) -> float:  # a CUDA graph holds no references to its inputs
        with torch.inference_mode():
            work()
        return size.batch

    return looked


def main(argv: Sequence[str] | None = None) -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, help="Images per batch; for DPT at most 32.")
    parser.add_argument("--device", default=harness.device())
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args(argv)
    torch.set_float32_matmul_precision("high")
    clock = Clock(asked.device, asked.steps)
    print(
        torch.__version__, torch.cuda.get_device_name() if asked.device == "cuda" else "CPU", ceiling(clock), flush=True
    )
    there = {"regard", *(name for name in SIDES if name != "regard" and harness.installed(name))}
    for system, sides in PEERS.items():
        size = SIZES[harness.mode()][system]
        if asked.batch:
            size = replace(size, batch=min(asked.batch, 32) if system == "dpt" else asked.batch)
        for work in ("infer",) if system == "dpt" else ("train", "infer"):
            cases = [side for side in sides if side in there and _asked(f"{system}:{work}:{side}", asked.cases)]
            compare(system, work, cases, clock, size, asked.rounds)


def _asked(case: str, names: list[str]) -> bool:
    return not names or any(case.startswith(name) for name in names)


def compare(system: str, work: str, sides: list[str], clock: Clock, size: Size, rounds: int) -> None:
    ready: dict[str, Step] = {}
    for side in sides:
        try:
            ready[side] = (train if work == "train" else infer)(side, system, clock.device, size)
        except Exception as error:  # the remaining sides are still measured
            if harness.is_smoke():
                raise
            print(f"{system}:{work}:{side}", repr(error)[:1500], flush=True)
    # the first measurement includes compilation and is dropped
    times = {side: [size.batch / clock.row(step)] for side, step in ready.items()}
    for _ in range(rounds):
        for side, step in ready.items():
            times[side].append(size.batch / clock.row(step))
    found = {side: statistics.median(values[1:]) for side, values in times.items()}
    for side, speed in found.items():
        row: dict[str, Any] = {"images_per_s": round(speed, 1)}
        if harness.mode() == "cuda":  # GFLOP is counted for these sizes
            row["TFLOP_per_s"] = round(2e9 * GFLOP[system] * (3 if work == "train" else 1) * speed / 1e12, 1)
        row["rounds"] = [round(x, 1) for x in times[side][1:]]
        print(f"{system}:{work}:{side}", json.dumps(row), flush=True)
    best = max((value for side, value in found.items() if side != "regard"), default=0.0)
    if best and "regard" in found:
        print(f"{system} {work}: {found['regard'] / best:.3f} x the fastest peer", flush=True)
    ready.clear()
    torch._dynamo.reset()
    gc.collect()
    if clock.device == "cuda":
        torch.cuda.empty_cache()


def smoke(folder: Path) -> None:
    main(["--steps", "1", "--rounds", "1"])
    harness.left_out("compiled and captured steps")


if __name__ == "__main__":
    harness.run(main, smoke)
