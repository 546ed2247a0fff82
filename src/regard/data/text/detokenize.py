"""Detokenization of public datasets, which contain spaces around punctuation and special markers such as "@-@".

A model trained on natural text expects "the well-known castle (built in 1,200)", not "the well @-@ known castle ( built in
1 @,@ 200 )". GPT-2 was evaluated with invertible detokenizers too: the likelihood of the detokenized text is also a likelihood
of the original. Only spaces and markers are removed, and Penn Treebank quotes become plain quotes. Lines are independent, so a
text can be detokenized in chunks that end at line breaks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

SpacedToken = tuple[str, bool, bool]
"""A token, and two flags: no space before the token, no space after the token."""

CLOSING = frozenset(",.;:!?)]}%”'″′") | {"..", "....", "?!", "!!"}
OPENING = frozenset("([{“‘„¡¿£€¥₹₤$")
JOINERS = {"@-@": "-", "@,@": ",", "@.@": ".", "—": "—", "/": "/"}
"""Tokens written without spaces on both sides, and the replacement text."""
BETWEEN_NUMBERS = ("–", ":", "×", "⁄")
DOLLAR_PREFIXES = ("US", "C", "CA", "AU", "NZ", "HK", "GB")
CONTRACTIONS = ("s", "t", "re", "ve", "ll", "d", "m")
"""Contracted endings after an apostrophe."""


def count_words(text: str) -> int:
    """Number of words as in WikiText: tokens separated by whitespace, plus one per line break.

    The counts of chunks add up to the count of the text if no word is split.
    """
    return len(text.split()) + text.count("\n")


def detokenize_wikitext(text: str) -> str:
    return "\n".join(_join(_wikitext_pieces(_split_tokens(line))) for line in text.split("\n"))


def detokenize_ptb(text: str) -> str:
    """Detokenized Penn Treebank text: the original, or the lowercased version with N for numbers."""
    return "\n".join(_join(_ptb_pieces(_split_tokens(line))) for line in text.split("\n"))


def _identity(text: str) -> str:
    return text


DETOKENIZERS: dict[str, Callable[[str], str]] = {
    "none": _identity,
    "wikitext": detokenize_wikitext,
    "ptb": detokenize_ptb,
}


def _split_tokens(line: str) -> list[str]:
    return line.strip(" ").split(" ")


def _join(pieces: Iterable[SpacedToken]) -> str:
    said, free = "", True
    for text, left, right in pieces:
        said += text if left or free else f" {text}"
        free = right
    return said


def _wikitext_pieces(tokens: list[str]) -> Iterable[SpacedToken]:
    marks = _heading_level(tokens)
    quotes = QuoteTracker(tokens)
    for at, token in enumerate(tokens):
        before, after = _neighbors(tokens, at)
        if at < marks or at >= len(tokens) - marks:
            edge = at in (0, len(tokens) - marks)
            yield token, not edge, False
        elif token in JOINERS:
            yield JOINERS[token], True, True
        elif token in ('"', "'"):
            yield token, *quotes.attachment(at)
        elif token == "’":
            yield token, True, after in CONTRACTIONS
        elif token in BETWEEN_NUMBERS and before[-1:].isdigit() and after[:1].isdigit():
            yield token, True, True
        elif token == "°":
            yield token, after not in ("C", "F"), after in ("C", "F")
        elif token in ("#", "−"):
            yield token, False, after[:1].isdigit() and not before[-1:].isdigit()
        elif token in OPENING:
            yield token, token == "$" and before in DOLLAR_PREFIXES, True
        else:
            # "O 'Brien" and "it 's": an apostrophe followed by letters never opens a quotation in WikiText
            yield token, token in CLOSING or (token[0:1] == "'" and len(token) > 1), False


def _heading_level(tokens: list[str]) -> int:
    """Number of "=" tokens on each side of a section title; 0 for other lines."""
    many = 0
    while many < len(tokens) and tokens[many] == "=":
        many += 1
    whole = len(tokens) > 2 * many and all(token == "=" for token in tokens[len(tokens) - many :])
    return many if whole and tokens[len(tokens) - many - 1] != "=" else 0


class QuoteTracker:
    """Opening and closing quotes of a line, distinguished by counting, because both are the same character.

    A single quote can also be an apostrophe ("the sisters ' house"): after a letter or digit, if no quotation is open and
    the number of later single quotes is even.
    """

    def __init__(self, tokens: list[str]) -> None:
        self.tokens = tokens
        self.open = {'"': False, "'": False}
        self.remaining = {mark: tokens.count(mark) for mark in self.open}

    def attachment(self, index: int) -> tuple[bool, bool]:
        """Flags of the quote at `index`: no space before the quote, no space after the quote."""
        mark = self.tokens[index]
        before, after = _neighbors(self.tokens, index)
        self.remaining[mark] -= 1
        if self.open[mark] and before not in OPENING and index:
            self.open[mark] = False
            return True, False
        if mark == "'" and self.remaining[mark] % 2 == 0 and before[-1:].isalnum():
            return (False, True) if after[:1].isdigit() else (True, False)  # the '80s, the sisters'
        self.open[mark] = True
        return False, True


def _ptb_pieces(tokens: list[str]) -> Iterable[SpacedToken]:
    written = {"``": '"', "''": '"', "-lrb-": "(", "-rrb-": ")", "-lcb-": "{", "-rcb-": "}"}
    for token in tokens:
        name = token.lower()
        text = written.get(name, token)
        opens = name == "``" or text in OPENING or text == "#" or text.endswith("$")
        closes = name in ("''", "n't") or text in CLOSING or (text[0:1] == "'" and len(text) > 1)
        yield text, closes, opens


def _neighbors(tokens: list[str], at: int) -> tuple[str, str]:
    """Previous and next token; empty at the ends."""
    return tokens[at - 1] if at else "", tokens[at + 1] if at + 1 < len(tokens) else ""
