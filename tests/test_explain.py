"""What the model looked at, against attention computed anew from its weights."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

import regard
from conftest import Pairs, Trained
from regard.draw.maps import AttentionMap
from regard.errors import RegardError
from regard.explain.explanation import Explanation

SOURCE, TARGET = "the old women danced", "die alten Frauen tanzten"


@pytest.fixture(scope="module")
def model(trained: Trained) -> regard.Model:
    return regard.load(trained.path)


@pytest.fixture(scope="module")
def given(model: regard.Model) -> Explanation:
    return model.explain(SOURCE, TARGET)


def maps(explanation: Explanation) -> dict[str, AttentionMap]:
    return {item.name: item for item in explanation.maps}


def ids(model: regard.Model, text: str) -> list[int]:
    assert model.text is not None
    return model.text.encode([text])[0]


def embedded(model: regard.Model, row: list[int]) -> Tensor:
    """Table times the root of the width, plus sines in the first half of the channels and cosines in the second."""
    width = model.config.width
    waves = torch.tensor([[at / 10000 ** (2 * i / width) for i in range(width // 2)] for at in range(len(row))])
    return model.body.tokens.table.weight[row] * math.sqrt(width) + torch.cat([waves.sin(), waves.cos()], -1)


def looked(q: Tensor, k: Tensor, heads: int, causal: bool = False) -> NDArray[np.float64]:
    """softmax(q kᵀ / √d) for each head, with the future cut off where it must be."""
    weights = []
    for q_head, k_head in zip(q.chunk(heads, -1), k.chunk(heads, -1), strict=True):
        scores = q_head @ k_head.T / math.sqrt(q_head.shape[-1])
        hidden = torch.ones_like(scores).triu(1).bool() if causal else torch.zeros_like(scores).bool()
        weights.append(scores.masked_fill(hidden, -math.inf).softmax(-1))
    return torch.stack(weights).detach().double().numpy()


def recomputed(model: regard.Model) -> dict[str, NDArray[np.float64]]:
    """The three maps of a model of one layer from its matrices alone; states between them from its own blocks."""
    body, heads = model.body, model.config.heads
    x = embedded(model, [*ids(model, SOURCE), model.config.end])
    y = embedded(model, [model.config.start, *ids(model, TARGET)])
    found = {}
    for name, stack, states in (("encoder", body.encoder, x), ("decoder", body.decoder, y)):
        qkv = stack.blocks[0].attend.inner.qkv
        q, k, v = F.linear(states, qkv.weight, qkv.bias).chunk(3, -1)
        found[name] = looked(q, k, heads, causal=name == "decoder")
    mixed = [
        torch.from_numpy(weights).float() @ v_head
        for weights, v_head in zip(found["decoder"], v.chunk(heads, -1), strict=True)
    ]
    attend, cross = body.decoder.blocks[0].attend, body.decoder.blocks[0].cross.inner
    after = attend.norm(y + attend.inner.out(torch.cat(mixed, -1)))
    context = body.encoder(x[None])[0][0]
    found["cross"] = looked(cross.q(after), cross.kv(context).chunk(2, -1)[0], heads)
    return found


def test_the_maps_are_the_softmax_of_the_models_own_queries_and_keys(model: regard.Model, given: Explanation) -> None:
    for name, weights in recomputed(model).items():
        shown = maps(given)[name].weights
        assert shown.shape == (1, *weights.shape)
        np.testing.assert_allclose(shown[0], weights, atol=1e-5, err_msg=name)


def test_every_map_is_labelled_by_the_tokens_that_look_and_are_looked_at(
    model: regard.Model, given: Explanation
) -> None:
    source, target = ids(model, SOURCE), ids(model, TARGET)
    shown = {name: (len(item.queries), len(item.keys)) for name, item in maps(given).items()}
    assert shown == {
        "cross": (len(target) + 1, len(source) + 1),
        "encoder": (len(source) + 1, len(source) + 1),
        "decoder": (len(target) + 1, len(target) + 1),
    }
    cross, decoder = maps(given)["cross"], maps(given)["decoder"]
    assert joined(cross.keys[:-1]) == SOURCE and joined(cross.queries[:-1]) == TARGET
    assert cross.keys[-1] == cross.queries[-1] == "</s>" and decoder.queries[0] == "<s>"
    assert decoder.queries == decoder.keys == ("<s>", *cross.queries[:-1])
    assert maps(given)["encoder"].queries == maps(given)["encoder"].keys == cross.keys


def joined(pieces: tuple[str, ...]) -> str:
    """A piece that continues a word begins with a dot; a space alone is drawn."""
    return "".join(piece[1:] if piece.startswith("·") else f" {piece.strip('␣')}" for piece in pieces).strip()


def test_rows_sum_to_one_and_nobody_sees_the_future(given: Explanation) -> None:
    for item in given.maps:
        np.testing.assert_allclose(item.weights.sum(-1), 1, atol=1e-5)
        assert item.weights.min() >= 0 and item.heads == 2 and item.layers == 1
    decoder, cross = maps(given)["decoder"].weights, maps(given)["cross"].weights
    assert not np.triu(decoder, 1).any() and decoder[0, :, 0, 0].tolist() == [1, 1]
    assert np.triu(cross[..., : cross.shape[-2]], 1).any()


def test_without_a_translation_its_own_is_explained(model: regard.Model, pairs: Pairs) -> None:
    source = pairs[3][0]
    own = model.explain(source)
    said = model.answer(source).value
    assert own.title == f"{source} → {said}"
    again = model.explain(source, said)
    assert all(np.array_equal(a.weights, b.weights) for a, b in zip(own.maps, again.maps, strict=True))


def test_the_probabilities_are_those_of_the_words_it_was_given(model: regard.Model, given: Explanation) -> None:
    said = [*ids(model, TARGET), model.config.end]
    x = torch.tensor([[*ids(model, SOURCE), model.config.end]])
    with torch.no_grad():
        logits = model.logits(x, torch.tensor([[model.config.start, *said[:-1]]]))
    chances = logits.softmax(-1)[0, range(len(said)), said].tolist()
    shown = given.facts["probability of each token"].split(" | ")
    assert shown == [f"{piece} {p:.2f}" for piece, p in zip(maps(given)["cross"].queries, chances, strict=True)]


def test_explaining_drops_nothing_and_leaves_the_model_as_it_was(trained: Trained, given: Explanation) -> None:
    model = regard.load(trained.path).train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.5
    again = model.explain(SOURCE, TARGET)
    assert model.training and not any(module._forward_pre_hooks for module in model.modules())
    assert all(np.array_equal(a.weights, b.weights) for a, b in zip(given.maps, again.maps, strict=True))


def test_an_empty_text_is_refused_and_an_empty_translation_is_its_end_alone(model: regard.Model) -> None:
    with pytest.raises(RegardError, match="empty"):
        model.explain(" \n")
    assert maps(model.explain(SOURCE, ""))["cross"].queries == ("</s>",)


def test_the_page_holds_the_same_numbers_and_words(given: Explanation, tmp_path: Path) -> None:
    text = given.save(tmp_path / "deep" / "map.html").read_text("utf-8")
    data = json.loads(re.findall(r'id="data">(.*?)</script>', text, re.DOTALL)[0])
    for item in data["maps"]:
        mine = maps(given)[item["name"]]
        assert (tuple(item["queries"]), tuple(item["keys"])) == (mine.queries, mine.keys)
        np.testing.assert_allclose(np.array(item["weights"]) / data["scale"], mine.weights, atol=1e-4)
    assert SOURCE in text and TARGET in text and "http://" not in text and "https://" not in text


def test_pictures_are_written_and_one_head_is_another_picture(given: Explanation, tmp_path: Path) -> None:
    whole = given.save(tmp_path / "map.png").read_bytes()
    one = given.save(tmp_path / "one.PNG", layer=1, head=2).read_bytes()
    assert whole.startswith(b"\x89PNG") and one.startswith(b"\x89PNG") and whole != one
    drawn = given.save(tmp_path / "map.svg").read_text("utf-8")
    assert drawn.startswith("<?xml") and all(piece in drawn for piece in maps(given)["cross"].keys if piece.isalpha())
    with pytest.raises(RegardError, match="head 3"):
        given.save(tmp_path / "none.png", head=3)
    assert not (tmp_path / "none.png").exists()
