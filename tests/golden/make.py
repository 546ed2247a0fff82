"""Write the golden record: `python tests/golden/make.py --overwrite`, then `python tests/golden/make.py --measure`.

Values are written once and then kept: later commits rename and rebuild the code, and the test compares the results. A changed
value needs a line in CHANGELOG.md with the reason; `--only s01.t01` then recomputes this case, run or variant.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent.parent / "src")]

import torch  # noqa: E402

from golden import compute, names, record  # noqa: E402

MACHINES: dict[str, dict[str, str]] = {
    "this machine": {},
    "AVX2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    "SSE": {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2"},
    "two threads": {"OMP_NUM_THREADS": "2"},
}
"""This machine, which may differ from the machine of the record, and environments for emulating others; the tolerances are
derived from the differences."""
NOISE, DRAWS, SALTS = 1e-4, 3, 50
"""Discrete outputs of a filled model must not change under relative parameter noise of this size."""
MARGIN = 4
"""Ratio of a tolerance to the largest measured difference."""


def name_parameters(workshop: compute.Workshop) -> None:
    """Assign an id to every new parameter, starting with a letter of `compute.VECTORS`, or with w for matrices."""
    path = HERE / "parameters.json"
    known: dict[str, dict[str, str]] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    runs = [*((case, None) for case in compute.CASES), *names.RUNS.values()]
    models = [(case, workshop.trained[workshop.run(case, "float32", more)]) for case, more in runs]
    models += [(case, compute.built(name)) for name, (case, _) in names.VARIANTS.items()]
    for case, model in models:
        ids = known.setdefault(case.split(".")[0], {})
        for name, tensor in model.state_dict().items():
            kind = "v" if name.endswith(names.POSITIVE) else "g" if name.endswith(names.GAIN) else "b"
            ids.setdefault(name, f"{'w' if tensor.ndim > 1 else kind}{len(ids) + 1:03}")
    lines = [f"{json.dumps(system)}: {json.dumps(ids)}" for system, ids in sorted(known.items())]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    compute.parameter_ids.cache_clear()


def decisions(found: Any) -> Any:
    """Discrete parts of a prediction: texts, classes, ids and digests."""
    if isinstance(found, dict):
        return {key: decisions(part) for key, part in found.items()}
    if isinstance(found, list):
        return [decisions(part) for part in found]
    return None if isinstance(found, float) else found


def sturdy_salt(workshop: compute.Workshop, case: str) -> int:
    """First salt with the same predictions and sequences in float32 and under noise on all parameters.

    Greedy decoding, beam search and sampling must give three different sequences, and a map must have two classes."""

    def decided(dtype: str, salt: int, noise: float = 0.0, draw: int = 0) -> Any:
        model = workshop.model(case, dtype, salt, noise, draw)
        return decisions([workshop.predictions(case, model), workshop.generated(case, model)])

    for salt in range(SALTS):
        right = decided("float64", salt)
        if len({json.dumps(part) for part in right[1].values()}) < len(right[1]):
            continue
        if any(isinstance(part.get("a1"), dict) and len(part["a1"]) < 2 for part in right[0]):
            continue
        noisy = (decided("float64", salt, NOISE, draw) for draw in range(DRAWS))
        if decided("float32", salt) == right and all(found == right for found in noisy):
            return salt
    raise SystemExit(f"{case}: no salt below {SALTS} keeps its decisions under a noise of {NOISE}")


def make(to: Path, chosen: list[str]) -> None:
    """Compute the chosen entries, or all, and write the record with all other entries unchanged."""
    kept: dict[str, Any] = {"salts": {}, "tolerances": {}, "values": {}}
    tensors: dict[str, torch.Tensor] = {}
    if (HERE / record.VALUES).exists():
        kept, tensors = record.read()
        if not chosen:
            kept["values"], tensors = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["REGARD_CACHE"] = str(Path(folder) / "cache")
        workshop = compute.Workshop(Path(folder))
        if to == HERE:
            name_parameters(workshop)
        for case in compute.CASES:
            if case not in kept["salts"]:
                kept["salts"][case] = sturdy_salt(workshop, case)
        for entry in record.entries():
            if not chosen or entry.split("/")[0] in chosen:
                kept["values"][entry], row = record.value(workshop, entry, kept["salts"])
                if row is not None:
                    tensors[entry] = row
    kept["made with"] = {"torch": torch.__version__}
    record.write(to, kept, tensors)


def measure(machines: list[str]) -> None:
    """Compute all entries in these environments, by default in all; entries beyond the default tolerance get a separate
    tolerance. Tolerances measured on other machines are kept if they are larger."""
    kept, tensors = record.read()
    worst: dict[str, float] = {}
    for name in machines or MACHINES:
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([sys.executable, __file__, "--to", folder], check=True, env={**os.environ, **MACHINES[name]})
            other, others = record.read(Path(folder))
        gaps = {entry: record.gap(found, other["values"][entry]) for entry, found in kept["values"].items()}
        gaps |= {entry: max(gaps[entry], record.gap(row, others[entry])) for entry, row in tensors.items()}
        for entry, gap in gaps.items():
            worst[entry] = max(worst.get(entry, 0.0), gap)
        for dtype in record.TOLERANCES:
            found = {entry: gap for entry, gap in gaps.items() if entry.endswith(dtype)}
            largest = max(found, key=lambda entry: found[entry])
            print(f"{name}, {dtype}: largest difference {found[largest]:.2g} of {largest}")
    for entry, gap in worst.items():
        known = kept["tolerances"].get(entry, record.TOLERANCES[entry.rsplit("/", 1)[1]])
        if known < MARGIN * gap < math.inf:
            kept["tolerances"][entry] = float(f"{MARGIN * gap:.1e}")
    record.write(HERE, kept, tensors)
    print(f"{len(kept['tolerances'])} entries have separate tolerances: {kept['tolerances']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--overwrite", action="store_true", help="Replace all values of the record.")
    parser.add_argument("--only", action="append", default=[], metavar="ID", help="Replace this case, run or variant.")
    parser.add_argument(
        "--measure", nargs="*", choices=MACHINES, help="Compute in these environments and write tolerances."
    )
    parser.add_argument("--to", type=Path, default=HERE, metavar="FOLDER", help="Write to this folder instead.")
    given = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    if given.measure is not None:
        measure(given.measure)
    elif given.to == HERE and (HERE / record.VALUES).exists() and not (given.overwrite or given.only):
        raise SystemExit(f"{HERE / record.VALUES} exists. Use --overwrite, or --only ID to replace a part.")
    else:
        make(given.to, given.only)


if __name__ == "__main__":
    main()
