"""Translation demo: an encoder-decoder Transformer on a generated English–German corpus."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from regard.demos.grammar import SentencePair, generate_corpus
from regard.demos.run import Demo, LogFn, ResultRows, quote_path
from regard.model import Model

SENTENCE = "the cat danced"
REORDERED_SENTENCE = "the man said that the woman bought the red book"
"""The German verb is at the end of the sentence: the cross-attention must reach back to the middle of the source."""


class TranslateDemo(Demo):
    name = task = "translate"
    out = "runs/demo"
    settings = (
        "model.depth=2",
        "model.decoder_depth=2",
        "model.ffn_dim=512",
        "model.dropout=0",
        "data.vocab_size=1000",
        "train.steps=1200",
        "train.batch_tokens=2048",
        "train.lr=3e-3",
        "train.warmup_steps=100",
        "train.lr_schedule=linear",
        "train.label_smoothing=0",
        "train.ema_decay=0",
        "train.eval_every=400",
        "train.log_every=20",
        "data.eval_samples=300",
        "decode.num_beams=1",
    )
    """A smaller transformer-tiny: the grammar has about 200 words per language."""
    input_key = "source"
    titles = {  # noqa: RUF012
        "corpus": "Data: sentence pairs generated from an English–German grammar",
        "train": "Training: a Transformer for translation",
        "score": "Evaluation: 2,000 sentences with unseen word combinations",
        "predict": "Predictions",
        "explain": "Attention",
    }

    def write_data(self, folder: Path) -> dict[str, str]:
        """Write tab-separated files, as an example of the format for users' own data."""
        folder.mkdir(parents=True, exist_ok=True)
        made = generate_corpus()
        paths = {}
        for name, pairs in (("train", made.train), ("valid", made.valid), ("test", made.test)):
            paths[name] = str(folder / f"{name}.tsv")
            _write_tsv(Path(paths[name]), pairs)
        return paths

    def show_predictions(self, model: Model, rows: ResultRows, log: LogFn) -> None:
        for text in (SENTENCE, REORDERED_SENTENCE):
            log(f"{text}  →  {model.predict(text).value}")

    def explain(self, model: Model, run: Path, data: Mapping[str, str], rows: ResultRows, log: LogFn) -> dict[str, Any]:
        for name, text in (("cat", SENTENCE), ("moved", REORDERED_SENTENCE)):
            found = model.explain(text)
            for suffix in ("html", "png"):
                log(f"{found.save(run / f'attention-{name}.{suffix}')}")
        log("In the second sentence, the German verb comes last and attends to the middle of the source sentence.")
        return {}

    def next_steps(self, program: str, run: Path, data: Path) -> str:
        return f"""
To train on your own data, write a sentence, a tab and the translation on each line of a file (or use CSV, JSONL, or two
files SRC:TGT):

  {program} train translate --data pairs.tsv --model transformer-tiny --out runs/mine
  {program} evaluate runs/mine
  {program} predict runs/mine "a sentence"
  {program} explain runs/mine "a sentence" --out attention.html

The results of the demo are in {run}. To translate more sentences:

  {program} predict {quote_path(run)} "the old woman does not buy a red bicycle"
"""


def _write_tsv(path: Path, pairs: Sequence[SentencePair]) -> None:
    path.write_text("".join(f"{pair.source}\t{pair.target}\n" for pair in pairs), encoding="utf-8")
