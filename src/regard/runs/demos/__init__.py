"""What `regard demo` can show."""

from __future__ import annotations

from typing import TYPE_CHECKING

from regard.lazy import LazyTable

if TYPE_CHECKING:
    from regard.runs.demos.kind import Demo

DEMOS: LazyTable[Demo] = LazyTable({
    "translate": "regard.runs.demos.translate:Translator",
    "caption": "regard.runs.demos.caption:Captioner",
    "clouds": "regard.runs.demos.clouds:Rooms",
}, instances=True)  # fmt: skip
