"""Generated tokens on the host, for streaming and stop conditions."""

from __future__ import annotations

from regard.decode.greedy import GreedyOrSample
from regard.decode.protocol import StopFn


class StopMonitor:
    """Reports new tokens to a stream, and ends a row when `stop_fn` returns True.

    Several steps may run between two polls. Tokens are still checked one by one, and tokens after the stop are
    discarded, so that outputs do not depend on how often the search is polled."""

    def __init__(self, search: GreedyOrSample, stop_fn: StopFn | None, num_rows: int | None = None) -> None:
        self.search, self.stop_fn = search, stop_fn
        self.num_rows = num_rows
        """rows from this number on are padding"""
        self.generated: dict[int, list[int]] = {}
        """tokens by initial row number, without the end token"""
        self.num_read: dict[int, int] = {}
        """number of checked tokens by row number"""

    def poll(self) -> dict[int, list[int]]:
        """New tokens of each row since the last call, by row number; rows stopped by `stop_fn` are closed."""
        quest = self.search
        spoke = [
            (place, number, self.num_read.get(number, 0), length)
            for place, (number, length) in enumerate(zip(quest.rows.tolist(), quest.lengths.tolist(), strict=True))
            if length > self.num_read.get(number, 0) and (self.num_rows is None or number < self.num_rows)
        ]
        if not spoke:
            return {}
        first = min(since for _, _, since, _ in spoke)
        tokens = quest.tokens[first : max(length for *_, length in spoke)].tolist()
        news, enough = {}, {}
        for place, number, since, length in spoke:
            self.num_read[number] = length
            new = [tokens[at - first][place] for at in range(since, length)]
            whole = self._append_tokens(number, new[:-1] if new[-1] == quest.eos_id else new)
            news[number], met = whole
            if met:
                enough[place] = self.num_read[number] = len(self.generated[number])
        if enough:
            quest.close(list(enough), list(enough.values()))
        return news

    def _append_tokens(self, number: int, new: list[int]) -> tuple[list[int], bool]:
        said = self.generated.setdefault(number, [])
        for count, token in enumerate(new, 1):
            said.append(token)
            if self.stop_fn is not None and self.stop_fn(number // self.search.num_samples, said):
                return new[:count], True
        return new, False
