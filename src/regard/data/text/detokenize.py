"""Undo what published data sets did to their text: spaces around signs, and marks in place of them.

A model that was trained on text as people write it expects "the well-known castle (built in 1,200)", not "the well @-@ known
castle ( built in 1 @,@ 200 )". GPT-2 was measured behind such a repair: nothing is lost by it, so the likelihood of the
repaired text is one of the original. Only spaces and marks go, quotes of the Penn Treebank become plain ones, and a line stays
a line: a text may be repaired in parts that end where lines do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

Piece = tuple[str, bool, bool]
"""A token, whether it stands right behind the one before it, and whether the one behind it stands right behind it."""

CLOSING = frozenset(",.;:!?)]}%”'″′") | {"..", "....", "?!", "!!"}
OPENING = frozenset("([{“‘„¡¿£€¥₹₤$")
JOINING = {"@-@": "-", "@,@": ",", "@.@": ".", "—": "—", "/": "/"}
"""What stands between two others without a space, and how it is written."""
BETWEEN_NUMBERS = ("–", ":", "×", "⁄")
DOLLARS = ("US", "C", "CA", "AU", "NZ", "HK", "GB")
ENDINGS = ("s", "t", "re", "ve", "ll", "d", "m")
"""What is left of a word behind an apostrophe."""


def words(text: str) -> int:
    """By the rule of WikiText: what stands between blanks, and one more for every line that ends.

    The count of a text is the sum over its parts, wherever it was cut between two words.
    """
    return len(text.split()) + text.count("\n")


def wikitext(text: str) -> str:
    return "\n".join(_joined(_wikitext(_tokens(line))) for line in text.split("\n"))


def ptb(text: str) -> str:
    """The Penn Treebank, as it is published and as language models use it: in small letters, with N for every number."""
    return "\n".join(_joined(_ptb(_tokens(line))) for line in text.split("\n"))


def _as_it_is(text: str) -> str:
    return text


DETOKENISERS: dict[str, Callable[[str], str]] = {"none": _as_it_is, "wikitext": wikitext, "ptb": ptb}


def _tokens(line: str) -> list[str]:
    return line.strip(" ").split(" ")


def _joined(pieces: Iterable[Piece]) -> str:
    said, free = "", True
    for text, left, right in pieces:
        said += text if left or free else f" {text}"
        free = right
    return said


def _wikitext(tokens: list[str]) -> Iterable[Piece]:
    marks = _heading(tokens)
    quotes = Quotes(tokens)
    for at, token in enumerate(tokens):
        before, after = _around(tokens, at)
        if at < marks or at >= len(tokens) - marks:
            edge = at in (0, len(tokens) - marks)
            yield token, not edge, False
        elif token in JOINING:
            yield JOINING[token], True, True
        elif token in ('"', "'"):
            yield token, *quotes.sides(at)
        elif token == "’":
            yield token, True, after in ENDINGS
        elif token in BETWEEN_NUMBERS and before[-1:].isdigit() and after[:1].isdigit():
            yield token, True, True
        elif token == "°":
            yield token, after not in ("C", "F"), after in ("C", "F")
        elif token in ("#", "−"):
            yield token, False, after[:1].isdigit() and not before[-1:].isdigit()
        elif token in OPENING:
            yield token, token == "$" and before in DOLLARS, True
        else:
            # "O 'Brien" and "it 's": an apostrophe with letters behind it never begins a quotation there
            yield token, token in CLOSING or (token[0:1] == "'" and len(token) > 1), False


def _heading(tokens: list[str]) -> int:
    """How many signs "= =" a heading has on either side; 0 for any other line."""
    many = 0
    while many < len(tokens) and tokens[many] == "=":
        many += 1
    whole = len(tokens) > 2 * many and all(token == "=" for token in tokens[len(tokens) - many :])
    return many if whole and tokens[len(tokens) - many - 1] != "=" else 0


class Quotes:
    """Which quotes of a line open and which close: they are written alike on both sides, so they are counted.

    A single one is also the apostrophe of a plural ("the sisters ' house"): it is taken for that behind an s, if no quotation
    is open and those that follow pair up without it.
    """

    def __init__(self, tokens: list[str]) -> None:
        self.tokens = tokens
        self.open = {'"': False, "'": False}
        self.left = {mark: tokens.count(mark) for mark in self.open}

    def sides(self, at: int) -> tuple[bool, bool]:
        """Whether the one at this place stands right behind the token before it, and right before the next."""
        mark = self.tokens[at]
        before, after = _around(self.tokens, at)
        self.left[mark] -= 1
        if self.open[mark] and before not in OPENING and at:
            self.open[mark] = False
            return True, False
        if mark == "'" and self.left[mark] % 2 == 0 and before[-1:].isalnum():
            return (False, True) if after[:1].isdigit() else (True, False)  # the '80s, the sisters'
        self.open[mark] = True
        return False, True


def _ptb(tokens: list[str]) -> Iterable[Piece]:
    written = {"``": '"', "''": '"', "-lrb-": "(", "-rrb-": ")", "-lcb-": "{", "-rcb-": "}"}
    for token in tokens:
        name = token.lower()
        text = written.get(name, token)
        opens = name == "``" or text in OPENING or text == "#" or text.endswith("$")
        closes = name in ("''", "n't") or text in CLOSING or (text[0:1] == "'" and len(text) > 1)
        yield text, closes, opens


def _around(tokens: list[str], at: int) -> tuple[str, str]:
    """The token before and the token behind, or nothing at the ends."""
    return tokens[at - 1] if at else "", tokens[at + 1] if at + 1 < len(tokens) else ""
