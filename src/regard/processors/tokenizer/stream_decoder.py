"""Tokens that come one by one -> text that comes bit by bit, and what was said is never taken back."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Protocol

from regard.errors import SettingError
from regard.processors.tokenizer.token_text import Form, ending, to_bytes
from regard.processors.tokenizer.tokenizer import Text


class Flow:
    """All that `add` and `end` return, joined, is the text of all tokens, cut before the first of the stop strings.

    The first is the one that begins first. `add` keeps back half a character and what may yet become a stop string."""

    def __init__(self, text: Text, until: Sequence[str] = ()) -> None:
        if isinstance(until, str) or not all(until):
            raise SettingError("stop strings are a list of texts, and none of them is empty.")
        self._text, self._until = text, tuple(until)
        self._reader = _reader(text)
        self._held = ""
        self.stopped = False
        """whether a stop string was met"""

    def add(self, ids: Sequence[int]) -> str:
        """The text that is now certain."""
        if self.stopped:
            return ""
        special, reader = self._text.special, self._reader
        self._held += "".join(reader.add(token) for token in ids if token not in special)
        first, may = self._stop(), self._begun()
        if first is not None and first <= may:
            return self._say(first, stopped=True)
        return self._say(may)

    def end(self) -> str:
        """The rest: nothing comes any more."""
        if self.stopped:
            return ""
        self._held += self._reader.end()
        first = self._stop()
        return self._say(len(self._held)) if first is None else self._say(first, stopped=True)

    def _say(self, until: int, stopped: bool = False) -> str:
        said, self._held, self.stopped = self._held[:until], "" if stopped else self._held[until:], stopped
        return said

    def _stop(self) -> int | None:
        """Where the first stop string begins."""
        found = [place for stop in self._until if (place := self._held.find(stop)) >= 0]
        return min(found, default=None)

    def _begun(self) -> int:
        """Where something begins that the next tokens may make a stop string of; otherwise the end."""
        longest = max(map(len, self._until), default=1) - 1
        places = range(max(0, len(self._held) - longest), len(self._held))
        begun = (place for place in places if any(stop.startswith(self._held[place:]) for stop in self._until))
        return next(begun, len(self._held))


class _Reader(Protocol):
    """Tokens -> text without regard to stop strings."""

    def add(self, token: int) -> str: ...
    def end(self) -> str: ...


def _reader(text: Text) -> _Reader:
    if text.form in (Form.BYTES, Form.SENTENCES):
        return _Bytes(text, strip=text.form is Form.SENTENCES)
    if text.form in (Form.JOINED, Form.WORDS):
        return _Words(text)
    return _Window(text)


class _Bytes:
    """Bytes, of which only whole characters are said; what can be none is U+FFFD, as in `decode`."""

    def __init__(self, text: Text, strip: bool) -> None:
        self._text, self._strip = text, strip
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token: int) -> str:
        return self._first(self._decoder.decode(to_bytes(self._text.name_of(token))))

    def end(self) -> str:
        return self._first(self._decoder.decode(b"", final=True))

    def _first(self, said: str) -> str:
        """Without the space that was put in front of the text, where one was."""
        if said and self._strip:
            self._strip = False
            return said.removeprefix(" ")
        return said


class _Words:
    """Names as they are; the ending of a word is a space once another token follows."""

    def __init__(self, text: Text) -> None:
        self._text, self._ending, self._rest = text, ending(text.backend), ""

    def add(self, token: int) -> str:
        before, name = self._rest, self._text.name_of(token)
        if not self._ending or not name:
            return name
        said, mark, after = name.partition(self._ending)
        self._rest = mark + after
        return before.replace(self._ending, " ") + said

    def end(self) -> str:
        return self._rest.replace(self._ending, "") if self._ending else ""


class _Window:
    """Any other tokenizer: what a token adds to the text of the last few. Half a character shows as U+FFFD at the end."""

    KEPT = 8
    """tokens that are decoded again with the next, and the most for which an end that is unreadable is kept back"""

    def __init__(self, text: Text) -> None:
        self._text = text
        self._said: list[int] = []
        self._new: list[int] = []

    def add(self, token: int) -> str:
        self._new.append(token)
        more = self.end()
        if more.endswith("\ufffd") and len(self._new) < self.KEPT:
            return ""
        self._said, self._new = (self._said + self._new)[-self.KEPT :], []
        return more

    def end(self) -> str:
        before, after = self._text.decode([self._said, self._said + self._new])
        return after[len(before) :]
