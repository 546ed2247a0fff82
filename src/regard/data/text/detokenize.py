"""Undo what published data sets did to their text: spaces around signs, and marks in place of them.

A model that was trained on text as people write it expects "the well-known castle (built in 1,200)", not "the well @-@ known
castle ( built in 1 @,@ 200 )". GPT-2 was measured behind such a repair: nothing is lost by it, so the likelihood of the
repaired text is one of the original. Only spaces and marks go, quotes of the Penn Treebank become plain ones, and a line stays
a line: a text may be repaired in parts that end where lines do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

SpacedToken = tuple[str, bool, bool]
"""A token, whether it stands right behind the one before it, and whether the one behind it stands right behind it."""

CLOSING = frozenset(",.;:!?)]}%”'″′") | {"..", "....", "?!", "!!"}
OPENING = frozenset("([{“‘„¡¿£€¥₹₤$")
JOINERS = {"@-@": "-", "@,@": ",", "@.@": ".", "—": "—", "/": "/"}
"""What stands between two others without a space, and how it is written."""
BETWEEN_NUMBERS = ("–", ":", "×", "⁄")
DOLLAR_PREFIXES = ("US", "C", "CA", "AU", "NZ", "HK", "GB")
CONTRACTIONS = ("s", "t", "re", "ve", "ll", "d", "m")
"""What is left of a word behind an apostrophe."""


def count_words(text: str) -> int:
    """By the rule of WikiText: what stands between blanks, and one more for every line that ends.

    The count of a text is the sum over its parts, wherever it was cut between two words.
    """
    return len(text.split()) + text.count("\n")


def detokenize_wikitext(text: str) -> str:
    return "\n".join(_join(_wikitext_pieces(_split_tokens(line))) for line in text.split("\n"))


def detokenize_ptb(text: str) -> str:
    """The Penn Treebank, as it is published and as language models use it: in small letters, with N for every number."""
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
            # "O 'Brien" and "it 's": an apostrophe with letters behind it never begins a quotation there
            yield token, token in CLOSING or (token[0:1] == "'" and len(token) > 1), False


def _heading_level(tokens: list[str]) -> int:
    """How many signs "= =" a heading has on either side; 0 for any other line."""
    many = 0
    while many < len(tokens) and tokens[many] == "=":
        many += 1
    whole = len(tokens) > 2 * many and all(token == "=" for token in tokens[len(tokens) - many :])
    return many if whole and tokens[len(tokens) - many - 1] != "=" else 0


class QuoteTracker:
    """Which quotes of a line open and which close: they are written alike on both sides, so they are counted.

    A single one is also the apostrophe of a plural ("the sisters ' house"): it is taken for that behind an s, if no quotation
    is open and those that follow pair up without it.
    """

    def __init__(self, tokens: list[str]) -> None:
        self.tokens = tokens
        self.open = {'"': False, "'": False}
        self.remaining = {mark: tokens.count(mark) for mark in self.open}

    def attachment(self, index: int) -> tuple[bool, bool]:
        """Whether the one at this place stands right behind the token before it, and right before the next."""
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
    """The token before and the token behind, or nothing at the ends."""
    return tokens[at - 1] if at else "", tokens[at + 1] if at + 1 < len(tokens) else ""
