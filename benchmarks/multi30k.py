"""Multi30k English → German with `transformer-tiny`: several seeds, selected on validation, test2016 evaluated once each.

    python benchmarks/multi30k.py FOLDER_OF_MULTI30K OUT [--kind tok|raw] [--seeds 1 2 3] [--set train.steps=…]

Prints for each seed the test BLEU (beam 5), the seconds from the call of `train` to its end, and the seconds to the first
validation with 40 BLEU (greedy, all 1,014 sentences; includes reading, tokenizer training and all validations).
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import harness
import synthetic

from regard.runs.evaluate import evaluate, write_predictions


def main(argv: Sequence[str] | None = None) -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--kind", choices=("tok", "raw"), default="tok")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--set", nargs="*", default=[])
    asked = parser.parse_args(argv)
    ending = ".lc.norm.tok" if asked.kind == "tok" else ""

    def files(name: str) -> str:
        return ":".join(str(asked.data / asked.kind / f"{name}{ending}.{side}.gz") for side in ("en", "de"))

    found = []
    for seed in asked.seeds:
        run, begun = asked.out / f"{asked.kind}-{seed}", time.perf_counter()
        harness.train(
            "translate",
            files("train"),
            valid=files("val"),
            model="transformer-tiny",
            out=run,
            settings=[
                f"data.pretokenized={'true' if ending else 'false'}",
                "data.eval_samples=1014",
                "decode.num_beams=5",
                "train.eval_every=500",
                f"train.seed={seed}",
                *asked.set,
            ],
        )
        whole = time.perf_counter() - begun
        valid = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines() if '"valid"' in line]
        before = whole - max(row["elapsed"] for row in valid)  # slightly too large: includes the final evaluation
        reached = [row["elapsed"] + before for row in valid if row["bleu"] >= 40]
        result = evaluate(run, [files("test_2016_flickr")])
        write_predictions(result, run / "test2016.jsonl")
        found.append({
            "seed": seed, "test": result.scores["bleu"], "chrf": result.scores["chrf"],
            "validation": json.loads((run / "regard.json").read_text())["scores"]["bleu"], "seconds": round(whole, 1),
            "to_40": round(reached[0], 1) if reached else None, "signature": result.scores["signature"],
        })  # fmt: skip
        print(json.dumps(found[-1]), flush=True)
    tests = [row["test"] for row in found]
    spread = statistics.stdev(tests) if len(tests) > 1 else 0.0
    print(f"average test BLEU {statistics.mean(tests):.2f} ± {spread:.2f} over {len(tests)} runs")


def smoke(folder: Path) -> None:
    parts = ("train", "val", "test_2016_flickr")
    synthetic.parallel(folder / "data/tok", tuple(f"{part}.lc.norm.tok" for part in parts))
    short = [
        *harness.SHORT,
        *harness.TINY["transformer"],
        "train.batch_tokens=256",
        "data.vocab_size=300",
        "decode.num_beams=1",
    ]
    main([str(folder / "data"), str(folder / "out"), "--seeds", "1", "--set", *short, "decode.max_extra_tokens=4"])


if __name__ == "__main__":
    harness.run(main, smoke)
