"""All capabilities work on a CUDA device, and training, prediction and explanation work without each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from test_capabilities import remove

import regard
from conftest import Pairs, rows, train_tiny, write_pairs
from regard import capabilities

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def results(data: Path, out: Path) -> tuple[list[float], list[str], list[float]]:
    """Losses, greedy and beam predictions, and the largest attention weights; in bfloat16, with packed rows."""
    settings = (
        "train.steps=3",
        "train.eval_every=3",
        "train.log_every=1",
        "train.precision=bfloat16",
        "model.dropout=0",
    )
    train_tiny(data, out, *settings, device="cuda")
    model, text = regard.load(out, device="cuda", dtype=torch.bfloat16), data.read_text("utf-8").split("\t")[0]
    predicted = [model.predict(text, num_beams=1).value, model.predict(text, num_beams=2).value]
    torch.manual_seed(0)
    sight = regard.build("dpt-small", device="cuda").bfloat16().eval()
    with torch.inference_mode():
        depth = sight.logits(torch.linspace(-1, 1, 3 * 64 * 64, device="cuda").view(1, 3, 64, 64).bfloat16())
    weights = [float(item.weights.max()) for item in model.float().explain(text).maps]
    return [row["loss"] for row in rows(out, "train")], predicted, [*weights, float(depth.float().mean())]


@pytest.fixture(scope="module")
def data(pairs: Pairs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pairs(tmp_path_factory.mktemp("data") / "pairs.tsv", pairs[:40])


@pytest.fixture(scope="module")
def expected(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return results(data, tmp_path_factory.mktemp("all") / "run")


@pytest.mark.parametrize("name", capabilities.CUDA_TRIALS)
def test_a_capability_works_and_can_be_done_without(
    name: str, data: Path, tmp_path: Path, expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert capabilities.is_available(name)
    remove(name, monkeypatch)
    losses, _, values = results(data, tmp_path / "run")
    assert not capabilities.is_available(name)
    assert losses == pytest.approx(expected[0], rel=0.02)
    assert values == pytest.approx(expected[2], rel=0.05, abs=0.02)
