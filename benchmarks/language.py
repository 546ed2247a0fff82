"""Language models on real text, one command per model; all choices are made on the validation split.

    python benchmarks/language.py shakespeare      FOLDER OUT    6 layers x 384, context 256, 5,000 steps (a GPU)
    python benchmarks/language.py shakespeare-cpu  FOLDER OUT    4 layers x 128, context 64, 2,000 steps of 12 x 64 (two cores)
    python benchmarks/language.py wikitext         FOLDER OUT    a small GPT on WikiText-2 (a GPU)

FOLDER contains `input.txt(.gz)` of tiny Shakespeare, or `wiki.{train,valid,test}.raw(.gz)`. Tiny Shakespeare is split as in
nanoGPT: the first 90 % for training, the rest for validation. The reported loss covers the whole validation split in windows
without overlap, with the best checkpoint. `--seeds 1 2 3`, `--set train.lr=…` as in `regard train`.
"""

from __future__ import annotations

import gzip
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import harness
import synthetic

from regard.runs.evaluate import evaluate

CASES: dict[str, dict[str, Any]] = {
    "shakespeare": {"model": "gpt2-char", "settings": []},
    "shakespeare-cpu": {"model": "gpt2-tiny-char", "settings": []},
    "wikitext": {
        "model": "gpt2-mini",
        "settings": ["data.detokenize=wikitext", "model.dropout=0.2"],
    },
}


def text_of(path: Path) -> str:
    packed = path.with_name(path.name + ".gz")
    return gzip.open(packed, "rt", encoding="utf-8").read() if packed.exists() else path.read_text(encoding="utf-8")


def parts(case: str, folder: Path, out: Path) -> dict[str, Path]:
    """Paths of the training, validation and (WikiText only) test files, written to `out`."""
    out.mkdir(parents=True, exist_ok=True)
    if case.startswith("shakespeare"):
        text = text_of(folder / "input.txt")
        cut = int(0.9 * len(text))
        texts = {"train": text[:cut], "valid": text[cut:]}
    else:
        texts = {name: text_of(folder / f"wiki.{name}.raw") for name in ("train", "valid", "test")}
    paths = {name: out / f"{name}.txt" for name in texts}
    for name, path in paths.items():
        path.write_text(texts[name], encoding="utf-8")
    return paths


def main(argv: Sequence[str] | None = None) -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("case", choices=CASES)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--set", nargs="*", default=[])
    parser.add_argument("--test", action="store_true", help="Evaluate the test file after all choices are made.")
    asked = parser.parse_args(argv)
    found = parts(asked.case, asked.data, asked.out / "data")
    losses = []
    for seed in asked.seeds:
        case, run = CASES[asked.case], asked.out / f"{asked.case}-{seed}"
        settings = [*case["settings"], f"train.seed={seed}", *asked.set]
        harness.train(
            "lm", str(found["train"]), valid=str(found["valid"]), model=case["model"], out=run, settings=settings
        )
        facts = json.loads((run / "regard.json").read_text())
        losses.append(facts["best"]["loss"])
        print(json.dumps({"seed": seed, **facts["best"], **facts["scores"]}), flush=True)
        if asked.test:
            scores = evaluate(run, [str(found["test"])], settings=["data.detokenize=wikitext", "data.stride=64"]).scores
            print(json.dumps({"seed": seed, "test": scores}), flush=True)
    spread = statistics.stdev(losses) if len(losses) > 1 else 0.0
    print(f"validation loss {statistics.mean(losses):.4f} ± {spread:.4f} over {len(losses)} runs")


def smoke(folder: Path) -> None:
    short = [*harness.SHORT, *harness.TINY["encoder"], "model.max_length=64", "train.batch_tokens=128"]
    data = {"shakespeare-cpu": synthetic.shakespeare(folder), "wikitext": synthetic.wikitext(folder)}
    for case, more in (("shakespeare-cpu", []), ("wikitext", ["data.vocab_size=300"])):
        test = ["--test"] if case == "wikitext" else []
        main([case, str(data[case]), str(folder / case), *test, "--set", *short, *more])


if __name__ == "__main__":
    harness.run(main, smoke)
