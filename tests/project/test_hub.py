"""Names of the Hugging Face Hub: detected without a download, and `hf:ORG/NAME` as a folder of the local cache."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from safetensors.torch import load_file
from test_start import loaded, start
from test_weights import published
from typer.testing import CliRunner

import regard
from regard import index as hub
from regard.cli import app
from regard.errors import RegardError
from regard.index import absolute_folder, is_folder_path, read_config_files
from regard.runs.settings import check_names
from tiny import TINY

SHA = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def no_memory() -> None:
    hub._snapshot.cache_clear()


@pytest.mark.parametrize("name", ["gpt2", "bert-base-uncased", "bert-base-cased", "distilgpt2"])
def test_a_name_of_the_hub_is_explained_and_not_taken_for_a_preset(name: str, folder: Path) -> None:
    attempts: list[Callable[[], Any]] = [
        lambda: regard.load(name),
        lambda: regard.build(name),
        lambda: check_names("lm", name),
        lambda: read_config_files(Path(name)),
        lambda: regard.train("lm", "some.txt", out="run", model=name),
    ]
    repository = hub.SHORT_NAMES[name]
    for attempt in attempts:
        with pytest.raises(RegardError, match="nothing was downloaded") as refused:
            attempt()
        message = str(refused.value)
        assert f"hf download {repository} --local-dir {name}" in message and f"hf:{repository}" in message
        assert "Did you mean" not in message and "\n" not in message


def test_a_preset_is_not_a_model_and_the_pretrained_one_is_named(folder: Path) -> None:
    with pytest.raises(RegardError, match=r"is a preset \(random weights\).*hf:openai-community/gpt2-medium"):
        regard.load("gpt2-medium")
    with pytest.raises(RegardError, match="bert-base is a preset") as refused:
        regard.load("bert-base")
    assert "Hub" not in str(refused.value)
    check_names("lm", "gpt2-medium")  # training from scratch
    published(folder / "gpt2")
    assert regard.load("gpt2").config == TINY["transformer"].config, "a folder of that name is used"


@pytest.mark.parametrize("name", ["google/vit-base-patch16-224", "allenai/longformer-base-4096", "acme/thing"])
def test_an_organization_and_a_name_are_a_repository(name: str, folder: Path) -> None:
    with pytest.raises(RegardError, match=re.escape(f"'hf download {name} --local-dir {name.split('/')[1]}'")):
        regard.load(name)
    (folder / name).parent.mkdir()
    with pytest.raises(RegardError, match="Unknown folder") as refused:
        regard.load(name)
    assert "Hub" not in str(refused.value), "a local folder of this name exists"


def test_other_names_are_not_hub_names_and_unsupported_models_are_not_recommended() -> None:
    for name in ("runs/none", "./thing", "a/b/c", "thing", "/tmp/none/thing"):
        assert hub.describe_hub_name(name) == ""
    for kind, names in hub.UNSUPPORTED.items():
        assert kind not in hub.model_types()
        for name in (*names, f"org/{names[0]}"):
            assert "not supported" in hub.describe_hub_name(name) and "download" not in hub.describe_hub_name(name)


def cached(cache: Path, source: Path, repository: str = "acme/thing", revision: str = "main") -> Path:
    """A snapshot as written by huggingface_hub: content in blobs, links to it in snapshots."""
    base = cache / f"models--{repository.replace('/', '--')}"
    snapshot = base / "snapshots" / SHA
    for folder in (base / "blobs", base / "refs", snapshot):
        folder.mkdir(parents=True, exist_ok=True)
    (base / "refs" / revision).write_text(SHA)
    for number, file in enumerate(sorted(source.iterdir())):
        file.rename(base / "blobs" / f"b{number}")
        (snapshot / file.name).symlink_to(Path("../../blobs") / f"b{number}")
    return snapshot


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "cache"


def test_a_snapshot_in_the_cache_is_loaded_without_a_connection(offline: Path, tmp_path: Path) -> None:
    snapshot = cached(offline, published(tmp_path / "model"))
    model = regard.load("hf:acme/thing")
    assert model.config == TINY["transformer"].config and model.spec.source == str(snapshot)
    assert regard.load(f"hf:acme/thing@{SHA}").spec.source == str(snapshot)
    assert is_folder_path("hf:acme/thing") and absolute_folder("hf:acme/thing") == str(snapshot)
    assert hub.display_name(snapshot) == "acme/thing" and hub.display_name("runs/mine") == "mine"
    with pytest.raises(RegardError, match="cannot be reached"):
        regard.load("hf:acme/thing@v2")
    snapshot = cached(offline, published(tmp_path / "model"), "openai-community/gpt2")
    assert hub.local_folder("hf:gpt2") == snapshot


def test_all_commands_take_a_name_of_the_hub(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cached(folder / "hub", published(folder / "model"))
    monkeypatch.setenv("HF_HOME", str(folder))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    absent, train, export, info, predict, evaluate = start(
        ["predict", "gpt2", "a text"],
        ["train", "translate", "--model", "hf:acme/thing", "--set", "model.widht=3", "--out", "run"],
        ["export", "hf:acme/thing", "copy"],
        ["info", "hf:acme/thing"],
        ["predict", "hf:acme/thing", "a text"],
        ["evaluate", "hf:acme/other", "--data", "none.tsv"],
    )
    assert absent["code"] == 2 and not loaded(absent, ("huggingface_hub", "torch"))
    assert "Unknown setting 'model.widht'" in train["err"], "the system was read from the folder"
    assert export["code"] == 0 and (folder / "copy" / "model.safetensors").exists()
    assert info["code"] == 0 and "hf:acme/thing: Transformer" in info["out"]
    assert predict["code"] == 2 and "has no tokenizer.json" in predict["err"], "the folder was found"
    assert evaluate["code"] == 2 and "hf:acme/other" in evaluate["err"] and "cannot be reached" in evaluate["err"]
    assert evaluate["err"].count("\n") == 1
    for command in ("train", "predict", "evaluate", "explain", "probe", "info", "export"):
        assert "hf:ORG/NAME" in " ".join(CliRunner().invoke(app, [command, "--help"]).output.split()), command


class Server:
    """Substitute for snapshot_download: the files of a repository that match the patterns appear in the snapshot."""

    def __init__(self, files: Path, snapshot: Path) -> None:
        self.files, self.snapshot, self.asked = files, snapshot, list[tuple[str, str | None]]()

    def __call__(self, repository: str, *, revision: str | None, allow_patterns: list[str]) -> str:
        self.asked.append((repository, revision))
        self.snapshot.mkdir(exist_ok=True)
        for file in self.files.iterdir():
            if any(fnmatch(file.name, pattern) for pattern in allow_patterns):
                (self.snapshot / file.name).write_bytes(file.read_bytes())
        return str(self.snapshot)

    def downloaded(self) -> set[str]:
        return {path.name for path in self.snapshot.iterdir()}


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    pytest.importorskip("huggingface_hub")
    made = Server(published(tmp_path / "remote"), tmp_path / "snapshot")
    for name in ("tf_model.h5", "flax_model.msgpack", "rust_model.ot", "optimizer.pt"):
        (made.files / name).write_bytes(b"not needed")
    monkeypatch.setattr("huggingface_hub.snapshot_download", made)
    return made


@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin"])
def test_only_the_files_that_are_read_are_downloaded(server: Server, file: str) -> None:
    """The pickle is downloaded only without safetensors."""
    weights = server.files / "model.safetensors"
    torch.save(load_file(weights), server.files / "pytorch_model.bin")
    if file != weights.name:
        weights.unlink()
    regard.load("hf:acme/thing@v1")
    assert server.downloaded() == {"config.json", file} and set(server.asked) == {("acme/thing", "v1")}
    count = len(server.asked)
    regard.load("hf:acme/thing@v1")
    assert len(server.asked) == count, "one lookup per process"


def test_an_architecture_that_is_not_supported_is_refused_before_its_weights_are_downloaded(server: Server) -> None:
    (server.files / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(RegardError, match="hf:acme/thing: model_type 'llama' is not supported"):
        regard.load("hf:acme/thing")
    assert server.downloaded() == {"config.json"}
    hub._snapshot.cache_clear()
    (server.files / "config.json").unlink()
    (server.snapshot / "config.json").unlink()
    with pytest.raises(RegardError, match=r"no readable config\.json"):
        regard.load("hf:acme/thing")


FAILURES: dict[str, str | Exception] = {
    "access to this model is restricted": "GatedRepoError",
    "no such repository": "RepositoryNotFoundError",
    "no revision 'v1'": "RevisionNotFoundError",
    "cannot be reached": "LocalEntryNotFoundError",
    "ConnectionError: first line": ConnectionError("first line\nsecond"),
    "No space left": OSError(28, "No space left on device"),
}
"""Message of each failed download; names are errors of huggingface_hub."""


@pytest.mark.parametrize("words", FAILURES)
def test_a_failed_download_is_explained_in_one_line(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    errors, error = pytest.importorskip("huggingface_hub.errors"), FAILURES[words]
    if isinstance(error, str):
        kind = getattr(errors, error)
        error = kind.__new__(kind, "first line\nsecond line")
    monkeypatch.setattr("huggingface_hub.snapshot_download", mock.Mock(side_effect=error))
    with pytest.raises(RegardError) as refused:
        regard.load("hf:acme/thing@v1")
    message = str(refused.value)
    assert message.startswith("hf:acme/thing@v1: ") and words in message and "\n" not in message


def test_a_malformed_name_and_a_missing_package_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("hf:", "hf:a/b/c", "hf:/etc", "hf:../../x", "hf:a b/c", "hf:thing"):
        with pytest.raises(RegardError, match="hf:ORG/NAME"):
            regard.load(name)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(RegardError, match=r"huggingface_hub.*regard\[hub\]") as refused:
        regard.load("hf:acme/thing")
    assert "\n" not in str(refused.value)
