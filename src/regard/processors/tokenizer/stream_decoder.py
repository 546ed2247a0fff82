"""Incremental decoding: text for tokens as they are generated; returned text never changes later."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Protocol

from regard.errors import SettingError
from regard.processors.tokenizer.token_text import TokenFormat, to_bytes, word_suffix
from regard.processors.tokenizer.tokenizer import TextTokenizer


class StreamDecoder:
    """The joined results of `add` and `end` are the text of all tokens, cut before the earliest stop string.

    `add` holds back incomplete characters and text that may become a stop string."""

    def __init__(self, text: TextTokenizer, stop: Sequence[str] = ()) -> None:
        if isinstance(stop, str) or not all(stop):
            raise SettingError("Stop strings must be a list of non-empty strings.")
        self._text, self._stop_strings = text, tuple(stop)
        self._detokenizer: _Detokenizer
        if text.token_format.is_byte_level:
            self._detokenizer = _ByteDetokenizer(text, strip=text.token_format is TokenFormat.PREFIXED_BYTES)
        elif text.token_format in (TokenFormat.CHARACTERS, TokenFormat.WORD_SUFFIX):
            self._detokenizer = _WordDetokenizer(text)
        else:
            self._detokenizer = _WindowDetokenizer(text)
        self._pending = ""
        self.stopped = False
        """a stop string was found"""

    def add(self, ids: Sequence[int]) -> str:
        """Text that later tokens cannot change."""
        if self.stopped:
            return ""
        special, reader = self._text.special_ids, self._detokenizer
        self._pending += "".join(reader.add(token) for token in ids if token not in special)
        first, may = self._find_stop(), self._find_partial_stop()
        if first is not None and first <= may:
            return self._emit(first, stopped=True)
        return self._emit(may)

    def end(self) -> str:
        """Remaining text, after the last token."""
        if self.stopped:
            return ""
        self._pending += self._detokenizer.end()
        first = self._find_stop()
        return self._emit(len(self._pending)) if first is None else self._emit(first, stopped=True)

    def _emit(self, until: int, stopped: bool = False) -> str:
        said, self._pending, self.stopped = self._pending[:until], "" if stopped else self._pending[until:], stopped
        return said

    def _find_stop(self) -> int | None:
        """Start of the earliest stop string; None if there is none."""
        found = [place for stop in self._stop_strings if (place := self._pending.find(stop)) >= 0]
        return min(found, default=None)

    def _find_partial_stop(self) -> int:
        """Start of a suffix that later tokens may extend to a stop string; otherwise the length of the pending text."""
        longest = max(map(len, self._stop_strings), default=1) - 1
        places = range(max(0, len(self._pending) - longest), len(self._pending))
        begun = (
            place for place in places if any(stop.startswith(self._pending[place:]) for stop in self._stop_strings)
        )
        return next(begun, len(self._pending))


class _Detokenizer(Protocol):
    """Incremental conversion of tokens to text, ignoring stop strings."""

    def add(self, token: int) -> str: ...
    def end(self) -> str: ...


class _ByteDetokenizer:
    """Byte-level tokens: text of complete UTF-8 characters; invalid bytes become U+FFFD, as in `decode`."""

    def __init__(self, text: TextTokenizer, strip: bool) -> None:
        self._text, self._strip = text, strip
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token: int) -> str:
        return self._strip_prefix(self._decoder.decode(to_bytes(self._text.id_to_token(token))))

    def end(self) -> str:
        return self._strip_prefix(self._decoder.decode(b"", final=True))

    def _strip_prefix(self, said: str) -> str:
        """Text without the leading space added by the tokenizer."""
        if said and self._strip:
            self._strip = False
            return said.removeprefix(" ")
        return said


class _WordDetokenizer:
    """Tokens that are text, without or with an end-of-word suffix, which becomes a space before the next token."""

    def __init__(self, text: TextTokenizer) -> None:
        self._text, self._suffix, self._pending = text, word_suffix(text.backend), ""

    def add(self, token: int) -> str:
        before, name = self._pending, self._text.id_to_token(token)
        if not self._suffix or not name:
            return name
        said, mark, after = name.partition(self._suffix)
        self._pending = mark + after
        return before.replace(self._suffix, " ") + said

    def end(self) -> str:
        return self._pending.replace(self._suffix, "") if self._suffix else ""


class _WindowDetokenizer:
    """Any other tokenizer: difference of the decoded text with and without the new tokens. U+FFFD marks partial characters."""

    CONTEXT = 8
    """tokens of context for decoding, and maximum number of tokens held back because of a partial character"""

    def __init__(self, text: TextTokenizer) -> None:
        self._text = text
        self._context: list[int] = []
        self._pending: list[int] = []

    def add(self, token: int) -> str:
        self._pending.append(token)
        more = self.end()
        if more.endswith("\ufffd") and len(self._pending) < self.CONTEXT:
            return ""
        self._context, self._pending = (self._context + self._pending)[-self.CONTEXT :], []
        return more

    def end(self) -> str:
        before, after = self._text.decode([self._context, self._context + self._pending])
        return after[len(before) :]
