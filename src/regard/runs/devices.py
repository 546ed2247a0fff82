"""Device of a command."""

from __future__ import annotations

import torch

from regard.errors import SettingError
from regard.training.distributed import process_group_from_env


def pick_device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    kind = name.partition(":")[0]
    if kind not in available:
        raise SettingError(f"Unknown device '{name}'. Available: auto, cpu, cuda, mps.")
    if not available[kind]:
        raise SettingError(f"No {kind} device on this machine. Use --device auto or cpu.")
    world = process_group_from_env()
    found = torch.device("cuda", world.local_rank) if name == "cuda" and world.size > 1 else torch.device(name)
    if found.type == "cuda" and found.index is not None:
        if found.index >= torch.cuda.device_count():
            raise SettingError(
                f"No device {found}: this machine has {torch.cuda.device_count()} CUDA devices (numbered from 0)."
            )
        torch.cuda.set_device(found)  # launches without a device argument and CUDA graph capture use the current device
    return found
