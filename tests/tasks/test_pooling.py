"""Pooling of hidden states into one vector, and the pooling files of Hugging Face checkpoints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.errors import WeightsError
from regard.tasks.embed import Pooling, pooling_files, read_pooling
from regard.types import Batch, Packing
from tiny import near, noise

MODES = ("mean", "cls", "max", "mean_sqrt_len_tokens")


@pytest.mark.parametrize("mode", MODES)
def test_a_packed_row_has_the_vectors_of_its_texts(mode: Any) -> None:
    states = noise(1, 12, 5).requires_grad_()
    starts = torch.tensor([0, 4, 5, 10, 12, 12])  # the fourth span is padding, the last is empty
    packed = Pooling(mode)(states, Batch(torch.zeros(1, 12, dtype=torch.long), packing=Packing(starts, 5)))
    weigh = noise(3, 5, seed=4)
    apart = torch.cat([Pooling(mode)(states[:, a:b], Batch(states[:, a:b, 0])) for a, b in ((0, 4), (4, 5), (5, 10))])
    near(packed[:3], apart)
    assert bool(packed.isfinite().all())
    ours, right = (torch.autograd.grad((x[:3] * weigh).sum(), states, retain_graph=True)[0] for x in (packed, apart))
    near(ours, right)


def test_padding_is_not_pooled() -> None:
    states, lengths = noise(2, 6, 5), torch.tensor([6, 2])
    x = torch.zeros(2, 6, dtype=torch.long)
    for mode in MODES:
        pool = Pooling(mode)  # type: ignore[arg-type]
        right = torch.cat([pool(states[:1], Batch(x[:1])), pool(states[1:, :2], Batch(x[1:, :2]))])
        near(pool(states, Batch(x, lengths)), right)
        near(pool(states, Batch(x, torch.arange(6) < lengths[:, None])), right)


# -- pooling files


def write(folder: Path, files: dict[str, Any]) -> Path:
    for name, value in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps(value))
    return folder


@pytest.mark.parametrize("pooling", [Pooling(), Pooling("cls", False), Pooling("max", True, 256, True)])
def test_pooling_files_are_written_and_read(pooling: Pooling, tmp_path: Path) -> None:
    assert read_pooling(write(tmp_path, pooling_files(pooling, 12))) == pooling
    assert read_pooling(tmp_path / "1_Pooling") == Pooling()  # the default without such files
    named = {"embedding_dimension": 12, "pooling_mode": pooling.mode}  # the format of newer files
    assert read_pooling(write(tmp_path, {"1_Pooling/config.json": named})) == pooling


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("modules.json", [{"type": "a.Transformer"}, {"type": "a.Pooling"}, {"type": "a.Dense"}], "Dense"),
        ("modules.json", {"type": "a"}, "JSON"),
        ("1_Pooling/config.json", {"pooling_mode_lasttoken": True}, "lasttoken"),
        ("1_Pooling/config.json", {"pooling_mode": ["mean", "max"]}, "mean"),
        ("sentence_bert_config.json", {"max_seq_length": "many"}, "max_seq_length"),
        ("config_sentence_transformers.json", {"default_prompt_name": "query"}, "'query'"),
    ],
)
def test_a_manner_that_we_do_not_compute_is_refused(name: str, value: Any, words: str, tmp_path: Path) -> None:
    write(tmp_path, {**pooling_files(Pooling(), 12), name: value})
    with pytest.raises(WeightsError, match=words):
        read_pooling(tmp_path)


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    write(tmp_path, pooling_files(Pooling(), 12))
    (tmp_path / "1_Pooling/config.json").write_text("{")
    with pytest.raises(WeightsError, match=r"config\.json"):
        read_pooling(tmp_path)
