"""Task embed: vectors equal sentence-transformers, pooling and its files, contrastive training, nearest texts."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from objectives import assert_loss, assert_one_shape, collate, encode, scores_of
from torch import Tensor

import regard
from conftest import Cli, stopped_in
from data_files import refused
from encoders import encoder
from regard.data.settings import DataSettings
from regard.data.text.samples import Pair
from regard.data.training_files import DataSources
from regard.errors import RegardError, SettingError, WeightsError
from regard.model import Model
from regard.runs.folder import RunFolder
from regard.runs.spec import resume_spec
from regard.systems import SYSTEMS
from regard.tasks import embed, find_task, preparation
from regard.tasks.base import EncodingContext, HeadOptions, LossSum, LossWeights
from regard.tasks.embed import SCALE, Embed, Pooling, TextIndex, _encode_texts, pooling_files, read_pooling
from regard.tasks.preparation import LengthLimit
from regard.types import Batch, Packing
from tiny import gradients, near, noise, noisy
from tiny_text_models import train
from tokenizer_files import STORY, TEXTS, make, theirs_of, write_vocabulary

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
def test_vectors_are_those_that_others_make_of_the_same_folder(
    model: Model, published: Path, mode: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = with_pooling(model, Pooling(mode))
    monkeypatch.setattr("regard.tasks.embed.BUDGET", 64)  # many small batches
    right = said_by_others(published, ASKED, mode)
    near(values(asked.predict(ASKED)), right / right.norm(dim=1, keepdim=True))
    near(values(with_pooling(model, Pooling(mode, normalize=False)).predict(ASKED)), right)
    answer = asked.predict("the cat")
    printed = model.objective.format_prediction("the cat", answer).split()
    assert [float(number) for number in printed] == pytest.approx(answer.value, abs=1e-6)


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
    lower, kept = (HeadOptions(pooling=Pooling(lowercase=lower)) for lower in (True, False))
    given = (("The CAT", lower), ("The CAT", kept), ("the cat", kept))
    rows = [_encode_texts([one], config, EncodingContext(text, options=how))[0][0].tolist() for one, how in given]
    assert rows[0] == rows[2] != rows[1]


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
    folder = write(Path(shutil.copytree(published, tmp_path / "start")), pooling_files(pooling, 12))
    model = regard.load(folder)
    assert isinstance(model.objective, Embed) and model.spec.options.pooling == pooling
    right = said_by_others(folder, ASKED, pooling.mode, pooling.max_length or 40)
    near(values(model.predict(ASKED)), right / right.norm(dim=1, keepdim=True) if pooling.normalize else right)
    data = tmp_path / "pairs.tsv"
    data.write_text("".join(f"{pair.source} {n}\t{pair.target} {n}\n" for pair in PAIRS for n in range(3)))
    steps = ("train.steps=4", "train.eval_every=2", "data.valid_fraction=0.2", "train.precision=float32")
    with stopped_in(3):
        train("embed", data, tmp_path / "run", *steps, model=str(folder))
    order = resume_spec(find_task("embed", "text"), None, DataSources(()), {}, RunFolder(tmp_path / "run"))
    assert order.identity.options.pooling == pooling
    train("embed", "", tmp_path / "run", resume=True)
    run = regard.load(tmp_path / "run")
    assert isinstance(run.objective, Embed) and run.spec.options.pooling == pooling
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
    total, count = model.objective.loss(model, collate(model, encode(model, PAIRS[:1])))
    assert float(total.detach()) == pytest.approx(0, abs=1e-12) and int(count) == 1  # a pair alone has no negatives
    with pytest.raises(SettingError, match=r"train\.label_smoothing"):
        model.objective.loss(model, collate(model, encode(model, PAIRS)), LossWeights(smoothing=0.1))


@pytest.mark.parametrize("system", [name for name, system in SYSTEMS.items() if "embed" in system.tasks])
def test_packed_rows_of_every_encoder_have_the_same_loss(system: str) -> None:
    model = encoder("embed", [STORY], system=system)
    encoded = encode(model, PAIRS)
    near(*(model.objective.loss(model, collate(model, encoded, tokens=tokens))[0] for tokens in (256, 0)))


@pytest.mark.parametrize("packed", [False, True])
def test_a_pair_that_is_longer_than_a_micro_batch_is_a_micro_batch(model: Model, packed: bool) -> None:
    plan = model.objective.sampler(encode(model, PAIRS), model.config, 4, 0, packed)
    assert sorted(int(row) for grain in plan.epoch(0) for row in grain) == list(range(len(PAIRS)))


def test_token_caches_depend_on_length_and_case_not_on_the_pooling(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = list[str]()

    def record(key: str, *_: Any) -> Any:
        keys.append(key)
        raise InterruptedError

    monkeypatch.setattr(preparation, "cached_store", record)
    files: Any = SimpleNamespace(task=model.task, reader=model.task.reader)
    found: Any = SimpleNamespace(fingerprint="", held=())
    for kind in (Pooling(), Pooling(max_length=7), Pooling(lowercase=True), Pooling("max")):
        context = EncodingContext(model.processor, data=DataSettings(), options=HeadOptions(pooling=kind))
        with pytest.raises(InterruptedError):
            preparation._load_or_encode(files, found, model.config, context, LengthLimit(9, "", ""), print)
    assert len(keys) == 4 and len(set(keys)) == 3


def test_cosines_are_exact_where_the_body_is_not(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """In 16 bits, 20 times a cosine would have an error of 0.1."""
    batch = collate(model, encode(model, PAIRS))
    states = noise(*batch.inputs.shape, 12).float()
    monkeypatch.setattr(model.body, "forward", lambda _: regard.types.BodyOutput(states))
    monkeypatch.setattr(model.body, "has_pooler", False)
    right = model.objective.loss(model, batch)[0]
    with torch.autocast("cpu", torch.bfloat16):
        assert float(model.objective.loss(model, batch)[0]) == pytest.approx(float(right), rel=1e-6)


@pytest.mark.parametrize("mode", MODES)
def test_a_packed_or_padded_row_has_the_vectors_of_its_texts(mode: Any) -> None:
    states = noise(1, 12, 5).requires_grad_()
    starts = torch.tensor([0, 4, 5, 10, 12, 12])  # the fourth span is padding, the last is empty
    packed = Pooling(mode)(states, Batch(torch.zeros(1, 12, dtype=torch.long), packing=Packing(starts, 5)))
    weigh = noise(3, 5, seed=4)
    apart = torch.cat([Pooling(mode)(states[:, a:b], Batch(states[:, a:b, 0])) for a, b in ((0, 4), (4, 5), (5, 10))])
    near(packed[:3], apart)
    assert bool(packed.isfinite().all())
    ours, right = (torch.autograd.grad((x[:3] * weigh).sum(), states, retain_graph=True)[0] for x in (packed, apart))
    near(ours, right)
    lengths, x = torch.tensor([9, 2]), torch.zeros(2, 9, dtype=torch.long)
    rows = noise(2, 9, 5)
    right = torch.cat([Pooling(mode)(rows[i : i + 1, :n], Batch(x[:1, :n])) for i, n in ((0, 9), (1, 2))])
    for mask in (lengths, torch.arange(9) < lengths[:, None]):
        near(Pooling(mode)(rows, Batch(x, mask)), right)


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
    refused(words, read_pooling, tmp_path, error=WeightsError)
    (tmp_path / name).write_text("{")
    refused(name, read_pooling, tmp_path, error=WeightsError)


CORPUS = [f"{a} {b} on the {c}" for a in ("cats", "the dog") for b in ("sat", "is") for c in ("mat", "été", "façade")]


@pytest.fixture(scope="module")
def searcher() -> Model:
    return encoder("embed", [STORY, *CORPUS, "abcdefghijklm"], vocab_size=200)


# -- nearest texts


def test_the_nearest_are_those_of_the_largest_cosines(searcher: Model) -> None:
    texts = [*CORPUS, CORPUS[3], CORPUS[0]]  # some duplicates
    query = "a cat on a mat"
    answer = searcher.predict({"query": query, "corpus": texts, "top_k": 4})
    cosines = np.array([a.value for a in searcher.predict(CORPUS)]) @ np.array(searcher.predict(query).value)
    order = np.argsort(-cosines, kind="stable")[:4]
    assert [(hit["value"], hit["index"]) for hit in answer.extra["hits"]] == [(CORPUS[i], i) for i in order]
    assert answer.score == pytest.approx(cosines[order], abs=1e-12) and answer.value == CORPUS[order[0]]
    assert len(searcher.predict({"query": query, "corpus": texts}).score) == 5
    assert len(searcher.predict({"query": query, "corpus": texts, "top_k": 999}).score) == len(set(texts))


def test_texts_that_are_searched_are_read_once_and_no_query_has_no_result(
    searcher: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    real = embed.embed_texts
    monkeypatch.setattr(embed, "embed_texts", lambda m, texts, *more: read.append(len(texts)) or real(m, texts, *more))
    texts = ["one", "two", "two"]
    answers = searcher.predict([{"query": query, "corpus": texts} for query in ("x", "y", "two")])
    assert read == [3, 2] and answers[2].value == "two" and answers[2].score[0] == pytest.approx(1)
    assert searcher.predict([]) == []


def test_ties_keep_input_order_and_vector_length_has_no_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.tasks.embed.MAX_COSINES", 4)  # one query at a time
    vectors = np.array([[1.0, 0.0], [0.0, 5.0], [0.0, 1.0], [3.0, 3.0]])
    found = TextIndex(["east", "north", "up", "both"], vectors).search(np.array([[0.0, 2.0], [9.0, 0.1]]), 3)
    values = [[hit["value"] for hit in one.extra["hits"]] for one in found]
    assert values == [["north", "up", "both"], ["east", "both", "north"]]
    assert found[0].score == pytest.approx((1, 1, 0.5**0.5))


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ([3], "Expected a text"), ({"query": "a"}, '"corpus"'), ({"query": "a", "corpus": []}, "non-empty list of texts"),
        ({"query": "a", "corpus": "b"}, "texts"), ({"query": "a", "corpus": ["b"], "top_k": 0}, "at least 1, got 0"),
        ({"query": "a", "corpus": ["b", 2]}, "int 2"), ({"query": "a", "corpus": ["b"], "k": 1}, '"top_k"'),
    ],
)  # fmt: skip
def test_unsupported_requests_are_reported(searcher: Model, asked: Any, words: str) -> None:
    refused(words, searcher.predict, asked, error=RegardError)


def score(searcher: Model, pairs: list[Pair], most: int | None = None) -> tuple[dict[str, Any], list[int]]:
    scores, answers = scores_of(searcher, encode(searcher, pairs, 99), loss=LossSum(1.0, 1.0), most=most)
    return scores, [answer.extra["rank"] for answer in answers]


def placed(searcher: Model, monkeypatch: pytest.MonkeyPatch, table: dict[str, float]) -> None:
    """Substitute embeddings: the vector of each text is a given angle."""
    name = {
        tuple(embed._encode_texts([text], searcher.config, EncodingContext(searcher.tokenizer))[0][0].tolist()): at
        for text, at in table.items()
    }
    angles = lambda rows: np.array([name[tuple(np.asarray(row).tolist())] for row in rows])  # noqa: E731
    monkeypatch.setattr(
        embed, "_embed_rows", lambda model, rows, tell=None: np.stack([np.cos(angles(rows)), np.sin(angles(rows))], 1)
    )


def test_ranks_count_nearer_texts_and_any_correct_text_is_accepted(
    searcher: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    angles = {"the cat": 0.0, "sat": 0.3, "is": 0.2, "mat": 0.1, "a dog": 1.0, "on": 1.4, "b": 0.25}
    placed(searcher, monkeypatch, angles)
    pairs = [("the cat", "sat"), ("the cat", "is"), ("a dog", "on"), ("b", "mat"), ("mat", "the cat"), ("on", "on")]
    scores, ranks = score(searcher, [Pair(a, b, "", 1) for a, b in pairs])
    # 'mat' is nearer to 'the cat' than both of its correct texts; 'mat' itself is excluded from its own ranking
    assert ranks == [2, 2, 1, 3, 2, 1]
    assert scores == {"mrr": round(100 * (0.5 + 0.5 + 1 + 1 / 3 + 0.5 + 1) / 6, 2), "accuracy": 33.33, "samples": 6}
    assert searcher.objective.format_scores(scores) == f"MRR {scores['mrr']:.2f}  accuracy 33.33"
    assert score(searcher, [Pair(a, b, "", 1) for a, b in pairs], 3)[1] == ranks[:3]
    # vectors that are all the same find nothing
    words = "abcdefghijklm"
    placed(searcher, monkeypatch, dict.fromkeys(words, 0.5))
    scores, ranks = score(searcher, [Pair(a, b, "", 1) for a, b in zip(words, words[1:] + "a", strict=True)])
    assert set(ranks) == {12} and scores["mrr"] == scores["accuracy"] == 0


# -- the command


@pytest.fixture
def saved(searcher: Model, tmp_path: Path) -> Path:
    return searcher.save(tmp_path / "my encoder")


def test_a_file_is_searched_for_the_nearest_texts(cli: Cli, saved: Path, searcher: Model, tmp_path: Path) -> None:
    (tmp_path / "my texts.txt").write_text("\n\n".join([*CORPUS, CORPUS[0]]) + "\n")
    right = searcher.predict({"query": "the mat", "corpus": CORPUS, "top_k": 2})
    told = "".join(f"{hit['cosine']:7.4f}  {hit['value']}\n" for hit in right.extra["hits"])
    done = cli("predict", saved, "the mat", "--search", "my texts.txt", "--top-k", 2)
    assert (done.code, done.out) == (0, told) and "Searching 13 texts in my texts.txt" in done.err
    several = cli("predict", saved, "--search", "my texts.txt", "--top-k", 2, stdin="the mat\nthe cat\n")
    assert several.out.startswith(f"the mat\n{told}\nthe cat\n")
    row = json.loads(cli("predict", saved, "the mat", "--search", "my texts.txt", "--json").out)
    assert row["input"] == "the mat" and row["value"] == right.value and len(row["hits"]) == 5
    assert [hit["line"] for hit in row["hits"]][:2] == [1 + 2 * hit["index"] for hit in right.extra["hits"]]


def test_a_table_is_searched_by_its_column(cli: Cli, saved: Path, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,text,more\n1,the cat,x\n2,a dog,the mat\n")
    (tmp_path / "a.jsonl").write_text('{"text": "the cat"}\n{"text": "a dog"}\n')
    for file in ("a.csv", "a.jsonl"):
        row = json.loads(cli("predict", saved, "the cat", "--search", file, "--json").out)
        assert row["value"] == "the cat" and row["score"][0] == pytest.approx(1)
    other = cli("predict", saved, "the mat", "--search", "a.csv", "--columns", "text=more", "--top-k", 1)
    assert other.out == " 1.0000  the mat\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--search", "none.txt"), "file not found"), (("--search", "empty.txt"), "is empty"),
        (("--search", "blank.txt"), "contains no text"), (("--search", "."), "got a folder"), (("--top-k", "2"), "--search"),
        (("--search", "a.csv"), "no column is named 'text'"), (("--choices", "a|b"), "--search"),
        (("--search", "a.txt", "--columns", "text=a"), "no columns"), (("--search", "a.txt", "--choices", "a|b"), "--top-k"),
    ],
)  # fmt: skip
def test_errors_of_a_search_are_reported(
    cli: Cli, saved: Path, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    for name, text in (("empty.txt", ""), ("blank.txt", "\n \n"), ("a.csv", "x,y\n1,2\n"), ("a.txt", "a\n")):
        (tmp_path / name).write_text(text)
    done = cli("predict", saved, "the cat", *words)
    assert done.code == 2 and done.err.startswith("regard: ") and said in done.err and not done.out


def test_long_searches_report_progress(cli: Cli, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.runs.progress.PRINT_INTERVAL", -1.0)
    monkeypatch.setattr("regard.tasks.embed.BUDGET", 24)
    (tmp_path / "a.txt").write_text("\n".join(CORPUS))
    err = cli("predict", saved, "the cat", "--search", "a.txt").err
    assert "of 12 texts," in err and "12 of 12" not in err
