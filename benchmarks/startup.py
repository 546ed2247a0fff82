"""How long a person waits for `regard --help` and `import regard`: medians of whole processes."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import harness

CASES = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "import regard": [sys.executable, "-c", "import regard"],
    "regard --help": [sys.executable, "-m", "regard", "--help"],
    "regard train --help": [sys.executable, "-m", "regard", "train", "--help"],
    "import torch": [sys.executable, "-c", "import torch"],
}


def seconds(command: list[str]) -> float:
    begun = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begun


def main(argv: Sequence[str] | None = None) -> None:
    harness.parser(__doc__).parse_args(argv)
    repeats = harness.pick(cuda=9, cpu=9, smoke=1)
    for name, command in CASES.items():
        if harness.is_smoke() and name == "import torch":
            harness.left_out(name, "takes longer than all others")
            continue
        seconds(command)  # the first reads from the disk
        print(f"{name:22} {statistics.median(seconds(command) for _ in range(repeats)):6.3f} s")


def smoke(folder: Path) -> None:
    main([])


if __name__ == "__main__":
    harness.run(main, smoke)
