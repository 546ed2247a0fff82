"""Demos of `regard demo`, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from regard.index import LazyTable

if TYPE_CHECKING:
    from regard.demos.run import Demo

DEMOS: LazyTable[type[Demo]] = LazyTable(
    {
        "translate": "regard.demos.run:TranslateDemo",
        "caption": "regard.demos.run:CaptionDemo",
        "clouds": "regard.demos.run:PointCloudDemo",
    }
)
