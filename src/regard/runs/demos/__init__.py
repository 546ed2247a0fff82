"""What `regard demo` can show."""

from __future__ import annotations

from regard.runs.demos.caption import Captioner
from regard.runs.demos.clouds import Rooms
from regard.runs.demos.kind import Demo
from regard.runs.demos.translate import Translator

DEMOS: dict[str, Demo] = {shown.name: shown for shown in (Translator(), Captioner(), Rooms())}
