"""Task embed: vectors equal sentence-transformers, contrastive training on pairs, nearest texts."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from objectives import assert_loss, assert_one_shape, collate, encode
from torch import Tensor

import regard
from conftest import stopped_in
from encoders import encoder
from regard.data.text.samples import Pair
from regard.errors import SettingError
from regard.model import Model
from regard.runs.evaluate import evaluate
from regard.runs.folder import RunFolder
from regard.runs.spec import DataSources, resume_spec
from regard.runs.spec import TrainRequest as Order
from regard.systems import SYSTEMS
from regard.tasks import find_task
from regard.tasks.base import EncodingContext, HeadOptions, LossWeights
from regard.tasks.embed import SCALE, Embed, Pooling, _encode_texts, pooling_files
from regard.types import Batch
from tiny import gradients, near, noise, noisy
from tiny_text_models import train
from tokenizer_files import TEXTS, make, theirs_of, write_vocabulary
from tokenizer_texts import STORY

ASKED = [*TEXTS, "", "   ", "the cat sat on the mat " * 9]
MODES = ("mean", "cls", "max", "mean_sqrt_len_tokens")
SIZES = {
    "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 20,
    "max_position_embeddings": 40, "attn_implementation": "eager",
}  # fmt: skip


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Hugging Face checkpoint of an encoder with its vocabulary."""
    folder, text = tmp_path_factory.mktemp("bert"), make()
    noisy(transformers.BertModel(transformers.BertConfig(**SIZES, vocab_size=text.size))).save_pretrained(folder)
    return write_vocabulary(text, folder, {"tokenizer_class": "BertTokenizer", "do_lower_case": True})


@pytest.fixture(scope="module")
def model(published: Path) -> Model:
    return regard.load(published)


def with_pooling(model: Model, pooling: Pooling) -> Model:
    """The same weights with another pooling."""
    other = Model(model.body, replace(model.spec, options=HeadOptions(pooling=pooling)), model.tokenizer)
    return other.eval()


def said_by_others(folder: Path, texts: list[str], mode: str = "mean", longest: int = 40) -> Tensor:
    """Tokens and hidden states of transformers, pooled as documented by sentence-transformers."""
    peer = transformers.BertModel.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager").eval()
    found = []
    for text in texts:
        rows = theirs_of(folder)(text.strip(), truncation=True, max_length=longest, return_tensors="pt")
        states = peer(**rows).last_hidden_state[0]
        pooled = {
            "mean": states.mean(0), "cls": states[0], "max": states.max(0).values,
            "mean_sqrt_len_tokens": states.sum(0) / len(states) ** 0.5,
        }  # fmt: skip
        found.append(pooled[mode].detach())
    return torch.stack(found)


def values(answers: Any) -> Tensor:
    return torch.tensor([answer.value for answer in answers], dtype=torch.float64)


# -- vectors


@pytest.mark.parametrize("mode", MODES)
def test_vectors_are_those_that_others_make_of_the_same_folder(model: Model, published: Path, mode: Any) -> None:
    asked = with_pooling(model, Pooling(mode))
    right = said_by_others(published, ASKED, mode)
    near(values(asked.predict(ASKED)), right / right.norm(dim=1, keepdim=True))
    near(values(with_pooling(model, Pooling(mode, normalize=False)).predict(ASKED)), right)


def test_a_bare_encoder_returns_a_plain_list_of_length_1(model: Model) -> None:
    assert model.task.name == "embed" and model.body.has_pooler
    answer = model.predict("the cat")
    assert isinstance(answer.value, list) and len(answer.value) == 12 and type(answer.value[0]) is float
    assert answer.score == () and sum(x * x for x in answer.value) == pytest.approx(1, abs=1e-12)


def test_neighbors_change_nothing(model: Model, published: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    together = values(model.predict(ASKED))
    near(together, values([model.predict(text) for text in ASKED]))
    monkeypatch.setattr("regard.tasks.embed.BUDGET", 64)  # many small batches
    near(values(model.predict(ASKED)), together)
    single = regard.load(published, dtype=torch.float32)
    gap = values(single.predict(ASKED)) - values([single.predict(text) for text in ASKED])
    assert float(gap.abs().max()) < 1e-6


def test_long_texts_are_truncated_at_their_end_and_reported(model: Model, published: Path) -> None:
    long, short = "the cat sat on the mat " * 9, "the cat"
    assert [answer.extra for answer in model.predict([long, short])] == [{"truncated": True}, {}]
    brief = with_pooling(model, Pooling(max_length=7))
    right = said_by_others(published, [long], longest=7)
    near(values([brief.predict(long)]), right / right.norm())
    encoded = encode(brief, [Pair(short, long, "", 1), Pair(short, short, "", 2)], 99)
    assert list(map(len, encoded.fields["second"])) == [7, 4] and [s.line for s in encoded.too_long] == [1]


def test_texts_are_lowercased_if_the_checkpoint_requires_it(published: Path) -> None:
    folder = write_vocabulary(make(lower=False), published.parent / "cased", {"do_lower_case": False})
    text = regard.processors.tokenizer.tokenizer.TextTokenizer.load(folder)
    config = regard.load(published).config
    rows = [
        _encode_texts(
            ["The CAT"], config, EncodingContext(text, options=HeadOptions(pooling=Pooling(lowercase=lower)))
        )[0][0].tolist()
        for lower in (True, False)
    ]
    assert rows[0] == _encode_texts(["the cat"], config, EncodingContext(text))[0][0].tolist() != rows[1]


def test_other_libraries_read_saved_models(model: Model, tmp_path: Path) -> None:
    regard.save(model, tmp_path)
    right = said_by_others(tmp_path, ASKED)
    near(values(model.predict(ASKED)), right / right.norm(dim=1, keepdim=True))
    near(values(regard.load(tmp_path).predict(ASKED)), values(model.predict(ASKED)))


@pytest.mark.every(2)
@pytest.mark.parametrize("pooling", [Pooling("cls", False, 7), Pooling("max", True, 9, True)])
def test_the_manner_of_a_folder_is_kept_from_its_files_to_those_of_a_run(
    pooling: Pooling, published: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(published, tmp_path / "start"))
    for name, value in pooling_files(pooling, 12).items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(value))
    model = regard.load(folder)
    assert isinstance(model.objective, Embed) and model.spec.options.pooling == pooling
    right = said_by_others(folder, ASKED, pooling.mode, pooling.max_length or 40)
    near(values(model.predict(ASKED)), right / right.norm(dim=1, keepdim=True) if pooling.normalize else right)
    data = tmp_path / "pairs.tsv"
    data.write_text("".join(f"{pair.source} {n}\t{pair.target} {n}\n" for pair in PAIRS for n in range(3)))
    steps = ("train.steps=4", "train.eval_every=2", "data.valid_fraction=0.2", "train.precision=float32")
    with stopped_in(3):
        train("embed", data, tmp_path / "run", *steps, model=str(folder))
    assert RunFolder(tmp_path / "run").exists()
    order = resume_spec(Order(find_task("embed", "text"), None, DataSources(()), {}), RunFolder(tmp_path / "run"))
    assert order.identity.options.pooling == pooling
    train("embed", "", tmp_path / "run", resume=True)
    run = regard.load(tmp_path / "run")
    assert isinstance(run.objective, Embed)
    assert run.spec.options.pooling == pooling
    assert regard.load(run.spec.source, task="classify")


# -- training

PAIRS = [
    Pair("the cat", "sat on the mat", "", 1), Pair("a dog", "barks", "", 2), Pair("the cat", "is grey", "", 3),
    Pair("who", "barks", "", 4), Pair("sat on the mat", "the cat sat", "", 5), Pair("b", "c d e f", "", 6),
]  # fmt: skip
"""Pairs 1 and 3 share a text, so do pairs 2 and 4; pair 5 begins with the second text of pair 1."""


def oracle(model: Model, pairs: list[Pair]) -> Tensor:
    """The contrastive loss in loops over texts and pairs."""

    def vector(text: str) -> Tensor:
        ids = [model.config.bos_id, *model.tokenizer.encode([text])[0], model.config.eos_id]
        states = model.body(Batch(torch.tensor([ids]))).sequence[0].mean(0)
        return states / states.norm()

    total = torch.zeros((), dtype=torch.float64)
    for i, pair in enumerate(pairs):
        strange = [
            j for j, other in enumerate(pairs)
            if j != i and other.source != pair.source and other.target != pair.target
        ]  # fmt: skip
        seconds = [i, *(j for j in strange if pairs[j].target != pair.source)]
        firsts = [i, *(j for j in strange if pairs[j].source != pair.target)]
        forth = torch.stack([vector(pair.source) @ vector(pairs[j].target) for j in seconds])
        back = torch.stack([vector(pair.target) @ vector(pairs[j].source) for j in firsts])
        total = total - ((SCALE * forth).log_softmax(0)[0] + (SCALE * back).log_softmax(0)[0]) / 2
    return total


def test_the_loss_has_both_directions_and_equal_texts_are_not_negatives(model: Model) -> None:
    right = oracle(model, PAIRS)
    assert_loss(model, encode(model, PAIRS), right, 256)
    total = model.objective.loss(model, collate(model, encode(model, PAIRS)))[0]
    assert gradients(model, total).keys() == dict(model.named_parameters()).keys()
    bare = with_pooling(model, Pooling(normalize=False))  # lengths of vectors are not trained
    near(model.objective.loss(bare, collate(model, encode(model, PAIRS)))[0], right)
    assert_one_shape(model, encode(model, PAIRS * 8), 100)


ENCODERS = [name for name, system in SYSTEMS.items() if "embed" in system.tasks]


@pytest.mark.parametrize("system", ENCODERS)
def test_every_encoder_is_supported_and_packed_rows_have_equal_gradients(system: str) -> None:
    model = encoder("embed", [STORY], system=system)
    vector = values([model.predict("the cat sat")])
    assert vector.shape == (1, model.config.width) and float(vector.norm()) == pytest.approx(1, abs=1e-12)
    encoded = encode(model, PAIRS)
    near(*(model.objective.loss(model, collate(model, encoded, tokens=tokens))[0] for tokens in (256, 0)))
    near(vector, values(model.predict(["the cat sat", "on the mat, and the cat's"]))[:1])


@pytest.mark.parametrize("packed", [False, True])
def test_a_pair_that_is_longer_than_a_micro_batch_is_a_micro_batch(model: Model, packed: bool) -> None:
    plan = model.objective.sampler(encode(model, PAIRS), model.config, 4, 0, packed)
    assert sorted(int(row) for grain in plan.epoch(0) for row in grain) == list(range(len(PAIRS)))


def test_token_caches_depend_on_length_and_case() -> None:
    kinds = [Pooling(), Pooling(max_length=7), Pooling(lowercase=True), Pooling("max")]
    assert len({HeadOptions(pooling=kind).encoding_key for kind in kinds}) == 3  # the pooling does not change tokens


def test_a_pair_alone_has_nothing_to_learn(model: Model) -> None:
    total, count = model.objective.loss(model, collate(model, encode(model, PAIRS[:1])))
    assert float(total.detach()) == pytest.approx(0, abs=1e-12) and int(count) == 1


def test_cosines_are_exact_where_the_body_is_not(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """In 16 bits, 20 times a cosine would have an error of 0.1."""
    batch = collate(model, encode(model, PAIRS))
    monkeypatch.setattr(
        model.body, "forward", lambda rows: regard.types.BodyOutput(noise(*rows.inputs.shape, 12).float())
    )
    monkeypatch.setattr(model.body, "has_pooler", False)
    right = model.objective.loss(model, batch)[0]
    with torch.autocast("cpu", torch.bfloat16):
        assert float(model.objective.loss(model, batch)[0]) == pytest.approx(float(right), rel=1e-6)


def test_settings_without_a_meaning_are_refused(model: Model) -> None:
    batch = collate(model, encode(model, PAIRS))
    with pytest.raises(SettingError, match=r"train\.label_smoothing"):
        model.objective.loss(model, batch, LossWeights(smoothing=0.1))


# -- runs


def test_a_run_trains_on_pairs_and_is_searched(tmp_path: Path) -> None:
    words = product(("cat", "dog", "cow"), ("eats", "sees", "has"), ("bread", "fish", "milk", "corn"))
    said = [(f"{a} {b} {c}", f"what {a} {c} {b}?") for a, b, c in words]
    data = tmp_path / "pairs.tsv"
    data.write_text("".join(f"{a}\t{b}\n" for a, b in said))
    small = ("model.width=32", "model.depth=1", "model.heads=2", "model.ffn_dim=32", "model.dropout=0",
             "model.attention_dropout=0", "data.vocab_size=90", "data.valid_fraction=0.2",
             "train.precision=float32")  # fmt: skip
    quick = ("train.lr=1e-2", "train.steps=60", "train.eval_every=30", "train.log_every=30", "train.batch_tokens=512")
    told = train("embed", data, tmp_path / "run", *small, *quick)
    scores = evaluate(tmp_path / "run").scores
    assert "mrr" in told and scores["mrr"] > 80 and scores["accuracy"] > 60, scores
    model = regard.load(tmp_path / "run")
    found = model.predict({"query": said[7][0], "corpus": [b for _, b in said], "top_k": 3})
    assert said[7][1] in [hit["value"] for hit in found.extra["hits"]]
    peer = transformers.AutoModel.from_pretrained(tmp_path / "run").eval()
    rows = transformers.AutoTokenizer.from_pretrained(tmp_path / "run")([said[7][0]], return_tensors="pt")
    states = peer(**rows).last_hidden_state[0].mean(0)
    near(values([model.predict(said[7][0])]).float(), (states / states.norm())[None], 1e-5)
