"""Content of written pages and figures."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any


def page_data(path: Path) -> dict[str, Any]:
    """Data embedded in an HTML page."""
    (data,) = re.findall(
        r'<script type="application/json" id="data">(.*?)</script>', path.read_text("utf-8"), re.DOTALL
    )
    found: dict[str, Any] = json.loads(data)
    return found


def page_tags(path: Path) -> list[str]:
    """Tags of a page in order, if the page contains no external reference."""
    text, tags = path.read_text("utf-8"), list[str]()
    assert not re.search(r"https?:|://|\bsrc=|\bhref=|url\(|@import|\bfetch\(|XMLHttpRequest|import\(|<!--", text)

    class Parser(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            tags.append(tag)
            assert not {name for name, _ in attrs} & {"src", "href", "srcset", "action"}

    Parser().feed(text)
    assert not {"link", "iframe", "object", "embed", "base"} & set(tags)
    return tags
