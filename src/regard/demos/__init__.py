"""Demos of `regard demo`, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from regard.lazy import LazyTable

if TYPE_CHECKING:
    from regard.demos.run import Demo

DEMOS: LazyTable[Demo] = LazyTable({
    "translate": "regard.demos.translate:TranslateDemo",
    "caption": "regard.demos.caption:CaptionDemo",
    "clouds": "regard.demos.point_clouds:PointCloudDemo",
}, instantiate=True)  # fmt: skip
