"""The main job on the embedded corpus: a Transformer that translates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from regard.demos.demo import Demo, Rows, Say, quoted
from regard.demos.grammar import Pair, corpus
from regard.model import Model

SENTENCE = "the cat danced"
MOVED = "the man said that the woman bought the red book"
"""Its translation has the verb at the end: the cross-attention must reach back for it."""


class Translator(Demo):
    name = task = "translate"
    out = "runs/demo"
    settings = (
        "model.depth=2", "model.decoder_depth=2", "model.hidden=512", "model.dropout=0", "data.vocabulary=1000",
        "train.steps=1200", "train.tokens=2048", "train.rate=3e-3", "train.warmup=100", "train.schedule=linear",
        "train.smoothing=0", "train.average=0", "train.every=400", "train.log=20", "data.score=300", "decode.beam=1",
    )  # fmt: skip
    """A smaller transformer-tiny: the grammar has about 200 words a side."""
    given = "source"
    titles = {  # noqa: RUF012
        "corpus": "The corpus: an English–German grammar written for regard",
        "train": "Training a Transformer on it",
        "score": "Scoring it on 2,000 sentences with word combinations it has never seen",
        "answer": "Asking it",
        "explain": "What it looked at",
    }

    def write(self, folder: Path) -> dict[str, str]:
        """As tab-separated files, so that a person can see what their own should look like."""
        folder.mkdir(parents=True, exist_ok=True)
        made = corpus()
        paths = {}
        for name, pairs in (("train", made.train), ("valid", made.valid), ("test", made.test)):
            paths[name] = str(folder / f"{name}.tsv")
            _write(Path(paths[name]), pairs)
        return paths

    def ask(self, model: Model, rows: Rows, say: Say) -> None:
        for text in (SENTENCE, MOVED):
            say(f"{text}  →  {model.answer(text).value}")

    def explain(self, model: Model, run: Path, data: Mapping[str, str], rows: Rows, say: Say) -> dict[str, Any]:
        for name, text in (("cat", SENTENCE), ("moved", MOVED)):
            found = model.explain(text)
            for suffix in ("html", "png"):
                say(f"{found.save(run / f'attention-{name}.{suffix}')}")
        say("In the second the last German word is the verb: its row reaches back to the middle of the source.")
        return {}

    def further(self, regard: str, run: Path, data: Path) -> str:
        return f"""
Your own data: a file with a sentence, a tab and its translation on each line (or CSV, JSONL, or two files SRC:TGT), then

  {regard} train translate --data pairs.tsv --model transformer-tiny --out runs/mine
  {regard} evaluate runs/mine
  {regard} run runs/mine "a sentence"
  {regard} explain runs/mine "a sentence" --out map.html

What the demo made is in {run}. Ask it more:

  {regard} run {quoted(run)} "the old woman does not buy a red bicycle"
"""


def _write(path: Path, pairs: Sequence[Pair]) -> None:
    path.write_text("".join(f"{pair.source}\t{pair.target}\n" for pair in pairs), encoding="utf-8")
