"""Training and inference of vision systems beside torchvision, timm and transformers, in the same run.

    python benchmarks/vision_speed.py [case ...] [--steps 20] [--batch 256] [--device cuda] [--rounds 3]

Cases are SYSTEM:WORK:SIDE, or a part of that from its beginning: vit, swin, dpt; train, infer; ours, torchvision, timm,
transformers. All sides are compiled, have random weights and pixels that lie on the device, 224 x 224 (DPT 384, a batch of 32,
inference only). The sides of a case are timed in turn, and the median of the rounds counts. Training: bfloat16 autocast,
cross-entropy over 1,000 classes, fused AdamW, dropout 0; inference: bfloat16 weights. Ours are recorded as CUDA graphs besides,
as `regard train` does it.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
from collections.abc import Callable
from typing import Any

import torch
from clock import Clock, ceiling
from torch import Tensor, nn
from torch.nn import functional as F

from regard import build
from regard.model import Model, assemble
from regard.nn.graphs import record

GFLOP = {"vit": 17.58, "swin": 4.5, "dpt": 258.0}
"""Multiplications and additions of a forward pass of one picture, a pair as one; training has three times as many."""

Side = tuple[nn.Module, Callable[[Any, Tensor], Tensor]]


def labelled(name: str, task: str, count: int) -> Model:
    from dataclasses import replace

    model = build(name, task=task, device="meta")
    identity = replace(model.identity, labels=tuple(map(str, range(count))) if count else ())
    return assemble(identity, model.reader)


def ours(system: str) -> Side:
    name, task, count = {
        "vit": ("vit-base-16", "classify", 1000),
        "swin": ("swin-tiny", "classify", 1000),
        "dpt": ("dpt-large", "depth", 0),
    }[system]
    model = labelled(name, task, count)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if hasattr(module, "share") and type(module).__name__ == "DropPath":
            module.share = 0.0
    return model, lambda called, x: called(x)


def torchvision_side(system: str) -> Side:
    import torchvision

    model = {"vit": torchvision.models.vit_b_16, "swin": torchvision.models.swin_t}[system]()
    for module in model.modules():
        if isinstance(module, torchvision.ops.StochasticDepth):
            module.p = 0.0
    return model, lambda called, x: called(x)


def timm_side(system: str) -> Side:
    import timm

    return timm.create_model({"vit": "vit_base_patch16_224", "swin": "swin_tiny_patch4_window7_224"}[system]), (
        lambda called, x: called(x)
    )


def transformers_side(system: str) -> Side:
    import transformers as t

    if system == "dpt":
        config = t.DPTConfig(
            hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096,
            backbone_out_indices=[5, 11, 17, 23], neck_hidden_sizes=[256, 512, 1024, 1024],
        )  # fmt: skip
        return t.DPTForDepthEstimation(config), lambda called, x: called(pixel_values=x).predicted_depth
    if system == "swin":
        model: Any = t.SwinForImageClassification(t.SwinConfig(num_labels=1000, drop_path_rate=0.0))
    else:
        model = t.ViTForImageClassification(t.ViTConfig(num_labels=1000, attn_implementation="sdpa"))
    return model, lambda called, x: called(pixel_values=x).logits


SIDES: dict[str, Callable[[str], Side]] = {
    "ours": ours, "torchvision": torchvision_side, "timm": timm_side, "transformers": transformers_side,
}  # fmt: skip
PEERS = {"vit": tuple(SIDES), "swin": ("ours", "torchvision"), "dpt": ("ours", "transformers")}


def train(side: str, system: str, clock: Clock, count: int) -> Callable[[], Any]:
    """A step, ready to be repeated."""
    model, call = SIDES[side](system)
    model = model.to(clock.device).train()
    x = torch.randn(count, 3, 224, 224, device=clock.device)
    y = torch.randint(0, 1000, (count,), device=clock.device)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=clock.device == "cuda")
    called: Any = torch.compile(model)

    def learn() -> None:
        optimiser.zero_grad(set_to_none=True)
        with torch.autocast(clock.device, torch.bfloat16):
            logits = call(called, x)
        F.cross_entropy(logits.float(), y).backward()

    again = record(learn, torch.device(clock.device))[0].replay if side == "ours" and clock.device == "cuda" else learn

    def step(kept: Any = (x, y)) -> None:  # a recording does not hold what it reads
        again()
        optimiser.step()

    return step


def infer(side: str, system: str, clock: Clock, count: int) -> Callable[[], Any]:
    model, call = SIDES[side](system)
    model = model.to(clock.device, torch.bfloat16).eval()
    size = 384 if system == "dpt" else 224
    x = torch.randn(count, 3, size, size, device=clock.device, dtype=torch.bfloat16)
    called: Any = torch.compile(model)
    with torch.inference_mode():
        work: Callable[[], Any] = lambda: call(called, x)  # noqa: E731
        if side == "ours" and clock.device == "cuda":
            work = record(work, torch.device(clock.device))[0].replay

    def looked(kept: Any = (model, x)) -> None:  # a recording does not hold what it reads
        with torch.inference_mode():
            work()

    return looked


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    clock = Clock(asked.device, asked.steps)
    print(
        torch.__version__, torch.cuda.get_device_name() if asked.device == "cuda" else "CPU", ceiling(clock), flush=True
    )
    for system, sides in PEERS.items():
        for work in ("infer",) if system == "dpt" else ("train", "infer"):
            count = min(asked.batch, 32) if system == "dpt" else asked.batch
            cases = [side for side in sides if _asked(f"{system}:{work}:{side}", asked.cases)]
            compare(system, work, cases, clock, count, asked.rounds)


def _asked(case: str, names: list[str]) -> bool:
    return not names or any(case.startswith(name) for name in names)


def compare(system: str, work: str, sides: list[str], clock: Clock, count: int, rounds: int) -> None:
    ready: dict[str, Callable[[], Any]] = {}
    for side in sides:
        try:
            ready[side] = (train if work == "train" else infer)(side, system, clock, count)
        except Exception as error:  # the others are still worth their time
            print(f"{system}:{work}:{side}", repr(error)[:1500], flush=True)
    # the first row compiles what is not yet, and does not count
    times = {side: [count / clock.row(step)] for side, step in ready.items()}
    for _ in range(rounds):
        for side, step in ready.items():
            times[side].append(count / clock.row(step))
    found = {side: statistics.median(values[1:]) for side, values in times.items()}
    for side, speed in found.items():
        flops = 2e9 * GFLOP[system] * (3 if work == "train" else 1) * speed
        row = {"images_per_s": round(speed), "TFLOP_per_s": round(flops / 1e12, 1)}
        print(f"{system}:{work}:{side}", json.dumps(row | {"rounds": [round(x) for x in times[side][1:]]}), flush=True)
    best = max((value for side, value in found.items() if side != "ours"), default=0.0)
    if best and "ours" in found:
        print(f"{system} {work}: {found['ours'] / best:.3f} x the best of the others", flush=True)
    ready.clear()
    torch._dynamo.reset()
    gc.collect()
    if clock.device == "cuda":
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
