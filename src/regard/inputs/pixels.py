"""Pictures -> pixels."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Pixels:
    size: tuple[int, int] = (224, 224)
