"""How long a person waits for `regard --help` and `import regard`: medians of whole processes."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

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


for name, command in CASES.items():
    seconds(command)  # the first reads from the disk
    print(f"{name:22} {statistics.median(seconds(command) for _ in range(9)):6.3f} s")
