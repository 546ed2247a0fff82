"""CPU seconds (user and system) of whole commands: medians over processes, compared with `import torch`."""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import harness

PAIRS = [("the cat danced", "die Katze tanzte"), ("a dog slept", "ein Hund schlief"), ("a horse ran", "ein Pferd lief")]
SIZES = ("width=32", "heads=2", "ffn_dim=64", "depth=1", "decoder_depth=1")
REGARD = [sys.executable, "-m", "regard"]


def tiny_run(folder: Path) -> str:
    """A run folder of a translation model trained for two steps."""
    data, run = folder / "pairs.tsv", folder / "run"
    data.write_text("".join(f"{source}\t{target}\n" for source, target in PAIRS * 20), encoding="utf-8")
    settings = ["train.steps=2", "data.vocab_size=300", "data.valid_fraction=0.1", *(f"model.{size}" for size in SIZES)]
    words = ["train", "translate", "--data", str(data), "--out", str(run), "--device", "cpu", "--set", *settings]
    subprocess.run([*REGARD, *words], check=True, stdout=subprocess.DEVNULL)
    return str(run)


def seconds(command: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # a typo exits with 2
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main(argv: Sequence[str] | None = None) -> None:
    harness.parser(__doc__).parse_args(argv)
    cases = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "import regard": [sys.executable, "-c", "import regard"],
        "regard --help": [*REGARD, "--help"],
        "regard train --help": [*REGARD, "train", "--help"],
        "regard list tasks": [*REGARD, "list", "tasks"],
        "regard info gpt2-smal": [*REGARD, "info", "gpt2-smal"],
    }
    with tempfile.TemporaryDirectory() as place:
        if harness.is_smoke():
            harness.left_out("import torch, regard predict", "slower than all other cases")
        else:
            cases["import torch"] = [sys.executable, "-c", "import torch"]
            cases["regard predict RUN TEXT"] = [
                *REGARD,
                "predict",
                tiny_run(Path(place)),
                "the cat danced",
                "--device",
                "cpu",
            ]
        for name, command in cases.items():
            seconds(command)  # warms the disk cache
            repeats = harness.pick(cuda=9, cpu=9, smoke=1)
            print(f"{name:22} {statistics.median(seconds(command) for _ in range(repeats)):6.3f} s", flush=True)


def smoke(folder: Path) -> None:
    main([])


if __name__ == "__main__":
    harness.run(main, smoke)
