"""Shape annotations of tensors hold at every call in the tests of all systems."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--no-header")
HARNESS = {
    "systems/test_systems.py": "public_calls", "systems/test_vision_systems.py": "batch",
    "systems/test_captioners.py": "neighbors_and_padding", "decode/test_search.py": "narrow_beam or best_come_first",
    "systems/test_point_transformer.py": "level", "systems/test_relative_position_setting.py": "fixed_shapes",
}  # fmt: skip
"""Files and names of tests that run with shape checks around every call of nn, systems and decode."""


def checked(*words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "REGARD_CHECK_SHAPES": "1"}
    command = [sys.executable, *words]
    return subprocess.run(command, cwd=TESTS.parent, env=environment, capture_output=True, text=True)


def test_shapes_hold_in_the_harness() -> None:
    names = " or ".join(f"({Path(file).stem} and ({names}))" for file, names in HARNESS.items())
    done = checked(*PYTEST, *(str(TESTS / file) for file in HARNESS), "-k", names)
    assert done.returncode == 0 and "[100%]" in done.stdout, done.stdout[-3000:]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_shapes_hold_in_all_tests_of_these_files() -> None:
    done = checked(*PYTEST, *(str(TESTS / file) for file in (*HARNESS, "nn/test_attention.py")))
    assert done.returncode == 0, done.stdout[-3000:]


def test_a_wrong_shape_is_found() -> None:
    code = (
        "import sys; sys.path.insert(0, 'tests'); sys.path.insert(0, 'src')\n"
        "import conftest, torch\n"
        "from regard.nn.blocks.encoder import first_token_states\n"
        "first_token_states(torch.zeros(3, 4), None)\n"
    )
    done = checked("-c", code)
    assert done.returncode and "beartype" in done.stderr
