"""What rows have said so far, read along on the host."""

from __future__ import annotations

from regard.decode.greedy import Single
from regard.decode.protocol import Until


class Heard:
    """For who decides when a row has said enough (`until`), and for who reads along (a stream).

    Several steps may lie between two looks: tokens are heard one by one all the same, and what a row said after it had
    said enough is forgotten, so that answers do not depend on how often someone looks."""

    def __init__(self, quest: Single, until: Until | None, rows: int | None = None) -> None:
        self.quest, self.until = quest, until
        self.rows = rows
        """rows from this number on only fill up"""
        self.said: dict[int, list[int]] = {}
        """by the number that a row had in the beginning; the end token is not among it"""
        self.known: dict[int, int] = {}
        """how many tokens were looked at"""

    def listen(self) -> dict[int, list[int]]:
        """What each row has said since the last time, by its number; rows that have said enough are closed."""
        quest = self.quest
        spoke = [
            (place, number, self.known.get(number, 0), length)
            for place, (number, length) in enumerate(zip(quest.rows.tolist(), quest.t.tolist(), strict=True))
            if length > self.known.get(number, 0) and (self.rows is None or number < self.rows)
        ]
        if not spoke:
            return {}
        first = min(since for _, _, since, _ in spoke)
        tokens = quest.tokens[first : max(length for *_, length in spoke)].tolist()
        news, enough = {}, {}
        for place, number, since, length in spoke:
            self.known[number] = length
            new = [tokens[at - first][place] for at in range(since, length)]
            whole = self._hear(number, new[:-1] if new[-1] == quest.end else new)
            news[number], met = whole
            if met:
                enough[place] = self.known[number] = len(self.said[number])
        if enough:
            quest.close(list(enough), list(enough.values()))
        return news

    def _hear(self, number: int, new: list[int]) -> tuple[list[int], bool]:
        said = self.said.setdefault(number, [])
        for count, token in enumerate(new, 1):
            said.append(token)
            if self.until is not None and self.until(number // self.quest.copies, said):
                return new[:count], True
        return new, False
