"""One search for every generating system: greedy, sampling, beam.

A body offers `start(batch) -> state` and `step(tokens, state) -> logits`; the state can `widen` rows into beams, `reorder`
their pasts and `keep` rows. Search knows nothing else, so an RNN, a GPT and a translator share it. Sources that have
finished are dropped, and what a row answers does not depend on its neighbours.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from regard.decode.paths import Found, Generating
from regard.decode.recorded import recordable, recorded
from regard.decode.settings import Decode
from regard.decode.steps import begin, run
from regard.nn.linear import recheck
from regard.waists import Batch

__all__ = ["Found", "Generating", "search"]


def search(
    body: Generating, batch: Batch, end: int, limits: Int[Tensor, "B"], settings: Decode,
    requests: np.ndarray | None = None, banned: tuple[int, ...] = (),
) -> list[list[Found]]:  # fmt: skip
    """For each row of `batch`, whose `target` is the prompt, the best answers of at most `limits` tokens, best first.

    `requests` numbers the rows for their random streams (0, 1, 2, … when None); `banned` tokens are never said."""
    if batch.target is None:
        raise ValueError("search needs a prompt in batch.target")
    requests = np.arange(len(limits)) if requests is None else requests
    answers: list[list[Found]] = [[Found((), 0.0, (), False)] for _ in requests]
    speaking = torch.nonzero(limits > 0)[:, 0]  # a row that may say nothing says nothing, whoever its neighbours are
    if not len(speaking):
        return answers
    if len(speaking) < len(limits):
        batch = batch.rows(speaking.to(batch.x.device))
    limits, asked = limits[speaking], requests[speaking.cpu().numpy()]
    silent = torch.tensor(banned, device=batch.x.device) if banned else None
    recheck()
    with torch.inference_mode():
        found = None
        if recordable(body, batch):
            found = recorded(body, batch, end, limits, settings, asked, silent)
        if found is None:
            found = run(begin(body, batch, end, limits, settings, asked, silent))
    for row, options in zip(speaking.tolist(), found, strict=True):
        answers[row] = options
    return answers
