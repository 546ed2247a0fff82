"""Values of the golden record, with the ids of `names.py`.

Parameters are filled with numbers computed from the parameter id only: renaming or reordering parameters does not change any
value.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import io
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from rich.console import Console
from safetensors.torch import load_file
from torch import Tensor, nn

import regard
from conftest import stopped_in
from golden import names, samples
from regard.systems import SYSTEMS
from regard.tasks import TASKS

HERE = Path(__file__).parent
CASES = tuple(f"{system}.{task}" for system, tasks in sorted(names.TASKS_OF.items()) for task in tasks)
DTYPES = {"float64": torch.float64, "float32": torch.float32}
DATA: dict[str, Callable[[Path], str]] = {
    "t01": samples.translation, "t02": samples.reversal, "t03": samples.documents, "t04": samples.documents,
    "t05": samples.labeled, "t06": samples.tagged, "t07": samples.questions, "t08": samples.choices, "t09": samples.related,
    "t10": samples.sorted_images, "t11": samples.segmented_images, "t12": samples.depth_images, "t13": samples.sorted_images,
    "t14": samples.captioned_images, "t15": samples.sorted_clouds, "t16": samples.segmented_clouds,
}  # fmt: skip
GAIN = 1.2
"""Standard deviation of matrix entries times the square root of the columns: large enough for outputs to depend on inputs."""
VECTORS = {"b": (0.0, 0.1), "g": (1.0, 0.5), "v": (1.0, 0.5)}
"""Center and maximum distance of vector entries by the first letter of the id: bias, gain of a norm, variance."""
LARGE = 400
"""Larger logits are recorded as every nth element and three sums over all elements."""


def uniform(key: str, shape: tuple[int, ...]) -> np.ndarray:
    """Float64 in [-1, 1): the stream of `RandomState` is identical in all NumPy versions and on all machines."""
    seed = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=4).digest(), "little")
    return 2 * np.random.RandomState(seed).random_sample(shape) - 1


@functools.cache
def parameter_ids(system: str) -> dict[str, str]:
    found: dict[str, str] = json.loads((HERE / "parameters.json").read_text("utf-8"))[system]
    return found


def fill(model: nn.Module, system: str, salt: int, noise: float = 0.0, draw: int = 0) -> nn.Module:
    """Fill all parameters and buffers by their ids. `noise` is a relative perturbation of every number, to detect near ties."""
    ids = parameter_ids(system)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            key = f"{system}/{ids[name]}/{salt}"
            values = uniform(key, tuple(tensor.shape))
            if tensor.ndim > 1:
                values = values * GAIN * (3 * len(values) / values.size) ** 0.5
            else:
                values = VECTORS[ids[name][0]][0] + values * VECTORS[ids[name][0]][1]
            values = values * (1 + noise * uniform(f"{key}/{draw}", values.shape)) if noise else values
            tensor.copy_(torch.as_tensor(values))
    return model.eval()


def checksum(tensors: Mapping[str, Tensor], system: str) -> list[float]:
    """Sum of all numbers weighted by a random pattern per parameter id, and sum of absolute values."""
    ids, total, size = parameter_ids(system), 0.0, 0.0
    for name, tensor in tensors.items():
        values = tensor.detach().double().numpy()
        total += float((values * uniform(f"{system}/{ids[name]}/sum", values.shape)).sum())
        size += float(np.abs(values).sum())
    return [total, size]


def sums(values: np.ndarray) -> list[float]:
    wide = values.astype(np.float64)
    return [float(wide.sum()), float(np.abs(wide).sum()), float((wide * uniform("sums", wide.shape)).sum())]


def neutral(value: Any) -> Any:
    """JSON form of a product value; integer arrays as a digest, float arrays as sums."""
    if isinstance(value, np.ndarray):
        shape = list(value.shape)
        if np.issubdtype(value.dtype, np.integer):
            return {"shape": shape, "sha256": hashlib.sha256(value.astype("<i8").tobytes()).hexdigest()}
        return {"shape": shape, "sums": sums(value)}
    if isinstance(value, Mapping):
        return {key: neutral(part) for key, part in value.items()}
    return [neutral(part) for part in value] if isinstance(value, list | tuple) else value


@contextmanager
def training_in(dtype: torch.dtype) -> Iterator[None]:
    """Use this default dtype. Charts and fsync are disabled, because no value depends on them."""
    default, lerp = torch.get_default_dtype(), torch.lerp

    def same_dtype(start: Tensor, end: Tensor, weight: Tensor) -> Tensor:
        return lerp(start, end, weight.to(start.dtype))  # in float64 some weights have the default dtype

    torch.set_default_dtype(dtype)
    with ExitStack() as stack:
        stack.callback(torch.set_default_dtype, default)
        for name in ("regard.runs.trainer.draw_training_curves", "os.fsync"):
            stack.enter_context(mock.patch(name))
        stack.enter_context(mock.patch("torch.lerp", same_dtype))
        for kind in {type(task.objective) for task in TASKS}:
            stack.enter_context(mock.patch.object(kind, "save_figures", lambda *_: []))
        yield


class Workshop:
    """Cached data, runs and models in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.trained: dict[Path, nn.Module] = {}
        self.models: dict[tuple[Any, ...], nn.Module] = {}

    def data(self, task: str) -> str:
        """Data entry of a task in a separate folder; no value depends on the folder name."""
        folder = self.folder / "data" / task
        if not folder.exists():
            folder.mkdir(parents=True)
            (folder / "entry").write_text(DATA[task](folder), encoding="utf-8")
        return (folder / "entry").read_text(encoding="utf-8")

    def run(self, case: str, dtype: str, more: Mapping[str, Any] | None = None, stop: int = 0) -> Path:
        """Run folder of a case, optionally with `more` settings, or stopped after `stop` steps and resumed."""
        system, task = case.split(".")
        key = hashlib.sha256(json.dumps([case, dtype, more, stop]).encode()).hexdigest()[:12]
        out = self.folder / "runs" / key
        if out in self.trained:
            return out
        preset, changes = names.TINY[system]
        settings = (
            names.TRAINING | names.STEP_SIZE[dtype] | names.TASK_SETTINGS[task] | names.CASE_SETTINGS.get(case, {})
        )
        settings |= {f"model.{name}": value for name, value in changes.items()} | dict(more or {})
        train = functools.partial(regard.train, names.TASKS[task][0], out=out, device="cpu")
        train.keywords["console"] = Console(file=io.StringIO(), width=200)
        with training_in(DTYPES[dtype]):
            with stopped_in(stop) if stop else nullcontext():
                self.trained[out] = train(self.data(task), model=preset, settings=settings)
            if stop:
                self.trained[out] = train(resume=True)
        return out

    def model(self, case: str, dtype: str, salt: int, noise: float = 0.0, draw: int = 0) -> nn.Module:
        """Model of a case with filled parameters, and the tokenizer and labels of its float32 run."""
        key = (case, dtype, salt, noise, draw)
        if key not in self.models:
            trained = self.trained[self.run(case, "float32")]
            self.models[key] = fill(copy.deepcopy(trained).to(DTYPES[dtype]), case.split(".")[0], salt, noise, draw)
        return self.models[key]

    def file(self, task: str) -> str:
        """The first image or point cloud of the data."""
        kinds = (".png",) if names.TASKS[task][1] == "image" else (".npy", ".csv")
        return str(min(path for path in Path(self.data(task)).rglob("*") if path.suffix in kinds))

    # -- values

    def training(self, run: Path, dtype: str, case: str) -> dict[str, Any]:
        """Losses and learning rates of all steps; in float64 also gradient norms, metrics and a weight checksum."""
        rows = [json.loads(line) for line in (run / "log.jsonl").read_text("utf-8").splitlines()]
        steps, checks = ([row for row in rows if row["kind"] == kind] for kind in ("train", "valid"))
        found: dict[str, Any] = {
            "losses": [row["loss"] for row in steps],
            "validation": [row["loss"] for row in checks],
        }
        found["rates"] = [row["lr"] for row in steps]
        if dtype == "float64":
            scores = json.loads((run / "regard.json").read_text("utf-8"))["scores"]
            found["norms"] = [row["grad_norm"] for row in steps]
            found["metrics"] = [metrics(row) for row in (*checks, scores)]
            found["weights"] = checksum(self.trained[run].state_dict(), case.split(".")[0])
        return found

    def predictions(self, case: str, model: nn.Module) -> list[Any]:
        task = case.split(".")[1]
        if task in names.OFFERED:
            picked = model.rank(names.PROMPTS[task], list(names.OFFERED[task]))
            return [fields({"a1": "value", "a2": "score"}, picked)]
        if task in names.LENGTH:
            return []
        asked = names.QUESTIONS.get(task) or (self.file(task),)
        return [fields(names.FIELDS[task], model.predict(given)) for given in asked]

    def generated(self, case: str, model: nn.Module) -> dict[str, Any]:
        """Results of greedy decoding, beam search and sampling; empty for other tasks."""
        task = case.split(".")[1]
        if task not in names.LENGTH:
            return {}
        prompt = names.PROMPTS.get(task) or self.file(task)
        return {
            way: fields(names.FIELDS[task], model.predict(prompt, **how, **names.LENGTH[task]))
            for way, how in names.DECODING.items()
        }

    def export(self, case: str, model: nn.Module) -> dict[str, Any]:
        """`config.json` in Hugging Face format, and a digest of all tensors by their exported names. The digest omits the
        table of sines: the last bits of a sine depend on the CPU. The parity tests compare this table."""
        folder = regard.save(model, self.folder / "exports" / case)
        digest = hashlib.sha256()
        for name, tensor in sorted(load_file(folder / "model.safetensors").items()):
            if name == names.SINE_TABLE:
                continue
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.numpy().tobytes())
        config = json.loads((folder / "config.json").read_text("utf-8"))
        return {"config": config, "tensors": digest.hexdigest()}


def metrics(row: Mapping[str, Any]) -> dict[str, Any]:
    ids = {name: key for key, name in names.METRICS.items()}
    return {ids[name]: value for name, value in row.items() if name not in names.UNCOMPARED}


def fields(wanted: Mapping[str, str], answer: Any) -> dict[str, Any]:
    """Fields of a prediction by their ids."""
    found = {}
    for key, path in wanted.items():
        value: Any = answer
        for name in path.split("."):
            value = value.get(name) if isinstance(value, Mapping) else getattr(value, name)
        found[key] = neutral(value)
    return found


def inputs(model: nn.Module, case: str, dtype: torch.dtype) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Fixed batch of two: tokens, pixels or points; decoder tokens; and lengths."""
    task = case.split(".")[1]
    reads, target = names.TASKS[task][1], None
    if task in ("t01", "t02", "t14"):
        target = torch.arange(10).view(2, 5) * 3 % 9 + 2
    if reads == "text":
        return torch.arange(12).view(2, 6) % 9 + 2, target, torch.tensor([6, 4])
    if reads == "points":
        return torch.from_numpy(uniform("points", (2, 32, 3))).to(dtype), None, None
    size = model.config.image_size
    if case.startswith("s14"):
        return torch.arange(2 * size * size).view(2, -1) * 7 % 11, None, None
    return torch.from_numpy(uniform("pixels", (2, 3, size, size))).to(dtype), target, None


def logits(model: nn.Module, case: str, dtype: str) -> tuple[list[float], Tensor]:
    """Checksum of all parameter gradients (float64 only), and the logits as one row, subsampled with three sums if large."""
    x, target, mask = inputs(model, case, DTYPES[dtype])
    found = model.logits(x, target, mask=mask)
    plain = found.detach().flatten()
    step = -(-plain.numel() // LARGE)
    row = plain[::step].contiguous()
    if step > 1:
        row = torch.cat([row, torch.tensor(sums(plain.numpy()), dtype=row.dtype) / plain.numel() ** 0.5])
    if dtype != "float64":
        return [], row
    scale = torch.from_numpy(uniform("loss", tuple(found.shape)))
    named = {name: part for name, part in model.named_parameters() if part.requires_grad}
    grads = torch.autograd.grad((found * scale).sum(), list(named.values()), allow_unused=True)
    known = {name: grad for name, grad in zip(named, grads, strict=True) if grad is not None}
    return checksum(known, case.split(".")[0]), row


def built(name: str) -> nn.Module:
    """A variant with initial parameters."""
    case, changes = names.VARIANTS[name]
    system, task = case.split(".")
    preset, tiny = names.TINY[system]
    words = {} if task == "t13" else {"vocab_size": 40}
    return regard.build(preset, task=names.TASKS[task][0], device="cpu", **{**tiny, **words, **changes})


def variant(name: str, dtype: str) -> nn.Module:
    """A variant with filled parameters."""
    return fill(built(name).to(DTYPES[dtype]), names.VARIANTS[name][0].split(".")[0], salt=0)


def parameter_counts() -> dict[str, int]:
    """Number of parameters of every preset, built on the meta device."""
    tasks = {preset: system.tasks[0] for system in SYSTEMS.values() for preset in system.presets}
    models = {
        f"p{number:02}": regard.build(preset, task=tasks[preset], device="meta")
        for number, preset in enumerate(names.PRESETS, 1)
        if preset
    }
    return {key: sum(part.numel() for part in model.parameters()) for key, model in models.items()}
