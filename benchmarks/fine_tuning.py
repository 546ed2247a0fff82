"""Fine-tuning all-MiniLM-L6-v2, compared with the same fine-tuning with `transformers`, in the same run.

    python benchmarks/fine_tuning.py classify|tag|qa MODEL DATA OUT [--seeds 1 2 3] [--sides regard] [--device cuda]

MODEL is the checkpoint folder; DATA contains the compressed files of sst2/, conll2003/ and squad-small/. A part of the training
file is held out for validation (SST-2: every fiftieth sentence; SQuAD: four articles; CoNLL has its own validation file). The
test split (dev of SST-2 and SQuAD, test of CoNLL) is evaluated once per seed with the selected checkpoint. Both sides use the
same data, learning rate, schedule, epochs and precision (bfloat16 on a GPU); the side `transformers` is the usual loop over
batches padded to the longest text. Times cover the whole training including validation.
"""

from __future__ import annotations

import gzip
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness
import numpy as np
import synthetic
import torch

import regard
from regard.data.text.qa import SPANS
from regard.data.text.samples import iterate_labeled
from regard.data.text.tables import SkippedRow
from regard.data.text.tagged import TAGGED
from regard.runs.evaluate import evaluate
from regard.tasks.metrics.per_class import tagging_metrics as measure_tags
from regard.tasks.metrics.squad import squad_scores as measure_spans


@dataclass(frozen=True)
class Case:
    metric: str
    epochs: int
    rate: float
    rows: int
    tokens: int
    """Average tokens of `rows` rows: the batch size of regard."""
    longest: int


CASES = {
    "classify": Case("accuracy", 1, 5e-5, 32, 448, 128),
    "tag": Case("f1", 4, 1e-4, 32, 640, 256),
    "qa": Case("f1", 3, 1e-4, 16, 2816, 384),
}


def unpacked(path: Path) -> str:
    return gzip.open(path, "rt", encoding="utf-8").read()


def parts(task: str, data: Path, out: Path) -> dict[str, Path]:
    """Paths of the training, validation and test files, written to `out`."""
    out.mkdir(parents=True, exist_ok=True)
    if task == "classify":
        head, *lines = unpacked(data / "sst2/train.tsv.gz").splitlines()
        texts = {
            "train.tsv": "\n".join([head, *(line for i, line in enumerate(lines) if i % 50)]) + "\n",
            "valid.tsv": "\n".join([head, *lines[::50]]) + "\n",
            "test.tsv": unpacked(data / "sst2/dev.tsv.gz"),
        }
    elif task == "tag":
        texts = {
            f"{name}.conll": unpacked(data / f"conll2003/{file}.conll.gz")
            for name, file in (("train", "train"), ("valid", "dev"), ("test", "test"))
        }
    else:
        whole = json.loads(unpacked(data / "squad-small/train.json.gz"))
        texts = {
            "train.json": json.dumps({**whole, "data": whole["data"][:-4]}),
            "valid.json": json.dumps({**whole, "data": whole["data"][-4:]}),
            "test.json": unpacked(data / "squad-small/dev.json.gz"),
        }
    for name, text in texts.items():
        (out / name).write_text(text, encoding="utf-8")
    return {name.partition(".")[0]: out / name for name in texts}


def ours(
    task: str, case: Case, model: str, files: dict[str, Path], out: Path, seed: int, device: str
) -> dict[str, Any]:
    settings = [
        f"train.epochs={case.epochs}", f"train.lr={case.rate}", f"train.seed={seed}", f"data.max_length={case.longest}",
        f"train.batch_tokens={case.tokens}", "data.eval_samples=100000",
    ]  # fmt: skip
    run, begun = out / f"{task}-{seed}", time.perf_counter()
    harness.train(
        task, str(files["train"]), valid=str(files["valid"]), model=model, out=run, settings=settings, device=device
    )
    took = time.perf_counter() - begun
    found = evaluate(run, [str(files["test"])], device=device).scores
    best = json.loads((run / "regard.json").read_text())["best"]
    return {"seconds": round(took, 1), "test": found[case.metric], "best": best}


# -- the same with transformers


def read(task: str, path: Path) -> list[Any]:
    streams: dict[str, Callable[..., Iterator[Any]]] = {
        "classify": iterate_labeled, "tag": TAGGED.samples, "qa": SPANS.samples,
    }  # fmt: skip
    return [item for item in streams[task]([str(path)]) if not isinstance(item, SkippedRow)]


class Peer:
    """A `transformers` model of one task, with its features, loss and score."""

    def __init__(self, task: str, case: Case, folder: str, train: list[Any], device: str) -> None:
        from transformers import (
            AutoModelForQuestionAnswering,
            AutoModelForSequenceClassification,
            AutoModelForTokenClassification,
            AutoTokenizer,
        )

        self.task, self.case, self.device = task, case, device
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        names = {"classify": lambda s: [s.label], "tag": lambda s: s.tags, "qa": lambda s: []}[task]
        self.labels = sorted({name for sample in train for name in names(sample)})
        kinds = {
            "classify": AutoModelForSequenceClassification, "tag": AutoModelForTokenClassification,
            "qa": AutoModelForQuestionAnswering,
        }  # fmt: skip
        more = {"num_labels": len(self.labels)} if self.labels else {}
        self.model = kinds[task].from_pretrained(folder, dtype=torch.float32, **more).to(device)

    def features(self, samples: list[Any]) -> list[dict[str, Any]]:
        return [row for number, sample in enumerate(samples) for row in self._features(number, sample)]

    def _features(self, number: int, sample: Any) -> Iterator[dict[str, Any]]:
        most = self.case.longest
        if self.task == "classify":
            item = self.tokenizer(sample.text, truncation=True, max_length=most)
            label = self.labels.index(sample.label)
            yield {"ids": item["input_ids"], "types": item["token_type_ids"], "label": label, "of": number}
        elif self.task == "tag":
            item = self.tokenizer(list(sample.words), is_split_into_words=True, truncation=True, max_length=most)
            words, label = item.word_ids(), []
            for place, word in enumerate(words):
                first = word is not None and (place == 0 or words[place - 1] != word)
                label.append(self.labels.index(sample.tags[word]) if first else -100)
            yield {
                "ids": item["input_ids"],
                "types": item["token_type_ids"],
                "label": label,
                "of": number,
                "words": words,
            }
        else:
            item = self.tokenizer(
                sample.question, sample.context, truncation="only_second", max_length=most, stride=128,
                return_overflowing_tokens=True, return_offsets_mapping=True,
            )  # fmt: skip
            for part in range(len(item["input_ids"])):
                yield self._window(item, part, sample, number)

    def _window(self, item: Any, part: int, sample: Any, number: int) -> dict[str, Any]:
        inside = [place for place, of in enumerate(item.sequence_ids(part)) if of == 1]
        offsets = item["offset_mapping"][part]
        first = last = 0
        if sample.answers:
            start, end = sample.starts[0], sample.starts[0] + len(sample.answers[0])
            held = [place for place in inside if offsets[place][0] < end and offsets[place][1] > start]
            if held and offsets[inside[0]][0] <= start and offsets[inside[-1]][1] >= end:
                first, last = held[0], held[-1]
        return {
            "ids": item["input_ids"][part], "types": item["token_type_ids"][part], "label": [first, last], "of": number,
            "inside": inside, "offsets": offsets,
        }  # fmt: skip

    def batch(self, rows: list[dict[str, Any]]) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        longest = max(len(row["ids"]) for row in rows)

        def filled(name: str, value: int) -> torch.Tensor:
            return torch.tensor([row[name] + [value] * (longest - len(row[name])) for row in rows]).to(self.device)

        mask = torch.tensor([[1] * len(row["ids"]) + [0] * (longest - len(row["ids"])) for row in rows]).to(self.device)
        given = {"input_ids": filled("ids", 0), "token_type_ids": filled("types", 0), "attention_mask": mask}
        label = (
            filled("label", -100)
            if self.task == "tag"
            else torch.tensor([row["label"] for row in rows]).to(self.device)
        )
        return given, label

    def loss(self, rows: list[dict[str, Any]]) -> torch.Tensor:
        given, label = self.batch(rows)
        if self.task == "qa":
            return self.model(**given, start_positions=label[:, 0], end_positions=label[:, 1]).loss
        return self.model(**given, labels=label).loss

    @torch.inference_mode()
    def score(self, samples: list[Any], rows: list[dict[str, Any]]) -> float:
        self.model.eval()
        order = sorted(range(len(rows)), key=lambda i: len(rows[i]["ids"]))
        outputs: list[Any] = [None] * len(rows)
        for start in range(0, len(order), 128):
            some = order[start : start + 128]
            given, _ = self.batch([rows[i] for i in some])
            with torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda"):
                found = self.model(**given)
            table = torch.stack([found.start_logits, found.end_logits], -1) if self.task == "qa" else found.logits
            for i, values in zip(some, table.float().cpu().numpy(), strict=True):
                outputs[i] = values
        self.model.train()
        return self._measured(samples, rows, outputs)

    def _measured(self, samples: list[Any], rows: list[dict[str, Any]], outputs: list[Any]) -> float:
        if self.task == "classify":
            right = [
                self.labels[int(values.argmax())] == sample.label
                for sample, values in zip(samples, outputs, strict=True)
            ]
            return 100 * float(np.mean(right))
        if self.task == "tag":
            said = []
            for row, values, sample in zip(rows, outputs, samples, strict=True):
                tags = ["O"] * len(sample.words)
                for place, label in enumerate(row["label"]):
                    if label != -100:
                        tags[row["words"][place]] = self.labels[int(values[place].argmax())]
                said.append(tags)
            return measure_tags([sample.tags for sample in samples], said, "IOB1").scores()["f1"]
        best: dict[int, tuple[float, str]] = {}
        for row, values in zip(rows, outputs, strict=True):
            inside = row["inside"]
            table = values[inside, 0][:, None] + values[inside, 1][None]
            apart = np.subtract.outer(np.arange(len(inside)), np.arange(len(inside)))
            table = np.where((apart <= 0) & (apart > -30), table, -np.inf)
            a, b = divmod(int(table.argmax()), len(inside))
            text = samples[row["of"]].context[row["offsets"][inside[a]][0] : row["offsets"][inside[b]][1]]
            best[row["of"]] = max(best.get(row["of"], (-np.inf, "")), (float(table[a, b]), text))
        return measure_spans(samples, [best[i][1] for i in range(len(samples))])["f1"]


def theirs(task: str, case: Case, model: str, files: dict[str, Path], seed: int, device: str) -> dict[str, Any]:
    begun = time.perf_counter()
    train, valid = read(task, files["train"]), read(task, files["valid"])
    torch.manual_seed(seed)
    peer = Peer(task, case, model, train, device)
    rows, held = peer.features(train), peer.features(valid)
    decayed = [p for name, p in peer.model.named_parameters() if p.ndim > 1]
    plain = [p for name, p in peer.model.named_parameters() if p.ndim < 2]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, lr=case.rate, fused=device == "cuda")
    steps = case.epochs * -(-len(rows) // case.rows)
    warm = max(steps // 10, 1)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: min((step + 1) / warm, max((steps - step) / max(steps - warm, 1), 0.0))
    )
    draw, best, kept = np.random.default_rng(seed), -1.0, {}
    for _ in range(case.epochs):
        order = draw.permutation(len(rows))
        for start in range(0, len(order), case.rows):
            with torch.autocast(device, torch.bfloat16):
                loss = peer.loss([rows[i] for i in order[start : start + case.rows]])
            loss.backward()
            torch.nn.utils.clip_grad_norm_(peer.model.parameters(), 1.0)
            optimiser.step()
            schedule.step()
            optimiser.zero_grad(set_to_none=True)
        if (now := peer.score(valid, held)) > best:
            best, kept = now, {name: value.clone() for name, value in peer.model.state_dict().items()}
    took = time.perf_counter() - begun
    peer.model.load_state_dict(kept)
    test = read(task, files["test"])
    return {"seconds": round(took, 1), "test": round(peer.score(test, peer.features(test)), 2), "valid": round(best, 2)}


def main(argv: Sequence[str] | None = None) -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("task", choices=CASES)
    parser.add_argument("model")
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--sides", nargs="+", default=["regard", "transformers"])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    asked = parser.parse_args(argv)
    case, files = CASES[asked.task], parts(asked.task, asked.data, asked.out / "data")
    for side in asked.sides:
        found = []
        for seed in asked.seeds:
            if side == "regard":
                found.append(ours(asked.task, case, asked.model, files, asked.out, seed, asked.device))
            else:
                found.append(theirs(asked.task, case, asked.model, files, seed, asked.device))
            print(json.dumps({"side": side, "task": asked.task, "seed": seed, **found[-1]}), flush=True)
        scores = [item["test"] for item in found]
        spread = statistics.stdev(scores) if len(scores) > 1 else 0.0
        seconds = statistics.mean(item["seconds"] for item in found)
        mean = statistics.mean(scores)
        print(f"{side} {asked.task}: {case.metric} {mean:.2f} ± {spread:.2f}, {seconds:.1f} s per run", flush=True)


def smoke(folder: Path) -> None:
    sides = ["regard", *(["transformers"] if harness.installed("transformers") else [])]
    data = folder / "data"
    for make, name in ((synthetic.sst2, "sst2"), (synthetic.conll, "conll2003"), (synthetic.squad, "squad-small")):
        make(data / name)
    run, published = folder / "run", folder / "published"
    text = synthetic.wikitext(folder / "text") / "wiki.train.raw.gz"
    settings = [
        *harness.SHORT,
        *harness.TINY["encoder"],
        "model.max_length=384",
        "data.vocab_size=300",
        "train.batch_tokens=512",
    ]
    harness.train("mlm", str(text), model="bert-mini", out=run, settings=[*settings, "model.nsp=false"])
    regard.save(regard.load(run, task="embed"), published)
    for task in CASES:
        main(
            [task, str(published), str(data), str(folder / task), "--seeds", "1", "--sides", *sides, "--device", "cpu"]
        )


if __name__ == "__main__":
    harness.run(main, smoke)
