"""Exported folders: the tokenizer and the model of transformers, chosen from the folder, give the logits of regard from raw
texts, short and long, alone and padded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from transformers import AutoTokenizer

import parity  # also makes rotary positions of transformers exact in float64
import regard
from regard.data.text.samples import Pair
from regard.model import Model, ModelSpec, assemble
from regard.processors.tokenizer.tokenizer import TextTokenizer, TokenTemplate
from regard.systems import SYSTEMS
from regard.tasks import find_task
from regard.tasks.base import HeadOptions, encode_samples
from regard.tasks.embed import Pooling
from tiny import near, noisy
from tokenizer_files import STORY, make, train_words, write_roberta

TEXT_SYSTEMS = [name for name, system in SYSTEMS.items() if system.published.model_type and system.modality == "text"]
CASES = [
    (name, task)
    for name in TEXT_SYSTEMS
    for task in SYSTEMS[name].tasks
    if task in SYSTEMS[name].published.head_architectures or task in (*SYSTEMS[name].tasks[:1], "algorithmic")
]
SIZES: dict[str, Any] = {"width": 12, "depth": 2, "heads": 3, "ffn_dim": 20, "max_length": 24}
CHANGES: dict[str, dict[str, Any]] = {
    "gpt1": {"ffn_dim": 48},
    "longformer": {"attention_window": (4, 8)},
    "deberta": {"heads": 4},
}
LABELS = {"classify": ("good", "bad", "so"), "tag": ("O", "B-A", "I-A")}
SHORT, LONG = (
    ["the cat sat", "Once more: the dog's mat!"],
    ["the cat sat on the mat, " * 9 + "end", "naïve façade, " * 9 + "é"],
)
"""Without spaces at both ends: regard strips texts."""
TEXTS = [*SHORT, *LONG, "cat"]
PAIRS = [
    ("the cat", "the dog"), (LONG[0], "the dog"), ("the dog", LONG[0]), (LONG[1], LONG[0]), (LONG[0], LONG[1][::-1]),
]  # fmt: skip
QUESTIONS = [("the cat?", "the cat sat on the mat"), ("the dog's mat?", LONG[0]), ("the", "cat")]
CHOICES = [("the cat", ("sat", "the mat")), (LONG[0], ("the dog", LONG[1]))]
SENTENCES = [["the", "cat", "sat"], ["Once", "more", ":", "façade"], LONG[0].split()]


@cache
def roberta() -> TextTokenizer:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        return TextTokenizer.load(write_roberta(Path(folder)))


TOKENIZERS: dict[str, Callable[[], TextTokenizer]] = {
    "transformer": cache(lambda: TextTokenizer.train_sentence_bpe([STORY], 320)),
    "gpt1": cache(lambda: TextTokenizer(train_words())),
    "gpt2": cache(lambda: TextTokenizer.train_lm_bpe([STORY], 340)),
    "longformer": roberta,
}


def made(system: str, task_name: str, pair: str = "", **changes: Any) -> Model:
    """A model with noise in all parameters and a tokenizer."""
    task, offered = find_task(task_name, "text"), SYSTEMS[system]
    text = TOKENIZERS.get(system, make)()
    if task_name == "algorithmic":
        text = TextTokenizer.from_words([*SHORT, *PAIRS[0]])
    config = offered.config(**{**SIZES, **CHANGES.get(system, {}), **changes})
    text = task.modality.build_processor(text, config)
    config = task.objective.adapt_config(task.modality.fit_config(config, text))
    options = HeadOptions(LABELS.get(task_name, ()), pair_order=pair)
    return noisy(assemble(ModelSpec(offered, config, task, options=options), text), 0.4)


def peer(folder: Path) -> Any:
    """The class that the configuration of the folder names."""
    config = transformers.AutoConfig.from_pretrained(folder)
    assert parity.SIZES
    return getattr(transformers, config.architectures[0]).from_pretrained(folder, dtype=torch.float64).eval()


def own_logits(model: Model, samples: Sequence[Any]) -> Tensor:
    """Logits of regard for parsed samples, in one padded batch."""
    encoded = encode_samples(model, samples)
    rows = [rows[0] for rows in encoded.rows_by_sample()]  # the first window
    return model.objective.logits(model, model.objective.collate(encoded, rows, model.config)).detach()


def parsed(model: Model, inputs: Sequence[Any]) -> list[Any]:
    return [model.objective.parse_input(item, model.spec.options) for item in inputs]


def same_rows(ours: Tensor, theirs: Tensor, mask: Tensor, tolerance: float) -> None:
    assert ours.shape[:2] == mask.shape
    near(ours[mask], theirs[mask], tolerance)


def check_classify(model: Model, theirs: Any, tokens: Any, tolerance: float) -> None:
    some: list[Any] = PAIRS if model.spec.options.pair_order else [(text,) for text in TEXTS]
    for rows in (some, *([row] for row in some)):
        inputs = tokens(*map(list, zip(*rows, strict=True)), padding=True, truncation=True, return_tensors="pt")
        near(own_logits(model, parsed(model, rows)), theirs(**inputs).logits.detach(), tolerance)


def first_is_global(model: Model, mask: Tensor) -> dict[str, Tensor]:
    """Global attention for the first token, which transformers sets for classes and answers of Longformer only."""
    marked = torch.zeros_like(mask, dtype=torch.long)
    marked[:, 0] = 1
    return {"global_attention_mask": marked} if model.config.traits.global_tokens else {}


def check_tag(model: Model, theirs: Any, tokens: Any, tolerance: float) -> None:
    for rows in (SENTENCES, *([row] for row in SENTENCES)):
        inputs = tokens(rows, is_split_into_words=True, padding=True, truncation=True, return_tensors="pt")
        mask = inputs["attention_mask"].bool()
        found = theirs(**inputs, **first_is_global(model, mask)).logits.detach()
        same_rows(own_logits(model, parsed(model, rows)), found, mask, tolerance)


def check_qa(model: Model, theirs: Any, tokens: Any, tolerance: float) -> None:
    for rows in (QUESTIONS, *([row] for row in QUESTIONS)):
        sides = map(list, zip(*rows, strict=True))
        inputs = tokens(*sides, padding=True, truncation="only_second", return_tensors="pt")
        found, mask = theirs(**inputs), inputs["attention_mask"].bool()
        right = torch.stack([found.start_logits, found.end_logits], -1).detach()
        same_rows(own_logits(model, parsed(model, rows)), right, mask, tolerance)


def check_choose(model: Model, theirs: Any, tokens: Any, tolerance: float) -> None:
    for prompt, choices in CHOICES:
        inputs = tokens([prompt] * len(choices), list(choices), padding=True, truncation=True, return_tensors="pt")
        rows = {name: value[None] for name, value in inputs.items()}
        if not model.config.traits.is_encoder:  # the last token of each choice
            rows = {"input_ids": rows["input_ids"], "mc_token_ids": rows["attention_mask"].sum(-1) - 1}
        found = theirs(**rows)
        right = found.get("mc_logits", found.get("logits")).detach()
        near(own_logits(model, parsed(model, [{"context": prompt, "choices": choices}])), right, tolerance)


def check_tokens(model: Model, theirs: Any, tokens: Any, tolerance: float) -> None:
    """lm and mlm: logits of each token."""
    from regard.decode.settings import DecodeSettings
    from regard.tasks import lm, mlm

    text = model.require_tokenizer()
    texts = [*SHORT, "cat", LONG[0][:20]]
    if model.task.name == "mlm":
        texts = [f"the {mlm.mask_token(text)} sat", *texts]
        rows = [[model.config.bos_id, *ids, model.config.eos_id] for ids in text.encode_masked(texts)]
    else:
        rows = [lm.prompt_ids(item, text, model.config, DecodeSettings()) for item in texts]
    inputs = tokens(texts, padding=True, truncation=True, return_tensors="pt")
    found, mask = theirs(**inputs), inputs["attention_mask"].bool()
    right = found.get("prediction_logits", found.get("logits")).detach()
    for number, row in enumerate(rows):
        near(model.logits(torch.tensor([row])).detach()[0], right[number][mask[number]], tolerance)


def check_embed(model: Model, theirs: Any, tokens: Any, tolerance: float) -> None:
    for rows in (TEXTS, *([text] for text in TEXTS)):
        inputs = tokens(rows, padding=True, truncation=True, return_tensors="pt")
        mask = inputs["attention_mask"][..., None]
        states = theirs(**inputs, **first_is_global(model, inputs["attention_mask"])).last_hidden_state.detach()
        vectors = torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1), dim=-1)
        near(torch.tensor([one.value for one in model.predict(rows)], dtype=torch.float64), vectors, tolerance)


def check_translate(model: Model, theirs: Any, tokens: Any, tolerance: float) -> None:
    texts = PAIRS[0] if model.task.name == "algorithmic" else (*SHORT, LONG[0][:24], "cat")
    inputs = tokens(list(texts), padding=True, truncation=True, return_tensors="pt")
    target = tokens(text_target=list(texts[::-1]), padding=True, truncation=True, return_tensors="pt")["input_ids"]
    start = torch.full((len(texts), 1), theirs.config.decoder_start_token_id)
    decoder = torch.cat([start, target[:, :-1]], 1)
    encoded = encode_samples(model, [Pair(a, b, "", 0) for a, b in zip(texts, texts[::-1], strict=True)])
    batch = model.objective.collate(encoded, range(len(texts)), model.config)
    assert batch.labels.tolist() == target.masked_fill(target == model.config.pad_id, -100).tolist()
    ours, right = (
        model.objective.logits(model, batch).detach(),
        theirs(**inputs, decoder_input_ids=decoder).logits.detach(),
    )
    same_rows(ours, right, target != model.config.pad_id, tolerance)
    labels = target.masked_fill(target == model.config.pad_id, -100)
    total, count = model.objective.loss(model, batch)
    near(total / count, theirs(**inputs, labels=labels).loss, tolerance)


CHECKS: dict[str, Callable[[Model, Any, Any, float], None]] = {
    "classify": check_classify, "tag": check_tag, "qa": check_qa, "choose": check_choose, "lm": check_tokens,
    "mlm": check_tokens, "embed": check_embed, "translate": check_translate, "algorithmic": check_translate,
}  # fmt: skip


@pytest.mark.parametrize(("system", "task"), CASES)
def test_raw_texts_have_the_same_logits_in_transformers(system: str, task: str, tmp_path: Path) -> None:
    for order in ("", "ordered") if task == "classify" else ("",):
        model = made(system, task, order)
        regard.save(model, folder := tmp_path / order, layout="huggingface")
        tokens, theirs = AutoTokenizer.from_pretrained(folder), peer(folder)
        assert tokens.model_max_length == model.config.max_length and type(tokens.pad_token_id) is int
        CHECKS[task](model, theirs, tokens, 5e-6 if system == "longformer" else 1e-9)


def test_long_texts_do_not_stop_pipelines(tmp_path: Path) -> None:
    """Pipelines truncate or split at the maximum length of the tokenizer."""
    asked: dict[str, tuple[str, dict[str, Any], str]] = {
        "tag": ("token-classification", {}, LONG[0]), "classify": ("text-classification", {"truncation": True}, LONG[0]),
        "mlm": ("fill-mask", {"tokenizer_kwargs": {"truncation": True}}, f"the [MASK] sat {LONG[0]}"),
    }  # fmt: skip
    for task, (name, more, text) in asked.items():
        model = made("bert", task)
        regard.save(model.float(), tmp_path / task, layout="huggingface")
        found = transformers.pipeline(name, str(tmp_path / task))(text, **more)
        assert found or task == "tag"  # no entities
        if task == "classify":
            value = model.predict(text)
            assert found[0]["label"] == value.value and found[0]["score"] == pytest.approx(max(value.score), abs=1e-5)


def test_embeddings_have_the_maximum_length_of_their_pooling(tmp_path: Path) -> None:
    model = made("bert", "embed")
    model.spec = replace(model.spec, options=HeadOptions(pooling=Pooling(max_length=9)))
    regard.save(model, tmp_path, layout="huggingface")
    tokens = AutoTokenizer.from_pretrained(tmp_path)
    assert tokens.model_max_length == 9
    check_embed(model, peer(tmp_path), tokens, 1e-9)


def test_a_language_model_does_not_add_the_tokens_of_a_head(tmp_path: Path) -> None:
    regard.save(made("gpt2", "classify"), tmp_path / "head", layout="huggingface")
    model = regard.load(tmp_path / "head", task="lm")
    assert AutoTokenizer.from_pretrained(tmp_path / "head")("the cat")["input_ids"][0] in model.tokenizer.special_ids
    regard.save(model, tmp_path / "lm", layout="huggingface")
    check_tokens(model, peer(tmp_path / "lm"), AutoTokenizer.from_pretrained(tmp_path / "lm"), 1e-9)


@pytest.mark.parametrize("adds", [True, False])
def test_tokens_that_a_published_tokenizer_adds_are_added_to_prompts_and_texts(adds: bool, tmp_path: Path) -> None:
    """GPT-2 without the tokens of a head, and possibly with a start token before each text."""
    text = TextTokenizer.train_lm_bpe([STORY], 340).with_special_tokens(["<|start|>", "<|sep|>"])
    start, sep = 340, 341
    text = text.with_template(TokenTemplate((start,), (sep,), (), 0)) if adds else text
    for task, labels in (("lm", ()), ("classify", ("good", "bad"))):
        config = SYSTEMS["gpt2"].config(**SIZES, vocab_size=text.size, eos_id=339)
        row = find_task(task, "text")
        model = noisy(assemble(ModelSpec(SYSTEMS["gpt2"], config, row, options=HeadOptions(labels)), text), 0.4)
        regard.save(model, tmp_path / task, layout="huggingface")
        published, tokens, theirs = (
            regard.load(tmp_path / task),
            AutoTokenizer.from_pretrained(tmp_path / task),
            peer(tmp_path / task),
        )
        assert (tokens("the cat")["input_ids"][0] == start) is adds
        CHECKS[task](published, theirs, tokens, 1e-9)
        if task == "lm":
            inputs = tokens("the cat", return_tensors="pt")
            made_ids = theirs.generate(**inputs, max_new_tokens=5, do_sample=False, pad_token_id=0)[0]
            right = made_ids[inputs["input_ids"].shape[1] :]
            ids = published.predict("the cat", max_new_tokens=5, temperature=0).extra["token_ids"]
            assert [*ids, 339][: len(right)] == right.tolist()
