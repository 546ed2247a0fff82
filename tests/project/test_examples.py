"""The single-file example computes the results of the library."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import regard
from regard.decode.search import search
from regard.decode.settings import DecodeSettings
from regard.model import Model
from regard.processors.tokenizer.tokenizer import END_OF_TEXT, TextTokenizer
from regard.types import Batch
from tiny import near, tiny

FILE = Path(__file__).parents[2] / "examples" / "gpt2_plain.py"


@pytest.fixture(scope="module")
def plain() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpt2_plain", FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def saved(folder: Path, **changes: Any) -> Model:
    model = tiny("gpt2", **changes)
    regard.save(model, folder)
    return model


@pytest.mark.parametrize("changes", [{}, {"norm_eps": 1e-2, "ffn_dim": 48, "heads": 2}])
def test_the_single_file_equals_the_system(plain: ModuleType, changes: dict[str, Any], tmp_path: Path) -> None:
    model = saved(tmp_path, **changes)
    x = torch.randint(23, (3, 16), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        ours = plain.load(tmp_path)(x)
    near(ours, model.logits(x))
    near(ours, regard.load(tmp_path).logits(x))
    # folders as they were published first: without the prefix, with mask buffers and with a copy of the embedding
    tensors = {name.removeprefix("transformer."): t for name, t in load_file(tmp_path / "model.safetensors").items()}
    tensors |= {f"h.{n}.attn.bias": torch.ones(1, 1, 16, 16).tril() for n in range(3)}
    tensors["lm_head.weight"] = tensors["wte.weight"].clone()
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with torch.no_grad():
        near(plain.load(tmp_path)(x), model.logits(x))


def test_it_generates_as_the_search_does(plain: ModuleType, tmp_path: Path) -> None:
    model = saved(tmp_path)
    for prompt in ([3, 1, 4, 1, 5], [9]):
        (found,) = search(model.body, Batch(torch.tensor([prompt])), -1, torch.tensor([10]), DecodeSettings())
        assert tuple(plain.generate(plain.load(tmp_path), prompt, 10, temperature=0)) == found[0].tokens
    # beyond the context, only the last tokens are read
    drawn = list(plain.generate(plain.load(tmp_path), [3], 30, top_k=5))
    assert len(drawn) == 30 and all(0 <= token < 23 for token in drawn)


@pytest.mark.slow
def test_it_runs_as_documented_and_is_short(tmp_path: Path) -> None:
    text = TextTokenizer.train_lm_bpe(["to be or not to be", "that is the question"] * 20, 270)
    model = tiny("gpt2", vocab_size=text.size, eos_id=text.backend.token_to_id(END_OF_TEXT))
    model.tokenizer = text
    command = [sys.executable, str(FILE), str(regard.save(model, tmp_path)), "to be"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.startswith("to be") and len(done.stdout) > 10
    assert len(FILE.read_text().splitlines()) <= 130
